"""`kcg.predict`: how long kernels would take on a target, by the shipped predictor, without that device."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kcg.cli import counted
from kcg.errors import KcgError, ScheduleError, UsageError
from kcg.types import Kernel, Prediction, Region, Schedule, Target, WorkloadCall

if TYPE_CHECKING:
    from kcg.kernel.kinds import Space
    from kcg.predictor.interface import Predictor

DEVIATIONS = 1.96  # of the logarithm of a time, on both sides: 95 % where errors are normal
COVERAGE = {"cuda": 0.89}
"""How much of what was measured lies in the interval, by checkpoint, of kernels that training never saw
(docs/predictor.md, "How sure it is")."""
ROWS = 18  # of kernels, so that all of the text fits 24 lines
NAME_WIDTH = 36


@dataclass(frozen=True)
class PredictedKernel:
    """What is expected of one kernel; times are of one call."""

    name: str
    calls: int
    us: float
    interval_us: tuple[float, float]
    fails: float  # how likely it is that it does not compile or run
    schedule: Schedule


@dataclass(frozen=True, repr=False)
class Predicted:
    """What is expected of kernels on a target, in microseconds; `print` shows a table.

    An interval is meant to hold 95 % of what would be measured of one kernel, as the ensemble of networks says by how
    far its members are apart and by what each expects of itself. That of the total is the sum of all low ends and the
    sum of all high ends: kernels of one program are misjudged alike.
    """

    kernels: tuple[PredictedKernel, ...]
    target: Target
    predictor: str
    coverage: float | None  # of what was measured, the part that lies in its interval; None where that is not known

    @property
    def us(self) -> float:
        """Of all calls of all kernels."""
        return sum(kernel.calls * kernel.us for kernel in self.kernels)

    @property
    def interval_us(self) -> tuple[float, float]:
        """Of the same, see the class."""
        low, high = (sum(kernel.calls * kernel.interval_us[end] for kernel in self.kernels) for end in (0, 1))
        return low, high

    def __str__(self) -> str:
        rows = sorted(self.kernels, key=lambda kernel: -kernel.calls * kernel.us)
        width = max([6, *(min(len(kernel.name), NAME_WIDTH) for kernel in rows[:ROWS])])
        lines = [f"{'kernel':{width}}  {'calls':>6}  {'µs a call':>10}  interval"]
        for kernel in rows[:ROWS]:
            low, high = kernel.interval_us
            note = f"  fails with {kernel.fails:.0%}" if kernel.fails > 0.5 else ""
            name = kernel.name if len(kernel.name) <= width else kernel.name[: width - 1] + "…"
            lines.append(f"{name:{width}}  {kernel.calls:>6}  {kernel.us:>10.3g}  {low:.3g} to {high:.3g}{note}")
        if (rest := len(rows) - ROWS) > 0:
            lines.append(f"... and {counted(rest, 'kernel')} more")
        low, high = self.interval_us
        where = f"{self.target.model} ({self.target.arch}) by {self.predictor}"
        lines.append(f"{self.us:.4g} µs in all, {low:.4g} to {high:.4g}, on {where}")
        lines.append(f"intervals are meant for 95 %; {self._covered}")
        return "\n".join(lines)

    __repr__ = __str__

    @property
    def _covered(self) -> str:
        if self.coverage is None:
            return "what they hold on this target was not measured"
        return f"of kernels that training never saw they held {self.coverage:.0%}"


def predict(
    fn_or_kernel: Callable[[], Any] | Any, schedule: Schedule | None = None, target: str | Target = "sm_90"
) -> Predicted:
    """How long kernels would take on `target`, without such a device: nothing is compiled, run or allocated.

    Args:
        fn_or_kernel: a function without arguments that returns lazy tensors; lazy tensors; or one kernel: a tinygrad
            AST or a `kcg.types.Kernel`. Weights that are not realised count as given.
        schedule: of one kernel, instead of tinygrad's own.
        target: an architecture, one of `kcg.kernel.targets.TARGETS`, or a `Target` such as a result has.

    Raises UnknownName for an unknown target, UsageError for what runs no kernel or is none, ScheduleError for a
    schedule that does not apply.
    """
    from kcg.kernel.kinds import space_of
    from kcg.kernel.targets import target_named
    from kcg.predictor.calibrated import Calibrated
    from kcg.predictor.choice import AUTO, is_trained_on, kept_predictor, shipped_path

    on = target_named(target) if isinstance(target, str) else target
    calls = _calls_of(fn_or_kernel)
    if schedule is not None and len(calls) != 1:
        raise UsageError(f"a schedule is of one kernel, and these are {len(calls)}: give the kernel itself")
    predictor = kept_predictor(AUTO, on, calibrated=True)
    found = [_predicted(call, space_of(call.region, on), predictor, schedule) for call in calls]
    path = shipped_path(on)
    trained = path is not None and is_trained_on(path, on) and not isinstance(predictor, Calibrated)
    return Predicted(tuple(found), on, predictor.name, COVERAGE.get(path.stem) if path and trained else None)


def _predicted(call: WorkloadCall, space: Space, predictor: Predictor, schedule: Schedule | None) -> PredictedKernel:
    if schedule is not None:
        try:
            space.check(schedule)
        except KcgError:
            raise
        except Exception as error:  # of tinygrad, for Opts that no search would write
            raise ScheduleError(f"the schedule does not apply: {' '.join(str(error).split())[:200]}") from error
    chosen = schedule or space.baseline()
    (seen,) = predictor.predict(space, [chosen])
    return PredictedKernel(
        name=space.name(chosen),
        calls=call.calls,
        us=1e6 * seen.runtime_s,
        interval_us=_interval_us(seen),
        fails=seen.failure_probability,
        schedule=chosen,
    )


def _interval_us(seen: Prediction) -> tuple[float, float]:
    low, high = (1e6 * math.exp(seen.log_runtime + side * DEVIATIONS * seen.uncertainty) for side in (-1, 1))
    return low, high


def _calls_of(given: Any) -> Sequence[WorkloadCall]:
    """The kernels, and how often each is called."""
    from tinygrad import Tensor, UOp

    from kcg.workloads.function import Call, scheduled_call, scheduled_tensors

    if isinstance(given, Kernel):
        return [WorkloadCall(Region((given,)), 1)]
    if isinstance(given, UOp):
        from kcg.kernel.codec import kernel_of

        return [WorkloadCall(Region((kernel_of(given),)), 1)]
    if isinstance(given, Tensor) or (isinstance(given, list | tuple) and all(isinstance(t, Tensor) for t in given)):
        return scheduled_tensors([given] if isinstance(given, Tensor) else given).calls
    if callable(given):
        return scheduled_call(Call(given)).calls
    raise UsageError(f"{type(given).__name__} is no kernel, lazy tensors, or function that returns such")
