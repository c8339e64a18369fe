"""The whole of a result that is stored, compared later: what its run had no time for, or was told to leave out.

What is compared, and how, is what the run would have done at its end (`kcg.judge.whole`), without a budget. A script is
compared with what it left while it was recorded, where the run kept that beside its result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from kcg.errors import ExitCode, UsageError
from kcg.handover.choices import changed_by
from kcg.judge.whole import Cost, Runner
from kcg.judge.whole_model import Model
from kcg.judge.whole_model import is_runnable as is_model
from kcg.judge.whole_script import Script
from kcg.report.endings import ANSWERED, exit_code_of, whole_is_checked
from kcg.report.next_steps import option_values, program_in
from kcg.report.phases import CAPTURING
from kcg.report.words import checked_as
from kcg.types import Result
from kcg.workloads.left import FOLDER
from kcg.workloads.registry import spec_of
from kcg.workloads.script import check_program


def checked(result: Result, folder: Path, *, say: Callable[[str], None] = lambda line: None) -> Result:
    """The result with a check of the whole, which is run where something improved and was not checked; `folder` is
    where its run left it. Raises UsageError where kcg cannot run it, DeviceError where the device is gone."""
    if exit_code_of(result) != ExitCode.UNCHECKED or whole_is_checked(result):
        return result
    runner = runner_of(result, folder)
    say(runner.announced(""))
    changed = len(changed_by(result, handwritten=bool(_kernels(result))))
    timeout_s = runner.timeout_s(runner.expected_s(Cost(changed=changed, step_s=result.total_before_s)))
    (check,) = runner.checks([replace(result, complete=True)], timeout_s=timeout_s)
    missing = f"the whole {runner.what} was not compared", "the run ended before the whole "
    warnings = result.warnings
    if check.passed is not None:
        warnings = tuple(line for line in warnings if not line.startswith(missing))
    found = replace(result, model_check=check, warnings=warnings)
    return replace(found, complete=exit_code_of(found) in ANSWERED)


def runner_of(result: Result, folder: Path) -> Runner:
    """What runs the whole of a result, as its command named it. Raises UsageError where nothing can."""
    kernels = _kernels(result)
    if (program := program_in(result)) is not None:
        check_program(program)
        recorded_s = dict(result.phases).get(CAPTURING, 0.0)
        return Script(program, seed=result.seed, kernels=kernels, recorded_s=recorded_s, recorded=folder / FOLDER)
    if not is_model(result.workload):
        what = checked_as(result)
        advice = "a function is checked where it is tuned" if what == "function" else "run the search again"
        raise UsageError(f"{result.workload} {result.preset} is no {what} that kcg can run from its result: {advice}")
    return Model(
        spec_of(result.workload).capture(result.preset),
        result.target.tinygrad_device,
        seed=result.seed,
        weights=next(iter(option_values(result.command, "--weights")), ""),
        kernels=kernels,
    )


def _kernels(result: Result) -> list[Path]:
    return [Path(file).absolute() for file in option_values(result.command, "--kernels")]
