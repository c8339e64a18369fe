"""Trained predictors as files: the numbers of networks as safetensors, everything else as JSON beside them.

One file holds both: the JSON stands in the header of the safetensors file under `kcg`. Nothing of a file is executed.
Files of before may hold gradient-boosted trees beside the networks, which were blended with them: these are left out.
"""

from __future__ import annotations

import itertools
import logging
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kcg.errors import DataError
from kcg.predictor.features import FEATURES_VERSION, Array
from kcg.predictor.header import FORMAT, as_stored, check_header, read_tensors, save_tensors
from kcg.predictor.network import NetSettings, Network, checked, settings_of, shapes

log = logging.getLogger(__name__)

TREES, TREE_SHARE = "trees", "tree_share"  # of files of before: the tensor, and what `about` says of it


@dataclass(frozen=True)
class About:
    """What a checkpoint says of itself."""

    name: str
    targets: tuple[dict[str, Any], ...]  # fingerprint, model, device and renderer of each that it was trained on
    datasets: tuple[tuple[str, str], ...]  # checksums of the files that it was trained on
    split: str  # whose validation and test parts it never saw
    operations: tuple[str, ...]  # every operation that a kernel of its training part has
    spread_scale: float = 1.0  # by which expected errors are multiplied: fitted on the validation part
    metrics: dict[str, float] = field(default_factory=dict)  # on the validation part
    revision: str = ""  # of the code
    settings: dict[str, Any] = field(default_factory=dict)  # of the training
    dirty: bool | None = None  # whether the code differed from its revision; None: written before that was kept
    since: str = ""  # what was done to it after its training, and by which revision
    trust: float = 1.0  # how much counts of what networks say against their kind's formula: chosen on validation


@dataclass(frozen=True)
class Checkpoint:
    """Networks that are averaged, one at least."""

    about: About
    nets: tuple[Network, ...]


def save(checkpoint: Checkpoint, path: Path) -> None:
    """Write a checkpoint, whole or not at all, its weights rounded. Raises DataError where it is too large."""
    tensors: dict[str, Array] = {}
    for i, net in enumerate(checkpoint.nets):
        tensors |= as_stored(net.numbers, f"net{i}.")
    header = {
        "format": FORMAT,
        "features_version": FEATURES_VERSION,
        "about": asdict(checkpoint.about),
        "nets": [asdict(net.settings) for net in checkpoint.nets],
    }
    save_tensors(path, tensors, header)


def read(path: Path) -> Checkpoint:
    """A checkpoint. Raises DataError where it cannot be read, is of another version of the features, or has no network
    that this kcg knows."""
    header, tensors = read_tensors(path, "checkpoint")
    check_header(path, header)
    try:
        nets = tuple(_net(settings_of(s), tensors, f"net{i}.") for i, s in enumerate(header["nets"]))
        found = Checkpoint(_about(dict(header["about"])), nets)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path} does not hold what it says ({str(error).splitlines()[0]}): train it again") from error
    if not nets:
        held = "gradient-boosted trees alone, which this kcg has no use for" if TREES in tensors else "no network"
        raise DataError(f"{path} holds {held}: train networks (python training/train_predictor.py)")
    if TREES in tensors:
        log.warning("%s holds gradient-boosted trees, which this kcg leaves out: its networks predict alone", path)
    return found


def _about(given: dict[str, Any]) -> About:
    """What the header of a file tells. Raises TypeError and ValueError where it is not what `About` says."""
    given.pop(TREE_SHARE, None)
    for name in ("targets", "operations"):
        given[name] = tuple(given[name])
    given["datasets"] = tuple((name, value) for name, value in given["datasets"])
    about = About(**given)
    check_about(about, about.since, *about.operations, *(target["fingerprint"] for target in about.targets))
    if not (isinstance(about.spread_scale, int | float) and 0 < about.spread_scale < math.inf):
        raise ValueError(f"errors that are multiplied by {about.spread_scale!r}")
    if not (isinstance(about.trust, int | float) and 0 <= about.trust <= 1):
        raise ValueError(f"networks that are trusted by {about.trust!r}")
    return about


def check_about(about: Any, *words: object) -> None:
    """Raises ValueError where what any checkpoint says of itself is not what it has to be, nor further `words`."""
    words += (about.name, about.split, about.revision, *itertools.chain(*about.datasets))
    if not all(isinstance(word, str) for word in words):
        raise ValueError("a name that is no word")
    if not (isinstance(about.metrics, dict) and isinstance(about.settings, dict)):
        raise ValueError("metrics or settings without names")
    if not isinstance(about.dirty, bool | None):
        raise ValueError(f"code that is {about.dirty!r}")


def _net(settings: NetSettings, tensors: dict[str, Array], prefix: str) -> Network:
    held = {name.removeprefix(prefix): values for name, values in tensors.items() if name.startswith(prefix)}
    return Network(settings, checked(held, shapes(settings)))
