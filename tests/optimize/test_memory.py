"""Whether a workload has room on the device is known before anything of it is allocated, and said in one line."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from tinygrad import Tensor

from kcg.cli import guarded
from kcg.compat.hardware import allocated_bytes, memory_of
from kcg.errors import ExitCode, UsageError
from kcg.judge.step import _Program
from kcg.optimize.__main__ import main
from kcg.optimize.run import Memory, check_memory, next_smaller
from kcg.optimize.settings import Settings
from kcg.types import Workload
from kcg.workloads import registry
from kcg.workloads.capture import lazy_workload
from kcg.workloads.family import Step
from kcg.workloads.registry import WorkloadSpec, spec_of
from tests.captured import captured
from tests.tiny_models import TINY

WIDTHS = {"mini": 64, "middling": 1024, "vast": 1 << 24}


def _capture(preset: str) -> Workload:
    x, weight = (Tensor.empty(rows, WIDTHS[preset], dtype="float32") for rows in (8, WIDTHS[preset]))
    return lazy_workload("layer", preset, (x @ weight).relu().contiguous() @ weight)


def _never(preset: str, seed: int) -> Step:
    raise AssertionError("nothing may be allocated")


LAYER = WorkloadSpec(
    name="layer",
    about="a layer twice",
    presets=tuple(WIDTHS),
    auto_preset=lambda _: "vast",
    capture=_capture,
    runnable=_never,
)


@pytest.fixture
def layer(monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkloadSpec]:
    spec_of.cache_clear()
    monkeypatch.setitem(registry.WORKLOADS, "layer", lambda: LAYER)
    yield LAYER
    spec_of.cache_clear()


def test_what_is_needed_is_what_a_run_takes() -> None:
    """Weights and inputs to the byte; what lies between them as the planner of TinyJit lays it out, and the output."""
    workload = TINY.capture("float32")
    assert TINY.runnable is not None
    gc.collect()  # what earlier tests left is not given back meanwhile
    before = allocated_bytes()
    step = TINY.runnable("float32", 0)
    held = allocated_bytes() - before
    program = _Program(step)
    output = program.outputs[0][0].size * 4
    assert held <= workload.held_bytes <= held + output
    assert program.own_bytes == workload.between_bytes + output


def test_sizes_follow_from_shapes(layer: WorkloadSpec) -> None:
    small = layer.capture("mini")
    assert small.held_bytes == 4 * (64 * 64 + 2 * 8 * 64), "weight, input and output"
    assert small.between_bytes == 4 * 8 * 64
    assert replace(small, held_bytes=0, between_bytes=0) == small, "no part of what a workload is"


def test_the_memory_of_this_machine() -> None:
    known = memory_of("CPU")
    assert known is not None
    assert known[1] == pytest.approx(psutil.virtual_memory().total, rel=0.01)
    assert known[0] == pytest.approx(psutil.virtual_memory().available, rel=0.3)
    assert memory_of("METAL") is None


@pytest.mark.gpu
def test_the_memory_of_the_gpu() -> None:
    free, total = memory_of("CUDA") or (0, 0)
    assert 0 < free <= total


@pytest.mark.gpu
def test_on_a_gpu_that_others_fill_the_next_smaller_preset_of_flux_is_named(tmp_path: Path) -> None:
    from tinygrad import Device
    from tinygrad.device import BufferSpec

    large, small = (captured("flux", preset).memory_bytes for preset in ("1024", "768"))
    allocator = Device["CUDA"].allocator
    free, _ = memory_of("CUDA") or (0, 0)
    assert free > large
    size, at_once_freed = free - (large + small) // 2, BufferSpec(nolru=True)
    filled = allocator.alloc(size, at_once_freed)
    try:
        command = ["-m", "kcg.optimize", "flux", "--preset", "1024", "--device", "CUDA", "--report", str(tmp_path)]
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True)
    finally:
        allocator.free(filled, size, at_once_freed)
    line = done.stderr.splitlines()[-1]
    assert (done.returncode, done.stdout) == (ExitCode.USAGE, ""), done.stderr
    assert line.startswith("kcg: flux 1024 needs ") and "use --preset 768, which needs " in line
    assert not list(tmp_path.iterdir())


def test_a_preset_that_does_not_fit_is_one_line_that_names_the_next_smaller(
    layer: WorkloadSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["kcg.optimize", "layer", "--device", "CPU:X86", "--report", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        guarded(main)
    printed = capsys.readouterr()
    assert (ended.value.code, printed.out) == (ExitCode.USAGE, "")
    line = printed.err.splitlines()[-1]
    assert line.startswith(
        "kcg: layer vast needs 1.13e+06 GB of memory (1.13e+06 GB of weights and inputs, 0.537 GB in"
    )
    assert line.endswith("use --preset middling, which needs 0.00429 GB")
    assert [x for x in printed.err.splitlines() if x.startswith("kcg: ")] == [line]
    assert not list(tmp_path.iterdir())


def test_without_a_smaller_preset_it_says_what_else_would_help(layer: WorkloadSpec) -> None:
    workload, lines = layer.capture("middling"), list[str]()
    memory: dict[str, Any] = {"device": "CUDA", "log": lines.append}
    with pytest.raises(UsageError, match=r"CUDA has 1e-09 GB free of 8 GB: .* free memory that others use"):
        check_memory(Settings("layer"), workload, Memory(1, 8 * 10**9), **memory)
    with pytest.raises(UsageError, match="use a device with more memory"):
        check_memory(Settings("layer"), workload, Memory(1, 2), **memory)
    assert len(lines) == 2 and all(line.endswith("looking for a preset that fits") for line in lines)
    smaller = next_smaller(layer.capture("vast"), Memory(10**6, 10**6))
    assert smaller is not None and smaller.preset == "mini"


def test_what_fits_is_not_reported_or_is_no_whole_model_passes(layer: WorkloadSpec) -> None:
    workload = layer.capture("vast")
    for settings, memory in (
        (Settings("layer"), None),
        (Settings("layer"), Memory(workload.memory_bytes, workload.memory_bytes)),
        (Settings("train.py"), Memory(1, 1)),
    ):
        check_memory(settings, workload, memory, device="CPU", log=lambda line: pytest.fail(line))


def test_a_dry_run_says_what_would_be_needed(
    layer: WorkloadSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["kcg.optimize", "layer", "--device", "CPU:X86", "--dry-run", "--report", str(tmp_path / "none")]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as ended:
        guarded(main)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("layer vast needs ")]
    assert ended.value.code == ExitCode.OK and line.endswith(" GB, which is refused")
