"""The last rule of verification for a function: what it returns with the chosen schedules against what it returns as
tinygrad schedules it.

It is called in the process that asked, with its own arguments, under `TinyJit`, in turns and by the rules of
`kcg.judge.whole_model`: the tensors that it is called with are the inputs, those that it returns the outputs. What
it changes of tensors that are there, such as a cache of keys and values, is both: each call begins with a copy of it,
which is a part of what is timed, on both sides, and the tensors themselves stay as they were. Where no floating tensor
is among the inputs, those that it reads beside them are, the small ones first. A function that draws random numbers or
reads values is not checked as a whole, only each kernel. What it does beside tensors, as counting its calls, repeats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kcg.cli import counted
from kcg.errors import UsageError
from kcg.judge import whole_model
from kcg.judge.whole_model import Stage
from kcg.types import ModelCheck, Result

if TYPE_CHECKING:
    from tinygrad import Tensor

    from kcg.compat.tiny import UOp
    from kcg.optimize.work import Captured
    from kcg.workloads.family import Step
    from kcg.workloads.function import Call

COMPARED_BYTES = 1 << 26  # of what it changes so much is compared, the small tensors first
SHAKEN_BYTES = 1 << 26  # and of what it reads beside its arguments so much is changed by a rounding unit
KEPT = "kept_"  # begins the names of the inputs that a function changes
COPIES = 6  # of what it changes: of the inputs three more, and one of each of the first programs
MORE = 1.5  # times as long as when it was captured takes a call that `TinyJit` captures: its memory is planned anew


def why_not_needed(why_once: str, result: Result, *, ended_early: bool) -> str:
    """Why there is nothing to check, or no way to; empty where the check is due."""
    if ended_early:
        return "not run: the run ended before every kernel was verified"
    if not any(row.outcome == "improved" for row in result.regions):
        return "not run: no schedule was changed"
    return f"not run: {why_once}, so a second call could not be compared; each kernel was verified" if why_once else ""


def expected_cost_s(captured: Captured, *, step_s: float, changed: int, compile_s: float, plans: int) -> float:
    """About how many seconds the check takes; see `whole_model.expected_cost_s`. 0 where it will not run."""
    if captured.why_once:
        return 0.0
    calls_s = MORE * (3 + plans) * captured.recorded_s
    steps_s = (2 + plans) * (whole_model.replays_of(step_s) + 2) * step_s
    return calls_s + steps_s + compile_s * (len(captured.workload.calls) + plans * changed)


def check_function(call: Call, results: Sequence[Result], *, seed: int) -> list[ModelCheck]:
    """A check of each result, of which the first is the best plan. Never raises for what the function does: one that
    fails with the chosen schedules alone fails the check, anything else gives no result."""
    from kcg.compat.calling import Begun

    begun, stages = Begun(), [Stage(whole_model.OWN)]
    try:
        step = step_of(call)
        whole_model.leave_others(step)
        checks = whole_model.compare(step, results, seed=seed, report=stages.append)
        if any(check.passed is False for check in checks) and not _repeats(step, results[0], seed=seed):
            why = "no verdict: called twice as tinygrad schedules it, it does not return the same either"
            checks = [replace(check, passed=None, reason=why) for check in checks]
    except Exception as error:
        line = " ".join(str(error).split())[:300] or type(error).__name__
        why = f"no verdict: it could not be called again under TinyJit: {line}"
        failed = stages[-1].name == whole_model.CHOSEN and _runs_alone(step)
        found = ModelCheck(False, f"it fails with the chosen schedules: {line}") if failed else ModelCheck(None, why)
        return [replace(found, seed=seed)] * len(results)
    finally:
        begun.restore_random()
    return [_explained(check, step, result) for check, result in zip(checks, results, strict=True)]


def step_of(call: Call) -> Step:
    """A call as a step: the inputs are its tensors and bound variables, what it changes beside them, and where none of
    these is floating what it reads; the outputs are what it returns and changes, the floating ones where there are any.

    Raises UsageError where what it changes cannot be copied, and what the function raises.
    """
    from tinygrad import Tensor, dtypes

    from kcg.compat.calling import (
        Begun,
        bound_in,
        in_place_of,
        is_lazy,
        memory_of_call,
        tensors_in,
        values_in,
        with_values,
    )
    from kcg.workloads.family import Step

    arguments, memory = [call.args, dict(call.kwargs or {})], memory_of_call(call.plain())
    _check_kept(memory.written)
    given = _given(arguments, memory.written)
    inputs: dict[str, Any] = {f"input_{place}": tensor for place, tensor in enumerate(given)}
    inputs |= {f"variable_{place}": one for place, one in enumerate(bound_in(values_in(arguments)))}
    kept = {f"{KEPT}{place}": buffer for place, buffer in enumerate(memory.written)}
    others = {} if _any_floats([*given, *memory.written]) else _small_floats(memory.read)
    inputs |= {name: Tensor(buffer) for name, buffer in (kept | others).items()}
    compared = _small(memory.written, COMPARED_BYTES)

    def run(**now: Any) -> tuple[Tensor, ...]:
        by_tensor = {id(tensor): now[f"input_{place}"] for place, tensor in enumerate(given)}
        args, kwargs = with_values(arguments, lambda tensor: by_tensor.get(id(tensor), tensor))
        copies = {buffer: now[name].clone().realize() for name, buffer in kept.items()}
        with in_place_of(copies | {buffer: now[name] for name, buffer in others.items()}):
            begun = Begun()
            returned = tensors_in(replace(call, args=args, kwargs=kwargs).plain()())
            if lazy := [tensor for tensor in [*returned, *begun.changed()] if is_lazy(tensor)]:
                Tensor.realize(*lazy)
            # of their own: what the function returns may be a tensor that soon stands for what it was before
            made = [Tensor(tensor.uop) for tensor in returned]
        made += [Tensor(copy.uop) for buffer, copy in copies.items() if buffer in compared]
        return tuple(tensor for tensor in made if dtypes.is_float(tensor.dtype)) or tuple(made)

    return Step(inputs, run)


def _given(arguments: Any, written: Sequence[UOp]) -> list[Tensor]:
    """The tensors of the arguments, each once, but for those that the function writes to and those of a shape that
    varies: it gets these as they are."""
    from kcg.compat.calling import is_symbolic, tensors_in

    found = {id(tensor): tensor for tensor in tensors_in(arguments)}
    return [tensor for tensor in found.values() if tensor.uop.base not in written and not is_symbolic(tensor)]


def _check_kept(written: Sequence[UOp]) -> None:
    """Raises UsageError where there is no copy of what a function changes, or no memory for it."""
    from kcg.compat.hardware import memory_of

    if any(not isinstance(buffer.device, str) for buffer in written):
        raise UsageError("it changes tensors that lie on several devices")
    size = sum(int(buffer.nbytes()) for buffer in written)
    known = memory_of(written[0].device.split(":")[0]) if written else None
    if known is not None and COPIES * size > known[0]:
        raise UsageError(f"it changes tensors of {size / 1e9:.1f} GB, of which {COPIES} copies have no room in memory")


def _any_floats(values: Sequence[Tensor | UOp]) -> bool:
    from tinygrad import dtypes

    return any(dtypes.is_float(value.dtype) for value in values)


def _small(buffers: Sequence[UOp], limit: int) -> set[UOp]:
    """The smallest of some buffers, of at most `limit` bytes in all."""
    found: set[UOp] = set()
    size = 0
    for buffer in sorted(buffers, key=lambda buffer: int(buffer.nbytes())):
        size += int(buffer.nbytes())
        if size <= limit:
            found.add(buffer)
    return found


def _small_floats(buffers: Sequence[UOp]) -> dict[str, UOp]:
    """Floating ones of these, the smallest: what is changed by a rounding unit in the place of an argument."""
    from kcg.compat.tiny import Device

    here = [b for b in buffers if _any_floats([b]) and b.device == Device.DEFAULT]
    small = _small(here, SHAKEN_BYTES)
    return {f"read_{place}": buffer for place, buffer in enumerate(b for b in here if b in small)}


def _repeats(step: Step, result: Result, *, seed: int) -> bool:
    """Whether the function returns the same when it is called again as tinygrad schedules it: numbers may come from
    elsewhere than tensors."""
    own = tuple(replace(row, chosen=row.baseline, outcome="kept") for row in result.regions)
    (check,) = whole_model.compare(step, [replace(result, regions=own, planning=None)], seed=seed)
    return check.passed is not False


def _runs_alone(step: Step) -> bool:
    """Whether the function runs under `TinyJit` as tinygrad schedules it."""
    try:
        whole_model.run_own(step)
    except Exception:
        return False
    return True


def _explained(check: ModelCheck, step: Step, result: Result) -> ModelCheck:
    """A check that says what was compared; no failure where rounding may be why and there is no way to tell."""
    from tinygrad import dtypes

    from kcg.judge.whole_script import rounding_of

    kept = sum(name.startswith(KEPT) for name in step.inputs)
    changed = f" and {counted(kept, 'tensor')} that it changes" if kept else ""
    check = replace(check, compared=f"what it returns{changed}, for {counted(len(step.inputs), 'input')}")
    shaken = any(dtypes.is_float(value.dtype) for value in step.inputs.values())
    if check.passed is False and not shaken and rounding_of(result).floats:
        why = "neither its arguments nor what it reads are floating, so what it makes of rounding is not known"
        return replace(check, passed=None, reason=f"no verdict: {check.reason}; {why}")
    return check
