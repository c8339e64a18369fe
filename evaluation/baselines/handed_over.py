"""Plain tinygrad with the schedules that kcg wrote into its cache: fresh processes of one unchanged program."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

from kcg.compat.beam import cache_table
from kcg.compat.device import clang_path
from kcg.errors import DeviceError, KcgError
from kcg.measure.alone import clean_environment
from kcg.measure.protocol import median, median_interval, spread

from .figures import FAR, distance, rounded

ROOT = Path(__file__).parent.parent.parent
PROGRAM = ROOT / "evaluation" / "plain_step.py"
UNDER_KCG = """import runpy, sys, kcg
result, sys.argv = sys.argv[1], sys.argv[2:]
with kcg.tuned(result):
    runpy.run_path(sys.argv[0], run_name="__main__")"""
TIMEOUT_S = 900.0
SAME = 0.02  # two processes of one binary may be this far apart, even where less is seen
Told = dict[str, Any]


def run(what: str, command: list[str], dev: str, cache: Path, *, beam: int = 0) -> str:
    """The standard output of `python command` on a device with a cache of its own. Raises KcgError where it fails."""
    if dev.startswith("CPU") and "CC" not in os.environ and clang_path() is None:
        raise DeviceError("plain tinygrad opens the CPU only where it finds clang: pip install ziglang, or set CC")
    environment = clean_environment(dev, cache, paths=[ROOT, ROOT / "evaluation"], BEAM=str(beam))
    if dev.startswith("CPU"):
        environment.setdefault("CC", clang_path() or "")
    whole: Told = {"env": environment, "capture_output": True, "text": True, "timeout": TIMEOUT_S, "check": False}
    try:
        done = subprocess.run([sys.executable, *command], **whole)
    except subprocess.TimeoutExpired:
        raise KcgError(f"{what} did not end in {TIMEOUT_S:.0f} s") from None
    if done.returncode:
        words = (done.stderr.strip().splitlines() or ["it said nothing"])[-1][:300]
        raise KcgError(f"{what} ended with exit code {done.returncode}: {words}")
    return done.stdout


def step(
    case: dict[str, Any], dev: str, cache: Path, *, replays: int, beam: int = 0, result: Path | None = None
) -> Told:
    """One run of the program: plainly, or within `kcg.tuned` where there is a `result`."""
    first, what = [], "the program"
    if result is not None:
        first, what = ["-c", UNDER_KCG, str(result)], "the program within kcg.tuned"
    told = run(what, [*first, str(PROGRAM), json.dumps(case), str(replays)], dev, cache, beam=beam)
    return json.loads(told.splitlines()[-1])


def searches(cache: Path) -> dict[tuple[Any, ...], bytes]:
    """The rows of BEAM's cache; a search ends in a new one."""
    with sqlite3.connect(f"file:{cache}?mode=ro", uri=True) as database:
        return {tuple(row[:-1]): row[-1] for row in database.execute(f"SELECT * FROM {cache_table()}")}


def prove(case: dict[str, Any], dev: str, result: Path, folder: Path, *, beam: int, rounds: int, replays: int) -> Told:
    """Apply the result to a new cache in `folder`, then run the step with kcg and without it, in turns."""
    cache, empty = folder / "handed-over.db", folder / "empty.db"
    said = run(
        "apply", ["-m", "kcg.optimize", "apply", str(result), "--beam", str(beam), "--cachedb", str(cache)], dev, empty
    )
    before = searches(cache)
    of_kcg, plain = [], []
    for _ in range(rounds):
        of_kcg.append(step(case, dev, empty, replays=replays, result=result))
        plain.append(step(case, dev, cache, replays=replays, beam=beam))
    own = step(case, dev, empty, replays=replays)
    after = searches(cache)
    return judged(of_kcg, plain, own, FAR[case.get("dtype", "bfloat16")]) | {
        "rows": len(before), "searched": len(after.keys() - before.keys()), "applied": said.splitlines()[0],
        "rows_changed": sum(after.get(key) != value for key, value in before.items()),
    }  # fmt: skip


def judged(of_kcg: list[Told], plain: list[Told], own: Told, far: float) -> Told:
    """The runs of both kinds beside each other.

    The noise is how far processes of one kind are apart, or half the interval of the median of all their samples.
    """
    seconds = {name: [s for r in runs for s in r["seconds"]] for name, runs in (("kcg", of_kcg), ("plain", plain))}
    noise = max(spread(r[0]["seconds"], other["seconds"]) for r in (of_kcg, plain) for other in r)
    for samples in seconds.values():
        low, high = median_interval(samples)
        noise = max(noise, (high - low) / 2 / median(samples))
    ratio = median(seconds["plain"]) / median(seconds["kcg"])
    return {
        "kcg_s": rounded(median(seconds["kcg"])), "plain_s": rounded(median(seconds["plain"])),
        "hand_coded_s": rounded(median(own["seconds"])), "ratio": rounded(ratio), "noise": rounded(noise),
        "same_speed": abs(ratio - 1) <= max(noise, SAME),
        "same_output": len({r["output"] for r in (*of_kcg, *plain)}) == 1,
        "right_output": distance(plain[0]["values"], own["values"]) <= far,
        "unhooked": all(r["unhooked"] for r in plain) and not any(r["unhooked"] for r in of_kcg),
        "ready_s": {name: [rounded(r["ready_s"]) for r in runs] for name, runs in (("kcg", of_kcg), ("plain", plain))},
        "seconds": {**seconds, "hand_coded": own["seconds"]},
    }  # fmt: skip
