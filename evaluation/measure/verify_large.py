"""How long the last word on Flux's largest kernels takes, and how far each is from itself when it is timed twice.

    python -m evaluation.measure.verify_large CUDA --preset 1024

Each kernel as tinygrad schedules it, beside the same with the last Opt left out: verified by every rule, and timed in
turns. Updates evaluation/results/verify_large.json.
"""

from __future__ import annotations

import statistics
from typing import Annotated, Any

import typer

from evaluation.measure.on_flux import RESULTS, Device, OnFlux, Out, Preset, reported, work_of
from kcg.cli import run_script
from kcg.kernel.analysis import arithmetic, least_bytes
from kcg.kernel.opts.schedule import opts_of, schedule_of
from kcg.kernel.opts.space import KernelSpace
from kcg.measure.jobs import PairedJob
from kcg.measure.protocol import median, spread
from kcg.measure.service import MeasureService
from kcg.types import Workload, WorkloadCall

OUT = RESULTS / "verify_large.json"


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


def main(
    device: Device = "auto",
    preset: Preset = "auto",
    count: Annotated[int, typer.Option("--kernels", help="how many of the largest")] = 10,
    out: Out = OUT,
) -> None:
    """Judge each and keep the results after each."""
    run = OnFlux.begun("evaluation.measure.verify_large", device, preset, out)
    with MeasureService(run.dev, run_id="large") as service:
        rows: list[dict[str, Any]] = []
        for call in largest(run.workload, count):
            rows.append(judge(service, call))
            noises = [row["noise"] for row in rows if "noise" in row]
            headline = {
                "worst_verify_s": max(row["verify_s"] for row in rows),
                "median_verify_s": statistics.median(row["verify_s"] for row in rows),
                "median_noise": statistics.median(noises) if noises else None,
                "worst_noise": max(noises, default=None), "passed": sum(all(row["passed"]) for row in rows),
            }  # fmt: skip
            run.keep(service.target.tinygrad_device, rows, headline)
            last = rows[-1]
            typer.echo(f"{last['kernel']}: verified in {last['verify_s']:.2f} s a binary, {last['reasons']}", err=True)
        reported(headline)


if __name__ == "__main__":
    run_script(main)
