"""A workload cut into regions: those that are asked for, wherever its calls match them, and every other call alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kcg.errors import ScheduleError
from kcg.kernel.repeats import blocks_of_workload
from kcg.kernel.sequences import partition_of
from kcg.types import Region, Workload, WorkloadCall


@dataclass(frozen=True)
class Claimed:
    """Where regions are put in, all of them together: sets of calls of one execution, by the region's id."""

    found: Counter[str]
    replayed: Counter[str]  # of these, replays of the steady state
    left: Counter[tuple[str, str]]  # region id, reason -> sets that match it and stay as they are


def claimed(workload: Workload, regions: Sequence[Region]) -> Claimed:
    """Where a program gets these regions, those named first before others: wherever its calls match and it is safe.

    A sequence that was captured of fewer blocks than the model has counts as all of them.
    """
    all_of_it = Claimed(Counter(), Counter(), Counter())
    for blocks in blocks_of_workload(workload) if regions else ():
        sequence, partition = blocks.sequence, partition_of(blocks.sequence)
        for region in regions:
            here = sum(blocks.weight(places) for places, _ in partition.claim(region))
            count = round(here) * sequence.executions
            all_of_it.found[region.id] += count
            all_of_it.replayed[region.id] += count if sequence.steady and workload.steps else 0
        for region_id, reason, places in partition.left_sets():
            all_of_it.left[region_id, reason] += max(1, round(blocks.weight(sorted(places)))) * sequence.executions
    return all_of_it


def planned(workload: Workload, regions: Sequence[Region], *, wanted: bool = True) -> Workload:
    """The workload with these regions of several kernels among its calls, where they are `claimed`; their kernels are
    called less often by themselves, or not at all.

    Raises ScheduleError where a region that is `wanted` occurs nowhere, with the reasons, or where its kernels have
    symbolic variables.
    """
    taken = claimed(workload, regions)
    spent: Counter[tuple[str, bool]] = Counter()  # kernel, whether replays alone -> calls
    for region in regions:
        if wanted and not taken.found[region.id]:
            reasons = dict.fromkeys(reason for _, reason in taken.left)
            why = f": {', '.join(reasons)}" if reasons else ""
            raise ScheduleError(f"region {region.id[:12]} occurs nowhere in {workload.name}{why}")
        for kernel in region.kernels:
            spent[kernel.id, False] += taken.found[region.id]
            spent[kernel.id, True] += taken.replayed[region.id]
    alone = [_fewer(c, spent[c.region.id, False], replays=spent[c.region.id, True]) for c in workload.calls]
    made = [
        WorkloadCall(region, taken.found[region.id], replayed=taken.replayed[region.id])
        for region in regions
        if taken.found[region.id]
    ]
    return replace(workload, calls=(*(call for call in alone if call.calls > 0), *made))


def _fewer(call: WorkloadCall, by: int, *, replays: int) -> WorkloadCall:
    if by and call.variables:
        raise ScheduleError(f"kernel {call.region.id[:12]} has symbolic variables: it is planned by itself")
    return replace(call, calls=call.calls - by, replayed=call.replayed - replays)
