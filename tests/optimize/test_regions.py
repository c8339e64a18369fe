"""A region of several kernels goes through a whole run: planned, measured as its parts, verified, stored, shown, and
handed over, beside single kernels. Nothing makes such a region by itself yet."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tinygrad import Tensor, TinyJit

import kcg
from kcg.dataset.journal import Journal
from kcg.errors import ScheduleError
from kcg.handover.installing import buffers_of_region
from kcg.handover.tuned import scheduling
from kcg.kernel.composed import parts_of
from kcg.kernel.kinds import space_of
from kcg.measure.protocol import PROTOCOL
from kcg.optimize.planning import planned
from kcg.optimize.run import Finished
from kcg.optimize.settings import Settings
from kcg.optimize.work import RegionResults, RegionWork, searched_of
from kcg.predictor.interface import judge_of
from kcg.predictor.roofline import Roofline
from kcg.report.result import read_result, write_result
from kcg.report.words import step_lines
from kcg.search.problem import Ledger, Observation, Problem, best
from kcg.search.strategies import strategy
from kcg.types import Region, Schedule, ScheduleKind, Status, Workload, WorkloadCall
from tests.captured import captured_script
from tests.chains import region_of
from tests.kernels import empty, example_region
from tests.known_targets import X86
from tests.optimize_run import begun, whole_run

SCRIPT = Path(__file__).parents[1] / "scripts" / "norm_steps.py"


@pytest.fixture(scope="module")
def workload() -> Workload:
    return captured_script(SCRIPT)


@pytest.fixture(scope="module")
def norm(workload: Workload) -> Region:
    """Mean, deviation and what is made of them: three calls of the step."""
    (steady,) = [sequence for sequence in workload.sequences if sequence.steady]
    assert len(steady.calls) == 5, "before it one call, after it another"
    return steady.region(1, 2, 3)


@pytest.fixture(scope="module")
def finished(norm: Region, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    dev, folder = os.environ["DEV"], tmp_path_factory.mktemp("norm") / "out"
    settings = Settings(str(SCRIPT), device=dev, measurements=12, folder=folder, script_check=False)
    return whole_run(settings, regions=[norm])


def test_it_is_planned_beside_single_kernels(workload: Workload, norm: Region) -> None:
    before, after = (Counter({c.region.id: c.calls for c in w.calls}) for w in (workload, planned(workload, [norm])))
    assert after[norm.id] == workload.steps + 1, "every replay, and the call before the capture"
    for kernel in norm.kernels:
        assert before[kernel.id] - after[kernel.id] == after[norm.id]
    assert len(after) > 1 and after.total() == before.total() - 2 * after[norm.id]


def test_what_occurs_nowhere_is_one_line(workload: Workload, norm: Region) -> None:
    other = Region(norm.kernels[::-1], norm.args[::-1], norm.outputs)
    with pytest.raises(ScheduleError, match=r"^region \w{12} occurs nowhere in script:norm_steps: another call has"):
        planned(workload, [other])


@pytest.mark.slow
def test_it_is_measured_as_its_parts_and_stored(finished: Finished, norm: Region) -> None:
    journal = Journal.open(finished.result_path.parent / "journal.sqlite", read_only=True)
    try:
        assert journal.regions()[norm.id] == norm
        rows = [row for row in journal.measurements(PROTOCOL) if row.region_id == norm.id]
    finally:
        journal.close()
    assert {row.schedule.kind for row in rows} == {ScheduleKind.PARTS}
    assert any(row.status == Status.OK and row.checked for row in rows)


@pytest.mark.slow
def test_it_is_in_the_result_and_shown(finished: Finished, norm: Region, workload: Workload) -> None:
    result = read_result(finished.result_path)
    (row,) = [row for row in result.regions if row.region.id == norm.id]
    assert row.region == norm and len(result.regions) > 1 and row.bytes > 0 and row.operations > 0
    assert [part.places for part in parts_of(row.baseline.schedule)] == [(0,), (1,), (2,)]
    assert row.chosen.name.startswith("3 kernels: ") and row.outcome in ("improved", "kept")
    assert row.chosen.verification.passed or row.outcome == "kept"
    assert result.steps == workload.steps == 5 and row.replayed == 5 and row.calls == 6
    assert result.step_s is not None and result.step_s[0] == pytest.approx(
        sum(r.replayed / 5 * r.baseline.cold_s for r in result.regions)
    )
    page = finished.report_path.read_text(encoding="utf-8")
    assert all(line in page for line in step_lines(result)) and len(step_lines(result)) == 2
    assert {r.region.id for r in result.once} and not any(r.replayed for r in result.once)
    assert "3 kernels: " in finished.report_path.read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_search_varies_its_parts_by_what_is_predicted_of_them(norm: Region) -> None:
    space = space_of(norm, X86)
    judge = judge_of(Roofline(), space)

    def measure(batch: Sequence[Schedule]) -> list[Future[Observation]]:
        futures = [Future[Observation]() for _ in batch]
        ledger.measurements += len(batch)
        for future, schedule, expected in zip(futures, batch, judge.predict(batch), strict=True):
            future.set_result(Observation(schedule, Status.OK, expected.runtime_s, binary_hash=space.key(schedule)))
        return futures

    ledger = Ledger(max_measurements=8)
    seen = list(strategy("mcts")(Problem(space, judge.predict, measure, ledger, random.Random(0))))
    first, found = seen[0], best(seen)
    assert found is not None and found.time_s < first.time_s and first.schedule == space.baseline()
    parts = [judge_of(Roofline(), of).predict([own])[0].runtime_s for of, own in space.parts(found.schedule)]
    assert found.time_s == pytest.approx(sum(parts))


@pytest.fixture(scope="module")
def improved(norm: Region, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A result whose norm has other parts than tinygrad's own, compared with these and verified by every rule."""
    folder = tmp_path_factory.mktemp("improved")
    with begun(Settings(str(SCRIPT), device=os.environ["DEV"], folder=folder / "out"), regions=[norm]) as run:
        (work,) = [work for work in run.works if work.call.region == norm]
        estimates = run.estimates(run.untimed())
        comparisons = run.comparisons(estimates)
        own = comparisons.side(work, work.space.baseline())
        other = comparisons.side(work, work.space.neighbours(work.space.baseline())[0])
        assert not isinstance(own, str) and not isinstance(other, str)
        seen = comparisons.compare(work, own, other)
        assert seen.outcome is not None and seen.outcome.baseline_verification.passed, seen.reason
        row = run.judge(estimates).judge.decide(work, seen, [])
        assert row is not None and seen.outcome.finalist_verification is not None
        row = replace(row, chosen=seen.finalist_after(work), outcome="improved")
        path = folder / "RESULT.json"
        write_result(run.result(None, RegionResults((row,))), path)
    return path


def test_every_rule_of_verification_is_kept_of_it(improved: Path) -> None:
    (row,) = read_result(improved).regions
    assert row.chosen.verification.passed and row.chosen.verification.seeds == 3 and row.chosen.warm_s > 0
    assert row.chosen.schedule != row.baseline.schedule and row.chosen.binary_hash != row.baseline.binary_hash


def test_it_is_handed_over_to_an_unchanged_program(improved: Path, norm: Region) -> None:
    result, x = read_result(improved), Tensor([[float((i + j) % 5) for j in range(256)] for i in range(64)]).realize()

    @TinyJit
    def step(x: Tensor) -> Tensor:
        hidden = (x * 2 + 1).contiguous()
        return (hidden.layernorm().contiguous() * 1.5).contiguous().realize()

    wanted = ((x * 2 + 1).contiguous().layernorm().contiguous() * 1.5).numpy()
    with scheduling(result) as place:
        for _ in range(4):
            assert np.allclose(step((x + 0).contiguous().realize()).numpy(), wanted, rtol=1e-5, atol=1e-5)
        assert place.served == {norm.id}
    with kcg.tuned(improved):
        eager = (x * 2 + 1).contiguous().layernorm().contiguous().numpy()
    assert np.allclose(eager * 1.5, wanted, rtol=1e-5, atol=1e-5)


def test_its_outputs_are_counted_by_the_numbers_of_its_buffers(norm: Region) -> None:
    """Every kernel has its output at its own slot 0; what lies between kernels is no output."""
    x = empty(64, 32)
    products = region_of(x @ empty(32, 128), x @ empty(32, 16))
    sizes = {region: buffers_of_region(region) for region in (products, norm)}
    assert 4 * sum(sizes[products][number][0] for number in products.outputs) == 4 * 64 * (128 + 16)
    for region, buffers in sizes.items():
        work = RegionWork(WorkloadCall(region, 1), space_of(region, X86))
        assert work.output_bytes == 4 * sum(buffers[number][0] for number in region.outputs)
    assert len(norm.outputs) < len(norm.kernels)


@pytest.mark.parametrize(("once_s", "searched"), [(0.5, 1), (2.0, 2)])
def test_what_runs_once_is_searched_where_it_takes_more_than_a_tenth(once_s: float, searched: int) -> None:
    def work(name: str, seconds: float, replayed: int) -> RegionWork:
        region = example_region(name)
        made = RegionWork(WorkloadCall(region, 1, replayed=replayed), space_of(region, X86))
        made.keep(Observation(made.space.baseline(), Status.OK, seconds))
        return made

    works = [work("layernorm.0", 10.0, 1), work("pad", once_s, 0)]
    assert len(searched_of(works)) == searched
    assert len(searched_of(works[1:])) == 1, "without a steady state all is searched"
