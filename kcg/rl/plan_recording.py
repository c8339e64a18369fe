"""A small program recorded exhaustively: what each job of optimising it takes and gives, in whatever order.

Journals of runs cannot answer for what was not done. So of each part of a program, a kernel or a region of several,
some candidates were all compiled, timed and judged, and the whole step was timed by several plans:
`evaluation.plans.record` makes such recordings on a GPU, `kcg/Plan-v0` (`kcg.rl.plan_env`) replays them without one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kcg.errors import DataError, ResultError
from kcg.files import write_whole
from kcg.nouns import noun_from_json, noun_to_json

COMPILING, TIMING, JUDGING, STRESSING = "compile", "time", "judge", "stress"
JOBS: Final = (COMPILING, TIMING, JUDGING, STRESSING)
"""What is done with a candidate, in order."""


@dataclass(frozen=True)
class Candidate:
    """One program of a part. Seconds of one call, cold."""

    schedule: str  # its kind, and its body as canonical JSON
    expected_s: float  # by the analytic cost, before anything was measured
    job_s: tuple[float, ...]  # what each of `JOBS` takes; compiling on a core, the others on the device; 0: not needed
    timed_s: float | None = None  # as a search times it; None where it did not come to that
    judged_s: float | None = None  # re-timed in turns with the part's own schedule, of the part's fastest
    fails: str = ""  # in which of `JOBS`; empty where it passes all


@dataclass(frozen=True)
class Part:
    """A kernel, or a region of several, with its candidates in the order in which a search would come to them."""

    id: str
    kernels: tuple[str, ...]  # by id, in order; of a kernel itself
    form: str  # which rule proposed the region; empty of a kernel
    own_s: float  # one call as tinygrad schedules its kernels, as a search times it
    judged_own_s: float  # the same as it was timed again, in turns with the candidates; `own_s` where there are none
    own_job_s: float  # what timing that took on the device
    places: tuple[tuple[int, ...], ...]  # in which calls of the program it may run, by number
    candidates: tuple[Candidate, ...] = ()

    @property
    def is_kernel(self) -> bool:
        return not self.form


@dataclass(frozen=True)
class TimedPlan:
    """A plan whose whole step was timed, by its candidates. What none of them takes runs as tinygrad schedules it."""

    chosen: tuple[tuple[str, int], ...]  # id of a part, and the number of its candidate
    step_s: float
    passed: bool | None  # the whole's outputs agreed; None: the whole cannot tell


@dataclass(frozen=True)
class PlanRecording:
    """A program. Its calls are numbered; calls of blocks that repeat stand for as many as there are."""

    workload: str
    preset: str
    calls: tuple[tuple[str, float], ...]  # the kernel of each call, by id, and how many of the whole program's it is
    parts: tuple[Part, ...]
    plans: tuple[TimedPlan, ...]
    own_step_s: float  # the whole step as tinygrad schedules it, timed in turns with the plans
    plan_job_s: float  # what comparing one plan's whole step takes, after the first
    first_plan_job_s: float  # what the first one takes: a process, weights, capturing
    begin_s: float  # from the command's start until the first job may begin
    cores: int  # that compile
    device: str  # the model
    about: str = ""  # the command
    revision: str = ""
    dirty: bool | None = None  # whether the code differed from that revision; None where that is not known

    @property
    def name(self) -> str:
        return f"{self.workload}/{self.preset}"

    @property
    def family(self) -> str:
        return self.workload


def write_recording(recording: PlanRecording, path: Path) -> None:
    """Raises OSError."""
    write_whole(path, (noun_to_json(recording) + "\n").encode())


def read_recording(path: Path) -> PlanRecording:
    """Raises DataError where it is none."""
    try:
        return noun_from_json(PlanRecording, path.read_text())
    except (OSError, UnicodeDecodeError, ResultError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"cannot read the recorded program {path}: {reason}") from None
