"""A store as a folder, which may be a network share: found by key, added to by several machines at once without locks.

    kcg-store.json                  the schema, so that the folder is known for a store
    <key>/<content hash>.json       entries of one key, of which the fastest counts

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
from typing import Final

from kcg.errors import DataError, UsageError
from kcg.files import write_whole
from kcg.store.entry import MAX_BYTES, NAME_LENGTH, SCHEMA, Entry, from_json, key_of, to_json
from kcg.types import Target, Toolchain, Variables

MARKER: Final = "kcg-store.json"
_HASH = re.compile(rf"[0-9a-f]{{{NAME_LENGTH}}}")


@dataclass(frozen=True)
class Found:
    """An entry and its file; without one why that cannot be used, in a line."""

    path: Path
    entry: Entry | None
    problem: str = ""


@dataclass(frozen=True)
class Store:
    """A folder of entries; one that is not `writable`, as a pinned commit of the Hub, is only read."""

    location: str  # as the user named it
    folder: Path
    writable: bool

    def paths(self) -> Iterator[Path]:
        """The files of all entries, in the order of their names."""
        for folder in sorted(self.folder.glob("*/")):
            if _HASH.fullmatch(folder.name):
                yield from self._of_key(folder.name)

    def _of_key(self, key: str) -> list[Path]:
        try:
            return sorted(path for path in (self.folder / key).glob("*.json") if _HASH.fullmatch(path.stem))
        except OSError as error:
            raise DataError(f"cannot read the store {self.location}: {error.strerror or error}") from None

    def read(self, path: Path) -> Found | None:
        """What a file of the store holds; None where another process removed it."""
        try:
            if path.stat().st_size > MAX_BYTES:
                return Found(path, None, f"larger than {MAX_BYTES >> 20} MiB and no entry: delete it")
            entry = from_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            return Found(path, None, f"cannot be read: {error.strerror or error}")
        except DataError as error:
            return Found(path, None, str(error))
        if (entry.key, file_name(entry)) != (path.parent.name, path.name):
            return Found(path, None, "it lies in another entry's place: delete it")
        return Found(path, entry)

    def all(self) -> Iterator[Found]:
        """Every entry, and every file that should be one."""
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
                    if found.entry is None:
                        warn(found)
                    elif key not in fastest or _seconds(found) < _seconds(fastest[key]):
                        fastest[key] = found
        return list(fastest.values())

    def add(self, entry: Entry, *, instead_of: Iterable[Path] = ()) -> bool:
        """Keep an entry where it is faster than what is there of its key, `instead_of` files that did not prove true;
        whether it was kept. The same schedule is not kept twice. Raises UsageError where it cannot be written."""
        refuted = set(instead_of)
        others = [found for found in map(self.read, self._of_key(entry.key)) if found is not None and found.entry]
        others = [found for found in others if found.path not in refuted]
        if any(
            found.entry is not None
            and (found.entry.chosen.schedule == entry.chosen.schedule or _seconds(found) <= entry.chosen.cold_s)
            for found in others
        ):
            return False
        if not (self.folder / MARKER).exists():
            write_whole(self.folder / MARKER, json.dumps({"kcg store": SCHEMA}) + "\n")
        write_whole(self.folder / entry.key / file_name(entry), to_json(entry))
        for path in [*refuted, *(found.path for found in others)]:
            if path.parent.name == entry.key:
                with contextlib.suppress(OSError):  # somebody else removed it, or may, where this one may not
                    path.unlink()
        return True


def file_name(entry: Entry) -> str:
    """Of an entry, in the folder of its key."""
    return f"{entry.id[:NAME_LENGTH]}.json"


def _seconds(found: Found) -> float:
    assert found.entry is not None
    return found.entry.chosen.cold_s


def open_folder(location: str, *, new: bool = False) -> Store:
    """The store of a folder. A `new` one may begin where the folder is empty or not there yet.

    Raises:
        UsageError: it is no store, or has no name.
        DataError: it is of another schema, or cannot be read.
    """
    if not location.strip():
        raise UsageError("the store has no name: give a folder, or hf://OWNER/NAME@REVISION")
    folder = Path(location)
    if (folder / MARKER).is_file():
        check_marker(folder)
    elif not (new and _is_empty(folder)):
        what = "is no store of kcg" if folder.exists() else "is not there"
        advice = "give a store, or a new or empty folder" if new else "give the folder of a store"
        raise UsageError(f"{location} {what} (no {MARKER}): {advice}")
    return Store(location, folder, writable=_may_write(folder))


def _is_empty(folder: Path) -> bool:
    return not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))


def check_marker(folder: Path) -> None:
    """Raises DataError where a store is of another schema than this kcg's."""
    try:
        document = json.loads((folder / MARKER).read_text(encoding="utf-8"))
        schema = document["kcg store"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise DataError(f"{folder / MARKER} is not that of a store: restore it, or give another store") from None
    if schema != SCHEMA or type(schema) is not int:
        raise DataError(f"{folder} is a store of schema {str(schema)[:20]!a}, and this kcg reads {SCHEMA}: update kcg")


def _may_write(folder: Path) -> bool:
    nearest = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    return nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)
