"""Training a whole predictor from a dataset: several networks, how sure they are together, and the checkpoint.

Every step leaves its work in the folder of the training, so that the same command goes on where it was cut. With
several devices each trains its own networks: they are too small for one to be spread over several GPUs (a step takes
milliseconds, most of it launches), and members of an ensemble need nothing of one another.
"""

from __future__ import annotations

import functools
import itertools
import json
import logging
import math
import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from multiprocessing import connection, get_context, parent_process
from pathlib import Path
from typing import Any, TypeVar

import torch

from kcg.dataset.reading import Export, read_export
from kcg.dataset.splits import PARTS, SPLITS, TRAIN
from kcg.errors import DataError, DeviceError, UnknownName, UsageError
from kcg.files import read_limited, write_whole
from kcg.measure.device_info import usable_cores
from kcg.predictor.checkpoint import About, Checkpoint, save
from kcg.predictor.ensemble import Outputs, averaged, trusting
from kcg.predictor.features import FEATURES_VERSION, Array, operations_of, widths_of
from kcg.predictor.header import MOST_BYTES
from kcg.predictor.metrics import Floors, floors_of, score_of
from kcg.predictor.network import MOST_HIDDEN, MOST_LAYERS, shapes
from kcg.predictor.tracking import Tracker, Tracking
from kcg.predictor.training_data import TrainingData, load, words_of
from kcg.provenance import provenance
from kcg.training.fit import Fit, FitSettings, judge, spread_scale, validation_rows
from kcg.training.network import Net, outputs_of
from kcg.types import ScheduleKind

# ---- The settings of a whole training as one dataclass, and their names on a command line and in a file.

T = TypeVar("T")
KIND, WIDTHS = "net.kind", "net.widths"  # the latter follow from the first
MOST_OF_SETTINGS = 16 << 20  # bytes


@dataclass(frozen=True)
class TrainingSettings:
    """Everything that decides what a training gives, but the dataset."""

    members: int = 5  # networks, of the seeds fit.seed, fit.seed + 1, …
    fit: FitSettings = field(default_factory=FitSettings)


_LIMITS: dict[str, tuple[float, float]] = {
    "members": (1, 32), "seed": (0, 2**31), "epochs": (1, 1e6), "kernels_a_step": (1, 1e6),
    "schedules_a_kernel": (1, 4096), "learning_rate": (1e-7, 1), "weight_decay": (0, 10), "warm_up": (0, 1),
    "average": (0, 0.999999), "patience": (0, 1e6), "validate_every": (1, 1e6), "share": (1e-9, 1),
    "net.hidden": (4, MOST_HIDDEN), "net.layers": (0, MOST_LAYERS), "net.dropout": (0, 0.95),
}  # fmt: skip


def names_of(settings: TrainingSettings) -> dict[str, Any]:
    """Every setting by the name that `--set` takes, and its value. Those of a network stand without `fit.`."""
    flat = ((name.removeprefix("fit."), value) for name, value in _flat(settings))
    return {name: value for name, value in flat if name != WIDTHS}


def with_values(settings: TrainingSettings, values: Mapping[str, Any]) -> TrainingSettings:
    """The settings with some changed by name. Raises UnknownName, and UsageError for a value that cannot be meant."""
    known = names_of(settings)
    for name, value in values.items():
        if name not in known:
            raise UnknownName("setting", name, list(known))
        path = name if name == "members" else f"fit.{name}"
        settings = _replaced(settings, path.split("."), _checked(name, value, known[name]))
    if settings.fit.net.compare and settings.fit.net.hidden % 4:
        raise UsageError(f"net.hidden={settings.fit.net.hidden}: with net.compare it has to be a multiple of 4")
    if not any(asdict(settings.fit.weights).values()):
        raise UsageError("no part of the loss has a weight: one of weights.pairs, weights.time, … has to be above 0")
    return settings


def changed(settings: T, values: Mapping[str, Any]) -> T:
    """A dataclass of settings, some of which are dataclasses, with values changed by dotted name.

    Raises UnknownName, and UsageError for a value of another type. What a value may be, the settings' user checks.
    """
    known = dict(_flat(settings))
    for name, value in values.items():
        if name not in known:
            raise UnknownName("setting", name, list(known))
        now = known[name]
        if isinstance(now, str):
            if not isinstance(value, str):
                raise UsageError(f"{name}={value!r}: it has to be a word")
        else:
            value = _number(name, value, now)
        settings = _replaced(settings, name.split("."), value)
    return settings


def parsed(assignments: Sequence[str]) -> dict[str, Any]:
    """`["net.hidden=96", …]` as values by name. Raises UsageError."""
    found: dict[str, Any] = {}
    for text in assignments:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"--set {text!r} is no setting: write name=value, for example net.hidden=96")
        try:
            found[name.strip()] = json.loads(value)
        except ValueError:
            found[name.strip()] = value.strip()
    return found


def read_settings(path: Path) -> dict[str, Any]:
    """Values by name from a JSON file, as tuning writes them. Raises DataError."""
    try:
        values = json.loads(read_limited(path, most_bytes=MOST_OF_SETTINGS))
    except FileNotFoundError as error:
        raise DataError(f"there is no file of settings {path}") from error
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as settings: {error}") from error
    if not isinstance(values, dict):
        raise DataError(f"{path} holds no settings: it has to be an object of names and values")
    return values


def _flat(settings: Any, prefix: str = "") -> list[tuple[str, Any]]:
    found = []
    for f in fields(settings):
        value = getattr(settings, f.name)
        found += _flat(value, f"{prefix}{f.name}.") if is_dataclass(value) else [(prefix + f.name, value)]
    return found


def _replaced(settings: Any, path: Sequence[str], value: Any) -> Any:
    name, *rest = path
    return replace(settings, **{name: _replaced(getattr(settings, name), rest, value) if rest else value})


def _checked(name: str, value: Any, now: Any) -> Any:
    """The value as the type of the one that it replaces."""
    if isinstance(now, str):
        words = [ScheduleKind.OPTS, ScheduleKind.TILE] if name == KIND else list(SPLITS)
        if value not in words:
            raise UnknownName("kind" if name == KIND else "split", str(value), list(map(str, words)))
        return value
    return _number(name, value, now)


def _number(name: str, value: Any, now: Any) -> Any:
    if isinstance(now, bool):
        if not isinstance(value, bool):
            raise UsageError(f"{name}={value!r}: it has to be true or false")
        return value
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not number or (isinstance(now, int) and value != int(value)):
        raise UsageError(f"{name}={value!r}: it has to be {'a whole number' if isinstance(now, int) else 'a number'}")
    low, high = _LIMITS.get(name, (0.0, 1e9))
    if not low <= value <= high:
        raise UsageError(f"{name}={value:g}: it has to be from {low:g} to {high:g}")
    return type(now)(value)


# ---- Processes that train networks beside one another: one alone cannot prepare batches fast enough for a GPU.


def workers(count: int) -> ProcessPoolExecutor:
    """A pool of new processes, which end when this one was killed, wherever they are."""
    return ProcessPoolExecutor(count, mp_context=get_context("spawn"), initializer=end_with_parent)


def end_with_parent() -> None:
    """Let this process end as soon as the one that started it has."""
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@functools.lru_cache(maxsize=1)
def dataset_of(folder: Path, kind: str = ScheduleKind.OPTS) -> TrainingData:
    """The rows of an export, loaded once for all that a process trains on them."""
    return load(folder, kind=kind)


def with_widths(settings: TrainingSettings) -> TrainingSettings:
    """With what a network of that kind is told. Raises DataError where nothing is seen of its schedules."""
    kind = settings.fit.net.kind
    widths = () if kind == ScheduleKind.OPTS else widths_of(words_of(kind))
    return replace(settings, fit=replace(settings.fit, net=replace(settings.fit.net, widths=widths)))


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
    data: Path,
    out: Path,
    settings: TrainingSettings,
    *,
    devices: Sequence[str] = ("cpu",),
    wandb: str = "disabled",
    name: str = "",
) -> Trained:
    """Train on an export, or go on with it, and write `out/predictor.safetensors`.

    `metrics.jsonl` of `out` tells each stage, that of `out/member-N` each epoch of a network. Raises DataError where
    the export cannot be read, has nothing to train on, or `out` holds a training of other settings, and UsageError
    where the checkpoint would be too large.
    """
    export, settings = read_export(data), with_widths(settings)
    rows = load(data, kind=settings.fit.net.kind, log=log.info)
    floors = floors_of(export)
    config = {
        "settings": names_of(settings),
        "datasets": dict(rows.checksums),
        **provenance(),
        "features_version": FEATURES_VERSION,
    }
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
                data,
                out / f"member-{i}",
                replace(settings.fit, seed=settings.fit.seed + i),
                floors,
                devices[i % len(devices)],
                replace(tracking, mode=tracker.mode),
            )
            for i in range(settings.members)
        ]
        nets = _nets(members, rows, devices)
        about = calibrated(about, nets, rows, floors, device=devices[0])
        path = out / CHECKPOINT
        save(Checkpoint(about, tuple(net.network() for net in nets)), path)
        tracker.log(
            {"stage": "predictor", "spread_scale": about.spread_scale, **about.metrics, "bytes": path.stat().st_size}
        )
        tracker.artifact(path, f"{about.name}-predictor")
        return Trained(path, about)


def calibrated(about: About, nets: Sequence[Net], data: TrainingData, floors: Floors, *, device: str = "cpu") -> About:
    """With the scale of spreads that the validation part asks for, and what the networks reach on it together; figures
    that cannot be had are left out. The networks are moved to the device."""
    index = validation_rows(data, about.split)
    if not len(index):
        return replace(about, spread_scale=1.0, metrics={})
    outputs = outputs_of(nets, data, index, device=device)
    if data.formula is not None:
        trust = trust_of(outputs, data, index, floors)
        outputs, about = trusting(outputs, data.base[index], trust), replace(about, trust=trust)
    scale = spread_scale(averaged(outputs), data.log_s[index])
    metrics = judge(data, averaged(outputs, scale), index, floors)
    return replace(about, spread_scale=scale, metrics={k: v for k, v in metrics.items() if math.isfinite(v)})


TRUSTS = (0.25, 0.5, 0.75, 1.0)


def trust_of(outputs: Outputs, data: TrainingData, index: Array, floors: Floors) -> float:
    """How much of what networks say against the formula orders the validation part best, by `score_of`."""

    def score(trust: float) -> float:
        found = averaged(trusting(outputs, data.base[index], trust))
        return score_of(judge(data, found, index, floors))

    return max(TRUSTS, key=score)


def _claim(out: Path, settings: TrainingSettings, data: TrainingData) -> None:
    """Keep what the networks of this folder are trained by. Raises DataError where it holds others.

    Their number may change.
    """
    by = {name: value for name, value in names_of(settings).items() if name != "members"}
    claim = json.loads(json.dumps({"settings": by, "datasets": dict(data.checksums), "features": FEATURES_VERSION}))
    path = out / TRAINING
    try:
        found = json.loads(read_limited(path, most_bytes=MOST_OF_SETTINGS)) if path.exists() else claim
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
    described = [
        {"fingerprint": f, "model": t.model, "device": t.device, "renderer": t.renderer}
        for f, t in sorted(targets.items())
        if f in data.targets
    ]
    return About(
        name=name,
        targets=tuple(described),
        datasets=data.checksums,
        split=settings.fit.split,
        operations=tuple(sorted(operations)),
        settings=names_of(settings),
        **provenance(),
    )


def _check_size(settings: TrainingSettings) -> None:
    """Say before the networks are trained what would be too large after. Raises UsageError."""
    each = 2 * sum(math.prod(shape) for shape in shapes(settings.fit.net).values())
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
    data = dataset_of(members[0].data, members[0].settings.net.kind)
    for member in members:
        _fit(member, data)


def _fit(member: _Member, data: TrainingData) -> Net:
    with Tracker(member.folder, member.tracking, name=f"{member.tracking.group}-{member.folder.name}") as tracker:

        def report(values: dict[str, Any]) -> None:
            tracker.log(values)
            judged_now = "".join(
                f", {name} {values[f'validation/{name}']:.4f}"
                for name in ("pairwise", "top1_mean")
                if f"validation/{name}" in values
            )
            log.info("%s epoch %d: loss %.4f%s", member.folder.name, values["epoch"], values["train/loss"], judged_now)

        fit = Fit(data, member.settings, member.folder, floors=member.floors, device=member.device, log=report)
        return fit.run()


def _of_floors(floors: Floors) -> dict[str, float]:
    return {f"floor_{kind}_{i}": value for kind, values in asdict(floors).items() for i, value in enumerate(values)}
