"""One run of a campaign: measure until every kernel has its schedules or the budget ends, into a journal."""

from __future__ import annotations

import logging
import queue
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from kcg.campaign.sampling import HAND_CODED, Drawn, draw_timed
from kcg.campaign.settings import CampaignSettings, CampaignSummary, joined
from kcg.campaign.tables import TableTask, table_calls
from kcg.campaign.tasks import KernelTask, distinct_calls, shard_of, why_not, workloads_of
from kcg.cli import counted
from kcg.compat.device import choose_device, prepare
from kcg.dataset.journal import Doubt, Journal, Run
from kcg.dataset.noise import RETIMED
from kcg.dataset.schema import check_header
from kcg.errors import JournalError
from kcg.measure.interface import Measures
from kcg.measure.protocol import PROTOCOL
from kcg.measure.service import MeasureService, Request
from kcg.provenance import provenance
from kcg.types import Measurement, Schedule, Variables, Workload, WorkloadCall

log = logging.getLogger(__name__)

STOP_ABOVE = 10.0  # a schedule this much slower than the best of its kernel gets one sample only
FIRST_SHARE = 0.25  # of the schedules of every kernel come before the rest of any, so that a short budget covers all
TIMEOUT_FACTOR, SHORTEST_TIMEOUT_S, LONGEST_TIMEOUT_S = 200.0, 8.0, 60.0  # of one candidate, by the hand-coded time
MOST_KERNELS_AT_ONCE = 8  # so that compilers work for one kernel while another is on the device, or are all busy
BATCH_A_WORKER = 4  # schedules of a batch for each compiler: what is under way when the budget ends is finished
DRAW_TIMEOUT_S = 300.0
TOGETHER = 64  # schedules of a kernel that go to the device in one go

Log = Callable[[str, float | None], None]


Ended = Drawn | Measurement | BaseException  # what comes back: drawn schedules, a row, or why nothing was drawn


@dataclass
class _Flight:
    """A kernel whose next batch is being drawn or measured."""

    task: KernelTask
    left: int = 0  # of the batch
    waiting: list[tuple[Schedule, str]] = field(default_factory=list)  # drawn, for the batches after it


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
    _undrawn: dict[tuple[str, Variables, bool], str] = field(default_factory=dict)  # kernel, of a table? -> why
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
        target, toolchain = self.service.target, self.service.toolchain
        wanted = self.settings.schedules_per_kernel
        before = self.journal.schedules_known(target.fingerprint, toolchain.fingerprint, PROTOCOL)
        self.known = sum(before.get((call.region.id, call.variables), 0) for call in self.calls)
        self._left = sum(max(wanted - before.get((c.region.id, c.variables), 0), 0) for c in self._fitting)
        while True:
            doubts = len(self._doubts)
            self._all_kernels()
            self.service.settle()
            if self.out_of_time or len(self._doubts) == doubts:
                break
        self.finished = not self.out_of_time and not self._undrawn

    def _all_kernels(self) -> None:
        """First with some of their schedules each, then with all, then those with tables."""
        target, toolchain = self.service.target, self.service.toolchain
        wanted, calls = self.settings.schedules_per_kernel, self._fitting
        for stage in sorted({max(round(FIRST_SHARE * wanted), min(wanted, 8)), wanted}):
            counts = self.journal.schedules_known(target.fingerprint, toolchain.fingerprint, PROTOCOL)
            waiting = (c for c in calls if counts.get((c.region.id, c.variables), 0) < stage)
            self._stage(self._task(call, stage) for call in waiting)
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
            len({(region_id, variables) for region_id, variables, _ in self._undrawn}),
            next(reversed(self._undrawn.values()), ""),
        )

    @property
    def busy(self) -> tuple[float, float]:
        """Shares of their time that the compiling children and the device's child worked."""
        spent, elapsed_s = self.service.spent_s, time.monotonic() - self.began
        compiling = self.drawing_s + spent["compile"]
        return (
            compiling / (elapsed_s * self.service.compile_workers),
            (sum(spent.values()) - spent["compile"]) / (elapsed_s * self.service.devices),
        )

    @property
    def _most(self) -> int:
        """Schedules of one batch."""
        return max(BATCH_A_WORKER * self._compilers, 8)

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

    def _task(self, call: WorkloadCall, wanted: int) -> KernelTask:
        return KernelTask(
            call,
            self.service.target,
            wanted=wanted,
            mix=self.settings.mix,
            seed=self.settings.seed,
            most=self._most,
            known=self._rows(call),
            predictor=self.settings.predictor,
        )

    def _rows(self, call: WorkloadCall) -> list[Measurement]:
        """What was measured of a kernel in a search; its binaries are not timed again."""
        target, toolchain = self.service.target, self.service.toolchain
        rows = [
            row
            for row in self.journal.known(target.fingerprint, toolchain.fingerprint, PROTOCOL, region_id=call.region.id)
            if row.variables == call.variables and row.early_stop and row.sampler != RETIMED
        ]
        for row in rows:
            self.service.remember(row)
        return rows

    def _stage(self, tasks: Iterator[KernelTask]) -> None:
        """Batches of a few kernels at once; when one is measured, that kernel's next is drawn."""
        flying = 0
        while True:
            at_once = self.service.devices * min(max(self._compilers // 2, 2), MOST_KERNELS_AT_ONCE)
            while flying < at_once and not self.out_of_time and (task := next(tasks, None)) is not None:
                flying += self._next(_Flight(task, waiting=task.waiting))
            if not flying:
                return
            flight, ended = self._done.get()
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

    def _send(self, flight: _Flight, batch: list[tuple[Schedule, str]]) -> None:
        """Have a batch measured."""
        task = flight.task
        baseline_s = task.baseline_s or 0.0
        timeout_s = min(max(TIMEOUT_FACTOR * baseline_s, SHORTEST_TIMEOUT_S), LONGEST_TIMEOUT_S)
        requests = [
            Request(
                task.call.region,
                schedule,
                task.call.variables,
                who,
                in_search=True,
                stop_above_best=STOP_ABOVE,
                stop_above_s=STOP_ABOVE * baseline_s or None,
                timeout_s=LONGEST_TIMEOUT_S if who == HAND_CODED else timeout_s,
            )
            for schedule, who in batch
        ]
        if batch and task.baseline is not None and not task.repeated:
            # once more among the others, as A and as B: what they differ by is the noise floor of this kernel
            task.repeated = True
            again = Request(
                task.call.region,
                task.baseline,
                task.call.variables,
                HAND_CODED,
                in_search=True,
                trial=1,
                timeout_s=LONGEST_TIMEOUT_S,
            )
            requests.insert(len(requests) // 2, again)
        flight.left = len(requests)

        def ended(future: Future[Measurement]) -> None:
            self._done.put((flight, future.result()))

        for first in range(0, len(requests), TOGETHER):
            for future in self.service.measure(requests[first : first + TOGETHER], together=True):
                future.add_done_callback(ended)

    def _record(self, task: KernelTask, row: Measurement) -> None:
        self.add_run(row.run_id)
        self.journal.record(row)
        check_in_place(self.journal)
        task.record(row)
        self.statuses[str(row.status)] += 1
        self.measured += 1
        now = time.monotonic()
        if now - self.last_logged >= 1.0:
            self.last_logged = now
            pace = self.measured / (now - self.began)
            left = max(self._left - self.measured, 0)
            eta = left / pace if self.deadline is None else min(left / pace, self.deadline - now)
            self.log(f"{self.measured} schedules measured, at most {left} to go, {pace:.1f} a second", eta)


def _undrawn_key(task: KernelTask) -> tuple[str, Variables, bool]:
    return task.call.region.id, task.call.variables, isinstance(task, TableTask)


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
        for workload in workloads_of(settings, choice.device, lambda line: log(line, None)):
            journal.add_workload(workload)
            names.append(f"{workload.name}/{workload.preset}")
    return tuple(names)


def generate_here(settings: CampaignSettings, *, log: Log) -> CampaignSummary:
    """One run on one device, in this process; see `kcg.campaign.workers.generate`."""
    began = time.monotonic()
    choice = choose_device(settings.device)
    prepare(choice.dev)
    check_header(settings.out, create=True)  # before anything is captured, which may take a minute
    workloads = list(workloads_of(settings, choice.device, lambda line: log(line, None)))
    with MeasureService(choice.dev, run_id=uuid.uuid4().hex, compile_workers=settings.compile_workers) as service:
        return generate_on(settings, [(service, workloads)], began=began, log=log)


def generate_on(
    settings: CampaignSettings, parts: Sequence[tuple[Measures, Sequence[Workload]]], *, began: float, log: Log
) -> CampaignSummary:
    """One run on each of the services at once, with the workloads of its target, into one journal: rows of one target
    never stand for those of another. `began` is when the time of the budget began, by `time.monotonic`."""
    with Journal.open(settings.out) as journal:
        runs = [_begin(settings, service, workloads, journal, began, log) for service, workloads in parts]
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
        "device": target.tinygrad_device, "mix": dict(settings.mix), "seed": settings.seed,
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
