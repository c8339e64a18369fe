"""What `make` says of `PYTHON` and of its own steps, with stand-ins for what it installs and runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
INSTALLED = (".created", ".installed-core", ".installed-clang", ".installed-dev")
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The Makefile with an environment of this Python in which all is installed, and does nothing."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    for name in INSTALLED:
        (tmp_path / ".venv" / name).touch()
    program(tmp_path / ".venv/bin/python", f'case "$1" in -c) exec {sys.executable} "$@";; esac')
    for name in ("ruff", "mypy"):
        program(tmp_path / ".venv/bin" / name, "exit 0")
    return tmp_path


def program(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def make(checkout: Path, *words: str) -> str:
    """What it prints, all of it."""
    settings = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "PYTHON"))}
    done = subprocess.run(
        ["make", *words], cwd=checkout, env=settings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_an_environment_that_keeps_another_python_is_reported_once(checkout: Path) -> None:
    other = program(checkout / "python-other", "echo 3.12.1 of /somewhere/else")
    line = f"kcg: .venv keeps its Python, {'.'.join(map(str, sys.version_info[:3]))} of {sys.base_prefix}, whatever"
    assert make(checkout, "test", f"PYTHON={other}").count(line) == 1
    assert make(checkout, "help", "PYTHON=no-such-python").startswith(line)
    for words in (["help"], ["help", f"PYTHON={sys.executable}"]):
        assert "keeps its Python" not in make(checkout, *words)


def test_a_python_that_is_too_old_to_make_the_environment_is_reported(checkout: Path) -> None:
    shutil.rmtree(checkout / ".venv")
    old = program(checkout / "python-old", "exit 1")
    new = program(checkout / "python3", f'[ "$2" = venv ] && exit 3; exec {sys.executable} "$@"')
    settings = {**os.environ, "PATH": f"{new.parent}:{os.environ['PATH']}"}
    command = ["make", ".venv/.created", f"PYTHON={old}"]
    done = subprocess.run(command, cwd=checkout, env=settings, capture_output=True, text=True, check=False)
    assert f"kcg: PYTHON={old} is no Python 3.11 or newer, so another one is looked for" in done.stderr
    assert "kcg: python3 cannot make a virtual environment" in done.stderr and done.returncode == 2


def test_the_tests_are_run_without_misleading_lines(checkout: Path) -> None:
    lines = make(checkout, "test").splitlines()
    assert lines[0].startswith("kcg: ruff, mypy, the tests of faults")
    assert [line for line in lines if line.startswith("+") or "Nothing to be done" in line] == []
