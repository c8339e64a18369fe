"""A made-up kernel of a table, what strategies replay on such kernels, and the board of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from evaluation.search.comparison import Bench, Settings, replay_all
from evaluation.search.regret import Board
from kcg.search.replay import NamedTable, RecordedKernel, ReplayTable
from kcg.types import Kernel, Region
from tests.known_targets import KNOWN_TARGETS

ROOT = Path(__file__).parents[3]
CHECKPOINT = ROOT / "kcg" / "predictor" / "checkpoints" / "cuda.safetensors"
FEW = Settings(contenders=("random", "mcts/oracle"), default="mcts/oracle", beams=(1, 2), seeds=3, budget=16)


def recorded(table: ReplayTable, *, calls: int = 1, name: str = "k") -> RecordedKernel:
    """A table as that of some kernel; nothing looks at the kernel itself unless a checkpoint predicts."""
    region = Region((Kernel(json.dumps({"made up": name})),))
    target = KNOWN_TARGETS["sm_90"]
    return RecordedKernel(NamedTable(region.id, target.fingerprint, "", (), table), region, target, "made", calls=calls)


def board(settings: Settings, kernels: Sequence[RecordedKernel]) -> Board:
    return Board(kernels, [replay_all(Bench(kernel, None), settings, {}) for kernel in kernels], settings)
