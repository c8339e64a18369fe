"""Each part of the benchmark of a stranger's first minutes, with this environment in the place of a fresh one."""

from __future__ import annotations

import json
import shlex
import sys
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from evaluation import first_minutes
from evaluation.first_minutes import (
    PARTS,
    Settings,
    blocks_run,
    built,
    bytes_of,
    cloned,
    environment,
    first_measurement_s,
    found_pythons,
    has_row,
    inferred,
    install,
    runs,
    started,
)
from kcg.dataset.journal import Journal
from kcg.errors import KcgError
from tests.commands import ended
from tests.dataset.test_journal import fill
from tests.test_readme import ROOT, blocks, read
from tests.waiting import wait_until


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """As few of each as there may be; the checkout is found where a fresh environment would have a wheel."""
    return Settings(tmp_path, (Path(sys.executable),), rounds=1, schedules=4, environment={"PYTHONPATH": str(ROOT)})


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """A folder of commands like that of an environment: `python` and `kcg`."""
    folder = tmp_path / "commands"
    folder.mkdir()
    for name, module in (("python", ""), ("kcg", "-m kcg ")):
        (folder / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {module}"$@"\n')
        (folder / name).chmod(0o755)
    return folder / "python"


def test_what_is_released_is_of_the_commit_and_an_environment_begins_empty(tmp_path: Path) -> None:
    clone = cloned(tmp_path / "clone")
    assert (clone / "Makefile").is_file() and not (clone / ".venv").exists()
    released = built(clone, tmp_path / "dist")
    with zipfile.ZipFile(released.wheel) as wheel, tarfile.open(released.sdist) as sdist:
        assert "kcg/py.typed" in wheel.namelist()
        assert any(name.endswith("/kcg/py.typed") for name in sdist.getnames())
    made = environment(Path(sys.executable), tmp_path / "fresh")
    before = bytes_of(tmp_path / "fresh")
    (empty := tmp_path / "packages").mkdir()
    with pytest.raises(KcgError, match=r"ended with exit code 1: ERROR: No matching distribution found for \w+"):
        install(made, released.wheel, empty)
    assert bytes_of(tmp_path / "fresh") >= before > 0


def test_the_weight_of_a_folder_is_that_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "one").write_bytes(b"x" * 100)
    (tmp_path / "a" / "b" / "two").write_bytes(b"x" * 11)
    (tmp_path / "a" / "link").symlink_to(tmp_path / "a" / "one")
    assert bytes_of(tmp_path) == 111


def test_only_interpreters_that_are_here_are_tried() -> None:
    here = "{}.{}".format(*sys.version_info)
    found = found_pythons((here, "0.7"))
    assert len(found) <= 1 and all(path.is_file() for path in found)


def test_the_start_is_timed_in_a_folder_that_is_no_checkout(
    settings: Settings, python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    found = started(python, settings)
    assert found.keys() == {"import_ms", "help_ms"} and found["help_ms"] > 0


def test_predictions_are_timed_and_compared_where_nothing_loads_pytorch(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_minutes, "CORES", 1)
    found = inferred(Path(sys.executable), settings)
    assert found["candidates_per_s"] > 0 and 0 < found["inference_error"] <= 1e-5


DOCUMENT = """\
<!-- run -->
```bash
echo one > file
kcg --version
```

```bash
echo not marked; false
```

<!-- run -->
```python
import kcg

assert open("file").read() == "one\\n"
```

<!-- run -->
```bash
false
echo never
```
"""


def test_blocks_run_in_their_order_in_one_folder_and_failures_do_not_count(settings: Settings, python: Path) -> None:
    assert blocks_run(DOCUMENT, python, settings) == (3, 2)


def test_the_blocks_of_readme_are_those_that_its_test_runs() -> None:
    marked = [(block.language, block.text) for block in blocks(read("README.md")) if block.run]
    assert first_minutes.MARKED.findall(read("README.md")) == marked != []


def test_what_runs_and_what_does_not(settings: Settings, python: Path) -> None:
    assert runs(python, settings) == ""
    (python.parent / "kcg").write_text("#!/bin/sh\necho 'kcg: it is broken' >&2; exit 5\n")
    assert runs(python, settings) == "kcg --version: exit code 5: kcg: it is broken"
    nowhere = replace(settings, environment={"PYTHONPATH": str(settings.folder / "absent")})
    assert runs(python, nowhere).startswith("kcg --version: exit code ")


def test_a_first_measurement_is_the_first_row_of_a_journal(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    assert not has_row(path)
    path.touch()
    assert not has_row(path), "its tables are not there yet"
    with Journal.open(path) as journal:
        assert not has_row(path)
        fill(journal)
    assert has_row(path)


MAKEFILE = """\
optimize:
	@test "$$PIP_NO_INDEX" = 1 && mkdir -p kcg-out/flux && {command}
"""


def test_a_run_is_interrupted_once_it_has_measured(settings: Settings, tmp_path: Path) -> None:
    """A `make optimize` that is as quick as can be: it copies a journal, and goes on for ever."""
    clone = tmp_path / "clone"
    clone.mkdir()
    with Journal.open(tmp_path / "journal.sqlite") as journal:
        fill(journal)
    command = "cp ../journal.sqlite kcg-out/flux/journal.sqlite && echo $$$$ > pid && exec sleep 100000"
    (clone / "Makefile").write_text(MAKEFILE.format(command=command))
    assert isinstance(first_measurement_s(clone, tmp_path, settings), float)
    pid = int((clone / "pid").read_text())
    assert wait_until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    (clone / "kcg-out" / "flux" / "journal.sqlite").unlink()
    (clone / "Makefile").write_text(MAKEFILE.format(command="false"))
    with pytest.raises(KcgError, match="make optimize measured nothing in"):
        first_measurement_s(clone, tmp_path, settings)


def test_each_part_is_written_with_its_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Quick:
        """Parts that need no network."""

        def __init__(self, settings: Settings) -> None:
            assert settings.rounds == 3

    monkeypatch.setattr(first_minutes, "Bench", Quick)
    quick = {"start": lambda bench: {"import_ms": 1.0}, "pythons": lambda bench: {"wheel_pythons": 1, "pythons": {}}}
    monkeypatch.setattr(first_minutes, "PARTS", PARTS | quick)
    out = tmp_path / "first_minutes.json"
    for part in ("start", "pythons"):
        first_minutes.main(only=[part], python=[Path(sys.executable)], rounds=3, schedules=4, out=out)
    report = json.loads(out.read_text())
    assert report["headline"] == {"import_ms": 1.0, "wheel_pythons": 1}
    assert report["runs"].keys() == {"start", "pythons"}
    assert all(len(run["revision"]) == 40 and run["cores"] for run in report["runs"].values())


def test_a_part_that_does_not_exist_is_one_line() -> None:
    def run() -> None:
        first_minutes.main(only=["strat"], python=None, rounds=1, schedules=4, out=Path("absent.json"))

    done = ended(run)  # type: ignore[arg-type]
    assert done.returncode == 2 and "unknown part 'strat': did you mean start?" in done.stderr
    assert done.stderr.count("\n") == 1
