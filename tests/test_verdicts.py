"""What the finals of one run showed, a run that goes on takes over: the very same duel, whole, or not at all."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kcg.errors import JournalError
from kcg.measure.jobs import DuelOutcome
from kcg.optimize import finals, verdicts
from kcg.optimize.console import progress
from kcg.optimize.result import noun_to_json
from kcg.optimize.session import RegionWork, Session
from kcg.optimize.settings import Settings
from kcg.optimize.verdicts import Side
from kcg.types import Schedule, Verification

SCRIPT = Path(__file__).parent / "scripts" / "one_layer.py"


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """One that is about to judge."""
    folder = tmp_path_factory.mktemp("out")
    settings = Settings(str(SCRIPT), device=os.environ["DEV"], folder=folder, script_args=("16",))
    with progress(quiet=True) as shown, Session(settings, shown) as opened:
        opened.capture()
        opened.open_journal()
        opened.plan()
        yield opened


@pytest.fixture
def work(session: Session) -> RegionWork:
    return session.works[0]


@pytest.fixture
def baseline(session: Session, work: RegionWork) -> Side:
    return Side(work.space.baseline(), finals.compiled_for(session, work, work.space.baseline()))


@pytest.fixture
def judged(session: Session, work: RegionWork, baseline: Side) -> DuelOutcome:
    """The verdict on the baseline alone, as an earlier run left it."""
    session.verdicts = {}
    outcome = finals.duel(session, work, baseline, None).outcome
    assert outcome is not None and outcome.baseline_verification.passed and not outcome.noisy
    assert session.journal is not None
    session.verdicts = session.journal.verdicts()
    return outcome


def again(session: Session, work: RegionWork, baseline: Side, finalist: Side | None = None) -> DuelOutcome:
    outcome = finals.duel(session, work, baseline, finalist).outcome
    assert outcome is not None
    return outcome


def journal_of(session: Session) -> contextlib.closing[sqlite3.Connection]:
    return contextlib.closing(sqlite3.connect(session.folder / "journal.sqlite", isolation_level=None))


def test_the_same_duel_is_not_fought_twice(
    session: Session, work: RegionWork, baseline: Side, judged: DuelOutcome
) -> None:
    with journal_of(session) as journal:
        rows = journal.execute("SELECT COUNT(*) FROM measurements").fetchone()
        assert again(session, work, baseline) == judged, "to the last sample"
        assert journal.execute("SELECT COUNT(*) FROM measurements").fetchone() == rows
    assert finals.is_judged(session, work)
    session.verdicts = {}
    assert not finals.is_judged(session, work)


def test_another_finalist_another_binary_or_other_rules_are_judged(
    session: Session, work: RegionWork, baseline: Side, judged: DuelOutcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    step: Schedule = work.space.actions(work.space.start())[0].schedule
    other = Side(step, finals.compiled_for(session, work, step))
    duel = again(session, work, baseline, other)
    assert duel.finalist_verification is not None and duel.baseline_cold_s != judged.baseline_cold_s
    assert other.compiled.binary_hash != baseline.compiled.binary_hash
    assert again(session, work, Side(baseline.schedule, other.compiled)) != judged
    monkeypatch.setattr(verdicts, "RULES", verdicts.RULES + 1)
    assert not finals.is_judged(session, work)
    assert again(session, work, baseline) != judged


def test_what_is_wrong_or_noisy_is_no_verdict(
    session: Session, work: RegionWork, baseline: Side, judged: DuelOutcome
) -> None:
    assert session.journal is not None
    kept = session.journal.verdicts()
    wrong = replace(judged, baseline_verification=Verification(False, reason="another device answered"))
    for bad in (wrong, replace(judged, noisy="the clocks fell"), replace(judged, tainted=True)):
        verdicts.keep(session, work, [baseline], bad)
    verdicts.keep(session, work, [baseline, baseline], judged)  # of two sides one was judged
    assert session.journal.verdicts() == kept


@pytest.mark.parametrize("text", ["", "{}", '{"binaries": [], "outcome": 1}', "null", "[" * 100_000])
def test_a_verdict_that_was_changed_is_refused(
    session: Session, work: RegionWork, baseline: Side, judged: DuelOutcome, text: str
) -> None:
    session.verdicts = dict.fromkeys(session.verdicts, text)
    with pytest.raises(JournalError, match="a verdict cannot be trusted") as refused:
        again(session, work, baseline)
    assert "\n" not in str(refused.value)


def test_a_verdict_without_its_samples_is_refused(
    session: Session, work: RegionWork, baseline: Side, judged: DuelOutcome
) -> None:
    for changed in (replace(judged, again_cold_s=()), replace(judged, baseline_warm_s=(float("nan"),))):
        verdict = verdicts.Verdict((baseline.compiled.binary_hash,), changed)
        session.verdicts = dict.fromkeys(session.verdicts, noun_to_json(verdict))
        with pytest.raises(JournalError, match="a verdict cannot be trusted"):
            again(session, work, baseline)


def test_a_journal_without_verdicts_is_read(session: Session, judged: DuelOutcome) -> None:
    assert session.journal is not None and session.journal.verdicts()
    with journal_of(session) as journal:
        journal.execute("DROP TABLE verdicts")
    assert session.journal.verdicts() == {}
