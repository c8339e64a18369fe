"""What is done to a region: Opts, schedules and the steps between them; and the hash that every identity is made of.

The part of `kcg.types` that stands on nothing else; import it from there.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)


def canonical_json(value: Any) -> str:
    """The one JSON text of a value: sorted keys, no spaces, no NaN."""
    return _ENCODER.encode(value)


def content_id(value: Any) -> str:
    """SHA-256 (hex) of the canonical JSON of a value."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


@dataclass(frozen=True, order=True)
class Opt:
    """One tinygrad `Opt` by name: `op` is the name of an `OptOps` member."""

    op: str
    axis: int | None = None
    arg: int | tuple[int, ...] | None = None

    def __str__(self) -> str:
        inner = ",".join(str(x) for x in (self.axis, self.arg) if x is not None)
        return f"{self.op}({inner})"


class ScheduleKind(StrEnum):
    OPTS = "opts"
    SOURCE = "source"
    TILE = "tile"


@dataclass(frozen=True)
class Schedule:
    """What is done to a region: a kind and its canonical JSON. Its identity is the pair."""

    kind: str
    body: str

    @staticmethod
    def from_opts(opts: tuple[Opt, ...] | list[Opt]) -> Schedule:
        """The schedule that applies `opts` in order; `()` is the unoptimised kernel."""
        return Schedule(ScheduleKind.OPTS, f"[{','.join(map(_text_of, opts))}]")

    def then(self, opt: Opt) -> Schedule:
        """The `opts` schedule with one more Opt."""
        return Schedule(self.kind, f"{self.body[:-1]}{',' if len(self.body) > 2 else ''}{_text_of(opt)}]")

    @property
    def opts(self) -> tuple[Opt, ...]:
        """The Opts of an `opts` schedule, in the order in which they apply."""
        if self.kind != ScheduleKind.OPTS:
            raise ValueError(f"a schedule of kind {self.kind!r} has no opts")
        return _opts_of(self.body)

    @property
    def id(self) -> str:
        return content_id([self.kind, self.body])

    def __str__(self) -> str:
        if self.kind != ScheduleKind.OPTS:
            named = re.search(r'"name":"(\w+)"', self.body)  # quotes inside of a JSON text have backslashes
            return f"{self.kind}:{named[1] if named else self.id[:8]}"
        return " ".join(str(o) for o in self.opts) or "(none)"


@functools.lru_cache(4096)
def _text_of(opt: Opt) -> str:
    return canonical_json([opt.op, opt.axis, list(opt.arg) if isinstance(opt.arg, tuple) else opt.arg])


@functools.lru_cache(16384)
def _opts_of(body: str) -> tuple[Opt, ...]:
    """Kept, since a search asks for those of each schedule about ten times."""
    try:
        rows = json.loads(body)
    except RecursionError:
        raise ValueError("a schedule is nested too deeply") from None
    return tuple(Opt(op, axis, tuple(arg) if isinstance(arg, list) else arg) for op, axis, arg in rows)


RAW = Schedule.from_opts(())
"""The unoptimised schedule."""


@dataclass(frozen=True)
class Action:
    """One legal step from a schedule: what it is, and the schedule that it leads to."""

    label: str  # e.g. "UPCAST(0,4)"
    schedule: Schedule  # the schedule after the step
