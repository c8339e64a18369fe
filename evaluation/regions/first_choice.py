"""What a plan would take if each of its tile programs were the first that the run measured: what the analytic cost
chose before anything was timed.

    python -m kcg.optimize flux --preset 1024
    python -m evaluation.regions.first_choice kcg-out/flux/RESULT.json

Reads the run's RESULT.json and the journal beside it. Of each region, one kernel or several, whose choice is a tile
program: the median of the first program measured and that of the fastest, both as the search timed them. The fastest of
many is fast by luck, too, so the share is rather too low. Updates evaluation/results/first_choice.json.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from evaluation.rows import rounded, run_of
from kcg.cli import record_results, run_script
from kcg.dataset.journal import Journal
from kcg.errors import UsageError
from kcg.measure.protocol import PROTOCOL
from kcg.report.result import read_result
from kcg.types import Measurement, RegionResult, Result, ScheduleKind, Status

OUT = Path(__file__).parents[1] / "results" / "first_choice.json"


def chosen_tiles(result: Result) -> dict[str, RegionResult]:
    """The regions of the plan that run as tile programs, by id."""
    return {row.region.id: row for row in result.regions if row.chosen.schedule.kind == ScheduleKind.TILE}


def programs_of(measurements: Iterable[Measurement], regions: dict[str, RegionResult]) -> dict[str, list[float]]:
    """Medians of the tile programs of each region in the order in which they were measured, seconds."""
    found: dict[str, list[float]] = {region: [] for region in regions}
    for m in measurements:
        if m.region_id in found and m.schedule.kind == ScheduleKind.TILE and m.status is Status.OK:
            found[m.region_id].append(m.median_s)
    return found


def rows_of(result: Result, programs: dict[str, list[float]]) -> list[dict[str, Any]]:
    """One row a region, what takes most first."""
    rows = [
        {
            "region": row.chosen.name, "kernels": len(row.region.kernels), "calls": row.calls,
            "programs": len(programs[region]), "first_s": programs[region][0], "best_s": min(programs[region]),
        }
        for region, row in chosen_tiles(result).items() if programs[region]
    ]  # fmt: skip
    return sorted(rows, key=lambda row: -row["calls"] * row["best_s"])


def headline_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The share of the best programs' speed that the first ones have: of all together, and of the worst region."""
    best, first = (sum(row["calls"] * row[key] for row in rows) for key in ("best_s", "first_s"))
    return {
        "first_choice": rounded(best / first),
        "first_choice_worst": rounded(min(row["best_s"] / row["first_s"] for row in rows)),
        "first_choice_regions": len(rows),
        "first_choice_programs": sum(row["programs"] for row in rows),
    }


def main(
    result: Annotated[Path, typer.Argument(help="RESULT.json of a run")],
    journal: Annotated[Path | None, typer.Option(help="of the same run; else the one beside it")] = None,
    out: Annotated[Path, typer.Option(help="the results file")] = OUT,
) -> None:
    """Compare, and keep the rows."""
    found = read_result(result)
    with Journal.open(journal or result.parent / "journal.sqlite", read_only=True) as opened:
        programs = programs_of(opened.measurements(PROTOCOL), chosen_tiles(found))
    rows = rows_of(found, programs)
    if not rows:
        raise UsageError(f"{result} has no tile program that its journal has, too: optimise on a GPU, with Triton")
    name = run_of(found.preset, found.target.tinygrad_device)
    headline = {f"{key}_{name}": value for key, value in headline_of(rows).items()}
    entry = {
        "command": f"python -m evaluation.regions.first_choice RESULT.json  # of: {found.command}",
        "of_revision": {"revision": found.revision, "dirty": found.dirty}, "regions": rows,
    }  # fmt: skip
    record_results(out, name, entry, headline)
    for key, value in headline.items():
        typer.echo(f"{key}: {value}")


if __name__ == "__main__":
    run_script(main)
