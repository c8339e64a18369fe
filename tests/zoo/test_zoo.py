"""What every family promises: its small presets can be captured, waste nothing, and survive the codec."""

from __future__ import annotations

import pytest

from kcg.kernel.codec import ast_of
from kcg.kernel.contractions import find_recompute, operations
from kcg.workloads.registry import WORKLOADS, spec_of

FAMILIES = sorted(set(WORKLOADS) - {"flux"})


@pytest.mark.parametrize("name", FAMILIES)
def test_small_presets(name: str) -> None:
    spec = spec_of(name)
    assert spec.presets[0] == "mini" and spec.auto_preset("CPU") == "mini"
    assert not spec.auto_preset("CUDA").startswith("mini")
    workload = spec.capture("mini")
    assert workload.calls
    asts = [(call, ast_of(call.region.kernel)) for call in workload.calls]
    wasted = sum(
        call.calls * found.wasted_operations
        for call, ast in asts
        if (found := find_recompute(ast, call.region.id, call.calls)) is not None
    )
    assert wasted <= 0.05 * sum(call.calls * operations(ast) for call, ast in asts)
