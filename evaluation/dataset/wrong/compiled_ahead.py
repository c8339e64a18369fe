"""Programs of the raw space, or finalists, compiled where there is no GPU: by another Triton or another assembler, or
so that a GPU need not wait for its compilers.

What is compiled waits in a file (`kcg.dataset.programs`); what does not compile is a line of another one beside it.
Both go on where they were.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from evaluation.dataset.wrong import outcomes
from evaluation.dataset.wrong.outcomes import Results, Row
from evaluation.dataset.wrong.raw_programs import Drawn, Place, Programs
from kcg.campaign.compiling import CompilesOnly
from kcg.compat.assembler import assembler
from kcg.dataset.journal import Chosen
from kcg.dataset.programs import ProgramFile, Waiting
from kcg.errors import DeviceError, UsageError
from kcg.kernel.kinds import made_by
from kcg.kernel.tile.targets import triton_version
from kcg.measure import child
from kcg.measure.device_info import first_line
from kcg.measure.jobs import CompileJob, CompileOutcome
from kcg.measure.pools import ServiceClosed
from kcg.measure.service import status_of
from kcg.types import Status, Target

FAILED: Final = ".failed"
AHEAD: Final = 4  # programs for each compiler that wait for it


def tools() -> dict[str, str]:
    """Which Triton and which assembler compile here."""
    using = assembler()
    return {"triton": triton_version(), "assembler": "" if using is None else using.name}


def failures_beside(path: Path) -> Path:
    """Where the programs are that did not compile."""
    return path.with_name(path.name + FAILED)


class Failed(Exception):
    """It did not compile: `row` says why."""

    def __init__(self, row: Row) -> None:
        super().__init__(row["reason"])
        self.row = row


class Ahead:
    """What was compiled ahead. Use as a context manager."""

    def __init__(self, path: Path) -> None:
        """Raises UsageError where there is none."""
        self._file = ProgramFile.open(path, create=False)
        self._waiting = {(one.region_id, one.variables, one.schedule): one for one in self._file.waiting()}
        about, rows = outcomes.read_results(failures_beside(path))
        self.tools: dict[str, str] = about["tools"]
        self._failed = {row["key"]: row for row in rows}

    def __enter__(self) -> Ahead:
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.close()

    def of(self, place: Place, program: Drawn) -> Future[CompileOutcome] | None:
        """What compiling a program came to, which raises Failed where it did not compile; None where it was not
        compiled."""
        made: Future[CompileOutcome] = Future()
        if (row := self._failed.get(program.key)) is not None:
            made.set_exception(Failed(row))
            return made
        waiting = self._waiting.get((place.region.id, place.variables, program.schedule))
        if waiting is None or not waiting.program:
            return None
        made.set_result(CompileOutcome(self._file.program(waiting.program), waiting.compile_s))
        return made


@dataclass(frozen=True)
class Compilers:
    """How many compile, for how many seconds in all, and how long one program may take."""

    workers: int | None = None  # None: as many as there are cores
    budget_s: float | None = None
    limit_s: float = 30.0


def compile_all(programs: Programs, target: Target, path: Path, by: Compilers, say: Callable[[str], None]) -> int:
    """Compile what is not in the file yet; how many are left when the time is over. Raises UsageError where nothing
    compiles for the target here, or the file is of other tools."""
    until = math.inf if by.budget_s is None else time.monotonic() + by.budget_s
    with ExitStack() as stack:
        failed = stack.enter_context(Results(failures_beside(path), {"tools": tools(), "target": target.fingerprint}))
        file = stack.enter_context(ProgramFile.open(path))
        service = stack.enter_context(CompilesOnly(target, compile_workers=by.workers))
        known = {(one.region_id, one.variables, one.schedule) for one in file.waiting()}
        missing = [
            program
            for program in programs.programs
            if program.key not in failed.rows and _key(programs.place_of(program), program) not in known
        ]
        flying: dict[Future[Any], Drawn] = {}
        left = iter(missing)
        done, said = 0, time.monotonic()
        while time.monotonic() < until:
            while len(flying) < AHEAD * service.compile_workers and (program := next(left, None)) is not None:
                place = programs.place_of(program)
                job = CompileJob(place.region, program.schedule, target, place.variables)
                flying[service.beside(child.compile_job, job, timeout_s=by.limit_s)] = program
            if not flying:
                break
            for future in wait(flying, timeout=1.0, return_when=FIRST_COMPLETED).done:
                program, done = flying.pop(future), done + 1
                _keep(service, file, failed, programs.place_of(program), program, future)
            if time.monotonic() > said + 15:
                said = time.monotonic()
                say(f"{done} of {len(missing)} compiled, {len(failed.rows)} in all do not compile")
        return len(missing) - done


def _key(place: Place, program: Drawn) -> tuple[Any, ...]:
    return place.region.id, place.variables, program.schedule


def _keep(
    service: CompilesOnly,
    file: ProgramFile,
    failed: Results,
    place: Place,
    program: Drawn,
    future: Future[CompileOutcome],
) -> None:
    """Keep a program, or why there is none. Raises UsageError where no process compiles any more."""
    if (error := future.exception()) is None:
        outcome = future.result()
        waiting = Waiting(
            place.region.id, place.variables, program.schedule, service.target.fingerprint,
            made_by(service.toolchain, program.schedule), program.drawn, Chosen(), outcome.compile_s, "",
            service.run_id,
        )  # fmt: skip
        file.add(waiting, outcome.compiled)
        return
    if isinstance(error, DeviceError | ServiceClosed):
        raise UsageError(f"nothing compiles any more: {first_line(error)}")
    status = status_of(error, timeout=Status.COMPILE_TIMEOUT, other=Status.COMPILE_ERROR)
    reason = f"{type(error).__name__}: {first_line(error)}"[:300]
    failed.add({"key": program.key, "outcome": outcomes.of_compiler(status), "reason": reason})
