"""What a store has of the regions of a run: looked up, judged as any finalist, and used only where it proves true.

This comes before anything of a region is searched. So an entry that is wrong, that is slower than it claims, or that
does not apply costs one comparison: its region is then searched as if there were none. A region of which the store has
a schedule that proved true is neither searched nor judged again.

A region of which the store has that a search found nothing is not searched again, unless this run would search it for
clearly longer. Nothing is verified of that: it can cost a gain. A kernel keeps tinygrad's own schedule then, and of a
region of several its kernels run alone.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kcg.cli import counted
from kcg.errors import DataError, KcgError, ScheduleError, UsageError
from kcg.kernel.kinds import describe
from kcg.measure.device_info import first_line
from kcg.nouns import plain
from kcg.optimize.judging import Judging, JudgingSettings
from kcg.optimize.search import share_efforts
from kcg.optimize.settings import EFFORTS
from kcg.optimize.work import Candidates, missing_share, noun_for
from kcg.report.result import NO_OTHER, ONCE, UNTIMED
from kcg.search.problem import Observation
from kcg.store.entry import LONGEST_SEARCH_S, Entry, Nothing, entries_of
from kcg.store.folder import Found, Store
from kcg.types import Finalist, RegionResult, Result, Schedule, Status
from kcg.unexpected import report

if TYPE_CHECKING:
    from kcg.judge.paired import Compared
    from kcg.optimize.device import Device
    from kcg.optimize.estimates import Estimates
    from kcg.optimize.log import RunLog
    from kcg.optimize.settings import Settings
    from kcg.optimize.work import RegionWork

SLACK: Final = 1.25
"""So many times less than its claim a speed-up may be, beside both intervals and the noise, before the claim counts as
refuted: two runs on one busy CPU differed by up to a fifth in what neither had changed."""
NEARLY: Final = 0.999  # of the time of the best that is known a schedule of a store is expected to take, at most
LONGER: Final = 1.5
"""A search that is to take so many times as long as one that found nothing is not spared by it."""
WEIGHTIER: Final = 4.0
"""Nor where a kernel has so many times the share of this workload's time: on a busy CPU shares differ by twice between
runs of the same."""
SPARED: Final = "an earlier search found nothing"  # begins the note of a kernel that is not searched
TIE: Final = 1.05  # a speed-up that lies below this with its whole interval is nothing that was found
LONGEST_REASON: Final = 400  # characters of why an entry is not used
SAYING_NOTHING: Final = ("undecided", "unjudged", "quarantined")
"""Outcomes that say nothing of an entry: there was no time, or tinygrad's own schedule is what cannot be judged."""


@dataclass
class Stored:
    """The store of one run, and which of its entries did not prove true."""

    store: Store
    allow_tf32: bool
    refuted: defaultdict[str, list[Path]] = field(default_factory=lambda: defaultdict(list))  # by the region's work
    unclear: defaultdict[str, list[Schedule]] = field(default_factory=lambda: defaultdict(list))  # by the same
    warned: set[Path] = field(default_factory=set)
    claims: dict[str, Nothing] = field(default_factory=dict)  # by the region's work: that nothing is to be found
    used: dict[tuple[str, Schedule], Found] = field(default_factory=dict)  # what proved true, by the region's work

    def look_for_nothing(self, works: Sequence[RegionWork], settings: Settings, *, device: Device, log: RunLog) -> None:
        """Read of which regions the store has that a search like this one found nothing. A run that counts its
        measurements says nothing of how long it searches: it asks for none."""
        if settings.measurements is not None:
            return
        target, toolchain = device.service.facts
        for work in works:

            def warn(bad: Found, work: RegionWork = work) -> None:
                self._refute(work, bad, bad.problem, log=log)

            found = self.store.nothing_for(
                work.call.region.id,
                work.bindings,
                target,
                toolchain,
                search=settings.search,
                allow_tf32=self.allow_tf32,
                warn=warn,
            )
            if found is not None and work.stored is None and work.id not in self.unclear:
                self.claims[work.id] = found

    def leave_out(self, works: Sequence[RegionWork], estimates: Estimates, *, log: RunLog) -> None:
        """Leave those regions out of the search that this run would not search for clearly longer than an earlier one
        that found nothing, once tinygrad's own schedules are timed: either all kernels, or all regions of several."""
        if not self.claims:
            return
        share_efforts(works, _search_s(works, estimates))
        asked = [work for work in works if work.is_missing and work.baseline_s and work.id in self.claims]
        left = [work for work in asked if _stands_for(self.claims[work.id], work)]
        for work in left:
            tried = counted(self.claims[work.id].tried, "other")
            work.nothing = f"{SPARED} faster among {tried}, says the store {self.store.location}"
        if left:
            many = counted(len(left), noun_for(left))
            log.progress.line(f"kcg: the store has that a search of {many} found nothing: they are not searched again")

    def holds(self, works: Sequence[RegionWork], *, device: Device, log: RunLog) -> list[RegionWork]:
        """Those of which it has a schedule that can be planned."""
        found = self._entries(works, device=device, log=log)
        return [work for work in works if work.id in found]

    def _entries(self, works: Sequence[RegionWork], *, device: Device, log: RunLog) -> dict[str, list[Found]]:
        """What the store has of these regions and can be planned for them, by `RegionWork.id`."""
        target, toolchain = device.service.facts
        found: dict[str, list[Found]] = {}
        for work in works:

            def warn(bad: Found, work: RegionWork = work) -> None:
                self._refute(work, bad, bad.problem, log=log)

            seen = self.store.look_up(
                work.call.region.id, work.bindings, target, toolchain, allow_tf32=self.allow_tf32, warn=warn
            )
            usable = []
            for one in seen:
                if work.proposed and _entry(one).chosen.schedule.kind == work.kind:
                    continue  # its parts are searched as kernels
                if why := _why_unplanned(work, _entry(one).chosen.schedule):
                    self._refute(work, one, why, log=log)
                else:
                    usable.append(one)
            if usable:
                found[work.id] = usable
        return found

    def verify(
        self,
        works: Sequence[RegionWork],
        estimates: Estimates,
        *,
        device: Device,
        log: RunLog,
        judged: dict[str, RegionResult],
        in_new_child: bool = False,
    ) -> None:
        """Judge what the store has of these regions. What proves true is in `RegionWork.stored`, and in `judged`. Each
        is known by its claims until then, and afterwards by what was measured, or not at all."""
        found = self._entries(works, device=device, log=log)
        hits = [work for work in works if work.id in found]
        if not hits:
            return
        many = counted(len(hits), noun_for(hits))
        log.progress.phase(f"re-timing and verifying what the store has for {many}")
        before = {work.id: {kind: dict(seen) for kind, seen in work.seen.items()} for work in hits}
        seen: dict[str, RegionResult] = {}
        try:
            for work in hits:
                _expect(work, [_entry(one) for one in found[work.id]])
            here = replace(estimates, measured=replace(estimates.measured, works=hits, at=time.monotonic()))
            how = JudgingSettings(completes=False, in_new_child=in_new_child)
            judging = Judging(Candidates(hits), here, device=device, log=log, judged=seen, settings=how)
            judging.run()
        finally:
            for work in hits:
                work.seen = before[work.id]
        for work in hits:
            if (row := seen[work.id]).outcome not in SAYING_NOTHING:
                self._take_in(work, row, found[work.id], judging.seen, log=log, judged=judged)
        if unclear := sum(map(len, self.unclear.values())):
            what = counted(unclear, "schedule")
            log.alert(f"{what} of the store could not be told from tinygrad's own: the search goes on from there")

    def _take_in(
        self,
        work: RegionWork,
        row: RegionResult,
        found: Sequence[Found],
        seen: Mapping[tuple[str, Schedule], Compared],
        *,
        log: RunLog,
        judged: dict[str, RegionResult],
    ) -> None:
        chosen = {one.schedule for one in (row.chosen, row.opts) if one is not None} - {row.baseline.schedule}
        true = list[Schedule]()
        for one in found:
            entry, schedule = _entry(one), _entry(one).chosen.schedule
            compared = seen.get((work.id, schedule))
            if why := _why_refuted(entry, compared, row):
                self._refute(work, one, why, log=log)
            elif schedule in chosen:
                true.append(schedule)
                self.used[work.id, schedule] = one
            elif compared is not None and not _is_faster(compared):
                self.unclear[work.id].append(schedule)
            elif "rejected: " in row.note:  # under stress, after it was compared
                self._refute(work, one, row.note, log=log)
        if not true:
            return
        where = self.store.location if row.chosen.schedule in true else ""
        note = f"from the store {where}; {row.note}" if where else row.note
        judged[work.id] = work.stored = replace(row, store=where, note=note)
        self.unclear.pop(work.id, None)
        for side in (row.baseline, row.chosen, row.opts):
            if side is not None:
                work.keep(_measured(side))

    def refute(self, failed: Mapping[str, Schedule], works: Sequence[RegionWork], *, log: RunLog) -> None:
        """Say of what proved true, and failed in a later launch under stress, that it is not used. It leaves the store:
        the next one to use it may not see that launch."""
        for work in works:
            if (schedule := failed.get(work.id)) is not None and (
                one := self.used.get((work.id, schedule))
            ) is not None:
                self._refute(work, one, work.refused[schedule], log=log)
                if self.store.writable:
                    try:
                        self.store.refute(_entry(one))
                    except DataError as error:
                        log.progress.line(f"kcg: {one.path} may still be there: {error}", important=True)

    def measure_unclear(self, works: Sequence[RegionWork], *, device: Device) -> None:
        """Measure what could be neither confirmed nor refuted, as a search does: from there it goes on."""
        for work in works:
            for schedule in self.unclear.get(work.id, ()):
                for future in device.measure(work, [schedule]):
                    work.keep(future.result())
        device.check_journal()

    def _refute(self, work: RegionWork, one: Found, why: str, *, log: RunLog) -> None:
        """Say once why an entry is not used."""
        self.refuted[work.id].append(one.path)
        if one.path not in self.warned:
            self.warned.add(one.path)
            name, why = name_of_work(work), plain(why, LONGEST_REASON)
            log.alert(
                f"{one.path} for {name} is not used, which is searched as if it were not there: {why}", important=True
            )

    def say_read_only(self, log: RunLog) -> None:
        """That nothing is added, where that is so."""
        if not self.store.writable:
            log.progress.line(f"kcg: the store {self.store.location} is only read: nothing is added", important=True)

    def add_nothing(
        self,
        result: Result,
        works: Sequence[RegionWork],
        settings: Settings,
        *,
        judged: Mapping[str, RegionResult],
        seen: Mapping[tuple[str, Schedule], Compared],
        log: RunLog,
    ) -> None:
        """Keep of which regions the search of this run found nothing; `seen` are the comparisons of what it found."""
        if not self.store.writable or settings.measurements is not None:
            return
        found = [w for w in works if w.is_missing and w.id in judged and _found_nothing(w, judged[w.id], seen)]
        failed: list[KcgError] = []
        for work in found:
            try:
                self.store.add_nothing(_nothing(result, work, settings), instead_of=self.refuted[work.id])
            except (UsageError, DataError) as error:
                failed.append(error)
        _say_failed("for what nothing was found", failed, log=log)

    def add(self, result: Result, judged: Mapping[str, RegionResult], *, log: RunLog) -> int:
        """Keep what this run found and verified; how many schedules the store did not have."""
        if not self.store.writable:
            return 0
        added, failed, wrong = 0, list[KcgError](), _in_wrong_plans(result)
        for name, row in judged.items():
            if row.region.id in wrong or (row.store and not self._is_further(name, row)):
                continue
            try:
                for entry in entries_of(result, [row]):
                    added += self.store.add(entry, instead_of=self.refuted[name])
            except (UsageError, DataError) as error:
                failed.append(error)
        _say_failed("what was found", failed, log=log)
        if added:
            log.progress.line(f"kcg: {counted(added, 'schedule')} added to the store {self.store.location}")
        return added

    def _is_further(self, name: str, row: RegionResult) -> bool:
        """Whether what came from the store passed more launches than it had there."""
        one = self.used.get((name, row.chosen.schedule))
        return one is not None and _entry(one).provisional and row.chosen.launches > _entry(one).launches


def _say_failed(what: str, errors: Sequence[KcgError], *, log: RunLog) -> None:
    """That some of what a store was to keep is not there, in one line: the errors of a full disk are all the same."""
    if errors:
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        log.progress.line(f"kcg: the store does not get {what}: {errors[0]}{more}", important=True)


def _in_wrong_plans(result: Result) -> set[str]:
    """Regions of several kernels that a whole step was wrong with, but for those of the chosen plan; and what was left
    out of that since the whole was wrong with it."""
    plans = result.planning.plans if result.planning is not None else ()
    found = {name for plan in plans if plan.passed is False for name in plan.regions}
    found -= {row.region.id for row in result.regions}
    return found | {one.region for one in result.dropped}


def _stands_for(claim: Nothing, work: RegionWork) -> bool:
    """Whether a search of a kernel that found nothing was about what it would have in this run, or more."""
    return work.search_s <= LONGER * claim.search_s and work.share <= WEIGHTIER * claim.share


def _search_s(works: Sequence[RegionWork], estimates: Estimates) -> float:
    """How long this run would search what is missing."""
    if estimates.budget.limit_s is not None:
        return estimates.search_until() - time.monotonic()
    return missing_share(works) * EFFORTS[estimates.settings.effort].search_s


def _found_nothing(work: RegionWork, row: RegionResult, seen: Mapping[tuple[str, Schedule], Compared]) -> bool:
    """Whether a search of a region is over and there was nothing faster, of several kernels nothing faster than these
    alone: a comparison that noise decided is no such."""
    if not work.search_s or row.note in (NO_OTHER, ONCE, UNTIMED):
        return False
    candidates = () if work.proposed else work.candidates  # its parts are what a program of it has to beat
    if not (candidates or work.by_kind or work.offers):
        return row.outcome in ("kept", "not searched")
    parts = work.kind if work.proposed else None
    compared = [one for (name, schedule), one in seen.items() if name == work.id and schedule.kind != parts]
    ties = bool(compared) and all(_is_timed(one) and one.speed_up[2] < TIE for one in compared)
    by_parts = work.proposed and row.outcome == "improved" and row.chosen.schedule.kind == parts
    return (row.outcome == "kept" or by_parts) and ties


def _nothing(result: Result, work: RegionWork, settings: Settings) -> Nothing:
    return Nothing(
        region=work.call.region,
        ends=work.bindings,
        target=result.target,
        toolchain=result.toolchain,
        search_s=min(work.search_s, LONGEST_SEARCH_S),
        share=work.share,
        tried=work.tried,
        search=settings.search,
        allow_tf32=settings.allow_tf32,
        kcg_version=result.kcg_version,
        revision=result.revision,
        dirty=result.dirty,
        created=result.created,
    )


def covered(work: RegionWork, works: Sequence[RegionWork]) -> bool:
    """Whether what a store has takes all calls of a kernel of a region of several: it occurs nowhere beside that."""
    calls = {one.call.region.id: one.call.calls for one in works if not one.proposed}
    taken = sum((one.taken for one in works if one.proposed and one.stored), Counter[str]())
    return any(taken[kernel] >= calls.get(kernel, 0) for kernel in work.taken)


def name_of_work(work: RegionWork) -> str:
    """What a region is called before there is a result of it."""
    return work.space.name(work.space.baseline()) or work.call.region.id[:12]


def _entry(found: Found) -> Entry:
    assert found.entry is not None, "what cannot be used was left out"
    return found.entry


def _why_unplanned(work: RegionWork, schedule: Schedule) -> str:
    """Why a schedule does not apply to its region here; empty where it does."""
    if (space := work.space_of(schedule)) is None:
        return f"there are no programs of kind {schedule.kind} for it here"
    try:
        space.check(schedule)
    except ScheduleError as error:
        return f"it does not apply: {first_line(error)}"
    except Exception as error:  # whatever a foreign one brings up
        report("whether a schedule of the store applies", error)
        return f"it does not apply: {type(error).__name__}: {first_line(error)}"
    return ""


def _expect(work: RegionWork, entries: Sequence[Entry]) -> None:
    """Know the schedules of a store by what is claimed of them, as a search would have found them."""
    own = work.space.baseline()
    if own not in work.known:
        slowest_s = max(entry.baseline.cold_s for entry in entries)
        work.keep(Observation(own, Status.OK, slowest_s, binary_hash="claimed:own"))
    for entry in sorted(entries, key=lambda entry: -entry.chosen.cold_s):  # each is faster than what is known
        seconds = min(entry.chosen.cold_s, work.baseline_s / entry.speed_up, NEARLY * work.best_s)
        work.keep(Observation(entry.chosen.schedule, Status.OK, seconds, binary_hash=f"claimed:{entry.id}"))


def _measured(side: Finalist) -> Observation:
    return Observation(side.schedule, Status.OK, side.cold_s, binary_hash=side.binary_hash)


def _why_refuted(entry: Entry, compared: Compared | None, row: RegionResult) -> str:
    """Why an entry is not true, by the last comparison of its schedule and the result of its region; empty where it may
    be. What does not get so far as a comparison has no program of its own."""
    words = describe(entry.chosen.schedule)
    if compared is None:
        return row.note if words in row.note else f"{words}: {row.note}"
    outcome = compared.outcome
    if outcome is None:
        return f"{words}: {compared.reason}"
    verified = outcome.finalist_verification
    if verified is None or not verified.passed:
        return "" if verified is None or verified.unjudged else f"{words} is wrong: {verified.reason}"
    if not _is_timed(compared):
        return ""
    claimed = entry.baseline.interval_s[0] / entry.chosen.interval_s[1]
    if compared.before.schedule == row.chosen.schedule:  # the best of all others, which it had to beat
        claimed *= row.chosen.cold_s / row.baseline.cold_s
    if compared.speed_up[2] * (1 + compared.noise) * SLACK >= claimed:
        return ""
    return f"{words} is slower than claimed: {compared.words}, and {entry.speed_up:.2f}× is claimed"


def _is_timed(compared: Compared) -> bool:
    outcome = compared.outcome
    return outcome is not None and not outcome.noisy and bool(outcome.finalist_cold_s)


def _is_faster(compared: Compared) -> bool:
    return _is_timed(compared) and compared.is_faster
