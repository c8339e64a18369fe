"""What a run's jobs took and gave, as a value: so that another order of them can be replayed without a device.

A run is of a journal with jobs and its RESULT.json (`recorded`), or made up (`evaluation.search.made_up_runs`). What a
recorded run did not do it does not know: a program that was timed and never judged is taken to take as long to judge as
the others of its region, else as the median of the run, and to pass.
"""

from __future__ import annotations

import functools
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import median

from evaluation.search.loop import Solve, Solved
from kcg.dataset.journal import Journal
from kcg.errors import DataError
from kcg.files import write_whole
from kcg.measure.job_rows import HASH_DIGITS
from kcg.provenance import provenance
from kcg.report.result import read_result
from kcg.types import Job, JobKind, JobOutcome, Measurement, RegionResult, ScheduleKind, Status

FAILED = (JobOutcome.WRONG, JobOutcome.UNJUDGED, JobOutcome.NOISY, JobOutcome.FAILED, JobOutcome.LATE)
JUDGING = (JobKind.PAIRED, JobKind.JOINT, JobKind.NAN)


@dataclass(frozen=True)
class Program:
    """What one program's jobs take and give, in seconds."""

    seconds: float  # of one call, as it was timed; where it never ran what tinygrad's own takes
    compile_s: float
    time_s: float
    judge_s: float
    stress_s: float = 0.0  # 0: it needs none
    fails: str = ""  # in which of its jobs: compile, time, judge, stress


@dataclass(frozen=True)
class Part:
    """A kernel, or a region of several, and its programs in the order in which the search came to them."""

    id: str
    calls: float  # in one execution of the workload; of a region wherever it may be put in
    reference_s: float  # of one core
    programs: tuple[Program, ...]
    own_s: float = 0.0  # of a kernel: one call as tinygrad schedules it
    timing_s: float = 0.0  # of a kernel: timing that
    takes: tuple[tuple[str, float], ...] = ()  # of a region: calls of kernels in whose place one execution runs

    @property
    def is_kernel(self) -> bool:
        return not self.takes


@dataclass(frozen=True)
class Run:
    """One run."""

    name: str
    made_up: bool  # else recorded
    cores: int
    quiet: bool  # the device is a CPU
    begin_s: float  # when its workload was captured, from the command's start
    parts: tuple[Part, ...]
    about: str = ""  # the command and what it ran on, or what it was made up of

    @property
    def own(self) -> dict[str, float]:
        """Seconds of a call of each kernel as tinygrad schedules it."""
        return {part.id: part.own_s for part in self.parts if part.is_kernel}

    @property
    def programs(self) -> int:
        return sum(len(part.programs) for part in self.parts)


def write_run(run: Run, path: Path) -> None:
    """Keep a run as JSON."""
    write_whole(path, json.dumps({**asdict(run), **provenance()}, separators=(",", ":")) + "\n")


def read_run(path: Path) -> Run:
    """The inverse of `write_run`. Raises DataError where the file is none."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        parts = tuple(
            Part(
                **{
                    **part,
                    "programs": tuple(Program(**program) for program in part["programs"]),
                    "takes": tuple((str(kernel), float(calls)) for kernel, calls in part["takes"]),
                }
            )
            for part in stored["parts"]
        )
        known = {field.name: stored[field.name] for field in fields(Run)}
        return Run(**{**known, "parts": parts})
    except (OSError, ValueError, TypeError, LookupError) as error:
        raise DataError(f"{path} is no recorded run: {error}") from error


# ---- the best plan


def solver(run: Run) -> Solve:
    """The best plan of a run's parts, exactly: regions that leave each other the calls that they run."""
    kernels = {part.id: part.calls for part in run.parts if part.is_kernel}
    regions = {part.id: part for part in run.parts if not part.is_kernel}

    @functools.lru_cache(maxsize=1 << 16)
    def solved(items: frozenset[tuple[str, float]]) -> Solved:
        seconds = dict(items)
        saved = {
            name: part.calls * (sum(n * seconds[kernel] for kernel, n in part.takes) - seconds[name])
            for name, part in regions.items()
            if name in seconds
        }
        chosen, saving_s = _packed([regions[name] for name in saved if saved[name] > 0.0], saved, kernels)
        left = dict(kernels)
        for name in chosen:
            left.update({kernel: left[kernel] - calls for kernel, calls in taken_calls(regions[name]).items()})
        alone = {kernel for kernel, calls in left.items() if calls > LEFT}
        total_s = sum(kernels[kernel] * seconds[kernel] for kernel in kernels)
        return Solved(total_s - saving_s, frozenset(alone | chosen))

    return lambda seconds: solved(frozenset(seconds.items()))


LEFT = 1e-6  # fewer calls are none


def taken_calls(part: Part) -> dict[str, float]:
    """The calls of kernels in whose place a region runs, in one execution of the workload."""
    return {kernel: calls * part.calls for kernel, calls in part.takes}


def _packed(
    parts: Sequence[Part], saved: Mapping[str, float], kernels: Mapping[str, float]
) -> tuple[frozenset[str], float]:
    """Which of these save most and leave each other their calls, and how much: branch and bound, in each group of parts
    that share kernels."""
    chosen: frozenset[str] = frozenset()
    for group in groups(parts):
        order = sorted(group, key=lambda part: -saved[part.id])
        chosen |= _best_of(order, saved, kernels, frozenset(), frozenset())
    return chosen, sum(saved[name] for name in chosen)


def _best_of(
    order: Sequence[Part],
    saved: Mapping[str, float],
    kernels: Mapping[str, float],
    names: frozenset[str],
    best: frozenset[str],
) -> frozenset[str]:
    """The best of `best` and of what these parts, what saves most first, add to those that are chosen."""

    def gain_s(some: Iterable[str]) -> float:
        return sum(saved[name] for name in some)

    if gain_s(names) > gain_s(best):
        best = names
    if not order or gain_s(names) + gain_s(part.id for part in order) <= gain_s(best):
        return best
    part, *rest = order
    left = {kernel: kernels[kernel] - calls for kernel, calls in taken_calls(part).items()}
    if all(calls >= -LEFT for calls in left.values()):
        best = _best_of(rest, saved, {**kernels, **left}, names | {part.id}, best)
    return _best_of(rest, saved, kernels, names, best)


def groups(parts: Iterable[Part]) -> list[list[Part]]:
    """Parts that share kernels, directly or by others."""
    found: list[tuple[set[str], list[Part]]] = []
    for part in parts:
        names, members = {kernel for kernel, _ in part.takes} or {part.id}, [part]
        for other in [group for group in found if group[0] & names]:
            found.remove(other)
            names, members = names | other[0], [*other[1], *members]
        found.append((names, members))
    return [members for _, members in found]


# ---- from a journal


def recorded(folder: Path, *, name: str = "") -> Run:
    """What a run of `kcg optimize` left in a folder, as far as it did it: `RESULT.json` and `journal.sqlite`.

    Raises DataError where the journal has no jobs, as one of an older kcg.
    """
    result = read_result(folder / "RESULT.json")
    with Journal.open(folder / "journal.sqlite", read_only=True) as journal:
        jobs, runs = journal.jobs(), journal.runs()
        rows = list(journal.measurements(result.protocol))
    last = next((job.run_id for job in reversed(jobs) if job.kind == JobKind.RUN), "")
    jobs = [job for job in jobs if job.run_id == last]
    if not last:
        raise DataError(f"{folder} has no run that recorded its jobs and ended: make it again with this kcg")
    cores = runs[last].description.get("cores")
    captured = [job.start_s + job.seconds for job in jobs if job.kind == JobKind.CAPTURE]
    return Run(
        name=name or f"{result.workload}_{result.preset}".strip("_"),
        made_up=False,
        cores=cores if isinstance(cores, int) and cores > 0 else 1,
        quiet=result.target.device == "CPU",
        begin_s=max(captured, default=0.0),
        parts=_Recorded(jobs, rows).parts(result.with_inside),
        about=f"{_anywhere(result.command)}; {result.target.model}, revision {result.revision[:8]}",
    )


def _anywhere(command: str) -> str:
    """A command without the folders of one machine."""
    return " ".join(word.rpartition("/")[2] if word.startswith("/") else word for word in command.split(" "))


class _Recorded:
    """The jobs of one run, by region."""

    def __init__(self, jobs: Sequence[Job], rows: Sequence[Measurement]) -> None:
        self._of: defaultdict[str, list[Job]] = defaultdict(list)
        for job in sorted(jobs, key=lambda job: job.start_s):
            if job.subject:
                self._of[job.subject].append(job)
        self._rows = {(row.region_id, row.binary_hash[:HASH_DIGITS]): row for row in rows if row.binary_hash}
        parts = (row for row in rows if row.schedule.kind == ScheduleKind.PARTS)
        self._parts_of = {row.binary_hash[:HASH_DIGITS] for row in parts}  # kernels of a region, one after the other
        judged = [job.seconds for job in jobs if job.kind in JUDGING[:2] and job.seconds]
        self._judge_s = median(judged) if judged else 1.0
        references = [job.seconds for job in jobs if job.kind == JobKind.REFERENCE and job.seconds]
        self._reference_s = median(references) if references else 0.0  # then judging has it

    def parts(self, rows: Sequence[RegionResult]) -> tuple[Part, ...]:
        """Of every kernel, and of the regions that the result has: of others it does not say which kernels they are
        of."""
        of_regions = [row for row in rows if len(row.region.kernels) > 1]
        inside: Counter[str] = Counter()
        for row in of_regions:
            inside.update({kernel.id: row.calls * n for kernel, n in Counter(row.region.kernels).items()})
        kernels = {row.region.id: row for row in rows if len(row.region.kernels) == 1}
        found = [self._part(row, row.calls + inside[row.region.id]) for row in kernels.values()]
        known = [part for part in found if part.own_s]
        ids = {part.id for part in known}
        regions = [self._part(row, row.calls) for row in of_regions]
        return (*known, *(part for part in regions if all(kernel in ids for kernel, _ in part.takes)))

    def _part(self, row: RegionResult, calls: float) -> Part:
        """A kernel with all of its calls, or a region."""
        jobs, several = self._of[row.region.id], len(row.region.kernels) > 1
        own = row.baseline.binary_hash[:HASH_DIGITS]
        timed: dict[str, Job] = {}
        for job in jobs:
            if job.kind == JobKind.TIME and job.binaries:
                timed.setdefault(job.binaries[0], job)
        judging_s = [job.seconds for job in jobs if job.kind in JUDGING[:2] and job.seconds]
        judge_s = median(judging_s) if judging_s else self._judge_s
        reference_s = sum(job.seconds for job in jobs if job.kind == JobKind.REFERENCE) or self._reference_s
        timing_s = timed[own].seconds if own in timed else 0.0
        one_s = row.baseline.cold_s
        others = [name for name in timed if name != own and name not in self._parts_of]
        programs = tuple(self._program(row.region.id, name, timed[name], judge_s, one_s) for name in others)
        if not several:
            return Part(row.region.id[:HASH_DIGITS], calls, reference_s, programs, one_s, timing_s)
        takes = [(kernel.id[:HASH_DIGITS], float(n)) for kernel, n in Counter(row.region.kernels).items()]
        return Part(row.region.id[:HASH_DIGITS], calls, reference_s, programs, takes=tuple(takes))

    def _program(self, region_id: str, binary: str, job: Job, judge_s: float, own_s: float) -> Program:
        jobs, row = self._of[region_id], self._rows.get((region_id, binary))
        of_it = [one for one in jobs if binary in one.binaries]
        compiling_s = [one.seconds for one in of_it if one.kind == JobKind.COMPILE]
        judging = [one for one in of_it if one.kind in JUDGING]
        stress = [one for one in of_it if one.kind == JobKind.STRESS]
        runs = row is not None and row.status == Status.OK and job.outcome not in FAILED
        fails = "" if runs else "time"
        fails = fails or ("judge" if any(one.outcome in FAILED for one in judging) else "")
        fails = fails or ("stress" if any(one.outcome in FAILED for one in stress) else "")
        return Program(
            seconds=row.median_s if row is not None and row.samples_s else own_s,
            compile_s=compiling_s[0] if compiling_s else 0.0,
            time_s=job.seconds,
            judge_s=judge_s,
            stress_s=sum(one.seconds for one in stress),
            fails=fails,
        )
