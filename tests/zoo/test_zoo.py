"""What every family promises of its presets. That the small ones compute what they should is checked beside this."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from kcg.workloads.registry import WORKLOADS, spec_of

FAMILIES = sorted(set(WORKLOADS) - {"flux", "llm"})


@pytest.mark.parametrize("name", FAMILIES)
def test_presets(name: str) -> None:
    module: Any = importlib.import_module(f"kcg.workloads.zoo.{name}")
    spec = spec_of(name)
    assert spec.presets[0] == "mini" == spec.auto_preset("CPU")
    assert len(spec.presets_for("CPU")) >= 2 and len(spec.presets_for("CUDA")) >= 4
    assert not spec.auto_preset("CUDA").startswith("mini")
    assert not any(module.PRESETS[p].dtype == "bfloat16" for p in spec.presets_for("CPU")), "clang 14 has none"
    assert {module.PRESETS[p].dtype for p in spec.presets} >= {"float32", "float16", "bfloat16"}
    assert spec.about == spec.about.strip() and "\n" not in spec.about
    for preset, config in module.PRESETS.items():
        assert all(extent > 0 for given in module.inputs(config).values() for extent in given.shape), preset
    assert (spec.runnable is None) == getattr(module, "IN_PLACE", False)


def test_every_family_has_a_check_against_numpy() -> None:
    checks = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    missing = [name for name in FAMILIES if f'"{name}"' not in checks and f"import {name}" not in checks]
    assert [n for n in missing if f"def {n}(" not in checks] == []


def test_a_family_of_the_zoo_is_captured_and_run() -> None:
    spec = spec_of("gpt2")
    workload = spec.capture("mini")
    assert workload.name == "gpt2" and len(workload.calls) >= 12
    assert spec.runnable is not None
    step = spec.runnable("mini", 0)
    assert set(step.inputs) == {"table_values"}, "it reads tokens: what varies is their embedding"
    assert step.run(**step.inputs).shape == (1, 32, 512)
