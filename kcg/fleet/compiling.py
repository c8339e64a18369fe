"""What a host does that has no device to measure on: it compiles schedules for measuring hosts with its toolchain.

A binary is known by the hash of all that it is launched with. A measuring host gets each once, and compares the hash.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from functools import lru_cache
from pathlib import Path

from kcg.errors import DataError, DeviceError, KcgError
from kcg.fleet.binaries import BinaryStore
from kcg.fleet.payload import FAILURES, Binary, CompilerFacts, CompileTask, Made, MeasureJob
from kcg.fleet.trust import versions
from kcg.measure import child
from kcg.measure.device_info import toolchain_for, usable_cores
from kcg.measure.jobs import CompileJob, CompileOutcome
from kcg.measure.pools import ChildDied, CompilePool, ServiceClosed
from kcg.types import Schedule, Target, Toolchain

LONGEST_TEXT = 4000  # characters of what a compiler says that failed

ERRORS: Mapping[str, type[BaseException]] = dict(
    zip(FAILURES, (TimeoutError, ChildDied, MemoryError, RuntimeError), strict=True)
)


class Compilers:
    """The compiling children of a host without a device."""

    def __init__(self, cores: int | None) -> None:
        self._cores = cores or usable_cores()
        self._temporary = tempfile.TemporaryDirectory(prefix="kcg-")
        self._pools: dict[str, CompilePool] = {}  # by what `DEV=` selects a target
        self._lock = threading.Lock()
        self.binaries, self.compiled = BinaryStore(), 0
        self.facts = CompilerFacts(versions(), self._cores)

    def close(self) -> None:
        """Kill the children."""
        for pool in self._pools.values():
            pool.close()
        self._temporary.cleanup()

    def compile(self, task: CompileTask) -> tuple[Made, ...]:
        """What becomes of each schedule. Raises DataError where this host has not the toolchain that is asked for."""
        if why := _why_not(task.target, task.toolchain):
            raise DataError(why)
        pool = self._pool(task.target.tinygrad_device)
        first, *others = task.bindings
        asked = [
            pool.submit(
                child.compile_job,
                CompileJob(task.region, schedule, task.target, first, tuple(others)),
                timeout_s=task.timeout_s,
            )
            for schedule in task.schedules
        ]
        made = tuple(self._made(future) for future in asked)
        with self._lock:
            self.compiled += len(made)
        return made

    def _pool(self, dev: str) -> CompilePool:
        from kcg.compat.device import prepare

        with self._lock:
            if dev not in self._pools:
                prepare(dev)
                cache = str(Path(self._temporary.name) / "tinygrad-cache.db")
                self._pools[dev] = CompilePool((dev, os.getpid(), cache, ""), workers=self._cores, before=lambda: None)
            return self._pools[dev]

    def _made(self, future: Future[CompileOutcome]) -> Made:
        error = future.exception()
        if isinstance(error, DeviceError | ServiceClosed):  # says nothing of the schedule
            raise KcgError(str(error))
        if error is not None:
            kind = next(name for name, one in ERRORS.items() if isinstance(error, one) or one is RuntimeError)
            return Made(failure=kind, reason=(str(error) or type(error).__name__)[:LONGEST_TEXT])
        outcome = future.result()
        return Made(self.binaries.keep(Binary.of(outcome.compiled)), outcome.compile_s)


@lru_cache(64)
def _why_not(target: Target, toolchain: Toolchain) -> str:
    """In what this host would compile other binaries for a target; empty where it makes the same."""
    from kcg.compat.standalone import cpu_model

    mine = toolchain_for(target, toolchain.driver, toolchain.action_space)
    for name in ("tinygrad", "compiler", "triton", "assembler", "generator"):
        theirs, own = getattr(toolchain, name), getattr(mine, name)
        if theirs != own:
            return f"its {name} is {own or 'none'}, that of the measuring hosts {theirs or 'none'}"
    if target.device == "CPU" and cpu_model() != target.model:  # code is compiled for the machine's own instructions
        return f"it is {cpu_model()}, the measuring hosts {target.model}"
    return ""


def outcomes(job: MeasureJob, binaries: BinaryStore) -> dict[Schedule, Future[CompileOutcome]]:
    """What compiling came to elsewhere, as it would have ended here. A schedule of which the binary is not here is left
    out: it is compiled again."""
    for sent in job.binaries:
        binaries.keep(sent)
    found: dict[Schedule, Future[CompileOutcome]] = {}
    if not job.made:
        return found
    schedules = dict.fromkeys(request.schedule for request in job.requests)
    for schedule, made in zip(schedules, job.made, strict=True):
        future: Future[CompileOutcome] = Future()
        if made.failure:
            future.set_exception(ERRORS[made.failure](made.reason))
        elif (binary := binaries.get(made.binary)) is not None:
            future.set_result(CompileOutcome(binary.executable, made.compile_s))
        else:
            continue
        found[schedule] = future
    return found
