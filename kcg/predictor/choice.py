"""Which predictor guides: the shipped one of the target, the analytic one, or that of a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kcg.errors import UsageError
from kcg.types import Target

if TYPE_CHECKING:
    from kcg.predictor.interface import Predictor

AUTO, ROOFLINE = "auto", "roofline"
SHIPPED = Path(__file__).parent / "checkpoints"


def shipped_path(target: Target) -> Path:
    """The checkpoint inside the package that was trained on this target, or on one of its kind."""
    return SHIPPED / f"{target.device.lower()}.safetensors"


def check_choice(choice: str) -> str:
    """`auto`, `roofline`, or the path of a checkpoint that is there. Raises UsageError."""
    if choice not in (AUTO, ROOFLINE) and not Path(choice).is_file():
        raise UsageError(f"--predictor {choice}: write auto, roofline, or the path of a checkpoint (.safetensors)")
    return choice


def choose_predictor(choice: str, target: Target) -> Predictor:
    """`auto` is what comes with kcg for the target's kind of device, and the analytic one where nothing does.

    Raises DataError where a checkpoint cannot be used.
    """
    path = shipped_path(target) if choice == AUTO else Path(choice)
    if choice == ROOFLINE or (choice == AUTO and not path.is_file()):
        from kcg.predictor.roofline import Roofline

        return Roofline()
    from kcg.predictor.checkpoint import read  # seconds: it imports torch
    from kcg.predictor.learned import LearnedPredictor

    return LearnedPredictor(read(path))
