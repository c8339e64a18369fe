"""Schedules by arithmetic are tinygrad's: legal actions, axis tables, micro-operations and identities along walks."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from tinygrad import Tensor

from kcg.compat import scheduling
from kcg.compat.renderers import planning_renderer
from kcg.errors import ScheduleError
from kcg.kernel.codec import ast_of, kernel_of
from kcg.kernel.loop_nest import axis_table, count_uops
from kcg.kernel.opts.plan_state import InitialNest
from kcg.kernel.opts.planner import MAKES, Planner, PlanState, legal_steps, plan_of, planner_from
from kcg.kernel.opts.schedule import Opt, opts_of
from kcg.types import Region, Target
from tests.captured import captured
from tests.kernels import TYPICAL, all_examples, empty, example_region, examples, kernels_of, schedule_of
from tests.known_targets import KNOWN_TARGETS, X86
from tests.slow import every, some

TARGETS = {"X86": X86, "CLANG": replace(X86, renderer="CLANG"), **KNOWN_TARGETS}
MORE = ("layernorm.0", "pad", "nested_reduce.1", "scatter", "conv_transpose", "bf16_norm.0")
SYMBOLIC = {"symbolic", "symbolic_elementwise", "cache_update.1"}


@cache
def matmul(rows: int = 64, columns: int = 64, inner: int = 64) -> Region:
    (ast,) = kernels_of(empty(rows, inner, dtype="bfloat16") @ empty(inner, columns, dtype="bfloat16"))
    return Region((kernel_of(ast),))


def planner(region: Region, target: str = "sm_90") -> Planner:
    found = plan_of(region, TARGETS[target])
    assert found is not None
    return found


def axes_of(real: Any) -> list[tuple[Any, ...]]:
    return [(int(r.vmax) + 1, r.arg[-1].name, r.arg[:-1]) for r in real.rngs]


def compare(region: Region, target: Target, *, steps: int, seed: int = 0, core: bool = False) -> int:
    """Walks one kernel with both, comparing all answers at each state; returns how many states there were."""
    root = scheduling.initial_state(ast_of(region.kernel), planning_renderer(target))
    plan, rng, real = planner_from(root, target), random.Random(seed), root
    assert plan is not None
    state = plan.start()
    for number in range(steps + 1):
        where = " ".join(map(str, state.opts))
        assert [(a.extent, a.kind, a.number) for a in state.axes] == axes_of(real), where
        table = axis_table(real)
        assert plan.table(state) == table, where
        count = count_uops(real, table)
        assert plan.uops(state) == count, where
        assert plan.fits(state, count) and not plan.fits(state, count - 1), where
        legal = legal_steps(real, target)
        assert plan.legal(state) == [opt for opt, _ in legal], where
        cores = [step for step in legal if step[0].op == "TC"] if core and not number else []
        if number == steps or not legal:
            return number + 1
        opt, real = rng.choice(cores or legal)
        after = plan.apply(state, opt)
        assert after is not None and after == plan.after(state, opt)
        state = after
    raise AssertionError("unreachable")


@pytest.mark.parametrize("name", every(4, examples(without=SYMBOLIC)))
def test_a_walk_without_locals(name: str) -> None:
    compare(example_region(name), TARGETS["X86"], steps=3)


@pytest.mark.parametrize("name", every(4, [n for n in (*TYPICAL, *MORE) if n not in SYMBOLIC]))
def test_a_walk_on_a_gpu(name: str) -> None:
    compare(example_region(name), TARGETS["sm_90"], steps=3)


@pytest.mark.parametrize("target", ["sm_90", "gfx942", "Apple9", "CLANG"])
def test_a_walk_with_tensor_cores(target: str) -> None:
    assert compare(matmul(), TARGETS[target], steps=4, core=True) > 1


@pytest.mark.slow
@pytest.mark.parametrize("workload", some(["flux", "gpt2", "rope", "norms"], {"rope", "gpt2"}))
def test_walks_on_real_models(workload: str) -> None:
    regions = list({c.region.id: c.region for c in captured(workload, "mini").calls}.values())
    some = [r for r in random.Random(0).sample(regions, min(6, len(regions))) if plan_of(r, X86) is not None]
    for number, region in enumerate(some[:3]):
        compare(region, TARGETS["sm_90" if number == 0 else "X86"], steps=3, seed=number)


@pytest.mark.parametrize("names", all_examples())
def test_symbolic_extents_are_left_to_tinygrad(names: tuple[str, ...]) -> None:
    refused = {name for name in names if plan_of(example_region(name), X86) is None}
    assert refused == SYMBOLIC


@pytest.mark.parametrize("target", ["sm_90", "X86"])
@pytest.mark.parametrize("name", ["matmul_f32", "softmax.1", "interpolate.0"])
def test_any_opt_is_refused_or_applied_as_by_tinygrad(name: str, target: str) -> None:
    """Also where kcg's own list has no such action: recorded schedules may be of other searches."""
    plan, rng = planner(example_region(name), target), random.Random(1)
    root = scheduling.initial_state(ast_of(example_region(name).kernel), planning_renderer(TARGETS[target]))
    real, state, agreed = root, plan.start(), [0, 0]
    for number in range(240):
        if number % 20 == 0:
            real, state = root, plan.start()
        amount = rng.choice((0, 2, 2, 3, 4, 5, 8, 16, 32, 50, 64))
        opt = Opt(rng.choice((*MAKES, "SWAP")), rng.randrange(5), amount)
        if opt.op == "SWAP" and opt.axis == opt.arg:
            continue
        try:
            after = scheduling.apply(real, (opt,))
        except ScheduleError:
            agreed[0] += 1
            with pytest.raises(ScheduleError, match="is not legal here"):
                plan.after(state, opt)
        else:
            agreed[1] += 1
            real, state = after, plan.after(state, opt)
            assert [(a.extent, a.kind, a.number) for a in state.axes] == axes_of(real)
    assert min(agreed) >= 4


def test_axes_that_are_data_are_split_in_tinygrads_words() -> None:
    """A position that no address depends on: what is computed in its place is among the kernel's operations."""
    (ast,) = kernels_of(Tensor.arange(64).reshape(64, 1).expand(64, 6).cast("float32").sum(0).contiguous() + empty(6))
    region = Region((kernel_of(ast),))
    for seed in range(4):
        compare(region, TARGETS["sm_90"], steps=5, seed=seed)


def test_padding_goes_through_tinygrad() -> None:
    region, schedule = matmul(36, 36, 36), schedule_of(("UPCAST", 0, 4), ("PADTO", 1, 32), ("LOCAL", 1, 8))
    plan = planner(region)
    state = plan.state(schedule)
    root = scheduling.initial_state(ast_of(region.kernel), planning_renderer(plan.target))
    real = scheduling.apply(root, opts_of(schedule))
    assert plan.table(state) == axis_table(real)
    assert [opt for opt, _ in legal_steps(real, plan.target)] == plan.legal(state)
    with pytest.raises(ScheduleError):
        plan.state(schedule_of(("PADTO", 9, 32)))


def test_no_locals() -> None:
    plan = planner(example_region("matmul_f32"))
    state = plan.state(schedule_of(("NOLOCALS", 0, None)))
    assert not {opt.op for opt in plan.legal(state)} & {"LOCAL", "GROUP", "GROUPTOP"}
    with pytest.raises(ScheduleError, match="no locals"):
        plan.state(schedule_of(("LOCAL", 0, 4), ("NOLOCALS", 0, None)))


def key(plan: Planner, *opts: tuple[str, int, Any]) -> str:
    return plan.key(plan.state(schedule_of(*opts)))


def test_one_kernel_has_one_key() -> None:
    plan = planner(matmul())
    assert key(plan, ("UPCAST", 0, 4), ("UNROLL", 0, 4)) == key(plan, ("UNROLL", 0, 4), ("UPCAST", 0, 4))
    # the same threads and elements, though tinygrad writes the sum in another order
    assert key(plan, ("LOCAL", 0, 8), ("UPCAST", 2, 4)) == key(plan, ("UPCAST", 0, 4), ("LOCAL", 0, 2))
    # which axis has neighbouring threads is no matter of equal extents
    assert key(plan, ("LOCAL", 0, 4), ("LOCAL", 1, 4)) != key(plan, ("LOCAL", 1, 4), ("LOCAL", 0, 4))
    assert key(plan, ("SWAP", 0, 1)) != key(plan)
    assert key(plan, ("TC", 0, (-1, 0, 1))) == key(plan, ("TC", 0, (-1, 2, 1)))
    assert key(plan, ("TC", 0, (-1, 0, 1)), ("UPCAST", 0, 2)) != key(plan, ("UPCAST", 0, 2))


@pytest.mark.parametrize("name", ["matmul_f32", "conv2d", "argmax.1", "embedding"])
def test_what_tinygrad_makes_the_same_has_one_key(name: str) -> None:
    plan = planner(example_region(name))
    root = scheduling.initial_state(ast_of(example_region(name).kernel), planning_renderer(plan.target))
    keys: dict[str, str] = {}
    for first in plan.legal(plan.start()):
        state = plan.apply(plan.start(), first)
        assert state is not None
        for second in random.Random(str(first)).sample(legal := plan.legal(state), min(2, len(legal))):
            after = plan.apply(state, second)
            assert isinstance(after, PlanState)
            assert keys.setdefault(
                scheduling.canonical_key(scheduling.apply(root, after.opts)), plan.key(after)
            ) == plan.key(after)


def test_what_was_read_off_tinygrad_is_kept_as_json() -> None:
    region, schedule = matmul(), schedule_of(("TC", 0, (-1, 0, 1)), ("UPCAST", 0, 2), ("LOCAL", 1, 2))
    plan = planner(region)
    state = plan.state(schedule)
    kept = {opts: InitialNest.from_json(json.loads(json.dumps(g.to_json()))) for opts, g in plan.grounds().items()}
    again = plan_of(region, plan.target, kept)
    assert again is not None and again._root is None
    same = again.state(schedule)
    assert again._root is None  # tinygrad was not asked
    assert (again.table(same), again.key(same), again.uops(same)) == (
        plan.table(state),
        plan.key(state),
        plan.uops(state),
    )
    assert again.legal(same) == plan.legal(state)
    assert again.legal(again.start()) == plan.legal(plan.start())


def test_why_an_opt_is_not_legal_has_no_colours() -> None:
    class Colourful:
        def copy(self) -> Colourful:
            return self

        def apply_opt(self, opt: object) -> None:
            raise ValueError("no \x1b[34m8\x1b[0m here")

    with pytest.raises(ScheduleError) as refused:
        scheduling.apply(Colourful(), (Opt("UPCAST", 0, 2),))
    assert str(refused.value).endswith("is not legal here: no 8 here")


def test_a_file_may_claim_an_extent_that_no_device_holds() -> None:
    (ast,) = kernels_of((empty(2**61 - 1) + 1).contiguous())  # a prime: to try all up to its root takes minutes
    plan = planner(Region((kernel_of(ast),)))
    assert plan.start().axes[0].extent == 2**61 - 1
