"""How many candidate schedules a second the predictor judges on one core, from Opts to a prediction, and by phase.

    python -m evaluation.predictor.bench                      # the shipped checkpoint, on Flux of datasets/h200
    python -m evaluation.predictor.bench --checkpoint FILE
    python -m evaluation.predictor.bench --checkpoint PLANS --dataset datasets/h200-tiles

Every candidate is new to the planner and to the predictor, as in a search; those of a checkpoint of plans are the
programs of the lattices of a dataset. Writes results/bench_predictor.json.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from evaluation.laps import laps
from evaluation.predictor.on_lattices import lattices_of
from evaluation.predictor.places import RESULTS, ROOT, SHIPPED
from evaluation.rows import this_command
from kcg.cli import record_results, run_script
from kcg.dataset.reading import read_export
from kcg.kernel.kinds import space_of as fresh_space_of
from kcg.kernel.opts.schedule import RAW
from kcg.kernel.opts.space import KernelSpace
from kcg.predictor.checkpoint import read
from kcg.predictor.features import encode, graphs, kernel_features
from kcg.predictor.learned import LearnedPredictor
from kcg.predictor.plans import PlanPredictor
from kcg.types import Region, Schedule, ScheduleKind, Target


def candidates(space: KernelSpace, count: int, rng: random.Random) -> list[Schedule]:
    """Schedules as a search meets them: the steps from the ends of random walks."""
    found: dict[Schedule, None] = {}
    for _ in range(20 * count):
        schedule = RAW
        for _ in range(rng.randint(0, 5)):
            schedule = space.sample(rng, schedule) or schedule
        for action in rng.sample(steps := space.actions(schedule), min(16, len(steps))):
            found.setdefault(action.schedule)
        if len(found) >= count:
            break
    return list(found)[:count]


def measure(
    predictor: LearnedPredictor, region: Region, target: Target, count: int, rng: random.Random
) -> tuple[float, int]:
    """Candidates a second of one kernel, by a space that has seen none of them, and how many they were. The better of
    two times: whatever else the machine does can only make it slower."""
    drawn = candidates(KernelSpace(region, target), count, rng)
    rest, spent = drawn[1:], []
    for _ in range(2):
        space = KernelSpace(region, target)
        predictor.predict(space, drawn[:1])  # the kernel itself is read once
        begin = time.perf_counter()
        predictor.predict(space, rest)
        spent.append(time.perf_counter() - begin)
    return len(rest) / min(spent), len(rest)


def profile(
    predictor: LearnedPredictor, region: Region, target: Target, count: int, rng: random.Random
) -> dict[str, float]:
    """Microseconds a candidate by phase."""
    drawn = candidates(KernelSpace(region, target), count, rng)
    space, spent = KernelSpace(region, target), dict[str, float]()
    space.table(RAW)
    lap = laps(spent)
    for schedule in drawn:
        space.table(schedule)
    lap("apply the Opts, axis table")
    nests = space.loop_nests(drawn)
    lap("micro-operations")
    encoded = encode(nests)
    lap("arrays")
    made = graphs(encoded, target)
    lap("graphs")
    kernel_x = kernel_features(region)
    lap = laps(spent)  # what was asked once a kernel is no part of a candidate
    predictor.estimate(made, kernel_x, target)
    lap("networks")
    return {name: 1e6 * seconds / len(drawn) for name, seconds in spent.items()}


def speed_of(checkpoint: Path, dataset: Path, family: str, count: int) -> dict[str, Any]:
    """The figures of one checkpoint on every kernel of a family."""
    export = read_export(dataset)
    (target, *_) = export.targets().values()
    regions = {call.region.id: call.region for w in export.workloads() if w.name == family for call in w.calls}
    predictor, rng = LearnedPredictor(read(checkpoint)), random.Random(0)
    rates: dict[str, tuple[float, int]] = {}
    for region_id, region in sorted(regions.items()):
        rate, judged = measure(predictor, region, target, count, rng)
        rates[region_id] = (rate, judged)
    full = {k: rate for k, (rate, judged) in rates.items() if judged >= count // 2}  # a batch of few is all overhead
    slowest = min(full, key=full.__getitem__)
    spent = [profile(predictor, regions[k], target, count, rng) for k in random.Random(1).sample(sorted(full), 8)]
    return {
        "candidates_per_s": statistics.median(full.values()),
        "worst_candidates_per_s": full[slowest],
        "worst_kernel": slowest[:12],
        "kernels": len(full),
        "schedules_each": count,
        "microseconds": {name: statistics.median(s[name] for s in spent) for name in spent[0]},
        "microseconds_of_the_worst": profile(predictor, regions[slowest], target, count, rng),
        "checkpoint": predictor.name,
        "threads": 1,
    }


def speed_of_plans(checkpoint: Path, dataset: Path) -> dict[str, Any]:
    """The figures of one checkpoint of plans on every lattice, from a program's parameters to a prediction."""
    predictor, rates = PlanPredictor(read(checkpoint)), dict[str, float]()
    for lattice in lattices_of(read_export(dataset)):
        spent = []
        for _ in range(2):
            space = fresh_space_of(lattice.region, lattice.target, ScheduleKind.TILE)
            predictor.predict(space, lattice.schedules[:1])  # the region itself is read once
            begin = time.perf_counter()
            predictor.predict(space, lattice.schedules[1:])
            spent.append(time.perf_counter() - begin)
        rates[lattice.region.id] = (len(lattice.schedules) - 1) / min(spent)
    slowest = min(rates, key=rates.__getitem__)
    return {
        "candidates_per_s": statistics.median(rates.values()),
        "worst_candidates_per_s": rates[slowest],
        "worst_region": slowest[:12],
        "regions": len(rates),
        "networks": len(predictor.checkpoint.nets),
        "threads": 1,
    }


def main(
    checkpoint: Annotated[Path, typer.Option(help="a predictor's file")] = SHIPPED,
    dataset: Annotated[Path, typer.Option(help="an export")] = ROOT / "datasets" / "h200",
    family: Annotated[str, typer.Option(help="whose kernels")] = "flux",
    schedules: Annotated[int, typer.Option(help="candidates of each kernel")] = 512,
    out: Annotated[Path, typer.Option(help="the results file")] = RESULTS / "bench_predictor.json",
) -> None:
    """Measure and write the results."""
    names = "candidates_per_s", "worst_candidates_per_s"
    if read(checkpoint).nets[0].settings.kind == ScheduleKind.TILE:
        entry, run, prefix = speed_of_plans(checkpoint, dataset), "tiles", "tile_"
    else:
        entry, run, prefix = speed_of(checkpoint, dataset, family, schedules), family, ""
    entry["command"] = this_command()
    record_results(out, run, entry, {prefix + name: entry[name] for name in names})
    typer.echo(json.dumps(entry, indent=1))


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    run_script(main)
