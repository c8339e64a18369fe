"""A comparison: the common options of its commands, and its rows: kcg tuned on a case, then all contenders in turns."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from evaluation.pytorch.cases import least_bytes, operations, reference
from evaluation.pytorch.kind import Case
from evaluation.pytorch.tuning import folder_of, tune
from evaluation.pytorch.turns import KCG, Contender, Pool, Turns
from evaluation.rows import Rows, run_of, speed
from kcg.cli import parse_budget
from kcg.errors import KcgError, UnknownName, UsageError
from kcg.report.formats import format_seconds

Device = Annotated[str, typer.Option(help="as kcg.optimize --device")]
Budget = Annotated[str, typer.Option(help="after which no new row is begun; empty: none")]
Again = Annotated[bool, typer.Option("--again", help="forget all rows that are there")]
Retry = Annotated[bool, typer.Option("--retry", help="make those again in which something failed")]
Out = Annotated[Path, typer.Option(help="the results file")]

Headline = Callable[[str], Callable[[dict[str, Any]], dict[str, float]]]
Write = Callable[[dict[str, Any], Path, str], None]
"""Writes the pictures and the table of the rows of a run beside a results file."""


def named(noun: str, names: str, known: Iterable[Contender]) -> list[Contender]:
    """The contenders that are named. Raises UnknownName."""
    by_name = {contender.name: contender for contender in known}
    if unknown := [name for name in names.split(",") if name not in by_name]:
        raise UnknownName(noun, unknown[0], list(by_name))
    return [by_name[name] for name in names.split(",")]


def redraw(write: Write, out: Path, size: str, dev: str) -> None:
    """Write the pictures and the table of the rows that `out` has, no device asked. Raises UsageError for no rows."""
    if dev == "auto":
        raise UsageError("say --device: that of the rows, since none is asked here")
    runs = json.loads(out.read_text())["runs"] if out.exists() else {}
    if (run := run_of(size, dev)) not in runs:
        raise UnknownName("run", run, list(runs))
    write(runs[run]["rows"], out, run)


@dataclass(frozen=True)
class Opened:
    """An open comparison on a device: its `run` in the results file, the rows of it, and the contenders' processes."""

    dev: str
    run: str
    rows: Rows
    pool: Pool
    tune: str
    work: Path

    def time(self, key: str, case: dict[str, Any], contenders: Sequence[Contender], *, profiled: bool = False) -> None:
        """Time the contenders on a case, keep the row and say it, unless it is there or no time is left."""
        if self.rows.wanted(key):
            tune_s = parse_budget(self.tune)
            row = compare(Turns(self.pool), case, contenders, tune_s=tune_s, work=self.work, profiled=profiled)
            self.rows.add(key, row)
            typer.echo(f"{key}: {shown(row)}")


@dataclass(frozen=True)
class RunSettings:
    """What one call of a comparison times, and for how long."""

    budget: str
    again: bool  # also what is there
    retry: bool  # also what failed
    tune: str = ""  # kcg's budget a case
    work: Path = Path("kcg-out")
    limit: float = 300.0  # seconds to prepare a contender


@contextlib.contextmanager
def opened(
    dev: str, size: str, out: Path, asked: RunSettings, *, headline: Headline, write: Write | None = None
) -> Iterator[Opened]:
    """Open what `size` has on `dev`; at the end `write` its pictures and table, if there are rows, end its processes,
    and say how many rows are left."""
    run, settings = run_of(size, dev), {"tune": asked.tune} if asked.tune else {}
    limits = {"budget": asked.budget, "again": asked.again, "retry": asked.retry}
    rows = Rows(out, run, **limits, settings=settings, headline=headline(run))
    with Pool(dev, prepare_s=asked.limit, work=asked.work) as pool:
        yield Opened(dev, run, rows, pool, asked.tune, asked.work)
        if write is not None and rows.rows:
            write(rows.rows, out, run)
    if rows.left:
        typer.echo(f"{rows.left} rows are left: run the same command again")


def compare(
    turns: Turns, case: Case, contenders: Sequence[Contender], *, tune_s: float, work: Path, profiled: bool = False
) -> dict[str, Any]:
    """The row of a case: the contenders, each with its rates, and the case itself.

    `tune_s` is kcg's budget; its result is kept in `work`, where a call that was cut off finds it again.
    """
    profiles: dict[str, str] = {}
    ready, tuned, failed = [], dict[str, Any](), {}
    for contender in contenders:
        settings = contender.settings
        if settings.get("how") == KCG:
            try:
                report = tuned_for(case, turns.pool.dev, settings, tune_s, work)
            except KcgError as error:
                failed[contender.name] = {"status": "failed", "reason": str(error)}
                continue
            contender = replace(contender, settings={**settings, "result": report.pop("result")})
            tuned[contender.name] = report
        ready.append(contender)
    found = turns.row(ready, case, reference(case), profiles if profiled else None)
    for name, report in tuned.items():
        found[name].update(report)
    for row in found.values():
        if row["status"] == "ok":
            row.update(speed(row["cold_s"], bytes=least_bytes(case), operations=operations(case)))
    return {"case": case, "contenders": {**found, **failed}, **({"profiles": profiles} if profiled else {})}


def tuned_for(case: Case, dev: str, settings: dict[str, Any], tune_s: float, work: Path) -> dict[str, Any]:
    """What `tune` says of a contender of kcg's. Raises KcgError."""
    case = {**case, **({"program": settings["program"]} if "program" in settings else {})}
    kernels, only = settings.get("kernels", ""), settings.get("only", "")
    return tune(case, dev, budget_s=tune_s, folder=work / folder_of(case, kernels), kernels=kernels, only=only)


def shown(row: dict[str, Any]) -> str:
    """A row in one line: the cold time of each, or why there is none."""
    report = {
        name: format_seconds(found["cold_s"]) if found["status"] == "ok" else found["reason"]
        for name, found in row["contenders"].items()
    }
    return ", ".join(f"{name} {what}" for name, what in report.items())
