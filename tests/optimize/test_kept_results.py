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
from kcg.kernel.codec import kernel_of
from kcg.kernel.program import Compiled
from kcg.measure import verify
from kcg.measure.jobs import PairedOutcome, TimeJob
from kcg.measure.protocol import PROTOCOL
from kcg.measure.service import Request
from kcg.optimize import finals, verdicts
from kcg.optimize.console import progress
from kcg.optimize.estimates import judging_s
from kcg.optimize.handwritten import Offer
from kcg.optimize.result import noun_to_json
from kcg.optimize.session import RegionWork, Session
from kcg.optimize.settings import Settings
from kcg.optimize.verdicts import Side
from kcg.types import Region, Schedule, Verification
from tests.kernels import empty, kernels_of

SCRIPT = Path(__file__).parents[1] / "scripts" / "one_layer.py"


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
def judged(session: Session, work: RegionWork, baseline: Side) -> PairedOutcome:
    """The verdict on the baseline alone, as an earlier run left it."""
    session.paired_results = {}
    outcome = finals.compare_paired(session, work, baseline, None).outcome
    assert outcome is not None and outcome.baseline_verification.passed and not outcome.noisy
    assert session.journal is not None
    session.paired_results = session.journal.paired_results()
    return outcome


def again(session: Session, work: RegionWork, baseline: Side, finalist: Side | None = None) -> PairedOutcome:
    outcome = finals.compare_paired(session, work, baseline, finalist).outcome
    assert outcome is not None
    return outcome


def journal_of(session: Session) -> contextlib.closing[sqlite3.Connection]:
    return contextlib.closing(sqlite3.connect(session.folder / "journal.sqlite", isolation_level=None))


def test_the_same_paired_comparison_is_not_run_twice(
    session: Session, work: RegionWork, baseline: Side, judged: PairedOutcome
) -> None:
    with journal_of(session) as journal:
        rows = journal.execute("SELECT COUNT(*) FROM measurements").fetchone()
        assert again(session, work, baseline) == judged, "to the last sample"
        assert journal.execute("SELECT COUNT(*) FROM measurements").fetchone() == rows
    assert finals.is_judged(session, work)
    session.paired_results = {}
    assert not finals.is_judged(session, work)


def test_another_finalist_another_binary_or_other_rules_are_judged(
    session: Session, work: RegionWork, baseline: Side, judged: PairedOutcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    step: Schedule = work.space.actions(work.space.start())[0].schedule
    other = Side(step, finals.compiled_for(session, work, step))
    paired = again(session, work, baseline, other)
    assert paired.finalist_verification is not None and paired.baseline_cold_s != judged.baseline_cold_s
    assert other.compiled.binary_hash != baseline.compiled.binary_hash
    assert again(session, work, Side(baseline.schedule, other.compiled)) != judged
    monkeypatch.setattr(verdicts, "RULES", verdicts.RULES + 1)
    assert not finals.is_judged(session, work)
    assert again(session, work, baseline) != judged


def _is_known(session: Session, work: RegionWork) -> bool:
    return verdicts.is_known(session, work, [work.space.baseline()])


@pytest.mark.usefixtures("judged")
def test_a_result_is_of_one_region_and_of_one_set_of_values(session: Session, work: RegionWork) -> None:
    (kernel,) = work.call.region.kernels
    (other,) = (kernel_of(ast) for ast in kernels_of(empty(16, 16) + 1))
    assert kernel != other and _is_known(session, work)
    for call in (
        replace(work.call, variables=(("start_pos", 3),)),
        replace(work.call, region=Region((other,))),
    ):
        assert not _is_known(session, RegionWork(call, work.space))
        assert not finals.is_judged(session, RegionWork(call, work.space))
    assert _is_known(session, RegionWork(replace(work.call, calls=work.call.calls + 1), work.space))


@pytest.mark.usefixtures("judged")
def test_a_result_is_of_one_device_and_its_tools_and_rules(
    session: Session, work: RegionWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, toolchain = session.service.facts
    for facts in (
        (replace(target, model="another"), toolchain),
        (target, replace(toolchain, driver="another")),
        (target, replace(toolchain, compiler="another")),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(session.service, "_facts", facts)
            assert not _is_known(session, work)
    for where, name, value in (
        (verdicts, "PROTOCOL", PROTOCOL + 1),
        (verdicts, "RULES", verdicts.RULES + 2),
        (verify, "FINAL_SEEDS", (*verify.FINAL_SEEDS, 9)),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(where, name, value)
            assert not _is_known(session, work)
    assert _is_known(session, work)


@pytest.mark.usefixtures("judged")
def test_what_is_written_by_hand_is_still_to_be_judged(
    session: Session, work: RegionWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_s = judging_s(session)
    assert finals.is_judged(session, work)
    monkeypatch.setattr(work, "offers", [Offer("mine", work.space.baseline())])
    assert not finals.is_judged(session, work) and judging_s(session) > before_s


def test_it_is_reported_of_how_many_kernels_every_result_was_taken_over(
    session: Session, work: RegionWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of whose duels some were fought was judged in this run."""

    def printed() -> list[str]:
        with monkeypatch.context() as patched:
            for name, value in (("taken_over", set()), ("fought", set()), ("warnings", []), ("judged", {})):
                patched.setattr(session, name, value)
            finals.judge_all(session)
            return list(session.warnings)

    assert session.journal is not None
    session.paired_results = {}
    assert printed() == []
    session.paired_results = session.journal.paired_results()
    assert printed() == ["the verdicts on 1 of 1 kernels are those of an earlier run: they were not judged again"]
    action = work.space.actions(work.space.start())[-1].schedule
    monkeypatch.setattr(work, "offers", [Offer("mine", action)])
    assert printed() == []


def test_what_is_wrong_or_noisy_is_no_paired_result(
    session: Session, work: RegionWork, baseline: Side, judged: PairedOutcome
) -> None:
    assert session.journal is not None
    kept = session.journal.paired_results()
    wrong = replace(judged, baseline_verification=Verification(False, reason="another device answered"))
    for bad in (wrong, replace(judged, noisy="the clocks fell"), replace(judged, tainted=True)):
        verdicts.keep(session, work, [baseline], bad, work.call.variables)
    verdicts.keep(session, work, [baseline, baseline], judged, work.call.variables)  # of two sides one was judged
    assert session.journal.paired_results() == kept


@pytest.mark.parametrize("text", ["", "{}", '{"binaries": [], "outcome": 1}', "null", "[" * 100_000])
def test_a_result_that_was_changed_is_refused(
    session: Session, work: RegionWork, baseline: Side, judged: PairedOutcome, text: str
) -> None:
    session.paired_results = dict.fromkeys(session.paired_results, text)
    with pytest.raises(JournalError, match="a verdict cannot be trusted") as refused:
        again(session, work, baseline)
    assert "\n" not in str(refused.value)


def test_a_result_without_its_samples_is_refused(
    session: Session, work: RegionWork, baseline: Side, judged: PairedOutcome
) -> None:
    for changed in (replace(judged, again_cold_s=()), replace(judged, baseline_warm_s=(float("nan"),))):
        result = verdicts.PairedResult((baseline.compiled.binary_hash,), changed)
        session.paired_results = dict.fromkeys(session.paired_results, noun_to_json(result))
        with pytest.raises(JournalError, match="a verdict cannot be trusted"):
            again(session, work, baseline)


def test_a_journal_without_results_is_read(session: Session, judged: PairedOutcome) -> None:
    assert session.journal is not None and session.journal.paired_results()
    with journal_of(session) as journal:
        journal.execute("DROP TABLE verdicts")
    assert session.journal.paired_results() == {}


def test_what_is_unjudged_is_held_against_no_schedule(
    session: Session, work: RegionWork, baseline: Side, judged: PairedOutcome
) -> None:
    cannot = Verification(False, ("poisoned outputs",), reason="most outputs are not numbers (seed 1)", unjudged=True)
    paired = replace(judged, baseline_verification=cannot, finalist_verification=cannot)
    row = finals._decide(session, work, baseline.compiled, baseline.compiled, baseline.schedule, paired, [])
    assert row is not None and (row.outcome, row.note) == ("unjudged", "most outputs are not numbers (seed 1)")
    assert row.chosen.schedule == work.space.baseline() and row.chosen.verification == cannot and not cannot.wrong


def test_an_optimisation_measures_carefully(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[TimeJob] = []
    make = session.service._time_job

    def watched(request: Request, compiled: Compiled) -> TimeJob:
        asked.append(make(request, compiled))
        return asked[-1]

    monkeypatch.setattr(session.service, "_time_job", watched)
    (future,) = session.measure(session.works[0], [session.works[0].space.baseline()])
    assert future.result().runtime_s and [(job.careful, job.early_stop) for job in asked] == [(True, True)]


def test_what_a_run_that_goes_on_has_yet_to_compile_is_expected(
    session: Session, work: RegionWork, baseline: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = work.space.baseline()
    monkeypatch.setattr(session, "works", [work])
    monkeypatch.setattr(work, "own", None)  # so it is to be judged
    assert session.service.has_compiled(work.call.region, own, work.call.variables) and finals.compiling_s(session) == 0
    before = judging_s(session)
    monkeypatch.setattr(session.service, "_kept", {})
    monkeypatch.setattr(work, "compile_s", {own: 6.0})
    expected_s = 6.0 / session.service.compile_workers
    assert finals.compiling_s(session) == pytest.approx(expected_s)
    assert judging_s(session) - before == pytest.approx(expected_s)
