"""An export is whole, the same each time, and verified; what comes back is what went in."""

from __future__ import annotations

import hashlib
import json
import math
import random
import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kcg.dataset import columns as columns_module
from kcg.dataset.columns import (
    BESIDE,
    GROUP_BYTES,
    KEPT,
    OF_REGION,
    ROW_GROUP,
    SPLIT_COLUMNS,
    SPLIT_PARTS,
    as_exported,
    measurements_schema,
    rows_of_a_group,
    values_of_regions,
)
from kcg.dataset.export import CHECKSUMS, FILES, Export, export, merge, read_export
from kcg.dataset.journal import Journal, Record
from kcg.dataset.publish import render_card
from kcg.dataset.stats import stats
from kcg.errors import DataError, UsageError
from kcg.kernel.codec import kernel_of
from kcg.types import Region, Schedule, Status, Workload, WorkloadCall
from tests.calls import calls_of
from tests.dataset.test_journal import KERNELS, UPCAST, fill, measurement, script
from tests.kernels import empty, kernels_of
from tests.slow import first
from tests.waiting import PATIENCE_S


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.sqlite"


def exported(path: Path, folder: Path) -> Export:
    with Journal.open(path) as journal:
        if not journal.protocols():
            fill(journal)
        export(journal, folder)
    return read_export(folder)


def put(folder: Path, name: str, content: Any) -> Export:
    """Replaces a file of an export and mends its checksum, as somebody who means harm would."""
    from pyarrow import parquet

    if isinstance(content, bytes):
        (folder / name).write_bytes(content)
    else:
        parquet.write_table(content, folder / name)
    checksums = json.loads((folder / CHECKSUMS).read_text())
    checksums[name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    (folder / CHECKSUMS).write_text(json.dumps(checksums))
    return read_export(folder)


def edit_column(folder: Path, name: str, column: str, edit: Callable[[list[Any]], object]) -> Export:
    """Changes some values of a column."""
    import pyarrow as pa
    from pyarrow import parquet

    table = with_every_column(parquet.read_table(folder / name))
    values = table[column].to_pylist()
    edit(values)
    place, field = table.schema.get_field_index(column), table.schema.field(column)
    return put(folder, name, table.set_column(place, field.with_nullable(True), pa.array(values, type=field.type)))


def with_every_column(table: Any) -> Any:
    """A table of an export with the columns that its metadata says are the same in every row."""
    import pyarrow as pa

    metadata = dict(table.schema.metadata or {})
    for name, value in json.loads(metadata.pop(b"kcg_constants", b"{}")).items():
        table = table.append_column(measurements_schema().field(name), pa.array([value] * len(table)))
    return table.replace_schema_metadata(metadata)


# -- what comes back


def test_rows_from_before_the_status_unjudged_come_back_as_unjudged(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    with Journal.open(path) as journal:
        fill(journal)
        for n in range(3):
            journal.record(measurement(n, run_id="r2", status=Status.UNJUDGED, samples_s=(), reason="it is all NaN"))
    exported(path, folder)

    def read() -> list[Any]:
        data = read_export(folder)
        tables = [data.table(1, names) for names in (None, ["status"], ["reason"], ["status", "median_s"])]
        return [set(data.records(1)), *(repr(table.to_pylist()) for table in tables)]  # NaN is not equal to itself

    today = read()
    for name, now, once in (("status", "unjudged", "wrong"), ("reason", "it is", "cannot be judged: it is")):

        def as_before(values: list[str], now: str = now, once: str = once) -> None:
            values[:] = [value.replace(now, once) for value in values]

        edit_column(folder, "measurements.parquet", name, as_before)
    assert read() == today
    assert Counter(r.measurement.status for r in today[0])[Status.UNJUDGED] == 3


def test_an_export_says_what_the_journal_says(path: Path, tmp_path: Path) -> None:
    from pyarrow import parquet

    data = exported(path, tmp_path / "out")
    with Journal.open(path) as journal:
        assert set(data.records(1)) == {as_exported(r) for r in journal.records(1)}
        assert data.protocols() == journal.protocols()
        assert data.kernels() == journal.kernels()
        assert data.regions() == journal.regions()
        assert data.workloads() == journal.workloads()
        assert data.targets() == journal.targets()
        assert data.toolchains() == journal.toolchains()
        assert data.runs() == journal.runs()
        assert (stats(data).rows, stats(data).statuses) == (stats(journal).rows, stats(journal).statuses)
    rows = {r["id"]: r for r in parquet.read_table(tmp_path / "out" / "kernels.parquet").to_pylist()}
    assert [rows[k.id]["nodes"] for k in KERNELS] == [2, 3, 4]
    assert rows[KERNELS[2].id]["workloads"] == ["flux/tiny"]
    assert [rows[k.id]["twin"] for k in KERNELS] == [None] * 3, "they are no ASTs"
    table = parquet.read_table(tmp_path / "out" / "measurements.parquet").to_pylist()
    assert {r["schedule_body"] for r in table} == {UPCAST.body}


def test_what_is_rounded_is_reported_and_nothing_else_is(path: Path, tmp_path: Path) -> None:
    binary = hashlib.sha256(b"binary").hexdigest()
    rows = [
        measurement(0, binary_hash=binary, compile_s=1 / 3, clocks=(("sm_mhz", 1234.5), ("power_w", 0.0012345))),
        measurement(0, binary_hash="", trial=2**40, clocks=(), launch=((), ())),
        measurement(0, run_id="r2", status=Status.NOISY, samples_s=(), reason="it was noisy", sampler="", variables=()),
    ]
    with Journal.open(path) as journal:
        for i, row in enumerate(rows):
            journal.record(row, recorded_unix_s=1e9 + 0.4 + i)
    found = {(r.measurement.run_id, r.measurement.trial): r for r in exported(path, tmp_path / "out").records(1)}
    first = found["r1", 0]
    assert first.recorded_unix_s == 1e9
    assert first.measurement.samples_s == pytest.approx(rows[0].samples_s, rel=6e-8)
    assert first.measurement.compile_s == pytest.approx(1 / 3, rel=6e-8)
    kept = replace(
        rows[0],
        binary_hash=binary[:16],
        samples_s=first.measurement.samples_s,
        compile_s=first.measurement.compile_s,
        clocks=(("power_w", 0.00123), ("sm_mhz", 1230.0)),
    )
    assert first.measurement == kept
    assert found["r1", 2**40] == as_exported(Record(rows[1], 1e9 + 1))
    assert found["r2", 0] == as_exported(Record(rows[2], 1e9 + 2))
    with Journal.open(path) as journal:
        journal.record(measurement(1, samples_s=(1e39,)))
        with pytest.raises(DataError, match="float32"):
            export(journal, tmp_path / "other")
    assert not list((tmp_path / "other").glob("*"))


def test_schedules_that_share_a_binary_share_its_timing(path: Path, tmp_path: Path) -> None:
    from pyarrow import parquet

    schedules = [Schedule("opts", f'[["UPCAST",0,{n}]]') for n in range(2, 12)]
    with Journal.open(path) as journal:
        for i, schedule in enumerate(schedules):
            journal.record(measurement(i % 2, schedule=schedule, compile_s=float(i)))
    data = exported(path, tmp_path / "out")
    assert len(parquet.read_table(tmp_path / "out" / "timings.parquet")) == 2
    assert sorted(m.compile_s for m in data.measurements(1)) == [float(i) for i in range(10)]


def test_the_table_says_what_the_records_say(path: Path, tmp_path: Path) -> None:
    with Journal.open(path) as journal:
        fill(journal)
        for i in range(40):
            samples = tuple(1e-6 * (1 + (7 * j + i) % 5) for j in range(1 + i % 4))
            journal.record(measurement(3 + i, samples_s=samples, clocks=(("late", float(i)),) if i > 30 else ()))
        journal.record(measurement(0, protocol=2))
    data = exported(path, tmp_path / "out")
    table, records = data.table(1), list(data.records(1))
    assert len(table) == len(records) == 43
    medians = table["median_s"].to_pylist()
    for median, row in zip(medians, records, strict=True):
        assert median == row.measurement.median_s or (math.isnan(median) and math.isnan(row.measurement.median_s))
    for name in ("region_id", "status", "sampler", "compile_s", "run_id", "trial", "checked"):
        assert table[name].to_pylist() == [getattr(r.measurement, name) for r in records]
    assert table["samples_s"].to_pylist() == [list(r.measurement.samples_s) for r in records]
    assert table["clock_late"].to_pylist() == [dict(r.measurement.clocks).get("late") for r in records]
    assert data.table(1, ["median_s", "region_id"]).column_names == ["median_s", "region_id"]
    assert len(data.table(3)) == 0
    edit_column(tmp_path / "out", "timings.parquet", "samples_s", lambda v: v.__setitem__(0, [-1.0]))
    with pytest.raises(DataError, match="no time"):
        data.table(1)


def test_kernels_have_costs_and_a_place_in_the_splits(path: Path, tmp_path: Path) -> None:
    product = kernel_of(kernels_of(empty(32, 48) @ empty(48, 64))[-1])
    shape_class = kernel_of(kernels_of(empty(32, 48) @ empty(48, 96))[-1])
    flux = WorkloadCall(Region((product,)), 1)
    other = [WorkloadCall(Region((k,)), 1) for k in (shape_class, KERNELS[0])]
    with Journal.open(path) as journal:
        journal.add_workload(Workload("flux", "tiny", (flux,)))
        journal.add_workload(Workload("synthetic_matmul", "tiny", tuple(other)))
        journal.record(measurement())
    rows = {r["id"]: r for r in exported(path, tmp_path / "out").kernels_table().to_pylist()}
    assert rows[product.id]["operations"] == 2 * 32 * 48 * 64
    assert rows[product.id]["bytes"] == 4 * (32 * 48 + 48 * 64 + 32 * 64)
    assert (rows[product.id]["split_workload"], rows[shape_class.id]["split_workload"]) == ("test", "train")
    assert rows[product.id]["twin"] == rows[shape_class.id]["twin"]
    assert len(rows[shape_class.id]["twin"]) == 16
    assert (rows[product.id]["workload_twin_in_training"], rows[shape_class.id]["workload_twin_in_training"]) == (
        True,
        False,
    )
    assert [rows[KERNELS[0].id][name] for name in ("operations", "bytes", *SPLIT_COLUMNS[1:])] == [None] * 11


def test_a_bad_row_is_reported_and_the_others_are_read(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    for i in range(9):
        with Journal.open(path) as journal:
            journal.record(measurement(i))
    whole = list(exported(path, folder).records(1))
    edits: dict[str, object] = {
        "status": "great",
        "cache_state": None,
        "variables": '[["n",{}]]',
        "timing": 99,
        "trial": None,
        "protocol": None,
    }
    for row, (column, value) in enumerate(edits.items()):
        edit_column(folder, "measurements.parquet", column, lambda v, row=row, value=value: v.__setitem__(row, value))
    edit_column(folder, "timings.parquet", "samples_s", lambda v: v.__setitem__(7, []))
    edit_column(folder, "timings.parquet", "launch", lambda v: v.__setitem__(8, "[1]"))
    lines: list[str] = []
    data = read_export(folder)
    assert list(data.records(1, skip=lines.append)) == [whole[6]]
    assert [f"measurements.parquet: row {i} " in line for i, line in zip((0, 1, 2, 3, 4, 5, 7, 8), lines, strict=True)]
    assert all("\n" not in line for line in lines)
    regions = [r.measurement.region_id for r in whole]
    for region in set(regions):
        some: list[str] = []
        found = list(data.records(1, skip=some.append, regions={region}))
        assert found == [whole[6]] * (regions[6] == region)
        assert some == [line for line, i in zip(lines, (0, 1, 2, 3, 4, 5, 7, 8), strict=True) if regions[i] == region]
    assert not list(data.records(1, regions=()))
    with pytest.raises(DataError, match="row 0 cannot be trusted"):
        list(data.records(1))


# -- the default table, for readers of that file alone


def test_a_row_has_its_time_its_samples_and_its_part_of_every_split(path: Path, tmp_path: Path) -> None:
    from pyarrow import parquet

    product = kernel_of(kernels_of(empty(32, 48) @ empty(48, 64))[-1])
    with Journal.open(path) as journal:
        journal.add_workload(Workload("flux", "tiny", (WorkloadCall(Region((product,)), 1),)))
        journal.add_workload(Workload("synthetic_matmul", "tiny", (WorkloadCall(Region((KERNELS[0],)), 1),)))
        journal.record(measurement(0, region_id=product.id, samples_s=(1e-6, 3e-6, 2e-6, 9e-6)))
        journal.record(measurement(1, region_id=product.id, status=Status.NOISY, samples_s=(1e-6,), reason="noisy"))
        journal.record(measurement(2, region_id=product.id, status=Status.TIMEOUT, samples_s=(), reason="slow"))
        journal.record(measurement(3, region_id=KERNELS[0].id, samples_s=(5e-6,)))
    data = exported(path, tmp_path / "out")
    file = parquet.ParquetFile(tmp_path / "out" / "measurements.parquet")
    assert file.schema_arrow.names[:9] == [
        "region_id",
        *SPLIT_PARTS,
        "status",
        "median_s",
        "n_samples",
        "schedule_body",
    ]
    found = {(r["region_id"], r["status"]): r for r in file.read().to_pylist()}
    good, noisy, late = (found[product.id, s] for s in ("ok", "noisy", "timeout"))
    assert good["median_s"] == pytest.approx(2.5e-6, rel=1e-7) and good["n_samples"] == 4
    assert (noisy["median_s"], noisy["n_samples"]) == (None, 1), "a failure has no time"
    assert (late["median_s"], late["n_samples"]) == (None, 0)
    assert {r["split_workload"] for r in (good, noisy, late)} == {"test"}
    kernels = {r["id"]: r for r in data.kernels_table().to_pylist()}
    assert [good[name] for name in SPLIT_PARTS] == [kernels[product.id][name] for name in SPLIT_PARTS]
    assert [found[KERNELS[0].id, "ok"][name] for name in OF_REGION] == [None] * 5, "it is no AST: in no part"
    made = data.table(1, ["region_id", *BESIDE]).to_pylist()
    assert [r["split_workload"] for r in made if r["region_id"] == product.id] == ["test"] * 3
    assert sorted(r["n_samples"] for r in made) == [0, 1, 1, 4]


def test_a_region_of_several_kernels_is_held_out_with_the_one_that_is() -> None:
    def of(*parts: str | None) -> str | None:
        kernels = {f"k{i}": dict.fromkeys(SPLIT_PARTS, part) for i, part in enumerate(parts)}
        return values_of_regions(kernels, {"region": [*kernels]})["region"].parts[0]

    assert (of("train", "test", "validation"), of("train", "validation"), of("train", "train")) == (
        "test",
        "validation",
        "train",
    )
    assert (of("train", None), of("test", None)) == (None, "test")
    found = values_of_regions({"k": dict.fromkeys(SPLIT_PARTS, "train")}, {"r": ["k", "gone"]})["r"]
    assert found.parts == (None,) * len(SPLIT_PARTS) and found.near is None


def test_a_column_that_never_differs_is_reported_once_and_comes_back(path: Path, tmp_path: Path) -> None:
    from pyarrow import parquet

    with Journal.open(path) as journal:
        for i in range(4):
            journal.record(measurement(i, early_stop=True, sampler=f"sampler {i % 2}"))
        wanted = [as_exported(r) for r in journal.sorted_records()]
    data = exported(path, tmp_path / "out")
    stored = set(parquet.read_schema(tmp_path / "out" / "measurements.parquet").names)
    same = data.constants()
    assert same.keys() | stored == {*measurements_schema().names, *BESIDE} and not same.keys() & stored
    assert same["early_stop"] is True and same["protocol"] == 1 and "sampler" in stored
    assert not same.keys() & set(KEPT), "what a reader cannot do without is always there"
    assert list(data.sorted_records()) == wanted and data.protocols() == [1]
    assert data.table(1, ["protocol", "early_stop"]).to_pylist() == [{"protocol": 1, "early_stop": True}] * 4
    assert data.table(1, ["cache_state"])["cache_state"].to_pylist() == ["cold"] * 4
    table = parquet.read_table(tmp_path / "out" / "measurements.parquet")
    metadata = dict(table.schema.metadata)
    for lie in ({"early_stop": 3}, {"timing": 0}, {"x": 1}, [1]):
        metadata[b"kcg_constants"] = json.dumps(lie).encode()
        with pytest.raises(DataError, match="cannot be read"):
            put(tmp_path / "out", "measurements.parquet", table.replace_schema_metadata(metadata)).protocols()


def test_row_groups_are_small_enough_for_a_viewer(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    wide = pa.table({"id": [f"{i:08}" * 1000 for i in range(5000)]})
    assert len(wide) // rows_of_a_group(wide) >= wide.nbytes // GROUP_BYTES
    assert rows_of_a_group(pa.table({"x": range(10**6)})) == ROW_GROUP
    monkeypatch.setattr(columns_module, "ROW_GROUP", 7)
    with Journal.open(path) as journal:
        for i in range(30):
            journal.record(measurement(i))
    data = exported(path, tmp_path / "out")
    for name in ("measurements.parquet", "timings.parquet"):
        metadata = parquet.ParquetFile(tmp_path / "out" / name).metadata
        assert max(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)) <= 7
    assert len(list(data.records(1))) == len(data.table(1)) == 30


def as_schema_2(folder: Path) -> Export:
    """An export as it was written before times and splits were in the default table."""
    from pyarrow import parquet

    for name in ("kernels.parquet", "timings.parquet", "measurements.parquet"):
        table = with_every_column(parquet.read_table(folder / name))
        if name.startswith("measurements"):
            table = table.select(measurements_schema().names)
        put(folder, name, table.replace_schema_metadata({"kcg_schema": "2"}))
    return read_export(folder)


def test_an_export_of_the_schema_before_is_read_and_gets_todays_columns(path: Path, tmp_path: Path) -> None:
    new = exported(path, tmp_path / "new")
    with Journal.open(path) as journal:
        export(journal, tmp_path / "old")
    old = as_schema_2(tmp_path / "old")
    assert old.stored() is None and new.stored() is not None and old.constants() == {}
    assert list(old.records(1)) == list(new.records(1))
    for row, same in zip(old.table(1).to_pylist(), new.table(1).to_pylist(), strict=True):
        assert repr(sorted(row.items())) == repr(sorted(same.items()))
    assert export(old, tmp_path / "again") == export(new, tmp_path / "again too") == dict(new.checksums)
    assert export(old, tmp_path / "old", overwrite=True) == dict(new.checksums), "over itself"
    assert merge([tmp_path / "old"], tmp_path / "merged.sqlite") == len(list(new.records(1)))


def test_what_could_not_be_judged_is_exported_as_that(path: Path, tmp_path: Path) -> None:
    with Journal.open(path) as journal:
        journal.record(measurement(0, status=Status.WRONG, samples_s=(), reason="cannot be judged: every output is 0"))
        journal.record(measurement(1, status=Status.WRONG, samples_s=(), reason="element 3 is 0.0, not 1.0"))
        wanted = {as_exported(r) for r in journal.records(1)}
    data = exported(path, tmp_path / "out")
    rows = data.measurements(1)
    assert set(data.records(1)) == wanted
    assert {r.reason[:7]: r.status for r in rows} == {"every o": Status.UNJUDGED, "element": Status.WRONG}


# -- files


def test_exporting_twice_gives_the_same_bytes_whatever_the_order_of_recording(tmp_path: Path) -> None:
    rows = [measurement(i % 50, trial=i // 50) for i in range(200)]
    for name, order in (("a", rows), ("b", rows[::-1])):
        with Journal.open(tmp_path / f"{name}.sqlite") as journal:
            for k in KERNELS if name == "a" else KERNELS[::-1]:
                journal.add_kernel(k)
            for row in order:
                journal.record(row, recorded_unix_s=float(row.trial))
            first = export(journal, tmp_path / name)
            assert export(journal, tmp_path / f"{name}2") == first
    assert first == json.loads((tmp_path / "a" / CHECKSUMS).read_text())
    for name in (*FILES, CHECKSUMS):
        assert len({(tmp_path / folder / name).read_bytes() for folder in ("a", "a2", "b", "b2")}) == 1
    for name in FILES:
        assert first[name] == hashlib.sha256((tmp_path / "a" / name).read_bytes()).hexdigest()


def test_an_empty_journal_can_be_exported(path: Path, tmp_path: Path) -> None:
    with Journal.open(path) as journal:
        export(journal, tmp_path / "out")
    data = read_export(tmp_path / "out")
    assert (data.protocols(), data.kernels(), data.workloads()) == ([], {}, [])
    assert (list(data.records(1)), len(data.table(1)), len(data.kernels_table())) == ([], 0, 0)
    assert stats(data).rows == 0


def test_an_export_is_not_overwritten_unless_asked(path: Path, tmp_path: Path) -> None:
    before = exported(path, tmp_path / "out").checksums
    with Journal.open(path) as journal:
        journal.record(measurement(9))
        with pytest.raises(UsageError, match="already holds"):
            export(journal, tmp_path / "out")
        assert read_export(tmp_path / "out").checksums == before
        assert export(journal, tmp_path / "out", overwrite=True) != before
        assert len(list(read_export(tmp_path / "out").measurements(1))) == 4
        (tmp_path / "file").write_text("")
        with pytest.raises(UsageError, match="no export can be written"):
            export(journal, tmp_path / "file" / "out")


FILE_LIMIT = """
import resource
journal = t.Journal.open(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
try: t.export(journal, sys.argv[2], overwrite=True)
except t.JournalError as e: print(e)
"""


def test_an_export_that_finds_no_space_leaves_the_earlier_one(path: Path, tmp_path: Path) -> None:
    before = exported(path, tmp_path / "out").checksums
    with Journal.open(path) as journal:
        for i in range(3, 500):
            journal.record(measurement(i))
    out, errors = script(FILE_LIMIT, path, tmp_path / "out").communicate(timeout=PATIENCE_S)
    assert "disk full" in out, errors
    assert read_export(tmp_path / "out").checksums == before
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == sorted((*FILES, CHECKSUMS))


@pytest.mark.parametrize("name", [*FILES, CHECKSUMS])
def test_a_tampered_or_missing_file_of_an_export_is_refused(path: Path, tmp_path: Path, name: str) -> None:
    exported(path, tmp_path / "out")
    file = tmp_path / "out" / name
    content = file.read_bytes()
    file.write_bytes(content[:-20] + bytes([content[-20] ^ 1]) + content[-19:])
    with pytest.raises(DataError, match=r"checksums\.json"):
        read_export(tmp_path / "out")
    file.unlink()
    with pytest.raises(DataError, match=name.replace(".", r"\.")):
        read_export(tmp_path / "out")


def test_an_export_with_checksums_to_match_is_still_not_trusted(path: Path, tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    def replaced(name: str, content: object) -> Export:
        exported(path, folder := tmp_path / secrets.token_hex(8))
        return put(folder, name, content)

    kernels = parquet.read_table(exported(path, tmp_path / "out").folder / "kernels.parquet")
    forged = kernels.set_column(1, "ast_json", pa.array(["[]"] * len(kernels)))
    with pytest.raises(DataError, match="row 0 does not hash"):
        replaced("kernels.parquet", forged).kernels()
    with pytest.raises(DataError, match="has schema unknown, this kcg reads 2 and 3: export again"):
        replaced("kernels.parquet", kernels.replace_schema_metadata({})).kernels()
    with pytest.raises(DataError, match="cannot be read"):
        replaced("kernels.parquet", kernels.drop_columns(["ast_json"])).kernels()
    with pytest.raises(DataError, match="cannot be read"):
        replaced("measurements.parquet", b"PAR1 no").protocols()
    with pytest.raises(DataError, match="fingerprint"):
        replaced("targets.json", b'{"x": {}}').targets()
    empty = hashlib.sha256(b"{}").hexdigest()
    with pytest.raises(DataError, match="'device' is missing"):
        replaced("targets.json", f'{{"{empty}": {{}}}}'.encode()).targets()
    for text in (
        b"[1]",
        b"{",
        b'{"regions": [], "workloads": []}',
        b'{"regions": {"x": 1}}',
        b'{"regions": {}}',
        b"{}",
    ):
        with pytest.raises(DataError, match=r"workloads\.json"):
            replaced("workloads.json", text).workloads()
    with pytest.raises(DataError, match=r"runs\.json"):
        replaced("runs.json", b'{"r": {"name": 1}}').runs()
    run = b'{"r": {"run_id": "r", "started": "", "command": "", "description": {"clock_mhz": Infinity}}}'
    with pytest.raises(DataError, match=r"runs\.json: row r cannot be trusted"):
        replaced("runs.json", run).runs()


@pytest.mark.parametrize("most", [16, pytest.param(160, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", first(2, ["runs.json", "workloads.json", "targets.json", "toolchains.json"]))
def test_json_of_other_types_is_refused_in_one_line(path: Path, tmp_path: Path, name: str, most: int) -> None:
    """Whatever stands where: the card and the statistics read all of it."""
    folder = tmp_path / "out"
    exported(path, folder)
    text, refused = (folder / name).read_text(), 0
    values = (None, [], {}, [None], -1, 1e999, "x", "\ud800", True, 2**70)
    cases = [(place, value) for place in places(json.loads(text)) for value in values]
    cases = random.Random(0).sample(cases, min(most, len(cases)))
    for place, value in cases:
        content = json.loads(text)
        inner = content
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = value
        try:
            export = put(folder, name, json.dumps(content).encode())
            stats(export)
            render_card(export)
        except DataError as error:
            assert "\n" not in str(error)
            refused += 1
    assert refused > len(cases) / 4


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something stands in a JSON value: the first two of each list, and all of an object."""
    inner = (
        list(value.items()) if isinstance(value, dict) else [*enumerate(value)][:2] if isinstance(value, list) else []
    )
    for key, item in inner:
        yield (*path, key)
        yield from places(item, (*path, key))


def test_an_export_of_an_earlier_schema_is_refused_in_one_line(path: Path, tmp_path: Path) -> None:
    from pyarrow import parquet

    exported(path, folder := tmp_path / "out")
    table = parquet.read_table(folder / "measurements.parquet")
    put(folder, "measurements.parquet", table.replace_schema_metadata({"kcg_schema": "1"}))
    checksums = json.loads((folder / CHECKSUMS).read_text())
    (folder / "timings.parquet").unlink()
    del checksums["timings.parquet"]
    (folder / CHECKSUMS).write_text(json.dumps(checksums))
    with pytest.raises(DataError) as caught:
        read_export(folder)
    assert str(caught.value) == f"{folder} has schema 1, this kcg reads 2 and 3: export again with this kcg"


def test_extra_files_are_part_of_an_export(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    with Journal.open(path) as journal:
        fill(journal)
        with pytest.raises(ValueError, match="no such part"):
            export(journal, folder, extras={"evil.py": lambda p: None})
        made = export(journal, folder, extras={"replay.parquet": lambda p: p.write_bytes(b"tables") and None})
        assert made["replay.parquet"] == hashlib.sha256(b"tables").hexdigest()
        assert read_export(folder).checksums == made
        (folder / "README.md").write_text("a card that came later")
        assert read_export(folder).checksums == made
        (folder / "replay.parquet").write_bytes(b"others")
        with pytest.raises(DataError, match=r"replay\.parquet does not agree"):
            read_export(folder)

        def fails(part: Path) -> None:
            part.write_bytes(b"half")
            raise DataError("no tables")

        with pytest.raises(DataError, match="no tables"):
            export(journal, tmp_path / "none", extras={"replay.parquet": fails})
        assert not list((tmp_path / "none").iterdir())
        assert export(journal, folder, overwrite=True) == {k: v for k, v in made.items() if k != "replay.parquet"}
    assert sorted(p.name for p in folder.iterdir()) == sorted((*FILES, CHECKSUMS, "README.md"))


@pytest.mark.slow
def test_a_row_costs_an_export_as_much_however_many_there_are(path: Path, tmp_path: Path) -> None:
    """About 140 calls, and 150 steps of SQLite's machine: 8,000 rows take a second of an idle core."""
    spent = []
    with Journal.open(path) as journal:
        for begin, end in ((0, 10), (10, 500), (500, 2_000)):
            with journal.bulk():
                for i in range(begin, end):
                    journal.record(measurement(i))
            ticks: list[int] = []
            journal._connection.set_progress_handler(lambda ticks=ticks: ticks.append(1), 100)
            spent.append((calls_of(lambda end=end: export(journal, tmp_path / str(end))), len(ticks)))
    _, few, many = spent  # the first of all imports what it needs
    assert many[0] < 5 * few[0] and many[0] < 300 * 2_000, "four times the rows"
    assert many[1] < 5 * few[1]
    assert sum(1 for _ in read_export(tmp_path / "2000").measurements(1)) == 2_000
