"""What a dataset holds of tile programs, counted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import kcg.data
from evaluation.dataset import tile_figures
from evaluation.dataset.record import SIZE
from kcg.campaign.sampling import REST
from kcg.dataset.choices import UNIFORM
from kcg.dataset.export import export
from kcg.dataset.journal import Journal, Run
from kcg.dataset.noise import RETIMED
from kcg.kernel.codec import kernel_of
from kcg.kernel.opts.schedule import RAW
from kcg.kernel.targets import target_named
from kcg.kernel.tile.parameters import TileParameters
from kcg.types import Measurement, Region, Schedule, ScheduleKind, Status, Workload, WorkloadCall
from tests.kernels import empty, kernels_of
from tests.sample_result import sample_result

TARGET = target_named("h200")
PART = replace(TARGET, cores=80, model=f"{TARGET.model}, 80 of 132 multiprocessors")


def test_rows_count_once_and_failures_and_repeats_do_not(tmp_path: Path) -> None:
    (large,), (small,) = (kernels_of(empty(size, 512).sum(1)) for size in (256, 64))
    regions = [Region((kernel_of(ast),)) for ast in (large, small)]
    toolchain = sample_result().toolchain

    def row(region: Region, warps: int, sampler: str, **more: Any) -> Measurement:
        body = TileParameters("reduction", ((0,),), (1,), reduce_tile=32 * (1 + warps), num_warps=1).to_json()
        found: dict[str, Any] = {"status": Status.OK, "samples_s": (1e-5,) * 3, "binary_hash": f"{warps:064x}"} | more
        return Measurement(
            region_id=region.id, target=found.pop("target", TARGET).fingerprint, toolchain=toolchain.fingerprint,
            protocol=1, run_id="r",
            schedule=found.pop("schedule", Schedule(ScheduleKind.TILE, body)), early_stop=True, sampler=sampler,
            **found,
        )  # fmt: skip

    with Journal.open(tmp_path / "j.sqlite") as journal:
        journal.add_target(TARGET)
        journal.add_target(PART)
        journal.add_toolchain(toolchain)
        journal.add_run(Run("r", "2026-11-29T00:00:00+00:00", "kcg", {}))
        journal.add_workload(Workload("norms", "x", tuple(WorkloadCall(region, 1) for region in regions)))
        for warps in range(SIZE):
            journal.record(row(regions[0], warps, UNIFORM if warps else REST))
        journal.record(row(regions[1], 1, UNIFORM, target=PART))
        journal.record(row(regions[0], 0, RETIMED, trial=1))
        journal.record(row(regions[1], 1, "prior", samples_s=(1e-5,)))
        journal.record(row(regions[1], 2, UNIFORM, status=Status.WRONG, samples_s=(), reason="wrong"))
        journal.record(row(regions[1], 0, "hand-coded", schedule=RAW))
        export(journal, tmp_path / "export")
    entry, headline = tile_figures.figures(kcg.data.load(tmp_path / "export"))
    assert headline == {
        "tile_rows": SIZE + 1, "uniform_rows": SIZE - 1, "regions": 2, "regions_of_several": 0, "shape_classes": 1,
        "families": 1, "lattices": 1, "samples_min": 1, "rows_per_s": None,
        "fewer_multiprocessors_rows": 1, "h200_rows": SIZE + 1, "drift_median": 0.0,
    }  # fmt: skip
    assert entry["statuses"] == {"ok": SIZE + 1, "wrong": 1} and entry["opts_rows"] == 1 and entry["one_sample"] == 1
    assert entry["fewer_multiprocessors"] == [80] and entry["lattices_drawn_uniformly"] == 1
    assert entry["most_of_a_region"] == SIZE / (SIZE + 1)
