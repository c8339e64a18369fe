"""How good a result is after each budget: cold runs of 60, 120 and 300 s and without one, beside a thorough one.

    python -m evaluation.search.budgets CPU
    python -m evaluation.search.budgets CUDA --only flux_768 --time 9m

A run is a process with an output folder and caches of its own; its seconds are from its start to its end. What its
result gives is its step and that of one `--effort thorough` run of the same workload: once all runs of a workload are
there, all of them are replayed in turns in one process on this device, and a share is the thorough step's time over a
result's. Where a script has no step that can be replayed, it is what the kernels take, in both results. The same
command goes on where it was cut, also in the middle of the thorough run. Two scripts are of tinygrad's repository and
need a checkout of it, whose folder TINYGRAD_SOURCE names. Writes evaluation/results/bench_budgets.json after every run.
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
from kcg.measure.protocol import median
from kcg.report.timeline import timeline_in
from kcg.types import Result

OUT = ROOT / "evaluation" / "results" / "bench_budgets.json"
SCRIPTS: Final = "evaluation/search/scripts"
BUDGETS: Final = {"60": 3, "120": 3, "300": 1, "none": 1}
"""Seconds of a budget, and how many cold runs it gets."""
STORE, THOROUGH = "store", "thorough"
"""Other rows: a cold run that finds in a store what the one without a budget put there, and the run that all are
compared with. How soon a known result is ready: `evaluation.flux.ready`."""
OTHERS: Final = (STORE, THOROUGH)
USABLE: Final = (ExitCode.OK, ExitCode.UNCHECKED, ExitCode.VERIFICATION_FAILED)
"""Exit codes of runs of which something improved, or may have."""
LIMIT_S: Final = 1800.0  # of a run, however long its budget


@dataclass(frozen=True)
class Workload:
    """What is optimised, as arguments of `kcg optimize`, and which figures of the headline it is part of."""

    arguments: tuple[str, ...]
    group: str
    devices: tuple[str, ...]
    stored: bool = False  # a further run finds the result of the one without a budget in a store


def _script(name: str, group: str, device: str) -> Workload:
    return Workload((f"{SCRIPTS}/{name}.py",), group, (device,))


WORKLOADS: Final = {
    "flux_1024": Workload(("flux", "--preset", "1024"), "flux_1024", ("CUDA",), True),
    "flux_768": Workload(("flux", "--preset", "768"), "flux_768", ("CUDA",)),
    "flux_mini": Workload(("flux", "--preset", "mini"), "cpu", ("CPU",), True),
    **{name: _script(name, "scripts", "CUDA") for name in ("resnet50", "gpt2_decode", "llama_decode")},
    **{name: _script(name, "cpu_scripts", "CPU") for name in ("train_cnn", "resnet", "unet", "transformer", "mnist")},
}


ALL: Final = ",".join((*BUDGETS, *OTHERS))


def main(
    device: Annotated[str, typer.Argument(help="as kcg.optimize --device")] = "CPU",
    only: Annotated[str, typer.Option(help="workloads, with commas; empty: all of the device")] = "",
    budgets: Annotated[str, typer.Option(help="which rows, with commas, in their order")] = ALL,
    runs: Annotated[int, typer.Option(help="of one budget, at most")] = 3,
    thorough: Annotated[str, typer.Option(help="a budget of the thorough run, e.g. 8m; empty: none")] = "",
    shares: Annotated[bool, typer.Option(help="replay the steps of results that have no share")] = True,
    again: Annotated[bool, typer.Option("--again", help="forget what is there of these cells")] = False,
    time_: Annotated[str, typer.Option("--time", help="no run is begun after it, e.g. 9m")] = "",
    work: Annotated[Path, typer.Option(help="the folder of the runs")] = ROOT / "kcg-out" / "budgets",
    out: Annotated[Path, typer.Option(help="the results file")] = OUT,
) -> None:
    """Run what is missing, and write down the figures."""
    rows = Rows(out, run_of("budgets", device), budget=time_, headline=headline)
    for name in workloads_of(device, only):
        bench = Bench(name, device, work / device.lower().replace(":", "_"))
        for row in rows_of(budgets):
            for turn in range(1, min(runs, BUDGETS.get(row, 1)) + 1):
                key = f"{name}/{row}/{turn}" if row in BUDGETS else f"{name}/{row}"
                if again:
                    rows.again([key])
                if bench.has(row) and rows.wanted(key):
                    rows.add(key, bench.made(row, turn, thorough))
                    typer.echo(f"{key}: {json.dumps({k: rows.rows[key].get(k) for k in SHOWN})}", err=True)
        if shares:
            for key, with_share in bench.shares(rows.rows):
                rows.again([key])
                rows.add(key, with_share)
    if rows.left:
        typer.echo(f"{rows.left} runs are missing: the same command makes them", err=True)
    typer.echo(json.dumps(headline(rows.rows), indent=1))


SHOWN: Final = ("exit_code", "s", "improved", "unjudged", "after_s", "whole", "reason")


def workloads_of(device: str, only: str) -> list[str]:
    """The names that are wanted. Raises UsageError for one that is none of the device's."""
    names = [name for name, one in WORKLOADS.items() if device.split(":")[0] in one.devices]
    wanted = [name.strip() for name in only.split(",") if name.strip()] or names
    if unknown := [name for name in wanted if name not in names]:
        raise UsageError(f"{unknown[0]} is no workload for {device}: choose of {', '.join(names)}")
    return wanted


def rows_of(text: str) -> list[str]:
    """The rows that are wanted, in their order. Raises UsageError for another one."""
    wanted = [word.strip() for word in text.split(",")]
    if unknown := [word for word in wanted if word not in (*BUDGETS, *OTHERS)]:
        raise UsageError(f"--budgets {unknown[0]}: choose of {ALL.replace(',', ', ')}")
    return wanted


@dataclass(frozen=True)
class Bench:
    """The runs of one workload on one device, in folders below `work`."""

    name: str
    device: str
    work: Path

    def has(self, row: str) -> bool:
        """Whether there is such a row of this workload, and what it needs."""
        return row != STORE or (WORKLOADS[self.name].stored and self._store.exists())

    def made(self, row: str, turn: int, thorough: str) -> Row:
        """One row: see `BUDGETS` and `OTHERS`; `thorough` is the budget of that run."""
        return self.thorough(thorough) if row == THOROUGH else self.cell(row, turn)

    def cell(self, seconds: str, turn: int) -> Row:
        """A cold run with a budget of so many seconds; what its result gives is told by `shares`."""
        folder = self._folder(seconds, turn)
        shutil.rmtree(folder, ignore_errors=True)  # what was cut: a cold run does not go on
        options = ["--budget", f"{seconds}s"] if seconds.isdecimal() else []
        if WORKLOADS[self.name].stored and not options:
            if seconds != STORE:
                shutil.rmtree(self._store, ignore_errors=True)
            options = ["--store", str(self._store)]
        with cold() as environment:
            row = self._run(folder, options, environment)
        if seconds.isdecimal():
            row["overrun_s"] = rounded(max(row["s"] - float(seconds), 0.0))
        usable = row["exit_code"] in USABLE and (folder / "RESULT.json").exists()
        return row if usable else {**row, "share": 0.0}

    def thorough(self, budget: str) -> Row:
        """The run that all others are compared with; it goes on where it was cut. Raises UsageError where it failed."""
        folder = self.work / self.name / THOROUGH
        options = ["--effort", "thorough", *(["--budget", budget] if budget else [])]
        row = self._run(folder, options + (["--resume"] if (folder / "journal.sqlite").exists() else []), os.environ)
        if row["exit_code"] not in (ExitCode.OK, ExitCode.UNCHECKED):
            raise UsageError(f"the thorough run of {self.name} ended with {row['exit_code']}: see {folder}")
        self._ended.touch()
        return {**row, "budget": budget}

    def shares(self, rows: Mapping[str, Row]) -> Iterator[tuple[str, Row]]:
        """The rows of this workload that had no share, with the speed of their step as a share of the thorough one's:
        all of them and the thorough one are replayed in turns. None where that is not there."""
        results: dict[str, Result] = {}
        for key, row in rows.items():
            name, what, *turn = key.split("/")
            if name == self.name and what != THOROUGH and "share" not in row:
                found = result_in(self._folder(what, int(turn[0]) if turn else 1))
                results |= {} if found is None else {key: found}
        thorough = result_in(self._ended.parent) if self._ended.exists() else None
        if thorough is None or not results:
            return
        *steps_s, best_s = self._steps_s([*results.values(), thorough])
        for (key, result), step_s in zip(results.items(), steps_s, strict=True):
            own, best, what = step_s, best_s, "step"
            if own is None or best is None:
                own, best, what = result.total_after_s, thorough.total_after_s, "kernels"
            yield key, {**rows[key], "share": rounded(best / own), "share_of": what, "step_ms": rounded(1e3 * own)}

    @property
    def _store(self) -> Path:
        return self.work / self.name / "found"

    @property
    def _ended(self) -> Path:
        """A file that says that the thorough run came to its end."""
        return self.work / self.name / THOROUGH / "ended"

    def _folder(self, seconds: str, turn: int) -> Path:
        return self.work / self.name / f"{seconds}-{turn}"

    def _run(self, folder: Path, options: list[str], environment: Mapping[str, str]) -> Row:
        command = ["-m", "kcg.optimize", *WORKLOADS[self.name].arguments, "--device", self.device, *options]
        whole = [sys.executable, *command, "--report", str(folder), "--quiet"]
        with tempfile.TemporaryDirectory(prefix="kcg-budget-", ignore_cleanup_errors=True) as printed:
            run = run_watched(whole, environment, cwd=ROOT, folder=Path(printed), limit_s=LIMIT_S)
        row: Row = {
            "device": self.device,
            "exit_code": run.code,
            "s": round(run.seconds, 2),
            "load": round(os.getloadavg()[0], 1),
        }
        if (result := result_in(folder)) is None:
            return {**row, "reason": (run.err.splitlines() or ["no RESULT.json"])[-1][:200]}
        return {**row, **figures_of(result), **busy_shares(folder, result)}

    def _steps_s(self, results: list[Result]) -> list[float | None]:
        """What the step of each result takes, all of them in turns in one process."""
        from kcg.optimize.completing import runner_of

        runner = runner_of(results[-1], self.work / self.name / THOROUGH)
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
    found = {row.region.id: row.calls * (row.before_s - row.after_s) for row in result.regions}
    saved_s = sum(found.values())
    provisional_s = sum(found[row.region.id] for row in result.regions if row.chosen.provisional)
    return {
        "before_s": rounded(result.total_before_s),
        "after_s": rounded(result.total_after_s),
        "improved": outcomes.count("improved"),
        "unjudged": outcomes.count("undecided"),
        "kernels": len(outcomes),
        "provisional": sum(row.chosen.provisional for row in result.regions),
        "provisional_share": rounded(provisional_s / saved_s) if saved_s > 0 else 0.0,
        "whole": None if check is None else check.passed,
        "whole_reason": "" if check is None else check.reason,
        "complete": result.complete,
        "measurements": result.measurements,
        "phases": {name: round(seconds, 2) for name, seconds in result.phases},
    }


def busy_shares(folder: Path, result: Result) -> Row:
    """The shares of a run in which its device and its cores had a job, by the journal that it left."""
    from kcg.dataset.job_use import CORE, uses
    from kcg.dataset.journal import Journal

    with Journal.open(folder / "journal.sqlite", read_only=True) as journal:
        runs = uses(journal.jobs(), journal.runs())
        timeline = timeline_in(journal, result)
    cores = next((one for one in (runs[-1].resources if runs else ()) if one.resource == CORE), None)
    cores_share = cores.busy_s / (cores.busy_s + cores.idle_s) if cores is not None else 0.0
    device_share = timeline.device_s / timeline.seconds if timeline is not None else 0.0
    return {"device_busy": rounded(device_share), "cores_busy": rounded(cores_share)}


def headline(rows: Mapping[str, Row]) -> dict[str, Any]:
    """The figures over all rows: of several runs of a cell, and of several workloads of a group, the worst."""
    cells: dict[tuple[str, str], list[Row]] = {}
    for key, row in rows.items():
        name, _, turn = key.partition("/")
        if turn not in OTHERS and "share" in row:
            cells.setdefault((name, turn.partition("/")[0]), []).append(row)
    found: dict[str, Any] = {}
    for seconds in BUDGETS:
        end = "" if seconds == "none" else f"_{seconds}"
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
            if not end:
                longest_s = max(row["s"] for each in of.values() for row in each)
                found[f"{group}_s" + ("_max" if "scripts" in group else "")] = longest_s
            if not end and "scripts" not in group:
                found[f"{group}_step_ms"] = max(row["step_ms"] for each in of.values() for row in each)
    of_runs = [row for key, row in rows.items() if "exit_code" in row and not key.endswith((THOROUGH, STORE))]
    worse = [_worst(cells[name, less]) - _worst(cells[name, more]) for name, less, more in _longer(cells)]
    figures: dict[str, Any] = {
        "budget_overrun_max": max((row["overrun_s"] for row in of_runs if "overrun_s" in row), default=None),
        "provisional_share_max": max((row["provisional_share"] for row in of_runs if "after_s" in row), default=None),
        "worse_with_more_time_max": rounded(max(0.0, *worse)) if worse else None,
    }
    if of_runs and all(row["device"] == "CPU" for row in of_runs):
        figures = {f"cpu_{name}": value for name, value in figures.items()}
    figures["store_hit_s"] = rows.get(f"flux_1024/{STORE}", {}).get("s")
    figures["cpu_store_hit_s"] = rows.get(f"flux_mini/{STORE}", {}).get("s")
    if on_gpu := [row for row in of_runs if "device_busy" in row and row["device"] == "CUDA"]:
        figures["gpu_busy_share"] = rounded(median([row["device_busy"] for row in on_gpu]))
        figures["cpu_busy_share"] = rounded(median([row["cores_busy"] for row in on_gpu]))
    return found | {key: value for key, value in figures.items() if value is not None}


def _worst(rows: Iterable[Row]) -> float:
    return min(float(row["share"]) for row in rows)


def _longer(cells: Mapping[tuple[str, str], list[Row]]) -> Iterator[tuple[str, str, str]]:
    """Each workload with a budget and the next longer one that it has."""
    for name in WORKLOADS:
        there = [seconds for seconds in BUDGETS if (name, seconds) in cells]
        yield from ((name, less, more) for less, more in itertools.pairwise(there))


if __name__ == "__main__":
    run_script(main)
