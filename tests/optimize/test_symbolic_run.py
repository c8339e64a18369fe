"""A decode loop is optimised: each kernel searched once, timed and verified with its smallest and largest value."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from kcg.compat.tiny import Ops
from kcg.handover.choices import choices
from kcg.judge import bounds
from kcg.judge.kept import Side
from kcg.kernel.kinds import describe
from kcg.kernel.symbolic import Bound
from kcg.measure.jobs import CompileOutcome, PairedOutcome
from kcg.measure.protocol import PROTOCOL
from kcg.optimize.console import print_result
from kcg.optimize.estimates import Estimates
from kcg.optimize.search import search
from kcg.optimize.settings import Settings
from kcg.optimize.work import Candidates, RegionResults, RegionWork
from kcg.report.page import render_report
from kcg.report.result import from_dict, to_dict
from kcg.report.words import values_of
from kcg.search.problem import Observation
from kcg.types import CacheState, Measurement, Schedule, Status, Variables, Verification
from tests.optimize_run import Begun, begun
from tests.waiting import PATIENCE_S

SCRIPT = Path(__file__).parents[1] / "scripts" / "decode_loop.py"
POSITIONS = 5
LOW: Variables = (("start_pos", 1),)
HIGH: Variables = (("start_pos", POSITIONS),)


def settings(folder: Path, *, resume: bool = False) -> Settings:
    return Settings(
        str(SCRIPT),
        device=os.environ["DEV"],
        folder=folder,
        script_args=(str(POSITIONS),),
        measurements=12,
        predictor="roofline",
        resume=resume,
    )


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Begun]:
    with begun(settings(tmp_path_factory.mktemp("out"))) as started:
        yield started


@pytest.fixture(scope="module")
def estimates(opened: Begun) -> Estimates:
    """Of a run that has timed tinygrad's own schedules."""
    return opened.estimates(opened.measured(meanwhile=opened.guide.read))


def is_symbolic_sum(work: RegionWork) -> bool:
    """Whether it sums over as many elements as its variable says: with another value it computes something else."""
    sums = [node for node in work.space.ast.toposort() if node.op is Ops.REDUCE]
    return any(axis.src[0].op is not Ops.CONST for node in sums for axis in node.ended_ranges)


@pytest.fixture(scope="module")
def work(opened: Begun, estimates: Estimates) -> RegionWork:
    assert estimates.measured.untimed == 0
    return next(w for w in opened.works if is_symbolic_sum(w) and w.space.actions(w.space.start()))


@pytest.fixture(scope="module")
def other(opened: Begun, work: RegionWork) -> Schedule:
    """A schedule that is not tinygrad's own, measured as a search does."""
    found: Schedule = next(a.schedule for a in work.space.actions(work.space.start()) if a.schedule not in work.known)
    return found


def rows_of(opened: Begun, work: RegionWork, schedule: Schedule, sampler: str = "") -> list[Measurement]:
    return [
        row
        for row in opened.journal.measurements(PROTOCOL)
        if (row.region_id, row.schedule) == (work.call.region.id, schedule)
        and row.cache_state == CacheState.COLD
        and (not sampler or row.sampler == sampler)
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("estimates")
def test_each_kernel_is_searched_once_and_its_baseline_timed_at_both_ends(opened: Begun) -> None:
    assert len({w.call.region.id for w in opened.works}) == len(opened.works)
    symbolic = [w for w in opened.works if len(w.bounds) == 2]
    assert len(symbolic) > 3 and {w.bindings for w in symbolic} == {(LOW, HIGH)}
    assert all(w.call.calls == POSITIONS for w in symbolic)
    for one in opened.works:
        baseline = one.space.baseline()
        rows = rows_of(opened, one, baseline)
        assert sorted(row.variables for row in rows) == sorted(one.bindings)
        assert len({row.binary_hash for row in rows}) == 1
        by_values = {row.variables: row.median_s for row in rows}
        expected = sum(end.share * by_values[end.variables] for end in one.bounds)
        assert one.baseline_s == pytest.approx(expected) and one.longest_s == max(by_values.values())
    distinct = len({binary for w in opened.works for binary in w.binaries})
    assert opened.budget.ledger.measurements == sum(len(w.binaries) for w in opened.works) >= distinct
    assert opened.budget.ledger.compilations == opened.device.service.compilations == len(opened.works), (
        "one for both ends"
    )


@pytest.mark.slow
def test_a_schedule_is_measured_at_both_ends_and_counts_as_one(
    opened: Begun, work: RegionWork, other: Schedule
) -> None:
    before = opened.budget.ledger.measurements, opened.budget.ledger.compilations, opened.device.service.binaries_timed
    (future,) = opened.device.measure(work, [other])
    seen = future.result(timeout=PATIENCE_S)
    work.known[other] = seen
    assert seen.status == Status.OK
    assert {row.variables for row in rows_of(opened, work, other)} == {LOW, HIGH}
    low, high = work.at_bounds[other]
    assert seen.runtime_s == pytest.approx(work.bounds[0].share * low + work.bounds[1].share * high)
    now = opened.budget.ledger.measurements, opened.budget.ledger.compilations, opened.device.service.binaries_timed
    assert [b - a for a, b in zip(before, now, strict=True)] == [1, 1, 2]
    assert sum(s * end.share for s, end in zip(work.scales, work.bounds, strict=True)) == pytest.approx(1)


@pytest.mark.slow
def test_what_is_wrong_or_fails_at_one_end_is_no_time(opened: Begun, work: RegionWork) -> None:
    low, high = rows_of(opened, work, work.space.baseline())
    assert bounds.observed(work.bounds, [low, high]).status == Status.OK
    wrong = replace(high, status=Status.WRONG, reason="element 3 is 1, not 2", samples_s=())
    late = replace(low, status=Status.TIMEOUT, reason="too late", samples_s=())
    for rows in ([low, wrong], [late, wrong]):
        seen = bounds.observed(work.bounds, rows)
        assert (seen.status, seen.reason, seen.runtime_s) == (Status.WRONG, wrong.reason, None)
    assert bounds.observed(work.bounds, [late, high]).status == Status.TIMEOUT


RIGHT = Verification(True, ("float64 reference",), 0.5, 3)
UNJUDGED = replace(RIGHT, passed=False, reason="most outputs are not numbers", unjudged=True)
WRONG = replace(RIGHT, passed=False, reason="element 3 is 1, not 2")


@pytest.mark.parametrize(
    ("found", "seen"),
    [((RIGHT, RIGHT), RIGHT), ((RIGHT, UNJUDGED), UNJUDGED), ((UNJUDGED,), UNJUDGED), ((UNJUDGED, WRONG), WRONG)],
)
def test_what_is_unjudged_at_one_end_is_not_called_wrong(found: tuple[Verification, ...], seen: Verification) -> None:
    both = bounds.outcome(
        [Bound(LOW, 0.5), Bound(HIGH, 0.5)], [PairedOutcome(one) for one in found]
    ).baseline_verification
    assert (both.passed, both.unjudged, both.wrong) == (seen.passed, seen.unjudged, seen.wrong)
    assert both.reason.startswith(seen.reason)


def judged(
    opened: Begun, estimates: Estimates, work: RegionWork, schedule: Schedule
) -> tuple[PairedOutcome, tuple[PairedOutcome, ...]]:
    sides = [Side(s, opened.device.compiled(work, s)) for s in (work.space.baseline(), schedule)]
    found = opened.comparisons(estimates).compare(work, *sides)
    assert found.outcome is not None, found.reason
    return found.outcome, found.at_bounds


def test_a_finalist_is_verified_and_timed_at_both_ends(
    opened: Begun, estimates: Estimates, work: RegionWork, other: Schedule
) -> None:
    both, (low, high) = judged(opened, estimates, work, other)
    assert both.baseline_verification.passed and both.finalist_verification is not None
    assert both.finalist_verification.passed and not both.noisy
    count = min(len(low.finalist_cold_s), len(high.finalist_cold_s))
    assert len(both.finalist_cold_s) == len(both.baseline_cold_s) == len(both.again_cold_s) == count
    for name in ("baseline_cold_s", "again_cold_s", "finalist_cold_s"):
        pairs = zip(getattr(low, name), getattr(high, name), strict=False)
        means = [work.bounds[0].share * a + work.bounds[1].share * b for a, b in pairs]
        assert list(getattr(both, name)) == pytest.approx(means)
    assert {row.variables for row in rows_of(opened, work, other, "final")} == {LOW, HIGH}


def test_what_was_compared_is_kept_for_each_end(
    opened: Begun, estimates: Estimates, work: RegionWork, other: Schedule
) -> None:
    first, _ = judged(opened, estimates, work, other)
    resumed = opened.estimates(estimates.measured, resumed=True)
    assert judged(opened, resumed, work, other)[0] == first


@pytest.mark.parametrize("wrong", [LOW, HIGH])
def test_a_candidate_that_is_wrong_at_one_end_is_refused(
    opened: Begun,
    estimates: Estimates,
    work: RegionWork,
    other: Schedule,
    wrong: Variables,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its launch with one of the values passes another one: it is right at one end, and sums too much or little at the
    other."""
    compiled = opened.device.compiled(work, other)
    launches = tuple(
        replace(launch, values=tuple(None if v is None else 3 for v in launch.values))
        if launch.variables == wrong
        else launch
        for launch in compiled.launches
    )
    assert launches != compiled.launches
    faulty = CompileOutcome(replace(compiled, launches=launches), 0.1)
    monkeypatch.setitem(opened.device.service._kept, (work.call.region.id, other), faulty)
    fast = {s: o if s != other else replace(o, runtime_s=o.time_s / 1000) for s, o in work.known.items()}
    fast.setdefault(other, Observation(other, Status.OK, 1e-9, compiled.binary_hash))
    monkeypatch.setattr(work, "seen", {work.kind: fast})
    anew = opened.estimates(estimates.measured)  # without what was judged of the right one
    result = opened.judge(anew).judge.compare_found(work)
    assert result.outcome == "kept" and result.chosen == result.baseline
    assert (
        f"{describe(other)} is wrong: " in result.note and f", with start_pos {dict(wrong)['start_pos']}" in result.note
    )
    assert [end.after_s for end in result.ends] == [end.before_s for end in result.ends] != [0.0, 0.0]


@pytest.fixture(scope="module")
def candidates(opened: Begun, estimates: Estimates) -> Candidates:
    return search(estimates, opened.guide, device=opened.device, log=opened.log)


@pytest.fixture(scope="module")
def results(opened: Begun, estimates: Estimates, candidates: Candidates) -> RegionResults:
    return opened.judge(estimates, candidates).run()


@pytest.mark.slow
def test_a_result_has_one_row_for_each_kernel_with_its_values(
    opened: Begun, candidates: Candidates, results: RegionResults
) -> None:
    result = opened.result(candidates, results)
    assert result.complete
    assert from_dict(to_dict(result)) == result
    assert len(result.regions) == len(opened.works) and opened.budget.ledger.measurements <= 12
    rows = [row for row in result.regions if row.ends]
    assert len(rows) > 3 and all(row.calls == POSITIONS for row in rows)
    for row in rows:
        assert [end.variables for end in row.ends] == [LOW, HIGH]
        assert sum(end.share for end in row.ends) == pytest.approx(1)
        assert all(end.before_s > 0 and end.after_s > 0 for end in row.ends)
        assert values_of(row) == f"start_pos 1 to {POSITIONS}"
        assert not row.chosen.verification.wrong
        assert row.chosen.verification.passed or row.chosen == row.baseline, "it had no candidate to be judged beside"
    assert len(choices(result)[0]) == len(opened.works), "one row of BEAM's cache each"
    console = Console(file=io.StringIO(), width=100)
    shown = tuple(replace(row, outcome="improved") for row in rows[:4])
    print_result(replace(result, regions=shown), console)
    assert console.file.getvalue().count(f"start_pos 1 to {POSITIONS}") == len(shown)  # type: ignore[attr-defined]
    page = render_report(result)
    assert f"start_pos 1 to {POSITIONS}" in page and "a call takes " in page


def test_operations_of_a_call_are_those_at_its_values(opened: Begun, work: RegionWork) -> None:
    from kcg.kernel.analysis import arithmetic

    assert 0 < work.operations < arithmetic(work.space.ast), "not those of the largest value that is possible"


@pytest.mark.slow
def test_a_run_that_goes_on_measures_neither_end_again(opened: Begun, results: RegionResults) -> None:
    """By default one of kernels without variables does not either (test_optimize), and what was compared is kept."""
    held = {w.id: set(w.known) for w in opened.works}
    assert results
    opened.device.__exit__(None, None, None)
    with begun(settings(opened.device.folder, resume=True)) as again:
        for one in again.works:
            assert {s for s, o in one.known.items() if o.status == Status.OK} <= held[one.id]
            assert one.space.baseline() in one.known and one.space.baseline() in one.at_bounds
        again.measured()
        assert again.device.service.binaries_timed == 0
