"""The same campaign with a local fleet and without, in turns: what the fleet costs."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kcg.measure.protocol import median

ROOT = Path(__file__).parents[2]
TURNS = (False, True, True, False)  # with a fleet


def compared(
    folder: Path, kernels: Path, *, device: str, schedules: int, repeats: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """Runs of `dataset generate` in ABBA, and what a fleet takes more: of the whole command, and from the first row of
    the journal to the last. Each turn of four gives one ratio of sums; theirs is the median."""
    runs, ratios = list[dict[str, Any]](), dict[str, list[float]]({"wall_s": [], "rows_s": []})
    for turn in range(repeats):
        four = []
        for place, fleet in enumerate(TURNS):
            one = run(folder / f"{turn}-{place}.sqlite", kernels, device, schedules, fleet=fleet)
            say(f"{'with' if fleet else 'without'} a fleet: {one['rows']} rows, {one['wall_s']:.1f} s")
            four.append(one)
        runs += four
        for key, found in ratios.items():
            sums = [sum(one[key] for one in four if one["fleet"] == fleet) for fleet in (False, True)]
            found.append(sums[1] / sums[0] - 1)
    return {
        "runs": runs,
        "overhead": median(ratios["rows_s"]),
        "overhead_with_start": median(ratios["wall_s"]),
        "by_turn": ratios,
    }


def run(journal: Path, kernels: Path, device: str, schedules: int, *, fleet: bool) -> dict[str, Any]:
    """One campaign. Raises RuntimeError where it does not complete."""
    words = ["-m", "kcg", "dataset", "generate", "--from", kernels, "--device", device, "--out", journal]
    words += ["--schedules-per-kernel", schedules, "--predictor", "roofline", "--quiet"]
    words += ["--fleet", "local"] if fleet else []
    began, load = time.perf_counter(), os.getloadavg()[0]
    done = subprocess.run([sys.executable, *map(str, words)], cwd=ROOT, capture_output=True, text=True, check=False)
    wall_s = time.perf_counter() - began
    if done.returncode or "complete" not in done.stdout:
        raise RuntimeError(f"a campaign did not complete: {done.stderr.strip() or done.stdout}")
    with sqlite3.connect(journal) as connection:
        query = "SELECT COUNT(*), MIN(recorded_unix_s), MAX(recorded_unix_s) FROM measurements"
        ((rows, first, last),) = connection.execute(query)
    return {"fleet": fleet, "rows": rows, "wall_s": wall_s, "rows_s": last - first, "load": load}
