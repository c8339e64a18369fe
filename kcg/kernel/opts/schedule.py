"""Schedules of kind `opts`: lists of tinygrad's Opts as canonical JSON, `[[op, axis, argument], …]`."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any

from kcg.compat.opts import Opt as Opt
from kcg.errors import ScheduleError
from kcg.types import Schedule, ScheduleKind, canonical_json


def schedule_of(opts: Sequence[Opt]) -> Schedule:
    """The schedule that applies `opts` in order; of none it is the unoptimised kernel."""
    return Schedule(ScheduleKind.OPTS, f"[{','.join(map(_text_of, opts))}]")


def opts_of(schedule: Schedule) -> tuple[Opt, ...]:
    """The Opts of a schedule in the order in which they apply.

    Raises ValueError where it is of another kind; this or TypeError where its body was not checked and is none.
    """
    if schedule.kind != ScheduleKind.OPTS:
        raise ValueError(f"a schedule of kind {schedule.kind!r} has no opts")
    return _opts_of(schedule.body)


def then(schedule: Schedule, opt: Opt) -> Schedule:
    """The schedule with one more Opt."""
    return Schedule(schedule.kind, f"{schedule.body[:-1]}{',' if len(schedule.body) > 2 else ''}{_text_of(opt)}]")


def shortened(schedule: Schedule, by: int) -> Schedule:
    """The schedule without its last Opts, `by` of them at most."""
    opts = opts_of(schedule)
    return schedule_of(opts[: max(0, len(opts) - by)])


def ops_and_arguments(schedule: Schedule) -> list[tuple[str, str]]:
    """Of each Opt its op and its argument as JSON, empty where it has none; without its axis. Raises as `opts_of`."""
    return [(str(opt.op), _argument(opt.arg)) for opt in opts_of(schedule)]


def parse(body: str) -> Schedule:
    """The schedule of a body that comes from a file. Raises ScheduleError, in one line, where it is none."""
    try:
        rows = json.loads(body)
    except (ValueError, RecursionError):
        raise ScheduleError("its body is not JSON") from None
    if not isinstance(rows, list) or not all(map(_is_opt, rows)):
        raise ScheduleError("its body is not a list of [op, axis, argument]")
    if canonical_json(rows) != body:
        raise ScheduleError("it is not in canonical form")
    return Schedule(ScheduleKind.OPTS, body)


def _is_opt(row: Any) -> bool:
    if not isinstance(row, list) or len(row) != 3 or not isinstance(row[0], str):
        return False
    numbers = row[2] if isinstance(row[2], list) else [row[2] if row[2] is not None else 0]
    return (row[1] is None or type(row[1]) is int) and all(type(number) is int for number in numbers)


@functools.lru_cache(4096)
def _argument(argument: Any) -> str:
    return "" if argument is None else json.dumps(argument)


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


RAW = schedule_of(())
"""The unoptimised schedule."""
