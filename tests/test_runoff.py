"""What a search saw as fastest by luck does not go before those that are as fast or faster when timed again."""

from __future__ import annotations

import contextlib
import math
import os
import sqlite3
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kcg.optimize import finals, runoff
from kcg.optimize.console import progress
from kcg.optimize.estimates import judging_s
from kcg.optimize.runoff import ROUNDS, SAMPLER, contenders, run_off
from kcg.optimize.session import RegionWork, Session
from kcg.optimize.settings import Settings
from kcg.search.interface import Ledger, Observation
from kcg.types import Schedule

SCRIPT = Path(__file__).parent / "scripts" / "one_layer.py"
LUCK = 0.01


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """One that has measured some schedules of its dearest kernel."""
    folder = tmp_path_factory.mktemp("out")
    settings = Settings(str(SCRIPT), device=os.environ["DEV"], folder=folder, script_args=("64",), effort="thorough")
    with progress(quiet=True) as shown, Session(settings, shown) as opened:
        opened.capture()
        opened.open_journal()
        opened.plan()
        opened.measure_baselines()
        work = dearest(opened)
        tried = [action.schedule for action in work.space.actions(work.space.start())]
        for future in opened.measure(work, tried[:6]):
            work.known[future.result().schedule] = future.result()
        yield opened


def dearest(session: Session) -> RegionWork:
    return max(session.works, key=lambda w: w.call.calls * w.baseline_s)


@pytest.fixture
def lucky(session: Session, monkeypatch: pytest.MonkeyPatch) -> Schedule:
    """The slowest schedule, of which the search believes that it is by far the fastest. All come close enough."""
    work = dearest(session)
    own = work.known[work.space.baseline()]
    seen: dict[Schedule, Observation] = {o.schedule: o for o in work.known.values() if math.isfinite(o.time_s)}
    seen[own.schedule] = replace(own, runtime_s=1.0)
    (slowest, *_) = sorted((s for s in seen if s != own.schedule), key=lambda s: -seen[s].time_s)
    seen[slowest] = replace(seen[slowest], runtime_s=LUCK * min(o.time_s for o in seen.values()))
    monkeypatch.setattr(runoff, "CLOSE", ((math.inf, math.inf),))
    monkeypatch.setattr(runoff, "MOST", len(seen))
    monkeypatch.setattr(work, "known", seen)
    monkeypatch.setattr(work, "finalists", [])
    return slowest


def test_luck_does_not_last(session: Session, lucky: Schedule) -> None:
    work = dearest(session)
    assert finals._candidates(work)[0] == lucky
    before, entered = session.ledger.measurements, contenders(session, work)
    run_off(session)
    assert set(work.finalists) == set(entered) and work.finalists[0] != lucky
    assert finals._candidates(work)[0] == work.finalists[0]
    assert session.ledger.measurements == before, "no binary of it is new"
    with contextlib.closing(sqlite3.connect(session.folder / "journal.sqlite")) as journal:
        rows = journal.execute("SELECT trial, COUNT(*) FROM measurements WHERE sampler = ? GROUP BY trial", [SAMPLER])
        assert dict(rows.fetchall()) == {trial: len(entered) for trial in range(1, ROUNDS + 1)}


def test_what_does_not_compile_now_comes_last(
    session: Session, lucky: Schedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, compiled = dearest(session), session.service.compiled
    best = sorted(work.known, key=lambda s: work.known[s].time_s)[1]

    def refused(region: Any, schedule: Schedule, variables: Any = ()) -> Future[Any]:
        if schedule != best:
            return compiled(region, schedule, variables)
        future: Future[Any] = Future()
        future.set_exception(RuntimeError("no"))
        return future

    monkeypatch.setattr(session.service, "compiled", refused)
    run_off(session)
    assert work.finalists[-1] == best


def test_only_a_thorough_run_has_time_for_it(
    session: Session, lucky: Schedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, thorough_s = dearest(session), judging_s(session)
    assert lucky in contenders(session, work)
    for effort in ("quick", "normal"):
        monkeypatch.setattr(session, "settings", replace(session.settings, effort=effort))
        assert contenders(session, work) == []
        assert 0 < judging_s(session) < thorough_s, "what it takes is expected"


def test_a_kernel_with_one_fast_schedule_has_no_run_off(
    session: Session, lucky: Schedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runoff, "CLOSE", ((math.inf, 0.02),))
    assert contenders(session, dearest(session)) == []


def test_what_was_timed_again_is_not_what_a_run_that_goes_on_knows(
    session: Session, lucky: Schedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_off(session)
    work = dearest(session)
    made_up = (lucky, work.space.baseline())
    known = {s: o.runtime_s for s, o in work.known.items() if s not in made_up}
    monkeypatch.setattr(session, "settings", replace(session.settings, resume=True))
    monkeypatch.setattr(session, "ledger", Ledger())
    monkeypatch.setattr(session, "works", session.works)
    again = next(w for w in session.plan() if w.id == work.id)
    assert {s: o.runtime_s for s, o in again.known.items() if s not in made_up} == known


def test_what_was_not_compiled_in_this_run_is_expected_to_be(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    assert finals.uncompiled(session) == 0
    before = judging_s(session)
    monkeypatch.setattr(session.service, "has_compiled", lambda *_: False)
    assert finals.uncompiled(session) > 0 and judging_s(session) > before
