"""The last word on a region: candidates re-timed beside the baseline in a fresh process, and verified.

A candidate is chosen only if it verifies and its paired speed-up over the baseline is above 1 with its whole confidence
interval; otherwise tinygrad's own schedule is kept, and it is said why. The candidates are what the search found, its
second best only where the first is wrong, and then what is written by hand, the fastest first: each of these is
compared with the best of those before it too. Tile programs that a search found are compared in the same turns as the
best Opts, and those that `needs_stress` run under stress before they are chosen: they are provisional then, and have
the rest of their launches later (`Judge.further`). The best Opts of a region stay in the result where one of them wins:
tinygrad's BEAM cache can hold nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from kcg.judge import bounds
from kcg.judge.interface import UNVERIFIED
from kcg.judge.kept import Side
from kcg.judge.paired import Compared, Comparisons
from kcg.judge.stressing import PIECE_S, REJECTED, having_passed
from kcg.kernel.kinds import describe, needs_stress
from kcg.measure import stress
from kcg.measure.protocol import median
from kcg.types import Finalist, RegionResult, Schedule, Status, TimedAt, Verification

if TYPE_CHECKING:
    from kcg.judge.interface import Bench, Found, Offer


Judged = TypeVar("Judged", bound="Found")

RAW_S: Final = 0.2  # a raw kernel that takes longer is not verified by every rule, for which it runs some forty times


class Judge:
    """Judges regions, one at a time."""

    def __init__(
        self,
        bench: Bench,
        comparisons: Comparisons,
        *,
        without_candidate: Callable[[Any], tuple[str, str]],
        until: Callable[[RegionResult], float | None],
        launches_until: Callable[[RegionResult], float | None],
        seen: dict[tuple[str, Schedule], Compared] | None = None,
    ) -> None:
        """`without_candidate` gives the outcome of a region for which nothing was found, and why; `until` from when on
        nothing more of another kind, or written by hand, is compared, by `time.monotonic`, where a region's result is
        this so far, and `launches_until` when the first launches under stress of what won are to end. None: whenever.
        `seen` has what another one saw before.
        """
        self._device, self._comparisons = bench, comparisons
        self._without_candidate, self._until, self._launches_until = without_candidate, until, launches_until
        self.seen = {} if seen is None else seen  # the last comparison of each schedule, by `Subject.id`

    def judged(self, work: Found) -> RegionResult | None:
        """The result after what the search found of the baseline's kind had its turn, for whose region all is ready;
        None where there was no time for it."""
        if why := self._comparisons.why_unjudged(work):
            return unjudged(work, Verification(False, reason=why, unjudged=True))
        self._comparisons.refuse_by_nan(work)
        return self.compare_found(work) if self.compare_kinds(work) else None

    def compare_kinds(self, work: Found) -> bool:
        """Compare the best of each kind with the baseline and with each other, all in the same turns: where there are
        candidates of another kind, it takes a third of the time that comparing them two by two takes. Whether there
        was time."""
        if not work.other_candidates:
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

    def compare_found(self, work: Found) -> RegionResult | None:
        """The result after what the search found was compared with the baseline; the baseline alone where none of it
        can be. None where there was no time for it."""
        own = self._comparisons.side(work, work.space.baseline())
        if isinstance(own, str):
            return quarantined(work, f"tinygrad's own schedule does not compile: {own}")
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
                return None
            if schedule is not None:
                self.seen[work.id, schedule] = seen
            if seen.outcome is None:
                if schedule is None:
                    return quarantined(work, f"tinygrad's own schedule fails: {seen.reason}")
                notes.append(f"{describe(schedule)}: {seen.reason}")
                continue
            if (row := self.decide(work, seen, notes)) is not None:
                return replace(row, clocks=seen.outcome.clocks, ends=_bounds_of(work, seen, row))
        raise AssertionError("the baseline alone always decides")

    def decide(self, work: Found, seen: Compared, notes: list[str]) -> RegionResult | None:
        """The result by what a comparison of the baseline showed, or None where the other one is wrong and the next one
        gets its turn: `notes` say so then."""
        outcome = seen.outcome
        assert outcome is not None
        verified, other = outcome.baseline_verification, outcome.finalist_verification
        if verified.unjudged:
            return unjudged(work, verified)
        if not verified.passed:
            return self._own_refused(work, verified)
        if other is not None and not other.passed:
            verb = "is unjudged" if other.unjudged else "is wrong"
            notes.append(f"{describe(seen.after.schedule) if seen.after else ''} {verb}: {other.reason}")
            return None
        base, noise = seen.finalist_before(work), seen.noise
        if seen.after is None:
            what, why = ("kept", "; ".join(notes)) if notes else self._without_candidate(work)
            return work.result(base, base, what, why, noise)
        schedule = seen.after.schedule
        if outcome.noisy:
            notes.append(f"{describe(schedule)} cannot be compared: {outcome.noisy}")
            return work.result(base, base, "kept", "; ".join(notes), noise)
        text = f"{seen.words}, noise {100 * noise:.1f} %"
        if seen.is_faster:
            return work.result(base, seen.finalist_after(work), "improved", "; ".join([text, *notes]), noise)
        _, ratio, high = seen.speed_up
        slower = "is slower" if high < 1.0 and ratio < 1.0 - noise else "is a tie"
        return work.result(base, base, "kept", "; ".join([f"{describe(schedule)} {slower} ({text})", *notes]), noise)

    def _own_refused(self, work: Found, verified: Verification) -> RegionResult:
        """Whether tinygrad's own schedule of a kernel is wrong or the reference is: the raw kernel tells. Where that
        makes the same of the same data, nothing is proven."""
        reason = verified.reason
        if work.space.baseline() == work.space.start():
            return quarantined(work, f"the kernel does not verify as tinygrad compiles it: {reason}", verified)
        raw = self._device.measure(work, [work.space.start()], sampler="reference")[0].result()
        if raw.status == Status.OK and raw.runtime_s is not None:
            again = self._raw(work) if raw.runtime_s <= RAW_S else None
            if again is not None and _differs_at(again.reason) == _differs_at(reason):
                unsure = f"the unoptimised kernel makes the same, and the reference something else: {reason}"
                return unjudged(work, replace(verified, unjudged=True, reason=unsure))
            seeds = "on the same data" if again is not None and again.passed else "on one seed"
            words = f"tinygrad's own schedule does not verify, the unoptimised kernel is right {seeds}: {reason}"
        elif raw.status == Status.WRONG:
            words = (
                f"the references disagree: tinygrad's own schedule ({reason}) and the unoptimised one ({raw.reason})"
            )
        else:
            words = f"tinygrad's own schedule does not verify: {reason}"
        return quarantined(work, words, verified)

    def _raw(self, work: Found) -> Verification | None:
        """What verifying the raw kernel by every rule comes to, if there is time for it."""
        side = self._comparisons.side(work, work.space.start())
        if isinstance(side, str):
            return None
        outcome = self._comparisons.compare(work, side, None).outcome
        return None if outcome is None else outcome.baseline_verification

    # ---- what is of other kinds, and then what is written by hand ----

    def _with_others(self, work: Found, row: RegionResult) -> RegionResult:
        """The result after what a search found faster of other kinds had its turn; the best Opts stay in it."""
        if row.outcome in ("undecided", "quarantined", "unjudged"):
            return row
        for schedule in self._in_turn(work, row):
            won, fate = self._challenge(work, row, schedule)
            until = self._launches_until(row)
            if won is not row and not (
                failed := self._comparisons.stress(work, schedule, launches=stress.PROVISIONAL, until=until)
            ):
                words = f"{describe(schedule)} {fate}"
                note = f"{words}; {row.note}" if work.candidates else words
                return replace(won, chosen=self._stressed(work, won.chosen), opts=row.chosen, note=note)
            fate = fate if won is row else failed
            row = replace(row, note=f"{row.note}; {describe(schedule)} {fate}")
        return row

    def _in_turn(self, work: Found, row: RegionResult) -> Iterator[Schedule]:
        """What has its turn of other kinds, in order: before a second choice the first one that is as fast. The result
        was `row` before them."""
        given = set[Schedule]()
        for schedule in work.other_candidates:
            plain = work.better_chosen(schedule)
            if plain is not None and plain not in given:
                seen = self._compared(work, plain, schedule, until=self._until(row))
                if not isinstance(seen, str) and not seen.is_faster:
                    given.add(plain)
                    yield plain
            if schedule not in given:
                given.add(schedule)
                yield schedule

    def _stressed(self, work: Found, one: Finalist) -> Finalist:
        """A finalist with the launches that it has passed under stress, where it needs that."""
        target = self._device.service.target
        if not needs_stress(work.call.region, one.schedule, target):
            return one
        return having_passed(one, self._comparisons.launches(work, one.schedule), target)

    def further(
        self,
        work: Judged,
        row: RegionResult,
        *,
        until: float | None,
        judged: Callable[[Judged], RegionResult | None],
        piece_s: float = PIECE_S,
    ) -> RegionResult | None:
        """The result of a region after a piece more of the launches that its provisional schedule has to pass; None
        where there was no time for it before `until`, or it was ended from outside. Where it failed, what else is
        verified of the region stands: `judged` does that once more, without the schedule, and most of it is known."""
        schedule = row.chosen.schedule
        done = self._comparisons.launches(work, schedule)
        launches = min(done + self._comparisons.piece(work, schedule, piece_s), stress.LAUNCHES)
        why = self._comparisons.stress(work, schedule, launches=launches, until=until)
        if not why.startswith(REJECTED):
            return None if why else replace(row, chosen=self._stressed(work, row.chosen))
        work.refuse(schedule, why.removeprefix(REJECTED))
        again = judged(work)
        return without(row, why) if again is None or again.outcome in ("undecided", "unjudged") else again

    def with_offers(self, work: Found, row: RegionResult, offers: Sequence[tuple[Offer, str]]) -> RegionResult:
        """The result after other kinds, and then the hand-written kernels had their turn: these are in order, each
        with why it is not compared, empty where it is."""
        row = self._with_others(work, row)
        if not work.offers:
            return row
        if why := {"undecided": "the budget was over"}.get(row.outcome) or (
            f"the kernel is {row.outcome}" if row.outcome in ("quarantined", "unjudged") else ""
        ):
            return replace(row, handwritten=tuple((o.name, f"not judged: {why}") for o in work.offers))
        best, opts, fates = row.chosen, row.opts or row.chosen, dict[str, str]()
        for one, refusal in offers:
            if refusal:
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

    def _challenge(self, work: Found, row: RegionResult, schedule: Schedule) -> tuple[RegionResult, str]:
        """One kernel against the best so far, and then against the baseline: the result, and its fate in words."""
        fate, own, won = "", row.baseline.schedule, row
        best = dict.fromkeys((row.chosen.schedule, own))  # once, where nothing beat the baseline so far
        for before in best:
            against = "tinygrad's own schedule" if before == own else describe(before)
            seen = self._compared(work, before, schedule, until=self._until(row))
            if isinstance(seen, str):
                return row, seen
            if not seen.is_faster:
                lost = "lost to" if seen.speed_up[2] < 1.0 else "is not clearly faster than"
                return row, f"{lost} {against}: {seen.words}"
            fate += f"; against {against}: {seen.words}" if fate else f"won against {against}: {seen.words}"
            base, chosen = seen.finalist_before(work), seen.finalist_after(work)
            won = replace(row, baseline=base, chosen=chosen, outcome="improved", noise_floor=seen.noise)
            won = replace(won, clocks=seen.outcome.clocks if seen.outcome else (), ends=_bounds_of(work, seen, won))
        return won, fate  # the last is the comparison with tinygrad's own

    def _compared(self, work: Found, before: Schedule, after: Schedule, *, until: float | None) -> Compared | str:
        """`after` compared with `before`; why it is out, where it is. After `until` nothing new is begun: a region has
        time for one comparison, and what is compared two by two after it takes as long each time."""
        mine, theirs = self._comparisons.side(work, after), self._comparisons.side(work, before)
        if isinstance(mine, str):
            return f"rejected: it does not compile: {mine}"
        if isinstance(theirs, str):
            return f"not compared: {describe(before)} does not compile again: {theirs}"
        seen = self._comparisons.compare(work, theirs, mine, until=until)
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


def _refused(work: Found) -> list[str]:
    """What is said of candidates that make something else of NaN than tinygrad's own schedule."""
    if not work.refused:
        return []
    schedule, reason = next(iter(work.refused.items()))
    more = f" (and {len(work.refused) - 1} more)" if len(work.refused) > 1 else ""
    return [f"{describe(schedule)}{more} is wrong: {reason}"]


def _bounds_of(work: Found, seen: Compared, row: RegionResult) -> tuple[TimedAt, ...]:
    """What was timed at each end of what became the result."""
    if not all(outcome.baseline_cold_s for outcome in seen.at_bounds) or row.outcome == "quarantined":
        return row.ends
    before_s = [median(outcome.baseline_cold_s) for outcome in seen.at_bounds]
    changed = row.chosen is not row.baseline
    after_s = [median(outcome.finalist_cold_s) for outcome in seen.at_bounds] if changed else before_s
    return bounds.timed_at(work.bounds, before_s, after_s)


def without(row: RegionResult, why: str) -> RegionResult:
    """The result of a region without what was chosen, which failed: the best Opts, or tinygrad's own schedule."""
    note = f"{describe(row.chosen.schedule)} {why}; {row.note}".removesuffix("; ")
    chosen = row.opts or row.baseline
    outcome = "kept" if chosen.schedule == row.baseline.schedule else "improved"
    ends = () if outcome == "improved" else tuple(replace(end, after_s=end.before_s) for end in row.ends)
    return replace(row, chosen=chosen, opts=None, outcome=outcome, note=note, ends=ends, store="")


def _differs_at(reason: str) -> str:
    """Why a kernel is wrong, without the number that it made, of which some digits may be others."""
    return re.sub(r"(element \d+ of buffer \d+ is) [^,]+, not", r"\1 not", reason)


def unjudged(work: Found, seen: Verification) -> RegionResult:
    """Nothing is claimed of a kernel of which the reference cannot tell what is right: neither that it is wrong."""
    base = replace(work.as_searched(work.space.baseline()), verification=seen)
    return work.result(base, base, "unjudged", seen.reason)


def quarantined(work: Found, reason: str, verification: Verification = UNVERIFIED) -> RegionResult:
    """tinygrad's own schedule is wrong, or fails: it is kept, as nothing better is known, and the report says why."""
    base = replace(work.as_searched(work.space.baseline()), verification=replace(verification, reason=reason))
    return work.result(base, base, "quarantined", reason)
