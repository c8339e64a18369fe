"""The promise of `kcg.files`: a file is seen whole or not at all, and what was there stays where writing fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kcg.errors import UsageError
from kcg.files import whole, write_whole


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
