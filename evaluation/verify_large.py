"""How long the last word on Flux's largest kernels takes, and how far each is from itself when it is timed twice.

    python evaluation/verify_large.py CUDA --preset 1024

Each kernel as tinygrad schedules it, beside the same with the last Opt left out: verified by every rule, and timed in
turns. Updates evaluation/results/verify_large.json.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Annotated, Any

import typer

from evaluation.rows import run_of
from kcg.commandline import guarded, record_results
from kcg.compat.device import choose_device, prepare
from kcg.kernel.codec import ast_of
from kcg.kernel.contractions import arithmetic, least_bytes
from kcg.kernel.space import KernelSpace
from kcg.measure.jobs import DuelJob
from kcg.measure.protocol import median, spread
from kcg.measure.service import MeasureService
from kcg.types import Schedule, Workload, WorkloadCall
from kcg.workloads.registry import find

OUT = Path(__file__).parent / "results" / "verify_large.json"
OPERATIONS_PER_BYTE = 100  # what weighs a kernel's traffic against its arithmetic


def largest(workload: Workload, count: int) -> list[WorkloadCall]:
    """The kernels with the most work in one call."""

    def work(call: WorkloadCall) -> float:
        ast = ast_of(call.region.kernel)
        return float(arithmetic(ast) + OPERATIONS_PER_BYTE * least_bytes(ast))

    return sorted((call for call in workload.calls if not call.variables), key=work, reverse=True)[:count]


def judge(service: MeasureService, call: WorkloadCall) -> dict[str, Any]:
    """One row of the table."""
    space = KernelSpace(call.region, service.target)
    schedules = (space.baseline(), Schedule.from_opts(space.baseline().opts[:-1]))
    both = [service.compiled(call.region, schedule).result().compiled for schedule in schedules]
    outcome = service.duel(DuelJob(call.region, both[0], both[1], service.target), timeout_s=300).result()
    verdicts = [v for v in (outcome.baseline_verification, outcome.finalist_verification) if v is not None]
    spent = dict(outcome.spent_s)
    row = {
        "kernel": space.name(space.baseline()), "bytes": least_bytes(space.ast), "operations": arithmetic(space.ast),
        "verify_s": spent["verify"] / len(verdicts), "spent_s": spent, "rules": verdicts[-1].rules,
        "passed": [v.passed for v in verdicts], "reasons": [v.reason for v in verdicts], "clocks": dict(outcome.clocks),
    }  # fmt: skip
    if outcome.baseline_cold_s:
        row["cold_s"], row["warm_s"] = median(outcome.baseline_cold_s), median(outcome.baseline_warm_s)
        row["noise"] = spread(outcome.baseline_cold_s, outcome.again_cold_s)
    return row


def main(
    device: Annotated[str, typer.Argument()] = "auto",
    preset: Annotated[str, typer.Option(help="of Flux")] = "auto",
    count: Annotated[int, typer.Option("--kernels", help="how many of the largest")] = 10,
    out: Annotated[Path, typer.Option(help="the results file")] = OUT,
) -> None:
    """Judge each and keep the results after each."""
    choice = choose_device(device)
    spec, preset = find("flux", preset, choice.device)
    prepare(choice.dev)
    with MeasureService(choice.dev, run_id="large") as service:
        rows: list[dict[str, Any]] = []
        name = run_of(preset, service.target.tinygrad_device)
        for call in largest(spec.capture(preset), count):
            rows.append(judge(service, call))
            noises = [row["noise"] for row in rows if "noise" in row]
            headline = {
                "worst_verify_s": max(row["verify_s"] for row in rows),
                "median_verify_s": statistics.median(row["verify_s"] for row in rows),
                "median_noise": statistics.median(noises) if noises else None,
                "worst_noise": max(noises, default=None), "passed": sum(all(row["passed"]) for row in rows),
            }  # fmt: skip
            entry = {"kernels": rows, "command": f"python evaluation/verify_large.py {device} --preset {preset}"}
            record_results(out, name, entry, {f"{key}_{name}": value for key, value in headline.items()})
            last = rows[-1]
            typer.echo(f"{last['kernel']}: verified in {last['verify_s']:.2f} s a binary, {last['reasons']}", err=True)
        typer.echo(json.dumps(headline))


if __name__ == "__main__":
    application = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    application.command()(main)
    guarded(lambda: application(standalone_mode=False))
