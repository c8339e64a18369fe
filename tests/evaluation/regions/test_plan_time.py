"""What is recorded of the plan of a step."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from evaluation.regions import plan_time


def test_a_row_says_what_was_planned_and_how_long_it_took(tmp_path: Path) -> None:
    results = tmp_path / "bench_regions.json"
    before = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    try:
        plan_time.main(["mini"], whole=True, results=results)
    finally:
        if before is not None:
            os.sched_setaffinity(0, before)
    written = json.loads(results.read_text())
    rows = written["runs"][plan_time.RUN]["rows"]
    small, whole = rows["flux mini"], rows["flux mini whole"]
    assert written["headline"]["plan_s"] == max(small["plan_s"], whole["plan_s"]) > 0
    assert small["plans"] == 6 and small["programs"] > 3 and 0 < small["expected_saving_s"] < small["expected_s"]
    same = ("candidates", "expected_s", "expected_saving_s", "saved_bytes")
    assert [small[name] for name in same] == pytest.approx([whole[name] for name in same])
