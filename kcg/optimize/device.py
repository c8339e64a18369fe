"""The device of a run: it measures, and what was measured is recorded before anybody hears of it."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from kcg.compat.device import choose_device, prepare, visible_gpu
from kcg.dataset.choices import FOUND, HAND_CODED, UNIFORM, is_uniform
from kcg.errors import UsageError
from kcg.judge.stressing import failures_in
from kcg.kernel.kinds import SeeksStart
from kcg.kernel.origins import origins_of
from kcg.measure.child import first_program_job, start_job
from kcg.measure.device_info import Neighbours
from kcg.measure.lock import lock_device, lock_folder
from kcg.measure.pools import ServiceClosed
from kcg.measure.protocol import PROTOCOL, SHORT_S
from kcg.measure.service import BASELINE_TIMEOUT_S, JobReport, MeasureService, Request, pass_on
from kcg.measure.service import SAMPLER as JUDGE
from kcg.measure.spread import CHECK, CHECK_TRIAL, CHECKED, Spread
from kcg.optimize import costs
from kcg.optimize.settings import Settings, check_gpu_count, check_names, search_of, writable_folder
from kcg.optimize.work import RegionWork
from kcg.provenance import provenance
from kcg.types import CacheState, JobOutcome, Measurement, Region, Schedule, Status, Variables, Workload
from kcg.unexpected import looking

if TYPE_CHECKING:
    from kcg.dataset.journal import Chosen, Journal
    from kcg.judge.interface import Place
    from kcg.kernel.kinds import Space, Unsupported
    from kcg.kernel.lowered import Lowered
    from kcg.kernel.program import Compiled
    from kcg.optimize.budget import Budget
    from kcg.optimize.hosts import FleetHosts
    from kcg.optimize.job_log import JobLog
    from kcg.optimize.log import RunLog
    from kcg.search.problem import Expected as Expectation
    from kcg.search.problem import Observation
    from kcg.search.uniform import Chance

START_TIMEOUT_S = 30.0  # of finding where a space begins
FIRST_TIMEOUT_S = 60.0  # of that and of compiling what is there
SEEN_SHARE = 0.01  # of what is expected of all that was seen: of what takes less no other program is made ahead
LEAST_COMPILE_S = 3.0  # of a schedule: most take one
PASSING = (Status.NOISY, Status.WORKER_DIED, Status.UNJUDGED)
"""A run that goes on measures these again: they say little of the schedule, or the reference may know more by now."""


def _others(works: Sequence[RegionWork]) -> Iterator[tuple[RegionWork, str, Space]]:
    """The spaces of works beside those of their baselines, with their kinds."""
    return ((work, kind, space) for work in works for kind, space in work.others.items())


def _with_layers(workload: Workload) -> Workload:
    """Each call with the layer that most calls of its kernel come from, where it does not say where it is from: who
    watches the run has no result yet that says it."""
    origins = origins_of(workload)
    layers = {region_id: found[0][0] for region_id, found in origins.items() if found}
    calls = (replace(call, origin=call.origin or layers.get(call.region.id, "")) for call in workload.calls)
    return replace(workload, calls=tuple(calls))


@dataclass
class JudgingBench:
    """The device of a run where finalists are judged (`kcg.judge.interface.Bench`): by a service of its own, whose
    child never ran a candidate of the search. It compiles in the same children, and both take turns on the device."""

    device: Device
    service: MeasureService
    journal: Journal | None
    folder: Path
    run_id: str
    is_cpu: bool

    @property
    def failed_under_stress(self) -> dict[Place, str]:
        """As the device has it."""
        return self.device.failed_under_stress

    def compiled(self, work: RegionWork, schedule: Schedule) -> Compiled:
        """The program of a schedule. Raises whatever its compiler raised."""
        return self.device.compiled(work, schedule)

    def measure(self, work: RegionWork, batch: Sequence[Schedule], *, sampler: str) -> list[Future[Observation]]:
        """As a search does."""
        return self.device.measure(work, batch, sampler=sampler)

    def record(self, measurements: Sequence[Measurement]) -> None:
        """Journal measurements that were not asked of the service one by one."""
        self.device.record(measurements)


class Device:
    """A device in use by one run, its service, and the output folder with its journal and its lock. Use as a context
    manager: leaving it kills every child and closes the journal. Other GPUs that the settings allow, and the hosts of a
    fleet, are asked for the measurements of the search only, once `use_others` is called.

    Whatever is measured is journalled and charged to the budget before its future is done.
    """

    def __init__(self, settings: Settings, log: RunLog, budget: Budget, *, writes: bool = True) -> None:
        """Without `writes` the folder is left alone, and others may use the device.

        Raises UnknownName or UsageError for what the settings name and does not exist, DeviceError where it cannot be
        used, or another optimisation uses it that is not waited for.
        """
        self._settings, self._log, self._budget = settings, log, budget
        self._created = datetime.now(UTC)
        self.run_id = uuid.uuid4().hex
        self.clocks: defaultdict[str, list[float]] = defaultdict(list)  # by sensor
        self.failures: Counter[str] = Counter()
        self.failed_under_stress: dict[Place, str] = {}  # why, in this run or before
        self.samples = 0  # that this run took in its search, and their own seconds: the rest was emptying the cache
        self.samples_s = 0.0
        self._costs_file: Path | None = None
        self.taken: dict[str, costs.Taken] = {}  # what jobs of this run took, by their kind
        self._first_programs: dict[tuple[str, str], Future[Schedule]] = {}  # by the id of a work, and the kind
        self._starts: dict[tuple[str, str], Future[Schedule]] = {}  # as these
        self._spaces: dict[str, Space] = {}  # of regions' baselines
        self._seen_s = 0.0  # what kernels are expected to take that were seen while they were recorded
        self._of_kinds: dict[tuple[str, str], Space | Unsupported] = {}  # by the id of a region, and the kind
        self._failed: set[tuple[str, Schedule, Status]] = set()
        self._chosen: dict[tuple[str, Schedule], Chosen] = {}  # why schedules are measured, by the id of their region
        self._own_s: dict[tuple[str, Variables], float] = {}  # of tinygrad's own schedules, as a search timed them
        self._lock = threading.Lock()
        self._journal_error: BaseException | None = None
        self._journal_moved = False
        self._runs: set[str] = set()  # ids of those that are in the journal
        self._own: set[str] = set()  # names of files in the folder that are this run's from now on
        self.journal: Journal | None = None

        self._neighbours = Neighbours()  # before this process has work for the machine
        self.choice = choose_device(settings.device)
        check_names(settings, self.choice.device)
        check_gpu_count(settings, self.choice)
        prepare(self.choice.dev)
        self._is_new = writes and not settings.folder.exists()
        self.folder = writable_folder(settings.folder) if writes else settings.folder
        with contextlib.ExitStack() as held:
            held.callback(self._remove_new_folder)
            if writes:  # before the device is opened
                held.enter_context(lock_folder(self.folder, wait=settings.wait, log=log.progress.line))
                gpus, say = settings.gpus, log.progress.line
                held.enter_context(lock_device(self.choice.dev, gpus=gpus, wait=settings.wait, log=say))
            self.service = MeasureService(self.choice.dev, run_id=self.run_id, jobs=JobReport(log.jobs.add))
            self._others = self._other_services() if writes else {}
            self._held = held.pop_all()  # until the journal is closed
        self.spread = Spread(self.service, report=log.progress.line, warn=self._left_out)
        self.hosts: FleetHosts | None = None
        self._bench: JudgingBench | None = None
        self._judging: MeasureService | None = None  # the bench's
        self._judging_lock = threading.Lock()
        self._rehearses_judging = self._is_closed = False
        self.judges_at_end = False  # as of a GPU that lets only one process in
        self._children: list[Callable[[], None]] = [self._close_services]

    def _other_services(self) -> dict[str, MeasureService]:
        """A service of each other GPU that is to be used, by its name; they open meanwhile."""
        return {
            f"GPU {gpu}": MeasureService(
                self.choice.dev,
                run_id=uuid.uuid4().hex,
                gpu=visible_gpu(gpu),
                compilers_of=self.service,
                jobs=JobReport(self.jobs.add, resource=f"device:{gpu}"),
            )
            for gpu in range(1, self._settings.gpus)
        }

    @property
    def bench(self) -> JudgingBench:
        """Where finalists are judged: another process than the search's, which begins with its first job."""
        if self._bench is None:
            service = self._judging_service()
            self._bench = JudgingBench(self, service, self.journal, self.folder, self.run_id, self.is_cpu)
        return self._bench

    def _judging_service(self) -> MeasureService:
        with self._judging_lock:
            if self._is_closed:
                raise ServiceClosed
            if self._judging is None:
                self._judging = MeasureService(
                    self.choice.dev,
                    run_id=self.run_id,
                    compilers_of=self.service,
                    same_device=True,
                    jobs=JobReport(self.jobs.add),
                )
            return self._judging

    @property
    def judges(self) -> bool:
        """Whether there is a process already in which finalists are judged."""
        return self._judging is not None and self._judging.has_begun

    def join_fleet(self) -> None:
        """Let the hosts of the settings' fleet get ready. Raises UsageError where they cannot measure for this run."""
        if not self._settings.fleet:
            return
        from kcg.optimize.hosts import FleetHosts

        address, certificates = self._settings.fleet, self._settings.certificates
        self.hosts = FleetHosts(address, certificates, self.service, line=self._log.progress.line)
        self.close_too(self.hosts.close)

    def _left_out(self, line: str) -> None:
        """Say that a device or a fleet measures no more; what it had in hand others measure."""
        from kcg.optimize.hosts import without_advice

        self._log.alert(without_advice(line) if self.hosts is not None else line)

    @property
    def compilers(self) -> int:
        """Compiling children for the search, those of hosts included."""
        there = self.hosts.service if self.hosts is not None else None
        helping = there.compile_workers if there is not None and self.spread.uses(there) else 0
        return self.service.compile_workers + helping

    def _close_services(self) -> None:
        with self._judging_lock:
            self._is_closed = True
        if self._judging is not None:
            self._judging.close()
        self.spread.close()
        for service in self._others.values():  # those too that were never checked
            service.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        self.close_children()
        early = JobOutcome.STOPPED if self._log.ended_early else JobOutcome.OK
        self.jobs.close(early if kind is None else JobOutcome.FAILED)
        if self._costs_file is not None:
            costs.keep(self._costs_file, self.taken)
        if self.journal is not None:
            self.journal.close()
        self._held.close()

    @functools.cached_property
    def earlier(self) -> dict[str, costs.Taken]:
        """What jobs took on this target in earlier runs, by their kind; of a CPU nothing is kept, since that depends
        more on what else runs there."""
        if self._settings.costs is None or self.is_cpu:
            return {}
        self._costs_file = costs.file_of(self._settings.costs, self.service.target)
        return costs.read(self._costs_file)

    def took(self, kind: str, expected_s: float, spent_s: float) -> None:
        """A job of a kind was expected to take so long, and took so long."""
        self.taken.setdefault(kind, costs.Taken()).add(expected_s, spent_s)

    def slower(self, kind: str, otherwise: float, weight_s: float) -> float:
        """How many times what is expected jobs of a kind take, by this run and those before; without any `otherwise`,
        which counts as `weight_s`."""
        before, weight_s = costs.known_before(self.earlier, kind, otherwise, weight_s)
        return self.taken.get(kind, costs.Taken()).slower(before, weight_s)

    def _remove_new_folder(self) -> None:
        if self._is_new:
            with contextlib.suppress(OSError):  # there is something in it
                self.folder.rmdir()

    @property
    def jobs(self) -> JobLog:
        """What this run does, as it does it."""
        return self._log.jobs

    @property
    def is_cpu(self) -> bool:
        """Whether what compiles or searches would disturb the samples."""
        return self.choice.device == "CPU"

    def close_children(self) -> None:
        """Kill every process that measures, compiles or searches."""
        for close in self._children:
            close()

    def close_too(self, close: Callable[[], None]) -> None:
        """Let `close_children` kill other processes too, by calling this, maybe more than once."""
        self._children.append(close)

    def notice_busy_machine(self) -> None:
        """Say, here and in the result, that others use this machine, if they do."""
        if why := self._neighbours.words():
            self._log.alert(f"this machine is busy ({why}): its times are less certain, and a budget searches less")

    # ---- the folder and its journal ----

    def open_journal(self, workload: Workload) -> Journal:
        """The journal of this output folder. Without `--resume` an earlier one is set aside, never deleted.

        Raises UsageError where it is to go on with that of another workload.
        """
        from kcg.dataset.journal import Journal

        target, toolchain = self.service.facts  # an earlier journal is touched only when the device works
        path = self.folder / "journal.sqlite"
        self.set_aside(*(path.name + suffix for suffix in ("", "-wal", "-shm")))
        self.journal = journal = Journal.open(path)
        if self._settings.resume:
            self._check_resumed(journal, workload)
        journal.add_target(target)
        for fingerprint in toolchain.fingerprints:
            journal.add_toolchain(toolchain, fingerprint)
        journal.add_workload(_with_layers(workload))
        for service in (self.service, *self._others.values()):
            self._add_run(journal, service.run_id, {"gpu": service.gpu} if service.gpu else {})
        self.jobs.open(journal, self.run_id)
        self.spread.on_measurement = self._record
        return journal

    def _add_run(self, journal: Journal, run_id: str, more: Mapping[str, Any]) -> None:
        """Have the journal hold a run before its first row: this process's own, or that of another device or host."""
        from kcg.dataset.journal import Run

        cores = self.service.compile_workers  # which the jobs of resource `core` share
        about = {"device": self.choice.dev, "cores": cores, **more, **provenance()}
        journal.add_run(Run(run_id, self._created.isoformat(), self._settings.command, about))
        self._runs.add(run_id)

    def set_aside(self, *names: str) -> None:
        """Rename what an earlier run left in the folder under these names, unless this one goes on with it."""
        stamp = self._created.strftime("%Y%m%d-%H%M%S")
        for name in names:
            old = self.folder / name
            if old.exists() and not self._settings.resume and name not in self._own:
                stem, dot, kind = name.partition(".")
                old.rename(self.folder / f"{stem}-{stamp}{dot}{kind}")
            self._own.add(name)

    def _check_resumed(self, journal: Journal, workload: Workload) -> None:
        held = set(journal.regions())
        if not held:
            self._log.progress.line(f"nothing to resume in {self.folder}: this run begins anew")
        elif held.isdisjoint(call.region.id for call in workload.calls):
            raise UsageError(
                f"{self.folder} holds another workload, which has none of these kernels: choose another folder "
                "with --report DIR, or leave out --resume to set it aside"
            )

    def _record(self, measurement: Measurement) -> None:
        """Journal one measurement. Called from the service's threads, so an error waits for the main one."""
        with self._lock:
            failed = measurement.region_id, measurement.schedule, measurement.status
            if measurement.status != Status.OK and not (measurement.variables and failed in self._failed):
                self.failures[str(measurement.status)] += 1  # once, where a schedule fails at both ends
                self._failed.add(failed)
            for name, value in measurement.clocks:
                self.clocks[name].append(value)
            try:
                if self.journal is not None:
                    if self.hosts is not None and measurement.run_id not in self._runs:
                        self._add_run(self.journal, measurement.run_id, self.hosts.run_facts(measurement.run_id))
                    jobs = self.jobs.take(measurement, self._saving_s(measurement))
                    self.journal.record(measurement, jobs=jobs, chosen=self._why(measurement))
            except Exception as error:
                self._journal_error = self._journal_error or error

    def _why(self, row: Measurement) -> Chosen:
        """Why a row was measured: what a search said, and else what always comes, or is left of what a search found."""
        from kcg.dataset.journal import Chosen

        if row.sampler == HAND_CODED:
            return Chosen(probability=1.0)
        found = Chosen(FOUND, probability=1.0)
        if row.sampler == JUDGE or not row.early_stop:
            return found
        return self._chosen.get((row.region_id, row.schedule), found)

    def _saving_s(self, row: Measurement) -> float | None:
        """What a schedule of a search saves, once tinygrad's own was timed: that is kept here."""
        if row.status != Status.OK or not row.early_stop or row.cache_state != CacheState.COLD:
            return None
        place = row.region_id, row.variables
        if row.sampler == HAND_CODED:
            self._own_s[place] = row.median_s
        return self._own_s[place] - row.median_s if place in self._own_s else None

    def _doubt(self, run_id: str, since_unix_s: float, why: str) -> None:
        """Have the journal hold that a host's rows are doubtful, and none of them stand for another schedule."""
        from kcg.dataset.journal import Doubt

        self.spread.forget(run_id)
        for service in (self.service, *self._others.values()):
            service.forget({run_id})
        with self._lock:
            if self.journal is None or self.hosts is None:
                return
            if run_id not in self._runs:
                self._add_run(self.journal, run_id, self.hosts.run_facts(run_id))
            self.journal.add_doubt(Doubt(run_id, since_unix_s, why))

    def settle(self) -> None:
        """Have hosts checked that measured since their last check: the journal then has what is doubtful."""
        if self.hosts is not None:
            self.hosts.settle()

    def record(self, measurements: Sequence[Measurement]) -> None:
        """Journal measurements that were not asked of the service one by one."""
        for measurement in measurements:
            self._record(measurement)
        self.check_journal()

    def check_journal(self) -> None:
        """Raise what went wrong when a measurement was recorded, or that the device is gone."""
        if self.service.device_error is not None:
            raise self.service.device_error
        if (error := self._journal_error or self.jobs.error) is not None:
            raise error
        self.notice_moved_journal()

    def notice_moved_journal(self) -> None:
        """Say once that somebody deleted or replaced the journal under this run, which goes on to its result."""
        if self.journal is None or self._journal_moved or not (what := self.journal.moved()):
            return
        self._journal_moved = True
        self._log.alert(
            f"the journal {self.journal.path} {what} while this run wrote to it: its result is written all the same, "
            "but --resume cannot go on from its measurements",
            important=True,
        )

    def notice_missing_kinds(self) -> None:
        """Say of each kind that could have programs on this device why none are searched."""
        from kcg.kernel.kinds import tools_for

        for noun, tools in tools_for(self.service.target):
            if tools.possible and tools.missing:
                self._log.warn(f"Opts alone are searched, and no {noun}s: {tools.missing}")

    def use_others(self, works: Sequence[RegionWork]) -> None:
        """Have other GPUs and hosts time tinygrad's own schedules of a few kernels, the shortest of those that are not
        short. Those that agree with the first device measure for the search from then on. Returns at once."""

        def distance(work: RegionWork) -> tuple[bool, float]:
            return work.baseline_s < SHORT_S, abs(math.log(work.baseline_s / SHORT_S))

        timed = sorted((work for work in works if work.baseline_s), key=distance)[:CHECKED]
        requests = [
            Request(
                work.call.region,
                work.space.baseline(),
                work.bindings[0],
                CHECK,
                trial=CHECK_TRIAL,
                timeout_s=BASELINE_TIMEOUT_S,
            )
            for work in timed
        ]

        def seen(row: Measurement) -> None:
            with self._lock:
                self._count(row)

        for name, service in self._others.items():
            self.spread.check(service, name, requests, seen=seen)
        if self.hosts is not None:
            self.hosts.help(self.spread, requests, seen=seen, doubt=self._doubt)

    # ---- measuring ----

    def rehearse(self) -> None:
        """On a GPU have the children that measure and judge ready for their first jobs, while the workload is captured:
        the second opens the device once the first has, whose canary it is held against."""
        if not self.is_cpu:
            self.service.rehearse()
            self.service.when_open(self.rehearse_judging)

    def rehearse_judging(self) -> None:
        """The same of the child that judges, on any device, if it was not asked for before. Waits until the device is
        open."""
        with self._judging_lock:
            begins, self._rehearses_judging = not self._rehearses_judging, True
        if begins:
            with contextlib.suppress(ServiceClosed):
                self._judging_service().rehearse()

    def compile_ahead(self, workload: Workload) -> None:
        """While a workload is still being captured: on a GPU have tinygrad's own schedules of the kernels that were
        seen compiled on idle cores, those first that are expected to take longest. Does nothing while the device opens.
        """
        times_all = self._settings.measurements != 0 and not self._settings.resume
        if self.is_cpu or not times_all or not self.service.is_open or self._spaces:
            return
        with looking("tinygrad's own schedules, to be compiled ahead"):
            works = [RegionWork(call, self._space_of(call.region)) for call in workload.calls if not call.variables]
            for work in sorted(works, key=lambda work: -work.expected_s):
                self.service.compile_ahead(work.call.region, work.space.baseline())

    def get_ready(self, workload: Workload) -> None:
        """While a program is being recorded: have idle cores of a GPU's host do what a search begins with, of kernels
        that it ran first. tinygrad's own schedules are compiled, and of those that matter among what was seen the first
        programs of other kinds. Waits until the device is open."""
        if self.is_cpu or self._settings.measurements == 0 or self._settings.resume:
            return
        works = sorted(self.spaces_of(workload), key=lambda work: -work.expected_s)
        for work in works:
            self.service.compile_ahead(work.call.region, work.space.baseline())
        self._seen_s += sum(work.expected_s for work in works)
        matter = [work for work in works if work.expected_s >= SEEN_SHARE * self._seen_s]
        self.first_programs(matter[: self.service.compile_workers])

    def _space_of(self, region: Region) -> Space:
        from kcg.kernel.kinds import space_of

        if (found := self._spaces.get(region.id)) is None:
            found = space_of(region, self.service.target, allow_tf32=self._settings.allow_tf32)
            self._spaces[region.id] = found
        return found

    def plan(self, workload: Workload) -> list[RegionWork]:
        """What is known of each region: with `--resume` what the journal holds of it."""
        works = self.spaces_of(workload)
        if self._settings.resume and self.journal is not None:
            self._resume(works, self.journal)
        return works

    def spaces_of(self, workload: Workload) -> list[RegionWork]:
        """Each region with its spaces. Called from any thread."""
        from kcg.kernel.kinds import Unsupported, kind_named, other_kinds

        target, allowed = self.service.target, self._settings.allow_tf32
        works = [RegionWork(call, self._space_of(call.region)) for call in workload.calls]
        for work in works:
            for name in other_kinds(work.call.region, target):
                key = work.call.region.id, name
                with looking(f"schedules of kind {name} of a kernel or region"):
                    if key not in self._of_kinds:  # reading a region takes a tenth of a second, and they come twice
                        self._of_kinds[key] = kind_named(name).space(work.call.region, target, allow_tf32=allowed)
                    if not isinstance(found := self._of_kinds[key], Unsupported):
                        work.others[name] = found
        return works

    def use_lowered(self, works: Sequence[RegionWork], lowered: Mapping[str, Lowered]) -> None:
        """Have tinygrad's own schedules not lowered again that a program's process lowered as this run would; by the
        ids of their kernels."""
        if not lowered:
            return
        from kcg.kernel.lowered import settings_here

        settings = settings_here(self.service.target)
        for work in works:
            found = lowered.get(work.call.region.id)
            if found is not None and found.settings == settings and found.schedule == work.space.baseline():
                self.service.use_lowered(work.call.region, found)

    def find_starts(self, works: Sequence[RegionWork]) -> None:
        """Have the compiling children find where spaces begin, each of which takes a second of a core: on the way where
        they compile the first program."""
        for work, kind, space in _others(works):
            if isinstance(space, SeeksStart) and space.seeks_start:
                self._start_of(work, kind, space)

    def starts(self, works: Sequence[RegionWork]) -> dict[str, list[Future[Schedule]]]:
        """Where the spaces of other kinds than the baseline's begin, or what went wrong; by the id of the work, of
        those that have such a space. Their first programs are compiled from there if they are asked for."""
        found: dict[str, list[Future[Schedule]]] = {}
        for work, kind, space in _others(works):
            found.setdefault(work.id, []).append(self._start_of(work, kind, space))
        return found

    def _start_of(self, work: RegionWork, kind: str, space: Space) -> Future[Schedule]:
        key, seeks = (work.id, kind), isinstance(space, SeeksStart) and space.seeks_start
        found = self._first_programs.get(key) or self._starts.get(key)
        if found is None and seeks:
            asked = work.call.region, kind, self.service.target
            found = self._starts[key] = self.service.beside(start_job, *asked, timeout_s=START_TIMEOUT_S)
        if found is None:  # it takes no time
            found = self._starts[key] = Future()
            try:
                found.set_result(space.start())
            except Exception as error:
                found.set_exception(error)
        if isinstance(space, SeeksStart) and seeks:
            space.begin_at(found.result)
        return found

    def first_programs(self, works: Sequence[RegionWork]) -> dict[str, list[Future[Schedule]]]:
        """Have the compiling children compile the programs with which the searches of other kinds than the baseline's
        begin; by the id of the work, of those that have such a space. Each is where that space begins, or what went
        wrong."""
        found: dict[str, list[Future[Schedule]]] = {}
        for work, kind, space in _others(works):
            key = work.id, kind
            start, future = self._starts.get(key), self._first_programs.get(key)
            if future is None:
                asked = work.call.region, kind, self.service.target, work.bindings
                if start is None:
                    future = self.service.beside(first_program_job, *asked, timeout_s=FIRST_TIMEOUT_S)
                else:
                    future = self._compiled_from(start, *asked)
                self._first_programs[key] = future
            if isinstance(space, SeeksStart) and space.seeks_start:
                space.begin_at((start or future).result)
            found.setdefault(work.id, []).append(future)
        return found

    def _compiled_from(self, start: Future[Schedule], *asked: Any) -> Future[Schedule]:
        """Where a space begins, once that is known and compiled."""
        found = Future[Schedule]()
        found.set_running_or_notify_cancel()

        def begun(done: Future[Schedule]) -> None:
            if done.exception() is not None:
                pass_on(done, to=found)
                return
            try:
                job = self.service.beside(first_program_job, *asked, done.result(), timeout_s=FIRST_TIMEOUT_S)
            except Exception as error:  # whoever waits would wait for ever
                found.set_exception(error)
            else:
                job.add_done_callback(functools.partial(pass_on, to=found))

        start.add_done_callback(begun)
        return found

    def _resume(self, works: Sequence[RegionWork], journal: Journal) -> None:
        from kcg.kernel.kinds import traits_of

        target, toolchains = self.service.target.fingerprint, self.service.toolchain.fingerprints
        by_region = {(w.call.region.id, values): w for w in works for values in w.bindings}
        found: defaultdict[tuple[str, Schedule], dict[Variables, Measurement]] = defaultdict(dict)
        rows = [row for toolchain in toolchains for row in journal.known(target, toolchain, PROTOCOL)]
        self.failed_under_stress |= failures_in(rows)
        for row in rows:
            if why := self.failed_under_stress.get((row.region_id, row.binary_hash, row.variables)):
                row = replace(row, status=Status.WRONG, samples_s=(), reason=why)  # whatever it was in the search
            work = by_region.get((row.region_id, row.variables))
            if row.status in PASSING or (row.status == Status.TIMEOUT and row.sampler == HAND_CODED):
                continue  # says little of the schedule: it is measured again
            if traits_of(row.schedule).tf32 and not self._settings.allow_tf32:
                continue
            if work is not None and row.early_stop and row.cache_state == CacheState.COLD:
                self.spread.remember(row)
                self._saving_s(row)  # what is timed from now on is compared with tinygrad's own
                at_bounds = found[work.id, row.schedule]
                at_bounds[row.variables] = row
                if work.charge([row]) is not None:
                    self._budget.charge(measurements=1)
                if len(at_bounds) == len(work.bounds):  # else it is measured again, at the bound that is missing
                    work.keep(work.saw(row.schedule, [at_bounds[values] for values in work.bindings]))
        if others := journal.measured_elsewhere(target, toolchains, PROTOCOL):
            self._log.warn(
                f"the journal also holds {others} measurements of another device, driver, compiler or protocol: "
                "they are kept, and not used"
            )

    def measure(
        self,
        work: RegionWork,
        batch: Sequence[Schedule],
        *,
        stop_above_s: float | None = None,
        sampler: str = "",
        known_s: float | None = None,
    ) -> list[Future[Observation]]:
        """Measure a batch of one region, by default for the search of the settings, else on the first device. Nothing
        is surprisingly fast that takes about `known_s`: by default the best time of the region."""
        search = self._settings.search
        wanted = [
            (work, schedule, sampler or self._drawn_by(work, schedule) or search_of(search, schedule.kind))
            for schedule in batch
        ]
        return self._measure(wanted, stop_above_s=stop_above_s, known_s=known_s, by_first=bool(sampler))

    def choose(self, work: RegionWork, why: Mapping[Schedule, tuple[Expectation | None, Chance]]) -> None:
        """Have the journal hold why schedules of a region are measured beside what measuring them will show: what is
        expected of each, as predicted, and as corrected where the predictor learns, and from what it was chosen. Say it
        before they are measured."""
        from kcg.dataset.journal import Chosen, Expected, scores_of

        for schedule, (expectation, chance) in why.items():
            scores = ""
            if expectation is not None:
                predicted, corrected = expectation
                seconds = predicted.runtime_s, None if corrected is None else corrected.runtime_s
                if all(one is None or math.isfinite(one) for one in (*seconds, predicted.failure_probability)):
                    scores = scores_of(Expected(*seconds, predicted.failure_probability))
            with self._lock:
                place = work.call.region.id, schedule
                self._chosen[place] = Chosen(chance.pool, scores, chance.probability)

    def _drawn_by(self, work: RegionWork, schedule: Schedule) -> str:
        """The sampler of what no search chose; empty of all else."""
        why = self._chosen.get((work.call.region.id, schedule))
        return UNIFORM if why is not None and is_uniform(why.pool) else ""

    def measure_baselines(self, works: Sequence[RegionWork]) -> list[Future[Observation]]:
        """Measure tinygrad's own schedule of each region."""
        return self._measure([(work, work.space.baseline(), HAND_CODED) for work in works], by_first=True)

    def measure_with_baseline(self, work: RegionWork, others: Sequence[Schedule]) -> list[Future[Observation]]:
        """Measure tinygrad's own schedule of a region and others of it one after the other: on a GPU its inputs are
        made once."""
        search, own = self._settings.search, work.space.baseline()
        wanted = [(work, own, HAND_CODED), *((work, one, search_of(search, one.kind)) for one in others)]
        return self._measure(wanted, by_first=True, together=True)

    def _measure(
        self,
        wanted: Sequence[tuple[RegionWork, Schedule, str]],
        *,
        stop_above_s: float | None = None,
        known_s: float | None = None,
        by_first: bool,
        together: bool = False,
    ) -> list[Future[Observation]]:
        """Measure `(region, schedule, sampler)`, at each end; `together` what is all of one region."""
        requests = [
            Request(
                work.call.region,
                schedule,
                values,
                sampler,
                in_search=True,
                # of what is proposed its parts were timed as kernels: what they take together is only looked at
                careful=not (work.proposed and schedule.kind == work.kind),
                stop_above_s=None if stop_above_s is None else scale * stop_above_s,
                best_s=scale * (known_s or work.best_s) or None,
                timeout_s=BASELINE_TIMEOUT_S if sampler == HAND_CODED else None,
                compile_s=None if sampler == HAND_CODED else self._compile_s(),
            )
            for work, schedule, sampler in wanted
            for values, scale in zip(work.bindings, work.scales, strict=True)
        ]
        together = not self.is_cpu and (together or stop_above_s is not None)  # its inputs stay on the device
        measured = iter(self.spread.measure(requests, together=together, by_first=by_first))
        return [
            self._of_bounds(work, schedule, list(itertools.islice(measured, len(work.bounds))))
            for work, schedule, _ in wanted
        ]

    def _compile_s(self) -> float | None:
        """How long a compiler may take for a schedule of the search, where that is over before the service would end
        it: nothing else runs meanwhile on a CPU, and what it found is to be judged. None: as long as any."""
        deadline = self._budget.ledger.deadline
        if not self.is_cpu or deadline is None:
            return None
        left_s = max(deadline - time.monotonic(), LEAST_COMPILE_S)
        return left_s if left_s < self.service.compile_timeout_s else None

    def _of_bounds(
        self, work: RegionWork, schedule: Schedule, measured: Sequence[Future[Measurement]]
    ) -> Future[Observation]:
        """What is seen of a schedule once it is measured at each end."""
        future: Future[Observation] = Future()
        waiting = [len(measured)]

        def done(_: Future[Measurement]) -> None:
            with self._lock:
                waiting[0] -= 1
                if waiting[0]:
                    return
            rows = [one.result() for one in measured]
            self._charge(work, rows)
            future.set_result(work.saw(schedule, rows))

        for one in measured:
            one.add_done_callback(done)
        return future

    def _charge(self, work: RegionWork, rows: Sequence[Measurement]) -> None:
        """One compilation, and one measurement where the binary is new, at however many ends it was timed."""
        with self._lock:
            new = work.charge(rows)
            self._budget.charge(measurements=int(new is not None), compilations=1)
            if new is not None:
                self._count(new)

    def _count(self, row: Measurement) -> None:
        self.samples += len(row.samples_s)
        self.samples_s += sum(row.samples_s)

    def own_programs(self, works: Sequence[RegionWork]) -> dict[str, Compiled]:
        """On a CPU tinygrad's own schedules that this run compiled, of kernels without variables, by kernel."""
        found: dict[str, Compiled] = {}
        for work in works if self.is_cpu else ():
            own = work.space.baseline()
            if not work.call.variables and self.service.has_compiled(work.call.region, own):
                compiled = self.compiled(work, own)
                if len(work.call.region.kernels) == 1 and not any(v is not None for v in compiled.values):
                    found[work.call.region.id] = compiled
        return found

    def compiled(self, work: RegionWork, schedule: Schedule) -> Compiled:
        """The program of a schedule. Raises whatever its compiler raised."""
        outcome = self.service.compiled(work.call.region, schedule, *work.bindings).result()
        compiled: Compiled = outcome.compiled
        return compiled.at(work.call.variables)
