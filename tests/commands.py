"""Commands of kcg: in this process, without the seconds of starting another one, and in one of their own."""

from __future__ import annotations

import contextlib
import io
import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from unittest import mock

import pytest

from kcg.cli import guarded
from kcg.errors import ExitCode


@dataclass(frozen=True)
class Ended:
    """How a command ended, under the names of `subprocess.CompletedProcess`."""

    returncode: int
    stdout: str
    stderr: str


def ended(main: Callable[[], ExitCode | None], *arguments: str | Path) -> Ended:
    """Run `main` as the command line would, with these arguments. For what leaves nothing behind in a process."""
    with (
        TemporaryFile("w+", buffering=1) as out,  # a process that it starts may write there too
        TemporaryFile("w+", buffering=1) as err,
        mock.patch.object(sys, "argv", ["kcg", *map(str, arguments)]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        with pytest.raises(SystemExit) as left:
            guarded(main)
        for stream in (out, err):
            stream.seek(0)
        return Ended(int(left.value.code or 0), out.read(), err.read())


def printed(script: Path) -> str:
    """What a script prints in this process, as tinygrad schedules it."""
    out = io.StringIO()
    with mock.patch.object(sys, "argv", [str(script)]), contextlib.redirect_stdout(out):
        runpy.run_path(str(script), run_name="__main__")
    return out.getvalue()


def folders_of(*modules: str) -> str:
    """The PYTHONPATH on which these modules are found, wherever they are installed, and nothing that is named there by
    a user."""
    places = (find_spec(module) for module in modules)
    return os.pathsep.join(dict.fromkeys(str(Path(str(p.origin)).parents[1]) for p in places if p is not None))


def python(
    *arguments: object, cwd: Path | None = None, stdin: str = "", timeout: float = 300.0, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Python in a process of its own, as a user starts it; `environment` is set beside what is here."""
    command, settings = [sys.executable, *map(str, arguments)], {**os.environ, **environment}
    return subprocess.run(
        command, cwd=cwd, input=stdin, env=settings, capture_output=True, text=True, timeout=timeout, check=False
    )
