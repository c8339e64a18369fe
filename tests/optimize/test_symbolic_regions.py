"""A region whose calls have variables, the attention of a decode loop: planned with the values that were seen, timed
and verified with several, and put into a program that calls it with others."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tinygrad import Tensor, TinyJit, UOp, Variable

from kcg.compat import standalone
from kcg.handover import remaking
from kcg.handover.installing import placed_program
from kcg.handover.tuned import scheduling
from kcg.judge.step import compare
from kcg.kernel.kinds import compile_region
from kcg.kernel.program import Program
from kcg.kernel.reading.fuse import read_region
from kcg.kernel.reading.unsupported import UnsupportedTile
from kcg.kernel.regions import Form
from kcg.kernel.symbolic import Bound, bounds_of, called, without
from kcg.kernel.tile.compile import compile_tile
from kcg.kernel.tile.generate import generate
from kcg.kernel.tile.parameters import FLASH_ATTENTION, POINTER, TileParameters
from kcg.kernel.tile.prior import default_parameters
from kcg.kernel.tile.space import schedule_of
from kcg.kernel.tile.views import AttentionView
from kcg.measure.jobs import CompileOutcome
from kcg.optimize import region_search
from kcg.optimize.planning import planned
from kcg.optimize.region_plans import best_parts, deployed_plans, key_of, propose
from kcg.optimize.run import Finished
from kcg.optimize.settings import Settings
from kcg.optimize.work import RegionResults
from kcg.report.page import render_report
from kcg.report.result import from_dict, read_result, to_dict
from kcg.report.words import values_of
from kcg.types import Region, Result, Schedule, ScheduleKind, TimedAt, Variables, Workload, WorkloadCall
from kcg.workloads.registry import spec_of
from kcg.workloads.zoo import llama
from tests.captured import captured, captured_script
from tests.kernel.tile.running import HAS_TRITON, WITHOUT, Case, wrong_of
from tests.known_targets import KNOWN_TARGETS
from tests.optimize_run import Begun, begun, whole_run
from tests.planned_result import planned_result
from tests.slow import first

SCRIPT = Path(__file__).parents[1] / "scripts" / "decode_attention.py"
TARGET = KNOWN_TARGETS["sm_90"]
POSITIONS, LAST = 6, 31
BOUNDS = (Bound((("start_pos", 1),), 0.5), Bound((("start_pos", POSITIONS),), 0.5), Bound((("start_pos", LAST),), 0.0))


@pytest.fixture(scope="module")
def workload() -> Workload:
    return captured_script(SCRIPT)


def attention_of(workload: Workload) -> Region:
    return next(c.region for c in propose(workload).candidates.values() if c.form is Form.CHAINED)


@pytest.fixture(scope="module")
def attention(workload: Workload) -> Region:
    region = attention_of(workload)
    assert len(region.kernels) == 5
    return region


def last_call(workload: Workload, region: Region) -> WorkloadCall:
    call = planned(workload, [region]).calls[-1]
    assert call.region == region
    return call


# ---- planned


@pytest.mark.slow
def test_its_variables_are_those_of_its_kernels_with_the_values_of_its_sequences(
    workload: Workload, attention: Region
) -> None:
    call = last_call(workload, attention)
    assert call.seen == tuple(((("start_pos", n),), 1) for n in range(1, POSITIONS + 1))
    assert (call.calls, call.replayed, call.variables) == (POSITIONS, POSITIONS - 1, (("start_pos", POSITIONS),))
    rest = {c.region.id: c for c in planned(workload, [attention]).calls}
    assert not rest.keys() & {kernel.id for kernel in attention.kernels}
    assert sum(c.calls for c in workload.calls) - sum(c.calls for c in rest.values()) == 4 * POSITIONS


def test_it_is_verified_with_the_smallest_and_the_largest_values_that_are_possible(
    workload: Workload, attention: Region
) -> None:
    assert bounds_of(last_call(workload, attention)) == BOUNDS
    decode = captured("llama", "mini-decode")
    found = bounds_of(last_call(decode, attention_of(decode)))
    assert [(dict(end.variables)["start_pos"], end.share) for end in found] == [(1, 0.0), (37, 1.0), (63, 0.0)]
    assert bounds_of(called(Region(attention.kernels[:1]), {(("start_pos", 3),): 2})) == (
        Bound((("start_pos", 3),), 1.0),
    ), "a kernel only with what was seen"


def test_a_kernel_that_also_runs_elsewhere_is_called_less_often_with_the_values_of_the_region(
    workload: Workload, attention: Region
) -> None:
    name = attention.kernels[0].id
    call = next(call for call in workload.calls if call.region.id == name)
    assert without(call, dict(call.seen)) is None
    left = without(call, {(("start_pos", POSITIONS),): 1, (("start_pos", 9),): 1})
    assert left is not None and left.calls == POSITIONS - 2
    assert dict(left.seen) == {(("start_pos", n),): 1 for n in range(2, POSITIONS)}, "the first for what is not seen"


@pytest.mark.parametrize("preset", first(1, ["mini-decode", "3.2-1b-decode"]))
def test_the_best_expected_plan_of_a_decoding_llama_has_its_attention(preset: str) -> None:
    decode = captured("llama", preset)
    proposals = propose(decode)
    region = attention_of(decode)
    savings = {key_of(c): 1e-6 * c.saved_bytes for c in proposals.candidates.values() if c.region == region}
    alone_s = {call.region.id: 1.0 for call in decode.calls}
    best, *_ = deployed_plans(proposals, alone_s, savings)
    assert best.regions == (region,) and best.programs[0][1] == 2, "of two layers"


# ---- timed, verified, stored


def settings(folder: Path, **more: Any) -> Settings:
    return Settings(str(SCRIPT), device=os.environ["DEV"], folder=folder, predictor="roofline", **more)


@pytest.fixture(scope="module")
def finished(attention: Region, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    chosen = settings(tmp_path_factory.mktemp("decode") / "out", measurements=14, script_check=False)
    return whole_run(chosen, regions=[attention])


@pytest.mark.slow
def test_a_run_has_it_in_its_result_with_what_was_timed_at_each_end(finished: Finished, attention: Region) -> None:
    result = read_result(finished.result_path)
    (row,) = [row for row in result.regions if row.region == attention]
    assert row.calls == POSITIONS and row.outcome not in ("unjudged", "quarantined"), (row.outcome, row.note)
    assert [(end.variables, end.share) for end in row.ends] == [(end.variables, end.share) for end in BOUNDS]
    assert all(end.before_s > 0 for end in row.ends)
    assert values_of(row) == f"start_pos 1 to {POSITIONS}", "with these it ran"
    assert from_dict(to_dict(result)) == result
    assert f"with start_pos {LAST}, as none of the calls count" in render_report(result)


@pytest.fixture(scope="module")
def opened(attention: Region, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Begun]:
    with begun(settings(tmp_path_factory.mktemp("judged") / "out"), regions=[attention]) as started:
        yield started


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrong", [None, *(pytest.param(end, marks=pytest.mark.slow if n else ()) for n, end in enumerate(BOUNDS))]
)
def test_a_program_that_is_wrong_at_one_end_is_refused(
    opened: Begun, attention: Region, wrong: Bound | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its launches with one of the values pass another one: it is right with all others."""
    (work,) = [work for work in opened.works if work.call.region == attention]
    assert work.bounds == BOUNDS
    other = work.space.neighbours(work.space.baseline())[0]
    program = opened.device.compiled(work, other)
    if wrong is not None:
        faulty = CompileOutcome(with_other_value(program, wrong.variables), 0.1)
        monkeypatch.setitem(opened.device.service._kept, (attention.id, other), faulty)
    comparisons = opened.comparisons(opened.estimates(opened.untimed()))
    own, mine = (comparisons.side(work, schedule) for schedule in (work.space.baseline(), other))
    assert not isinstance(own, str) and not isinstance(mine, str)
    seen = comparisons.compare(work, own, mine)
    assert seen.outcome is not None and seen.outcome.baseline_verification.passed, seen.reason
    verified = seen.outcome.finalist_verification
    assert verified is not None and verified.passed == (wrong is None), verified
    if wrong is not None:
        assert verified.wrong and verified.reason.endswith(f", with start_pos {dict(wrong.variables)['start_pos']}")


def with_other_value(program: Program, values: Variables) -> Program:
    launches = []
    for one in program.launches:
        bound = tuple(
            replace(b, values=tuple(None if v is None else 3 for v in b.values)) if b.variables == values else b
            for b in one.compiled.launches
        )
        launches.append(replace(one, compiled=replace(one.compiled, launches=bound)))
    return replace(program, launches=tuple(launches))


@pytest.mark.slow
def test_a_run_proposes_searches_judges_and_plans_it(attention: Region, tmp_path: Path) -> None:
    """There is no program for it here: that one wins is said of its parts. By default it is shown of regions without
    variables (test_region_plans), and what is timed and verified at both ends of kernels with them (test_symbolic_run).
    """
    with begun(settings(tmp_path / "out", measurements=14, regions=True)) as run:
        estimates = run.estimates(run.measured(meanwhile=run.guide.read))
        kernels = region_search.search(estimates, run.guide, device=run.device, log=run.log)
        proposed = region_search.propose_regions(
            kernels, estimates, device=run.device, log=run.log, usable=lambda region: region == attention
        )
        assert proposed is not None
        proposed = region_search.search_regions(proposed, run.guide, device=run.device, log=run.log)
        (work,) = proposed.works
        parts = best_parts(attention, region_search.best_schedules(run.works))
        assert work.bounds == BOUNDS and len(work.at_bounds[parts]) == len(BOUNDS), "measured at each"
        results = run.judge(proposed.estimates, proposed.candidates).run()
        tile = schedule_of(
            TileParameters(FLASH_ATTENTION, AttentionView.of(read_region(attention)).axes, (16,), reduce_tile=16)
        )
        rows = [
            replace(row, outcome="improved", opts=None, chosen=replace(row.baseline, cold_s=1e-9, schedule=tile))
            if row.region == attention
            else row
            for row in results.rows
        ]
        first, last = region_search.variants(RegionResults(tuple(rows)), proposed, run.captured.workload)
        (row,) = [row for row in first.rows if row.region == attention]
        assert (row.calls, row.replayed) == (POSITIONS, POSITIONS - 1) and len(row.ends) == len(BOUNDS)
        assert not {one.region.id for one in first.rows} & {kernel.id for kernel in attention.kernels}
        assert sum(one.calls * len(one.region.kernels) for one in first.rows) == sum(one.calls for one in last.rows)
        result = run.result(kernels, first)
        assert from_dict(to_dict(result)) == result and result.planning is not None
        assert {one.region.id for one in result.planning.inside} == {kernel.id for kernel in attention.kernels}
        (planned_one,) = result.planning.regions
        assert planned_one.form == Form.CHAINED and planned_one.calls == POSITIONS


# ---- deployed


def with_stand_in(workload: Workload, region: Region, monkeypatch: pytest.MonkeyPatch) -> Result:
    """A result whose region is a program of machine code, as a tile program is: here its kernels as they are."""
    result = planned_result(workload, region)
    made = compile_region(
        region,
        next(row.baseline.schedule for row in result.regions if row.region == region),
        result.target,
        variables=BOUNDS[0].variables,
        also=tuple(end.variables for end in BOUNDS[1:]),
    )
    assert isinstance(made, Program)
    tile = Schedule(ScheduleKind.TILE, "{}")
    rows = tuple(
        replace(row, chosen=replace(row.chosen, schedule=tile)) if row.region == region else row
        for row in result.regions
    )
    monkeypatch.setattr(remaking, "remade", lambda result: remaking.Remade({region.id: made}, {}))
    return replace(result, regions=rows)


@pytest.mark.slow
@pytest.mark.parametrize("jitted", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_decoding_llama_has_its_attention_replaced_at_every_position(
    jitted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One program for all positions: each call passes the value of its own."""
    workload = captured("llama", "mini-decode")
    region = attention_of(workload)
    result = with_stand_in(workload, region, monkeypatch)
    wanted = tokens(jitted)
    with scheduling(result) as place:
        found = tokens(jitted)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    assert len({one.tobytes() for one in wanted}) == len(wanted), "a program of another position would be seen"
    counted = place.replaced.counts[region.id]
    assert counted == 2 * (2 if jitted else len(wanted)), place.sets_left


@pytest.mark.slow
def test_the_check_of_a_decoding_model_has_its_attention_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = captured("llama", "mini-decode")
    region = attention_of(workload)
    result = with_stand_in(workload, region, monkeypatch)
    (check,) = compare(spec_of("llama").runnable("mini-decode", 3), [result], seed=3)  # type: ignore[misc]
    assert check.passed and dict(check.replaced) == {region.id: 2} and not check.left, check


def tokens(captured: bool) -> list[np.ndarray]:
    """Logits at some positions, of a cache that grows and one that is read again from the start."""
    step = spec_of("llama").runnable("mini-decode", 3)  # type: ignore[misc]
    position = Variable("start_pos", 1, llama.PRESETS["mini-decode"].context - 1)
    inputs = {name: value for name, value in step.inputs.items() if not isinstance(value, UOp)}

    def run(start_pos: UOp) -> Tensor:
        return step.run(**inputs, start_pos=start_pos).contiguous().realize()  # type: ignore[union-attr]

    call = TinyJit(run) if captured else run
    return [call(position.bind(n)).numpy() for n in (1, 2, 3, 4, 40, 63, 7)]


# ---- generated


def tile_parameters(region: Region) -> list[TileParameters]:
    """Where the space begins, and the same with keys split over two programs."""
    kernel = read_region(region)
    start = replace(default_parameters(kernel, TARGET), form=FLASH_ATTENTION, reduce_tile=16, loads=POINTER)
    return [start, replace(start, split=2)]


def with_tile_programs(workload: Workload) -> list[Region]:
    """Those with symbolic lengths."""
    found = []
    for region in {c.region: None for c in propose(workload).candidates.values()}:
        try:
            kernel = read_region(region)
            found += [region] if kernel.variables else []
        except UnsupportedTile as refusal:
            assert len(refusal.args[0]) > 10, "a reason"
    return found


@pytest.mark.skipif(not HAS_TRITON, reason=WITHOUT)
def test_programs_of_all_candidates_are_right_at_all_ends(tmp_path: Path) -> None:
    """In Triton's interpreter, against the float64 reference: also with the rotated queries made on the way."""
    decode = captured("llama", "mini-decode")
    regions = with_tile_programs(decode)
    assert [len(region.kernels) for region in regions] == [6, 5]
    cases = {}
    for region in regions:
        for parameters in tile_parameters(region):
            program = generate(region, TARGET, parameters, interpreted=True)
            for end in bounds_of(last_call(decode, region)):
                cases[f"{len(region.kernels)} {parameters.split} {end.variables}"] = Case(
                    region, program, end.variables
                )
    assert len(cases) == 2 * 2 * 3 and not wrong_of(cases, tmp_path)


@pytest.mark.skipif(not HAS_TRITON, reason=WITHOUT)
def test_launches_of_a_tile_program_take_their_values_from_the_call_that_runs_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What tinygrad's graphs go by: variables with names, and a grid that has none."""
    monkeypatch.setattr(standalone, "load_program", lambda *args, **more: None)
    monkeypatch.setattr(standalone.realize, "runtime_cache", {})
    decode = captured("llama", "mini-decode")
    (region,) = [region for region in with_tile_programs(decode) if len(region.kernels) == 5]
    first, *others = (end.variables for end in bounds_of(last_call(decode, region)))
    for parameters in tile_parameters(region):
        schedule = schedule_of(parameters)
        program = compile_tile(region, schedule, TARGET, variables=first, also=tuple(others))
        assert len(program.launches) == parameters.split
        placed = placed_program(region, program, TARGET, True)("CUDA")
        assert placed is not None
        for launch in placed.launches:
            info = launch.body.arg
            assert [v.expr for v in info.vars] == ["start_pos"]
            assert [info.vals({"start_pos": n}) for n in (1, 37, 63)] == [(1,), (37,), (63,)]
            assert info.launch_dims({"start_pos": 0}) == info.launch_dims({"start_pos": 63})
        for values in (first, *others):
            bound = program.at(values).launches
            assert all(one.compiled.values == (dict(values)["start_pos"],) for one in bound)


@pytest.mark.skipif(not HAS_TRITON, reason=WITHOUT)
def test_the_program_that_was_verified_is_made_again_for_another_process() -> None:
    decode = captured("llama", "mini-decode")
    region = attention_of(decode)
    call, schedule = last_call(decode, region), schedule_of(tile_parameters(region)[1])
    first, *others = bindings = [end.variables for end in bounds_of(call)]
    program = compile_tile(region, schedule, TARGET, variables=first, also=tuple(others))
    (row,) = [row for row in planned_result(decode, region).regions if row.region == region]
    chosen = replace(row.chosen, schedule=schedule, binary_hash=program.at(call.variables).binary_hash)
    timed = tuple(TimedAt(values, 1 / len(bindings), 1e-6, 1e-6) for values in bindings)
    row = replace(row, chosen=chosen, variables=call.variables, ends=timed)
    made = remaking._kept(row, TARGET)
    assert isinstance(made, Program) and made == program
    assert not remaking._why_another(row, made)
    assert remaking._why_another(replace(row, chosen=replace(chosen, binary_hash="another")), made)
