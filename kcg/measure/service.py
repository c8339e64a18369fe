"""The parent's side of measuring: one killable child for the device, a pool of killable children for compiling.

A device job is sent only when the one before it has ended, so that a fault is known to belong to the job that ran, and
the child can be replaced before anything else is trusted. On a CPU target compilers and samples never run together.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import queue
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kcg.errors import DeviceError, KcgError, ScheduleError
from kcg.measure import child
from kcg.measure.jobs import CompileJob, CompileOutcome, DuelJob, DuelOutcome, TimeJob, TimeOutcome, TinyBeamJob
from kcg.measure.jobs import TinyBeamOutcome as TinyBeamOutcome
from kcg.measure.protocol import PROTOCOL
from kcg.types import CacheState, Measurement, Region, Schedule, Status, Target, Toolchain

log = logging.getLogger(__name__)

COMPILE_TIMEOUT_S = 30.0
TIMING_TIMEOUT_S = 20.0  # beyond what the samples are expected to take
DETECT_TIMEOUT_S = 120.0

STICKY_FAULTS = ("700", "710", "714", "715", "716", "717", "718", "719")
"""CUDA error codes after which the context is lost (illegal address, misaligned, illegal instruction, launch failure …)."""


@dataclass(frozen=True)
class Request:
    """One schedule to be measured."""

    region: Region
    schedule: Schedule
    variables: tuple[tuple[str, int], ...] = ()
    sampler: str = ""
    samples: int | None = None  # None: what the protocol asks
    stop_above_s: float | None = None
    cache_state: CacheState = CacheState.COLD

    @property
    def early_stop(self) -> bool:
        return self.samples is not None


class DevicePool:
    """One child for one device, and the jobs sent to it one at a time by a thread of their own."""

    def __init__(self, initargs: tuple[Any, ...]) -> None:
        self._initargs = initargs
        self._jobs: queue.SimpleQueue[tuple[Callable[..., Any], tuple[Any, ...], float, Future[Any]] | None] = (
            queue.SimpleQueue()
        )
        self._pool: Any = None
        self._busy: Any = None
        self.replaced = 0
        self._closed = False
        self._thread = threading.Thread(target=self._loop, name="kcg-device", daemon=True)
        self._thread.start()

    def submit(self, function: Callable[..., Any], *args: Any, timeout_s: float) -> Future[Any]:
        """Run `function(*args)` in the child; the future fails with TimeoutError after the child was killed."""
        future: Future[Any] = Future()
        self._jobs.put((function, args, timeout_s, future))
        return future

    def submit_here(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """Run `function(*args)` in the device's thread of this process: its turn on the device, without the child."""
        future: Future[Any] = Future()
        self._jobs.put((function, args, -1.0, future))
        return future

    def replace_child(self) -> None:
        """Kill the child; the next job starts a fresh one. Called from the device's thread."""
        if self._pool is not None:
            self._pool.stop()
            self._pool.join()
            self._pool = None
            self.replaced += 1

    def _loop(self) -> None:
        while (item := self._jobs.get()) is not None:
            function, args, timeout_s, future = item
            if self._closed or not future.set_running_or_notify_cancel():
                continue
            try:
                if timeout_s < 0:
                    future.set_result(function(*args))
                    continue
                if self._pool is None:
                    from pebble import ProcessPool

                    self._pool = ProcessPool(
                        max_workers=1, initializer=child.start, initargs=self._initargs,
                        context=multiprocessing.get_context("spawn"),
                    )  # fmt: skip
                self._busy = self._pool.schedule(function, args=args, timeout=timeout_s)
                future.set_result(self._busy.result())
            except CancelledError:
                future.set_exception(KcgError("cancelled"))
            except BaseException as error:
                if any(f"CUDA Error {code}" in str(error) for code in STICKY_FAULTS):
                    self.replace_child()
                future.set_exception(error)
        if self._pool is not None:
            self._pool.stop()
            self._pool.join()

    def close(self) -> None:
        """Kill the child and end the thread."""
        self._closed = True
        self._jobs.put(None)
        busy = self._busy
        if busy is not None and not busy.done():
            busy.cancel()
        self._thread.join(timeout=10)


class MeasureService:
    """Compiles, times and verifies schedules on one device. Use as a context manager."""

    def __init__(
        self, dev: str, *, run_id: str, compile_workers: int | None = None, cache_dir: Path | None = None
    ) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="kcg-") if cache_dir is None else None
        folder = Path(self._temporary.name) if self._temporary is not None else cache_dir
        assert folder is not None
        self.dev, self.run_id = dev, run_id
        initargs = (dev, os.getpid(), str(folder / "tinygrad-cache.db"))
        self._device = DevicePool(initargs)
        self._detecting = self._device.submit(child.detect_job, dev, timeout_s=DETECT_TIMEOUT_S)
        self._compilers: Any = None
        self.compile_workers = compile_workers or max(1, os.cpu_count() or 1)
        self._initargs = initargs
        self._facts: tuple[Target, Toolchain] | None = None
        self.on_measurement: Callable[[Measurement], None] = lambda m: None
        self._lock = threading.Lock()
        self._by_binary: dict[tuple[Any, ...], Future[Measurement]] = {}
        self._kept: dict[tuple[str, tuple[tuple[str, int], ...], Schedule], CompileOutcome] = {}
        self.compilations = 0
        self.binaries_timed = 0

    def __enter__(self) -> MeasureService:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill all children."""
        self._device.close()
        with self._lock:
            if self._compilers is not None:
                self._compilers.stop()
                self._compilers.join()
                self._compilers = None
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None

    # ---- what is measured on ----

    @property
    def facts(self) -> tuple[Target, Toolchain]:
        """Target and toolchain, read off the device once. Raises DeviceError where it does not open."""
        if self._facts is None:
            try:
                self._facts = self._detecting.result()
            except DeviceError:
                raise
            except FutureTimeout:
                raise DeviceError(f"{self.dev} did not open within {DETECT_TIMEOUT_S:.0f} s") from None
            except Exception as error:
                raise DeviceError(f"{self.dev} cannot be used: {_first_line(error)}") from error
        return self._facts

    @property
    def target(self) -> Target:
        return self.facts[0]

    @property
    def toolchain(self) -> Toolchain:
        return self.facts[1]

    @property
    def children_replaced(self) -> int:
        return self._device.replaced

    # ---- compiling ----

    def compile(self, region: Region, schedule: Schedule, variables: tuple[tuple[str, int], ...] = ()) -> Future[Any]:
        """Compile in the pool: a future of CompileOutcome."""
        with self._lock:
            if self._compilers is None:
                from pebble import ProcessPool

                self._compilers = ProcessPool(
                    max_workers=self.compile_workers, initializer=child.start, initargs=self._initargs,
                    context=multiprocessing.get_context("spawn"),
                )  # fmt: skip
            self.compilations += 1
            job = CompileJob(region, schedule, self.target, variables)
            future: Future[Any] = self._compilers.schedule(child.compile_job, args=(job,), timeout=COMPILE_TIMEOUT_S)
        return future

    def compiled(self, region: Region, schedule: Schedule, variables: tuple[tuple[str, int], ...] = ()) -> Future[Any]:
        """A future of CompileOutcome; what this service compiled before is not compiled again."""
        kept = self._kept.get((region.id, variables, schedule))
        if kept is None:
            return self.compile(region, schedule, variables)
        future: Future[CompileOutcome] = Future()
        future.set_result(kept)
        return future

    # ---- measuring ----

    def remember(self, row: Measurement) -> None:
        """Take a measurement of an earlier run as made: its binary is not timed again."""
        if row.binary_hash:
            future: Future[Measurement] = Future()
            future.set_result(row)
            key = (row.region_id, row.variables, row.cache_state, row.early_stop, row.binary_hash)
            self._by_binary.setdefault(key, future)

    def measure(self, requests: Sequence[Request]) -> list[Future[Measurement]]:
        """Compile and time. A failure is a Measurement with a status; the futures themselves do not raise.

        A schedule whose binary was timed before in this service shares that timing and costs none.
        """
        futures: list[Future[Measurement]] = [Future() for _ in requests]
        ready: list[tuple[Request, CompileOutcome, Future[Measurement]]] = []
        left = len(requests)

        def compiled(request: Request, future: Future[Measurement], done: Future[Any]) -> None:
            nonlocal left
            outcome = self._compile_result(request, done, future)
            with self._lock:
                left -= 1
                if outcome is not None:
                    ready.append((request, outcome, future))
                if self.target.device != "CPU":
                    now, ready[:] = ready[:], []
                else:  # samples are taken only when no compiler of the batch runs any more
                    now = ready[:] if left == 0 else []
            for item in now:
                self._time(*item)

        for request, future in zip(requests, futures, strict=True):
            compiling = self.compile(request.region, request.schedule, request.variables)
            compiling.add_done_callback(lambda done, r=request, f=future: compiled(r, f, done))
        return futures

    def _compile_result(
        self, request: Request, done: Future[Any], future: Future[Measurement]
    ) -> CompileOutcome | None:
        error = CancelledError() if done.cancelled() else done.exception()
        if error is None:
            outcome: CompileOutcome = done.result()
            self._kept[request.region.id, request.variables, request.schedule] = outcome
            return outcome
        status = Status.COMPILE_ERROR
        if isinstance(error, FutureTimeout):
            status = Status.COMPILE_TIMEOUT
        elif _is_expired(error):
            status = Status.WORKER_DIED
        elif isinstance(error, ScheduleError) and "micro-operations" in str(error) or "shared" in str(error):
            status = Status.RESOURCE
        self._resolve(future, self._measurement(request, status, reason=_first_line(error)))
        return None

    def _time(self, request: Request, outcome: CompileOutcome, future: Future[Measurement]) -> None:
        key = (
            request.region.id,
            request.variables,
            request.cache_state,
            request.early_stop,
            outcome.compiled.binary_hash,
        )
        with self._lock:
            earlier = self._by_binary.get(key)
            if earlier is None:
                self._by_binary[key] = future
                self.binaries_timed += 1
        if earlier is not None:
            earlier.add_done_callback(
                lambda done: self._resolve(
                    future,
                    replace(
                        done.result(), schedule=request.schedule, sampler=request.sampler, compile_s=outcome.compile_s
                    ),
                )
            )
            return
        job = TimeJob(
            request.region, outcome.compiled, self.target, request.variables, samples=request.samples,
            cache_state=request.cache_state, stop_above_s=request.stop_above_s,
        )  # fmt: skip
        timing = self._device.submit(child.time_job, job, timeout_s=TIMING_TIMEOUT_S)
        timing.add_done_callback(lambda done: self._timed(request, outcome, future, done))

    def _timed(self, request: Request, outcome: CompileOutcome, future: Future[Measurement], done: Future[Any]) -> None:
        compiled = outcome.compiled
        known = {
            "binary_hash": compiled.binary_hash,
            "compile_s": outcome.compile_s,
            "launch": (compiled.global_size, compiled.local_size),
        }
        error = CancelledError() if done.cancelled() else done.exception()
        if error is not None:
            status = (
                Status.TIMEOUT if isinstance(error, FutureTimeout)
                else Status.WORKER_DIED if _is_expired(error)
                else Status.RESOURCE if isinstance(error, MemoryError) or "out of memory" in str(error).lower()
                else Status.LAUNCH_ERROR
            )  # fmt: skip
            self._resolve(future, self._measurement(request, status, reason=_first_line(error), **known))
            return
        timed: TimeOutcome = done.result()
        status = Status.WRONG if timed.wrong else Status.OK
        self._resolve(
            future,
            self._measurement(
                request, status, reason=timed.wrong, samples_s=timed.samples_s, input_recipe=timed.input_recipe,
                checked=timed.checked, clocks=timed.clocks, **known,
            ),
        )  # fmt: skip

    def _measurement(self, request: Request, status: Status, **fields: Any) -> Measurement:
        return Measurement(
            region_id=request.region.id, schedule=request.schedule, target=self.target.fingerprint,
            toolchain=self.toolchain.fingerprint, protocol=PROTOCOL, status=status, cache_state=request.cache_state,
            variables=request.variables, early_stop=request.early_stop, sampler=request.sampler, run_id=self.run_id,
            **fields,
        )  # fmt: skip

    def _resolve(self, future: Future[Measurement], measurement: Measurement) -> None:
        if measurement.status != Status.OK:
            log.debug("%s %s: %s", measurement.status, measurement.schedule, measurement.reason)
        self.on_measurement(measurement)
        future.set_result(measurement)

    # ---- finalists and baselines ----

    def fresh_child(self) -> None:
        """Let the next device job start in a new process: finalists are judged where no search ran before."""
        self._device.submit_here(self._device.replace_child)

    def duel(self, job: DuelJob, *, timeout_s: float) -> Future[DuelOutcome]:
        """Verify and re-time, interleaved with the baseline. The future raises what went wrong."""
        return self._device.submit(child.duel_job, job, timeout_s=timeout_s)

    def tiny_beam(self, job: TinyBeamJob, *, timeout_s: float) -> Future[TinyBeamOutcome]:
        """tinygrad's own BEAM, in its turn on the device."""
        from kcg.measure import tiny_beam

        return self._device.submit_here(lambda: tiny_beam.run(job, timeout_s=timeout_s))


def _is_expired(error: BaseException) -> bool:
    from pebble import ProcessExpired

    return isinstance(error, ProcessExpired)


def _first_line(error: BaseException) -> str:
    from kcg.measure.target import first_line

    return first_line(error)
