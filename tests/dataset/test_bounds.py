"""A Parquet file that becomes far larger than any of its size that kcg writes is refused before it is read."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from kcg.dataset import bounds
from kcg.dataset.bounds import BYTES, VALUES, OutOfProportion, check_bounds
from kcg.dataset.columns import METADATA
from kcg.errors import DataError
from kcg.search.replay import read_tables
from tests.dataset.test_export import exported, put
from tests.waiting import waited

ROOT = Path(__file__).parents[2]
MILLION = 1_000_000
SMALL = 16_384  # another number that takes three bytes in a file's description of itself


def timings(rows: int, samples: list[Any]) -> Any:
    launches = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array(["[[1],[1]]"]))
    columns = {
        "launch": launches,
        "samples_s": pa.array(samples, pa.list_(pa.float32())),
        "binary_hash": pa.nulls(rows, pa.binary(8)),
    }
    return pa.table(columns).replace_schema_metadata(METADATA)


def kernels(path: Path, text: str, rows: int) -> Any:
    """So many kernels that all have one long text."""
    one = parquet.read_table(path).slice(0, 1)
    many = one.take(pa.array([0] * rows))
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array([text]))
    return many.set_column(many.column_names.index("ast_json"), "ast_json", texts)


def zigzag(number: int) -> bytes:
    """A number as Thrift's compact protocol writes it."""
    number, found = 2 * number, bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def written(path: Path, table: Any, **how: Any) -> Path:
    parquet.write_table(table, path, **{"compression": "zstd", **how})
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    exported(tmp_path / "journal.sqlite", tmp_path / "out")
    return tmp_path / "out"


def assert_refused(folder: Path, name: str, content: Path, says: str) -> None:
    assert content.stat().st_size < 40_000
    export = put(folder, name, content.read_bytes())
    before = pa.total_allocated_bytes()
    with pytest.raises(DataError, match=rf"{name} cannot be read \([\d,]+ bytes .*{says}.*\): export again$") as caught:
        list(export.records(1)) if name != "kernels.parquet" else export.kernels()
    assert "\n" not in str(caught.value) and pa.total_allocated_bytes() - before < 2 * BYTES


def test_a_million_equal_rows(folder: Path, tmp_path: Path) -> None:
    bomb = written(tmp_path / "bomb", timings(MILLION, [[]] * MILLION))
    assert_refused(folder, "timings.parquet", bomb, "1,000,000 rows")


def test_one_row_with_a_list_of_a_million(folder: Path, tmp_path: Path) -> None:
    bomb = written(tmp_path / "bomb", timings(1, [[1e-5] * MILLION]))
    assert_refused(folder, "timings.parquet", bomb, r"1,000,000 values of samples_s")


def test_what_a_file_says_of_itself_is_not_believed(folder: Path, tmp_path: Path) -> None:
    """The same list, in a file whose description says that there are few values: its pages say how many."""
    bomb = written(tmp_path / "bomb", timings(1, [[1e-5] * MILLION]))
    content = bomb.read_bytes()
    place = len(content) - 8 - int.from_bytes(content[-8:-4], "little")  # where the description begins
    assert content.count(zigzag(MILLION), place)
    bomb.write_bytes(content[:place] + content[place:].replace(zigzag(MILLION), zigzag(SMALL)))
    chunk = parquet.ParquetFile(bomb).metadata.row_group(0).column(1)
    assert chunk.num_values == SMALL < VALUES
    assert_refused(folder, "timings.parquet", bomb, r"1,000,000 values of samples_s")


@pytest.mark.slow
def test_one_text_of_megabytes(folder: Path, tmp_path: Path) -> None:
    bomb = written(tmp_path / "bomb", kernels(folder / "kernels.parquet", "x" * (BYTES + (16 << 20)), 1))
    assert_refused(folder, "kernels.parquet", bomb, "more than 64 MB")


def test_a_long_text_that_many_rows_share(folder: Path, tmp_path: Path) -> None:
    """A thousand rows, a megabyte of text: a gigabyte where each row gets its own."""
    bomb = written(tmp_path / "bomb", kernels(folder / "kernels.parquet", "x" * (1 << 20), 1000))
    assert_refused(folder, "kernels.parquet", bomb, "more than 64 MB")


def test_texts_that_are_stored_as_their_differences(folder: Path, tmp_path: Path) -> None:
    rows, one = 800, parquet.read_table(folder / "measurements.parquet").slice(0, 1)
    many = one.take(pa.array([0] * rows))
    bodies = pa.array(["x" * 100_000] * rows)
    table = many.set_column(many.column_names.index("schedule_body"), "schedule_body", bodies)
    how = {"use_dictionary": [n for n in many.column_names if n != "schedule_body"]}
    bomb = written(tmp_path / "bomb", table, column_encoding={"schedule_body": "DELTA_BYTE_ARRAY"}, **how)
    assert_refused(folder, "measurements.parquet", bomb, "more than 64 MB")


def test_replay_tables_have_bounds_too(tmp_path: Path) -> None:
    columns = {name: ["x"] for name in ("region_id", "target", "toolchain", "table")}
    written(tmp_path / "replay.parquet", pa.table({**columns, "actions": [["x"] * MILLION]}))
    with pytest.raises(DataError, match=r"replay\.parquet cannot be read \(.* values of actions"):
        read_tables(tmp_path)


@pytest.mark.parametrize("cut", range(4, 120, 7))
def test_pages_that_are_damaged_are_one_line(folder: Path, tmp_path: Path, cut: int) -> None:
    """Whatever stands where the header of a page should be, looking at it ends, with a ValueError or with none."""
    path = folder / "timings.parquet"
    content = bytearray(path.read_bytes())
    content[cut] ^= 0xFF
    content[cut + 1] = 0xFC
    (tmp_path / "damaged").write_bytes(content)
    try:
        check_bounds(tmp_path / "damaged")
    except (ValueError, OSError) as error:
        assert str(error) and "\n" not in str(error)


@pytest.mark.parametrize("path", sorted((ROOT / "datasets").rglob("*.parquet")), ids=lambda path: path.name)
def test_the_datasets_are_far_from_the_bounds(path: Path) -> None:
    check_bounds(path)
    with parquet.ParquetFile(path) as file:
        metadata, size = file.metadata, path.stat().st_size
    assert 8 * metadata.num_rows < VALUES + size
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    assert sum(group.total_byte_size for group in groups) < (BYTES + 100 * size) / 2


def test_a_child_that_died_is_replaced_and_one_that_hangs_is_ended(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_bounds(folder / "kernels.parquet")
    first = bounds._child
    assert first is not None
    first.kill()
    waited(lambda: first.poll() is not None)
    check_bounds(folder / "timings.parquet")
    second = bounds._child
    assert second is not None and second is not first
    os.kill(second.pid, signal.SIGSTOP)
    monkeypatch.setattr(bounds, "SECONDS", 0.1)
    with pytest.raises(OutOfProportion, match=r"bytes that take more than 0 s to read$"):
        check_bounds(folder / "measurements.parquet")
    assert second.returncode == -signal.SIGKILL


def test_the_child_ends_with_the_process_that_asks(folder: Path) -> None:
    code = (
        "import os, sys, pathlib; from kcg.dataset import bounds; bounds.check_bounds(pathlib.Path(sys.argv[1])); "
        "print(bounds._child.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(folder / "kernels.parquet")], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL and done.stderr == ""
    waited(lambda: is_gone(int(done.stdout)))


def is_gone(pid: int) -> bool:
    """Whether a process ended, though nobody buried it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_out_of_proportion_is_a_value_error() -> None:
    """Readers of files take it for damage."""
    assert issubclass(OutOfProportion, ValueError)
