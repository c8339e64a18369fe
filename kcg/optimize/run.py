"""`python -m kcg.optimize` from settings to files and exit code."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from kcg.cli import counted
from kcg.errors import DeviceError, ExitCode, UsageError
from kcg.measure.isolated import IsolatedProcess
from kcg.optimize import handwritten
from kcg.optimize.console import Progress, format_seconds
from kcg.optimize.estimates import OVERTIME, judging_s, whole_s
from kcg.optimize.finals import as_searched, build_result, is_due, judge_all
from kcg.optimize.phases import BASELINES, JUDGING, MODEL, SEARCH
from kcg.optimize.session import Session
from kcg.optimize.settings import TINY_BEAM, Settings, check_weights, check_writable
from kcg.optimize.verdicts import forget
from kcg.optimize.whole_model import is_runnable
from kcg.types import ModelCheck, RegionResult, Result, Workload

# ---- Is there memory for the workload as a whole? Asked before anything of it is allocated.
#
# At the end of a run the whole model runs on random weights (`whole_model`). What that needs is known as soon as the
# workload is captured: its weights, inputs and outputs, and the arena in which tinygrad's planner lays out all values
# in between. It is a lower bound: making the weights, and the programs themselves, take a little more.

GB = 1e9


@dataclass(frozen=True)
class Memory:
    """Bytes of a device's memory: what is free now, and all of it."""

    free: int
    total: int


def memory_on(device: str) -> Memory | None:
    """The memory of `device`, such as `CPU` or `CUDA`; None where it does not tell."""
    from kcg.compat.hardware import memory_of

    known = memory_of(device)
    return Memory(*known) if known is not None else None


def check_memory(
    settings: Settings, workload: Workload, memory: Memory | None, *, device: str, log: Callable[[str], None]
) -> None:
    """Raises UsageError where `workload` will run as a whole and has no room; it names the next smaller that has.

    For that the other presets are captured, which takes a while; `log` gets a line.
    """
    if memory is None or not is_runnable(settings, workload.name) or workload.memory_bytes <= memory.free:
        return
    log(f"{shortage(workload, memory, device=device)}: looking for a preset that fits")
    smaller = next_smaller(workload, memory)
    if smaller is not None:
        advice = f"use --preset {smaller.preset}, which needs {smaller.memory_bytes / GB:.3g} GB"
    elif workload.memory_bytes <= memory.total:
        advice = "no smaller preset fits: free memory that others use, or use another device"
    else:
        advice = "no smaller preset fits: use a device with more memory"
    raise UsageError(f"{shortage(workload, memory, device=device)}: {advice}")


def shortage(workload: Workload, memory: Memory, *, device: str) -> str:
    """What is needed, and what there is, in one line."""
    return (
        f"{workload.name} {workload.preset} needs {workload.memory_bytes / GB:.3g} GB of memory "
        f"({workload.held_bytes / GB:.3g} GB of weights and inputs, {workload.between_bytes / GB:.3g} GB in between), "
        f"{device} has {memory.free / GB:.3g} GB free of {memory.total / GB:.3g} GB"
    )


def next_smaller(workload: Workload, memory: Memory) -> Workload | None:
    """The preset of the same workload that needs most of those that need less and have room; None if there is none."""
    from kcg.workloads.registry import spec_of

    spec = spec_of(workload.name)
    others = [spec.capture(preset) for preset in spec.presets if preset != workload.preset]
    fitting = [w for w in others if w.memory_bytes < workload.memory_bytes and w.memory_bytes <= memory.free]
    return max(fitting, key=lambda w: w.memory_bytes, default=None)


# ---- `--dry-run`: what an optimisation would do, without measuring anything.


def describe(settings: Settings, progress: Progress, *, json_mode: bool) -> None:
    """Capture the workload and say what a run would do: kernels, calls, target, operations, the longest first.

    The script of a workload that is one is run, since its kernels are not known otherwise; nothing is timed or written.
    """
    from kcg.kernel.analysis import arithmetic, find_recompute
    from kcg.optimize.whole_model import is_runnable
    from kcg.types import canonical_json

    check_writable(settings.folder)
    with Session(settings, progress, writes=False) as session:
        kernels = handwritten.read_files(session)
        workload = session.capture()
        works = session.plan()
        handwritten.offer(session, kernels)
        target = session.service.target
        rows = sorted(
            (
                {
                    "id": w.call.region.id,
                    "name": w.space.name(w.space.baseline()),
                    "calls": w.call.calls,
                    "operations": float(arithmetic(w.space.ast)),
                    "schedule": str(w.space.baseline()),
                    "first_actions": len(w.space.actions(w.space.start())),
                    "handwritten": [[offer.name, offer.reason] for offer in w.offers],
                }
                for w in works
            ),
            key=lambda row: -float(str(row["operations"])) * int(str(row["calls"])),
        )
        waste = [find_recompute(w.space.ast, w.call.region.id, w.call.calls) for w in works]
        if json_mode:
            plan = {
                "workload": workload.name,
                "preset": workload.preset,
                "target": target.model,
                "search": settings.search,
                "budget": settings.budget_text,
                "kernels": rows,
                "folder": str(settings.folder),
                "left_out": [asdict(left) for left in workload.left_out],
            }
            sys.stdout.write(canonical_json(plan) + "\n")
            return
        out = sys.stdout.write
        out(f"would optimise {workload.name} {workload.preset} on {target.model} with {settings.search}\n")
        calls = sum(w.call.calls for w in works)
        if is_runnable(settings, workload.name) and (memory := memory_on(session.choice.device)) is not None:
            fits = "" if workload.memory_bytes <= memory.free else ", which is refused"
            out(f"{shortage(workload, memory, device=session.choice.device)}{fits}\n")
        total = sum(float(str(r["operations"])) * int(str(r["calls"])) for r in rows)
        counts = f"{counted(len({w.call.region.id for w in works}), 'kernel')}, {counted(calls, 'call')}"
        out(f"{counts}, {total / 1e9:.2f} GFLOP; budget {settings.budget_text or 'none'}\n")
        for row in rows[:10]:
            millions = float(str(row["operations"])) / 1e6
            out(f"  {row['name']!s:28} {row['calls']!s:>5} calls  {millions:10.1f} MFLOP each\n")
        if len(rows) > 10:
            out(f"  and {len(rows) - 10} smaller ones\n")
        for work in works:
            for offer in work.offers:
                name, fate = work.space.name(work.space.baseline()), "fits" if offer.schedule else offer.reason
                out(f"written by hand: {offer.name} for {name} ({work.call.region.id[:12]}): {fate}\n")
        for left in workload.left_out:
            out(f"{left}\n")
        for warning in session.warnings:
            out(f"warning: {warning}\n")
        for found in waste:
            if found is not None:
                out(f"recomputes {found.factor:.1f} times: {found.advice}\n")
        out(f"would write RESULT.json, report.html and journal.sqlite to {settings.folder}\n")


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
    from kcg.optimize.search import search

    with Session(settings, progress, started=started) as session, _alone(session), contextlib.ExitStack() as children:
        kernels = handwritten.read_files(session)  # first: a mistake in it is to be known before anything takes time
        workload, device = session.capture(), session.choice.device
        check_memory(settings, workload, memory_on(device), device=device, log=progress.phase)
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


def _finished(session: Session, regions: tuple[RegionResult, ...] | None, planning: IsolatedProcess | None) -> Finished:
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
        result,
        model_check=check,
        complete=not ended_early and not over and has_an_answer(session, result),
        search_s=sum(seconds for _, seconds in phases),
        warnings=tuple(session.warnings),
        phases=phases,
    )
    return _written(session, result)


def has_an_answer(session: Session, result: Result) -> bool:
    """Whether a run can say what there is to gain: it searched, and left nothing open where nothing is faster, neither
    a candidate that was not judged nor a kernel to which its budget did not come."""
    improved = any(row.outcome == "improved" for row in result.regions)
    cut = session.settings.budget_s is not None and not session.settled and not session.ledger.used_up
    missing = cut and any(row.outcome == "not searched" for row in result.regions)
    return not session.searched_nothing and (improved or not (session.undecided or missing))


def _alone(session: Session) -> AbstractContextManager[None]:
    from kcg.measure.lock import lock_device

    return lock_device(session.choice.dev, wait=session.settings.wait, log=session.progress.line)


def _lose(session: Session, error: DeviceError) -> None:
    session.lost = str(error)
    session.warnings.append(f"the device was lost: {error}")


def _checked_model(session: Session, result: Result, child: IsolatedProcess | None, *, ended_early: bool) -> ModelCheck:
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


def _compared(session: Session, result: Result, child: IsolatedProcess | None, *, timeout_s: float) -> ModelCheck:
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
        result,
        timeout_s=timeout_s,
        seed=settings.seed,
        kernels=settings.kernels,
        weights=settings.weights,
        child=child,
        check_device=check_device,
    )


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
