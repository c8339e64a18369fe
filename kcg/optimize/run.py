"""`python -m kcg.optimize` from settings to files and exit code."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from kcg.errors import ExitCode
from kcg.optimize.console import Progress
from kcg.optimize.finals import as_searched, build_result, judge_all
from kcg.optimize.session import Session
from kcg.optimize.settings import Settings
from kcg.types import Result


@dataclass(frozen=True)
class Finished:
    """What a run leaves behind."""

    result: Result
    result_path: Path
    report_path: Path
    exit_code: ExitCode


def optimize(settings: Settings, progress: Progress, *, started: float | None = None) -> Finished:
    """Run one optimisation and write RESULT.json and report.html into `settings.folder`.

    On Ctrl-C the children are killed, the best so far is written, verified as far as it came; the exit code is 130.
    """
    from kcg.predictor.roofline import Roofline

    with Session(settings, progress, started=started) as session:
        session.capture()
        session.open_journal()
        session.plan()
        regions = None
        try:
            if settings.measurements != 0:
                session.measure_baselines()
            session.search(Roofline())
            progress.phase("re-timing and verifying the finalists in a fresh process")
            regions = judge_all(session)
            session.check_journal()
        except KeyboardInterrupt:
            session.interrupted = True
            session.service.close()  # the children first: what is written next does not change under the writer
        over = settings.budget_s is not None and time.monotonic() - session.started > settings.budget_s * 1.1
        if over and not session.interrupted:
            session.warnings.append(
                f"the budget of {settings.budget_s:g} s is less than timing and verifying the kernels takes"
            )
        complete = regions is not None and not over
        result = build_result(session, regions if regions is not None else as_searched(session), complete=complete)
        return _written(session, result)


def _written(session: Session, result: Result) -> Finished:
    from kcg.optimize.report import write_report
    from kcg.optimize.result import write_result

    path = session.folder / "RESULT.json"
    write_result(result, path)
    report = write_report(result, session.folder)
    return Finished(result, path, report, exit_code_of(result, interrupted=session.interrupted))


def exit_code_of(result: Result, *, interrupted: bool) -> ExitCode:
    """The exit code of a run, worst news first."""
    if interrupted:
        return ExitCode.INTERRUPTED
    if any(not r.chosen.verification.passed for r in result.regions):
        return ExitCode.VERIFICATION_FAILED
    if not result.complete:
        return ExitCode.BUDGET_HIT
    if not any(r.outcome == "improved" for r in result.regions):
        return ExitCode.NOTHING_IMPROVED
    return ExitCode.OK
