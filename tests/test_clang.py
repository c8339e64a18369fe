"""Importing kcg lets plain tinygrad find the clang of the wheel `ziglang` where it finds none, unless told not to."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from tests.commands import python
from tests.without_clang import HIDE

SAYS = "import os, kcg; print(repr(os.environ.get('CC')))"


def said(folder: Path, code: str = SAYS, **settings: str) -> str:
    """What a process prints that finds no compiler but that of a wheel."""
    environment = {"PATH": str(folder / "bin"), "XDG_CACHE_HOME": str(folder / "cache"), **settings}
    script = f"import os; 'CC' in {sorted(settings)!r} or os.environ.pop('CC', None); {code}"
    done = python("-c", script, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="needs the wheel ziglang: pip install ziglang")
def test_plain_tinygrad_computes_after_kcg_is_imported(tmp_path: Path) -> None:
    """Also where it tried before, and found no clang; and what is printed for other processes still names it."""
    code = """
from tinygrad import Tensor
def compute(): return (Tensor([1.0, 2.0]) + 1).tolist()
try: compute()
except Exception as error: print(type(error).__name__)
import os, kcg
print(compute(), os.environ['CC'])
from kcg.compat.device import clang_of_others, clang_of_tinygrad
print(clang_of_others(), clang_of_tinygrad() == os.environ['CC'])
"""
    script = tmp_path / "script.py"
    script.write_text(code)
    run = f"import runpy; runpy.run_path({str(script)!r})"
    failed, computed, others = said(tmp_path, run, DEV="CPU:CLANG", CACHEDB=str(tmp_path / "db")).splitlines()
    assert failed.endswith("Error")
    assert computed.startswith(f"[2.0, 3.0] {tmp_path}/cache/kcg/clang-")
    assert others == "None True"


def test_who_has_set_cc_is_left_alone(tmp_path: Path) -> None:
    for cc in ("clang", "gcc", ""):
        assert said(tmp_path, CC=cc) == repr(cc)
    assert not (tmp_path / "cache").exists()


def test_a_clang_on_the_path_is_what_tinygrad_takes(tmp_path: Path) -> None:
    clang = tmp_path / "bin" / "clang"
    clang.parent.mkdir()
    clang.write_text("#!/bin/sh\necho clang version 14\n")
    clang.chmod(0o755)
    assert said(tmp_path) == "None"


def test_without_the_wheel_nothing_is_set(tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(HIDE)
    paths = os.pathsep.join([str(hidden), os.environ.get("PYTHONPATH", "")])
    assert said(tmp_path, PYTHONPATH=paths) == "None"
