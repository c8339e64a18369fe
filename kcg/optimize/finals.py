"""The last word on every region: finalists re-timed beside the baseline in a fresh process, and verified.

A finalist is chosen only if it verifies and its paired speed-up over the baseline is above 1 with its whole confidence
interval; otherwise tinygrad's own schedule is kept, and it is said why. A region for which nothing faster was found has
no finalist: the time of its baseline stands as the search measured it, the same before and after, and it is not called
verified. The budget is kept: what it leaves no time to judge keeps tinygrad's own schedule too.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from concurrent.futures import wait
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from kcg import __version__
from kcg.errors import DeviceError
from kcg.kernel.source.body import source_body
from kcg.measure.jobs import PairedJob, PairedOutcome
from kcg.measure.pools import ServiceClosed
from kcg.measure.protocol import PROTOCOL, median, median_interval, spread
from kcg.measure.service import paired_rows
from kcg.measure.verify import FINAL_SEEDS
from kcg.optimize import ends, estimates
from kcg.optimize.handwritten import comparison
from kcg.optimize.result import NO_OTHER, TIME_OVER, USED_UP
from kcg.optimize.verdicts import Side, is_known, keep, taken_over
from kcg.provenance import provenance
from kcg.types import (
    RAW,
    Finalist,
    RegionResult,
    Result,
    Schedule,
    ScheduleKind,
    SeenAs,
    Status,
    TimedAt,
    Variables,
    Verification,
    Workload,
)

if TYPE_CHECKING:
    from kcg.kernel.program import Compiled
    from kcg.kernel.symbolic import End
    from kcg.measure.verify import References
    from kcg.optimize.session import RegionWork, Session

TRIES = 2  # finalists per region, the second only if the first is wrong
PAIRED_TIMEOUT_S = 120.0  # at least
REFERENCES_TIMEOUT_S = 30.0  # references of one region, in a process beside
PAIRED_RUNS = 200  # launches of a paired comparison, with room for samples that are taken again
UNVERIFIED = Verification(False, reason="the run ended before it was verified")
CHECKED = "not verified: it is tinygrad's own schedule, checked on one seed"


@dataclass(frozen=True)
class Judged:
    """What a paired comparison showed of one finalist."""

    outcome: PairedOutcome | None
    reason: str = ""  # why there is no outcome
    late: bool = False  # the budget was over before there was one
    at_ends: tuple[PairedOutcome, ...] = ()  # what `outcome` is the mean of, see `ends`


def judge_all(session: Session) -> tuple[RegionResult, ...]:
    """Judge every region that has a candidate, where most is to be gained first, while the budget lasts; the verdicts
    that an earlier run left are taken over. The others are as the search left them."""
    order = sorted((w for w in session.works if is_due(session, w)), key=lambda w: (-_saving_s(w), -_share_s(w)))
    for work in session.works:
        if work not in order:
            session.judged[work.id] = comparison(session, work, _as_searched(session, work))
    pace = estimates.Pace(session)
    if any(pace.allows(work) for work in order):
        session.service.fresh_child()
        _compute_references(session, order)
        _precompile(session)
    try:
        for count, work in enumerate(order, 1):
            if pace.allows(work):
                with pace.judging(work):
                    session.judged[work.id] = comparison(session, work, _judge(session, work))
            else:
                session.judged[work.id] = comparison(session, work, _too_late(session, work))
            elapsed = time.monotonic() - session.started
            session.progress.update(
                done_s=elapsed,
                budget_s=session.expected_s(),
                measurements=session.ledger.measurements,
                kernels=(count, len(order)),
                total_s=sum(session.judged.get(w.id, w).after_s for w in session.works),
            )
    finally:
        _warn_of_unjudged(session, len(order))
    return tuple(session.judged[w.id] for w in session.works)


def _warn_of_unjudged(session: Session, count: int) -> None:
    if spared := len(session.taken_over - session.fought):
        session.warnings.append(
            f"the verdicts on {spared} of {count} kernels are those of an earlier run: they were not judged again"
        )
    if session.undecided:
        session.warnings.append(
            f"the budget left no time to judge {session.undecided} of {count} kernels: they keep "
            "tinygrad's own schedule"
        )


def _share_s(work: RegionWork) -> float:
    return work.call.calls * work.baseline_s


def _saving_s(work: RegionWork) -> float:
    """What its first candidate would save of one execution, by the search."""
    first = candidates(work)[:1] if work.baseline_s else []
    return sum(work.call.calls * (work.baseline_s - work.known[schedule].time_s) for schedule in first)


def candidates(work: RegionWork) -> list[Schedule]:
    """The schedules that a search found faster than the baseline, fastest first."""
    baseline = work.space.baseline()
    limit = work.baseline_s or float("inf")
    faster = [s for s in work.ranked() if s != baseline and work.known[s].time_s < limit]
    return faster[:TRIES]


def is_due(session: Session, work: RegionWork) -> bool:
    """Whether a region is judged: something was found for it, or it has no measurement that could stand."""
    if work.is_unjudged or (session.untimed and not work.is_timed):
        return False
    if session.settings.measurements == 0 or work.own is None or work.own.status != Status.OK:
        return True
    return bool(work.offers) or bool(candidates(work))


def is_judged(session: Session, work: RegionWork) -> bool:
    """Whether an earlier run left a verdict on what would be judged of this region first, and nothing else is left."""
    first = candidates(work)[:1] if session.paired_results else []
    return not work.offers and is_known(session, work, [work.space.baseline(), *first])


def _sides(session: Session) -> list[tuple[RegionWork, Schedule]]:
    """The baseline and the first finalist of everything that is to be judged."""
    due = [work for work in session.works if is_due(session, work)]
    return [(work, schedule) for work in due for schedule in (work.space.baseline(), *candidates(work)[:1])]


def compiling_s(session: Session) -> float:
    """About how long it takes to compile those of them that this run has not compiled, as one that goes on has not."""
    service = session.service
    wanted = [(w, s) for w, s in _sides(session) if not service.has_compiled(w.call.region, s, *w.bindings)]
    return sum(work.compile_s.get(schedule, 0.0) for work, schedule in wanted) / service.compile_workers


def _precompile(session: Session) -> None:
    """Compile what is to be judged before the first paired comparison: on a CPU nothing may compile while one runs."""
    expected_s = compiling_s(session)
    sent = [session.service.compiled(w.call.region, s, *w.bindings) for w, s in _sides(session)]
    wait(sent, timeout=estimates.patience_s(session, expected_s))


def _compute_references(session: Session, order: Sequence[RegionWork]) -> None:
    """On a GPU, let the compiling children compute the references of these regions while the device times others."""
    if session.choice.device == "CPU":
        return  # nothing may disturb a sample
    from kcg.measure.verify import references_job

    for work in (w for w in order if not is_judged(session, w)):
        for values in work.bindings:
            session.references[work.id, values] = session.service.beside(
                references_job, work.call.region, values, FINAL_SEEDS, timeout_s=REFERENCES_TIMEOUT_S
            )


def _references(session: Session, work: RegionWork, values: Variables) -> References | None:
    """The references of a region; None where they are computed with the verification, or could not be before it."""
    future = session.references.get((work.id, values))
    if future is None or future.exception() is not None:
        return None
    references: References = future.result()
    return references


def compiled_for(session: Session, work: RegionWork, schedule: Schedule) -> Compiled:
    outcome = session.service.compiled(work.call.region, schedule, *work.bindings).result()
    compiled: Compiled = outcome.compiled
    return compiled.at(work.call.variables)


def _judge(session: Session, work: RegionWork) -> RegionResult:
    baseline_schedule = work.space.baseline()
    try:
        baseline = compiled_for(session, work, baseline_schedule)
    except (DeviceError, ServiceClosed):  # says nothing of the kernel
        raise
    except Exception as error:  # whatever the compiler raised, the region is reported, not the run ended
        return _quarantined(session, work, f"tinygrad's own schedule does not compile: {_line(error)}")
    notes: list[str] = []
    for schedule in [*candidates(work), None]:
        finalist: Compiled | None = None
        if schedule is not None:
            try:
                finalist = compiled_for(session, work, schedule)
            except (DeviceError, ServiceClosed):
                raise
            except Exception as error:
                notes.append(f"{schedule} does not compile: {_line(error)}")
                continue
            if finalist.binary_hash == baseline.binary_hash:
                continue  # tinygrad's own choice by another name
        ours = None if schedule is None or finalist is None else Side(schedule, finalist)
        judged = compare_paired(session, work, Side(baseline_schedule, baseline), ours)
        if judged.late:
            return _too_late(session, work)
        if judged.outcome is None:
            if schedule is None:
                return _quarantined(session, work, f"tinygrad's own schedule fails: {judged.reason}")
            notes.append(f"{schedule}: {judged.reason}")
            continue
        if (result := _decide(session, work, baseline, finalist, schedule, judged.outcome, notes)) is not None:
            return replace(result, clocks=judged.outcome.clocks, ends=ends_of(work, judged, result))
    raise AssertionError("the baseline alone always decides")


def compare_paired(session: Session, work: RegionWork, baseline: Side, finalist: Side | None) -> Judged:
    """Verify and time both in turns, or the baseline alone, and record what was seen; or take over what an earlier run
    saw of the same. All this at each end of the kernel's values, and not at the second what is wrong at the first."""
    outcomes: list[PairedOutcome] = []
    for end in work.ends:
        judged = _paired_at(session, work, end, baseline, finalist)
        if judged.outcome is None:
            return replace(judged, reason=ends.reason_at(work.ends, end, judged.reason))
        outcomes.append(judged.outcome)
        if not judged.outcome.baseline_cold_s:
            break
    return Judged(ends.outcome(work.ends, outcomes), at_ends=tuple(outcomes))


def _paired_at(session: Session, work: RegionWork, end: End, baseline: Side, finalist: Side | None) -> Judged:
    sides = [baseline] if finalist is None else [baseline, finalist]
    if (seen := taken_over(session, work, sides, end.variables)) is not None:
        session.taken_over.add(work.id)
        return Judged(seen)
    session.fought.add(work.id)
    job = PairedJob(
        work.call.region,
        baseline.compiled.at(end.variables),
        finalist.compiled.at(end.variables) if finalist is not None else None,
        session.service.target,
        end.variables,
        seeds=FINAL_SEEDS,
        references=_references(session, work, end.variables),
    )
    future = session.service.compare_paired(job, timeout_s=PAIRED_TIMEOUT_S + PAIRED_RUNS * work.longest_s)
    expected_s = estimates.FRESH_CHILD_S + estimates.paired_s(session, work)
    _, waiting = wait([future], timeout=estimates.patience_s(session, expected_s))
    if waiting:  # nothing is blamed on a kernel whose process was stopped, say
        return Judged(None, late=True)
    try:
        outcome = future.result()
    except (DeviceError, ServiceClosed):
        raise
    except Exception as error:  # a crash or a hang of the child is the finalist's, not the run's
        return Judged(None, f"{type(error).__name__}: {_line(error)}")
    session.record(
        paired_rows(
            job,
            outcome,
            baseline.schedule,
            finalist.schedule if finalist is not None else None,
            toolchain=session.service.toolchain.fingerprint,
            run_id=session.run_id,
        )
    )
    keep(session, work, sides, outcome, end.variables)  # last: where it is kept, its measurements are
    return Judged(outcome)


def ends_of(work: RegionWork, judged: Judged, result: RegionResult) -> tuple[TimedAt, ...]:
    """What was timed at each end of what became the result."""
    if not all(outcome.baseline_cold_s for outcome in judged.at_ends) or result.outcome == "quarantined":
        return result.ends
    before_s = [median(outcome.baseline_cold_s) for outcome in judged.at_ends]
    changed = result.chosen is not result.baseline
    after_s = [median(outcome.finalist_cold_s) for outcome in judged.at_ends] if changed else before_s
    return ends.timed_at(work.ends, before_s, after_s)


def _decide(
    session: Session,
    work: RegionWork,
    baseline: Compiled,
    finalist: Compiled | None,
    schedule: Schedule | None,
    paired: PairedOutcome,
    notes: list[str],
) -> RegionResult | None:
    """The region's result, or None where this finalist is wrong and the next one gets its turn."""
    verified = paired.baseline_verification
    if verified.unjudged:
        return _unjudged(session, work, verified)
    if not verified.passed:
        return _quarantined(session, work, _who_is_wrong(session, work, verified.reason), verified)
    if paired.finalist_verification is not None and not paired.finalist_verification.passed:
        verb = "is unjudged" if paired.finalist_verification.unjudged else "is wrong"
        notes.append(f"{schedule} {verb}: {paired.finalist_verification.reason}")
        return None
    base = finalist_of(work, work.space.baseline(), baseline, paired.baseline_cold_s, paired.baseline_warm_s, verified)
    noise = spread(paired.baseline_cold_s, paired.again_cold_s)
    if schedule is None or finalist is None:
        outcome, why = ("kept", "; ".join(notes)) if notes else _without_candidate(session, work)
        return _result(session, work, base, base, outcome, why, noise)
    if paired.noisy:
        notes.append(f"{schedule} cannot be compared: {paired.noisy}")
        return _result(session, work, base, base, "kept", "; ".join(notes), noise)
    assert paired.finalist_verification is not None
    chosen = finalist_of(
        work, schedule, finalist, paired.finalist_cold_s, paired.finalist_warm_s, paired.finalist_verification
    )
    ratios = [a / b for a, b in zip(paired.baseline_cold_s, paired.finalist_cold_s, strict=True)]
    low, high = median_interval(ratios)
    text = f"{median(ratios):.2f}× as fast, 95 % interval {low:.2f} to {high:.2f}, noise {100 * noise:.1f} %"
    if low > 1.0 and median(ratios) > 1.0 + noise:
        return _result(session, work, base, chosen, "improved", "; ".join([text, *notes]), noise)
    slower = "is slower" if high < 1.0 and median(ratios) < 1.0 - noise else "is a tie"
    return _result(session, work, base, base, "kept", "; ".join([f"{schedule} {slower} ({text})", *notes]), noise)


def _who_is_wrong(session: Session, work: RegionWork, reason: str) -> str:
    """Whether tinygrad's own schedule of a kernel is wrong or the reference is: the raw kernel tells."""
    if work.space.baseline() == RAW:
        return f"the kernel does not verify as tinygrad compiles it: {reason}"
    raw = session.measure(work, [RAW], sampler="reference")[0].result()
    if raw.status == Status.OK:
        return f"tinygrad's own schedule does not verify, the unoptimised kernel is right on one seed: {reason}"
    if raw.status == Status.WRONG:
        return f"the references disagree: tinygrad's own schedule ({reason}) and the unoptimised one ({raw.reason})"
    return f"tinygrad's own schedule does not verify: {reason}"


def _without_candidate(session: Session, work: RegionWork) -> tuple[str, str]:
    """The outcome of a region for which the search found nothing, and why."""
    if session.settings.measurements == 0 and work.known:
        return "kept", "the predictor expects nothing faster"
    if session.untimed and not work.is_timed:
        return "not searched", "the budget was over before it was timed"
    if work.tried:
        return "kept", f"nothing faster among {work.tried} others"
    if work.is_alone:
        return "not searched", NO_OTHER
    if session.settled:
        return "not searched", "too little to save"
    return "not searched", USED_UP if session.ledger.used_up else TIME_OVER


def finalist_of(
    work: RegionWork,
    schedule: Schedule,
    compiled: Compiled,
    cold_s: tuple[float, ...],
    warm_s: tuple[float, ...],
    verification: Verification,
) -> Finalist:
    if schedule.kind == ScheduleKind.SOURCE:
        body = source_body(schedule)
        name, legend = body.name, body.legend
    else:
        name, legend = work.space.name(schedule), work.space.legend(schedule)
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


def unverified(work: RegionWork, schedule: Schedule) -> Finalist:
    """A schedule as the search left it, when there was no time to judge it."""
    observation = work.known.get(schedule)
    seconds = observation.runtime_s if observation is not None and observation.runtime_s else 0.0
    return Finalist(
        schedule=schedule,
        cold_s=seconds,
        warm_s=seconds,
        interval_s=(seconds, seconds),
        verification=UNVERIFIED,
        binary_hash=observation.binary_hash if observation is not None else "",
        name=work.space.name(schedule),
        legend=work.space.legend(schedule),
    )


def as_measured(session: Session, work: RegionWork) -> Finalist:
    """tinygrad's own schedule as the search measured it, where that stands: checked on one seed, cold, not warm."""
    schedule, row, service = work.space.baseline(), work.own, session.service
    if row is None or not row.samples_s:
        return unverified(work, schedule)
    known = service.has_compiled(work.call.region, schedule, work.call.variables)
    return Finalist(
        schedule=schedule,
        cold_s=row.median_s,
        warm_s=math.nan,
        interval_s=median_interval(row.samples_s),
        verification=Verification(False, seeds=int(row.checked), reason=CHECKED),
        binary_hash=row.binary_hash,
        name=work.space.name(schedule),
        legend=work.space.legend(schedule),
        source=compiled_for(session, work, schedule).source if known else "",
        launch=row.launch,
    )


def _as_searched(session: Session, work: RegionWork) -> RegionResult:
    """The result of a region that is not judged: nothing was found for it, or nothing can be said of it."""
    if work.is_unjudged:
        assert work.own is not None
        seen = Verification(False, seeds=int(work.own.checked), reason=work.own.reason, unjudged=True)
        return _unjudged(session, work, seen)
    base = as_measured(session, work)
    return _result(session, work, base, base, *_without_candidate(session, work))


def _too_late(session: Session, work: RegionWork) -> RegionResult:
    """The result of a region which the budget leaves no time to judge."""
    session.undecided += 1  # what fails as it is too: it was not seen in a fresh process
    base = as_measured(session, work)
    if work.own is not None and work.own.status != Status.OK:
        return _quarantined(session, work, f"tinygrad's own schedule fails: {work.own.status}: {work.own.reason}")
    if not (found := candidates(work)):
        return _result(session, work, base, base, "undecided", "there was no time to judge what is written by hand")
    claim = "is expected to be faster"
    if work.baseline_s:
        claim = f"was {work.baseline_s / work.known[found[0]].time_s:.2f}× as fast in the search"
    return _result(session, work, base, base, "undecided", f"{found[0]} {claim}, and there was no time to judge it")


def as_searched(session: Session) -> tuple[RegionResult, ...]:
    """The best so far of a run that ended early: what was judged as it was judged, the rest as the search left it.

    The latter carries search timings and is marked as not verified; `apply` gives such regions tinygrad's own schedule.
    """
    why = "the device was lost" if session.lost else "interrupted"
    results = []
    for work in session.works:
        if work.id in session.judged:
            results.append(session.judged[work.id])
            continue
        if work.is_unjudged:
            results.append(_as_searched(session, work))
            continue
        base = unverified(work, work.space.baseline())
        faster = candidates(work) if work.baseline_s else []
        chosen = unverified(work, faster[0]) if faster else base
        outcome = "improved" if faster else "kept" if work.tried else "not searched"
        results.append(_result(session, work, base, chosen, outcome, f"{why}: not verified"))
    return tuple(results)


def _unjudged(session: Session, work: RegionWork, seen: Verification) -> RegionResult:
    """Nothing is claimed of a kernel of which the reference cannot tell what is right: neither that it is wrong."""
    base = replace(unverified(work, work.space.baseline()), verification=seen)
    return _result(session, work, base, base, "unjudged", seen.reason)


def _quarantined(
    session: Session, work: RegionWork, reason: str, verification: Verification = UNVERIFIED
) -> RegionResult:
    """tinygrad's own schedule is wrong, or fails: it is kept, as nothing better is known, and the report says why."""
    base = replace(unverified(work, work.space.baseline()), verification=replace(verification, reason=reason))
    return _result(session, work, base, base, "quarantined", reason)


def _result(
    session: Session,
    work: RegionWork,
    base: Finalist,
    chosen: Finalist,
    outcome: str,
    note: str,
    noise_floor: float = 0.0,
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
    )


def build_result(session: Session, regions: tuple[RegionResult, ...], *, complete: bool) -> Result:
    """Everything of the run as one `Result`."""
    from kcg.kernel.analysis import find_recompute

    target, toolchain = session.service.facts
    recomputes = (find_recompute(w.space.ast, w.call.region.id, w.call.calls) for w in session.works)
    return Result(
        workload=session.workload.name,
        preset=session.workload.preset,
        target=target,
        toolchain=toolchain,
        regions=regions,
        search=session.settings.search,
        seed=session.settings.seed,
        measurements=session.ledger.measurements,
        compilations=session.ledger.compilations,
        search_s=time.monotonic() - session.started,
        budget=session.settings.budget_text,
        protocol=PROTOCOL,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        command=session.settings.command,
        kcg_version=__version__,
        complete=complete,
        failures=tuple(sorted(session.failures.items())),
        progress=tuple(session.history),
        recomputes=tuple(r for r in recomputes if r is not None),
        warnings=tuple(session.warnings),
        predictor=session.predictor.name if session.predictor is not None else "",
        expectations=tuple(session.expectations),
        clocks=tuple((name, min(seen), median(seen), max(seen)) for name, seen in sorted(session.clocks.items())),
        left_out=session.workload.left_out,
        seen_as=seen_as_of(session.workload, target.device),
        **provenance(),
    )


def seen_as_of(workload: Workload, device: str) -> tuple[tuple[str, SeenAs], ...]:
    """How the program asked for its kernels, where that is not by tinygrad's name on the first device."""
    found = {(call.region.id, seen): None for call in workload.calls for seen in call.seen_as}
    return tuple(place for place in found if place[1] != ("", (device,)))


def _line(error: BaseException) -> str:
    from kcg.measure.device_info import first_line

    return first_line(error)
