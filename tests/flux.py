"""The step of Flux at 1024, captured once for all tests of a process: it takes seconds."""

from __future__ import annotations

from functools import cache

from kcg.types import Workload
from kcg.workloads.registry import spec_of


@cache
def flux_1024() -> Workload:
    """Its calls in order."""
    return spec_of("flux").capture("1024")
