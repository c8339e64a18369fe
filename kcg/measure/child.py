"""What runs inside a child process: compiling, timing, verifying. Module-level functions: a pool calls them by name.

A child keeps the workbench of the last kernel, so that timing its next schedule costs no new inputs.
"""

from __future__ import annotations

import os
import time
from typing import Any

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

_benches: dict[tuple[str, str], Any] = {}
_flushers: dict[str, Any] = {}


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
