"""From captured kernel calls to a `Workload`: normalised, counted, with stable identities."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kcg.compat.capture import CapturedCall, planned_calls
from kcg.errors import CodecError
from kcg.kernel import symbolic
from kcg.kernel.codec import kernel_of
from kcg.kernel.symbolic import merged
from kcg.types import Kernel, Region, Workload, WorkloadCall

Place = tuple[str, tuple[tuple[str, int], ...]]  # region and values of its variables


def to_workload(
    name: str, preset: str, captured: Sequence[CapturedCall], *, refused: dict[str, Counter[str]] | None = None
) -> Workload:
    """Count equal kernels together, whatever the values of their variables. The order is that of the first call.

    A kernel whose AST cannot be encoded raises CodecError. Where there is a `refused`, it is left out instead, and
    `refused[reason]` counts the executions of each such kernel.
    """
    kernels: dict[Any, Kernel | str] = {}  # AST -> its kernel, or why there is none
    counts: dict[Place, WorkloadCall] = {}
    for call in captured:
        if call.ast not in kernels:
            kernels[call.ast] = _kernel_or_reason(call.ast, strict=refused is None)
        kernel = kernels[call.ast]
        if isinstance(kernel, str):
            assert refused is not None
            refused.setdefault(kernel, Counter())[call.ast.key.hex()] += call.calls
            continue
        region = Region((kernel,))
        key = (region.id, call.variables)
        earlier = counts.get(key)
        counts[key] = WorkloadCall(region, call.calls + (earlier.calls if earlier else 0), call.variables)
    return Workload(name, preset, merged(counts.values()))


def _kernel_or_reason(ast: Any, *, strict: bool) -> Kernel | str:
    try:
        return kernel_of(ast)
    except CodecError as error:
        if strict:
            raise
        return str(error)
    except Exception as error:  # tinygrad's constructors assert anything on what is no kernel of its scheduler
        if strict:
            raise
        return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:160]}"


def thinned(workload: Workload) -> Workload:
    """The workload with at most `VALUES_KEPT` sets of values of the variables of each kernel."""
    return replace(workload, calls=tuple(symbolic.thinned(call) for call in workload.calls))


def lazy_workload(name: str, preset: str, *outputs: Any) -> Workload:
    """The workload of realising `outputs`, without allocating anything; with the memory that a whole run would need."""
    calls, held, between = planned_calls(*outputs)
    return replace(to_workload(name, preset, calls), held_bytes=held, between_bytes=between)
