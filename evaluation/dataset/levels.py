"""Bring the lone kernels of all runs of a journal to one level.

    python -m evaluation.dataset.levels recorded.sqlite level.sqlite --since 2026-11-30

Until 29 November 2026 each process measured by itself what a launch takes alone, and added it to the times of single
kernels (`kcg.compat.programs.ALONE_S` says why that is a constant now). What it came to is one number for each run: the
median by which its times of programs differ from those of runs since then, or of runs that are on a level already.
Samples are less by that number, which the run's description keeps as `levelled_s`: added again it gives what was
measured. Regions of several kernels stay, as do runs that nothing is known of, which is said.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Annotated, Final

import typer

from kcg.cli import run_script
from kcg.dataset.export import copy
from kcg.dataset.journal import Journal, Record, Run
from kcg.errors import UsageError
from kcg.measure.protocol import PROTOCOL
from kcg.types import Measurement, Status

SHORT_S: Final = 1e-4  # of longer kernels a microsecond is lost in the noise
FEWEST: Final = 5  # programs that two runs share
LEVELLED: Final = "levelled_s"

Of = dict[tuple[object, ...], float]
"""Seconds of each program of a run."""


def times_of(records: list[Record], kernels: set[str]) -> dict[str, Of]:
    """The short lone kernels' programs of each run."""
    found: dict[str, dict[tuple[object, ...], list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        row = record.measurement
        if is_lone(row, kernels) and row.median_s < SHORT_S:
            found[row.run_id][row.target, row.region_id, row.variables, row.schedule].append(row.median_s)
    return {run: {key: median(some) for key, some in times.items()} for run, times in found.items()}


def is_lone(row: Measurement, kernels: set[str]) -> bool:
    """Whether a row is a time of one kernel. A region of one is named as its kernel is."""
    return row.status == Status.OK and row.region_id in kernels


def levels(times: dict[str, Of], anchors: set[str]) -> dict[str, float]:
    """How much more than the anchors' each run's times are, in seconds; of runs that share programs with none that is
    known, nothing. The run that shares most with those that are known is next."""
    known = {run: 0.0 for run in times if run in anchors}
    while waiting := [run for run in times if run not in known]:
        pairs = {run: differences(times[run], times, known) for run in waiting}
        best = max(waiting, key=lambda run: (len(pairs[run]), run))
        if len(pairs[best]) < FEWEST:
            break
        known[best] = median(pairs[best])
    return known


def differences(of: Of, times: dict[str, Of], known: dict[str, float]) -> list[float]:
    """By how much a run's times of the programs that it shares with known runs are above their level."""
    return [
        seconds - (times[other][key] - above_s)
        for other, above_s in known.items()
        for key, seconds in of.items()
        if key in times[other]
    ]


def main(
    source: Annotated[Path, typer.Argument(help="a journal")],
    out: Annotated[Path, typer.Argument(help="the journal that is written")],
    since: Annotated[str, typer.Option(help="runs that started then or later are on the level: an ISO date and time")],
) -> None:
    """Write the journal with all its runs on one level."""
    if out.exists():
        raise UsageError(f"{out} exists: name a new file")
    with Journal.open(source, create=False, read_only=True) as journal, Journal.open(out) as made, made.bulk():
        records, runs, kernels = list(journal.records(PROTOCOL)), journal.runs(), set(journal.kernels())
        anchors = {run for run, about in runs.items() if about.started >= since or LEVELLED in about.description}
        found = levels(times_of(records, kernels), anchors)

        def level(record: Record) -> Record:
            row = record.measurement
            if not (is_lone(row, kernels) and (less_s := found.get(row.run_id, 0.0))):
                return record
            samples = tuple(max(one - less_s, one / 10) for one in row.samples_s)
            return replace(record, measurement=replace(row, samples_s=samples))

        def told(about: Run) -> Run:
            if about.run_id in anchors or about.run_id not in found:
                return about
            return replace(about, description={**about.description, LEVELLED: found[about.run_id]})

        copy(journal, made, row=level, run=told)
        for run in sorted(found, key=lambda run: runs[run].started):
            typer.echo(f"{found[run] * 1e6:7.2f} µs  {runs[run].started}  {runs[run].command[:100]}")
        lost = {record.measurement.run_id for record in records if is_lone(record.measurement, kernels)} - found.keys()
        for run in sorted(lost):
            typer.echo(f"  not known: {runs[run].started}  {runs[run].command[:100]}")


if __name__ == "__main__":
    run_script(main)
