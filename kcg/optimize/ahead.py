"""Judging ahead: what a search has found so far is judged while it goes on, by every rule, in a child that never ran a
candidate of it.

So there is a verified plan long before the search is over, and at its end only what changed since is judged. What is
judged next is the region whose leader, its first candidates, has most expected verified saving a second: what it saves
over what is verified, times the probability that it still leads at the end, by the seconds that judging it takes
(`order_of`, a function of estimates alone).

On a GPU a thread does so beside the search; both take turns on the device (`kcg.measure.gate`), which a search needs
for a small part of its time, and the references are computed beside both, as are the plans that verdicts change and the
file that has them: the device waits for neither. On a CPU nothing else may run while a sample
is taken, so the search stops for a turn of judging. That takes no time from the search where the leader stays, since
judging it is paid for at the end otherwise; it is lost where the leader changes. So (`has_a_turn`) a leader that is
more likely to change than not has no turn but the first, which there is once the search took `FIRST` times as long;
and all turns together take at most a `SHARE` of the time of the search.

What is judged so is provisional first, where it has to pass launches under stress. While there is nothing to judge and
the search leaves the device idle it has more of these, what saves most a second first.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from kcg.errors import DeviceError
from kcg.judge.finalists import Judge
from kcg.judge.paired import FRESH_CHILD_S, Comparisons
from kcg.kernel.kinds import describe
from kcg.measure import stress
from kcg.measure.pools import ServiceClosed
from kcg.optimize import costs
from kcg.optimize.beside import Beside
from kcg.optimize.estimates import JUDGED_S
from kcg.types import RegionResult, Schedule, Status

if TYPE_CHECKING:
    from kcg.judge.paired import Compared
    from kcg.optimize.device import Device
    from kcg.optimize.estimates import Estimates
    from kcg.optimize.incumbent import Incumbent
    from kcg.optimize.log import RunLog
    from kcg.optimize.work import RegionWork

Freshen = Callable[["RegionWork"], None]
"""Have the best schedules of a region's kernels timed as one program, if that was of others."""
Needed = Callable[[Mapping[str, RegionResult]], Collection[str]]
"""Which regions of several kernels the best plans have, by id, given what was judged so far."""

YOUNG_S: Final = 5.0
"""A leader that was just found changes in so many seconds as likely as not. Of the kernels and regions of Flux the
first program that was measured was within 3 % of the best of all; the median needed one measurement to be within 2 %.
"""
REFUSED: Final = 0.1
"""The probability that a kernel matters all of whose calls are in regions that the best plans have: these were judged,
and none was refused, in the runs of Flux that were looked at."""
SHARE: Final = 1 / 8  # of the time of a search on a CPU, for judging meanwhile
FIRST: Final = 2.0  # so many times what the first verdict takes a search on a CPU has before it
HARDLY: Final = 0.05  # of what most is gained by: a search on a CPU stops for no less
STAYS: Final = 1 / 2  # the probability that a leader stays from which on it has a turn on a CPU
READY: Final = 4  # references that may be under way at once where there are few cores; else half as many as these
PLANNING: Final = 0.05  # of the time, at most, for finding which regions the best plans have
POLL_S: Final = 0.3
PIECE_S: Final = 0.25  # of stress at once that is not needed yet: the search does not wait for longer


@dataclass(frozen=True)
class Lead:
    """A region whose first candidates were not judged. Times are in seconds."""

    id: str
    gain_s: float  # what one execution of the workload gains by it over what is verified
    led_s: float  # since when these candidates lead
    left_s: float  # how much longer its search goes on; 0: it is over
    judging_s: float
    covered: bool = False  # whether it runs only where a region of the best plans is refused
    again: bool = False  # whether others of its candidates were judged before
    share: float = 0.0  # of what it gains, that it is worth until a region that has its calls is verified

    @property
    def is_ripe(self) -> bool:
        """Whether it may be judged now; again only once it has led for as long as that takes: a search that finds a
        little more every second costs no verdict each time."""
        return not self.again or self.left_s == 0 or self.led_s >= self.judging_s


def stays(led_s: float, left_s: float) -> float:
    """The probability that what has led for so long leads as much longer: of changes at a constant rate that is not
    known (a gamma prior of shape 1 and rate `YOUNG_S`), none of which was seen."""
    return (YOUNG_S + led_s) / (YOUNG_S + led_s + left_s)


def order_of(leads: Sequence[Lead]) -> list[Lead]:
    """What is to be judged, the most expected verified saving a second first; not what is expected to save nothing, nor
    what is not ripe."""

    return sorted((lead for lead in leads if lead.gain_s > 0 and lead.is_ripe), key=rate_of, reverse=True)


def rate_of(lead: Lead) -> float:
    """The expected verified saving of a second of judging, in seconds of an execution of the workload."""
    matters = REFUSED + (1 - REFUSED) * lead.share if lead.covered else 1.0
    return lead.gain_s * stays(lead.led_s, lead.left_s) * matters / max(lead.judging_s, 1e-3)


def share_until(waits_s: float, elapsed_s: float, left_s: float | None) -> float:
    """What a verdict is worth that others take the place of after so many seconds, of what it is worth if it stays:
    what a run has verified counts by the logarithm of when, since nobody knows when it will be ended. All of it where
    the others would not be there in the time that is left, if that is known."""
    if left_s is not None and waits_s > left_s:
        return 1.0
    return min(math.log1p(waits_s / max(elapsed_s, 1.0)), 1.0)


def has_a_turn(lead: Lead, *, searched_s: float, judged_s: float, first: bool) -> bool:
    """Whether a search on a CPU that has gone on for so long, of which judging took a part, stops for this one."""
    if first:
        return searched_s >= FIRST * lead.judging_s
    return judged_s + lead.judging_s <= SHARE * searched_s and stays(lead.led_s, lead.left_s) >= STAYS


def turn_of(leads: Sequence[Lead], *, searched_s: float, judged_s: float, first: bool) -> Lead | None:
    """The first of those in order that has a turn, and is not worth so little that it may wait for the others."""
    least_s = HARDLY * max((lead.gain_s for lead in leads), default=0.0)
    found = (lead for lead in leads if lead.gain_s >= least_s)
    return next((one for one in found if has_a_turn(one, searched_s=searched_s, judged_s=judged_s, first=first)), None)


def covered_by(works: Sequence[RegionWork], regions: Collection[str]) -> set[str]:
    """Kernels all of whose calls these regions take, by `RegionWork.id`."""
    taken = Counter[str]()
    for work in works:
        if work.proposed and work.call.region.id in regions:
            taken += work.taken
    return {w.id for w in works if not w.proposed and taken[w.call.region.id] >= w.call.calls}


@dataclass(frozen=True)
class _View:
    """What a run knows by now."""

    estimates: Estimates
    needed: Needed | None = None
    freshen: Freshen | None = None
    searched: frozenset[str] = frozenset()  # what a search is at, by `RegionWork.id`
    since: float = 0.0  # when that began, by `time.monotonic`


@dataclass(frozen=True)
class _Best:
    """The best plans by what was judged and measured."""

    view: _View | None  # by which they were found
    stamp: tuple[int, int]  # how many verdicts and measurements there were
    regions: Collection[str]  # of them, by id
    covered: Collection[str]  # kernels that run only inside of these, by `RegionWork.id`


@dataclass(frozen=True)
class _Known:
    """What is worked out of a region, until something is measured or judged of it."""

    stamp: tuple[int, ...]
    firsts: tuple[Schedule, ...]
    gain_s: float
    judging_s: float
    since: float  # when these became the first ones


@dataclass(frozen=True)
class _InTime:
    """How long a run waits for what is judged beside its search: no longer than a verdict counts."""

    estimates: Estimates

    def timing_s(self, work: RegionWork) -> float:
        return self.estimates.timing_s(work)

    def launch_s(self, work: RegionWork, schedule: Schedule) -> float:
        return self.estimates.launch_s(work, schedule)

    def patience_s(self, expected_s: float) -> float | None:
        patience_s, late_at = self.estimates.patience_s(expected_s), self.estimates.late_at
        if patience_s is None or late_at is None:
            return patience_s
        return max(min(patience_s, late_at - time.monotonic()), 0.0)


class Ahead:
    """Judges what a run has found so far. `judged` gets the results, by `RegionWork.id`, and the incumbent improves."""

    def __init__(
        self,
        device: Device,
        estimates: Estimates,
        *,
        log: RunLog,
        judged: dict[str, RegionResult],
        incumbent: Incumbent | None = None,
    ) -> None:
        self._device, self._log, self._judged, self._incumbent = device, log, judged, incumbent
        self._view = _View(estimates)
        self._beside = not device.is_cpu  # the search, in a thread of its own
        if self._beside:  # it opens the device meanwhile, which takes seconds
            device.rehearse_judging()
        self.comparisons = Comparisons(device.bench, self._patience, estimates.kept, in_new_child=True)
        self.seen: dict[tuple[str, Schedule], Compared] = {}
        self._judge = Judge(
            device.bench,
            self.comparisons,
            without_candidate=lambda work: ("kept", "nothing faster was found so far"),
            until=lambda row: self._view.estimates.judge_until(),
            launches_until=lambda row: self._view.estimates.launches_until(self._view.estimates.judge_until()),
            seen=self.seen,
        )
        self.rows: dict[str, RegionResult] = {}  # what it judged
        self.failed: dict[str, Schedule] = {}  # what was chosen and failed in a later launch
        self._tried: dict[str, tuple[Schedule, ...]] = {}  # the first candidates that it judged
        self._stuck: set[str] = set()  # what stays provisional until the search is over
        self._known: dict[str, _Known] = {}
        self._verdicts = 0
        self._best = _Best(None, (-1, -1), (), ())
        self._best_until = 0.0  # it stands until then, by `time.monotonic`, whatever is measured
        self._judged_s = 0.0  # of the time of searches
        self._news = False  # whether there are verdicts that the incumbent does not have
        self._saved_s = 0.0  # by those that it was not told of
        self._ended = threading.Event()
        self._changed = threading.Event()
        self._error: BaseException | None = None
        self._rate = 0.0  # of what is judged now, beside a search
        self._took = costs.Taken()  # beside a search
        self._telling, self._planning = Beside[bool]("kcg-incumbent"), Beside[_Best]("kcg-plans")
        self._thread: threading.Thread | None = None
        device.close_too(self.stop)

    @property
    def rate(self) -> float:
        """What a second of the device is worth to judging beside a search: see `rate_of`."""
        is_at_work = self._thread is not None and self._thread.is_alive() and not self._ended.is_set()
        return self._rate if is_at_work else 0.0

    @property
    def _patience(self) -> Estimates | _InTime:
        return _InTime(self._view.estimates) if self._beside else self._view.estimates

    # ---- the run's thread ----

    def know(
        self,
        estimates: Estimates,
        *,
        needed: Needed | None = None,
        freshen: Freshen | None = None,
        searched: Sequence[RegionWork] | None = None,
    ) -> None:
        """This is what the run knows from now on, and what is `searched` while it goes on, by default what was before.
        On a GPU judging begins."""
        view = self._view
        ids = view.searched if searched is None else frozenset(work.id for work in searched)
        self._view = _View(estimates, needed or view.needed, freshen or view.freshen, ids, time.monotonic())
        self._judged_s = 0.0
        self.comparisons.go_by(self._patience)
        self._changed.set()
        if self._thread is None and self._beside and not self._ended.is_set():
            self._thread = threading.Thread(target=self._loop, name="kcg-judging", daemon=True)
            self._thread.start()

    def prepare(self, works: Sequence[RegionWork]) -> None:
        """Have the references of some regions computed on idle cores, the first ones first."""
        self.comparisons.ask_for_references(works, most=self._references_at_once)

    def prepare_early(self, works: Sequence[RegionWork]) -> None:
        """The same of regions that will join the search, on what the references of kernels leave: these are judged
        first."""
        self.comparisons.ask_for_references(works, most=self._references_at_once // 2)

    @property
    def _references_at_once(self) -> int:
        """How many may be under way."""
        return max(READY, self._device.service.compile_workers // 2)

    def over(self) -> None:
        """The search is over: what it found stays. Judging goes on."""
        self._view = replace(self._view, searched=frozenset())
        self._changed.set()

    def turn(self) -> None:
        """Nothing is at work on a CPU now: judge one region, if that is worth it."""
        now = time.monotonic()
        searched_s = now - self._view.since
        if self._beside or self._ended.is_set() or not self._view.searched:
            return
        self._tell()
        if self.rows and self._judged_s >= SHARE * searched_s:
            return
        starting_s = 0.0 if self._device.judges else FRESH_CHILD_S
        works = {work.id: work for work in self._view.estimates.works}
        leads = [replace(lead, judging_s=starting_s + lead.judging_s) for lead in order_of(self._leads())]
        lead = turn_of(leads, searched_s=searched_s, judged_s=self._judged_s, first=not self.rows)
        if lead is not None:
            self._take(works[lead.id])
            self._judged_s += time.monotonic() - now

    def check(self) -> None:
        """Raise what went wrong with judging."""
        if self._error is not None:
            raise self._error

    def end(self) -> None:
        """Judge no more ahead; what is being judged is finished. Raises what went wrong."""
        self._ended.set()
        self._changed.set()
        if self._thread is not None:
            while self._thread.is_alive():
                self._thread.join(POLL_S)
        self._planning.end(0.0)  # nobody asks for them any more
        self._telling.end()  # the file is whoever judges next's
        if (self._telling.taken() is False or self._news) and self._incumbent is not None:
            self._news = not self._improve(self._incumbent, self._saved_s)
        self.check()

    def stop(self) -> None:
        """The children are dead: nothing is judged, or written, any more."""
        self._ended.set()
        self._changed.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(STOP_S)
        self._planning.end(0.0)
        self._telling.end(STOP_S)

    # ---- the thread beside a search, or whoever has a turn ----

    def _loop(self) -> None:
        try:
            while not self._ended.is_set():
                self._changed.clear()
                if not self._next():
                    self._tell()
                    self._changed.wait(POLL_S)
        except ServiceClosed:
            pass  # the run ends
        except DeviceError as error:
            if self._device.judges:
                self._error = error
            else:  # as of a GPU that lets only one process in: at the end the search's is gone
                self._device.judges_at_end = True
                self._log.alert(f"what is found is judged once the search is over: a second process says {error}")
        except BaseException as error:  # it belongs to the run's own thread, which asks for it
            self._error = error

    def _next(self) -> bool:
        """Judge the region that is worth most of those whose references are there, or have what is provisional a piece
        more of its launches; whether there was one."""
        works = {work.id: work for work in self._view.estimates.works}
        leads = order_of(self._leads())
        self.prepare([works[lead.id] for lead in leads])
        lead = next((lead for lead in leads if self.comparisons.is_ready(works[lead.id])), None)
        self._rate = 0.0 if lead is None else rate_of(lead)
        if lead is None:
            return self._further()
        self._take(works[lead.id])
        return True

    def _take(self, work: RegionWork) -> None:
        """Judge a region as it is now."""
        if work.proposed and self._view.freshen is not None:
            self._view.freshen(work)
        firsts, now = tuple(work.firsts), work.as_of_now()
        self._tried[work.id] = firsts
        known, begun = self._known.get(work.id), time.monotonic()
        with self._view.estimates.judging(now):
            row = self._judge.judged(now)
        if row is None:
            return  # the budget was over
        if self._beside and known is not None and known.judging_s:
            self._took.add(known.judging_s, time.monotonic() - begun)
        row = self._judge.with_offers(now, row, ())
        before = self.rows.get(work.id)
        self._stands(work, row if before is None else better(before, row))

    def _stands(self, work: RegionWork, row: RegionResult) -> None:
        """This is the result of a region from now on: a verdict, unless it only passed more launches."""
        before = self._judged.get(work.id)
        if before is None or before.chosen.schedule != row.chosen.schedule or work.id not in self.rows:
            self._verdicts += 1
        self._news = self._news or not is_piece(before, row)
        self._saved_s += saved_by(work, row, before)
        self.rows[work.id] = self._judged[work.id] = row
        if work.stored is not None:
            work.stored = row
        if row.outcome == "improved":
            work.passed(*(one.schedule for one in (row.chosen, row.opts) if one is not None))
        self._tell()

    # ---- what is provisional ----

    def _further(self) -> bool:
        """Have what is provisional a piece more of its launches, what saves most a second first; whether there was
        something, and the device idle."""
        found = self._provisional() if self._device.bench.service.has_device_alone else []
        if not found:
            return False
        work, until = found[0], self._view.estimates.judge_until()
        before = self._judged[work.id]
        row = self._judge.further(work.as_of_now(), before, until=until, judged=self._once_more, piece_s=PIECE_S)
        if row is None:
            self._stuck.add(work.id)
            return True
        if row.chosen.schedule != before.chosen.schedule:
            self.failed[work.id] = before.chosen.schedule
            self._tried[work.id] = tuple(work.firsts)
            self._log.alert(left_out(before, work.refused[before.chosen.schedule]))
        self._stands(work, row)
        return True

    def _once_more(self, now: RegionWork) -> RegionResult | None:
        """The result of a region of which a schedule is refused since; most that is compared is known."""
        row = self._judge.judged(now)
        return None if row is None else self._judge.with_offers(now, row, ())

    def _provisional(self) -> list[RegionWork]:
        """What has launches to pass yet, saves something in the best plans, and is not about to be judged again."""
        view = self._view
        of_best, covered = self._of_best(view)

        found: list[RegionWork] = []
        for work in view.estimates.works:
            row = self._judged.get(work.id)
            if row is None or not row.chosen.provisional or work.id in self._stuck:
                continue
            leads = work.stored is not None or row.chosen.schedule in work.firsts
            needed = work.call.region.id in of_best if work.proposed else work.id not in covered
            if leads and needed:
                found.append(work)
        return sorted(found, key=lambda work: order_of_completing(view.estimates, work, self._judged[work.id]))

    def _tell(self) -> None:
        """Have the incumbent improve by what it does not have yet."""
        if self._incumbent is None or self._ended.is_set():
            return
        self._news = self._telling.taken() is False or self._news  # it came too soon
        if not self._news or not self._telling.is_free:
            return
        tell, self._saved_s = partial(self._improve, self._incumbent, self._saved_s), 0.0
        if self._beside:
            self._telling.begin(tell)
            self._news = False
        else:
            self._news = not tell()

    def _improve(self, incumbent: Incumbent, saved_s: float) -> bool:
        """The incumbent was told of verdicts that save so many seconds: whether that was not too soon."""
        in_time = incumbent.improve(saved_s)
        self._log.verified_s = incumbent.verified_s
        return in_time

    def _leads(self) -> list[Lead]:
        """What could be judged now."""
        view, now = self._view, time.monotonic()
        of_best, covered = self._of_best(view)
        left_s = self._left_s(view, now)
        until, slower = view.estimates.judge_until(), self._took.slower(view.estimates.slower, JUDGED_S)
        found, waits_s = list[Lead](), 0.0
        for work in view.estimates.works:
            if not self._may(work, of_best):
                continue
            known = self._known_of(work, now)
            if self._tried.get(work.id) == known.firsts:
                continue
            if self._beside and until is not None and now + slower * known.judging_s > until:
                continue  # it would only keep the device from what can end in time
            rest_s = left_s if work.id in view.searched else 0.0
            led_s, is_covered, again = now - known.since, work.id in covered, work.id in self._tried
            found.append(Lead(work.id, known.gain_s, led_s, rest_s, known.judging_s, is_covered, again))
            waits_s += known.judging_s if work.proposed else 0.0
        share = share_until(waits_s, self._log.elapsed_s, None if until is None else until - now)
        return [replace(lead, share=share) if lead.covered else lead for lead in found]

    def _may(self, work: RegionWork, of_best: Collection[str]) -> bool:
        """Whether a region is judged before the search is over: what is written by hand is compared with the best."""
        if work.stored or work.nothing or work.offers or not work.baseline_s or not self._view.estimates.is_due(work):
            return False
        if work.own is None or work.own.status != Status.OK:
            return False
        return not work.proposed or work.call.region.id in of_best

    def _known_of(self, work: RegionWork, now: float) -> _Known:
        counts = (sum(map(len, [*work.seen.values()])), len(work.refused), len(work.verified))
        stamp = (*counts, self._verdicts if work.proposed else 0, self.comparisons.is_ready(work))
        known = self._known.get(work.id)
        if known is None or known.stamp != stamp:
            estimates, firsts = self._view.estimates, tuple(work.firsts)
            since = known.since if known is not None and known.firsts == firsts else now
            judging_s = estimates.comparing_s(work) + self.comparisons.referee_s(work)
            judging_s = 0.0 if estimates.kept.holds_first(work) else judging_s
            known = _Known(stamp, firsts, gain_s(work, self.rows), judging_s, since)
            self._known[work.id] = known
        return known

    def _of_best(self, view: _View) -> tuple[Collection[str], Collection[str]]:
        """Which regions the best plans have by what is judged, and the kernels that run only inside of them. On a GPU
        those before are the best until others are found."""
        if view.needed is None:
            return (), ()
        if (found := self._planning.taken()) is not None and found.view is view:
            self._best = found
        best, begun = self._best, time.monotonic()
        measured = sum(len(seen) for work in view.estimates.works if work.proposed for seen in [*work.seen.values()])
        stamp = self._verdicts, measured  # plans change with verdicts, and with what the search finds of regions
        is_other = best.view is not view  # of other regions, perhaps
        if is_other or (best.stamp != stamp and (best.stamp[0] != self._verdicts or begun >= self._best_until)):
            if is_other or not self._beside:
                self._best = best = self._planned(view, view.needed, stamp, dict(self._judged))
            elif self._planning.is_free:
                self._planning.begin(partial(self._planned, view, view.needed, stamp, dict(self._judged)))
        return best.regions, best.covered

    def _planned(
        self, view: _View, needed: Needed, stamp: tuple[int, int], judged: Mapping[str, RegionResult]
    ) -> _Best:
        """The best plans by what was judged."""
        begun = time.monotonic()
        of_best = needed(judged)
        now = time.monotonic()
        self._best_until = now + (now - begun) / PLANNING
        return _Best(view, stamp, of_best, covered_by(view.estimates.works, of_best))

    def _left_s(self, view: _View, now: float) -> float:
        """How long the search is expected to go on."""
        ledger, spent_s = view.estimates.budget.ledger, now - view.since
        if ledger.deadline is not None:
            return max(ledger.deadline - now, 0.0)
        if ledger.max_measurements:
            share = min(max(ledger.measurements / ledger.max_measurements, 0.01), 1.0)
            return spent_s * (1 - share) / share
        return spent_s


def saved_by(work: RegionWork, row: RegionResult, before: RegionResult | None) -> float:
    """What one execution gains by the result of a region over the one before, if there was one, in seconds."""
    own = row.opts if work.proposed and row.opts is not None else row.baseline
    return work.call.calls * ((own if before is None else before.chosen).cold_s - row.chosen.cold_s)


def gain_s(work: RegionWork, judged: Mapping[str, RegionResult]) -> float:
    """What one execution gains by the first candidate of a region over what was judged of it or its kernels, by
    `RegionWork.id`, in seconds."""
    row = judged.get(work.id)
    if row is not None and row.outcome == "improved":
        return work.call.calls * (work.seconds_of(row.chosen.schedule) - work.best_s)
    if not work.proposed:
        return work.saving_s
    rows = {row.region.id: row for row in [*judged.values()] if not row.region.args}
    inside = [(rows[kernel], count) for kernel, count in work.taken.items() if kernel in rows]
    verified_s = sum(count * (row.baseline.cold_s - row.chosen.cold_s) for row, count in inside)
    return work.call.calls * (work.baseline_s - work.best_s) - verified_s


STOP_S: Final = 20.0  # how long the end of the thread is waited for, once its children are dead


def is_piece(before: RegionResult | None, row: RegionResult) -> bool:
    """Whether all that is new of a region is that it passed more launches, and not the last ones."""
    return before is not None and row.chosen.provisional and row.chosen.schedule == before.chosen.schedule


def missing_s(estimates: Estimates, work: RegionWork, row: RegionResult) -> float:
    """What the launches are expected to take that what was chosen of a region has to pass yet, in seconds."""
    return estimates.stress_s(work, row.chosen.schedule, stress.LAUNCHES)


def order_of_completing(estimates: Estimates, work: RegionWork, row: RegionResult) -> float:
    """The less, the sooner what is provisional has the rest of its launches: what saves most a second comes first."""
    return (row.after_s - row.before_s) / max(missing_s(estimates, work, row), 1e-3)


def left_out(row: RegionResult, why: str) -> str:
    """What is said where what was chosen failed in a later launch."""
    return f"{describe(row.chosen.schedule)} of {row.chosen.name} is left out: {why}"


def better(before: RegionResult, now: RegionResult) -> RegionResult:
    """Of two results of one region of this run that which stands: what was verified does not go for what came later,
    unless tinygrad's own schedule is wrong."""
    if now.outcome == "improved" or before.outcome != "improved" or now.outcome in ("quarantined", "unjudged"):
        return now
    return before
