"""Optimise Flux on the devices of this machine and keep what came out.

    python -m evaluation.flux.optimize mini CPU:CLANG CPU:X86
    python -m evaluation.flux.optimize mini CPU:CLANG --budget 60s --runs 3     # the entry is the median run
    python -m evaluation.flux.optimize --result kcg-out/flux/RESULT.json      # of a run that was made already

Updates evaluation/results/optimize_flux.json: one entry per preset, device and budget, and another one with regions of
several kernels.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from evaluation.rows import run_of
from kcg.cli import record_results, run_script
from kcg.errors import ExitCode, KcgError, UsageError

KEPT = (
    "total_before_s",
    "total_after_s",
    "measurements",
    "compilations",
    "search_s",
    "target",
    "toolchain",
    "failures",
    "complete",
    "created",
    "kcg_version",
    "protocol",
    "predictor",
    "model_check",
    "progress",
    "phases",
)
OF_REGION = ("form", "calls", "saved_s", "nearby_s", "saved_bytes")  # what is kept of each region of the plan
OF_PLAN = ("expected_s", "step_s", "passed", "chosen")
OUT = Path(__file__).parent.parent / "results" / "optimize_flux.json"


@dataclass(frozen=True)
class Settings:
    """Settings of one run."""

    preset: str
    device: str
    budget: str | None = None  # none: normal effort
    search: str = "mcts"
    seed: int = 0


def command(settings: Settings) -> list[str]:
    """The command that anyone can run."""
    return [
        "-m",
        "kcg.optimize",
        "flux",
        "--preset",
        settings.preset,
        "--device",
        settings.device,
        "--search",
        settings.search,
        "--seed",
        str(settings.seed),
        "--json",
        *(["--budget", settings.budget] if settings.budget is not None else []),
    ]


def measure(settings: Settings) -> dict[str, Any]:
    """Run the optimisation in a process of its own; the entry for the results. Raises KcgError where it fails."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, *command(settings), "--report", folder], stdout=subprocess.PIPE, text=True, check=False
        )
    usable = (ExitCode.OK, ExitCode.NOTHING_IMPROVED, ExitCode.NOTHING_SEARCHED, ExitCode.UNCHECKED)
    if done.returncode not in usable:
        raise KcgError(f"the run on {settings.device} ended with exit code {done.returncode}")
    return entry_of(json.loads(done.stdout), " ".join(["python", *command(settings)])) | {"exit_code": done.returncode}


def median_of(settings: Settings, runs: int) -> dict[str, Any]:
    """The median run of several, which differ in their seeds alone; `speedups` are those of all, in order."""
    entries = [measure(replace(settings, seed=settings.seed + number)) for number in range(runs)]
    speedups = [entry["speedup"] for entry in entries]
    median = entries[speedups.index(statistics.median_low(speedups))]
    return median | {"speedups": speedups, "exit_codes": [entry["exit_code"] for entry in entries]}


def entry_of(answer: dict[str, Any], command: str) -> dict[str, Any]:
    """What is kept of a result, and the command that made it."""
    entry = {name: answer[name] for name in KEPT}
    entry["speedup"] = answer["total_before_s"] / answer["total_after_s"]
    entry["verified"] = sum(bool(k["verified"]) for k in answer["kernels"])
    entry["outcomes"] = dict(Counter(k["outcome"] for k in answer["kernels"]))
    entry["kernels"] = [{n: k[n] for n in ("name", "calls", "before_s", "after_s")} for k in answer["kernels"]]
    if (planning := answer["planning"]) is not None:
        entry["plan"] = [{n: region[n] for n in OF_REGION} for region in planning["regions"]]
        entry["plans"] = [{n: plan[n] for n in OF_PLAN} for plan in planning["plans"]]
    return entry | {"command": command}


def main(
    preset: Annotated[str, typer.Argument(help="mini, 768 or 1024")] = "",
    devices: Annotated[list[str] | None, typer.Argument(help="CPU:CLANG, CUDA …, one after the other")] = None,
    budget: Annotated[str | None, typer.Option(help="time of each run, instead of normal effort")] = None,
    runs: Annotated[int, typer.Option(min=1, help="how many, each with the next seed; the median is kept")] = 1,
    result: Annotated[Path | None, typer.Option(help="a RESULT.json to take in, instead of running")] = None,
    out: Annotated[Path, typer.Option(help="the results file")] = OUT,
) -> None:
    """Run each device in turn and merge the entries into the results."""
    if result is not None:
        from kcg.report.result import read_result, to_dict

        report = read_result(result)
        command = re.sub(r" --report \S+", "", report.command)  # where it was written is the machine's matter
        entry = entry_of(to_dict(report), command)
        entry["of_revision"] = {"revision": report.revision, "dirty": report.dirty}
        made = [(report.preset, report.target.tinygrad_device, entry)]
    elif preset and devices:
        made = [(preset, device, median_of(Settings(preset, device, budget), runs)) for device in devices]
    else:
        raise UsageError("say a preset and devices, for example mini CPU:X86, or --result RESULT.json")
    for preset, device, entry in made:
        name = run_of(preset, device) + (f"_{budget}" if budget is not None else "")
        name += "_regions" if entry.get("plan") else ""
        headline = {f"{key}_{name}": entry[key] for key in ("total_before_s", "total_after_s", "speedup")}
        record_results(out, name, entry, headline)
        typer.echo(f"{name}: {entry['total_before_s'] * 1e3:.1f} ms -> {entry['total_after_s'] * 1e3:.1f} ms")


if __name__ == "__main__":
    run_script(main)
