"""The last word on every region: finalists re-timed beside the baseline in a fresh process, and verified.

Search timings are never reported. A finalist is chosen only if it verifies and its paired speed-up over the baseline is
above 1 with its whole confidence interval; otherwise tinygrad's own schedule is kept, and it is said why.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from kcg import __version__
from kcg.errors import DeviceError
from kcg.kernel.handwritten import source_body
from kcg.measure.jobs import UNJUDGED, DuelJob, DuelOutcome
from kcg.measure.pools import ServiceClosed
from kcg.measure.protocol import PROTOCOL, median, median_interval, spread
from kcg.measure.references import FINAL_SEEDS
from kcg.measure.rows import duel_rows
from kcg.optimize import ends
from kcg.optimize.handwritten import contest
from kcg.optimize.verdicts import Side, is_known, keep, taken_over
from kcg.types import (
    RAW,
    Finalist,
    RegionResult,
    Result,
    Schedule,
    ScheduleKind,
    Status,
    TimedAt,
    Variables,
    Verification,
)

if TYPE_CHECKING:
    from kcg.kernel.compiled import Compiled
    from kcg.kernel.symbolic import End
    from kcg.measure.references import Foretold
    from kcg.optimize.session import RegionWork, Session

TRIES = 2  # finalists per region, the second only if the first is wrong
DUEL_TIMEOUT_S = 120.0  # at least
FORETELL_TIMEOUT_S = 30.0  # references of one region, in a process beside
DUEL_RUNS = 200  # launches of a duel, with room for samples that are taken again
UNVERIFIED = Verification(False, reason="the run ended before it was verified")


@dataclass(frozen=True)
class Judged:
    """What a duel showed of one finalist."""

    outcome: DuelOutcome | None
    reason: str = ""  # why there is no outcome
    at_ends: tuple[DuelOutcome, ...] = ()  # what `outcome` is the mean of, see `ends`


def judge_all(session: Session) -> tuple[RegionResult, ...]:
    """Judge every region, those with the largest share first; the verdicts that an earlier run left are taken over."""
    session.service.fresh_child()
    order = sorted(session.works, key=lambda w: -w.call.calls * w.baseline_s)
    results: dict[str, RegionResult] = {}
    _foretell(session, order)
    _precompile(session)
    try:
        for count, work in enumerate(order, 1):
            results[work.id] = session.judged[work.id] = contest(session, work, _judge(session, work))
            elapsed = time.monotonic() - session.started
            session.progress.update(
                done_s=elapsed, budget_s=session.expected_s(), measurements=session.ledger.measurements,
                kernels=(count, len(order)), total_s=sum(results.get(w.id, w).after_s for w in order),
            )  # fmt: skip
    finally:
        if spared := len(session.taken_over - session.fought):
            session.warnings.append(
                f"the verdicts on {spared} of {len(order)} kernels are those of an earlier run: they were not "
                "judged again"
            )
    return tuple(results[w.id] for w in session.works)


def _candidates(work: RegionWork) -> list[Schedule]:
    """The schedules that a search found faster than the baseline, fastest first."""
    baseline = work.space.baseline()
    limit = work.baseline_s or float("inf")
    faster = [s for s in work.ranked() if s != baseline and work.known[s].time_s < limit]
    return faster[:TRIES]


def is_judged(session: Session, work: RegionWork) -> bool:
    """Whether an earlier run left a verdict on what would be judged of this region first, and nothing else is left."""
    first = _candidates(work)[:1] if session.verdicts else []
    return not work.offers and is_known(session, work, [work.space.baseline(), *first])


def _sides(session: Session) -> list[tuple[RegionWork, Schedule]]:
    """Every baseline and first finalist."""
    return [(work, schedule) for work in session.works for schedule in (work.space.baseline(), *_candidates(work)[:1])]


def compiling_s(session: Session) -> float:
    """About how long it takes to compile those of them that this run has not compiled, as one that goes on has not."""
    service = session.service
    wanted = [(w, s) for w, s in _sides(session) if not service.has_compiled(w.call.region, s, *w.bindings)]
    return sum(work.compile_s.get(schedule, 0.0) for work, schedule in wanted) / service.compile_workers


def _precompile(session: Session) -> None:
    """Compile every baseline and first finalist before the first duel: on a CPU nothing may compile while one runs."""
    for future in [session.service.compiled(w.call.region, s, *w.bindings) for w, s in _sides(session)]:
        future.exception()


def _foretell(session: Session, order: Sequence[RegionWork]) -> None:
    """On a GPU, let the compiling children compute the references of every region while the device times others."""
    if session.choice.device == "CPU":
        return  # nothing may disturb a sample
    from kcg.measure.references import foretell_job

    for work in (w for w in order if not is_judged(session, w)):
        for values in work.bindings:
            session.foretold[work.id, values] = session.service.beside(
                foretell_job, work.call.region, values, FINAL_SEEDS, timeout_s=FORETELL_TIMEOUT_S
            )


def _foretold(session: Session, work: RegionWork, values: Variables) -> Foretold | None:
    """The references of a region; None where they are computed with the verification, or could not be before it."""
    future = session.foretold.get((work.id, values))
    if future is None or future.exception() is not None:
        return None
    told: Foretold = future.result()
    return told


def compiled_for(session: Session, work: RegionWork, schedule: Schedule) -> Compiled:
    outcome = session.service.compiled(work.call.region, schedule, *work.bindings).result()
    compiled: Compiled = outcome.compiled
    return compiled.at(work.call.variables)


def _judge(session: Session, work: RegionWork) -> RegionResult:
    baseline_schedule = work.space.baseline()
    try:
        baseline = compiled_for(session, work, baseline_schedule)
    except Exception as error:  # whatever the compiler raised, the region is reported, not the run ended
        return _quarantined(session, work, f"tinygrad's own schedule does not compile: {_line(error)}")
    notes: list[str] = []
    for schedule in [*_candidates(work), None]:
        finalist: Compiled | None = None
        if schedule is not None:
            try:
                finalist = compiled_for(session, work, schedule)
            except Exception as error:
                notes.append(f"{schedule} does not compile: {_line(error)}")
                continue
            if finalist.binary_hash == baseline.binary_hash:
                continue  # tinygrad's own choice by another name
        ours = None if schedule is None or finalist is None else Side(schedule, finalist)
        judged = duel(session, work, Side(baseline_schedule, baseline), ours)
        if judged.outcome is None:
            if schedule is None:
                return _quarantined(session, work, f"tinygrad's own schedule fails: {judged.reason}")
            notes.append(f"{schedule}: {judged.reason}")
            continue
        if (result := _decide(session, work, baseline, finalist, schedule, judged.outcome, notes)) is not None:
            return replace(result, clocks=judged.outcome.clocks, ends=ends_of(work, judged, result))
    raise AssertionError("the baseline alone always decides")


def duel(session: Session, work: RegionWork, baseline: Side, finalist: Side | None) -> Judged:
    """Verify and time both in turns, or the baseline alone, and record what was seen; or take over what an earlier run
    saw of the same. All this at each end of the kernel's values, and not at the second what is wrong at the first."""
    outcomes: list[DuelOutcome] = []
    for end in work.ends:
        judged = _duel_at(session, work, end, baseline, finalist)
        if judged.outcome is None:
            return Judged(None, ends.reason_at(work.ends, end, judged.reason))
        outcomes.append(judged.outcome)
        if not judged.outcome.baseline_cold_s:
            break
    return Judged(ends.outcome(work.ends, outcomes), at_ends=tuple(outcomes))


def _duel_at(session: Session, work: RegionWork, end: End, baseline: Side, finalist: Side | None) -> Judged:
    sides = [baseline] if finalist is None else [baseline, finalist]
    if (seen := taken_over(session, work, sides, end.variables)) is not None:
        session.taken_over.add(work.id)
        return Judged(seen)
    session.fought.add(work.id)
    job = DuelJob(
        work.call.region, baseline.compiled.at(end.variables),
        finalist.compiled.at(end.variables) if finalist is not None else None, session.service.target, end.variables,
        seeds=FINAL_SEEDS, foretold=_foretold(session, work, end.variables),
    )  # fmt: skip
    try:
        outcome = session.service.duel(job, timeout_s=DUEL_TIMEOUT_S + DUEL_RUNS * work.longest_s).result()
    except (DeviceError, ServiceClosed):
        raise
    except Exception as error:  # a crash or a hang of the child is the finalist's, not the run's
        return Judged(None, f"{type(error).__name__}: {_line(error)}")
    session.record(duel_rows(
        job, outcome, baseline.schedule, finalist.schedule if finalist is not None else None,
        toolchain=session.service.toolchain.fingerprint, run_id=session.run_id,
    ))  # fmt: skip
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
    duel: DuelOutcome,
    notes: list[str],
) -> RegionResult | None:
    """The region's result, or None where this finalist is wrong and the next one gets its turn."""
    verified = duel.baseline_verification
    if not verified.passed:
        return _quarantined(session, work, _who_is_wrong(session, work, verified.reason), verified)
    if duel.finalist_verification is not None and not duel.finalist_verification.passed:
        notes.append(f"{schedule} is wrong: {duel.finalist_verification.reason}")
        return None
    base = finalist_of(work, work.space.baseline(), baseline, duel.baseline_cold_s, duel.baseline_warm_s, verified)
    noise = spread(duel.baseline_cold_s, duel.again_cold_s)
    if schedule is None or finalist is None:
        note = "; ".join(notes) or _why_kept(session, work)
        return _result(session, work, base, base, "kept", note, noise)
    if duel.noisy:
        notes.append(f"{schedule} cannot be compared: {duel.noisy}")
        return _result(session, work, base, base, "kept", "; ".join(notes), noise)
    assert duel.finalist_verification is not None
    chosen = finalist_of(
        work, schedule, finalist, duel.finalist_cold_s, duel.finalist_warm_s, duel.finalist_verification
    )
    ratios = [a / b for a, b in zip(duel.baseline_cold_s, duel.finalist_cold_s, strict=True)]
    low, high = median_interval(ratios)
    text = f"{median(ratios):.2f}× as fast, 95 % interval {low:.2f} to {high:.2f}, noise {100 * noise:.1f} %"
    if low > 1.0 and median(ratios) > 1.0 + noise:
        return _result(session, work, base, chosen, "improved", "; ".join([text, *notes]), noise)
    slower = "is slower" if high < 1.0 and median(ratios) < 1.0 - noise else "is a tie"
    return _result(session, work, base, base, "kept", "; ".join([f"{schedule} {slower} ({text})", *notes]), noise)


def _who_is_wrong(session: Session, work: RegionWork, reason: str) -> str:
    """Whether tinygrad's own schedule of a kernel is wrong or the reference cannot judge it: the raw kernel tells."""
    if reason.startswith(UNJUDGED):
        return f"the kernel {reason}"
    if work.space.baseline() == RAW:
        return f"the kernel does not verify as tinygrad compiles it: {reason}"
    raw = session.measure(work, [RAW], sampler="reference")[0].result()
    if raw.status == Status.OK:
        return f"tinygrad's own schedule does not verify, the unoptimised kernel is right on one seed: {reason}"
    if raw.status == Status.WRONG:
        return f"the references disagree: tinygrad's own schedule ({reason}) and the unoptimised one ({raw.reason})"
    return f"tinygrad's own schedule does not verify: {reason}"


def _why_kept(session: Session, work: RegionWork) -> str:
    if session.settings.measurements == 0:
        return "the predictor expects nothing faster"
    tried = max(len(work.binaries) - 1, work.tried_by_beam)
    if tried > 0:
        return f"nothing faster among {tried} others"
    return "not searched: too little to save" if session.settled else "not searched: the time for searching was over"


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
        schedule=schedule, cold_s=median(cold_s), warm_s=median(warm_s), interval_s=median_interval(cold_s),
        verification=verification, binary_hash=compiled.binary_hash, name=name, legend=legend, source=compiled.source,
        launch=(compiled.global_size, compiled.local_size),
    )  # fmt: skip


def unverified(work: RegionWork, schedule: Schedule) -> Finalist:
    """A schedule as the search left it, when there was no time to judge it."""
    observation = work.known.get(schedule)
    seconds = observation.runtime_s if observation is not None and observation.runtime_s else 0.0
    return Finalist(
        schedule=schedule, cold_s=seconds, warm_s=seconds, interval_s=(seconds, seconds), verification=UNVERIFIED,
        binary_hash=observation.binary_hash if observation is not None else "", name=work.space.name(schedule),
        legend=work.space.legend(schedule),
    )  # fmt: skip


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
        base = unverified(work, work.space.baseline())
        faster = _candidates(work)
        chosen = unverified(work, faster[0]) if faster and work.baseline_s else base
        outcome = "improved" if faster and work.baseline_s else "kept"
        results.append(_result(session, work, base, chosen, outcome, f"{why}: not verified"))
    return tuple(results)


def _quarantined(
    session: Session, work: RegionWork, reason: str, verification: Verification = UNVERIFIED
) -> RegionResult:
    """Nothing is claimed of a kernel that cannot be judged: it keeps tinygrad's schedule, and the report says why."""
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
        region=work.call.region, calls=work.call.calls, baseline=base, chosen=chosen,
        measurements=max(len(work.binaries), work.tried_by_beam), outcome=outcome, variables=work.call.variables,
        note=note,
        operations=work.operations, bytes=float(work.bytes), noise_floor=noise_floor,
        ends=ends.timed_at(work.ends, before_s, after_s),
    )  # fmt: skip


def build_result(session: Session, regions: tuple[RegionResult, ...], *, complete: bool) -> Result:
    """Everything of the run as one `Result`."""
    from kcg.kernel.contractions import find_recompute

    target, toolchain = session.service.facts
    recomputes = (find_recompute(w.space.ast, w.call.region.id, w.call.calls) for w in session.works)
    return Result(
        workload=session.workload.name, preset=session.workload.preset, target=target, toolchain=toolchain,
        regions=regions, search=session.settings.search, seed=session.settings.seed,
        measurements=session.ledger.measurements, compilations=session.ledger.compilations,
        search_s=time.monotonic() - session.started, budget=session.settings.budget_text, protocol=PROTOCOL,
        created=datetime.now(UTC).isoformat(timespec="seconds"), command=session.settings.command,
        kcg_version=__version__, complete=complete, failures=tuple(sorted(session.failures.items())),
        progress=tuple(session.history), recomputes=tuple(r for r in recomputes if r is not None),
        warnings=tuple(session.warnings), predictor=session.predictor.name if session.predictor is not None else "",
        expectations=tuple(session.expectations),
        clocks=tuple((name, min(seen), median(seen), max(seen)) for name, seen in sorted(session.clocks.items())),
    )  # fmt: skip


def _line(error: BaseException) -> str:
    from kcg.measure.target import first_line

    return first_line(error)
