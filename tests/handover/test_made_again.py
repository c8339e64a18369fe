"""Regions that compute a call again: proposed, planned, counted, and put into programs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tinygrad import Tensor, TinyJit

from kcg.handover.export import export
from kcg.handover.tuned import scheduling
from kcg.kernel.regions import Candidate, candidates_of
from kcg.optimize.planning import claimed, planned
from kcg.optimize.region_plans import (
    Proposals,
    as_deployed,
    key_of,
    plans_of,
    plans_to_time,
    propose,
    rows_of,
    saving_in_place_s,
)
from kcg.optimize.region_search import measured_savings, regions_in, unread
from kcg.report.result import read_result, write_result
from kcg.report.words import plan_line, plan_rows
from kcg.types import RegionResult, Result, ScheduleKind, Sequence, TriedPlan, Workload
from tests.captured import captured_script
from tests.chains import sequence_of
from tests.commands import folders_of, printed, python
from tests.kernels import empty
from tests.planned_result import finalist, kernel_rows, planned_result, region_row
from tests.slow import first
from tests.without_clang import stand_in

SCRIPT = Path(__file__).parents[1] / "scripts" / "made_again.py"
ROWS, WIDTH = 32, 64


@pytest.fixture(scope="module")
def workload() -> Workload:
    return captured_script(SCRIPT)


@pytest.fixture(scope="module")
def proposals(workload: Workload) -> Proposals:
    return propose(workload)


@pytest.fixture(scope="module")
def readers(proposals: Proposals) -> list[Candidate]:
    """Each layer with the rows made on the way, and left where they are."""
    return [c for c in proposals.candidates.values() if c.again]


@pytest.fixture(scope="module")
def alone_s(workload: Workload) -> dict[str, float]:
    return {call.region.id: 10e-6 for call in workload.calls}


@pytest.mark.slow
def test_each_reader_may_make_it_again(readers: list[Candidate]) -> None:
    assert len(readers) == 2
    assert all(c.again == c.region.again == (0,) and len(c.region.kernels) == 2 for c in readers)
    assert all(len(c.region.outputs) == 1 and len(c.kernels) == 1 for c in readers), "the rows are not stored"


def test_the_call_is_left_out_only_where_that_is_cheaper(
    proposals: Proposals, readers: list[Candidate], alone_s: dict[str, float]
) -> None:
    """Each program takes 4 µs more than its layer: both cost 8 µs, and spare the call of 10 µs. Where each takes 6 µs
    more nothing is gained, and where one takes less than its layer, that one alone is put in."""
    runs = proposals.calls[key_of(readers[0])]
    for more_s, wanted, saved_s in (((4e-6, 4e-6), 2, 2e-6), ((6e-6, 6e-6), 0, 0.0), ((-3e-6, 12e-6), 1, 3e-6)):
        # of all its kernels, which take 20 µs
        savings = {
            key_of(c): saving_in_place_s(c, 10e-6 - more, alone_s) for c, more in zip(readers, more_s, strict=True)
        }
        best, *_ = plans_of(proposals, alone_s, savings)
        assert len(best.programs) == wanted and best.saved_s == pytest.approx(runs * saved_s)
        assert {bool(plan.left_out) for plan in best.sequences if plan.programs} <= {wanted == 2}
        deployed, *_ = as_deployed([best, plans_of(proposals, alone_s, {})[-1]], proposals, alone_s, savings)
        assert deployed.saved_s == pytest.approx(best.saved_s) and deployed.seconds == pytest.approx(best.seconds)
        timed, *_ = plans_to_time(proposals, alone_s, savings)
        assert timed.seconds <= plans_of(proposals, alone_s, {})[-1].seconds


def test_a_region_that_occurs_without_is_proposed_without(workload: Workload) -> None:
    """Elsewhere nobody else reads the rows of the wide layer."""

    def layers(*columns: int) -> Sequence:
        def outputs() -> list[Tensor]:
            hidden = (empty(ROWS, WIDTH) * 2 + 1).contiguous()
            return [(hidden @ empty(WIDTH, many)).contiguous() for many in columns]

        return sequence_of(*outputs())

    both, wide = layers(96, 48), layers(96)
    proposals = propose(replace(workload, sequences=(both, wide)))
    regions = {c.region for c in candidates_of(both) if c.again}
    ((_, first), (_, second)) = proposals.sequences
    assert len(regions) == 2 and {c.region for c in second} & regions
    assert {c.region for c in first if c.again} == regions - {c.region for c in second}
    assert all(not c.region.again for c in second)


@pytest.mark.parametrize("count", [1, 2])
def test_every_call_counts_once(workload: Workload, readers: list[Candidate], count: int) -> None:
    """What stays is its kernel's; what is left out is the first region's."""
    regions = [candidate.region for candidate in readers[:count]]
    taken, before = claimed(workload, regions), {c.region.id: c.calls for c in workload.calls}
    after = {c.region.id: c.calls for c in planned(workload, regions).calls}
    runs = taken.found[regions[0].id]
    made = regions[0].kernels[0].id
    assert runs and {r.id: taken.found[r.id] for r in regions} == {r.id: runs for r in regions}
    assert before[made] - after.get(made, 0) == taken.left_out[made].total() == (runs if count == 2 else 0)
    counted = [taken.elsewhere[region.id, 0] for region in regions]
    assert sorted(counted) == ([runs] if count == 1 else [0, runs])
    ran = sum(calls * len(next((r.kernels for r in regions if r.id == name), "1")) for name, calls in after.items())
    assert ran - sum(counted) == sum(before.values())


def result_of(workload: Workload, proposals: Proposals, readers: list[Candidate]) -> Result:
    """By a plan with some of the readers' regions, of which the time is that of their kernels."""
    result = planned_result(workload, *(candidate.region for candidate in readers))
    rows = kernel_rows(workload, result.target)
    regions = {c.region.id: timed(region_row(c.region, result.target, 1, 1)) for c in readers}
    alone_s = {row.region.id: row.chosen.cold_s for row in rows}
    wanted = [plan for plan in plans_of(proposals, alone_s, dict.fromkeys(map(key_of, readers), 1e-6)) if plan.programs]
    plan = as_deployed([wanted[0], wanted[0]], proposals, alone_s, dict.fromkeys(map(key_of, readers), 1e-6))[0]
    found = rows_of(workload, rows, regions, plan.regions)
    assert result.planning is not None
    tried = TriedPlan(tuple(r.id for r in plan.regions), plan.seconds, None, None, "", chosen=True)
    planning = replace(
        result.planning,
        regions=regions_in(plan, found, rows, workload, {}),
        plans=(tried,),
        unread=unread(plan.regions, rows, workload),
    )
    return replace(result, regions=found, planning=planning)


def timed(row: RegionResult) -> RegionResult:
    """Its two kernels take 2 µs each, and 1.5 µs with their best schedules; its program takes 1 µs."""
    base, chosen = (finalist(one.schedule, one.name, s) for one, s in ((row.baseline, 4e-6), (row.chosen, 1e-6)))
    return replace(row, baseline=base, chosen=chosen, opts=replace(base, cold_s=3e-6))


@pytest.fixture(scope="module", params=first(1, [1, 2]))
def result(
    request: pytest.FixtureRequest, workload: Workload, proposals: Proposals, readers: list[Candidate]
) -> Result:
    return result_of(workload, proposals, readers[: request.param])


def test_a_result_counts_each_kernel_once(result: Result, workload: Workload, tmp_path: Path) -> None:
    write_result(result, tmp_path / "RESULT.json")
    assert read_result(tmp_path / "RESULT.json") == result and result.planning is not None
    again = [row.region.again for row in read_result(tmp_path / "RESULT.json").regions if row.region.args]
    both = len(again) == 2
    assert again == [(0,)] * len(again)
    calls = sum(call.calls for call in workload.calls)
    runs = next(row.calls for row in result.regions if row.region.args)
    assert result.total_before_s == pytest.approx(2e-6 * calls), "as tinygrad schedules them, each once"
    alone_s = 1.5e-6 * calls
    assert result.total_after_s == pytest.approx(alone_s - runs * (2.5e-6 if both else 0.5e-6))
    saved_s = sum(one.calls * one.saved_s for one in result.planning.regions)
    assert result.total_after_s == pytest.approx(alone_s - saved_s)
    line, rows = plan_line(result, result.planning), plan_rows(result, result.planning)
    assert all(" again" in row.kernels for row in rows)
    assert (f"{runs} calls left out, which all who read them compute again" in line) == both


def test_a_saving_is_of_the_calls_in_whose_place_it_runs(result: Result, proposals: Proposals) -> None:
    rows = [
        replace(row, chosen=replace(row.chosen, schedule=replace(row.chosen.schedule, kind=ScheduleKind.TILE)))
        for row in result.regions
        if row.region.args
    ]
    alone_s = {kernel.id: 1.5e-6 for row in rows for kernel in row.region.kernels}
    found = measured_savings(rows, proposals, alone_s)
    assert found == {(row.region.id, (0,)): pytest.approx(0.5e-6) for row in rows}


# ---- in programs


@pytest.mark.slow
def test_a_program_runs_as_it_did_without(result: Result, tmp_path: Path) -> None:
    """By `kcg.run`, and with an exported module in a process without kcg."""
    write_result(result, tmp_path / "RESULT.json")
    names = [row.baseline.name for row in result.regions if row.region.args]
    plain = printed(SCRIPT)
    done = python("-m", "kcg.run", "--result", tmp_path / "RESULT.json", SCRIPT, DEV="CPU:X86")
    assert done.returncode == 0 and done.stdout == plain, done.stderr
    assert "left without" not in done.stderr and "not served" not in done.stderr and len(names) in (1, 2)
    export(tmp_path / "RESULT.json", tmp_path / "tuned_model.py")
    code = f"import tuned_model\n{SCRIPT.read_text()}\nprint(sum(tuned_model.installed[0].counts.values()))"
    (tmp_path / "code.py").write_text(code)
    settings = {"PYTHONPATH": folders_of("tinygrad", "numpy"), "DEV": "CPU:X86", **stand_in(tmp_path)}
    done = python(tmp_path / "code.py", CACHEDB=str(tmp_path / "cache.db"), PARALLEL="0", **settings)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [plain.strip(), str(2 * len(names))], "once eagerly, once captured"


def layers_of(x: Tensor, *, alive: bool = False, updated: bool = False) -> list[np.ndarray]:
    """The layers of the script, where the rows may be alive, or what they are made of changes before they are read."""
    wide, narrow = (Tensor.full((WIDTH, columns), 0.5).contiguous().realize() for columns in (96, 48))
    kept: list[Tensor] = []

    def layers(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = (x * 2 + 1).contiguous().realize()
        kept[:] = [hidden] * alive
        new = x.assign(x - x.sum(axis=1, keepdim=True)).realize() if updated else x
        one = (hidden @ wide).contiguous().realize()
        two = ((hidden @ narrow).contiguous() + (new.sum() if updated else 0)).contiguous().realize()
        return one, two, new

    step, found = TinyJit(layers), []
    for _ in range(4):
        found += [t.numpy() for t in step(x)] + [t.numpy() for t in kept]
    return found


@pytest.mark.parametrize("alive", [False, True])
@pytest.mark.parametrize("updated", first(1, [True, False]))
def test_nothing_changes_in_programs_that_differ(result: Result, alive: bool, updated: bool) -> None:
    def given() -> Tensor:
        made = [[float((7 * i + 3 * j) % 23) for j in range(WIDTH)] for i in range(ROWS)]
        return Tensor(made).contiguous().realize()

    wanted = layers_of(given(), alive=alive, updated=updated)
    with scheduling(result) as place:
        found = layers_of(given(), alive=alive, updated=updated)
    for ours, own in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, own, rtol=1e-5)
    regions = [row.region.id for row in result.regions if row.region.args]
    assert any(place.replaced.counts[region] for region in regions)
