"""Several kernels searched at once on one device: whoever is expected to save most gets the next measurements.

An entry is a region and a kind of schedule, with a search of its own; the entries of one region share its incumbent,
the best time so far. A search runs in a thread of its own and stops where it wants to measure a batch. What that is
expected to save of the workload's time is calls × best time so far × expected improvement (Jones, Schonlau and Welch,
1998, of a lognormal runtime), the last halved with every `HALF_LIFE` measurements of the entry that found nothing
faster, so that a predictor which promises what never comes loses its weight. An entry that has not asked yet counts as
expected to gain `PRIOR_GAIN`; so its search begins when that is more than what is on offer. Where similar kernels have
gained more on tinygrad's own schedule, their best schedule is on offer beside the search's own. Where not all that an
entry saves counts, as of regions that have calls in common, its weight says how much of it does.

Two limits say what may happen at once: how many searches are at work, and how many schedules are with the device. Where
searching disturbs measuring (a CPU) both are one: everything takes turns, and the order repeats itself.

Where there is a deadline, a batch has no more schedules than can be measured before it, by what measuring them has
taken so far: what comes after the search waits for the device until the last of a batch is done. Where each kernel has
a time from which on it cannot be judged any more, as in a budget on a CPU, that search goes on whose batch is expected
to save most a second that it takes. The order does not repeat itself then.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, Protocol

from kcg.errors import ScheduleError
from kcg.search.problem import PRIOR_GAIN, Ledger, Measure, Observation, Problem, Strategy
from kcg.search.uniform import Chance
from kcg.types import Schedule

# ---- What made a kernel faster is tried on similar kernels, whose axes are alike.
#
# The matmuls of one network differ in sizes and in what follows them; a schedule that is good for one is often good for
# most, also where the predictor, which sees each alone, ranks it behind others. So each kernel looks at what similar
# kernels have gained on tinygrad's own schedule. Where that is more than its own gain, the other's best schedule, taken
# over by its space, is worth a measurement: transfer-tuning (Gibson and Cano, 2022), but within one search.

TRUST: Final = 0.5
"""The share of their lead that a kernel is expected to catch up by a schedule of similar kernels; halved each time
that one of them was not faster here."""
LEAST_LEAD: Final = 1.02
"""A smaller lead over the own gain is no news."""
SIMILAR: Final = "similar kernels"  # the pool of what is taken over
OFFERED: Final = 3
"""Schedules that a kernel has to offer: of those that are about as good here, one may be better there."""


@dataclass(frozen=True)
class Hint:
    """A schedule that was good for a similar kernel."""

    schedule: Schedule
    gain: float  # expected, relative to the kernel's best
    among: int = 1  # schedules of similar kernels on offer


class Transfers(Protocol):
    """What taking over schedules needs of a space (`kcg.kernel.kinds.Space`)."""

    def family(self) -> Hashable: ...
    def transfer(self, schedule: Schedule, other: Any) -> Schedule | None: ...


@dataclass(eq=False)
class Transfer:
    """One kernel among similar kernels."""

    space: Transfers
    own_s: float = math.nan  # with tinygrad's own schedule
    best: list[tuple[float, Schedule]] = field(default_factory=list)  # seconds, the fastest first
    failed: int = 0  # hints that were not faster
    stale: bool = True  # something was measured of similar kernels, or of itself, since it was last asked for a hint
    _looked_at: dict[Schedule, Schedule | None] = field(default_factory=dict)  # what taking over each came to

    @cached_property
    def family(self) -> Hashable:
        """Equal for similar kernels."""
        return self.space.family()

    def lead(self, place: int = 0) -> float:
        """The speed-up of its best schedules over tinygrad's own; 0 before both were measured."""
        return self.own_s / self.best[place][0] if self.best and math.isfinite(self.own_s) else 0.0

    def saw(self, schedule: Schedule, time_s: float, *, own: bool) -> None:
        """Take in what was measured; not finite: it failed."""
        if own:
            self.own_s = time_s
        if math.isfinite(time_s):
            others = [(t, s) for t, s in self.best if s != schedule]
            self.best = sorted([*others, (time_s, schedule)], key=lambda pair: pair[0])[:OFFERED]

    def hint(self, similar: Sequence[Transfer], known: Callable[[Schedule], bool]) -> Hint | None:
        """What led furthest among the best schedules of similar kernels that apply here and were not `known`."""
        self.stale = False
        if not (mine := self.lead()):
            return None
        others = [r for r in similar if r is not self and r.family == self.family]
        offered = [(r.lead(i), s, r.space) for r in others for i, (_, s) in enumerate(r.best)]
        for lead, theirs, space in sorted(offered, key=lambda one: -one[0]):
            if lead <= mine * LEAST_LEAD:
                break
            if theirs not in self._looked_at:
                self._looked_at[theirs] = self.space.transfer(theirs, space)
            schedule = self._looked_at[theirs]
            if schedule is not None and not known(schedule):
                return Hint(schedule, TRUST * math.exp2(-self.failed) * (1.0 - mine / lead), len(offered))
        return None


HALF_LIFE: Final = 4.0
"""After so many measurements without improvement the expected gain counts half. Of 411 on the kernels of Flux, on an
H200, before which four or more in a row had found nothing, 12 found something; 0.1 % were gained by each on average."""
SMALL: Final = 0.005
"""A kernel of a smaller share of the workload's time is not thought about for long."""
LITTLE: Final = 32
"""Schedules whose steps are looked at before a batch of its measurements, or while the device waits."""
WORTHLESS: Final = 1e-4
"""A batch that is expected to save a smaller share of the workload's time is not worth its measurements."""
BETTER: Final = 0.99
"""What is not at least so much faster may be noise: it is kept, but does not count as found."""
MOST_AT_ONCE: Final = 4
"""Schedules of a batch: of more the last are chosen long before what the first teach is known."""
MOST_ALONE: Final = 8
"""The same where so few searches are left that the compilers would have nothing to do."""
STALLED: Final = 50.0
"""Times the least saving of a batch: a search is over where all of it has gained no more of the workload's time in the
last part of its own. That of Flux 768 had come to 94.6 ms of its final 93.7 when half of its time was over."""
STALLED_MOST: Final = 0.005  # of the time, however large the least saving is
STALL_SHARE: Final = 1 / 4  # of the time of a search, its last part; in which so many schedules were measured
STALL_MEASURED: Final = 48
PART: Final = 1 / 4
"""Of the time that a kernel has left, one batch takes no more: where seconds are few, several have their turn."""
PAIR: Final = 2  # schedules, which a batch may have in any case
DEVICE_S: Final = 0.1
"""What measuring a schedule takes of a GPU: 261 took 25 s of one NVIDIA H200."""
POLL_S: Final = 0.2
PATIENCE_S: Final = 60.0  # for what is with the device when the search is over


@dataclass(frozen=True)
class Limits:
    """What may happen at once, and when it is enough."""

    measuring: int = 4  # schedules that are with the device
    batch: int = 1  # schedules that a search asks for at least; more where much is expected of it
    searching: int = 1  # searches that are at work otherwise
    alternate: bool = True  # nothing thinks while something is measured, so none thinks for long
    least_saving: float = WORTHLESS  # share of the workload's time
    stalls: bool = True  # it is enough where the last part of its time brought next to nothing
    device_s: float = DEVICE_S  # what a schedule takes of the device
    patience_s: Callable[[], float] = lambda: PATIENCE_S  # at the end, for what is with the device

    @classmethod
    def on_gpu(cls, compilers: int, searching: int, *, gpus: int = 1, least_saving: float = WORTHLESS) -> Limits:
        """Kept busy by many kernels at once. Half as many again as can be compiled are on their way, and two for each
        GPU: with more, what matters least would be compiled before what matters most."""
        measuring = max(2 * gpus, compilers + compilers // 2)
        return cls(measuring, searching=searching, alternate=False, least_saving=least_saving)


@dataclass(eq=False)
class Incumbent:
    """The best of a region, whichever kind it is of."""

    best_s: float | None = None  # of one call


@dataclass(eq=False)
class Entry:
    """One region searched among schedules of one kind, and what its search asks for."""

    name: str
    calls: int  # in one execution of the workload
    problem: Problem
    strategy: Strategy
    incumbent: Incumbent = field(default_factory=lambda: Incumbent())
    barren: int = 0  # measurements since the last improvement
    wanted: int = 0  # schedules that it asks for; 0 where it asks for nothing
    gain: float = PRIOR_GAIN  # expected, relative to its own best, of what it asks for
    own_s: float = math.inf  # its own best of one call
    granted: int = 0  # how many of them it may measure
    thread: threading.Thread | None = None
    ended: bool = False
    saw: list[Observation] = field(default_factory=list)
    transfer: Transfer | None = None  # among similar kernels
    hint: Hint | None = None  # from them
    following: Hint | None = None  # granted in the place of its batch
    weight: float = 1.0  # what a second that it saves is worth: nothing where others have saved it already
    each_s: float = 0.0  # what measuring took of each schedule of its last batch, or is expected to; 0: not known
    until: Callable[[], float | None] = lambda: None  # when what is found of it comes too late; None: it never does
    _keys: set[str] = field(default_factory=set)  # what its problem knows, as alike, of the first `_counted`
    _counted: int = 0

    @property
    def best_s(self) -> float | None:
        """Of one call so far, by whichever entry of its region; None until something was measured."""
        return self.incumbent.best_s

    @property
    def searching_gain(self) -> float:
        """Expected of what its search asks for, relative to the region's best. What has not begun is taken at its word:
        only its predictor knows how far it could come."""
        gain = self.gain if self.thread is None else self._over_incumbent(self.gain)
        return gain * math.exp2(-self.barren / HALF_LIFE)

    @property
    def hoped(self) -> float:
        """The same of what similar kernels have on offer."""
        return self._over_incumbent(self.hint.gain) if self.hint is not None else 0.0

    def _over_incumbent(self, gain: float) -> float:
        """What a gain on its own best is on the region's, now: that of another kind may have left it far behind, and
        then nothing more is expected of it."""
        if self.best_s is None or not self.best_s < self.own_s < math.inf:
            return gain
        return max(1.0 - (1.0 - gain) * self.own_s / self.best_s, 0.0)

    @property
    def saving_s(self) -> float:
        """What its next batch is worth, in seconds of the workload; infinite where nothing was measured."""
        return self.weight * self.expected_s if self.weight else 0.0

    @property
    def expected_s(self) -> float:
        """What its next batch is expected to save of its own calls, in seconds; infinite where nothing was measured."""
        if self.best_s is None:
            return 0.0 if self.saw else math.inf  # tinygrad's own schedule fails: there is nothing to compare with
        return self.calls * self.best_s * max(self.searching_gain, self.hoped)

    def knows(self, schedule: Schedule) -> bool:
        """Whether this kernel was measured with the schedule, or with one that comes to about the same."""
        known, alike = self.problem.known, self.problem.space.alike
        for other in [*known][self._counted :]:
            with contextlib.suppress(ScheduleError):  # measured under another action space: no hint comes to the same
                self._keys.add(alike(other))
        self._counted = len(known)
        return schedule in known or alike(schedule) in self._keys


class Allocator:
    """Runs the searches of all kernels until the budget is spent or no batch is worth its measurements."""

    def __init__(
        self,
        ledger: Ledger,
        limits: Limits,
        *,
        seen: Callable[[], None] = lambda: None,
        report: Callable[[str, Observation], None] = lambda name, observation: None,
        weigh: Callable[[], None] = lambda: None,
        between: Callable[[], None] = lambda: None,
        arriving: Callable[[], bool] | None = None,
        elsewhere: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`seen` is called in the caller's thread about as often as something was measured, `report` in whichever
        thread with each observation and its kernel, `weigh` before it ends since nothing is worth its measurements: it
        may give the entries other weights. Where all takes turns, `between` is called when nothing is at work, and may
        take as long as it likes. A search that ended by itself gets no hints any more. `arriving` is called until it
        says no: it may `enter` more, and before nothing ends since nothing is worth its measurements. `elsewhere` says
        what a second of the device is worth to others, in seconds of the workload: what saves less waits."""
        self.elsewhere = elsewhere
        self.weigh, self.between = weigh, between
        self.ledger, self.limits, self.seen, self.report = ledger, limits, seen, report
        self.entries: list[Entry] = []
        self.settled = False  # ended because nothing more was worth its measurements
        self.expected: dict[str, float] = {}  # what was on offer when it ended, see `_on_offer`
        self._changed = threading.Condition()
        self._measuring = 0
        self._searching = 0
        self._closed = False
        self._fresh = False  # something was measured since `seen` was last called
        self._begun_s: float | None = None
        self._history = deque[tuple[float, float, int]]()  # when, the best of the workload, what was measured by then
        self._arriving = arriving
        self._error: BaseException | None = None

    def enter(
        self,
        name: str,
        calls: int,
        problem: Problem,
        strategy: Strategy,
        *,
        transfer: Transfer | None = None,
        gain: float = PRIOR_GAIN,
        each_s: float = 0.0,
        until: Callable[[], float | None] = lambda: None,
    ) -> Entry:
        """Add a kernel, or another kind of schedule of one that was added.

        Its problem's `measure` and ledger are used only where it is granted something. With `transfer` it learns from
        similar kernels, and they from it. `gain` is what is expected of it on the best so far before it asks, `each_s`
        what measuring one of its schedules is expected to take, in seconds, where that is known, and `until` says when
        what is found of it comes too late, by the ledger's clock, where that is before the deadline of all.
        """
        with self._changed:  # searches may be going on
            incumbent = next((e.incumbent for e in self.entries if e.name == name), Incumbent())
            entry = Entry(name, calls, problem, strategy, incumbent, gain=gain, transfer=transfer, each_s=each_s)
            self._history.clear()  # what is best of all is another sum
            entry.until = until
            known = problem.known.get(problem.space.baseline())
            self._improve(entry, min((o.time_s for o in problem.known.values()), default=math.inf))
            for observation in problem.known.values():
                self._show_similar(entry, observation)
            # tinygrad's own schedule fails; where that is of another kind, only this search's start does
            entry.ended = known is not None and not math.isfinite(known.time_s) and entry.best_s is None
            self.entries.append(entry)
        return entry

    def run(self) -> None:
        """Let them search. Raises what a search raised; on an interrupt no search goes on."""
        try:
            with self._changed:
                while not self._over():
                    self._arrive()
                    if self.limits.alternate and self._idle():
                        self._outside(self.between)
                    if not self._next():
                        self._changed.wait(POLL_S)
                    if self._fresh:
                        self._fresh = False
                        self._outside(self.seen)
        finally:
            with self._changed:
                self.expected = self._on_offer()
                self._closed = True
                self._changed.notify_all()
        self._join()

    # ---- the caller's thread, which holds the lock ----

    def _arrive(self) -> None:
        """Let others be entered, while there may be some."""

        def ask() -> None:
            if self._arriving is not None and not self._arriving():
                self._arriving = None

        if self._arriving is not None:
            self._outside(ask)

    def _outside(self, call: Callable[[], None]) -> None:
        """Call what must not hold it."""
        self._changed.release()
        try:
            call()
        finally:
            self._changed.acquire()

    def _over(self) -> bool:
        if self._error is not None or self.ledger.exhausted:
            return True
        if self._arriving is None and self._stalled():
            self.settled = True
            return True
        if self._arriving is None and self._idle() and self._worthwhile() is None:
            self.weigh()
            self.settled = self._worthwhile(late=True) is None
            return self._worthwhile() is None
        return False

    def _stalled(self) -> bool:
        """Whether the last part of its time brought next to nothing, and nothing much is expected of what has not
        begun. Where so many measurements were asked for, all of them are made."""
        now, total_s = self.ledger.clock(), self._total_s()
        measured = sum(len(entry.saw) for entry in self.entries)
        if not self._history or self._history[-1][1:] != (total_s, measured):
            self._history.append((now, total_s, measured))
        self._begun_s = now if self._begun_s is None else self._begun_s
        since = now - STALL_SHARE * (now - self._begun_s)
        while len(self._history) > 1 and self._history[1][0] <= since:
            self._history.popleft()  # the last part begins later and later
        _, before_s, count = self._history[0]
        if not self.limits.stalls or self.ledger.max_measurements is not None or measured - count < STALL_MEASURED:
            return False
        least_s = min(STALLED * self._least_s(), STALLED_MOST * total_s)
        if before_s - total_s > least_s:
            return False
        return all(e.saving_s <= least_s for e in self.entries if not e.ended and e.thread is None)

    def _idle(self) -> bool:
        return self._measuring == 0 and self._searching == 0

    def _worthwhile(self, *, late: bool = False, each_s: float = 0.0) -> Entry | None:
        """The one whose next step is expected to save most, among those that ask and those that have not begun, and
        that can measure something before the deadline, or also of the `late` ones; None where that is not worth it.
        What saves less than `each_s` by a schedule waits: the others have their turn."""
        open_ = [e for e in self.entries if not e.ended and (e.wanted or e.thread is None)]
        open_ = [e for e in open_ if late or self._fitting(e, 1)]
        self._look_at_similar(open_)
        worth = [e for e in open_ if e.saving_s > self._least_s() and e.saving_s >= each_s * max(e.wanted, 1)]
        timed = self.limits.alternate and all(e.each_s and e.until() is not None for e in worth)
        return max(worth, key=lambda e: e.saving_s / e.each_s if timed else e.saving_s, default=None)

    def _fitting(self, entry: Entry, wanted: int) -> int:
        """How many of so many schedules an entry may measure before the deadline. Where not all takes turns, what is
        measured does not wait for what was asked for before, and all can."""
        if self.ledger.deadline is None or not self.limits.alternate or not entry.each_s:
            return wanted
        until, now = entry.until(), self.ledger.clock()
        if until is None:
            return min(wanted, max(int((self.ledger.deadline - now) / entry.each_s), 0))
        fitting = max(int((min(until, self.ledger.deadline) - now) / entry.each_s), 0)
        return min(wanted, fitting, max(int(PART * fitting), PAIR))

    def _on_offer(self) -> dict[str, float]:
        """What the next batch of each region was expected to save, in seconds of the workload, where that is worth its
        measurements: of its searches that ask, or have not begun, the one that is expected to save most. What is with
        the device or in thought is not in it, nor where nothing was measured."""
        least_s, found = self._least_s(), dict[str, float]()
        for entry in self.entries:
            if not entry.ended and (entry.wanted or entry.thread is None) and least_s < entry.saving_s < math.inf:
                found[entry.name] = max(found.get(entry.name, 0.0), entry.saving_s)
        return found

    def _least_s(self) -> float:
        """What a batch must be expected to save, in seconds of the workload."""
        return self.limits.least_saving * self._total_s()

    def _total_s(self) -> float:
        """The best so far of the workload, each region once."""
        calls = {e.incumbent: e.calls for e in self.entries}
        return sum(count * (incumbent.best_s or 0.0) for incumbent, count in calls.items())

    @staticmethod
    def _improve(entry: Entry, time_s: float) -> None:
        entry.own_s = min(entry.own_s, time_s)
        if time_s < (entry.best_s if entry.best_s is not None else math.inf):
            entry.incumbent.best_s = time_s

    def _next(self) -> bool:
        """Let one search begin, or grant what one asks for, where the limits allow; whether it did."""
        each_s = self.elsewhere() * self.limits.device_s
        if (self.limits.alternate and not self._idle()) or (best := self._worthwhile(each_s=each_s)) is None:
            return False
        if best.thread is not None:
            return self._grant(best)
        if self._searching < self.limits.searching:
            return self._begin(best)
        asking = [e for e in self.entries if e.wanted and e.saving_s >= each_s * e.wanted]
        return bool(asking) and self._grant(max(asking, key=lambda e: e.saving_s))

    def _begin(self, entry: Entry) -> bool:
        self._searching += 1
        entry.thread = threading.Thread(target=self._search, args=[entry], name=f"search {entry.name}", daemon=True)
        entry.thread.start()
        return True

    def _grant(self, entry: Entry) -> bool:
        free = self.limits.measuring - self._measuring
        hint = entry.hint if entry.hoped > entry.searching_gain else None
        wanted = entry.wanted if hint is None else 1
        if self._measuring:
            wanted = min(wanted, free)
        count = min(wanted, self.ledger.remaining(self._measuring + wanted) - self._measuring)
        count = self._fitting(entry, count)
        if count < 1:
            return False
        entry.granted, entry.wanted, entry.following = count, 0, hint
        self._measuring += count
        self._searching += 1
        self._changed.notify_all()
        return True

    def _look_at_similar(self, entries: Sequence[Entry]) -> None:
        """What each may learn from the others now. Their searches must not be at work: they share their spaces."""
        similar = [e.transfer for e in self.entries if e.transfer is not None]
        for entry in entries:
            if entry.transfer is not None and entry.transfer.stale:
                entry.hint = entry.transfer.hint(similar, entry.knows)

    def _show_similar(self, entry: Entry, observation: Observation) -> None:
        if entry.transfer is not None:
            own = observation.schedule == entry.problem.space.baseline()
            entry.transfer.saw(observation.schedule, observation.time_s, own=own)
            for other in self.entries:
                if other.transfer is not None and other.transfer.family == entry.transfer.family:
                    other.transfer.stale = True

    def _join(self) -> None:
        """Every search has seen that it is over; what it raised is raised here."""
        end = time.monotonic() + self.limits.patience_s()
        for entry in self.entries:
            if entry.thread is not None:
                entry.thread.join(max(end - time.monotonic(), 0.0))
        if self._error is not None:
            raise self._error

    # ---- the searches' threads ----

    def _search(self, entry: Entry) -> None:
        ledger = _Share(allocator=self)
        with self._changed:
            batch_size, drafting = self._batch_size(entry), self._drafting(entry)
        entry.problem = replace(
            entry.problem,
            ledger=ledger,
            ask=lambda count, gain: self._ask(entry, count, gain),
            measure=self._measured(entry, entry.problem.measure),
            batch_size=batch_size,
            drafting=drafting,
        )
        try:
            self._begin_with_similar(entry)
            for observation in entry.strategy(entry.problem):
                chance = (entry.problem.chances or {}).get(observation.schedule)
                self._took_in(entry, observation, searched=chance is None or not chance.is_uniform)
        except BaseException as error:  # it belongs to the caller, who waits for this thread
            with self._changed:
                self._error = self._error or error
        finally:
            with self._changed:
                entry.ended, entry.wanted = True, 0
                self._searching -= 1
                self.ledger.evaluations += ledger.evaluations
                self._changed.notify_all()

    def _begin_with_similar(self, entry: Entry) -> None:
        """A search that begins late begins with the best that similar kernels have found."""
        with self._changed:
            self._look_at_similar([entry])
            hint = entry.hint
            if hint is None or self._closed or self.ledger.remaining(self._measuring + 1) <= self._measuring:
                return
            if not self._fitting(entry, 1):
                return
            if entry.calls * (entry.best_s or 0.0) * entry.hoped <= self._least_s():
                return
            self._measuring += 1
        self._follow(entry, hint)

    def _follow(self, entry: Entry, hint: Hint) -> None:
        """Measure what was good for similar kernels, where its search will find it (`Problem.known`)."""
        assert entry.transfer is not None
        if entry.problem.chances is not None:
            entry.problem.chances[hint.schedule] = Chance(f"{SIMILAR}:{hint.among}", 1.0)
        observation = entry.problem.measure([hint.schedule])[0].result()
        entry.problem.known[hint.schedule] = observation
        with self._changed:
            best_s = entry.best_s if entry.best_s is not None else math.inf
            entry.transfer.failed += observation.time_s >= BETTER * best_s
            entry.hint = entry.following = None
        self._took_in(entry, observation, searched=False)

    def _took_in(self, entry: Entry, observation: Observation, *, searched: bool = True) -> None:
        with self._changed:
            best_s = entry.best_s if entry.best_s is not None else math.inf
            if observation.time_s < BETTER * best_s:
                entry.barren = 0
            elif searched:
                entry.barren += 1
            self._improve(entry, observation.time_s)
            self._show_similar(entry, observation)
            entry.saw.append(observation)
            self.report(entry.name, observation)
            self._fresh = True

    def _ask(self, entry: Entry, count: int, gain: float) -> int:
        """Wait until the batch may be measured; how much of it. Nothing where all is over, or where it was the turn of
        what similar kernels had to teach, which is then among what the problem knows."""
        with self._changed:
            entry.wanted, entry.granted, entry.gain = count, 0, gain
            self._searching -= 1
            self._changed.notify_all()
            while not entry.granted and not self._closed:
                self._changed.wait(POLL_S)
            if not entry.granted:
                self._searching += 1  # its end takes it off again
                entry.wanted = 0
                return 0
            if (hint := entry.following) is None:
                return entry.granted
        self._follow(entry, hint)
        return 0

    def _measured(self, entry: Entry, measure: Measure) -> Measure:
        def measured(schedules: Sequence[Schedule]) -> list[Future[Observation]]:
            begun = self.ledger.clock()
            try:
                futures = measure(schedules)
            except BaseException:  # nothing is with the device, and others need not wait for it
                with self._changed:
                    self._measuring -= len(schedules)
                raise
            idle = 0 if self.limits.alternate else 1  # where all takes turns, it keeps its own until it asks again
            with self._changed:
                self._searching -= idle
                self._changed.notify_all()
            for future in futures:
                future.add_done_callback(lambda _: self._one_done())
            for future in futures:  # the search thinks again only when it has all
                future.exception()
            with self._changed:
                self._searching += idle
                entry.each_s = (self.ledger.clock() - begun) / len(schedules)
                entry.problem.batch_size = self._batch_size(entry)
            return futures

        return measured

    def _drafting(self, entry: Entry) -> int | None:
        """`Problem.drafting` of one kernel."""
        total_s = self._total_s()
        small = entry.calls * (entry.best_s or 0.0) < SMALL * total_s
        return LITTLE if small or self.limits.alternate else None

    def _batch_size(self, entry: Entry) -> int:
        """The larger its share of what all are expected to save, the more it may ask for at once: a search that waits
        for one schedule at a time comes no further than one of a kernel that hardly matters."""
        least_s = self._least_s()  # a search of which less is expected goes no further
        savings = {e: e.saving_s for e in self.entries if not e.ended and least_s < e.saving_s < math.inf}
        total_s = sum(savings.values())
        share = savings.get(entry, 0.0) / total_s if total_s > 0 else 0.0
        most = min(max(self.limits.measuring // max(len(savings), 1), MOST_AT_ONCE), MOST_ALONE)
        return max(self.limits.batch, min(int(self.limits.measuring * share), most))

    def _one_done(self) -> None:
        with self._changed:
            self._measuring -= 1
            self._changed.notify_all()

    @property
    def closed(self) -> bool:
        """Whether no search may go on."""
        return self._closed


@dataclass
class _Share(Ledger):
    """What one search sees of the budget: all of it, until it is over."""

    allocator: Allocator | None = None

    def remaining(self, wanted: int) -> int:
        assert self.allocator is not None
        return 0 if self.allocator.closed else self.allocator.ledger.remaining(wanted)
