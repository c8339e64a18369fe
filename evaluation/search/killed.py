"""What runs leave that are killed: `kill -9` of a run's process at random moments, and what its RESULT.json holds then.

    python -m evaluation.search.killed CPU
    python -m evaluation.search.killed CPU --count 5 --time 9m

Each run is a cold one of Flux mini, or of what `--workload` names, without a budget. What it leaves is usable where
RESULT.json loads, every schedule in it that is another than tinygrad's own passed every rule, and it is as fast as the
run had said that it verified (`live.json`); or where nothing was verified by then. The same command goes on where it
was cut. Writes evaluation/results/killed.json after every run.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from evaluation.measure.watched import MARKER, ROOT, cold_environment, processes_of
from evaluation.rows import Row, Rows, rounded, run_of
from kcg.cli import run_script

OUT: Final = ROOT / "evaluation" / "results" / "killed.json"
MOMENTS: Final = (5.0, 120.0)  # seconds after the start between which a run is killed, each moment as likely as another
LEFT_AFTER_S: Final = 30.0  # a process of the run that still lives so long after it is left over
SAME: Final = 1 + 1e-9


def main(
    device: Annotated[str, typer.Argument(help="as kcg.optimize --device")] = "CPU",
    count: Annotated[int, typer.Option(help="runs that are killed")] = 20,
    workload: Annotated[str, typer.Option(help="a workload and its preset")] = "flux/mini",
    seed: Annotated[int, typer.Option(help="of the moments")] = 0,
    time_: Annotated[str, typer.Option("--time", help="no run is begun after it, e.g. 9m")] = "",
    out: Annotated[Path, typer.Option(help="the results file")] = OUT,
) -> None:
    """Kill the runs that are missing, and write down what they left."""
    rows = Rows(out, run_of(workload.replace("/", "_"), device), budget=time_, headline=headline)
    for number in range(count):
        key = f"{seed}/{number}"
        if rows.wanted(key):
            moment_s = random.Random(f"{seed}:{number}").uniform(*MOMENTS)
            rows.add(key, killed_after(moment_s, workload, device))
            typer.echo(f"{key}: {rows.rows[key]}", err=True)
    typer.echo(str(headline(rows.rows)))


def killed_after(seconds: float, workload: str, device: str) -> Row:
    """What a run leaves whose process is killed so many seconds after its start, if it has not ended by then."""
    marker = uuid.uuid4().hex
    with tempfile.TemporaryDirectory(prefix="kcg-killed-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        command = [sys.executable, "-m", "kcg.optimize", workload, "--device", device]
        process = subprocess.Popen(
            [*command, "--report", str(folder / "out"), "--quiet"],
            env={**cold_environment(folder), MARKER: marker},
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
        code = process.wait()
        over = time.monotonic() + LEFT_AFTER_S
        while (left := processes_of(marker)) and time.monotonic() < over:
            time.sleep(0.5)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
                os.kill(pid, signal.SIGKILL)
        return {"at_s": rounded(seconds), "exit_code": code, **what_is_left(folder / "out"), "left": len(left)}


def what_is_left(folder: Path) -> dict[str, Any]:
    """Whether the files of a run are usable, and what they say."""
    from kcg.errors import ResultError
    from kcg.optimize.live import FILE_NAME, read_live
    from kcg.report.result import read_result

    path, live_path = folder / "RESULT.json", folder / FILE_NAME
    live = read_live(live_path) if live_path.exists() else None
    said = live.verified_s if live is not None else None
    found: dict[str, Any] = {"phase": live.phase if live is not None else "", "file": path.exists()}
    if not path.exists():
        return {**found, "usable": said is None, "reason": "" if said is None else "verified, and no RESULT.json"}
    try:
        result = read_result(path)
    except ResultError as error:
        return {**found, "usable": False, "reason": str(error)[:200]}
    changed = [row for row in result.regions if row.chosen.schedule != row.baseline.schedule]
    verified = all(row.chosen.verification.passed for row in changed)
    is_best = said is None or result.total_after_s <= SAME * said[0]
    return {
        **found,
        "improved": len(changed),
        "before_s": rounded(result.total_before_s),
        "after_s": rounded(result.total_after_s),
        "usable": verified and is_best,
        "reason": "" if verified and is_best else "not all is verified" if not verified else f"{said} was verified",
    }


def headline(rows: Mapping[str, Row]) -> dict[str, Any]:
    """How many were killed, of these how many left what can be used, and how many something that is faster."""
    killed = [row for row in rows.values() if row["exit_code"] == -signal.SIGKILL]
    return {
        "killed": len(killed),
        "killed_usable": sum(row["usable"] for row in killed),
        "killed_improved": sum(bool(row.get("improved")) for row in killed),
        "killed_left_over": sum(row["left"] for row in killed),
    }


if __name__ == "__main__":
    run_script(main)
