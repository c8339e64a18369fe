"""`python -m kcg.optimize` from settings to files and exit code: the steps, the question of memory, and `--dry-run`."""

from __future__ import annotations

import contextlib
import math
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from kcg import __version__
from kcg.cli import counted
from kcg.compat.workers import not_collecting
from kcg.errors import DeviceError, ExitCode, ResultError, UsageError
from kcg.judge.kept import KeptResults
from kcg.kernel.kinds import describe
from kcg.measure.job_rows import MAIN
from kcg.measure.protocol import PROTOCOL, median
from kcg.optimize import handwritten, live
from kcg.optimize.ahead import Ahead
from kcg.optimize.baselines import measure_baselines, untimed_share
from kcg.optimize.budget import Budget
from kcg.optimize.console import Progress
from kcg.optimize.device import Device
from kcg.optimize.estimates import Estimates
from kcg.optimize.incumbent import UNCHECKED, Incumbent
from kcg.optimize.joining import Joining
from kcg.optimize.judging import Judging, JudgingSettings
from kcg.optimize.live import Live, LiveFile
from kcg.optimize.log import RunLog
from kcg.optimize.model_check import COMPARED, check_models, leave_out_wrong
from kcg.optimize.outlook import outlook_of
from kcg.optimize.planning import planned
from kcg.optimize.proposing import Proposing
from kcg.optimize.region_plans import PLANS, fastest_step
from kcg.optimize.region_search import (
    best_so_far,
    expect_regions,
    freshener,
    needed_by_plans,
    propose_regions,
    savings_in_context,
    search_regions,
    variants,
)
from kcg.optimize.search import Guide, search
from kcg.optimize.settings import Settings, check_weights, check_writable, worth_of
from kcg.optimize.stored import Stored
from kcg.optimize.wholes import child_of, is_runnable, runner_of
from kcg.optimize.work import Candidates, Captured, Measured, RegionResults, RegionWork
from kcg.provenance import provenance
from kcg.report.counts import how_many, share_of
from kcg.report.endings import ANSWERED, exit_code_of
from kcg.report.formats import format_seconds, format_share
from kcg.report.next_steps import resumed
from kcg.report.page import FILE_NAME as REPORT
from kcg.report.page import get_ready as get_ready_for_report
from kcg.report.page import write_report
from kcg.report.phases import BASELINES, CAPTURING, JUDGING, MODEL, OPENING, SEARCH
from kcg.report.result import read_result, write_result
from kcg.store.location import open_store
from kcg.types import (
    Expectation,
    Job,
    JobKind,
    JobOutcome,
    ModelCheck,
    Region,
    RegionResult,
    Result,
    Schedule,
    SeenAs,
    Workload,
    WorkloadCall,
)
from kcg.unexpected import looking, reported_to
from kcg.workloads import left
from kcg.workloads.capture import watched
from kcg.workloads.script import keep_workload

if TYPE_CHECKING:
    from kcg.judge.paired import Compared
    from kcg.judge.whole import Runner
    from kcg.optimize.region_search import Proposed
    from kcg.workloads.script import Late

RESULT = "RESULT.json"
REGIONS_EARLY_S = 30.0
"""With so much of a budget left when the baselines begin on a GPU, the first programs of regions of several kernels are
compiled by what kernels are expected to take: cores have little to do while baselines are timed one by one."""


@dataclass(frozen=True)
class Finished:
    """What a run leaves behind."""

    result: Result
    result_path: Path
    report_path: Path
    exit_code: ExitCode
    lost: str = ""  # why the device went away in the middle, if it did


def optimize(
    settings: Settings,
    progress: Progress,
    *,
    started: float | None = None,
    regions: Sequence[Region] = (),
    captured: Captured | None = None,
) -> Finished:
    """Run one optimisation and write RESULT.json and report.html into `settings.folder`.

    `regions` of several kernels are planned as one wherever they occur (`kcg.optimize.planning`). A workload that is
    `in_memory` comes as `captured`.

    From the first verdict on RESULT.json has the best plan of what was verified (`kcg.optimize.incumbent`). On Ctrl-C
    the children are killed and that is written, with its report; the exit code is 130. The same where the device goes
    away in the middle; the exit code is 5 then. Raises DeviceError where it never opened.
    """
    settings = with_what_was_allowed(settings)
    store = Stored(open_store(settings.store, new=True), settings.allow_tf32) if settings.store else None
    log, budget = begin(settings, progress, started=time.monotonic() if started is None else started)
    if settings.allow_tf32:
        log.warn("products of tile programs may round float32 operands to tf32, 10 bits of mantissa (--allow-tf32)")
    if behind := worth_of(settings.search):
        log.alert(behind)
    with (
        reported_to(log.alert),
        Device(settings, log, budget) as device,
        log.watched(LiveFile(device.folder / live.FILE_NAME, _started(settings, device))) as shown,
        contextlib.ExitStack() as children,
    ):
        device.join_fleet()
        memory = memory_on(device.choice.device)  # before anybody has some of it
        if (whole := child_of(settings, device)) is not None:
            children.enter_context(whole)
        guide = Guide(settings, device)
        if store is not None:
            store.say_read_only(log)
        kernels = handwritten.read_files(device, settings.kernels)  # first: a mistake in it is known before all else
        log.begin(CAPTURING)
        preloads = store is None or store.store.is_new  # else there may be nothing to search
        if preloads:
            guide.begin()
            device.rehearse()
        if captured is None:
            with log.jobs.doing(JobKind.CAPTURE, _subject(settings)):
                left.forget(device.folder / left.FOLDER)
                keeping = left.Keeping(device.folder / left.FOLDER, settings.seed) if settings.script_check else None
                get_ready = device.compile_ahead if settings.program is None else device.get_ready
                early_kernels = get_ready if preloads else None
                captured = capture(settings, device, budget=budget, log=log, keeping=keeping, seen=early_kernels)
                if settings.program is not None:
                    with contextlib.suppress(UsageError):  # then a whole that is found wrong later is so with all of it
                        keep_workload(device.folder / left.FOLDER, captured.workload)
        else:  # before this was called
            log.jobs.add(
                Job(JobKind.CAPTURE, _subject(settings), MAIN, log.started, captured.recorded_s, JobOutcome.OK)
            )
        if regions:
            captured = replace(captured, workload=planned(captured.workload, regions))
        shown.name(captured.workload.name, captured.workload.preset)
        check_fits(settings, captured.workload, memory, device=device, log=log)
        log.begin(OPENING)
        if preloads:
            guide.preload()
        device.open_journal(captured.workload)
        works = device.plan(captured.workload)
        device.use_lowered(works, captured.lowered)
        kept, runner = KeptResults(device, resumed=settings.resume), runner_of(settings, captured, device, works, whole)
        device.notice_busy_machine()
        device.notice_missing_kinds()
        handwritten.offer(kernels, works, device=device, log=log)

        estimates, candidates, proposed, results, by_plan = None, None, None, None, list[RegionResults]()
        judged: dict[str, RegionResult] = {}
        compared: Mapping[tuple[str, Schedule], Compared] = {}
        memory_bytes = memory_between(captured.workload, memory)

        def ended(results: RegionResults | None) -> Ended:
            """What the run has come to by now."""
            name = guide.name
            return Ended(settings, captured, works, candidates, results, judged, name, proposed, memory_bytes)

        def made(results: RegionResults | None) -> Result:
            return build_result(ended(results), device=device, budget=budget, log=log)

        incumbent = Incumbent(
            device.folder / RESULT,
            made,
            whole=settings.whole,
            go_on=resumed(settings.command) if settings.command and captured.call is None else "",
            set_aside=lambda: device.set_aside(RESULT, REPORT),
            history=log.verified,
            started=log.started,
        )
        early: Ahead | None = None

        def regions_begin(some: Proposed) -> None:
            """What is judged from now on may be of these regions."""
            nonlocal proposed
            proposed = some
            if early is not None:
                needed, freshen = needed_by_plans(some, memory_bytes=memory_bytes), freshener(some, device)
                early.know(some.estimates, needed=needed, freshen=freshen)

        try:
            if store is not None:  # before the device's child has run anything but its canary
                log.begin(JUDGING)
                ahead = Estimates(settings, captured, Measured(works, time.monotonic()), device, budget, kept, runner)
                store.verify(works, ahead, device=device, log=log, judged=judged, in_new_child=True)
                if judged:
                    incumbent.improve()
                store.look_for_nothing(works, settings, device=device, log=log)
            log.begin(BASELINES)
            claimed = frozenset(store.claims if store is not None else ())
            # the file of a run that goes on has no less than what that had judged, which is taken over at the end
            improving = None if settings.resume else incumbent
            so_far = Estimates(settings, captured, Measured(works, time.monotonic()), device, budget, kept, runner)
            early = Ahead(device, so_far, log=log, judged=judged, incumbent=improving)
            predicts = settings.measurements == 0
            proposing: Proposing | None = None
            if so_far.wants_regions and not (predicts and store is not None):
                prepare, compiles = early.prepare_early, not predicts
                proposing = Proposing(captured.workload, device, log, prepare=prepare, compiles=compiles)
            preparing = Preparing(guide, early, proposing, claimed)
            measured = baselines(settings, works, preparing, device=device, budget=budget, log=log)
            joins = proposing is not None and not device.is_cpu and store is None and settings.measurements is None
            estimates = Estimates(settings, captured, measured, device, budget, kept, runner, joins=joins)
            if proposing is not None and not predicts and estimates.regions_may_follow():
                proposing.timed(works)
            if store is not None:
                store.measure_unclear(works, device=device)
                store.leave_out(works, estimates, log=log)
            log.begin(SEARCH)
            if not device.is_cpu:  # where nothing else may run while a sample is taken
                threading.Thread(target=_get_ready_for_report, name="kcg-report", daemon=True).start()
            if (whole := runner.ahead()) is not None:
                children.enter_context(whole)
            joining: Joining | None = None
            if proposing is not None and joins:
                joining = Joining(estimates, proposing, device=device, log=log, ahead=early, begun=regions_begin)
            candidates = search(estimates, guide, device=device, log=log, ahead=early, joins=joining)
            if measured.tail is not None:
                measured.tail.finish(estimates.waits_s())
                say_untimed(replace(measured, untimed_share=untimed_share(works)), log)
            if joining is not None:
                joining.end(estimates.waits_s())
                if (joined := joining.proposed) is not None:
                    proposed = replace(joined, candidates=replace(candidates, works=joined.estimates.works))
            elif proposing is not None and predicts:
                proposed = expect_regions(
                    candidates,
                    estimates,
                    guide.predictor,
                    device=device,
                    log=log,
                    proposing=proposing,
                    memory_bytes=memory_bytes,
                )
                if proposed is not None:
                    regions_begin(proposed)
            elif estimates.wants_regions:
                proposed = propose_regions(
                    candidates, estimates, device=device, log=log, proposing=proposing, store=store, judged=judged
                )
                if proposed is not None:
                    regions_begin(proposed)
                    proposed = search_regions(proposed, guide, device=device, log=log, ahead=early)
            if proposing is not None:
                proposing.end()
            if proposed is not None:
                estimates, candidates = proposed.estimates, proposed.candidates
            early.end()
            device.service.give_up()  # on programs that the search sent to the compilers and did not wait for
            log.begin(JUDGING)
            if due := estimates.likely():
                about = format_seconds(estimates.judging_s())
                many = how_many(work.call.region for work in due)
                progress.phase(f"re-timing and verifying what was found for {many} in a fresh process, about {about}")
            needed = None
            if proposed is not None:
                needed, freshen = needed_by_plans(proposed, memory_bytes=memory_bytes), freshener(proposed, device)
                wanted = needed(judged)
                for work in () if settings.measurements == 0 else proposed.timed:
                    if work.call.region.id in wanted and work.id not in judged:
                        freshen(work)
            device.service.fresh_child()  # its memory is the other one's now
            judging = Judging(
                candidates,
                estimates,
                device=device,
                log=log,
                judged=judged,
                incumbent=incumbent,
                ahead=early,
                settings=JudgingSettings(needed=needed),
            )
            compared, seen = judging.seen, judging.run()
            if store is not None:
                store.refute(judging.failed, [*works, *(proposed.works if proposed is not None else ())], log=log)
            if proposed is not None:
                most = PLANS if settings.effort == "thorough" else COMPARED - 1  # each is looked for in turn
                most = most if estimates.compares_plans() else 1  # else nothing tells them apart
                in_context = savings_in_context(
                    seen,
                    proposed,
                    estimates,
                    device=device,
                    log=log,
                    memory_bytes=memory_bytes,
                    bench=device.bench,
                    most=most,
                )
                by_plan = variants(
                    seen, proposed, captured.workload, in_context=in_context, memory_bytes=memory_bytes, most=most
                )
                seen = by_plan[0]  # the best by its parts, until whole steps were compared
            results = seen
            incumbent.settle(results)
            device.check_journal()
            device.settle()
        except KeyboardInterrupt:
            log.interrupt()
            device.close_children()  # first of all: what is written next does not change under the writer
        except DeviceError as error:
            log.lose(error)
            device.close_children()

        checked: tuple[Result, ModelCheck] | None = None
        for is_last in (False, True):
            try:
                if results is not None:
                    device.close_children()  # its memory is wanted, and nothing may disturb the model's run
                if checked is None:
                    log.begin(MODEL)
                    plans = by_plan if results is not None and by_plan else [results]
                    checked = check_steps([*map(made, plans)], runner, estimates, log=log)
                result, check = checked  # the check is of this plan, whichever try writes it
                finished = write(ended(results), result, check, device=device, budget=budget, log=log)
                if store is not None and results is not None and check.passed is not False:
                    store.add(finished.result, judged, log=log)
                    if not log.ended_early:
                        searched = works if candidates is None else candidates.works
                        store.add_nothing(finished.result, searched, settings, judged=judged, seen=compared, log=log)
                if finished.result.complete:  # else `kcg check` may still compare it
                    left.forget(device.folder / left.FOLDER)
                shown.end(finished.exit_code, log.elapsed_s)
                return finished
            except KeyboardInterrupt:  # what was found is written all the same; a second one ends the process
                if is_last:
                    raise
                log.interrupt()
                device.close_children()
        raise AssertionError("the last try returns or raises")


def _get_ready_for_report() -> None:
    with looking("what a report is drawn with"):
        get_ready_for_report()


def with_what_was_allowed(settings: Settings) -> Settings:
    """The settings of a run; one that goes on allows what the result before it did."""
    path = settings.folder / RESULT
    if not settings.resume or settings.allow_tf32 or not path.exists():
        return settings
    with contextlib.suppress(ResultError):  # one that cannot be read is set aside
        return replace(settings, allow_tf32=read_result(path).allow_tf32)
    return settings


def _subject(settings: Settings) -> str:
    """What a run is about, as its user named it."""
    return settings.workload if settings.program is None else settings.program.label


def _started(settings: Settings, device: Device) -> Live:
    """What a run that begins says of itself."""
    return Live(
        workload=_subject(settings),
        preset="" if settings.preset == "auto" else settings.preset,
        device=device.choice.dev,
        search=settings.search,
        budget=settings.budget_text,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def begin(settings: Settings, progress: Progress, *, started: float) -> tuple[RunLog, Budget]:
    budget = Budget(started=started, limit_s=settings.budget_s, measurements=settings.measurements)
    progress.until(budget.over_at)
    return RunLog(progress, started=started), budget


# ---- the steps ----


def capture(
    settings: Settings,
    device: Device,
    *,
    budget: Budget,
    log: RunLog,
    keeping: left.Keeping | None = None,
    seen: Callable[[Workload], object] | None = None,
) -> Captured:
    """The workload's kernels; those of a script by running it once, where what it leaves is kept if it is wanted.
    `seen` is told of them as soon as they are known, see `kcg.workloads.capture.watched` and `capture_program`."""
    from kcg.workloads.registry import find

    begin = time.monotonic()
    if (program := settings.program) is None:
        spec, preset = find(settings.workload, settings.preset, device.choice.device)
        log.progress.phase(f"capturing {spec.name} {preset} ({spec.about})")
        with not_collecting(), watched(seen) if seen is not None else contextlib.nullcontext():
            workload = spec.capture(preset)
        return Captured(workload, time.monotonic() - begin)
    from kcg.workloads.script import capture_program

    log.progress.phase(f"running {program.label} to record its kernels")
    with log.progress.paused():  # the program writes to the terminal
        late = _late(program.label, budget, log)
        captured = capture_program(program, dev=device.choice.dev, late=late, keeping=keeping, seen=seen)
    recorded_s = time.monotonic() - begin
    if captured.interrupted:
        raise KeyboardInterrupt
    for line in captured.lines:
        log.progress.line(f"kcg: {line}", important=True)
    log.warn(*captured.notes)
    kept = None if keeping is None else keeping.folder
    return Captured(captured.workload, recorded_s, recorded=kept, lowered=captured.lowered)


def _late(label: str, budget: Budget, log: RunLog) -> Late | None:
    """What is said of a program that still runs when the budget is over: nobody can tell how long it will."""
    from kcg.workloads.script import Late

    if budget.over_at is None:
        return None
    line = (
        f"kcg: the budget of {budget.limit_s:g} s is over, and {label} still runs: it is waited for, since "
        "what it runs is what there is to search; Ctrl-C ends it"
    )
    return Late(budget.over_at - time.monotonic(), lambda: log.progress.line(line, important=True))


def check_fits(settings: Settings, workload: Workload, memory: Memory | None, *, device: Device, log: RunLog) -> None:
    """Whether the workload as a whole has room on the device, and its weights are there. Raises UsageError, or
    WeightsError."""
    name = device.choice.device
    check_memory(settings, workload, memory, device=name, log=log.progress.phase)
    if settings.weights:
        log.progress.phase(f"looking at the weights {settings.weights}")
        check_weights(settings, name, fetch=True)


@dataclass(frozen=True)
class Preparing:
    """What a run gets ready while its baselines are timed: what guides the search, what judging ahead will need, and
    regions of several kernels."""

    guide: Guide
    ahead: Ahead
    proposing: Proposing | None = None
    claimed: Collection[str] = ()  # regions, by `RegionWork.id`, of which a store says that nothing is better


def baselines(
    settings: Settings, works: list[RegionWork], preparing: Preparing, *, device: Device, budget: Budget, log: RunLog
) -> Measured:
    """tinygrad's own schedules and what is written by hand, timed, unless a search by prediction alone is wanted: then
    on a GPU it is only looked for where programs begin, and for regions of several kernels. What
    guides the search is read meanwhile, where some are neither stored nor claimed to have nothing better. On a GPU the
    programs with which searches begin are compiled, and regions of several kernels are looked for from then on."""
    guide, ahead, proposing = preparing.guide, preparing.ahead, preparing.proposing
    ordered = sorted(works, key=lambda work: -work.expected_s)
    missing = [work for work in ordered if work.stored is None and work.id not in preparing.claimed]
    if settings.measurements == 0:
        if not device.is_cpu:
            device.find_starts(ordered)
            if proposing is not None:
                proposing.begin(ordered)
        if missing:
            guide.read()
        return Measured(works, time.monotonic())

    def meanwhile() -> None:
        if proposing is not None and not device.is_cpu:
            left_s = math.inf if budget.over_at is None else budget.over_at - time.monotonic()
            proposing.begin(ordered if left_s >= REGIONS_EARLY_S else ())
        if missing:  # else nothing is searched
            if device.is_cpu:
                device.find_starts(works)
            else:
                count = device.service.compile_workers  # the programs of others would hold up the search
                device.first_programs(missing[:count])
                device.find_starts(missing[count:])
            ahead.prepare(ordered)
            guide.read()

    # whoever has something else to do with all of them waits for all
    leaves_tail = guide.wanted and settings.measurements is None and not settings.store and not settings.kernels
    measured = measure_baselines(works, device, budget=budget, log=log, meanwhile=meanwhile, leaves_tail=leaves_tail)
    if measured.untimed < len(works) and measured.tail is None:
        say_untimed(measured, log)
    device.use_others(works)
    handwritten.measure(works, device, log)
    return replace(measured, at=time.monotonic())


def say_untimed(measured: Measured, log: RunLog) -> None:
    """Say what a budget left untimed, if anything, and how much of the time that is."""
    regions = [work.call.region for work in measured.works]
    if untimed := [work.call.region for work in measured.works if not work.is_timed]:
        share = format_share(measured.untimed_share)
        line = f"{share_of(untimed, regions)} were not timed, and are not searched: they are expected to take {share}"
        log.alert(f"{line} of the time, which is in no total")


@dataclass(frozen=True)
class Ended:
    """What a run has come to when its result is made; what it did not come to is None."""

    settings: Settings
    captured: Captured
    works: list[RegionWork]
    candidates: Candidates | None
    results: RegionResults | None
    judged: dict[str, RegionResult]  # of a run that ended while it judged, or goes on
    predictor: str
    proposed: Proposed | None = None
    memory_bytes: float = math.inf  # that values between kernels may take


def build_result(ended: Ended, *, device: Device, budget: Budget, log: RunLog) -> Result:
    """Everything of the run as one `Result`, but for the check of the whole."""
    from kcg.kernel.analysis import find_recompute
    from kcg.kernel.codec import ast_of
    from kcg.kernel.origins import origins_of

    settings, workload, results = ended.settings, ended.captured.workload, ended.results
    complete = results is not None and not log.ended_early
    if results is None:
        why = "the device was lost" if log.lost else "interrupted" if log.interrupted else "the run ended before"
        results = best_so_far(
            ended.works, ended.judged, ended.proposed, workload, why=why, memory_bytes=ended.memory_bytes
        )
    origins = origins_of(workload, [row.region for row in results.rows])

    def with_origins(rows: tuple[RegionResult, ...]) -> tuple[RegionResult, ...]:
        return tuple(replace(row, origins=origins.get(row.region.id, ())) for row in rows)

    planning = results.planning
    if planning is not None:
        planning = replace(planning, inside=with_origins(planning.inside))
    target, toolchain = device.service.facts
    calls = (work.call for work in ended.works)
    recomputes = (find_recompute(ast_of(k), k.id, call.calls, target) for call in calls for k in call.region.kernels)
    return Result(
        workload=workload.name,
        preset=workload.preset,
        target=target,
        toolchain=toolchain,
        regions=with_origins(results.rows),
        search=settings.search,
        seed=settings.seed,
        measurements=budget.ledger.measurements,
        compilations=budget.ledger.compilations,
        search_s=log.elapsed_s,
        budget=settings.budget_text,
        protocol=PROTOCOL,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        command=settings.command,
        kcg_version=__version__,
        complete=complete,
        failures=tuple(sorted(device.failures.items())),
        progress=tuple(log.history),
        verified_progress=tuple(log.verified),
        recomputes=tuple(r for r in recomputes if r is not None),
        warnings=tuple(log.warnings),
        predictor=ended.predictor,
        expectations=expectations_of(log.expectations, results),
        clocks=tuple((name, min(seen), median(seen), max(seen)) for name, seen in sorted(device.clocks.items())),
        left_out=workload.left_out,
        steps=workload.steps,
        planning=planning,
        allow_tf32=settings.allow_tf32,
        seen_as=seen_as_of(workload, target.device),
        **provenance(),
    )


def check_steps(
    results: Sequence[Result], runner: Runner, estimates: Estimates | None, *, log: RunLog
) -> tuple[Result, ModelCheck]:
    """The check of the whole: of the results of several plans the one whose step is the fastest."""

    checks = [UNCHECKED] * len(results)
    if not log.ended_early:
        checks = check_models(results, runner, estimates=estimates, log=log)
        results, checks = leave_out_wrong(results, checks, runner, estimates=estimates, log=log)
    return fastest_step(results, checks)


def expectations_of(
    seen: Sequence[tuple[WorkloadCall, Expectation]], results: RegionResults
) -> tuple[Expectation, ...]:
    """What was expected, by the place of each region: of its result, or of a region that the plan does not have."""
    keys = [(row.region.id, row.variables) for row in results.rows]
    keys += results.planning.places if results.planning is not None else []
    places = {key: place for place, key in enumerate(keys)}
    found = [(one, places.get((call.region.id, call.variables))) for call, one in list(seen)]
    return tuple(replace(one, region=place) for one, place in found if place is not None)


def seen_as_of(workload: Workload, device: str) -> tuple[tuple[str, SeenAs], ...]:
    """How the program asked for its kernels, where that is not by tinygrad's name on the first device."""
    found = {(call.region.id, seen): None for call in workload.calls for seen in call.seen_as}
    return tuple(place for place in found if place[1] != ("", (device,)))


def write(ended: Ended, result: Result, check: ModelCheck, *, device: Device, budget: Budget, log: RunLog) -> Finished:
    """Write the result, with the check of the whole, and its report."""
    if budget.late_at is not None and time.monotonic() > budget.late_at and not log.interrupted:
        log.warn(f"the budget of {budget.limit_s:g} s is less than timing and verifying the kernels takes")
    device.notice_moved_journal()
    searched = [*ended.works, *(ended.proposed.works if ended.proposed is not None else ())]
    expected_s = ended.candidates.expected if ended.candidates is not None else {}
    outlook = outlook_of(searched, ended.judged, result.regions, expected_s)
    phases, result = log.phases(), replace(result, model_check=check, outlook=outlook)
    code = exit_code_of(result)
    result = replace(
        result,
        complete=result.complete and not log.ended_early and code in ANSWERED,
        search_s=sum(seconds for _, seconds in phases),
        warnings=tuple(log.warnings),
        phases=phases,
    )
    path = device.folder / RESULT
    device.set_aside(RESULT, REPORT)
    write_result(result, path)
    device.jobs.write()
    report = write_report(result, device.folder, journal=device.journal)
    if log.ended_early:
        code = ExitCode.INTERRUPTED if log.interrupted else ExitCode.DEVICE_UNUSABLE
    return Finished(result, path, report, code, lost=log.lost)


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


def memory_between(workload: Workload, memory: Memory | None) -> float:
    """Bytes that values between kernels may take beside what is held; no limit where that is not known."""
    return memory.total - workload.held_bytes if memory is not None and workload.held_bytes else float("inf")


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


def preview(settings: Settings, progress: Progress, *, json_mode: bool) -> None:
    """Capture the workload and say what a run would do: kernels, calls, target, operations, the longest first.

    The script of a workload that is one is run, since its kernels are not known otherwise; nothing is timed or written.
    """
    from kcg.kernel.analysis import find_recompute
    from kcg.kernel.codec import ast_of
    from kcg.types import canonical_json

    check_writable(settings.folder)
    log, budget = begin(settings, progress, started=time.monotonic())
    with Device(settings, log, budget, writes=False) as device:
        kernels = handwritten.read_files(device, settings.kernels)
        workload = capture(settings, device, budget=budget, log=log).workload
        works = device.plan(workload)
        handwritten.offer(kernels, works, device=device, log=log)
        target = device.service.target
        rows = sorted(
            (
                {
                    "id": w.call.region.id,
                    "name": w.space.name(w.space.baseline()),
                    "calls": w.call.calls,
                    "operations": w.operations,
                    "schedule": describe(w.space.baseline()),
                    "first_actions": len(w.space.actions(w.space.start())),
                    "handwritten": [[offer.name, offer.reason] for offer in w.offers],
                }
                for w in works
            ),
            key=lambda row: -float(str(row["operations"])) * int(str(row["calls"])),
        )
        waste = [find_recompute(ast_of(w.call.region.kernel), w.call.region.id, w.call.calls, target) for w in works]
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
        if is_runnable(settings, workload.name) and (memory := memory_on(device.choice.device)) is not None:
            fits = "" if workload.memory_bytes <= memory.free else ", which is refused"
            out(f"{shortage(workload, memory, device=device.choice.device)}{fits}\n")
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
        for warning in log.warnings:
            out(f"warning: {warning}\n")
        for found in waste:
            if found is not None:
                what = f"recomputes {found.factor:.1f} times" if found.factor > 1 else "had better store a product"
                out(f"{what}: {found.advice}\n")
        out(f"would write RESULT.json, report.html and journal.sqlite to {settings.folder}\n")
