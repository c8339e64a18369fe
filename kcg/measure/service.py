"""The parent's side of measuring: one killable child for the device, a pool of killable children for compiling.

A device job is sent only when the one before it has ended, so that a fault is known to belong to the job that ran, and
the child can be replaced before anything else is trusted. On a CPU target compilers and samples never run together.
Two services may take turns on one device, each with a child of its own: what was found by the one is judged in the
other, whose child never ran a candidate of a search.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from kcg.compat.tiny import UOp
from kcg.errors import DeviceError, ScheduleError, VerificationError
from kcg.kernel.analysis import certain_bytes, certain_operations, certain_work
from kcg.kernel.kinds import joined, made_by, registered, traits_of
from kcg.kernel.program import Executable
from kcg.measure import canary, child
from kcg.measure.calls import Call
from kcg.measure.canary import CanaryReading
from kcg.measure.device_info import first_line, usable_cores
from kcg.measure.job_rows import HASH_DIGITS, job_of, taken_over
from kcg.measure.jobs import (
    CompileJob,
    CompileOutcome,
    ContextJob,
    ContextOutcome,
    JointJob,
    JointOutcome,
    NanJob,
    NanOutcome,
    PairedJob,
    PairedOutcome,
    StressJob,
    StressOutcome,
    TimeJob,
    TimeOutcome,
    TinyBeamJob,
    TinyBeamOutcome,
)
from kcg.measure.pools import ChildDied, CompilePool, DevicePool, ServiceClosed
from kcg.measure.protocol import PROTOCOL
from kcg.measure.verify import PARTS, References, first_references_job, joined_references, references_job
from kcg.types import (
    CacheState,
    Job,
    JobKind,
    Measurement,
    Region,
    Schedule,
    Status,
    Target,
    Toolchain,
    Variables,
)

if TYPE_CHECKING:
    from kcg.kernel.lowered import Lowered

# ---- What is asked of the service: one schedule to be measured, and several that go to the device together.


@dataclass(frozen=True)
class Request:
    """One schedule to be measured."""

    region: Region
    schedule: Schedule
    variables: tuple[tuple[str, int], ...] = ()
    sampler: str = ""
    in_search: bool = False  # the few samples of a search are enough
    careful: bool = False  # more of them where the kernel is short
    samples: int | None = None  # so many, whatever the protocol asks
    stop_above_s: float | None = None  # a slower one gets one sample only
    stop_above_best: float | None = None  # the same, times the fastest timed just before it; at least `LEAST_LIMIT_S`
    best_s: float | None = None  # the fastest known: what is ten times faster is not believed at once
    cache_state: CacheState = CacheState.COLD
    timeout_s: float | None = None  # of the device; None: the service's
    compile_s: float | None = None
    """Of a compiler, where that is less than the service's: what takes longer is not recorded, others may wait."""
    trial: int = 0  # a binary is timed once for each trial

    @property
    def early_stop(self) -> bool:
        """Whether fewer samples are taken than the protocol asks."""
        return self.in_search or self.samples is not None


Ready = tuple[Request, CompileOutcome, "Future[Measurement]"]
TimingKey = tuple[Any, ...]


def timing_key(row: Measurement) -> TimingKey:
    """What the timing of a row is found by: whatever has the same binary need not be timed again."""
    return _timing_key(row, row.binary_hash, traits_of(row.schedule).tf32)


def _timing_key(one: Request | Measurement, binary_hash: str, tf32: bool) -> TimingKey:
    """`tf32` counts since a binary is judged by other errors then."""
    region_id = one.region.id if isinstance(one, Request) else one.region_id
    return (region_id, one.variables, one.cache_state, one.early_stop, binary_hash[:HASH_DIGITS], tf32, one.trial)


class Group:
    """Requests that go to the device together, in their order, when the last of them is compiled."""

    def __init__(self, count: int) -> None:
        self._waiting = count
        self._lock = threading.Lock()
        self._ready: dict[int, list[Ready]] = {}

    def compiled(self, place: int, ready: list[Ready]) -> list[Ready]:
        """All of the group if this was the last one, else nothing; `ready` is empty where compiling failed."""
        with self._lock:
            self._ready[place] = ready
            self._waiting -= 1
            return [] if self._waiting else [one for _, some in sorted(self._ready.items()) for one in some]


# ---- A paired comparison as measurements: full samples of both sides, cold and warm, and the baseline once more as B.
#
# The two trials of the baseline are what the noise floor of a kernel is read from (`kcg.dataset.noise`).

A_TRIAL, B_TRIAL = 1, 2
SAMPLER = "final"


def paired_rows(
    job: PairedJob,
    outcome: PairedOutcome,
    baseline: Schedule,
    finalist: Schedule | None,
    *,
    toolchain: Callable[[Schedule], str],
    run_id: str,
) -> list[Measurement]:
    """The measurements of a paired comparison whose sides were timed; none where they were not. `toolchain` says the
    fingerprint of what made a schedule's binary."""

    def row(
        schedule: Schedule, compiled: Executable, samples_s: tuple[float, ...], state: CacheState, trial: int
    ) -> Measurement:
        return Measurement(
            region_id=job.region.id,
            schedule=schedule,
            target=job.target.fingerprint,
            toolchain=toolchain(schedule),
            protocol=PROTOCOL,
            status=Status.NOISY if outcome.noisy else Status.OK,
            cache_state=state,
            variables=job.variables,
            input_recipe=outcome.input_recipe,
            samples_s=() if outcome.noisy else samples_s,
            reason=outcome.noisy,
            binary_hash=compiled.binary_hash,
            checked=True,
            sampler=SAMPLER,
            launch=(compiled.global_size, compiled.local_size),
            run_id=run_id,
            trial=trial,
            clocks=outcome.clocks,
        )

    if not outcome.baseline_cold_s:
        return []
    rows = [
        row(baseline, job.baseline, outcome.baseline_cold_s, CacheState.COLD, A_TRIAL),
        row(baseline, job.baseline, outcome.again_cold_s, CacheState.COLD, B_TRIAL),
        row(baseline, job.baseline, outcome.baseline_warm_s, CacheState.WARM, A_TRIAL),
    ]
    if finalist is not None and job.finalist is not None:
        rows.append(row(finalist, job.finalist, outcome.finalist_cold_s, CacheState.COLD, A_TRIAL))
        rows.append(row(finalist, job.finalist, outcome.finalist_warm_s, CacheState.WARM, A_TRIAL))
    return rows


# ---- What the hardware cannot beat: a bound from below on a kernel's time, against timings that are too good to be
# true.
#
# Deliberately loose, since a measurement below it is rejected: all tensor cores busy with their fastest type, the
# memory at the rate of its pins, and only work and traffic of which `kcg.kernel.analysis` is certain: what a condition,
# a loaded index or a symbolic size may spare counts nothing. Where the hardware does not tell its rates, there is no
# bound.

TENSOR_OPERATIONS = {"sm_80": 4096, "sm_86": 2048, "sm_89": 4096, "sm_90": 8192}
"""Dense operations of one multiprocessor in a cycle, with the fastest type (NVIDIA's architecture white papers)."""
MOST_TENSOR_OPERATIONS = 32768  # of an architecture that is not listed


def floor_s(ast: UOp, target: Target, cache_state: CacheState = CacheState.COLD) -> float:
    """Seconds that a kernel takes at least on `target`; 0 where nothing is known."""
    return _least_s(certain_bytes(ast), certain_operations(ast), target, cache_state)


def floor_of_region_s(region: Region, target: Target, cache_state: CacheState = CacheState.COLD) -> float:
    """The same of a region. One of several kernels reads its inputs and writes its outputs once, and computes all that
    these certainly need."""
    from kcg.kernel.chain import Chain

    chain = Chain(region)
    if len(chain.asts) == 1:
        return floor_s(chain.asts[0], target, cache_state)
    return _least_s(*certain_work(chain.asts, region.outputs), target, cache_state)


def _least_s(nbytes: int, operations: int, target: Target, cache_state: CacheState) -> float:
    if target.clock_limit_mhz is None or not target.cores or target.device not in ("CUDA", "NV"):
        return 0.0
    cycles = TENSOR_OPERATIONS.get(target.arch, MOST_TENSOR_OPERATIONS)
    arithmetic_s = operations / (target.cores * cycles * target.clock_limit_mhz * 1e6)
    # what the cache can keep is not written yet when the kernel ends, nor read again when it is warm
    kept = target.cache_bytes * (1 if cache_state == CacheState.COLD else 2)
    memory_s = max(0, nbytes - kept) / target.bandwidth_bytes_s if target.bandwidth_bytes_s else 0.0
    return max(arithmetic_s, memory_s)


log = logging.getLogger(__name__)

COMPILE_TIMEOUT_S = 30.0
TIMING_TIMEOUT_S = 30.0  # of checking and timing one candidate, all included
BASELINE_TIMEOUT_S = 120.0  # the same of a kernel that everything else is compared with
OPEN_TIMEOUT_S = 120.0
APART_S = 0.3  # that the reference of the first check took, from which on the others are computed in parts
REFERENCES_TIMEOUT_S = 120.0  # references of one region, in a process beside the device

TOO_GOOD = 10.0  # so many times faster than the best known: verified by more rules, and measured again
CORE = "core"  # the resource of what a compiling child does
KEPT_BINARIES = 2000  # so that a campaign of a hundred thousand schedules does not hold all their code

OUT_OF_RESOURCES = ("out of memory", "micro-operations", "shared memory", "shared data", "too many resources")
"""What the errors say that mean: legal, but more than this device or this machine has."""


def why_no_reference(error: BaseException | None) -> str:
    """Why nothing can tell what is right of a region, by what ended its references in another process; empty where the
    device's own may have better luck."""
    if isinstance(error, TimeoutError):
        return f"its reference takes more than {REFERENCES_TIMEOUT_S:g} s"
    return first_line(error) if isinstance(error, VerificationError) else ""


@dataclass(frozen=True)
class ServiceSettings:
    """Where the children of a service keep what they compiled, and how long a job may take."""

    cache_dir: Path | None = None  # by default one of its own, which goes with it
    compile_timeout_s: float = COMPILE_TIMEOUT_S
    timing_timeout_s: float = TIMING_TIMEOUT_S
    open_timeout_s: float = OPEN_TIMEOUT_S
    references_beside: bool = False  # those of single kernels too: for who measures many regions, and has idle cores


@dataclass(frozen=True)
class JobReport:
    """Who gets what was done on the device, under which name of it, or on a core."""

    on_job: Callable[[Job], object] | None = None
    resource: str = "device:0"


class MeasureService:
    """Compiles, times and verifies schedules on one device. Use as a context manager."""

    devices = 1

    def __init__(
        self,
        dev: str,
        *,
        run_id: str,
        compile_workers: int | None = None,
        gpu: str = "",
        compilers_of: MeasureService | None = None,
        same_device: bool = False,
        settings: ServiceSettings | None = None,
        jobs: JobReport | None = None,
    ) -> None:
        """`gpu` is the GPU that its children see, as `CUDA_VISIBLE_DEVICES` names it; empty: all that this process
        sees. With `compilers_of` it compiles in the children of another service of this machine, which outlives it:
        what either compiled, both have. On the `same_device` it takes turns with that one, and its child is as fast by
        the same canary; it begins with the first job. `jobs` gets what was done before anybody else hears of it; in
        any thread, and it must not raise."""
        settings, jobs = settings or ServiceSettings(), jobs or JobReport()
        self._temporary = tempfile.TemporaryDirectory(prefix="kcg-") if settings.cache_dir is None else None
        folder = Path(self._temporary.name) if self._temporary is not None else settings.cache_dir
        assert folder is not None
        self.dev, self.run_id = dev, run_id
        self.compile_timeout_s, self.timing_timeout_s = settings.compile_timeout_s, settings.timing_timeout_s
        self._references_beside = settings.references_beside
        workers = compilers_of.compile_workers if compilers_of else compile_workers
        self.compile_workers: int = workers or usable_cores()
        self.gpu = gpu
        self.initargs = initargs = (
            dev,
            os.getpid(),
            str(folder / "tinygrad-cache.db"),
            gpu,
            registered(),
        )  # of every child
        self._open_timeout_s = open_timeout_s = settings.open_timeout_s
        self.on_job = jobs.on_job
        called = partial(self._called, jobs.resource)
        shares: DevicePool | None = compilers_of._device if compilers_of is not None and same_device else None
        reference, gate = (shares.reference, shares.gate) if shares is not None else (None, None)
        self._device: DevicePool = DevicePool(
            dev, initargs, open_timeout_s=open_timeout_s, reference=reference, called=called, gate=gate
        )
        self._facts: tuple[Target, Toolchain] | None = None
        self._detecting: Future[tuple[Target, Toolchain]]
        if compilers_of is not None and shares is not None:
            self._facts, self._detecting = compilers_of.facts, Future()
            self._detecting.set_result(self._facts)
        else:
            self._detecting = self._device.submit(child.detect_job, dev, timeout_s=open_timeout_s)
        self._on_cpu = dev.startswith("CPU")  # there, compilers and samples take turns
        self._owns_compilers = compilers_of is None
        self._compilers: CompilePool
        self._compilers = self._start_compilers() if compilers_of is None else compilers_of._compilers
        self.on_measurement: Callable[[Measurement], None] = lambda m: None
        self.on_doubt: Callable[[str, float, str], None] = lambda run_id, since_unix_s, why: None
        self._lock = threading.Lock()
        self._spent_lock = threading.Lock()
        # what was compiled, by region, and the references of regions of several kernels: whose compilers made them
        self._kept: dict[tuple[str, Schedule], CompileOutcome] = compilers_of._kept if compilers_of else {}
        self._lowered: dict[tuple[str, Schedule], Lowered] = compilers_of._lowered if compilers_of else {}
        self.lowered: dict[str, Lowered] = {}  # elsewhere, by region
        self._ahead: dict[tuple[str, Schedule], Future[CompileOutcome]] = {}  # compiled before they were asked for
        self._kept_lock: threading.Lock = compilers_of._kept_lock if compilers_of else threading.Lock()
        self._references: dict[tuple[str, Variables], Future[References]]
        self._references = compilers_of._references if compilers_of else {}
        self._compiling = 0
        self._ready: list[Ready] = []
        self._round = 0  # of what is measured: what was asked for before and is compiled later is not timed
        self._by_binary: dict[TimingKey, Future[TimeOutcome] | Measurement] = {}
        self.device_error: DeviceError | None = None  # set when the device does not open again after a fault
        self._floors: dict[tuple[str, CacheState], float] = {}
        self.compilations = 0
        self.binaries_timed = 0
        self.spent_s: Counter[str] = Counter()  # where the time of the children went, by phase

    def _start_compilers(self) -> CompilePool:
        before = self._device.wait_idle if self._on_cpu else lambda: None
        called = partial(self._called, CORE)
        compilers = CompilePool(self.initargs, workers=self.compile_workers, before=before, called=called)
        if not self._on_cpu:
            compilers.start_early()
        return compilers

    def _called(self, resource: str, call: Call) -> None:
        if self.on_job is not None:
            self.on_job(job_of(call, resource))

    def took_over(
        self, kind: JobKind, region: Region, schedule: Schedule | None = None, programs: Sequence[Executable] = ()
    ) -> None:
        """Let `on_job` have that something need not be done again."""
        if self.on_job is not None:
            self.on_job(taken_over(kind, region, schedule, programs))

    def __enter__(self) -> MeasureService:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill all children. What is not done by then ends as a failure that is not recorded."""
        self._device.close()
        if self._owns_compilers:
            self._compilers.close()
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None

    def check_device(self) -> None:
        """Whether the device is still there, for whoever saw a process that is not of this service fail on it.

        It is opened once more, in a new child whose canary must be right and as fast as before; on a CPU, which is
        shared, only right: nothing is timed here. Takes no longer than a device may take to open. Works after `close`
        too. Raises DeviceError where the device is gone.
        """
        reference = None if self._on_cpu else self._device.reference
        with tempfile.TemporaryDirectory(prefix="kcg-") as folder:
            initargs = (self.dev, os.getpid(), str(Path(folder) / "tinygrad-cache.db"), self.gpu, registered())
            pool = DevicePool(self.dev, initargs, open_timeout_s=self._open_timeout_s, reference=reference)
            try:
                pool.submit(child.ping, timeout_s=self._open_timeout_s).result(timeout=self._open_timeout_s)
            except ChildDied as error:
                raise DeviceError(f"{self.dev} cannot be trusted: {first_line(error)}") from None
            except TimeoutError:
                late = f"a new child did not answer within {self._open_timeout_s:g} s"
                raise DeviceError(f"{self.dev} cannot be trusted: {late}") from None
            finally:
                pool.close()

    def run_facts(self, run_id: str) -> dict[str, Any]:
        """What is to be known of the run of a row beside what is known of this process: nothing."""
        return {}

    def settle(self) -> None:
        """Nobody checks this device while it measures: there is no doubt to wait for."""

    @property
    def used_s(self) -> float:
        """Seconds for which jobs of this service had the device."""
        return self._device.used_s

    @property
    def has_device_alone(self) -> bool:
        """Whether no other service that shares its device has work for that now."""
        return self._device.gate.is_idle_beside(self._device)

    def read_canary(self) -> Future[CanaryReading]:
        """Run the canary once more, in the child that measures."""
        first = self._device.reference  # there is one once the device is open
        known = None if first is None else first.compiled
        return self._device.submit(canary.canary_job, self.dev, known, timeout_s=canary.TIMEOUT_S)

    def rehearse(self) -> None:
        """Have the child that measures time a small kernel of tinygrad's once the device is open, while nothing else is
        asked of it: its first job takes a second less then. Where it begins with its first job, it begins with this.
        What goes wrong with it goes wrong again with a job."""

        def opened(done: Future[tuple[Target, Toolchain]]) -> None:
            if done.exception() is None:
                self._device.submit(child.rehearsal_job, done.result()[0], timeout_s=self.timing_timeout_s)

        self._detecting.add_done_callback(opened)

    def when_open(self, call: Callable[[], object]) -> None:
        """Call this, in any thread, once the device is open, if it opens."""
        self._detecting.add_done_callback(lambda done: call() if done.exception() is None else None)

    # ---- what is measured on ----

    @property
    def facts(self) -> tuple[Target, Toolchain]:
        """Target and toolchain, read off the device once. Raises DeviceError where it does not open."""
        if self._facts is None:
            try:
                self._facts = self._detecting.result()
            except (DeviceError, ServiceClosed):
                raise
            except TimeoutError as error:
                raise DeviceError(f"{self.dev} does not open: {error}") from None
            except Exception as error:
                raise DeviceError(f"{self.dev} cannot be used: {first_line(error)}") from error
        return self._facts

    @property
    def is_open(self) -> bool:
        """Whether `facts` would wait for nothing."""
        return self._facts is not None or self._detecting.done()

    @property
    def target(self) -> Target:
        return self.facts[0]

    @property
    def toolchain(self) -> Toolchain:
        return self.facts[1]

    @property
    def has_begun(self) -> bool:
        """Whether its child was started, as it is for the first job."""
        return self._device.canaries > 0

    @property
    def children_replaced(self) -> int:
        return self._device.replaced

    # ---- compiling ----

    def compile(self, region: Region, schedule: Schedule, *bindings: Variables) -> Future[Any]:
        """Compile in the pool: a future of CompileOutcome. `bindings` are the sets of values of the kernel's symbolic
        variables with which the binary will run."""
        return self._compile(child.compile_job, self._job(region, schedule, bindings))

    def compile_ahead(self, region: Region, schedule: Schedule) -> None:
        """Have a schedule of a region without variables compiled that will be measured: it is not compiled again."""
        if (key := (region.id, schedule)) not in self._ahead:
            self._ahead[key] = self.compile(region, schedule)

    def _compile(self, function: Callable[..., Any], *args: Any, timeout_s: float | None = None) -> Future[Any]:
        with self._lock:
            self.compilations += 1
        return self.beside(function, *args, timeout_s=min(timeout_s or math.inf, self.compile_timeout_s))

    def _release(self, *, compiled: int = 0) -> None:
        """Send to the device what is compiled; on a CPU only when no compiler runs any more."""
        with self._lock:
            self._compiling -= compiled
            if self._on_cpu and self._compiling:
                return
            now, self._ready = self._ready, []
        for ready in now:
            if (references := self._references.get((ready[0].region.id, ready[0].variables))) is None:
                self._send(ready)
            else:
                references.add_done_callback(lambda _, ready=ready: self._send(ready))  # type: ignore[misc]

    def _send(self, ready: Ready) -> None:
        request, outcome, future = ready
        try:
            if why := self._why_unjudged(request):
                row = self._measurement(request, Status.UNJUDGED, reason=why, **_known(outcome))
                self._resolve(future, row)
            else:
                self._time(request, outcome, future)
        except Exception as error:  # in a callback it would only be logged, and whoever waits would wait for ever
            self._fail(request, future, error, timeout=Status.TIMEOUT, other=Status.LAUNCH_ERROR)

    def _keep(self, key: tuple[str, Schedule], outcome: CompileOutcome) -> None:
        with self._kept_lock:
            while len(self._kept) >= KEPT_BINARIES:
                self._kept.pop(next(iter(self._kept)))
            self._kept[key] = outcome

    def use_lowered(self, region: Region, lowered: Lowered) -> None:
        """Have a region of one kernel not lowered again with the schedule with which that was done elsewhere."""
        key = region.id, lowered.schedule
        self.lowered[region.id] = lowered
        if lowered.compiled.binary:
            self._keep(key, CompileOutcome(lowered.compiled, lowered.seconds))
            self.took_over(JobKind.COMPILE, region, lowered.schedule, [lowered.compiled])
        else:
            self._lowered[key] = lowered

    def spared_s(self, regions: Iterable[Region]) -> float:
        """How much longer compiling tinygrad's own schedules of these would have taken, if nothing had been lowered
        elsewhere."""
        found = (self.lowered[region.id].seconds for region in regions if region.id in self.lowered)
        return sum(found) / self.compile_workers

    def compiled(self, region: Region, schedule: Schedule, *bindings: Variables) -> Future[Any]:
        """A future of CompileOutcome, as `compile`; what this service compiled before is not compiled again."""
        future: Future[CompileOutcome]
        if (kept := self._compiled_before(region, schedule, *bindings)) is not None:
            future = Future()
            future.set_result(kept)
            return future
        future = self.compile(region, schedule, *bindings)
        key = (region.id, schedule)
        future.add_done_callback(lambda done: None if done.exception() else self._keep(key, done.result()))
        return future

    def has_compiled(self, region: Region, schedule: Schedule, *bindings: Variables) -> bool:
        """Whether `compiled` would compile nothing."""
        return self._compiled_before(region, schedule, *bindings) is not None

    def _compiled_before(self, region: Region, schedule: Schedule, *bindings: Variables) -> CompileOutcome | None:
        kept = self._kept.get((region.id, schedule)) or self._of_parts(region, schedule, *bindings)
        runs = kept is not None and all(kept.compiled.runs_at(variables) for variables in bindings or ((),))
        return kept if runs else None

    def _of_parts(self, region: Region, schedule: Schedule, *bindings: Variables) -> CompileOutcome | None:
        """A schedule all of whose parts were compiled before: the best schedules of a region's kernels were, and
        tinygrad's own took 100 s of cores for 40 regions of Flux."""
        seconds = 0.0

        def find(inner: Region, own: Schedule) -> Executable | None:
            nonlocal seconds
            if (kept := self._compiled_before(inner, own, *bindings)) is None:
                return None
            seconds += kept.compile_s
            return kept.compiled

        with contextlib.suppress(ScheduleError):  # a compiler says it
            if (made := joined(region, schedule, find)) is not None:
                return CompileOutcome(made, seconds)
        return None

    def beside(self, function: Callable[..., Any], *args: Any, timeout_s: float, patient: bool = False) -> Future[Any]:
        """Run a function of a module in one of the compiling children: for work that would hold up this process. On a
        CPU no sample is taken meanwhile. What is `patient` lets all that is compiled go first."""
        with self._lock:
            self._compiling += 1
        future = self._compilers.submit(function, *args, timeout_s=timeout_s, patient=patient)
        future.add_done_callback(lambda done: self._release(compiled=1))
        return future

    # ---- measuring ----

    def remember(self, row: Measurement) -> None:
        """Take a measurement of an earlier run as made: its binary is not timed again."""
        if row.binary_hash:
            self._by_binary.setdefault(timing_key(row), row)

    def forget(self, runs: Collection[str] | None = None) -> None:
        """Time binaries again that were timed before: those that `remember` took of some runs, or by default all."""
        with self._lock:
            for key, known in list(self._by_binary.items()):
                if runs is None or (isinstance(known, Measurement) and known.run_id in runs):
                    del self._by_binary[key]

    def measure(
        self,
        requests: Sequence[Request],
        *,
        together: bool = False,
        made: Mapping[Schedule, Future[CompileOutcome]] | None = None,
        known: Mapping[TimingKey, Measurement] | None = None,
    ) -> list[Future[Measurement]]:
        """Compile and time. A failure is a Measurement with a status; the futures themselves do not raise.

        A schedule whose binary was timed before in this service shares that timing and costs none; one that is asked
        for with several values of its kernel's variables is compiled once. `together` times the requests one after the
        other, in their order, once all are compiled: batches of several kernels then do not take turns on the device,
        which holds the inputs of one kernel only. `made` has what compiling some schedules came to elsewhere, and
        `known` timings of binaries that count for these requests alone.
        """
        group = Group(len(requests)) if together else None
        futures = [_new_future() for _ in requests]
        with self._lock:
            self._compiling += 1  # the batch itself: on a CPU no sample is taken before its last job is sent
        try:
            for places in _of_one_schedule(requests):
                elsewhere = (made or {}).get(requests[places[0]].schedule)
                asked = [_Asked(requests[i], futures[i], i) for i in places]
                self._measure(asked, group, made=elsewhere, known=known or {})
        finally:
            self._release(compiled=1)
        return futures

    def give_up(self) -> None:
        """Nobody waits any more for what was asked for and is not compiled yet: it is not timed, nor recorded, and its
        future is never done."""
        self._round += 1

    def measure_compiled(self, request: Request, compiled: Executable) -> Future[Measurement]:
        """Time a binary that is compiled already, as `measure` does."""
        future = _new_future()
        self._time(request, CompileOutcome(compiled, 0.0), future)
        return future

    def _job(self, region: Region, schedule: Schedule, bindings: Sequence[Variables]) -> CompileJob:
        first, *others = dict.fromkeys(bindings) or ((),)
        lowered = self._lowered.get((region.id, schedule))
        return CompileJob(region, schedule, self.target, first, tuple(others), lowered)

    def _measure(
        self,
        asked: Sequence[_Asked],
        group: Group | None = None,
        *,
        compiler: tuple[Any, ...] = (),
        made: Future[CompileOutcome] | None = None,
        known: Mapping[TimingKey, Measurement] = MappingProxyType({}),
    ) -> None:
        """Compile a schedule once, and time it for each request whose binary has no `known` timing. `compiler` is
        another function than the usual one, with its arguments; `made` is what compiling it came to elsewhere."""
        first, round_ = asked[0].request, self._round
        for one in asked:
            self.begin_references(one.request.region, one.request.variables)
        bindings = [one.request.variables for one in asked]
        job = self._job(first.region, first.schedule, bindings)
        kept = None if made or compiler else self._compiled_before(first.region, first.schedule, *bindings)
        if kept is not None:
            made = Future()
            made.set_result(kept)
        elif not made and not compiler and not any(bindings):
            made = self._ahead.pop((first.region.id, first.schedule), None)

        def compiled(done: Future[Any]) -> None:
            outcome = kept or self._compile_result(done, (first.region.id, first.schedule))
            now: list[Ready] = []
            for request, future, place in asked:
                of_one: list[Ready] = []
                if outcome is None:
                    error = done.exception()
                    assert error is not None
                    hurried = request.compile_s is not None and isinstance(error, TimeoutError)
                    ways = {"timeout": Status.COMPILE_TIMEOUT, "other": Status.COMPILE_ERROR}
                    self._fail(request, future, error, **ways, record=not hurried)
                else:
                    bound = outcome.compiled.at(request.variables)
                    timing = known.get(_timing_key(request, bound.binary_hash, bound.tf32))
                    if timing is not None:
                        self.took_over(JobKind.TIME, request.region, request.schedule, [bound])
                        self._resolve(future, _shared(timing, request, outcome.compile_s))
                    else:
                        of_one = [(request, CompileOutcome(bound, outcome.compile_s), future)]
                now += of_one if group is None else group.compiled(place, of_one)
            if now and round_ == self._round:  # else nobody waits for it any more
                with self._lock:
                    self._ready += now
                self._release()

        how = compiler or (child.compile_job, job)
        (made or self._compile(*how, timeout_s=first.compile_s)).add_done_callback(compiled)

    def begin_references(self, region: Region, variables: Variables) -> Future[Any] | None:
        """Have the reference of a region of several kernels computed beside the device, with which its schedules are
        checked before they are timed: it takes a second of a core, that of a single kernel a tenth. None of such,
        unless the settings say so."""
        key = region.id, variables
        if len(region.kernels) == 1 and not self._references_beside:
            return None
        if key not in self._references:
            self._references[key] = self.beside(first_references_job, region, variables, timeout_s=REFERENCES_TIMEOUT_S)
        return self._references[key]

    def references(self, region: Region, variables: Variables, seeds: tuple[int, ...]) -> Future[References]:
        """Have the references of a thorough check under `seeds` computed beside the device: where those of the first
        check were begun once they are there, since these are some of them (of attention two fifths of the time). Where
        they took long the others are computed by several cores: of the largest regions of Flux they take 9 to 20 s of
        one."""
        first, found = self._references.get((region.id, variables)), Future[References]()
        found.set_running_or_notify_cancel()

        def begin(known: References | None) -> None:
            job = references_job, region, variables, seeds, known
            if known is None or known.seconds < APART_S or self.compile_workers < PARTS:
                whole = self.beside(*job, timeout_s=REFERENCES_TIMEOUT_S, patient=True)
                whole.add_done_callback(partial(pass_on, to=found))
                return
            parts = [self.beside(*job, n, timeout_s=REFERENCES_TIMEOUT_S, patient=True) for n in range(PARTS)]
            left = iter(range(PARTS - 1, -1, -1))  # of the parts, taken by whichever ends

            def ended(done: Future[References]) -> None:
                if next(left) == 0:
                    _join(parts, to=found)

            for one in parts:
                one.add_done_callback(ended)

        def follow(done: Future[References]) -> None:
            error = done.exception()
            if why_no_reference(error):  # nor is there one of other seeds
                pass_on(done, to=found)
            else:
                begin(None if error is not None else done.result())

        if first is None:
            begin(None)
        else:
            first.add_done_callback(follow)
        return found

    def _why_unjudged(self, request: Request) -> str:
        """Why there is no reference of a region of several kernels, which the device's process would look for as long
        with each of its schedules; empty where there is one, or that process may find it."""
        found = self._references.get((request.region.id, request.variables))
        return why_no_reference(found.exception()) if found is not None else ""

    def _references_of(self, request: Request) -> References | None:
        """What was computed beside the device, if it was."""
        found = self._references.get((request.region.id, request.variables))
        return None if found is None or found.exception() is not None else found.result()

    def _compile_result(self, done: Future[Any], key: tuple[str, Schedule]) -> CompileOutcome | None:
        """What a compiler made, kept; None where it failed."""
        if done.exception() is not None:
            return None
        outcome: CompileOutcome = done.result()
        self._count({"compile": outcome.compile_s})
        self._keep(key, outcome)
        return outcome

    def _time(self, request: Request, outcome: CompileOutcome, future: Future[Measurement]) -> None:
        compiled = outcome.compiled
        key = _timing_key(request, compiled.binary_hash, compiled.tf32)
        job, known = self._time_job(request, compiled), _known(outcome)
        with self._lock:
            timing = self._by_binary.get(key)
            is_new = timing is None
            if timing is None:
                # one that is surprisingly fast is verified by every rule: some forty runs, each below `recheck_below_s`
                timeout_s = request.timeout_s or max(self.timing_timeout_s, 40 * job.recheck_below_s)
                timing = self._device.submit(child.time_job, job, timeout_s=timeout_s)
                timing.add_done_callback(lambda done: self._count({} if done.exception() else done.result().spent_s))
                self._by_binary[key] = timing
                self.binaries_timed += 1
        if not is_new:
            self.took_over(JobKind.TIME, request.region, request.schedule, [compiled])
        if isinstance(timing, Measurement):
            self._resolve(future, _shared(timing, request, outcome.compile_s))
        else:
            # not over the outcome: a future keeps its callbacks, and they would keep every binary
            timing.add_done_callback(lambda done: self._timed(request, known, future, done, key))

    def _time_job(self, request: Request, compiled: Executable) -> TimeJob:
        return TimeJob(
            request.region,
            compiled,
            self.target,
            request.variables,
            samples=request.samples,
            early_stop=request.early_stop,
            careful=request.careful,
            cache_state=request.cache_state,
            stop_above_s=request.stop_above_s,
            stop_above_best=request.stop_above_best,
            floor_s=self._floor_s(request.region, request.cache_state),
            recheck_below_s=(request.best_s or 0.0) / TOO_GOOD,
            references=self._references_of(request),
        )

    def _count(self, spent_s: Any) -> None:
        with self._spent_lock:
            self.spent_s.update(dict(spent_s))

    def _floor_s(self, region: Region, cache_state: CacheState) -> float:
        key = (region.id, cache_state)
        if key not in self._floors:
            self._floors[key] = floor_of_region_s(region, self.target, cache_state)
        return self._floors[key]

    def _timed(
        self,
        request: Request,
        known: dict[str, Any],
        future: Future[Measurement],
        done: Future[TimeOutcome],
        key: TimingKey,
    ) -> None:
        if (error := done.exception()) is not None:
            if _not_its_fault(error):
                self._by_binary.pop(key, None)
            self._fail(request, future, error, timeout=Status.TIMEOUT, other=Status.LAUNCH_ERROR, **known)
            return
        timed = done.result()
        failures = ((Status.UNJUDGED, timed.unjudged), (Status.WRONG, timed.wrong), (Status.NOISY, timed.noisy))
        status, reason = next(((status, why) for status, why in failures if why), (Status.OK, ""))
        self._resolve(
            future,
            self._measurement(
                request,
                status,
                reason=reason,
                samples_s=timed.samples_s,
                input_recipe=timed.input_recipe,
                checked=timed.checked,
                clocks=timed.clocks,
                **known,
            ),
        )

    def _fail(
        self,
        request: Request,
        future: Future[Measurement],
        error: BaseException,
        *,
        timeout: Status,
        other: Status,
        record: bool = True,
        **known: Any,
    ) -> None:
        """End a measurement with the status that its error means."""
        status = status_of(error, timeout=timeout, other=other)
        if isinstance(error, DeviceError):
            self.device_error = error
        row = self._measurement(request, status, reason=first_line(error), **known)
        self._resolve(future, row, record=record and not _not_its_fault(error))

    def _measurement(self, request: Request, status: Status, **fields: Any) -> Measurement:
        return Measurement(
            region_id=request.region.id,
            schedule=request.schedule,
            target=self.target.fingerprint,
            toolchain=made_by(self.toolchain, request.schedule),
            protocol=PROTOCOL,
            status=status,
            cache_state=request.cache_state,
            variables=request.variables,
            early_stop=request.early_stop,
            sampler=request.sampler,
            run_id=self.run_id,
            trial=request.trial,
            **fields,
        )

    def _resolve(self, future: Future[Measurement], measurement: Measurement, *, record: bool = True) -> None:
        if measurement.status != Status.OK:
            log.debug("%s %s: %s", measurement.status, measurement.schedule, measurement.reason)
        try:
            if record:
                self.on_measurement(measurement)
        finally:  # whoever waits is not to wait for ever because the listener failed
            future.set_result(measurement)

    # ---- finalists and baselines ----

    def fresh_child(self) -> None:
        """End the child, and let the next device job start in a new one."""
        self._device.submit_here(self._device.replace_child)

    def compare_paired(self, job: PairedJob, *, timeout_s: float) -> Future[PairedOutcome]:
        """Verify and re-time, interleaved with the baseline. The future raises what went wrong."""
        return self._device.submit(child.paired_job, job, timeout_s=timeout_s)

    def compare_jointly(self, job: JointJob, *, timeout_s: float) -> Future[JointOutcome]:
        """As `compare_paired`, of several sides in the same turns."""
        return self._device.submit(child.joint_job, job, timeout_s=timeout_s)

    def compare_nan(self, job: NanJob, *, timeout_s: float) -> Future[NanOutcome]:
        """Hold what programs make of NaN against what the first does. The future raises what went wrong."""
        return self._device.submit(child.nan_job, job, timeout_s=timeout_s)

    def compare_in_context(self, job: ContextJob, *, timeout_s: float) -> Future[ContextOutcome]:
        """Time a region's calls and its program in turns, among their neighbours. The future raises what went wrong."""
        return self._device.submit(child.context_job, job, timeout_s=timeout_s)

    def stress(self, job: StressJob, *, timeout_s: float) -> Future[StressOutcome]:
        """Launch a program very often. The future raises what went wrong."""
        return self._device.submit(child.stress_job, job, timeout_s=timeout_s)

    def tiny_beam(self, job: TinyBeamJob, *, timeout_s: float) -> Future[TinyBeamOutcome]:
        """tinygrad's own BEAM, in its turn on the device."""
        from kcg.measure import tiny_beam

        stop = self._device.closed

        def tiny_beam_job(job: TinyBeamJob) -> TinyBeamOutcome:
            return tiny_beam.run(job, timeout_s=timeout_s, stop=stop)

        return self._device.submit_here(tiny_beam_job, job)


def status_of(error: BaseException, *, timeout: Status, other: Status) -> Status:
    """What an error of a job in a child means for the schedule that the job was about."""
    text = str(error).lower()
    if isinstance(error, TimeoutError):
        return timeout
    if isinstance(error, ChildDied) and "sigabrt" in text and other == Status.COMPILE_ERROR:
        return other  # an assertion of the compiler itself: whoever kills from outside does not abort
    if isinstance(error, ChildDied) or _not_its_fault(error):
        return Status.WORKER_DIED
    if isinstance(error, MemoryError) or any(words in text for words in OUT_OF_RESOURCES):
        return Status.RESOURCE
    return other


class _Asked(NamedTuple):
    """A request, what becomes of it, and its place among those asked together."""

    request: Request
    future: Future[Measurement]
    place: int


def _of_one_schedule(requests: Sequence[Request]) -> list[list[int]]:
    """The places of requests that differ in the values of variables only, together."""
    asked: Counter[tuple[str, Schedule, Variables]] = Counter()
    places: dict[tuple[str, Schedule, int], list[int]] = {}
    for place, request in enumerate(requests):
        same = (request.region.id, request.schedule, request.variables)
        places.setdefault((request.region.id, request.schedule, asked[same]), []).append(place)
        asked[same] += 1
    return list(places.values())


def _shared(timing: Measurement, request: Request, compile_s: float) -> Measurement:
    """The row of a request whose binary was timed before."""
    return replace(timing, schedule=request.schedule, sampler=request.sampler, compile_s=compile_s)


def _known(outcome: CompileOutcome) -> dict[str, Any]:
    """What a measurement says of a program that was compiled."""
    compiled = outcome.compiled
    return {
        "binary_hash": compiled.binary_hash,
        "compile_s": outcome.compile_s,
        "launch": (compiled.global_size, compiled.local_size),
    }


def pass_on(done: Future[Any], *, to: Future[Any]) -> None:
    """Let one future have what another one came to."""
    if (error := done.exception()) is not None:
        to.set_exception(error)
    else:
        to.set_result(done.result())


def _join(parts: Sequence[Future[References]], *, to: Future[References]) -> None:
    """Let one future have what several came to together, or the first error among them."""
    if (error := next(filter(None, (one.exception() for one in parts)), None)) is not None:
        to.set_exception(error)
    else:
        to.set_result(joined_references([one.result() for one in parts]))


def _new_future() -> Future[Measurement]:
    future: Future[Measurement] = Future()
    future.set_running_or_notify_cancel()  # not to be cancelled by whom it is given to
    return future


def _not_its_fault(error: BaseException) -> bool:
    """Whether an error says nothing about the schedule: the run ended, or the device is gone."""
    return isinstance(error, ServiceClosed | DeviceError)
