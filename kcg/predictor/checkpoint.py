"""Trained predictors as files: the numbers of networks and trees as safetensors, everything else as JSON beside them.

One file holds both: the JSON stands in the header of the safetensors file under `kcg`. Nothing of a file is executed.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kcg.errors import DataError
from kcg.predictor.features import FEATURES_VERSION
from kcg.predictor.gnn import Net, NetSettings
from kcg.predictor.header import FORMAT, check_header
from kcg.predictor.tensors import as_stored, read_tensors, save_tensors
from kcg.predictor.trees import Trees

MOST_HIDDEN, MOST_LAYERS = 1024, 16
TREES = "trees"


@dataclass(frozen=True)
class About:
    """What a checkpoint says of itself."""

    name: str
    targets: tuple[dict[str, Any], ...]  # fingerprint, model, device and renderer of each that it was trained on
    datasets: tuple[tuple[str, str], ...]  # checksums of the files that it was trained on
    split: str  # whose validation and test parts it never saw
    operations: tuple[str, ...]  # every operation that a kernel of its training part has
    tree_share: float = 0.0  # of the ranking; the rest is that of the networks
    spread_scale: float = 1.0  # by which expected errors are multiplied: fitted on the validation part
    metrics: dict[str, float] = field(default_factory=dict)  # on the validation part
    revision: str = ""  # of the code
    settings: dict[str, Any] = field(default_factory=dict)  # of the training
    dirty: bool | None = None  # whether the code differed from its revision; None: written before that was kept


@dataclass(frozen=True)
class Checkpoint:
    """Networks that are averaged, and trees beside them."""

    about: About
    nets: tuple[Net, ...]
    trees: Trees | None


def save(checkpoint: Checkpoint, path: Path) -> None:
    """Write a checkpoint, whole or not at all, its weights rounded. Raises DataError where it is too large."""
    tensors: dict[str, Tensor] = {}
    for i, net in enumerate(checkpoint.nets):
        tensors |= as_stored(net.state_dict(), f"net{i}.")
    if checkpoint.trees is not None:
        tensors[TREES] = torch.frombuffer(bytearray(checkpoint.trees.packed()), dtype=torch.uint8)
    told = {
        "format": FORMAT, "features_version": FEATURES_VERSION, "about": asdict(checkpoint.about),
        "nets": [asdict(net.settings) for net in checkpoint.nets],
    }  # fmt: skip
    save_tensors(path, tensors, told)


def read(path: Path) -> Checkpoint:
    """A checkpoint. Raises DataError where it cannot be read, or is of another version of the features."""
    told, tensors = read_tensors(path, "checkpoint")
    check_header(path, told)
    try:
        nets = tuple(_net(NetSettings(**s), tensors, f"net{i}.") for i, s in enumerate(told["nets"]))
        trees = Trees.unpacked(tensors[TREES].numpy().tobytes()) if TREES in tensors else None
        about = told["about"]
        for name in ("targets", "operations"):
            about[name] = tuple(about[name])
        about["datasets"] = tuple((name, value) for name, value in about["datasets"])
        return Checkpoint(About(**about), nets, trees)
    except (KeyError, TypeError, ValueError, RuntimeError, AssertionError) as error:
        raise DataError(f"{path} does not hold what it says ({str(error).splitlines()[0]}): train it again") from error


def _net(settings: NetSettings, tensors: dict[str, Tensor], prefix: str) -> Net:
    if not (1 <= settings.hidden <= MOST_HIDDEN and 0 <= settings.layers <= MOST_LAYERS):
        raise ValueError(f"a network of {settings.layers} layers of {settings.hidden}")
    with torch.device("meta"):  # nothing is allocated for numbers that are not in the file
        net = Net(settings)
    held = {k.removeprefix(prefix): v.float() for k, v in tensors.items() if k.startswith(prefix)}
    if not all(bool(value.isfinite().all()) for value in held.values()):
        raise ValueError("weights that are not numbers")
    net.load_state_dict(held, assign=True)
    return net.eval()
