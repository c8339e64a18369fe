"""What a region of several kernels saves among the calls around it, timed on the device."""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kcg.compat.hazards import Access
from kcg.errors import ExitCode, JournalError
from kcg.judge import in_context
from kcg.judge.in_context import neighbourhood_of, neighbours_of
from kcg.judge.kept import KeptResults
from kcg.kernel.compile import compile_schedule
from kcg.kernel.composed import Part, region_of_part, schedule_of_parts
from kcg.kernel.kinds import baseline_of, compile_region
from kcg.kernel.program import Program
from kcg.measure.inputs import RECIPE, TIMED_SEED
from kcg.measure.jobs import ContextJob, ContextOutcome
from kcg.measure.service import MeasureService
from kcg.measure.workbench import Workbench
from kcg.optimize import proposing, region_search
from kcg.optimize import run as run_module
from kcg.optimize.budget import Budget
from kcg.optimize.estimates import Estimates
from kcg.optimize.planning import planned
from kcg.optimize.region_plans import Proposals, propose
from kcg.optimize.region_search import Proposed, savings_in_context
from kcg.optimize.settings import Settings
from kcg.optimize.work import Candidates, RegionResults
from kcg.report.result import read_result
from kcg.types import Finalist, Region, RegionResult, Schedule, Verification
from tests.captured import captured
from tests.optimize_run import Begun, begun, whole_run
from tests.waiting import PATIENCE_S

SCRIPT = Path(__file__).parents[1] / "scripts" / "norm_steps.py"
NORM = (1, 2, 3)  # of the step's five calls: mean, deviation, norm


@functools.cache
def proposed_of(name: str, preset: str) -> Proposals:
    return propose(captured(name, preset))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "preset"), [("flux", "1024"), ("llama", "mini"), ("lora_train", "mini")])
def test_the_calls_around_a_region_keep_their_order_and_leave_it_as_it_is(name: str, preset: str) -> None:
    """Also among updates in place."""
    known = 0
    for blocks, candidates in proposed_of(name, preset).sequences:
        calls = blocks.sequence.calls
        accesses = [
            Access(*(frozenset(call.views[slot].buffer for slot in slots) for slots in (call.reads, call.writes)))
            for call in calls
        ]
        for candidate in candidates:
            places = max(candidate.places, key=blocks.weight)
            if (found := neighbourhood_of(blocks.sequence, places)) is None:
                continue
            known += 1
            inner, _ = region_of_part(found.region, tuple(range(found.before, found.before + found.inside)))
            assert (inner.kernels, inner.args) == (candidate.region.kernels, candidate.region.args)
            around = neighbours_of(blocks.sequence, places)
            makers, readers = (sorted(place for place, maker in around if maker is of) for of in (True, False))
            order = [*makers, *places, *readers]
            assert len(order) == len(set(order)) >= len(found.region.kernels) > len(places)
            late = [
                (i, j) for n, i in enumerate(order) for j in order[n:] if j < i and accesses[i].conflicts(accesses[j])
            ]
            assert not late, "no call comes before one that it has to follow"
    assert known > 4


def test_what_makes_its_inputs_and_reads_its_outputs_is_around_a_region() -> None:
    """Of a single block of Flux: its attention, and the norm that its projections read."""
    ((blocks, _),) = proposed_of("flux", "1024").sequences
    attention, norm = range(120, 125), range(112, 115)
    assert set(neighbours_of(blocks.sequence, attention)) == {(115, True), (118, True), (119, True), (125, False)}
    readers = {place for place, is_maker in neighbours_of(blocks.sequence, norm) if not is_maker}
    assert readers == {115, 116} and neighbours_of(blocks.sequence, norm)[0][0] in (111, 115), "the nearest first"


# ---- on the device


@dataclass
class Judged:
    """A run whose norm is a region with a program: here its kernels with other schedules than they have alone."""

    run: Begun
    estimates: Estimates
    proposed: Proposed
    results: RegionResults
    norm: Region

    def savings(self, **changed: Any) -> dict[str, Any]:
        return savings_in_context(
            changed.pop("results", self.results),
            self.proposed,
            replace(self.estimates, **changed),
            device=self.run.device,
            log=self.run.log,
        )


def result_of(region: Region, own: Schedule, chosen: Schedule, *, before_s: float, after_s: float) -> RegionResult:
    def finalist(schedule: Schedule, seconds: float) -> Finalist:
        return Finalist(schedule, seconds, seconds, (seconds, seconds), Verification(True))

    return RegionResult(region, 1, finalist(own, before_s), finalist(chosen, after_s), 1, "improved")


def rows_with(judged: Judged, *, alone: Mapping[str, Schedule], program: Mapping[str, Schedule]) -> RegionResults:
    """The results of a run that chose these schedules of each kernel by itself, and within the norm."""
    rows = [
        result_of(
            w.call.region, baseline_of(w.call.region, judged.run.device.service.target), s, before_s=2e-4, after_s=1e-4
        )
        for w in judged.run.works
        for s in (alone[w.call.region.id],)
    ]
    parts = [
        schedule_of_parts(Part((i,), of[kernel.id]) for i, kernel in enumerate(judged.norm.kernels))
        for of in (alone, program)
    ]
    return RegionResults((*rows, result_of(judged.norm, *parts, before_s=3e-4, after_s=2e-4)))


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judged]:
    settings = Settings(str(SCRIPT), device=os.environ["DEV"], folder=tmp_path_factory.mktemp("in_context") / "out")
    with begun(settings) as run, pytest.MonkeyPatch.context() as patch:
        patch.setattr(region_search, "beats_its_parts", lambda row: bool(row.region.args))
        workload = run.captured.workload
        (steady,) = [sequence for sequence in workload.sequences if sequence.steady]
        norm, estimates = steady.region(*NORM), run.estimates(run.untimed())
        proposals = proposing.among(propose(workload), lambda region: region == norm)
        works = run.device.plan(replace(workload, calls=planned(workload, [norm]).calls[-1:]))
        proposed = Proposed(proposals, works, estimates, Candidates(run.works))
        made = Judged(run, estimates, proposed, RegionResults(()), norm)
        made.results = rows_with(made, alone=baselines(made), program=raw(made))
        patch.setattr(region_search, "_workspaces", lambda rows, proposed: {})
        patch.setattr(in_context, "MOST_S", 600.0)  # however busy this machine is
        patch.setattr(MeasureService, "compare_in_context", by_a_clock_of_its_own(made))
        yield made


def by_a_clock_of_its_own(judged: Judged) -> Callable[..., Future[ContextOutcome]]:
    """Both sides run and are compared as ever; by this clock a launch takes 10 µs, a raw one 30: a busy machine may
    say anything of what really took longer."""
    target, compare = judged.run.device.service.target, MeasureService.compare_in_context
    slow = {compile_schedule(w.call.region, w.space.start(), target).binary_hash for w in judged.run.works}

    def timed(service: MeasureService, job: ContextJob, *, timeout_s: float) -> Future[ContextOutcome]:
        outcome, answer = compare(service, job, timeout_s=timeout_s).result(timeout=PATIENCE_S), Future()
        sides = [sum(3e-5 if one.compiled.binary_hash in slow else 1e-5 for one in s.launches) for s in job.sides]
        parts_s, program_s = ((seconds,) * len(outcome.parts_s) for seconds in sides)
        answer.set_result(replace(outcome, parts_s=parts_s, program_s=program_s))
        return answer

    return timed


def baselines(judged: Judged) -> dict[str, Schedule]:
    target = judged.run.device.service.target
    return {work.call.region.id: baseline_of(work.call.region, target) for work in judged.run.works}


def raw(judged: Judged) -> dict[str, Schedule]:
    return {work.call.region.id: work.space.start() for work in judged.run.works}


def test_both_programs_leave_the_same(judged: Judged) -> None:
    (steady,) = [one for one in judged.run.captured.workload.sequences if one.steady]
    target, found = judged.run.device.service.target, neighbourhood_of(steady, NORM)
    assert found is not None and (found.before, found.inside, len(found.region.kernels)) == (1, 3, 5)
    calls = [compile_region(Region((k,)), baseline_of(Region((k,)), target), target) for k in found.region.kernels]
    program = compile_region(judged.norm, baseline_of(judged.norm, target), target)
    bench, left = Workbench(found.region, target), []
    bench.fill(TIMED_SEED, RECIPE)
    for side in found.programs(calls, program):
        bench.poison(0xFF)
        bench.launcher(side)()
        left.append([bench.read(slot) for slot in bench.outputs])
    for one, other in zip(*left, strict=True):
        np.testing.assert_array_equal(one, other)
        assert np.isfinite(one.view(np.float32)).all()


def test_a_region_counts_what_it_saves_among_its_neighbours(judged: Judged) -> None:
    """Alone it took two thirds of what its parts took; here its program is slower than these, and no plan has it."""
    workload = judged.run.captured.workload
    lost = judged.savings()
    assert lost.keys() == {judged.norm.id}
    assert lost[judged.norm.id] == pytest.approx((-6e-5,) * 3)
    cold, _ = region_search.variants(judged.results, judged.proposed, workload)
    assert cold.planning is not None and [one.nearby_s for one in cold.planning.regions] == [None]
    (alone,) = region_search.variants(judged.results, judged.proposed, workload, in_context=lost)
    assert alone.planning is not None and not alone.planning.regions
    assert (region_search.LOST_IN_CONTEXT, 1) in alone.planning.passed_over
    other_way = rows_with(judged, alone=raw(judged), program=baselines(judged))
    won = judged.savings(results=other_way)
    best, _ = region_search.variants(other_way, judged.proposed, workload, in_context=won)
    assert best.planning is not None
    (one,) = best.planning.regions
    assert one.nearby_s == won[judged.norm.id] and one.counted_s == one.nearby_s[1] > 0
    assert best.planning.plans[0].expected_s == pytest.approx(alone_s(other_way, judged) - one.calls * one.counted_s)


def test_a_run_that_goes_on_does_not_time_it_again(judged: Judged, monkeypatch: pytest.MonkeyPatch) -> None:
    first = judged.savings()
    kept = KeptResults(judged.run.device, resumed=True)
    asked: list[ContextJob] = []
    answer: Future[ContextOutcome] = Future()
    answer.set_result(ContextOutcome((2.0,), (1.0,)))
    monkeypatch.setattr(
        MeasureService, "compare_in_context", lambda service, job, timeout_s: asked.append(job) or answer
    )
    assert judged.savings(kept=kept) == first and not asked
    other = rows_with(judged, alone=baselines(judged), program=baselines(judged))
    assert judged.savings(kept=kept, results=other) == {judged.norm.id: (1.0, 1.0, 1.0)}, "of other binaries"
    assert len(asked) == 1 and len(asked[0].region.kernels) == 5


def test_what_the_journal_holds_of_it_is_checked(judged: Judged) -> None:
    judged.savings()
    kept = KeptResults(judged.run.device, resumed=True)
    kept._entries = {key: json.dumps({**json.loads(text), "program_s": [-1.0]}) for key, text in kept._entries.items()}
    with pytest.raises(JournalError, match="cannot be trusted"):
        judged.savings(kept=kept)


def test_without_time_regions_count_what_they_save_alone(judged: Judged) -> None:
    begun_s, before = time.monotonic(), len(judged.run.log.warnings)
    budget = Budget(started=begun_s, limit_s=0.5, measurements=None)
    assert judged.savings(budget=budget) == {}
    assert judged.run.log.warnings[before:] == [
        "there was no time to compare 1 region among the calls around: what it saves alone counts"
    ]


def test_what_a_program_writes_beside_its_outputs_is_seen(judged: Judged) -> None:
    """Here the norm's last kernel writes over the norm's input."""
    service = judged.run.device.service
    program = compile_region(judged.norm, baseline_of(judged.norm, service.target), service.target)
    assert isinstance(program, Program) and judged.norm.args[-1][0] == judged.norm.outputs[0]
    *first, last = program.launches
    over = replace(last, args=tuple(judged.norm.args[0][1] if n == judged.norm.outputs[0] else n for n in last.args))
    wrong = replace(program, launches=(*first, over))
    job = ContextJob(judged.norm, (program, wrong), service.target, samples=3)
    outcome = service.compare_in_context(job, timeout_s=PATIENCE_S).result(timeout=PATIENCE_S)
    assert "left something else in buffer" in outcome.reason and not outcome.parts_s and not outcome.program_s
    right = service.compare_in_context(replace(job, sides=(program, program)), timeout_s=PATIENCE_S).result(
        timeout=PATIENCE_S
    )
    assert not right.reason and len(right.parts_s) == len(right.program_s) == 3 and min(right.program_s) > 0


def test_samples_that_are_not_to_be_trusted_count_for_nothing(judged: Judged, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here a program of which the second run leaves something else than the first one."""
    answer: Future[ContextOutcome] = Future()
    answer.set_result(ContextOutcome(reason="timed run 2 left something else"))
    monkeypatch.setattr(MeasureService, "compare_in_context", lambda service, job, timeout_s: answer)
    kept = judged.run.journal.paired_results()
    assert judged.savings() == {} and judged.run.journal.paired_results() == kept
    assert "timed run 2 left something else" in judged.run.log.warnings[-1]


def alone_s(results: RegionResults, judged: Judged) -> float:
    """What all calls take one by one."""
    calls = {work.call.region.id: work.call.calls for work in judged.run.works}
    return sum(calls[row.region.id] * row.chosen.cold_s for row in results.rows if not row.region.args)


@pytest.mark.slow
def test_an_interrupt_meanwhile_leaves_what_was_verified_by_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(proposing, "has_programs", lambda proposals, service, until: lambda region: True)
    monkeypatch.setattr(run_module, "savings_in_context", interrupted)
    folder = tmp_path / "out"
    settings = Settings(str(SCRIPT), device=os.environ["DEV"], measurements=8, folder=folder, regions=True)
    finished = whole_run(settings)
    result = read_result(finished.result_path)
    assert finished.exit_code == ExitCode.INTERRUPTED and not result.complete and result.regions
    improved = [row for row in result.regions if row.outcome == "improved"]
    assert all(row.chosen.verification.passed for row in improved), "the best of what was verified by then"
