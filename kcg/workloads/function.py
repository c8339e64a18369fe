"""Which kernels a function of this process runs: scheduled, where it returns lazy tensors, or else by running it once.

Lazy tensors are scheduled and not computed: what the function did to tensors is undone. A function that realises
something has done it. What a `TinyJit` captures runs without being captured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kcg.errors import UsageError
from kcg.kernel.symbolic import at_possible_bounds
from kcg.types import Workload
from kcg.workloads.script import bounded, sequences_on, workload_and_notes

if TYPE_CHECKING:
    from tinygrad import Tensor

    from kcg.compat.calling import Begun
    from kcg.compat.sequences import SequenceRecorder

PREFIX = "function:"  # of the names of such workloads


@dataclass(frozen=True)
class Call:
    """A function and what it is called with."""

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] | None = None

    @property
    def name(self) -> str:
        """The function's own, without where it is defined."""
        found = getattr(self.function, "__qualname__", "") or getattr(
            getattr(self.function, "fxn", None), "__qualname__", type(self.function).__name__
        )
        return found.rpartition("<locals>.")[2].replace("<lambda>", "lambda")

    @property
    def shapes(self) -> str:
        """The shapes and data types of the tensors it is called with: `256×256 float, 256×1024 half`."""
        from kcg.compat.calling import tensors_in

        tensors = tensors_in([*self.args, *(self.kwargs or {}).values()])
        return ", ".join(f"{'×'.join(map(str, t.shape)) or 'scalar'} {t.dtype.name}" for t in tensors)

    def plain(self) -> Callable[[], Any]:
        """What calls it, without a `TinyJit` around it. Raises UsageError for one that has no function any more."""
        from kcg.compat.calling import without_jit

        if (function := without_jit(self.function)) is None:
            raise UsageError(f"{self.name} is a TinyJit that was read from a file: give the function that it captured")
        return lambda: function(*self.args, **(self.kwargs or {}))


@dataclass(frozen=True)
class CapturedCall:
    """What a call ran, or would run."""

    workload: Workload
    returned: Any  # what it returned: lazy tensors still are
    ran: bool  # whether it ran kernels
    notes: tuple[str, ...] = ()  # a line each
    why_once: str = ""  # why another call would do something else, in words; empty where it may be called again
    seconds: float = 0.0  # that calling it and scheduling took, and running where it ran


def capture_call(call: Call, *, device: str) -> CapturedCall:
    """What `call` runs on `device`, such as `CUDA`. Tensors that it is called with are realised first. So are others
    that were there before and are not realised yet, as the weights of a new model: it is called twice then.

    Where it `ran` nothing, tensors are as they were before it was called.

    Raises UsageError where it runs no kernel that can be searched, and what the function raises.
    """
    from tinygrad import Tensor

    from kcg.compat.calling import is_lazy, tensors_in

    if lazy := [t for t in tensors_in([*call.args, *(call.kwargs or {}).values()]) if is_lazy(t)]:
        Tensor.realize(*lazy)
    found, missing = _captured(call, device=device)
    if found is None:
        Tensor.realize(*missing)
        found, _ = _captured(call, device=device)
    if found is None or not found.workload.calls:
        raise UsageError(f"{call.name} {_why_nothing(found, device)}")
    return found


def scheduled_call(call: Call) -> Workload:
    """The kernels of a function that returns lazy tensors, without running or allocating anything: what is not realised
    of what it begins with counts as given.

    Raises UsageError where it realises something, or returns nothing that is to be computed.
    """
    from kcg.compat.calling import as_empty

    found, missing = _captured(call, device="")
    if found is None:
        with as_empty(missing):
            found, _ = _captured(call, device="")
    if found is None or not found.workload.calls:
        raise UsageError(f"{call.name} returns no lazy tensors: without a device nothing can run; do not realise them")
    return found.workload


def scheduled_tensors(tensors: Sequence[Tensor]) -> Workload:
    """The kernels of realising lazy tensors, with all that they are computed from; none of that runs, and they stay
    lazy. Raises UsageError where there is nothing to compute."""
    from kcg.compat.calling import is_lazy
    from kcg.compat.sequences import recording_sequences

    if not (outputs := [tensor for tensor in tensors if is_lazy(tensor)]):
        raise UsageError("these tensors are realised already: give lazy ones, or the function that makes them")
    with recording_sequences() as sequences:
        return _scheduled(outputs, Workload(f"{PREFIX}tensors", "", ()), sequences)


def _captured(call: Call, *, device: str) -> tuple[CapturedCall | None, Sequence[Tensor]]:
    """What a call runs; or nothing yet, where tensors that it begins with are not realised: these. Without a `device`
    it is to run nothing, and lazy tensors of any device count."""
    from tinygrad import Tensor

    from kcg.compat.calling import Begun, is_lazy, tensors_in, watching
    from kcg.compat.capture import recording
    from kcg.compat.sequences import recording_sequences

    begun, function, started = Begun(), call.plain(), time.monotonic()
    name, preset = PREFIX + bounded(call.name), bounded(call.shapes)
    with recording() as recorder, watching() as watched, recording_sequences() as sequences:
        returned = function()
        outputs = [tensor for tensor in tensors_in(returned) if is_lazy(tensor)]
        if recorder.is_empty and not (device and watched.read):
            changed = [tensor for tensor in begun.changed() if is_lazy(tensor)]
            why_once = _why_once(begun, read=False)
            if missing := begun.lazy_in([*outputs, *changed]):
                begun.restore()
                return None, missing
            workload = _scheduled([*outputs, *changed], Workload(name, preset, ()), sequences, device=device)
            begun.restore()
            return CapturedCall(_for_any_value(workload), returned, False, (), why_once, _since(started)), ()
        if device and outputs:
            Tensor.realize(*outputs)
    workload, notes = workload_and_notes(recorder, name, preset, device=device)
    workload = _for_any_value(replace(workload, sequences=sequences_on(device, sequences)))
    why_once = _why_once(begun, read=watched.read)
    return CapturedCall(workload, returned, True, tuple(notes), why_once, _since(started)), ()


def _for_any_value(workload: Workload) -> Workload:
    """The workload with kernels that are timed and judged at the smallest and the largest values that their variables
    can have: the function is called with others later."""
    return replace(workload, calls=tuple(map(at_possible_bounds, workload.calls)))


def _since(started: float) -> float:
    return time.monotonic() - started


def _scheduled(
    outputs: Sequence[Tensor], empty: Workload, sequences: SequenceRecorder, *, device: str = ""
) -> Workload:
    """The kernels of realising lazy tensors, which stay lazy, in a workload that is `empty` where there are none."""
    from kcg.compat.calling import Begun
    from kcg.workloads.capture import planned_workload

    if not outputs:
        return empty
    called = Begun()
    workload = planned_workload(empty.name, empty.preset, outputs, sequences, device=device)
    called.restore()  # tinygrad takes for computed what it scheduled
    return workload


def _why_once(begun: Begun, *, read: bool) -> str:
    if begun.drew:
        return "it draws random numbers"
    return "it reads values while it runs (.numpy(), .item()), which TinyJit cannot capture" if read else ""


def _why_nothing(found: CapturedCall | None, device: str) -> str:
    if found is None:
        return "begins with other tensors that are not realised each time it is called: realise them first"
    advice = "does it return or realise tensors?"
    if found.ran:
        advice = "a TinyJit inside it that has captured already shows no kernels: .reset() it first"
    why = "; ".join([*found.notes, *map(str, found.workload.left_out), advice])
    return f"ran no kernel of {device} that can be searched: {why}"
