"""What a region of several kernels saves in its neighbourhood: behind the calls that make its inputs, and before those
that read what it stores, as in the step.

In the search and in judging a program begins with an empty cache. In a step its inputs were just made, and what it
stores is read next: calls that are slow because they read from memory what others stored may be fast there. So the best
program of each region of the best plans is compared once more with the best schedules of its calls, both among their
neighbours: one interval of the clock around all calls, in turns, the cache emptied before the first of them. Neighbours
are the same on both sides, so the difference is the region's.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kcg.errors import DeviceError, JournalError
from kcg.kernel.composed import joined
from kcg.kernel.program import Executable, Program
from kcg.kernel.symbolic import ranges_of_region
from kcg.measure.device_info import first_line
from kcg.measure.jobs import ContextJob, ContextOutcome
from kcg.measure.pools import ServiceClosed
from kcg.measure.protocol import median, median_interval
from kcg.types import JobKind, Region, RegionResult
from kcg.types import Sequence as CallSequence

if TYPE_CHECKING:
    from kcg.judge.interface import Bench, Patience
    from kcg.judge.kept import KeptResults
    from kcg.kernel.regions import Candidate
    from kcg.kernel.repeats import Blocks

NEAR = 8  # calls between a region and a neighbour, at most: what was made long ago is in no cache
MOST_S = 20.0  # that all of it may take
SHARE = 0.5  # of the time until the whole is checked: what it leaves is for the steps of more plans
FIRST_S = 1.0  # expected of the first comparison; of others what the longest before it took
TIMEOUT_S, RUNS = 60.0, 500  # of one comparison: so many seconds, and so many times what its calls take


Interval = tuple[float, float, float]
"""What one call saves, in seconds: the low end of its 95 % interval, its median, the high end."""


@dataclass(frozen=True)
class Neighbourhood:
    """One occurrence of a region among its neighbours, all of them as one region."""

    region: Region
    before: int  # calls that run before those of the region
    inside: int  # calls of the region, in its own order

    def programs(self, calls: Sequence[Executable], program: Executable) -> tuple[Program, Program]:
        """The programs of all calls one by one, and the same with one `program` in the place of the region's."""
        each = [((number,), compiled) for number, compiled in enumerate(calls)]
        end = self.before + self.inside
        together = (tuple(range(self.before, end)), program)
        return joined(self.region, each), joined(self.region, [*each[: self.before], together, *each[end:]])


def neighbourhood_of(sequence: CallSequence, places: Sequence[int]) -> Neighbourhood | None:
    """The calls at these places, in their region's order, and of their neighbours those that can be in one region with
    them. None where there are none, as where sizes depend on variables."""
    makers, readers, found = list[int](), list[int](), None
    for place, is_maker in neighbours_of(sequence, places):
        before = sorted([*makers, place]) if is_maker else makers
        after = readers if is_maker else sorted([*readers, place])
        try:
            region = sequence.region(*before, *places, *after, ordered=True)
        except ValueError:  # it runs no kernel, or two views share memory
            continue
        if not ranges_of_region(region):
            makers, readers, found = before, after, region
    return None if found is None else Neighbourhood(found, len(makers), len(places))


def neighbours_of(sequence: CallSequence, places: Sequence[int]) -> list[tuple[int, bool]]:
    """The calls near those at these places that make what they read (true), or read what they make (false), the nearest
    first. A region is convex, so no call does both."""
    first, last = min(places), max(places)
    near = [place for place in range(first - NEAR, last + NEAR + 1) if 0 <= place < len(sequence.calls)]
    found = []
    for place in near:
        if place in places:
            continue
        if _feeds(sequence, [place], [p for p in places if p > place]):
            found.append((place, True))
        elif _feeds(sequence, [p for p in places if p < place], [place]):
            found.append((place, False))
    return sorted(found, key=lambda one: max(first - one[0], one[0] - last))


def _feeds(sequence: CallSequence, makers: Sequence[int], readers: Sequence[int]) -> bool:
    """Whether one of some calls writes what one of others reads."""
    made = [call.views[slot] for call in map(sequence.calls.__getitem__, makers) for slot in call.writes]
    read = [call.views[slot] for call in map(sequence.calls.__getitem__, readers) for slot in call.reads]
    return any(one.overlaps(other) for one in made for other in read)


@dataclass(frozen=True)
class _Asked:
    """A comparison whose programs are being compiled: those of all calls, and last the region's."""

    region: Region
    neighbourhood: Neighbourhood
    programs: list[Future[Any]]


class InContext:
    """Compares regions in their neighbourhoods, with the schedules that were chosen for kernels and regions."""

    def __init__(
        self, rows: Sequence[RegionResult], bench: Bench, patience: Patience, kept: KeptResults, *, until: float | None
    ) -> None:
        """`rows` are what was judged; by `until`, by `time.monotonic`, all else of the run is to be over but the check
        of the whole. None: whenever."""
        self._rows = {row.region.id: row for row in rows if not row.variables}
        self._device, self._patience, self._kept = bench, patience, kept
        self.found: dict[str, Interval] = {}
        self.tried: set[str] = set()
        self.failed: list[tuple[str, str]] = []  # regions, and why nothing is known of them
        self._longest_s = FIRST_S
        now = time.monotonic()
        self._until = now + (MOST_S if until is None else min(MOST_S, SHARE * (until - now)))

    def compare(self, candidates: Sequence[tuple[Candidate, Blocks]]) -> int:
        """Compare these, with what is compiled for all of them first; how many there was no time for."""
        asked = [one for candidate, blocks in candidates if (one := self._ask(candidate, blocks)) is not None]
        wait([future for one in asked for future in one.programs], timeout=max(self._until - time.monotonic(), 0.0))
        return sum(not self._compare(one) for one in asked)

    def _ask(self, candidate: Candidate, blocks: Blocks) -> _Asked | None:
        """Have compiled what this run did not compile yet; None where nothing can be compared."""
        region = candidate.region
        self.tried.add(region.id)
        if region.again:  # in its place the calls that it makes again may run too
            return None
        neighbourhood = neighbourhood_of(blocks.sequence, max(candidate.places, key=blocks.weight))
        if neighbourhood is None:
            return None
        wanted = [Region((kernel,)) for kernel in neighbourhood.region.kernels] + [region]
        rows = [row for one in wanted if (row := self._rows.get(one.id)) is not None]
        if len(rows) < len(wanted):
            return None
        compiled = self._device.service.compiled
        return _Asked(region, neighbourhood, [compiled(row.region, row.chosen.schedule) for row in rows])

    def _compare(self, asked: _Asked) -> bool:
        """Compare both sides, or take over what an earlier run saw of them; whether there was time for it."""
        if not all(one.done() for one in asked.programs):
            return False
        try:
            *calls, program = (one.result().compiled for one in asked.programs)
            sides = asked.neighbourhood.programs(calls, program)
            region, kept = asked.neighbourhood.region, self._kept
            if (outcome := kept.find_in_context(region, sides)) is not None:
                self._device.service.took_over(JobKind.IN_CONTEXT, region, programs=sides)
            else:
                if (outcome := self._outcome(region, sides)) is None:
                    return False
                kept.add_in_context(region, sides, outcome)
        except (DeviceError, ServiceClosed, JournalError):
            raise
        except Exception as error:  # whatever a compiler or a crash says: the region keeps what it saves alone
            self.failed.append((asked.region.id, first_line(error)))
            return True
        if outcome.reason:
            self.failed.append((asked.region.id, outcome.reason))
        else:
            self.found[asked.region.id] = saving_of(outcome)
        return True

    def _outcome(self, region: Region, sides: tuple[Program, Program]) -> ContextOutcome | None:
        """What timing both sides in turns showed; None where there was no time for it."""
        begun = time.monotonic()
        if begun + self._longest_s > self._until:
            return None
        calls_s = sum(self._rows[kernel.id].baseline.cold_s for kernel in region.kernels)
        job = ContextJob(region, sides, self._device.service.target)
        future = self._device.service.compare_in_context(job, timeout_s=TIMEOUT_S + RUNS * calls_s)
        _, waiting = wait([future], timeout=self._patience.patience_s(self._longest_s))
        if waiting:
            return None
        outcome = future.result()
        self._longest_s = max(self._longest_s, time.monotonic() - begun)
        return outcome


def saving_of(outcome: ContextOutcome) -> Interval:
    """The paired saving: the low end of its 95 % interval, its median, the high end, in seconds of one call."""
    saved = [before - after for before, after in zip(outcome.parts_s, outcome.program_s, strict=True)]
    low, high = median_interval(saved)
    return low, median(saved), high
