"""How a run came out, by its result: the exit code of its command, and the same in words.

The command, `Result.complete`, its report and the page of runs read it here. Whether a run was interrupted, or lost its
device, is no part of its result.
"""

from __future__ import annotations

from typing import Final

from kcg.errors import ExitCode
from kcg.types import Result

NO_WHOLE: Final = "not run: kcg has no runnable "
"""Begins what is said of a workload that is no more than its kernels; its name follows."""
SEARCHED: Final = ("improved", "kept", "undecided")
"""Outcomes of a kernel or region of which another schedule was tried."""
ANSWERED: Final = (ExitCode.OK, ExitCode.NOTHING_IMPROVED, ExitCode.VERIFICATION_FAILED)
"""What a run ends with that came to an answer: its result is `complete`."""


def exit_code_of(result: Result) -> ExitCode:
    """How a run came out that ended by itself, worst news first. What is unjudged or fails counts for nothing: it is
    the rest's. Whether its budget ended first is said, and changes nothing."""
    check = result.model_check
    if (check is not None and check.passed is False) or any(r.chosen.verification.wrong for r in result.regions):
        return ExitCode.VERIFICATION_FAILED
    if any(row.outcome == "improved" for row in result.regions):
        return ExitCode.OK if is_checked(result) else ExitCode.UNCHECKED
    return ExitCode.NOTHING_IMPROVED if any(r.outcome in SEARCHED for r in result.regions) else ExitCode.NOTHING_SEARCHED


def is_checked(result: Result) -> bool:
    """Whether all that improved is known to be right as a whole: a run verifies each part before it improves, and the
    whole at the end. A result of before there was that check is as complete as it says."""
    check = result.model_check
    if check is None:
        return result.complete
    return bool(check.passed) or check.reason.startswith(NO_WHOLE)


def incomplete(result: Result) -> str:
    """Why a result is not complete, in a line; empty where it is."""
    if result.complete:
        return ""
    match exit_code_of(result):
        case ExitCode.NOTHING_SEARCHED:
            return next((w for w in result.warnings if w.startswith("nothing was searched")), "nothing was searched")
        case ExitCode.UNCHECKED:
            check = result.model_check
            why = f": {check.reason.removeprefix('not run: ')}" if check is not None and check.reason else ""
            return f"what improved was verified part by part, and the whole was not checked{why}"
    return "the run ended before all was done; what is shown is the best so far"
