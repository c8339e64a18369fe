"""From captured kernel calls to a `Workload`: normalised, counted, with stable identities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kcg.compat.capture import CapturedCall, calls_of
from kcg.kernel.codec import kernel_of
from kcg.types import Region, Workload, WorkloadCall


def to_workload(name: str, preset: str, captured: Sequence[CapturedCall]) -> Workload:
    """Count equal kernels together. The order is that of the first call."""
    counts: dict[tuple[str, tuple[tuple[str, int], ...]], WorkloadCall] = {}
    for call in captured:
        region = Region((kernel_of(call.ast),))
        key = (region.id, call.variables)
        earlier = counts.get(key)
        calls = call.calls + (earlier.calls if earlier else 0)
        counts[key] = WorkloadCall(region, calls, call.variables)
    return Workload(name, preset, tuple(counts.values()))


def lazy_workload(name: str, preset: str, *outputs: Any) -> Workload:
    """The workload of realising `outputs`, without allocating anything."""
    return to_workload(name, preset, calls_of(*outputs))
