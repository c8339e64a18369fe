"""A store as a folder, which may be a network share: found by key, added to by several machines at once without locks.

    kcg-store.json                  the schema, so that the folder is known for a store
    <key>/<content hash>.json       entries of one key, of which the fastest counts
    <key>/nothing-<hash>.json       that a search found nothing; of one key the longest counts

A file is written whole under another name, renamed, and never changed. Whoever adds one removes those of the same key
that are slower; two that add at the same moment may leave both, and the fastest counts all the same.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kcg.errors import DataError, ScheduleError, UsageError
from kcg.files import read_foreign, write_whole
from kcg.store.entry import (
    MAX_BYTES,
    NAME_LENGTH,
    OLDEST,
    SCHEMA,
    Entry,
    Nothing,
    from_json,
    key_of,
    key_of_nothing,
    nothing_from_json,
    schema_of,
    to_json,
)
from kcg.types import Target, Toolchain, Variables

MARKER: Final = "kcg-store.json"
MOST_OF_MARKER: Final = 4096  # bytes
NOTHING: Final = "nothing-"  # begins the names of files that say that nothing was found
_HASH = re.compile(rf"[0-9a-f]{{{NAME_LENGTH}}}")


@dataclass(frozen=True)
class Found:
    """An entry and its file, or that nothing was found; without either why that cannot be used, in a line."""

    path: Path
    entry: Entry | None
    problem: str = ""
    nothing: Nothing | None = None


@dataclass(frozen=True)
class Store:
    """A folder of entries; one that is not `writable`, as a pinned commit of the Hub, is only read."""

    location: str  # as the user named it
    folder: Path
    writable: bool

    @property
    def is_new(self) -> bool:
        """Whether nothing was ever added."""
        return not (self.folder / MARKER).exists()

    def paths(self) -> Iterator[Path]:
        """The files of all entries, in the order of their names."""
        for folder in sorted(self.folder.glob("*/")):
            if _HASH.fullmatch(folder.name):
                yield from self._of_key(folder.name)

    def _of_key(self, key: str) -> list[Path]:
        try:
            files = (self.folder / key).glob("*.json")
            return sorted(path for path in files if _HASH.fullmatch(path.stem.removeprefix(NOTHING)))
        except OSError as error:
            raise DataError(f"cannot read the store {self.location}: {error.strerror or error}") from None

    def read(self, path: Path) -> Found | None:
        """What a file of the store holds; None where another process removed it."""
        try:
            if (data := read_foreign(path, most_bytes=MAX_BYTES)) is None:
                return Found(path, None, f"no file, or one of more than {MAX_BYTES >> 20} MiB: delete it")
            found = (nothing_from_json if path.name.startswith(NOTHING) else from_json)(data)
            own = (found.key, file_name(found))
        except FileNotFoundError:
            return Found(path, None, "a link to a file that is not there: delete it") if path.is_symlink() else None
        except OSError as error:
            return Found(path, None, f"cannot be read: {error.strerror or error}")
        except (DataError, ScheduleError) as error:
            return Found(path, None, str(error))
        if own != (path.parent.name, path.name):
            return Found(path, None, "it lies in another entry's place: delete it")
        return Found(path, None, nothing=found) if isinstance(found, Nothing) else Found(path, found)

    def all(self) -> Iterator[Found]:
        """Every entry, every `Nothing`, and every file that should be one."""
        return (found for path in self.paths() if (found := self.read(path)) is not None)

    def look_up(
        self,
        region: str,
        ends: Iterable[Variables],
        target: Target,
        toolchain: Toolchain,
        *,
        allow_tf32: bool = False,
        warn: Callable[[Found], None] = lambda _: None,
    ) -> list[Found]:
        """The fastest entry of each key that a region has on a target: of Opts and of tile programs. `warn` is given
        what cannot be used."""
        fastest, places = dict[str, Found](), list(ends)
        for made in toolchain.fingerprints:
            for tf32 in (False, True)[: 1 + allow_tf32]:
                key = key_of(region, places, target.fingerprint, made, tf32=tf32)
                for found in filter(None, map(self.read, self._of_key(key))):
                    if found.nothing is not None:
                        continue
                    if found.entry is None:
                        warn(found)
                    elif key not in fastest or _seconds(found) < _seconds(fastest[key]):
                        fastest[key] = found
        return list(fastest.values())

    def add(self, entry: Entry, *, instead_of: Iterable[Path] = ()) -> bool:
        """Keep an entry where it is faster than what is there of its key, `instead_of` files that did not prove true;
        whether it was kept. Those go in any case: others that claim more may hide behind them. The same schedule is not
        kept twice: the entry stays that passed more launches. What is provisional neither takes the place of what is
        verified nor stands in its way. Raises UsageError where it cannot be written."""
        refuted = set(instead_of)
        others = [found for found in map(self.read, self._of_key(entry.key)) if found is not None and found.entry]
        others = [found for found in others if found.path not in refuted]
        if any(found.entry is not None and _stands(found.entry, entry) for found in others):
            _remove(refuted, entry.key)
            return False
        replaced = [found.path for found in others if found.entry is not None and _stands(entry, found.entry)]
        self._write(entry, [*refuted, *replaced])
        return True

    def refute(self, entry: Entry) -> int:
        """Remove what there is of the schedule of an entry, which failed after it had been verified, whoever added it;
        how many files that were."""
        found = [one for one in map(self.read, self._of_key(entry.key)) if one is not None and one.entry is not None]
        same = [one.path for one in found if one.entry and one.entry.chosen.schedule == entry.chosen.schedule]
        _remove(same, entry.key)
        return len(same)

    def nothing_for(
        self,
        region: str,
        ends: Iterable[Variables],
        target: Target,
        toolchain: Toolchain,
        *,
        search: str,
        allow_tf32: bool = False,
        warn: Callable[[Found], None] = lambda _: None,
    ) -> Nothing | None:
        """The longest search of a region that found nothing, by the same strategy; None where the store has none.
        `warn` is given what cannot be used."""
        key = key_of_nothing(region, ends, target.fingerprint, toolchain, search=search, allow_tf32=allow_tf32)
        longest: Nothing | None = None
        for found in filter(None, map(self.read, self._of_key(key))):
            if found.nothing is None:
                warn(found)
            elif longest is None or found.nothing.effort_s > longest.effort_s:
                longest = found.nothing
        return longest

    def add_nothing(self, nothing: Nothing, *, instead_of: Iterable[Path] = ()) -> bool:
        """Keep that nothing was found where it stands for more than what is there of its key, `instead_of` files that
        cannot be used; whether it was kept. Raises UsageError where it cannot be written."""
        others = [found for found in map(self.read, self._of_key(nothing.key)) if found is not None and found.nothing]
        if any(found.nothing is not None and found.nothing.effort_s >= nothing.effort_s for found in others):
            return False
        self._write(nothing, [*instead_of, *(found.path for found in others)])
        return True

    def _write(self, one: Entry | Nothing, instead_of: Iterable[Path]) -> None:
        """Write its file, and remove those of its key that it takes the place of."""
        marker, schema = self.folder / MARKER, schema_of(one)
        if not marker.exists() or _schema_at(marker) < schema:
            write_whole(marker, json.dumps({"kcg store": schema}) + "\n")
        write_whole(self.folder / one.key / file_name(one), to_json(one))
        _remove(instead_of, one.key)


def _remove(paths: Iterable[Path], key: str) -> None:
    """Remove those of a key."""
    for path in paths:
        if path.parent.name == key:
            with contextlib.suppress(OSError):  # somebody else removed it, or may, where this one may not
                path.unlink()


def file_name(one: Entry | Nothing) -> str:
    """Of an entry, or of a `Nothing`, in the folder of its key."""
    return f"{NOTHING if isinstance(one, Nothing) else ''}{one.id[:NAME_LENGTH]}.json"


def _stands(one: Entry, other: Entry) -> bool:
    """Whether nothing is gained by having the other one of the same key too."""
    if one.chosen.schedule == other.chosen.schedule:
        return not one.provisional or (other.provisional and one.launches >= other.launches)
    return one.chosen.cold_s <= other.chosen.cold_s and (other.provisional or not one.provisional)


def _seconds(found: Found) -> float:
    assert found.entry is not None
    return found.entry.chosen.cold_s


def open_folder(location: str, *, new: bool = False) -> Store:
    """The store of a folder. A `new` one may begin where the folder is empty or not there yet.

    Raises:
        UsageError: it is no store, has no name, or a new one cannot be made there.
        DataError: it is of another schema, or cannot be read.
    """
    if not location.strip():
        raise UsageError("the store has no name: give a folder, or hf://OWNER/NAME@REVISION")
    folder = Path(location)
    try:
        if (folder / MARKER).is_file():
            check_marker(folder)
        elif not (new and _is_empty(folder)):
            what = "is no store of kcg" if os.path.lexists(folder) else "is not there"
            advice = "give a store, or a new or empty folder" if new else "give the folder of a store"
            raise UsageError(f"{location} {what} (no {MARKER}): {advice}")
        elif not _may_write(folder):
            raise UsageError(f"{location}: a new store cannot be written there: choose a folder that can be written")
    except OSError as error:
        raise UsageError(f"{location[:100]}: {error.strerror}: give the folder of a store") from None
    return Store(location, folder, writable=_may_write(folder))


def _is_empty(folder: Path) -> bool:
    return not os.path.lexists(folder) or (folder.is_dir() and not any(folder.iterdir()))


def _schema_at(marker: Path) -> Any:
    """What a store says of its schema: that of the newest of its entries. Raises DataError where it is no marker."""
    try:
        return json.loads(read_foreign(marker, most_bytes=MOST_OF_MARKER) or b"")["kcg store"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise DataError(f"{marker} is not that of a store: restore it, or give another store") from None


def check_marker(folder: Path) -> None:
    """Raises DataError where a store is of another schema than this kcg's."""
    schema = _schema_at(folder / MARKER)
    if type(schema) is not int or not OLDEST <= schema <= SCHEMA:
        older = type(schema) is int and schema < OLDEST
        advice = "what it holds was verified by older rules: begin another store" if older else "update kcg"
        raise DataError(
            f"{folder} is a store of schema {str(schema)[:20]!a}, and this kcg reads {OLDEST} to {SCHEMA}: {advice}"
        )


def _may_write(folder: Path) -> bool:
    nearest = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    return nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)
