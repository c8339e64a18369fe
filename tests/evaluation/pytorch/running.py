"""Runs a comparison as a user does, at its small size."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
COMPARE = [sys.executable, "-m", "evaluation.pytorch.compare"]


def run(name: str, out: Path, *arguments: str) -> dict[str, Any]:
    """The rows of a comparison that must succeed."""
    command = [*COMPARE, name, "--device", os.environ["DEV"], "--size", "mini", "--out", str(out)]
    done = subprocess.run(
        [*command, "--work", str(out.parent / "work"), *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(out.read_text())
    (entry,) = report["runs"].values()
    failed = {k: f for row in entry["rows"].values() for k, f in row["contenders"].items() if f["status"] != "ok"}
    assert failed == {}
    assert len(report["headline"]) > 0 and all(value > 0 for value in report["headline"].values())
    return entry["rows"]
