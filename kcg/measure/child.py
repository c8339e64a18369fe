"""What runs inside a child process: compiling, timing, verifying. Module-level functions: a pool calls them by name.

A child keeps the workbench of the last kernel, so that timing its next schedule costs no new inputs.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kcg.errors import KcgError
from kcg.measure.jobs import (
    CompileJob,
    CompileOutcome,
    DuelJob,
    DuelOutcome,
    TimeJob,
    TimeOutcome,
)
from kcg.measure.protocol import MIN_SAMPLES, samples_for
from kcg.types import CacheState, Region, Target, Toolchain, Verification

PR_SET_PDEATHSIG = 1
ORPHAN_POLL_S = 0.5
COMPILER_MEMORY_BYTES = 8 << 30
"""What a compiling child may map. A compiler that wants more gets a MemoryError, not the machine's last byte."""

_benches: dict[tuple[str, str], Any] = {}
_flushers: dict[str, Any] = {}


def start(dev: str, parent_pid: int, cache_db: str) -> None:
    """Initialise a child: dies with its parent, leaves Ctrl-C to it, never touches the user's tinygrad cache."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a handler in Python would not run while a kernel does
    _die_first()
    if hasattr(ctypes.CDLL(None), "prctl"):
        # the signal comes when the *thread* that started this child ends: the device's own, which outlives it
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent_pid:  # the parent died before prctl was called
            os._exit(1)
    else:
        _watch_parent(parent_pid, lambda: os._exit(1))
    _settings(dev, cache_db)


def start_compiler(dev: str, parent_pid: int, cache_db: str) -> None:
    """Initialise a compiling child: as `start`, with limited memory, and takes the compilers it started with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _die_first()
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)  # a group of its own: this process and what it starts, e.g. clang
        signal.signal(signal.SIGTERM, lambda *_: _kill_group())
        _watch_parent(parent_pid, _kill_group)
    _settings(dev, cache_db)
    import kcg.kernel.compiler  # noqa: F401  # seconds that are not the first kernel's

    with contextlib.suppress(ImportError, OSError, ValueError):  # no such limit on this system
        import resource

        # what is mapped by now counts extra: libraries reserve gigabytes that they never touch, more with more cores
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + COMPILER_MEMORY_BYTES
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(hard, limit), hard))


def _settings(dev: str, cache_db: str) -> None:
    os.environ["CACHEDB"] = cache_db
    os.environ.pop("BEAM", None)
    os.environ["DEBUG"] = "0"
    from kcg.compat.device import prepare

    prepare(dev)


def _die_first() -> None:
    """Where memory runs out, Linux is to kill this child and not its parent."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _kill_group() -> None:
    os.killpg(0, signal.SIGKILL)


def _watch_parent(parent_pid: int, orphaned: Callable[[], None]) -> None:
    def watch() -> None:
        while os.getppid() == parent_pid:
            time.sleep(ORPHAN_POLL_S)
        orphaned()

    threading.Thread(target=watch, name="kcg-orphan", daemon=True).start()


def call(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Run a job. Whatever it raises becomes an error that any process can unpickle: one that cannot breaks the pool."""
    from kcg.measure.target import first_line

    try:
        return function(*args)
    except BaseException as error:
        line = first_line(error)
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
            raise MemoryError("out of memory" if line in ("", "MemoryError") else line) from None
        if isinstance(error, KcgError) and type(error).__init__ is Exception.__init__:
            raise type(error)(line) from None
        raise RuntimeError(line if line == type(error).__name__ else f"{type(error).__name__}: {line}") from None


def open_job(dev: str) -> None:
    """Open the device, so that no job pays for it."""
    from kcg.compat.tiny import Device
    from kcg.errors import DeviceError
    from kcg.measure.target import first_line

    try:
        Device[dev.split(":")[0]]
    except Exception as error:  # tinygrad raises many kinds here; each means that the device is unusable
        raise DeviceError(f"{dev} does not open: {first_line(error)}") from error
    import kcg.measure.verify  # noqa: F401


def detect_job(dev: str) -> tuple[Target, Toolchain]:
    """Open the device and describe it. The device library and the compiler are loaded on the way."""
    from kcg.kernel.actions import ACTION_SPACE_VERSION
    from kcg.measure.target import detect

    return detect(dev, ACTION_SPACE_VERSION)


def compile_job(job: CompileJob) -> CompileOutcome:
    from kcg.kernel.compiler import compile_schedule

    begin = time.perf_counter()
    compiled = compile_schedule(job.region, job.schedule, job.target, variables=job.variables)
    return CompileOutcome(compiled, time.perf_counter() - begin)


def bench_for(region: Region, target: Target) -> Any:
    """The workbench of a region; only the last one is kept, so that memory is that of one kernel."""
    key = (region.id, target.fingerprint)
    if key not in _benches:
        from kcg.kernel.codec import ast_of
        from kcg.measure.verify import CheckedBench
        from kcg.measure.workbench import free_cached_memory

        _benches.clear()
        free_cached_memory(target)
        _benches[key] = CheckedBench(ast_of(region.kernel), target)
    return _benches[key]


def _flusher(target: Target) -> Any:
    if target.fingerprint not in _flushers:
        from kcg.measure.workbench import CacheFlusher

        _flushers[target.fingerprint] = CacheFlusher(target)
    return _flushers[target.fingerprint]


def time_job(job: TimeJob) -> TimeOutcome:
    """Check one seed, then time. The check's first launch is the warm-up."""
    bench = bench_for(job.region, job.target)
    recipe = bench.choose_recipe(job.variables)
    launch = bench.launcher(job.compiled)
    checked = job.check_seed is not None
    if job.check_seed is not None:
        verdict = bench.check(launch, job.variables, seeds=(job.check_seed,), quick=bench.is_large)
        if not verdict.passed:
            return TimeOutcome((), recipe, wrong=verdict.reason, checked=True, tainted=bench.tainted)
    else:
        bench.fill(0, recipe)
        launch()
    flush = _flusher(job.target).flush if job.cache_state == CacheState.COLD else None
    samples: list[float] = []
    wanted = job.samples or MIN_SAMPLES
    while len(samples) < wanted:
        if flush is not None:
            flush()
        samples.append(launch())
        if len(samples) == 1:
            if job.samples is None:
                wanted = samples_for(samples[0])
            if job.stop_above_s is not None and samples[0] > job.stop_above_s:
                break
    return TimeOutcome(tuple(samples), f"{recipe}:seed={bench.seed}", checked=checked)


def duel_job(job: DuelJob) -> DuelOutcome:
    """Verify both, then time them in turns: baseline, finalist, baseline, … so that a drift hits both alike."""
    bench = bench_for(job.region, job.target)
    recipe = bench.choose_recipe(job.variables)
    sides = [job.baseline] + ([job.finalist] if job.finalist is not None else [])
    launches = [bench.launcher(c) for c in sides]
    verdicts: list[Verification] = bench.check_all(launches, job.variables, seeds=job.seeds)
    bench.fill(0, recipe)
    flush = _flusher(job.target).flush
    cold: list[list[float]] = [[] for _ in sides]
    warm: list[list[float]] = [[] for _ in sides]
    wanted = job.samples or samples_for(max(launch() for launch in launches))
    for _ in range(wanted):
        for i, launch in enumerate(launches):
            flush()
            cold[i].append(launch())
    for i, launch in enumerate(launches):
        launch()
        warm[i].extend(launch() for _ in range(min(wanted, MIN_SAMPLES)))
    return DuelOutcome(
        baseline_cold_s=tuple(cold[0]),
        baseline_warm_s=tuple(warm[0]),
        baseline_verification=verdicts[0],
        finalist_cold_s=tuple(cold[1]) if len(sides) > 1 else (),
        finalist_warm_s=tuple(warm[1]) if len(sides) > 1 else (),
        finalist_verification=verdicts[1] if len(sides) > 1 else None,
        tainted=bench.tainted,
    )


def ping() -> int:
    """The child's process id; the cheapest proof that it runs."""
    return os.getpid()
