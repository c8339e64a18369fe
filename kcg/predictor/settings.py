"""The settings of a whole training as one dataclass, and their names on a command line and in a file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from kcg.dataset.splits import SPLITS
from kcg.errors import DataError, UnknownName, UsageError
from kcg.predictor.fit import FitSettings

T = TypeVar("T")


@dataclass(frozen=True)
class TrainingSettings:
    """Everything that decides what a training gives, but the dataset."""

    members: int = 5  # networks, of the seeds fit.seed, fit.seed + 1, …
    fit: FitSettings = field(default_factory=FitSettings)


_LIMITS: dict[str, tuple[float, float]] = {
    "members": (1, 32), "seed": (0, 2**31), "epochs": (1, 1e6), "kernels_a_step": (1, 1e6),
    "schedules_a_kernel": (1, 4096), "learning_rate": (1e-7, 1), "weight_decay": (0, 10), "warm_up": (0, 1),
    "average": (0, 0.999999), "patience": (0, 1e6), "validate_every": (1, 1e6), "share": (1e-9, 1),
    "net.hidden": (4, 4096), "net.layers": (0, 64), "net.dropout": (0, 0.95),
}  # fmt: skip


def names_of(settings: TrainingSettings) -> dict[str, Any]:
    """Every setting by the name that `--set` takes, and its value. Those of a network stand without `fit.`."""
    return {name.removeprefix("fit."): value for name, value in _flat(settings)}


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
        values = json.loads(path.read_text())
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
        if value not in SPLITS:  # the only setting that is a word
            raise UnknownName("split", str(value), list(SPLITS))
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
