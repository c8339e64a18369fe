"""Whether an export can be trusted: its files, what its rows refer to, its ASTs, and whether its schedules apply.

Kernels are decoded and schedules applied in processes of their own, since they may come from anywhere; nothing is
compiled or run. A core applies about 400 schedules a second (random walks on Flux `mini`): 100,000 take two to three
minutes on two cores.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from kcg.dataset.columns import SPLIT_COLUMNS, split_values
from kcg.dataset.export import Export, read_export
from kcg.dataset.journal import ROW_ERRORS, Record, identity_of
from kcg.errors import CodecError, DataError, ScheduleError
from kcg.types import CacheState, Kernel, Region, Schedule, ScheduleKind, Status, Target, Workload

FLOAT32 = 2.0**-23  # how near a float32 is to what it stands for
LISTED = 20  # problems of one kind that are listed, the others are counted
SCHEDULES_PER_JOB = 256
JOB_TIMEOUT_S = 120.0  # a job of Flux takes less than one second
ANSWER_TIMEOUT_S = 3 * JOB_TIMEOUT_S  # until the processes themselves are taken for dead
READ_ERRORS = (DataError, OSError, *ROW_ERRORS)

T = TypeVar("T")
Log = Callable[[str, float | None], None]
Problem = tuple[str, str]  # its kind, and one line


@dataclass(frozen=True)
class Report:
    """What was read, and what is wrong with it. Only rows without a problem of their own are counted."""

    rows: int
    kernels: int
    schedules: int  # distinct, each of one region
    binaries: int  # distinct
    skipped_rows: int  # that refer to what is not there or come twice; unreadable ones are among the problems only
    problems: tuple[str, ...]  # one line each, at most `LISTED` of a kind and one that counts the rest

    @property
    def ok(self) -> bool:
        return not self.problems


@dataclass
class _Problems:
    lines: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, kind: str, line: str) -> None:
        """Adds one line, which is left out where its kind has enough."""
        self.counts[kind] += 1
        if self.counts[kind] <= LISTED:
            self.lines.append(" ".join(line.split()))

    def all(self) -> tuple[str, ...]:
        rest = ((kind, n - LISTED) for kind, n in sorted(self.counts.items()) if n > LISTED)
        return (*self.lines, *(f"{kind}: {n:,} more" for kind, n in rest))

    def reading(self, kind: str, read: Callable[[], T]) -> T | None:
        """What `read` gives, or None and a problem."""
        try:
            return read()
        except READ_ERRORS as error:
            self.add(kind, _line_of(error))
            return None


@dataclass
class _Rows:
    """What all good rows together hold."""

    rows: int = 0
    skipped: int = 0
    binaries: set[str] = field(default_factory=set)
    schedules: dict[str, set[Schedule]] = field(default_factory=lambda: defaultdict(set))  # by region
    to_apply: dict[str, dict[str, set[str]]] = field(default_factory=dict)  # region -> target -> bodies of Opts
    of_parts: dict[str, dict[str, set[str]]] = field(default_factory=dict)  # the same of kind `parts`
    fastest: dict[tuple[str, str, CacheState], tuple[float, str]] = field(default_factory=dict)
    """Of each region, target and cache state the least median of a row that is ok, and that row's schedule."""


def verify(folder: Path, *, workers: int = 2, log: Log = lambda line, eta_s: None) -> Report:
    """Reads a whole export again and reports every problem; damaged files are one of them, not an error.

    Checked are the checksums and the schema; that kernels, regions, targets, toolchains and runs have the ids they are
    stored under and that workloads and measurements name only such; that samples are times and no row comes twice; that
    the splits are those of `kcg.dataset.splits`, beside each row too, as are its median and the number of its samples;
    that every AST decodes; that every schedule of kind `opts` applies to its kernel for its target, and every one of
    kind `parts` to its region; that no row is there that `doubts.json` says to be left out; and that none is faster
    than the target can be (`kcg.measure.service.floor_s`).
    `log(line, eta_s)` gets how far it is.
    """
    problems = _Problems()
    export = problems.reading("unreadable", lambda: read_export(folder))
    if export is None:
        return Report(0, 0, 0, 0, 0, problems.all())
    kernels = problems.reading("unreadable", export.kernels)
    regions = problems.reading("unreadable", export.regions) if kernels is not None else None
    workloads = problems.reading("unreadable", export.workloads) if regions is not None else None
    if kernels is not None and workloads is not None:
        _check_splits(export, kernels, workloads, problems)
    targets = problems.reading("unreadable", export.targets)
    known: dict[str, Mapping[str, object] | None] = {
        "region": None if kernels is None or regions is None else {**kernels, **regions},
        "target": targets,
        "toolchain": problems.reading("unreadable", export.toolchains),
        "run": problems.reading("unreadable", export.runs),
    }
    found = _read_rows(export, known, problems, log)
    _take_apart(found, regions or {})
    if not problems.counts:  # else it would say the same again
        _check_beside(export, problems)
    jobs = list(_jobs(kernels or {}, regions or {}, targets or {}, found, problems))
    _run_jobs(jobs, workers, problems, log)
    schedules = sum(len(s) for s in found.schedules.values())
    return Report(found.rows, len(kernels or {}), schedules, len(found.binaries), found.skipped, problems.all())


def _check_splits(
    export: Export, kernels: Mapping[str, Kernel], workloads: list[Workload], problems: _Problems
) -> None:
    """A kernel in the wrong part would make a test look better than it is."""
    right = split_values(kernels, workloads)
    for row in problems.reading("unreadable", lambda: export.kernels_table(SPLIT_COLUMNS).to_pylist()) or []:
        for name, value in right.get(row["id"], {}).items():
            if row[name] != value:
                line = f"kernels.parquet: kernel {row['id']}: {name} is {row[name]!r}, but should be {value!r}"
                problems.add("splits", line)


def _check_beside(export: Export, problems: _Problems) -> None:
    """What measurements.parquet repeats of the other files, for readers of that file alone, must be what they say."""
    import pyarrow as pa

    def read() -> tuple[dict[str, list[Any]], dict[str, list[Any]]] | None:
        if (stored := export.stored()) is None:
            return None
        made = export.table(None, stored.column_names)
        return stored.to_pydict(), {
            name: made[name].cast(_plain(made[name].type)).to_pylist() for name in made.column_names
        }

    def _plain(kind: Any) -> Any:
        return kind.value_type if pa.types.is_dictionary(kind) else kind

    if (found := problems.reading("unreadable", read)) is None:
        return
    stored, made = found
    for name in (name for name in stored if name != "status"):
        for row, (value, right, status) in enumerate(zip(stored[name], made[name], made["status"], strict=True)):
            wanted = None if name == "median_s" and status != Status.OK else right
            if not _same(value, wanted):
                line = f"measurements.parquet: row {row}: {name} is {value!r}, but should be {wanted!r}"
                problems.add("columns beside", line)


def _same(value: Any, wanted: Any) -> bool:
    """Equal, and times as near as float32 keeps them."""
    if isinstance(value, float) and isinstance(wanted, float):
        return math.isclose(value, wanted, rel_tol=FLOAT32)
    return bool(value == wanted)


# -- rows


def _read_rows(
    export: Export, known: Mapping[str, Mapping[str, object] | None], problems: _Problems, log: Log
) -> _Rows:
    found = _Rows()
    missing: Counter[tuple[str, str]] = Counter()
    first: dict[tuple[str, str], str] = {}
    seen: set[bytes] = set()
    doubts = {doubt.run_id: doubt for doubt in problems.reading("unreadable", export.doubts) or []}
    for record in _records(export, problems):
        m = record.measurement
        row_id = identity_of((identity_of(m.key).hex(), m.run_id, m.trial))
        if row_id in seen:
            which = f"{m.schedule.kind} {_short(m.schedule.body)} of region {m.region_id} in run {m.run_id!r}"
            problems.add("duplicates", f"measurements.parquet: {which}, trial {m.trial}, comes twice")
            found.skipped += 1
            continue
        seen.add(row_id)
        ids = {"region": m.region_id, "target": m.target, "toolchain": m.toolchain, "run": m.run_id}
        absent = [(what, i) for what, i in ids.items() if (there := known[what]) is not None and i not in there]
        if absent:
            missing.update(absent)
            for key in absent:
                first.setdefault(key, f"{m.schedule.kind} {_short(m.schedule.body)} of region {m.region_id}")
            found.skipped += 1
            continue
        # an export has the time of recording to a second
        if (doubt := doubts.get(m.run_id)) is not None and record.recorded_unix_s - 0.5 >= doubt.since_unix_s:
            which = f"{m.schedule.kind} {_short(m.schedule.body)} of region {m.region_id} in run {m.run_id!r}"
            problems.add("doubtful rows", f"measurements.parquet: {which} is doubtful, and not left out")
        found.rows += 1
        if found.rows % 20_000 == 0:
            log(f"{found.rows:,} rows read", None)
        if m.binary_hash:
            found.binaries.add(m.binary_hash)
        found.schedules[m.region_id].add(m.schedule)
        if m.status == Status.OK:
            timed = (m.region_id, m.target, m.cache_state)
            found.fastest[timed] = min(found.fastest.get(timed, (math.inf, "")), (m.median_s, _short(m.schedule.body)))
        if m.schedule.kind == ScheduleKind.OPTS:
            found.to_apply.setdefault(m.region_id, defaultdict(set))[m.target].add(m.schedule.body)
        elif m.schedule.kind == ScheduleKind.PARTS:
            found.of_parts.setdefault(m.region_id, defaultdict(set))[m.target].add(m.schedule.body)
    files = {"region": "kernels.parquet and workloads.json", "target": "targets.json", "toolchain": "toolchains.json"}
    for (what, identity), rows in missing.items():
        line = f"measurements.parquet: {what} {identity[:64]!r} is not in {files.get(what, 'runs.json')}"
        problems.add(f"missing {what}s", f"{line}: {rows:,} rows skipped, the first {first[what, identity]}")
    return found


def _take_apart(found: _Rows, regions: Mapping[str, Region]) -> None:
    """Have the Opts of parts applied, too: each to the kernel that it is for. What is no parts is named by its job."""
    if not found.of_parts:
        return
    from kcg.kernel.composed import parts_of

    for region_id, by_target in found.of_parts.items():
        for target, bodies in by_target.items():
            for body in sorted(bodies):
                with contextlib.suppress(ScheduleError, LookupError):
                    for part in parts_of(Schedule(ScheduleKind.PARTS, body)):
                        if part.schedule.kind == ScheduleKind.OPTS:
                            kernel = regions[region_id].kernels[part.places[-1]]
                            found.to_apply.setdefault(kernel.id, defaultdict(set))[target].add(part.schedule.body)


def _records(export: Export, problems: _Problems) -> Iterator[Record]:
    for protocol in problems.reading("unreadable", export.protocols) or []:
        try:
            yield from export.records(protocol, skip=lambda line: problems.add("rows", line))
        except READ_ERRORS as error:  # a file that is damaged inside
            problems.add("files", f"{_line_of(error)} (protocol {protocol}: no row from there on was checked)")


# -- kernels and schedules


@dataclass(frozen=True)
class _Job:
    """A kernel to decode, and some of its schedules to apply for one target; or a region of several and its parts."""

    kernel_id: str
    ast_json: str
    target: Target | None = None
    bodies: tuple[str, ...] = ()
    fastest: tuple[tuple[CacheState, float, str], ...] = ()  # least seconds in each state, and with which schedule
    region: Region | None = None


def _jobs(
    kernels: Mapping[str, Kernel],
    regions: Mapping[str, Region],
    targets: Mapping[str, Target],
    found: _Rows,
    problems: _Problems,
) -> Iterator[_Job]:
    """Every kernel at least once. Schedules are sorted, so that those with a beginning in common follow each other."""
    fastest: dict[tuple[str, str], list[tuple[CacheState, float, str]]] = defaultdict(list)
    for (region_id, target, state), (seconds, body) in sorted(found.fastest.items()):
        fastest[region_id, target].append((state, seconds, body))
    for region_id, by_target in found.of_parts.items():
        if region_id in regions:
            every = tuple(sorted(set().union(*by_target.values())))
            yield _Job(region_id, "", bodies=every, region=regions[region_id])
    timed: set[str] = set()
    for region_id, by_target in found.to_apply.items():
        members = regions[region_id].kernels if region_id in regions else (kernels.get(region_id),)
        if len(members) != 1 or members[0] is None:
            if kernels:
                problems.add("regions", f"measurements.parquet: Opts for region {region_id}, which is not one kernel")
            continue
        kernel = members[0]
        timed.add(kernel.id)
        for fingerprint, bodies in by_target.items():
            ordered = iter(sorted(bodies))
            times = tuple(fastest.pop((region_id, fingerprint), ()))  # with the first of its jobs
            while some := tuple(itertools.islice(ordered, SCHEDULES_PER_JOB)):
                if fingerprint in targets:
                    yield _Job(kernel.id, kernel.ast_json, targets[fingerprint], some, times)
                    times = ()
                else:  # the targets could not be read
                    yield _Job(kernel.id, kernel.ast_json)
                    break
    for (region_id, fingerprint), rest in fastest.items():  # schedules of other kinds only
        members = regions[region_id].kernels if region_id in regions else (kernels.get(region_id),)
        if len(members) == 1 and members[0] is not None and fingerprint in targets:
            timed.add(members[0].id)
            yield _Job(members[0].id, members[0].ast_json, targets[fingerprint], fastest=tuple(rest))
    for kernel in kernels.values():
        if kernel.id not in timed:
            yield _Job(kernel.id, kernel.ast_json)


def _run_jobs(jobs: list[_Job], workers: int, problems: _Problems, log: Log) -> None:
    from concurrent.futures.process import BrokenProcessPool

    from kcg.measure.pools import end_pool, schedule, start_pool

    if not jobs:
        return
    undecodable: set[str] = set()
    started, done, total = time.monotonic(), 0, sum(len(job.bodies) for job in jobs)
    # Ctrl-C is for this process, which then ends those
    try:
        pool = start_pool(workers, signal.signal, (signal.SIGINT, signal.SIG_IGN))
    except BrokenProcessPool as error:
        problems.add("jobs", f"no job was done: no process can be started ({_line_of(error.__cause__ or error)})")
        return
    try:
        try:
            futures = [schedule(pool, _check, (job,), timeout_s=JOB_TIMEOUT_S) for job in jobs]
        except BrokenProcessPool as error:
            problems.add("jobs", f"no job was done: the processes ended ({_line_of(error)})")
            return
        for number, (job, future) in enumerate(zip(jobs, futures, strict=True), 1):
            if (answer := _answer(job, future)) is None:
                left = len(jobs) - number + 1
                problems.add("jobs", f"{left:,} of {len(jobs):,} jobs were not done: the processes do not answer")
                break
            for kind, line in answer:
                if kind != "ASTs":
                    problems.add(kind, line)
                elif job.kernel_id not in undecodable:  # once, not for each of its jobs
                    undecodable.add(job.kernel_id)
                    problems.add(kind, line)
            done += len(job.bodies)
            elapsed = time.monotonic() - started
            eta_s = elapsed * (total - done) / done if done else None
            log(f"{number:,} of {len(jobs):,} jobs, {done:,} of {total:,} schedules applied", eta_s)
    finally:
        end_pool(pool)


def _answer(job: _Job, future: Future[list[Problem]]) -> Iterable[Problem] | None:
    """What a job found; where it ended without an answer, that is the problem. None where it does not end."""
    try:
        # jobs begin in their order: after those before it, this one has begun, or its process is being replaced
        return future.result(timeout=ANSWER_TIMEOUT_S)
    except TimeoutError:
        if not future.done():
            return None
        why = f"took more than {JOB_TIMEOUT_S:g} s"
    except Exception as error:  # the process died, or the pool did
        why = f"ended its process ({_line_of(error)})"
    what = f"applying {len(job.bodies)} schedules, the first {_short(job.bodies[0])}," if job.bodies else "decoding"
    return [("jobs", f"kernels.parquet: kernel {job.kernel_id}: {what} {why}")]


def _check(job: _Job) -> list[Problem]:
    """Decodes the kernel and applies the schedules. Runs in a child."""
    from kcg.kernel.codec import load_kernel
    from kcg.kernel.kinds import parse, space_of

    if job.region is not None:
        return list(_check_parts(job.region, job.bodies))
    try:
        kernel = load_kernel(job.ast_json, expected_id=job.kernel_id)
    except CodecError as error:
        return [("ASTs", f"kernels.parquet: kernel {job.kernel_id} does not decode: {_line_of(error)}")]
    if job.target is None:
        return []
    where = f"kernel {job.kernel_id} on {job.target.model} ({job.target.renderer})"
    found = _too_fast(kernel, job, where)
    if not job.bodies:
        return found
    try:
        space = space_of(Region((kernel,)), job.target)
    except Exception as error:  # a foreign target, or tinygrad's passes on a foreign AST
        return [*found, ("kernels", f"kernels.parquet: {where} cannot be scheduled: {_line_of(error)}")]
    for body in job.bodies:
        try:
            space.check(parse(ScheduleKind.OPTS, body))
        except Exception as error:  # tinygrad asserts and raises anything where arguments are foreign
            line = f"measurements.parquet: schedule {_short(body)} of {where} does not apply: {_line_of(error)}"
            found.append(("schedules", line))
    return found


def _check_parts(region: Region, bodies: Iterable[str]) -> Iterator[Problem]:
    from kcg.kernel.composed import checked

    for body in bodies:
        try:
            checked(region, Schedule(ScheduleKind.PARTS, body))
        except Exception as error:  # as above: the kernels may be foreign
            line = f"measurements.parquet: schedule {_short(body)} of region {region.id}: {_line_of(error)}"
            yield "schedules", line


def _too_fast(kernel: Kernel, job: _Job, where: str) -> list[Problem]:
    """Times that the target cannot reach: below the roofline of what every program for the kernel has to do."""
    from kcg.kernel.codec import ast_of
    from kcg.measure.service import floor_s

    found: list[Problem] = []
    for state, seconds, body in job.fastest:
        try:
            least_s = floor_s(ast_of(kernel), job.target, state) if job.target is not None else 0.0
        except Exception as error:  # tinygrad asserts and raises anything where a kernel is foreign, though it decodes
            return [("kernels", f"kernels.parquet: {where} has no roofline: {_line_of(error)}")]
        if seconds < least_s:
            line = f"measurements.parquet: schedule {body} of {where} took {seconds * 1e6:.4g} us, {state}"
            found.append(("roofline", f"{line}: the device needs at least {least_s * 1e6:.4g} us"))
    return found


def _line_of(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def _short(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]}…"
