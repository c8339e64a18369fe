"""The promise of what a script's process lowered: it is what kcg would compile, bit for bit, or it is not used."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tinygrad import Device, Tensor, Variable

from kcg.compat.capture import Recorder, recording
from kcg.compat.tiny import Context
from kcg.kernel.compile import compile_schedule
from kcg.kernel.lowered import Lowered, finished, settings_here
from kcg.kernel.opts.space import KernelSpace
from kcg.types import Kernel, Region, Target
from kcg.workloads.lowered import LINES, LoweredWriter, read_lowered
from kcg.workloads.script import Form, Program, capture_program
from tests.known_targets import X86

DEV = os.environ["DEV"]
SCRIPTS = Path(__file__).parents[1] / "scripts"


def here() -> Target:
    """What a process compiles for: nothing else of the target says how."""
    target = Device["CPU"].renderer.target
    return replace(X86, renderer=target.renderer, arch=target.arch)


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    with recording() as recorder:
        recorder.on_lowered = LoweredWriter(tmp_path, recorder.kernels).lowered
        yield recorder


def is_what_kcg_compiles(kernel: Kernel, lowered: Lowered) -> bool:
    region = Region((kernel,))
    assert lowered.schedule == KernelSpace(region, here()).baseline() and lowered.seconds > 0
    return finished(lowered, here()) == compile_schedule(region, lowered.schedule, here())


def kernels_in(recorder: Recorder) -> dict[str, Kernel]:
    return {kernel.id: kernel for kernel in recorder.kernels.values() if isinstance(kernel, Kernel)}


def test_it_is_what_kcg_compiles_from_the_kernel(recorder: Recorder, tmp_path: Path) -> None:
    a, b = (Tensor.ones(12, 20).contiguous().realize() for _ in range(2))
    (a @ b.T).relu().sum(1).tolist()
    read, kernels = read_lowered(tmp_path), kernels_in(recorder)
    assert len(read) == len(kernels) >= 2 and read.keys() == kernels.keys()
    assert all(is_what_kcg_compiles(kernels[name], one) for name, one in read.items())
    assert {one.settings for one in read.values()} == {settings_here(here())}


def test_what_a_program_set_otherwise_is_another_lowering(recorder: Recorder, tmp_path: Path) -> None:
    x = Tensor.ones(33).contiguous().realize()
    with Context(TRANSCENDENTAL=2):
        x.sin().tolist()
    *_, (sine, lowered) = read_lowered(tmp_path).items()
    assert lowered.settings != settings_here(here())
    x.sin().tolist()
    assert sine not in read_lowered(tmp_path), "which of the two is meant is not known"


def test_a_kernel_with_variables_and_one_that_its_author_scheduled_are_lowered_again(
    recorder: Recorder, tmp_path: Path
) -> None:
    x = Tensor.ones(64).contiguous().realize()
    before = len(read_lowered(tmp_path))
    x[: Variable("n", 1, 64).bind(9)].sum().tolist()
    assert len(recorder.asts) > before == len(read_lowered(tmp_path))


def test_a_line_that_was_cut_off_counts_for_nothing_and_a_writer_that_cannot_write_is_quiet(
    recorder: Recorder, tmp_path: Path
) -> None:
    (Tensor.ones(7).contiguous() + 1).tolist()
    found = read_lowered(tmp_path)
    with (tmp_path / LINES).open("a") as file:
        file.write('{"kernel": "cut')
    assert read_lowered(tmp_path) == found and read_lowered(tmp_path / "none") == {}

    def fails(*_: object) -> str:
        raise OSError("disk full")

    writer = LoweredWriter(tmp_path, {})
    writer._line = fails  # type: ignore[method-assign]
    writer.lowered(None, None, "CPU", 0.1)
    assert not writer._live


@pytest.mark.slow
def test_a_recorded_script_hands_over_what_its_pool_lowered() -> None:
    found = capture_program(Program(Form.SCRIPT, str(SCRIPTS / "train_loop.py"), ("--steps", "3")), dev=DEV)
    kernels = {call.region.id: call.region.kernel for call in found.workload.calls if not call.variables}
    assert len(found.lowered) >= 0.95 * len(kernels) > 20
    assert all(is_what_kcg_compiles(kernels[name], one) for name, one in found.lowered.items() if name in kernels)
