"""Without the extra `train` the scripts of training/ say in one line what to install."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcg.cli import pip_install
from kcg.errors import ExitCode
from tests.commands import python

WITHOUT = """
import runpy, sys
sys.modules[sys.argv[1]] = None
del sys.argv[:2]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
TRAINING = Path(__file__).parents[2] / "training"


@pytest.mark.parametrize(
    ("script", "package"), [("train_policy.py", "sb3_contrib"), ("tune_predictor.py", "optuna")], ids=lambda one: one
)
def test_a_script_says_what_to_install(script: str, package: str, tmp_path: Path) -> None:
    done = python("-c", WITHOUT, package, TRAINING / script, "--data", tmp_path, "--out", tmp_path / "out")
    assert (done.returncode, done.stdout) == (ExitCode.USAGE, "")
    assert done.stderr.count("\n") == 1 and f"needs {package}" in done.stderr and pip_install("train") in done.stderr
    assert not (tmp_path / "out").exists()
