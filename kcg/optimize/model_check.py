"""The last step before the result is written: the whole model or script with the chosen schedules, if there is time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from kcg.errors import DeviceError
from kcg.optimize import whole_model, whole_script
from kcg.optimize.budget import OVERTIME
from kcg.types import ModelCheck, Result

if TYPE_CHECKING:
    from kcg.measure.isolated import IsolatedProcess
    from kcg.optimize.device import Device
    from kcg.optimize.estimates import Estimates
    from kcg.optimize.log import RunLog
    from kcg.optimize.settings import Settings


def check_model(
    result: Result,
    settings: Settings,
    *,
    estimates: Estimates | None,
    planning: IsolatedProcess | None,
    device: Device,
    log: RunLog,
) -> ModelCheck:
    """What the whole model or the script showed, or why it did not run; a warning where it should have.

    `planning` may be planning the model already; a run that has no `estimates` ended before. Never raises for a lost
    device or an interruption: the log knows of it.
    """
    kind, what = (whole_script, "script") if settings.is_script else (whole_model, "model")
    if reason := kind.why_not_needed(settings, result, ended_early=not result.complete):
        return ModelCheck(None, reason)
    assert estimates is not None, "a complete result was judged"
    budget = estimates.budget
    needed_s = estimates.whole_s(changed=sum(row.outcome == "improved" for row in result.regions))
    timeout_s = whole_script.timeout_s(needed_s) if settings.is_script else whole_model.TIMEOUT_S
    if budget.over_at is not None and budget.limit_s is not None:
        left_s = budget.over_at - time.monotonic()
        if left_s + OVERTIME * budget.limit_s < needed_s:
            reason = f"not run: {max(left_s, 0):.0f} s of the budget were left, and it takes about {needed_s:.0f} s"
            log.warn(f"the whole {what} was not compared with tinygrad's own schedules, {reason}")
            return ModelCheck(None, reason)
        timeout_s = max(left_s, needed_s) + OVERTIME * budget.limit_s  # no answer would cost more than a late one
    try:
        check = _compared(result, estimates, planning, device=device, log=log, timeout_s=timeout_s)
    except DeviceError as error:
        log.lose(error)
        return ModelCheck(None, "not run: the device was lost")
    except KeyboardInterrupt:
        log.interrupt()
        return ModelCheck(None, "not run: interrupted")
    if check.passed is False and estimates.kept.forget():
        log.warn(
            "the last check failed with these schedules: --resume judges every kernel again; without it, and with "
            "another --seed, they are also searched in another way"
        )
    if check.passed is None:
        log.warn(f"the whole {what} was not compared with tinygrad's own schedules, {check.reason}")
    return check


def _compared(
    result: Result,
    estimates: Estimates,
    planning: IsolatedProcess | None,
    *,
    device: Device,
    log: RunLog,
    timeout_s: float,
) -> ModelCheck:
    settings, check_device = estimates.settings, device.service.check_device
    if settings.is_script:
        log.progress.phase(
            f"running {settings.workload} twice more, with tinygrad's own schedules and with the chosen ones (its side "
            "effects repeat; --no-script-check leaves this out)"
        )
        return whole_script.check_script(result, settings, timeout_s=timeout_s, check_device=check_device)
    log.progress.phase("comparing the whole model's output with that of tinygrad's own schedules")
    return whole_model.check_model(
        result,
        timeout_s=timeout_s,
        seed=settings.seed,
        kernels=settings.kernels,
        weights=settings.weights,
        child=planning,
        check_device=check_device,
    )
