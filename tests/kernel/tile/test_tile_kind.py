"""The kind `tile`: schedules as text, the space of a kernel, programs as machine code for a GPU that is not here."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tinygrad import Tensor, Variable

from kcg.compat.assembler import Assembler
from kcg.errors import ScheduleError
from kcg.kernel.codec import kernel_of
from kcg.kernel.compile import to_elf
from kcg.kernel.composed import Part, schedule_of_parts
from kcg.kernel.kinds import Unsupported, describe, kind_named, made_by, needs_stress, parse, steps_of
from kcg.kernel.program import Program
from kcg.kernel.reading.fuse import read_region
from kcg.kernel.reading.kernel import read_kernel
from kcg.kernel.reading.unsupported import UnsupportedTile
from kcg.kernel.tile import targets
from kcg.kernel.tile.compile import compile_tile, in_tinygrads_order
from kcg.kernel.tile.cost import predicted_seconds
from kcg.kernel.tile.forms import REGISTRY, plan_of
from kcg.kernel.tile.generate import generate_kernel
from kcg.kernel.tile.legal import is_legal, is_possible, legal_values, random_parameters
from kcg.kernel.tile.parameters import (
    CONTRACTION,
    FLASH_ATTENTION,
    FORMS,
    POINTER,
    REDUCTION,
    ROWS,
    TMA,
    TileParameters,
)
from kcg.kernel.tile.plan import features
from kcg.kernel.tile.prior import default_parameters
from kcg.kernel.tile.space import TileSpace, schedule_of
from kcg.measure.child import start_job
from kcg.predictor.cost import KnownCost, guiding
from kcg.search.problem import Ledger, Observation, Problem
from kcg.search.strategies import strategy
from kcg.search.workers import FromItsStart
from kcg.types import Region, Schedule, Status, Target, Toolchain, Variables
from tests.chains import region_of
from tests.kernel.tile.running import HAS_TRITON, WITHOUT
from tests.kernel.tile.test_tile_regions import activation_beside, heads_and_rotation, projection, split_sum
from tests.kernel.tile.test_tile_sharing import gated, projections
from tests.kernels import empty, example_region, kernels_of
from tests.known_targets import KNOWN_TARGETS, X86
from tests.slow import every, first, some
from tests.waiting import PATIENCE_S

SM_90, SM_80 = KNOWN_TARGETS["sm_90"], KNOWN_TARGETS["sm_80"]
triton = pytest.mark.skipif(not HAS_TRITON, reason=WITHOUT)


def region(tensor: Tensor) -> Region:
    return Region((kernel_of(kernels_of(tensor)[-1]),))


@cache
def linear(rows: int = 4096, columns: int = 9216, terms: int = 3072) -> Region:
    """A projection with its bias, as Flux has it."""
    x, weight = empty(rows, terms, dtype="bfloat16"), empty(columns, terms, dtype="bfloat16")
    return region(x @ weight.T + empty(columns, dtype="bfloat16"))


@cache
def gelu_of_a_product() -> Region:
    return region((empty(4096, 3072, dtype="bfloat16") @ empty(12288, 3072, dtype="bfloat16").T).gelu())


@cache
def tanh_of_a_product() -> Region:
    """Whose approximation by the hardware is good for what is stored, unlike that of a gelu, which is 0 in its tail."""
    return region((empty(4096, 3072, dtype="bfloat16") @ empty(12288, 3072, dtype="bfloat16").T).tanh())


@cache
def space(of: Region | None = None) -> TileSpace:
    of = of or linear()
    return TileSpace(of, SM_90, read_kernel(of))


def compiled(of: Region, p: TileParameters | None = None, *values: Variables, target: Target = SM_90) -> Program:
    first, *others = values or ((),)
    p = p or default_parameters(read_kernel(of), target)
    return compile_tile(of, schedule_of(p), target, variables=first, also=tuple(others))


# ---- schedules as text


def test_a_body_is_canonical_or_none() -> None:
    body = space().start().body
    assert parse("tile", body) == space().start()
    values = json.loads(body)
    for foreign in (
        json.dumps(values),  # the same with other spaces
        json.dumps({**values, "num_warps": "8"}),
        json.dumps({**values, "loads": "magic"}),
        json.dumps({**values, "more": 1}),
        body + " " * 5000,
    ):
        with pytest.raises(ScheduleError) as caught:
            parse("tile", foreign)
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 200


# ---- what has to run very often before it is believed

PRODUCTS: dict[str, Callable[[], tuple[Tensor, ...]]] = {
    "one": lambda: (empty(96, 64) @ empty(80, 64).T,),
    "with what is made of it": lambda: projection("float16"),
    "a sum of two": lambda: split_sum("float16"),
    "gate and up": lambda: gated("float16", (70, 60, 96)),
    "tiles of three": lambda: projections("float16", (70, 60, 96)),
    "halves of its last tiles": lambda: activation_beside("float16"),
}


@pytest.mark.parametrize("name", some(PRODUCTS, {"a sum of two"}))
def test_a_program_of_several_products_needs_stress(name: str) -> None:
    """As its text says, of random parameters through pointers."""
    of, rng, found = region_of(*PRODUCTS[name]()), random.Random(1), Counter[bool]()
    kernel, target = read_region(of), replace(SM_90, cores=3)
    for _ in range(200):
        p = replace(random_parameters(kernel, target, rng), loads=POINTER, warp_specialize=False)
        if p.form != CONTRACTION or not is_legal(kernel, target, p):
            continue
        text = generate_kernel(kernel, target, p).source
        several = text.count("tl.dot(") > 1 or "tf32x3" in text or bool(kernel.chained)
        assert needs_stress(of, schedule_of(p), target) == several, p
        found[several] += 1
    assert found[True] and (found[False] or kernel.chained or kernel.sharing_operand or kernel.grouped)


def test_specialised_warps_and_attention_are_delicate_and_rows_are_not() -> None:
    attention = region_of(empty(2, 256, 64).scaled_dot_product_attention(*(empty(2, 256, 64) for _ in range(2))))
    assert needs_stress(attention, schedule_of(default_parameters(read_region(attention), SM_90)), SM_90)
    plain = TileParameters(CONTRACTION, ((0,), (1,)), (64, 64), 32)
    for changes in ({"loads": TMA}, {"loads": TMA, "warp_specialize": True}, {"tile": (64, 96)}):
        assert needs_stress(linear(), schedule_of(replace(plain, **changes)), SM_90)
    assert not needs_stress(linear(), schedule_of(plain), SM_90)
    assert not needs_stress(linear(), Schedule("opts", "[]"), SM_90)
    rows = region_of(empty(64, 300).softmax(-1))
    assert not needs_stress(rows, schedule_of(default_parameters(read_region(rows), SM_90)), SM_90)
    assert not needs_stress(rows, schedule_of(plain), SM_90), "of what is no contraction there is no such program"


def test_staged_loads_with_conditions_are_delicate() -> None:
    padded = region_of(
        empty(1, 32, 16, 16, dtype="float16").conv2d(empty(64, 32, 3, 3, dtype="float16"), padding=1).contiguous()
    )
    kernel = read_region(padded)
    assert any(load.gates for load in kernel.loads)
    p = replace(default_parameters(kernel, SM_90), loads=POINTER, tile=(32, 64), split=1, tail=1, persistent=0)
    assert p.form == CONTRACTION
    assert needs_stress(padded, schedule_of(replace(p, num_stages=3)), SM_90)
    assert not needs_stress(padded, schedule_of(replace(p, num_stages=1)), SM_90)


def test_it_is_described_in_the_words_of_tables() -> None:
    p = TileParameters(
        CONTRACTION, ((0,), (1,)), (128, 256), 64, loads=TMA, persistent=1, num_warps=8, num_stages=3, epilogue_parts=2
    )
    words = "tile 128x256x64, axes 0|1, tma, persistent, epilogue in halves, 8 warps, 3 stages"
    assert describe(schedule_of(p)) == words


def test_forms_and_parameters_are_named_as_the_field_does_whatever_their_stored_names() -> None:
    p = TileParameters(CONTRACTION, ((0,), (1,)), (64, 64), 32, split=2, tail=3, group=4, read_early=True)
    assert describe(schedule_of(p)) == (
        "tile 64x64x32, axes 0|1, stream-K 3, split-K 2, swizzle 4, 4 warps, 2 stages, epilogue prefetched"
    )
    assert {*REGISTRY} == {*FORMS} and len({form.noun for form in REGISTRY.values()}) == len(FORMS)
    assert "flash attention" in describe(schedule_of(p.changed(form=FLASH_ATTENTION, axes=((0,),), tile=(64,))))


def test_a_program_is_described_by_its_plan() -> None:
    def words(region: Region, p: TileParameters) -> str:
        space = kind_named("tile").space(region, SM_90)
        assert isinstance(space, TileSpace)
        return space.legend(schedule_of(p))

    p = TileParameters(CONTRACTION, ((0,), (1,)), (64, 64), 32, num_stages=2)
    matmul = region_of(empty(512, 512) @ empty(512, 512))
    begin = "matmul; tiles of 64 × 64 of 512 × 512 outputs, 32 terms a step, "
    assert words(matmul, p.changed(split=2, group=4)) == (
        begin + "the reduction shared by 2 programs (split-K), swizzled by 4 rows of tiles, 4 warps, 2 stages"
    )
    assert words(matmul, p.changed(persistent=1, num_warps=1, num_stages=1, maxnreg=64)) == (
        begin + "1 program a multiprocessor, each with tiles in turn, at most 64 registers a thread, 1 warp, 1 stage"
    )
    softmax, more = region_of(empty(64, 300).softmax(-1)), region_of(empty(64, 300) + 1)
    assert "row reduction; tiles of" in (text := words(softmax, default_parameters(read_region(softmax), SM_90)))
    assert "512 elements of a row a step" in text
    assert words(more, default_parameters(read_region(more), SM_90)).startswith("elementwise; tiles of ")


def test_where_there_are_no_tile_programs_the_reason_is_said() -> None:
    kind = kind_named("tile")
    for target in (X86, KNOWN_TARGETS["Apple9"], replace(SM_90, arch="sm_75")):
        refused = kind.space(linear(), target)
        assert isinstance(refused, Unsupported) and target.arch in refused.reason
        with pytest.raises(ScheduleError, match="tile programs are for NVIDIA GPUs"):
            compiled(linear(), default_parameters(read_kernel(linear()), SM_90), target=target)
    if not HAS_TRITON:
        assert kind.space(linear(), SM_90) == Unsupported(WITHOUT)


# ---- the space


def test_labels_lead_from_the_start_to_a_schedule() -> None:
    of, rng = space(), random.Random(3)
    for _ in range(8):
        at, taken = of.start(), []
        while (after := of.sample(rng, at)) is not None and len(taken) < 4:
            taken.append(next(a.label for a in of.actions(at) if a.schedule == after))
            at = after
        labels = steps_of(at)
        assert [label for label in labels if label in taken] == taken, "in their order"
        again = of.start()
        for label in labels:  # those that are no steps are left out
            again = next((a.schedule for a in of.actions(again) if a.label == label), again)
        assert again == at


@pytest.mark.slow
def test_no_program_is_reached_twice() -> None:
    of = space(example_region("softmax.1"))
    reached, front = [of.start()], [of.start()]
    while front:
        front = [a.schedule for schedule in front for a in of.actions(schedule)]
        reached += front
    assert len(reached) > 50
    assert len(set(reached)) == len(reached) == len(set(map(of.key, reached)))


@pytest.mark.slow
def test_a_parameter_that_changes_nothing_is_no_candidate() -> None:
    def fields(of: TileSpace) -> set[str]:
        return {a.label.split(",")[0] for a in of.actions(of.start())}

    assert {"tile", "loads", "num_stages", "persistent"} <= fields(space())
    assert "warp_specialize" not in fields(space()), "with 8 warps the compiler leaves it out"
    assert not fields(space(example_region("gelu"))) & {"loads", "split", "reduce_tile", "num_stages", "group"}
    one_row_of_tiles = space(linear(64, 512, 256))
    assert not fields(one_row_of_tiles) & {"group", "persistent"}
    eight = space(linear(1024, 9216, 3072))
    tiles = replace(eight.parameters(eight.start()), axes=((0,), (1,)), tile=(128, 128), tail=1)
    assert legal_values(eight.kernel, SM_90, tiles, "group") == (1, 4, 8), "12 rows of tiles are these 8"
    assert "fast_math" in fields(space(gelu_of_a_product()))
    softmax = space(region(empty(64, 64, dtype="bfloat16").softmax(1)))
    assert "fast_math" not in fields(softmax), "there is no approximation of its exponential"
    assert "precision" not in fields(space()) and "precision" in fields(space(region(empty(64, 512) @ empty(512, 64))))
    assert "precision" not in fields(space(region(empty(64, 64) @ empty(64, 64)))), "halves of small numbers would show"


def test_parameters_of_another_kernel_are_taken_over_where_they_are_legal() -> None:
    here, other, softmax = space(), space(linear(4608, 12288)), space(example_region("softmax.1"))
    assert here.family() == other.family() != softmax.family()
    assert other.transfer(here.start(), here) == here.start()
    assert softmax.transfer(here.start(), here) is None and here.transfer(softmax.start(), softmax) is None


def test_what_is_not_legal_is_refused_by_name() -> None:
    of, p = space(), space().parameters(space().start())
    for wrong in (
        replace(p, num_stages=6),  # shared memory
        replace(p, num_warps=1),  # registers
        replace(p, tile=(256, 256), num_warps=16, reduce_tile=16, num_stages=2),  # 16 warps have 128 a thread
        replace(p, axes=((1,), (0, 2))),
        replace(p, warp_specialize=True),
        replace(p, tile=(96, 256)),
        replace(p, tile=(128,)),
        replace(p, num_warps=0),
        replace(p, split=0),
        replace(p, reduce_tile=0),
    ):
        with pytest.raises(UnsupportedTile):
            of.check(schedule_of(wrong))
    with pytest.raises(ScheduleError):
        of.check(Schedule("opts", "[]"))


@pytest.mark.slow
def test_what_is_near_to_neighbours_are_hundreds_of_programs() -> None:
    of = TileSpace(linear(), SM_90, read_kernel(linear()))
    seen = {of.key(near) for action in of.actions(of.start())[::4] for near in of.neighbours(action.schedule)}
    assert len(seen) > 200


# ---- regions of several kernels


@cache
def fused_spaces() -> dict[str, TileSpace]:
    """Of rows, of rows that are longer than a block, and of what is made of a product and of the sum of two."""
    loss = empty(64, 50304, dtype="bfloat16").float().log_softmax(-1)
    tensors = {
        "softmax": (empty(4096, 4096, dtype="bfloat16").softmax(-1),),
        "long": (loss,),
        "heads": (heads_and_rotation("bfloat16"),),
        "projection": projection("bfloat16"),
        "sum": split_sum("bfloat16"),
    }
    regions = {name: region_of(*outputs) for name, outputs in tensors.items()}
    return {name: TileSpace(of, SM_90, read_region(of)) for name, of in regions.items()}


FUSED = ("softmax", "long", "heads", "projection", "sum")


@pytest.mark.parametrize("name", first(2, FUSED))
def test_spaces_of_several_kernels_are_trees_of_programs(name: str) -> None:
    of, rng = fused_spaces()[name], random.Random(name)
    start = of.start()
    assert parse("tile", start.body) == start and len(of.region.kernels) > 1
    actions, near = of.actions(start), of.neighbours(start)
    assert len(actions) > 4 and {a.schedule for a in actions} <= set(near)
    assert len({of.key(s) for s in (start, *near)}) == 1 + len(near)
    for schedule in (start, *rng.sample(near, 5), of.random(rng)):
        of.check(schedule)
        assert 0 <= of.refusals([schedule])[0] <= 1
        assert len(of.groups(schedule)) == len(of.groups(start))
    for _ in range(3):
        at = start
        while (after := of.sample(rng, at)) is not None:
            of.check(after)
            assert set(of.variants(after)) <= set(of.neighbours(after))
            at = after
        again = start
        for label in steps_of(at):
            again = next((a.schedule for a in of.actions(again) if a.label == label), again)
        assert again == at


def test_functions_of_what_is_stored_beside_a_product_have_an_exact_form() -> None:
    region = region_of(*activation_beside("bfloat16"))
    of = TileSpace(region, SM_90, read_region(region))
    fast = schedule_of(replace(of.parameters(of.start()), fast_math=True))
    exact = of.exact(fast)
    assert exact is not None and not of.parameters(exact).fast_math and of.key(exact) != of.key(fast)


def test_programs_of_several_kernels_are_taken_over_by_similar_regions() -> None:
    softmax, projected = fused_spaces()["softmax"], fused_spaces()["projection"]
    of = region_of(empty(2048, 4096, dtype="bfloat16").softmax(-1))
    other = TileSpace(of, SM_90, read_region(of))
    assert other.family() == softmax.family() != projected.family()
    assert other.transfer(softmax.start(), softmax) == softmax.start()
    assert projected.transfer(softmax.start(), softmax) is None
    p = softmax.parameters(softmax.start())
    for wrong in (
        replace(p, reduce_tile=128),  # a loop of steps as small as these
        replace(p, num_warps=1),
        replace(p, split=2),
        replace(p, loads=TMA),
        replace(p, form=REDUCTION),
    ):
        with pytest.raises(UnsupportedTile):
            softmax.check(schedule_of(wrong))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["softmax", pytest.param("long", marks=pytest.mark.slow), "projection"])
def test_a_search_of_several_kernels_ends_and_measures_no_program_twice(name: str) -> None:
    of, ledger, seen = fused_spaces()[name], Ledger(max_measurements=12), dict[Schedule, float]()
    judge, noise = KnownCost().of(of), random.Random(2)
    assert of.parameters(of.start()).form == (CONTRACTION if name == "projection" else ROWS)
    assert all(0 < p.runtime_s < 1 for p in judge.predict([of.start(), *of.neighbours(of.start())]))

    def measure(batch: Sequence[Schedule]) -> list[Future[Observation]]:
        futures = []
        for schedule in batch:
            of.check(schedule)
            future = Future[Observation]()
            seconds = predicted_seconds(of.kernel, SM_90, of.parameters(schedule)) * noise.uniform(0.5, 2)
            seen[schedule] = seconds
            future.set_result(Observation(schedule, Status.OK, seconds, schedule.id))
            futures.append(future)
        ledger.measurements += len(batch)
        return futures

    problem = Problem(
        FromItsStart(of), judge.predict, measure, ledger, random.Random(1), batch_size=4, correct=judge.correct
    )
    found = list(strategy("mcts")(problem))
    assert 8 <= len(seen) <= 12 and len({of.key(s) for s in seen}) == len(seen)
    assert {o.schedule: o.time_s for o in found} == seen


# ---- the analytic cost

MEASURED_US = {
    ((128, 256), 64, 4, TMA, 1, 2, False, 8): 335.9, ((128, 256), 64, 3, TMA, 1, 1, False, 8): 343.1,
    ((128, 256), 64, 4, POINTER, 0, 1, False, 8): 355.5, ((128, 128), 64, 5, TMA, 1, 1, False, 8): 359.3,
    ((256, 128), 64, 3, TMA, 1, 1, False, 8): 375.0, ((128, 256), 64, 3, TMA, 0, 1, False, 8): 379.9,
    ((128, 128), 64, 4, TMA, 1, 1, False, 8): 387.9, ((128, 128), 128, 3, TMA, 1, 1, False, 8): 406.8,
    ((128, 128), 64, 4, POINTER, 0, 1, False, 8): 431.0, ((128, 128), 64, 3, POINTER, 0, 1, False, 8): 451.6,
    ((128, 128), 64, 3, TMA, 1, 1, False, 8): 496.6, ((128, 128), 128, 3, TMA, 0, 1, False, 8): 520.8,
    ((64, 256), 64, 3, TMA, 1, 2, False, 8): 552.1,
}  # fmt: skip
"""4608 × 9216 × 3072 with a bias on one H100, Triton 3.6, interleaved with others; no constant was fitted to it."""


def test_the_cost_ranks_what_it_was_not_fitted_to() -> None:
    from scipy.stats import kendalltau

    of = space(linear(4608, 9216))
    base = of.parameters(of.start())
    names = ("tile", "reduce_tile", "num_stages", "loads", "persistent", "epilogue_parts", "warp_specialize")
    programs = [replace(base, **dict(zip((*names, "num_warps"), row, strict=True))) for row in MEASURED_US]
    guessed = [predicted_seconds(of.kernel, of.target, p) for p in programs]
    measured = list(MEASURED_US.values())
    assert kendalltau(guessed, measured).statistic > 0.6
    assert measured[min(range(len(guessed)), key=guessed.__getitem__)] < 1.03 * min(measured)


@pytest.mark.slow
def test_a_search_begins_where_the_cost_is_least() -> None:
    """Where there are few rows the prior's rule alone took twice as long as the best program that was measured."""
    of = space(linear(512, 3072, 12288))
    prior = default_parameters(of.kernel, SM_90)
    start = of.parameters(of.start())
    assert predicted_seconds(of.kernel, SM_90, start) < predicted_seconds(of.kernel, SM_90, prior)
    of.check(of.start())
    assert not space(gelu_of_a_product()).parameters(space(gelu_of_a_product()).start()).fast_math, "it would be wrong"


def interrupted() -> Schedule:
    raise KeyboardInterrupt


@pytest.mark.slow
@triton
def test_a_start_that_another_process_found_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search for it takes a second of a core; where the other process fails it is found here."""
    found = start_job(linear(), "tile", SM_90)
    assert found == space(linear()).start()
    failed: Future[Schedule] = Future()
    failed.set_exception(TimeoutError())
    fresh = TileSpace(linear(), SM_90, read_kernel(linear()))
    assert fresh.seeks_start and not space(region(empty(64, 64).sum(1))).seeks_start
    fresh.begin_at(failed.result)
    assert fresh.start() == found and not fresh.seeks_start
    fresh = TileSpace(linear(), SM_90, read_kernel(linear()))
    fresh.begin_at(interrupted)
    with pytest.raises(KeyboardInterrupt):
        fresh.start()
    assert fresh.seeks_start, "nobody takes the prior's choice for it"
    with monkeypatch.context() as patched:
        patched.setattr(TileSpace, "_cheapest", None)
        fresh = TileSpace(linear(), SM_90, read_kernel(linear()))
        fresh.begin_at(lambda: found)
        assert fresh.start() == found


def test_a_value_is_possible_where_it_is_among_the_legal_ones() -> None:
    kernel = read_kernel(linear())
    for chosen in (default_parameters(kernel, SM_90), replace(default_parameters(kernel, SM_90), tile=(64, 64))):
        for field in ("tile", "reduce_tile", "num_warps", "loads", "num_stages", "group", "maxnreg", "evict_first"):
            values = legal_values(kernel, SM_90, chosen, field)
            others = [v for v in (1, 2, 3, 8, 16, (64, 64), (128, 256), (512, 512), "tma", ()) if v not in values]
            assert all(is_possible(kernel, SM_90, chosen, field, value) for value in values)
            assert not any(is_possible(kernel, SM_90, chosen, field, value) for value in others)


def test_the_predictor_of_tile_programs_learns_from_measurements() -> None:
    of, cost = space(), KnownCost()
    assert guiding(of, cost) is not cost and guiding(of, cost).name == "analytic cost"
    near = of.neighbours(of.start())
    judge = cost.of(of)
    before = judge.predict(near)
    assert all(0 < p.runtime_s < 1 and 0 < p.uncertainty < 1 for p in before)
    assert judge.correct is not None
    after = judge.correct(near, [(of.start(), 2 * cost.predict(of, [of.start()])[0].runtime_s)])
    assert all(b.log_runtime > a.log_runtime for a, b in zip(before, after, strict=True)), "slower than it was thought"
    (foreign,) = cost.predict(of, [Schedule("opts", "[]")])
    assert foreign.failure_probability == 1.0


def test_each_parameter_is_part_of_what_a_correction_goes_by() -> None:
    """But for the axes, which say the same of a kernel in other numbers."""
    p = TileParameters(CONTRACTION, ((0,), (1,)), (64, 64), reduce_tile=32, num_stages=2)
    plan = plan_of(read_region(linear()), SM_90, p)
    others: dict[str, Any] = {
        "tile": (128, 32), "loop": replace(plan.loop, step=64), "split": 2,
        "tail": 2, "group": 4, "evict_first": (0,), "evict_last": (1,), "loads_by": TMA, "persistent": 1,
        "epilogue_parts": 2, "warp_specialize": True, "num_warps": 8, "num_stages": 3, "maxnreg": 128,
        "fast_math": False, "precision": "tf32x3", "read_early": True, "unpacked": 4,
    }  # fmt: skip
    names = {"reduce_tile": "loop", "loads": "loads_by"}
    decided = {names.get(field.name, field.name) for field in fields(TileParameters) if field.name != "axes"}
    assert others.keys() == decided - {"form"}
    seen = [features(plan), *(features(replace(plan, **{name: value})) for name, value in others.items())]
    assert len({row.tobytes() for row in seen}) == len(seen)


def test_an_error_of_the_cost_itself_is_no_failure_of_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    of = space()

    def broken(*_: Any) -> float:
        raise AttributeError("no such figure")

    monkeypatch.setattr("kcg.kernel.tile.expected.seconds", broken)
    with pytest.raises(AttributeError, match="no such figure"):
        KnownCost().predict(of, [of.start()])


def test_what_is_like_a_failure_in_all_that_never_ran_is_expected_to_fail() -> None:
    of, cost = space(tanh_of_a_product()), KnownCost()
    start = of.start()
    exact = of.exact(start)
    assert exact is not None and of.exact(exact) is None and of.parameters(exact).fast_math is False
    assert space().exact(space().start()) is None, "it has no function of two accuracies"
    judge = cost.of(of)
    assert judge.correct is not None
    near = [s for s in of.neighbours(start) if of.parameters(s).fast_math]
    usual = [p.failure_probability for p in judge.predict([near[0], exact])]
    one = [p.failure_probability for p in judge.correct([near[0], exact], [(start, math.inf)])]
    assert one[0] - usual[0] > one[1] - usual[1] > 0, "the known suspect counts most"
    wrong = [(s, math.inf) for s in (start, *near[:5])]
    fast, slow = judge.correct([near[6], exact], [*wrong, (exact, 4e-4)])
    assert fast.failure_probability > 0.9 and slow.failure_probability == pytest.approx(usual[1])
    (cleared,) = judge.correct([near[6]], [*wrong, (exact, 4e-4), (near[7], 4e-4)])
    assert cleared.failure_probability < fast.failure_probability, "one that runs clears what it has"


@pytest.mark.slow
def test_a_search_whose_functions_are_wrong_goes_on_with_exact_ones() -> None:
    of, ledger, tried = space(tanh_of_a_product()), Ledger(max_measurements=8), list[bool]()
    judge = KnownCost().of(of)

    def measure(batch: Sequence[Schedule]) -> list[Future[Observation]]:
        futures = []
        for schedule in batch:
            p, future = of.parameters(schedule), Future[Observation]()
            tried.append(p.fast_math)
            seconds = None if p.fast_math else predicted_seconds(of.kernel, SM_90, p)
            future.set_result(Observation(schedule, Status.WRONG if p.fast_math else Status.OK, seconds, schedule.id))
            futures.append(future)
        ledger.measurements += len(batch)
        return futures

    problem = Problem(
        FromItsStart(of), judge.predict, measure, ledger, random.Random(1), batch_size=2, correct=judge.correct
    )
    list(strategy("mcts")(problem))
    assert tried[0] and not any(tried[1:])


@pytest.mark.parametrize(
    ("assembler", "triton_version", "most"),
    [("13.0.88", "3.9.0", 6), ("13.0.88", "3.6.0", 4), ("12.8.93", "3.9.0", 0), (None, "", 6)],
)
def test_compilers_that_specialise_wrongly_are_not_asked_to(
    monkeypatch: pytest.MonkeyPatch, assembler: str | None, triton_version: str, most: int
) -> None:
    using = Assembler("ptxas", assembler) if assembler is not None else None
    monkeypatch.setattr(targets, "assembler", lambda: using)
    monkeypatch.setattr(targets, "triton_version", lambda: triton_version)
    targets.most_specialized_stages.cache_clear()
    try:
        assert targets.most_specialized_stages() == most
    finally:
        targets.most_specialized_stages.cache_clear()


# ---- the order of parameters, and who made what

PTX = """.version 8.7
.target sm_90a
.visible .entry tile_kernel(
\t.param .u64 .ptr .global .align 1 tile_kernel_param_0,
\t.param .u64 .ptr .global .align 1 tile_kernel_param_1,
\t.param .u32 tile_kernel_param_2,
\t.param .u64 .ptr .global .align 1 tile_kernel_param_3,
\t.param .u64 .ptr .global .align 1 tile_kernel_param_4
)
.reqntid 128
{
\tld.param.b64 %rd1, [tile_kernel_param_0];
\tld.param.b64 %rd2, [tile_kernel_param_3];
}
"""


def test_parameters_stand_in_the_order_in_which_tinygrad_passes_them() -> None:
    text, entry, kept = in_tinygrads_order(PTX, ["p0", "p1"], ["var_n"])
    assert (entry, kept) == ("tile_kernel", ("p0", "scratch", "var_n")), "pointers that are used, then all integers"
    listed = text[text.index("(") : text.index(")")]
    assert [line.split()[-1].rstrip(",")[-1] for line in listed.splitlines()[1:]] == ["0", "3", "2"]
    with pytest.raises(ScheduleError, match="takes 5 parameters, not 4"):
        in_tinygrads_order(PTX, ["p0", "p1"], [])
    with pytest.raises(ScheduleError, match="profiler"):
        in_tinygrads_order(PTX.replace("[tile_kernel_param_3]", "[tile_kernel_param_4]"), ["p0", "p1"], ["var_n"])


def test_the_assembler_is_part_of_what_makes_tile_programs_and_of_nothing_else() -> None:
    old = Toolchain("0.14.0", "NVRTC 13.0", "580", "3.9.0", 1)
    new = replace(old, assembler="ptxas 13.4.59")
    opts, tile = Schedule("opts", "[]"), space().start()
    parts = schedule_of_parts([Part((0,), opts), Part((1,), tile)])
    assert made_by(new, opts) == made_by(old, opts) == new.fingerprint == old.fingerprint
    assert made_by(new, tile) == made_by(new, parts) == new.tile_fingerprint not in (new.fingerprint,)
    assert made_by(replace(new, assembler="ptxas 12.8.93"), tile) != made_by(new, tile)


def test_assemblers_of_version_12_are_not_trusted() -> None:
    old, new = Assembler("ptxas", "12.8.93"), Assembler("ptxas", "13.0.88")
    assert (old.trusted, new.trusted, old.ptx_version, new.ptx_version) == (False, True, 87, 90)


# ---- programs as machine code


@pytest.mark.slow
@triton
def test_a_program_with_descriptors_has_a_workspace_for_them() -> None:
    of = linear(4096, 4096, 1024)
    p = default_parameters(read_kernel(of), SM_90)
    assert (p.loads, p.persistent) == (TMA, 1)
    program = compiled(of, p)
    (launch,) = program.launches
    one = launch.compiled
    assert launch.args == one.slots == (0, 1, 2, 3, 4) and one.outputs == (0, 4) and one.inputs == (1, 2, 3)
    (scratch,) = program.scratch
    assert scratch.dtype == "unsigned char" and scratch.elements % SM_90.cores == 0 and scratch.elements >= 132 * 128
    assert one.global_size == (132, 1, 1) and one.local_size == (256, 1, 1) and program.outputs == (0,)
    report = dict(one.report)
    assert report["wgmma"] and report["warps"] == 8 and 100 < report["registers"] <= 255
    assert one.shared_bytes == report["shared_bytes"] > 200_000
    assert one.binary[:4] == b"\x7fELF" and one.function_name.encode() in one.binary
    elf = to_elf(one, SM_90)
    assert [dtype.name for _, _, dtype, _ in elf.signature] == [*["__bf16"] * 4, "unsigned char"]


@triton
def test_a_program_through_pointers_has_none() -> None:
    of = linear(512, 512, 256)
    p = default_parameters(read_kernel(of), SM_80)
    program = compiled(of, p, target=SM_80)
    assert p.loads == POINTER and not program.scratch
    assert program.launches[0].compiled.slots == (0, 1, 2, 3) and program.binary_hash != program.id


@pytest.mark.slow
@triton
def test_a_warp_specialised_program_has_more_threads_than_its_warps_say() -> None:
    of = linear(4096, 4096, 1024)
    base = default_parameters(read_kernel(of), SM_90)
    p = replace(base, tile=(128, 128), num_warps=4, num_stages=3, epilogue_parts=1, warp_specialize=True)
    one = compiled(of, p).launches[0].compiled
    assert one.local_size == (384, 1, 1) and dict(one.report)["warps"] == 12


@triton
def test_a_split_reduction_is_two_launches_with_partial_sums_between() -> None:
    of = region(empty(8192, 512).sum(0))
    p = replace(default_parameters(read_kernel(of), SM_90), split=4, reduce_tile=256)
    assert p.form == REDUCTION
    program = compiled(of, p)
    first, second = (launch.compiled for launch in program.launches)
    assert [s.dtype for s in program.scratch] == ["float"] and program.scratch[0].elements == 4 * 512
    assert (first.slots, first.outputs, first.inputs) == ((1, 2), (2,), (1,)), "it does not take the result"
    assert (second.slots, second.outputs, second.inputs) == ((0, 2), (0,), (2,))
    assert program.buffers == 2 and program.outputs == (0,)


@triton
def test_symbolic_sizes_are_integers_behind_the_pointers() -> None:
    of = example_region("symbolic")
    name = read_kernel(of).variables[0].arg.name
    values = (((name, 7),), ((name, 32),))
    program = compiled(of, None, *values)
    one = program.launches[0].compiled
    assert one.signature[-1][::2] == (name, "int") and one.values == (7,)
    assert program.at(values[1]).launches[0].compiled.values == (32,)
    assert {launch.global_size for launch in one.launches} == {one.global_size}, "graphs are launched with one grid"
    with pytest.raises(ScheduleError, match=f"without a value of {name}"):
        compiled(of)


@pytest.mark.slow
@triton
def test_symbolic_sizes_follow_the_workspace_of_descriptors() -> None:
    rows = Variable("rows", 1, 2048).bind(1000)
    x = empty(2048, 1024, dtype="bfloat16")[:rows]
    of = region((x @ empty(4096, 1024, dtype="bfloat16").T).contiguous())
    base = default_parameters(read_kernel(of), SM_90)
    if base.loads != TMA:
        pytest.skip("the generator takes no descriptors here")
    one = compiled(of, base, (("rows", 1000),)).launches[0].compiled
    assert [dtype for _, _, dtype in one.signature][-2:] == ["unsigned char", "int"]


@pytest.mark.slow
@triton
@pytest.mark.parametrize(("warps", "rows"), every(2, [(8, 128), (16, 128), (8, 64), (16, 256)]))
def test_shared_memory_is_known_before(warps: int, rows: int) -> None:
    """Also where groups of four warps share the columns of a tile that is stored in halves."""
    of = space(linear(4096, 4096, 1024))
    base = of.parameters(of.start())
    p = replace(base, tile=(rows, 128), num_warps=warps, num_stages=2, loads=TMA, persistent=1, epilogue_parts=2)
    (launch,) = compiled(of.region, p).launches
    taken = plan_of(of.kernel, SM_90, p).shared_bytes
    assert taken - 1_100 < launch.compiled.shared_bytes <= taken


@pytest.mark.slow
@triton
def test_shared_memory_that_there_is_not_is_said_so() -> None:
    of = linear(4096, 4096, 1024)
    p = replace(default_parameters(read_kernel(of), SM_80), tile=(128, 256), num_warps=8, num_stages=6)
    with pytest.raises(ScheduleError, match="shared memory"):  # the service takes it for a matter of resources
        compiled(of, p, target=SM_80)


SAME = """
import sys
from tests.kernel.tile.test_tile_kind import compiled, linear, space
print(space(linear(4096, 3072, 12288)).start().body)
print(compiled(linear(512, 512, 256)).id)
"""


@pytest.mark.slow
@triton
def test_the_start_and_equal_parameters_are_the_same_program_in_every_process(tmp_path: Path) -> None:
    ids = {compiled(linear(512, 512, 256)).id}
    starts = {space(linear(4096, 3072, 12288)).start().body}  # of equal costs
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "PYTHONHASHSEED": "1"}
    command = [sys.executable, "-c", SAME]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    start, program = done.stdout.split()[-2:]
    starts.add(start)
    ids.add(program)
    assert len(ids) == len(starts) == 1


@triton
def test_a_damaged_cache_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    of = example_region("gelu")
    first = compiled(of)
    (path,) = (tmp_path / "kcg" / "tile").rglob("*.json")
    kept = path.read_bytes()
    for damaged in (b"", kept[:-40], kept.replace(b'"cubin":"f0VM', b'"cubin":"f0VN'), b"[1]"):
        path.write_bytes(damaged)
        assert compiled(of).id == first.id and path.read_bytes() == kept


@pytest.mark.slow
@triton
def test_a_program_is_read_from_the_cache_without_triton(tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    code = f"{SAME}\nprint('triton' in sys.modules)"

    def loads_triton() -> str:
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=PATIENCE_S
        )
        return done.stdout.split()[-1]

    assert (loads_triton(), loads_triton()) == ("True", "False")
