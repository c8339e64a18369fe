"""What a run of a script left, as files: tensors with their values, each in a file of NumPy's.

The run that records a script's kernels has fixed seeds and keeps what it left, so that a run with other schedules is
compared with it, and the script need not run once more with tinygrad's own. Which kernels get other schedules is not
known by then: what came out of any of them is kept, as far as it has room, and read by those that are asked for.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from kcg.compat.observing import READ, READS, Left, Piece, fitting
from kcg.files import write_whole

FOLDER = "recorded"  # beside a result, until it was compared
ANSWER = "recorded.json"
PROPERTIES = ("place", "dtype", "eps", "fed_by")  # of a piece, beside its values
MOST_BYTES = 1 << 29
"""Of what a script leaves, so much is kept while it is recorded, the small tensors first: twice of what is compared,
since some of it comes out of kernels that keep their schedules."""
AT_ONCE = 1 << 16  # bytes of a file up to which it is read at once
FREE = 4  # so many times of that must be free on the disk


class Keeping(NamedTuple):
    """Where what a script leaves is kept, and the seed that it runs with."""

    folder: Path
    seed: int


def save_pieces(folder: Path, pieces: Sequence[Piece]) -> list[dict[str, Any]]:
    """Write the values of pieces; what else `load_pieces` needs of them is returned."""
    import numpy as np

    for place, piece in enumerate(pieces):
        np.save(folder / f"{place}.npy", piece.values, allow_pickle=False)
    return [{name: getattr(piece, name) for name in PROPERTIES} for piece in pieces]


def load_pieces(folder: Path, entries: Sequence[dict[str, Any]]) -> tuple[Piece, ...]:
    """The pieces that `save_pieces` wrote; values of large ones are read when they are looked at."""
    import numpy as np

    def values(file: Path) -> Any:
        """Small ones at once: a process may not hold thousands of files open."""
        return np.load(file, mmap_mode="r" if file.stat().st_size > AT_ONCE else None)

    return tuple(
        Piece(**{**of, "fed_by": tuple(of["fed_by"])}, values=values(folder / f"{place}.npy"))
        for place, of in enumerate(entries)
    )


def identity(command: Sequence[str], *, seed: int, dev: str) -> dict[str, Any]:
    """What distinguishes the run of a program, by Python's arguments that run it, on a device such as `CPU:X86`."""
    return {"command": list(command), "seed": seed, "device": dev.split(":")[0]}


def forget(folder: Path) -> None:
    """Remove what an earlier run left there."""
    shutil.rmtree(folder, ignore_errors=True)


def keep(folder: Path, found: Sequence[Left], *, of: dict[str, Any]) -> None:
    """Keep what a script `of` this identity left, if the disk has room for it."""
    pieces = [one.piece for one in found if one.piece is not None]
    if not pieces:
        return
    folder.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(folder).free < FREE * sum(piece.values.nbytes for piece in pieces):
        return
    entries = save_pieces(folder, pieces)
    every = [{**one._asdict(), "piece": one.piece is not None} for one in found]
    write_whole(folder / ANSWER, json.dumps({"of": of, "found": every, "pieces": entries}))


@dataclass(frozen=True)
class Recorded:
    """What was kept of the run of a script that recorded its kernels, which ended well."""

    found: tuple[Left, ...]

    def of_kernels(self, names: Collection[str], *, most_bytes: int) -> tuple[tuple[Piece, ...], int] | None:
        """What a run that observes these kernels alone would leave, and how much it would leave out for its size; None
        where not all of it was kept."""
        asked = set(names)
        found = [
            one._replace(piece=None if one.piece is None else replace(one.piece, fed_by=fed_by))
            for one in self.found
            if (fed_by := tuple(name for name in one.fed_by if name in asked))
        ]
        left, read = ([one for one in found if (one.place == READ) == is_read] for is_read in (False, True))
        kept = fitting([one.nbytes for one in left], most_bytes)
        wanted = [*(one.piece for at, one in enumerate(left) if at in kept), *(one.piece for one in read[-READS:])]
        pieces = tuple(piece for piece in wanted if piece is not None)
        return (pieces, len(left) - len(kept)) if len(pieces) == len(wanted) else None


def read_recorded(folder: Path, *, of: dict[str, Any]) -> Recorded | None:
    """What `keep` wrote of a script of this identity; None where there is nothing, or nothing whole."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        answer = json.loads((folder / ANSWER).read_text())
        if answer["of"] != of:
            return None
        pieces = iter(load_pieces(folder, answer["pieces"]))
        found = [
            Left(one["place"], one["nbytes"], tuple(one["fed_by"]), next(pieces) if one["piece"] else None)
            for one in answer["found"]
        ]
        return Recorded(tuple(found))
    return None
