"""The last step before the result is written: the whole with the chosen schedules, if there is time."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kcg.errors import DeviceError
from kcg.handover.choices import changed_by
from kcg.judge.whole import TIMEOUT_S, cut_short
from kcg.optimize import leaving_out
from kcg.optimize.budget import overtime_s
from kcg.types import JobKind, JobOutcome, ModelCheck, Result

if TYPE_CHECKING:
    from kcg.judge.whole import Runner
    from kcg.optimize.estimates import Estimates
    from kcg.optimize.log import RunLog


COMPARED: Final = 3
"""Plans whose steps are timed, that of every kernel alone among them, but with thorough effort. Plans that follow the
best one have a region less: in four runs of Flux 768 their steps took 2 to 6 % more each of ten times, where their
parts took .1 to .4 % more, and each took two seconds."""


def check_models(
    results: Sequence[Result], runner: Runner, *, estimates: Estimates | None, log: RunLog
) -> list[ModelCheck]:
    """What the whole showed with each result, several plans of which the best is the first and the last has every
    kernel alone, or why it did not run; a warning where it should have. The last ones but one are left out where there
    are more than `COMPARED`, or a budget has no time for all of them.

    A run that has no `estimates` ended before. Never raises for a lost device or an interruption: the log knows of it.
    """
    reasons = runner.why_not(results)
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
        """The first of those that are due, of several the last plan among them; why the others are not run is said."""
        kept = [*due[: many - 1], due[-1]] if many > 1 and due[-1] == len(results) - 1 else due[:many]
        for place in set(due).difference(kept):
            checks[place] = ModelCheck(None, f"not run: {why}")
        return kept

    rounds_s = math.inf
    is_thorough = estimates.settings.effort == "thorough"
    if not is_thorough and len(due) > COMPARED:
        due = first(COMPARED, "it is like the best ones, and its parts take more: --effort thorough compares it too")
    if budget.over_at is not None and budget.limit_s is not None:
        left_s = budget.over_at - time.monotonic()
        over_s = overtime_s(budget.limit_s)
        fitting = [many for many in range(1, len(due) + 1) if needed_s(many) <= left_s + over_s]
        if not fitting:
            reason = f"not run: {max(left_s, 0):.0f} s of the budget were left, and it takes about {needed_s(1):.0f} s"
            log.warn(f"the whole {runner.what} was not compared with tinygrad's own schedules, {reason}")
            return [ModelCheck(None, why or reason) for why in reasons]
        due = first(fitting[-1], "the budget left no time for so many plans")
        timeout_s = max(left_s, needed_s(len(due))) + over_s  # no answer would cost more than a late one
        rounds_s = max(left_s, 0.0)
    else:
        most_s, least = (runner.most_s, 2) if is_thorough else (min(runner.most_s, runner.several_s), runner.plans)
        many = [many for many in range(2, len(due) + 1) if needed_s(many) <= most_s]
        due = first(many[-1] if many else min(least, len(due)), f"a run of the {runner.what} is long")
        timeout_s = runner.timeout_s(needed_s(len(due)))
        rounds_s = math.inf if is_thorough else most_s
    words = f" of {len(due)} plans" if len(due) > 1 else ""
    begun, expected_s = time.monotonic(), needed_s(len(due))
    seen = _compared([results[place] for place in due], runner, words, log, timeout_s=timeout_s, rounds_s=rounds_s)
    if not log.ended_early and all(check.passed for check in seen):  # else it ended before, or looked for why
        estimates.took_whole(expected_s, time.monotonic() - begun - runner.replayed_s)
    if budget.over_at is not None:
        seen = [cut_short(check) for check in seen]
    if not log.ended_early:
        _warn_of(seen, runner.what, estimates, log=log)
    for place, check in zip(due, seen, strict=True):
        checks[place] = check
    if seen and all(check.passed is False for check in seen) and checks[-1].passed is None and checks[-1].reason:
        checks[-1] = replace(checks[-1], reason=f"{checks[-1].reason}, and what was run is wrong: {seen[-1].reason}")
    return checks


def leave_out_wrong(
    results: Sequence[Result],
    checks: Sequence[ModelCheck],
    runner: Runner,
    *,
    estimates: Estimates | None,
    log: RunLog,
) -> tuple[list[Result], list[ModelCheck]]:
    """The results and checks of `check_models`, and where the best of them is wrong, that of its right part too: one
    kernel or region never costs the rest (`kcg.optimize.leaving_out`). It stands beside the plan that it is of, or in
    its place where that has every kernel alone, and is the last one. As long as there is time."""
    made, seen = [*results], [*checks]
    place = next((at for at, check in enumerate(checks) if check.passed is not None), None)
    if place is None or checks[place].passed or estimates is None or log.ended_early:
        return made, seen
    whole, alone, workload = results[place], results[-1], estimates.captured.workload
    by_hand = bool(estimates.settings.kernels)
    changed = leaving_out.changed_in(whole, alone, changed_by(whole, handwritten=by_hand))
    until = _until(estimates)
    took_s = estimates.whole_s(changed=len(changed), plans=1)

    def compare(asked: Result, words: str) -> ModelCheck | None:
        nonlocal took_s
        begin = time.monotonic()
        if begin + took_s > until or log.ended_early:
            return None
        (found,) = _compared([asked], runner, words, log, timeout_s=until - begin, rounds_s=0.0)
        took_s = time.monotonic() - begin
        return None if log.ended_early else found

    right, seen_of_it, lines = leaving_out.right_part_of(
        whole,
        checks[place],
        compare,
        alone=alone,
        workload=workload,
        changed=changed,
        what=runner.what,
        apart=runner.apart,
    )
    log.warn(*lines)
    if seen_of_it is checks[place] or place == len(made) - 1:
        made[place], seen[place] = right, seen_of_it
    else:
        made.insert(place + 1, right)
        seen.insert(place + 1, seen_of_it)
    return made, seen


def _until(estimates: Estimates) -> float:
    """When no part may be compared any more, by `time.monotonic`."""
    budget = estimates.budget
    if budget.over_at is not None and budget.limit_s is not None:
        return budget.over_at + overtime_s(budget.limit_s)
    return time.monotonic() + TIMEOUT_S


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
    results: Sequence[Result], runner: Runner, plans: str, log: RunLog, *, timeout_s: float, rounds_s: float
) -> list[ModelCheck]:
    """A check of each; `plans` say which schedules these are."""
    log.progress.phase(runner.announced(plans))
    try:
        with log.jobs.doing(JobKind.STEP, runner.what, resource="device:0") as job:
            seen = runner.checks(results, timeout_s=timeout_s, rounds_s=rounds_s)
            job.outcome, job.saving_s = _outcome_of(seen), _saving_s(seen)
        return seen
    except DeviceError as error:
        log.lose(error)
        return [ModelCheck(None, "not run: the device was lost")] * len(results)
    except KeyboardInterrupt:
        log.interrupt()
        return [ModelCheck(None, "not run: interrupted")] * len(results)


def _outcome_of(checks: Sequence[ModelCheck]) -> JobOutcome:
    """Of the steps of several plans: wrong where one is, unjudged where there is no verdict on any."""
    if any(check.passed is False for check in checks):
        return JobOutcome.WRONG
    return JobOutcome.OK if any(check.passed for check in checks) else JobOutcome.UNJUDGED


def _saving_s(checks: Sequence[ModelCheck]) -> float | None:
    """What a step of the fastest plan that is right is faster by."""
    timed = [(c.before_s, c.after_s) for c in checks if c.passed and c.before_s is not None and c.after_s is not None]
    return max((before_s - after_s for before_s, after_s in timed), default=None)
