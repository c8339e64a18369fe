"""Schedules of kind `source`: a hand-written kernel, lowered to what is compiled or loaded, as canonical JSON.

The identity of such a schedule is its code, its entry and its launch: a changed file is another schedule. What is in a
journal or a result is data, for reading and comparing; it runs only where the user's own file gives the same again.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from dataclasses import asdict, dataclass
from typing import Any

from kcg.errors import ScheduleError
from kcg.kernels import DEVICES
from kcg.types import Schedule, ScheduleKind, canonical_json

FORMAT = 1
MACHINE, PTX = "machine", "ptx"
LANGUAGES = (MACHINE, PTX, "CLANG", "CUDA", "HIP", "METAL")
"""What the code is: machine code, PTX, or source code for one of tinygrad's renderers."""

MAX_SOURCE = 4 << 20  # characters
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_ENTRY = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,200}")


@dataclass(frozen=True)
class SourceBody:
    """What a `source` schedule holds."""

    name: str  # the user's
    kind: str  # a key of `kcg.kernels.DEVICES`
    language: str  # one of LANGUAGES
    entry: str  # the function to launch
    source: str  # the code; assembly text for reading where `code` is machine code
    global_size: tuple[int, ...]
    local_size: tuple[int, ...]
    shared_bytes: int = 0  # dynamic
    threads: int = 0  # on a CPU: calls that differ in `core_id`, the last argument; 0 is one call without it
    code: str = ""  # machine code in base64

    @property
    def machine_code(self) -> bytes:
        return base64.b64decode(self.code)

    @property
    def legend(self) -> str:
        """In words, for the report."""
        grid, block = (" × ".join(map(str, size)) for size in (self.global_size, self.local_size))
        shared = f", {self.shared_bytes} bytes of shared memory" if self.shared_bytes else ""
        return f"written by hand ({self.kind}); grid {grid}, group {block}{shared}"


def source_schedule(body: SourceBody) -> Schedule:
    """The schedule of a body. Raises ScheduleError where a launch or a name is not possible."""

    def written(body: SourceBody) -> Schedule:
        return Schedule(ScheduleKind.SOURCE, canonical_json({"format": FORMAT, **asdict(body)}))

    return written(source_body(written(body)))  # launches of fewer than three extents are filled up


def source_body(schedule: Schedule) -> SourceBody:
    """The body of a `source` schedule, with every field checked. Raises ScheduleError, in one line."""
    if schedule.kind != ScheduleKind.SOURCE:
        raise ScheduleError(f"a schedule of kind {schedule.kind!r} has no source")
    try:
        found = json.loads(schedule.body)
    except (ValueError, RecursionError):
        raise ScheduleError("its body is not JSON") from None
    if not isinstance(found, dict) or found.pop("format", None) != FORMAT:
        raise ScheduleError("its body is not of a format that this kcg reads")
    if set(found) != set(SourceBody.__dataclass_fields__):
        raise ScheduleError("its body lacks a field or has one too many")
    for name in ("name", "kind", "language", "entry", "source", "code"):
        if not isinstance(found[name], str) or len(found[name]) > MAX_SOURCE:
            raise ScheduleError(f"{name} is not a text, or too long")
    for name in ("global_size", "local_size"):
        found[name] = _extents(found[name], name)
    for name in ("shared_bytes", "threads"):
        if type(found[name]) is not int or not 0 <= found[name] < 1 << 24:
            raise ScheduleError(f"{name} is not a size")
    body = SourceBody(**found)
    if not _NAME.fullmatch(body.name) or not _ENTRY.fullmatch(body.entry):
        raise ScheduleError("its name or its entry is not a plain name")
    if body.kind not in DEVICES or body.language not in LANGUAGES:
        raise ScheduleError(f"{body.kind} in {body.language} is no kind of hand-written kernel")
    try:
        base64.b64decode(body.code, validate=True)
    except (ValueError, binascii.Error):
        raise ScheduleError("its machine code is not base64") from None
    return body


def _extents(value: Any, name: str) -> tuple[int, ...]:
    if not isinstance(value, list | tuple) or not 1 <= len(value) <= 3:
        raise ScheduleError(f"{name} has one to three extents")
    if not all(type(extent) is int and 1 <= extent < 1 << 31 for extent in value):
        raise ScheduleError(f"{name} {tuple(value)} is not made of positive whole numbers")
    return (*value, *(1,) * (3 - len(value)))
