"""Attention as one kernel: right, judged by kcg, and replaced by what is written by hand."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tinygrad import Tensor
from tinygrad.helpers import Context

from evaluation import rows as figures
from evaluation.pytorch import cases, in_tinygrad, kind
from evaluation.pytorch.one_kernel import GPU_TILE, attention
from kcg.compat.device import clang_path
from kcg.errors import KcgError
from kcg.kernel.analysis import contractions
from kcg.kernel.codec import ast_of, kernel_of
from kcg.kernel.compile import compile_schedule
from kcg.kernel.kinds import describe
from kcg.kernel.loop_nest import axis_table
from kcg.kernel.opts.schedule import RAW, opts_of
from kcg.kernel.opts.space import KernelSpace
from kcg.kernel.reference import CONFIDENT, error_ratio, evaluate, sample_points
from kcg.kernel.source.kernels import file_digest, lower, read_kernels, view_of
from kcg.kernels import KernelView
from kcg.measure.device_info import detect
from kcg.measure.inputs import make_inputs, to_values
from kcg.measure.verify import CheckedBench
from kcg.types import Region
from tests.evaluation.pytorch.running import COMPARE, ROOT, run
from tests.kernels import empty, kernels_of
from tests.known_targets import KNOWN_TARGETS
from tests.waiting import PATIENCE_S
from tests.zoo import reference

KERNELS = ROOT / "evaluation" / "pytorch" / "kernels"
MINI = {"kind": "attention", "heads": 2, "tokens": 32, "width": 16, "dtype": "float32"}
ONE = {**MINI, "program": "one kernel"}
SM_90 = KNOWN_TARGETS["sm_90"]


def region(heads: int, tokens: int, width: int, dtype: str = "float32") -> Region:
    (ast,) = kernels_of(attention(*(empty(heads, tokens, width, dtype=dtype) for _ in range(3))))
    return Region((kernel_of(ast),))


def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel with the tiles that it has on a GPU."""
    monkeypatch.setattr("evaluation.pytorch.one_kernel.CPU_TILE", GPU_TILE)


# -- the kernel


@pytest.mark.parametrize("shape", [(2, 16, 16), (1, 7, 5)])
def test_one_kernel_is_attention(shape: tuple[int, int, int]) -> None:
    q, k, v = (np.random.default_rng(i).standard_normal(shape, np.float32) for i in range(3))
    expected = reference.attention(q.astype(np.float64), k, v)
    found = attention(*(Tensor(values).realize() for values in (q, k, v))).numpy()
    assert np.abs(found - expected).max() < 2e-6


@pytest.mark.slow
def test_the_tiles_of_a_gpu_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """tinygrad's interpreter has groups of threads, too."""
    on_a_gpu(monkeypatch)
    q, k, v = (Tensor.randn(1, 16, 16).realize() for _ in range(3))
    found = attention(*(value.to("PYTHON").realize() for value in (q, k, v))).numpy()
    assert np.abs(found - q.scaled_dot_product_attention(k, v).numpy()).max() < 2e-6


def test_kcg_verifies_it_by_every_rule() -> None:
    target, one = detect("CPU:X86", 1)[0], region(1, 16, 16)
    bench = CheckedBench(one, target)
    launch = bench.launcher(compile_schedule(one, KernelSpace(one, target).baseline(), target))
    result = bench.check(launch, (), seeds=(1, 2, 3), thorough=True)
    assert result.passed and result.seeds == 3, result.reason
    assert {"float64 reference at sampled points", "10 runs bitwise equal"} <= set(result.rules)


def test_the_reference_of_kcg_is_attention_and_its_error_that_of_the_last_rounding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    on_a_gpu(monkeypatch)
    heads, tokens, width = 2, 96, 32
    ast = ast_of(region(heads, tokens, width, "bfloat16").kernel)
    values = {s: to_values(bits, "__bf16") for s, bits in make_inputs(ast, 1).items()}
    (found,) = evaluate(ast, values, sample_points(ast, 40, np.random.default_rng(0)))
    q, k, v = (np.asarray(values[slot], np.float64).reshape(heads, tokens, width) for slot in (1, 2, 3))
    scores = q @ k.transpose(0, 2, 1) / np.sqrt(width)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    out = (weights @ v / weights.sum(-1, keepdims=True)).ravel()[found.indices]
    assert error_ratio(found, out).max() < 1e-6
    assert np.median(error_ratio(found, 1.1 * out)) > CONFIDENT


def test_scores_are_made_again_for_each_group_of_columns_only(monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_gpu(monkeypatch)
    maximum, sums, mixed = contractions(ast_of(region(24, 4608, 128, "bfloat16").kernel))
    assert maximum.factor == sums.factor == 128 / GPU_TILE[2] and mixed.factor == 1
    assert {c.needed for c in (maximum, sums, mixed)} == {2 * 24 * 4608**2 * 128}


def test_the_space_of_a_kernel_with_tiles_of_its_own_is_tinygrads() -> None:
    space, rng = KernelSpace(region(4, 64, 32), SM_90), random.Random(0)
    for _ in range(6):
        schedule = RAW
        while (actions := space.actions(schedule)) and len(opts_of(schedule)) < 4:
            schedule = rng.choice(actions).schedule
            assert space.table(schedule) == axis_table(space.state(schedule))
    assert space.actions(RAW)


def test_on_a_gpu_it_has_tinygrads_own_opts_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiles are as large as BEAM lets a thread's be: nothing is searched where a launch takes a second."""
    on_a_gpu(monkeypatch)
    space = KernelSpace(region(24, 512, 128, "bfloat16"), SM_90)
    assert describe(space.baseline()) == "LOCAL(0,8) LOCAL(1,16)"
    assert not space.actions(RAW) and not space.actions(space.baseline())


# -- the kernels in its place


def of_file(name: str) -> tuple[Path, object]:
    path = KERNELS / name
    (kernel,) = read_kernels(path, file_digest(path))
    return path, kernel


def test_triton_is_for_what_its_tiles_divide() -> None:
    pytest.importorskip("triton", reason="needs Triton, which is not here")
    path, kernel = of_file("flash_triton.py")

    def view(*shape: int, dtype: str = "bfloat16") -> KernelView:
        return view_of(region(*shape, dtype=dtype), SM_90)

    assert kernel.wants(view(24, 4608, 128)) and kernel.wants(view(2, 32, 16, dtype="float32"))
    assert not kernel.wants(view(2, 4600, 128)) and not kernel.wants(view(2, 512, 40))
    matmul = Region((kernel_of(kernels_of(empty(8, 16) @ empty(16, 8))[0]),))
    assert not kernel.wants(view_of(matmul, SM_90))
    schedule = lower(kernel, view(24, 4608, 128), path)
    compiled = compile_schedule(region(24, 4608, 128, "bfloat16"), schedule, SM_90)
    assert compiled.global_size == (24 * 4608 // 128, 1, 1) and compiled.local_size == (256, 1, 1)
    assert len(compiled.signature) == 4 and "wgmma" in compiled.source


@pytest.mark.skipif(clang_path() is None, reason="needs clang, which is not here")
def test_c_is_right_and_a_wrong_one_is_not(tmp_path: Path) -> None:
    _, kernel = of_file("flash_c.py")
    target, one = detect("CPU:X86", 1)[0], region(2, 32, 16)
    bench = CheckedBench(one, target)
    results = []
    for name, text in (
        ("right.py", (KERNELS / "flash_c.py").read_text()),
        ("wrong.py", (KERNELS / "flash_c.py").read_text().replace("total += scores[j]", "total += scores[j] * 1.001f")),
    ):
        path = tmp_path / name
        path.write_text(text)
        (kernel,) = read_kernels(path, file_digest(path))
        launch = bench.launcher(compile_schedule(one, lower(kernel, view_of(one, target), path), target))
        results.append(bench.check(launch, (), seeds=(1, 2, 3), thorough=True))
    assert results[0].passed, results[0].reason
    assert results[0].max_error < 0.5 and not results[1].passed and "is " in results[1].reason


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(24, 1024, 128, "bfloat16"), (2, 512, 64, "float16"), (2, 64, 16, "float32")])
def test_triton_is_right_on_a_gpu(shape: tuple[int, int, int, str]) -> None:
    pytest.importorskip("triton", reason="needs Triton, which is not here")
    code = f"from tests.evaluation.pytorch.test_attention import on_a_real_gpu; on_a_real_gpu{shape!r}"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


def on_a_real_gpu(heads: int, tokens: int, width: int, dtype: str) -> None:
    """Verify tinygrad's kernel and Triton's by every rule, in a process of its own: the tests' device is the CPU."""
    from kcg.compat.device import prepare

    prepare("CUDA")
    target, one = detect("CUDA", 1)[0], region(heads, tokens, width, dtype)
    path, kernel = of_file("flash_triton.py")
    bench, space = CheckedBench(one, target), KernelSpace(one, target)
    schedules = {"tinygrad": space.baseline(), "triton": lower(kernel, view_of(one, target), path)}
    launches = [bench.launcher(compile_schedule(one, s, target), as_tinygrad=True) for s in schedules.values()]
    for name, launch, result in zip(
        schedules, launches, bench.check_all(launches, (), seeds=(1, 2, 3), thorough=True), strict=True
    ):
        assert result.passed, f"{name}: {result.reason}"
        print(f"{name}: {min(launch() for _ in range(5)) * 1e6:.1f} us, error {result.max_error:.2g}")


# -- the comparison


def test_both_programs_give_the_reference() -> None:
    expected = cases.reference(MINI)
    assert expected is not None and len(expected) == 8 * 16
    for case in (MINI, ONE):
        with Context(NOOPT=1):
            step = in_tinygrad.build(case)
            values = kind.values_of(step.run(**step.inputs).numpy())
        assert figures.distance(values, expected) < 1e-5


@pytest.mark.slow
@pytest.mark.skipif(clang_path() is None, reason="needs clang, which is not here")
def test_what_kcg_chose_by_hand_is_timed_and_what_is_for_another_device_says_so(tmp_path: Path) -> None:
    out = tmp_path / "attention.json"
    command = [*COMPARE, "attention", "--device", "CPU:CLANG", "--size", "mini", "--out", str(out)]
    done = subprocess.run(
        [*command, "--work", str(tmp_path / "work"), "--contenders", "c,triton,eager"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (entry,) = json.loads(out.read_text())["runs"].values()
    for row in entry["rows"].values():
        assert row["contenders"]["triton"]["reason"] == "flash_triton.py runs on CUDA only"
        by_hand = row["contenders"]["c"]
        if by_hand["status"] != "ok":  # it was faster, but on a busy machine not by more than the noise
            assert by_hand["reason"].startswith("kcg chose") and "flash_attention_in_c is not" in by_hand["reason"]
            continue
        assert [k["name"] for k in by_hand["tuned"]["kernels"]] == ["flash_attention_in_c"]
        assert by_hand["error"] < 1e-5 and by_hand["tflop_s"] > 0


def test_attention_script(tmp_path: Path) -> None:
    rows = run("attention", tmp_path / "attention.json", "--contenders", "tinygrad,eager")
    assert set(rows) == {"32 tokens", "64 tokens"}
    assert len(list(tmp_path.glob("*.svg"))) == 1 and "TFLOP/s" in next(tmp_path.glob("*.md")).read_text()


def test_where_kcg_chose_nothing_by_hand_there_is_no_time() -> None:
    """It would be the time of something else."""
    from evaluation.pytorch.tuning import check_chosen
    from tests.sample_result import sample_result

    with pytest.raises(KcgError, match="kcg chose"):
        check_chosen(sample_result())
