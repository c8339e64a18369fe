"""Workloads captured once for all tests of a process: a small model takes a second or two, the step of Flux four."""

from __future__ import annotations

from functools import cache

from kcg.types import Workload
from kcg.workloads.registry import spec_of


@cache
def captured(name: str, preset: str) -> Workload:
    """A workload of kcg's own by name, its calls in order."""
    return spec_of(name).capture(preset)
