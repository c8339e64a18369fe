"""A workload cut into regions: those that are asked for, wherever its calls match them, and every other call alone."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kcg.compat.partition import Partition
from kcg.errors import ScheduleError
from kcg.kernel.repeats import Blocks, blocks_of_workload
from kcg.kernel.sequences import partition_of
from kcg.kernel.symbolic import called, of_names, ranges_of, ranges_of_region, without
from kcg.types import Kernel, Region, Variables, Workload

WHOLE = 1e-6
"""How near below a whole number of sets of calls a count of them is that number: it is a sum of quotients."""


@dataclass(frozen=True)
class Claimed:
    """Where regions are put in, all of them together: sets of calls of one execution, by the region's id."""

    found: Counter[str]
    replayed: Counter[str]  # of these, replays of the steady state
    seen: defaultdict[str, Counter[Variables]]  # with which values of the region's variables, and how often each
    left: Counter[tuple[str, str]]  # region id, reason -> sets that match it and stay as they are
    # of kernels that regions compute again: region id, number of the kernel -> of the sets found those whose call of it
    # counts elsewhere, since it stays or another of these sets stands for it; and calls that are left out, by kernel
    elsewhere: Counter[tuple[str, int]]
    left_out: defaultdict[str, Counter[Variables]]  # with which values of its variables
    left_out_replayed: Counter[str]


def claimed(workload: Workload, regions: Sequence[Region]) -> Claimed:
    """Where a program gets these regions, those named first before others: wherever its calls match and it is safe.

    A sequence that was captured of fewer blocks than the model has counts as all of them.
    """
    all_of_it = Claimed(
        Counter(), Counter(), defaultdict(Counter), Counter(), Counter(), defaultdict(Counter), Counter()
    )
    for blocks in blocks_of_workload(workload) if regions else ():
        sequence, partition = blocks.sequence, partition_of(blocks.sequence)
        for region in regions:
            here = sum(blocks.weight(places) for places, _ in partition.claim(region))
            sets = int(here + WHOLE)
            count = sets * sequence.executions
            all_of_it.found[region.id] += count
            all_of_it.replayed[region.id] += count if sequence.steady and workload.steps else 0
            names = ranges_of_region(region)
            for variables, executions in sequence.seen if count else ():
                all_of_it.seen[region.id][of_names(variables, names)] += sets * executions
        for region_id, reason, places in partition.left_sets():
            all_of_it.left[region_id, reason] += max(1, round(blocks.weight(sorted(places)))) * sequence.executions
        _count_again(all_of_it, blocks, partition, regions, is_steady=bool(sequence.steady and workload.steps))
    return all_of_it


def _count_again(
    claimed: Claimed, blocks: Blocks, partition: Partition, regions: Sequence[Region], *, is_steady: bool
) -> None:
    """Of calls that are computed again: those that are left out, and by region those that count elsewhere."""
    sequence, not_counted = blocks.sequence, set(partition.left_out())
    weights: defaultdict[Kernel, float] = defaultdict(float)
    for place in not_counted:
        if (kernel := sequence.calls[place].kernel) is not None:
            weights[kernel] += blocks.weight((place,))
    for kernel, weight in weights.items():
        claimed.left_out_replayed[kernel.id] += round(weight) * sequence.executions if is_steady else 0
        for variables, executions in sequence.seen:
            claimed.left_out[kernel.id][of_names(variables, ranges_of(kernel))] += round(weight) * executions
    for region in regions:
        for places, number in itertools.product(partition.found.get(region.id, ()), region.again):
            if places[number] in not_counted:
                not_counted.remove(places[number])
            else:
                claimed.elsewhere[region.id, number] += round(blocks.weight(places)) * sequence.executions


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
        for kernel in region.own:
            replays[kernel.id] += taken.replayed[region.id]
            for variables, count in taken.seen[region.id].items():
                spent[kernel.id][of_names(variables, ranges_of(kernel))] += count
    for kernel_id, seen in taken.left_out.items():
        replays[kernel_id] += taken.left_out_replayed[kernel_id]
        spent[kernel_id].update(seen)
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
