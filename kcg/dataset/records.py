"""What the journal and the export hold, as rows and as nouns: the columns of a measurement, and the way there and back.

Nothing foreign is decoded here: a row's types, its times and every field of a stored target are checked one by one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from kcg.errors import DataError, JournalError
from kcg.files import is_text
from kcg.types import (
    CacheState,
    Kernel,
    Measurement,
    Region,
    Schedule,
    Status,
    Target,
    Toolchain,
    canonical_json,
    content_id,
    malformed,
)

ROW_ERRORS = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)  # of a foreign row

_TEXT, _INTEGER, _REAL = "TEXT NOT NULL", "INTEGER NOT NULL", "REAL NOT NULL"
MEASUREMENT_COLUMNS = {
    "region_id": _TEXT, "schedule_kind": _TEXT, "schedule_body": _TEXT, "target": _TEXT, "toolchain": _TEXT,
    "protocol": _INTEGER, "status": _TEXT, "cache_state": _TEXT, "variables": _TEXT, "input_recipe": _TEXT,
    "samples_s": _TEXT, "reason": _TEXT, "binary_hash": _TEXT, "checked": _INTEGER, "early_stop": _INTEGER,
    "sampler": _TEXT, "compile_s": _REAL, "launch": _TEXT, "run_id": _TEXT, "trial": _INTEGER, "clocks": _TEXT,
}  # fmt: skip
_TYPES = tuple((name, {_TEXT: str, _INTEGER: int, _REAL: float}[kind]) for name, kind in MEASUREMENT_COLUMNS.items())

T = TypeVar("T")


@dataclass(frozen=True)
class Record:
    """A measurement and when it was recorded, in Unix seconds."""

    measurement: Measurement
    recorded_unix_s: float


@dataclass(frozen=True)
class Run:
    """A host, a device and its clocks on one occasion, described without naming the host."""

    run_id: str
    started: str  # ISO date and time
    command: str
    description: Mapping[str, Any]

    def __post_init__(self) -> None:
        """Raises TypeError where a field is of another type, as a file can have it."""
        texts = (self.run_id, self.started, self.command)
        if not all(isinstance(text, str) for text in texts) or not isinstance(self.description, Mapping):
            raise TypeError("a run has an id, a time and a command, which are texts, and a description by names")


def disk_full(path: Path) -> JournalError:
    """The error for a write to `path` that found no space."""
    return JournalError(f"disk full: {path}: free some space and resume; what was acknowledged is kept")


def measurement_row(m: Measurement) -> tuple[Any, ...]:
    """The values of `MEASUREMENT_COLUMNS`. Raises DataError for a sample that is no time, or `ok` without samples."""
    if not _has_times(m):
        raise DataError(f"status {m.status} with samples {m.samples_s} is no timing: record the failure as a status")
    reason = m.reason.encode("utf-8", "replace").decode()  # a compiler's output may not be text
    return (
        m.region_id, str(m.schedule.kind), m.schedule.body, m.target, m.toolchain, m.protocol, str(m.status),
        str(m.cache_state), canonical_json(m.variables), m.input_recipe, canonical_json(m.samples_s), reason,
        m.binary_hash, int(m.checked), int(m.early_stop), m.sampler, float(m.compile_s), canonical_json(m.launch),
        m.run_id, m.trial, canonical_json(m.clocks),
    )  # fmt: skip


_UNJUDGED_ONCE = "cannot be judged: "  # how the reason of a `wrong` row began before there was the status `unjudged`


def status_and_reason(status: str, reason: str) -> tuple[Status, str]:
    """The status and the reason of a stored row in today's words: what older kcg called `wrong` where the reference
    could not tell is `unjudged`. Raises ValueError where there is no such status."""
    if status in (Status.WRONG, Status.UNJUDGED) and reason.startswith(_UNJUDGED_ONCE):
        return Status.UNJUDGED, reason.removeprefix(_UNJUDGED_ONCE)
    return Status(status), reason


def measurement_from_row(row: Sequence[Any]) -> Measurement:
    """The inverse of `measurement_row`. Raises one of `ROW_ERRORS` where the row is not one."""
    for (name, kind), value in zip(_TYPES, row, strict=True):
        if not isinstance(value, kind):  # SQLite keeps any type in any column
            raise TypeError(f"{name} is a {type(value).__name__}")
    (
        region_id, schedule_kind, body, target, toolchain, protocol, status, cache_state, variables, input_recipe,
        samples_s, reason, binary_hash, checked, early_stop, sampler, compile_s, launch, run_id, trial, clocks,
    ) = row  # fmt: skip
    status, reason = status_and_reason(status, reason)
    made = Measurement(
        region_id, Schedule(schedule_kind, body), target, toolchain, protocol, status, CacheState(cache_state),
        variables_from_json(variables), input_recipe, tuple(float(s) for s in json.loads(samples_s)), reason,
        binary_hash, bool(checked), bool(early_stop), sampler, compile_s, launch_from_json(launch), run_id, trial,
        tuple((str(name), float(value)) for name, value in json.loads(clocks)),
    )  # fmt: skip
    if not _has_times(made):
        raise ValueError("its samples are no times")
    if not all(is_text(name) for name, _ in made.clocks):  # JSON can spell what no file holds
        raise ValueError("the name of a reading is no text")
    return made


@lru_cache(1 << 12)
def variables_from_json(text: str) -> tuple[tuple[str, int], ...]:
    """`Measurement.variables`. Raises one of `ROW_ERRORS`."""
    return tuple((str(name), int(value)) for name, value in json.loads(text))


@lru_cache(1 << 14)
def launch_from_json(text: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """`Measurement.launch`. Raises one of `ROW_ERRORS`."""
    grid, local = json.loads(text)
    return tuple(int(x) for x in grid), tuple(int(x) for x in local)


def _has_times(m: Measurement) -> bool:
    return all(math.isfinite(s) and s >= 0 for s in m.samples_s) and (m.status != Status.OK or bool(m.samples_s))


_FIELD_CHECKS: dict[str, Callable[[Any], bool]] = {
    "str": lambda v: isinstance(v, str),
    "int": lambda v: isinstance(v, int) and not isinstance(v, bool),
    "bool": lambda v: isinstance(v, bool),
    "float | None": lambda v: v is None or (isinstance(v, int | float) and not isinstance(v, bool)),
    "tuple[str, ...]": lambda v: isinstance(v, tuple) and all(isinstance(x, str) for x in v),
}


def record_from_json(cls: type[T], text: str) -> T:
    """A Target or a Toolchain from its canonical JSON, every field checked. Raises one of `ROW_ERRORS`."""
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in json.loads(text).items()}
    for f in fields(cls):  # type: ignore[arg-type]
        if f.name not in values and f.default is not MISSING:
            continue  # written before there was such a field
        if f.name not in values or not _FIELD_CHECKS[str(f.type)](values[f.name]):
            raise ValueError(f"field {f.name!r} is missing or of the wrong type")
    return cls(**values)


def values_of(record: Target | Toolchain, fingerprint: str) -> dict[str, Any]:
    """The fields of a Target or a Toolchain that hash to its fingerprint: without those that are newer than it."""
    values = asdict(record)
    while values and content_id(values) != fingerprint:
        values.popitem()  # new fields are the last
    if not values:
        raise DataError(f"{type(record).__name__} {fingerprint} does not hash to its fingerprint: restore a copy")
    return values


def wiring_json(region: Region) -> list[Any]:
    """What is stored of a region beside its kernels: nothing of one kernel, else its args and its outputs."""
    return [] if len(region.kernels) == 1 else [[list(slots) for slots in region.args], list(region.outputs)]


def region_from_json(kernel_ids: list[str], wiring: list[Any], kernels: Mapping[str, Kernel]) -> Region:
    """A region from its stored JSON values, see `wiring_json`. Raises one of `ROW_ERRORS`."""
    args, outputs = wiring or ((), ())
    made = Region(
        tuple(kernels[k] for k in kernel_ids),
        tuple(tuple(int(number) for number in slots) for slots in args),
        tuple(int(number) for number in outputs),
    )
    if wrong := malformed(made):
        raise ValueError(wrong)
    return made


def identity_of(key: Sequence[Any]) -> bytes:
    """The SHA-256 by which a `Measurement.key` is stored."""
    return bytes.fromhex(content_id(list(key)))
