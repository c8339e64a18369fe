"""Races planted into generated tile programs: one block of a launch leaves something else, at a known rate.

The PTX that Triton made of a program gets some instructions more, which nothing outside the launch can influence: one
thread, or all of one block, hashes the clock and compares the hash with a threshold. Below it

- `accumulator`: 1000 is added to one value of the thread's accumulator, after the wait for the last matrix product;
- `wait`: no thread of the block waits for its asynchronous copies, so the products read what shared memory held before.

The first differs at exactly the rate of the threshold. How often the second leaves something else depends on what has
arrived by then, so its rate is measured (`plain_job`). The control has the same instructions and the threshold 1.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from tinygrad import Tensor

from kcg.kernel.program import Program
from kcg.kernel.reading.fuse import read_region
from kcg.kernel.reading.kernel import TileKernel
from kcg.kernel.tile import compile as tile
from kcg.kernel.tile.parameters import CONTRACTION, PIPELINED, POINTER, SPECIALIZED, TMA, TileParameters
from kcg.kernel.tile.pipelined import pipelined_axes
from kcg.kernel.tile.prior import default_parameters, parameters_of
from kcg.kernel.tile.space import schedule_of
from kcg.measure.jobs import StressJob, StressOutcome
from kcg.types import Region, Schedule, Target
from tests.chains import region_of
from tests.kernels import empty

CONTROL = 0.0
"""The rate of a program with the same instructions, which leaves something else in one of 2**32 launches."""
ACCUMULATOR, WAIT = "accumulator", "wait"
M, N, K = 1_600, 1_536, 512  # of the matmuls: 13 × 12 tiles of 128 × 128
OF_ATTENTION = (3, 512, 128)  # heads, rows, numbers of a head


def matmul() -> Region:
    """A matmul in bfloat16 with bias and GELU."""
    x, w, b = (empty(*shape, dtype="bfloat16") for shape in ((M, K), (N, K), (N,)))
    return region_of((x @ w.T + b).gelu().contiguous())


def attention() -> Region:
    """Attention in bfloat16."""
    query, key, value = (empty(*OF_ATTENTION, dtype="bfloat16") for _ in range(3))
    return region_of(Tensor.scaled_dot_product_attention(query, key, value).contiguous())


@dataclass(frozen=True)
class Subject:
    """A generated program, and where its race is planted."""

    region: Callable[[], Region]
    choose: Callable[[TileKernel, Target], TileParameters]
    place: str = ACCUMULATOR
    mask: int = 1023  # bits of the thread's number that are 0 in the one that races

    def schedule(self, region: Region, target: Target) -> Schedule:
        """Its parameters as a schedule."""
        return schedule_of(self.choose(read_region(region), target))


def _tiled(loads: str) -> Callable[[TileKernel, Target], TileParameters]:
    def choose(kernel: TileKernel, target: Target) -> TileParameters:
        axes = default_parameters(kernel, target).axes
        return TileParameters(CONTRACTION, axes, (128, 128), 64, loads=loads, num_warps=8, num_stages=3, group=8)

    return choose


def _producer_and_consumers(kernel: TileKernel, target: Target) -> TileParameters:
    return parameters_of(kernel, target, PIPELINED, pipelined_axes(kernel)[0])


def _warp_specialised(kernel: TileKernel, target: Target) -> TileParameters:
    return parameters_of(kernel, target, SPECIALIZED, default_parameters(kernel, target).axes)


OF_A_GROUP = 127  # the first thread of the one group of four warps that runs the code
SUBJECTS: dict[str, Subject] = {
    "TMA matmul": Subject(matmul, _tiled(TMA)),
    "producer/consumer matmul": Subject(matmul, _producer_and_consumers, mask=OF_A_GROUP),
    "warp-specialised attention": Subject(attention, _warp_specialised, mask=OF_A_GROUP),
    "matmul of asynchronous copies": Subject(matmul, _tiled(POINTER), WAIT),
}

# ---- planting

_WAITED = re.compile(r"// wait for regs: (%r\d+)[^\n]*\n\s*wgmma\.wait_group\.sync\.aligned 0;\n\s*// end inline asm\n")
_COPIES = re.compile(r"^(\s*)(cp\.async\.wait_group\s+\d+;)", re.MULTILINE)
_BEGIN = re.compile(r"^// %bb\.0:.*\n", re.MULTILINE)

# murmur3's last step over the multiprocessor's clock and the GPU's, which no two launches have the same
_HASH = """mov.u32 %raced1, %globaltimer_lo;
{earlier}
mad.lo.u32 %raced1, %raced1, 2654435761, {seed};
shr.u32 %raced2, %raced1, 16;
xor.b32 %raced1, %raced1, %raced2;
mul.lo.u32 %raced1, %raced1, 2246822507;
shr.u32 %raced2, %raced1, 13;
xor.b32 %raced1, %raced1, %raced2;
mul.lo.u32 %raced1, %raced1, 3266489909;
shr.u32 %raced2, %raced1, 16;
xor.b32 %raced1, %raced1, %raced2;
"""
_ONE_CLOCK = "mov.u32 %raced2, %clock; add.u32 %raced1, %raced1, %raced2;"
_WHOLE_BLOCK = "shr.u32 %raced1, %raced1, 11;"  # in steps of 2 us: the warps of a block begin within one


def threshold(rate: float) -> int:
    """Of a hash of 32 bits that is below it at this rate."""
    return max(1, round(rate * 2**32))


def planted(text: str, subject: Subject, rate: float, seed: int) -> str:
    """PTX with a race of this rate. Raises ValueError where it has no place for it."""
    if subject.place == WAIT:
        return _without_waiting(text, rate, seed)
    places = list(_WAITED.finditer(text))
    if not places:
        raise ValueError("the PTX waits for no last matrix product")
    last = places[-1]
    added = (
        "{\n.reg .b32 %raced<3>; .reg .pred %races<2>;\n"
        f"mov.u32 %raced0, %tid.x; and.b32 %raced0, %raced0, {subject.mask};\n"
        "mov.u32 %raced1, %ctaid.x; or.b32 %raced0, %raced0, %raced1;\nsetp.eq.u32 %races0, %raced0, 0;\n"
        f"{_HASH.format(earlier=_ONE_CLOCK, seed=seed)}"
        f"setp.lo.and.u32 %races1, %raced1, {threshold(rate)}, %races0;\n"
        f"@%races1 add.rn.f32 {last[1]}, {last[1]}, 0f447A0000;\n}}\n"
    )
    return text[: last.end()] + added + text[last.end() :]


def _without_waiting(text: str, rate: float, seed: int) -> str:
    begin = _BEGIN.search(text)
    if begin is None or not _COPIES.search(text):
        raise ValueError("the PTX waits for no asynchronous copies")
    added = (
        ".reg .b32 %raced<3>; .reg .pred %races<2>;\nmov.u32 %raced0, %ctaid.x;\nsetp.eq.u32 %races0, %raced0, 0;\n"
        f"{_HASH.format(earlier=_WHOLE_BLOCK, seed=seed)}"
        f"setp.lo.and.u32 %races1, %raced1, {threshold(rate)}, %races0;\n"
    )
    waiting = _COPIES.sub(r"\1@!%races1 \2", text[begin.end() :])
    return text[: begin.end()] + added + waiting


@dataclass(frozen=True)
class Planted:
    """A subject with races of some rates: rate -> program."""

    region: Region
    schedule: Schedule
    programs: dict[float, Program]


def made(name: str, target: Target, rates: Sequence[float], *, seed: int) -> Planted:
    """Compile one of `SUBJECTS` with a race of each rate, and the control. Raises as `compile_tile`."""
    subject = SUBJECTS[name]
    region = subject.region()
    schedule = subject.schedule(region, target)
    kernel, source = tile._generated(region, schedule, target)
    (launch,) = source.launches
    kept = tile._keep(source, launch, target)
    assert kept.using is not None
    triton, using = tile._made(source.source, launch, kept.options, kept.device), kept.using

    def program(rate: float) -> Program:
        text = planted(triton.texts["ptx"], subject, rate, seed)
        binary = tile._assembled(text, triton.facts, launch, using, kept.device)
        return tile._program(region, kernel, replace(source, source=""), [binary], ((),))

    with ThreadPoolExecutor() as pool:
        return Planted(region, schedule, dict(zip(rates, pool.map(program, rates), strict=True)))


def renamed(program: Program, name: str) -> Program:
    """The same program as another binary: what passed or failed before says nothing of it."""
    return replace(
        program,
        launches=tuple(
            replace(one, compiled=replace(one.compiled, launch_id=f"{one.compiled.launch_id} {name}"))
            for one in program.launches
        ),
    )


# ---- in a child of the service


def before_job(job: StressJob) -> StressOutcome:
    """`child.stress_job` as it was at `stress_before.REVISION`."""
    from evaluation.measure.stress_before import stressed
    from kcg.measure import child
    from kcg.measure.inputs import TIMED_SEED
    from kcg.measure.workbench import free_cached_memory

    bench = child.bench_for(job.region, job.target)
    recipe = bench.choose_recipe(job.variables)
    bench.reference(TIMED_SEED, recipe, job.variables)
    bench.fill(TIMED_SEED, recipe)
    wrong = stressed(bench, job.compiled, job.variables, flush=child._flusher(job.target).flush)
    bench.seed = None  # outputs that are inputs too were written
    free_cached_memory(job.target)  # three copies of each output
    return StressOutcome(wrong, tainted=bench.tainted)


@dataclass(frozen=True)
class Plain:
    """What plain launches left: how many windows of how many launches, in how many of them one differed, and what a
    launch took."""

    windows: int
    width: int
    differed: int
    launch_s: float


def plain_job(job: StressJob, right: Any, windows: int, width: int) -> Plain:
    """Launch a program again and again with nothing around it but the comparison of its output with what `right`
    leaves: no other stream, no emptied cache, no restored output, nobody to judge."""
    from kcg.measure import child, stress
    from kcg.measure.inputs import TIMED_SEED

    bench = child.bench_for(job.region, job.target)
    bench.fill(TIMED_SEED, bench.choose_recipe(job.variables))
    bench.launcher(right, as_tinygrad=True)()
    outputs = [stress._Output(bench, slot, None, None) for slot in bench.outputs]
    send, differed, begin = bench.sender(job.compiled), 0, time.perf_counter()
    for _ in range(windows):
        for _ in range(width):
            send()
            for output in outputs:
                output.compare()
        if any(output.differs() is not None for output in outputs):
            differed += 1
            for output in outputs:
                bench.fill_with(output._marks, 0)
    seconds = time.perf_counter() - begin
    bench.seed = None
    return Plain(windows, width, differed, seconds / (windows * width))


def program_s(job: StressJob) -> float:
    """Seconds of one launch: the median of some."""
    from kcg.measure import child
    from kcg.measure.inputs import TIMED_SEED
    from kcg.measure.protocol import median

    bench = child.bench_for(job.region, job.target)
    bench.fill(TIMED_SEED, bench.choose_recipe(job.variables))
    launch = bench.launcher(job.compiled, as_tinygrad=True)
    return median([launch() for _ in range(20)])
