"""A workload cut into regions: those that are asked for, wherever its calls match them, and every other call alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from kcg.errors import ScheduleError
from kcg.kernel.repeats import blocks_of_workload
from kcg.kernel.sequences import partition_of
from kcg.types import Region, Workload, WorkloadCall


def planned(workload: Workload, regions: Sequence[Region], *, wanted: bool = True) -> Workload:
    """The workload with these regions of several kernels among its calls, those named first before others; their
    kernels are called less often by themselves, or not at all.

    A sequence that was captured of fewer blocks than the model has counts as all of them.

    Raises ScheduleError where a region that is `wanted` occurs nowhere, with the reasons, or where its kernels have
    symbolic variables.
    """
    found: Counter[str] = Counter()
    replayed: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for blocks in blocks_of_workload(workload) if regions else ():
        sequence = blocks.sequence
        partition = partition_of(sequence)
        for region in regions:
            here = sum(blocks.weight(places) for places, _ in partition.claim(region))
            count = round(here) * sequence.executions
            found[region.id] += count
            replayed[region.id] += count if sequence.steady and workload.steps else 0
        reasons.update({reason: count for (_, reason), count in partition.left().items()})
    spent: Counter[tuple[str, bool]] = Counter()  # kernel, whether replays alone -> calls
    for region in regions:
        if wanted and not found[region.id]:
            why = f": {', '.join(reasons)}" if reasons else ""
            raise ScheduleError(f"region {region.id[:12]} occurs nowhere in {workload.name}{why}")
        for kernel in region.kernels:
            spent[kernel.id, False] += found[region.id]
            spent[kernel.id, True] += replayed[region.id]
    alone = [_fewer(c, spent[c.region.id, False], replays=spent[c.region.id, True]) for c in workload.calls]
    made = [
        WorkloadCall(region, found[region.id], replayed=replayed[region.id]) for region in regions if found[region.id]
    ]
    return replace(workload, calls=(*(call for call in alone if call.calls > 0), *made))


def _fewer(call: WorkloadCall, by: int, *, replays: int) -> WorkloadCall:
    if by and call.variables:
        raise ScheduleError(f"kernel {call.region.id[:12]} has symbolic variables: it is planned by itself")
    return replace(call, calls=call.calls - by, replayed=call.replayed - replays)
