"""A whole function, and what it returns.

It is called in the process that asked, with its own arguments, under `TinyJit`, in turns (`kcg.judge.step`): the
tensors that it is called with are the inputs, those that it returns the outputs. What
it changes of tensors that are there, such as a cache of keys and values, is both: each call begins with a copy of it,
which is a part of what is timed, on both sides, and the tensors themselves stay as they were. Where no floating tensor
is among the inputs, those that it reads beside them are, the small ones first. A function that draws random numbers or
reads values is not checked as a whole, only each kernel. What it does beside tensors, as counting its calls, repeats.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kcg.cli import counted
from kcg.errors import UsageError
from kcg.judge.step import CHOSEN, OWN, Stage, compare, leave_others, replays_of, run_own
from kcg.judge.whole import Cost, Runner, rounding_of, unclear, why_nothing
from kcg.types import ModelCheck, Result

if TYPE_CHECKING:
    from tinygrad import Tensor

    from kcg.compat.tiny import UOp
    from kcg.workloads.family import Step
    from kcg.workloads.function import Call

COMPARED_BYTES = 1 << 26  # of what it changes so much is compared, the small tensors first
SHAKEN_BYTES = 1 << 26  # and of what it reads beside its arguments so much is changed by a rounding unit
KEPT = "kept_"  # begins the names of the inputs that a function changes
COPIES = 6  # of what it changes: of the inputs three more, and one of each of the first programs
MORE = 1.5  # times as long as when it was captured takes a call that `TinyJit` captures: its memory is planned anew


@dataclass
class Function(Runner):
    """Runs a function of this process."""

    call: Call
    seed: int = 0
    why_once: str = ""  # why it is not called again, in words; empty where it is
    recorded_s: float = 0.0  # what recording its kernels took
    kernels: int = 0  # of it

    what = "function"

    def why_not(self, results: Sequence[Result]) -> list[str]:
        why = f"not run: {self.why_once}, so a second call could not be compared; each kernel was verified"
        return [why_nothing(result) or (why if self.why_once else "") for result in results]

    def announced(self, plans: str) -> str:
        return f"calling {self.call.name} as tinygrad schedules it and with what was found{plans}, and comparing"

    def expected_s(self, cost: Cost) -> float:
        if self.why_once:
            return 0.0
        calls_s = MORE * (3 + cost.plans) * self.recorded_s
        steps_s = (2 + cost.plans) * (replays_of(cost.step_s) + 2) * cost.step_s
        return calls_s + steps_s + cost.compile_s * (self.kernels + cost.plans * cost.changed)

    def checks(self, results: Sequence[Result], *, timeout_s: float, rounds_s: float = math.inf) -> list[ModelCheck]:
        """In this process, as long as it takes."""
        from kcg.compat.calling import Begun

        begun, stages = Begun(), [Stage(OWN)]
        try:
            step = step_of(self.call)
            leave_others(step)
            checks = compare(step, results, seed=self.seed, report=stages.append)
            if any(check.passed is False for check in checks) and not _repeats(step, results[0], seed=self.seed):
                why = "no verdict: called twice as tinygrad schedules it, it does not return the same either"
                checks = [replace(check, passed=None, reason=why) for check in checks]
        except Exception as error:
            line = " ".join(str(error).split())[:300] or type(error).__name__
            found = unclear(f"it could not be called again under TinyJit: {line}")
            if stages[-1].name == CHOSEN and _runs_alone(step):
                found = ModelCheck(False, f"it fails with the chosen schedules: {line}")
            return [replace(found, seed=self.seed)] * len(results)
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
    (check,) = compare(step, [replace(result, regions=own, planning=None)], seed=seed)
    return check.passed is not False


def _runs_alone(step: Step) -> bool:
    """Whether the function runs under `TinyJit` as tinygrad schedules it."""
    try:
        run_own(step)
    except Exception:
        return False
    return True


def _explained(check: ModelCheck, step: Step, result: Result) -> ModelCheck:
    """A check that says what was compared; no failure where rounding may be why and there is no way to tell."""
    from tinygrad import dtypes

    kept = sum(name.startswith(KEPT) for name in step.inputs)
    changed = f" and {counted(kept, 'tensor')} that it changes" if kept else ""
    check = replace(check, compared=f"what it returns{changed}, for {counted(len(step.inputs), 'input')}")
    shaken = any(dtypes.is_float(value.dtype) for value in step.inputs.values())
    if check.passed is False and not shaken and rounding_of(result).floats:
        why = "neither its arguments nor what it reads are floating, so what it makes of rounding is not known"
        return replace(check, passed=None, reason=f"no verdict: {check.reason}; {why}")
    return check
