"""Chains of kernels, the regions of their calls, and programs for these that tinygrad itself schedules and compiles."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from tinygrad import Tensor

from kcg.compat.planning import before_planning
from kcg.compat.sequences import sequences_of
from kcg.compat.tiny import Ops, UOp
from kcg.handover.installing import buffers_of_region
from kcg.kernel.codec import ast_of, kernel_of
from kcg.kernel.compile import compile_schedule
from kcg.kernel.opts.schedule import RAW
from kcg.kernel.opts.space import KernelSpace
from kcg.kernel.program import Compiled, Program, ProgramLaunch, Scratch, program_of_parts
from kcg.kernel.sequences import sequences_of_captured
from kcg.types import Region, Sequence, Target
from tests.known_targets import X86 as MANY_CORES

X86 = replace(MANY_CORES, cores=2, max_threads=2)
"""What this machine can compile and run, too."""


def sequence_of(*outputs: Tensor) -> Sequence:
    """The only sequence of what is not realised yet."""
    (captured,) = sequences_of(*outputs)
    (sequence,) = sequences_of_captured([(captured, (((), 1),))])
    return sequence


def region_of(*outputs: Tensor) -> Region:
    """All calls of the sequence as one region."""
    sequence = sequence_of(*outputs)
    return sequence.region(*range(len(sequence.calls)))


def bound_region(
    build: Callable[..., tuple[Tensor, ...]], inputs: Mapping[str, Tensor]
) -> tuple[Region, dict[str, int], tuple[int, ...]]:
    """The region of all calls of `build(**inputs)`, and its numbers of the inputs and of what is built."""
    linears: list[UOp] = []

    def keep(linear: UOp, _: str) -> UOp:
        linears.append(linear)
        return linear

    outputs = build(**inputs)
    with before_planning(keep):
        region = region_of(*outputs)
    numbers: dict[UOp, int] = {}
    for call in linears[0].src:
        for buffer in call.src[1:]:
            numbers.setdefault(buffer, len(numbers))
    return (
        region,
        {name: numbers[x.uop.buf_uop] for name, x in inputs.items()},
        tuple(numbers[x.uop.buf_uop] for x in outputs),
    )


def compiled_of(ast: UOp, target: Target = X86, *, plain: bool = False) -> Compiled:
    """A kernel as tinygrad schedules it, or in plain loops; its variables, if any, are bound to 2."""
    region = Region((kernel_of(ast),))
    variables = tuple(sorted((v.expr, 2) for v in ast_of(region.kernel).variables()))
    schedule = RAW if plain else KernelSpace(region, target).baseline()
    return compile_schedule(region, schedule, target, variables=variables)


def program_of(
    region: Region,
    inputs: Mapping[int, Tensor],
    build: Callable[..., Mapping[int, Tensor]],
    *,
    target: Target = X86,
) -> Program:
    """The kernels of `build(*inputs)`, as a program on a region's buffers: `inputs` and what `build` gives are named by
    the region's numbers. Whatever else the launches use becomes scratch. Loops are plain: they compile in a third of
    the time that unrolled ones take."""
    linears: list[UOp] = []

    def keep(linear: UOp, _: str) -> UOp:
        linears.append(linear)
        return linear

    outputs = build(*inputs.values())
    with before_planning(keep):
        Tensor.linear_with_vars(*outputs.values())
    (linear,) = linears
    numbers = {t.uop.buf_uop: number for number, t in (*inputs.items(), *outputs.items())}
    buffers = 1 + max(number for slots in region.args for number in slots) if region.args else len(numbers)
    made: list[Scratch] = []
    launches = []
    for call in linear.src:
        assert call.src[0].op is Ops.SINK
        compiled = compiled_of(call.src[0], target, plain=True)
        arguments = [call.src[1 + slot] for slot in compiled.slots]
        for argument in arguments:
            if argument not in numbers:
                numbers[argument] = buffers + len(made)
                made.append(Scratch(argument.max_numel(), argument.dtype.name))
        launches.append(ProgramLaunch(compiled, tuple(numbers[a] for a in arguments)))
    return Program(tuple(launches), buffers, tuple(made))


def hiding(region: Region, keep: set[int]) -> Program:
    """The region's kernels in order, with a buffer of the program's own for each value that it does not give away."""
    parts = program_of_parts(region, [compiled_of(ast_of(kernel)) for kernel in region.kernels])
    buffers, own = buffers_of_region(region), dict[int, int]()
    scratch: list[Scratch] = []
    launches = []
    for launch in parts.launches:
        for slot in launch.binds(launch.compiled.outputs):
            if slot not in keep and slot not in own:
                own[slot] = parts.buffers + len(scratch)
                scratch.append(Scratch(buffers[slot][0], buffers[slot][1]))
        launches.append(ProgramLaunch(launch.compiled, tuple(own.get(n, n) for n in launch.args)))
    return Program(tuple(launches), parts.buffers, tuple(scratch))
