"""A dataset ready to train on: every schedule as a graph, its log-runtime, and the part of each split it is in.

Planning and encoding a row takes a fraction of a millisecond, so the graphs are kept in the user's cache under the
dataset's checksums and the version of the features; the second load reads arrays.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import logging
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, fields, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from kcg.dataset.choices import UNIFORM, is_chosen
from kcg.dataset.noise import RETIMED
from kcg.dataset.reading import Export, read_export
from kcg.dataset.splits import PARTS, SPLITS, TRAIN, families_of
from kcg.errors import CodecError, DataError, ScheduleError
from kcg.files import cache_folder, whole
from kcg.kernel.kinds import SeenAsPlans, Space, kind_named, space_of
from kcg.kernel.seen import Seen, Words
from kcg.measure.device_info import usable_cores
from kcg.measure.protocol import PROTOCOL
from kcg.predictor.features import (
    FEATURES_VERSION,
    KERNEL_FEATURES,
    NAMES,
    TARGET_FEATURES,
    Array,
    Graphs,
    encode,
    graphs,
    graphs_of_plans,
    joined,
    kernel_features,
    target_features,
)
from kcg.types import Region, Schedule, ScheduleKind, Status, Target

# ---- What is computed of the schedules of many kernels: shared between processes, and kept in the user's cache.

log = logging.getLogger(__name__)

CHUNK = 32  # kernels of one job of a process
TENTHS = 10  # of the kernels: how often it is said how far the graphs are

T = TypeVar("T")


@dataclass(frozen=True)
class KernelJob:
    """Schedules of one kernel."""

    region: Region
    target: Target
    bodies: tuple[str, ...]
    kind: str = ScheduleKind.OPTS

    def each(self, make: Callable[[Space, Schedule], T]) -> tuple[list[T], Array]:
        """What `make` gives for each schedule that applies, and which ones these are: (n,) bool.

        Raises DataError where the kernel cannot be read.
        """
        try:
            space = space_of(self.region, self.target, self.kind)
        except (CodecError, ScheduleError) as error:
            raise DataError(f"kernel {self.region.id[:12]}: {error}") from error
        found, applies = [], np.zeros(len(self.bodies), bool)
        for i, body in enumerate(self.bodies):
            try:
                found.append(make(space, Schedule(ScheduleKind(self.kind), body)))
                applies[i] = True
            except ScheduleError as error:
                log.warning("%s of %s is left out: %s", body, self.region.id[:12], error)
        return found, applies


def in_processes(work: Callable[[KernelJob], T], jobs: Sequence[KernelJob], workers: int | None) -> Iterator[T]:
    """`work`, a function of a module, on each job, in order; in one process for each core where `workers` is None."""
    chunks = [jobs[i : i + CHUNK] for i in range(0, len(jobs), CHUNK)]
    workers, done = min(workers or usable_cores(), len(chunks)), 0
    if workers > 1:
        try:
            with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
                for part in pool.map(functools.partial(_all, work), chunks):
                    yield from part
                    done += 1
        except BrokenProcessPool as error:  # out of memory, or a script that does its work at import
            log.warning("the graphs are computed in one process: %s", error)
    for chunk in chunks[done:]:
        yield from _all(work, chunk)


def _all(work: Callable[[KernelJob], T], jobs: Sequence[KernelJob]) -> list[T]:
    return [work(job) for job in jobs]


def keep(arrays: Mapping[str, Any], path: Path) -> None:
    """Write arrays, whole or not at all. A cache that cannot be written costs the next load its time."""
    try:
        with whole(path) as temporary, temporary.open("wb") as file:
            np.savez(file, **arrays)
    except OSError as error:
        log.warning("the graphs are not kept for the next time: %s", error)


def kept(path: Path, build: Callable[[dict[str, Any]], T]) -> T | None:
    """What `build` makes of kept arrays; None where there are none, or none that can be read."""
    if not path.is_file():
        return None
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            return build({name: file[name] for name in file.files})
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        log.warning("%s cannot be read and is made again: %s", path, error)
        return None


FAILED = (
    Status.COMPILE_ERROR,
    Status.COMPILE_TIMEOUT,
    Status.RESOURCE,
    Status.LAUNCH_ERROR,
    Status.TIMEOUT,
    Status.WRONG,
    Status.WORKER_DIED,
)
"""What the failure head learns to expect. A noisy sample says nothing about a schedule, nor does a kernel that is
`unjudged` whatever its schedule."""

COLUMNS = (
    "region_id",
    "variables",
    "target",
    "schedule_kind",
    "schedule_body",
    "status",
    "cache_state",
    "sampler",
    "run_id",
    "trial",
    "median_s",
    "early_stop",
    "pool",
    "weight",
)


POOL = ("raw", "hand-coded", "walk:", "near:", "beam:2/8", UNIFORM)
"""Samplers on whose rows rankings are judged. No predictor picked these, and no search that was run for a replay table,
so that every kernel's pool was drawn alike."""


@dataclass(frozen=True)
class TrainingData:
    """n rows over K kernels (a kernel with its variables' values, on one target) and T targets."""

    graphs: Graphs  # n
    kernel: Array  # (n,) a place in `region_ids`
    run: Array  # (n,) which run measured it: a place in `runs`
    log_s: Array  # (n,) natural logarithm of the median in seconds, NaN where it failed
    sampler: Array  # (n,) a place in `samplers`
    row: Array  # (n,) its row in the dataset
    chosen: Array  # (n,) bool: a cost or a search chose it, so that it is for training only
    weight: Array  # (n,) what it weighs in training, 1 of all that nothing chose
    kernel_x: Array  # (K, len(KERNEL_FEATURES))
    target_x: Array  # (T, len(TARGET_FEATURES))
    target: Array  # (K,) a place in `targets`
    parts: Array  # (K, splits) a place in `PARTS`
    twin: Array  # (K,) bool: a kernel of another size of it is in training, under the split by workload
    calls: Array  # (K,) how often its workload runs it
    region_ids: tuple[str, ...]
    families: tuple[str, ...]  # of each kernel
    targets: tuple[str, ...]
    runs: tuple[str, ...]
    samplers: tuple[str, ...]
    checksums: tuple[tuple[str, str], ...] = ()
    formula: Array | None = None  # (n,) log-seconds by the kind's own formula; None: it has none

    @property
    def base(self) -> Array:
        """(n,) log-seconds to which a network adds its own."""
        return np.zeros(len(self)) if self.formula is None else self.formula

    def __len__(self) -> int:
        return len(self.kernel)

    @property
    def failed(self) -> Array:
        return np.isnan(self.log_s)

    def part(self, split: str, part: str) -> Array:
        """(n,) bool: the rows whose kernel is in this part of a split; of chosen rows those of training only."""
        inside = self.parts[:, SPLITS.index(split)] == PARTS.index(part)
        return np.asarray(inside[self.kernel] & (~self.chosen | (part == TRAIN)))

    def take(self, index: Array) -> TrainingData:
        """Some of the rows; kernels and targets stay."""
        index = np.flatnonzero(index) if index.dtype == np.bool_ else index
        names = ("kernel", "run", "log_s", "sampler", "row", "chosen", "weight")
        rows = {name: getattr(self, name)[index] for name in names}
        rows["formula"] = None if self.formula is None else self.formula[index]
        return replace(self, graphs=self.graphs.take(index), **rows)


def evaluation_pool(data: TrainingData) -> Array:
    """(n,) bool: the rows on which rankings are judged."""
    wanted = [i for i, name in enumerate(data.samplers) if name.startswith(POOL)]
    return np.isin(data.sampler, wanted) & ~data.chosen


def pool_rows(data: TrainingData, split: str, part: str) -> Array:
    """(m,) the rows of a part of a split on which rankings are judged."""
    return np.flatnonzero(data.part(split, part) & evaluation_pool(data))


def load(
    folder: Path | str,
    *,
    cache: Path | None = None,
    workers: int | None = None,
    part: tuple[str, str] | None = None,
    pool: bool = False,
    kind: str = ScheduleKind.OPTS,
    log: Callable[[str], None] = lambda line: None,
) -> TrainingData:
    """The rows of an export, from the cache where it has them. `cache=None` is the user's own. With a split and a
    `part` of it, such as `("workload", "test")`, only the rows of that part; with `pool` only those of `POOL`.

    Left out are noisy rows, rows timed again, warm ones, `unjudged` ones, and schedules of other kinds. Raises
    DataError.
    """
    export = read_export(folder)
    path = (cache or cache_folder("graphs")) / f"{_identity(export, part, pool, kind)}.npz"
    found = kept(path, _from_arrays)
    if found is not None:
        return found
    log(f"{folder}: computing graphs, once")
    made = _build(export, workers, part=part, pool=pool, kind=kind, log=log)
    keep(_as_arrays(made), path)
    return made


def _identity(export: Export, part: tuple[str, str] | None, pool: bool, kind: str) -> str:
    if kind != ScheduleKind.OPTS:
        text = json.dumps([kind, asdict(words_of(kind)), KERNEL_FEATURES, TARGET_FEATURES, COLUMNS, SPLITS, PROTOCOL])
        text += json.dumps([sorted(export.checksums.items()), part, pool])
        return f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:24]}"
    whole = [FEATURES_VERSION, NAMES, COLUMNS, SPLITS, PROTOCOL, sorted(export.checksums.items())]
    text = json.dumps([*whole, part, pool] if part or pool else whole)
    return f"v{FEATURES_VERSION}-{hashlib.sha256(text.encode()).hexdigest()[:24]}"


def _build(
    export: Export,
    workers: int | None,
    *,
    part: tuple[str, str] | None,
    pool: bool,
    kind: str,
    log: Callable[[str], None],
) -> TrainingData:
    by_rows = kind != ScheduleKind.OPTS  # parts: of regions of several kernels no kernel says them
    names = (*COLUMNS, *(f"split_{split}" for split in SPLITS if by_rows or (part and split == part[0])))
    table = export.table(PROTOCOL, names)
    columns = {name: _column(table[name]) for name in names}
    rows = _wanted(columns, kind)
    if part is not None:
        rows = rows[columns[f"split_{part[0]}"][rows] == part[1]]
    if pool:
        who = zip(columns["sampler"][rows], columns["pool"][rows], strict=True)
        rows = rows[[str(name).startswith(POOL) and not is_chosen(str(pool)) for name, pool in who]]
    if not len(rows):
        where = f" in the {part[1]} part of the split by {part[0]}" if part else ""
        raise DataError(f"{export.folder} has no rows to train on{where}")
    keys: dict[tuple[str, str, str], int] = {}
    kernel = np.array(
        [
            keys.setdefault((columns["region_id"][i], columns["variables"][i], columns["target"][i]), len(keys))
            for i in rows
        ]
    )
    order = np.argsort(kernel, kind="stable")
    rows, kernel = rows[order], kernel[order]
    regions, targets = export.regions(), export.targets()
    ends = np.searchsorted(kernel, np.arange(len(keys) + 1))
    jobs = [
        KernelJob(regions[region], targets[target], tuple(columns["schedule_body"][rows[a:b]]), kind)
        for (region, _, target), (a, b) in zip(keys, itertools.pairwise(ends), strict=True)
    ]
    encoded = list(_counted(in_processes(_encode, jobs, workers), len(jobs), log))
    applies = np.concatenate([one.applies for one in encoded])
    formula = np.concatenate([one.log_s for one in encoded]) if by_rows else None
    fingerprints = sorted({target for _, _, target in keys})
    status = columns["status"][rows]
    seconds = np.where(status == Status.OK, columns["median_s"][rows], np.nan).astype(np.float64)
    runs, run = np.unique(columns["run_id"][rows], return_inverse=True)
    samplers, sampler = np.unique(columns["sampler"][rows], return_inverse=True)
    made = TrainingData(
        graphs=joined(one.graphs for one in encoded if one.graphs is not None),
        kernel=kernel[applies],
        run=run[applies],
        log_s=np.log(seconds)[applies],
        sampler=sampler[applies],
        row=rows[applies],
        chosen=np.array([is_chosen(str(pool)) for pool in columns["pool"][rows]], bool)[applies],
        weight=columns["weight"][rows].astype(np.float64)[applies],
        kernel_x=np.stack([one.kernel_x for one in encoded]),
        formula=formula,
        target_x=np.stack([target_features(targets[t]) for t in fingerprints]),
        target=np.array([fingerprints.index(target) for _, _, target in keys]),
        region_ids=tuple(region for region, _, _ in keys),
        targets=tuple(fingerprints),
        runs=tuple(runs.tolist()),
        samplers=tuple(samplers.tolist()),
        checksums=tuple(sorted(export.checksums.items())),
        **(_of_rows(export, columns, rows, kernel, keys) if by_rows else _of_kernels(export, regions, keys)),
    )
    if not len(made):
        raise DataError(f"{export.folder}: none of its schedules applies to its kernel in this tinygrad")
    return made


def _counted(made: Iterable[T], count: int, log: Callable[[str], None]) -> Iterator[T]:
    """What is made, one for each of `count` kernels, with a line for every tenth of them."""
    for done, one in enumerate(made, 1):
        if done * TENTHS // count > (done - 1) * TENTHS // count:
            log(f"graphs of {done:,} of {count:,} kernels")
        yield one


def _column(column: Any) -> Array:
    """A column as an array; what is missing is an empty text or NaN."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        one = column.combine_chunks()
        names = np.array([name or "" for name in one.dictionary.to_pylist()] or [""], object)
        return np.asarray(names[one.indices.to_numpy(zero_copy_only=False).astype(np.int64)])
    values = column.to_numpy()
    return values if values.dtype != object else np.array(["" if v is None else v for v in values], object)


def _wanted(columns: dict[str, Array], kind: str) -> Array:
    status = columns["status"]
    wanted = (status == Status.OK) | np.isin(status, [str(s) for s in FAILED])
    wanted &= (columns["trial"] == 0) & (columns["sampler"] != RETIMED) & (columns["cache_state"] == "cold")
    wanted &= columns["schedule_kind"] == kind
    seconds = columns["median_s"]
    wanted &= (status != Status.OK) | (np.isfinite(seconds) & (np.where(np.isfinite(seconds), seconds, 0) > 0))
    return np.flatnonzero(wanted)


def _of_kernels(export: Export, regions: dict[str, Region], keys: dict[tuple[str, str, str], int]) -> dict[str, Any]:
    """What the dataset says of each kernel: family, parts, whether a twin is in training, and calls."""
    names = [f"split_{split}" for split in SPLITS]
    table = export.kernels_table(["id", *names, "workload_twin_in_training"]).to_pylist()
    by_id = {row["id"]: row for row in table}
    workloads = export.workloads()
    family = families_of(workloads)
    calls: dict[str, int] = {}
    for workload in workloads:
        for call in workload.calls:
            calls[call.region.id] = max(calls.get(call.region.id, 0), call.calls)
    rows = [by_id[regions[region].kernel.id] for region, _, _ in keys]
    return {
        "families": tuple(family.get(region, "") for region, _, _ in keys),
        "parts": np.array([[PARTS.index(row[name] or PARTS[0]) for name in names] for row in rows]),
        "twin": np.array([bool(row["workload_twin_in_training"]) for row in rows]),
        "calls": np.array([calls.get(region, 1) for region, _, _ in keys]),
    }


@dataclass(frozen=True)
class _Encoded:
    """The schedules of one kernel: those that apply have a graph."""

    graphs: Graphs | None  # None: none of them applies
    kernel_x: Array
    applies: Array  # (n,) bool
    log_s: Array  # of those that apply, by the kind's own formula; empty where it has none


def _encode(job: KernelJob) -> _Encoded:
    """Graphs, the kernel's own numbers, and which schedules apply."""
    if job.kind != ScheduleKind.OPTS:
        plans, applies = job.each(_seen)
        made = graphs_of_plans(plans) if plans else None
        return _Encoded(made, kernel_features(job.region), applies, np.array([one.log_s for one in plans]))
    nests, applies = job.each(lambda space, schedule: space.loop_nests([schedule])[0])
    return _Encoded(graphs(encode(nests), job.target), kernel_features(job.region), applies, np.zeros(0))


def _seen(space: Space, schedule: Schedule) -> Seen:
    if not isinstance(space, SeenAsPlans):
        raise ScheduleError(f"nothing is seen of schedules of kind {schedule.kind}")
    return space.seen(schedule)


def words_of(kind: str) -> Words:
    """What the numbers of a kind's plans are called. Raises DataError where it has none."""
    words = getattr(kind_named(kind), "words", None)
    if words is None:
        raise DataError(f"of schedules of kind {kind} nothing is learned: its spaces show no plans")
    found: Words = words
    return found


def _of_rows(
    export: Export,
    columns: dict[str, Array],
    rows: Array,
    kernel: Array,
    keys: dict[tuple[str, str, str], int],
) -> dict[str, Any]:
    """As `_of_kernels`, with the parts that rows are in."""
    workloads = export.workloads()
    family, calls = families_of(workloads), dict[str, int]()
    for call in (call for workload in workloads for call in workload.calls):
        calls[call.region.id] = max(calls.get(call.region.id, 0), call.calls)
    first = rows[np.searchsorted(kernel, np.arange(len(keys)))]
    parts = [[PARTS.index(columns[f"split_{split}"][row] or PARTS[0]) for split in SPLITS] for row in first]
    return {
        "families": tuple(family.get(region, "") for region, _, _ in keys),
        "parts": np.array(parts),
        "twin": np.zeros(len(keys), bool),
        "calls": np.array([calls.get(region, 1) for region, _, _ in keys]),
    }


_LISTS = ("region_ids", "families", "targets", "runs", "samplers", "checksums")


def _as_arrays(data: TrainingData) -> dict[str, Array]:
    arrays = data.graphs.as_arrays()
    arrays |= {f.name: getattr(data, f.name) for f in fields(data) if f.name not in (*_LISTS, "graphs", "formula")}
    arrays |= {} if data.formula is None else {"formula": data.formula}
    arrays["lists"] = np.frombuffer(json.dumps({name: getattr(data, name) for name in _LISTS}).encode(), np.uint8)
    return arrays


def _from_arrays(arrays: dict[str, Any]) -> TrainingData:
    """The inverse of `_as_arrays`."""
    lists = json.loads(arrays.pop("lists").tobytes())
    made = Graphs.from_arrays(arrays)
    arrays = {name: array for name, array in arrays.items() if "." not in name}
    texts: dict[str, Any] = {name: tuple(values) for name, values in lists.items()}
    texts["checksums"] = tuple((name, value) for name, value in lists["checksums"])
    return TrainingData(graphs=made, **arrays, **texts)
