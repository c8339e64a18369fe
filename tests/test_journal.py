"""The journal loses no acknowledged row and trusts no file; an export is whole, the same each time, and verified."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from kcg.dataset.export import CHECKSUMS, FILES, Export, export, merge, read_export
from kcg.dataset.journal import APPLICATION_ID, SCHEMA_VERSION, Journal, Run
from kcg.dataset.stats import render, stats, to_json
from kcg.errors import DataError, JournalError, UsageError
from kcg.types import (
    RAW,
    CacheState,
    Kernel,
    Measurement,
    Opt,
    Region,
    Schedule,
    Status,
    Target,
    Toolchain,
    Workload,
    WorkloadCall,
)

ROOT = Path(__file__).parent.parent
TARGET = Target(
    device="CPU", renderer="X86", arch="x86_64,native", model="A CPU", cores=2, has_local=False, has_threads=True,
    max_threads=2, shared_bytes=0, memory_bytes=1 << 34, cache_bytes=1 << 25, tensor_cores=("8x16x16 bf16->f32",),
    power_limit_w=700, clock_limit_mhz=None,
)  # fmt: skip
TOOLCHAIN = Toolchain(tinygrad="0.14.0", compiler="X86", driver="", triton="", action_space=1)
KERNELS = tuple(Kernel(json.dumps({"format": 1, "nodes": [["CONST", i]] * (i + 2)})) for i in range(3))
UPCAST = Schedule.from_opts((Opt("UPCAST", 0, 4), Opt("TC", 0, (-1, 2, 1))))


def measurement(n: int = 0, **changes: object) -> Measurement:
    """A well-formed measurement; another `n` is another identity."""
    made = Measurement(
        region_id=KERNELS[n % 3].id, schedule=UPCAST, target=TARGET.fingerprint, toolchain=TOOLCHAIN.fingerprint,
        protocol=1, status=Status.OK, variables=(("start_pos", n),), input_recipe="normal-v1:seed=0",
        samples_s=(1e-5, 1.1e-5 + n * 1e-9, 0.1 + 0.2), binary_hash=f"b{n}", checked=True, sampler="random",
        compile_s=0.25, launch=((4, 1, 1), (32, 2, 1)), run_id="r1", clocks=(("sm_mhz", 1980.0),),
    )  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


def fill(journal: Journal) -> list[Measurement]:
    """Two kernels in one workload, a third wired to the first, and three measurements, one of them failed."""
    pair = Region((KERNELS[0], KERNELS[2]), ((0, 0, 1, 1),))
    calls = (WorkloadCall(Region((KERNELS[0],)), 7, (("n", 3),), "model.py:4"), WorkloadCall(Region((KERNELS[1],)), 2))
    journal.add_workload(Workload("flux", "tiny", (*calls, WorkloadCall(pair, 1))))
    journal.add_target(TARGET)
    journal.add_toolchain(TOOLCHAIN)
    journal.add_run(Run("r1", "2025-01-01T00:00:00+00:00", "kcg", {"clock_mhz": 1980, "note": "quiet"}))
    rows = [
        measurement(0),
        measurement(1, cache_state=CacheState.WARM, early_stop=True, clocks=(), launch=((), ())),
        measurement(2, status=Status.COMPILE_ERROR, samples_s=(), reason="no \x00 such 'op'; é"),
    ]
    for row in rows:
        assert journal.record(row)
    return rows


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new folder" / "a?b#c%d.sqlite"


def script(body: str, *arguments: object) -> subprocess.Popen[str]:
    """Another process that has this file's helpers as `t`."""
    code = f"import sys; sys.path.insert(0, {str(ROOT / 'tests')!r}); import test_journal as t\n{body}"
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


# -- the journal


def test_everything_comes_back_as_it_went_in(path: Path) -> None:
    with Journal.open(path) as journal:
        rows = fill(journal)
        workloads = journal.workloads()
    with Journal.open(path, create=False) as journal:
        assert list(journal.measurements(1)) == rows
        assert list(journal.measurements(2)) == []
        assert journal.protocols() == [1]
        assert journal.workloads() == workloads
        call = workloads[0].calls[0]
        assert (call.calls, call.variables, call.origin) == (7, (("n", 3),), "model.py:4")
        assert journal.kernels() == {k.id: k for k in (KERNELS[0], KERNELS[1], KERNELS[2])}
        assert len(journal.regions()) == 3
        assert journal.targets() == {TARGET.fingerprint: TARGET}
        assert journal.toolchains() == {TOOLCHAIN.fingerprint: TOOLCHAIN}
        assert journal.runs()["r1"].description == {"clock_mhz": 1980, "note": "quiet"}
        assert journal.counts() == {
            "kernels": 3, "regions": 3, "workload_calls": 3, "targets": 1, "toolchains": 1, "runs": 1,
            "measurements": 3,
        }  # fmt: skip
    assert [p.name for p in path.parent.iterdir()] == [path.name], "a clean close leaves one file"


def test_adding_again_changes_nothing_and_a_changed_workload_replaces_its_calls(path: Path) -> None:
    with Journal.open(path) as journal:
        fill(journal)
        before = journal.counts()
        (workload,) = journal.workloads()
        assert not journal.add_workload(workload)
        assert not journal.add_kernel(KERNELS[0], workload="other/preset")
        assert not journal.add_region(Region((KERNELS[0],)))
        assert not journal.add_target(TARGET)
        assert not journal.add_toolchain(TOOLCHAIN)
        assert not journal.add_run(Run("r1", "", "", {}))
        assert journal.counts() == before
        assert journal.first_seen()[KERNELS[0].id] == "flux/tiny"
        assert journal.add_workload(replace(workload, calls=workload.calls[:1]))
        assert journal.counts() == before | {"workload_calls": 1}


def test_resume_ignores_run_and_trial_and_names_one_protocol(path: Path) -> None:
    first = measurement()
    with Journal.open(path) as journal:
        assert not journal.has(first.key)
        assert journal.record(first)
        assert not journal.record(first), "the same run and trial is the same row"
        assert not journal.record(replace(first, samples_s=(9.0,)))
        assert journal.record(replace(first, trial=1))
        assert journal.record(replace(first, run_id="r2"))
        assert journal.has(replace(first, run_id="r3", trial=9, samples_s=(1.0,), status=Status.NOISY).key)
        for other in ({"protocol": 2}, {"early_stop": True}, {"variables": ()}, {"schedule": RAW}):
            assert not journal.has(replace(first, **other).key)
        journal.record(measurement(1, protocol=2))
        journal.record(measurement(3, status=Status.WRONG))
        known = list(journal.known(TARGET.fingerprint, TOOLCHAIN.fingerprint, 1))
        assert [(m.run_id, m.trial) for m in known] == [("r1", 0), ("r1", 1), ("r2", 0), ("r1", 0)]
        assert known[0].samples_s == first.samples_s
        of = {"region_id": first.region_id}
        assert len(list(journal.known(TARGET.fingerprint, TOOLCHAIN.fingerprint, 1, **of))) == 4
        assert len(list(journal.known(TARGET.fingerprint, TOOLCHAIN.fingerprint, 1, **of, status=Status.OK))) == 3
        assert list(journal.known(TARGET.fingerprint, TOOLCHAIN.fingerprint, 1, region_id="x")) == []
        assert list(journal.known("another", TOOLCHAIN.fingerprint, 1)) == []
        assert [m.protocol for m in journal.known(TARGET.fingerprint, TOOLCHAIN.fingerprint, 2)] == [2]
        assert journal.measured_elsewhere(TARGET.fingerprint, TOOLCHAIN.fingerprint, 1) == 1, "another protocol's"
        newer_driver = replace(TOOLCHAIN, driver="999.1").fingerprint
        assert list(journal.known(TARGET.fingerprint, newer_driver, 1)) == []
        assert journal.measured_elsewhere(TARGET.fingerprint, newer_driver, 1) == 5


@pytest.mark.parametrize(
    "bad", [{"samples_s": (float("inf"),)}, {"samples_s": (float("nan"),)}, {"samples_s": (-1.0,)}, {"samples_s": ()}]
)
def test_a_magic_time_is_not_recorded(path: Path, bad: dict[str, object]) -> None:
    with Journal.open(path) as journal:
        with pytest.raises(DataError, match="status"):
            journal.record(measurement(**bad))
        assert journal.counts()["measurements"] == 0


def test_a_reason_that_is_no_text_is_kept_as_far_as_it_is(path: Path) -> None:
    with Journal.open(path) as journal:
        journal.record(
            measurement(status=Status.COMPILE_ERROR, samples_s=(), reason=b"bad \xff".decode(errors="surrogateescape"))
        )
        assert next(journal.measurements(1)).reason == "bad ?"


WRITER = """
from kcg.dataset.journal import Journal
with Journal.open(sys.argv[1]) as journal:
    for i in range(int(sys.argv[3])):
        journal.record(t.measurement(i, run_id=sys.argv[2]))
        print(i, flush=True)
"""


@pytest.mark.parametrize("acknowledged", [1, 40])
def test_kill_9_loses_no_acknowledged_row(path: Path, acknowledged: int) -> None:
    with script(WRITER, path, "killed", 10**6) as process:
        assert process.stdout
        seen = [int(process.stdout.readline()) for _ in range(acknowledged)]
        process.send_signal(signal.SIGKILL)
        seen += [int(line) for line in process.stdout.read().split("\n")[:-1]]
    with Journal.open(path) as journal:
        stored = [dict(m.variables)["start_pos"] for m in journal.measurements(1)]
        assert stored[: len(seen)] == seen
        assert len(stored) - len(seen) in (0, 1), "one may be stored and not yet acknowledged"
        assert journal.record(measurement(run_id="after"))


def test_two_processes_create_and_write_one_journal(path: Path) -> None:
    rows = 150
    processes = [script(WRITER, path, name, rows) for name in ("a", "b")]
    for process in processes:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    with Journal.open(path) as journal:
        runs = [m.run_id for m in journal.measurements(1)]
        assert (runs.count("a"), runs.count("b")) == (rows, rows)


def test_recording_while_reading_and_while_another_writes(path: Path) -> None:
    """A cursor left open would make the next write fail as stale once another connection has written."""
    with Journal.open(path) as one, Journal.open(path) as other:
        for i in range(5):
            one.record(measurement(i))
        for m in one.measurements(1):
            other.record(replace(m, run_id="other"))
            one.record(replace(m, run_id="one"))
            if one.counts()["measurements"] > 20:
                break
        threads = [threading.Thread(target=lambda n=n: one.record(measurement(n, run_id="t"))) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(m.run_id == "t" for m in other.measurements(1)) == 8


def test_a_missing_journal_is_not_created_unless_asked(path: Path) -> None:
    for options in ({"create": False}, {"read_only": True}):
        with pytest.raises(JournalError, match="there is no journal"):
            Journal.open(path, **options)
    assert not path.parent.exists()


def sqlite_file(path: Path, application_id: int, user_version: int) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE bookmarks(url)")
    connection.execute(f"PRAGMA application_id={application_id}")
    connection.execute(f"PRAGMA user_version={user_version}")
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda p: p.write_bytes(b"hello"), "no SQLite header"),
        (lambda p: p.write_bytes(os.urandom(20_000)), "no SQLite header"),
        (lambda p: sqlite_file(p, 0, 0), "another program's"),
        (lambda p: sqlite_file(p, APPLICATION_ID, SCHEMA_VERSION + 1), f"has schema {SCHEMA_VERSION + 1}"),
    ],
)
@pytest.mark.parametrize("options", [{}, {"create": False}, {"read_only": True}])
def test_a_file_that_is_not_ours_is_named_and_left_alone(tmp_path: Path, make, line: str, options: dict) -> None:
    path = tmp_path / "x.sqlite"
    make(path)
    before = path.read_bytes(), path.stat().st_mtime_ns
    with pytest.raises(JournalError, match=line) as caught:
        Journal.open(path, **options)
    assert "\n" not in str(caught.value)
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("damage", ["truncated", "overwritten"])
def test_a_damaged_journal_is_refused_and_left_alone(path: Path, damage: str) -> None:
    with Journal.open(path) as journal:
        for i in range(100):
            journal.record(measurement(i))
    content = path.read_bytes()
    middle = len(content) // 2
    cut = content[:middle]
    path.write_bytes(cut if damage == "truncated" else cut + b"\x55" * 8192 + content[middle + 8192 :])
    before = path.read_bytes()
    with pytest.raises(JournalError, match="corrupt") as caught:
        Journal.open(path)
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("tampering", "table"),
    [
        ("UPDATE kernels SET ast_json = ast_json || ' ' WHERE rowid = 2", "kernels"),
        ("UPDATE kernels SET ast_json = x'00ff' WHERE rowid = 2", "kernels"),
        ("UPDATE targets SET json = '{}'", "targets"),
        ("UPDATE regions SET wiring = '[[0,0,1,0]]' WHERE rowid = 3", "regions"),
        ("UPDATE measurements SET schedule_body = '[]' WHERE row = 2", "row 2 of measurements"),
        ("UPDATE measurements SET samples_s = 'fast' WHERE row = 2", "row 2 of measurements"),
        ("UPDATE measurements SET samples_s = '[1e999]' WHERE row = 2", "row 2 of measurements"),
        ("UPDATE measurements SET variables = '[[\"n\",1e999]]' WHERE row = 2", "row 2 of measurements"),
        ("UPDATE measurements SET status = 'great' WHERE row = 2", "row 2 of measurements"),
        ("UPDATE measurements SET trial = 'x' WHERE row = 2", "row 2 of measurements"),
        ("UPDATE workload_calls SET region_id = 'x'", "workload_calls"),
    ],
)
def test_a_tampered_row_is_named(path: Path, tampering: str, table: str) -> None:
    with Journal.open(path) as journal:
        fill(journal)
    connection = sqlite3.connect(path)
    connection.execute(tampering)
    connection.commit()
    connection.close()
    with Journal.open(path) as journal, pytest.raises(JournalError, match=table):
        journal.kernels(), journal.targets(), journal.workloads(), list(journal.measurements(1))
    with Journal.open(path) as journal, pytest.raises(JournalError, match=table):
        export(journal, path.parent / "out")
    assert not list((path.parent / "out").glob("*")), "nothing half-written"


def test_a_full_disk_is_said_and_keeps_what_was_acknowledged(path: Path) -> None:
    with Journal.open(path) as journal:
        journal.record(measurement(0))
        pages = journal._connection.execute("PRAGMA page_count").fetchone()[0]
        journal._connection.execute(f"PRAGMA max_page_count={pages}")  # SQLite's own way to run out of space
        with pytest.raises(JournalError, match="disk full"):
            for i in range(1, 1000):
                journal.record(measurement(i))
        journal._connection.execute("PRAGMA max_page_count=100000")
        assert journal.record(measurement(i)), "it goes on once there is space"
    with Journal.open(path) as journal:
        assert journal.counts()["measurements"] == i + 1


def test_a_folder_that_cannot_be_made_or_a_folder_as_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is a folder"):
        Journal.open(tmp_path)
    with pytest.raises(UsageError, match="no journal can be created"):
        Journal.open(tmp_path / "file" / "x.sqlite")


READ_ONLY = """
import os
from pathlib import Path
from kcg.errors import JournalError, UsageError
folder = Path(sys.argv[1])
if os.getuid() == 0:
    os.setuid(65534)  # permissions do not bind root
with t.Journal.open(folder / "j.sqlite", read_only=True) as journal:
    print(len(list(journal.measurements(1))))
    try: journal.record(t.measurement(50))
    except JournalError as e: print(e)
for name in ("j.sqlite", "new.sqlite"):
    try: t.Journal.open(folder / name)
    except UsageError as e: print(e)
"""


def test_a_read_only_folder_can_be_read_and_says_so_when_written() -> None:
    with tempfile.TemporaryDirectory() as name:  # not pytest's own folder: another user must be able to reach it
        folder = Path(name)
        with Journal.open(folder / "j.sqlite") as journal:
            fill(journal)
        (folder / "j.sqlite").chmod(0o444)
        folder.chmod(0o555)
        out, errors = script(READ_ONLY, folder).communicate(timeout=60)
        folder.chmod(0o755)
        assert [p.name for p in folder.iterdir()] == ["j.sqlite"]
    lines = out.splitlines()
    assert len(lines) == 4, errors
    assert lines[0] == "3"
    assert all("cannot be written" in line for line in lines[1:])


def test_a_journal_opened_read_only_refuses_to_write_and_sees_a_live_writer(path: Path) -> None:
    with Journal.open(path) as writer, Journal.open(path, read_only=True) as reader:
        writer.record(measurement(0))
        assert reader.counts()["measurements"] == 1
        with pytest.raises(JournalError, match="cannot be written"):
            reader.record(measurement(1))


def test_merge_keeps_each_row_once(tmp_path: Path) -> None:
    a, b, out = tmp_path / "a.sqlite", tmp_path / "b.sqlite", tmp_path / "all.sqlite"
    with Journal.open(a) as journal:
        fill(journal)
        journal.record(measurement(5), recorded_unix_s=123.5)
    with Journal.open(b) as journal:
        fill(journal)
        journal.record(measurement(0, run_id="r2"))
        journal.record(measurement(0, trial=1))
        journal.record(measurement(0, protocol=2))
    assert merge([a, b], out) == 7
    with Journal.open(out, read_only=True) as journal:
        assert len(set(journal.measurements(1))) == 6
        assert len(list(journal.measurements(2))) == 1
        assert 123.5 in [r.recorded_unix_s for r in journal.records(1)]
        with Journal.open(a) as first:
            assert journal.workloads() == first.workloads()
            assert journal.first_seen() == first.first_seen()
    with pytest.raises(UsageError, match="exists"):
        merge([a, b], out)
    (tmp_path / "bad.sqlite").write_bytes(b"x" * 200)
    with pytest.raises(JournalError):
        merge([a, tmp_path / "bad.sqlite"], tmp_path / "none.sqlite")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.sqlite", "all.sqlite", "b.sqlite", "bad.sqlite"]


# -- the export


def exported(path: Path, folder: Path) -> Export:
    with Journal.open(path) as journal:
        if not journal.protocols():
            fill(journal)
        export(journal, folder)
    return read_export(folder)


def test_an_export_says_what_the_journal_says(path: Path, tmp_path: Path) -> None:
    from pyarrow import parquet

    data = exported(path, tmp_path / "out")
    with Journal.open(path) as journal:
        assert set(data.records(1)) == set(journal.records(1))
        assert data.protocols() == journal.protocols()
        assert data.kernels() == journal.kernels()
        assert data.regions() == journal.regions()
        assert data.workloads() == journal.workloads()
        assert data.targets() == journal.targets()
        assert data.toolchains() == journal.toolchains()
        assert data.runs() == journal.runs()
        assert stats(data) == stats(journal)
    rows = {r["id"]: r for r in parquet.read_table(tmp_path / "out" / "kernels.parquet").to_pylist()}
    assert [rows[k.id]["nodes"] for k in KERNELS] == [2, 3, 4]
    assert rows[KERNELS[2].id]["workloads"] == ["flux/tiny"]
    table = parquet.read_table(tmp_path / "out" / "measurements.parquet").to_pylist()
    assert {r["status"]: r["median_s"] for r in table}["compile_error"] is None
    assert {r["schedule_body"] for r in table} == {UPCAST.body}


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
    assert stats(data).rows == 0


def test_an_export_is_not_overwritten_unless_told(path: Path, tmp_path: Path) -> None:
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
    out, errors = script(FILE_LIMIT, path, tmp_path / "out").communicate(timeout=60)
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
        exported(path, folder := tmp_path / str(time.monotonic_ns()))
        if isinstance(content, bytes):
            (folder / name).write_bytes(content)
        else:
            parquet.write_table(content, folder / name)
        checksums = json.loads((folder / CHECKSUMS).read_text())
        checksums[name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        (folder / CHECKSUMS).write_text(json.dumps(checksums))
        return read_export(folder)

    kernels = parquet.read_table(exported(path, tmp_path / "out").folder / "kernels.parquet")
    forged = kernels.set_column(1, "ast_json", pa.array(["[]"] * len(kernels)))
    with pytest.raises(DataError, match="row 0 does not hash"):
        replaced("kernels.parquet", forged).kernels()
    with pytest.raises(DataError, match="another schema"):
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


def test_20_000_rows_export_in_seconds(path: Path, tmp_path: Path) -> None:
    with Journal.open(path) as journal:
        with journal.bulk():
            for i in range(20_000):
                journal.record(measurement(i))
        started = time.monotonic()
        export(journal, tmp_path / "out")
        assert time.monotonic() - started < 15  # about 2 s on two idle cores
    assert sum(1 for _ in read_export(tmp_path / "out").measurements(1)) == 20_000


# -- the numbers


def test_stats_of_a_journal_made_by_hand(path: Path) -> None:
    a, b = Region((KERNELS[0],)), Region((KERNELS[1],))

    def row(region: Region, opts: tuple[Opt, ...], seconds: float, **changes: object) -> Measurement:
        plain = {"variables": (), "region_id": region.id, "schedule": Schedule.from_opts(opts), "samples_s": (seconds,)}
        return measurement(**(plain | changes))

    up, local = Opt("UPCAST", 0, 4), Opt("LOCAL", 0, 8)
    rows = [
        row(a, (up,), 4.0, sampler="hand-coded", binary_hash="x"),
        row(a, (up, local), 1.0, binary_hash="y"),
        row(a, (local,), 0.1, cache_state=CacheState.WARM, binary_hash="y"),  # warm is not compared with cold
        row(a, (up, up), 0.5, status=Status.WRONG),  # nor is what failed
        row(a, (up, up), 0.5, status=Status.WRONG, trial=1),
        row(b, (), 9.0, sampler="hand-coded", binary_hash="z"),
        row(b, (up,), 9.5, run_id="r2", binary_hash=""),
    ]
    with Journal.open(path) as journal:
        journal.add_workload(Workload("w", "one", (WorkloadCall(a, 3), WorkloadCall(a, 1), WorkloadCall(b, 1))))
        journal.add_workload(Workload("w", "two", (WorkloadCall(a, 3),)))
        journal.add_workload(Workload("w", "unmeasured", (WorkloadCall(Region((KERNELS[2],)), 3),)))
        for i, m in enumerate(rows):
            journal.record(m, recorded_unix_s=100.0 + i * 0.5)
        found = stats(journal)
    assert (found.rows, found.kernels, found.regions_measured) == (7, 3, 2)
    assert found.unique_binaries == 4  # x, y, z and the b0 of what failed
    assert found.statuses == {"ok": 5, "wrong": 2}
    assert found.samplers == {"random": 5, "hand-coded": 2}
    assert found.protocols == {1: 7}
    assert found.schedules_per_kernel == (2, 3.0, 4)
    assert found.actions == {"UPCAST": 5, "LOCAL": 2}
    assert found.rows_per_second == {"r1": 5 / 2.5}
    one, two, unmeasured = found.workloads
    assert (one.name, one.kernels, one.rows, one.compared) == ("w/one", 2, 7, 2)
    assert one.speedup == pytest.approx(2.0)  # the geometric mean of 4 and 1
    assert (two.speedup, two.rows) == (4.0, 5)
    assert (unmeasured.speedup, unmeasured.rows, unmeasured.compared) == (None, 0, 0)
    assert json.loads(to_json(found))["workloads"][0]["compared"] == 2


def test_stats_are_readable_and_do_not_read_markup(path: Path) -> None:
    from rich.console import Console

    with Journal.open(path) as journal:
        fill(journal)
        journal.record(measurement(7, sampler="[bold]mcts"))
        console = Console(width=120, record=True, file=open(os.devnull, "w"))  # noqa: SIM115, PTH123
        with console.file:
            render(stats(journal), console)
    text = console.export_text()
    for expected in ("flux/tiny", "compile_error", "[bold]mcts", "UPCAST", "unique binaries"):
        assert expected in text


def test_stats_refuse_a_foreign_schedule(path: Path) -> None:
    with Journal.open(path) as journal:
        journal.record(measurement(schedule=Schedule("opts", "[1]")))
        with pytest.raises(DataError, match="does not decode"):
            stats(journal)
