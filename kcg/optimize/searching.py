"""Spending the budget of an optimisation: which region is searched when, and with what."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

from kcg.errors import ScheduleError
from kcg.measure.jobs import TinyBeamJob
from kcg.optimize.session import TINY_BEAM, RegionWork, Session
from kcg.search.budget import Allocator, RegionState
from kcg.search.interface import Observation, Problem
from kcg.types import Prediction, Schedule, Status

if TYPE_CHECKING:
    from kcg.predictor.interface import Predictor

HOPELESS = 2.5  # a candidate this much slower than the best so far gets one sample only


def problem(session: Session, work: RegionWork, predictor: Predictor, index: int) -> Problem:
    """The search problem of one region: its space, this session's predictor, device and ledger."""

    judge = predictor.of(work.space)
    correcting = judge.correct
    # the last word on each schedule before it was measured; the predictor is not asked again, which would cost time
    predicted: dict[Schedule, Prediction] = {}
    corrected: dict[Schedule, Prediction] = {}

    def predict(batch: Sequence[Schedule]) -> list[Prediction]:
        found = judge.predict(batch)
        predicted.update(zip(batch, found, strict=True))
        return found

    def correct(batch: Sequence[Schedule], measured: Sequence[tuple[Schedule, float]]) -> list[Prediction]:
        assert correcting is not None
        found = correcting(batch, measured)
        corrected.update(zip(batch, found, strict=True))
        return found

    def measure(batch: Sequence[Schedule]) -> list[Future[Observation]]:
        best_s = work.best_s
        futures = session.measure(work, batch, stop_above_s=HOPELESS * best_s if best_s else None)
        for schedule, future in zip(batch, futures, strict=True):
            if schedule in predicted:
                session.compare(index, predicted[schedule], corrected.get(schedule), future)
        return futures

    return Problem(
        space=work.space,
        predict=predict,
        measure=measure,
        ledger=session.ledger,
        rng=random.Random(f"{session.settings.seed}:{index}"),
        batch_size=max(4, 2 * session.service.compile_workers if session.choice.device != "CPU" else 4),
        known=work.known,
        correct=correct if correcting is not None else None,
    )


def search(session: Session) -> None:
    """Spend the rest of the budget where it is expected to save the most."""
    name = session.settings.search
    if session.settings.budget_s is not None:
        session.ledger.deadline = session.started + session.settings.budget_s - session.final_cost_s()
    if session.settings.measurements and session.ledger.exhausted:
        session.warnings.append("timing tinygrad's own schedules used up the measurements: nothing was searched")
    elif session.settings.measurements is None and session.ledger.exhausted:
        session.unsearched = True
        needed_s = time.monotonic() - session.started + session.final_cost_s()
        session.warnings.append(f"nothing was searched: timing and judging alone take about {needed_s:.0f} s")
    if session.predictor is None:
        _tiny_beam(session, int(name.partition(":")[2] or "2"))
    elif session.settings.measurements == 0:
        _predict_only(session, session.predictor)
    else:
        _search_with(session, name, session.predictor)


def _search_with(session: Session, name: str, predictor: Predictor) -> None:
    from kcg.search.strategies import strategy

    session.progress.phase(f"searching with {name}")
    by_id = {w.id: w for w in session.works}
    allocator = Allocator([RegionState(w.id, w.call.calls, best_s=w.best_s or None) for w in session.works])
    for index, work in enumerate(session.works):
        work.search = strategy(name)(problem(session, work, predictor, index))
        if not work.baseline_s:
            allocator.finish(work.id)  # its baseline failed: there is nothing to compare with
    while not session.ledger.exhausted and (region_id := allocator.next()) is not None:
        work = by_id[region_id]
        if session.settings.budget_s is not None:  # more improved regions mean more finalists to be judged
            session.ledger.deadline = session.started + session.settings.budget_s - session.final_cost_s()
        assert work.search is not None
        count = 0
        for observation in work.search:
            work.known[observation.schedule] = observation
            count += 1
            session.show(note=work.space.name(work.space.baseline()))
            if count >= 4:
                break
        else:
            allocator.finish(region_id)
        session.check_journal()
        allocator.observe(region_id, count, work.best_s or None)


def _tiny_beam(session: Session, width: int) -> None:
    """tinygrad's own BEAM, region by region, the largest first."""
    session.progress.phase(f"searching with tinygrad's own BEAM={width}")
    for work in sorted(session.works, key=lambda w: -w.call.calls * w.baseline_s):
        if session.ledger.exhausted:
            break
        left = 3600.0 if session.ledger.deadline is None else session.ledger.deadline - time.monotonic()
        job = TinyBeamJob(work.call.region, session.service.target, width)
        try:
            found = session.service.tiny_beam(job, timeout_s=max(left, 1.0)).result()
        except TimeoutError as error:
            session.progress.line(str(error))
            break
        except ScheduleError as error:
            session.warnings.append(f"{work.space.name(work.space.baseline())}: {error}")
            continue
        work.tried_by_beam = found.binaries
        with session._lock:
            session.ledger.measurements += max(found.binaries - 1, 0)
            session.ledger.compilations += found.binaries
        for future in session.measure(work, [found.schedule], sampler=f"{TINY_BEAM}:{width}"):
            observation = future.result()
            work.known[observation.schedule] = observation
        session.check_journal()
        session.show(note=work.space.name(work.space.baseline()))


def _predict_only(session: Session, predictor: Predictor) -> None:
    """Choose by prediction alone. The choice is still verified and timed against the baseline at the end."""
    from kcg.search.draft import draft

    session.progress.phase("choosing by prediction, without measuring")
    for index, work in enumerate(session.works):
        if session.ledger.deadline is not None and time.monotonic() >= session.ledger.deadline:
            session.warnings.append("the budget ended before a schedule was predicted for every kernel")
            break
        drafted = draft(problem(session, work, predictor, index))
        work.known = {
            schedule: Observation(schedule, Status.OK, prediction.runtime_s, binary_hash=f"predicted:{i}")
            for i, (schedule, prediction) in enumerate(
                zip(drafted[:2], predictor.predict(work.space, drafted[:2]), strict=True)
            )
        }
        session.show(kernels=(index + 1, len(session.works)))
