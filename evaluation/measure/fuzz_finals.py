"""Verify fuzzed kernels by every rule that finalists must pass: how many right schedules are rejected, and why.

    python -m evaluation.measure.fuzz_finals CPU:X86 --kernels 200 --budget 6m

The hand-coded schedule of each kernel beside a random legal walk. Updates evaluation/results/fuzz_finals.json.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from evaluation.measure.fuzzing import fuzz_kernels, fuzz_schedules
from kcg.cli import parse_budget, record_results, run_script
from kcg.compat.device import choose_device, prepare
from kcg.kernel.kinds import describe
from kcg.measure.jobs import PairedJob
from kcg.measure.service import MeasureService
from kcg.types import Region, Schedule

OUT = Path(__file__).parents[2] / "evaluation" / "results" / "fuzz_finals.json"
TIMEOUT_S = 60.0


def pair(service: MeasureService, region: Region, seed: int) -> tuple[Schedule, Schedule]:
    """The hand-coded schedule, and the last one drawn: a walk, where one leads away from it."""
    drawn = list(fuzz_schedules(region, service.target, walks=1, padto=False, seed=seed))
    return drawn[0], drawn[-1]


def main(
    device: Annotated[str, typer.Argument()] = "auto",
    count: Annotated[int, typer.Option("--kernels", help="unique kernels")] = 200,
    seed: Annotated[int, typer.Option(help="seed of kernels and walks")] = 1,
    budget: Annotated[str, typer.Option(help="time of this call")] = "10m",
    out: Annotated[Path, typer.Option(help="the results file")] = OUT,
) -> None:
    """Judge until the kernels or the time end."""
    choice, deadline = choose_device(device), time.monotonic() + parse_budget(budget)
    prepare(choice.dev)
    kernels = list(fuzz_kernels(count, seed)[0].values())
    random.Random(seed).shuffle(kernels)
    rules: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    rejected: list[dict[str, Any]] = []
    judged, worst = 0, 0.0
    with MeasureService(choice.dev, run_id="fuzz") as service:
        for region, origin in kernels:
            if time.monotonic() > deadline:
                break
            schedules = pair(service, region, seed)
            try:
                both = [service.compiled(region, schedule).result().compiled for schedule in schedules]
                job = PairedJob(region, both[0], both[1], service.target, samples=1)
                outcome = service.compare_paired(job, timeout_s=TIMEOUT_S).result()
            except Exception as error:  # it does not compile, or not run: not what is asked here
                failed[type(error).__name__] += 1
                continue
            judged += 1
            for schedule, result in zip(
                schedules, (outcome.baseline_verification, outcome.finalist_verification), strict=True
            ):
                rules.update(result.rules)
                worst = max(worst, result.max_error)
                if result.wrong:
                    rejected.append(
                        {
                            "kernel": region.id,
                            "origin": origin,
                            "schedule": describe(schedule),
                            "reason": result.reason,
                        }
                    )
        name = service.target.tinygrad_device.lower().replace(":", "_")
    headline = {"kernels": judged, "verdicts": 2 * judged, "rejected": len(rejected), "worst_error": worst}
    entry = {
        "rules": dict(rules),
        "rejections": rejected,
        "not_judged": dict(failed),
        "seed": seed,
        "command": f"python -m evaluation.measure.fuzz_finals {device} --kernels {count} --seed {seed}",
    }
    record_results(out, name, entry | headline, {f"{key}_{name}": value for key, value in headline.items()})
    typer.echo(json.dumps(headline))


if __name__ == "__main__":
    run_script(main)
