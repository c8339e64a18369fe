"""One entry of a store: a verified schedule of a region, what it and tinygrad's own took, and where that comes from.

An entry is a small JSON file whose name is its content hash. What it is found by is its key: the region, the values of
its variables, the target, the toolchain, and whether it may round operands to tf32. Nothing in it is trusted: whoever
uses a schedule measures and verifies it first.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from datetime import datetime
from functools import cached_property
from typing import Any, Final, TypeVar

from kcg.errors import CodecError, DataError, ScheduleError
from kcg.kernel.kinds import KINDS, made_by, parse, traits_of
from kcg.nouns import Document, Malformed, decode, encode, kernels_of, no_constant, same_names, shown, unique
from kcg.types import (
    Finalist,
    Region,
    RegionResult,
    Result,
    Schedule,
    Target,
    Toolchain,
    Variables,
    content_id,
    malformed,
)

OLDEST: Final = 2
SCHEMA: Final = 4
"""The version of stores and of their entries. A change of any field, or of the rules by which schedules were verified,
is a new number, never a silent one. 1: verified without planted data, lowered scores and indices out of bounds, and not
read. 2: the toolchain has no generator; so are those entries whose toolchain has none today. 3: no entry is
provisional; so are those that are not today."""

LATER: Final = {
    3: frozenset({("Toolchain", "generator")}),
    4: frozenset({("Entry", "launches"), ("Entry", "launches_due")}),
}
"""Fields that came with each version, as (noun, field)."""
MAX_BYTES: Final = 64 << 20  # of one entry; a region of forty kernels takes less than one
NAME_LENGTH: Final = 32  # hexadecimal digits of a hash, in the names of folders and files
SHORTEST_S: Final = 1e-9  # of one call
LONGEST_S: Final = 3600.0  # that one call may take
LONGEST_SEARCH_S: Final = 30 * 86400.0
_ADVICE = "restore it, or delete it"
Noun = TypeVar("Noun", "Entry", "Nothing")


@dataclass(frozen=True)
class Timed:
    """A schedule, and the cold median of one call with its 95 % interval, in seconds."""

    schedule: Schedule
    cold_s: float
    interval_s: tuple[float, float]


@dataclass(frozen=True)
class Entry:
    """A schedule that was chosen and verified for a region, beside tinygrad's own."""

    region: Region
    ends: tuple[Variables, ...]  # the values with which it was timed and verified; one, empty set without variables
    target: Target
    toolchain: Toolchain
    baseline: Timed  # tinygrad's own, in the same turns
    chosen: Timed
    name: str  # of the program, for tables
    rules: tuple[str, ...]  # of verification, all of which passed
    seeds: int
    kcg_version: str
    revision: str  # of kcg's code, as `kcg.provenance` says it
    dirty: bool | None
    created: str  # ISO date and time of the run
    launches: int = 0  # that it passed under stress, where some are missing yet
    launches_due: int = 0  # that it has to pass in all then

    @property
    def provisional(self) -> bool:
        """Whether launches under stress are missing."""
        return self.launches < self.launches_due

    @cached_property
    def key(self) -> str:
        """What it is found by, see `key_of`."""
        schedule = self.chosen.schedule
        made, tf32 = made_by(self.toolchain, schedule), traits_of(schedule).tf32
        return key_of(self.region.id, self.ends, self.target.fingerprint, made, tf32=tf32)

    @cached_property
    def id(self) -> str:
        """The hash of its content."""
        return content_id(_body(self))

    @property
    def speed_up(self) -> float:
        """How many times as fast as tinygrad's own it was."""
        return self.baseline.cold_s / self.chosen.cold_s


@dataclass(frozen=True)
class Nothing:
    """That a search of a region found nothing faster than tinygrad's own schedule. It needs no verification: who
    believes a wrong one misses a gain, and no more."""

    region: Region
    ends: tuple[Variables, ...]  # as of an entry
    target: Target
    toolchain: Toolchain
    search_s: float  # how long its workload was searched: all of it, or as long in proportion
    share: float  # of that workload's time that its calls took
    tried: int  # schedules beside tinygrad's own
    search: str  # as `--search` names it
    allow_tf32: bool
    kcg_version: str
    revision: str
    dirty: bool | None
    created: str

    @property
    def effort_s(self) -> float:
        """Seconds of searching that it stands for."""
        return self.search_s * self.share

    @cached_property
    def key(self) -> str:
        """What it is found by, see `key_of_nothing`."""
        return key_of_nothing(
            self.region.id,
            self.ends,
            self.target.fingerprint,
            self.toolchain,
            search=self.search,
            allow_tf32=self.allow_tf32,
        )

    @cached_property
    def id(self) -> str:
        """The hash of its content."""
        return content_id(_body(self))


def key_of_nothing(
    region: str, ends: Iterable[Variables], target: str, toolchain: Toolchain, *, search: str, allow_tf32: bool
) -> str:
    """What a `Nothing` is found by: a schedule of any kind could have been found, so by all that makes some."""
    return key_of(region, ends, target, json.dumps([*toolchain.fingerprints, search]), tf32=allow_tf32)


def key_of(region: str, ends: Iterable[Variables], target: str, toolchain: str, *, tf32: bool) -> str:
    """What an entry is found by: a hash of the region's id, the values with which it is timed, and the fingerprints of
    the target and of the toolchain that makes such a schedule."""
    places = [[list(one) for one in values] for values in ends]
    return content_id([region, places, target, toolchain, tf32])[:NAME_LENGTH]


def entries_of(result: Result, rows: Iterable[RegionResult]) -> list[Entry]:
    """What a store can keep of these rows of a result: schedules that improved and passed every rule, but for those
    that are written by hand, which need a file of their author. Where a tile program won, the best Opts too."""
    found = []
    for row in rows:
        if row.outcome != "improved":
            continue
        for one in dict.fromkeys((row.chosen, row.opts)):
            if one is None or one.schedule == row.baseline.schedule or not one.verification.passed:
                continue
            if not traits_of(one.schedule).by_hand and 0 < one.cold_s < row.baseline.cold_s:
                found.append(_entry(result, row, one))
    return found


def _entry(result: Result, row: RegionResult, one: Finalist) -> Entry:
    base = row.baseline
    return Entry(
        region=row.region,
        ends=tuple(end.variables for end in row.ends) or (row.variables,),
        target=result.target,
        toolchain=result.toolchain,
        baseline=Timed(base.schedule, base.cold_s, base.interval_s),
        chosen=Timed(one.schedule, one.cold_s, one.interval_s),
        name=one.name,
        rules=one.verification.rules,
        seeds=one.verification.seeds,
        kcg_version=result.kcg_version,
        revision=result.revision,
        dirty=result.dirty,
        created=result.created,
        launches=one.launches if one.provisional else 0,
        launches_due=one.launches_due if one.provisional else 0,
    )


# ---- as JSON


def schema_of(entry: Entry | Nothing) -> int:
    """The oldest schema that can say it: an older entry keeps its hash, by which it is named."""
    if isinstance(entry, Entry) and entry.provisional:
        return SCHEMA
    return 3 if entry.toolchain.generator else OLDEST


def _later(schema: int) -> frozenset[tuple[str, str]]:
    """The fields that a version does not have."""
    return frozenset(place for version, places in LATER.items() if version > schema for place in places)


def _body(entry: Entry | Nothing) -> dict[str, Any]:
    asts = {kernel.id: kernel.ast_json for kernel in entry.region.kernels}
    schema = schema_of(entry)
    body = {"schema": schema, **encode(entry), "asts": asts}
    for noun, name in _later(schema):
        (body["toolchain"] if noun == "Toolchain" else body).pop(name, None)
    return body


def to_json(entry: Entry | Nothing) -> str:
    """The text of its file."""
    return json.dumps({"id": entry.id, **_body(entry)}, indent=1, allow_nan=False) + "\n"


def from_json(data: bytes) -> Entry:
    """The entry of a file. Raises DataError, in a line without the file's name, where it is truncated, tampered with,
    of another schema, or no entry at all."""
    return _noun(data, Entry, _check)


def nothing_from_json(data: bytes) -> Nothing:
    """The same of what says that nothing was found."""
    return _noun(data, Nothing, _check_nothing)


def _noun(data: bytes, noun: type[Noun], check: Callable[[Noun], None]) -> Noun:
    try:
        document = json.loads(data.decode(), object_pairs_hook=unique, parse_constant=no_constant)
        found = _read(document, noun)
        check(found)
        return found
    except (Malformed, ScheduleError, CodecError) as error:
        raise DataError(f"no entry that kcg can trust: {error}: {_ADVICE}") from None
    except (ValueError, RecursionError, TypeError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else " ".join(str(error).split())[:100]
        raise DataError(f"truncated or not JSON ({reason}): {_ADVICE}") from None


def _read(document: Any, noun: type[Noun]) -> Noun:
    if not isinstance(document, dict) or "schema" not in document:
        raise Malformed("", "it has no schema number")
    if type(schema := document["schema"]) is not int or not OLDEST <= schema <= SCHEMA:
        raise Malformed("schema", f"{shown(schema)}, and this kcg reads {OLDEST} to {SCHEMA}")
    later = _later(schema)
    names: list[str] = [field.name for field in fields(noun) if (noun.__name__, field.name) not in later]
    same_names(set(document), {"id", "schema", "asts", *names}, "")
    if document["id"] != content_id({name: value for name, value in document.items() if name != "id"}):
        raise Malformed("", "its content is not that of its hash, so it was changed")
    kernels = kernels_of(document["asts"])
    found: Noun = decode({name: document[name] for name in names}, noun, "", of=Document(kernels, later))
    _check_place(found)
    return found


def _check_place(entry: Entry | Nothing) -> None:
    if wrong := malformed(entry.region):
        raise Malformed("region", wrong)
    if not entry.ends:
        raise Malformed("ends", "there is not one set of values")
    try:
        datetime.fromisoformat(entry.created)
    except ValueError:
        raise Malformed("created", f"{shown(entry.created)} is not an ISO date and time") from None


def _check_nothing(found: Nothing) -> None:
    if not 0 <= found.search_s <= LONGEST_SEARCH_S:
        raise Malformed("search_s", "it is no time of a search")
    if not 0 <= found.share <= 1:
        raise Malformed("share", "it is no share of a time")


def _check(entry: Entry) -> None:
    for name, timed in (("baseline", entry.baseline), ("chosen", entry.chosen)):
        low, high = timed.interval_s
        if not (SHORTEST_S <= timed.cold_s <= LONGEST_S and SHORTEST_S <= low <= high < math.inf):
            raise Malformed(name, f"its time is none: a call takes 1 ns to {LONGEST_S:g} s")
        try:
            if timed.schedule.kind not in KINDS or traits_of(timed.schedule).by_hand:
                raise Malformed(f"{name}.schedule", f"a store keeps no kind {shown(timed.schedule.kind)}")
            parse(timed.schedule.kind, timed.schedule.body)
        except ScheduleError as error:
            raise Malformed(f"{name}.schedule", str(error)) from None
    if entry.chosen.cold_s >= entry.baseline.cold_s:
        raise Malformed("chosen", "it is not faster than tinygrad's own")
    if not entry.rules or entry.seeds < 1:
        raise Malformed("rules", "it was not verified")
    if not 0 <= entry.launches <= entry.launches_due:
        raise Malformed("launches", "it passed more than it has to, or less than none")
