"""What isolation costs: measured candidates a second with killable children, and without any isolation.

    python -m evaluation.measure.bench CUDA   # or CPU:X86, CPU:CLANG

Both do the same work on the same schedules in turns: compile in parallel, check one seed, take the samples of a search.
Every round has its own, so that no cache helps. Beside them tinygrad's BEAM=2. Updates results/bench_measure.json.
"""

from __future__ import annotations

import json
import random
import statistics
import tempfile
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from evaluation.measure.unisolated import Unisolated
from kcg.cli import record_results, run_script
from kcg.compat.device import prepare
from kcg.kernel.codec import kernel_of
from kcg.kernel.opts.schedule import RAW, opts_of, schedule_of
from kcg.kernel.opts.space import KernelSpace
from kcg.measure.jobs import TinyBeamJob
from kcg.measure.service import MeasureService, Request
from kcg.types import CacheState, Region, Schedule, Status, Target

OUT = Path(__file__).parents[2] / "evaluation" / "results" / "bench_measure.json"
CPU_SHAPES = ((64, 96, 80), (96, 128, 96), (128, 64, 192), (128, 128, 128))  # m, n, k; the last fits the cache
GPU_SHAPES = ((1024, 1024, 1024), (2304, 3072, 3072), (4608, 3072, 768), (512, 512, 512))
FIGURES = ("isolation_ratio", "candidates_per_s", "beam_per_s", "cold_over_warm")
Work = list[tuple[Region, Schedule]]


def matmul(m: int, n: int, k: int, device: str) -> Region:
    """A matmul: bfloat16 on a GPU, float32 on a CPU."""
    from tinygrad import Tensor, dtypes

    dtype = dtypes.float if device.startswith("CPU") else dtypes.bfloat16
    (call,) = (Tensor.empty(m, k, dtype=dtype) @ Tensor.empty(k, n, dtype=dtype)).schedule_linear().src
    return Region((kernel_of(call.src[0]),))


def draw(region: Region, count: int, rng: random.Random, target: Target) -> Work:
    """What a beam search on the way to tinygrad's own schedule compiles: every step from every prefix of it, and on."""
    space, drawn = KernelSpace(region, target), dict[str, Schedule]()
    opts = opts_of(space.baseline())
    origins = [schedule_of(opts[:length]) for length in range(len(opts) + 1)]
    while len(drawn) < count:
        steps = [action.schedule for action in space.actions(origins.pop(0))]
        drawn |= {space.key(step): step for step in steps}
        origins += rng.sample(steps, min(2, len(steps)))
    return [(region, schedule) for schedule in rng.sample(list(drawn.values()), count)]


def isolated(service: MeasureService, work: Work, stop_above_s: dict[str, float], ends: Counter[str]) -> int:
    """How many ended with a time."""
    requests = [Request(region, s, in_search=True, stop_above_s=stop_above_s.get(region.id)) for region, s in work]
    statuses = [str(future.result().status) for future in service.measure(requests)]
    ends.update(statuses)
    return statuses.count(Status.OK)


def run(device: str, rounds: int, schedules: int) -> dict[str, Any]:
    """The entry of one device."""
    prepare(device)
    shapes = CPU_SHAPES if device.startswith("CPU") else GPU_SHAPES
    *regions, fits = (matmul(*shape, device) for shape in shapes)
    rates, limits, ends = list[tuple[float, float]](), dict[str, float](), Counter[str]()
    with tempfile.TemporaryDirectory() as folder, MeasureService(device, run_id="bench") as service:
        target, workers, rng = service.target, service.compile_workers, random.Random(0)
        drawn = [draw(region, rounds * schedules, rng, target) for region in regions]
        parts = [[pair for work in drawn for pair in work[i::rounds]] for i in range(rounds)]
        with Unisolated(device, target, workers=workers, cache_db=f"{folder}/cache.db") as plain:
            ways = (lambda work: isolated(service, work, limits, ends), lambda work: plain.measure(work, limits))
            for way in ways:
                way([(region, RAW) for region in regions] * 6)  # every process starts
            for region in regions:  # as in a search, what is far slower than the best is not sampled in full
                (future,) = service.measure([Request(region, KernelSpace(region, target).baseline(), in_search=True)])
                limits[region.id] = 2.5 * future.result().median_s
            ends.clear(), service.spent_s.clear()
            for number, work in enumerate(parts):
                order = (0, 1) if number % 2 == 0 else (1, 0)
                seen = {}
                for way in order:
                    begin = time.perf_counter()
                    seen[way] = ways[way](work) / (time.perf_counter() - begin)
                rates.append((seen[0], seen[1]))
                typer.echo(f"round {number + 1}: {seen[0]:.1f} a second isolated, {seen[1]:.1f} without", err=True)
        both = [Request(fits, KernelSpace(fits, target).baseline(), cache_state=state) for state in CacheState]
        cold, warm = (future.result().median_s for future in service.measure(both))
        beam = service.tiny_beam(TinyBeamJob(regions[-1], target, 2), timeout_s=300).result()
    return {
        "isolation_ratio": statistics.geometric_mean(a / b for a, b in rates),
        "isolated_and_plain_per_s": rates,
        "candidates_per_s": statistics.harmonic_mean([a for a, _ in rates]),
        "beam_per_s": beam.binaries / beam.wall_s,
        "cold_over_warm": cold / warm,
        "cold_s": cold,
        "warm_s": warm,
        "ended": dict(ends),
        "workers": workers,
        "spent_s": dict(service.spent_s),
        "target": asdict(target),
        "beam": asdict(beam),
        "command": f"python -m evaluation.measure.bench {device} --rounds {rounds} --schedules {schedules}",
    }


def main(
    device: str, rounds: int = 4, schedules: int = 32, out: Annotated[Path, typer.Option(help="the results file")] = OUT
) -> None:
    """Run on one device and merge the entry into the results."""
    entry = run(device, rounds, schedules)
    kind = "cpu" if device.startswith("CPU") else "gpu"
    headline = {f"{name}_{kind}": entry[name] for name in FIGURES}
    report = record_results(out, device.lower().replace(":", "_"), entry, headline)
    typer.echo(json.dumps(report["headline"], indent=1, sort_keys=True))


if __name__ == "__main__":
    run_script(main)
