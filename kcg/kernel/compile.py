"""From a region and a schedule to a binary, as plain data that can cross a process boundary."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from kcg.compat.programs import begins_with, compile_c, compiler_words
from kcg.compat.renderers import assembled_ptx, compiling_renderer, machine_code, planning_renderer, tiny_target
from kcg.compat.scheduling import hand_coded, initial_state, to_tiny, with_device
from kcg.compat.tiny import AddrSpace, CompileError, Context, KernelInfo, Ops, TinyELF, dtypes, to_program
from kcg.errors import ScheduleError
from kcg.kernel.codec import ast_of
from kcg.kernel.source.kernels import MACHINE, PTX, SourceBody, source_body
from kcg.types import Region, Schedule, ScheduleKind, Target, Variables, content_id

# ---- Compiled kernels and programs of several launches, as plain data that can cross a process boundary.


@dataclass(frozen=True)
class BoundLaunch:
    """How a binary is launched with some values of its kernel's symbolic variables."""

    variables: Variables
    global_size: tuple[int, ...]
    local_size: tuple[int, ...]
    values: tuple[int | None, ...]  # as in `Compiled`


@dataclass(frozen=True)
class Compiled:
    """One compiled kernel. `signature` lists `(name, slot, dtype name)` of its parameters, buffers first.

    A binary runs with any values of the kernel's symbolic variables; `global_size`, `local_size` and `values` are those
    of a launch with one of the sets of values that were named when it was compiled, see `at`.
    """

    binary: bytes
    source: str
    function_name: str
    signature: tuple[tuple[str | None, int, str], ...]
    slots: tuple[int, ...]  # which buffer each pointer parameter takes
    outputs: tuple[int, ...]
    inputs: tuple[int, ...]
    global_size: tuple[int, ...]
    local_size: tuple[int, ...]
    values: tuple[int | None, ...]  # of symbolic variables; None is the thread number, which the runtime fills in
    uops: int
    image: bytes = b""  # the same as machine code, where `binary` is compiled once more when it is loaded
    shared_bytes: int = 0  # dynamic shared memory of a launch
    threads: int = 0  # of a hand-written kernel on a CPU, see `kcg.kernel.source.kernels.SourceBody`
    launch_id: str = ""  # of a hand-written kernel, whose code does not say how it is launched
    launches: tuple[BoundLaunch, ...] = ()  # one for each of these sets; none where the kernel has no variables

    def runs_at(self, variables: Variables) -> bool:
        """Whether it is known how it is launched with these values."""
        return not self.launches or any(launch.variables == variables for launch in self.launches)

    def at(self, variables: Variables) -> Compiled:
        """The same binary, launched with these values. Raises ValueError where they were not named before."""
        if not self.launches:
            return self
        for launch in self.launches:
            if launch.variables == variables:
                return replace(self, global_size=launch.global_size, local_size=launch.local_size, values=launch.values)
        raise ValueError(f"{self.function_name} was compiled for other values than {dict(variables)}")

    @property
    def binary_hash(self) -> str:
        """What tells it from other binaries of the same kernel."""
        return hashlib.sha256(self.binary + self.launch_id.encode()).hexdigest()


@dataclass(frozen=True)
class ProgramLaunch:
    """One launch of a program: `args` lists which of the program's buffers each pointer of the binary takes, in the
    order of `Compiled.slots`."""

    compiled: Compiled
    args: tuple[int, ...]

    def binds(self, slots: tuple[int, ...]) -> tuple[int, ...]:
        """The program's buffers that some slots of the binary take, such as its outputs."""
        return tuple(self.args[self.compiled.slots.index(slot)] for slot in slots)


@dataclass(frozen=True)
class Scratch:
    """A buffer that nobody else sees: a workspace of one launch, or what one launch leaves for the next."""

    elements: int
    dtype: str  # tinygrad's name of it, as in `Compiled.signature`

    def __post_init__(self) -> None:
        if self.elements < 1:
            raise ValueError("a workspace has at least one element")


@dataclass(frozen=True)
class Program:
    """What runs a region: launches in order on the region's buffers, numbered as there, and on `scratch` after these.

    What a launch writes must be among the outputs of its `Compiled`, workspaces included.
    """

    launches: tuple[ProgramLaunch, ...]
    buffers: int  # of the region
    scratch: tuple[Scratch, ...] = ()

    def __post_init__(self) -> None:
        last = self.buffers + len(self.scratch)
        if not self.launches or any(not 0 <= n < last for launch in self.launches for n in launch.args):
            raise ValueError("a program has launches, on buffers of its own")
        if any(len(launch.args) != len(launch.compiled.slots) for launch in self.launches):
            raise ValueError("a launch binds each pointer of its binary to a buffer")

    @property
    def id(self) -> str:
        """Hash of binaries, launch sizes, argument order and workspace: equal programs are one measurement."""
        rows = [
            [
                launch.compiled.binary_hash,
                list(launch.compiled.global_size),
                list(launch.compiled.local_size),
                list(launch.compiled.values),
                launch.compiled.shared_bytes,
                list(launch.args),
            ]
            for launch in self.launches
        ]
        return content_id([rows, self.buffers, [[s.elements, s.dtype] for s in self.scratch]])

    @property
    def outputs(self) -> tuple[int, ...]:
        """The region's buffers that it writes."""
        written = {n for launch in self.launches for n in launch.binds(launch.compiled.outputs)}
        return tuple(sorted(n for n in written if n < self.buffers))


def program_of_parts(region: Region, parts: Sequence[Compiled]) -> Program:
    """The region's kernels in order, each compiled by itself, as one program: what it is compared with.

    The intermediates stay buffers of the region, so it stores what tinygrad stores.
    """
    if len(parts) != len(region.kernels):
        raise ValueError("a region has as many parts as kernels")
    args = region.args or (tuple(range(1 + max(parts[0].slots))),)
    launches = [
        ProgramLaunch(compiled, tuple(slots[slot] for slot in compiled.slots))
        for compiled, slots in zip(parts, args, strict=True)
    ]
    return Program(tuple(launches), buffers=1 + max(number for slots in args for number in slots))


UOPS_MAX = 3000
"""Schedules of more micro-operations are refused, as BEAM refuses them: compilers take seconds and the code is slow.
tinygrad's own never is, since it is what runs now; on a CPU that of a sum over `Tensor.randn` is longer."""


def _program(region: Region, schedule: Schedule, renderer: Any, *, name: str) -> Any:
    if schedule.kind != ScheduleKind.OPTS:
        raise ScheduleError(f"a schedule of kind {schedule.kind!r} is no schedule of Opts")
    opts = tuple(to_tiny(o) for o in schedule.opts)
    ast = with_device(ast_of(region.kernel), renderer.target.device)
    with Context(DEBUG=0, BEAM=0, NOOPT=0):
        return to_program(ast.replace(arg=KernelInfo(name=name, opts_to_apply=opts)), renderer)


def compile_schedule(
    region: Region,
    schedule: Schedule,
    target: Target,
    *,
    variables: Variables = (),
    also: tuple[Variables, ...] = (),
) -> Compiled:
    """Compile for `target` on this machine, to be launched with `variables` or with one of those in `also`.

    The function is always named `kernel`, so that two schedules with the same code have the same binary.
    Raises ScheduleError (the schedule is not legal, or it makes the kernel too long) or the compiler's own error.
    """
    if schedule.kind == ScheduleKind.SOURCE:
        return _compile_source(region, source_body(schedule), target)
    renderer = compiling_renderer(target)
    program = _program(region, schedule, renderer, name="kernel")
    source = _readable(program, renderer)
    if target.renderer == "X86":
        _check_places(program)
    if (uops := len(program.src[1].src)) > UOPS_MAX and not _is_own(schedule, region, target):
        raise ScheduleError(f"the kernel has {uops} micro-operations, more than {UOPS_MAX}")
    return _plain(program, (variables, *also), source, machine_code(source, renderer))


def _is_own(schedule: Schedule, region: Region, target: Target) -> bool:
    """Whether it is what tinygrad itself does to the kernel."""
    return schedule == hand_coded(initial_state(ast_of(region.kernel), planning_renderer(target)))


def _check_places(program: Any) -> None:
    """Refuse what tinygrad's X86 backend compiles wrong: it finds a variable by its number, not by its place.

    A buffer that the kernel does not use leaves a gap in the numbers, and the variable behind it is read as an address.
    """
    for place, variable in enumerate(program.arg.vars, len(program.arg.globals)):
        if variable.arg.slot != place:
            raise ScheduleError(f"tinygrad's X86 backend would misplace the variable {variable.arg.name}")


def render_schedule(region: Region, schedule: Schedule, target: Target) -> tuple[str, str]:
    """The kernel's name and its source code for `target`, without that target's compiler."""
    renderer = planning_renderer(target)
    program = _program(region, schedule, renderer, name="test")
    return str(program.arg.name), _readable(program, renderer)


def _readable(program: Any, renderer: Any) -> str:
    """The source of a program. tinygrad's X86 backend has none, only instructions: then their assembly text."""
    if hasattr(renderer, "asm_str"):
        return str(renderer.asm_str(list(program.src[1].src), program.arg.function_name))
    return str(program.src[2].arg)


def _launch(info: Any, variables: Variables) -> BoundLaunch:
    global_size, local_size = info.launch_dims(dict(variables))
    return BoundLaunch(
        variables,
        global_size=tuple(math.ceil(x) for x in global_size),
        local_size=tuple(int(x) for x in (local_size or (1, 1, 1))),
        values=tuple(info.vals(dict(variables))),
    )


def _plain(program: Any, bindings: tuple[Variables, ...], source: str, image: bytes) -> Compiled:
    linear, info = program.src[1].src, program.arg
    launches = tuple(_launch(info, variables) for variables in bindings)
    pointers = [u for u in linear if u.op is Ops.PARAM and u.addrspace != AddrSpace.ALU]
    parameters = [*pointers, *info.vars]
    return Compiled(
        binary=program.src[3].arg,
        source=source,
        function_name=info.function_name,
        signature=tuple((u.arg.name, u.arg.slot, u.dtype.name) for u in parameters),
        slots=tuple(info.globals),
        outputs=tuple(info.outs),
        inputs=tuple(info.ins),
        global_size=launches[0].global_size,
        local_size=launches[0].local_size,
        values=launches[0].values,
        uops=len(linear),
        image=image,
        launches=launches if any(bindings) else (),
    )


def _compile_source(region: Region, body: SourceBody, target: Target) -> Compiled:
    """A hand-written kernel as a binary that takes a region's buffers in slot order."""
    from kcg.kernel.source.kernels import view_of

    view, nodes = view_of(region, target), ast_of(region.kernel).toposort()
    params = sorted((u for u in nodes if u.op is Ops.PARAM), key=lambda u: u.arg.slot)
    signature = tuple((u.arg.name, u.arg.slot, u.dtype.name) for u in params)
    threads = (("core_id", len(params), "int"),) if body.threads else ()
    try:
        binary = _assembled(body, target)
    except CompileError as error:
        raise ScheduleError(f"{body.name} does not compile: {compiler_words(error)}") from None
    return Compiled(
        binary=binary,
        source=body.source,
        function_name=body.entry,
        signature=(*signature, *threads),
        slots=tuple(b.slot for b in view.buffers),
        outputs=tuple(b.slot for b in view.outputs),
        inputs=tuple(b.slot for b in view.inputs),
        global_size=body.global_size,
        local_size=body.local_size,
        values=(None,) if body.threads else (),
        uops=0,
        shared_bytes=body.shared_bytes,
        threads=body.threads,
        launch_id=f"{body.entry} {body.global_size} {body.local_size} {body.shared_bytes} {body.threads}",
    )


def _assembled(body: SourceBody, target: Target) -> bytes:
    """What tinygrad's runtime loads: machine code, or PTX where nothing here assembles it. Raises CompileError."""
    if body.language == MACHINE:
        return body.machine_code
    if body.language == PTX:
        return assembled_ptx(body.source, target.arch) or body.source.encode() + b"\0"
    if body.language == "CLANG":
        binary = compile_c(body.source, tiny_target(target))
        if not begins_with(binary, body.entry):
            raise ScheduleError(f"{body.entry} must come first in the C source: declare the others `static inline`")
        return binary
    renderer = compiling_renderer(target)
    if body.language != target.renderer:
        raise ScheduleError(f"{body.name} is {body.language} source, which {target.renderer} does not compile")
    binary = bytes(renderer.compiler.compile(body.source))
    return machine_code(body.source, renderer) or binary


def to_elf(compiled: Compiled, target: Target, *, as_tinygrad: bool = True) -> Any:
    """What tinygrad's runtime loads; unless `as_tinygrad`, the machine code where there is one beside the binary."""
    by_name = {d.name: d for d in dtypes.all}
    signature = tuple((name, slot, by_name[dtype], ()) for name, slot, dtype in compiled.signature)
    code = compiled.binary if as_tinygrad or not compiled.image else compiled.image
    return TinyELF(code, compiled.function_name, tiny_target(target), signature)
