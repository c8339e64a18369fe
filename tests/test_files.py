"""The promise of `kcg.files`: a file is seen whole or not at all, and what was there stays where writing fails.
A results file keeps what several processes add to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kcg.cli import record_results
from kcg.errors import UsageError
from kcg.files import lock_file, read_foreign, whole, write_whole
from tests.waiting import PATIENCE_S


@pytest.mark.parametrize("data", ["µs\n", b"\x00\xff"])
def test_what_is_written_is_there_and_nothing_beside_it(data: str | bytes, tmp_path: Path) -> None:
    path = tmp_path / "made" / "on the way" / "f.json"
    write_whole(path, "old, and longer than what follows")
    write_whole(path, data)
    assert path.read_bytes() == (data.encode() if isinstance(data, str) else data)
    assert [p.name for p in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("error", [OSError("no space"), KeyboardInterrupt()])
def test_what_was_there_stays_where_writing_ends_early(error: BaseException, tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    path.write_text("old")
    with pytest.raises(type(error)), whole(path) as temporary:
        temporary.write_text("ne")
        assert path.read_text() == "old"
        raise error
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"f.json": "old"}


def test_what_was_there_stays_where_the_process_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    path.write_text("old")
    script = (
        "import os, sys; from pathlib import Path; from kcg.files import whole\n"
        "with whole(Path(sys.argv[1])) as temporary: temporary.write_text('ne'); os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", script, str(path)], check=False).returncode == -9
    assert path.read_text() == "old"


@pytest.mark.parametrize("path", ["file/f.json", "folder"])
def test_a_place_that_cannot_be_written_is_one_line(path: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match=rf"cannot write .*{path}.*: choose a folder that can be written") as raised:
        write_whole(tmp_path / path, "text")
    assert os.linesep not in str(raised.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder"]


def test_no_pipe_or_device_is_replaced_by_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match=r"cannot write .*pipe: it is a device or a pipe"):
        write_whole(tmp_path / "pipe", "text")
    assert (tmp_path / "pipe").is_fifo() and [p.name for p in tmp_path.iterdir()] == ["pipe"]
    with pytest.raises(UsageError, match=r"cannot write \.: Is a directory"):
        write_whole(Path(), "text")


def test_what_two_write_at_once_is_all_kept(tmp_path: Path) -> None:
    path, inside, done = tmp_path / "results" / "found.json", threading.Event(), threading.Event()

    def slowly(headline: dict[str, Any]) -> dict[str, Any]:
        inside.set()
        done.wait(0.5)  # it has read the file; the other would write it now
        return {"sum": headline["a"]}

    def both(headline: dict[str, Any]) -> dict[str, Any]:
        return {"sum": headline["a"] + headline["b"]}

    first = threading.Thread(target=lambda: record_results(path, "first", {}, {"a": 1}, overall=slowly))
    first.start()
    assert inside.wait(PATIENCE_S)
    record_results(path, "second", {}, {"b": 2}, overall=both)
    done.set()
    first.join()
    report = json.loads(path.read_text())
    assert set(report["runs"]) == {"first", "second"} and report["headline"] == {"a": 1, "b": 2, "sum": 3}


def test_what_an_earlier_run_had_and_this_one_has_not_goes(tmp_path: Path) -> None:
    path = tmp_path / "found.json"

    def largest(headline: dict[str, Any]) -> dict[str, Any]:
        values = [value for key, value in headline.items() if key.startswith("cost_")]
        return {"cost": max(values)} if values else {}

    record_results(path, "small", {}, {"cost_small": 3, "time_small": 1}, overall=largest, ending="_small")
    record_results(path, "large", {}, {"time_large": 9}, overall=largest, ending="_large")
    assert json.loads(path.read_text())["headline"] == {"cost": 3, "cost_small": 3, "time_small": 1, "time_large": 9}
    record_results(path, "small", {}, {"time_small": 2}, overall=largest, ending="_small")
    assert json.loads(path.read_text())["headline"] == {"time_small": 2, "time_large": 9}


def test_one_at_a_time_has_the_lock_of_a_file_that_is_removed_at_the_end(tmp_path: Path) -> None:
    """Who waited for a lock has, at first, that of a file that its last holder removed."""
    path, inside, most = tmp_path / "a.lock", list[int](), list[int]()

    def take(number: int) -> None:
        for _ in range(40):
            with lock_file(path, wait=True) as held:
                assert held
                inside.append(number)
                time.sleep(0)
                most.append(len(inside))
                inside.remove(number)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(take, range(8)))
    assert (len(most), max(most)) == (320, 1)
    assert list(tmp_path.iterdir()) == []
    with lock_file(path) as held, lock_file(path) as again:
        assert held and not again and path.exists(), "who does not get it removes nothing"
    assert not path.exists()


def test_what_is_too_large_is_refused_by_its_size(tmp_path: Path) -> None:
    (tmp_path / "hole").touch()
    os.truncate(tmp_path / "hole", 3 << 30)
    tracemalloc.start()
    try:
        assert read_foreign(tmp_path / "hole", most_bytes=1 << 29) is None
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    (tmp_path / "link").symlink_to(tmp_path / "hole")
    with pytest.raises(OSError, match="link"):
        read_foreign(tmp_path / "link", most_bytes=10, follow=False)
