"""Kernels are scheduled and rendered for GPUs that this machine does not have."""

from __future__ import annotations

import random

import pytest

from kcg.kernel.codec import kernel_of
from kcg.kernel.compile import render_schedule
from kcg.kernel.opts.schedule import Opt, opts_of, schedule_of
from kcg.kernel.opts.space import KernelSpace
from kcg.types import Region, Schedule, Target
from tests.kernels import empty, example_region, kernels_of, on_targets
from tests.known_targets import KNOWN_TARGETS, X86

# one of each family: contractions in several formats, reductions, gathers, padding, symbolic shapes, special floats
KERNELS = (
    "matmul_f16",
    "matmul_f32",
    "matmul_bf16",
    "matmul_int8",
    "softmax.0",
    "layernorm.1",
    "conv2d",
    "embedding",
    "pad",
    "symbolic",
    "special_floats",
    "trigonometry",
    "bf16_norm.0",
    "float_to_int",
)

# how each language says that a function is a kernel
ENTRY = {"CUDA": 'extern "C" __global__ void', "HIP": "__attribute__((global)) void", "METAL": "kernel void"}


def random_walk(space: KernelSpace, seed: int, *, length: int = 3) -> Schedule:
    """A chain of random legal actions, as long as there are any."""
    rng, schedule = random.Random(seed), space.start()
    for _ in range(length):
        if not (actions := space.actions(schedule)):
            break
        schedule = rng.choice(actions).schedule
    return schedule


def assert_renders(space: KernelSpace, schedule: Schedule, target: Target) -> None:
    name, source = render_schedule(space.region, schedule, target)
    assert name
    assert ENTRY[target.renderer] in source
    assert source.count("{") == source.count("}") > 0


# every family for one CUDA target; for the others, of which all is `slow`, one that each language writes in its own way
ELSEWHERE = ("special_floats", "matmul_bf16", "softmax.0")
SM_90 = (*ELSEWHERE, *list(KERNELS)[::4])


@pytest.mark.parametrize(
    ("name", "target"),
    [
        pytest.param(
            name, target, marks=[] if name in (SM_90 if target == "sm_90" else ELSEWHERE[:1]) else pytest.mark.slow
        )
        for name in KERNELS
        for target in KNOWN_TARGETS
    ],
)
def test_tinygrads_own_schedule_and_a_random_one_render(name: str, target: str) -> None:
    space = KernelSpace(example_region(name), KNOWN_TARGETS[target])
    walk = random_walk(space, seed=KERNELS.index(name))
    assert len(opts_of(walk)) >= 1
    for schedule in (space.baseline(), walk):
        assert_renders(space, schedule, KNOWN_TARGETS[target])


@pytest.mark.parametrize(("target", "names"), on_targets(KNOWN_TARGETS, whole=("sm_90",)))
def test_every_example_has_a_schedule(target: str, names: list[str]) -> None:
    for name in names:
        space = KernelSpace(example_region(name), KNOWN_TARGETS[target])
        assert space.name(space.baseline()), name


@pytest.mark.parametrize("target", KNOWN_TARGETS)
def test_tensor_cores_are_found_and_render(target: str) -> None:
    (ast,) = kernels_of(empty(64, 64, dtype="float16").matmul(empty(64, 64, dtype="float16"), dtype="float32"))
    space = KernelSpace(Region((kernel_of(ast),)), KNOWN_TARGETS[target])
    cores = [a.schedule for a in space.actions(space.start()) if a.label.startswith("TC")]
    assert cores
    assert_renders(space, cores[0], KNOWN_TARGETS[target])


def test_the_same_schedule_renders_to_the_same_source() -> None:
    target = KNOWN_TARGETS["sm_90"]
    space = KernelSpace(example_region("softmax.0"), target)
    walk = random_walk(space, seed=7)
    assert render_schedule(space.region, walk, target) == render_schedule(space.region, walk, target)


def test_legal_actions_differ_between_targets() -> None:
    """No workgroups on a CPU, tensor cores only where the architecture has them."""
    ops = {}
    for name, target in {"cpu": X86, **KNOWN_TARGETS}.items():
        space = KernelSpace(example_region("matmul_f32"), target)
        ops[name] = {opts_of(action.schedule)[-1].op for action in space.actions(space.start())}
    assert "THREAD" in ops["cpu"]
    assert not {"LOCAL", "GROUP", "GROUPTOP", "SWAP", "TC"} & ops["cpu"]
    assert all({"LOCAL", "GROUP", "SWAP", "UPCAST"} <= ops[name] for name in KNOWN_TARGETS)
    assert all("THREAD" not in ops[name] for name in KNOWN_TARGETS)


def test_a_device_that_does_not_report_its_cores_is_predicted_all_the_same() -> None:
    from dataclasses import replace

    from kcg.predictor.roofline import Roofline

    region = example_region("matmul_f16")
    for name, target in KNOWN_TARGETS.items():
        space = KernelSpace(region, replace(target, cores=0))
        (prediction,) = Roofline().predict(space, [space.baseline()])
        assert prediction.runtime_s > 0, name


def test_a_warp_with_three_local_axes_is_never_offered() -> None:
    """On CUDA such kernels compute something else: see `TC_LOCAL_AXES_MAX`."""
    region = example_region("matmul_f16")
    space = KernelSpace(region, KNOWN_TARGETS["sm_90"])
    frontier, depth = [schedule_of([Opt("TC", 0, (-1, 2, 1))])], 0
    while frontier and depth < 4:
        steps = [a.schedule for s in frontier for a in space.actions(s) if a.label.startswith("LOCAL")]
        assert all(sum(o.op == "LOCAL" for o in opts_of(s)) <= 2 for s in steps)
        frontier, depth = steps[:6], depth + 1
    assert depth > 1, "there were LOCAL steps to look at"
