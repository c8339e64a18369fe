"""From a region and a schedule to a binary, as plain data that can cross a process boundary."""

from __future__ import annotations

import math
from typing import Any

from kcg.compat.renderers import compiling_renderer, machine_code, planning_renderer, tiny_target
from kcg.compat.scheduling import to_tiny, with_device
from kcg.compat.tiny import AddrSpace, Context, KernelInfo, Ops, TinyELF, dtypes, to_program
from kcg.errors import ScheduleError
from kcg.kernel.codec import ast_of
from kcg.kernel.compiled import Compiled
from kcg.types import Region, Schedule, ScheduleKind, Target

UOPS_MAX = 3000
"""Kernels of more micro-operations are refused, as BEAM refuses them: compilers take seconds and the code is slow."""


def _program(region: Region, schedule: Schedule, renderer: Any, *, name: str) -> Any:
    if schedule.kind != ScheduleKind.OPTS:
        raise ScheduleError(f"schedules of kind {schedule.kind!r} cannot be compiled yet")
    opts = tuple(to_tiny(o) for o in schedule.opts)
    ast = with_device(ast_of(region.kernel), renderer.target.device)
    with Context(DEBUG=0, BEAM=0, NOOPT=0):
        return to_program(ast.replace(arg=KernelInfo(name=name, opts_to_apply=opts)), renderer)


def compile_schedule(
    region: Region, schedule: Schedule, target: Target, *, variables: tuple[tuple[str, int], ...] = ()
) -> Compiled:
    """Compile for `target` on this machine.

    The function is always named `kernel`, so that two schedules with the same code have the same binary.
    Raises ScheduleError (the schedule is not legal, or the kernel too long) or the compiler's own error.
    """
    renderer = compiling_renderer(target)
    program = _program(region, schedule, renderer, name="kernel")
    source = _readable(program, renderer)
    if target.renderer == "X86":
        _check_places(program)
    return _plain(program, dict(variables), source, machine_code(source, renderer))


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


def _plain(program: Any, variables: dict[str, int], source: str, image: bytes) -> Compiled:
    linear, info = program.src[1].src, program.arg
    if len(linear) > UOPS_MAX:
        raise ScheduleError(f"the kernel has {len(linear)} micro-operations, more than {UOPS_MAX}")
    pointers = [u for u in linear if u.op is Ops.PARAM and u.addrspace != AddrSpace.ALU]
    parameters = [*pointers, *info.vars]
    global_size, local_size = info.launch_dims(variables)
    return Compiled(
        binary=program.src[3].arg,
        source=source,
        function_name=info.function_name,
        signature=tuple((u.arg.name, u.arg.slot, u.dtype.name) for u in parameters),
        slots=tuple(info.globals),
        outputs=tuple(info.outs),
        inputs=tuple(info.ins),
        global_size=tuple(math.ceil(x) for x in global_size),
        local_size=tuple(int(x) for x in (local_size or (1, 1, 1))),
        values=tuple(info.vals(variables)),
        uops=len(linear),
        image=image,
    )


def to_elf(compiled: Compiled, target: Target, *, as_tinygrad: bool = True) -> Any:
    """What tinygrad's runtime loads; unless `as_tinygrad`, the machine code where there is one beside the binary."""
    by_name = {d.name: d for d in dtypes.all}
    signature = tuple((name, slot, by_name[dtype], ()) for name, slot, dtype in compiled.signature)
    code = compiled.binary if as_tinygrad or not compiled.image else compiled.image
    return TinyELF(code, compiled.function_name, tiny_target(target), signature)
