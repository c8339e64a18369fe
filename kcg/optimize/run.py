"""`python -m kcg.optimize` from settings to files and exit code."""

from __future__ import annotations

import contextlib
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from kcg.errors import DeviceError, ExitCode
from kcg.measure.alone import Alone
from kcg.optimize import handwritten
from kcg.optimize.console import Progress, format_seconds
from kcg.optimize.estimates import OVERTIME, judging_s, whole_s
from kcg.optimize.finals import as_searched, build_result, is_due, judge_all
from kcg.optimize.memory import check_memory, room_on
from kcg.optimize.names import TINY_BEAM, check_weights
from kcg.optimize.phases import BASELINES, JUDGING, MODEL, SEARCH
from kcg.optimize.session import Session
from kcg.optimize.settings import Settings
from kcg.optimize.verdicts import forget
from kcg.types import ModelCheck, RegionResult, Result


@dataclass(frozen=True)
class Finished:
    """What a run leaves behind."""

    result: Result
    result_path: Path
    report_path: Path
    exit_code: ExitCode
    lost: str = ""  # why the device went away in the middle, if it did


def optimize(settings: Settings, progress: Progress, *, started: float | None = None) -> Finished:
    """Run one optimisation and write RESULT.json and report.html into `settings.folder`.

    On Ctrl-C the children are killed, the best so far is written, verified as far as it came; the exit code is 130. The
    same where the device goes away in the middle; the exit code is 5 then. Raises DeviceError where it never opened.
    """
    from kcg.optimize import whole_model
    from kcg.optimize.searching import search

    with (
        Session(settings, progress, started=started) as session, _alone(session), contextlib.ExitStack() as children
    ):  # fmt: skip
        kernels = handwritten.read_files(session)  # first: a mistake in it is to be known before anything takes time
        workload, device = session.capture(), session.choice.device
        check_memory(settings, workload, room_on(device), device=device, say=progress.phase)
        if settings.weights:
            progress.phase(f"looking at the weights {settings.weights}")
            check_weights(settings, device, fetch=True)
        guided = settings.measurements == 0 or not settings.search.startswith(TINY_BEAM)
        if guided and device == "CPU":
            session.preload()
        session.open_journal()
        session.plan()
        session.notice_busy_machine()
        handwritten.offer(session, kernels)
        session.phases.begin(BASELINES)
        regions, planning = None, None
        try:
            if settings.measurements != 0:
                session.measure_baselines(session.guide if guided else lambda: None)
                handwritten.measure(session)
            else:
                session.guide()
            session.measured_at = time.monotonic()
            session.phases.begin(SEARCH)
            if (planning := whole_model.ahead(settings, workload, dev=session.choice.dev)) is not None:
                children.enter_context(planning)
            search(session)
            session.phases.begin(JUDGING)
            if due := sum(is_due(session, work) for work in session.works):
                about = format_seconds(judging_s(session))
                many = f"{due} kernel{'s' * (due > 1)}"
                progress.phase(f"re-timing and verifying what was found for {many} in a fresh process, about {about}")
            regions = judge_all(session)
            session.check_journal()
        except KeyboardInterrupt:
            session.interrupted = True
            session.close_children()  # first of all: what is written next does not change under the writer
        except DeviceError as error:
            _lose(session, error)
            session.close_children()
        try:
            if regions is not None:
                session.close_children()  # its memory on the device is wanted, and nothing may disturb the model's run
            return _finished(session, regions, planning)
        except KeyboardInterrupt:  # what was found is written all the same; a second one ends the process
            session.interrupted = True
            session.close_children()
            return _finished(session, regions, planning)


def _finished(session: Session, regions: tuple[RegionResult, ...] | None, planning: Alone | None) -> Finished:
    """The result of what there is: checked as a whole where it is due, and written."""
    settings = session.settings
    ended_early = regions is None or session.interrupted or bool(session.lost)
    result = build_result(session, as_searched(session) if regions is None else regions, complete=not ended_early)
    session.phases.begin(MODEL)
    if (check := session.model_check) is None:
        check = session.model_check = _checked_model(session, result, planning, ended_early=ended_early)
    ended_early = ended_early or session.interrupted or bool(session.lost)
    over = settings.budget_s is not None and time.monotonic() - session.started > settings.budget_s * (1 + OVERTIME)
    if over and not session.interrupted:
        session.warnings.append(
            f"the budget of {settings.budget_s:g} s is less than timing and verifying the kernels takes"
        )
    session.notice_moved_journal()
    phases = session.phases.seconds()
    result = replace(
        result, model_check=check, complete=not ended_early and not over and has_an_answer(session, result),
        search_s=sum(seconds for _, seconds in phases), warnings=tuple(session.warnings), phases=phases,
    )  # fmt: skip
    return _written(session, result)


def has_an_answer(session: Session, result: Result) -> bool:
    """Whether a run can say what there is to gain: it searched, and left nothing open where nothing is faster, neither
    a candidate that was not judged nor a kernel to which its budget did not come."""
    improved = any(row.outcome == "improved" for row in result.regions)
    cut = session.settings.budget_s is not None and not session.settled and not session.ledger.used_up
    missing = cut and any(row.outcome == "not searched" for row in result.regions)
    return not session.searched_nothing and (improved or not (session.undecided or missing))


def _alone(session: Session) -> AbstractContextManager[None]:
    from kcg.optimize.lock import alone_on

    return alone_on(session.choice.dev, wait=session.settings.wait, say=session.progress.line)


def _lose(session: Session, error: DeviceError) -> None:
    session.lost = str(error)
    session.warnings.append(f"the device was lost: {error}")


def _checked_model(session: Session, result: Result, child: Alone | None, *, ended_early: bool) -> ModelCheck:
    """The verdict on the whole model or the script, or why there is none; a warning where there should have been one.
    `child` may be planning the model already."""
    from kcg.optimize import whole_model, whole_script

    settings = session.settings
    kind, what = (whole_script, "script") if settings.is_script else (whole_model, "model")
    if reason := kind.why_not_needed(settings, result, ended_early=ended_early):
        return ModelCheck(None, reason)
    needed_s = whole_s(session, changed=sum(row.outcome == "improved" for row in result.regions))
    timeout_s = whole_script.timeout_s(needed_s) if settings.is_script else whole_model.TIMEOUT_S
    if settings.budget_s is not None:
        left_s = session.started + settings.budget_s - time.monotonic()
        if left_s + OVERTIME * settings.budget_s < needed_s:
            reason = f"not run: {max(left_s, 0):.0f} s of the budget were left, and it takes about {needed_s:.0f} s"
            session.warnings.append(f"the whole {what} was not compared with tinygrad's own schedules, {reason}")
            return ModelCheck(None, reason)
        timeout_s = max(left_s, needed_s) + OVERTIME * settings.budget_s  # no verdict would cost more than a late one
    try:
        check = _compared(session, result, child, timeout_s=timeout_s)
    except DeviceError as error:
        _lose(session, error)
        return ModelCheck(None, "not run: the device was lost")
    except KeyboardInterrupt:
        session.interrupted = True
        return ModelCheck(None, "not run: interrupted")
    if check.passed is False:
        forget(session)
    if check.passed is None:
        session.warnings.append(f"the whole {what} was not compared with tinygrad's own schedules, {check.reason}")
    return check


def _compared(session: Session, result: Result, child: Alone | None, *, timeout_s: float) -> ModelCheck:
    from kcg.optimize import whole_model, whole_script

    settings, check_device = session.settings, session.service.check_device
    if settings.is_script:
        session.progress.phase(
            f"running {settings.workload} twice more, with tinygrad's own schedules and with the chosen ones (its side "
            "effects repeat; --no-script-check leaves this out)"
        )
        return whole_script.check_script(result, settings, timeout_s=timeout_s, check_device=check_device)
    session.progress.phase("comparing the whole model's output with that of tinygrad's own schedules")
    return whole_model.check_model(
        result, timeout_s=timeout_s, seed=settings.seed, kernels=settings.kernels, weights=settings.weights,
        child=child, check_device=check_device,
    )  # fmt: skip


def _written(session: Session, result: Result) -> Finished:
    from kcg.optimize.report import write_report
    from kcg.optimize.result import write_result

    path = session.folder / "RESULT.json"
    session.set_aside(path.name, "report.html")
    write_result(result, path)
    report = write_report(result, session.folder)
    code = exit_code_of(result, interrupted=session.interrupted, lost=bool(session.lost))
    return Finished(result, path, report, code, lost=session.lost)


def exit_code_of(result: Result, *, interrupted: bool, lost: bool = False) -> ExitCode:
    """The exit code of a run, worst news first. What is unjudged or fails counts for nothing: it is the rest's."""
    if interrupted:
        return ExitCode.INTERRUPTED
    if lost:
        return ExitCode.DEVICE_UNUSABLE
    wrong_model = result.model_check is not None and result.model_check.passed is False
    if wrong_model or any(r.chosen.verification.wrong for r in result.regions):
        return ExitCode.VERIFICATION_FAILED
    if not result.complete:
        return ExitCode.BUDGET_HIT
    if not any(r.outcome == "improved" for r in result.regions):
        return ExitCode.NOTHING_IMPROVED
    return ExitCode.OK
