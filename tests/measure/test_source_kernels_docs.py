"""The examples of docs/hand-written.md do what it says: those for a CPU run, the others compile where they can."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from tinygrad import Tensor

from kcg.compat.device import clang_path
from kcg.compat.renderers import compiling_renderer
from kcg.kernel.codec import kernel_of
from kcg.kernel.compile import compile_schedule
from kcg.kernel.source.kernels import file_digest, lower, read_kernels, view_of
from kcg.kernels import Launch
from kcg.measure.device_info import detect
from kcg.measure.verify import CheckedBench
from kcg.report.result import read_result
from kcg.types import Region, ScheduleKind, Target
from tests.commands import python
from tests.kernels import empty, kernels_of
from tests.known_targets import KNOWN_TARGETS
from tests.test_readme import Block, blocks, run_block
from tests.waiting import PATIENCE_S
from tests.zoo import reference

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "hand-written.md").read_text(encoding="utf-8")
FILES = {
    match[1]: block.text
    for block in blocks(DOCUMENT)
    if block.language == "python" and (match := re.match(r"# (\w+\.py)\n", block.text))
}
SM_90 = KNOWN_TARGETS["sm_90"]


def region_of(tensor: Tensor) -> Region:
    (ast,) = kernels_of(tensor)
    return Region((kernel_of(ast),))


def outer_sum() -> Region:
    return region_of((empty(64, 160).reshape(64, 160, 1) * empty(64, 160).reshape(64, 1, 160)).sum((1, 2)))


def written(folder: Path, name: str) -> Path:
    path = folder / name
    path.write_text(FILES[name], encoding="utf-8")
    return path


def test_every_file_of_the_document_is_here() -> None:
    of_kernels = ["my_kernels.py", "c_kernels.py", "cuda_kernels.py", "triton_kernels.py"]
    assert sorted(FILES) == sorted([*of_kernels, "model.py", "attention.py"])


@pytest.mark.slow
def test_the_attention_of_the_document_is_one_and_what_takes_its_place_is_for_it(tmp_path: Path) -> None:
    sys.path.insert(0, str(tmp_path))
    try:
        written(tmp_path, "attention.py")
        from attention import attention, step  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(tmp_path))
    assert len(step.captured.linear.src) == 1
    q, k, v = np.random.default_rng(0).standard_normal((3, 3, 24, 8)).astype(np.float32)
    out = Tensor.empty(3, 24, 8).custom_kernel(*map(Tensor, (q, k, v)), fxn=attention)[0]
    assert np.abs(out.numpy() - reference.attention(q.astype(np.float64), k, v)).max() < 2e-6
    region = region_of(Tensor.empty(2, 64, 16).custom_kernel(*(empty(2, 64, 16) for _ in range(3)), fxn=attention)[0])
    path = ROOT / "evaluation" / "pytorch" / "kernels" / "flash_c.py"
    (kernel,) = read_kernels(path, file_digest(path))
    assert kernel.wants(view_of(region, detect("CPU:X86", 1)[0]))


@pytest.mark.slow
def test_the_uop_example_wins_as_the_command_shows_it(tmp_path: Path) -> None:
    folder = tmp_path / "reader"
    folder.mkdir()
    for name in ("my_kernels.py", "model.py"):
        written(folder, name)
    (command,) = [b for b in blocks(DOCUMENT) if b.language == "bash" and "model.py" in b.text]
    run_block(Block("bash", command.text.replace("--device CPU ", "--device CPU:X86 "), command.line, True), folder)
    rows = read_result(folder / "kcg-out" / "model" / "RESULT.json").regions
    (row,) = [r for r in rows if r.handwritten]
    assert row.chosen.name == "two_sums" and row.chosen.schedule.kind == ScheduleKind.SOURCE


@pytest.mark.skipif(clang_path() is None, reason="needs clang, which is not here")
def test_the_c_example_is_right(tmp_path: Path) -> None:
    path = written(tmp_path, "c_kernels.py")
    (kernel,) = read_kernels(path, file_digest(path))
    target, region = detect("CPU:X86", 1)[0], outer_sum()
    view = view_of(region, target)
    assert kernel.wants(view)
    bench = CheckedBench(region, target)
    launch = bench.launcher(compile_schedule(region, lower(kernel, view, path), target))
    result = bench.check(launch, (), seeds=(1, 2), thorough=True)
    assert result.passed, result.reason


def test_the_cuda_example_is_matched_lowered_and_compiled_where_nvrtc_is(tmp_path: Path) -> None:
    path = written(tmp_path, "cuda_kernels.py")
    (kernel,) = read_kernels(path, file_digest(path))
    region, other = region_of(empty(512, 1000).sum(1)), outer_sum()
    assert kernel.wants(view_of(region, SM_90)) and not kernel.wants(view_of(other, SM_90))
    schedule = lower(kernel, view_of(region, SM_90), path)
    assert kernel.launch(view_of(region, SM_90)) == Launch((512,), (256,), 1024)  # type: ignore[operator]
    try:
        compiling_renderer(SM_90)
    except AttributeError:  # tinygrad's word for a library that does not load
        pytest.skip("needs NVRTC, which is not here: matched and lowered only")
    assert compile_schedule(region, schedule, SM_90).binary[:4] == b"\x7fELF"


def bf16_matmul(m: int, n: int, k: int) -> Region:
    return region_of(empty(m, k, dtype="bfloat16") @ empty(k, n, dtype="bfloat16"))


def test_the_triton_example_is_compiled_where_triton_is(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="needs Triton, which is not here")
    path = written(tmp_path, "triton_kernels.py")
    (kernel,) = read_kernels(path, file_digest(path))
    region = bf16_matmul(256, 384, 512)
    view = view_of(region, SM_90)
    assert kernel.wants(view) and not kernel.wants(view_of(bf16_matmul(100, 384, 512), SM_90))
    schedule = lower(kernel, view, path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    again = written(elsewhere, "triton_kernels.py")
    sys.modules.pop(f"kcg_kernels_{file_digest(again)[:16]}", None)
    (same,) = read_kernels(again, file_digest(again))
    assert lower(same, view, again) == schedule, "where the file lies is no part of its identity"
    compiled = compile_schedule(region, schedule, SM_90)
    assert compiled.shared_bytes > 48 << 10 and compiled.local_size == (256, 1, 1)
    assert len(compiled.signature) == 3


def test_an_assembler_of_tritons_own_choice_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton 3.6 takes the older of its two for sm_90, and that cannot read PTX for the newer one."""
    triton = pytest.importorskip("triton", reason="needs Triton, which is not here")
    old = tmp_path / "ptxas"
    old.write_text("#!/bin/sh\n[ $1 = --version ] && echo 'release 12.8, V12.8.93' || exit 9\n", encoding="utf-8")
    old.chmod(0o755)
    path = written(tmp_path, "triton_kernels.py")
    (kernel,) = read_kernels(path, file_digest(path))
    region = bf16_matmul(256, 384, 256)
    with triton.knobs.nvidia.scope(), triton.knobs.cache.scope():
        for which in ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH"):
            monkeypatch.setenv(which, str(old))
        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
        schedule = lower(kernel, view_of(region, SM_90), path)
    assert compile_schedule(region, schedule, SM_90).binary[:4] == b"\x7fELF"


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["cuda_kernels.py", "triton_kernels.py"])
def test_the_gpu_examples_are_right_on_a_gpu(name: str, tmp_path: Path) -> None:
    if name.startswith("triton"):
        pytest.importorskip("triton", reason="needs Triton, which is not here")
    path = written(tmp_path, name)
    code = f"from tests.measure.test_source_kernels_docs import on_gpu; on_gpu({str(path)!r})"
    done = python("-c", code, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]


def on_gpu(name: str) -> None:
    """Verify an example by every rule on the GPU, in a process of its own: the tests' own device is the CPU."""
    from kcg.compat.device import prepare

    prepare("CUDA")
    target: Target = detect("CUDA", 1)[0]
    path = Path(name)
    (kernel,) = read_kernels(path, file_digest(path))
    region = bf16_matmul(1024, 768, 512) if "triton" in name else region_of(empty(4096, 5000).sum(1))
    view = view_of(region, target)
    assert kernel.wants(view)
    bench = CheckedBench(region, target)
    launch = bench.launcher(compile_schedule(region, lower(kernel, view, path), target), as_tinygrad=True)
    result = bench.check(launch, (), seeds=(1, 2, 3), thorough=True)
    assert result.passed, result.reason
    print(f"{kernel.name}: {min(launch() for _ in range(10)) * 1e6:.1f} us")


BF16_MODEL = """
import numpy as np
from tinygrad import Tensor, TinyJit, dtypes

def drawn(*shape):
    return Tensor(np.random.default_rng(0).normal(size=shape).astype(np.float32)).cast(dtypes.bfloat16).realize()

@TinyJit
def step(a, b, c):
    return ((a @ b).contiguous() @ c).realize()

def run():
    given = drawn(1024, 512), drawn(512, 768), drawn(768, 640)
    for _ in range(4):
        out = step(*given)
    a, b, c = (value.float().numpy().astype(np.float64) for value in given)
    expected = a @ b @ c
    return float(np.abs(out.float().numpy() - expected).max() / np.abs(expected).max())

if __name__ == "__main__":
    print("error", run())
"""

IN_A_GRAPH = """
import kcg
from kcg.report.result import read_result

with kcg.tuned("out/RESULT.json", kernels="triton_kernels.py"):
    from model import run, step

    error = run()
chosen = [row.chosen.schedule.kind for row in read_result("out/RESULT.json").regions if row.handwritten]
calls = [inner for call in step.captured.linear.src for inner in (
    call.src[0].src[0].src if call.src[0].op.name == "CUSTOM_FUNCTION" else (call,))]
print(error, len(step.captured.linear.src), [call.src[0].arg.name for call in calls])
assert error < 0.02 and sum(call.src[0].arg.name == "tiled_matmul" for call in calls) == chosen.count("source")
"""


@pytest.mark.gpu
def test_the_triton_example_is_compared_on_a_gpu_and_runs_in_a_cuda_graph(tmp_path: Path) -> None:
    """With Opts and with tile programs, which are generated and mostly faster than it."""
    pytest.importorskip("triton", reason="needs Triton, which is not here")
    written(tmp_path, "triton_kernels.py")
    (tmp_path / "model.py").write_text(BF16_MODEL, encoding="utf-8")
    (tmp_path / "use.py").write_text(IN_A_GRAPH, encoding="utf-8")

    def ran(*arguments: str) -> str:
        done = python(*arguments, cwd=tmp_path, timeout=PATIENCE_S, DEV="CUDA")
        assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
        return done.stdout

    limits = ["--budget", "200s", "--measurements", "24"]
    command = ["-m", "kcg.optimize", "model.py", "--device", "CUDA", "--kernels", "triton_kernels.py", *limits]
    printed = ran(*command, "--report", "out")
    rows = [r for r in read_result(tmp_path / "out" / "RESULT.json").regions if r.handwritten]
    fates = [dict(row.handwritten)["tiled_matmul"] for row in rows]
    assert len(fates) == 2, printed
    assert all(
        row.chosen.name == "tiled_matmul" or fate.startswith(("lost to tile ", "is not clearly faster than tile "))
        for row, fate in zip(rows, fates, strict=True)
    ), fates
    print(printed, ran("use.py"))
