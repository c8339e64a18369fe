"""The benchmark of searches in processes runs and says what it took."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_what_thinking_costs_is_measured(tmp_path: Path) -> None:
    asked = ["--processes", "1", "--known", "3", "--batches", "1", "--rounds", "1", "--out"]
    subprocess.run(
        [sys.executable, "-m", "evaluation.search.bench_workers", *asked, str(tmp_path / "out.json")],
        check=True,
        cwd=ROOT,
    )
    (entry,) = json.loads((tmp_path / "out.json").read_text())["runs"].values()
    assert all(seconds > 0 for seconds in (*entry["cpu_s"].values(), *entry["wall_s"].values()))
