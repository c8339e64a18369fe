"""The last rule of verification for a function: what it returns with the chosen schedules against what it returns as
tinygrad schedules it.

It is called in the process that asked, with its own arguments, under `TinyJit`, in turns and by the rules of
`kcg.optimize.whole_model`: the tensors that it is called with are the inputs, those that it returns the outputs. A
function that draws random numbers, changes tensors or reads values would not do the same again: it is not checked as a
whole, only each kernel. What it does beside tensors, as counting its calls, repeats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kcg.cli import counted
from kcg.optimize import whole_model
from kcg.optimize.whole_model import Stage
from kcg.types import ModelCheck, Result

if TYPE_CHECKING:
    from tinygrad import Tensor

    from kcg.optimize.work import Captured
    from kcg.workloads.family import Step
    from kcg.workloads.function import Call

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
    calls_s = MORE * (2 + plans) * captured.recorded_s
    steps_s = (2 + plans) * (whole_model.replays_of(step_s) + 2) * step_s
    return calls_s + steps_s + compile_s * (len(captured.workload.calls) + plans * changed)


def check_function(call: Call, results: Sequence[Result], *, seed: int) -> list[ModelCheck]:
    """A check of each result, of which the first is the best plan. Never raises for what the function does: one that
    fails with the chosen schedules alone fails the check, anything else gives no result."""
    from kcg.compat.calling import Begun

    begun, stages = Begun(), [Stage(whole_model.OWN)]
    step = step_of(call)
    try:
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
    """A call as a step: its tensors and bound variables are the inputs, those that it returns the outputs, which are
    the floating ones where there are any."""
    from tinygrad import Tensor, UOp, dtypes

    from kcg.compat.calling import tensors_in
    from kcg.workloads.family import Step

    named: dict[str, Any] = {
        **dict(zip(map(str, range(len(call.args))), call.args, strict=True)),
        **(call.kwargs or {}),
    }
    inputs: dict[str, Any] = {}
    names: dict[str, str] = {}  # of an argument -> of the input that it is: one tensor may be given twice
    for name, value in named.items():
        if isinstance(value, Tensor | UOp):
            same = next((known for known, other in inputs.items() if other is value), f"input_{len(inputs)}")
            inputs[same], names[name] = value, same

    def run(**given: Any) -> tuple[Tensor, ...]:
        args = [given[names[str(n)]] if str(n) in names else value for n, value in enumerate(call.args)]
        kwargs = {k: given[names[k]] if k in names else value for k, value in (call.kwargs or {}).items()}
        returned = tensors_in(replace(call, args=tuple(args), kwargs=kwargs).plain()())
        floating = tuple(tensor for tensor in returned if dtypes.is_float(tensor.dtype))
        return floating or tuple(returned)

    return Step(inputs, run)


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

    from kcg.optimize.whole_script import rounding_of

    check = replace(check, compared=f"what it returns, for {counted(len(step.inputs), 'input')}")
    shaken = any(dtypes.is_float(value.dtype) for value in step.inputs.values())
    if check.passed is False and not shaken and rounding_of(result).floats:
        why = "no floating tensor is among its arguments, so what it makes of rounding is not known"
        return replace(check, passed=None, reason=f"no verdict: {check.reason}; {why}")
    return check
