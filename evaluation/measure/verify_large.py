"""How long the last word on Flux's largest kernels takes, here and in another revision, in turns on one device.

    git worktree add ../before REVISION
    python -m evaluation.measure.verify_large CUDA --preset 1024 --before ../before

Each kernel as tinygrad schedules it, beside the same with the last Opt left out: verified by every rule, its references
included, and timed in turns. Each turn of a revision is a process of its own, in which nothing is kept from the turn
before. Without `--before` it is this revision alone. Updates evaluation/results/verify_large.json.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

import kcg
from evaluation.measure.on_flux import RESULTS, Device, OnFlux, Out, Preset, reported, work_of
from kcg.cli import run_script
from kcg.errors import DeviceError, UsageError
from kcg.kernel.analysis import arithmetic, least_bytes
from kcg.kernel.opts.schedule import opts_of, schedule_of
from kcg.kernel.opts.space import KernelSpace
from kcg.measure.jobs import PairedJob
from kcg.measure.protocol import median, spread
from kcg.measure.service import MeasureService
from kcg.provenance import read
from kcg.types import Workload, WorkloadCall

OUT = RESULTS / "verify_large.json"
MODULE = "evaluation.measure.verify_large"
HERE = Path(__file__).parents[2]


def largest(workload: Workload, count: int) -> list[WorkloadCall]:
    """The kernels with the most work in one call."""
    return sorted((call for call in workload.calls if not call.variables), key=work_of, reverse=True)[:count]


def judge(service: MeasureService, call: WorkloadCall) -> dict[str, Any]:
    """One row of the table."""
    space = KernelSpace(call.region, service.target)
    schedules = (space.baseline(), schedule_of(opts_of(space.baseline())[:-1]))
    both = [service.compiled(call.region, schedule).result().compiled for schedule in schedules]
    outcome = service.compare_paired(PairedJob(call.region, both[0], both[1], service.target), timeout_s=300).result()
    results = [v for v in (outcome.baseline_verification, outcome.finalist_verification) if v is not None]
    spent = dict(outcome.spent_s)
    row = {
        "kernel": space.name(space.baseline()), "bytes": least_bytes(space.ast), "operations": arithmetic(space.ast),
        "verify_s": spent["verify"] / len(results), "spent_s": spent, "rules": results[-1].rules,
        "passed": [v.passed for v in results], "reasons": [v.reason for v in results], "clocks": dict(outcome.clocks),
    }  # fmt: skip
    if outcome.baseline_cold_s:
        row["cold_s"], row["warm_s"] = median(outcome.baseline_cold_s), median(outcome.baseline_warm_s)
        row["noise"] = spread(outcome.baseline_cold_s, outcome.again_cold_s)
    return row


def rows_of(checkout: Path, device: str, preset: str, count: int) -> Iterator[dict[str, Any]]:
    """The rows of one turn, by this script and the kcg of a checkout. Raises DeviceError with the last line of what
    failed, or where another kcg was imported."""
    command = [sys.executable, "-P", __file__, device, "--preset", preset, "--kernels", str(count), "--rows-only"]
    paths = (str(checkout), os.environ.get("PYTHONPATH", ""))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    child = subprocess.Popen(command, cwd=checkout, env=environment, text=True, **pipes)
    assert child.stdout is not None and child.stderr is not None
    for line in child.stdout:
        row = json.loads(line)
        if row.pop("kcg") != str(checkout):
            child.kill()
            raise DeviceError(f"kcg was not imported from {checkout}")
        yield row
    if child.wait():
        last = (child.stderr.read().strip().splitlines() or ["no message"])[-1]
        raise DeviceError(f"verifying by {checkout} failed: {last}")


def headline_of(now: list[list[dict[str, Any]]], before: list[list[dict[str, Any]]]) -> dict[str, Any]:
    """The figures of complete turns; of each kernel the median of its turns."""

    def seconds(turns: list[list[dict[str, Any]]]) -> list[float]:
        return [statistics.median(row["verify_s"] for row in rows) for rows in zip(*turns, strict=True)]

    spent, noises = seconds(now), [row["noise"] for rows in now for row in rows if "noise" in row]
    found = {
        "worst_verify_s": max(spent), "median_verify_s": statistics.median(spent), "all_verify_s": sum(spent),
        "median_noise": statistics.median(noises) if noises else None, "worst_noise": max(noises, default=None),
        "passed": sum(all(all(row["passed"]) for row in rows) for rows in zip(*now, strict=True)), "turns": len(now),
    }  # fmt: skip
    if before:
        earlier = seconds(before)
        found |= {
            "all_over_before": sum(spent) / sum(earlier), "before_all_verify_s": sum(earlier),
            "worst_over_before": max(one / other for one, other in zip(spent, earlier, strict=True)),
        }  # fmt: skip
    return found


def main(
    device: Device = "auto",
    preset: Preset = "auto",
    count: Annotated[int, typer.Option("--kernels", help="how many of the largest")] = 10,
    turns: Annotated[int, typer.Option(help="of each revision")] = 3,
    before: Annotated[
        Path | None, typer.Option(help="a checkout of the revision to compare with", resolve_path=True)
    ] = None,
    rows_only: Annotated[bool, typer.Option("--rows-only", help="one turn, its rows on stdout", hidden=True)] = False,
    out: Out = OUT,
) -> None:
    """Judge each kernel in each turn, and keep the results after each pair of turns."""
    if before is not None and not (before / "kcg" / "measure").is_dir():
        raise UsageError(f"--before {before} is no checkout of kcg: git worktree add {before} REVISION")
    run = OnFlux.begun(MODULE, device, preset, out)
    if rows_only:
        with MeasureService(run.dev, run_id="large") as service:
            for call in largest(run.workload, count):
                print(json.dumps(judge(service, call) | {"kcg": str(Path(kcg.__file__).parents[1])}), flush=True)
        return
    places = {"now": HERE} | ({"before": before} if before is not None else {})
    made: dict[str, list[list[dict[str, Any]]]] = {name: [] for name in places}
    for turn in range(turns):
        for name in sorted(places, reverse=turn % 2 == 0):  # the first of a turn is the second of the next: ABBA
            made[name].append([])
            for row in rows_of(places[name], run.dev, run.preset, count):
                made[name][-1].append(row)
                typer.echo(f"{name}: {row['kernel']}: {row['verify_s']:.2f} s a binary, {row['reasons']}", err=True)
        headline = headline_of(made["now"], made.get("before", []))
        rows = [
            kernel[0] | {"verify_s": [row["verify_s"] for row in kernel]} for kernel in zip(*made["now"], strict=True)
        ]
        for row, *earlier in zip(rows, *made.get("before", []), strict=True):
            row["before_verify_s"] = [one["verify_s"] for one in earlier]
        run.keep(run.dev, rows, headline, before=read(before / "kcg" / "errors.py") if before is not None else None)
    reported(headline)


if __name__ == "__main__":
    run_script(main)
