"""The last step before the result is written: the whole model or script with the chosen schedules, if there is time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from kcg.cli import counted
from kcg.errors import DeviceError
from kcg.handover.choices import changed_by
from kcg.optimize import leaving_out, whole_function, whole_model, whole_script
from kcg.optimize.budget import OVERTIME
from kcg.optimize.whole_script import OwnRuns
from kcg.types import ModelCheck, Result

if TYPE_CHECKING:
    from kcg.measure.isolated import IsolatedProcess
    from kcg.optimize.device import Device
    from kcg.optimize.estimates import Estimates
    from kcg.optimize.log import RunLog
    from kcg.optimize.settings import Settings


def check_models(
    results: Sequence[Result],
    settings: Settings,
    *,
    estimates: Estimates | None,
    planning: IsolatedProcess | None,
    device: Device,
    log: RunLog,
    own: OwnRuns | None = None,
) -> list[ModelCheck]:
    """What the whole model or the script showed with each result, several plans of which the best is the first and the
    last has every kernel alone, or why it did not run; a warning where it should have. Where a budget has no time for
    all of them the last ones but one are left out. What a script's runs with tinygrad's own schedules left is in `own`.

    `planning` may be planning the model already; a run that has no `estimates` ended before. Never raises for a lost
    device or an interruption: the log knows of it.
    """
    what = settings.whole
    reasons = [_why_not_needed(settings, result, estimates) for result in results]
    if settings.is_script and not results[0].steps:
        reasons[1:-1] = ["not run: of a script without steps the best plan and every kernel alone are"] * (
            len(results) - 2
        )
    due = [place for place, reason in enumerate(reasons) if not reason]
    checks = [ModelCheck(None, reason) for reason in reasons]
    if not due:
        return checks
    assert estimates is not None, "a complete result was judged"
    budget = estimates.budget
    changed = max(sum(row.outcome == "improved" for row in results[place].regions) for place in due)

    def needed_s(plans: int) -> float:
        return estimates.whole_s(changed=changed, plans=plans)

    def first(many: int, why: str) -> list[int]:
        """The first of those that are due, the last plan among them; why the others are not run is said."""
        kept = [*due[: many - 1], due[-1]] if due[-1] == len(results) - 1 else due[:many]
        for place in set(due).difference(kept):
            checks[place] = ModelCheck(None, f"not run: {why}")
        return kept

    timeout_s, rounds_s = whole_model.TIMEOUT_S, whole_script.ROUNDS_S
    if budget.over_at is not None and budget.limit_s is not None:
        left_s = budget.over_at - time.monotonic()
        over_s = OVERTIME * budget.limit_s
        fitting = [many for many in range(1, len(due) + 1) if needed_s(many) <= left_s + over_s]
        if not fitting:
            reason = f"not run: {max(left_s, 0):.0f} s of the budget were left, and it takes about {needed_s(1):.0f} s"
            log.warn(f"the whole {what} was not compared with tinygrad's own schedules, {reason}")
            return [ModelCheck(None, why or reason) for why in reasons]
        due = first(fitting[-1], "the budget left no time for so many plans")
        timeout_s = max(left_s, needed_s(len(due))) + over_s  # no answer would cost more than a late one
        rounds_s = max(left_s, 0.0)
    elif settings.is_script:
        many = [many for many in range(2, len(due) + 1) if needed_s(many) <= whole_script.LEAST_TIMEOUT_S]
        due = first(many[-1] if many else min(2, len(due)), "a run of the script is long")
        timeout_s = whole_script.timeout_s(needed_s(len(due)))
    seen: list[ModelCheck] = []
    try:
        asked = [results[place] for place in due]
        seen = _compared(
            asked, estimates, planning, device=device, log=log, timeout_s=timeout_s, rounds_s=rounds_s, own=own
        )
    except DeviceError as error:
        log.lose(error)
        seen = [ModelCheck(None, "not run: the device was lost")] * len(due)
    except KeyboardInterrupt:
        log.interrupt()
        seen = [ModelCheck(None, "not run: interrupted")] * len(due)
    else:
        _warn_of(seen, what, estimates, log=log)
    for place, check in zip(due, seen, strict=True):
        checks[place] = check
    return checks


def leave_out_wrong(
    results: Sequence[Result],
    checks: Sequence[ModelCheck],
    settings: Settings,
    *,
    estimates: Estimates | None,
    device: Device,
    log: RunLog,
    own: OwnRuns,
) -> tuple[list[Result], list[ModelCheck]]:
    """The results and checks of `check_models`, and where the best of them is wrong, that of its right part too: one
    kernel or region never costs the rest (`kcg.optimize.leaving_out`). It stands beside the plan that it is of, or in
    its place where that has every kernel alone, and is the last one. As long as there is time."""
    made, seen = [*results], [*checks]
    place = next((at for at, check in enumerate(checks) if check.passed is not None), None)
    if place is None or checks[place].passed or estimates is None or log.ended_early:
        return made, seen
    whole, alone, workload = results[place], results[-1], estimates.captured.workload
    changed = leaving_out.changed_in(whole, alone, changed_by(whole, handwritten=bool(settings.kernels)))
    until = _until(settings, estimates)
    took_s = estimates.whole_s(changed=len(changed), plans=1)

    def check(right: frozenset[str]) -> ModelCheck | None:
        nonlocal took_s
        begin = time.monotonic()
        if begin + took_s > until or log.ended_early:
            return None
        asked = leaving_out.keeping(whole, right, alone=alone, workload=workload)
        words = f"{counted(len(right), 'schedule')} of {len(changed)} that were found"
        left_s = until - begin
        try:
            (found,) = _compared(
                [asked], estimates, None, device=device, log=log, timeout_s=left_s, rounds_s=0.0, own=own, words=words
            )
        except DeviceError as error:
            log.lose(error)
            return None
        except KeyboardInterrupt:
            log.interrupt()
            return None
        took_s = time.monotonic() - begin
        return found

    parts = leaving_out.right_part(changed, checks[place], check, apart=own.apart)
    left_out = leaving_out.dropped(parts, whole, alone)
    log.warn(*leaving_out.words_of(left_out, settings.whole))
    if parts.check is None:
        made[place] = replace(whole, dropped=left_out)
        if parts.untried:
            log.warn(f"the whole {settings.whole} is wrong, and there was no time to find the part of it that is right")
        return made, seen
    right = replace(leaving_out.keeping(whole, parts.right, alone=alone, workload=workload), dropped=left_out)
    if place == len(made) - 1:
        made[place], seen[place] = right, parts.check
    else:
        made.insert(place + 1, right)
        seen.insert(place + 1, parts.check)
    return made, seen


def _until(settings: Settings, estimates: Estimates) -> float:
    """When no part may be compared any more, by `time.monotonic`."""
    budget = estimates.budget
    if budget.over_at is not None and budget.limit_s is not None:
        return budget.over_at + OVERTIME * budget.limit_s
    return time.monotonic() + max(whole_model.TIMEOUT_S, whole_script.LEAST_TIMEOUT_S)


def _why_not_needed(settings: Settings, result: Result, estimates: Estimates | None) -> str:
    """Why there is nothing to check, or no way to; empty where the check is due."""
    ended_early = not result.complete
    if settings.in_memory:
        why_once = estimates.captured.why_once if estimates is not None else ""
        return whole_function.why_not_needed(why_once, result, ended_early=ended_early)
    if settings.is_script:
        return whole_script.why_not_needed(settings, result, ended_early=ended_early)
    return whole_model.why_not_needed(settings, result, ended_early=ended_early)


def _warn_of(checks: Sequence[ModelCheck], what: str, estimates: Estimates, *, log: RunLog) -> None:
    """Say what is wrong with the whole, of the last of several plans if none is right."""
    is_right = any(check.passed for check in checks)
    if any(check.passed is False for check in checks) and estimates.kept.forget():
        which = "schedules that are not chosen" if is_right else "these schedules"
        log.warn(
            f"the last check failed with {which}: --resume judges every kernel again; without it, and with "
            "another --seed, they are also searched in another way"
        )
    if not is_right and checks[-1].passed is None:
        log.warn(f"the whole {what} was not compared with tinygrad's own schedules, {checks[-1].reason}")


def _compared(
    results: Sequence[Result],
    estimates: Estimates,
    planning: IsolatedProcess | None,
    *,
    device: Device,
    log: RunLog,
    timeout_s: float,
    rounds_s: float,
    own: OwnRuns | None = None,
    words: str = "",
) -> list[ModelCheck]:
    """`words` say which schedules these are, where they are not all that were chosen."""
    settings, check_device = estimates.settings, device.service.check_device
    plans = f", {words}" if words else f" of {len(results)} plans" if len(results) > 1 else ""
    if settings.is_script:
        log.progress.phase(
            f"running {settings.workload} again, with tinygrad's own schedules and with the chosen ones{plans} (its "
            "side effects repeat; --no-script-check leaves this out)"
        )
        return whole_script.check_scripts(
            results, settings, timeout_s=timeout_s, rounds_s=rounds_s, check_device=check_device, own=own
        )
    if (call := estimates.captured.call) is not None:
        log.progress.phase(
            f"calling {call.name} as tinygrad schedules it and with what was found{plans}, and comparing"
        )
        return whole_function.check_function(call, results, seed=settings.seed)
    log.progress.phase(f"comparing the whole model's output{plans} with that of tinygrad's own schedules")
    return whole_model.check_models(
        results,
        timeout_s=timeout_s,
        seed=settings.seed,
        kernels=settings.kernels,
        weights=settings.weights,
        programs=device.own_programs(estimates.works),
        child=planning,
        check_device=check_device,
    )
