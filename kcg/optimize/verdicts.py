"""Verdicts of the finals that outlive their run: what a paired comparison showed is in the journal as soon as it is
over, and a run that goes on (`--resume`) takes it over and does not judge once more.

It is taken over where all is the same that it depends on: the region and the values of its variables, both schedules
and their binaries, target, toolchain, protocol, and the rules of judging. Kept is only a paired comparison of which
everything was right and timed: a device that is about to be lost may compute wrongly, which is no verdict on a
schedule. Where the whole model or script fails with schedules that passed one by one, all verdicts are dropped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from kcg.errors import JournalError, ResultError
from kcg.kernel.program import Compiled
from kcg.measure import verify
from kcg.measure.jobs import PairedOutcome
from kcg.measure.protocol import PROTOCOL
from kcg.optimize.result import noun_from_json, noun_to_json
from kcg.types import Schedule, Target, Toolchain, Variables

if TYPE_CHECKING:
    from kcg.optimize.session import RegionWork, Session

RULES = 3
"""How finalists are judged, and the fields of what is kept. A change of either is a new number: a verdict under another
one is not even read, and the region is judged again."""


@dataclass(frozen=True)
class Side:
    """A schedule in a paired comparison, and its binary."""

    schedule: Schedule
    compiled: Compiled


@dataclass(frozen=True)
class PairedResult:
    """What is kept of a paired comparison; `binaries` are the hashes of those that took part."""

    binaries: tuple[str, ...]
    outcome: PairedOutcome


def is_known(session: Session, work: RegionWork, schedules: Sequence[Schedule]) -> bool:
    """Whether an earlier run left a verdict on these schedules, at each end of the kernel's values. It may be of other
    binaries, and then counts for nothing."""
    return bool(session.paired_results) and all(
        _identity(session, work, schedules, values) in session.paired_results for values in work.bindings
    )


def taken_over(session: Session, work: RegionWork, sides: Sequence[Side], values: Variables) -> PairedOutcome | None:
    """What an earlier run saw of this very comparison with these values of the kernel's variables; None where it has to
    be fought.

    Raises:
        JournalError: what the journal holds of it cannot be trusted.
    """
    if not session.paired_results:
        return None
    text = session.paired_results.get(_identity(session, work, [side.schedule for side in sides], values))
    if text is None:
        return None
    try:
        result = noun_from_json(PairedResult, text)
        if not _is_paired_result(result.outcome, len(sides)):
            raise ResultError("its samples are not those of a paired comparison in which all was right")
    except ResultError as error:
        name = session.folder / "journal.sqlite"
        raise JournalError(f"{name}: a verdict cannot be trusted ({error}): restore a copy, or start anew") from None
    return result.outcome if result.binaries == _binaries(sides) else None


def keep(session: Session, work: RegionWork, sides: Sequence[Side], outcome: PairedOutcome, values: Variables) -> None:
    """Store what a paired comparison with these values showed, where it is a verdict: everything verified and timed."""
    if session.journal is not None and _is_paired_result(outcome, len(sides)):
        key = _key(session, work, [side.schedule for side in sides], values)
        session.journal.add_paired_result(key, noun_to_json(PairedResult(_binaries(sides), outcome)))


def forget(session: Session) -> None:
    """Drop all verdicts, since the whole model failed with the schedules that they let through: a run that goes on
    would take them over and end the same way. Call it before the result is written: a run that is killed in between
    checks the model once more when it goes on."""
    if session.journal is not None:
        session.journal.forget_paired_results()
        session.warnings.append(
            "the last check failed with these schedules: --resume judges every kernel again; without it, and with "
            "another --seed, they are also searched in another way"
        )


def _is_paired_result(outcome: PairedOutcome, sides: int) -> bool:
    """Whether everything of a paired comparison of so many sides was verified and timed."""
    verifications = [outcome.baseline_verification, outcome.finalist_verification][:sides]
    if outcome.noisy or outcome.tainted or not all(v is not None and v.passed for v in verifications):
        return False
    cold = [outcome.baseline_cold_s, outcome.again_cold_s, outcome.finalist_cold_s][: sides + 1]
    warm = [outcome.baseline_warm_s, outcome.finalist_warm_s][:sides]
    in_turns = len({len(samples) for samples in cold}) == 1
    return in_turns and all(samples and all(0 < s < math.inf for s in samples) for samples in [*cold, *warm])


def _binaries(sides: Sequence[Side]) -> tuple[str, ...]:
    return tuple(side.compiled.binary_hash for side in sides)


def _identity(session: Session, work: RegionWork, schedules: Sequence[Schedule], values: Variables) -> bytes:
    from kcg.dataset.journal import identity_of

    return identity_of(_key(session, work, schedules, values))


def _key(session: Session, work: RegionWork, schedules: Sequence[Schedule], values: Variables) -> list[Any]:
    return [
        work.call.region.id,
        values,
        [[s.kind, s.body] for s in schedules],
        *_fingerprints(*session.service.facts),
        PROTOCOL,
        RULES,
        verify.FINAL_SEEDS,
    ]


@cache  # they are asked for with every estimate of what judging will take
def _fingerprints(target: Target, toolchain: Toolchain) -> tuple[str, str]:
    return target.fingerprint, toolchain.fingerprint
