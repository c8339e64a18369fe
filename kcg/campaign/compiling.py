"""A campaign in two parts: programs compiled where there is no device, and those programs measured where there is one.

`CompilesOnly` stands in the place of the measuring service: it draws and compiles in children of its own, for a target
that is given by name. What it made waits in a file beside the journal (`kcg.dataset.programs`), a schedule that does
not compile is a row of the journal at once.
"""

from __future__ import annotations

import os
import tempfile
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kcg.dataset.journal import Journal
from kcg.dataset.programs import ProgramFile, Waiting
from kcg.errors import DeviceError, UsageError
from kcg.kernel.kinds import ACTION_SPACE_VERSION, made_by, registered, traits_of
from kcg.measure import child
from kcg.measure.device_info import first_line, toolchain_for, usable_cores
from kcg.measure.jobs import CompileJob, CompileOutcome
from kcg.measure.pools import CompilePool, ServiceClosed
from kcg.measure.protocol import PROTOCOL
from kcg.measure.service import COMPILE_TIMEOUT_S, Request, status_of
from kcg.types import Measurement, Schedule, Status, Target, Toolchain


@dataclass(frozen=True)
class Compiled:
    """What became of a request that is to be measured elsewhere."""

    request: Request
    outcome: CompileOutcome | None  # None: whoever measures it compiles it


class CompilesOnly:
    """See the module; in the place of `kcg.measure.interface.Measures`. Use as a context manager."""

    devices = 1
    device_error: DeviceError | None = None

    def __init__(self, target: Target, *, compile_workers: int | None = None) -> None:
        """Raises UsageError where nothing compiles for the target here."""
        self.target = target
        self.toolchain: Toolchain = toolchain_for(target, "", ACTION_SPACE_VERSION)
        if not self.toolchain.compiler and not self.toolchain.assembler:
            raise UsageError(f"nothing here compiles for {target.model}: kcg doctor says what to install")
        self.run_id = uuid.uuid4().hex
        self.compile_workers = compile_workers or usable_cores()
        self.on_doubt: Callable[[str, float, str], None] = lambda run_id, since_unix_s, why: None
        self.spent_s: dict[str, float] = {"compile": 0.0}
        self._lock = threading.Lock()
        self._temporary = tempfile.TemporaryDirectory(prefix="kcg-")
        cache = str(Path(self._temporary.name) / "tinygrad-cache.db")
        initargs = (self.target.tinygrad_device, os.getpid(), cache, "", registered())
        self._pool = CompilePool(initargs, workers=self.compile_workers, before=lambda: None)

    def __enter__(self) -> CompilesOnly:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill the children."""
        self._pool.close()
        self._temporary.cleanup()

    def run_facts(self, run_id: str) -> Mapping[str, Any]:
        """Nothing beside what is known of this process."""
        return {}

    def settle(self) -> None:
        """Nothing is measured: there is no doubt to wait for."""

    def remember(self, row: Measurement) -> None:
        """Nothing is timed: no timing is shared."""

    def beside(self, function: Callable[..., Any], *args: Any, timeout_s: float) -> Future[Any]:
        """Run a function of a module in one of the compiling children."""
        return self._pool.submit(function, *args, timeout_s=timeout_s)

    def compiles(self, schedule: Schedule) -> bool:
        """Whether a schedule is compiled here: tinygrad's own compiler may be missing."""
        return bool(self.toolchain.assembler if traits_of(schedule).own_assembler else self.toolchain.compiler)

    def measure(
        self,
        requests: Sequence[Request],
        *,
        together: bool = False,
        made: Mapping[Schedule, Future[CompileOutcome]] | None = None,
    ) -> list[Future[Any]]:
        """Futures of `Compiled`, or of the row of what does not compile; they do not raise."""
        return [self._compile(request) for request in requests]

    def _compile(self, request: Request) -> Future[Any]:
        future: Future[Any] = Future()
        if not self.compiles(request.schedule):
            future.set_result(Compiled(request, None))
            return future

        def ended(done: Future[CompileOutcome]) -> None:
            if (error := done.exception()) is not None:
                if isinstance(error, DeviceError | ServiceClosed):  # says nothing of the schedule
                    self.device_error = DeviceError(first_line(error))
                future.set_result(self._failed(request, error))
                return
            with self._lock:
                self.spent_s["compile"] += done.result().compile_s
            future.set_result(Compiled(request, done.result()))

        job = CompileJob(request.region, request.schedule, self.target, request.variables)
        self._pool.submit(child.compile_job, job, timeout_s=COMPILE_TIMEOUT_S).add_done_callback(ended)
        return future

    def _failed(self, request: Request, error: BaseException) -> Measurement:
        return Measurement(
            region_id=request.region.id,
            schedule=request.schedule,
            target=self.target.fingerprint,
            toolchain=made_by(self.toolchain, request.schedule),
            protocol=PROTOCOL,
            status=status_of(error, timeout=Status.COMPILE_TIMEOUT, other=Status.COMPILE_ERROR),
            cache_state=request.cache_state,
            variables=request.variables,
            early_stop=request.early_stop,
            sampler=request.sampler,
            run_id=self.run_id,
            reason=first_line(error),
        )


# ---- what waits, for whoever measures it


class Programs:
    """The schedules that wait to be measured on a target, and their programs."""

    def __init__(self, file: ProgramFile, journal: Journal, target: Target, toolchain: Toolchain) -> None:
        """`target` and `toolchain` are those of who measures. Raises UsageError where all were compiled for another."""
        self._file, self._toolchains = file, journal.toolchains()
        everything, targets = file.waiting(), journal.targets()
        here = {name for name, other in targets.items() if runs_on(other, target)}
        if everything and not (mine := [one for one in everything if one.target in here]):
            other = targets[everything[0].target]
            raise UsageError(
                f"{file.path} has programs for {other.model} ({other.arch}, {other.cores} multiprocessors), none for "
                f"{target.model} ({target.arch}, {target.cores}): compile with another --target"
            )
        self._measuring = toolchain
        self.waiting: dict[tuple[str, Any], list[Waiting]] = {}
        for one in everything and mine:
            self.waiting.setdefault((one.region_id, one.variables), []).append(one)

    def of(self, region_id: str, variables: Any) -> dict[Schedule, Waiting]:
        """Those of a region with these values of its variables."""
        return {one.schedule: one for one in self.waiting.get((region_id, variables), ())}

    def outcome(self, waiting: Waiting) -> CompileOutcome:
        """What compiling a schedule came to."""
        return CompileOutcome(self._file.program(waiting.program), waiting.compile_s)

    def made_here(self, row: Measurement, waiting: Waiting) -> Measurement:
        """The row of a schedule with the toolchain that compiled it, see `toolchain_of`."""
        return replace(row, toolchain=made_by(self.toolchain_of(waiting), row.schedule))

    def toolchain_of(self, waiting: Waiting) -> Toolchain:
        """What compiled a schedule, with the driver that runs it. tinygrad's own compiler is none of a tile program's
        tools: it is that of who measures, so that the row is the same as if all had been done there."""
        made = self._toolchains[waiting.toolchain]
        compiler = self._measuring.compiler if traits_of(waiting.schedule).own_assembler else made.compiler
        return replace(made, driver=self._measuring.driver, compiler=compiler)

    def toolchains(self) -> list[Toolchain]:
        """All that rows may carry."""
        return list(dict.fromkeys(self.toolchain_of(one) for some in self.waiting.values() for one in some))


def are_alike(toolchain: Toolchain, other: Toolchain) -> bool:
    """Whether both compile the same tile programs: a driver compiles nothing, nor does tinygrad's own compiler."""
    return replace(toolchain, driver="", compiler="") == replace(other, driver="", compiler="")


def runs_on(compiled_for: Target, target: Target) -> bool:
    """Whether a program for one target is what would be compiled for the other: tile programs know the architecture and
    how many multiprocessors there are."""
    return all(
        getattr(compiled_for, name) == getattr(target, name) for name in ("device", "arch", "cores", "has_local")
    )
