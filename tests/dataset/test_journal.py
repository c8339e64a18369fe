"""The journal loses no acknowledged row and trusts no file."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kcg.dataset.export import export
from kcg.dataset.journal import Journal, Run, status_and_reason
from kcg.dataset.schema import APPLICATION_ID, COLUMNS, SCHEMA_VERSION, checksum_of, selection
from kcg.errors import DataError, JournalError, UsageError
from kcg.kernel.opts.schedule import RAW, Opt, schedule_of
from kcg.types import CacheState, Kernel, Measurement, Region, Status, Target, Toolchain, Workload, WorkloadCall
from tests.commands import python
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
TARGET = Target(
    device="CPU",
    renderer="X86",
    arch="x86_64,native",
    model="A CPU",
    cores=2,
    has_local=False,
    has_threads=True,
    max_threads=2,
    shared_bytes=0,
    memory_bytes=1 << 34,
    cache_bytes=1 << 25,
    tensor_cores=("8x16x16 bf16->f32",),
    power_limit_w=700,
    clock_limit_mhz=None,
)
TOOLCHAIN = Toolchain(tinygrad="0.14.0", compiler="X86", driver="", triton="", action_space=1)
KERNELS = tuple(Kernel(json.dumps({"format": 1, "nodes": [["CONST", i]] * (i + 2)})) for i in range(3))
UPCAST = schedule_of((Opt("UPCAST", 0, 4), Opt("TC", 0, (-1, 2, 1))))


def measurement(n: int = 0, **changes: object) -> Measurement:
    """A well-formed measurement; another `n` is another identity."""
    made = Measurement(
        region_id=KERNELS[n % 3].id,
        schedule=UPCAST,
        target=TARGET.fingerprint,
        toolchain=TOOLCHAIN.fingerprint,
        protocol=1,
        status=Status.OK,
        variables=(("start_pos", n),),
        input_recipe="normal-v1:seed=0",
        samples_s=(1e-5, 1.1e-5 + n * 1e-9, 0.1 + 0.2),
        binary_hash=f"b{n}",
        checked=True,
        sampler="random",
        compile_s=0.25,
        launch=((4, 1, 1), (32, 2, 1)),
        run_id="r1",
        clocks=(("sm_mhz", 1980.0),),
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def fill(journal: Journal) -> list[Measurement]:
    """Two kernels in one workload, a third wired to the first, and three measurements, one of them failed."""
    pair = Region((KERNELS[0], KERNELS[2]), ((0, 1, 2), (3, 0)), (3,))
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


@contextlib.contextmanager
def forged(path: Path) -> Iterator[sqlite3.Connection]:
    """A journal that somebody changes who knows how its checksums are made."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield connection
        for table in COLUMNS:
            for number, *values, _ in connection.execute(selection(table, SCHEMA_VERSION)).fetchall():
                made = checksum_of(table, values)
                connection.execute(f"UPDATE {table} SET checksum = ? WHERE rowid = ?", (made, number))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new folder" / "a?b#c%d.sqlite"


def script(body: str, *arguments: object) -> subprocess.Popen[str]:
    """Another process that has this file's helpers as `t`."""
    code = f"import sys; from tests.dataset import test_journal as t\n{body}"
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


# -- the journal


def test_a_journal_that_is_deleted_or_replaced_is_noticed(path: Path) -> None:
    """SQLite writes on into a file that no name leads to any more."""
    with Journal.open(path) as journal:
        fill(journal)
        assert journal.moved() == ""
        path.rename(path.with_name("elsewhere"))
        assert journal.record(measurement(7)), "SQLite says nothing"
        assert journal.moved() == "was deleted"
        path.write_bytes(path.with_name("elsewhere").read_bytes())
        assert journal.moved() == "was replaced by another file"
        path.with_name("elsewhere").replace(path)
        assert journal.moved() == ""


@pytest.mark.parametrize(
    ("column", "value", "says"),
    [
        ("clocks", '[["\\ud800",1.0]]', "the name of a reading is no text"),
        ("recorded_unix_s", float("inf"), "the time of its recording is none"),
        ("recorded_unix_s", -1e300, "the time of its recording is none"),
        ("samples_s", "[1e999]", "its samples are no times"),
        ("samples_s", "[" * 50_000 + "]" * 50_000, "recursion"),
        ("launch", "[[1e999],[1]]", "infinity"),
    ],
    ids=lambda value: str(value)[:16],
)
def test_a_row_of_what_no_file_can_hold_is_one_line(path: Path, column: str, value: object, says: str) -> None:
    with Journal.open(path) as journal:
        fill(journal)
        with forged(path) as connection:
            connection.execute(f"UPDATE measurements SET {column}=? WHERE row=1", (value,))
        with pytest.raises(JournalError, match=f"row 1 of measurements cannot be trusted .*{says}"):
            export(journal, path.parent / "out")


@pytest.mark.parametrize(
    ("table", "column"),
    [("workload_calls", name) for name in ("workload", "preset", "origin")] + [("kernels", "first_seen_workload")],
)
def test_bytes_in_the_place_of_a_name_are_one_line(path: Path, table: str, column: str) -> None:
    """SQLite keeps any type in any column."""
    with Journal.open(path) as journal:
        fill(journal)
        with forged(path) as connection:
            connection.execute(f"UPDATE {table} SET {column}=x'ff' WHERE rowid=1")
        with pytest.raises(JournalError, match=f"of {table} cannot be trusted .* no text"):
            export(journal, path.parent / "out")


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
            "kernels": 3,
            "regions": 3,
            "workload_calls": 3,
            "targets": 1,
            "toolchains": 1,
            "runs": 1,
            "measurements": 3,
        }
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
        assert journal.measured_elsewhere(TARGET.fingerprint, TOOLCHAIN.fingerprints, 1) == 1, "another protocol's"
        newer_driver = replace(TOOLCHAIN, driver="999.1").fingerprint
        assert list(journal.known(TARGET.fingerprint, newer_driver, 1)) == []
        assert journal.measured_elsewhere(TARGET.fingerprint, (newer_driver,), 1) == 5


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


@pytest.mark.slow
def test_two_processes_create_and_write_one_journal(path: Path) -> None:
    rows = 150
    processes = [script(WRITER, path, name, rows) for name in ("a", "b")]
    for process in processes:
        _, errors = process.communicate(timeout=PATIENCE_S)
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
    with pytest.raises(JournalError, match="is damaged") as caught:
        Journal.open(path)
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("tampering", "table"),
    [
        ("UPDATE kernels SET ast_json = ast_json || ' ' WHERE rowid = 2", "kernels"),
        ("UPDATE kernels SET ast_json = x'00ff' WHERE rowid = 2", "kernels"),
        ("UPDATE targets SET json = '{}'", "targets"),
        ("UPDATE regions SET wiring = '[[[0,1],[2,0]],[2]]' WHERE rowid = 3", "regions"),
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
    with forged(path) as connection:
        connection.execute(tampering)
    with Journal.open(path) as journal, pytest.raises(JournalError, match=table):
        journal.kernels(), journal.targets(), journal.workloads(), list(journal.measurements(1))
    with Journal.open(path) as journal, pytest.raises(JournalError, match=table):
        export(journal, path.parent / "out")
    assert not list((path.parent / "out").glob("*")), "nothing half-written"


def test_a_limit_on_the_size_of_files_is_named_and_what_was_acknowledged_is_there(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        """
import resource
from pathlib import Path
from kcg.dataset.journal import Journal, Run
from kcg.errors import JournalError
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
number = 0
try:
    with Journal.open(Path("j.sqlite")) as journal:
        while journal.add_run(Run(str(number), "2025-01-01T00:00:00+00:00", "kcg", {"x": "y" * 5000})):
            number += 1
except JournalError as error:
    print(number)
    print(error)
"""
    )
    done = python(program, cwd=tmp_path)
    count, line = done.stdout.splitlines()
    assert line.startswith("j.sqlite cannot be used (disk I/O error): ") and "(ulimit -f)" in line, done.stderr
    with Journal.open(tmp_path / "j.sqlite", read_only=True) as journal:
        assert len(journal.runs()) == int(count) > 0


def test_a_full_disk_is_reported_and_keeps_what_was_acknowledged(path: Path) -> None:
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
        out, errors = script(READ_ONLY, folder).communicate(timeout=PATIENCE_S)
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


# -- what older kcg called `wrong` where the reference could not tell

OLD_REASON = "cannot be judged: most outputs are not numbers (seed 0)"


def test_a_row_from_before_the_status_unjudged_is_read_as_unjudged(path: Path) -> None:
    wrong = measurement(1, status=Status.WRONG, samples_s=(), reason="element 7 of buffer 0 is 1, not 2 (seed 0)")
    old = measurement(2, status=Status.WRONG, samples_s=(), reason=OLD_REASON)
    new = measurement(3, status=Status.UNJUDGED, samples_s=(), reason="every output is 0 (seed 0)")
    with Journal.open(path) as journal:
        for row in (measurement(0), wrong, old, new):
            journal.record(row)
    with Journal.open(path, read_only=True) as journal:
        read = list(journal.measurements(1))
        assert read[1] == wrong and read[3] == new
        assert read[2] == replace(old, status=Status.UNJUDGED, reason="most outputs are not numbers (seed 0)")
        assert journal.has(old.key), "its identity is what it was"
        of = {
            status: list(journal.known(TARGET.fingerprint, TOOLCHAIN.fingerprint, 1, status=status))
            for status in Status
        }
    assert (of[Status.WRONG], of[Status.UNJUDGED]) == ([wrong], read[2:]) and of[Status.OK] == read[:1]


def test_only_wrong_rows_are_read_anew() -> None:
    assert status_and_reason("ok", OLD_REASON) == (Status.OK, OLD_REASON)
    assert status_and_reason("wrong", f"it said: {OLD_REASON}")[0] == Status.WRONG
    with pytest.raises(ValueError, match="great"):
        status_and_reason("great", "")
