"""What a budget is spent on: the search has its share, only candidates are judged, and what was left out is said."""

from __future__ import annotations

import os
import re
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kcg.errors import ExitCode, VerificationError
from kcg.judge.finalists import Judge
from kcg.judge.interface import UNVERIFIED
from kcg.judge.kept import KeptResults
from kcg.judge.paired import FRESH_CHILD_S, Comparisons
from kcg.kernel.kinds import describe
from kcg.measure.service import MeasureService
from kcg.optimize import baselines, costs, estimates, judging
from kcg.optimize import run as run_of_kcg
from kcg.optimize.__main__ import nothing_faster
from kcg.optimize.ahead import Ahead
from kcg.optimize.budget import LEAST_OVERTIME_S, Budget
from kcg.optimize.console import _summary
from kcg.optimize.device import Device
from kcg.optimize.estimates import LAUNCHES_S, Estimates, Pace
from kcg.optimize.judging import CHECKED, Judging, as_judged
from kcg.optimize.outlook import outlook_of
from kcg.optimize.search import Guide, _Search, search
from kcg.optimize.settings import Settings
from kcg.optimize.stored import _found_nothing
from kcg.optimize.work import Candidates, Measured, RegionWork
from kcg.report.endings import exit_code_of, incomplete
from kcg.report.result import TIME_OVER, UNTIMED, read_result
from kcg.search.problem import Observation
from kcg.types import Kernel, ModelCheck, Outlook, RegionResult, Result, Schedule, Status
from tests.optimize_run import Begun, begun, optimized, whole_run
from tests.sample_result import sample_result

SCRIPTS = Path(__file__).parents[1] / "scripts"


def samplers(folder: Path) -> list[str]:
    with sqlite3.connect(f"file:{folder / 'journal.sqlite'}?mode=ro", uri=True) as journal:
        return [sampler for (sampler,) in journal.execute("SELECT sampler FROM measurements")]


class Clock:
    """A time that a test sets, in the place of `time.monotonic`: nobody else is told of what it says while it runs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 10_000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)


# ---- exit codes ----


def only(result: Result, *outcomes: str) -> Result:
    return replace(result, regions=tuple(row for row in result.regions if row.outcome in outcomes))


def test_the_exit_code_is_that_of_the_rest_where_a_kernel_is_unjudged() -> None:
    sample = replace(sample_result(), complete=True)

    def code(*outcomes: str) -> ExitCode:
        return exit_code_of(only(sample, *outcomes))

    assert code("improved", "unjudged") == code("improved", "kept", "not searched", "unjudged") == ExitCode.OK
    assert code("kept", "unjudged") == ExitCode.NOTHING_IMPROVED
    assert code("improved", "unjudged", "quarantined") == ExitCode.VERIFICATION_FAILED, "that one is proven wrong"
    failing = only(sample, "improved", "quarantined")
    rows = tuple(
        replace(row, chosen=replace(row.chosen, verification=UNVERIFIED)) if row.outcome == "quarantined" else row
        for row in failing.regions
    )
    assert exit_code_of(replace(failing, regions=rows)) == ExitCode.OK, "it fails, which proves nothing"
    wrong = replace(only(sample, "improved"), model_check=ModelCheck(False, "the output differs by 0.3"))
    assert exit_code_of(wrong) == ExitCode.VERIFICATION_FAILED
    assert code("kept", "undecided") == code("undecided") == ExitCode.NOTHING_IMPROVED, "it was searched"
    assert code("not searched", "unjudged") == ExitCode.NOTHING_SEARCHED


@pytest.mark.parametrize(
    ("check", "code"),
    [
        (ModelCheck(True, "", 1e-7, 1e-5), ExitCode.OK),
        (ModelCheck(None, "not run: kcg has no runnable rope"), ExitCode.OK),  # its parts are all there is
        (ModelCheck(None, "not run: 3 s of the budget were left, and it takes about 9 s"), ExitCode.UNCHECKED),
        (ModelCheck(None, "not run: left out by --no-script-check"), ExitCode.UNCHECKED),
        (ModelCheck(None, "no verdict: the script does not repeat itself"), ExitCode.UNCHECKED),
        (ModelCheck(False, "the output differs by 0.3"), ExitCode.VERIFICATION_FAILED),
    ],
)
def test_what_improved_ends_well_where_it_was_checked_as_a_whole(check: ModelCheck, code: ExitCode) -> None:
    """Whatever was left undecided or not searched when a budget ended."""
    some = only(sample_result(), "improved", "undecided", "not searched")
    assert exit_code_of(replace(some, model_check=check)) == code


def test_each_exit_code_has_its_line() -> None:
    sample = replace(sample_result(), model_check=None)
    assert f"(1 of {len(sample.regions)} kernels were not searched)" in nothing_faster(sample)
    assert "not searched" not in nothing_faster(only(sample, "kept"))
    assert nothing_faster(only(sample, "kept")).endswith("try --effort thorough")
    (row,) = only(sample, "not searched").regions
    for note, advice in (
        ("the measurements were used up", "; give it more with --measurements"),
        ("the time for searching was over", "; give it more time with --budget"),
        ("too little to save", "; try --effort thorough"),
    ):
        assert nothing_faster(replace(sample, regions=(replace(row, note=note),))).endswith(advice)
    alone = replace(sample, regions=(replace(row, note="there is no other schedule"),))
    assert "not searched" not in nothing_faster(alone)
    late = only(sample_result(), "kept", "undecided")
    assert nothing_faster(late).startswith(
        "nothing was verified to be faster in time, and 1 kernel may be; give it more"
    )
    assert incomplete(replace(late, complete=True)) == ""
    warnings = ("it rains", "nothing was searched: no time")
    idle = replace(only(sample, "not searched"), complete=False, warnings=warnings)
    assert incomplete(idle) == "nothing was searched: no time"
    late = replace(only(sample, "improved"), complete=False, model_check=ModelCheck(None, "not run: it takes an hour"))
    assert incomplete(late).endswith("verified part by part, and the whole was not checked: it takes an hour")


# ---- whole runs ----


@pytest.mark.slow
def test_an_unjudged_kernel_keeps_its_schedule_and_is_named_and_the_rest_is_optimised(tmp_path: Path) -> None:
    done = optimized(SCRIPTS / "half_unjudged.py", "--measurements", "8", "--report", tmp_path)
    result = read_result(tmp_path / "RESULT.json")
    unjudged, other = sorted(result.regions, key=lambda row: row.outcome != "unjudged")
    assert unjudged.outcome == "unjudged" and unjudged.note == "most outputs are not numbers (seed 0)"
    assert unjudged.chosen == unjudged.baseline
    assert (unjudged.chosen.verification.unjudged, unjudged.chosen.verification.wrong) == (True, False)
    expected = ExitCode.OK if other.outcome == "improved" else ExitCode.NOTHING_IMPROVED
    assert (done.returncode, other.outcome) in ((expected, "improved"), (expected, "kept")), done.stderr
    assert result.complete and dict(result.failures) == {"unjudged": 1}, "it is measured once, and not judged"
    printed = " ".join(done.stdout.split())
    name = unjudged.baseline.name
    assert f"unjudged: {name} keeps tinygrad's own schedule: most outputs are not numbers (seed 0)" in printed
    counts = "1 unjudged" if other.outcome == "improved" else f"1 {other.outcome}, 1 unjudged"
    assert f"not improved: {counts}" in printed
    page = (tmp_path / "report.html").read_text()
    assert "the reference cannot tell what is right" in page and unjudged.note in page


@pytest.mark.slow
def test_a_run_in_which_all_is_unjudged_has_searched_nothing(tmp_path: Path) -> None:
    """Its exit code is among those above."""
    done = optimized(SCRIPTS / "half_unjudged.py", "--report", tmp_path, "--", "alone")
    assert done.returncode == ExitCode.NOTHING_SEARCHED, done.stderr
    result = read_result(tmp_path / "RESULT.json")
    assert [row.outcome for row in result.regions] == ["unjudged"] and not result.complete
    assert "nothing was searched: every kernel is unjudged" in result.warnings
    assert "nothing was faster" not in done.stderr and "nothing was searched: every kernel is unjudged" in done.stderr


def test_a_budget_too_short_to_search_in_is_reported_with_one_that_is_not(tmp_path: Path) -> None:
    done = optimized(SCRIPTS / "one_layer.py", "--budget", "1s", "--report", tmp_path, "--quiet", "--", "8")
    assert done.returncode == ExitCode.NOTHING_SEARCHED, done.stderr
    (line,) = [
        line for line in done.stderr.splitlines() if line.startswith("the budget of 1 s is too short to search in")
    ]
    advised = re.search(r"try --budget (\d+)s$", line)
    assert advised is not None and int(advised[1]) > 1
    result = read_result(tmp_path / "RESULT.json")
    assert [row.outcome for row in result.regions] == ["not searched"] and not result.complete
    assert f"nothing was searched: {line}" in result.warnings


@pytest.mark.slow
def test_a_kernel_without_a_candidate_is_not_judged_and_not_called_verified(tmp_path: Path) -> None:
    done = optimized(SCRIPTS / "one_layer.py", "--search", "hand-coded", "--report", tmp_path, "--", "8")
    assert done.returncode == ExitCode.NOTHING_SEARCHED, "it searched nothing, whoever asked for that"
    (row,) = read_result(tmp_path / "RESULT.json").regions
    assert row.outcome == "not searched" and row.chosen == row.baseline and row.after_s == row.before_s > 0
    check = row.chosen.verification
    assert (check.passed, check.wrong, check.unjudged, check.seeds, check.reason) == (
        False,
        False,
        False,
        1,
        CHECKED,
    )
    assert row.chosen.source and row.chosen.interval_s[0] <= row.chosen.cold_s <= row.chosen.interval_s[1]
    assert samplers(tmp_path) == ["hand-coded"], "its measurement stands, and nothing is timed again"


def one_layer(folder: Path) -> Settings:
    """Of a run that searches nothing."""
    script = str(SCRIPTS / "one_layer.py")
    return Settings(script, device=os.environ["DEV"], folder=folder, search="hand-coded", script_args=("8",))


@pytest.mark.slow
def test_who_interrupts_the_writing_of_the_result_has_it_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever Ctrl-C comes: before the file is there, or after; what an earlier run left is kept aside either way."""
    settings = one_layer(tmp_path)
    written = run_of_kcg.write
    for count, when in enumerate(("before", "after"), 1):
        calls: list[str] = []

        def interrupted(*steps: Any, calls: list[str] = calls, when: str = when, **rest: Any) -> object:
            calls.append(when)
            finished = written(*steps, **rest) if when == "after" or len(calls) == 2 else None
            if len(calls) == 1:
                raise KeyboardInterrupt
            return finished

        monkeypatch.setattr(run_of_kcg, "write", interrupted)
        finished = whole_run(settings)
        assert len(calls) == 2 and finished.exit_code == ExitCode.INTERRUPTED
        assert not read_result(tmp_path / "RESULT.json").complete
        assert len(list(tmp_path.glob("RESULT*.json"))) == count


@pytest.mark.slow
def test_who_interrupts_the_writing_has_the_plan_that_was_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check of one plan says nothing of another one, such as that of every kernel alone."""
    settings = one_layer(tmp_path)
    written, tries = run_of_kcg.write, []

    def checked(results: list[Result], *steps: Any, **rest: Any) -> tuple[Result, ModelCheck]:
        return replace(results[-1], seed=17), ModelCheck(True, "", 0.0, 1e-4, seed=17)

    def interrupted(*steps: Any, **rest: Any) -> object:
        tries.append(steps)
        if len(tries) == 1:
            raise KeyboardInterrupt
        return written(*steps, **rest)

    monkeypatch.setattr(run_of_kcg, "check_steps", checked)
    monkeypatch.setattr(run_of_kcg, "write", interrupted)
    whole_run(settings)
    result = read_result(tmp_path / "RESULT.json")
    assert len(tries) == 2 and result.model_check is not None and result.seed == result.model_check.seed == 17


# ---- estimates ----


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Begun, Measured]]:
    """A run whose baselines are timed, with three kernels and a budget of ten minutes. What follows is worked out from
    the seconds of a machine that has nothing else to do, however long it took on this one."""
    settings = Settings(
        str(SCRIPTS / "three_kernels.py"),
        device=os.environ["DEV"],
        folder=tmp_path_factory.mktemp("out"),
        budget_s=600.0,
    )
    with begun(settings) as opened:
        measured = opened.measured()
        opened.captured = replace(opened.captured, recorded_s=2.0)
        yield opened, replace(measured, baseline_s=0.1, preparing_s=0.01)


FLUSH_S, TIMED_S = 0.02, 5.0  # emptying the cache once; from the start until the baselines were timed


@pytest.fixture
def opened(started: tuple[Begun, Measured], monkeypatch: pytest.MonkeyPatch) -> Begun:
    """The same, without what a test put into it."""
    opened, _ = started
    monkeypatch.setattr(opened.log, "warnings", [])
    monkeypatch.setattr(opened.budget.ledger, "deadline", None)
    monkeypatch.setattr(opened.budget, "started", time.monotonic() - TIMED_S)
    device = opened.device
    monkeypatch.setitem(device.service.spent_s, "sample", device.samples_s + device.samples * FLUSH_S)
    for work in opened.works:
        monkeypatch.setattr(work, "seen", {kind: dict(seen) for kind, seen in work.seen.items()})
    opened.device.taken = {}  # by what earlier tests judged
    return opened


@pytest.fixture
def expected(opened: Begun, started: tuple[Begun, Measured]) -> Estimates:
    return opened.estimates(replace(started[1], at=opened.budget.started + TIMED_S))


def find(work: RegionWork, *, times: float = 2.0) -> Schedule:
    """As if its search had found a schedule that is so many times as fast."""
    schedule: Schedule = work.space.actions(work.space.start())[0].schedule
    work.known[schedule] = Observation(schedule, Status.OK, work.baseline_s / times, f"found {describe(schedule)}")
    return schedule


def test_only_what_has_a_candidate_is_expected_to_be_judged_and_more_of_it_leaves_less_to_search(
    expected: Estimates,
) -> None:
    one, two, _ = expected.works
    nothing_s, until = expected.judging_s(), [expected.search_until()]
    assert not any(expected.is_due(work) for work in expected.works)
    assert nothing_s == pytest.approx(
        FRESH_CHILD_S + max(expected.comparing_s(work) for work in expected.works), rel=0.2
    ), "one that may be found"
    for work in (one, two):
        find(work)
        until.append(expected.search_until())
    assert [expected.is_due(work) for work in expected.works] == [True, True, False]
    assert until[0] > until[2] and until[1] > until[2]
    find(one, times=0.5)
    assert not expected.is_due(one), "what is slower is no candidate"
    assert expected.search_until() > until[2]


def test_what_a_search_finds_between_two_looks_ends_no_run(
    expected: Estimates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its threads go on while it is worked out what judging takes: what could be judged a moment ago is dear now."""
    answers = iter([True])
    monkeypatch.setattr(Estimates, "_can_be_judged", lambda expected, work: next(answers, False))
    assert expected.judging_s() > FRESH_CHILD_S


@pytest.mark.parametrize("slow_s", [1.0, 1000.0])
def test_the_search_has_its_share_of_the_budget_whatever_is_to_be_judged(
    expected: Estimates, monkeypatch: pytest.MonkeyPatch, slow_s: float
) -> None:
    monkeypatch.setitem(estimates.VERIFY_S, "CPU", slow_s)
    for work in expected.works:
        find(work)
    end, measured_at = expected.budget.started + 600.0, expected.measured.at
    share = (expected.search_until() - measured_at) / (end - measured_at)
    if slow_s < 2:
        assert share > 0.9
    else:
        assert share <= 0, "there is no time to judge even one"
        assert "try --budget" in expected.too_short()
    monkeypatch.setitem(estimates.VERIFY_S, "CPU", 200.0)  # one fits, three do not
    share = (expected.search_until() - measured_at) / (end - measured_at)
    assert share == pytest.approx(estimates.SEARCH_SHARE) and expected.too_short() == ""


def test_emptying_the_cache_takes_what_it_took_in_this_run(
    opened: Begun, expected: Estimates, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, own_s = opened.device.samples, opened.device.samples_s
    assert taken >= 9 and own_s > 0, "three samples at least of each of three kernels"
    before_s = expected.comparing_s(opened.works[0])
    monkeypatch.setitem(opened.device.service.spent_s, "sample", own_s + taken * 1.5)
    assert expected.flush_s == pytest.approx(1.5) and before_s < 5
    assert expected.comparing_s(opened.works[0]) > before_s + 10


@pytest.mark.parametrize("outcome", ["improved", "kept"])
def test_what_the_budget_leaves_no_time_to_judge_keeps_tinygrads_own_schedule_and_is_reported(
    opened: Begun, expected: Estimates, monkeypatch: pytest.MonkeyPatch, outcome: str
) -> None:
    """Once something is improved, the time for checking the whole model is kept; before, there is nothing to check."""
    largest = max(opened.works, key=lambda work: work.before_s)
    for work in opened.works:
        find(work, times=10.0 if work is largest else 1.01)
    judged, compare_found = [], Judge.compare_found

    def judging(judge: Judge, work: RegionWork) -> RegionResult:
        judged.append(work.id)
        return replace(compare_found(judge, work), outcome=outcome)

    monkeypatch.setattr(Judge, "compare_found", judging)
    monkeypatch.setattr(Estimates, "judge_until", lambda expected: time.monotonic() - 1)  # of the model's check
    results = opened.judge(expected).run()
    undecided = [row for row in results.rows if row.outcome == "undecided"]
    if outcome == "kept":
        assert len(judged) == 3 and not undecided
        return
    assert judged == [largest.id], "where most is to be gained first, more than half of it"
    assert len(undecided) == results.undecided == 2
    for row in undecided:
        assert row.chosen == row.baseline and row.after_s == row.before_s > 0
        assert "there was no time to judge" in row.note
    by_id = {work.id: row for work, row in zip(opened.works, results.rows, strict=True)}
    left_s = sum(work.saving_s for work in opened.works if work is not largest)
    hoped = {work.id: 2e-6 for work in opened.works}
    found = outlook_of(opened.works, by_id, results.rows, hoped)
    assert found == Outlook(2, pytest.approx(left_s), 3, pytest.approx(6e-6)) and left_s > 0
    planned = [replace(row, calls=0) if row in undecided else row for row in results.rows]
    assert outlook_of(opened.works, by_id, planned, hoped) == Outlook(0, 0, 1, pytest.approx(2e-6)), "no call is left"
    assert any(warning.startswith("the budget left no time to judge 2 of 3 kernels") for warning in opened.log.warnings)


@pytest.mark.parametrize(("measurements", "used_up"), [(1000, False), (1, True)])
def test_a_search_says_whether_its_time_was_over_or_its_measurements_used_up(
    opened: Begun, expected: Estimates, monkeypatch: pytest.MonkeyPatch, measurements: int, used_up: bool
) -> None:
    find(opened.works[0])
    monkeypatch.setattr(opened.budget.ledger, "max_measurements", measurements)
    monkeypatch.setattr(Estimates, "search_until", lambda expected: 0.0)
    opened.guide.read()
    candidates = search(expected, opened.guide, device=opened.device, log=opened.log)
    assert (candidates.used_up, candidates.settled, candidates.searched) == (used_up, False, True)
    why = opened.judge(expected, candidates).without_candidate(opened.works[1])[1]
    assert why == ("the measurements were used up" if used_up else "the time for searching was over")


def test_a_search_that_finds_nothing_may_go_on_in_the_time_for_checking_the_model(
    opened: Begun, expected: Estimates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Estimates, "whole_s", lambda expected, **more: 100.0)
    before = expected.search_until()
    find(opened.works[0])
    assert before - expected.search_until() > 90
    monkeypatch.setattr(Estimates, "whole_s", lambda expected, **more: 590.0)
    assert "leaves no time to check the whole script" in expected.too_short_for_the_model()
    assert before - expected.search_until() < 90, "it would not fit anyhow"


def test_what_checks_of_the_whole_took_is_learned_of_what_was_expected_at_first(
    expected: Estimates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often it is learned: a ratio to what was corrected already would fall back to one, again and again."""
    monkeypatch.setattr(type(expected.runner), "rounds", 1)  # as a model's: nothing is learned of further rounds
    first_s = expected.whole_s(changed=1)
    for _ in range(50):
        expected.took_whole(expected.whole_s(changed=1), 3 * first_s)
    assert expected.whole_s(changed=1) == pytest.approx(3 * first_s, rel=0.2)


def test_regions_that_are_timed_later_do_not_take_the_room_of_the_check(
    opened: Begun, expected: Estimates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Estimates, "whole_s", lambda expected, **more: 100.0)
    find(opened.works[0])
    before, over_at = expected.measured, expected.budget.over_at
    assert over_at is not None and expected.judge_until() == over_at - 100.0
    later = replace(expected, measured=replace(before, at=over_at - 110.0, kernels_at=before.at))
    assert later.judge_until() == over_at - 100.0 and not later.too_short()


def test_on_a_gpu_the_check_of_the_whole_has_a_third_of_a_budget_or_waits(
    opened: Begun, expected: Estimates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a minute for Flux 768 its check would have had half of what judging had."""
    find(opened.works[0])
    begun = Clock(monkeypatch).now_s
    measured = replace(expected.measured, at=begun, kernels_at=begun)
    monkeypatch.setattr(Estimates, "whole_s", lambda expected, **more: 20.0)
    for is_cpu, limit_s, kept_s in ((True, 50.0, 20.0), (False, 50.0, 0.0), (False, 70.0, 20.0 + estimates.PLANS_S)):
        monkeypatch.setattr(Device, "is_cpu", is_cpu)
        budget = Budget(started=begun, limit_s=limit_s, measurements=None)
        found = replace(expected, measured=measured, budget=budget)
        until = found.judge_until()
        assert until == (found.late_at if not kept_s else begun + limit_s - kept_s)


@pytest.mark.parametrize(("limit_s", "follow"), [(None, True), (59.0, False), (80.0, True)])
def test_regions_are_made_ready_where_a_budget_has_time_for_them_after_the_kernels(
    limit_s: float | None, follow: bool, expected: Estimates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Device, "is_cpu", False)
    monkeypatch.setattr(Estimates, "_least_judging_s", lambda expected: 5.0)
    monkeypatch.setattr(Estimates, "_model_s", lambda expected: 0.0)
    budget = Budget(started=Clock(monkeypatch).now_s, limit_s=limit_s, measurements=None)
    assert replace(expected, budget=budget).regions_may_follow() is follow


def test_the_best_plan_with_regions_has_time_to_be_compared_too(
    opened: Begun, expected: Estimates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a script with steps in two rounds."""

    def whole_s(expected: Estimates, *, plans: int = 1, rounds: int = 1, **others: Any) -> float:
        return rounds * (100.0 + 10.0 * (plans - 1))

    monkeypatch.setattr(Estimates, "whole_s", whole_s)
    region = replace(opened.works[0], proposed=True, seen=dict(opened.works[0].seen))
    both = replace(expected, measured=replace(expected.measured, works=[*opened.works, region]))
    assert expected.budget.over_at is not None and both.judge_until() == expected.budget.over_at - 100.0
    found = Schedule("tile", "{}")
    region.seen_of("tile")[found] = Observation(found, Status.OK, region.baseline_s / 2, "tile")
    assert both.judge_until() == expected.budget.over_at - 110.0
    captured: Any = SimpleNamespace(workload=SimpleNamespace(steps=3))
    assert replace(both, captured=captured).judge_until() == expected.budget.over_at - 220.0


def test_a_script_runs_faster_by_what_was_found_of_its_kernels(
    opened: Begun, expected: Estimates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an autoencoder's training the check was left out: 16 s were expected of it, with 10 left."""
    monkeypatch.setattr(type(expected.runner), "run_s", 100.0)
    before_s = expected.whole_s(changed=1)
    find(opened.works[0])
    saved_s = opened.works[0].before_s - opened.works[0].after_s
    assert saved_s > 0 and expected.whole_s(changed=1, as_found=False) == before_s
    assert before_s - expected.whole_s(changed=1) == pytest.approx(1.25 * min(saved_s, 50.0), rel=0.3)


def test_judging_has_what_still_counts_as_in_time_where_no_check_follows(
    expected: Estimates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of MNIST what saved most was found with 15 seconds left, and judging it was expected to take 15.5."""
    over_at, late_at = expected.budget.over_at, expected.late_at
    assert over_at is not None and late_at is not None and late_at > over_at
    monkeypatch.setattr(Estimates, "whole_s", lambda expected, **more: 590.0)
    assert expected.judge_until() == late_at
    monkeypatch.setattr(Estimates, "whole_s", lambda expected, **more: 100.0)
    assert expected.judge_until() == over_at - 100.0


def test_the_first_judgement_may_take_what_still_counts_as_in_time(
    opened: Begun, expected: Estimates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Estimates, "comparing_s", lambda expected, work: 1.0)
    monkeypatch.setattr(Estimates, "judge_until", lambda expected: 0.0)
    clock = Clock(monkeypatch)
    for limit_s, allowed in ((990.0, True), (800.0, False)):
        budget = Budget(started=clock.now_s - 1000.0, limit_s=limit_s, measurements=None)
        pace, work = Pace(replace(expected, budget=budget)), opened.works[0]
        assert pace.allows(work, improved=False) is allowed
        assert not pace.allows(work, improved=True), "the check of the whole has its time"


def expect_ten_seconds_each(monkeypatch: pytest.MonkeyPatch, *, whole_s: float) -> None:
    """To judge one takes ten seconds, to compile it none, and the whole model `whole_s`."""
    for name in ("comparing_s", "timing_s"):
        monkeypatch.setattr(Estimates, name, lambda expected, work: 10.0)
    monkeypatch.setattr(Estimates, "compiling_s", lambda expected: 0.0)
    monkeypatch.setattr(Estimates, "whole_s", lambda expected: whole_s)


def test_what_judging_will_take_is_worked_out_anew_by_what_it_took(
    opened: Begun, expected: Estimates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is shown as left; it does not end while something is to be judged."""
    expect_ten_seconds_each(monkeypatch, whole_s=100.0)
    clock = Clock(monkeypatch)
    monkeypatch.setattr(MeasureService, "used_s", 0.0)
    pace, work = Pace(expected), opened.works[0]
    assert pace.left_s([work] * 3) == pytest.approx(FRESH_CHILD_S + 3 * 10 + 100)
    for took_s in (20.0, 40.0):  # the first starts the process, and says nothing of the others
        with pace.judging(work):
            clock.now_s += took_s
            monkeypatch.setattr(MeasureService, "used_s", opened.device.bench.service.used_s + took_s)
    assert (pace.left_s([work]), pace.left_s([])) == pytest.approx((4 * 10 + 100, 100))


def test_until_a_comparison_was_timed_judging_is_as_much_slower_as_is_reserved_for(
    opened: Begun, expected: Estimates, monkeypatch: pytest.MonkeyPatch
) -> None:
    expect_ten_seconds_each(monkeypatch, whole_s=0.0)
    monkeypatch.setattr(Device, "is_cpu", False)
    monkeypatch.setattr(opened.device, "taken", {})
    monkeypatch.setattr(MeasureService, "used_s", 0.0)
    clock, pace = Clock(monkeypatch), Pace(expected)

    def judged(seconds: float, *, referee_s: float = 0.0, compares: bool = True) -> None:
        with pace.judging(opened.works[0], referee_s=referee_s):
            clock.now_s += seconds
            monkeypatch.setattr(MeasureService, "used_s", opened.device.bench.service.used_s + compares)

    assert pace.left_s(expected.likely() or opened.works[:1]) == pytest.approx(expected.judging_s())
    for _ in range(2):
        judged(0.5)
    assert pace.left_s(opened.works[:1]) == pytest.approx(0.5), "by what it took here"
    assert opened.device.taken == {costs.JUDGING: costs.Taken(10.0, 0.5)}, "which the next run knows"
    judged(1e-6, compares=False)
    assert opened.device.taken == {costs.JUDGING: costs.Taken(10.0, 0.5)}, "nothing was compared"
    for _ in range(99):
        judged(100.0, referee_s=90.0)
    assert pace.left_s(opened.works[:1]) == pytest.approx(10.0, rel=0.02), "the reference took the other 90 s"


def test_what_judging_takes_beside_a_search_on_a_gpu_says_nothing_of_it_alone(
    opened: Begun, expected: Estimates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opened.device, "taken", {})
    monkeypatch.setattr(Device, "judges", True)
    for is_cpu, taken in ((True, [costs.JUDGING]), (False, [])):
        monkeypatch.setattr(Device, "is_cpu", is_cpu)
        opened.device.taken.clear()
        with expected.judging(opened.works[0]):
            pass
        assert [*opened.device.taken] == taken


def test_how_long_the_process_that_judges_takes_to_start_says_nothing_of_how_long_judging_takes(
    opened: Begun, expected: Estimates, monkeypatch: pytest.MonkeyPatch
) -> None:
    expect_ten_seconds_each(monkeypatch, whole_s=0.0)
    monkeypatch.setattr(opened.device, "taken", {})
    for judges, slower in ((False, 1.0), (True, (estimates.JUDGED_S + 20.0) / (estimates.JUDGED_S + 10.0))):
        monkeypatch.setattr(Device, "judges", judges)
        monkeypatch.setattr(MeasureService, "used_s", 0.0)
        with expected.judging(opened.works[0]):
            monkeypatch.setattr(MeasureService, "used_s", 20.0)
        assert expected.slower == pytest.approx(slower)


def test_a_process_that_is_stopped_in_the_finals_is_not_waited_for_when_the_budget_is_over(
    opened: Begun, expected: Estimates, monkeypatch: pytest.MonkeyPatch
) -> None:
    find(opened.works[0])
    monkeypatch.setattr(opened.device.service, "compare_paired", lambda job, *, timeout_s: Future())
    monkeypatch.setattr(Pace, "allows", lambda pace, work, **_: True)
    monkeypatch.setattr(Budget, "patience_s", lambda budget, expected_s: 10.0 * (expected_s == 0))
    results = opened.judge(expected, Candidates(opened.works, searched=False)).run()
    outcomes = [row.outcome for row in results.rows]
    assert outcomes == ["undecided", "not searched", "not searched"], "nothing is blamed on it"
    assert results.rows[0].chosen == results.rows[0].baseline and results.undecided == 1


def test_one_that_is_stopped_while_it_compares_several_is_waited_for_once(
    opened: Begun, expected: Estimates, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, asked = opened.works[0], []
    found = find(work)
    judge = opened.judge(expected, Candidates(opened.works, searched=False))
    both = [judge._comparisons.side(work, schedule) for schedule in (work.space.baseline(), found)]
    sides = [side for side in both if not isinstance(side, str)]
    monkeypatch.setattr(opened.device.service, "compare_jointly", lambda job, *, timeout_s: Future())
    monkeypatch.setattr(opened.device.service, "compare_paired", lambda job, *, timeout_s: asked.append(job))
    monkeypatch.setattr(Pace, "allows", lambda pace, work, **_: True)
    monkeypatch.setattr(Budget, "patience_s", lambda budget, expected_s: 10.0 * (expected_s == 0))
    monkeypatch.setattr(Judge, "compare_kinds", lambda judge, work: judge._comparisons.compare_jointly(work, sides))
    assert judge.run().rows[0].outcome == "undecided" and not asked


def test_a_budget_that_is_over_ends_the_timing_of_the_baselines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(baselines, "AT_ONCE", 1)
    settings = Settings(str(SCRIPTS / "three_kernels.py"), device=os.environ["DEV"], folder=tmp_path, budget_s=0.01)
    with begun(settings) as opened:
        monkeypatch.setattr(opened.device.service, "compile_workers", 1)
        measured = opened.measured(meanwhile=opened.guide.read)
        expected = opened.estimates(measured)
        assert sum(work.is_timed for work in opened.works) == 1 and measured.untimed == 2
        candidates = search(expected, opened.guide, device=opened.device, log=opened.log)
        (warning,) = opened.log.warnings
        assert "starting and timing tinygrad's own schedules took " in warning and "try --budget " in warning
        results = opened.judge(expected, candidates).run()
        result = opened.result(candidates, results)
    rows = results.rows
    assert [row.outcome for row in rows] == ["not searched"] * 3
    first = max(range(3), key=lambda place: opened.works[place].expected_s)
    assert [row.before_s > 0 for row in rows] == [place == first for place in range(3)]
    assert {row.note for row in rows} == {TIME_OVER, UNTIMED}
    assert exit_code_of(result) == ExitCode.NOTHING_SEARCHED
    assert not any("were not timed: the totals" in line for line, _ in _summary(result)), "a warning says it"


def test_a_search_begins_with_what_is_timed_and_not_without_a_time(
    opened: Begun, expected: Estimates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many are not: they are neither searched nor judged, and nobody may say that nothing was found of them."""
    one, two, three = opened.works
    for work in (two, three):
        monkeypatch.setattr(work, "seen", {})
        monkeypatch.setattr(work, "own", None)
    expected = replace(expected, measured=replace(expected.measured, untimed=2, untimed_share=0.01))
    assert expected.too_short() == "" and not expected.is_due(two)
    found, seen = find(one), opened.judge(expected, Candidates(opened.works, untimed=2)).without_candidate(two)
    assert seen == ("not searched", UNTIMED) and expected.likely() == [one] and one.candidates == [found]
    row = replace(sample_result().regions[0], outcome="not searched", note=UNTIMED)
    monkeypatch.setattr(two, "search_s", 10.0)
    assert not _found_nothing(two, row, {}) and _found_nothing(two, replace(row, note=TIME_OVER), {})
    monkeypatch.setattr(one, "seen", {})
    none = replace(expected, measured=replace(expected.measured, untimed=3, untimed_share=1.0))
    assert "tinygrad's own schedules of 3 of 3 kernels were not timed yet: try --budget " in none.too_short()


LATER_S = LEAST_OVERTIME_S - estimates.ENDING_S["CPU"]  # than a short budget, the first verdict may be there


def in_ten_seconds(
    monkeypatch: pytest.MonkeyPatch, expected: Estimates, left_s: float, **judging_s: float
) -> Estimates:
    """Of a budget that has so much left when the search begins. A measurement takes two seconds, judging a kernel ten
    or what is said of its work's id."""

    def comparing_s(expected: Estimates, work: RegionWork) -> float:
        return judging_s.get(work.id, 10.0)

    for name in ("comparing_s", "timing_s"):
        monkeypatch.setattr(Estimates, name, comparing_s)
    monkeypatch.setattr(Estimates, "measuring_one_s", lambda expected, work: 2.0)
    monkeypatch.setattr(Device, "judges", False)
    budget = Budget(started=expected.measured.at - TIMED_S, limit_s=TIMED_S + left_s, measurements=None)
    return replace(expected, budget=budget)


@pytest.mark.parametrize("spare_s", [-0.1, 0.1, LATER_S + 0.1])
def test_the_search_has_time_where_a_kernel_can_be_measured_twice_and_judged(
    opened: Begun, expected: Estimates, monkeypatch: pytest.MonkeyPatch, spare_s: float
) -> None:
    """The rules agree: whenever there is a search, what it finds in the time that it has in any case is judged."""
    expected = in_ten_seconds(monkeypatch, expected, FRESH_CHILD_S + 10.0 + 4.0 - LATER_S + spare_s)
    if spare_s < 0:
        assert "judging one kernel takes about 13 s: try --budget" in expected.too_short()
        return
    assert not expected.too_short() and not expected.too_short_for_some()
    clock, since = Clock(monkeypatch), expected.measured.first_at
    for work in opened.works:
        until = expected.searched_until(work)
        assert until is not None and until - since >= 4.0 and expected.search_until() - since >= 4.0
        for clock.now_s in (since + 4.0, until):
            assert Pace(expected).allows(work, improved=False)
        clock.now_s = until + LATER_S + 0.1
        assert not Pace(expected).allows(work, improved=False)


def test_what_cannot_be_judged_in_the_budget_is_not_searched_and_others_are(
    opened: Begun, expected: Estimates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that takes most of the time may take longer to judge than there is; the others have that time then,
    until the cheapest of them could not be judged any more."""
    largest, *others = sorted(opened.works, key=lambda work: -work.before_s)
    for work, share in zip((largest, *others), (8.0, 1.0, 1.0), strict=True):
        monkeypatch.setattr(work, "seen", {})
        work.keep(Observation(work.space.baseline(), Status.OK, share / work.call.calls, "own"))
    expected = in_ten_seconds(monkeypatch, expected, 40.0, **{largest.id: 60.0, others[0].id: 5.0})
    since, over_at = expected.measured.first_at, expected.budget.over_at
    assert over_at is not None and not expected.too_short()
    line = expected.too_short_for_some()
    assert "40" not in line and f"{TIMED_S + 40:g} s is too short to judge 1 kernel that takes 80" in line
    assert "judging it takes about 60 s: try --budget" in line
    until = expected.searched_until(largest)
    assert until is not None and until < since
    assert [expected.searched_until(work) for work in others] == [over_at - FRESH_CHILD_S - s for s in (5.0, 10.0)]
    assert expected.search_until() == pytest.approx(over_at - FRESH_CHILD_S - 5.0), "nothing is found yet"
    alone = in_ten_seconds(monkeypatch, expected, 40.0, **{work.id: 60.0 for work in (largest, others[0])})
    assert not alone.too_short(), "a tenth of the time is worth a search"
    for work in others:
        monkeypatch.setattr(work, "seen", {})
        work.keep(Observation(work.space.baseline(), Status.OK, 0.1 / work.call.calls, "own"))
    assert alone.too_short(), "a fortieth is not"


def test_judging_a_product_on_a_cpu_has_the_time_for_data_with_subnormal_numbers(
    opened: Begun, expected: Estimates, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = next(work for work in opened.works if work.float_operations)
    before_s = expected.timing_s(work)
    monkeypatch.setitem(estimates.SUBNORMAL_S, "CPU", estimates.SUBNORMAL_S["CPU"] + 1 / work.float_operations)
    assert expected.timing_s(work) == pytest.approx(before_s + 2.0), "of each side one launch"


def test_judging_on_a_cpu_has_the_time_for_references_of_what_is_all_that_there_is(
    opened: Begun, expected: Estimates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel whose only output is a sum of millions of terms: each reference takes seconds."""
    work = max(opened.works, key=lambda work: work.reference_terms)
    before_s, terms = expected.timing_s(work), estimates.REFERENCES * work.reference_terms
    monkeypatch.setitem(estimates.REFERENCE_S, "CPU", estimates.REFERENCE_S["CPU"] + 5 / terms)
    assert expected.timing_s(work) == pytest.approx(before_s + 5.0)


def test_measurements_that_the_baselines_use_up_are_no_search(
    opened: Begun, expected: Estimates, monkeypatch: pytest.MonkeyPatch
) -> None:
    phases: list[str] = []
    monkeypatch.setattr(opened.log.progress, "phase", phases.append)
    settings = replace(opened.settings, measurements=3, predictor="roofline")
    monkeypatch.setattr(opened.budget.ledger, "max_measurements", 3)
    guide = Guide(settings, opened.device)
    guide.read()
    expected = replace(expected, settings=settings)
    candidates = search(expected, guide, device=opened.device, log=opened.log)
    assert opened.log.warnings == [
        f"nothing was searched: timing tinygrad's own schedules took {opened.budget.ledger.measurements} measurements: "
        "give it more with --measurements"
    ]
    assert not phases, "nothing is said to be searched"
    judge = opened.judge(expected, candidates)
    assert {judge.without_candidate(work)[0] for work in opened.works} == {"not searched"}


def test_time_for_the_whole_is_kept_once_judging_has_little_to_save(
    opened: Begun, expected: Estimates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two kernels the first saves most: with it there is something to check, without it hardly."""
    find(opened.works[0])
    find(opened.works[1], times=1.1)
    asked: list[bool] = []

    def allows(pace: Pace, work: RegionWork, *, improved: bool, referee_s: float) -> bool:
        asked.append(improved)
        return True

    judge = opened.judge(expected, Candidates(opened.works, searched=True))
    monkeypatch.setattr(Pace, "allows", allows)
    monkeypatch.setattr(Judge, "compare_kinds", lambda judge, work: True)
    monkeypatch.setattr(Judging, "_improved", staticmethod(lambda *rows: bool(rows)))
    monkeypatch.setattr(Judge, "compare_found", lambda of_one, work: judge._as_searched(work))
    monkeypatch.setattr(Comparisons, "prepare", lambda comparisons, works, sides, **_: None)
    judge.run()
    assert opened.works[0].saving_s > opened.works[1].saving_s > 0
    assert asked == [False, False, True], "once before all, then of each"


@pytest.mark.parametrize(("verified", "order"), [(False, ["inside", "other", "region"]), (True, ["other", "inside"])])
def test_where_time_is_short_a_kernel_waits_whose_calls_a_verified_region_takes(
    verified: bool, order: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last product of a language model took ten seconds of sixty: it was judged a second time, alone."""

    def work(name: str, gain_s: float, taken: dict[str, int] | None = None) -> Any:
        call = SimpleNamespace(region=SimpleNamespace(id=name), calls=1)
        return SimpleNamespace(
            id=name, proposed=taken is not None, taken=Counter(taken or {}), call=call, gain_s=gain_s
        )

    works = [work("inside", 3.0), work("other", 2.0), work("region", 1.0, {"inside": 1})]
    region = SimpleNamespace(region=SimpleNamespace(id="region"), outcome="improved")
    monkeypatch.setattr(judging, "gain_s", lambda work, judged: work.gain_s)
    judge: Any = SimpleNamespace(
        _needed=True,
        _of_best={"region"},
        _covered={"inside"},
        _judged={"region": region} if verified else {},
        _candidates=SimpleNamespace(works=works),
        _fits=lambda works: False,
        _comparing_s=lambda work: 1.0,
    )
    left = works[:2] if verified else works
    assert [work.id for work in Judging._of_plans(judge, left)] == order


@pytest.mark.parametrize(("limit_s", "stalls"), [(None, True), (300.0, False)])
def test_on_a_cpu_a_budget_is_for_searching(limit_s: float | None, stalls: bool) -> None:
    """Of 300 s a training loop's search took 88, since a quarter of them had found little."""
    run: Any = SimpleNamespace(
        device=SimpleNamespace(compilers=1, spread=SimpleNamespace(size=1), is_cpu=True),
        settings=SimpleNamespace(least_saving=1e-4),
        budget=SimpleNamespace(limit_s=limit_s),
        _patience_s=lambda: 0.0,
    )
    assert _Search._limits(run).stalls is stalls


def test_what_takes_long_to_judge_is_judged_after_what_gains_more_a_second(
    opened: Begun, expected: Estimates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The distances of k-means, half of a script's time, took all that was left of a minute, and were refused."""
    for work, times in zip(opened.works, (9.0, 1.5, 1.4), strict=True):
        find(work, times=times)
    most, *others = sorted(opened.works, key=lambda work: -work.saving_s)
    comparing_s = expected.comparing_s
    monkeypatch.setattr(Estimates, "comparing_s", lambda _, work: 1e6 if work is most else comparing_s(work))
    judge, judged = opened.judge(expected, Candidates(opened.works, searched=True)), list[str]()

    def compared(of_one: Judge, work: RegionWork) -> RegionResult:
        judged.append(work.id)
        return judge._as_searched(work)

    monkeypatch.setattr(Pace, "allows", lambda *_, **__: True)
    monkeypatch.setattr(Judge, "compare_kinds", lambda judge, work: True)
    monkeypatch.setattr(Judge, "compare_found", compared)
    monkeypatch.setattr(Comparisons, "prepare", lambda comparisons, works, sides, **_: None)
    judge.run()
    assert judged[-1] == most.id and set(judged[:-1]) == {work.id for work in others}


@pytest.mark.parametrize(("ahead", "improved"), [(False, [2, 3]), (True, [1, 2, 3])])
def test_what_an_earlier_run_judged_comes_first_and_the_incumbent_has_all_of_it_at_once(
    ahead: bool, improved: list[int], opened: Begun, expected: Estimates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the result of a run that goes on has no less than that of the one before, whenever it is killed. What this run
    judged ahead is in the file, and holds up nothing: regions verified for forty seconds were not in it."""
    for work, times in zip(opened.works, (9.0, 1.2, 1.1), strict=True):
        find(work, times=times)
    most, *held = sorted(opened.works, key=lambda work: -work.saving_s)
    monkeypatch.setattr(KeptResults, "holds_first", lambda kept, work: any(work is one for one in held))
    judged, written = list[str](), list[int]()

    def compared(of_one: Judge, work: RegionWork) -> RegionResult:
        judged.append(work.id)
        return judge._as_searched(work)

    incumbent = SimpleNamespace(improve=lambda saved_s: written.append(len(judged)), verified_s=(1.0, 2.0))
    rows = {work.id: as_judged([work], {}, why="ahead").rows[0] for work in held if ahead}
    parts: Any = {"device": opened.device, "log": opened.log, "judged": rows, "incumbent": incumbent}
    judge = Judging(Candidates(opened.works, searched=True), expected, **parts)
    monkeypatch.setattr(Judge, "compare_kinds", lambda judge, work: True)
    monkeypatch.setattr(Judge, "compare_found", compared)
    monkeypatch.setattr(Comparisons, "prepare", lambda comparisons, works, sides, **_: None)
    judge.run()
    assert judged == [*(work.id for work in held), most.id] and written == improved
    assert judge._pace._expected_s == 0.0, "what is taken over says nothing of how long judging takes"


def test_what_has_its_references_is_judged_first(opened: Begun, expected: Estimates) -> None:
    comparisons, (one, two, three) = opened.comparisons(expected), opened.works[:3]
    assert comparisons.first_ready([one, two]) is one, "on a CPU there are none to wait for"
    waiting, there = Future[None](), Future[None]()
    there.set_result(None)
    comparisons._references = {(one.id, one.bindings[0]): waiting, (two.id, two.bindings[0]): there}
    assert comparisons.first_ready([one, two, three]) is two
    threading.Timer(0.05, lambda: waiting.set_result(None)).start()
    assert comparisons.first_ready([one]) is one, "it is waited for"


def test_references_are_waited_for_no_longer_than_there_is_time_to_judge(
    opened: Begun, expected: Estimates, monkeypatch: pytest.MonkeyPatch
) -> None:
    for work in opened.works:
        find(work)
    judge = opened.judge(expected)
    never = {(work.id, values): Future[None]() for work in opened.works for values in work.bindings}
    monkeypatch.setattr(judge._comparisons, "_references", never)
    monkeypatch.setattr(Comparisons, "prepare", lambda comparisons, works, sides, **_: None)
    monkeypatch.setattr(Pace, "until", lambda pace, *, improved: time.monotonic() - 1)
    monkeypatch.setattr(Estimates, "judge_until", lambda expected: time.monotonic() - 1)
    results = judge.run()
    assert [row.outcome for row in results.rows] == ["undecided"] * 3


@pytest.mark.parametrize("error", [TimeoutError("no result within 120 s"), VerificationError("none")])
def test_what_has_no_reference_is_not_compared(
    opened: Begun, expected: Estimates, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """The device's process would look for it as long, once for each comparison."""
    work, failed = opened.works[0], Future[None]()
    find(work)
    failed.set_exception(error)
    judge = opened.judge(expected)
    monkeypatch.setattr(judge._comparisons, "_references", {(work.id, work.bindings[0]): failed})
    monkeypatch.setattr(Comparisons, "prepare", lambda comparisons, works, sides, **_: None)
    monkeypatch.setattr(Comparisons, "compare", lambda *asked, **how: pytest.fail("compared"))
    row = judge.run().rows[0]
    assert row.outcome == "unjudged" and row.chosen == row.baseline and row.note


def test_stress_has_the_time_that_judging_has(
    opened: Begun, expected: Estimates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While judging has much to save the time of the check of the whole is not kept from it either."""
    one, two = opened.works[:2]
    find(one), find(two, times=1.1)
    judge = opened.judge(expected)
    judge._due = [one, two]
    monkeypatch.setattr(Judging, "_improved", staticmethod(lambda *rows: True))
    monkeypatch.setattr(Estimates, "judge_until", lambda expected: 0.0)
    assert judge._until() == expected.late_at
    judge._done.add(one.id)
    assert judge._until() == 0.0


def test_what_was_judged_ahead_counts_as_judged(
    opened: Begun, expected: Estimates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the time of the check of the whole would go to verdicts, with most of what was found verified already."""
    one, two = opened.works[:2]
    find(one), find(two, times=1.1)
    monkeypatch.setattr(Judging, "_improved", staticmethod(lambda *rows: True))
    monkeypatch.setattr(Estimates, "judge_until", lambda expected: 0.0)
    (refused,) = as_judged([one], {}, why="ahead").rows
    chosen = replace(refused.baseline, schedule=one.found[0], cold_s=one.best_s)
    for row, until in ((replace(refused, outcome="improved", chosen=chosen), 0.0), (refused, expected.late_at)):
        ahead = Ahead(opened.device, expected, log=opened.log, judged={})
        ahead.rows[one.id] = row
        judge = opened.judge(expected, ahead=ahead)
        judge._due = [one, two]
        assert judge._until() == until


def test_what_gains_most_over_what_was_verified_ahead_is_judged_first(
    opened: Begun, expected: Estimates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader that changed since it was verified gains little more, however much it saves in all."""
    for work in opened.works:
        find(work, times=1.5)
    largest, *others = sorted(opened.works, key=lambda work: -work.saving_s)
    ahead = Ahead(opened.device, expected, log=opened.log, judged={})
    (row,) = as_judged([largest], {}, why="ahead").rows
    chosen = replace(row.baseline, schedule=largest.found[0], cold_s=largest.best_s)
    ahead.rows[largest.id] = replace(row, outcome="improved", chosen=chosen)
    judge, asked = opened.judge(expected, ahead=ahead), list[str]()

    def judged_one(judge: Judging, work: RegionWork) -> RegionResult:
        asked.append(work.id)
        return judge._as_searched(work)

    monkeypatch.setattr(Judging, "_judged_one", judged_one)
    monkeypatch.setattr(Comparisons, "prepare", lambda seen, works, sides, **_: None)
    judge.run()
    assert asked == [*(work.id for work in others), largest.id]


def test_what_won_has_a_little_longer_for_its_first_launches_while_the_budget_lasts(
    expected: Estimates, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    for left_s, until_s in ((100.0, LAUNCHES_S), (0.5, 0.5), (-1.0, -1.0)):
        budget = Budget(started=clock.now_s - 50.0, limit_s=50.0 + left_s, measurements=None)
        found = replace(expected, budget=budget)
        assert found.launches_until(clock.now_s - 10.0) == pytest.approx(clock.now_s + until_s)
        assert found.launches_until(clock.now_s + 200.0) == clock.now_s + 200.0
    assert expected.launches_until(None) is None


def test_nothing_more_is_compared_once_it_is_too_late(
    opened: Begun, expected: Estimates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A region has time for one comparison; what is compared two by two after it takes as long each time."""
    work = opened.works[0]
    comparisons = opened.comparisons(expected)
    own = comparisons.side(work, work.space.baseline())
    assert not isinstance(own, str)
    late = time.monotonic() - 1
    assert comparisons.compare(work, own, None, until=late).late and not comparisons.made
    seen = comparisons.compare(work, own, None)
    assert seen.outcome is not None and not seen.late
    again = comparisons.compare(work, own, None, until=late)
    assert again.outcome == seen.outcome and not again.late, "it is known"


def test_regions_have_the_time_that_judging_kernels_leaves(
    opened: Begun, expected: Estimates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Estimates, "final_cost_s", lambda estimates: 50.0)
    clock = Clock(monkeypatch)
    for limit_s, fits in ((None, True), (1049.0, False), (1051.0, True)):
        budget = Budget(started=clock.now_s - 1000.0, limit_s=limit_s, measurements=None)
        assert replace(expected, budget=budget).regions_fit() is fits


def test_a_region_of_several_kernels_saves_what_its_parts_do_not(opened: Begun) -> None:
    work = replace(opened.works[0], seen={}, proposed=True)
    own, other = work.space.baseline(), work.space.actions(work.space.start())[0].schedule
    work.keep(Observation(own, Status.OK, 8.0, "own"))
    assert work.saving_s == 0.0
    work.known[other] = Observation(other, Status.OK, 4.0, "parts")
    work.seen_of("tile")[Schedule("tile", "{}")] = Observation(Schedule("tile", "{}"), Status.OK, 3.0, "tile")
    assert work.saving_s == work.call.calls * 1.0
    assert replace(work, proposed=False).saving_s == work.call.calls * 5.0


def test_of_what_is_proposed_only_a_program_of_its_own_is_judged(opened: Begun, expected: Estimates) -> None:
    """Its parts are judged as kernels: what is faster than tinygrad's own for these is no news of the region."""
    work = replace(opened.works[0], seen={}, proposed=True)
    own, other = work.space.baseline(), work.space.actions(work.space.start())[0].schedule
    work.keep(Observation(own, Status.OK, 8.0, "own"))
    work.known[other] = Observation(other, Status.OK, 4.0, "parts")
    assert not expected.is_due(work) and expected.is_due(replace(work, proposed=False))
    work.seen_of("tile")[Schedule("tile", "{}")] = Observation(Schedule("tile", "{}"), Status.OK, 3.0, "tile")
    assert expected.is_due(work)


def test_of_what_fails_and_is_not_judged_it_is_said_that_it_fails(opened: Begun, expected: Estimates) -> None:
    assert opened.works[0].own is not None
    failed = replace(opened.works[0].own, status=Status.TIMEOUT, reason="no result within 120 s", samples_s=())
    work = replace(opened.works[0], seen={}, proposed=True, own=failed)
    row = opened.judge(replace(expected, measured=replace(expected.measured, works=[work])), Candidates([work])).run()
    assert [(one.outcome, one.note) for one in row.rows] == [
        ("quarantined", "tinygrad's own schedule fails: timeout: no result within 120 s")
    ]


def test_regions_are_timed_only_in_the_time_that_they_have(opened: Begun, monkeypatch: pytest.MonkeyPatch) -> None:
    works = [replace(work, seen={}) for work in opened.works]
    monkeypatch.setattr(opened.device, "measure_baselines", lambda batch: [Future[Observation]() for _ in batch])
    past = time.monotonic() - 1
    measured = baselines.measure_baselines(works, opened.device, budget=opened.budget, log=opened.log, until=past)
    assert measured.untimed == 3 and not any(work.is_timed for work in works)
    monkeypatch.setattr(Device, "is_cpu", False)
    measured = baselines.measure_baselines(works, opened.device, budget=opened.budget, log=opened.log, until=past)
    assert measured.untimed == 3


def test_only_regions_that_the_best_plans_have_are_judged(
    opened: Begun, expected: Estimates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plans change with what was judged: where a region loses, others may be in them."""
    monkeypatch.setattr(Pace, "left_s", lambda pace, works: 0.0)  # of programs that are none
    monkeypatch.setattr(Judging, "_comparing_s", lambda judging, work: 0.0)
    kernel, *_ = opened.works
    find(kernel)
    tile = Schedule("tile", "{}")
    regions = [replace(work, proposed=True, seen=dict(work.seen)) for work in opened.works]
    for work in regions:
        work.seen_of("tile")[tile] = Observation(tile, Status.OK, work.baseline_s / 4, "tile")
    first, second, third = (work.call.region.id for work in regions)
    both = replace(expected, measured=replace(expected.measured, works=[kernel, *regions]))
    judge = opened.judge(both, Candidates([kernel, *regions], searched=True))
    asked: list[str] = []

    def needed(judged: Mapping[str, RegionResult]) -> set[str]:
        return {second} if second not in asked else {second, third}

    def judged_one(judge: Judging, work: RegionWork) -> RegionResult:
        asked.append(work.call.region.id)
        return judge._as_searched(work)

    judge._needed, judge._judged = needed, dict[str, RegionResult]()
    monkeypatch.setattr(RegionWork, "id", property(lambda work: f"{work.call.region.id} {work.proposed}"))
    monkeypatch.setattr(Judging, "_judged_one", judged_one)
    monkeypatch.setattr(Pace, "allows", lambda pace, work, **_: True)
    prepared: list[str] = []
    monkeypatch.setattr(
        Comparisons, "prepare", lambda seen, works, sides, **_: prepared.extend(w.call.region.id for w in works)
    )
    rows = judge.run().rows
    assert sorted(asked) == sorted([first, second, third]), "the kernel, and two of three regions"
    assert asked.index(third) > asked.index(second), "no plan had it before"
    assert sorted(prepared[:2]) == sorted([first, second]), "what plans have has its references first"
    assert [row.outcome for row in rows] == [rows[0].outcome, "not judged", rows[2].outcome, rows[3].outcome]
    assert rows[1].chosen == rows[1].baseline


@pytest.mark.parametrize("is_in_time", [True, False])
def test_kernels_that_a_region_of_the_best_plans_covers_are_judged_last(
    is_in_time: bool, opened: Begun, expected: Estimates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They run only where it is not put in: with a budget they wait for the references of all else. Where there is no
    time to judge all of the regions that the best plans have, what gains most a second comes first."""
    monkeypatch.setattr(Pace, "left_s", lambda pace, works: 0.0)  # of programs that are none
    monkeypatch.setattr(Judging, "_comparing_s", lambda judging, work: 0.0 if is_in_time else 1e6)
    first, *others = opened.works
    kernels = [replace(first, call=replace(first.call, calls=2 * first.call.calls)), *others]  # twice in the region
    region, tile = replace(kernels[0].call.region, kernels=(kernels[0].call.region.kernel,) * 2), Schedule("tile", "{}")
    call, known = replace(first.call, region=region), dict(first.known)
    whole = replace(kernels[0], call=call, proposed=True, seen={"parts": known})
    for times, work in zip((100.0, 10.0, 1.5), kernels, strict=True):
        find(work, times=times)
    whole.seen_of("tile")[tile] = Observation(tile, Status.OK, whole.baseline_s / 4, "tile")
    both = replace(expected, measured=replace(expected.measured, works=[*kernels, whole]))
    judge = opened.judge(both, Candidates([*kernels, whole], searched=True))
    judge._needed, asked = lambda judged: {region.id}, list[str]()

    def judged_one(judge: Judging, work: RegionWork) -> RegionResult:
        asked.append(work.id)
        return judge._as_searched(work)

    def first_ready(seen: Comparisons, works: Sequence[RegionWork], *, until: float | None = None) -> RegionWork:
        return next((work for work in works if not work.proposed), works[0])  # its references take longest

    monkeypatch.setattr(Judging, "_judged_one", judged_one)
    monkeypatch.setattr(Pace, "allows", lambda pace, work, **_: True)
    monkeypatch.setattr(Comparisons, "first_ready", first_ready)
    prepared: list[str] = []
    monkeypatch.setattr(
        Comparisons, "prepare", lambda seen, works, sides, **_: prepared.extend(work.id for work in works)
    )
    judge.run()
    if not is_in_time:
        assert asked[0] == kernels[0].id and prepared[0] == kernels[0].id
        return
    assert prepared[-1] == kernels[0].id, "its references are the last that are made"
    assert set(asked[:2]) == {kernels[1].id, kernels[2].id} and asked[2:] == [whole.id, kernels[0].id]


@pytest.mark.parametrize(
    ("wanted", "search", "measurements", "has_programs", "searched"),
    [
        (None, "mcts", None, True, True),
        (None, "mcts", None, False, False),
        (None, "mcts", 0, True, True),
        (None, "tinygrad-beam:2", None, True, False),
        (False, "mcts", None, True, False),
        (True, "mcts", None, False, True),
    ],
)
def test_regions_are_searched_where_there_are_programs_of_them(
    opened: Begun,
    expected: Estimates,
    wanted: bool | None,
    search: str,
    measurements: int | None,
    has_programs: bool,
    searched: bool,
) -> None:
    others: Any = {"tile": object()} if has_programs else {}
    works = [replace(work, others=others) for work in opened.works]
    settings = replace(expected.settings, regions=wanted, search=search, measurements=measurements)
    estimates = replace(expected, settings=settings, measured=replace(expected.measured, works=works))
    assert estimates.wants_regions is searched


def test_kernels_have_all_the_time_where_too_little_is_left_for_regions(
    opened: Begun, expected: Estimates, monkeypatch: pytest.MonkeyPatch
) -> None:
    works = [replace(work, others={"tile": object()}) for work in opened.works]  # type: ignore[dict-item]
    both = replace(expected, measured=replace(expected.measured, works=works))
    without = replace(both, settings=replace(both.settings, regions=False))
    assert both.wants_regions and both.search_until() < without.search_until() - 1
    monkeypatch.setattr(Estimates, "_of_regions", lambda estimates, seconds: 1e6)
    assert both.search_until() == pytest.approx(without.search_until(), abs=1)


def test_both_searches_leave_the_time_to_judge_what_regions_find(
    opened: Begun, expected: Estimates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The seconds are about those of Flux at 768 on an H100, where the share of the search was counted twice: 64 s were
    left for judging, and 60 of 67 kernels kept tinygrad's schedules."""
    monkeypatch.setattr(Device, "is_cpu", False)
    monkeypatch.setattr(Estimates, "_least_judging_s", lambda estimates: 10.0)
    monkeypatch.setattr(Estimates, "_model_s", lambda estimates: 49.0)
    monkeypatch.setattr(Estimates, "judging_s", lambda estimates: 170.0 if estimates.measured.kernels_at else 70.0)
    works = [replace(work, others={"tile": object()}) for work in opened.works]  # type: ignore[dict-item]
    find(works[0])
    clock = Clock(monkeypatch)
    begun = clock.now_s
    budget = Budget(started=begun, limit_s=300.0, measurements=None)
    kernels = replace(expected, measured=replace(expected.measured, works=works, at=begun + 22.0), budget=budget)
    until_s = kernels.search_until() - begun
    assert 90 < until_s < 100
    until, judging_s = replace(kernels, joins=True).search_until() - begun, estimates.PLANS_S + 49
    judging_s += kernels.slower * min(map(kernels.comparing_s, works)) + kernels._compile_s
    assert until == pytest.approx(300 - judging_s), "regions join it"
    monkeypatch.setattr(expected.device, "judges_at_end", True)
    assert replace(kernels, joins=True).search_until() - begun == pytest.approx(300 - 49 - 70), "judged at the end"
    monkeypatch.setattr(expected.device, "judges_at_end", False)
    region = replace(works[0], proposed=True)
    clock.now_s += until_s + 25
    timed = replace(kernels.measured, works=[*works, region], at=clock.now_s, kernels_at=begun + 22.0)
    searched_s = replace(kernels, measured=timed).search_until() - begun
    assert searched_s == pytest.approx(until_s + 25 + estimates.REGIONS_SEARCH_S)
    assert 300 - 49 - searched_s > 120
    longer = replace(kernels, measured=timed, budget=Budget(started=begun, limit_s=600.0, measurements=None))
    assert longer.search_until() - begun == pytest.approx(600 - 49 - 10), "judging goes on beside it"


def test_a_search_that_is_over_waits_on_a_gpu_only_for_what_can_be_judged(
    expected: Estimates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """33 programs that were with the compilers when the search of a run of 60 s ended kept it from ending for 8 s."""
    clock = Clock(monkeypatch)
    monkeypatch.setattr(Estimates, "patience_s", lambda estimates, expected_s: 10.0)
    monkeypatch.setattr(Estimates, "judge_until", lambda estimates: clock.now_s + left_s)
    left_s = 2.0
    assert expected.waits_s() == 10.0, "nothing else may run on a CPU"
    monkeypatch.setattr(Device, "is_cpu", False)
    assert expected.waits_s() == pytest.approx(2.0)
    left_s = -1.0
    assert expected.waits_s() == 0.0
    monkeypatch.setattr(Estimates, "patience_s", lambda estimates, expected_s: None)
    assert expected.waits_s() is None


def test_plans_are_made_for_a_check_that_has_time_to_compare_them(
    expected: Estimates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Estimates, "_model_s", lambda estimates: 0.0)
    monkeypatch.setattr(Estimates, "whole_s", lambda estimates, plans: 10.0 * plans)
    clock, late_at = Clock(monkeypatch), expected.late_at
    assert late_at is not None
    for left_s, compares in ((19.0, False), (21.0, True)):
        clock.now_s = late_at - left_s
        assert expected.compares_plans() is compares
    clock.now_s = late_at
    without = replace(expected, budget=Budget(started=expected.budget.started, limit_s=None, measurements=None))
    assert without.compares_plans(), "without a budget there is time for all"
    monkeypatch.setattr(Estimates, "_model_s", lambda estimates: 20.0)
    assert expected.compares_plans(), "time is kept for it"


def test_when_time_is_over_no_plan_is_made_again(
    opened: Begun, expected: Estimates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pace, "left_s", lambda pace, works: 0.0)  # of programs that are none
    monkeypatch.setattr(Judging, "_comparing_s", lambda judging, work: 0.0)
    regions = [replace(work, proposed=True, seen=dict(work.seen)) for work in opened.works]
    tile = Schedule("tile", "{}")
    for work in regions:
        work.seen_of("tile")[tile] = Observation(tile, Status.OK, work.baseline_s / 4, "tile")
    both = replace(expected, measured=replace(expected.measured, works=regions))
    judge, made = opened.judge(both, Candidates(regions, searched=True)), []

    def needed(judged: Mapping[str, RegionResult]) -> set[str]:
        made.append(len(judged))
        return {work.call.region.id for work in regions[: 1 + len(judged)]}

    judge._needed = needed
    monkeypatch.setattr(Pace, "allows", lambda pace, work, **_: False)
    monkeypatch.setattr(Pace, "until", lambda pace, *, improved: time.monotonic() - 1)
    rows = judge.run().rows
    assert made == [0] and [row.outcome for row in rows] == ["undecided", "not judged", "not judged"]


def test_time_is_kept_for_regions_that_leave_each_other_their_calls(opened: Begun, expected: Estimates) -> None:
    calls = 2
    kernels = [replace(w, call=replace(w.call, calls=calls), seen={}) for w in opened.works]
    tile, (one, two, three) = Schedule("tile", "{}"), (work.call.region.kernel for work in kernels)

    def region(saved: float, *members: Kernel) -> RegionWork:
        call = replace(kernels[0].call, region=replace(opened.works[0].call.region, kernels=members), calls=calls)
        work = replace(opened.works[0], call=call, proposed=True, seen={})
        own = work.space.baseline()
        work.known[own] = Observation(own, Status.OK, 1.0, "own")
        work.seen_of("tile")[tile] = Observation(tile, Status.OK, 1.0 - saved / calls, "tile")
        return work

    best, inside, beside = region(0.5, one, two), region(0.3, two), region(0.1, three)
    both = replace(expected, measured=replace(expected.measured, works=[*kernels, inside, beside, best]))
    assert all(map(both.is_due, (best, inside, beside)))
    likely = [work for work in both.likely() if work.proposed]
    assert [id(work) for work in likely] == [id(best), id(beside)], "a kernel that runs in the best one is not free"
