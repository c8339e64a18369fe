"""What a dataset holds of tile programs, and of plans of regions: the figures of the record.

    python -m evaluation.dataset.tile_figures datasets/h200-tiles

A row counts where it is ok, was not timed again, and is of a program of its own: distinct schedules of a region, on the
whole GPU or, counted apart, on a part of its multiprocessors. A lattice is a region with `record.LEAST` or more rows
that were drawn uniformly, or are those of fewest steps where few were met so. Rows a second are those of runs that
measured only, over the middle half of each. The drift is the largest median, of classes of times above 50 µs, by which
two runs differ. Updates evaluation/results/tile_data.json, run `record`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

import kcg.data
from evaluation.dataset.record import FROZEN, LEAST
from evaluation.rows import rounded, this_command
from kcg.campaign.sampling import REST
from kcg.cli import record_results, run_script
from kcg.dataset.choices import UNIFORM
from kcg.dataset.noise import RETIMED
from kcg.dataset.stats import stats
from kcg.types import ScheduleKind, Status

OUT = Path(__file__).parents[1] / "results" / "tile_data.json"
H200 = "NVIDIA H200"
LONG_S = 50e-6  # from here on timings of two machines are compared
COLUMNS = [
    "family", "status", "schedule_kind", "schedule_body", "sampler", "region_id", "n_kernels", "n_samples", "trial",
    "median_s", "cache_state", "variables", "target",
]  # fmt: skip


def figures(data: kcg.data.Data) -> tuple[dict[str, Any], dict[str, Any]]:
    """The entry of a dataset, and its headline."""
    import pyarrow as pa

    table = data.to_arrow(COLUMNS)
    for place, field in enumerate(table.schema):  # plain texts, so that rows compare
        if pa.types.is_dictionary(field.type):
            table = table.set_column(place, field.name, table[field.name].cast(field.type.value_type))
    rows = [row for row in table.to_pylist() if not row["trial"] and row["sampler"] != RETIMED]
    targets = data.export.targets()
    most = max(one.cores for one in targets.values())
    parts = {name for name, one in targets.items() if one.cores < most}
    fewer = {
        (row["region_id"], str(row["variables"]), row["schedule_body"])
        for row in rows
        if row["target"] in parts and row["status"] == Status.OK and row["schedule_kind"] == ScheduleKind.TILE
    }
    rows = [row for row in rows if row["target"] not in parts]
    statuses: dict[str, int] = {}
    tiles: dict[tuple[str, ...], dict[str, Any]] = {}
    opts = 0
    for row in rows:
        if row["schedule_kind"] == ScheduleKind.OPTS:
            opts += row["status"] == Status.OK
        if row["schedule_kind"] != ScheduleKind.TILE:
            continue
        statuses[row["status"]] = statuses.get(row["status"], 0) + 1
        if row["status"] == Status.OK:
            tiles.setdefault((row["region_id"], str(row["variables"]), row["schedule_body"]), row)
    uniform, drawn = dict[str, int](), dict[str, int]()
    for (region, _, _), row in tiles.items():
        uniform[region] = uniform.get(region, 0) + (row["sampler"] == UNIFORM)
        drawn[region] = drawn.get(region, 0) + (row["sampler"] in (UNIFORM, REST))
    regions = {region for region, _, _ in tiles}
    classes = _classes(data, regions)
    counted, runs = stats(data.export), data.export.runs()
    paces = {
        run: pace for run, pace in counted.rows_per_second.items() if runs[run].description.get("stage") == "measure"
    }
    drift = [one for one in counted.drift if one.shorter_than_s is None or one.shorter_than_s > LONG_S]
    by_region = dict.fromkeys(regions, 0)
    for region, _, _ in tiles:
        by_region[region] += 1
    headline = {
        "tile_rows": len(tiles),
        "uniform_rows": sum(uniform.values()),
        "regions": len(regions),
        "regions_of_several": len({row["region_id"] for row in tiles.values() if row["n_kernels"] > 1}),
        "shape_classes": len(classes),
        "families": len({row["family"] for row in tiles.values() if row["family"]}),
        "lattices": sum(count >= LEAST for count in drawn.values()),
        "fewer_multiprocessors_rows": len(fewer),
        "h200_rows": len(tiles) if all(one.model.startswith(H200) for one in targets.values()) else 0,
        "drift_median": rounded(max((one.median for one in drift), default=0.0)),
        "rows_per_s": _pace({run: counted.runs[run] for run in paces}, paces),
        "samples_min": min((row["n_samples"] for row in tiles.values()), default=0),
    }
    entry = {
        "statuses": statuses,
        "opts_rows": opts,
        "most_of_a_region": max(by_region.values(), default=0) / max(len(tiles), 1),
        "one_sample": sum(row["n_samples"] < 3 for row in tiles.values()),
        "frozen_rows": sum(row["family"] in FROZEN for row in tiles.values()),
        "rows_per_s_of_runs": {runs[run].command: rounded(pace) for run, pace in paces.items()},
        "lattices_drawn_uniformly": sum(count >= LEAST for count in uniform.values()),
        "fewer_multiprocessors": sorted(targets[name].cores for name in parts),
        "drift": {str(one.shorter_than_s): rounded(one.median) for one in drift},
    }
    return entry, headline


def _pace(rows: Mapping[str, int], paces: Mapping[str, float]) -> float | None:
    """Rows a second of runs together."""
    seconds = sum(rows[run] / pace for run, pace in paces.items())
    return rounded(sum(rows.values()) / seconds) if seconds else None


def _classes(data: kcg.data.Data, regions: set[str]) -> set[str]:
    """Classes of kernels that differ in sizes only, of regions of one kernel."""
    kernels = data.kernels(["id", "twin"])
    return {
        twin
        for one, twin in zip(*(kernels[name].to_pylist() for name in ("id", "twin")), strict=True)
        if one in regions
    }


def main(
    folder: Annotated[str, typer.Argument(help="a dataset, as kcg.data.load takes it")],
    out: Annotated[Path, typer.Option(help="the results file")] = OUT,
) -> None:
    """Count, and write the figures."""
    entry, headline = figures(kcg.data.load(folder))
    record_results(out, "record", {**entry, **headline, "command": this_command()}, headline)
    typer.echo(json.dumps({**headline, **entry}, indent=1))


if __name__ == "__main__":
    run_script(main)
