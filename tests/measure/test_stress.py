"""A program is launched very often, and one launch that leaves something else is found."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tinygrad import Tensor

from kcg.compat.programs import hidden_s
from kcg.kernel.codec import kernel_of
from kcg.kernel.kinds import baseline_of, compile_region, kind_named, needs_stress, space_of, wide_of
from kcg.kernel.program import Executable
from kcg.kernel.tile.space import TileSpace
from kcg.measure import child, stress
from kcg.measure.device_info import detect
from kcg.measure.inputs import TIMED_SEED
from kcg.measure.jobs import StressJob
from kcg.measure.service import MeasureService
from kcg.measure.stress import Stressed, stressed
from kcg.measure.verify import CheckedBench
from kcg.measure.workbench import Workbench
from kcg.types import Region, Target, Toolchain
from tests.chains import region_of as all_of
from tests.kernel.tile.running import HAS_TRITON, WITHOUT
from tests.kernels import empty, kernels_of
from tests.known_targets import KNOWN_TARGETS
from tests.slow import every
from tests.waiting import PATIENCE_S

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


@pytest.mark.parametrize("name", every(3, REGIONS))
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


def test_launches_in_several_goes_add_up_and_the_last_one_counts_as_the_first() -> None:
    asked = Prepared(REGIONS["elementwise"]())
    slot, flushes = next(info.slot for info in asked.bench.buffers if info.is_input), list[int]()

    def flush() -> None:
        flushes.append(one.number)

    one = Stressed(asked.bench, asked.compiled, (), flush=flush, launches=64)
    assert [one.launch(40), one.left, one.launch(10), one.left] == ["", 24, "", 14]
    asked.bench.disturb(slot, 1, np.random.default_rng(0))
    assert one.launch(100).startswith("of 64 launches one left another element "), "no more than it is to have"
    assert len(flushes) == 64 // stress.FLUSHED_EVERY, "as often as in one go"


def test_a_child_goes_on_with_stress_where_it_was_or_begins_anew_and_counts_on() -> None:
    region = REGIONS["a reduction"]()
    compiled = compile_region(region, baseline_of(region, TARGET), TARGET)
    goes = [StressJob(region, compiled, TARGET, launches=40, before=before, count=20) for before in (0, 20)]
    held = list[bool]()
    for between in (lambda: None, lambda: child.bench_for(region, TARGET)):
        for job in goes:
            assert child.stress_job(job).wrong == ""
            held.append(child._stress is not None)
            between()
    assert held == [True, False] * 2, "its buffers are given back with the last launch, or when others run"


def test_a_program_that_leaves_alone_what_looks_done_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Prepared(REGIONS["a reduction"]())
    monkeypatch.setattr(asked.bench, "sender", lambda runs, stream: nothing)
    assert asked.stressed(launches=stress.RESTORED_EVERY - 1) != "", "it was poisoned before the first launch"
    assert asked.stressed(launches=stress.RESTORED_EVERY) != ""


class StandIn:
    """In the place of a second stream: what is sent to it runs at once. `happens` is asked before each launch, with its
    number; where it says so, the launch is left out."""

    def __init__(self, happens: Callable[[int], bool] = lambda number: False) -> None:
        self.happens, self.calls, self.sent, self.starts = happens, Counter[int](), list[str](), 0

    def wait(self) -> None:
        self.sent.append("wait")

    def follow(self) -> None:
        self.sent.append("follow")

    def program(self, loaded: Any) -> Callable[..., None]:
        self.starts += 1
        program = self.starts

        def launch(*pointers: Any, **how: Any) -> None:
            self.calls[program] += 1
            is_stressed = program > 2  # not the two kernels that restore and compare an output
            if not is_stressed or not self.happens(self.calls[program]):
                loaded(*pointers, **how)

        return launch


def beside(monkeypatch: pytest.MonkeyPatch, stream: StandIn) -> StandIn:
    monkeypatch.setattr(stress, "second_stream", lambda device: stream)
    return stream


@pytest.mark.parametrize("name", REGIONS)
def test_half_of_the_launches_have_the_program_itself_beside_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = beside(monkeypatch, StandIn())
    asked = Prepared(REGIONS[name]())
    monkeypatch.setattr(stress, "TURN", 10)
    assert asked.stressed(launches=45) == ""
    outputs, kernels = len(asked.bench.outputs), len(asked.bench.region.kernels)
    assert stream.starts == 2 * outputs + kernels, "what restores, what compares, and the program"
    assert set(list(stream.calls.values())[-kernels:]) == {20}
    assert stream.sent == ["follow", *["wait", "follow"] * 2, "wait", *["wait", "follow"] * 2, "wait"], (
        "after the inputs, where a group begins, where the cache is emptied, and before the next launches alone"
    )


def test_the_device_waits_for_the_host_only_as_long_as_it_must() -> None:
    """Both streams have the next launch whenever they are done with one: pair i is sent by the time i are done."""
    for count, sending_s, launch_s in itertools.product((1, 2, 16), (1e-4, 3e-4), (0.0, 1e-5, 1e-4, 1e-3)):
        ahead_s = stress.ahead_s(count, sending_s, launch_s)
        assert all((i + 1) * sending_s <= ahead_s + i * launch_s for i in range(count))
        assert ahead_s <= stress.ahead_s(count, sending_s, 0.0) == hidden_s(count * sending_s)
    assert stress.ahead_s(16, 1e-4, 1e-3) == hidden_s(1e-4), "long programs hide the host themselves"


def test_outputs_are_compared_and_put_back_by_wide_loads() -> None:
    for make, words in itertools.product((stress._marking, stress._copying), (stress.ROW, 3 * stress.ROW)):
        region = Region((kernel_of(make(words)),))
        space = space_of(region, KNOWN_TARGETS["sm_90"])
        space.check(wide := wide_of(region, KNOWN_TARGETS["sm_90"]))
        assert wide.body == '[["UPCAST",0,4],["LOCAL",0,256]]'
        assert wide_of(region, TARGET) == baseline_of(region, TARGET), "a CPU has no local memory"


def test_however_many_launches_passed_half_of_them_had_company() -> None:
    gpu = KNOWN_TARGETS["sm_90"]
    for count in (stress.PROVISIONAL, stress.LAUNCHES):
        assert stress.launches_beside(gpu, count) == count // 2 and stress.launches_beside(TARGET, count) == 0
    beside = 0
    for number in range(1, 1000):
        beside += stress.is_beside(number)
        assert stress.launches_beside(gpu, number) == beside and abs(number / 2 - beside) <= stress.TURN / 2
    assert f"{stress.PROVISIONAL // 2} of them beside another stream" in stress.rule(gpu, stress.PROVISIONAL)


def test_pieces_have_the_company_that_one_go_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stress, "TURN", 10)
    for goes in ([45], [7, 5, 3, 30], [15, 1, 29]):
        stream, asked = beside(monkeypatch, StandIn()), Prepared(REGIONS["elementwise"]())
        one = Stressed(asked.bench, asked.compiled, (), flush=nothing, launches=45)
        assert [one.launch(count) for count in goes] == [""] * len(goes)
        assert list(stream.calls.values())[-1] == 20


def test_what_a_launch_leaves_on_the_other_stream_is_compared_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 32 launches there one writes nothing, after its output was put back."""
    monkeypatch.setattr(stress, "TURN", 32)
    restored = next(n for n in range(33, 65) if n % stress.RESTORED_EVERY == 0) - 32
    beside(monkeypatch, StandIn(lambda number: number == restored))
    reason = Prepared(REGIONS["a reduction"]()).stressed()
    assert reason.startswith("of 64 launches one, beside another stream, left another element 0 of buffer "), reason


def test_what_goes_wrong_only_beside_another_stream_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch there disturbs what the program reads, and the next one makes it good again."""
    monkeypatch.setattr(stress, "TURN", 32)
    asked = Prepared(REGIONS["elementwise"]())
    slot = next(info.slot for info in asked.bench.buffers if info.is_input)

    def happens(number: int) -> bool:
        if number == 5:
            asked.bench.disturb(slot, 1, np.random.default_rng(0))
        if number == 6:
            asked.bench.restore_inputs()
        return False

    assert asked.stressed() == ""
    beside(monkeypatch, StandIn(happens))
    reason = asked.stressed()
    assert reason.startswith("of 64 launches one left another element "), reason


def test_what_is_written_outside_on_the_other_stream_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Workbench] = []

    def happens(number: int) -> bool:
        if number == 7:
            (_, behind), *_ = (made[0]._guards[info.slot] for info in made[0].buffers if info.is_input)
            made[0].fill_with(behind, 0)
        return False

    class Kept(Workbench):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            made.append(self)

    monkeypatch.setattr(stress, "Workbench", Kept)
    beside(monkeypatch, StandIn(happens))
    asked = Prepared(REGIONS["a reduction"]())
    assert asked.stressed().startswith("wrote outside buffer ") and asked.bench.tainted


def test_what_is_wrong_at_once_is_said_by_the_reference() -> None:
    asked, other = Prepared(REGIONS["elementwise"]()), region_of(empty(64, 96) + empty(64, 96))
    asked.compiled = compile_region(other, baseline_of(other, TARGET), TARGET)
    assert "of buffer 0 is" in asked.stressed()


def test_stress_runs_in_the_child_of_a_service() -> None:
    region = REGIONS["a reduction"]()
    compiled = compile_region(region, baseline_of(region, TARGET), TARGET)
    with MeasureService("CPU:X86", run_id="stress") as service:
        job = StressJob(region, compiled, TARGET, launches=40)
        assert service.stress(job, timeout_s=PATIENCE_S).result(timeout=PATIENCE_S).wrong == ""


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
    monkeypatch.setattr(stress, "RULES", stress.RULES + 1)
    assert not stress.has_passed(region, "a" * 64, TARGET, driver, ()), "it says something else now"


def test_a_pass_of_more_launches_counts_for_fewer_and_never_the_reverse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    driver = Toolchain("0.14.0", "NVRTC 13.0", "580", "3.9.0", 1)
    key = (REGIONS["elementwise"](), "a" * 64, TARGET, driver, ())
    assert stress.passed(*key) == 0
    for kept, launches in ((1000, 1000), (4000, 4000), (4000, 1000)):
        stress.keep_pass(*key, launches=launches)
        assert stress.passed(*key) == kept and not stress.has_passed(*key)
    (file,) = (tmp_path / "kcg" / "stress").iterdir()
    for text in ("", "[]", '{"launches": true}', '{"launches": -1}', f'{{"launches": {stress.LAUNCHES}}}'):
        file.write_text(text)
        assert stress.passed(*key) == 0, "what nobody wrote counts for nothing"
    stress.keep_pass(*key, launches=3000)
    stress.forget_part(*key)
    assert stress.passed(*key) == 0, "it failed later"
    stress.keep_pass(*key, launches=3000)
    stress.keep_pass(*key)
    assert stress.passed(*key) == stress.LAUNCHES and stress.has_passed(*key)
    stress.keep_pass(*key, launches=3000)
    stress.forget_part(*key)
    assert stress.has_passed(*key) and len(list(file.parent.iterdir())) == 1


def test_what_is_kept_says_how_many_launches_had_another_stream_beside_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    region, driver = REGIONS["elementwise"](), Toolchain("0.14.0", "NVRTC 13.0", "580", "3.9.0", 1)
    for target, count in ((TARGET, 0), (KNOWN_TARGETS["sm_90"], stress.LAUNCHES // 2)):
        stress.keep_pass(region, f"{count:064}", target, driver, ())
        kept = [json.loads(path.read_text()) for path in (tmp_path / "kcg" / "stress").iterdir()]
        assert next(one for one in kept if one["binary"] == f"{count:064}")["beside"] == count
        assert (f"{count} of them beside another stream" in stress.rule(target)) == bool(count)


def test_what_stress_takes_follows_from_the_program_and_its_output() -> None:
    assert stress.expected_s(1e-3, 0, TARGET) == pytest.approx(stress.LAUNCHES * 1e-3)
    assert stress.expected_s(1e-9, 0, TARGET) == stress.LAUNCHES * stress.HOST_S, "no shorter than the host allows"
    gpu = KNOWN_TARGETS["sm_90"]
    assert stress.expected_s(1e-3, 0, gpu) > 1.5 * stress.expected_s(1e-3, 0, TARGET), "half of it runs on two streams"


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
        first = next(
            s for s in [space.start(), *space.neighbours(space.start())] if needs_stress(region, s, service.target)
        )
        beside = [s for s in space.neighbours(first) if needs_stress(region, s, service.target)]
        chosen = [first, *random.Random(1).sample(beside, 3)]
        for schedule in chosen:
            compiled = service.compiled(region, schedule).result(timeout=PATIENCE_S).compiled
            assert (
                service.stress(StressJob(region, compiled, service.target), timeout_s=PATIENCE_S).result().wrong == ""
            )
