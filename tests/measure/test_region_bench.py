"""A program of several launches is timed as one, and everything that it writes is guarded and poisoned."""

from __future__ import annotations

import numpy as np
import pytest
from tinygrad import Tensor

from kcg.compat.programs import hidden_s
from kcg.kernel.codec import ast_of, kernel_of
from kcg.kernel.program import Program, ProgramLaunch, Scratch, program_of_parts
from kcg.measure import workbench
from kcg.measure.inputs import RECIPE
from kcg.measure.workbench import FINITE_POISON, HOST_S, LATELY, NAN_POISON, Workbench, _same_bits
from kcg.types import Region
from tests.chains import X86, compiled_of, program_of, region_of, sequence_of
from tests.kernels import empty

ROWS, WIDTH = 6, 16


def norm(x: Tensor) -> Tensor:
    return x.layernorm().contiguous()


@pytest.fixture(scope="module")
def region() -> Region:
    """Buffers: 0 and 2 a value for each row, 1 the input, 3 the output."""
    made = region_of(norm(empty(ROWS, WIDTH)))
    assert (len(made.kernels), made.outputs) == (3, (3,))
    return made


@pytest.fixture(scope="module")
def parts(region: Region) -> Program:
    return program_of_parts(region, [compiled_of(ast_of(kernel)) for kernel in region.kernels])


def filled(region: Region) -> Workbench:
    bench = Workbench(region, X86)
    bench.fill(1, RECIPE)
    return bench


def test_a_device_is_kept_busy_for_as_long_as_the_host_took_lately(
    region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first launches load their binaries: no later run waits for as long."""
    now, spun, takes = [0.0], list[float](), iter([0.02, *[1e-5] * 9])
    bench = Workbench(region, X86)
    monkeypatch.setattr(bench, "_spin", spun.append)
    monkeypatch.setattr(workbench.time, "perf_counter", lambda: now[0])

    def send(**how: bool) -> None:
        now[0] += next(takes)

    run = bench._timed_as_one([send])
    for _ in range(10):
        run()
    assert spun[0] == HOST_S and spun[1 : LATELY + 1] == [pytest.approx(hidden_s(0.02))] * LATELY
    assert spun[LATELY + 1 :] == [HOST_S] * (9 - LATELY)


def test_a_norm_runs_as_its_parts_between_one_pair_of_clock_readings(region: Region, parts: Program) -> None:
    bench = filled(region)
    assert [(b.slot, b.is_input, b.is_output) for b in bench.buffers] == [
        (0, False, True),
        (1, True, False),
        (2, False, True),
        (3, False, True),
    ]
    run = bench.launcher(parts)
    seconds = []
    for byte in (NAN_POISON, FINITE_POISON):
        bench.poison(byte)
        seconds.append(run())
        x = bench.read(1).view(np.float32).reshape(ROWS, WIDTH).astype(np.float64)
        expected = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
        found = bench.read(3).view(np.float32).reshape(ROWS, WIDTH)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
        assert bench.guards_intact() is None and bench.holds_input(1)
    assert all(0 < s < 1 for s in seconds)


def test_a_program_is_as_long_as_all_of_its_launches(region: Region, parts: Program) -> None:
    """Of twice the launches the shortest of many runs is longer, and at most about twice as long."""
    wide = region_of(norm(empty(256, 256)))
    once = program_of_parts(wide, [compiled_of(ast_of(kernel)) for kernel in wide.kernels])
    four = Program(once.launches * 4, once.buffers)
    bench = filled(wide)
    short, long = (min(run() for _ in range(30)) for run in (bench.launcher(once), bench.launcher(four)))
    assert 2 * short < long < 8 * short


def test_scratch_is_poisoned_and_guarded_like_an_output(region: Region, parts: Program) -> None:
    hidden = {0: 4, 2: 5}
    launches = [ProgramLaunch(one.compiled, tuple(hidden.get(n, n) for n in one.args)) for one in parts.launches]
    program = Program(tuple(launches), 4, (Scratch(ROWS, "float"), Scratch(ROWS, "float")))
    bench = filled(region)
    bench.poison(NAN_POISON)
    bench.launcher(parts)()
    expected = bench.read(3)
    run = bench.launcher(program)
    assert [info.slot for info in bench.buffers] == [0, 1, 2, 3, 4, 5] and bench.outputs == (3,)
    bench.launcher(program)
    assert len(bench.buffers) == 6, "a program that is loaded again has the same"
    bench.poison(FINITE_POISON)
    for slot in (0, 2, 3, 4, 5):
        assert set(bench.read(slot).view(np.uint8)) == {FINITE_POISON}
    run()
    np.testing.assert_array_equal(bench.read(3), expected)
    assert set(bench.read(0).view(np.uint8)) == {FINITE_POISON}, "it stores no intermediate of the region"
    assert bench.guards_intact() is None


def test_a_write_behind_a_workspace_is_seen(region: Region, parts: Program) -> None:
    hidden = {0: 4}
    launches = [ProgramLaunch(one.compiled, tuple(hidden.get(n, n) for n in one.args)) for one in parts.launches]
    bench = filled(region)
    bench.launcher(Program(tuple(launches), 4, (Scratch(ROWS - 1, "float"),)))()
    assert bench.guards_intact() == 4


def test_a_launch_that_does_not_run_leaves_poison(region: Region, parts: Program) -> None:
    bench = filled(region)
    bench.poison(NAN_POISON)
    bench.launcher(Program((parts.launches[0], parts.launches[2]), 4))()
    assert np.isnan(bench.read(3).view(np.float32)).all()


def test_one_kernel_is_filled_as_on_its_own_workbench() -> None:
    (ast,) = [call.src[0] for call in (empty(ROWS, WIDTH) + empty(WIDTH)).contiguous().schedule_linear().src]
    kernel = kernel_of(ast)
    alone, bench = Workbench(Region((kernel,)), X86), filled(Region((kernel,)))
    alone.fill(1, RECIPE)
    for slot in (1, 2):
        np.testing.assert_array_equal(alone.read(slot), bench.read(slot))
    assert bench.outputs == (0,)
    compiled = compiled_of(ast_of(kernel))
    alone.launcher(compiled)()
    bench.launcher(program_of_parts(bench.region, [compiled]))()
    np.testing.assert_array_equal(alone.read(0), bench.read(0))


def test_a_program_of_several_launches_for_one_kernel_pays_once_what_one_launch_pays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between two events a launch that is timed alone waits for the host. On a GPU all are timed behind a busy device,
    where nothing waits, and what one launch takes alone is added to each."""
    (ast,) = [call.src[0] for call in (empty(ROWS, WIDTH) + empty(WIDTH)).contiguous().schedule_linear().src]
    kernel = kernel_of(ast)
    bench = filled(Region((kernel,)))
    one = program_of_parts(bench.region, [compiled_of(ast_of(kernel))])
    two = Program(one.launches * 2, one.buffers)
    assert 0 < bench.launcher(two)() < 1, "on a CPU nothing is added"
    monkeypatch.setattr(workbench, "alone_s", lambda _: 7.0)
    assert bench.launcher(two)() > 7 and bench.launcher(one)() < 1
    monkeypatch.setattr(workbench, "HIDES_HOST", (bench.device,))
    assert bench.launcher(one)() > 7


def test_inputs_of_several_kernels_differ_and_stay_in_range() -> None:
    """Both kernels have their input in slot 1; and what is read is drawn for the kernel that selects the fewest."""

    def model(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return (x + 1).contiguous(), (y + 1).contiguous()

    two = sequence_of(*model(empty(ROWS, WIDTH), empty(ROWS, WIDTH))).region(0, 1)
    bench = filled(two)
    assert [info.slot for info in bench.buffers if info.is_input] == [1, 3]
    assert (bench.read(1) != bench.read(3)).any()
    index = empty(8, dtype="int32")
    both = region_of(empty(5, 4)[index].contiguous(), empty(90, 4)[index].contiguous())
    bench = filled(both)
    shared = set(both.args[0]) & set(both.args[1])
    (slot,) = shared
    assert bench.read(slot).view(np.int32).max() < 5


def test_an_update_in_place_is_put_back_before_each_run() -> None:
    def model(state: Tensor, x: Tensor) -> Tensor:
        return state.assign(state + (x * 2).contiguous())

    region = region_of(model(empty(ROWS, WIDTH), empty(ROWS, WIDTH)))
    state = empty(ROWS, WIDTH)
    fused = program_of(region, {1: empty(ROWS, WIDTH), 2: state}, lambda x, s: {2: s.assign(s + x * 2)})
    parts = program_of_parts(region, [compiled_of(ast_of(kernel)) for kernel in region.kernels])
    bench, found = filled(region), []
    assert [(b.slot, b.is_input, b.is_output) for b in bench.buffers] == [
        (0, False, True),
        (1, True, False),
        (2, True, True),
    ]
    for program in (parts, fused, fused):
        bench.poison(NAN_POISON)
        bench.launcher(program)()
        found.append(bench.read(2))
    assert np.allclose(*(f.view(np.float32) for f in found[:2])) and (found[1] == found[2]).all()


@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float64])
def test_a_bit_that_differs_is_seen_wherever_it_is(dtype: type) -> None:
    for size in (0, 1, 7, 8, 9, 33):
        bits = np.random.default_rng(size).integers(0, 256, size * np.dtype(dtype).itemsize, np.uint8)
        assert _same_bits(bits.view(dtype), bits.copy().view(dtype)), "NaN among them, perhaps"
        assert not _same_bits(bits.view(dtype), np.append(bits, np.zeros(8, np.uint8)).view(dtype))
        for at in range(len(bits)):
            other = bits.copy()
            other[at] ^= 1 << at % 8
            assert not _same_bits(bits.view(dtype), other.view(dtype))
