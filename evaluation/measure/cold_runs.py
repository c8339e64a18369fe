"""Optimise a small model many times in a row, each time as if it were the first, and count what hangs or is left over.

    python -m evaluation.measure.cold_runs CUDA --runs 50
    python -m evaluation.measure.cold_runs CUDA --runs 50 --resume
    python -m evaluation.measure.cold_runs CPU:X86 --runs 2 --out cold_runs.json

Each run is a fresh process with an output folder, a tinygrad cache and a compiler cache of its own. Writes
evaluation/results/cold_runs.json after every run: one that is cut off loses nothing.
"""

from __future__ import annotations

import json
import shlex
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from evaluation.measure.watched import ROOT, cold_environment, run_watched
from kcg.cli import record_results, run_script
from kcg.errors import ExitCode, UsageError

OUT = ROOT / "evaluation" / "results" / "cold_runs.json"
USABLE = (ExitCode.OK, ExitCode.NOTHING_IMPROVED, ExitCode.NOTHING_SEARCHED, ExitCode.UNCHECKED)
KEPT = ("measurements", "compilations", "total_before_s", "total_after_s", "failures", "complete")


def command(device: str, budget: str) -> list[str]:
    """The command that anyone can run."""
    return [
        "-m",
        "kcg.optimize",
        "evaluation/search/small_model.py",
        "--device",
        device,
        "--budget",
        budget,
        "--search",
        "mcts",
        "--measurements",
        "24",
        "--json",
        "--quiet",
    ]


def run_once(device: str, *, budget: str, limit_s: float) -> dict[str, Any]:
    """One cold run: how it ended and how long it took."""
    with tempfile.TemporaryDirectory(prefix="kcg-cold-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        whole = [sys.executable, *command(device, budget), "--report", str(folder / "report")]
        run = run_watched(whole, cold_environment(folder), cwd=ROOT, folder=folder, limit_s=limit_s)
    judgement = judged(run.code, run.out, run.err)
    return {"s": round(run.seconds, 3), "exit_code": run.code, "left": run.left, **judgement}


def judged(code: int | None, printed: str, errors: str) -> dict[str, Any]:
    """What is kept of a run: the figures of its result, or why there is none."""
    if code is None:
        return {"outcome": "wedged", "reason": "it did not end in time"}
    try:
        answer = json.loads(printed)
        kept = {name: answer[name] for name in KEPT}
        verified = sum(bool(kernel["verified"]) for kernel in answer["kernels"])
    except (ValueError, KeyError):
        reason = (errors.splitlines() or ["it printed nothing"])[-1][:300]
        return {"outcome": "failed", "reason": reason.replace(str(ROOT), ".")}
    outcome = "ok" if code in USABLE else "failed"
    return {"outcome": outcome, "verified": verified, "kernels": len(answer["kernels"]), **kept}


def headline(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures over all runs."""
    seconds = [run["s"] for run in runs]
    return {
        "runs": len(runs),
        "wedged": sum(run["outcome"] == "wedged" for run in runs),
        "failed": sum(run["outcome"] == "failed" for run in runs),
        "median_s": round(statistics.median(seconds), 3) if seconds else None,
        "worst_s": max(seconds, default=None),
        "leftover_processes": sum(run["left"] for run in runs),
    }


def main(
    device: Annotated[str, typer.Argument(help="as kcg.optimize --device")] = "auto",
    runs: Annotated[int, typer.Option(help="how many in all")] = 50,
    budget: Annotated[str, typer.Option(help="time of each run")] = "10s",
    limit: Annotated[float, typer.Option(help="seconds after which a run counts as wedged")] = 120.0,
    resume: Annotated[bool, typer.Option("--resume", help="go on from the runs in the results")] = False,
    stop_after: Annotated[float, typer.Option(help="start no run after so many seconds; 0 never stops")] = 0.0,
    out: Annotated[Path, typer.Option(help="the results file")] = OUT,
) -> None:
    """Run one after another and keep the results after each."""
    shown, done, name = shlex.join(["python", *command(device, budget)]), [], device.lower().replace(":", "_")
    if resume and out.exists():
        kept = json.loads(out.read_text())["runs"].get(name, {"run": shown, "each": []})
        if kept["run"] != shown:
            raise UsageError(f"the results are of another command, {kept['run']}: leave out --resume")
        done = kept["each"]
    begin = time.monotonic()
    while len(done) < runs and not 0 < stop_after < time.monotonic() - begin:
        done.append(run_once(device, budget=budget, limit_s=limit))
        facts = {
            "command": f"python -m evaluation.measure.cold_runs {device} --runs {runs}",
            "run": shown,
            "limit_s": limit,
        }
        figures = {f"{key}_{name}": value for key, value in headline(done).items()}
        record_results(out, name, {**facts, "each": done}, figures)
        last = done[-1]
        typer.echo(
            f"{len(done)}/{runs}: {last['outcome']} in {last['s']:.1f} s, {last.get('measurements', 0)} binaries"
        )
    typer.echo(json.dumps(headline(done)))


if __name__ == "__main__":
    run_script(main)
