"""Training a whole predictor from a dataset: trees, several networks, how they are blended, and the checkpoint.

Every step leaves its work in the folder of the training, so that the same command goes on where it was cut. With
several devices each trains its own networks: they are too small for one to be spread over several GPUs (a step takes
milliseconds, most of it launches), and members of an ensemble need nothing of one another.
"""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kcg.dataset.reading import Export, read_export
from kcg.dataset.splits import PARTS, SPLITS, TRAIN
from kcg.errors import DataError, DeviceError, UsageError
from kcg.files import write_whole
from kcg.measure.target import usable_cores
from kcg.predictor.checkpoint import About, Checkpoint, read, save
from kcg.predictor.context import operations_of
from kcg.predictor.data import TrainingData, load
from kcg.predictor.encode import Array
from kcg.predictor.ensemble import Said, chosen, judged, said_by, tree_rows, validation_rows
from kcg.predictor.features import FEATURES_VERSION
from kcg.predictor.fit import Fit, FitSettings, rows_of_kernels
from kcg.predictor.floors import floors_of
from kcg.predictor.gnn import Net
from kcg.predictor.metrics import Floors
from kcg.predictor.settings import TrainingSettings, names_of
from kcg.predictor.tensors import MOST_BYTES
from kcg.predictor.tracking import Tracker, Tracking
from kcg.predictor.trees import Trees
from kcg.predictor.workers import dataset_of, workers
from kcg.provenance import provenance

log = logging.getLogger(__name__)

CHECKPOINT, TREES, TRAINING = "predictor.safetensors", "trees.safetensors", "training.json"


@dataclass(frozen=True)
class Trained:
    """What a training gave."""

    path: Path
    about: About
    metrics: dict[str, dict[str, float]]  # on the validation part, of "net", "trees" and "both"

    def line(self) -> str:
        """One line for the user."""
        shown = ("pairwise", "kendall_tau", "top1", "failure_auc")
        figures = "; ".join(
            f"{name} " + ", ".join(f"{k} {values[k]:.3f}" for k in shown if k in values)
            for name, values in self.metrics.items() if values
        )  # fmt: skip
        return (
            f"{self.path}: {self.path.stat().st_size / 1e6:.1f} MB, tree share {self.about.tree_share:g}, spread × "
            f"{self.about.spread_scale:.2f}; validation: {figures or 'no rows'}"
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
        trees = _trees(rows, settings, about, out / TREES)
        if trees is not None:
            tracker.log({"stage": "trees", "rounds": trees.rounds, "bytes": len(trees.packed())})
        _check_size(settings, trees)
        members = [
            _Member(
                data, out / f"member-{i}", replace(settings.fit, seed=settings.fit.seed + i), floors,
                devices[i % len(devices)], replace(tracking, mode=tracker.mode),
            )
            for i in range(settings.members)
        ]  # fmt: skip
        nets = _nets(members, rows, devices)
        index = validation_rows(rows, settings.fit.split)
        said = said_by(nets, trees, rows, index, device=devices[0])
        return _finished(said, nets, trees, rows, index, floors, about, tracker, out / CHECKPOINT)


def _finished(
    said: Said, nets: Sequence[Net], trees: Trees | None, data: TrainingData, index: Array, floors: Floors,
    about: About, tracker: Tracker, path: Path,
) -> Trained:  # fmt: skip
    blend, by_share = chosen(said, data, index, floors)
    metrics = judged(said, blend, data, index, floors) if len(index) else {}
    flat = {f"{part}/{key}": value for part, values in metrics.items() for key, value in values.items()}
    about = replace(
        about, tree_share=blend.tree_share, spread_scale=blend.spread_scale,
        metrics=metrics.get("both", {}) | {k: v for k, v in flat.items() if not k.startswith("both/")},
    )  # fmt: skip
    kept = trees if blend.tree_share > 0 else None
    save(Checkpoint(about, tuple(net.cpu() for net in nets), kept), path)
    scores = {f"score of share {share:g}": score for share, score in by_share.items()}
    tracker.log({"stage": "predictor", **asdict(blend), **flat, **scores, "bytes": path.stat().st_size})
    tracker.artifact(path, f"{about.name}-predictor")
    return Trained(path, about, metrics)


def _claim(out: Path, settings: TrainingSettings, data: TrainingData) -> None:
    """Keep what the networks of this folder are trained by. Raises DataError where it holds others.

    Their number may change, and so may the trees, which are grown anew.
    """
    by = {name: v for name, v in names_of(settings).items() if name != "members" and not name.startswith("trees.")}
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


def _trees(data: TrainingData, settings: TrainingSettings, about: About, path: Path) -> Trees | None:
    """The trees, grown once: they stand in a checkpoint of their own, and are taken from there the next time."""
    if not settings.trees.rounds:
        return None
    by = {k: v for k, v in about.settings.items() if k.startswith("trees.") or k in ("seed", "split")}
    about = replace(about, tree_share=1.0, settings=by, name=f"{about.name}-trees")
    if (found := _kept_trees(about, path)) is not None:
        return found
    save(Checkpoint(about, (), grown(data, settings)), path)
    return read(path).trees


def grown(data: TrainingData, settings: TrainingSettings, *, threads: int = 0) -> Trees:
    """Trees of the training part, stopped by the validation part. Raises DataError where nothing can be trained on."""
    index = np.concatenate([np.zeros(0, np.int64), *rows_of_kernels(data, settings.fit)])
    training = index[~data.failed[index]]
    if not len(training):
        raise DataError(f"the split by {settings.fit.split} leaves no schedule with a time to train on")
    index = validation_rows(data, settings.fit.split)
    timed = index[~data.failed[index]]
    log.info("growing trees on %d schedules", len(training))
    return Trees.train(
        tree_rows(data, training), data.log_s[training], data.kernel[training],
        replace(settings.trees, seed=settings.fit.seed, threads=threads or settings.trees.threads),
        (tree_rows(data, timed), data.log_s[timed]) if len(timed) else None,
    )  # fmt: skip


def _kept_trees(about: About, path: Path) -> Trees | None:
    """The trees of an earlier run of the same settings on the same dataset."""
    if not path.exists():
        return None
    try:
        kept = read(path)
    except DataError as error:
        log.info("%s; they are grown again", error)
        return None
    same = kept.about.settings == about.settings and kept.about.datasets == about.datasets
    return kept.trees if same else None


def _check_size(settings: TrainingSettings, trees: Trees | None) -> None:
    """Say before the networks are trained what would be too large after. Raises UsageError."""
    each = 2 * sum(values.numel() for values in Net(settings.fit.net).state_dict().values())
    of_trees = len(trees.packed()) if trees is not None else 0
    if settings.members * each + of_trees > MOST_BYTES:
        raise UsageError(
            f"{settings.members} networks of {each / 1e6:.1f} MB and trees of {of_trees / 1e6:.1f} MB are more than "
            f"the {MOST_BYTES / 1e6:g} MB of a checkpoint: make members, net.hidden, net.layers or trees.rounds smaller"
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
