"""The loop over the regions of a run: which of them is judged next (`kcg.judge.finalists`), while the budget lasts.

A region for which nothing faster was found has no candidate: the time of its baseline stands as the search measured it,
the same before and after, and it is not called verified. The budget is kept: what it leaves no time to judge keeps
tinygrad's own schedule too. What is provisional after that has the rest of its launches under stress, what saves most
a second first, as long as there is time: without a budget all of it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kcg.cli import counted
from kcg.judge.finalists import Judge, quarantined, unjudged
from kcg.judge.paired import Comparisons
from kcg.kernel.kinds import describe
from kcg.measure import stress
from kcg.measure.protocol import median_interval
from kcg.optimize.ahead import better, covered_by, gain_s, is_piece, left_out, missing_s, order_of_completing, saved_by
from kcg.optimize.estimates import Pace
from kcg.optimize.search import HOPELESS
from kcg.optimize.work import RegionResults, searched_of
from kcg.report.counts import nouns_of, share_of
from kcg.report.formats import format_seconds
from kcg.report.result import NO_OTHER, NOT_JUDGED, ONCE, TIME_OVER, UNTIMED, USED_UP
from kcg.types import Finalist, RegionResult, Schedule, Status, Verification

if TYPE_CHECKING:
    from kcg.judge.interface import Offer
    from kcg.judge.paired import Compared
    from kcg.optimize.ahead import Ahead, Needed
    from kcg.optimize.device import Device
    from kcg.optimize.estimates import Estimates
    from kcg.optimize.incumbent import Incumbent
    from kcg.optimize.log import RunLog
    from kcg.optimize.work import Candidates, RegionWork

COMPLETING = 1 / 2  # of the time that is left, where plans are compared after it
WORTH = 1 / 8
"""Of what all takes as the search found it, what judging may still save where time is left for the check of the whole:
with more to gain a check would be of a result that is not worth it."""
LEAST_S = 1e-3  # that judging anything takes
CHECKED = "not verified: it is tinygrad's own schedule, checked on one seed"


@dataclass(frozen=True)
class JudgingSettings:
    """What of a run is judged, and in which process."""

    needed: Needed | None = None  # which regions of several kernels are; by default all
    completes: bool = True  # what is provisional has the rest of its launches
    in_new_child: bool = False  # the process that judges ran nothing but its canary: it is not begun again


class Judging:
    """Judges every region of a run that has a candidate, while the budget lasts: where most is to be gained a second
    first, of those whose references are there; what an earlier run kept, or was judged `ahead`, is taken over, before
    all else. The others are as the search left them, and so are those of several kernels that are not needed: where one
    fails that is, others may be.

    Each result is put into `judged`, by `RegionWork.id`, as soon as it is known, and the `incumbent` improves by it: a
    run that is interrupted, or killed, has these.
    """

    def __init__(
        self,
        candidates: Candidates,
        estimates: Estimates,
        *,
        device: Device,
        log: RunLog,
        judged: dict[str, RegionResult],
        incumbent: Incumbent | None = None,
        ahead: Ahead | None = None,
        settings: JudgingSettings | None = None,
    ) -> None:
        """With `ahead` the process that judges is the one that did while the search went on."""
        settings = JudgingSettings() if settings is None else settings
        self._candidates, self._estimates, self._device, self._log = candidates, estimates, device, log
        self._judged, self._needed, self._incumbent = judged, settings.needed, incumbent
        self._of_best: Collection[str] = ()  # regions of the best plans, by what was judged
        self._covered: Collection[str] = ()  # kernels all of whose calls these regions take, by `RegionWork.id`
        works = {work.id: work for work in candidates.works}
        before = {} if ahead is None else ahead.rows
        self._ahead = {name: replace(row, measurements=works[name].measured) for name, row in before.items()}
        if ahead is None:
            fresh = settings.in_new_child
            self._comparisons = Comparisons(device, estimates, estimates.kept, in_new_child=fresh)
        else:
            self._comparisons = ahead.comparisons
            self._comparisons.go_by(estimates)
        self.judge = Judge(
            device if ahead is None else device.bench,
            self._comparisons,
            without_candidate=self.without_candidate,
            until=self._until,
            launches_until=lambda row: estimates.launches_until(self._until(row)),
            seen=None if ahead is None else ahead.seen,
        )
        self._pace = Pace(estimates)
        self._undecided: list[RegionWork] = []
        self._due: list[RegionWork] = []
        self._done: set[str] = set(self._ahead)  # what was judged, by `RegionWork.id`
        self._completes = settings.completes
        self._stuck: set[str] = set()  # what stays provisional, by the same
        self.failed = {} if ahead is None else ahead.failed
        """What was chosen and failed in a later launch, by the same."""

    @property
    def seen(self) -> Mapping[tuple[str, Schedule], Compared]:
        """The last comparison of each schedule, by `RegionWork.id`."""
        return self.judge.seen

    def run(self) -> RegionResults:
        """The results of all regions."""
        works, estimates, judged = self._candidates.works, self._estimates, self._judged
        held = {work.id for work in works if estimates.kept.holds_first(work)}
        due = (work for work in works if estimates.is_due(work))

        def first(work: RegionWork) -> tuple[bool, float, float]:
            return work.id not in held, -_a_second(work, self._ahead, self._comparing_s(work)), -work.before_s

        order = sorted(due, key=first)
        self._due = order
        for work in works:
            if work not in order:
                row = work.stored or self._ahead.get(work.id)
                judged[work.id] = row or self._with_offers(work, self._as_searched(work))
        left, count, saved_s = list(order), 0, 0.0
        seen: list[RegionWork] = []  # so many of them
        self._plan(left)
        self._show(count, self._of_plans(left))
        if any(self._allows(work) for work in order):
            sides, compiling_s = estimates.sides(), estimates.compiling_s()
            self._comparisons.prepare(self._of_plans(order), sides, compiling_s=compiling_s)
        try:
            while of_plans := self._of_plans(left) or self._completed(left):
                left.remove(work := self._comparisons.first_ready(self._first(of_plans), until=self._until()))
                count += 1
                seen.append(work)
                before = judged.get(work.id)
                if work.id in self._covered and work.id in self._ahead:  # better now by what the plans do not run
                    judged[work.id] = self._ahead[work.id]
                elif self._allows(work):
                    judged[work.id] = self._or_ahead(work, self._judged_one(work))
                    self._done.add(work.id)
                    if work.proposed and (before is None or before.chosen != judged[work.id].chosen):
                        self._plan(left)
                else:  # no other plan could be judged either
                    judged[work.id] = self._or_ahead(work, self._with_offers(work, self._too_late(work)))
                waiting = self._of_plans(left)
                saved_s += saved_by(work, judged[work.id], before)
                earlier = held.difference(self._judged)  # what was judged ahead the file has
                if self._incumbent is not None and earlier.isdisjoint(work.id for work in waiting):
                    self._incumbent.improve(saved_s)
                    saved_s = 0.0  # the file of a run that goes on has no less than what that had judged
                self._show(count, waiting)
            for work in left:
                judged[work.id] = self._ahead.get(work.id) or self._not_needed(work)
        finally:
            self._warn_of_unjudged(seen)
        return RegionResults(tuple(judged[w.id] for w in works), len(self._undecided))

    # ---- what is provisional ----

    def _completed(self, left: Sequence[RegionWork]) -> list[RegionWork]:
        """Have what is provisional its launches, as long as there is time; what is to be judged next, where the best
        plans need other regions since something failed."""
        until = self._complete_until()
        if provisional := self._provisional():
            programs = counted(len(provisional), "program")
            self._log.progress.phase(f"the rest of {stress.LAUNCHES:,} launches under stress of {programs}")
        while provisional := self._provisional():
            work = provisional[0]
            row = self.judge.further(work, before := self._judged[work.id], until=until, judged=self._once_more)
            if row is None:
                self._stuck.add(work.id)
                continue
            self._judged[work.id] = row
            if work.stored is not None:
                work.stored = row
            if failed := row.chosen.schedule != before.chosen.schedule:
                self.failed[work.id] = before.chosen.schedule
                self._log.alert(left_out(before, work.refused[before.chosen.schedule]))
                self._plan(left, again=True)
            if self._incumbent is not None and not is_piece(before, row):
                self._incumbent.improve()
            if failed and (of_plans := self._of_plans(left)):
                return of_plans
        return []

    def _provisional(self) -> list[RegionWork]:
        """What has launches to pass yet, of what may be in the result: what saves most a second first, and last the
        kernels that run only where a region is not put in."""

        def order(work: RegionWork) -> tuple[bool, float]:
            return work.id in self._covered, order_of_completing(self._estimates, work, self._judged[work.id])

        if not self._completes:
            return []
        works = self._candidates.works
        found = (work for work in works if (row := self._judged.get(work.id)) and row.chosen.provisional)
        some = (work for work in found if self._may_be_run(work))
        return sorted((work for work in some if work.id not in self._stuck), key=order)

    def _complete_until(self) -> float | None:
        """When completing is to end, by `time.monotonic`: where plans are compared, they have half of what is left."""
        now, until = time.monotonic(), self._until()
        return until if until is None or self._needed is None else now + COMPLETING * (until - now)

    def _once_more(self, work: RegionWork) -> RegionResult | None:
        """The result of a region of which a schedule is refused since; most that is compared is known."""
        row = self.judge.judged(work)
        return None if row is None else self._with_offers(work, row)

    def _show(self, count: int, left: Sequence[RegionWork]) -> None:
        """So many are judged, and these are left, which are expected to take what those before them took."""
        ledger, works = self._estimates.budget.ledger, self._candidates.works
        alone = [self._judged.get(w.id, w).after_s for w in works if not w.proposed]
        rest_s = sum(missing_s(self._estimates, work, self._judged[work.id]) for work in self._provisional())
        self._log.show(
            sum(alone) if alone else None,
            measurements=ledger.measurements,
            budget_s=self._log.elapsed_s + self._pace.left_s(left) + rest_s,
            kernels=(count, count + len(left)),
            nouns=nouns_of(work.call.region for work in (*works, *left) if work in left or work.id in self._judged),
            verified_s=None if self._incumbent is None else self._incumbent.verified_s,
            keep=False,
        )

    def _plan(self, left: Sequence[RegionWork], *, again: bool = False) -> None:
        """Find which regions the best plans have, where some of several kernels are not judged, or `again`."""
        if self._needed is None or not (again or any(work.proposed for work in left)):
            return
        self._of_best = self._needed(self._judged)
        self._covered = covered_by(self._candidates.works, self._of_best)

    def _of_plans(self, left: Sequence[RegionWork]) -> list[RegionWork]:
        """Of what is due the kernels, and what the best plans have of regions of several kernels; last the kernels that
        run only where such a region is not put in. Where there is no time for all of these regions, what gains most a
        second is first: kernels last only where the regions that take their calls are verified."""
        if self._needed is None:
            return list(left)
        wanted = [work for work in left if not work.proposed or work.call.region.id in self._of_best]
        if self._fits(wanted):
            return sorted(wanted, key=lambda work: work.id in self._covered)
        verified = {row.region.id for row in self._judged.values() if row.outcome == "improved"}
        replaced = covered_by(self._candidates.works, verified.intersection(self._of_best))

        def order(work: RegionWork) -> tuple[bool, float]:
            return work.id in replaced, -_a_second(work, self._judged, self._comparing_s(work))

        return sorted(wanted, key=order)

    def _fits(self, works: Sequence[RegionWork]) -> bool:
        """Whether there is time to judge those of these that the best plans run."""
        until = self._until()
        if until is None:
            return True
        due = (work for work in works if work.id not in self._covered and not self._estimates.kept.holds_first(work))
        return time.monotonic() + sum(map(self._comparing_s, due)) <= until

    def _comparing_s(self, work: RegionWork) -> float:
        return self._estimates.comparing_s(work) + self._comparisons.referee_s(work)

    def _first(self, works: Sequence[RegionWork]) -> Sequence[RegionWork]:
        """What may be judged next. Where a budget ends, a kernel that regions cover waits until all else is judged,
        even while the references of that are not there yet, if there is time for that."""
        if self._estimates.budget.limit_s is None or not self._fits(works):
            return works
        return [work for work in works if work.id not in self._covered] or works

    def _judged_one(self, work: RegionWork) -> RegionResult:
        """The result of a region for which there is time."""
        with self._pace.judging(work, referee_s=self._comparisons.referee_s(work)):
            row = self.judge.judged(work)
            return self._with_offers(work, self._too_late(work) if row is None else row)

    def _or_ahead(self, work: RegionWork, row: RegionResult) -> RegionResult:
        """What stands of a region: its result, or what was verified of it while the search went on."""
        if (before := self._ahead.get(work.id)) is None or better(before, row) is row:
            return row
        self._undecided = [one for one in self._undecided if one is not work]
        return before

    def _with_offers(self, work: RegionWork, row: RegionResult) -> RegionResult:
        """The result after what else was found for it had its turn; what is written by hand, the fastest first."""
        offers = [(one, _refusal(work, one)) for one in sorted(work.offers, key=lambda o: _time_s(work, o))]
        return self.judge.with_offers(work, row, offers)

    def _allows(self, work: RegionWork) -> bool:
        referee_s = self._comparisons.referee_s(work)
        return self._pace.allows(work, improved=self._is_worth_checking(), referee_s=referee_s)

    def _until(self, *rows: RegionResult) -> float | None:
        """When judging is to end, by `time.monotonic`; None: whenever. `rows` are of what is judged now."""
        return self._pace.until(improved=self._is_worth_checking(*rows))

    def _is_worth_checking(self, *rows: RegionResult) -> bool:
        """Whether judging has little to save yet, of what the best plans run: then there is time for the check of the
        whole."""
        found = [work for work in self._due if work.id not in self._covered and self._may_be_run(work)]
        left_s = sum(map(self._missing_s, found))
        return left_s <= WORTH * sum(w.after_s for w in found) and self._improved(*rows, *self._judged.values())

    def _may_be_run(self, work: RegionWork) -> bool:
        return not work.proposed or self._needed is None or work.call.region.id in self._of_best

    def _missing_s(self, work: RegionWork) -> float:
        """What a region saves that was not judged; also what was found since it was judged ahead, or was refused
        then."""
        if work.id not in self._done:
            return max(gain_s(work, self._judged), 0.0)
        is_ahead = self._judged.get(work.id) is self._ahead.get(work.id) or work.id not in self._judged
        return max(gain_s(work, self._ahead), 0.0) if work.id in self._ahead and is_ahead else 0.0

    @staticmethod
    def _improved(*rows: RegionResult) -> bool:
        return any(row.outcome == "improved" for row in rows)

    def _warn_of_unjudged(self, works: Sequence[RegionWork]) -> None:
        regions = [work.call.region for work in works]
        if spared := self._comparisons.taken_over - self._comparisons.made:
            of_these = share_of((work.call.region for work in works if work.id in spared), regions)
            self._log.warn(f"the verdicts on {of_these} are those of an earlier run: they were not judged again")
        if self._undecided:
            late = share_of((work.call.region for work in self._undecided), regions)
            self._log.warn(f"the budget left no time to judge {late}: they keep tinygrad's own schedule")

    # ---- what is not compared ----

    def without_candidate(self, work: RegionWork) -> tuple[str, str]:
        """The outcome of a region for which the search found nothing, and why."""
        candidates = self._candidates
        if work.nothing:
            return "kept", work.nothing
        if self._estimates.settings.measurements == 0 and work.known:
            return "kept", "the predictor expects nothing faster"
        if candidates.untimed and not work.is_timed:
            return "not searched", UNTIMED
        if work.tried:
            return "kept", f"nothing faster among {work.tried} others"
        if work.is_alone:
            return "not searched", NO_OTHER
        if all(work is not other for other in searched_of(candidates.works)):
            return "not searched", ONCE
        if candidates.settled:
            return "not searched", "too little to save"
        return "not searched", USED_UP if candidates.used_up else TIME_OVER

    def _as_searched(self, work: RegionWork) -> RegionResult:
        """The result of a region that is not judged: nothing was found for it, or nothing can be said of it."""
        if work.is_unjudged:
            return _cannot_be_judged(work)
        if failed := _failing(work):
            return failed
        base = self._as_measured(work)
        return work.result(base, base, *self.without_candidate(work))

    def _too_late(self, work: RegionWork) -> RegionResult:
        """The result of a region which the budget leaves no time to judge."""
        self._undecided.append(work)  # what fails as it is too: it was not seen in a fresh process
        if failed := _failing(work):
            return failed
        base = self._as_measured(work)
        if not work.found:
            return work.result(base, base, "undecided", "there was no time to judge what is written by hand")
        return work.result(base, base, "undecided", f"{_claim(work)}, and there was no time to judge it")

    def _not_needed(self, work: RegionWork) -> RegionResult:
        """The result of a region of several kernels that is in none of the best plans."""
        base, seen = self._as_measured(work), "expected to be faster" if work.is_expected else "faster in the search"
        return work.result(base, base, NOT_JUDGED, f"{seen} than its parts, and in no plan")

    def _as_measured(self, work: RegionWork) -> Finalist:
        """tinygrad's own schedule as the search measured it, where that stands: checked on one seed, cold, not warm."""
        schedule, row = work.space.baseline(), work.own
        if row is None or not row.samples_s:
            return work.as_searched(schedule)
        known = self._device.service.has_compiled(work.call.region, schedule, work.call.variables)
        return Finalist(
            schedule=schedule,
            cold_s=row.median_s,
            warm_s=math.nan,
            interval_s=median_interval(row.samples_s),
            verification=Verification(False, seeds=int(row.checked), reason=CHECKED),
            binary_hash=row.binary_hash,
            name=work.space.name(schedule),
            legend=work.space.legend(schedule),
            source=self._device.compiled(work, schedule).source if known else "",
            launch=row.launch,
        )


def _a_second(work: RegionWork, verified: Mapping[str, RegionResult], takes_s: float) -> float:
    """What judging a region may save, over what is verified, by what it takes: one that takes most of the time that is
    left is no reason to have none of the others."""
    return gain_s(work, verified) / max(takes_s, LEAST_S)


def as_judged(works: Sequence[RegionWork], judged: Mapping[str, RegionResult], *, why: str) -> RegionResults:
    """The best so far of a run that ends, or goes on: what was judged as it was judged. The rest keeps tinygrad's own
    schedule, as the search timed it, also where it found something faster: nothing changes that was not verified. `why`
    is said of it."""

    def row_of(work: RegionWork) -> RegionResult:
        if work.id in judged:
            return judged[work.id]
        if work.is_unjudged:
            return _cannot_be_judged(work)
        base, note = work.as_searched(work.space.baseline()), f"{why}: not verified"
        if work.found and work.baseline_s:
            return work.result(base, base, "undecided", f"{_claim(work)}; {note}")
        return work.result(base, base, "kept" if work.tried else "not searched", note)

    return RegionResults(tuple(row_of(work) for work in works))


def _claim(work: RegionWork) -> str:
    """What the search says of the best that it found of a region."""
    best = work.found[0]
    if not work.baseline_s or work.is_expected:
        return f"{describe(best)} is expected to be faster"
    return f"{describe(best)} was {work.baseline_s / work.seconds_of(best):.2f}× as fast in the search"


def _time_s(work: RegionWork, one: Offer) -> float:
    seen = work.observed(one.schedule) if one.schedule is not None else None
    return math.inf if seen is None else seen.time_s


def _refusal(work: RegionWork, one: Offer) -> str:
    """Why a hand-written kernel is not compared, by what is known before; empty where it is."""
    if one.schedule is None:
        return f"rejected: {one.reason}"
    seen = work.observed(one.schedule)
    if seen is not None and seen.status != Status.OK:
        return f"rejected: {seen.status}: {seen.reason}"
    if seen is not None and work.best_s and seen.time_s > HOPELESS * work.best_s:
        return f"lost: {format_seconds(seen.time_s)} in the search, {format_seconds(work.best_s)} the best"
    return ""


def _cannot_be_judged(work: RegionWork) -> RegionResult:
    """The result of a region of which the search has seen that the reference cannot tell."""
    assert work.own is not None
    return unjudged(work, Verification(False, seeds=int(work.own.checked), reason=work.own.reason, unjudged=True))


def _failing(work: RegionWork) -> RegionResult | None:
    """The result of a region that the search has seen failing as tinygrad schedules it; None where it has not."""
    if work.own is None or work.own.status == Status.OK:
        return None
    return quarantined(work, f"tinygrad's own schedule fails: {work.own.status}: {work.own.reason}")
