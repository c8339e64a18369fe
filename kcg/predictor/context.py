"""What no schedule changes: numbers of a kernel and of a target; and all that a predictor sees of one schedule."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kcg.compat.tiny import GroupOp, Ops, dtypes
from kcg.kernel.codec import ast_of
from kcg.predictor.encode import Array
from kcg.predictor.features import KERNEL_DTYPES, KERNEL_OPS, Graphs
from kcg.types import Region, Schedule, Target

if TYPE_CHECKING:
    from kcg.kernel.space import KernelSpace


@dataclass(frozen=True)
class ScheduleFeatures:
    """One schedule as a predictor sees it."""

    space: KernelSpace
    schedule: Schedule
    refused: float  # probability that the compiler refuses it, by rule; see `kcg.kernel.refusals`
    graph: Graphs  # of this one schedule
    kernel_x: Array  # (kernel features,)
    target_x: Array  # (target features,)


def kernel_features(region: Region) -> Array:
    """Numbers of a kernel that no schedule changes: (len(KERNEL_FEATURES),) float32."""
    nodes = list(ast_of(region.kernel).toposort())
    found = {op.name: 0 for op in Ops}
    for u in nodes:
        found[u.op.name] += 1
    known = sum(found[op] for op in KERNEL_OPS)
    alu = sum(1 for u in nodes if u.op in GroupOp.ALU)
    stored = {u.src[0].src[0] for u in nodes if u.op is Ops.STORE}
    stores, loads = [0] * len(KERNEL_DTYPES), [0] * len(KERNEL_DTYPES)
    for u in nodes:
        if u.op is Ops.PARAM:
            (stores if u in stored else loads)[_dtype_place(u.dtype)] += 1
    symbolic = any(u.op.name in ("DEFINE_VAR", "BIND", "VARIABLE") for u in nodes)
    values = [math.log2(1 + found[op]) for op in KERNEL_OPS]
    values += [math.log2(1 + alu), math.log2(1 + len(nodes) - known)]
    values += [math.log2(1 + v) for v in (*stores, *loads)]
    return np.array([*values, float(symbolic)], np.float32)


def operations_of(region: Region) -> frozenset[str]:
    """The names of all operations of a kernel."""
    return frozenset(u.op.name for u in ast_of(region.kernel).toposort())


def _dtype_place(dtype: Any) -> int:
    scalar = getattr(dtype, "base", dtype)
    scalar = scalar.scalar() if hasattr(scalar, "scalar") else scalar
    name = "fp8" if scalar in dtypes.fp8s else scalar.name
    name = "int" if scalar in dtypes.ints else name
    return KERNEL_DTYPES.index(name) if name in KERNEL_DTYPES else len(KERNEL_DTYPES) - 1


def target_features(target: Target) -> Array:
    """Numbers of a target: (len(TARGET_FEATURES),) float32."""
    renderers = ("X86", "CLANG", "CUDA")
    values = [
        target.has_local, target.device == "CPU", not target.has_local and target.device != "CPU",
        math.log2(max(target.cores, 1)) / 4, _logs(target.cache_bytes), _logs(target.memory_bytes),
        _logs(target.shared_bytes), _logs(target.bandwidth_bytes_s or 0), (target.clock_limit_mhz or 0) / 1000,
        len(target.tensor_cores) / 4, *(target.renderer == name for name in renderers),
        target.renderer not in renderers,
    ]  # fmt: skip
    return np.array(values, np.float32)


def _logs(value: float) -> float:
    return math.log2(max(value, 1.0)) / 16
