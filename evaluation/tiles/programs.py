"""Programs of a random sample of kernels: whether they compile, what that costs, and whether they compute what their
kernels say, in Triton's interpreter."""

from __future__ import annotations

import random
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from evaluation.tiles.generating import processor_s, results_of
from kcg.kernel.reading.kernel import TileKernel, read_kernel
from kcg.kernel.tile.generate import generate_kernel
from kcg.kernel.tile.legal import random_parameters
from kcg.kernel.tile.parameters import TileParameters
from kcg.kernel.tile.prior import default_parameters
from kcg.kernel.tile.space import schedule_of
from kcg.measure.device_info import first_line
from kcg.types import Kernel, Region, Target
from tests.kernel.tile.running import Case, compare

TIMEOUT_S = 240.0
MOST_STEPS, MOST_ELEMENTS = 400, 1 << 21  # of a program that is interpreted: it takes milliseconds a step
AT_ONCE = 20  # programs in one interpreter


@dataclass(frozen=True)
class Tried:
    """One program: of a kernel's `number`-th choice, where 0 is the prior's. `failure` is empty where it is right."""

    kernel_id: str
    number: int
    compile_s: float = 0.0  # of one core
    failure: str = ""


def parameters_of(kernel: TileKernel, kernel_id: str, number: int, target: Target) -> TileParameters:
    """The prior's choice (0), or a random one."""
    if number == 0:
        return default_parameters(kernel, target)
    return random_parameters(kernel, target, random.Random(f"{kernel_id}:{number}"))


def compiled(kernels: Sequence[Kernel], target: Target, *, choices: int, workers: int) -> Iterator[Tried]:
    """Each program as it is done, compiled with an empty cache in children that may be killed."""
    jobs = {(kernel.id, number): (_compiled, kernel, target) for kernel in kernels for number in range(choices)}
    yield from results_of(
        jobs, target, lost=lambda key, reason: Tried(*key, failure=reason), workers=workers, timeout_s=TIMEOUT_S
    )


def _compiled(kernel_id: str, number: int, kernel: Kernel, target: Target) -> Tried:
    from kcg.kernel.tile.compile import compile_tile

    region = Region((kernel,))
    read = read_kernel(region)
    parameters = parameters_of(read, kernel_id, number, target)
    variables = tuple((v.arg.name, int(v.vmax)) for v in read.variables)
    begin, failure = processor_s(), ""
    try:
        compile_tile(region, schedule_of(parameters), target, variables=variables)
    except Exception as error:  # Triton's own kinds
        failure = f"{type(error).__name__}: {first_line(error)}"[:200]
    return Tried(kernel_id, number, processor_s() - begin, failure)


def interpreted(kernels: Sequence[Kernel], target: Target, *, choices: int) -> Iterator[Tried]:
    """Each program that is small enough, run by Triton's interpreter and compared with the float64 reference."""
    waiting: list[tuple[Tried, Case]] = []
    for kernel in kernels:
        for number in range(choices):
            if (case := _case(kernel, number, target)) is not None:
                waiting.append((Tried(kernel.id, number), case))
        if len(waiting) >= AT_ONCE:
            yield from _compared(waiting)
            waiting = []
    if waiting:
        yield from _compared(waiting)


def _case(kernel: Kernel, number: int, target: Target) -> Case | None:
    region = Region((kernel,))
    read = read_kernel(region)
    parameters = parameters_of(read, kernel.id, number, target)
    program = generate_kernel(read, target, parameters, interpreted=True)
    steps = max(1, -(-read.reduce_extent // max(1, parameters.reduce_tile)))
    if program.launches[0].grid * steps > MOST_STEPS or max(b.size for b in read.buffers) > MOST_ELEMENTS:
        return None
    return Case(region, program, tuple((v.arg.name, int(v.vmax)) for v in read.variables))


def _compared(waiting: Sequence[tuple[Tried, Case]]) -> Iterator[Tried]:
    with tempfile.TemporaryDirectory(prefix="kcg-tiles-") as folder:
        try:
            wrong = compare([case for _, case in waiting], Path(folder))
        except subprocess.SubprocessError as error:
            wrong = [first_line(error)[:200]] * len(waiting)
    for (tried, _), failure in zip(waiting, wrong, strict=True):
        yield Tried(tried.kernel_id, tried.number, failure=failure[:200])
