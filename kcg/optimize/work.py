"""What a run knows of its regions, and what its steps hand on to the next:

    capture -> Captured    baselines -> Measured    search -> Candidates    Judging -> RegionResults

`check_steps` gives a `ModelCheck`, and `write` leaves a `Finished` (`kcg.optimize.run`).
"""

from __future__ import annotations

import copy
import functools
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self

from kcg.judge.bounds import mean, observed, timed_at
from kcg.judge.interface import UNVERIFIED, Offer
from kcg.kernel.kinds import HasExact, NamesItself, kind_of, own_kind, traits_of
from kcg.kernel.symbolic import Bound, at_values, bounds_of
from kcg.search.problem import Observation, best
from kcg.types import (
    Finalist,
    Measurement,
    Planning,
    RegionResult,
    Schedule,
    Status,
    Variables,
    Workload,
    WorkloadCall,
)
from kcg.unexpected import looking

if TYPE_CHECKING:
    from kcg.compat.tiny import UOp
    from kcg.kernel.kinds import Space
    from kcg.kernel.lowered import Lowered
    from kcg.workloads.function import Call

NEAR = 1.03  # so many times as long as a program that is a second choice: a comparison in turns decides
LEADS = 0.99
"""A candidate that is not at least so much faster than one that was verified is no better one: samples of a search
differ by as much, and what was verified would have to be judged anew."""
TRIES = 2  # candidates of a kind that are judged per region, the second only if the first is wrong


EXPECTED = "expected:"
"""Begins the hash of a binary that is none: nothing was measured of its schedule, but expected."""


def is_expected(seen: Observation) -> bool:
    """Whether it is not what was seen, but what is expected."""
    return seen.binary_hash.startswith(EXPECTED)


@dataclass
class RegionWork:
    """What a run knows of one region of the workload."""

    call: WorkloadCall
    space: Space  # of the kind that its baseline is of
    others: dict[str, Space] = field(default_factory=dict)  # of each other kind that has schedules of it here
    seen: dict[str, dict[Schedule, Observation]] = field(default_factory=dict)  # by kind; searches add to it
    binaries: set[str] = field(default_factory=set)
    compile_s: dict[Schedule, float] = field(default_factory=dict)  # what compiling each took, in this run or before
    own: Measurement | None = None  # the hand-coded schedule as the search measured it
    tried_by_beam: int = 0  # binaries that tinygrad's own BEAM timed
    offers: list[Offer] = field(default_factory=list)  # kernels that are written by hand for it
    at_bounds: dict[Schedule, tuple[float, ...]] = field(default_factory=dict)  # seconds at each end, of what ran
    refused: dict[Schedule, str] = field(default_factory=dict)  # candidates that make something else of NaN, and what
    verified: set[Schedule] = field(default_factory=set)  # what passed every rule while the search went on
    stored: RegionResult | None = None  # what a store had of it, judged in this run: it is not searched
    nothing: str = ""  # why it is not searched either, where a store has that an earlier search found nothing
    search_s: float = 0.0  # how long this run searched: all of its regions, or as long in proportion
    share: float = 0.0  # of the time of all that its calls took then
    proposed: bool = False  # whether its calls are counted as those of its kernels, too: no plan has it yet

    # ---- what is learned of it ----

    def charge(self, rows: Sequence[Measurement]) -> Measurement | None:
        """Take in what measuring a schedule at each end cost; the row of its binary, where that is new."""
        row = next((row for row in rows if row.binary_hash), rows[0])
        self.compile_s[row.schedule] = row.compile_s
        if row.schedule == self.space.baseline():
            self.own = row
        if not row.binary_hash or row.binary_hash in self.binaries:
            return None
        self.binaries.add(row.binary_hash)
        return row

    def saw(self, schedule: Schedule, rows: Sequence[Measurement]) -> Observation:
        """What a search sees of a schedule that was measured at each end; its times there are kept."""
        if all(row.status == Status.OK for row in rows):
            self.at_bounds[schedule] = tuple(row.median_s for row in rows)
        return observed(self.bounds, rows)

    def keep(self, seen: Observation) -> None:
        """Know what was seen of a schedule."""
        self.seen_of(seen.schedule.kind)[seen.schedule] = seen

    def searched_by_beam(self, binaries: int) -> None:
        """tinygrad's own BEAM timed so many binaries."""
        self.tried_by_beam = binaries

    def refuse(self, schedule: Schedule, reason: str) -> None:
        """A candidate is none: the next best gets its turn."""
        self.refused[schedule] = reason

    def passed(self, *schedules: Schedule) -> None:
        """These were verified: what leads by less than may be noise does not take their place."""
        self.verified.update(schedules)

    def as_of_now(self) -> Self:
        """The same, to which searches add nothing: what is judged does not change meanwhile. What is refused is refused
        of both."""
        now = copy.copy(self)  # with all that it has computed of itself
        now.seen = {kind: dict(seen) for kind, seen in [*self.seen.items()]}
        now.verified = set(self.verified)
        return now

    def offer(self, offer: Offer) -> None:
        """There is a hand-written kernel for it."""
        self.offers.append(offer)

    # ---- what it is ----

    @property
    def id(self) -> str:
        values = ",".join(f"{name}={value}" for name, value in self.call.variables)
        return f"{self.call.region.id}|{values}"

    @property
    def kind(self) -> str:
        """That its baseline is of."""
        return own_kind(self.call.region)

    @property
    def taken(self) -> Counter[str]:
        """The calls in whose place those of a region run, by kernel."""
        once = Counter(kernel.id for kernel in self.call.region.own)
        return Counter({kernel: count * self.call.calls for kernel, count in once.items()})

    @functools.cached_property
    def bounds(self) -> tuple[Bound, ...]:
        """With which values of its variables it is timed, and how much each counts."""
        return bounds_of(self.call)

    @functools.cached_property
    def bindings(self) -> tuple[Variables, ...]:
        """The values at the bounds: one set, which is empty where no kernel has variables, or several."""
        return tuple(end.variables for end in self.bounds)

    @functools.cached_property
    def bytes(self) -> int:
        """Least traffic of one call."""
        from kcg.kernel.analysis import least_bytes_of_region

        return round(mean(self.bounds, [least_bytes_of_region(self.call.region, self._asts(v)) for v in self.bindings]))

    @functools.cached_property
    def float_operations(self) -> float:
        """Operations of one call in products of floats."""
        from kcg.kernel.analysis import float_operations

        return mean(self.bounds, [sum(map(float_operations, self._asts(values))) for values in self.bindings])

    @functools.cached_property
    def output_bytes(self) -> int:
        """What its outputs take, in bytes: what counts after a run, not what lies between its kernels."""
        from kcg.kernel.chain import Chain
        from kcg.measure.inputs import buffers_of_kernels

        region = self.call.region
        infos = buffers_of_kernels(Chain(region).asts)  # by the numbers of the region's buffers
        return sum(i.nbytes for i in infos if i.is_output and (i.slot in region.outputs or not region.args))

    @functools.cached_property
    def operations(self) -> float:
        """Arithmetic of one call."""
        from kcg.kernel.analysis import arithmetic

        return mean(self.bounds, [sum(map(arithmetic, self._asts(v))) for v in self.bindings])

    @functools.cached_property
    def expected_s(self) -> float:
        """What all its calls are expected to take as tinygrad schedules them, in seconds, by the analytic predictor: it
        needs a millisecond. 18 of the 130 kernels of a CNN's training loop, by the order of their times, take 95 % of
        it, 19 by this one (CPU:X86). What it cannot judge counts as a second."""
        from kcg.predictor.interface import judge_of
        from kcg.predictor.roofline import Roofline

        one_s = 1.0
        with looking("what a kernel is expected to take"):
            (expected,) = judge_of(Roofline(), self.space).predict([self.space.baseline()])
            one_s = expected.runtime_s
        return self.call.calls * one_s

    @functools.cached_property
    def reference_terms(self) -> int:
        """See `kcg.measure.verify.reference_terms`."""
        from kcg.measure.verify import reference_terms

        return reference_terms(self._asts(self.bindings[0]))

    def _asts(self, values: Variables) -> list[UOp]:
        """Its kernels with these values of their variables."""
        from kcg.kernel.codec import ast_of

        return [at_values(ast_of(kernel), values) for kernel in self.call.region.kernels]

    @functools.cached_property
    def is_alone(self) -> bool:
        """Whether its space holds no schedule but tinygrad's own."""
        start = self.space.start()
        return self.space.baseline() == start and not self.space.actions(start)

    # ---- what is known of it ----

    def seen_of(self, kind: str) -> dict[Schedule, Observation]:
        """What was seen of the schedules of a kind; a search adds to it."""
        return self.seen.setdefault(kind, {})

    @property
    def known(self) -> dict[Schedule, Observation]:
        """What was seen of the kind of its baseline; a search adds to it."""
        return self.seen_of(self.kind)

    @property
    def searched(self) -> list[dict[Schedule, Observation]]:
        """What was seen of each other kind that is searched: not of what is written by hand."""
        others = [(kind, seen) for kind, seen in [*self.seen.items()] if kind != self.kind and seen]
        return [seen for kind, seen in others if kind in self.others or not traits_of(next(iter(seen.copy()))).by_hand]

    def observed(self, schedule: Schedule) -> Observation | None:
        """What was seen of a schedule, if anything."""
        return self.seen_of(schedule.kind).get(schedule)

    @property
    def is_missing(self) -> bool:
        """Whether a store has nothing of it, so that it is searched."""
        return self.stored is None and not self.nothing

    @property
    def scales(self) -> tuple[float, ...]:
        """How long the fastest known schedule takes at each end, relative to its time of one call; 1 where none is."""
        found = best(list(self.known.values()))
        times = self.at_bounds.get(found.schedule) if found is not None else None
        return tuple(s / found.time_s for s in times) if found is not None and times else (1.0,) * len(self.bounds)

    @property
    def longest_s(self) -> float:
        """What tinygrad's own schedule takes at the end where it takes longer; 0 where it is not known."""
        return max(self.at_bounds.get(self.space.baseline(), ()), default=self.baseline_s)

    @property
    def baseline_s(self) -> float:
        """Measured time of the hand-coded schedule; 0 where it is not known."""
        seen = self.known.get(self.space.baseline())
        return seen.runtime_s or 0.0 if seen is not None else 0.0

    @property
    def is_expected(self) -> bool:
        """Whether what is known of it is not what was seen but what is expected (`kcg.optimize.expecting`)."""
        seen = self.known.get(self.space.baseline())
        return seen is not None and is_expected(seen)

    @property
    def is_timed(self) -> bool:
        """Whether tinygrad's own schedule was tried, with whatever end: all else is compared with it."""
        return self.space.baseline() in self.known

    @property
    def is_unjudged(self) -> bool:
        """Whether the reference cannot tell what is right: no schedule of it is judged then."""
        return self.own is not None and self.own.status == Status.UNJUDGED

    @property
    def tried(self) -> int:
        """Schedules beside the hand-coded one that were measured, whether they ran or not."""
        return max(len(self.known) - (self.space.baseline() in self.known), self.tried_by_beam) + sum(
            map(len, self.searched)
        )

    @property
    def measured(self) -> int:
        """Binaries that were timed."""
        return max(len(self.binaries), self.tried_by_beam)

    @property
    def best(self) -> Observation | None:
        """The fastest of all that was searched; None where nothing ran."""
        return best([one for seen in (self.known, *self.searched) for one in [*seen.values()]])  # searches add to it

    @property
    def best_s(self) -> float:
        """Its time; 0 where nothing ran."""
        return found.time_s if (found := self.best) is not None else 0.0

    @property
    def before_s(self) -> float:
        """What all its calls take as tinygrad schedules them; 0 where it is not known."""
        return self.call.calls * self.baseline_s

    @property
    def after_s(self) -> float:
        """What all its calls take by the best that is known so far; 0 where nothing is."""
        return self.call.calls * self.best_s

    @property
    def saving_s(self) -> float:
        """What its first candidate would save of one execution, by the search: of a region of several kernels against
        the best schedules of these, which count for themselves."""
        if not self.found or not self.baseline_s:
            return 0.0
        parts = best([*self.known.values()]) if self.proposed else None
        return self.call.calls * ((parts.time_s if parts is not None else self.baseline_s) - self.best_s)

    @property
    def candidates(self) -> list[Schedule]:
        """The schedules that a search found faster than the baseline, fastest first."""
        return self.faster[:TRIES]

    @property
    def faster(self) -> list[Schedule]:
        """All schedules that a search found faster than the baseline and that are not `refused`, fastest first."""
        baseline, limit = self.space.baseline(), self.baseline_s or float("inf")
        found = (s for s in _ranked(self.known, self.verified) if s != baseline and self.known[s].time_s < limit)
        return [s for s in found if s not in self.refused]

    @property
    def by_kind(self) -> list[list[Schedule]]:
        """Of each other kind the schedules that a search found faster than all of the baseline's kind, fastest first,
        the fastest kind first; behind the first the same with functions in full accuracy, where it has others: it is
        what remains if those prove wrong. The last is the fastest with another tile: what is wrong with one program is
        so with those that differ in little."""
        limit = min((o.time_s for o in [*self.known.values()]), default=0.0)
        found = [self._faster_than(limit, seen) for seen in self.searched]
        return sorted(filter(None, found), key=lambda one: self.seconds_of(one[0]))

    def _faster_than(self, limit: float, seen: Mapping[Schedule, Observation]) -> list[Schedule]:
        ranked = _ranked(seen, self.verified)
        found = [s for s in ranked if seen[s].time_s < limit and s not in self.refused]
        space = self.others.get(found[0].kind) if found else None
        if space is None:
            return found
        faster = found[:TRIES]
        exact = space.exact(faster[0]) if isinstance(space, HasExact) else None
        other = [s for s in found if len(found) > TRIES and space.tile(s) != space.tile(found[0])][:1]
        return list(dict.fromkeys([*faster[:1], *([exact] if exact is not None else []), *faster[1:], *other]))

    @property
    def other_candidates(self) -> list[Schedule]:
        """What is judged of the other kinds, see `by_kind`."""
        return [schedule for found in self.by_kind for schedule in found]

    @property
    def found(self) -> list[Schedule]:
        """All that is judged of it but what is written by hand: of other kinds, then of the baseline's."""
        return [*self.other_candidates, *self.candidates]

    def better_chosen(self, schedule: Schedule) -> Schedule | None:
        """Of a schedule that is a second choice the fastest that is none, where the search found it about as fast."""
        if not traits_of(schedule).second_choice or (seen := self.observed(schedule)) is None:
            return None
        known = self.seen_of(schedule.kind)
        first = next((s for s in _ranked(known) if not traits_of(s).second_choice), None)
        return first if first is not None and known[first].time_s <= NEAR * seen.time_s else None

    @property
    def firsts(self) -> list[Schedule]:
        """What is compared first: the baseline, and of each kind the best candidate."""
        return [self.space.baseline(), *self.candidates[:1], *(found[0] for found in self.by_kind)]

    def seconds_of(self, schedule: Schedule) -> float:
        """What one call took with a schedule in the search; what its baseline takes where that is not known."""
        seen = self.observed(schedule)
        return seen.runtime_s or self.baseline_s if seen is not None else self.baseline_s

    def space_of(self, schedule: Schedule) -> Space | None:
        """The space of a schedule's kind; None where there is none."""
        return self.space if schedule.kind == self.kind else self.others.get(schedule.kind)

    def named(self, schedule: Schedule) -> tuple[str, str]:
        """What the program of a schedule is called in tables, and what the schedule does, in words.

        A program of another kind has the name that tinygrad gives its kernel: what it is stands in its schedule.
        """
        if isinstance(kind := kind_of(schedule), NamesItself):
            return kind.named(schedule)
        own = self.space.baseline() if schedule.kind in self.others else schedule
        return self.space.name(own), (self.space_of(schedule) or self.space).legend(schedule)

    # ---- what becomes of it ----

    def as_searched(self, schedule: Schedule) -> Finalist:
        """A schedule as the search left it; not verified."""
        observation = self.observed(schedule)
        if observation is not None and is_expected(observation):
            observation = None  # nothing was seen of it
        seconds = observation.runtime_s if observation is not None and observation.runtime_s else 0.0
        name, legend = self.named(schedule)
        return Finalist(
            schedule=schedule,
            cold_s=seconds,
            warm_s=seconds,
            interval_s=(seconds, seconds),
            verification=UNVERIFIED,
            binary_hash=observation.binary_hash if observation is not None else "",
            name=name,
            legend=legend,
        )

    def result(self, base: Finalist, chosen: Finalist, outcome: str, note: str, noise: float = 0.0) -> RegionResult:
        """Its result with these two schedules."""
        before_s, after_s = (self.at_bounds.get(side.schedule) for side in (base, chosen))
        return RegionResult(
            region=self.call.region,
            calls=self.call.calls,
            baseline=base,
            chosen=chosen,
            measurements=self.measured,
            outcome=outcome,
            variables=self.call.variables,
            note=note,
            operations=self.operations,
            bytes=float(self.bytes),
            noise_floor=noise,
            ends=timed_at(self.bounds, before_s, after_s),
            replayed=self.call.replayed,
        )


def _ranked(known: Mapping[Schedule, Observation], verified: Collection[Schedule] = ()) -> list[Schedule]:
    """Schedules that ran, fastest first; one of each binary. Those that were `verified` count as `LEADS` faster."""
    seen: set[str] = set()
    ordered = []

    def place(one: Observation) -> float:
        return one.time_s * LEADS if one.schedule in verified else one.time_s

    for observation in sorted([*known.values()], key=place):  # a copy: a search may add to it
        if observation.status == Status.OK and observation.binary_hash not in seen:
            seen.add(observation.binary_hash)
            ordered.append(observation.schedule)
    return ordered


def missing_share(works: Sequence[RegionWork]) -> float:
    """The share of their time, as tinygrad schedules them, of those of which a store had nothing: of a search that is
    not bound by a budget they have as much."""
    if all(work.is_missing for work in works):
        return 1.0
    total_s = sum(work.before_s for work in works)
    return sum(work.before_s for work in works if work.is_missing) / total_s if total_s else 1.0


ONCE_COUNTS = 0.1
"""Kernels that run outside of the steady state alone are searched where they take more of the kernels' time."""


def searched_of(works: Sequence[RegionWork]) -> Sequence[RegionWork]:
    """Those that are worth a search: all, but those that a script with steps runs outside of them, where these take
    little."""
    once = [work for work in works if not work.call.replayed]
    if len(once) == len(works) or sum(w.before_s for w in once) > ONCE_COUNTS * sum(w.before_s for w in works):
        return works
    return [work for work in works if work.call.replayed]


def noun_for(works: Sequence[RegionWork]) -> str:
    """What works are called in a message that counts them: those of several kernels come apart from others."""
    return "region" if any(work.proposed for work in works) else "kernel"


def total_s(works: Sequence[RegionWork]) -> float | None:
    """What the workload takes by the best that is known; None where something is not known."""
    counted = [work for work in works if not work.proposed]
    return sum(work.after_s for work in counted) if counted and all(work.best_s for work in counted) else None


@dataclass(frozen=True)
class Captured:
    """The workload, and what recording the kernels of a script or function took, in seconds; 0 of a named one."""

    workload: Workload
    recorded_s: float = 0.0
    call: Call | None = None  # of a function of this process
    why_once: str = ""  # why that is not called again, in words; empty where it is
    recorded: Path | None = None  # where what a script left is kept, see `kcg.workloads.left`
    lowered: Mapping[str, Lowered] = field(default_factory=dict)  # what a script's process lowered, by kernel


class Tail(Protocol):
    """Baselines that make up little of the time, which are timed while a search of the others goes on."""

    @property
    def is_over(self) -> bool: ...

    def turn(self) -> Sequence[RegionWork]:
        """Those that were timed since the last turn. Others are sent in their place."""
        ...

    def finish(self, timeout_s: float | None) -> None:
        """Send no more, and wait for those that are on their way."""
        ...


@dataclass(frozen=True)
class Measured:
    """The regions once tinygrad's own schedules are timed, and what that took."""

    works: Sequence[RegionWork]
    at: float  # when that was over, by `time.monotonic`
    untimed: int = 0  # kernels of which the budget left no time to time tinygrad's own schedule
    baseline_s: float = 0.0  # what compiling and timing one took on average, in this run
    preparing_s: float = 0.0  # what preparing a first measurement of a kernel takes on average; 0: not known
    untimed_share: float = 0.0  # of the time of all that these kernels are expected to take
    kernels_at: float | None = None  # when it was over of kernels, where regions of several were timed after them
    tail: Tail | None = None  # what is timed while the search goes on; it counts as untimed

    @property
    def timed(self) -> Sequence[RegionWork]:
        """The regions, without those that the budget left no time to time."""
        return [work for work in self.works if work.is_timed] if self.untimed else self.works

    @property
    def first_at(self) -> float:
        """When the first search could begin, by `time.monotonic`."""
        return self.at if self.kernels_at is None else self.kernels_at


@dataclass(frozen=True)
class Candidates:
    """The regions once the search is over; what it found of each is in `RegionWork.candidates`."""

    works: Sequence[RegionWork]
    untimed: int = 0
    settled: bool = False  # it ended because nothing more was worth its measurements
    used_up: bool = False  # all measurements that were allowed are made
    searched: bool = True  # some schedule was tried beside tinygrad's own
    expected: Mapping[str, float] = field(default_factory=dict)
    """What the next measurements of searches that were stopped were expected to save, in seconds of one execution of
    the workload, by `RegionWork.id`."""


@dataclass(frozen=True)
class RegionResults:
    """What became of each region, in their order."""

    rows: tuple[RegionResult, ...]
    undecided: int = 0  # kernels with a candidate that the budget left no time to judge
    planning: Planning | None = None  # by which of the plans, where regions of several kernels were searched
