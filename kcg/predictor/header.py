"""Whether a file is a checkpoint of a predictor that this kcg can use, by its header alone: no torch is imported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kcg.errors import DataError
from kcg.predictor.features import FEATURES_VERSION
from kcg.predictor.tensors import read_tensors

FORMAT = "kcg-predictor-1"


def check_file(path: Path) -> None:
    """Raises DataError where the file is no checkpoint, or one of another version of the features."""
    check_header(path, read_tensors(path, "checkpoint", header_only=True)[0])


def check_header(path: Path, told: Any) -> None:
    """The same for what the header of `path` tells."""
    if not isinstance(told, dict) or told.get("format") != FORMAT:
        raise DataError(f"{path} is no checkpoint of a predictor ({FORMAT})")
    if told.get("features_version") != FEATURES_VERSION:
        raise DataError(
            f"{path} was trained on features of version {told.get('features_version')}, this kcg has version "
            f"{FEATURES_VERSION}: train again (python training/train_predictor.py), or use the shipped one"
        )
