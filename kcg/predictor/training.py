"""Training a whole predictor from a dataset: several networks, how sure they are together, and the checkpoint.

Every step leaves its work in the folder of the training, so that the same command goes on where it was cut. With
several devices each trains its own networks: they are too small for one to be spread over several GPUs (a step takes
milliseconds, most of it launches), and members of an ensemble need nothing of one another.
"""

from __future__ import annotations

import itertools
import json
import logging
import math
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from kcg.dataset.reading import Export, read_export
from kcg.dataset.splits import PARTS, SPLITS, TRAIN
from kcg.errors import DataError, DeviceError, UsageError
from kcg.files import write_whole
from kcg.measure.target import usable_cores
from kcg.predictor.checkpoint import About, Checkpoint, save
from kcg.predictor.context import operations_of
from kcg.predictor.data import TrainingData, load
from kcg.predictor.ensemble import averaged, said_by, spread_scale, validation_rows
from kcg.predictor.features import FEATURES_VERSION
from kcg.predictor.fit import Fit, FitSettings, judge
from kcg.predictor.floors import floors_of
from kcg.predictor.gnn import Net
from kcg.predictor.metrics import Floors
from kcg.predictor.settings import TrainingSettings, names_of
from kcg.predictor.tensors import MOST_BYTES
from kcg.predictor.tracking import Tracker, Tracking
from kcg.predictor.workers import dataset_of, workers
from kcg.provenance import provenance

log = logging.getLogger(__name__)

CHECKPOINT, TRAINING = "predictor.safetensors", "training.json"


@dataclass(frozen=True)
class Trained:
    """What a training gave."""

    path: Path
    about: About

    def line(self) -> str:
        """One line for the user."""
        shown = ("pairwise", "kendall_tau", "top1", "failure_auc")
        metrics = self.about.metrics
        figures = ", ".join(f"{name} {metrics[name]:.3f}" for name in shown if name in metrics)
        return (
            f"{self.path}: {self.path.stat().st_size / 1e6:.1f} MB, spread × {self.about.spread_scale:.2f}; "
            f"validation: {figures or 'no rows'}"
        )


@dataclass(frozen=True)
class _Member:
    """One network to train."""

    data: Path
    folder: Path
    settings: FitSettings
    floors: Floors
    device: str
    tracking: Tracking


def devices_of(text: str) -> tuple[str, ...]:
    """The devices that `auto`, `cpu`, `cuda`, or a list such as `cuda:0,cuda:2` means; one process trains on each.

    `auto` is every GPU, and the CPU where there is none; `cuda` every GPU. Raises UsageError and DeviceError.
    """
    gpus = tuple(f"cuda:{i}" for i in range(torch.cuda.device_count()))
    if text == "auto":
        return gpus or ("cpu",)
    wanted = [name for one in text.split(",") for name in ((gpus or ("cuda",)) if one == "cuda" else (one,))]
    for name in wanted:
        if name == "cpu" or name in gpus:
            continue
        if name == "cuda" or (name.startswith("cuda:") and name[5:].isdigit()):
            raise DeviceError(f"--device {text}: PyTorch finds {len(gpus)} GPUs here: use cpu, or auto")
        raise UsageError(f"--device {text!r} is no device: choose auto, cpu, cuda, or for example cuda:0,cuda:1")
    return tuple(wanted)


def train(
    data: Path, out: Path, settings: TrainingSettings, *, devices: Sequence[str] = ("cpu",), wandb: str = "disabled",
    name: str = "",
) -> Trained:  # fmt: skip
    """Train on an export, or go on with it, and write `out/predictor.safetensors`.

    `metrics.jsonl` of `out` tells each stage, that of `out/member-N` each epoch of a network. Raises DataError where
    the export cannot be read, has nothing to train on, or `out` holds a training of other settings, and UsageError
    where the checkpoint would be too large.
    """
    export = read_export(data)
    rows = load(data, say=log.info)
    floors = floors_of(export)
    config = {"settings": names_of(settings), "datasets": dict(rows.checksums), **provenance(),
              "features_version": FEATURES_VERSION}  # fmt: skip
    _claim(out, settings, rows)
    tracking = Tracking(wandb, out.name, config)
    with Tracker(out, tracking, name=out.name, key="") as tracker:
        if not (out / CHECKPOINT).exists():
            tracker.begin()
        about = _about(export, rows, settings, name or out.name)
        tracker.log({"stage": "data", "rows": len(rows), "kernels": len(rows.region_ids), **_of_floors(floors)})
        _check_size(settings)
        members = [
            _Member(
                data, out / f"member-{i}", replace(settings.fit, seed=settings.fit.seed + i), floors,
                devices[i % len(devices)], replace(tracking, mode=tracker.mode),
            )
            for i in range(settings.members)
        ]  # fmt: skip
        nets = _nets(members, rows, devices)
        about = calibrated(about, nets, rows, floors, device=devices[0])
        path = out / CHECKPOINT
        save(Checkpoint(about, tuple(net.cpu() for net in nets)), path)
        tracker.log({"stage": "predictor", "spread_scale": about.spread_scale, **about.metrics,
                     "bytes": path.stat().st_size})  # fmt: skip
        tracker.artifact(path, f"{about.name}-predictor")
        return Trained(path, about)


def calibrated(about: About, nets: Sequence[Net], data: TrainingData, floors: Floors, *, device: str = "cpu") -> About:
    """With the scale of spreads that the validation part asks for, and what the networks reach on it together; figures
    that cannot be had are left out. The networks are moved to the device."""
    index = validation_rows(data, about.split)
    if not len(index):
        return replace(about, spread_scale=1.0, metrics={})
    said = said_by(nets, data, index, device=device)
    scale = spread_scale(averaged(said), data.log_s[index])
    metrics = judge(data, averaged(said, scale), index, floors)
    return replace(about, spread_scale=scale, metrics={k: v for k, v in metrics.items() if math.isfinite(v)})


def _claim(out: Path, settings: TrainingSettings, data: TrainingData) -> None:
    """Keep what the networks of this folder are trained by. Raises DataError where it holds others.

    Their number may change.
    """
    by = {name: value for name, value in names_of(settings).items() if name != "members"}
    claim = json.loads(json.dumps({"settings": by, "datasets": dict(data.checksums), "features": FEATURES_VERSION}))
    path = out / TRAINING
    try:
        found = json.loads(path.read_text()) if path.exists() else claim
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error}): name another folder") from error
    if found != claim:
        raise DataError(f"{out} holds a training of other settings or another dataset: name another folder")
    write_whole(path, json.dumps(claim, indent=1, sort_keys=True) + "\n")


def _about(export: Export, data: TrainingData, settings: TrainingSettings, name: str) -> About:
    """What is known of the checkpoint before anything is trained."""
    regions, targets = export.regions(), export.targets()
    inside = data.parts[:, SPLITS.index(settings.fit.split)] == PARTS.index(TRAIN)
    trained = {region for region, chosen in zip(data.region_ids, inside, strict=True) if chosen}
    operations = frozenset[str]().union(*(operations_of(regions[region]) for region in trained))
    told = [
        {"fingerprint": f, "model": t.model, "device": t.device, "renderer": t.renderer}
        for f, t in sorted(targets.items()) if f in data.targets
    ]  # fmt: skip
    return About(
        name=name, targets=tuple(told), datasets=data.checksums, split=settings.fit.split,
        operations=tuple(sorted(operations)), settings=names_of(settings), **provenance(),
    )  # fmt: skip


def _check_size(settings: TrainingSettings) -> None:
    """Say before the networks are trained what would be too large after. Raises UsageError."""
    each = 2 * sum(values.numel() for values in Net(settings.fit.net).state_dict().values())
    if settings.members * each > MOST_BYTES:
        raise UsageError(
            f"{settings.members} networks of {each / 1e6:.1f} MB are more than the {MOST_BYTES / 1e6:g} MB of a "
            "checkpoint: make members, net.hidden or net.layers smaller"
        )


def _nets(members: Sequence[_Member], data: TrainingData, devices: Sequence[str]) -> list[Net]:
    """The trained networks, in order. What is trained already is only read."""
    processes = min(len(devices), len(members))
    if processes > 1:
        shares = [list(members[i :: len(devices)]) for i in range(processes)]
        threads, verbose = max(1, usable_cores() // processes), log.isEnabledFor(logging.INFO)
        try:
            with workers(processes) as pool:
                list(pool.map(_fit_share, shares, itertools.repeat(threads), itertools.repeat(verbose)))
        except BrokenProcessPool as error:
            raise DeviceError("a process that trained a network died: run the same command again to go on") from error
        members = [replace(member, device="cpu") for member in members]  # where they are only read
    return [_fit(member, data) for member in members]


def _fit_share(members: list[_Member], threads: int, verbose: bool) -> None:
    """What one process does: the members of one device, one after another."""
    if verbose:
        logging.basicConfig(format="%(message)s")
        logging.getLogger("kcg").setLevel(logging.INFO)
    torch.set_num_threads(threads)
    data = dataset_of(members[0].data)
    for member in members:
        _fit(member, data)


def _fit(member: _Member, data: TrainingData) -> Net:
    with Tracker(member.folder, member.tracking, name=f"{member.tracking.group}-{member.folder.name}") as tracker:

        def tell(values: dict[str, Any]) -> None:
            tracker.log(values)
            judged_now = "".join(
                f", {name} {values[f'validation/{name}']:.4f}"
                for name in ("pairwise", "top1_mean") if f"validation/{name}" in values
            )  # fmt: skip
            log.info("%s epoch %d: loss %.4f%s", member.folder.name, values["epoch"], values["train/loss"], judged_now)

        fit = Fit(data, member.settings, member.folder, floors=member.floors, device=member.device, log=tell)
        return fit.run()


def _of_floors(floors: Floors) -> dict[str, float]:
    return {f"floor_{kind}_{i}": value for kind, values in asdict(floors).items() for i, value in enumerate(values)}
