"""The count of micro-operations before code is generated is near what the programs then have, and keeps their limit."""

from __future__ import annotations

import random
import statistics
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from kcg.compat.device import choose_cpu
from kcg.compat.renderers import planning_renderer
from kcg.errors import ScheduleError
from kcg.kernel.codec import kernel_of
from kcg.kernel.compile import UOPS_MAX, _program, compile_schedule
from kcg.kernel.loop_nest import INNER, _packs, count_uops
from kcg.kernel.opts.schedule import RAW
from kcg.kernel.opts.space import UOPS_OFFERED, KernelSpace
from kcg.measure.device_info import detect
from kcg.predictor.roofline import Roofline
from kcg.types import Region, Schedule, Target
from tests.kernels import empty, example_region, kernels_of, schedule_of
from tests.known_targets import KNOWN_TARGETS, X86

CLANG = replace(X86, renderer="CLANG")
TARGETS = {"X86": X86, "CLANG": CLANG, **KNOWN_TARGETS}
CORE = (("TC", 0, (-1, 0, 1)), ("UPCAST", 0, 4), ("UPCAST", 1, 4))

Steps = tuple[tuple[str, int, Any], ...]


@cache
def matmul(size: int, dtype: str) -> Region:
    (ast,) = kernels_of(empty(size, size, dtype=dtype) @ empty(size, size, dtype=dtype))
    return Region((kernel_of(ast),))


def counted(space: KernelSpace, schedule: Schedule) -> int:
    return count_uops(space.state(schedule), space.table(schedule))


def real(space: KernelSpace, schedule: Schedule) -> int:
    program = _program(space.region, schedule, planning_renderer(space.target), name="kernel")
    return len(program.src[1].src)


def error(region: Region, target: str, steps: Steps) -> float:
    space, schedule = KernelSpace(region, TARGETS[target]), schedule_of(*steps)
    return counted(space, schedule) / real(space, schedule) - 1


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(CORE, marks=pytest.mark.slow),  # a part of the next
        pytest.param((*CORE, ("LOCAL", 1, 4), ("SWAP", 0, 1), ("LOCAL", 0, 8)), marks=pytest.mark.slow),
        pytest.param((*CORE, ("UNROLL", 0, 2)), marks=pytest.mark.slow),
        pytest.param((CORE[0], ("UPCAST", 0, 4), ("UPCAST", 0, 4), ("LOCAL", 1, 4)), marks=pytest.mark.slow),
        (CORE[0], ("UNROLL", 0, 4), ("UPCAST", 0, 4)),
    ],
)
def test_tensor_cores(steps: Steps) -> None:
    assert abs(error(matmul(1024, "bfloat16"), "sm_90", steps)) < 0.08


@pytest.mark.parametrize(
    ("target", "dtype", "within"),
    [
        ("sm_90", "float32", 0.1),
        pytest.param("sm_90", "float16", 0.1, marks=pytest.mark.slow),
        ("sm_90", "bfloat16", 0.1),
        ("CLANG", "float32", 0.1),
        pytest.param("CLANG", "bfloat16", 0.15, marks=pytest.mark.slow),
        ("gfx942", "bfloat16", 0.15),
        pytest.param("Apple9", "bfloat16", 0.25, marks=pytest.mark.slow),
        ("X86", "float32", 0.4),
        pytest.param("X86", "bfloat16", 0.4, marks=pytest.mark.slow),
    ],
)
def test_matmuls_without_them(target: str, dtype: str, within: float) -> None:
    steps = (("UPCAST", 1, 4), ("UPCAST", 0, 4), ("UNROLL", 0, 4))
    assert abs(error(matmul(512, dtype), target, steps)) < within


@pytest.mark.parametrize(
    ("name", "target", "steps"),
    [
        ("trigonometry", "CLANG", (("UPCAST", 0, 2),)),
        ("trigonometry", "sm_90", (("UPCAST", 0, 5),)),
        ("gelu", "CLANG", (("UPCAST", 0, 5),)),
        ("conv2d", "sm_90", (("UPCAST", 1, 3), ("UNROLL", 0, 4))),
        ("int_math", "sm_90", (("UPCAST", 0, 4), ("UPCAST", 0, 5))),
        ("bf16_norm.0", "CLANG", (("UNROLL", 0, 4),)),
        ("softmax.1", "CLANG", (("UPCAST", 0, 3), ("UNROLL", 0, 10))),
    ],
)
def test_other_kernels(name: str, target: str, steps: Steps) -> None:
    assert abs(error(example_region(name), target, steps)) < 0.3


@pytest.mark.slow
def test_random_walks() -> None:
    errors = []
    for seed, name in enumerate(("layernorm.1", "conv2d", "embedding", "max_pool", "matmul_f16", "gelu", "std.1")):
        target = TARGETS["CLANG" if seed % 2 else "sm_90"]
        space, schedule, rng = KernelSpace(example_region(name), target), RAW, random.Random(seed)
        for _ in range(3):
            actions = space.actions(schedule)
            schedule = rng.choice(actions).schedule if actions else schedule
        if (uops := real(space, schedule)) >= 100:
            errors.append(abs(counted(space, schedule) / uops - 1))
    assert len(errors) >= 3
    assert statistics.median(errors) < 0.15
    assert max(errors) < 1  # a gather of a hundred micro-operations


@pytest.mark.slow
@pytest.mark.parametrize("which", ["longest", pytest.param("any", marks=pytest.mark.slow)])
def test_no_step_from_the_hand_coded_schedule_is_refused_after_it_is_compiled(which: str) -> None:
    space = KernelSpace(matmul(1024, "bfloat16"), KNOWN_TARGETS["sm_90"])
    rng = random.Random(0)
    after = [action.schedule for action in space.actions(space.baseline())]
    longest = sorted(after, key=lambda s: counted(space, s))[-2:]
    assert counted(space, longest[0]) > 0.5 * UOPS_MAX, "the step shows nothing: all steps are short"
    assert real(space, longest[-1] if which == "longest" else rng.choice(after)) <= UOPS_MAX


@pytest.mark.slow
def test_steps_over_the_limit_are_left_out_and_those_under_it_are_not() -> None:
    space = KernelSpace(matmul(1024, "bfloat16"), KNOWN_TARGETS["sm_90"])
    base = (*CORE, ("LOCAL", 1, 4))
    too_long, fits = schedule_of(*base, ("UPCAST", 3, 0)), schedule_of(*base, ("UPCAST", 3, 2))
    offered = {action.schedule for action in space.actions(schedule_of(*base))}
    assert too_long not in offered and fits in offered
    assert real(space, fits) <= UOPS_MAX
    # 2,985 micro-operations on a kernel of 1,280 expanded operations
    near = schedule_of(*CORE, ("LOCAL", 1, 4), ("LOCAL", 1, 4), ("UPCAST", 3, 2), ("UNROLL", 0, 2))
    assert 0.9 * UOPS_MAX < counted(space, near) < UOPS_OFFERED


def test_a_schedule_that_is_itself_too_long_still_has_its_shorter_steps() -> None:
    space = KernelSpace(matmul(1024, "bfloat16"), KNOWN_TARGETS["sm_90"])
    too_long = schedule_of(*CORE, ("LOCAL", 1, 4), ("UPCAST", 3, 0))
    assert counted(space, too_long) > UOPS_OFFERED
    assert all(counted(space, action.schedule) <= UOPS_OFFERED for action in space.actions(too_long))
    assert space.table(too_long).extents


@pytest.mark.parametrize(
    ("unrolled", "widest", "packed", "packs", "starts"),
    [
        (((1, 8),), 4, 8, 2, {0, 4}),
        (((1, 8),), 1, 0, 0, set(range(8))),
        (((1, 7),), 4, 6, 2, {0, 4, 6}),
        (((17, 2), (1, 4)), 4, 6, 2, {0, 17, 18, 20}),
        (((4, 4), (1, 4)), 4, 16, 4, {0, 4, 8, 12}),
        (((1, 3), (1, 3)), 2, 4, 2, {0, 2, 4}),
        ((), 4, 0, 0, {0}),
    ],
)
def test_packing(unrolled: tuple[tuple[int, int], ...], widest: int, packed: int, packs: int, starts: set[int]) -> None:
    assert _packs(unrolled, widest) == (frozenset(starts), packed, packs)


def test_only_what_tinygrad_itself_does_may_be_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the kernel would have nothing to be compared with, and its time would be missing from the total."""
    monkeypatch.setattr("kcg.kernel.compile.UOPS_MAX", 10)
    target = detect(choose_cpu().dev, 1)[0]
    space = KernelSpace(matmul(16, "float32"), target)
    assert space.baseline() != RAW
    assert compile_schedule(space.region, space.baseline(), target).uops > 10
    with pytest.raises(ScheduleError, match="micro-operations, more than 10"):
        compile_schedule(space.region, RAW, target)


def products(count: int) -> Region:
    """A sum of so many products, each with a reduction of its own: one kernel, as tinygrad schedules gradients of what
    is used several times."""
    total = empty(96, 128) @ empty(128, 64)
    for _ in range(count - 1):
        total = total + empty(96, 128) @ empty(128, 64)
    (ast,) = kernels_of(total)
    return Region((kernel_of(ast),))


def test_reductions_one_after_the_other_are_no_loops_in_each_other() -> None:
    one, four = (KernelSpace(products(count), CLANG) for count in (1, 4))
    (alone,), (table,) = one.loop_nests([RAW]), four.loop_nests([RAW])
    assert len(alone.reductions) == 1 and len(table.reductions) == 4
    kinds = {kind for kind in table.kinds if kind not in INNER}
    assert alone.turns(*kinds) == alone.product(*kinds), "nothing changes where there is one"
    assert table.turns(*kinds) == 4 * alone.turns(*kinds) < table.product(*kinds)


def test_a_reduction_of_two_axes_is_one() -> None:
    (ast,) = kernels_of(empty(64, 32, 16).sum((1, 2)))
    (table,) = KernelSpace(Region((kernel_of(ast),)), CLANG).loop_nests([RAW])
    assert len(table.reductions) == 1 and table.turns(*table.kinds) == table.product(*table.kinds)


@pytest.mark.parametrize("target", [CLANG, KNOWN_TARGETS["sm_90"]], ids=["cpu", "gpu"])
def test_a_sum_of_products_is_expected_to_take_as_long_as_these(target: Target) -> None:
    def seconds(count: int) -> float:
        space = KernelSpace(products(count), target)
        (expected,) = Roofline().predict(space, [space.baseline()])
        return expected.runtime_s

    assert seconds(1) < seconds(4) < 6 * seconds(1)
