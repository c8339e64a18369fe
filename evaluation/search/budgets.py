"""How good a result is after each budget: cold runs of 60, 120 and 300 s and without one, beside a thorough one.

    python -m evaluation.search.budgets CPU
    python -m evaluation.search.budgets CUDA --only flux_768 --time 9m

A run is a process with an output folder and caches of its own; its seconds are from its start to its end. What its
result gives is its step and that of one `--effort thorough` run of the same workload, both replayed in turns in one
process on this device: a share is the thorough step's time over the result's. Where a script has no step that can be
replayed, it is what the kernels take, in both results. The same command goes on where it was cut, also in the middle of
the thorough run. Writes evaluation/results/bench_budgets.json after every run.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from evaluation.measure.watched import ROOT, cold_environment, run_watched
from evaluation.rows import Row, Rows, rounded, run_of
from kcg.cli import run_script
from kcg.errors import ExitCode, UsageError
from kcg.types import Result

OUT = ROOT / "evaluation" / "results" / "bench_budgets.json"
SCRIPTS: Final = "evaluation/search/scripts"
BUDGETS: Final = {"60": 3, "120": 3, "300": 1, "": 1}
"""Seconds of a budget, as a name of the headline has them, and how many cold runs it gets; empty: without one."""
THOROUGH: Final = "thorough"
USABLE: Final = (ExitCode.OK, ExitCode.UNCHECKED, ExitCode.VERIFICATION_FAILED)
"""Exit codes of runs of which something improved, or may have."""
LIMIT_S: Final = 1800.0  # of a run, however long its budget


@dataclass(frozen=True)
class Workload:
    """What is optimised, as arguments of `kcg optimize`, and which figures of the headline it is part of."""

    arguments: tuple[str, ...]
    group: str
    devices: tuple[str, ...]


def _script(name: str) -> Workload:
    return Workload((f"{SCRIPTS}/{name}.py",), "cpu_scripts", ("CPU",))


WORKLOADS: Final = {
    "flux_1024": Workload(("flux", "--preset", "1024"), "flux_1024", ("CUDA",)),
    "flux_768": Workload(("flux", "--preset", "768"), "flux_768", ("CUDA",)),
    "flux_mini": Workload(("flux", "--preset", "mini"), "cpu", ("CPU",)),
    **{name: _script(name) for name in ("train_cnn", "resnet", "unet", "transformer", "mnist")},
}


def main(
    device: Annotated[str, typer.Argument(help="as kcg.optimize --device")] = "CPU",
    only: Annotated[str, typer.Option(help="workloads, with commas; empty: all of the device")] = "",
    budgets: Annotated[str, typer.Option(help="seconds, with commas; none: without a budget")] = "60,120,300,none",
    again: Annotated[bool, typer.Option("--again", help="forget what is there of these cells")] = False,
    time_: Annotated[str, typer.Option("--time", help="no run is begun after it, e.g. 9m")] = "",
    work: Annotated[Path, typer.Option(help="the folder of the runs")] = ROOT / "kcg-out" / "budgets",
    out: Annotated[Path, typer.Option(help="the results file")] = OUT,
) -> None:
    """Run what is missing, and write down the figures."""
    rows = Rows(out, run_of("budgets", device), budget=time_, headline=headline)
    for name in workloads_of(device, only):
        bench = Bench(name, device, work / device.lower().replace(":", "_"))
        for seconds, count in budgets_of(budgets).items():
            for turn in range(1, count + 1):
                key = f"{name}/{seconds or 'none'}/{turn}"
                if again and key in rows.rows:
                    rows.again([key])
                if rows.wanted(key):
                    rows.add(key, bench.cell(seconds, turn))
                    typer.echo(f"{key}: {json.dumps({k: rows.rows[key].get(k) for k in SHOWN})}", err=True)
    if rows.left:
        typer.echo(f"{rows.left} runs are missing: the same command makes them", err=True)
    typer.echo(json.dumps(headline(rows.rows), indent=1))


SHOWN: Final = ("exit_code", "s", "improved", "unjudged", "share", "step_ms", "reason")


def workloads_of(device: str, only: str) -> list[str]:
    """The names that are wanted. Raises UsageError for one that is none of the device's."""
    names = [name for name, one in WORKLOADS.items() if device.split(":")[0] in one.devices]
    wanted = [name.strip() for name in only.split(",") if name.strip()] or names
    if unknown := [name for name in wanted if name not in names]:
        raise UsageError(f"{unknown[0]} is no workload for {device}: choose of {', '.join(names)}")
    return wanted


def budgets_of(text: str) -> dict[str, int]:
    """The budgets that are wanted, as `BUDGETS` has them. Raises UsageError for another one."""
    wanted = ["" if word.strip() == "none" else word.strip() for word in text.split(",")]
    if unknown := [word for word in wanted if word not in BUDGETS]:
        raise UsageError(f"--budgets {unknown[0]}: choose of 60, 120, 300, none")
    return {word: BUDGETS[word] for word in wanted}


@dataclass(frozen=True)
class Bench:
    """The runs of one workload on one device, in folders below `work`."""

    name: str
    device: str
    work: Path

    def cell(self, seconds: str, turn: int) -> Row:
        """A cold run with a budget of so many seconds, and what its result gives."""
        folder = self.work / self.name / f"{seconds or 'none'}-{turn}"
        shutil.rmtree(folder, ignore_errors=True)  # what was cut: a cold run does not go on
        budget = ["--budget", f"{seconds}s"] if seconds else []
        with cold() as environment:
            row = self._run(folder, budget, environment)
        if seconds:
            row["overrun_s"] = rounded(max(row["s"] - float(seconds), 0.0))
        result = result_in(folder)
        if row["exit_code"] in USABLE and result is not None:
            return {**row, **self._share(result, self._thorough())}
        return {**row, "share": 0.0}

    def _run(self, folder: Path, options: list[str], environment: Mapping[str, str]) -> Row:
        command = ["-m", "kcg.optimize", *WORKLOADS[self.name].arguments, "--device", self.device, *options]
        whole = [sys.executable, *command, "--report", str(folder), "--quiet"]
        with tempfile.TemporaryDirectory(prefix="kcg-budget-", ignore_cleanup_errors=True) as printed:
            run = run_watched(whole, environment, cwd=ROOT, folder=Path(printed), limit_s=LIMIT_S)
        row: Row = {"exit_code": run.code, "s": round(run.seconds, 2), "load": round(os.getloadavg()[0], 1)}
        if (result := result_in(folder)) is None:
            return {**row, "reason": (run.err.splitlines() or ["no RESULT.json"])[-1][:200]}
        return {**row, **figures_of(result)}

    def _thorough(self) -> Result:
        """The result that all others are compared with; its run goes on where it was cut."""
        folder = self.work / self.name / THOROUGH
        if not (folder / "done").exists():
            options = ["--effort", "thorough", *(["--resume"] if (folder / "journal.sqlite").exists() else [])]
            row = self._run(folder, options, dict(os.environ))
            if row["exit_code"] != ExitCode.OK:
                raise UsageError(f"the thorough run of {self.name} ended with {row['exit_code']}: see {folder}")
            (folder / "done").touch()
        result = result_in(folder)
        assert result is not None
        return result

    def _share(self, result: Result, thorough: Result) -> dict[str, Any]:
        """The speed of a result's step as a share of the thorough one's, and which times that is of."""
        folder = self.work / self.name
        own, best = self._steps_s([result, thorough], folder)
        what = "step"
        if own is None or best is None:
            own, best, what = result.total_after_s, thorough.total_after_s, "kernels"
        return {"share": rounded(best / own), "share_of": what, "step_ms": rounded(1e3 * own)}

    def _steps_s(self, results: list[Result], folder: Path) -> list[float | None]:
        """What the step of each result takes, all of them in turns in one process."""
        from kcg.optimize.completing import runner_of

        runner = runner_of(results[0], folder)
        checks = runner.checks([replace(one, complete=True) for one in results], timeout_s=LIMIT_S)
        return [check.after_s for check in checks]


@contextlib.contextmanager
def cold() -> Iterator[dict[str, str]]:
    """The environment of a run that finds nothing of an earlier one."""
    with tempfile.TemporaryDirectory(prefix="kcg-cold-", ignore_cleanup_errors=True) as name:
        yield cold_environment(Path(name))


def result_in(folder: Path) -> Result | None:
    """The result of a run, if it left one."""
    from kcg.report.result import read_result

    path = folder / "RESULT.json"
    return read_result(path) if path.exists() else None


def figures_of(result: Result) -> dict[str, Any]:
    """What is kept of a result."""
    check = result.model_check
    outcomes = [row.outcome for row in result.regions]
    return {
        "before_s": rounded(result.total_before_s),
        "after_s": rounded(result.total_after_s),
        "improved": outcomes.count("improved"),
        "unjudged": outcomes.count("undecided"),
        "kernels": len(outcomes),
        "whole": None if check is None else check.passed,
        "whole_reason": "" if check is None else check.reason,
        "complete": result.complete,
        "measurements": result.measurements,
        "phases": {name: round(seconds, 2) for name, seconds in result.phases},
    }


def headline(rows: Mapping[str, Row]) -> dict[str, Any]:
    """The figures over all rows: of several runs of a cell, and of several workloads of a group, the worst."""
    cells: dict[tuple[str, str], list[Row]] = {}
    for key, row in rows.items():
        name, seconds, _ = key.split("/")
        cells.setdefault((name, "" if seconds == "none" else seconds), []).append(row)
    found: dict[str, Any] = {}
    for seconds in BUDGETS:
        end = f"_{seconds}" if seconds else ""
        for group in dict.fromkeys(one.group for one in WORKLOADS.values()):
            of = {name: cells[name, seconds] for name, one in WORKLOADS.items()
                  if one.group == group and (name, seconds) in cells}  # fmt: skip
            if not of:
                continue
            worst = min(_worst(each) for each in of.values())
            found[f"{group}_share{end}" + ("_min" if "scripts" in group else "")] = worst
            if "scripts" in group:
                found[f"{group}_improved{end}"] = sum(all(row.get("improved") for row in each) for each in of.values())
                found[f"{group}_exit_0{end}"] = sum(all(row["exit_code"] == 0 for row in e) for e in of.values())
            if not seconds:
                found[f"{group}_s"] = max(row["s"] for each in of.values() for row in each)
    overruns = [row["overrun_s"] for row in rows.values() if "overrun_s" in row]
    worse = [_worst(cells[name, less]) - _worst(cells[name, more]) for name, less, more in _longer(cells)]
    return {
        **found,
        **({"budget_overrun_max_s": max(overruns)} if overruns else {}),
        **({"worse_with_more_time_max": rounded(max(0.0, *worse))} if worse else {}),
    }


def _worst(rows: Iterable[Row]) -> float:
    return min(float(row["share"]) for row in rows)


def _longer(cells: Mapping[tuple[str, str], list[Row]]) -> Iterator[tuple[str, str, str]]:
    """Each workload with a budget and the next longer one that it has."""
    for name in WORKLOADS:
        there = [seconds for seconds in BUDGETS if (name, seconds) in cells]
        yield from ((name, less, more) for less, more in itertools.pairwise(there))


if __name__ == "__main__":
    run_script(main)
