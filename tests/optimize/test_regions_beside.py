"""Contractions beside each other go through a whole run: proposed, measured, verified, and put into running programs,
where calls that stand between them are moved."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tinygrad import Tensor, TinyJit

from kcg.compat.partition import BETWEEN
from kcg.handover.tuned import scheduling
from kcg.judge.whole_script import Script
from kcg.kernel.regions import Candidate, Form
from kcg.optimize.planning import claimed
from kcg.optimize.region_plans import plans_of, propose
from kcg.optimize.settings import Settings
from kcg.report.result import read_result
from kcg.types import Region, Result, ScheduleKind, Workload
from kcg.workloads import script
from tests.captured import captured_script
from tests.optimize_run import whole_run
from tests.planned_result import planned_result
from tests.plans import run
from tests.scripts import two_streams

SCRIPT = Path(two_streams.__file__)
BLOCKS = two_streams.BLOCKS


@pytest.fixture(scope="module")
def workload() -> Workload:
    return captured_script(SCRIPT)


@pytest.fixture(scope="module")
def candidates(workload: Workload) -> list[Candidate]:
    found = [c for c in propose(workload).candidates.values() if c.form is Form.BESIDE]
    assert len(found) == 3 and {len(c.places) for c in found} == {BLOCKS}
    return found


@pytest.fixture(scope="module")
def regions(candidates: list[Candidate]) -> list[Region]:
    return [candidate.region for candidate in candidates]


@pytest.fixture(scope="module")
def result(workload: Workload, regions: list[Region]) -> Result:
    """Each of them is a program of its kernels with other schedules."""
    return planned_result(workload, *regions)


@pytest.mark.slow
def test_all_of_them_are_in_one_plan_that_leaves_the_same(workload: Workload, candidates: list[Candidate]) -> None:
    alone_s = {call.region.id: 1e-5 for call in workload.calls}
    best, *_ = plans_of(propose(workload), alone_s, {(c.region.id, c.again): 1e-6 for c in candidates})
    assert {c.region for c, _ in best.programs} == {c.region for c in candidates}
    assert claimed(workload, best.regions).found == {c.region.id: times for c, times in best.programs}
    for sequence, plan in zip(workload.sequences, best.sequences, strict=True):
        terms: dict[object, int] = {}
        assert run(sequence, terms, plan) == run(sequence, terms)


@pytest.mark.slow
def test_one_goes_through_a_run(regions: list[Region], tmp_path: Path) -> None:
    dev, folder = os.environ["DEV"], tmp_path / "out"
    settings = Settings(str(SCRIPT), device=dev, measurements=24, folder=folder, script_check=False)
    finished = whole_run(settings, regions=regions[:1])
    result = read_result(finished.result_path)
    (row,) = [row for row in result.regions if row.region == regions[0]]
    assert row.baseline.schedule.kind == ScheduleKind.PARTS and row.outcome in ("improved", "kept")
    assert row.calls == BLOCKS * (result.steps + 1) and len(row.region.outputs) == 2


# ---- in running programs


def as_captured() -> list[np.ndarray]:
    step, inputs = TinyJit(two_streams.model), two_streams.inputs()
    return [x.numpy() for _ in range(4) for x in step(*((x + 0).contiguous().realize() for x in inputs))]


def one_after_the_other() -> list[np.ndarray]:
    """The image's layers read what the text's left: the same kernels, and each needs the other."""
    text, image = two_streams.inputs()
    first, second, *_ = two_streams.WEIGHTS
    mixed = (text.cat(image) * 2).contiguous()
    text = two_streams.layers(text, mixed[: two_streams.TEXT], first)
    mixed = (mixed + text.sum()).contiguous()
    image = two_streams.layers(image, mixed[two_streams.TEXT :], second)
    outputs = text, image
    Tensor.realize(*outputs)
    return [x.numpy() for x in outputs]


@pytest.mark.slow
@pytest.mark.parametrize(("program", "fits"), [(as_captured, True), (one_after_the_other, False)])
def test_they_are_put_in_where_neither_needs_the_other(
    program: Callable[[], list[np.ndarray]], fits: bool, result: Result, regions: list[Region]
) -> None:
    wanted = program()
    with scheduling(result) as place:
        found = program()
    for ours, own in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, own, rtol=1e-5, atol=1e-5)
    if fits:
        assert dict(place.replaced.counts) == {r.id: 2 * BLOCKS for r in regions}, "eagerly, and captured"
        assert not place.replaced.left
    else:
        assert not place.replaced.counts and {why for _, why in place.replaced.left} == {BETWEEN}


@pytest.mark.slow
def test_the_check_of_a_script_finds_all_of_them(result: Result, regions: list[Region]) -> None:
    (check,) = Script(script.Program(script.Form.SCRIPT, str(SCRIPT))).checks([result], timeout_s=240.0)
    assert check.passed and not check.left, check
    assert dict(check.replaced) == {r.id: 2 * BLOCKS for r in regions}
