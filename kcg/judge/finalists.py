"""The last word on every region: candidates re-timed beside the baseline in a fresh process, and verified.

A candidate is chosen only if it verifies and its paired speed-up over the baseline is above 1 with its whole confidence
interval; otherwise tinygrad's own schedule is kept, and it is said why. The candidates are what the search found, its
second best only where the first is wrong, and then what is written by hand, the fastest first: each of these is
compared with the best of those before it too. Tile programs that a search found are compared in the same turns as the
best Opts, and those that `is_delicate` run under stress before they are chosen. The best Opts of a region stay in the
result where one of them wins: tinygrad's BEAM cache can hold nothing else.

A region for which nothing faster was found has no candidate: the time of its baseline stands as the search measured it,
the same before and after, and it is not called verified. The budget is kept: what it leaves no time to judge keeps
tinygrad's own schedule too.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from kcg.judge import ends
from kcg.judge.kept import Side
from kcg.judge.paired import Compared, Comparisons
from kcg.kernel.kinds import describe
from kcg.kernel.tile.kind import is_delicate
from kcg.measure import stress
from kcg.measure.protocol import median, median_interval
from kcg.optimize.estimates import Pace
from kcg.optimize.search import HOPELESS
from kcg.optimize.work import RegionResults, searched_of
from kcg.report.counts import nouns_of, share_of
from kcg.report.formats import format_seconds
from kcg.report.result import NO_OTHER, NOT_JUDGED, ONCE, TIME_OVER, USED_UP
from kcg.types import Finalist, RegionResult, Schedule, Status, TimedAt, Verification

if TYPE_CHECKING:
    from kcg.optimize.device import Device
    from kcg.optimize.estimates import Estimates
    from kcg.optimize.log import RunLog
    from kcg.optimize.work import Candidates, Offer, RegionWork

WORTH = 1 / 2
"""Of what was found to be saved, the share that is judged before time is left for the check of the whole: of less there
would be little to check."""
UNVERIFIED = Verification(False, reason="the run ended before it was verified")
CHECKED = "not verified: it is tinygrad's own schedule, checked on one seed"


Needed = Callable[[Mapping[str, RegionResult]], Collection[str]]
"""Which regions of several kernels the best plans have, by id, given what was judged so far."""


class Judge:
    """Judges every region of a run that has a candidate, where most is to be gained first of those whose references are
    there, while the budget lasts; what an earlier run kept is taken over. The others are as the search left them, and
    so are those of several kernels that are not `needed`: where one fails that is, others may be.

    Each result is put into `judged`, by `RegionWork.id`, as soon as it is known: a run that is interrupted has these.
    """

    def __init__(
        self,
        candidates: Candidates,
        estimates: Estimates,
        *,
        device: Device,
        log: RunLog,
        judged: dict[str, RegionResult],
        needed: Needed | None = None,
        in_new_child: bool = False,
    ) -> None:
        """With `in_new_child` the process that judges is new already: it ran nothing but its canary."""
        self._candidates, self._estimates, self._device, self._log = candidates, estimates, device, log
        self._judged, self._needed = judged, needed
        self._of_best: Collection[str] = ()  # regions of the best plans, by what was judged
        self._covered: Collection[str] = ()  # kernels all of whose calls these regions take, by `RegionWork.id`
        self._comparisons = Comparisons(estimates, device, in_new_child=in_new_child)
        self._pace = Pace(estimates)
        self._undecided: list[RegionWork] = []
        self.seen: dict[tuple[str, Schedule], Compared] = {}  # the last comparison of each, by `RegionWork.id`
        self._kernels: list[RegionWork] = []  # that are due
        self._done: set[str] = set()  # what was judged, by `RegionWork.id`

    def run(self) -> RegionResults:
        """The results of all regions."""
        works, estimates, judged = self._candidates.works, self._estimates, self._judged
        order = sorted((w for w in works if estimates.is_due(w)), key=lambda w: (-w.saving_s, -w.before_s))
        self._kernels = [work for work in order if not work.proposed]
        for work in works:
            if work not in order:
                judged[work.id] = work.stored or self._with_offers(work, self._as_searched(work))
        left, count = list(order), 0
        seen: list[RegionWork] = []  # so many of them
        self._plan(left)
        self._show(count, self._of_plans(left))
        if any(self._allows(work) for work in order):
            self._comparisons.prepare(self._of_plans(order))
        try:
            while of_plans := self._of_plans(left):
                left.remove(work := self._comparisons.first_ready(self._first(of_plans), until=self._until()))
                count += 1
                seen.append(work)
                if self._allows(work):
                    judged[work.id] = self._judged_one(work)
                    self._done.add(work.id)
                    if work.proposed:
                        self._plan(left)
                else:  # no other plan could be judged either
                    judged[work.id] = self._with_offers(work, self._too_late(work))
                self._show(count, self._of_plans(left))
            for work in left:
                judged[work.id] = self._not_needed(work)
        finally:
            self._warn_of_unjudged(seen)
        return RegionResults(tuple(judged[w.id] for w in works), len(self._undecided))

    def _show(self, count: int, left: Sequence[RegionWork]) -> None:
        """So many are judged, and these are left, which are expected to take what those before them took."""
        ledger, works = self._estimates.budget.ledger, self._candidates.works
        alone = [self._judged.get(w.id, w).after_s for w in works if not w.proposed]
        self._log.show(
            sum(alone) if alone else None,
            measurements=ledger.measurements,
            budget_s=self._log.elapsed_s + self._pace.left_s(left),
            kernels=(count, count + len(left)),
            nouns=nouns_of(work.call.region for work in (*works, *left) if work in left or work.id in self._judged),
            keep=False,
        )

    def _plan(self, left: Sequence[RegionWork]) -> None:
        """Find which regions the best plans have, where some of several kernels are not judged."""
        if self._needed is None or not any(work.proposed for work in left):
            return
        works, taken = self._candidates.works, Counter[str]()
        self._of_best = self._needed(self._judged)
        for work in works:
            if work.proposed and work.call.region.id in self._of_best:
                taken += work.taken
        self._covered = {w.id for w in works if not w.proposed and taken[w.call.region.id] >= w.call.calls}

    def _of_plans(self, left: Sequence[RegionWork]) -> list[RegionWork]:
        """Of what is due the kernels, and what the best plans have of regions of several kernels; last the kernels that
        run only where such a region is not put in."""
        if self._needed is None:
            return list(left)
        wanted = [work for work in left if not work.proposed or work.call.region.id in self._of_best]
        return sorted(wanted, key=lambda work: work.id in self._covered)

    def _first(self, works: Sequence[RegionWork]) -> Sequence[RegionWork]:
        """What may be judged next. Where a budget ends, a kernel that regions cover waits until all else is judged,
        even while the references of that are not there yet."""
        if self._estimates.budget.limit_s is None:
            return works
        return [work for work in works if work.id not in self._covered] or works

    def _judged_one(self, work: RegionWork) -> RegionResult:
        """The result of a region for which there is time."""
        if why := self._comparisons.why_unjudged(work):
            seen = Verification(False, reason=why, unjudged=True)
            return self._with_offers(work, _unjudged(work, seen))
        with self._pace.judging(work):
            self._comparisons.refuse_by_nan(work)
            in_time = self._compare_kinds(work)
            return self._with_offers(work, self.compare_found(work) if in_time else self._too_late(work))

    def _allows(self, work: RegionWork) -> bool:
        return self._pace.allows(work, improved=self._is_worth_checking())

    def _until(self, *rows: RegionResult) -> float | None:
        """When judging is to end, by `time.monotonic`; None: whenever. `rows` are of what is judged now."""
        return self._pace.until(improved=self._is_worth_checking(*rows))

    def _is_worth_checking(self, *rows: RegionResult) -> bool:
        """Whether enough is judged to leave time for the check of the whole, of the kernels that no region covers."""
        found = [work for work in self._kernels if work.id not in self._covered]
        judged_s = sum(work.saving_s for work in found if work.id in self._done)
        return judged_s >= WORTH * sum(w.saving_s for w in found) and self._improved(*rows, *self._judged.values())

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

    def _compare_kinds(self, work: RegionWork) -> bool:
        """Compare the best of each kind with the baseline and with each other, all in the same turns: where tile
        programs were found, it takes a third of the time that comparing them two by two takes. Whether there was time.
        """
        if not work.tile_candidates:
            return True
        sides = [self._comparisons.side(work, schedule) for schedule in work.firsts]
        usable: dict[str, Side] = {}
        for side in sides:
            if not isinstance(side, str):
                usable.setdefault(side.compiled.binary_hash, side)
        if isinstance(sides[0], str) or len(usable) < 2:
            return True
        return self._comparisons.compare_jointly(work, [*usable.values()])

    # ---- what the search found ----

    def compare_found(self, work: RegionWork) -> RegionResult:
        """The result after what the search found was compared with the baseline; the baseline alone where none of it
        can be."""
        own = self._comparisons.side(work, work.space.baseline())
        if isinstance(own, str):
            return _quarantined(work, f"tinygrad's own schedule does not compile: {own}")
        notes = _refused(work)
        for schedule in [*work.candidates, None]:
            found = None if schedule is None else self._comparisons.side(work, schedule)
            if isinstance(found, str):
                assert schedule is not None
                notes.append(f"{describe(schedule)} does not compile: {found}")
                continue
            if found is not None and found.compiled.binary_hash == own.compiled.binary_hash:
                continue  # tinygrad's own choice by another name
            seen = self._comparisons.compare(work, own, found)
            if seen.late:
                return self._too_late(work)
            if schedule is not None:
                self.seen[work.id, schedule] = seen
            if seen.outcome is None:
                if schedule is None:
                    return _quarantined(work, f"tinygrad's own schedule fails: {seen.reason}")
                notes.append(f"{describe(schedule)}: {seen.reason}")
                continue
            if (row := self.decide(work, seen, notes)) is not None:
                return replace(row, clocks=seen.outcome.clocks, ends=_ends_of(work, seen, row))
        raise AssertionError("the baseline alone always decides")

    def decide(self, work: RegionWork, seen: Compared, notes: list[str]) -> RegionResult | None:
        """The result by what a comparison of the baseline showed, or None where the other one is wrong and the next one
        gets its turn: `notes` say so then."""
        outcome = seen.outcome
        assert outcome is not None
        verified, other = outcome.baseline_verification, outcome.finalist_verification
        if verified.unjudged:
            return _unjudged(work, verified)
        if not verified.passed:
            return _quarantined(work, self._who_is_wrong(work, verified.reason), verified)
        if other is not None and not other.passed:
            verb = "is unjudged" if other.unjudged else "is wrong"
            notes.append(f"{describe(seen.after.schedule) if seen.after else ''} {verb}: {other.reason}")
            return None
        base, noise = seen.finalist_before(work), seen.noise
        if seen.after is None:
            what, why = ("kept", "; ".join(notes)) if notes else self.without_candidate(work)
            return _result(work, base, base, what, why, noise)
        schedule = seen.after.schedule
        if outcome.noisy:
            notes.append(f"{describe(schedule)} cannot be compared: {outcome.noisy}")
            return _result(work, base, base, "kept", "; ".join(notes), noise)
        text = f"{seen.words}, noise {100 * noise:.1f} %"
        if seen.is_faster:
            return _result(work, base, seen.finalist_after(work), "improved", "; ".join([text, *notes]), noise)
        _, ratio, high = seen.speed_up
        slower = "is slower" if high < 1.0 and ratio < 1.0 - noise else "is a tie"
        return _result(work, base, base, "kept", "; ".join([f"{describe(schedule)} {slower} ({text})", *notes]), noise)

    def _who_is_wrong(self, work: RegionWork, reason: str) -> str:
        """Whether tinygrad's own schedule of a kernel is wrong or the reference is: the raw kernel tells."""
        if work.space.baseline() == work.space.start():
            return f"the kernel does not verify as tinygrad compiles it: {reason}"
        raw = self._device.measure(work, [work.space.start()], sampler="reference")[0].result()
        if raw.status == Status.OK:
            return f"tinygrad's own schedule does not verify, the unoptimised kernel is right on one seed: {reason}"
        if raw.status == Status.WRONG:
            return f"the references disagree: tinygrad's own schedule ({reason}) and the unoptimised one ({raw.reason})"
        return f"tinygrad's own schedule does not verify: {reason}"

    # ---- what is written by hand ----

    def _with_tiles(self, work: RegionWork, row: RegionResult) -> RegionResult:
        """The result after the tile programs that a search found faster had their turn; the best Opts stay in it."""
        if row.outcome in ("undecided", "quarantined", "unjudged"):
            return row
        for schedule in self._tile_programs(work):
            won, fate = self._challenge(work, row, schedule)
            until = self._until(row)
            if won is not row and not (failed := self._comparisons.stress(work, schedule, until=until)):
                words = f"{describe(schedule)} {fate}"
                note = f"{words}; {row.note}" if work.candidates else words
                return replace(won, chosen=self._stressed(work, won.chosen), opts=row.chosen, note=note)
            fate = fate if won is row else failed
            row = replace(row, note=f"{row.note}; {describe(schedule)} {fate}")
        return row

    def _tile_programs(self, work: RegionWork) -> Iterator[Schedule]:
        """The tile programs that have their turn, in order: before one in Gluon the plain one that is as fast."""
        given = set[Schedule]()
        for schedule in work.tile_candidates:
            plain = work.plain_near(schedule)
            if plain is not None and plain not in given:
                seen = self._compared(work, plain, schedule)
                if not isinstance(seen, str) and not seen.is_faster:
                    given.add(plain)
                    yield plain
            if schedule not in given:
                given.add(schedule)
                yield schedule

    def _stressed(self, work: RegionWork, one: Finalist) -> Finalist:
        """A finalist of a region that has passed what `Comparisons.stress` asks of it."""
        if not is_delicate(work.call.region, one.schedule):
            return one
        rules = (*one.verification.rules, stress.rule(self._device.service.target))
        return replace(one, verification=replace(one.verification, rules=rules))

    def _with_offers(self, work: RegionWork, row: RegionResult) -> RegionResult:
        """The result after the tile programs, and then the hand-written kernels had their turn, the fastest first."""
        row = self._with_tiles(work, row)
        if not work.offers:
            return row
        if why := {"undecided": "the budget was over"}.get(row.outcome) or (
            f"the kernel is {row.outcome}" if row.outcome in ("quarantined", "unjudged") else ""
        ):
            return replace(row, handwritten=tuple((o.name, f"not judged: {why}") for o in work.offers))
        best, opts, fates = row.chosen, row.opts or row.chosen, dict[str, str]()
        for one in sorted(work.offers, key=lambda o: _time_s(work, o)):
            if refusal := _refusal(work, one):
                fates[one.name] = refusal
            else:
                assert one.schedule is not None
                row, fates[one.name] = self._challenge(work, row, one.schedule)
        won = row.chosen is not best
        return replace(
            row,
            note=f"{row.chosen.name} {fates[row.chosen.name]}; {row.note}" if won else row.note,
            opts=opts if won else row.opts,
            handwritten=tuple((o.name, fates[o.name]) for o in work.offers),
        )

    def _challenge(self, work: RegionWork, row: RegionResult, schedule: Schedule) -> tuple[RegionResult, str]:
        """One kernel against the best so far, and then against the baseline: the result, and its fate in words."""
        fate, own, won = "", row.baseline.schedule, row
        best = dict.fromkeys((row.chosen.schedule, own))  # once, where nothing beat the baseline so far
        for before in best:
            against = "tinygrad's own schedule" if before == own else describe(before)
            seen = self._compared(work, before, schedule)
            if isinstance(seen, str):
                return row, seen
            if not seen.is_faster:
                lost = "lost to" if seen.speed_up[2] < 1.0 else "is not clearly faster than"
                return row, f"{lost} {against}: {seen.words}"
            fate += f"; against {against}: {seen.words}" if fate else f"won against {against}: {seen.words}"
            base, chosen = seen.finalist_before(work), seen.finalist_after(work)
            won = replace(row, baseline=base, chosen=chosen, outcome="improved", noise_floor=seen.noise)
            won = replace(won, clocks=seen.outcome.clocks if seen.outcome else (), ends=_ends_of(work, seen, won))
        return won, fate  # the last is the comparison with tinygrad's own

    def _compared(self, work: RegionWork, before: Schedule, after: Schedule) -> Compared | str:
        """`after` compared with `before`; why it is out, where it is."""
        mine, theirs = self._comparisons.side(work, after), self._comparisons.side(work, before)
        if isinstance(mine, str):
            return f"rejected: it does not compile: {mine}"
        if isinstance(theirs, str):
            return f"not compared: {describe(before)} does not compile again: {theirs}"
        seen = self._comparisons.compare(work, theirs, mine)
        if seen.late:
            return "not judged: the budget was over"
        self.seen[work.id, after] = seen
        if seen.outcome is None:
            return f"rejected: {seen.reason}"
        if (verified := seen.outcome.finalist_verification) is None:
            return "rejected: it was not judged"
        if not verified.passed:
            return f"rejected: {'unjudged' if verified.unjudged else 'wrong'}: {verified.reason}"
        if not seen.outcome.baseline_verification.passed:
            return f"not compared: {describe(before)} did not verify again: {seen.outcome.baseline_verification.reason}"
        return f"not compared: {seen.outcome.noisy}" if seen.outcome.noisy else seen

    # ---- what is not compared ----

    def without_candidate(self, work: RegionWork) -> tuple[str, str]:
        """The outcome of a region for which the search found nothing, and why."""
        candidates = self._candidates
        if work.nothing:
            return "kept", work.nothing
        if self._estimates.settings.measurements == 0 and work.known:
            return "kept", "the predictor expects nothing faster"
        if candidates.untimed and not work.is_timed:
            return "not searched", "the budget was over before it was timed"
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
        return _result(work, base, base, *self.without_candidate(work))

    def _too_late(self, work: RegionWork) -> RegionResult:
        """The result of a region which the budget leaves no time to judge."""
        self._undecided.append(work)  # what fails as it is too: it was not seen in a fresh process
        if failed := _failing(work):
            return failed
        base = self._as_measured(work)
        if not (found := [*work.tile_candidates[:1], *work.candidates[:1]]):
            return _result(work, base, base, "undecided", "there was no time to judge what is written by hand")
        claim = "is expected to be faster"
        if work.baseline_s:
            claim = f"was {work.baseline_s / work.seconds_of(found[0]):.2f}× as fast in the search"
        return _result(
            work, base, base, "undecided", f"{describe(found[0])} {claim}, and there was no time to judge it"
        )

    def _not_needed(self, work: RegionWork) -> RegionResult:
        """The result of a region of several kernels that is in none of the best plans."""
        base = self._as_measured(work)
        return _result(work, base, base, NOT_JUDGED, "faster than its parts in the search, and in no plan")

    def _as_measured(self, work: RegionWork) -> Finalist:
        """tinygrad's own schedule as the search measured it, where that stands: checked on one seed, cold, not warm."""
        schedule, row = work.space.baseline(), work.own
        if row is None or not row.samples_s:
            return _unverified(work, schedule)
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


def as_searched(works: Sequence[RegionWork], judged: Mapping[str, RegionResult], *, why: str) -> RegionResults:
    """The best so far of a run that ended early: what was judged as it was judged, the rest as the search left it.

    The latter carries search timings and is marked as not verified; `apply` gives such regions tinygrad's own schedule.
    """

    def row_of(work: RegionWork) -> RegionResult:
        if work.id in judged:
            return judged[work.id]
        if work.is_unjudged:
            return _cannot_be_judged(work)
        base = _unverified(work, work.space.baseline())
        faster = [*work.tile_candidates[:1], *work.candidates[:1]] if work.baseline_s else []
        chosen, *others = [_unverified(work, schedule) for schedule in faster] or [base]
        outcome = "improved" if faster else "kept" if work.tried else "not searched"
        row = _result(work, base, chosen, outcome, f"{why}: not verified")
        return replace(row, opts=(others or [base])[0]) if work.tile_candidates and faster else row

    return RegionResults(tuple(row_of(work) for work in works))


def _refused(work: RegionWork) -> list[str]:
    """What is said of candidates that make something else of NaN than tinygrad's own schedule."""
    if not work.refused:
        return []
    schedule, reason = next(iter(work.refused.items()))
    more = f" (and {len(work.refused) - 1} more)" if len(work.refused) > 1 else ""
    return [f"{describe(schedule)}{more} is wrong: {reason}"]


def _time_s(work: RegionWork, one: Offer) -> float:
    seen = work.by_hand.get(one.schedule) if one.schedule is not None else None
    return math.inf if seen is None else seen.time_s


def _refusal(work: RegionWork, one: Offer) -> str:
    """Why a hand-written kernel is not compared, by what is known before; empty where it is."""
    if one.schedule is None:
        return f"rejected: {one.reason}"
    seen = work.by_hand.get(one.schedule)
    if seen is not None and seen.status != Status.OK:
        return f"rejected: {seen.status}: {seen.reason}"
    if seen is not None and work.best_s and seen.time_s > HOPELESS * work.best_s:
        return f"lost: {format_seconds(seen.time_s)} in the search, {format_seconds(work.best_s)} the best"
    return ""


def _ends_of(work: RegionWork, seen: Compared, row: RegionResult) -> tuple[TimedAt, ...]:
    """What was timed at each end of what became the result."""
    if not all(outcome.baseline_cold_s for outcome in seen.at_ends) or row.outcome == "quarantined":
        return row.ends
    before_s = [median(outcome.baseline_cold_s) for outcome in seen.at_ends]
    changed = row.chosen is not row.baseline
    after_s = [median(outcome.finalist_cold_s) for outcome in seen.at_ends] if changed else before_s
    return ends.timed_at(work.ends, before_s, after_s)


def _unverified(work: RegionWork, schedule: Schedule) -> Finalist:
    """A schedule as the search left it, when there was no time to judge it."""
    observation = work.known.get(schedule) or work.of_tiles.get(schedule)
    seconds = observation.runtime_s if observation is not None and observation.runtime_s else 0.0
    name, legend = work.named(schedule)
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


def _cannot_be_judged(work: RegionWork) -> RegionResult:
    """The result of a region of which the search has seen that the reference cannot tell."""
    assert work.own is not None
    return _unjudged(work, Verification(False, seeds=int(work.own.checked), reason=work.own.reason, unjudged=True))


def _unjudged(work: RegionWork, seen: Verification) -> RegionResult:
    """Nothing is claimed of a kernel of which the reference cannot tell what is right: neither that it is wrong."""
    base = replace(_unverified(work, work.space.baseline()), verification=seen)
    return _result(work, base, base, "unjudged", seen.reason)


def _failing(work: RegionWork) -> RegionResult | None:
    """The result of a region that the search has seen failing as tinygrad schedules it; None where it has not."""
    if work.own is None or work.own.status == Status.OK:
        return None
    return _quarantined(work, f"tinygrad's own schedule fails: {work.own.status}: {work.own.reason}")


def _quarantined(work: RegionWork, reason: str, verification: Verification = UNVERIFIED) -> RegionResult:
    """tinygrad's own schedule is wrong, or fails: it is kept, as nothing better is known, and the report says why."""
    base = replace(_unverified(work, work.space.baseline()), verification=replace(verification, reason=reason))
    return _result(work, base, base, "quarantined", reason)


def _result(
    work: RegionWork, base: Finalist, chosen: Finalist, outcome: str, note: str, noise_floor: float = 0.0
) -> RegionResult:
    before_s, after_s = (work.at_ends.get(side.schedule) for side in (base, chosen))
    return RegionResult(
        region=work.call.region,
        calls=work.call.calls,
        baseline=base,
        chosen=chosen,
        measurements=max(len(work.binaries), work.tried_by_beam),
        outcome=outcome,
        variables=work.call.variables,
        note=note,
        operations=work.operations,
        bytes=float(work.bytes),
        noise_floor=noise_floor,
        ends=ends.timed_at(work.ends, before_s, after_s),
        replayed=work.call.replayed,
    )
