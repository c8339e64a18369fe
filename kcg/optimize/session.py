"""One optimisation, from its settings to measured candidates: capture, baselines, measuring. `searching` spends the
budget, `finals` does the rest."""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from kcg.cli import counted
from kcg.compat.device import choose_device, prepare
from kcg.errors import UsageError
from kcg.kernel.symbolic import End, at_values, ends_of
from kcg.measure.device_info import Neighbours
from kcg.measure.lock import lock_folder
from kcg.measure.protocol import PROTOCOL
from kcg.measure.service import BASELINE_TIMEOUT_S, MeasureService, Request
from kcg.optimize import estimates
from kcg.optimize.ends import mean, observed
from kcg.optimize.phases import CAPTURING, OPENING, Phases
from kcg.optimize.settings import Settings, check_names, strategy_of, writable_folder
from kcg.provenance import provenance
from kcg.search.problem import Ledger, Observation, best
from kcg.types import (
    CacheState,
    Expectation,
    Measurement,
    ModelCheck,
    Prediction,
    ProgressPoint,
    RegionResult,
    Schedule,
    ScheduleKind,
    Status,
    Variables,
    Workload,
    WorkloadCall,
)

if TYPE_CHECKING:
    from kcg.dataset.journal import Journal
    from kcg.kernel.opts.space import KernelSpace
    from kcg.optimize.console import Progress
    from kcg.optimize.handwritten import Offer
    from kcg.predictor.interface import Predictor
    from kcg.search.workers import SearchWorkers
    from kcg.workloads.script import Late

SEARCHING = 3  # processes that search, for every four that compile
PASSING = (Status.NOISY, Status.WORKER_DIED, Status.UNJUDGED)
"""A run that goes on measures these again: they say little of the schedule, or the reference may know more by now."""
AT_ONCE = 8  # baselines that are compiled before the first of them is timed, for each compiler, on a CPU


@dataclass
class RegionWork:
    """What a session knows of one region of the workload."""

    call: WorkloadCall
    space: KernelSpace
    known: dict[Schedule, Observation] = field(default_factory=dict)
    binaries: set[str] = field(default_factory=set)
    compile_s: dict[Schedule, float] = field(default_factory=dict)  # what compiling each took, in this run or before
    own: Measurement | None = None  # the hand-coded schedule as the search measured it
    tried_by_beam: int = 0  # binaries that tinygrad's own BEAM timed
    offers: list[Offer] = field(default_factory=list)  # kernels that are written by hand for it
    by_hand: dict[Schedule, Observation] = field(default_factory=dict)  # what was seen of such; a search does not know
    at_ends: dict[Schedule, tuple[float, ...]] = field(default_factory=dict)  # seconds at each end, of what ran

    @property
    def id(self) -> str:
        values = ",".join(f"{name}={value}" for name, value in self.call.variables)
        return f"{self.call.region.id}|{values}"

    @functools.cached_property
    def ends(self) -> tuple[End, ...]:
        """With which values of its variables it is timed, and how much each counts."""
        return ends_of(self.call)

    @functools.cached_property
    def bindings(self) -> tuple[Variables, ...]:
        """The values at the ends: one set, which is empty where the kernel has no variables, or two."""
        return tuple(end.variables for end in self.ends)

    @functools.cached_property
    def bytes(self) -> int:
        """Least traffic of one call."""
        from kcg.kernel.analysis import least_bytes

        return round(mean(self.ends, [least_bytes(at_values(self.space.ast, v)) for v in self.bindings]))

    @functools.cached_property
    def operations(self) -> float:
        """Arithmetic of one call."""
        from kcg.kernel.analysis import arithmetic

        return mean(self.ends, [arithmetic(at_values(self.space.ast, v)) for v in self.bindings])

    def saw(self, schedule: Schedule, rows: Sequence[Measurement]) -> Observation:
        """What a search sees of a schedule that was measured at each end; its times there are kept."""
        if all(row.status == Status.OK for row in rows):
            self.at_ends[schedule] = tuple(row.median_s for row in rows)
        return observed(self.ends, rows)

    @property
    def scales(self) -> tuple[float, ...]:
        """How long the fastest known schedule takes at each end, relative to its time of one call; 1 where none is."""
        found = best(list(self.known.values()))
        times = self.at_ends.get(found.schedule) if found is not None else None
        return tuple(s / found.time_s for s in times) if found is not None and times else (1.0,) * len(self.ends)

    @property
    def longest_s(self) -> float:
        """What tinygrad's own schedule takes at the end where it takes longer; 0 where it is not known."""
        return max(self.at_ends.get(self.space.baseline(), ()), default=self.baseline_s)

    @property
    def baseline_s(self) -> float:
        """Measured time of the hand-coded schedule; 0 where it is not known."""
        seen = self.known.get(self.space.baseline())
        return seen.runtime_s or 0.0 if seen is not None else 0.0

    @property
    def is_timed(self) -> bool:
        """Whether tinygrad's own schedule was tried, with whatever end: all else is compared with it."""
        return self.space.baseline() in self.known

    @property
    def is_unjudged(self) -> bool:
        """Whether the reference cannot tell what is right: no schedule of it is judged then."""
        return self.own is not None and self.own.status == Status.UNJUDGED

    @property
    def tried(self) -> int:
        """Schedules beside the hand-coded one that were measured, whether they ran or not."""
        return max(len(self.known) - (self.space.baseline() in self.known), self.tried_by_beam)

    @functools.cached_property
    def is_alone(self) -> bool:
        """Whether its space holds no schedule but tinygrad's own."""
        start = self.space.start()
        return self.space.baseline() == start and not self.space.actions(start)

    @property
    def best_s(self) -> float:
        found = best(list(self.known.values()))  # a copy: its search may run in another thread
        return found.time_s if found is not None else 0.0

    @property
    def after_s(self) -> float:
        """What all its calls take by the best that is known so far; 0 where nothing is."""
        return self.call.calls * self.best_s

    def ranked(self) -> list[Schedule]:
        """Schedules that ran, fastest first; one of each binary."""
        seen: set[str] = set()
        ordered = []
        for observation in sorted([*self.known.values()], key=lambda o: o.time_s):  # a copy, as above
            if observation.status == Status.OK and observation.binary_hash not in seen:
                seen.add(observation.binary_hash)
                ordered.append(observation.schedule)
        return ordered


class Session:
    """Runs one optimisation. Use as a context manager: leaving it kills every child and closes the journal."""

    def __init__(
        self, settings: Settings, progress: Progress, *, started: float | None = None, writes: bool = True
    ) -> None:
        self.settings, self.progress = settings, progress
        self.started = time.monotonic() if started is None else started
        self.phases = Phases(self.started)
        self.created = datetime.now(UTC)
        self.run_id = uuid.uuid4().hex
        self.history: list[ProgressPoint] = []
        self.expectations: list[Expectation] = []
        self.clocks: defaultdict[str, list[float]] = defaultdict(list)  # by sensor
        self.failures: Counter[str] = Counter()
        self._failed: set[tuple[str, Schedule, Status]] = set()
        self.warnings: list[str] = []
        self.interrupted = False
        self.lost = ""  # why the device went away in the middle, if it did
        self.measured_at = self.started  # when the baselines were timed, by `time.monotonic`
        self.sampling = [0, 0.0]  # samples that this run took, and their own seconds: the rest was emptying the cache
        self.untimed = 0  # kernels of which the budget left no time to time tinygrad's own schedule
        self.undecided = 0  # kernels with a candidate that the budget left no time to judge
        self.model_check: ModelCheck | None = None  # as soon as it is known
        self.settled = False  # the search ended because nothing more was worth its measurements
        self.recorded_s = 0.0  # what recording the kernels of a script took
        self.baselines_s = 0.0  # what compiling and timing a baseline took on average, in this run
        self.preparing_s = 0.0  # what preparing a first measurement of a kernel takes on average, once it is known
        self.works: list[RegionWork] = []
        self.predictor: Predictor | None = None  # none: tinygrad searches by itself
        self.search_workers: SearchWorkers | None = (
            None  # processes that search; none where it would disturb the samples
        )
        self.references: dict[tuple[str, Variables], Future[Any]] = {}
        """By region and values of its variables, its references (`References`) for the finals."""
        self.judged: dict[str, RegionResult] = {}  # by region, as far as the finals have come
        self.paired_results: dict[bytes, str] = {}  # of earlier runs, see `verdicts`
        self.taken_over: set[str] = set()  # the regions of whose duels at least one was taken over from these
        self.fought: set[str] = set()  # and those of whose duels at least one was fought in this run
        self._lock = threading.Lock()
        self._journal_error: BaseException | None = None
        self._journal_moved = False
        self._own: set[str] = set()  # names of files in the folder that are this run's from now on
        self.journal: Journal | None = None

        self._neighbours = Neighbours()  # before this process has work for the machine
        self.choice = choose_device(settings.device)
        check_names(settings, self.choice.device)
        prepare(self.choice.dev)
        self._is_new = writes and not settings.folder.exists()
        self.folder = writable_folder(settings.folder) if writes else settings.folder
        self.ledger = Ledger(max_measurements=settings.measurements)
        with contextlib.ExitStack() as held:
            if writes:
                held.enter_context(lock_folder(self.folder, wait=settings.wait, log=progress.line))
            self.service = MeasureService(self.choice.dev, run_id=self.run_id)
            self._held = held.pop_all()  # until the journal is closed

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close_children()
        if self.journal is not None:
            self.journal.close()
        self._held.close()
        if self._is_new:
            with contextlib.suppress(OSError):  # there is something in it
                self.folder.rmdir()

    def close_children(self) -> None:
        """Kill every process that measures, compiles or searches."""
        self.service.close()
        if self.search_workers is not None:
            self.search_workers.close()

    def preload(self) -> None:
        """Load what the predictor needs, which takes seconds of a core, while the device opens in its own process."""
        from kcg.predictor.choice import preload

        self.phases.begin(OPENING)
        device, _, renderer = self.choice.dev.partition(":")
        preload(self.settings.predictor, device, renderer)

    def guide(self) -> None:
        """Read the predictor, here and beside the device in the processes that will search."""
        from kcg.predictor.choice import choose_predictor
        from kcg.search.workers import SearchWorkers

        choice, target = self.settings.predictor, self.service.target
        if self.choice.device != "CPU" and self.settings.measurements != 0:
            count = max(2, SEARCHING * self.service.compile_workers // 4)
            self.search_workers = SearchWorkers(count, choice, target, self.service.initargs, strategies=strategy_of)
        self.predictor = choose_predictor(choice, target)

    # ---- the steps ----

    def capture(self) -> Workload:
        """The workload's kernels; those of a script by running it once."""
        from kcg.workloads.registry import find

        self.phases.begin(CAPTURING)
        if (program := self.settings.program) is not None:
            from kcg.workloads.script import capture_program

            self.progress.phase(f"running {program.label} to record its kernels")
            begin = time.monotonic()
            captured = capture_program(program, dev=self.choice.dev, late=self._late(program.label))
            self.recorded_s = time.monotonic() - begin
            if captured.interrupted:
                raise KeyboardInterrupt
            for line in captured.lines:
                self.progress.line(f"kcg: {line}", important=True)
            self.warnings += captured.notes
            self.workload = captured.workload
        else:
            spec, preset = find(self.settings.workload, self.settings.preset, self.choice.device)
            self.progress.phase(f"capturing {spec.name} {preset} ({spec.about})")
            self.workload = spec.capture(preset)
        return self.workload

    def _late(self, label: str) -> Late | None:
        """What is said of a program that still runs when the budget is over: nobody can tell how long it will."""
        from kcg.workloads.script import Late

        if (over := estimates.over_at(self)) is None:
            return None
        line = (
            f"kcg: the budget of {self.settings.budget_s:g} s is over, and {label} still runs: it is waited for, since "
            "what it runs is what there is to search; Ctrl-C ends it"
        )
        return Late(over - time.monotonic(), lambda: self.progress.line(line, important=True))

    def open_journal(self) -> Journal:
        """The journal of this output folder. Without `--resume` an earlier one is set aside, never deleted.

        Raises UsageError where it is to go on with that of another workload.
        """
        from kcg.dataset.journal import Journal, Run

        self.phases.begin(OPENING)
        target, toolchain = self.service.facts  # an earlier journal is touched only when the device works
        path = self.folder / "journal.sqlite"
        self.set_aside(*(path.name + suffix for suffix in ("", "-wal", "-shm")))
        self.journal = Journal.open(path)
        if self.settings.resume:
            self._check_resumed(self.journal)
        self.journal.add_target(target)
        self.journal.add_toolchain(toolchain)
        self.journal.add_workload(self.workload)
        self.journal.add_run(
            Run(
                self.run_id,
                self.created.isoformat(),
                self.settings.command,
                {"device": self.choice.dev, **provenance()},
            )
        )
        self.service.on_measurement = self._record
        return self.journal

    def notice_busy_machine(self) -> None:
        """Say, here and in the result, that others use this machine, if they do."""
        if why := self._neighbours.words():
            line = f"this machine is busy ({why}): its times are less certain, and a budget searches less"
            self.warnings.append(line)
            self.progress.line(f"kcg: {line}")

    def set_aside(self, *names: str) -> None:
        """Rename what an earlier run left in the folder under these names, unless this one goes on with it."""
        stamp = self.created.strftime("%Y%m%d-%H%M%S")
        for name in names:
            old = self.folder / name
            if old.exists() and not self.settings.resume and name not in self._own:
                stem, dot, kind = name.partition(".")
                old.rename(self.folder / f"{stem}-{stamp}{dot}{kind}")
            self._own.add(name)

    def _check_resumed(self, journal: Journal) -> None:
        held = set(journal.regions())
        if not held:
            self.progress.line(f"nothing to resume in {self.folder}: this run begins anew")
        elif held.isdisjoint(call.region.id for call in self.workload.calls):
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
                    self.journal.record(measurement)
            except Exception as error:
                self._journal_error = self._journal_error or error

    def record(self, measurements: Sequence[Measurement]) -> None:
        """Journal measurements that were not asked of the service one by one."""
        for measurement in measurements:
            self._record(measurement)
        self.check_journal()

    def check_journal(self) -> None:
        """Raise what went wrong when a measurement was recorded, or that the device is gone."""
        if self.service.device_error is not None:
            raise self.service.device_error
        if self._journal_error is not None:
            raise self._journal_error
        self.notice_moved_journal()

    def notice_moved_journal(self) -> None:
        """Say once that somebody deleted or replaced the journal under this run, which goes on to its result."""
        if self.journal is None or self._journal_moved or not (what := self.journal.moved()):
            return
        self._journal_moved = True
        line = (
            f"the journal {self.journal.path} {what} while this run wrote to it: its result is written all the same, "
            "but --resume cannot go on from its measurements"
        )
        self.warnings.append(line)
        self.progress.line(f"kcg: {line}", important=True)

    def plan(self) -> list[RegionWork]:
        """One `RegionWork` per call, with what the journal already knows of it."""
        from kcg.kernel.opts.space import KernelSpace

        target, toolchain = self.service.facts
        self.works = [RegionWork(c, KernelSpace(c.region, target)) for c in self.workload.calls]
        if self.settings.resume and self.journal is not None:
            by_region = {(w.call.region.id, values): w for w in self.works for values in w.bindings}
            found: defaultdict[tuple[str, Schedule], dict[Variables, Measurement]] = defaultdict(dict)
            for row in self.journal.known(target.fingerprint, toolchain.fingerprint, PROTOCOL):
                work = by_region.get((row.region_id, row.variables))
                if row.status in PASSING or (row.status == Status.TIMEOUT and row.sampler == "hand-coded"):
                    continue  # says little of the schedule: it is measured again
                if work is not None and row.early_stop and row.cache_state == CacheState.COLD:
                    self.service.remember(row)
                    rows = found[work.id, row.schedule]
                    rows[row.variables] = row
                    self._charge(work, [row])
                    if len(rows) == len(work.ends):  # else it is measured again, at the end that is missing
                        seen = work.known if row.schedule.kind == ScheduleKind.OPTS else work.by_hand
                        seen[row.schedule] = work.saw(row.schedule, [rows[values] for values in work.bindings])
            self.ledger.compilations, self.sampling = 0, [0, 0.0]
            self.paired_results = self.journal.paired_results()
            if others := self.journal.measured_elsewhere(target.fingerprint, toolchain.fingerprint, PROTOCOL):
                self.warnings.append(
                    f"the journal also holds {others} measurements of another device, driver, compiler or protocol: "
                    "they are kept, and not used"
                )
        return self.works

    def measure(
        self, work: RegionWork, batch: Sequence[Schedule], *, stop_above_s: float | None = None, sampler: str = ""
    ) -> list[Future[Observation]]:
        """Measure a batch of one region."""
        sampler = sampler or self.settings.search
        return self._measure([(work, schedule, sampler) for schedule in batch], stop_above_s=stop_above_s)

    def _measure(
        self, wanted: Sequence[tuple[RegionWork, Schedule, str]], *, stop_above_s: float | None = None
    ) -> list[Future[Observation]]:
        """Measure `(region, schedule, sampler)`, at each end; each is journalled and charged before its future is
        done."""
        requests = [
            Request(
                work.call.region,
                schedule,
                values,
                sampler,
                in_search=True,
                careful=True,
                stop_above_s=None if stop_above_s is None else scale * stop_above_s,
                best_s=scale * work.best_s or None,
                timeout_s=BASELINE_TIMEOUT_S if sampler == "hand-coded" else None,
            )
            for work, schedule, sampler in wanted
            for values, scale in zip(work.bindings, work.scales, strict=True)
        ]
        futures: list[Future[Observation]] = []
        together = (
            self.choice.device != "CPU" and stop_above_s is not None
        )  # one kernel's: its inputs stay on the device
        measured = iter(self.service.measure(requests, together=together))
        for work, schedule, _ in wanted:
            futures.append(self._of_ends(work, schedule, list(itertools.islice(measured, len(work.ends)))))
        return futures

    def _of_ends(
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
        row = next((row for row in rows if row.binary_hash), rows[0])
        with self._lock:
            work.compile_s[row.schedule] = row.compile_s
            if row.schedule == work.space.baseline():
                work.own = row
            self.ledger.compilations += 1
            if row.binary_hash and row.binary_hash not in work.binaries:
                work.binaries.add(row.binary_hash)
                self.ledger.measurements += 1
                self.sampling[0] += len(row.samples_s)
                self.sampling[1] += sum(row.samples_s)

    def compare(
        self, region: int, predicted: Prediction, corrected: Prediction | None, measured: Future[Observation]
    ) -> None:
        """Keep what was expected of a schedule of `works[region]` beside what `measured` will show."""

        def done(future: Future[Observation]) -> None:
            if future.cancelled() or future.exception() is not None:
                return
            seen = future.result()
            row = Expectation(
                time.monotonic() - self.started,
                region,
                seen.schedule,
                predicted.runtime_s,
                None if corrected is None else corrected.runtime_s,
                predicted.failure_probability,
                seen.runtime_s,
                str(seen.status),
            )
            with self._lock:
                self.expectations.append(row)

        measured.add_done_callback(done)

    def measure_baselines(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Time the hand-coded schedule of every region: all else is compared with it.

        On a GPU `meanwhile` is called while that is done; on a CPU before, since nothing may disturb a sample. Where
        the budget is over, it ends with what is timed by then, one kernel at least: a search has no time any more.
        """
        on_cpu = self.choice.device == "CPU"
        if on_cpu:
            meanwhile()
        kernels = counted(len({work.call.region.id for work in self.works}), "kernel")
        self.progress.phase(f"timing {kernels} as tinygrad schedules them")
        waiting, begun = [w for w in self.works if not w.is_timed], time.monotonic()
        # on a CPU no sample is taken while one of a batch compiles; on a GPU no compiler waits for the device
        size = AT_ONCE * self.service.compile_workers if on_cpu else 1
        batches = (waiting[begin : begin + size] for begin in range(0, len(waiting), size))
        sent: dict[Future[Observation], RegionWork] = {}
        for batch in batches:
            if sent and self._is_over():
                break
            futures = self._measure([(w, w.space.baseline(), "hand-coded") for w in batch])
            sent.update(zip(futures, batch, strict=True))
            if on_cpu:
                self._take_baselines(sent, len(waiting))
        if not on_cpu:
            meanwhile()
        self._take_baselines(sent, len(waiting))
        self.untimed = sum(not work.is_timed for work in waiting)
        if timed := len(waiting) - self.untimed:
            self.preparing_s = estimates.preparing_s(self.service.spent_s) / timed
            self.baselines_s = (time.monotonic() - begun) / timed

    def _take_baselines(self, sent: dict[Future[Observation], RegionWork], count: int) -> None:
        """Wait for the baselines in `sent`, of `count` in all, as they come, or until the budget is over."""
        waiting = {future for future, work in sent.items() if not work.is_timed}
        late = estimates.late_at(self)
        while waiting:
            some = any(work.is_timed for work in sent.values())
            left_s = max(late - time.monotonic(), 0.0) if some and late is not None else None
            done, waiting = wait(waiting, timeout=left_s, return_when=FIRST_COMPLETED)
            if not done:
                break
            for future in done:
                observation = future.result()
                sent[future].known[observation.schedule] = observation
                self.check_journal()
                self.show(kernels=(sum(w.is_timed for w in sent.values()), count))

    def _is_over(self) -> bool:
        """Whether the budget is over."""
        over = estimates.over_at(self)
        return over is not None and time.monotonic() >= over

    @property
    def searched_nothing(self) -> bool:
        """Whether no schedule was tried beside tinygrad's own, of any kernel."""
        if self.settings.measurements == 0:
            return not any(w.known for w in self.works)  # by prediction alone
        return not any(w.tried for w in self.works)

    def final_cost_s(self) -> float:
        """What judging what has a candidate, and then the whole model, is expected to take, in seconds."""
        return estimates.final_cost_s(self)

    def expected_s(self) -> float | None:
        """Seconds from start to result, as far as they are known."""
        if self.settings.budget_s is not None or self.ledger.deadline is None:
            return self.settings.budget_s
        return self.ledger.deadline - self.started + self.final_cost_s()

    def show(self, *, note: str = "", kernels: tuple[int, int] | None = None) -> None:
        elapsed = time.monotonic() - self.started
        total = sum(w.after_s for w in self.works)
        complete = all(w.best_s for w in self.works)
        if complete and self.settings.measurements != 0:
            self.history.append(ProgressPoint(elapsed, self.ledger.measurements, total))
        self.progress.update(
            done_s=elapsed,
            budget_s=self.expected_s(),
            measurements=self.ledger.measurements,
            total_s=total if complete else None,
            kernels=kernels,
            note=note,
        )
