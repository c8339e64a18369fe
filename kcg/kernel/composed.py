"""A region of several kernels as parts in order, each some of its calls with a schedule of its own.

The JSON is a list of `[places of the calls, kind, body]`, in the order in which the parts run. What the schedule of a
part says is the matter of its kind; `kcg.kernel.parts` is the kind of the whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

from kcg.errors import ScheduleError
from kcg.kernel.chain import Chain
from kcg.kernel.kinds import KINDS, kind_named
from kcg.kernel.program import Executable, Program, ProgramLaunch, Scratch, program_of_parts
from kcg.types import Region, Schedule, ScheduleKind, canonical_json

MOST_KERNELS = 256  # of a region: far more than anything that is worth one program
MOST_BODY = 1 << 24  # characters of a body


@dataclass(frozen=True)
class Part:
    """Some calls of a region, by their places in order, and what is done to them."""

    places: tuple[int, ...]
    schedule: Schedule


def schedule_of_parts(parts: Iterable[Part]) -> Schedule:
    """The schedule that runs `parts` in their order."""
    rows = [[list(part.places), str(part.schedule.kind), part.schedule.body] for part in parts]
    return Schedule(ScheduleKind.PARTS, canonical_json(rows))


@lru_cache(4096)
def parts_of(schedule: Schedule) -> tuple[Part, ...]:
    """The parts of a schedule of this kind. Raises ScheduleError, in a line, for a body that is none.

    What the schedules of its parts say is the matter of their kinds, and whether the order is right one of the region:
    see `checked`.
    """
    if schedule.kind != ScheduleKind.PARTS:
        raise ScheduleError(f"a schedule of kind {schedule.kind!r} has no parts")
    try:
        rows = json.loads(schedule.body) if len(schedule.body) <= MOST_BODY else None
    except (ValueError, RecursionError):
        raise ScheduleError("a schedule of parts is no JSON") from None
    if not isinstance(rows, list) or not 0 < len(rows) <= MOST_KERNELS:
        raise ScheduleError(f"a schedule of parts is a list of 1 to {MOST_KERNELS} parts")
    parts = tuple(_part(number, row) for number, row in enumerate(rows))
    places = sorted(place for part in parts for place in part.places)
    if places != list(range(len(places))):
        raise ScheduleError(f"every call comes once in the parts of a region, numbered from 0: not {_short(places)}")
    if schedule_of_parts(parts).body != schedule.body:
        raise ScheduleError("a schedule of parts is not in canonical form")
    return parts


def _part(number: int, row: Any) -> Part:
    where = f"part {number} of a schedule"
    if not isinstance(row, list) or len(row) != 3 or not all(isinstance(text, str) for text in row[1:]):
        raise ScheduleError(f"{where} is not [places, kind, body]")
    places, kind, body = row
    if not isinstance(places, list) or not places or not all(type(p) is int and 0 <= p < MOST_KERNELS for p in places):
        raise ScheduleError(f"{where} is of no places of calls")
    if any(a >= b for a, b in pairwise(places)):
        raise ScheduleError(f"{where} has its calls out of order")
    if kind not in KINDS or kind == ScheduleKind.PARTS:
        raise ScheduleError(f"{where} is of the unknown kind {_short(kind)}")
    return Part(tuple(places), Schedule(kind, body))


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"


def kinds_in(schedule: Schedule) -> list[str]:
    """The kinds of its parts; its own where it has none. Raises ScheduleError as `parts_of`."""
    if schedule.kind != ScheduleKind.PARTS:
        return [schedule.kind]
    return list(dict.fromkeys(part.schedule.kind for part in parts_of(schedule)))


def noun_in(schedule: Schedule) -> str:
    """What a program in it is called: by the first of its kinds that has a word. Raises as `kinds_in`."""
    return next(filter(None, (kind_named(name).noun for name in kinds_in(schedule))), "program")


@lru_cache(1024)
def hazards(region: Region) -> frozenset[tuple[int, int]]:
    """Pairs of calls, by place, that must run in their order: one of them writes what the other uses."""
    uses = Chain(region).uses
    written = [{slot for slot, use in of.items() if use.is_output} for of in uses]
    return frozenset(
        (i, j) for j in range(len(uses)) for i in range(j) if written[i] & set(uses[j]) or written[j] & set(uses[i])
    )


def checked(region: Region, schedule: Schedule) -> tuple[Part, ...]:
    """The parts of a schedule for a region. Raises ScheduleError, in a line, where it is not one of this region."""
    parts = parts_of(schedule)
    if (count := sum(len(part.places) for part in parts)) != len(region.kernels):
        raise ScheduleError(f"the parts are of {count} calls, the region of {len(region.kernels)}")
    turn = {place: number for number, part in enumerate(parts) for place in part.places}
    for i, j in sorted(hazards(region)):
        if turn[i] > turn[j]:
            raise ScheduleError(f"part {turn[j]} runs call {j} before call {i}, which it depends on")
    return parts


@lru_cache(4096)
def region_of_part(region: Region, places: tuple[int, ...]) -> tuple[Region, tuple[int, ...]]:
    """Some calls as a region of their own, and which buffer of the whole region each of its buffers is.

    Its outputs are what it writes and is an output of the whole, or is used by another part.
    """
    kernels = tuple(region.kernels[place] for place in places)
    if not region.args:
        return region, tuple(range(1 + max(Chain(region).uses[0])))
    numbers: dict[int, int] = {}
    args = tuple(tuple(numbers.setdefault(n, len(numbers)) for n in region.args[place]) for place in places)
    if len(kernels) == 1:
        return Region(kernels), region.args[places[0]]
    uses = Chain(region).uses
    written = {slot for place in places for slot, use in uses[place].items() if use.is_output}
    others = {slot for place, of in enumerate(uses) if place not in places for slot in of}
    observed = written & (others | set(region.outputs))
    return Region(kernels, args, tuple(sorted(numbers[slot] for slot in observed))), tuple(numbers)


def joined(region: Region, parts: Sequence[tuple[tuple[int, ...], Executable]]) -> Program:
    """Compiled parts of a region, each with its places, as one program: launches in order, intermediates as there."""
    buffers = 1 + max(number for slots in region.args for number in slots)
    launches: list[ProgramLaunch] = []
    scratch: list[Scratch] = []
    for places, runs in parts:
        inner, numbers = region_of_part(region, places)
        program = runs if isinstance(runs, Program) else program_of_parts(inner, [runs])
        own = tuple(range(buffers + len(scratch), buffers + len(scratch) + len(program.scratch)))
        to = (*numbers[: program.buffers], *own)
        launches += [replace(one, args=tuple(to[n] for n in one.args)) for one in program.launches]
        scratch += program.scratch
    return Program(tuple(launches), buffers, tuple(scratch))
