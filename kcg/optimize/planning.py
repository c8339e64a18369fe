"""A workload cut into regions: those that are asked for, wherever its calls match them, and every other call alone."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kcg.errors import ScheduleError
from kcg.kernel.repeats import blocks_of_workload
from kcg.kernel.sequences import partition_of
from kcg.kernel.symbolic import called, of_names, ranges_of, ranges_of_region, without
from kcg.types import Region, Variables, Workload


@dataclass(frozen=True)
class Claimed:
    """Where regions are put in, all of them together: sets of calls of one execution, by the region's id."""

    found: Counter[str]
    replayed: Counter[str]  # of these, replays of the steady state
    seen: defaultdict[str, Counter[Variables]]  # with which values of the region's variables, and how often each
    left: Counter[tuple[str, str]]  # region id, reason -> sets that match it and stay as they are


def claimed(workload: Workload, regions: Sequence[Region]) -> Claimed:
    """Where a program gets these regions, those named first before others: wherever its calls match and it is safe.

    A sequence that was captured of fewer blocks than the model has counts as all of them.
    """
    all_of_it = Claimed(Counter(), Counter(), defaultdict(Counter), Counter())
    for blocks in blocks_of_workload(workload) if regions else ():
        sequence, partition = blocks.sequence, partition_of(blocks.sequence)
        for region in regions:
            here = sum(blocks.weight(places) for places, _ in partition.claim(region))
            count = round(here) * sequence.executions
            all_of_it.found[region.id] += count
            all_of_it.replayed[region.id] += count if sequence.steady and workload.steps else 0
            names = ranges_of_region(region)
            for variables, executions in sequence.seen if count else ():
                all_of_it.seen[region.id][of_names(variables, names)] += round(here) * executions
        for region_id, reason, places in partition.left_sets():
            all_of_it.left[region_id, reason] += max(1, round(blocks.weight(sorted(places)))) * sequence.executions
    return all_of_it


def planned(workload: Workload, regions: Sequence[Region], *, wanted: bool = True) -> Workload:
    """The workload with these regions of several kernels among its calls, where they are `claimed`; their kernels are
    called less often by themselves, or not at all.

    Raises ScheduleError where a region that is `wanted` occurs nowhere, with the reasons.
    """
    taken = claimed(workload, regions)
    spent: defaultdict[str, Counter[Variables]] = defaultdict(Counter)  # by kernel and values of its variables
    replays: Counter[str] = Counter()  # by kernel
    for region in regions:
        if wanted and not taken.found[region.id]:
            reasons = dict.fromkeys(reason for _, reason in taken.left)
            why = f": {', '.join(reasons)}" if reasons else ""
            raise ScheduleError(f"region {region.id[:12]} occurs nowhere in {workload.name}{why}")
        for kernel in region.kernels:
            replays[kernel.id] += taken.replayed[region.id]
            for variables, count in taken.seen[region.id].items():
                spent[kernel.id][of_names(variables, ranges_of(kernel))] += count
    alone = [
        replace(left, replayed=call.replayed - replays[call.region.id])
        for call in workload.calls
        if (left := without(call, spent[call.region.id])) is not None
    ]
    made = [
        called(region, taken.seen[region.id], replayed=taken.replayed[region.id])
        for region in regions
        if taken.found[region.id]
    ]
    return replace(workload, calls=(*alone, *made))
