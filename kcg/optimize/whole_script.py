"""The last rule of verification for a script: what it leaves with the chosen schedules against what it leaves as
tinygrad schedules it.

The script runs twice more, in fresh processes that can be killed (`kcg.optimize.script_run`): with tinygrad's own
schedules, then with the chosen ones, hand-written kernels included. Both have the same seeds of Python, NumPy and
tinygrad. All that the script does to the world, it does again: `--no-script-check` leaves this out.

What is compared is what came out of kernels that have another schedule now: what is alive at the end, what the last
call of a `TinyJit` returned, and what the script read last. Two runs that leave tensors of other shapes, or another
number of them, cannot be compared. Where values differ by more than a single kernel may make them differ, two more runs
tell why: one repeats the run with tinygrad's own schedules, since a script that depends on the time or on the system's
random numbers differs from itself, and one tells what it makes of rounding (`kcg.optimize.script_verdict`). Only then
does a script fail.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from kcg.measure import alone
from kcg.optimize.script_run import Ran, read_answer
from kcg.optimize.script_verdict import (
    equal,
    judge,
    judge_first,
    rounding_of,
    same_layout,
    says_something,
    words_of,
)
from kcg.types import ModelCheck, Result

if TYPE_CHECKING:
    from kcg.optimize.settings import Settings

CHILD = "kcg.optimize.script_run"
RUNS_AT_FIRST = 2
MORE = 1.25  # a run takes longer than the one that recorded the kernels: other schedules take longer to compile
LEAST_TIMEOUT_S = 600.0  # of all runs, where there is no budget
TIMES = 10.0  # so many times what is expected is waited for then


def expected_cost_s(settings: Settings, *, recorded_s: float) -> float:
    """About how many seconds the check takes, where recording the script's kernels took `recorded_s`."""
    return RUNS_AT_FIRST * MORE * recorded_s if settings.script_check else 0.0


def timeout_s(expected_s: float) -> float:
    """How long to wait for all runs where there is no budget."""
    return max(LEAST_TIMEOUT_S, TIMES * expected_s)


def why_not_needed(settings: Settings, result: Result, *, ended_early: bool) -> str:
    """Why there is nothing to check; empty where the check is due."""
    if not settings.script_check:
        return "not run: left out by --no-script-check"
    if ended_early:
        return "not run: the run ended before every kernel was verified"
    if not any(row.outcome == "improved" for row in result.regions):
        return "not run: no schedule was changed"
    return ""


def check_script(
    result: Result, settings: Settings, *, timeout_s: float, check_device: Callable[[], None] = lambda: None
) -> ModelCheck:
    """Run the script of `settings` with tinygrad's own schedules and with those of `result`, and compare.

    Never raises for what the script does: a script that fails with the chosen schedules alone fails the check, anything
    else gives no verdict. `check_device` is called after a run that failed, and its time may come on top of
    `timeout_s`: a DeviceError that it raises ends the check.
    """
    from kcg.optimize.deploy import choices
    from kcg.optimize.result import write_result

    changed = {
        c.kernel.id for c in choices(result)[0] if c.searched or (settings.kernels and c.handwritten is not None)
    }
    with tempfile.TemporaryDirectory(prefix="kcg-script-", ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "result.json"
        write_result(result, path)
        runs = _Runs(result, settings, path, changed, timeout_s=timeout_s, check_device=check_device)
        check = _compared(runs, result, len(changed))
        return replace(check, seed=settings.seed, runs=runs.count)


class _Died(Exception):
    """A run that left no answer, and how it ended."""


class _Runs:
    """Runs the script, one after the other, as long as there is time."""

    def __init__(
        self, result: Result, settings: Settings, path: Path, changed: set[str], *, timeout_s: float,
        check_device: Callable[[], None],
    ) -> None:  # fmt: skip
        self.count = 0
        self._dev, self._path, self._check_device = result.target.tinygrad_device, path, check_device
        self._end = time.monotonic() + timeout_s
        self._seed = settings.seed
        program = settings.program
        assert program is not None, "a named workload is no script"
        self._job = {
            "form": program.form, "what": program.what, "arguments": list(program.arguments), "seed": settings.seed,
            "result": str(path), "kernels": [str(file) for file in settings.kernels], "changed": sorted(changed),
        }  # fmt: skip

    def run(self, *, chosen: bool = False, shake: bool = False) -> Ran:
        """One more run of the script. Raises `alone.Overdue` where it does not end in time, `_Died` where it leaves no
        answer, DeviceError where the device is gone."""
        self.count += 1
        folder, begin = self._path.parent / str(self.count), time.monotonic()
        folder.mkdir()
        job = {**self._job, "folder": str(folder), "chosen": chosen, "shake": shake}
        settings = {"PYTHONHASHSEED": str(self._seed % 2**32), **({"JIT": "2"} if shake else {})}
        try:
            with alone.Alone(CHILD, dev=self._dev, label="script", settings=settings) as process:
                ended = process.run(job, timeout_s=max(self._end - begin, 0.0), name="it")
        except alone.Overdue:
            self._check_device()  # before anything is said of the schedules
            raise
        if (ran := read_answer(folder, seconds=time.monotonic() - begin)) is None:
            self._check_device()
            raise _Died(ended.last_words)
        return ran

    def has_time_for(self, one: Ran) -> bool:
        """Whether another run like that is expected to end in time."""
        return time.monotonic() + one.seconds < self._end


def _compared(runs: _Runs, result: Result, changed: int) -> ModelCheck:
    # tinygrad's own first: a script that does not run again, for whatever reason, is not run a third time
    try:
        own = runs.run()
    except (alone.Overdue, _Died) as error:
        return _none(f"the script does not run again: with tinygrad's own schedules {_of(error)}")
    try:
        chosen = runs.run(chosen=True)
    except alone.Overdue as error:
        return _none(f"with the chosen schedules {error}; with tinygrad's own it took {own.seconds:.3g} s")
    except _Died as error:
        return _whose_fault(runs, own, _of(error))
    if chosen.refused:
        return _none(f"the chosen schedules cannot be used in the script: {chosen.refused}")
    if chosen.ended != own.ended:
        return _whose_fault(runs, own, chosen.words or "it ends well")
    check = _of_what_is_left(runs, result, own, chosen)
    check = replace(check, kernels=chosen.kernels)
    if check.passed and chosen.kernels < changed:
        missing = changed - chosen.kernels
        reason = f"no verdict: {missing} of {changed} changed kernels do not occur when the script runs again"
        reason += f" ({chosen.words})" if chosen.ended else ""
        return replace(check, passed=None, reason=reason)
    return check


def _whose_fault(runs: _Runs, own: Ran, words: str) -> ModelCheck:
    """What is said of a script that does not end with the chosen schedules as it does with tinygrad's own."""
    if not runs.has_time_for(own):
        return _none(f"with the chosen schedules {words}, and there was no time to see whether it always does")
    try:
        again = runs.run()
    except (alone.Overdue, _Died) as error:
        return _none(f"the script does not end in the same way twice: with tinygrad's own schedules {_of(error)}")
    if again.ended != own.ended:
        return _none("the script does not end in the same way twice, with tinygrad's own schedules either")
    if own.ended:
        return _none(f"with tinygrad's own schedules {own.words}; with the chosen ones {words}")
    return ModelCheck(False, f"the script fails with the chosen schedules, and not with tinygrad's own: {words}")


def _of_what_is_left(runs: _Runs, result: Result, own: Ran, chosen: Ran) -> ModelCheck:
    if not own.pieces and not chosen.pieces:
        where = f" ({own.words})" if own.ended else ""
        return _none(f"nothing that the script left or read came out of a kernel with another schedule{where}")
    if not same_layout(own.pieces, chosen.pieces):
        told = f"{words_of(own.pieces) or 'nothing'} with tinygrad's own schedules"
        ours = f"{words_of(chosen.pieces) or 'nothing'} with the chosen ones"
        if told.split(" with ")[0] == ours.split(" with ")[0]:
            ours += ", of other shapes"
        return _none(f"the script left {told}, {ours}: it depends on more than its seeds, or on rounding")
    if not says_something(own.pieces):
        return _none("what the script left is zero or not finite with tinygrad's own schedules either")
    compared = words_of(own.pieces)
    if own.left_out:
        compared += f"; {own.left_out} more left out for their size"
    rounding = rounding_of(result)
    check = judge_first(chosen.pieces, own.pieces, rounding)
    if check is None:
        check = _with_more_runs(runs, own, chosen, lambda shaken: judge(
            chosen.pieces, own.pieces, shaken.pieces, rounding, values=shaken.shaken
        ))  # fmt: skip
    return replace(check, compared=compared)


def _with_more_runs(runs: _Runs, own: Ran, chosen: Ran, verdict: Callable[[Ran], ModelCheck]) -> ModelCheck:
    """The verdict where the two runs differ by more than a single kernel may make them differ."""
    try:
        for shake in (False, True):
            if not runs.has_time_for(own):
                return _none("the two runs differ, and there was no time to see whether the script repeats itself")
            again = runs.run(shake=shake)
            if not shake and not (again.ended == own.ended and equal(again.pieces, own.pieces)):
                return _none("the script does not repeat itself with tinygrad's own schedules either")
    except (alone.Overdue, _Died) as error:
        return _none(f"the two runs differ, and when it ran again with tinygrad's own schedules {_of(error)}")
    if not (again.ended == own.ended and same_layout(again.pieces, own.pieces)):
        return _none("the two runs differ, and one rounding unit changes what the script does")
    return verdict(again)


def _none(reason: str) -> ModelCheck:
    return ModelCheck(None, f"no verdict: {reason}")


def _of(error: Exception) -> str:
    text = str(error)
    return text if text.startswith("it ") else f"it failed: {text}"
