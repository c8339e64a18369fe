"""How the scripts of a comparison begin and end: their common options, the contenders, the rows that are there."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kcg.errors import UnknownName, UsageError

if TYPE_CHECKING:
    from .pool import Contender, Pool
    from .rows import Rows

Device = Annotated[str, typer.Option(help="as kcg.optimize --device")]
Size = Annotated[str, typer.Option(help="full or mini")]
Tune = Annotated[str, typer.Option(help="kcg's budget for each case")]
Names = Annotated[str, typer.Option(help="with commas between")]
Limit = Annotated[float, typer.Option(help="seconds that making a contender ready may take")]
Budget = Annotated[str, typer.Option(help="after which no new row is begun; empty: none")]
Again = Annotated[bool, typer.Option("--again", help="forget all rows that are there")]
Retry = Annotated[bool, typer.Option("--retry", help="make those again in which something failed")]
DrawOnly = Annotated[bool, typer.Option("--draw-only", help="time nothing: pictures and table of the rows there are")]
Work = Annotated[Path, typer.Option(help="what kcg and BEAM found, for a call that goes on")]
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


def run_of(size: str, dev: str) -> str:
    """The name of a run in a results file."""
    return f"{size}_{dev.lower().replace(':', '_')}"


def redraw(write: Write, out: Path, size: str, dev: str) -> None:
    """Write the pictures and the table of the rows that `out` has, no device asked. Raises UsageError for no rows."""
    if dev == "auto":
        raise UsageError("say --device: that of the rows, since none is asked here")
    runs = json.loads(out.read_text())["runs"] if out.exists() else {}
    if (run := run_of(size, dev)) not in runs:
        raise UnknownName("run", run, list(runs))
    write(runs[run]["rows"], out, run)


@dataclass(frozen=True)
class Comparison:
    """A comparison on one device: its `run` in the results file, the rows of it, and the contenders' processes."""

    dev: str
    run: str
    rows: Rows
    pool: Pool
    tune: str
    work: Path

    def time(self, key: str, case: dict[str, Any], contenders: Sequence[Contender], *, profiled: bool = False) -> None:
        """Time the contenders on a case, keep the row and say it, unless it is there or no time is left."""
        from kcg.optimize.settings import parse_budget

        from .comparing import compare, shown
        from .turns import Turns

        if self.rows.wanted(key):
            tune_s = parse_budget(self.tune)
            row = compare(Turns(self.pool), case, contenders, tune_s=tune_s, work=self.work, profiled=profiled)
            self.rows.add(key, row)
            typer.echo(f"{key}: {shown(row)}")


@contextlib.contextmanager
def comparison(
    dev: str, size: str, out: Path, *, headline: Headline, budget: str, again: bool, retry: bool, tune: str = "",
    work: Path = Path("kcg-out"), limit: float = 300.0, write: Write | None = None,
) -> Iterator[Comparison]:  # fmt: skip
    """Open what `size` has on `dev`; at the end `write` its pictures and table, if there are rows, end its processes,
    and say how many rows are left."""
    from .pool import Pool
    from .rows import Rows

    run, settings = run_of(size, dev), {"tune": tune} if tune else {}
    rows = Rows(out, run, budget=budget, again=again, retry=retry, settings=settings, headline=headline(run))
    with Pool(dev, prepare_s=limit, work=work) as pool:
        yield Comparison(dev, run, rows, pool, tune, work)
        if write is not None and rows.rows:
            write(rows.rows, out, run)
    if rows.left:
        typer.echo(f"{rows.left} rows are left: run the same command again")
