"""The figures of the recorded datasets, read off their files: how much, how fast, how far two runs differ.

    python -m evaluation.dataset.dataset_figures datasets/h200 datasets/cpu

Writes evaluation/results/dataset_figures.json.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from kcg.cli import record_results, run_script
from kcg.dataset.export import Export, read_export
from kcg.dataset.stats import stats

OUT = Path(__file__).parent.parent / "results" / "dataset_figures.json"
SHORTEST_RUN = 500  # rows; shorter runs say nothing of the pace


def figures(export: Export) -> tuple[dict[str, Any], dict[str, Any]]:
    """The entry of one dataset, and its headline."""
    found = stats(export)
    runs = export.runs()
    workers = {
        run: {"rows": found.runs[run], "rows_per_s": pace, "command": runs[run].command, **dict(runs[run].description)}
        for run, pace in found.rows_per_second.items()
        if found.runs[run] >= SHORTEST_RUN
    }
    rows, seconds = (
        sum(w["rows"] for w in workers.values()),
        sum(w["rows"] / w["rows_per_s"] for w in workers.values()),
    )
    drift = [asdict(spread) for spread in found.drift]
    headline = {
        "rows": found.rows,
        "ok_schedules": found.ok_schedules,
        "kernels": found.ok_regions,
        "binaries": found.unique_binaries,
        "families": len([f for f in found.families if f.ok_rows]),
        "bytes": sum(path.stat().st_size for path in export.folder.iterdir()),
        "rows_per_s_of_one_device": rows / seconds if seconds else None,
    }
    entry = {
        "statuses": found.statuses,
        "samplers": found.samplers,
        "families": [asdict(f) for f in found.families],
        "runs": workers,
        "drift": drift,
        "search_noise": [asdict(spread) for spread in found.search_noise],
        "targets": found.targets,
        "checksums": dict(export.checksums),
    }
    return entry, headline


def main(
    folders: Annotated[list[Path], typer.Argument(help="exports")],
    out: Annotated[Path, typer.Option(help="the results file")] = OUT,
) -> None:
    """Read each and keep its figures."""
    report: dict[str, Any] = {}
    for folder in folders:
        entry, headline = figures(read_export(folder))
        entry["command"] = f"python -m evaluation.dataset.dataset_figures {folder}"
        report = record_results(out, folder.name, entry, {f"{k}_{folder.name}": v for k, v in headline.items()})
    typer.echo(json.dumps(report["headline"], indent=1, sort_keys=True))


if __name__ == "__main__":
    run_script(main)
