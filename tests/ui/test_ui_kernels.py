"""All kernels over all runs: the best that any run found, and how far the same schedule drifted between them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kcg.ui.kernels import over_runs
from kcg.ui.page import render_kernels
from kcg.ui.runs import Folder
from tests.html_page import Page
from tests.ui_server import write_run


def test_a_kernel_is_one_row_over_all_runs(tmp_path: Path) -> None:
    for day, faster in enumerate((1.0, 2.0, 1.25), 1):
        result = write_run(tmp_path / f"{day}", created=f"2026-03-0{day}T00:00:00+00:00", faster=faster)
    found = Folder(tmp_path).look()
    rows = over_runs(found.runs)
    assert len(rows) == len(found.runs[0].kernels) and rows[0].weight_s == max(row.weight_s for row in rows)
    first = rows[0]
    (of_it,) = [row for row in result.regions if row.region.id == first.region]
    assert first.times_s == pytest.approx(tuple(of_it.chosen.cold_s * 1.25 / by for by in (1.0, 2.0, 1.25)))
    assert first.best[0].place == "2" and first.newest.after_s == first.times_s[-1]
    assert first.before_s == of_it.baseline.cold_s and first.drift == 0
    page = " ".join(Page(render_kernels(found, tmp_path, {"find": [first.name.partition(" ")[0]]})).text)
    assert "found among" in page


def test_what_tinygrads_own_schedule_took_more_in_one_run_is_its_drift(tmp_path: Path) -> None:
    result = write_run(tmp_path / "a")
    rows = tuple(replace(r, baseline=replace(r.baseline, cold_s=1.5 * r.baseline.cold_s)) for r in result.regions)
    write_run(tmp_path / "b", regions=rows, created="2026-04-01T00:00:00+00:00")
    rows_over = over_runs(Folder(tmp_path).look().runs)
    assert [row.drift for row in rows_over] == pytest.approx([0.5] * len(rows_over))


def test_other_targets_are_other_rows(tmp_path: Path) -> None:
    result = write_run(tmp_path / "a")
    write_run(tmp_path / "b", target=replace(result.target, model="another GPU"))
    rows = over_runs(Folder(tmp_path).look().runs)
    assert {len(row.seen) for row in rows} == {1} and {row.model for row in rows} == {"NVIDIA H200", "another GPU"}


def test_a_folder_without_runs_has_no_kernels(tmp_path: Path) -> None:
    assert "No kernels" in " ".join(Page(render_kernels(Folder(tmp_path).look(), tmp_path, {})).text)
