"""Journals are joined whole: each row once, nothing from a journal that cannot be trusted, nothing half-written."""

from __future__ import annotations

import shutil
import sqlite3
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from kcg.dataset.export import export, merge, read_export
from kcg.dataset.journal import Journal
from kcg.errors import DataError, JournalError, MismatchError, UsageError
from kcg.types import canonical_json, content_id
from tests.dataset.test_journal import TARGET, TOOLCHAIN, fill, measurement


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
    with pytest.raises(UsageError, match="no journal can be created in"):
        merge([a], tmp_path / "bad.sqlite" / "none.sqlite")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.sqlite", "all.sqlite", "b.sqlite", "bad.sqlite"]


def test_a_journal_that_cannot_be_joined_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    with Journal.open(good := tmp_path / "good.sqlite") as journal:
        fill(journal)
    with Journal.open(tmp_path / "whole.sqlite") as journal:
        for i in range(300):
            journal.record(measurement(i))
    content = (tmp_path / "whole.sqlite").read_bytes()
    (tmp_path / "corrupt.sqlite").write_bytes(
        content[: len(content) // 2] + b"\x55" * 8192 + content[-len(content) // 4 :]
    )
    changes = {"tampered": "UPDATE measurements SET schedule_body = '[]'", "other": "PRAGMA user_version = 9"}
    for name, change in changes.items():
        shutil.copy(good, tmp_path / f"{name}.sqlite")
        connection = sqlite3.connect(tmp_path / f"{name}.sqlite")
        connection.execute(change)
        connection.commit()
        connection.close()
    before = sorted(tmp_path.iterdir())
    for name, line in (("corrupt", "is damaged"), ("tampered", "row 1 of measurements"), ("other", "has schema 9")):
        with pytest.raises(JournalError, match=line) as caught:
            merge([good, tmp_path / f"{name}.sqlite"], tmp_path / "out.sqlite")
        assert f"{name}.sqlite" in str(caught.value)
        assert "\n" not in str(caught.value)
        assert sorted(tmp_path.iterdir()) == before


def test_journals_of_several_targets_are_joined_unless_that_is_refused(tmp_path: Path) -> None:
    other = replace(TARGET, model="Another CPU", tensor_cores=())
    paths = [tmp_path / f"{name}.sqlite" for name in ("empty", "a", "b", "c")]
    for path, target in zip(paths, (None, TARGET, TARGET, other), strict=True):
        with Journal.open(path) as journal:
            if target is not None:
                journal.add_target(target)
                journal.add_toolchain(TOOLCHAIN)
                journal.add_lattice("region", target.fingerprint, TOOLCHAIN.fingerprint, f"lattice of {path.stem}")
                journal.record(measurement(target=target.fingerprint, run_id=path.stem))
    assert merge(paths[:3], tmp_path / "same.sqlite", same_target=True) == 2
    with pytest.raises(MismatchError) as caught:
        merge(paths, tmp_path / "all.sqlite", same_target=True)
    assert str(caught.value).startswith(f"{paths[3]} is of Another CPU (X86), {paths[1]} of A CPU (X86)")
    assert not (tmp_path / "all.sqlite").exists()
    assert merge(paths, tmp_path / "all.sqlite") == 3
    with Journal.open(tmp_path / "all.sqlite") as journal:
        assert len(journal.targets()) == 2
        assert journal.lattices(other.fingerprint, TOOLCHAIN.fingerprint) == {"region": "lattice of c"}


def test_a_target_that_was_stored_before_it_had_all_its_fields_keeps_its_id(tmp_path: Path) -> None:
    values = asdict(TARGET)
    del values["bandwidth_bytes_s"]
    old = content_id(values)
    with Journal.open(path := tmp_path / "old.sqlite") as journal:
        journal._insert("targets", (old, canonical_json(values)))
        journal.record(measurement(target=old))
    merge([path], tmp_path / "joined.sqlite")
    with Journal.open(tmp_path / "joined.sqlite") as journal:
        assert journal.targets() == {old: TARGET}
        export(journal, tmp_path / "out")
    assert read_export(tmp_path / "out").targets() == {old: TARGET}


def test_an_export_is_gone_on_with(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "a.sqlite") as journal:
        fill(journal)
        export(journal, tmp_path / "first")
    assert merge([tmp_path / "first"], tmp_path / "b.sqlite") > 0
    with Journal.open(tmp_path / "b.sqlite") as journal:
        export(journal, tmp_path / "second")
        journal.record(measurement(77))
    before, after = (read_export(tmp_path / name) for name in ("first", "second"))
    assert set(map(str, before.records(1))) == set(map(str, after.records(1)))
    assert before.workloads() == after.workloads() and before.targets() == after.targets()
    assert before.runs() == after.runs() and before.toolchains() == after.toolchains()
    (tmp_path / "first" / "measurements.parquet").write_bytes(b"x")
    with pytest.raises(DataError, match=r"measurements\.parquet"):
        merge([tmp_path / "first"], tmp_path / "c.sqlite")
    assert not (tmp_path / "c.sqlite").exists()
