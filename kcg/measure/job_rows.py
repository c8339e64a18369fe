"""What a call in a child, or in a pool's own thread, is as a `Job`: of what kind, about what, how it ended, and what it
showed that a program saves. The calls of `kcg.measure.pools`, by the names of their functions."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from typing import Any, Final

from kcg.errors import VerificationError
from kcg.kernel.program import Executable
from kcg.measure.calls import Call
from kcg.measure.jobs import (
    CompileJob,
    CompileOutcome,
    ContextJob,
    ContextOutcome,
    JointJob,
    JointOutcome,
    NanJob,
    NanOutcome,
    PairedJob,
    PairedOutcome,
    StressJob,
    StressOutcome,
    TimeJob,
    TimeOutcome,
)
from kcg.measure.pools import ServiceClosed
from kcg.measure.protocol import median
from kcg.types import Job, JobKind, JobOutcome, Region, Schedule

HASH_DIGITS: Final = 16  # of a hash that tell it from the others: as many as a published dataset keeps of a binary's
MAIN: Final = "main"  # the resource of what the command's own process does
KINDS: Final = {
    "compile_job": JobKind.COMPILE,
    "first_program_job": JobKind.COMPILE,  # that with which a space begins
    "first_references_job": JobKind.REFERENCE,
    "references_job": JobKind.REFERENCE,
    "time_job": JobKind.TIME,
    "paired_job": JobKind.PAIRED,
    "joint_job": JobKind.JOINT,
    "nan_job": JobKind.NAN,
    "stress_job": JobKind.STRESS,
    "context_job": JobKind.IN_CONTEXT,
    "unsupported_job": JobKind.REGIONS,
    "detect_job": JobKind.PROCESSES,
    "rehearsal_job": JobKind.PROCESSES,
    "canary_job": JobKind.PROCESSES,
    "replace_child": JobKind.PROCESSES,
}


def job_of(call: Call, resource: str) -> Job:
    """A call as a job on a resource."""
    asked = call.args[0] if call.args else None
    region = asked if isinstance(asked, Region) else getattr(asked, "region", None)
    return Job(
        kind=_kind_of(call.function),
        subject=region.id if isinstance(region, Region) else "",
        resource=resource,
        start_s=call.begin_s,
        seconds=call.end_s - call.begin_s,
        outcome=_ended(call.error) if call.error is not None else _outcome_of(call.result),
        saving_s=_saving_s(call.result),
        schedule=schedule_digits(asked.schedule) if isinstance(asked, CompileJob) else "",
        binaries=tuple(one.binary_hash[:HASH_DIGITS] for one in _programs(asked, call.result)),
        sampled_s=_sampled_s(call.result),
    )


def taken_over(kind: JobKind, region: Region, schedule: Schedule | None, programs: Sequence[Executable]) -> Job:
    """What need not be done again, as a job of this process that takes no time."""
    digits = "" if schedule is None else schedule_digits(schedule)
    binaries = tuple(one.binary_hash[:HASH_DIGITS] for one in programs)
    now, outcome = time.monotonic(), JobOutcome.TAKEN_OVER
    return Job(kind, region.id, MAIN, now, 0.0, outcome, schedule=digits, binaries=binaries)


def schedule_digits(schedule: Schedule) -> str:
    """The first digits of a schedule's id, as a job has them."""
    return schedule.id[:HASH_DIGITS]


def _kind_of(function: Callable[..., Any] | None) -> str:
    if function is None:
        return JobKind.PROCESSES
    name = getattr(function, "__name__", "other")
    return KINDS.get(name) or name.removesuffix("_job").replace("_", " ")


def _programs(asked: object, result: object) -> Sequence[Executable]:
    match asked:
        case TimeJob() | StressJob():
            return [asked.compiled]
        case PairedJob():
            return [asked.baseline, *([] if asked.finalist is None else [asked.finalist])]
        case JointJob() | NanJob() | ContextJob():
            return asked.sides
    return [result.compiled] if isinstance(result, CompileOutcome) else []


def _ended(error: BaseException) -> JobOutcome:
    match error:
        case ServiceClosed() | CancelledError():
            return JobOutcome.STOPPED
        case TimeoutError():
            return JobOutcome.LATE
        case VerificationError():
            return JobOutcome.UNJUDGED
    return JobOutcome.FAILED


def _outcome_of(result: object) -> JobOutcome:
    match result:
        case TimeOutcome():
            return _first(unjudged=result.unjudged, wrong=result.wrong, noisy=result.noisy)
        case PairedOutcome():
            return _of_pair(result)
        case JointOutcome():  # without pairs one of them does not verify: two by two they say which
            ends = [_of_pair(pair) for pair in result.pairs] or [JobOutcome.FAILED]
            return next((end for end in ends if end != JobOutcome.OK), JobOutcome.OK)
        case NanOutcome():
            return _first(wrong=any(result.differ))
        case ContextOutcome():
            return _first(noisy=result.reason)
        case StressOutcome():
            return _first(wrong=result.wrong)
    return JobOutcome.OK


def _of_pair(pair: PairedOutcome) -> JobOutcome:
    failed = [one for one in (pair.baseline_verification, pair.finalist_verification) if one and not one.passed]
    unjudged = any(one.unjudged for one in failed)
    return _first(unjudged=unjudged, wrong=bool(failed), noisy=pair.noisy)


def _first(*, unjudged: str | bool = "", wrong: str | bool = "", noisy: str | bool = "") -> JobOutcome:
    found = ((JobOutcome.UNJUDGED, unjudged), (JobOutcome.WRONG, wrong), (JobOutcome.NOISY, noisy))
    return next((outcome for outcome, is_so in found if is_so), JobOutcome.OK)


def _saving_s(result: object) -> float | None:
    """What one execution is faster by, where both programs were timed together; of several the most."""
    match result:
        case PairedOutcome() if result.finalist_cold_s:
            return median(result.baseline_cold_s) - median(result.finalist_cold_s)
        case JointOutcome() if result.pairs:
            own = result.pairs[0].baseline_cold_s  # the first pairs are of the baseline
            saved = [_saving_s(pair) for pair in result.pairs if pair.baseline_cold_s == own]
            return max((one for one in saved if one is not None), default=None)
        case ContextOutcome() if result.parts_s:
            return median(result.parts_s) - median(result.program_s)
    return None


def _sampled_s(result: object) -> float | None:
    match result:
        case TimeOutcome() if result.samples_s:
            return sum(result.samples_s)
        case PairedOutcome() if result.baseline_cold_s:
            return sum(sum(samples_s) for samples_s in _samples_of(result))
        case JointOutcome() if result.pairs:
            # a side is in several pairs
            return sum(sum(one) for one in {one for pair in result.pairs for one in _samples_of(pair)})
        case ContextOutcome() if result.parts_s:
            return sum(result.parts_s) + sum(result.program_s)
    return None


def _samples_of(pair: PairedOutcome) -> tuple[tuple[float, ...], ...]:
    return (
        pair.baseline_cold_s,
        pair.again_cold_s,
        pair.baseline_warm_s,
        pair.finalist_cold_s,
        pair.finalist_warm_s,
    )
