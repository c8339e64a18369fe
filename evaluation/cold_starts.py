"""How long for which budget: what budgets of 1 to 20 times a script's cold start bring of what the longest brings.

    python -m evaluation.cold_starts

Of each script of `evaluation/scripts/`: its cold start, which is a process of plain tinygrad from start to end with
empty caches (the median of three), and for each budget a run of `kcg optimize`, a fresh process with empty caches and a
folder of its own. What a run gains is the share of the time that its result saves, every part verified; its share is
that of what the longest budget gained. A script of which that gained nothing has no shares.

Each run is written into results/cold_starts.json as soon as it is there. What is there of this revision, and of the
same script, is not run again, so the command goes on where it was ended; `--anew` runs all. The machine must do nothing
else: about 20 minutes on two cores. At the end README and docs/optimize.md get what they say of it.
"""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from evaluation.documents import write_into
from evaluation.own_script import ROOT, environment, figures_of, machine_of
from kcg.cli import command_text, record_results, run_script
from kcg.compat.device import choose_cpu
from kcg.errors import KcgError
from kcg.provenance import provenance
from kcg.report.result import read_result

OUT = ROOT / "evaluation" / "results" / "cold_starts.json"
SCRIPTS = ROOT / "evaluation" / "scripts"
README, OPTIMIZE = ROOT / "README.md", ROOT / "docs" / "optimize.md"
TIMES = (1.0, 2.0, 5.0, 10.0, 20.0)
STARTS = 3  # of which the median is the cold start
ENOUGH = 0.9  # of what the longest budget gains
MARK = "cold starts"
PATIENCE = 3.0  # times the budget, and a minute, that a run may take at most


@dataclass(frozen=True)
class Settings:
    """What is run, and where."""

    folder: Path
    out: Path = OUT
    times: tuple[float, ...] = TIMES
    starts: int = STARTS
    device: str = "CPU"


def cold_start_s(script: Path, settings: Settings) -> float:
    """Seconds of a process that runs a script in plain tinygrad with empty caches. Raises KcgError where it fails."""
    folder = Path(tempfile.mkdtemp(prefix="start-", dir=settings.folder))
    variables = {**environment(folder), "DEV": choose_cpu().dev if settings.device == "CPU" else settings.device}
    begun = time.perf_counter()
    done = subprocess.run(
        [sys.executable, str(script)], cwd=folder, env=variables, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise KcgError(f"{script.name} ended with exit code {done.returncode}: {done.stderr.strip()[-200:]}")
    return time.perf_counter() - begun


def run_s(script: Path, budget_s: float, settings: Settings) -> dict[str, Any]:
    """What one run of `kcg optimize` with so many seconds came to. Raises KcgError where it has no result."""
    folder = Path(tempfile.mkdtemp(prefix="run-", dir=settings.folder))
    words = ["optimize", str(script), "--budget", f"{budget_s:.1f}s", "--device", settings.device, "--report", "out"]
    begun = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "kcg", *words, "--quiet"],
        cwd=folder, env=environment(folder), capture_output=True, text=True, check=False,
        timeout=PATIENCE * budget_s + 60,
    )  # fmt: skip
    spent_s, found = time.perf_counter() - begun, folder / "out" / "RESULT.json"
    if not found.is_file():
        raise KcgError(f"{script.name}: exit code {done.returncode}: {done.stderr.strip()[-200:]}")
    figures = figures_of(read_result(found))
    return {**figures, "budget_s": budget_s, "wall_s": spent_s, "exit_code": done.returncode, "gain": gain_of(figures)}


def gain_of(figures: dict[str, Any]) -> float:
    """The share of the time that what was verified saves; nothing where the whole is wrong, or nothing was timed."""
    if figures["passed"] is False or not figures["before_s"] > 0:
        return 0.0
    return 1.0 - float(figures["after_s"]) / float(figures["before_s"])


# ---- what follows of all runs


def shares_of(runs: dict[str, Any]) -> dict[str, dict[float, float]]:
    """Of each script, by name, the share of the largest budget's gain that each budget brought, by how many cold starts
    it had."""
    by_script: dict[str, dict[float, float]] = {}
    for run in runs.values():
        if "gain" in run:
            by_script.setdefault(run["script"], {})[run["times"]] = run["gain"]
    return {
        name: {times: gain / gains[max(gains)] for times, gain in sorted(gains.items())}
        for name, gains in by_script.items()
        if gains[max(gains)] > 0
    }


def headline_of(runs: dict[str, Any]) -> dict[str, Any]:
    """Medians over the scripts of each budget's share, and the least budget that has `ENOUGH` of it in the median."""
    shares = shares_of(runs)
    times = sorted({one for found in shares.values() for one in found})
    medians = {one: statistics.median(found.get(one, 0.0) for found in shares.values()) for one in times}
    enough = [one for one, median in medians.items() if median >= ENOUGH]
    return {
        **{f"share_{one:g}": round(median, 3) for one, median in medians.items()},
        "scripts": len(shares),
        **({"enough": enough[0]} if enough else {}),
    }


def lines_of(report: dict[str, Any]) -> list[str]:
    """A sentence of README."""
    headline, runs = report["headline"], report["runs"].values()
    shares = {float(key[6:]): value for key, value in headline.items() if key.startswith("share_")}
    if not shares or not headline.get("scripts"):
        return []
    starts = [run["cold_start_s"] for run in runs if "cold_start_s" in run]
    one = next(run for run in runs if "device" in run)
    brought = ", ".join(f"{times:g} times {100 * share:.0f} %" for times, share in sorted(shares.items())[:-1])
    most = max(shares)
    return [
        f"A budget of so many times the script's cold start brings, in the median of {headline['scripts']} scripts, of "
        f"what {most:g} times brings: {brought} (cold starts of {min(starts):.0f} to {max(starts):.0f} s in plain "
        f"tinygrad, caches empty, on {machine_of(one)}; one run each; `evaluation/results/{OUT.name}`)."
    ]


def table_of(report: dict[str, Any]) -> list[str]:
    """Every script, for docs/optimize.md."""
    runs, shares = report["runs"], shares_of(report["runs"])
    starts = {run["script"]: run["cold_start_s"] for run in runs.values() if "cold_start_s" in run}
    times = sorted({run["times"] for run in runs.values() if "times" in run})
    if not times:
        return []
    lines = [
        "What budgets of so many cold starts of a script bring of what the longest brings, on a CPU (`python -m "
        f"evaluation.cold_starts`, `{OUT.name}`); a cold start is a process of plain tinygrad with empty caches:",
        "",
        f"| script | cold start | {' | '.join(f'{one:g} times' for one in times)} | faster by then |",
        f"|---|--:|{'--:|' * len(times)}--:|",
    ]
    for name, start_s in sorted(starts.items(), key=lambda pair: pair[1]):
        found = shares.get(name, {})
        cells = [f"{100 * found[one]:.0f} %" if one in found else "–" for one in times]
        last = runs.get(f"{name}_{times[-1]:g}", {})
        lines.append(f"| {name} | {start_s:.1f} s | {' | '.join(cells)} | {last.get('speedup', 1.0):.2f}× |")
    return lines


# ---- all of it


class Runs:
    """The results file, to which each run is added as soon as it is there."""

    def __init__(self, out: Path, *, anew: bool = False) -> None:
        self.out = out
        if anew:
            out.unlink(missing_ok=True)
        self.report = json.loads(out.read_text(encoding="utf-8")) if out.is_file() else {"headline": {}, "runs": {}}

    def is_there(self, name: str, digest: str) -> bool:
        """Whether it has a run of this script as it is, and of this revision."""
        run = self.report["runs"].get(name, {})
        return bool(run.get("digest") == digest and run.get("revision") == provenance()["revision"])

    def keep(self, name: str, entry: dict[str, Any]) -> dict[str, Any]:
        """Add a run, with what follows of all; returns it."""
        entry = {"command": command_text("evaluation.cold_starts"), "load": os.getloadavg()[0], **entry}
        headline = headline_of({**self.report["runs"], name: entry})
        self.report = record_results(self.out, name, entry, headline, ending="")
        return entry


def measure(scripts: Sequence[Path], settings: Settings, *, anew: bool = False) -> dict[str, Any]:
    """Run what is missing of these scripts and return the results file."""
    runs = Runs(settings.out, anew=anew)
    for script in scripts:
        known = {"script": script.stem, "digest": hashlib.sha256(script.read_bytes()).hexdigest()[:16]}
        if not runs.is_there(start := f"{script.stem}_start", known["digest"]):
            taken = [cold_start_s(script, settings) for _ in range(settings.starts)]
            runs.keep(start, {**known, "cold_start_s": statistics.median(taken), "cold_starts_s": taken})
        start_s = runs.report["runs"][start]["cold_start_s"]
        for times in settings.times:
            if not runs.is_there(name := f"{script.stem}_{times:g}", known["digest"]):
                found = runs.keep(name, {**known, "times": times, **run_s(script, times * start_s, settings)})
                typer.echo(f"{name}: saves {found['gain']:.1%} of the time in {found['wall_s']:.0f} s")
    return runs.report


def main(
    script: Annotated[list[Path] | None, typer.Option(help="scripts; by default those of evaluation/scripts")] = None,
    times: Annotated[
        list[float] | None, typer.Option(help="budgets in cold starts; by default 1, 2, 5, 10, 20")
    ] = None,
    starts: Annotated[int, typer.Option(help="cold starts of each script", min=1)] = STARTS,
    anew: Annotated[bool, typer.Option("--anew", help="run also what is there")] = False,
    device: Annotated[str, typer.Option(help="as of kcg optimize")] = "CPU",
    out: Annotated[Path, typer.Option(help="the results file")] = OUT,
) -> None:
    """Measure what is missing, and write what the documents say of it."""
    scripts = [one.absolute() for one in script] if script else sorted(SCRIPTS.glob("*.py"))
    with tempfile.TemporaryDirectory(prefix="kcg-cold-starts-", ignore_cleanup_errors=True) as name:
        settings = Settings(Path(name), out, tuple(times or TIMES), starts, device)
        report = measure(scripts, settings, anew=anew)
    if out == OUT:
        write_into(README, {MARK: lines_of(report)})
        write_into(OPTIMIZE, {MARK: table_of(report)})
    typer.echo(json.dumps(report["headline"]))


if __name__ == "__main__":
    run_script(main)
