"""What paired comparisons showed outlives their run: it is in the journal as soon as one is over, and a run that goes
on (`--resume`) takes it over and does not compare once more.

It is taken over where all is the same that it depends on: the region and the values of its variables, both schedules
and their binaries, target, toolchain, protocol, and the rules of judging. Kept is only a comparison of which everything
was right and timed: a device that is about to be lost may compute wrongly, which says nothing of a schedule. Where the
whole model or script fails with schedules that passed one by one, all that was kept is dropped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import TYPE_CHECKING, Any

from kcg.errors import JournalError, ResultError
from kcg.kernel.kinds import traits_of
from kcg.kernel.program import Compiled, Program
from kcg.measure import verify
from kcg.measure.jobs import ContextOutcome, PairedOutcome
from kcg.measure.protocol import PROTOCOL
from kcg.nouns import noun_from_json, noun_to_json
from kcg.types import Region, Schedule, Target, Toolchain, Variables

if TYPE_CHECKING:
    from kcg.judge.interface import Bench, Found, Subject

RULES = 4
"""How finalists are judged, and the fields of what is kept. A change of either is a new number: what is kept under
another one is not even read, and the region is judged again."""

IN_CONTEXT_RULES = 2  # the same of regions that are timed in their neighbourhood


@dataclass(frozen=True)
class Side:
    """A schedule in a paired comparison, and its binary."""

    schedule: Schedule
    compiled: Compiled


@dataclass(frozen=True)
class Entry:
    """What is kept of a comparison; `binaries` are the hashes of those that took part."""

    binaries: tuple[str, ...]
    outcome: PairedOutcome


class KeptResults:
    """The results that an earlier run left in the journal of a device, and those of this one, which are taken over in
    the same way: what was judged while the search went on is not judged again at its end."""

    def __init__(self, device: Bench, *, resumed: bool) -> None:
        """Those of an earlier run are read only where this one goes on with it."""
        self._device = device
        self._entries = dict(device.journal.paired_results()) if resumed and device.journal is not None else {}
        self._identities: dict[tuple[Any, ...], bytes] = {}  # they are asked for with every estimate

    def holds(self, work: Subject, schedules: Sequence[Schedule]) -> bool:
        """Whether an earlier run left a result of these schedules, at each end of the kernel's values. It may be of
        other binaries, and then counts for nothing."""
        return bool(self._entries) and all(
            self._identity(work, schedules, values) in self._entries for values in work.bindings
        )

    def holds_first(self, work: Found) -> bool:
        """Whether an earlier run, or this one, left a result of what is judged first of this region, and nothing else
        is left."""
        if not self._entries or work.offers:
            return False
        firsts = work.firsts
        pairs = list(combinations(firsts, 2)) if work.other_candidates else [firsts]
        return all(self.holds(work, pair) for pair in pairs)

    def find(self, work: Subject, sides: Sequence[Side], values: Variables) -> PairedOutcome | None:
        """What an earlier run saw of this very comparison with these values of the kernel's variables; None where it
        has to be made.

        Raises:
            JournalError: what the journal holds of it cannot be trusted.
        """
        if not self._entries:
            return None
        text = self._entries.get(self._identity(work, [side.schedule for side in sides], values))
        if text is None:
            return None
        try:
            entry = noun_from_json(Entry, text)
            if not _is_whole(entry.outcome, len(sides)):
                raise ResultError("its samples are not those of a comparison in which all was right")
        except ResultError as error:
            raise self._distrusted(error) from None
        return entry.outcome if entry.binaries == _binaries(sides) else None

    def _distrusted(self, error: ResultError) -> JournalError:
        name = self._device.folder / "journal.sqlite"
        return JournalError(f"{name}: a verdict cannot be trusted ({error}): restore a copy, or start anew")

    def add(self, work: Subject, sides: Sequence[Side], outcome: PairedOutcome, values: Variables) -> None:
        """Store what a comparison with these values showed, where everything was verified and timed."""
        if self._device.journal is not None and _is_whole(outcome, len(sides)):
            schedules, text = [side.schedule for side in sides], noun_to_json(Entry(_binaries(sides), outcome))
            self._device.journal.add_paired_result(self._key(work, schedules, values), text)
            self._entries[self._identity(work, schedules, values)] = text

    def find_in_context(self, region: Region, sides: Sequence[Program]) -> ContextOutcome | None:
        """What an earlier run saw of these two programs of a region and its neighbours; None where it has to be timed.

        Raises:
            JournalError: what the journal holds of it cannot be trusted.
        """
        from kcg.dataset.journal import identity_of

        if not self._entries or (text := self._entries.get(identity_of(self._context_key(region, sides)))) is None:
            return None
        try:
            outcome = noun_from_json(ContextOutcome, text)
            if not _is_timed(outcome):
                raise ResultError("its samples are not those of a comparison in turns")
        except ResultError as error:
            raise self._distrusted(error) from None
        return outcome

    def add_in_context(self, region: Region, sides: Sequence[Program], outcome: ContextOutcome) -> None:
        """Store what timing a region in its neighbourhood showed, where its samples are to be trusted."""
        if self._device.journal is not None and _is_timed(outcome):
            self._device.journal.add_paired_result(self._context_key(region, sides), noun_to_json(outcome))

    def _context_key(self, region: Region, sides: Sequence[Program]) -> list[Any]:
        binaries = [side.binary_hash for side in sides]
        fingerprints = _fingerprints(*self._device.service.facts, own_assembler=True)
        return ["nearby", region.id, binaries, *fingerprints, PROTOCOL, IN_CONTEXT_RULES]

    def forget(self) -> bool:
        """Drop all, since the whole model failed with the schedules that they let through: a run that goes on would
        take them over and end the same way. Whether there was a place to drop them from. Call it before the result is
        written: a run that is killed in between checks the model once more when it goes on."""
        if self._device.journal is None:
            return False
        self._device.journal.forget_paired_results()
        self._entries.clear()
        return True

    def _identity(self, work: Subject, schedules: Sequence[Schedule], values: Variables) -> bytes:
        from kcg.dataset.journal import identity_of

        asked = work.id, values, tuple(schedules), self._device.service.facts, RULES, verify.FINAL_SEEDS
        if (known := self._identities.get(asked)) is None:
            self._identities[asked] = known = identity_of(self._key(work, schedules, values))
        return known

    def _key(self, work: Subject, schedules: Sequence[Schedule], values: Variables) -> list[Any]:
        return [
            work.call.region.id,
            values,
            [[s.kind, s.body] for s in schedules],
            *_fingerprints(
                *self._device.service.facts,
                own_assembler=any(traits_of(schedule).own_assembler for schedule in schedules),
            ),
            PROTOCOL,
            RULES,
            verify.FINAL_SEEDS,
        ]


def _is_whole(outcome: PairedOutcome, sides: int) -> bool:
    """Whether everything of a comparison of so many sides was verified and timed."""
    verifications = [outcome.baseline_verification, outcome.finalist_verification][:sides]
    if outcome.noisy or outcome.tainted or not all(v is not None and v.passed for v in verifications):
        return False
    cold = [outcome.baseline_cold_s, outcome.again_cold_s, outcome.finalist_cold_s][: sides + 1]
    warm = [outcome.baseline_warm_s, outcome.finalist_warm_s][:sides]
    in_turns = len({len(samples) for samples in cold}) == 1
    return in_turns and all(samples and all(0 < s < math.inf for s in samples) for samples in [*cold, *warm])


def _is_timed(outcome: ContextOutcome) -> bool:
    """Whether both sides were timed in turns, and nothing was wrong."""
    samples = [*outcome.parts_s, *outcome.program_s]
    in_turns = len(outcome.parts_s) == len(outcome.program_s) > 0
    return in_turns and not (outcome.reason or outcome.tainted) and all(0 < s < math.inf for s in samples)


def _binaries(sides: Sequence[Side]) -> tuple[str, ...]:
    return tuple(side.compiled.binary_hash for side in sides)


@cache  # they are asked for with every estimate of what judging will take
def _fingerprints(target: Target, toolchain: Toolchain, *, own_assembler: bool) -> tuple[str, str]:
    return target.fingerprint, toolchain.tile_fingerprint if own_assembler else toolchain.fingerprint
