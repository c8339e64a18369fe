"""Where the kernels of a workload come from, for readers: the layer whose parameter a kernel reads, else the source
line that made what it stores.

Calls of one kernel from layers that differ in a number count together: `double_blocks.*.img_attn.qkv`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePath

from kcg.compat.lines import CALLED_BY
from kcg.kernel.repeats import Blocks, blocks_of_workload
from kcg.kernel.sequences import partition_of
from kcg.types import Region, SequenceCall, Workload

Origins = tuple[tuple[str, int], ...]
"""Layers or lines, and how many calls come from each, the most first."""

KEPT = 10  # origins of one kernel
ANY = "*"  # stands for several numbers
TOGETHER = " + "  # between the origins of the kernels of a region


def origins_of(workload: Workload, regions: Iterable[Region] = ()) -> dict[str, Origins]:
    """The origins of every kernel of a workload, and of regions of several kernels where they are put in, by id.

    A sequence that was captured of fewer blocks than the model has counts as all of them.
    """
    found: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    several = [region for region in regions if len(region.kernels) > 1]
    for blocks in blocks_of_workload(workload):
        for region_id, places, weight in _occurrences(blocks, several):
            for label, count in _labels([blocks.sequence.calls[p] for p in places], blocks.sequence.executions):
                found[region_id][label] += weight * count
    return {region_id: merged(counts) for region_id, counts in found.items()}


def _occurrences(blocks: Blocks, regions: list[Region]) -> Iterator[tuple[str, tuple[int, ...], float]]:
    """Every place of a kernel, and every set of places of a region, with how many of the whole model it stands for."""
    for place, call in enumerate(blocks.sequence.calls):
        if call.kernel is not None:
            yield call.kernel.id, (place,), blocks.weight((place,)) * max(len(call.devices), 1)
    partition = partition_of(blocks.sequence) if regions else None
    for region in regions:
        for places, _ in partition.claim(region) if partition is not None else ():
            yield region.id, tuple(places), blocks.weight(places)


def _labels(calls: list[SequenceCall], executions: int) -> Iterator[tuple[str, int]]:
    """What calls that run together come from, each so many times: their layers in order, else the line of the last."""
    if len(calls) > 1:
        layers = dict.fromkeys(layer for call in calls for layer, _ in call.layers[:1])
        yield TOGETHER.join(layers) or line_of(calls[-1].origin), executions
        return
    (call,) = calls
    yield from call.layers
    if (rest := executions - sum(count for _, count in call.layers)) > 0:
        yield line_of(call.origin), rest


def line_of(origin: str) -> str:
    """`model.py:42` of the lines that a call keeps; empty where it has none."""
    path, _, line = origin.partition(CALLED_BY)[0].rpartition(":")
    place = PurePath(path)
    name = f"{place.parent.name}/{place.name}" if place.stem == "__init__" else place.name
    return f"{name}:{line}" if name else ""


def merged(counts: Mapping[str, float]) -> Origins:
    """At most `KEPT` origins, the most calls first, of labels and their calls, which need not be whole. Labels that
    differ in one number, as of a block, count together, with `ANY` in its place; then those that still do."""
    current = {label: count for label, count in counts.items() if label and count > 0}
    number = 0
    while number < max(map(_numbers, current), default=0):
        groups: defaultdict[str, dict[str, float]] = defaultdict(dict)
        for label, count in current.items():
            groups[_without(label, number)][label] = count
        current = {}
        for pattern, labels in groups.items():
            (only,) = labels if len(labels) == 1 else (pattern,)
            current[only] = current.get(only, 0.0) + sum(labels.values())
        number += 1
    most = sorted(current.items(), key=lambda item: -item[1])[:KEPT]
    return tuple((label, round(count)) for label, count in most)


_NUMBER = re.compile(r"(?<![^.])(?:\d+|\*)(?![^. ])")  # a whole part of a path


def _numbers(label: str) -> int:
    return max(len(_NUMBER.findall(path)) for path in label.split(TOGETHER))


def _without(label: str, number: int) -> str:
    """With `ANY` in the place of one of its numbers; of the origin of several kernels in each of theirs."""

    def in_path(path: str) -> str:
        places = list(_NUMBER.finditer(path))[number : number + 1]
        return path[: places[0].start()] + ANY + path[places[0].end() :] if places else path

    return TOGETHER.join(map(in_path, label.split(TOGETHER)))
