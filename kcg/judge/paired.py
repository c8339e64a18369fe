"""The paired comparison: two schedules of a region, verified by every rule and timed in turns in a fresh process.

One mechanism for whatever is compared: tinygrad's own schedule alone, what a search found, what is written by hand. It
compiles, verifies and times at each end of the kernel's values, decides by the paired speed-up, journals what it saw,
and takes over what an earlier run saw of the same.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import combinations
from typing import TYPE_CHECKING, Any, Final, TypeVar

from kcg.errors import DeviceError
from kcg.judge import bounds
from kcg.judge.kept import Side
from kcg.judge.stressing import REJECTED, Stressing, launches_in
from kcg.kernel.kinds import made_by, needs_stress
from kcg.measure.device_info import first_line
from kcg.measure.jobs import JointJob, NanJob, PairedJob, PairedOutcome
from kcg.measure.pools import ServiceClosed
from kcg.measure.protocol import median, median_interval, spread
from kcg.measure.service import paired_rows, why_no_reference
from kcg.measure.verify import FINAL_SEEDS
from kcg.types import Finalist, JobKind, Region, Schedule, Variables, Verification

if TYPE_CHECKING:
    from kcg.judge.interface import Bench, Found, Patience, Subject
    from kcg.judge.kept import KeptResults
    from kcg.kernel.symbolic import Bound
    from kcg.measure.verify import References

Work = TypeVar("Work", bound="Found")

FRESH_CHILD_S: Final = 3.0  # a new process that opens the device, canary and all
TIMEOUT_S = 120.0  # of one comparison, at least
NAN_ROUNDS = 4  # of candidates that are refused for what they make of NaN, until enough are left
NAN_AT_ONCE = 12  # the next best of them, which are compiled for it
RUNS = 200  # launches of one, with room for samples that are taken again


_Place = tuple[str, Variables, tuple[Schedule, ...]]
"""A region, the values of its variables, and schedules."""


def _place(work: Subject, end: Bound, sides: Sequence[Side]) -> _Place:
    return work.id, end.variables, tuple(side.schedule for side in sides)


def compares_floats(region: Region) -> bool:
    """Whether NaN of an input comes into a maximum, a minimum or another comparison."""
    from kcg.kernel.chain import Chain
    from kcg.measure.inputs import nan_slots

    return bool(nan_slots(Chain(region).asts))


@dataclass(frozen=True)
class Compared:
    """What a comparison showed of two schedules, or of one alone. There is a speed-up only where both are timed."""

    before: Side
    after: Side | None
    outcome: PairedOutcome | None = None
    reason: str = ""  # why there is no outcome
    late: bool = False  # the budget was over before there was one
    at_bounds: tuple[PairedOutcome, ...] = ()  # what `outcome` is the mean of, see `bounds`

    @cached_property
    def noise(self) -> float:
        """What the slower schedule differs from itself, as a share of its time."""
        assert self.outcome is not None
        return spread(self.outcome.baseline_cold_s, self.outcome.again_cold_s)

    @cached_property
    def speed_up(self) -> tuple[float, float, float]:
        """The paired speed-up: the low end of its 95 % interval, its median, the high end."""
        assert self.outcome is not None
        pairs = zip(self.outcome.baseline_cold_s, self.outcome.finalist_cold_s, strict=True)
        ratios = [before / after for before, after in pairs]
        low, high = median_interval(ratios)
        return low, median(ratios), high

    @property
    def is_faster(self) -> bool:
        """The whole interval lies above 1, and the gain exceeds the noise."""
        low, ratio, _ = self.speed_up
        return low > 1.0 and ratio > 1.0 + self.noise

    @property
    def words(self) -> str:
        low, ratio, high = self.speed_up
        return f"{ratio:.2f}× as fast, 95 % interval {low:.2f} to {high:.2f}"

    def finalist_before(self, work: Subject) -> Finalist:
        """The first schedule as a result keeps it."""
        assert self.outcome is not None
        seen = self.outcome
        return _finalist(work, self.before, seen.baseline_cold_s, seen.baseline_warm_s, seen.baseline_verification)

    def finalist_after(self, work: Subject) -> Finalist:
        """The second one."""
        assert self.outcome is not None and self.after is not None
        seen = self.outcome
        assert seen.finalist_verification is not None
        return _finalist(work, self.after, seen.finalist_cold_s, seen.finalist_warm_s, seen.finalist_verification)


def _finalist(
    work: Subject, side: Side, cold_s: tuple[float, ...], warm_s: tuple[float, ...], verification: Verification
) -> Finalist:
    schedule, compiled = side.schedule, side.compiled
    name, legend = work.named(schedule)
    return Finalist(
        schedule=schedule,
        cold_s=median(cold_s),
        warm_s=median(warm_s),
        interval_s=median_interval(cold_s),
        verification=verification,
        binary_hash=compiled.binary_hash,
        name=name,
        legend=legend,
        source=compiled.source,
        launch=(compiled.global_size, compiled.local_size),
    )


REFEREE_SHARE: Final = 0.2
"""Of what the references of a region of several kernels take a core, its comparison takes so much on the host. On one
NVIDIA H200: of attention with the norms before it 20 s and 3.8, 15 s and 3.6, of other regions 22 s and 2.1, 7 and .3.
"""


class Comparisons:
    """Makes the comparisons of one run, and knows of which regions some were made or taken over."""

    def __init__(self, bench: Bench, patience: Patience, kept: KeptResults, *, in_new_child: bool = False) -> None:
        """With `in_new_child` the process that judges is new already: it ran nothing but its canary."""
        self._device, self._patience, self._kept = bench, patience, kept
        self._in_new_child = in_new_child
        self.made: set[str] = set()
        self.taken_over: set[str] = set()
        self._references: dict[tuple[str, Variables], Future[Any]] = {}  # by region and values of its variables
        self._asking = threading.Lock()
        self._seen: dict[_Place, PairedOutcome] = {}  # by this process
        self._stressing = Stressing(bench.service, failed=bench.failed_under_stress, record=bench.record)

    def go_by(self, patience: Patience) -> None:
        """Wait from now on as this says."""
        self._patience = patience

    def prepare(self, works: Sequence[Found], sides: Sequence[tuple[Subject, Schedule]], *, compiling_s: float) -> None:
        """Have a fresh process, and compile the `sides` before the first comparison, which is expected to take so many
        seconds: on a CPU nothing may compile while one runs. On a GPU the compiling children compute the references of
        these regions meanwhile."""
        service = self._device.service
        if not self._in_new_child:
            service.fresh_child()
        sent = [service.compiled(w.call.region, s, *w.bindings) for w, s in sides]
        self.ask_for_references(works)
        wait(sent, timeout=self._patience.patience_s(compiling_s))

    def ask_for_references(self, works: Sequence[Found], *, most: float = math.inf) -> None:
        """Have those computed that were not asked for, as long as no more than `most` are under way: not on a CPU,
        where nothing may disturb a sample. Called from any thread."""
        if self._device.is_cpu:
            return
        for work in works:
            with self._asking:
                if sum(not one.done() for one in self._references.values()) >= most:
                    return
                for values in work.bindings:
                    if (work.id, values) not in self._references and not self._kept.holds_first(work):
                        self._references[work.id, values] = self._device.service.references(
                            work.call.region, values, FINAL_SEEDS
                        )

    def first_ready(self, works: Sequence[Work], *, until: float | None = None) -> Work:
        """The first of some regions whose references are there, once those of one are; the first of all where there
        are none of any `until` then, by `time.monotonic`."""
        self.ask_for_references(works)
        while True:
            waiting: list[Future[Any]] = []
            for work in works:
                if not (missing := [one for one in self._asked(work) if not one.done()]):
                    return work
                waiting += missing
            left_s = None if until is None else until - time.monotonic()
            if left_s is not None and left_s <= 0:
                return works[0]
            wait(waiting, timeout=left_s, return_when=FIRST_COMPLETED)

    def is_ready(self, work: Subject) -> bool:
        """Whether nothing that judging a region needs is under way."""
        return all(one.done() for one in self._asked(work))

    def referee_s(self, work: Subject) -> float:
        """What the float64 reference is expected to take while a region of several kernels is judged, in seconds, by
        what the references took that are there: it is asked again where two outputs differ most."""
        if len(work.call.region.kernels) == 1:
            return 0.0
        done = (one for one in self._asked(work) if one.done() and one.exception() is None)
        return REFEREE_SHARE * sum(float(one.result().seconds) for one in done)

    def why_unjudged(self, work: Subject) -> str:
        """Why there are no references of a region that is ready; empty where there are, or its comparison may make
        them."""
        return next(filter(None, (why_no_reference(one.exception()) for one in self._asked(work))), "")

    def _asked(self, work: Subject) -> list[Future[Any]]:
        """The references of a region that other processes compute."""
        return [one for v in work.bindings if (one := self._references.get((work.id, v))) is not None]

    def side(self, work: Subject, schedule: Schedule) -> Side | str:
        """A schedule and its program; why there is none where it does not compile: whatever the compiler raised, the
        region is reported, not the run ended."""
        try:
            return Side(schedule, self._device.compiled(work, schedule))
        except (DeviceError, ServiceClosed):  # says nothing of the kernel
            raise
        except Exception as error:
            return first_line(error)

    def compare_jointly(self, work: Subject, sides: Sequence[Side]) -> bool:
        """Compare all sides with each other in one: `compare` then finds what was seen of two of them, and of the first
        alone. Where one of them fails it finds nothing, and sees by itself which. Whether there was time for it: else
        there is none to compare two."""
        pairs = list(combinations(sides, 2))
        for end in work.bounds:
            if all(self._kept.find(work, pair, end.variables) is not None for pair in pairs):
                continue
            if (outcomes := self._joint_at(work, end, sides)) is None:
                return False
            for pair, outcome in zip(pairs, outcomes, strict=False):
                self._take_in(work, end, pair, outcome)
            if not outcomes:
                break
            alone = replace(outcomes[0], finalist_verification=None, finalist_cold_s=(), finalist_warm_s=())
            self._seen[_place(work, end, sides[:1])] = alone
        return True

    def refuse_by_nan(self, work: Found) -> None:
        """Have the candidates of a region refused that make something else of NaN than tinygrad's own schedule, until
        its next best ones are none of them. What is not seen here is seen when a candidate is verified."""
        own, seen = self.side(work, work.space.baseline()), set[Schedule]()
        if isinstance(own, str) or self._kept.holds_first(work) or not compares_floats(work.call.region):
            return
        for turn in range(NAN_ROUNDS):
            found = [*work.other_candidates, *(work.faster[:NAN_AT_ONCE] if turn else work.candidates)]
            asked = [schedule for schedule in dict.fromkeys(found) if schedule not in seen]
            if seen.issuperset([*work.other_candidates, *work.candidates]):
                return
            for schedule in asked:  # all at once
                self._device.service.compiled(work.call.region, schedule, *work.bindings)
            sides = [side for schedule in asked if not isinstance(side := self.side(work, schedule), str)]
            seen.update(asked)
            for side, reason in zip(sides, self._in_nan(work, [own, *sides]), strict=False):
                if reason:
                    work.refuse(side.schedule, reason)

    def _in_nan(self, work: Subject, sides: Sequence[Side]) -> Sequence[str]:
        """What all but the first make of NaN that this one does not; nothing where it was not seen."""
        service, end = self._device.service, work.bounds[0]
        programs = tuple(side.compiled.at(end.variables) for side in sides)
        references = self._reference(work, end.variables)
        job = NanJob(work.call.region, programs, service.target, end.variables, references)
        future = service.compare_nan(job, timeout_s=TIMEOUT_S + len(sides) * work.longest_s)
        _, waiting = wait([future], timeout=self._patience.patience_s(FRESH_CHILD_S))
        try:
            return () if waiting else future.result().differ
        except (DeviceError, ServiceClosed):
            raise
        except Exception:  # a crash or a hang: each is verified by itself
            return ()

    def _joint_at(self, work: Subject, end: Bound, sides: Sequence[Side]) -> Sequence[PairedOutcome] | None:
        """Of each pair; nothing where something failed, None where there was no time for it."""
        service, patience = self._device.service, self._patience
        job = JointJob(
            work.call.region,
            tuple(side.compiled.at(end.variables) for side in sides),
            service.target,
            end.variables,
            seeds=FINAL_SEEDS,
            references=self._reference(work, end.variables),
        )
        future = service.compare_jointly(job, timeout_s=TIMEOUT_S + 2 * RUNS * work.longest_s)
        expected_s = FRESH_CHILD_S + patience.timing_s(work)
        _, waiting = wait([future], timeout=patience.patience_s(expected_s))
        try:
            return None if waiting else future.result().pairs
        except (DeviceError, ServiceClosed):
            raise
        except Exception:  # a crash or a hang: which of them it was is seen two by two
            return ()

    def _take_in(self, work: Subject, end: Bound, pair: Sequence[Side], outcome: PairedOutcome) -> None:
        before, after = pair
        job = PairedJob(
            work.call.region,
            before.compiled.at(end.variables),
            after.compiled.at(end.variables),
            self._device.service.target,
            end.variables,
        )
        self._record(job, outcome, before, after)
        self._keep(work, end, pair, outcome)

    def _keep(self, work: Subject, end: Bound, sides: Sequence[Side], outcome: PairedOutcome) -> None:
        """Do not compare these again, unless noise or a fault may have decided. Last of all: where it is kept, its
        measurements are."""
        self.made.add(work.id)
        self._kept.add(work, sides, outcome, end.variables)
        if not outcome.noisy and not outcome.tainted:
            self._seen[_place(work, end, sides)] = outcome

    def compare(self, work: Subject, before: Side, after: Side | None, *, until: float | None = None) -> Compared:
        """Verify and time both in turns, or the first alone, and record what was seen; or take over what an earlier run
        saw of the same. All this at each end of the kernel's values, and not at the second what is wrong at the first.
        What is not known is late after `until`, by `time.monotonic`.
        """
        outcomes: list[PairedOutcome] = []
        for end in work.bounds:
            seen = self._compare_at(work, end, before, after, until)
            if seen.outcome is None:
                return replace(seen, reason=bounds.reason_at(work.bounds, end, seen.reason))
            outcomes.append(seen.outcome)
            if not seen.outcome.baseline_cold_s:
                break
        return Compared(before, after, bounds.outcome(work.bounds, outcomes), at_bounds=tuple(outcomes))

    def _compare_at(self, work: Subject, end: Bound, before: Side, after: Side | None, until: float | None) -> Compared:
        sides = [before] if after is None else [before, after]
        if (known := self._seen.get(_place(work, end, sides))) is not None:
            return Compared(before, after, known)
        if (known := self._kept.find(work, sides, end.variables)) is not None:
            self.taken_over.add(work.id)
            programs = [side.compiled for side in sides]
            self._device.service.took_over(JobKind.PAIRED, work.call.region, programs=programs)
            return Compared(before, after, known)
        if until is not None and time.monotonic() >= until:
            return Compared(before, after, late=True)
        self.made.add(work.id)
        service, patience = self._device.service, self._patience
        job = PairedJob(
            work.call.region,
            before.compiled.at(end.variables),
            after.compiled.at(end.variables) if after is not None else None,
            service.target,
            end.variables,
            seeds=FINAL_SEEDS,
            references=self._reference(work, end.variables),
        )
        future = service.compare_paired(job, timeout_s=TIMEOUT_S + RUNS * work.longest_s)
        expected_s = FRESH_CHILD_S + patience.timing_s(work)
        _, waiting = wait([future], timeout=patience.patience_s(expected_s))
        if waiting:  # nothing is blamed on a kernel whose process was stopped, say
            return Compared(before, after, late=True)
        try:
            outcome = future.result()
        except (DeviceError, ServiceClosed):
            raise
        except Exception as error:  # a crash or a hang of the child is the candidate's, not the run's
            return Compared(before, after, reason=f"{type(error).__name__}: {first_line(error)}")
        self._record(job, outcome, before, after)
        self._keep(work, end, sides, outcome)
        return Compared(before, after, outcome)

    def stress(self, work: Subject, schedule: Schedule, *, launches: int, until: float | None = None) -> str:
        """Why a schedule that was verified and timed is out after all, or has not passed so many launches yet, see
        `Stressing.run`. Empty where it passed, and where it need not."""
        if not needs_stress(work.call.region, schedule, self._device.service.target):
            return ""
        side = self.side(work, schedule)
        if isinstance(side, str):
            return f"{REJECTED}it does not compile again: {side}"
        return self._stressing.run(
            work.call.region,
            side,
            work.bounds,
            launches=launches,
            launch_s=self._patience.launch_s(work, schedule),
            patience=self._patience.patience_s,
            until=until,
        )

    def launches(self, work: Subject, schedule: Schedule) -> int:
        """How many launches under stress a schedule passed."""
        side = self.side(work, schedule)
        return 0 if isinstance(side, str) else self._stressing.passed(work.call.region, side, work.bounds)

    def piece(self, work: Subject, schedule: Schedule, seconds: float) -> int:
        """How many launches under stress take about so many seconds, at all bounds."""
        return launches_in(seconds / len(work.bounds), self._patience.launch_s(work, schedule))

    def _record(self, job: PairedJob, outcome: PairedOutcome, before: Side, after: Side | None) -> None:
        """Journal the samples of both sides."""
        finalist, toolchain = after.schedule if after is not None else None, self._device.service.toolchain
        rows = paired_rows(
            job,
            outcome,
            before.schedule,
            finalist,
            toolchain=partial(made_by, toolchain),
            run_id=self._device.run_id,
        )
        self._device.record(rows)

    def _reference(self, work: Subject, values: Variables) -> References | None:
        """The references of a region; None where they are computed with the verification, or could not be before it."""
        future = self._references.get((work.id, values))
        if future is None or future.exception() is not None:
            return None
        computed: References = future.result()
        return computed
