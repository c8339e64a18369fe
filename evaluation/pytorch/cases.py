"""Every comparison by name, and what a case needs that only its kind knows: inputs, reference, bytes, arithmetic."""

from __future__ import annotations

import math

import numpy as np

from evaluation.pytorch import attention, layers, models, rope, sum_levels
from evaluation.pytorch.kind import ITEM_BYTES, Array, Case, Comparison, Kind, as_stored, drawn

MODULES = (attention, rope, sum_levels, layers)
COMPARISONS: dict[str, Comparison] = {
    module.COMPARISON.name: module.COMPARISON for module in (attention, rope, sum_levels, models)
}
KINDS: dict[str, Kind] = {name: kind for module in MODULES for name, kind in module.KINDS.items()}
FAMILY = "family"
"""The kind of a case that is a preset of `kcg.workloads`: no `Kind`, no reference."""


def kind_of(case: Case) -> Kind:
    """Raises ValueError where there is none."""
    if case["kind"] not in KINDS:
        raise ValueError(f"no case of kind {case['kind']!r}")
    return KINDS[case["kind"]]


def arrays(case: Case, seed: int = 0) -> dict[str, Array]:
    """The inputs but for the tables, rounded by nobody yet. Weights of matmuls are scaled by fan-in."""
    return drawn(kind_of(case), case, seed)


def reference(case: Case, seed: int = 0) -> list[float] | None:
    """The compared values in float64, of the inputs as the dtype rounds them; None where there is no reference."""
    if case["kind"] == FAMILY:
        return None
    made = {name: as_stored(values, case["dtype"]).astype(np.float64) for name, values in arrays(case, seed).items()}
    return kind_of(case).reference(case, **made)


def least_bytes(case: Case) -> float:
    """What every input and the output come to, once each; 0 for a whole model."""
    if case["kind"] == FAMILY:
        return 0.0
    kind = kind_of(case)
    values = [float(math.prod(shape)) for shape in kind.shapes(case).values()]
    output = 0.0 if kind.reduces else values[0]
    return ITEM_BYTES[case["dtype"]] * (sum(values) + output) + sum(t.nbytes for t in kind.tables(case).values())


def operations(case: Case) -> float:
    """Multiply-adds of matmuls, each two; 0 where there is none, or for a whole model."""
    return 0.0 if case["kind"] == FAMILY else kind_of(case).operations(case)
