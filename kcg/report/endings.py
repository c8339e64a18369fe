"""How a run came out, by its result: the exit code of its command, and the same in words.

The command, `Result.complete`, its report and the page of runs read it here. Whether a run was interrupted, or lost its
device, is no part of its result.
"""

from __future__ import annotations

from typing import Final

from kcg.cli import counted
from kcg.errors import ExitCode
from kcg.report.formats import format_seconds
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
    return (
        ExitCode.NOTHING_IMPROVED if any(r.outcome in SEARCHED for r in result.regions) else ExitCode.NOTHING_SEARCHED
    )


def whole_is_checked(result: Result) -> bool:
    """Whether what improved is known to be right together, as far as there is a whole. A result of before there was
    that check is as complete as it says."""
    check = result.model_check
    if check is None:
        return result.complete
    return bool(check.passed) or check.reason.startswith(NO_WHOLE)


def is_checked(result: Result) -> bool:
    """Whether all that improved is known to be right, each part and the whole. A part that is provisional has passed
    some of its launches under stress alone."""
    return whole_is_checked(result) and not any(row.chosen.provisional for row in result.regions)


def incomplete(result: Result) -> str:
    """Why a result is not complete, in a line; empty where it is."""
    if result.complete:
        return ""
    code, check = exit_code_of(result), result.model_check
    if code == ExitCode.UNCHECKED and whole_is_checked(result):
        return "parts of it are provisional: they have launches under stress to pass yet"
    if code == ExitCode.UNCHECKED:
        why = f": {check.reason.removeprefix('not run: ')}" if check is not None and check.reason else ""
        return f"what improved was verified part by part, and the whole was not checked{why}"
    early = "the run ended before all was done; what is shown is the best so far"
    other = "nothing was searched" if code == ExitCode.NOTHING_SEARCHED else early
    return next((w for w in result.warnings if w.startswith("nothing was searched")), other)


def may_find_more(result: Result) -> bool:
    """Whether more time is expected to bring something, by what the run itself estimated."""
    return result.outlook is not None and bool(result.outlook.unjudged or result.outlook.searches)


def outlook_lines(result: Result) -> list[str]:
    """What more time is expected to bring, a short line each; nothing where the run expects nothing of it."""
    lines, outlook = [], result.outlook
    if outlook is not None and outlook.unjudged:
        what = counted(outlook.unjudged, "kernel or region", "kernels and regions")
        lines.append(f"found and not judged in time: {what}, {_saves(outlook.unjudged_s, result)} by the search")
    if outlook is not None and outlook.searches:
        what = counted(outlook.searches, "search was", "searches were")
        saves = _saves(outlook.expected_s, result)
        lines.append(f"{what} stopped before the next measurements, which are expected to save {saves}")
    return lines


def _saves(seconds: float, result: Result) -> str:
    """So much of what the workload takes now."""
    now_s = result.total_after_s
    return f"{format_seconds(seconds)} of {format_seconds(now_s)}" if now_s > 0 else format_seconds(seconds)
