"""Spending the budget of an optimisation: which region is searched when, and with what."""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

from kcg.cli import counted
from kcg.errors import ScheduleError
from kcg.measure.jobs import TinyBeamJob
from kcg.optimize import estimates
from kcg.optimize.session import RegionWork, Session
from kcg.optimize.settings import EFFORTS, TINY_BEAM, strategy_of
from kcg.search.allocation import PATIENCE_S, Allocator, Limits, Transfer, family, transferred
from kcg.search.problem import Expected, Observation, Problem
from kcg.types import Schedule, Status

if TYPE_CHECKING:
    from kcg.predictor.interface import Predictor

HOPELESS = 2.5  # a candidate this much slower than the best so far gets one sample only


def problem(session: Session, work: RegionWork, predictor: Predictor, index: int) -> Problem:
    """The search problem of one region: its space, this session's predictor, device and ledger."""
    from kcg.predictor.correction import kind_of

    judge = predictor.of(work.space)

    def measure(batch: Sequence[Schedule]) -> list[Future[Observation]]:
        best_s = work.best_s
        futures = session.measure(work, batch, stop_above_s=HOPELESS * best_s if best_s else None)
        for schedule, future in zip(batch, futures, strict=True):
            if (expectation := expected.get(schedule)) is not None:
                session.compare(index, *expectation, future)
        return futures

    expected: dict[Schedule, Expected] = {}
    return Problem(
        space=work.space,
        predict=judge.predict,
        measure=measure,
        ledger=session.ledger,
        rng=random.Random(f"{session.settings.seed}:{index}"),
        known=work.known,
        correct=judge.correct,
        expected=expected,
        step=work.space.step,
        tile=work.space.tile,
        kind=kind_of,
        alike=work.space.alike,
    )


def search(session: Session) -> None:
    """Spend the rest of the budget where it is expected to save the most. A run in which nothing was searched says why:
    at once where it is known before."""
    name = session.settings.search
    too_short = estimates.too_short(session)
    if too_short:
        session.ledger.deadline = session.measured_at
        session.progress.line(too_short, important=True)
    elif session.settings.budget_s is not None:
        session.ledger.deadline = estimates.search_until(session)
        if advice := estimates.too_short_for_the_model(session):
            session.progress.line(advice)
    elif session.settings.measurements is None:
        session.ledger.deadline = time.monotonic() + EFFORTS[session.settings.effort].search_s
    used_up = session.ledger.used_up
    if not (session.searched_nothing and (too_short or used_up)):
        _spend(session, name)
    if session.searched_nothing:
        session.warnings.append(f"nothing was searched: {too_short or _why_nothing(session, used_up=used_up)}")


def _why_nothing(session: Session, *, used_up: bool) -> str:
    if not any(work.baseline_s for work in session.works) and session.settings.measurements != 0:
        unjudged = all(work.is_unjudged for work in session.works)
        return "every kernel is unjudged" if unjudged else "there is no kernel that runs and can be judged"
    if all(work.is_alone for work in session.works):
        return "no kernel has a schedule beside tinygrad's own"
    if used_up:
        taken = counted(session.ledger.measurements, "measurement")
        return f"timing tinygrad's own schedules took {taken}: give it more with --measurements"
    if session.settled:
        return "no step was expected to save enough; --effort thorough tries those that save less too"
    if session.ledger.exhausted:
        return "the time for searching was over"
    return f"--search {session.settings.search} tried no schedule but tinygrad's own"


def _spend(session: Session, name: str) -> None:
    if session.predictor is None:
        _tiny_beam(session, int(name.partition(":")[2] or "2"))
    elif session.settings.measurements == 0:
        _predict_only(session, session.predictor)
    else:
        _search_with(session, name, session.predictor)


def _search_with(session: Session, name: str, predictor: Predictor) -> None:
    session.progress.phase(f"searching with {name}")
    allocator = Allocator(
        session.ledger, _limits(session), seen=lambda: _seen(session), patience_s=lambda: _patience_s(session)
    )
    # without a baseline there is nothing to compare with
    works = [(index, work) for index, work in enumerate(session.works) if work.baseline_s]
    works.sort(key=lambda one: -one[1].call.calls * one[1].baseline_s)
    seconds = [work.call.calls * work.baseline_s for _, work in works]
    places = assigned(seconds, session.search_workers.count) if session.search_workers is not None else [0] * len(works)
    for place, (index, work) in zip(places, works, strict=True):
        how, asked = strategy_of(name), problem(session, work, predictor, index)
        if session.search_workers is not None:
            seed = f"{session.settings.seed}:{index}"
            how = session.search_workers.strategy(name, work.call.region, place=place, seed=seed)
        transfer = Transfer(family(work.space), functools.partial(transferred, work.space))
        allocator.enter(work.id, work.call.calls, asked, how, transfer=transfer)
    allocator.run()
    session.check_journal()
    session.settled = allocator.settled


def assigned(seconds: Sequence[float], count: int) -> list[int]:
    """Which of `count` thinkers each kernel gets, the largest first: whoever has the least of the workload's time. They
    take turns in one process, and the largest would wait for the others."""
    loads, places = [0.0] * count, []
    for one in seconds:
        places.append(loads.index(min(loads)))
        loads[places[-1]] += one
    return places


def _limits(session: Session) -> Limits:
    """On a CPU all takes turns, so that nothing disturbs a sample; a GPU is kept busy by many kernels at once."""
    workers, least = session.service.compile_workers, session.settings.least_saving
    if session.choice.device == "CPU":
        return Limits(measuring=max(4, workers), batch=4, least_saving=least)  # four take no more drafting than one
    searching = session.search_workers.count if session.search_workers is not None else 2
    return Limits.on_gpu(workers, searching, least_saving=least)


def _patience_s(session: Session) -> float:
    wait_s = estimates.patience_s(session, 0.0)
    return PATIENCE_S if wait_s is None else max(min(wait_s, PATIENCE_S), 0.0)


def _seen(session: Session) -> None:
    _estimate_anew(session)
    session.check_journal()
    session.show()


def _estimate_anew(session: Session) -> None:
    """After something was measured: more improved kernels mean more finalists to be judged, and so less time."""
    if session.settings.budget_s is not None:
        session.ledger.deadline = estimates.search_until(session)


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
        _estimate_anew(session)
        session.check_journal()
        session.show(note=work.space.name(work.space.baseline()))


def _predict_only(session: Session, predictor: Predictor) -> None:
    """Choose by prediction alone. The choice is still verified and timed against the baseline at the end."""
    from kcg.search.beam import draft

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
