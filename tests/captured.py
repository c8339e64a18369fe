"""Workloads captured once for all processes that run tests of this code: a small model takes a second or two, the step
of Flux seven, and a script a process of its own.

They are kept in pytest's folder of this checkout, under a digest of all that a capture is made by: nothing is read that
other code made.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from pathlib import Path

from kcg.files import lock_file, write_whole
from kcg.types import Workload
from kcg.workloads.registry import spec_of
from kcg.workloads.script import Form, Program, capture_program, workload_json, workload_of

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".pytest_cache" / "kcg" / "captured"
SCRIPTS = ROOT / "tests" / "scripts"
DAY_S = 86_400.0


@cache
def captured(name: str, preset: str) -> Workload:
    """A workload of kcg's own by name, its calls in order."""
    return _shared(f"{name} {preset} {os.environ['DEV']}", lambda: (spec_of(name).capture(preset), 0.0))[0]


def captured_script(path: Path, *arguments: str) -> Workload:
    """What a script of the tests runs."""
    return recorded(Program(Form.SCRIPT, str(path), arguments), os.environ["DEV"])[0]


@cache
def recorded(program: Program, dev: str) -> tuple[Workload, float]:
    """What a program runs that does not change, without a note on it, and the seconds that recording it took."""

    def record() -> tuple[Workload, float]:
        begin = time.monotonic()
        found = capture_program(program, dev=dev)
        assert not found.notes and not found.interrupted, found.notes
        return found.workload, time.monotonic() - begin

    is_kept = program.form == Form.SCRIPT and Path(program.what).parent == SCRIPTS
    return _shared(f"{program.command} {dev}", record) if is_kept else record()


def _shared(name: str, capture: Callable[[], tuple[Workload, float]]) -> tuple[Workload, float]:
    """What was captured under that name, and the seconds it took; by this process where no other one has. One waits for
    who captures it already."""
    path = _folder() / f"{hashlib.sha256(name.encode()).hexdigest()}.json"
    with lock_file(path.with_suffix(".lock"), wait=True):
        if not path.exists():
            workload, seconds = capture()
            sizes = {"held_bytes": workload.held_bytes, "between_bytes": workload.between_bytes}
            write_whole(path, json.dumps({**sizes, "seconds": seconds, "workload": workload_json(workload)}))
            return workload, seconds
    kept = json.loads(path.read_text())
    sizes = {name: kept[name] for name in ("held_bytes", "between_bytes")}
    return replace(workload_of(kept["workload"]), **sizes), kept["seconds"]


@cache
def _folder() -> Path:
    """That of the code of kcg and of the tests' scripts, and of the versions of what else a capture is made by. What
    was kept of other code, and not used for a day, goes."""
    digest = hashlib.sha256(f"{ROOT} {sys.version} {platform.machine()} {version('tinygrad')}".encode())
    for folder in (ROOT / "kcg", SCRIPTS):
        for path in sorted(folder.rglob("*.py")):
            digest.update(f"{path.relative_to(ROOT)} {path.stat().st_size} ".encode() + path.read_bytes())
    folder = FOLDER / digest.hexdigest()
    folder.mkdir(parents=True, exist_ok=True)
    os.utime(folder)
    for other in FOLDER.iterdir():
        if other.stat().st_mtime < time.time() - DAY_S:
            shutil.rmtree(other, ignore_errors=True)
    return folder
