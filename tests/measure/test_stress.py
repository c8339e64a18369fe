"""A program is launched very often, and one launch that leaves something else is found."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tinygrad import Tensor

from kcg.kernel.codec import kernel_of
from kcg.kernel.kinds import baseline_of, kind_named
from kcg.kernel.parts import compile_region
from kcg.kernel.program import Executable
from kcg.kernel.tile.kind import is_delicate
from kcg.kernel.tile.space import TileSpace
from kcg.measure import stress
from kcg.measure.device_info import detect
from kcg.measure.inputs import TIMED_SEED
from kcg.measure.jobs import StressJob
from kcg.measure.service import MeasureService
from kcg.measure.stress import stressed
from kcg.measure.verify import CheckedBench
from kcg.types import Region, Target, Toolchain
from tests.chains import region_of as all_of
from tests.kernel.tile.running import HAS_TRITON, WITHOUT
from tests.kernels import empty, kernels_of

TARGET: Target = detect("CPU:X86", 1)[0]


def region_of(tensor: Tensor) -> Region:
    return Region((kernel_of(kernels_of(tensor)[-1]),))


def in_place() -> Region:
    total = empty(300)
    return region_of(total.assign(total + empty(300)))


REGIONS: dict[str, Callable[[], Region]] = {
    "elementwise": lambda: region_of(empty(64, 96) * empty(64, 96)),
    "of an odd number of bytes": lambda: region_of(empty(1001, dtype="float16") + 1.5),
    "booleans": lambda: region_of(empty(37) < empty(37)),
    "a reduction": lambda: region_of((empty(96, 70) * empty(96, 70)).sum(1)),
    "in place": in_place,
    "two kernels and their outputs": lambda: all_of(empty(64, 32) + 1, empty(33) * 3),
}


def nothing() -> None:
    pass


class Prepared:
    """A region's bench with its inputs, and what tinygrad makes of it."""

    def __init__(self, region: Region) -> None:
        self.bench = CheckedBench(region, TARGET)
        recipe = self.bench.choose_recipe()
        self.bench.reference(TIMED_SEED, recipe, ())
        self.bench.fill(TIMED_SEED, recipe)
        self.compiled: Executable = compile_region(region, baseline_of(region, TARGET), TARGET)

    def stressed(self, *, launches: int = 64, flush: Callable[[], None] = nothing) -> str:
        return stressed(self.bench, self.compiled, (), flush=flush, launches=launches)


@pytest.mark.parametrize("name", REGIONS)
def test_a_right_program_passes(name: str) -> None:
    assert Prepared(REGIONS[name]()).stressed() == ""


def test_one_launch_that_leaves_something_else_is_found() -> None:
    """Of 64 launches the sixteenth sees an input that was changed, and changed back after it."""
    asked = Prepared(REGIONS["elementwise"]())
    slot, flushes = next(info.slot for info in asked.bench.buffers if info.is_input), list[int]()

    def flush() -> None:
        flushes.append(len(flushes))
        if len(flushes) == 1:
            asked.bench.disturb(slot, 1, np.random.default_rng(0))
        else:
            asked.bench.restore_inputs()

    reason = asked.stressed(flush=flush)
    assert len(flushes) == 4 and reason.startswith("of 64 launches one left another element "), reason


def test_a_program_that_leaves_alone_what_looks_done_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Prepared(REGIONS["a reduction"]())
    monkeypatch.setattr(asked.bench, "sender", lambda runs: nothing)
    assert asked.stressed(launches=stress.RESTORED_EVERY - 1) != "", "it was poisoned before the first launch"
    assert asked.stressed(launches=stress.RESTORED_EVERY) != ""


def test_what_is_wrong_at_once_is_said_by_the_reference() -> None:
    asked, other = Prepared(REGIONS["elementwise"]()), region_of(empty(64, 96) + empty(64, 96))
    asked.compiled = compile_region(other, baseline_of(other, TARGET), TARGET)
    assert "of buffer 0 is" in asked.stressed()


def test_stress_runs_in_the_child_of_a_service() -> None:
    region = REGIONS["a reduction"]()
    compiled = compile_region(region, baseline_of(region, TARGET), TARGET)
    with MeasureService("CPU:X86", run_id="stress") as service:
        job = StressJob(region, compiled, TARGET, launches=40)
        assert service.stress(job, timeout_s=120).result(timeout=120).wrong == ""


def test_a_pass_is_kept_by_binary_gpu_and_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    region, driver = REGIONS["elementwise"](), Toolchain("0.14.0", "NVRTC 13.0", "580", "3.9.0", 1)
    stress.keep_pass(region, "a" * 64, TARGET, driver, ())
    assert stress.has_passed(region, "a" * 64, TARGET, driver, ())
    assert stress.has_passed(region, "a" * 64, TARGET, replace(driver, tinygrad="0.15.0"), ()), "the binary is the same"
    for other in (
        (region, "b" * 64, TARGET, driver, ()),
        (region, "a" * 64, replace(TARGET, model="another"), driver, ()),
        (region, "a" * 64, TARGET, replace(driver, driver="590"), ()),
        (region, "a" * 64, TARGET, driver, (("length", 20),)),
        (REGIONS["booleans"](), "a" * 64, TARGET, driver, ()),
    ):
        assert not stress.has_passed(*other)


def test_what_stress_takes_follows_from_the_program_and_its_output() -> None:
    assert stress.expected_s(1e-3, 0, TARGET) == pytest.approx(stress.LAUNCHES * 1e-3)
    assert stress.expected_s(1e-9, 0, TARGET) == stress.LAUNCHES * stress.HOST_S, "no shorter than the host allows"


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_TRITON, reason=WITHOUT)
def test_tile_programs_of_the_tensor_memory_accelerator_pass_on_a_gpu() -> None:
    """Of one matmul: what the prior chooses but for these loads, and three that differ in one parameter; each 10,000
    times."""
    product = empty(512, 1024, dtype="bfloat16") @ empty(768, 1024, dtype="bfloat16").T
    region = region_of(product.gelu())
    with MeasureService("CUDA", run_id="stress") as service:
        space = kind_named("tile").space(region, service.target)
        assert isinstance(space, TileSpace)
        first = next(s for s in [space.start(), *space.neighbours(space.start())] if is_delicate(region, s))
        beside = [s for s in space.neighbours(first) if is_delicate(region, s)]
        chosen = [first, *random.Random(1).sample(beside, 3)]
        for schedule in chosen:
            compiled = service.compiled(region, schedule).result(timeout=120).compiled
            assert service.stress(StressJob(region, compiled, service.target), timeout_s=300).result().wrong == ""
