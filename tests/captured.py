"""Workloads captured once for all tests of a process: a small model takes a second or two, the step of Flux four, and a
script a process of its own."""

from __future__ import annotations

import os
import time
from functools import cache
from pathlib import Path

from kcg.types import Workload
from kcg.workloads.registry import spec_of
from kcg.workloads.script import Form, Program, capture_program


@cache
def captured(name: str, preset: str) -> Workload:
    """A workload of kcg's own by name, its calls in order."""
    return spec_of(name).capture(preset)


def captured_script(path: Path, *arguments: str) -> Workload:
    """What a script of the tests runs."""
    return recorded(Program(Form.SCRIPT, str(path), arguments), os.environ["DEV"])[0]


@cache
def recorded(program: Program, dev: str) -> tuple[Workload, float]:
    """What a program runs that does not change, without a note on it, and the seconds that recording it took."""
    begin = time.monotonic()
    found = capture_program(program, dev=dev)
    assert not found.notes and not found.interrupted, found.notes
    return found.workload, time.monotonic() - begin
