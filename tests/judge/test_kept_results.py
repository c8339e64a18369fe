"""What the finals of one run showed, a run that goes on takes over: the very same comparison, whole, or not at all."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kcg.errors import JournalError
from kcg.judge import kept
from kcg.judge.interface import Offer
from kcg.judge.kept import KeptResults, Side
from kcg.judge.paired import Compared
from kcg.kernel.codec import kernel_of
from kcg.kernel.program import Compiled
from kcg.measure import verify
from kcg.measure.jobs import PairedOutcome, TimeJob
from kcg.measure.protocol import PROTOCOL
from kcg.measure.service import Request
from kcg.nouns import noun_to_json
from kcg.optimize.estimates import Estimates
from kcg.optimize.settings import Settings
from kcg.optimize.work import Measured, RegionWork
from kcg.types import Region, Schedule, Verification
from tests.dataset.test_journal import forged
from tests.kernels import empty, kernels_of
from tests.optimize_run import Begun, begun

SCRIPT = Path(__file__).parents[1] / "scripts" / "one_layer.py"


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Begun]:
    """A run that is about to judge."""
    folder = tmp_path_factory.mktemp("out")
    settings = Settings(str(SCRIPT), device=os.environ["DEV"], folder=folder, script_args=("16",))
    with begun(settings) as started:
        yield started


@pytest.fixture
def work(opened: Begun) -> RegionWork:
    return opened.works[0]


@pytest.fixture
def baseline(opened: Begun, work: RegionWork) -> Side:
    return Side(work.space.baseline(), opened.device.compiled(work, work.space.baseline()))


def anew(opened: Begun) -> Estimates:
    """As of a run that takes nothing over."""
    return opened.estimates(opened.untimed())


def resumed(opened: Begun) -> Estimates:
    """As of a run that takes over what the journal holds now."""
    return opened.estimates(opened.untimed(), resumed=True)


@pytest.fixture
def judged(opened: Begun, work: RegionWork, baseline: Side) -> PairedOutcome:
    """What was seen of the baseline alone, as an earlier run left it."""
    outcome = opened.comparisons(anew(opened)).compare(work, baseline, None).outcome
    assert outcome is not None and outcome.baseline_verification.passed and not outcome.noisy
    return outcome


def again(opened: Begun, work: RegionWork, baseline: Side, finalist: Side | None = None) -> PairedOutcome:
    outcome = opened.comparisons(resumed(opened)).compare(work, baseline, finalist).outcome
    assert outcome is not None
    return outcome


def journal_of(opened: Begun) -> contextlib.closing[sqlite3.Connection]:
    return contextlib.closing(sqlite3.connect(opened.device.folder / "journal.sqlite", isolation_level=None))


def test_the_same_comparison_is_not_made_twice(
    opened: Begun, work: RegionWork, baseline: Side, judged: PairedOutcome
) -> None:
    with journal_of(opened) as journal:
        rows = journal.execute("SELECT COUNT(*) FROM measurements").fetchone()
        assert again(opened, work, baseline) == judged, "to the last sample"
        assert journal.execute("SELECT COUNT(*) FROM measurements").fetchone() == rows
    assert resumed(opened).kept.holds_first(work)
    assert not anew(opened).kept.holds_first(work)


def test_another_finalist_another_binary_or_other_rules_are_judged(
    opened: Begun, work: RegionWork, baseline: Side, judged: PairedOutcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    step: Schedule = work.space.actions(work.space.start())[0].schedule
    other = Side(step, opened.device.compiled(work, step))
    paired = again(opened, work, baseline, other)
    assert paired.finalist_verification is not None and paired.baseline_cold_s != judged.baseline_cold_s
    assert other.compiled.binary_hash != baseline.compiled.binary_hash
    assert again(opened, work, Side(baseline.schedule, other.compiled)) != judged
    monkeypatch.setattr(kept, "RULES", kept.RULES + 1)
    assert not resumed(opened).kept.holds_first(work)
    assert again(opened, work, baseline) != judged


def _is_known(opened: Begun, work: RegionWork) -> bool:
    return resumed(opened).kept.holds(work, [work.space.baseline()])


@pytest.mark.usefixtures("judged")
def test_a_result_is_of_one_region_and_of_one_set_of_values(opened: Begun, work: RegionWork) -> None:
    (kernel,) = work.call.region.kernels
    (other,) = (kernel_of(ast) for ast in kernels_of(empty(16, 16) + 1))
    assert kernel != other and _is_known(opened, work)
    for call in (
        replace(work.call, variables=(("start_pos", 3),)),
        replace(work.call, region=Region((other,))),
    ):
        assert not _is_known(opened, RegionWork(call, work.space))
        assert not resumed(opened).kept.holds_first(RegionWork(call, work.space))
    assert _is_known(opened, RegionWork(replace(work.call, calls=work.call.calls + 1), work.space))


@pytest.mark.usefixtures("judged")
def test_a_result_is_of_one_device_and_its_tools_and_rules(
    opened: Begun, work: RegionWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, toolchain = opened.device.service.facts
    for facts in (
        (replace(target, model="another"), toolchain),
        (target, replace(toolchain, driver="another")),
        (target, replace(toolchain, compiler="another")),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(opened.device.service, "_facts", facts)
            assert not _is_known(opened, work)
    for where, name, value in (
        (kept, "PROTOCOL", PROTOCOL + 1),
        (kept, "RULES", kept.RULES + 2),
        (verify, "FINAL_SEEDS", (*verify.FINAL_SEEDS, 9)),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(where, name, value)
            assert not _is_known(opened, work)
    assert _is_known(opened, work)


@pytest.mark.usefixtures("judged")
def test_what_is_written_by_hand_is_still_to_be_judged(
    opened: Begun, work: RegionWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    estimates = resumed(opened)
    before_s = estimates.judging_s()
    assert estimates.kept.holds_first(work)
    monkeypatch.setattr(work, "offers", [Offer("mine", work.space.baseline())])
    assert not estimates.kept.holds_first(work) and estimates.judging_s() > before_s


def test_it_is_reported_of_how_many_kernels_every_result_was_taken_over(
    opened: Begun, work: RegionWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of whose duels some were fought was judged in this run."""

    def printed(estimates: Estimates) -> list[str]:
        with monkeypatch.context() as patched:
            patched.setattr(opened.log, "warnings", [])
            opened.judge(estimates).run()
            return list(opened.log.warnings)

    assert printed(anew(opened)) == []
    assert printed(resumed(opened)) == [
        "the verdicts on 1 of 1 kernel are those of an earlier run: they were not judged again"
    ]
    action = work.space.actions(work.space.start())[-1].schedule
    monkeypatch.setattr(work, "offers", [Offer("mine", action)])
    assert printed(resumed(opened)) == []


def test_what_is_wrong_or_noisy_is_not_kept(
    opened: Begun, work: RegionWork, baseline: Side, judged: PairedOutcome
) -> None:
    before, results = opened.journal.paired_results(), KeptResults(opened.device, resumed=False)
    assert before
    wrong = replace(judged, baseline_verification=Verification(False, reason="another device answered"))
    for bad in (wrong, replace(judged, noisy="the clocks fell"), replace(judged, tainted=True)):
        results.add(work, [baseline], bad, work.call.variables)
    results.add(work, [baseline, baseline], judged, work.call.variables)  # of two sides one was judged
    assert opened.journal.paired_results() == before


def changed_to(opened: Begun, text: str) -> None:
    """Somebody writes this in the place of all that was kept."""
    with forged(opened.device.folder / "journal.sqlite") as journal:
        journal.execute("UPDATE verdicts SET verdict = ?", (text,))


@pytest.mark.parametrize("text", ["", "{}", '{"binaries": [], "outcome": 1}', "null", "[" * 100_000])
def test_a_result_that_was_changed_is_refused(
    opened: Begun, work: RegionWork, baseline: Side, judged: PairedOutcome, text: str
) -> None:
    changed_to(opened, text)
    with pytest.raises(JournalError, match="a verdict cannot be trusted") as refused:
        again(opened, work, baseline)
    assert "\n" not in str(refused.value)


def test_a_result_without_its_samples_is_refused(
    opened: Begun, work: RegionWork, baseline: Side, judged: PairedOutcome
) -> None:
    for changed in (replace(judged, again_cold_s=()), replace(judged, baseline_warm_s=(float("nan"),))):
        changed_to(opened, noun_to_json(kept.Entry((baseline.compiled.binary_hash,), changed)))
        with pytest.raises(JournalError, match="a verdict cannot be trusted"):
            again(opened, work, baseline)


def test_a_journal_without_results_is_read(opened: Begun, judged: PairedOutcome) -> None:
    assert opened.journal.paired_results()
    with journal_of(opened) as journal:
        journal.execute("DELETE FROM verdicts")
    assert opened.journal.paired_results() == {}


def test_what_is_unjudged_is_held_against_no_schedule(
    opened: Begun, work: RegionWork, baseline: Side, judged: PairedOutcome
) -> None:
    cannot = Verification(False, ("poisoned outputs",), reason="most outputs are not numbers (seed 1)", unjudged=True)
    seen = Compared(baseline, baseline, replace(judged, baseline_verification=cannot, finalist_verification=cannot))
    row = opened.judge(anew(opened)).judge.decide(work, seen, [])
    assert row is not None and (row.outcome, row.note) == ("unjudged", "most outputs are not numbers (seed 1)")
    assert row.chosen.schedule == work.space.baseline() and row.chosen.verification == cannot and not cannot.wrong


def test_an_optimisation_measures_carefully(opened: Begun, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[TimeJob] = []
    make = opened.device.service._time_job

    def watched(request: Request, compiled: Compiled) -> TimeJob:
        asked.append(make(request, compiled))
        return asked[-1]

    monkeypatch.setattr(opened.device.service, "_time_job", watched)
    (future,) = opened.device.measure(opened.works[0], [opened.works[0].space.baseline()])
    assert future.result().runtime_s and [(job.careful, job.early_stop) for job in asked] == [(True, True)]


def test_what_a_run_that_goes_on_has_yet_to_compile_is_expected(
    opened: Begun, work: RegionWork, baseline: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, service = work.space.baseline(), opened.device.service
    estimates = opened.estimates(Measured([work], 0.0))
    monkeypatch.setattr(work, "own", None)  # so it is to be judged
    assert service.has_compiled(work.call.region, own, work.call.variables) and estimates.compiling_s() == 0
    before = estimates.judging_s()
    monkeypatch.setattr(service, "_kept", {})
    monkeypatch.setattr(work, "compile_s", {own: 6.0})
    expected_s = 6.0 / service.compile_workers
    assert estimates.compiling_s() == pytest.approx(expected_s)
    assert estimates.judging_s() - before == pytest.approx(expected_s)
