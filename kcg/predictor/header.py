"""The file of a checkpoint: its arrays, and by its header alone whether this kcg can use it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kcg.errors import DataError
from kcg.files import whole
from kcg.predictor.features import FEATURES_VERSION, Array

# ---- Named arrays and JSON in one file: safetensors, the JSON in its header under `kcg`. Nothing of it is executed.

KEY = "kcg"
MOST_BYTES = 5_000_000


def save_tensors(path: Path, tensors: Mapping[str, Array], header: dict[str, Any]) -> None:
    """Write arrays and what is told of them, whole or not at all. Raises DataError beyond `MOST_BYTES`."""
    from safetensors.numpy import save

    data = save(dict(tensors), {KEY: json.dumps(header, sort_keys=True)})
    if len(data) > MOST_BYTES:
        raise DataError(f"{path.name} would have {len(data)} bytes, more than {MOST_BYTES}: fewer or smaller networks")
    with whole(path) as temporary:
        temporary.write_bytes(data)


def as_stored(numbers: Mapping[str, Array], prefix: str = "") -> dict[str, Array]:
    """A network's numbers, rounded to 16 bits: ten bits of mantissa change a predicted runtime by less than 0.1 %.

    The scales of features stay as they are: they reach beyond what 16 bits can hold.
    """
    with np.errstate(over="ignore"):  # what 16 bits cannot hold is not finite, and refused when it is read
        return {
            f"{prefix}{name}": value.astype(np.float32 if name.endswith(("_mean", "_scale")) else np.float16)
            for name, value in numbers.items()
        }


def read_tensors(path: Path, noun: str, *, header_only: bool = False) -> tuple[Any, dict[str, Array]]:
    """What the file of a `noun` tells, None where it tells nothing, and its arrays; none by `header_only`. Raises
    DataError where it cannot be read."""
    from safetensors import SafetensorError, safe_open

    try:
        if (size := path.stat().st_size) > MOST_BYTES:
            raise DataError(f"{path} has {size} bytes, and no {noun} has more than {MOST_BYTES}")
        with safe_open(path, framework="numpy") as file:
            header = json.loads((file.metadata() or {}).get(KEY, "null"))
            return header, {name: file.get_tensor(name) for name in (() if header_only else file.keys())}
    except FileNotFoundError as error:
        raise DataError(f"there is no {noun} {path}") from error
    except (SafetensorError, OSError, ValueError, RecursionError, TypeError, AttributeError) as error:
        # the last two where a tensor is of a type that NumPy has not, such as bfloat16
        raise DataError(f"{path} cannot be read ({error}): train or download it again") from error


# ---- Whether a file is a checkpoint of a predictor that this kcg can use, by its header alone.

FORMAT = "kcg-predictor-1"


def check_file(path: Path) -> None:
    """Raises DataError where the file is no checkpoint, or one of another version of the features."""
    check_header(path, read_tensors(path, "checkpoint", header_only=True)[0])


def check_header(path: Path, header: Any) -> None:
    """The same for what the header of `path` tells."""
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise DataError(f"{path} is no checkpoint of a predictor ({FORMAT})")
    if header.get("features_version") != FEATURES_VERSION:
        raise DataError(
            f"{path} was trained on features of version {header.get('features_version')}, this kcg has version "
            f"{FEATURES_VERSION}: train again (python training/train_predictor.py), or use the shipped one"
        )
