"""Judging ahead: what a search found is judged while it goes on, and at its end only what changed since."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kcg.dataset.journal import Journal
from kcg.errors import DeviceError, ExitCode
from kcg.judge.finalists import Judge
from kcg.judge.paired import FRESH_CHILD_S, Comparisons
from kcg.kernel.opts.schedule import RAW
from kcg.kernel.opts.space import KernelSpace
from kcg.measure.service import MeasureService
from kcg.optimize import ahead
from kcg.optimize.ahead import (
    SHARE,
    YOUNG_S,
    Ahead,
    Lead,
    has_a_turn,
    order_of,
    share_until,
    stays,
    turn_of,
)
from kcg.optimize.estimates import Estimates
from kcg.optimize.settings import Settings
from kcg.optimize.work import LEADS, Candidates, RegionResults, RegionWork
from kcg.report.result import read_result
from kcg.search.problem import Observation
from kcg.types import Job, JobKind, JobOutcome, RegionResult, Result, Schedule, Status
from tests.optimize_run import Begun, begun, whole_run
from tests.waiting import PATIENCE_S, waited

SCRIPT = Path(__file__).parents[1] / "scripts" / "one_layer.py"


# ---- what is judged next


def lead(name: str, gain_s: float, **changes: float | bool) -> Lead:
    return replace(Lead(name, gain_s, led_s=60.0, left_s=60.0, judging_s=2.0), **changes)  # type: ignore[arg-type]


def names(*leads: Lead) -> list[str]:
    return [one.id for one in order_of(leads)]


def test_what_saves_most_a_second_of_judging_is_first() -> None:
    large, cheap = lead("large", 3.0, judging_s=20.0), lead("cheap", 1.0)
    assert names(large, cheap) == ["cheap", "large"]
    assert names(large, replace(cheap, gain_s=0.2)) == ["large", "cheap"]
    assert names(lead("verified already", 0.0), lead("slower", -1.0)) == []


def test_a_leader_of_long_standing_comes_before_one_that_will_hardly_stay() -> None:
    old, young = lead("old", 1.0), lead("young", 1.5, led_s=1.0)
    assert names(young, old) == ["old", "young"]
    assert names(replace(young, left_s=0.0), old) == ["young", "old"], "its search is over"
    assert stays(YOUNG_S, 0.0) == 1.0 and stays(0.0, YOUNG_S) == 0.5
    assert stays(10.0, 5.0) > stays(5.0, 5.0) > stays(5.0, 10.0)


def test_a_search_on_a_cpu_does_not_stop_for_what_hardly_matters() -> None:
    """A verdict of a kernel of microseconds took fifteen seconds of a search that was for a matmul of one."""
    large, tiny, small = lead("large", 1.0, judging_s=30.0), lead("tiny", 1e-3), lead("small", 0.1)
    for leads, searched_s, one in (
        ([large, tiny], 20.0, None),
        ([], 20.0, None),
        ([large, tiny, small], 20.0, small),
        ([large, tiny, small], 60.0, large),
    ):
        assert turn_of(leads, searched_s=searched_s, judged_s=0.0, first=True) == one


def test_a_region_is_judged_again_once_the_new_leader_has_led_for_as_long_as_that_takes() -> None:
    one = lead("one", 1.0, judging_s=10.0, led_s=5.0)
    assert names(one) == ["one"]
    assert names(replace(one, again=True)) == [] and names(replace(one, again=True, led_s=10.0)) == ["one"]
    assert names(replace(one, again=True, left_s=0.0)) == ["one"], "there will be no other one"


def test_a_kernel_that_a_better_region_has_comes_after_what_does_not_need_a_refusal_to_count() -> None:
    covered, other = lead("covered", 5.0, covered=True), lead("other", 1.0)
    assert names(covered, other) == ["other", "covered"]
    assert names(replace(covered, share=1.0), other) == ["covered", "other"], "it is all that there is for long"


def test_what_a_region_will_take_the_place_of_is_worth_the_more_the_longer_that_takes() -> None:
    assert share_until(0.0, 20.0, None) == 0.0
    assert 0.0 < share_until(5.0, 60.0, None) < share_until(20.0, 60.0, None) < share_until(20.0, 20.0, None) < 1.0
    assert share_until(200.0, 20.0, None) == 1.0
    assert share_until(5.0, 60.0, 4.0) == 1.0, "a budget ends before the region could be judged"


def test_on_a_cpu_a_search_stops_for_what_is_likely_to_stay_and_for_no_more_than_its_share() -> None:
    one = lead("one", 1.0, judging_s=1.0)
    assert not has_a_turn(one, searched_s=1.9, judged_s=0.0, first=True), "a short search has no time to lose"
    assert has_a_turn(one, searched_s=2.0, judged_s=0.0, first=True)
    searched_s = 10.0 / SHARE
    assert has_a_turn(one, searched_s=searched_s, judged_s=9.0, first=False)
    assert not has_a_turn(one, searched_s=searched_s, judged_s=9.5, first=False)
    assert not has_a_turn(replace(one, led_s=1.0), searched_s=searched_s, judged_s=0.0, first=False)


def test_references_are_computed_once_whichever_threads_ask_for_them() -> None:
    """The one that judges, and the one in which regions get ready."""
    asked = list[object]()

    def references(region: object, variables: object, seeds: object) -> Future[Any]:
        time.sleep(0.05)  # another thread has its turn
        asked.append(region)
        return Future()

    bench: Any = SimpleNamespace(
        is_cpu=False, service=SimpleNamespace(references=references), failed_under_stress={}, record=lambda rows: None
    )
    kept: Any = SimpleNamespace(holds_first=lambda work: False)
    comparisons = Comparisons(bench, cast(Any, None), kept)
    works: Any = [
        SimpleNamespace(id=name, call=SimpleNamespace(region=name), bindings=[()]) for name in ("one", "other", "more")
    ]
    threads = [threading.Thread(target=comparisons.ask_for_references, args=[works], kwargs={"most": 2}) for _ in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(str, asked)) == ["one", "other"]


# ---- in a run


@pytest.fixture
def unoptimised(monkeypatch: pytest.MonkeyPatch) -> None:
    """tinygrad's own schedules are the unoptimised kernels, so that something faster is surely found."""
    monkeypatch.setattr(KernelSpace, "baseline", lambda space: RAW)


@pytest.fixture
def opened(tmp_path: Path, unoptimised: None) -> Iterator[Begun]:
    """A run whose baselines are timed."""
    with begun(Settings(str(SCRIPT), device=os.environ["DEV"], folder=tmp_path / "out")) as started:
        yield started


class Beside:
    """What judges ahead in such a run, and the work that is judged."""

    def __init__(self, opened: Begun) -> None:
        self.run = opened
        self.estimates: Estimates = opened.estimates(opened.measured())
        self.judged: dict[str, object] = {}
        self.ahead = Ahead(opened.device, self.estimates, log=opened.log, judged=self.judged)  # type: ignore[arg-type]
        self.work: RegionWork = max(opened.works, key=lambda work: work.before_s)
        self.ahead.know(self.estimates, searched=opened.works)

    def found(self, schedule: Schedule, seconds: float) -> None:
        """A search measured this, and it took so long."""
        (future,) = self.run.device.measure(self.work, [schedule])
        self.work.keep(replace(future.result(), runtime_s=seconds))

    def ended(self) -> RegionResults:
        """The search is over, and what is left is judged."""
        self.ahead.end()
        return self.run.judge(self.estimates, Candidates(self.run.works), ahead=self.ahead).run()

    def comparisons(self) -> list[Job]:
        """Those that were made of the work."""
        self.run.log.jobs.write()
        return [job for job in made(self.run.journal.jobs()) if job.subject == self.work.call.region.id]


def made(jobs: Sequence[Job]) -> list[Job]:
    return [job for job in jobs if job.kind in (JobKind.PAIRED, JobKind.JOINT) and job.outcome != JobOutcome.TAKEN_OVER]


def steps_of(work: RegionWork, count: int) -> list[Schedule]:
    """Schedules that are not the raw one, each a step further than the one before."""
    found = [work.space.start()]
    while len(found) <= count:
        found.append(work.space.actions(found[-1])[0].schedule)
    return found[1:]


def test_what_was_judged_ahead_is_not_judged_again_and_what_changed_is(opened: Begun) -> None:
    run = Beside(opened)
    (one, other, third), half_s = steps_of(run.work, 3), run.work.baseline_s / 2
    run.found(one, half_s)
    reserved_s = run.estimates.judging_s()
    run.ahead._take(run.work)
    row = run.ahead.rows[run.work.id]
    assert row.baseline.verification.passed and run.judged == {run.work.id: row}
    assert run.estimates.kept.holds_first(run.work)
    saved_s = FRESH_CHILD_S + run.estimates.comparing_s(run.work)
    assert run.estimates.judging_s() <= reserved_s - saved_s + 1e-9, "the search has the time that this would take"
    assert run.ahead._leads() == [], "it is not judged twice while nothing changes"

    run.work.passed(one)
    run.found(other, half_s * (LEADS + 0.001))
    assert run.ahead._leads() == [], "what leads by less than noise is no other leader"
    run.found(third, half_s / 2)
    assert [(lead.id, lead.again) for lead in run.ahead._leads()] == [(run.work.id, True)]
    assert len(run.comparisons()) == 1
    results = run.ended()
    assert len(run.comparisons()) == 2, "the new leader, and it alone"
    assert {r.region.id for r in results.rows} == {w.call.region.id for w in opened.works}


def test_regions_are_judged_as_soon_as_programs_of_them_are_found(
    opened: Begun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which of them the best plans have is known from the first one that is measured on, without another verdict."""
    monkeypatch.setattr(Estimates, "comparing_s", lambda estimates, work: 1.0)  # of a program that is none
    monkeypatch.setattr(ahead, "PLANNING", 1e9)
    run = Beside(opened)
    run.ahead.know(run.estimates, needed=lambda judged: ())
    assert run.ahead._view.searched == {work.id for work in opened.works}, "which goes on while regions get ready"
    region = replace(run.work, proposed=True, seen={kind: dict(seen) for kind, seen in run.work.seen.items()})
    both = replace(run.estimates, measured=replace(run.estimates.measured, works=[region]))
    run.ahead.know(both, needed=lambda judged: {region.call.region.id} if region.by_kind else set(), searched=[region])
    assert run.ahead._leads() == []
    tile = Schedule("tile", "{}")
    region.seen_of("tile")[tile] = Observation(tile, Status.OK, region.baseline_s / 4, "tile")
    monkeypatch.setattr(
        RegionWork, "searched", property(lambda work: [work.seen["tile"]] if "tile" in work.seen else [])
    )
    assert [lead.id for lead in run.ahead._leads()] == [region.id]


def test_on_a_gpu_the_judging_child_opens_the_device_once_the_other_has(
    opened: Begun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is held against the canary of that one; once it was asked for nobody asks again, and not after the end."""
    device = opened.device
    monkeypatch.setattr(type(device), "is_cpu", False)
    begun, rehearse = list[object](), MeasureService.rehearse
    monkeypatch.setattr(MeasureService, "rehearse", lambda one: begun.append(one) or rehearse(one))  # type: ignore[func-returns-value]
    device.rehearse()
    waited(lambda: device.judges)
    judging = device.bench.service
    assert judging._device.reference is device.service._device.reference is not None
    device.rehearse_judging()
    assert begun == [device.service, judging]


def test_on_a_gpu_kernels_of_a_script_are_compiled_while_it_is_recorded(
    opened: Begun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And first programs of those that matter; on a CPU nothing is compiled beside a program."""
    device, workload = opened.device, opened.captured.workload
    asked = list[str]()
    monkeypatch.setattr(MeasureService, "compile_ahead", lambda service, region, schedule: asked.append(region.id))
    monkeypatch.setattr(type(device), "first_programs", lambda device, works: asked.extend(work.id for work in works))
    device.get_ready(workload)
    assert asked == []
    monkeypatch.setattr(type(device), "is_cpu", False)
    device.get_ready(workload)
    regions = [call.region.id for call in workload.calls]
    assert sorted(asked[: len(regions)]) == sorted(regions)
    assert 0 < len(asked[len(regions) :]) <= min(len(regions), device.service.compile_workers)


def test_no_child_begins_once_the_run_has_ended(opened: Begun) -> None:
    opened.device.close_children()
    opened.device.rehearse_judging()
    assert not opened.device.judges


def test_on_a_gpu_what_cannot_end_in_time_is_not_begun(opened: Begun, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what judging took in this run: two verdicts took three times what was expected of them."""
    run = Beside(opened)
    run.found(*steps_of(run.work, 1), run.work.baseline_s / 2)
    monkeypatch.setattr(Estimates, "comparing_s", lambda estimates, work: 10.0)
    monkeypatch.setattr(Estimates, "slower", property(lambda estimates: 1.0))
    left_s = 15.0
    monkeypatch.setattr(Estimates, "judge_until", lambda estimates: time.monotonic() + left_s)
    run.ahead._beside = True
    assert [lead.id for lead in run.ahead._leads()] == [run.work.id]
    run.ahead._took.add(20.0, 60.0)
    assert run.ahead._leads() == []
    left_s = 40.0
    assert [lead.id for lead in run.ahead._leads()] == [run.work.id]
    left_s, run.ahead._beside = 5.0, False
    assert [lead.id for lead in run.ahead._leads()] == [run.work.id], "on a CPU turns are another rule's"


def test_beside_a_search_nobody_waits_for_a_verdict_that_comes_too_late(
    opened: Begun, monkeypatch: pytest.MonkeyPatch
) -> None:
    late_at = time.monotonic() + 7.0
    monkeypatch.setattr(Estimates, "late_at", property(lambda estimates: late_at))
    monkeypatch.setattr(Estimates, "patience_s", lambda estimates, expected_s: 3 * expected_s)
    ahead = Beside(opened).ahead
    assert ahead._patience.patience_s(10.0) == 30.0
    ahead._beside = True
    waits_s = ahead._patience.patience_s(10.0)
    assert waits_s is not None and 0.0 < waits_s <= 7.0 and ahead._patience.patience_s(1e-3) == 3e-3
    late_at = time.monotonic() - 1.0
    assert ahead._patience.patience_s(10.0) == 0.0


def held(answers: Sequence[Any]) -> tuple[Callable[[], Any], threading.Event]:
    """What gives these answers, each as soon as the event is set, and not before."""
    hold, left = threading.Event(), iter(answers)

    def answer() -> Any:
        assert hold.wait(PATIENCE_S)
        return next(left)

    return answer, hold


def test_on_a_gpu_verdicts_do_not_wait_for_the_file(opened: Begun) -> None:
    """What came meanwhile is in the next one, and what came too soon too."""
    told, (answer, hold) = list[float](), held([True, False, True])
    incumbent: Any = SimpleNamespace(improve=lambda saved_s: told.append(saved_s) or answer(), verified_s=(1.0, 2.0))
    ahead = Ahead(opened.device, opened.estimates(opened.measured()), log=opened.log, judged={}, incumbent=incumbent)
    ahead._beside = True
    for saved_s in (1.0, 2.0, 3.0):
        ahead._news, ahead._saved_s = True, ahead._saved_s + saved_s
        ahead._tell()
    waited(lambda: told == [1.0])
    hold.set()
    waited(lambda: ahead._tell() or told == [1.0, 5.0])
    waited(lambda: ahead._tell() or told == [1.0, 5.0, 0.0])
    ahead.end()
    assert not ahead._news and told == [1.0, 5.0, 0.0] and opened.log.verified_s == (1.0, 2.0)


def test_the_file_has_at_the_end_what_came_while_it_was_written(opened: Begun) -> None:
    told, (answer, hold) = list[float](), held([True, True])
    incumbent: Any = SimpleNamespace(improve=lambda saved_s: told.append(saved_s) or answer(), verified_s=None)
    ahead = Ahead(opened.device, opened.estimates(opened.measured()), log=opened.log, judged={}, incumbent=incumbent)
    ahead._beside = True
    for saved_s in (1.0, 2.0):
        ahead._news, ahead._saved_s = True, ahead._saved_s + saved_s
        ahead._tell()
    threading.Timer(0.1, hold.set).start()
    ahead.end()
    assert told == [1.0, 2.0]


def test_nothing_is_written_once_a_run_has_ended(opened: Begun) -> None:
    """What is written then is waited for; plans that nobody asks for are not."""
    told, (answer, hold) = list[float](), held([True])
    incumbent: Any = SimpleNamespace(improve=lambda saved_s: told.append(saved_s) or answer(), verified_s=None)
    ahead = Ahead(opened.device, opened.estimates(opened.measured()), log=opened.log, judged={}, incumbent=incumbent)
    ahead._beside, never = True, threading.Event()
    ahead._planning.begin(never.wait)  # type: ignore[arg-type]
    ahead._news = True
    ahead._tell()
    threading.Timer(0.1, hold.set).start()
    ahead.stop()
    assert told == [0.0] and hold.is_set()
    ahead._news = True
    ahead._tell()
    assert told == [0.0]
    never.set()


def test_what_goes_wrong_with_the_file_is_raised_at_the_end(opened: Begun) -> None:
    incumbent: Any = SimpleNamespace(improve=lambda saved_s: 1 / 0, verified_s=None)
    ahead = Ahead(opened.device, opened.estimates(opened.measured()), log=opened.log, judged={}, incumbent=incumbent)
    ahead._beside, ahead._news = True, True
    ahead._tell()
    with pytest.raises(ZeroDivisionError):
        ahead.end()


def test_on_a_gpu_verdicts_do_not_wait_for_the_best_plans(opened: Begun) -> None:
    answer, hold = held([{"second"}, {"of another run"}])
    estimates, found = opened.estimates(opened.measured()), iter([lambda: {"first"}, answer, answer])
    ahead = Ahead(opened.device, estimates, log=opened.log, judged={})
    view = replace(ahead._view, needed=lambda judged: next(found)())
    ahead._beside = True
    assert ahead._of_best(view) == ({"first"}, set()), "there is none before"
    ahead._verdicts += 1
    assert ahead._of_best(view) == ({"first"}, set())
    hold.set()
    waited(lambda: ahead._of_best(view) == ({"second"}, set()))
    ahead._verdicts += 1
    ahead._of_best(view)
    later = replace(view, needed=lambda judged: {"third"})
    assert ahead._of_best(later) == ({"third"}, set())
    ahead.end()
    assert ahead._of_best(later) == ({"third"}, set()), "what was found of another view is not taken"


def test_nothing_is_judged_again_at_the_end_where_nothing_changed(opened: Begun) -> None:
    run = Beside(opened)
    (one,) = steps_of(run.work, 1)
    run.found(one, run.work.baseline_s / 2)
    run.ahead._take(run.work)
    row = run.ahead.rows[run.work.id]
    (after,) = (r for r in run.ended().rows if r.region.id == run.work.call.region.id)
    assert len(run.comparisons()) == 1
    assert (after.chosen, after.outcome) == (row.chosen, row.outcome)
    assert opened.log.warnings == [], "it is no verdict of an earlier run"


def jobs_of_run(folder: Path) -> list[Job]:
    """What a whole run did, which improved something."""
    settings = Settings(str(SCRIPT), device=os.environ["DEV"], folder=folder, measurements=24, predictor="roofline")
    for _ in range(3):  # a busy machine may hide that something is faster
        result = whole_run(settings).result
        if improved := [row for row in result.regions if row.outcome == "improved"]:
            break
    assert improved and all(row.chosen.verification.passed for row in improved) and result.complete
    with Journal.open(folder / "journal.sqlite", read_only=True) as journal:
        return journal.jobs()


@pytest.mark.slow
@pytest.mark.usefixtures("unoptimised")
def test_on_a_cpu_a_run_has_a_verdict_before_its_search_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default the run that is interrupted shows it, of a thread, and when a CPU has a turn is tested above."""
    stored, over = list[Result](), Ahead.over

    def at_the_end_of_the_search(beside: Ahead) -> None:
        stored.append(read_result(tmp_path / "RESULT.json"))
        over(beside)

    monkeypatch.setattr(Ahead, "over", at_the_end_of_the_search)
    monkeypatch.setattr(ahead, "FIRST", 0.0)  # else so small a search is over before
    jobs = jobs_of_run(tmp_path)
    first = min(job.start_s for job in made(jobs))
    assert first < max(job.start_s for job in jobs if job.kind == JobKind.TIME), "the search went on after it"
    # the first of all may be no faster where others use the machine: it is a verdict all the same
    assert stored[0].total_after_s <= stored[0].total_before_s and not stored[0].complete


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread judges, as on a GPU."""
    know = Ahead.know

    def in_a_thread(one: Ahead, *known: Estimates, **more: Any) -> None:
        one._beside = True
        know(one, *known, **more)

    monkeypatch.setattr(Ahead, "know", in_a_thread)


@pytest.mark.slow
@pytest.mark.usefixtures("unoptimised", "beside")
def test_beside_a_search_nothing_is_judged_while_it_takes_a_sample(tmp_path: Path) -> None:
    jobs = jobs_of_run(tmp_path)
    device = sorted((job.start_s, job.start_s + job.seconds) for job in jobs if job.resource == "device:0")
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(device))


@pytest.mark.usefixtures("unoptimised", "beside")
@pytest.mark.parametrize("happens", ["an interrupt", pytest.param("a lost device", marks=pytest.mark.slow)])
def test_whatever_ends_a_search_leaves_what_was_verified_by_then(
    happens: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check, judged, found = Ahead.check, Judge.judged, list[RegionResult]()

    def checked(one: Ahead) -> None:
        check(one)
        if happens == "an interrupt" and any(row.outcome == "improved" for row in one.rows.values()):
            raise KeyboardInterrupt

    def judged_once(one: Judge, work: RegionWork) -> RegionResult | None:
        if happens == "a lost device" and found:
            raise DeviceError("it fell off the bus")
        row = judged(one, work)
        if row is not None and row.outcome == "improved":
            found.append(row)
        return row

    monkeypatch.setattr(Ahead, "check", checked)
    monkeypatch.setattr(Judge, "judged", judged_once)
    script = tmp_path / "two.py"
    script.write_text(
        SCRIPT.read_text() + "\nfor size in (24, 40):\n    (drawn(48, size) @ drawn(size, 8)).realize()\n"
    )
    settings = Settings(str(script), device=os.environ["DEV"], folder=tmp_path, measurements=40, predictor="roofline")
    finished = whole_run(settings)
    assert (
        finished.exit_code
        == {
            "an interrupt": ExitCode.INTERRUPTED,
            "a lost device": ExitCode.DEVICE_UNUSABLE,
        }[happens]
    )
    result = read_result(tmp_path / "RESULT.json")
    improved = [row for row in result.regions if row.outcome == "improved"]
    assert improved and all(row.chosen.verification.passed for row in improved) and not result.complete
    assert not any(thread.name == "kcg-judging" for thread in threading.enumerate())


@pytest.mark.slow
@pytest.mark.usefixtures("unoptimised", "beside")
def test_where_a_second_process_cannot_open_the_device_all_is_judged_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged, refused = Judge.judged, list[str]()

    def judged_later(one: Judge, work: RegionWork) -> RegionResult | None:
        if not refused:
            refused.append(work.id)
            raise DeviceError("CUDA does not open: it is in exclusive mode")
        return judged(one, work)

    monkeypatch.setattr(Judge, "judged", judged_later)
    jobs = jobs_of_run(tmp_path)
    last = max(job.start_s for job in jobs if job.kind == JobKind.TIME)
    assert refused and all(job.start_s > last for job in made(jobs))
    assert any("exclusive mode" in line for line in read_result(tmp_path / "RESULT.json").warnings)
