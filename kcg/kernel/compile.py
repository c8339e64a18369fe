"""From a region and a schedule to a binary, as plain data that can cross a process boundary."""

from __future__ import annotations

import math
from typing import Any

from kcg.compat.assembler import assemble, assembler
from kcg.compat.programs import begins_with, compile_c, compiler_words
from kcg.compat.renderers import compiling_renderer, machine_code, planning_renderer, tiny_target
from kcg.compat.scheduling import hand_coded, initial_state, to_tiny, with_device
from kcg.compat.tiny import AddrSpace, CompileError, Context, KernelInfo, Ops, TinyELF, dtypes, to_program
from kcg.errors import ScheduleError
from kcg.kernel.codec import ast_of
from kcg.kernel.opts.schedule import opts_of
from kcg.kernel.program import BoundLaunch, Compiled
from kcg.kernel.source.body import MACHINE, PTX, SourceBody, source_body
from kcg.types import Region, Schedule, ScheduleKind, Target, Variables

FUNCTION = "kernel"  # the name of what is compiled, so that two schedules with the same code have the same binary
UOPS_MAX = 3000
"""Schedules of more micro-operations are refused, as BEAM refuses them: compilers take seconds and the code is slow.
tinygrad's own never is, since it is what runs now; on a CPU that of a sum over `Tensor.randn` is longer."""


def _program(region: Region, schedule: Schedule, renderer: Any, *, name: str) -> Any:
    if schedule.kind != ScheduleKind.OPTS:
        raise ScheduleError(f"a schedule of kind {schedule.kind!r} is no schedule of Opts")
    opts = tuple(to_tiny(o) for o in opts_of(schedule))
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

    Raises ScheduleError (the schedule is not legal, or it makes the kernel too long) or the compiler's own error.
    """
    if schedule.kind == ScheduleKind.SOURCE:
        return _compile_source(region, source_body(schedule), target)
    renderer = compiling_renderer(target)
    program = _program(region, schedule, renderer, name=FUNCTION)
    source = _readable(program, renderer)
    if target.renderer == "X86":
        check_places(program)
    if (uops := len(program.src[1].src)) > UOPS_MAX and not _is_own(schedule, region, target):
        raise ScheduleError(f"the kernel has {uops} micro-operations, more than {UOPS_MAX}")
    return plain(program, (variables, *also), source, machine_code(source, renderer))


def _is_own(schedule: Schedule, region: Region, target: Target) -> bool:
    """Whether it is what tinygrad itself does to the kernel."""
    return opts_of(schedule) == hand_coded(initial_state(ast_of(region.kernel), planning_renderer(target)))


def check_places(program: Any) -> None:
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


def plain(program: Any, bindings: tuple[Variables, ...], source: str, image: bytes) -> Compiled:
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
        by_hand=True,
    )


def _assembled(body: SourceBody, target: Target) -> bytes:
    """What tinygrad's runtime loads: machine code, or PTX where nothing here assembles it. Raises CompileError."""
    if body.language == MACHINE:
        return body.machine_code
    if body.language == PTX:
        using = assembler()  # without one the driver assembles it when it is loaded
        return assemble(body.source, using).cubin if using is not None else body.source.encode() + b"\0"
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
