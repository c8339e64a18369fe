"""The usual mistakes: each is one line with the way out and an exit code, before any device is opened."""

from __future__ import annotations

import ast
import json
from dataclasses import replace
from pathlib import Path

import pytest

import kcg
from kcg import commands
from kcg.__main__ import main
from kcg.compat import device
from kcg.errors import ExitCode
from kcg.measure.lock import lock_device
from kcg.measure.service import MeasureService
from kcg.report.result import to_dict, write_result
from tests.commands import ended, python
from tests.known_targets import KNOWN_TARGETS
from tests.sample_result import sample_result

ROOT = Path(kcg.__file__).parent.parent
USAGE, UNUSABLE = ExitCode.USAGE, ExitCode.DEVICE_UNUSABLE


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a user has: scripts, a notebook, and results of other machines and versions."""
    folder = tmp_path / "project" / "models"
    folder.mkdir(parents=True)
    (folder / "train.py").write_text("x = 1\n")
    (folder.parent / "above.py").write_text("x = 1\n")
    (folder / "study.ipynb").write_text("{}")
    (folder / "package.json").write_text('{"name": "something else"}')
    newer = {**to_dict(sample_result()), "schema": 999}
    (folder / "newer.json").write_text(json.dumps(newer))
    (folder / "cut.json").write_text(json.dumps(newer)[:1000])
    elsewhere = replace(sample_result(), target=replace(KNOWN_TARGETS["sm_90"], model="NVIDIA H200"), model_check=None)
    write_result(elsewhere, folder / "h200.json")
    write_result(elsewhere, folder / "kcg-out" / "train" / "RESULT.json")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(device, "has_cuda", lambda: False)

    def opened(*args: object, **settings: object) -> None:
        pytest.fail("the device was opened")

    monkeypatch.setattr(MeasureService, "__init__", opened)
    monkeypatch.setattr(commands, "_started", [])
    return folder


MISTAKES = {
    "wrong preset": ("optimize flux --preset mni", USAGE, ("unknown preset of flux 'mni'", "did you mean mini?")),
    "wrong preset in the name": ("optimize flux/1042", USAGE, ("unknown preset of flux", "did you mean 1024?")),
    "two presets": ("optimize flux/mini --preset 768", USAGE, ("flux/mini and --preset 768: name one preset",)),
    "typo in a workload": ("optimize fluks", USAGE, ("unknown workload 'fluks'", "did you mean flux?")),
    "typo in a command": ("optimise flux", USAGE, ("unknown command 'optimise'", "did you mean optimize?")),
    "typo in a nested command": ("dataset generat", USAGE, ("'generat'", "'generate'")),
    "typo in an option": ("optimize flux --budgt 60s", USAGE, ("--budgt", "--budget")),
    "no command": ("flux/mini", USAGE, ("write kcg optimize flux/mini",)),
    "nothing to optimise": ("optimize", USAGE, ("kcg list", "script")),
    "missing script": ("optimize trian.py", USAGE, ("there is no script trian.py", "did you mean train.py?")),
    "a name that steers a terminal": ("optimize no\x1b[31m.py", USAGE, (r"there is no script no\x1b[31m.py: ",)),
    "a name that is too long": (f"optimize {'n' * 300}.py", USAGE, ("cannot use nnn", "File name too long: check the")),
    "missing script of run": ("run --result h200.json trian.py", USAGE, ("did you mean train.py?",)),
    "budget 0": ("optimize flux --budget 0", USAGE, ("--budget '0' is not a positive time", "120s, 2m or 1h")),
    "no GPU": ("optimize flux --device CUDA", UNUSABLE, ("finds no GPU here", "use --device CPU")),
    "unknown search": ("optimize flux --search mctz", USAGE, ("unknown search strategy 'mctz'", "did you mean mcts?")),
    "ASTs without JSON": ("optimize flux --asts", USAGE, ("--asts says what --json prints: add --json",)),
    "a folder": ("optimize ../models", USAGE, ("../models is a folder", "give a script in it", "-m")),
    "a folder without a slash": ("optimize kcg-out", USAGE, ("kcg-out is a folder", "give a script in it")),
    "a notebook": ("optimize study.ipynb", USAGE, ("kcg.tune", "jupyter nbconvert --to script study.ipynb")),
    "no result": ("apply package.json", USAGE, ("package.json is not a result", "run the search again")),
    "a truncated result": ("apply cut.json", USAGE, ("cut.json is truncated", "run the search again")),
    "a result of another version": ("apply newer.json", USAGE, ("schema: 999", "run the search again")),
    "a result of another GPU": ("apply h200.json", USAGE, ("NVIDIA H200", "no GPU here", "run the search on this")),
    "a folder for a result": ("apply kcg-out/train", USAGE, ("is a folder", "kcg-out/train/RESULT.json")),
    "another folder, of a script": ("optimize above.py", USAGE, ("no script above.py", "did you mean ../above.py?")),
    "another folder, of a result": ("apply RESULT.json", USAGE, ("did you mean kcg-out/train/RESULT.json?",)),
    "no result at all": ("export a.txt --python m.py", USAGE, ("there is no a.txt", "give the RESULT.json")),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_usual_mistake_is_one_line_with_the_way_out(mistake: str, folder: Path) -> None:
    typed, code, says = MISTAKES[mistake]
    before = sorted(folder.rglob("*"))
    done = ended(main, *typed.split())
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert done.stderr.startswith("kcg: ") and done.stderr.count("\n") == 1, done.stderr
    assert [words for words in says if words not in done.stderr] == [], done.stderr
    assert sorted(folder.rglob("*")) == before, "nothing was written"


def test_a_busy_device_is_one_line_with_the_way_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "has_cuda", lambda: True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", str(folder))  # a lock of this test's own
    before = sorted(folder.rglob("*"))
    with lock_device("CUDA"):
        done = ended(main, "optimize", "flux/mini", "--device", "CUDA", "--quiet")
    assert (done.returncode, done.stdout) == (UNUSABLE, "")
    assert done.stderr.startswith("kcg: another optimisation uses CUDA (process ") and done.stderr.count("\n") == 1
    assert done.stderr.endswith("wait until it ends, or add --wait\n")
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("version", [(3, 10), (3, 7)])
def test_an_old_python_is_one_line_with_the_way_out(
    version: tuple[int, int], capsys: pytest.CaptureFixture[str]
) -> None:
    line = "kcg needs Python 3.11 or later, and this is {}.{}: make an environment with a newer one".format(*version)
    with pytest.raises(SystemExit) as left:
        kcg._check_python(version, ["-m", "flux"])
    assert left.value.code == USAGE and capsys.readouterr().err == f"kcg: {line}\n"
    with pytest.raises(ImportError, match=line):
        kcg._check_python(version, ["program.py"])
    kcg._check_python((3, 11), ["-m"])


def test_an_old_python_can_read_what_refuses_it_and_pip_knows_the_limit() -> None:
    ast.parse((ROOT / "kcg/__init__.py").read_text(encoding="utf-8"), feature_version=(3, 7))
    assert 'requires-python = ">=3.11"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_a_command_of_an_old_python_ends_before_it_reads_anything_newer(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.version_info = (3, 10, 0)\n")
    done = python("-m", "kcg.optimize", "flux", PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert done.returncode == USAGE and done.stderr.startswith("kcg: kcg needs Python 3.11"), done.stderr
    assert done.stderr.count("\n") == 1
