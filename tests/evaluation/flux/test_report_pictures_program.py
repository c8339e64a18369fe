"""`evaluation.flux.report_pictures` writes the pictures that a report has."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from kcg.errors import ExitCode
from kcg.report.charts import roofline_file, roofs_of, share_file
from kcg.report.result import write_result
from kcg.report.rows import rows_of
from tests.sample_result import sample_result
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[3]


def test_the_script_writes_both_pictures_of_a_result(tmp_path: Path) -> None:
    write_result(sample_result(), tmp_path / "RESULT.json")
    command = [
        sys.executable,
        "-m",
        "evaluation.flux.report_pictures",
        str(tmp_path / "RESULT.json"),
        "--out",
        str(tmp_path / "docs"),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    rows = rows_of(sample_result())
    written = [tmp_path / "docs" / f"flux-mini-{name}.svg" for name in ("share", "roofline")]
    assert done.stdout.splitlines() == [str(path) for path in written]
    assert [p.read_text() for p in written] == [share_file(rows), roofline_file(rows, roofs_of(sample_result()))]
    write_result(replace(sample_result(), regions=(), expectations=()), tmp_path / "RESULT.json")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == ExitCode.USAGE and "give the result of a run" in done.stderr
