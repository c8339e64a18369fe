"""Compiled programs of single kernels in a running program, in the place of the calls of these kernels.

These are hand-written kernels, and tinygrad's own schedules as a run compiled them: on a CPU lowering and compiling
these once more takes most of the whole model's check. What was found is compiled there as programs will.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kcg.compat.capture import choosing_opts
from kcg.compat.programs import core_variable, is_aligned, single_device
from kcg.compat.standalone import program_of_code
from kcg.compat.tiny import Ops
from kcg.handover.installing import kernel_id
from kcg.kernel.compile import to_elf
from kcg.kernel.program import Compiled
from kcg.measure.source_kernels import rebuilt
from kcg.types import Kernel, Region, Schedule, Target


class ProgramsInPlace:
    """Gives the program for a call, if there is one. `aligned` leaves out calls with buffers that begin at odd
    addresses: a program may load sixteen bytes at once, and 64 on a CPU."""

    def __init__(self, compiled: Mapping[str, Compiled], target: Target, *, aligned: bool = False) -> None:
        self._compiled, self._target, self._aligned = compiled, target, aligned
        self._ids: dict[bytes, str | None] = {}
        self._programs: dict[tuple[bytes, str], Any] = {}

    def __call__(self, call: Any) -> tuple[str, Any] | None:
        """The id of the kernel that a call runs and the program to run instead; None where nothing is, as where a
        kernel runs on several devices or its author scheduled it. Raises what tinygrad raises where it does not load.
        """
        ast, device = call.src[0], single_device(call)
        if not self._compiled or device is None or device.split(":")[0] != self._target.device:
            return None
        if ast.key not in self._ids:
            self._ids[ast.key] = kernel_id(ast)
        found = self._ids[ast.key]
        if found is None or found not in self._compiled or (self._aligned and not is_aligned(call)):
            return None
        if (ast.key, device) not in self._programs:
            self._programs[ast.key, device] = _program(ast, self._compiled[found], self._target, device)
        return found, self._programs[ast.key, device]


def _program(ast: Any, compiled: Compiled, target: Target, device: str) -> Any:
    """A kernel without variables on one device, in tinygrad's terms."""
    by_slot = {u.arg.slot: u for u in ast.toposort() if u.op is Ops.PARAM}
    threads = (core_variable(len(compiled.slots), compiled.global_size[0]),) if compiled.values else ()
    pointers = [by_slot[slot] for slot in compiled.slots]
    return program_of_code(ast, pointers, threads, to_elf(compiled, target), compiled, device)


def handwritten_programs(wanted: Mapping[Kernel, Schedule], paths: Sequence[Path], target: Target) -> ProgramsInPlace:
    """Hand-written kernels for the calls of their kernels, all made now in a child, from the user's files.

    Raises UsageError or MismatchError, see `kcg.measure.source_kernels.rebuilt`.
    """
    regions = {Region((kernel,)): schedule for kernel, schedule in wanted.items()}
    made = rebuilt(regions, paths, target) if regions else {}
    return ProgramsInPlace({region.id: compiled for region, compiled in made.items()}, target, aligned=True)


@contextlib.contextmanager
def compiled_before(programs: Mapping[str, Compiled], target: Target) -> Iterator[set[str]]:
    """Inside the block, a kernel for which nothing else is chosen runs its program, by its id, if there is one: code
    that tinygrad would make again. Gives the ids of those that did so far."""
    in_place, used, failed = ProgramsInPlace(programs, target), set[str](), set[bytes]()

    def program(call: Any) -> Any:
        kernel = call.src[0].key
        if kernel in failed:
            return None
        try:
            made = in_place(call)
        except Exception:  # whatever does not load tinygrad compiles
            failed.add(kernel)
            return None
        if made is None:
            return None
        used.add(made[0])
        return made[1]

    with choosing_opts(lambda ast: None, program):
        yield used
