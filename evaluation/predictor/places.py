"""Where the evaluations of the predictor read and write, and how they are named in results."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
RESULTS = HERE.parent / "results"
CHECKPOINTS = HERE / "checkpoints"  # those of the other splits, and of the baselines
SHIPPED = ROOT / "kcg" / "predictor" / "checkpoints" / "cuda.safetensors"
DOCUMENT = ROOT / "docs" / "predictor.md"
WORK = ROOT / "kcg-out"  # what is being trained


def command(name: str) -> str:
    """The command line of this process, a module of this package."""
    return shlex.join(["python", "-m", f"evaluation.predictor.{name}", *sys.argv[1:]])
