"""A journal as immutable files: Parquet (zstd) with checksums, whole or not at all; and journals joined into one.

An export is normalised: `kernels.parquet` holds an AST once, `timings.parquet` what schedules of one binary share, and
`measurements.parquet` the rest of each row (their columns: `kcg.dataset.columns`). `workloads.json` holds regions and
calls, `targets.json`, `toolchains.json` and `runs.json` what the ids of a measurement stand for, and `checksums.json`
the SHA-256 of every other file. Doubtful rows are left out; `doubts.json`, which only an export without some has, says
how many and why. Exporting the same journal twice gives the same bytes.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from kcg.dataset.choices import HAND_CODED, UNTOLD, is_chosen, is_uniform
from kcg.dataset.columns import (
    KEPT,
    TIMINGS,
    MeasurementColumns,
    kernels_schema,
    kernels_table,
    measurements_schema,
    split_values,
    stored_schema,
    values_of_regions,
    write_parquet,
)
from kcg.dataset.journal import Chosen, Doubt, Journal, Record, Run, values_of, wiring_json
from kcg.dataset.reading import (
    CHECKSUMS,
    DOUBTS,
    FILES,
    KERNELS,
    MEASUREMENTS,
    MOST_OF_LIST,
    OPTIONAL_FILES,
    Export,
    read_export,
)
from kcg.dataset.schema import disk_full
from kcg.errors import JournalError, MismatchError, UsageError
from kcg.files import is_disk_full, read_limited, sha256_of, sync
from kcg.kernel.symbolic import seen_by
from kcg.types import Job, canonical_json

__all__ = ["CHECKSUMS", "FILES", "OPTIONAL_FILES", "Export", "add", "export", "merge", "read_export"]


def export(
    journal: Journal | Export,
    folder: Path | str,
    *,
    overwrite: bool = False,
    extras: Mapping[str, Callable[[Path], None]] | None = None,
) -> dict[str, str]:
    """Writes everything in the journal that is not doubtful, of one moment, to `folder` and returns the SHA-256 of each
    file by name.

    An export can be exported again, so that one of an earlier schema gets today's columns: to another folder, or over
    itself. What `extras` hold must then be given again.

    `extras` are further files by name (of `OPTIONAL_FILES`) and what writes each, at the same moment of the journal;
    they are checksummed like the others.
    Every file is written beside its place and synced before the first takes its name; `checksums.json` comes last. What
    an earlier export listed and this one does not make is removed. No device is opened.
    Raises UsageError where an export is already there and `overwrite` is false or the folder cannot be written,
    JournalError where the disk is full or the journal cannot be trusted. An earlier export then stays as it was.
    """
    folder, extras = Path(folder), extras or {}
    if unknown := set(extras) - set(OPTIONAL_FILES):
        raise ValueError(f"no such part of an export: {', '.join(sorted(unknown))}")
    present = [name for name in (*FILES, CHECKSUMS) if (folder / name).exists()]
    if present and not overwrite:
        raise UsageError(f"{folder} already holds {present[0]}: name a new folder, or allow overwriting")
    parts: dict[str, Path] = {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with journal.snapshot() if isinstance(journal, Journal) else contextlib.nullcontext():
            writers = {**extras, **_doubts_writer(journal.doubtful_rows())}
            names = (*FILES, *sorted(writers), CHECKSUMS)
            parts |= {name: folder / f"{name}.{os.getpid()}.part" for name in names}
            _write_all(journal, parts)
            for name, write in writers.items():
                write(parts[name])
        checksums = {name: sha256_of(part) for name, part in parts.items() if name != CHECKSUMS}
        _write_json(parts[CHECKSUMS], checksums)
        for part in parts.values():
            sync(part)
        stale = _listed(folder) - set(parts)
        for name, part in parts.items():
            part.replace(folder / name)
        for name in stale:
            (folder / name).unlink(missing_ok=True)
        sync(folder)
    except OSError as e:
        if is_disk_full(e):
            raise disk_full(folder) from e
        raise UsageError(f"no export can be written to {folder}: {e.strerror or e}") from e
    finally:
        with contextlib.suppress(OSError):  # the folder is a file, or cannot be read
            for part in parts.values():
                part.unlink(missing_ok=True)
    return checksums


def merge(paths: Sequence[Path | str], out: Path | str, *, same_target: bool = False) -> int:
    """Joins journals into a new one and returns its measurements; equal (identity, run, trial) rows are kept once.

    An export is as good as a journal, so that a published dataset can be gone on with: what it rounds stays rounded.
    Doubtful rows are kept, and stay doubtful: also where another journal has them without the mark.

    Where a workload differs between journals the later one's calls are kept. Journals of different targets may be
    joined, since each row names its own; `same_target` refuses that. `out` appears when it is complete.
    Raises JournalError where an input cannot be trusted, UsageError where `out` exists, MismatchError for the first
    journal of another target than those before it.
    """
    out = Path(out)
    if out.exists():
        raise UsageError(f"{out} exists: name a new file to merge into")
    part = out.with_name(f"{out.name}.{os.getpid()}.part")
    _check_inputs([Path(path) for path in paths], same_target=same_target)
    try:
        with Journal.open(part) as joined:
            for path in paths:
                if Path(path).is_dir():
                    with joined.bulk():
                        _copy_export(read_export(path), joined)
                    continue
                with Journal.open(path, read_only=True) as source, source.snapshot(), joined.bulk():
                    copy(source, joined)
            total = joined.counts()["measurements"]
        part.rename(out)
        sync(out.parent)
        return total
    finally:
        with contextlib.suppress(OSError):  # the folder is a file
            for suffix in ("", "-wal", "-shm", "-journal"):
                part.with_name(part.name + suffix).unlink(missing_ok=True)


JOURNAL = "journal.sqlite"  # of a run of `kcg optimize`, in its folder


@dataclass(frozen=True)
class Added:
    """What journals of runs brought that was not there before."""

    rows: int
    chosen: int  # of the rows those that a cost or a search chose
    uniform: int  # and those that were drawn from all legal schedules
    jobs: int


def add(folders: Sequence[Path | str], out: Path | str, *, dirty: bool = False) -> Added:
    """Takes the journals of runs of `kcg optimize`, by the folders of their results, into a dataset's journal, which is
    made where it is not there: all that `merge` takes, and the jobs, which say what judging took and what regions save
    among their neighbours. What is there already is not added again, and each journal is one transaction: after an
    interruption the same call goes on.

    A row that does not say why it was measured counts as chosen, but for tinygrad's own schedules: runs of before
    2026-11-29 do not say it. `dirty` allows runs by code that is of no revision (`kcg.provenance`).
    Raises JournalError where a journal is missing, of a schema without jobs, or cannot be trusted, UsageError for a run
    by code of no revision. Nothing is added then.
    """
    paths = [folder / JOURNAL if (folder := Path(given)).is_dir() else folder for given in folders]
    for path in paths:
        _check_run(path, dirty=dirty)
    pools, jobs = list[str](), 0
    with Journal.open(out) as joined:
        for path in paths:
            with Journal.open(path, read_only=True) as source, source.snapshot(), joined.bulk():
                pools += [chosen.pool for chosen in copy(source, joined, row=_of_run)]
                jobs += _add_jobs(source, joined)
    return Added(len(pools), sum(map(is_chosen, pools)), sum(map(is_uniform, pools)), jobs)


def _check_run(path: Path, *, dirty: bool) -> None:
    with Journal.open(path, read_only=True) as source:
        if not source.jobs():
            what = "it holds no jobs, as campaigns' and those of an older kcg"
            raise JournalError(f"{path} is no journal of a run of kcg optimize ({what}): merge joins it")
        if not dirty and any(run.description.get("dirty") is not False for run in source.runs().values()):
            what = "it is not known, or the tree was changed"
            raise UsageError(f"{path} has a run by code of no revision ({what}): leave it out, or give --dirty")


def _of_run(record: Record) -> Record:
    is_known = record.chosen.pool or record.chosen.probability is not None
    own = record.measurement.sampler == HAND_CODED
    return record if is_known or own else replace(record, chosen=replace(record.chosen, pool=UNTOLD))


def _add_jobs(source: Journal, joined: Journal) -> int:
    """The jobs of each run behind those of it that are there already: a run only adds to them."""
    there, seen, new = Counter(job.run_id for job in joined.jobs()), Counter[str](), list[Job]()
    for job in source.jobs():
        seen[job.run_id] += 1
        if seen[job.run_id] > there[job.run_id]:
            new.append(job)
    joined.add_jobs(new)
    return len(new)


def _check_inputs(paths: Sequence[Path], *, same_target: bool) -> None:
    """Opens every journal, so that one that is foreign or damaged is named before anything is copied."""
    first: tuple[Path, dict[str, str]] | None = None
    for path in paths:
        if path.is_dir():
            targets = read_export(path).targets()
        else:
            with Journal.open(path, read_only=True) as source:
                targets = source.targets()
        found = {k: f"{t.model} ({t.renderer})" for k, t in targets.items()}
        if not same_target or not found:
            continue
        if first is None:
            first = path, found
        if set(found) != set(first[1]) or len(found) > 1:
            here, there = (", ".join(sorted(names.values())) for names in (found, first[1]))
            raise MismatchError(f"{path} is of {here}, {first[0]} of {there}: leave it out, or allow several targets")


def _write_all(journal: Journal | Export, parts: Mapping[str, Path]) -> None:
    """Writes every file of `FILES` to its place."""
    kernels, workloads = journal.kernels(), journal.workloads()
    used = _used(journal)
    for workload in workloads:
        for call in workload.calls:
            for kernel in call.region.kernels:
                used[kernel.id].add(f"{workload.name}/{workload.preset}")
    calls = {
        f"{w.name}/{w.preset}": {
            "name": w.name,
            "preset": w.preset,
            "calls": [[c.region.id, count, values, c.origin] for c in w.calls for values, count in seen_by(c)],
        }
        for w in workloads
    }
    found = journal.regions()
    regions = {
        k: None if k in kernels else [[x.id for x in r.kernels], wiring_json(r)] for k, r in found.items()
    }  # null: the kernel of that id, as almost all are
    splits = split_values(kernels, workloads)
    write_parquet(parts[KERNELS], kernels_schema(), [kernels_table(kernels, used, splits)])
    members = {region_id: [kernel.id for kernel in region.kernels] for region_id, region in found.items()}
    why = journal.has_choices()
    columns = MeasurementColumns(values_of_regions(splits, members), _constants(journal), why)
    schema = stored_schema(columns.constants, with_choices=why)
    write_parquet(parts[MEASUREMENTS], schema, columns.tables(journal.sorted_records()))
    schema, timings = columns.timings()
    write_parquet(parts[TIMINGS], schema, [timings])
    _write_json(parts["runs.json"], {k: asdict(r) for k, r in journal.runs().items()})
    _write_json(parts["targets.json"], {k: values_of(t, k) for k, t in journal.targets().items()})
    _write_json(parts["toolchains.json"], {k: values_of(t, k) for k, t in journal.toolchains().items()})
    _write_json(parts["workloads.json"], {"regions": regions, "workloads": calls})


def _doubts_writer(doubts: Mapping[Doubt, int]) -> dict[str, Callable[[Path], None]]:
    """The file that says which rows were left out, and what writes it; nothing where there are none."""
    runs = {
        doubt.run_id: {"since_unix_s": doubt.since_unix_s, "why": doubt.why, "rows": rows}
        for doubt, rows in doubts.items()
    }
    return {DOUBTS: lambda path: _write_json(path, runs)} if runs else {}


def _used(journal: Journal | Export) -> dict[str, set[str]]:
    """The workload in which each kernel was first seen; of an export all of them, since it does not say the first."""
    if isinstance(journal, Export):
        return journal.workloads_of_kernels()
    return {kernel: {name} if name else set() for kernel, name in journal.first_seen().items()}


def _constants(journal: Journal | Export) -> dict[str, Any]:
    """The columns of measurements that are the same in every row, as Parquet's types."""
    import pyarrow as pa

    kinds = {f.name: f.type for f in measurements_schema() if f.name not in KEPT}
    found = journal.constants(list(kinds))
    return {name: bool(value) if kinds[name] == pa.bool_() else value for name, value in found.items()}


def _listed(folder: Path) -> set[str]:
    """The optional files that belong to an export that is there."""
    try:
        return set(OPTIONAL_FILES) & set(json.loads(read_limited(folder / CHECKSUMS, most_bytes=MOST_OF_LIST)))
    except (OSError, ValueError, TypeError):
        return set()


def _write_json(path: Path, value: Any) -> None:
    path.write_text(_json_lines(value, 2) + "\n")


def _json_lines(value: Any, depth: int) -> str:
    """Canonical JSON with a line for each entry of the objects of the first `depth` levels: readable, and small."""
    if not depth or not isinstance(value, Mapping) or not value:
        return canonical_json(value)
    entries = (f"{canonical_json(key)}:{_json_lines(value[key], depth - 1)}" for key in sorted(value))
    return "{\n" + ",\n".join(entries) + "\n}"


def copy(
    source: Journal,
    joined: Journal,
    *,
    row: Callable[[Record], Record] = lambda record: record,
    run: Callable[[Run], Run] = lambda run: run,
) -> list[Chosen]:
    """Copies all but jobs and verdicts, each row and run as it is to be; why those rows were measured that are new."""
    new = list[Chosen]()
    first_seen = source.first_seen()
    for kernel in source.kernels().values():
        joined.add_kernel(kernel, workload=first_seen[kernel.id])
    for region in source.regions().values():
        joined.add_region(region)
    for workload in source.workloads():
        joined.add_workload(workload)
    joined.add_devices_of(source)
    for each in source.runs().values():
        joined.add_run(run(each))
    for ids in itertools.product(source.targets(), source.toolchains()):
        for region_id, declaration in source.lattices(*ids).items():
            joined.add_lattice(region_id, *ids, declaration)
    for protocol in source.protocols():
        for r in map(row, source.records(protocol, doubtful=True)):
            if joined.record(r.measurement, recorded_unix_s=r.recorded_unix_s, chosen=r.chosen):
                new.append(r.chosen)
    for doubt in source.doubts():
        joined.add_doubt(doubt)
    return new


def _copy_export(source: Export, joined: Journal) -> None:
    for kernel in source.kernels().values():
        joined.add_kernel(kernel)
    for region in source.regions().values():
        joined.add_region(region)
    for workload in source.workloads():
        joined.add_workload(workload)
    for fingerprint, target in source.targets().items():
        joined.add_target(target, fingerprint)
    for fingerprint, toolchain in source.toolchains().items():
        joined.add_toolchain(toolchain, fingerprint)
    for run in source.runs().values():
        joined.add_run(run)
    for protocol in source.protocols():
        for r in source.records(protocol):
            joined.record(r.measurement, recorded_unix_s=r.recorded_unix_s, chosen=r.chosen)
    for doubt in source.doubts():
        joined.add_doubt(doubt)
