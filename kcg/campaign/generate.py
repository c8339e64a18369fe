"""One run of a campaign: measure until every kernel has its schedules or the budget ends, into a journal."""

from __future__ import annotations

import contextlib
import itertools
import logging
import queue
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from kcg.campaign.compiling import Compiled, CompilesOnly, Programs, are_alike, runs_on
from kcg.campaign.sampling import Choice, Drawn, draw_timed
from kcg.campaign.settings import CampaignSettings, CampaignSummary, Stage, joined
from kcg.campaign.tables import TableTask, table_calls
from kcg.campaign.tasks import (
    Drawing,
    KernelTask,
    WaitingTask,
    distinct_calls,
    in_order,
    kinds_of,
    shard_of,
    why_not,
    with_regions,
    workloads_of,
)
from kcg.cli import counted
from kcg.compat.device import choose_device, prepare
from kcg.dataset.choices import HAND_CODED
from kcg.dataset.journal import UNSTATED, Chosen, Doubt, Expected, Journal, Run, scores_of
from kcg.dataset.noise import RETIMED
from kcg.dataset.programs import ProgramFile, Waiting, programs_beside
from kcg.dataset.schema import check_header
from kcg.errors import JournalError, UsageError
from kcg.kernel.kinds import made_by, own_kind
from kcg.kernel.targets import TARGETS, target_asked
from kcg.measure.interface import Measures
from kcg.measure.jobs import CompileOutcome
from kcg.measure.protocol import PROTOCOL
from kcg.measure.service import MeasureService, Request, ServiceSettings
from kcg.provenance import provenance
from kcg.types import Measurement, Schedule, Variables, Workload, WorkloadCall

log = logging.getLogger(__name__)

STOP_ABOVE, LONG_S = 10.0, 0.1
"""A schedule this much slower than its kernel's hand-coded one gets one sample only, if it also takes this many
seconds: three are a row that can be trained on, and cost little below."""
FIRST_SHARE = 0.25  # of the schedules of every kernel come before the rest of any, so that a short budget covers all
TIMEOUT_FACTOR, SHORTEST_TIMEOUT_S, LONGEST_TIMEOUT_S = 200.0, 8.0, 60.0  # of one candidate, by the hand-coded time
MOST_KERNELS_AT_ONCE = 16  # so that compilers work for one kernel while another is on the device, or are all busy
BATCH_A_WORKER = 4  # schedules of a batch for each compiler
DRAW_TIMEOUT_S = 300.0
LATE_S = 3.0  # after the end of the budget, for what is under way
TOGETHER = 64  # schedules of a kernel that go to the device in one go

Log = Callable[[str, float | None], None]


Ended = Drawn | Measurement | Compiled | BaseException
"""What comes back: drawn schedules, a row, what is to be measured elsewhere, or why nothing was drawn."""


class _OfKind(NamedTuple):
    """A call, and a kind of which schedules are drawn of it."""

    call: WorkloadCall
    kind: str


@dataclass
class _Flight:
    """A kernel whose next batch is being drawn or measured."""

    task: KernelTask
    left: int = 0  # of the batch
    waiting: list[Choice] = field(default_factory=list)  # drawn, for the batches after it


@dataclass
class _CampaignRun:
    """The state of one run over all kernels."""

    settings: CampaignSettings
    service: Measures
    journal: Journal
    calls: list[WorkloadCall]
    tables: list[WorkloadCall]
    deadline: float | None
    log: Log
    facts: Mapping[str, Any]  # what the journal holds of a run
    file: ProgramFile | None = None  # of programs that are compiled and not measured, or the other way round
    programs: Programs | None = None  # what that file held at first
    compiled: int = 0  # schedules that this run put there
    made_s: float = 0.0  # what compiling took elsewhere, of what this run measures
    began: float = field(default_factory=time.monotonic)
    measured: int = 0
    known: int = 0
    skipped: int = 0
    finished: bool = False
    statuses: Counter[str] = field(default_factory=Counter)
    last_logged: float = 0.0
    drawing_s: float = 0.0
    _left: int = 0
    _fitting: list[WorkloadCall] = field(default_factory=list)
    _undrawn: dict[tuple[str, Variables, str, bool], str] = field(default_factory=dict)  # region, kind, table? -> why
    _runs: set[str] = field(default_factory=set)  # ids of those that are in the journal
    _doubts: list[Doubt] = field(default_factory=list)
    _done: queue.SimpleQueue[tuple[_Flight, Ended]] = field(default_factory=queue.SimpleQueue)

    @property
    def out_of_time(self) -> bool:
        return self.deadline is not None and time.monotonic() >= self.deadline

    def add_run(self, run_id: str) -> None:
        """Have the journal hold a run before its first row: this process's own, or that of a host."""
        if run_id in self._runs:
            return
        started = datetime.now(UTC).isoformat(timespec="seconds")
        facts = {**self.facts, **self.service.run_facts(run_id)}
        self.journal.add_run(Run(run_id, started, self.settings.command, facts))
        self._runs.add(run_id)

    def use_programs(self, file: ProgramFile) -> None:
        """Have programs kept in a file, or measured that are there. Raises UsageError where these are for another
        target."""
        target, toolchain = self.service.target, self.service.toolchain
        self.file, self.programs = file, Programs(file, self.journal, target, toolchain)
        if self.settings.stage is Stage.MEASURE:
            regions = self.journal.regions()
            if lacking := [key[0] for key in self.programs.waiting if key[0] not in regions]:
                raise JournalError(
                    f"{self.journal.path} lacks region {lacking[0][:12]} of the programs beside it: copy both together"
                )
            found = {key: WorkloadCall(regions[key[0]], 1, key[1]) for key in self.programs.waiting}
            self.calls = shard_of(in_order(found, seed=self.settings.seed), self.settings.shard)
            self.leave_out()
            for made in self.programs.toolchains():
                for fingerprint in made.fingerprints:
                    self.journal.add_toolchain(made, fingerprint)

    def doubt(self, run_id: str, since_unix_s: float, why: str) -> None:
        """Have the journal hold that rows are doubtful: what they are of is measured again."""
        doubt = Doubt(run_id, since_unix_s, why)
        self.add_run(run_id)
        self.journal.add_doubt(doubt)
        self._doubts.append(doubt)

    def leave_out(self) -> None:
        """Keep those kernels that can be measured on the target, and say which cannot."""
        target = self.service.target
        unfit = [why_not(call, target) for call in self.calls]
        left_out = {(call.region.id, why) for call, why in zip(self.calls, unfit, strict=True) if why}
        reasons = Counter(why for _, why in left_out)  # of kernels, whatever the values of their variables
        self.skipped = reasons.total()
        for reason, number in reasons.items():
            self.log(f"{counted(number, 'kernel')} left out: {reason}", None)
        self._fitting = [call for call, reason in zip(self.calls, unfit, strict=True) if not reason]
        self.tables = [call for call in self.tables if not why_not(call, target)]

    def run(self) -> None:
        """All kernels, again while rows of them became doubtful."""
        wanted, before = self.settings.schedules_per_kernel, self._counts()
        every = [one for call in self._fitting for one in self._kinds(call)]
        self.known = sum(before[one] for call in self.calls for one in self._kinds(call))
        if self.programs is None or self.settings.stage is Stage.COMPILE:
            self._left = sum(max(wanted - before[one], 0) for one in every)
        else:
            self._left = sum(len(self._task(one, wanted).waiting) for one in every)
        while True:
            doubts = len(self._doubts)
            self._all_kernels()
            self.service.settle()
            if self.out_of_time or len(self._doubts) == doubts:
                break
        self.finished = not self.out_of_time and not self._undrawn

    def _kinds(self, call: WorkloadCall) -> list[_OfKind]:
        """What schedules are drawn of a call, by kind."""
        return [_OfKind(call, kind) for kind in kinds_of(call, self.settings.kinds, self.service.target)]

    def _counts(self) -> Counter[_OfKind]:
        """How many schedules are known of each call and kind. tinygrad's own choice counts as one of every kind."""
        known: Counter[tuple[str, Variables, str]] = Counter()
        for target, toolchain in self._known_as():
            known.update(self.journal.schedules_known(target, toolchain, PROTOCOL))
        if self.programs is not None and self.settings.stage is Stage.COMPILE:
            waiting = [one for some in self.programs.waiting.values() for one in some]
            rows = (row for names in self._known_as() for row in self.journal.known(*names, PROTOCOL))
            measured = {(row.region_id, row.variables, row.schedule) for row in rows}
            only = [one for one in waiting if (one.region_id, one.variables, one.schedule) not in measured]
            known.update((one.region_id, one.variables, one.schedule.kind) for one in only)
        found: Counter[_OfKind] = Counter()
        for one in (one for call in self.calls for one in self._kinds(call)):
            same, own = (one.call.region.id, one.call.variables), own_kind(one.call.region)
            found[one] = known[*same, one.kind] + (one.kind != own and known[*same, own] > 0)
        return found

    def _known_as(self) -> list[tuple[str, str]]:
        """Targets and toolchains, by fingerprint, of which rows say what is known."""
        target, toolchain = self.service.target, self.service.toolchain
        if self.settings.stage is Stage.COMPILE:  # by whichever driver they were measured
            targets = [name for name, one in self.journal.targets().items() if runs_on(one, target)]
            made = [name for name, one in self.journal.toolchains().items() if are_alike(one, toolchain)]
            return list(itertools.product(targets, made))
        others = self.programs.toolchains() if self.programs is not None else []
        names = dict.fromkeys(name for one in (toolchain, *others) for name in one.fingerprints)
        return [(target.fingerprint, name) for name in names]

    def _all_kernels(self) -> None:
        """First with some of their schedules each, then with all, then those with tables."""
        target, toolchain, wanted = self.service.target, self.service.toolchain, self.settings.schedules_per_kernel
        if self.settings.stage is Stage.MEASURE:
            self._stage(self._task(one, wanted) for call in self._fitting for one in self._kinds(call))
            return
        first = wanted if self.settings.stage is Stage.COMPILE else max(round(FIRST_SHARE * wanted), min(wanted, 8))
        for stage in sorted({first, wanted}):
            counts = self._counts()
            waiting = (one for call in self._fitting for one in self._kinds(call) if counts[one] < stage)
            self._stage(self._task(one, stage) for one in waiting)
        declared = self.journal.lattices(target.fingerprint, toolchain.fingerprint)
        self._stage(self._table_task(call, declared.get(call.region.id, "")) for call in self.tables)

    def summary(self, elapsed_s: float) -> CampaignSummary:
        """What it did."""
        return CampaignSummary(
            len({call.region.id for call in self.calls}),
            self.measured,
            self.known,
            dict(self.statuses),
            elapsed_s,
            self.finished,
            self.skipped,
            *self.busy,
            len({key[:2] for key in self._undrawn}),
            next(reversed(self._undrawn.values()), ""),
            self.compiled,
            *(self.file.counts() if self.file is not None else (0, 0)),
        )

    @property
    def busy(self) -> tuple[float, float]:
        """Shares of their time that the compiling children and the device's child worked."""
        spent, elapsed_s = self.service.spent_s, time.monotonic() - self.began
        compiling = self.drawing_s + spent["compile"] - self.made_s
        return (
            compiling / (elapsed_s * self.service.compile_workers),
            (sum(spent.values()) - spent["compile"]) / (elapsed_s * self.service.devices),
        )

    @property
    def _patience_s(self) -> float | None:
        """For how long the next answer is waited for: a batch of a slow kernel may outlive the budget by a minute."""
        return None if self.deadline is None else max(self.deadline + LATE_S - time.monotonic(), 0.0)

    @property
    def _most(self) -> int:
        """Schedules of one batch: all, where nothing is measured meanwhile, since a second draw would know no more."""
        least = self.settings.schedules_per_kernel if self.settings.stage is Stage.COMPILE else 8
        return max(BATCH_A_WORKER * self._compilers, least)

    @property
    def _compilers(self) -> int:
        """Of one device."""
        return self.service.compile_workers // self.service.devices

    def _table_task(self, call: WorkloadCall, declaration: str) -> TableTask:
        return TableTask(
            call,
            self.service.target,
            seed=self.settings.seed,
            limit=self.settings.table_schedules,
            most=self._most,
            known=self._rows(call),
            declaration=declaration,
        )

    def _task(self, one: _OfKind, wanted: int) -> KernelTask:
        made = WaitingTask if self.settings.stage is Stage.MEASURE else KernelTask
        waits = self.programs.of(one.call.region.id, one.call.variables) if self.programs is not None else {}
        own = own_kind(one.call.region)
        return made(
            one.call,
            self.service.target,
            wanted=wanted,
            mix=self.settings.mix if one.kind == own else self.settings.tile_mix,
            seed=self.settings.seed,
            how=Drawing(one.kind, self._most, self.settings.predictor),
            known=self._rows(one.call),
            waits=[choice_of(w) for w in waits.values() if w.schedule.kind == one.kind or w.sampler == HAND_CODED],
        )

    def _rows(self, call: WorkloadCall) -> list[Measurement]:
        """What was measured of a kernel in a search; its binaries are not timed again."""
        rows = [
            row
            for target, toolchain in self._known_as()
            for row in self.journal.known(target, toolchain, PROTOCOL, region_id=call.region.id)
            if row.variables == call.variables and row.early_stop and row.sampler != RETIMED
        ]
        for row in rows:
            self.service.remember(row)
        return rows

    def _stage(self, tasks: Iterator[KernelTask]) -> None:
        """Batches of a few kernels at once; when one is measured, that kernel's next is drawn."""
        flying = 0
        while True:
            at_once = self.service.devices * min(max(self._compilers, 2), MOST_KERNELS_AT_ONCE)
            while flying < at_once and not self.out_of_time and (task := next(tasks, None)) is not None:
                flying += self._next(_Flight(task, waiting=task.waiting))
            if not flying:
                return
            try:
                flight, ended = self._done.get(timeout=self._patience_s)
            except queue.Empty:
                return  # what is still compiled or measured then is drawn again in the next run
            if self.service.device_error is not None:  # what could not run is not recorded: a later run measures it
                raise self.service.device_error
            if isinstance(ended, Drawn):
                self._undrawn.pop(_undrawn_key(flight.task), None)  # an earlier stage may have failed
                self.drawing_s += ended.draw_s
                self.skipped += bool(ended.why_not)
                flight.waiting = flight.task.drawn(ended)
                self._declare(flight.task)
            elif isinstance(ended, Measurement):
                self._record(flight.task, ended)
                flight.left -= 1
            elif isinstance(ended, Compiled):
                self._keep(flight.task, ended)
                flight.left -= 1
            else:
                self._not_drawn(flight.task, ended)
                flying -= 1
                continue  # nor a lattice around what was drawn so far: it would stay
            if not flight.left and not self._next(flight):
                flying -= 1

    def _not_drawn(self, task: KernelTask, error: BaseException) -> None:
        """A kernel whose next schedules could not be drawn: the campaign is not complete. A later stage or run tries
        again. The first reason is said at once, the last one at the end."""
        why = f"{task.call.region.id[:12]}: {' '.join(str(error).split()) or type(error).__name__}"
        if not self._undrawn:
            log.warning("no schedules were drawn of %s", why)
        self._undrawn[_undrawn_key(task)] = why

    def _next(self, flight: _Flight) -> bool:
        """Have the kernel's next batch measured, or drawn; False where there is none, or no time."""
        if self.out_of_time:  # what was drawn and not measured is drawn again in the next run
            return False
        if not flight.waiting:
            return self._draw(flight)
        batch, flight.waiting = flight.waiting[: self._most], flight.waiting[self._most :]
        self._send(flight, batch)
        return True

    def _draw(self, flight: _Flight) -> bool:
        """Have a child draw the kernel's next batch; False where there is none to be had."""
        task = flight.task
        if (more := task.next_draw()) is None:
            return False

        def ended(future: Future[Drawn]) -> None:
            self._done.put((flight, future.exception() or future.result()))

        self.service.beside(draw_timed, *more, timeout_s=DRAW_TIMEOUT_S).add_done_callback(ended)
        return True

    def _declare(self, task: KernelTask) -> None:
        """Keep a lattice before it is measured: a later run goes on with the same one."""
        if isinstance(task, TableTask) and task.declaration:
            target, toolchain = self.service.target, self.service.toolchain
            self.journal.add_lattice(task.call.region.id, target.fingerprint, toolchain.fingerprint, task.declaration)

    def _send(self, flight: _Flight, batch: list[Choice]) -> None:
        """Have a batch measured, or compiled."""
        task = flight.task
        task.choices.update({choice.schedule: choice for choice in batch})
        baseline_s = task.baseline_s or 0.0
        timeout_s = min(max(TIMEOUT_FACTOR * baseline_s, SHORTEST_TIMEOUT_S), LONGEST_TIMEOUT_S)
        stop_above_s = max(STOP_ABOVE * baseline_s, LONG_S) if baseline_s else None
        requests = [
            Request(
                task.call.region,
                choice.schedule,
                task.call.variables,
                choice.sampler,
                in_search=True,
                stop_above_s=stop_above_s,
                timeout_s=LONGEST_TIMEOUT_S if choice.sampler == HAND_CODED else timeout_s,
            )
            for choice in batch
        ]
        baseline = task.baseline
        if self.settings.stage is Stage.MEASURE:  # one batch may be all
            baseline = baseline or next((one.schedule for one in batch if one.sampler == HAND_CODED), None)
        if batch and baseline is not None and not task.repeated and self.settings.stage is not Stage.COMPILE:
            # once more among the others, as A and as B: what they differ by is the noise floor of this kernel
            task.repeated = True
            again = Request(
                task.call.region,
                baseline,
                task.call.variables,
                HAND_CODED,
                in_search=True,
                trial=1,
                timeout_s=LONGEST_TIMEOUT_S,
            )
            requests.insert(len(requests) // 2, again)
        flight.left = len(requests)

        def ended(future: Future[Any]) -> None:
            self._done.put((flight, future.result()))

        made = self._made(task, batch)
        for first in range(0, len(requests), TOGETHER):
            together = requests[first : first + TOGETHER]
            for future in self.service.measure(together, together=True, made=made):
                future.add_done_callback(ended)

    def _waiting(self, task: KernelTask) -> dict[Schedule, Waiting]:
        """What waits of a region to be measured by this run."""
        if self.programs is None or self.settings.stage is not Stage.MEASURE:
            return {}
        return self.programs.of(task.call.region.id, task.call.variables)

    def _made(self, task: KernelTask, batch: list[Choice]) -> dict[Schedule, Future[CompileOutcome]]:
        """What schedules of a batch were compiled to before."""
        waiting, found = self._waiting(task), dict[Schedule, Future[CompileOutcome]]()
        for choice in batch:
            if self.programs is not None and (one := waiting.get(choice.schedule)) is not None and one.program:
                found[choice.schedule] = Future()
                found[choice.schedule].set_result(self.programs.outcome(one))
                self.made_s += one.compile_s
        return found

    def _keep(self, task: KernelTask, compiled: Compiled) -> None:
        """A schedule waits to be measured by another run."""
        assert self.file is not None
        request, outcome = compiled.request, compiled.outcome
        choice = task.choices[request.schedule]
        waiting = Waiting(
            request.region.id,
            request.variables,
            request.schedule,
            self.service.target.fingerprint,
            made_by(self.service.toolchain, request.schedule),
            request.sampler,
            chosen_of(choice),
            outcome.compile_s if outcome is not None else 0.0,
            "",
            self.service.run_id,
        )
        self.compiled += self.file.add(waiting, None if outcome is None else outcome.compiled)
        task.wait(choice)
        self._tell(f"{self.compiled} schedules compiled", self.compiled)

    def _record(self, task: KernelTask, row: Measurement) -> None:
        self.add_run(row.run_id)
        waiting = self._waiting(task).get(row.schedule)
        if waiting is not None and waiting.program and self.programs is not None:
            row = self.programs.made_here(row, waiting)
        choice = task.choices.get(row.schedule)
        is_new = self.journal.record(row, chosen=UNSTATED if choice is None else chosen_of(choice))
        check_in_place(self.journal)
        task.record(row)
        self.statuses[str(row.status)] += is_new
        self.measured += is_new
        self._tell(f"{self.measured} schedules measured", self.measured)

    def _tell(self, what: str, done: int) -> None:
        """Say how far it is, once a second."""
        now = time.monotonic()
        if now - self.last_logged >= 1.0:
            self.last_logged = now
            pace = max(done, 1) / (now - self.began)
            left = max(self._left - done, 0)
            eta = left / pace if self.deadline is None else min(left / pace, self.deadline - now)
            self.log(f"{what}, at most {left} to go, {pace:.1f} a second", eta)


def chosen_of(choice: Choice) -> Chosen:
    """What is stored of how a schedule was drawn."""
    expected = Expected(choice.expected_s, None, choice.expected_failure) if choice.expected_s else None
    return Chosen(choice.pool, "" if expected is None else scores_of(expected), choice.probability)


def choice_of(waiting: Waiting) -> Choice:
    """The same of one that waits."""
    expected, why = waiting.chosen.expected, waiting.chosen
    seconds, fails = (expected.predicted_s, expected.failure_probability) if expected is not None else (0.0, 0.0)
    return Choice(waiting.schedule, waiting.sampler, "", why.pool, why.probability, seconds, fails)


def _undrawn_key(task: KernelTask) -> tuple[str, Variables, str, bool]:
    return task.call.region.id, task.call.variables, task.kind, isinstance(task, TableTask)


def check_in_place(journal: Journal) -> None:
    """Raises JournalError where the journal that is written is no longer at its path."""
    if what := journal.moved():
        raise JournalError(
            f"{journal.path} {what} while it was written: what was measured is lost, unless you have a copy; run again"
        )


def record_workloads(settings: CampaignSettings, log: Log) -> tuple[str, ...]:
    """Capture the workloads of a campaign into its journal; their names, each as `name/preset`."""
    choice = choose_device(settings.device)
    prepare(choice.dev)
    names = []
    with Journal.open(settings.out) as journal:
        for workload in captured(settings, choice.device, log):
            journal.add_workload(workload)
            names.append(f"{workload.name}/{workload.preset}")
    return tuple(names)


def captured(settings: CampaignSettings, device: str, log: Log) -> Iterator[Workload]:
    """The workloads of a campaign, and regions of several of their kernels, where those are asked for. Which of them
    have programs is looked at for the target that is named, or else for one that has all kinds of them. None where only
    what waits is measured."""
    if settings.stage is Stage.MEASURE:
        return
    if settings.regions and device.startswith("CPU"):
        raise UsageError(f"--regions {settings.regions}: on a CPU several kernels are no program")
    target = target_asked(settings.target) if settings.target else TARGETS["sm_90"]
    for workload in workloads_of(settings, device, lambda line: log(line, None)):
        yield from with_regions(workload, settings.regions, target)


def generate_here(settings: CampaignSettings, *, log: Log) -> CampaignSummary:
    """One run on one device, in this process, or without one where the settings say so; see
    `kcg.campaign.workers.generate`."""
    began = time.monotonic()
    if settings.stage is Stage.COMPILE:
        prepare(choose_device("CPU").dev)  # to schedule without allocating, any device does that opens here
        check_header(settings.out, create=True)
        with CompilesOnly(target_asked(settings.target), compile_workers=settings.compile_workers) as service:
            workloads = list(captured(settings, service.target.device, log))
            return generate_on(settings, [(service, workloads)], began=began, log=log)
    choice = choose_device(settings.device)
    prepare(choice.dev)
    check_header(settings.out, create=True)  # before anything is captured, which may take a minute
    workloads = list(captured(settings, choice.device, log))
    on_cpu = choice.dev.startswith("CPU")  # whose cores take the samples
    with MeasureService(
        choice.dev,
        run_id=uuid.uuid4().hex,
        compile_workers=settings.compile_workers,
        settings=ServiceSettings(references_beside=not on_cpu),
    ) as service:
        return generate_on(settings, [(service, workloads)], began=began, log=log)


def generate_on(
    settings: CampaignSettings, parts: Sequence[tuple[Measures, Sequence[Workload]]], *, began: float, log: Log
) -> CampaignSummary:
    """One run on each of the services at once, with the workloads of its target, into one journal: rows of one target
    never stand for those of another. `began` is when the time of the budget began, by `time.monotonic`."""
    with Journal.open(settings.out) as journal, contextlib.ExitStack() as stack:
        runs = [_begin(settings, service, workloads, journal, began, log) for service, workloads in parts]
        if settings.stage is not Stage.BOTH:
            path = programs_beside(settings.out)
            file = stack.enter_context(ProgramFile.open(path, create=settings.stage is Stage.COMPILE))
            for run in runs:
                run.use_programs(file)
        if len(runs) == 1:
            runs[0].run()
        else:
            _run_all(runs)
        elapsed_s = time.monotonic() - began
        return joined([run.summary(elapsed_s) for run in runs], elapsed_s)


def _run_all(runs: Sequence[_CampaignRun]) -> None:
    """Each run in a thread. One that fails ends the others."""
    with ThreadPoolExecutor(len(runs)) as threads:
        try:
            for future in as_completed([threads.submit(run.run) for run in runs]):
                future.result()
        except BaseException:
            for run in runs:
                run.service.close()
            raise


def _begin(
    settings: CampaignSettings,
    service: Measures,
    workloads: Sequence[Workload],
    journal: Journal,
    began: float,
    log: Log,
) -> _CampaignRun:
    """A run whose target, toolchain and workloads are in the journal."""
    target, toolchain = service.target, service.toolchain
    journal.add_target(target)
    for fingerprint in toolchain.fingerprints:
        journal.add_toolchain(toolchain, fingerprint)
    for workload in workloads:
        journal.add_workload(workload)
    facts = {
        "device": target.tinygrad_device, "mix": dict(settings.mix), "tile_mix": dict(settings.tile_mix),
        "kinds": list(settings.kinds), "regions": settings.regions, "stage": str(settings.stage), "seed": settings.seed,
        "shard": list(settings.shard), "schedules_per_kernel": settings.schedules_per_kernel,
        "kernels_per_family": settings.kernels_per_family, "predictor": settings.predictor,
        "compile_workers": service.compile_workers, **provenance(),
    }  # fmt: skip
    calls = distinct_calls(workloads, shard=settings.shard, seed=settings.seed, per_family=settings.kernels_per_family)
    deadline = began + settings.budget_s if settings.budget_s is not None else None
    tables = shard_of(table_calls(workloads, settings.tables, seed=settings.seed), settings.shard)
    run = _CampaignRun(settings, service, journal, calls, tables, deadline, log, facts)
    run.add_run(service.run_id)
    service.on_doubt = run.doubt
    run.leave_out()
    return run
