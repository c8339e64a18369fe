"""A program's kernels lowered together."""

from __future__ import annotations

import os
from contextlib import nullcontext
from typing import Any

import pytest
from tinygrad import Tensor, codegen
from tinygrad.engine import realize
from tinygrad.uop import Ops
from tinygrad.uop.ops import UOp

from kcg.compat import lowering, renderers
from kcg.compat.capture import recording
from kcg.compat.lowering import load_in_threads, lower_ahead, lowering_together
from kcg.compat.renderers import renderer_ahead
from kcg.compat.tiny import DEV, Context
from kcg.kernel.kinds import ACTION_SPACE_VERSION
from kcg.measure.device_info import detect
from tests.known_targets import KNOWN_TARGETS


def _linear() -> UOp:
    """Two kernels, of which one is called three times."""
    a, b = Tensor.empty(8), Tensor.empty(8)
    return ((a + b).contiguous() * 2 + (b + a.flip(0).contiguous()).contiguous()).sum().linear_with_vars()[0]


def test_calls_get_the_programs_that_tinygrad_gives_them_and_each_kernel_comes_by_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    linear, seen = _linear(), list[int]()
    linear = linear.replace(src=linear.src * 3)
    own = realize.lower_and_compile
    monkeypatch.setattr(realize, "lower_and_compile", lambda one: own(seen.append(len(one.src)) or one))
    expected = realize.lower_and_compile(linear)
    with lowering_together():
        assert realize.lower_and_compile(linear) is expected
    assert realize.lower_and_compile(linear) is expected
    assert seen == [len(linear.src), len({call.src[0] for call in linear.src}), len(linear.src)]
    assert all(call.src[0].op is Ops.PROGRAM for call in expected.src)


def test_a_program_that_is_recorded_counts_every_call() -> None:
    def run() -> list[int]:
        with recording() as recorder:
            with lowering_together() if together else nullcontext():
                realize.run_linear(linear.replace(src=linear.src * 3))
            return sorted(call.calls for call in recorder.calls())

    linear, together = _linear(), False
    expected = run()
    together = True
    assert run() == expected and sum(expected) == 3 * len(linear.src)


def test_what_was_lowered_ahead_is_not_lowered_again_and_it_ends_when_there_is_more_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The renderer is that of no opened device; tinygrad's own is known by the same."""
    target, _ = detect(os.environ["DEV"], ACTION_SPACE_VERSION)
    monkeypatch.setattr(codegen, "to_program_cache", cache := dict[Any, Any]())
    monkeypatch.setattr(realize, "to_program_cache", cache)
    linear, free = _linear(), iter([True, True, False])
    assert lower_ahead(linear, renderer_ahead(target), lambda: next(free)) == 2
    assert lower_ahead(linear, renderer_ahead(target), lambda: True) == len(cache) == 3
    known = dict(cache)
    realize.lower_and_compile(linear)
    assert cache == known


def test_the_renderer_of_a_gpu_that_is_not_opened_is_known_as_that_of_its_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """tinygrad's devices have the target of `DEV`, with an architecture: without the name of a renderer."""
    monkeypatch.setattr(renderers, "compiling_renderer", renderers.planning_renderer)
    with Context(DEV="CUDA"):
        known = renderer_ahead(KNOWN_TARGETS["sm_90"]).target
        assert known == DEV.target("CUDA", arch="sm_90") and not known.renderer


def test_programs_that_a_driver_compiles_are_loaded_before_they_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the place of a GPU: this device's loader counts."""
    monkeypatch.setattr(lowering, "COMPILES", ("CPU",))
    monkeypatch.setattr(realize, "runtime_cache", {})
    lowered = realize.lower_and_compile(_linear())
    load_in_threads(lowered.src)
    loaded = dict(realize.runtime_cache)
    assert {key for key, _ in loaded} == {call.src[0].key for call in lowered.src}
    realize.run_linear(lowered)
    assert realize.runtime_cache == loaded, "nothing is loaded again"


def test_what_does_not_load_is_left_to_tinygrad(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refuses:
        def runtime(self, elf: object) -> object:
            raise RuntimeError("module load failed")

    lowered = realize.lower_and_compile(_linear())
    monkeypatch.setattr(lowering, "COMPILES", ("CPU",))
    monkeypatch.setattr(lowering, "Device", {name: Refuses() for name in {call.device for call in lowered.src}})
    monkeypatch.setattr(realize, "runtime_cache", {})
    load_in_threads(lowered.src)
    assert not realize.runtime_cache
