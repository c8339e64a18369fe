"""The repeated blocks of a sequence: stretches in which the same calls, wired alike, come again and again.

A model of many equal blocks is one such stretch, or several. What is decided for one block is decided for all, and a
sequence that was captured of a model with fewer blocks stands for one with more: `Blocks.weight` says how many places
of the whole model one place of the sequence stands for. Blocks are found by the kernels and their wiring alone, so
where one begins is arbitrary: what spans two of them is `ACROSS`. Calls of one kernel that need nothing of each other
are no blocks: each of them stands for as many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from kcg.types import Sequence, Workload

LEAST = 3  # blocks of a run: a first one, one in the middle, a last one, of which a part is enough
LONGEST = 1024  # calls of a block that is looked for
FIRST, MIDDLE, LAST, ACROSS = "first", "middle", "last", "across"


@dataclass(frozen=True)
class Run:
    """Blocks that follow each other. The last one may be cut short."""

    start: int  # place of its first call
    period: int  # calls of a block
    length: int  # calls in all

    @property
    def blocks(self) -> int:
        return -(-self.length // self.period)

    def block(self, place: int) -> int | None:
        """Which block a call is in; None outside of the run."""
        inside = self.start <= place < self.start + self.length
        return (place - self.start) // self.period if inside else None


def runs_of(sequence: Sequence) -> tuple[Run, ...]:
    """The runs of a sequence, those of most calls first; they do not overlap."""
    numbers: dict[str, int] = {}
    names = np.array([numbers.setdefault(c.kernel.id if c.kernel else c.what, len(numbers)) for c in sequence.calls])
    found = []
    for period in range(1, min(LONGEST, len(names) // 2) + 1):
        same = np.concatenate([[False], names[period:] == names[:-period], [False]])
        edges = np.flatnonzero(same[1:] != same[:-1])
        found += [Run(int(a), period, int(b - a) + period) for a, b in zip(edges[::2], edges[1::2], strict=True)]
    found = [run for run in found if run.blocks >= LEAST]
    producers, taken, kept = _producers(sequence), np.zeros(len(names), bool), list[Run]()
    for run in sorted(found, key=lambda run: (-run.length, run.period)):
        wired = _while_wired_alike(run, producers)
        if len(set(names[run.start : run.start + run.length])) == 1 and not _needs_itself(wired, producers):
            continue
        if wired.blocks >= LEAST and not taken[wired.start : wired.start + wired.length].any():
            taken[wired.start : wired.start + wired.length] = True
            kept.append(wired)
    return tuple(kept)


def _producers(sequence: Sequence) -> list[tuple[int | None, ...]]:
    """Of each call, by slot, the call before it that wrote the buffer last."""
    writer: dict[int, int] = {}
    found = []
    for place, call in enumerate(sequence.calls):
        found.append(tuple(writer.get(view.buffer) for view in call.views))
        writer.update((call.views[slot].buffer, place) for slot in call.writes)
    return found


def _while_wired_alike(run: Run, producers: list[tuple[int | None, ...]]) -> Run:
    """The run up to the first call that reads otherwise than the same call one block before it. What the first block
    reads comes from elsewhere."""

    def inside(place: int) -> list[int | None]:
        return [place - p if p is not None and p >= run.start else None for p in producers[place]]

    for place in range(run.start + 2 * run.period, run.start + run.length):
        if inside(place) != inside(place - run.period):
            return Run(run.start, run.period, place - run.start)
    return run


def _needs_itself(run: Run, producers: list[tuple[int | None, ...]]) -> bool:
    """Whether a call of a run reads what another one of it makes. Calls of one kernel that do not are no blocks: each
    is as good as any, and what is decided of some in one group is not what is decided of all."""
    places = range(run.start, run.start + run.length)
    return any(producer in places for place in places for producer in producers[place])


@dataclass(frozen=True)
class Blocks:
    """A sequence with its runs, and how many blocks of the whole model each run stands for."""

    sequence: Sequence
    runs: tuple[Run, ...]
    blocks: tuple[float, ...]  # by run, of the whole model
    outside: tuple[float, ...]  # by place, what a call outside of all runs stands for

    def _zone(self, places: Iterable[int]) -> tuple[int, int, str] | None:
        """Run, first block and zone of some calls; None where they are not all in one run."""
        chosen = list(places)
        for number, run in enumerate(self.runs):
            blocks = [run.block(place) for place in chosen]
            if blocks[0] is None:
                continue
            inside = [block for block in blocks if block is not None]
            if len(inside) < len(blocks):
                return None
            first, last = min(inside), max(inside)
            zone = ACROSS if first < last else FIRST if not first else LAST if first == run.blocks - 1 else MIDDLE
            return number, first, zone
        return None

    def key(self, places: Iterable[int]) -> Hashable:
        """Equal for calls that are decided on together: the same ones of several blocks."""
        chosen = tuple(places)
        if (found := self._zone(chosen)) is None:
            return chosen
        number, block, zone = found
        run = self.runs[number]
        return number, zone, tuple(place - run.start - block * run.period for place in chosen)

    def weight(self, places: Iterable[int]) -> float:
        """How many sets of calls of the whole model these stand for."""
        chosen = tuple(places)
        if (found := self._zone(chosen)) is None:
            return min((self.outside[place] for place in chosen if self._zone((place,)) is None), default=1.0)
        number, _, zone = found
        here, whole = self.runs[number].blocks, self.blocks[number]
        return {MIDDLE: (whole - 2) / (here - 2), ACROSS: (whole - 1) / (here - 1)}.get(zone, 1.0)


def blocks_of(sequence: Sequence, calls: Mapping[str, int] | None = None) -> Blocks:
    """The blocks of a sequence. `calls` say how often the whole model calls each kernel, by id: what the sequence has
    fewer of are blocks that it stands for."""
    runs, ones = runs_of(sequence), (1.0,) * len(sequence.calls)
    here = Blocks(sequence, runs, tuple(float(run.blocks) for run in runs), ones)
    kernels = [call.kernel.id if call.kernel else "" for call in sequence.calls]
    counts = Counter(kernels)
    if calls is None or all(calls.get(kernel, 0) == counts[kernel] for kernel in counts if kernel):
        return here
    # calls of a kernel = those outside of the middle blocks + those in the middle of run r, times what one stands for
    names = [kernel for kernel in counts if kernel]
    zones = [here._zone((place,)) for place in range(len(kernels))]
    middle = [(zone[0] if zone is not None and zone[2] == MIDDLE else -1) for zone in zones]
    rows = np.zeros((len(names), len(runs)))
    base = np.zeros(len(names))
    in_runs = {kernel for kernel, zone in zip(kernels, zones, strict=True) if zone is not None}
    for kernel, run in zip(kernels, middle, strict=True):
        if kernel and run >= 0:
            rows[names.index(kernel), run] += 1
        elif kernel:
            base[names.index(kernel)] += 1
    wanted = np.array([calls.get(name, 0) for name in names], float)
    use = np.array([name in in_runs for name in names])
    times = np.linalg.lstsq(rows[use], (wanted - base)[use], rcond=None)[0] if use.any() and runs else np.zeros(0)
    whole = tuple(2 + max(0.0, round(t * (run.blocks - 2))) for t, run in zip(times, runs, strict=True))
    outside = tuple(
        1.0 if not kernel or kernel in in_runs else max(1.0, calls.get(kernel, 0) / counts[kernel])
        for kernel in kernels
    )
    return Blocks(sequence, runs, whole, outside)


def blocks_of_workload(workload: Workload) -> list[Blocks]:
    """Of each sequence. Only the one of a model that kcg builds itself can be of fewer blocks than the model has."""
    if len(workload.sequences) != 1 or workload.sequences[0].executions != 1:
        return [blocks_of(sequence) for sequence in workload.sequences]
    calls: Counter[str] = Counter()
    for call in workload.calls:
        if len(call.region.kernels) == 1:
            calls[call.region.id] += call.calls
    return [blocks_of(workload.sequences[0], calls)]
