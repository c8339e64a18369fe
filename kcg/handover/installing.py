"""Compiled programs in a running program: `install` puts them in the place of the calls of their regions.

It works wherever the program plans memory inside the block: eagerly, under `TinyJit`, in graphs. See
`kcg.compat.replacing` for what is safe, and what becomes of the rest.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence

from kcg.compat import standalone
from kcg.compat.capture import why_fixed
from kcg.compat.planning import before_planning
from kcg.compat.renderers import tiny_target
from kcg.compat.replacing import OwnKernel, Placed, PlacedLaunch, Replaced, Replacement, Replacing
from kcg.compat.scheduling import to_tiny
from kcg.compat.stretch import accesses_of
from kcg.compat.tiny import AddrSpace, Ops, UOp
from kcg.errors import CodecError, ScheduleError
from kcg.kernel.codec import ast_of, kernel_of
from kcg.kernel.kinds import opts_of
from kcg.kernel.program import Compiled, Program, ProgramLaunch
from kcg.types import Region, Schedule, Target, malformed


@contextlib.contextmanager
def install(programs: Mapping[Region, Program], target: Target, *, aligned: bool = False) -> Iterator[Replaced]:
    """Inside the block, the calls of each region run its program, wherever that is safe; regions named first go first.

    A `TinyJit` that is captured in the block keeps its programs after it. `aligned` leaves calls alone whose buffers do
    not begin at multiples of 16 bytes. Gives what was replaced so far, and what was left and why.

    Raises ScheduleError, before the block, for a program that does not fit its region or cannot be launched by
    tinygrad: it leaves an output unwritten, or its grid depends on the values of variables.
    """
    replacements = [
        Replacement(region, placed_program(region, program, target, aligned)) for region, program in programs.items()
    ]
    with installing(replacements) as report:
        yield report


@contextlib.contextmanager
def installing(
    replacements: Sequence[Replacement], *, is_off: Callable[[], bool] = lambda: False
) -> Iterator[Replaced]:
    """`install` for what is not compiled yet, such as `placed_kernels`. What is planned while it `is_off` stays."""
    replacing = Replacing(replacements, kernel_id)
    with before_planning(lambda linear, _: linear if is_off() else replacing(linear)):
        yield replacing.report


def kernel_id(ast: UOp) -> str | None:
    """The id of the kernel of an AST; None where it is none of tinygrad's scheduler, or its author scheduled it."""
    if why_fixed(ast):
        return None
    try:
        return kernel_of(ast).id
    except CodecError:
        return None


def placed_kernels(region: Region, schedules: Sequence[Schedule]) -> Placed:
    """The kernels of a region of several in order, each with its Opts: tinygrad compiles them, on any device."""
    launches = []
    for place, (schedule, slots) in enumerate(zip(schedules, region.args, strict=True)):
        launches.append(PlacedLaunch(OwnKernel(place, tuple(map(to_tiny, opts_of(schedule)))), slots))
    return Placed(tuple(launches))


def buffers_of_kernel(region: Region, place: int) -> dict[int, tuple[int, str]]:
    """Elements and dtype of each buffer of one of a region's kernels, by slot."""
    params = (u for u in ast_of(region.kernels[place]).toposort() if u.op is Ops.PARAM)
    return {u.arg.slot: (int(u.max_numel()), u.dtype.name) for u in params if u.addrspace != AddrSpace.ALU}


def buffers_of_region(region: Region) -> dict[int, tuple[int, str]]:
    """Elements and dtype of each buffer of a region that a kernel of it uses."""
    found: dict[int, tuple[int, str]] = {}
    for place in range(len(region.kernels)):
        of_slots = buffers_of_kernel(region, place)
        slots = region.args[place] if region.args else tuple(range(1 + max(of_slots)))
        found.update({slots[slot]: buffer for slot, buffer in of_slots.items()})
    return found


def outputs_of_region(region: Region) -> tuple[int, ...]:
    """What is observed of a region: of one kernel all that it writes."""
    if region.outputs:
        return region.outputs
    accesses = accesses_of(ast_of(region.kernel))
    return accesses[1] if accesses else ()


def placed_program(region: Region, program: Program, target: Target, aligned: bool) -> Callable[[str], Placed | None]:
    """The program on any device of the target, for a `Replacement`; each device's PROGRAMs are made once. Raises as
    `install`."""
    plain = plain_program(region, program, aligned=aligned)
    known: dict[str, Placed] = {}

    def place(device: str) -> Placed | None:
        if device.split(":")[0] != target.device:
            return None
        if device not in known:
            known[device] = standalone.placed_program(plain, tiny_target(target), device)
        return known[device]

    return place


def plain_program(region: Region, program: Program, *, aligned: bool) -> standalone.Program:
    """The program of a region as data that tinygrad alone can put in place. Raises as `install`."""
    if wrong := malformed(region):
        raise ScheduleError(f"no region: {wrong}")
    buffers, outputs = buffers_of_region(region), outputs_of_region(region)
    workspaces = tuple(program.buffers + i for i in range(len(program.scratch)))
    buffers |= {number: (s.elements, s.dtype) for number, s in zip(workspaces, program.scratch, strict=True)}
    if unknown := {number for launch in program.launches for number in launch.args} - set(buffers):
        raise ScheduleError(f"the program takes buffers that its region lacks: {sorted(unknown)}")
    if missing := set(outputs) - set(program.outputs):
        raise ScheduleError(f"the program does not write the outputs {sorted(missing)} of its region")
    launches = tuple(map(_plain_launch, program.launches))
    return standalone.Program(launches, buffers, workspaces, aligned)


def _plain_launch(launch: ProgramLaunch) -> standalone.Launch:
    compiled = launch.compiled
    places = {slot: place for place, slot in enumerate(compiled.slots)}
    return standalone.Launch(
        code=compiled.binary,
        name=compiled.function_name,
        signature=compiled.signature,
        args=launch.args,
        outputs=tuple(places[slot] for slot in compiled.outputs),
        inputs=tuple(places[slot] for slot in compiled.inputs),
        global_size=compiled.global_size,
        local_size=compiled.local_size,
        shared_bytes=compiled.shared_bytes,
        variables=_variables_of(compiled),
        source=compiled.source,
    )


def _variables_of(compiled: Compiled) -> tuple[str, ...]:
    """The names of the integers that follow the buffers. Graphs are launched with a grid that is made once."""
    if len({(launch.global_size, launch.local_size) for launch in compiled.launches}) > 1:
        raise ScheduleError(f"{compiled.function_name}'s grid depends on the values of its variables")
    names = [name or "" for name, _, _ in compiled.signature[len(compiled.slots) :]]
    if len(names) != len(compiled.values) or not all(names):
        raise ScheduleError(f"{compiled.function_name} takes {len(compiled.values)} values, but does not name them")
    threads = [name == standalone.CORE_ID for name, value in zip(names, compiled.values, strict=True) if value is None]
    if not all(threads):
        raise ScheduleError(f"{compiled.function_name} takes a value that tinygrad does not fill in")
    return tuple(names)
