"""Whether the WAL beside a journal lost what was acknowledged. SQLite takes the first frame that does not agree with
its checksum for the end, and says nothing of the transactions that follow it.

The format: https://www.sqlite.org/fileformat2.html#walformat
"""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path
from typing import Any, Final

from kcg.files import read_foreign

HEADER_BYTES, FRAME_HEADER_BYTES = 32, 24
MAGIC: Final = {0x377F0682: "<u4", 0x377F0683: ">u4"}  # and the words that checksums are of
MOST_BYTES: Final = 64 << 20  # SQLite begins anew at 4 MB unless somebody reads for long; more is not looked at
LOOKS, PAUSE_S = 3, 0.05  # at a file that another process may begin anew meanwhile


def lost_transactions(journal: Path) -> int:
    """How many transactions follow a damaged one in a journal's WAL. The last is not counted: a power cut may have torn
    it, and it was not acknowledged then."""
    path, lost = journal.with_name(journal.name + "-wal"), 0
    for look in range(LOOKS):
        time.sleep(PAUSE_S if look else 0.0)
        try:
            data = read_foreign(path, most_bytes=MOST_BYTES)
        except OSError:  # there is none
            data = None
        lost = 0 if data is None else _lost(data)
        if not lost:
            return 0
    return lost


def _lost(data: bytes) -> int:
    if not any(data[:HEADER_BYTES]):
        return 0  # of nothing that arrived
    size = int.from_bytes(data[8:12], "big")
    words = MAGIC.get(int.from_bytes(data[:4], "big"))
    state = _summed(data[:24], (0, 0), words or "<u4")
    if words is None or data[24:HEADER_BYTES] != _stored(state):
        return 1 if len(data) > HEADER_BYTES else 0  # all of them
    step, salts = FRAME_HEADER_BYTES + (1 << 16 if size == 1 else size), data[16:24]
    frames = [data[at : at + step] for at in range(HEADER_BYTES, len(data) - step + 1, step)]
    for place, frame in enumerate(frames):
        before, state = state, _summed(frame[:8] + frame[FRAME_HEADER_BYTES:], state, words)
        if frame[8:16] != salts or frame[16:FRAME_HEADER_BYTES] != _stored(state):
            # frames of an earlier WAL have other salts; the last one of a transaction says how large the file is
            sizes = [other[4:8] if other[8:16] == salts else b"" for other in frames]  # zero where others follow
            later = sum(map(any, sizes[place + 1 :]))
            return later - 1 + _ended(frame, set(filter(any, sizes)), before, words) if later else 0
    return 0


def _ended(frame: bytes, sizes: set[bytes], state: tuple[int, int], words: str) -> bool:
    """Whether a frame that does not agree with its checksum is the last of a transaction: as it says, unless it agrees
    once it says otherwise, as others do."""

    def agrees(size: bytes) -> bool:
        summed = _summed(frame[:4] + size + frame[FRAME_HEADER_BYTES:], state, words)
        return frame[16:FRAME_HEADER_BYTES] == _stored(summed)

    return not agrees(bytes(4)) and (any(frame[4:8]) or any(map(agrees, sizes)))


def _stored(state: tuple[int, int]) -> bytes:
    return b"".join(one.to_bytes(4, "big") for one in state)


def _summed(data: bytes, state: tuple[int, int], words: str) -> tuple[int, int]:
    """SQLite's checksum: of each two words `s0 += x0 + s1; s1 += x1 + s0`, modulo 2^32. That is linear, so that all
    words are multiplied at once."""
    import numpy as np

    pairs = np.frombuffer(data, words).astype(np.uint32).reshape(-1, 2)
    of_pairs, of_state = _factors(len(pairs))
    found = (of_pairs * pairs[:, None, :]).sum(axis=(0, 2), dtype=np.uint32)
    first, second = (int(found[i]) + of_state[i][0] * state[0] + of_state[i][1] * state[1] for i in (0, 1))
    return first % (1 << 32), second % (1 << 32)


@cache
def _factors(count: int) -> tuple[Any, tuple[tuple[int, int], tuple[int, int]]]:
    """What each of so many pairs of words is multiplied by, and what the sum before them is."""
    import numpy as np

    power, rows = ((1, 0), (0, 1)), []  # of ((1, 1), (1, 2))
    for _ in range(count):
        (a, b), (c, d) = power
        rows.append(((a + b, b), (c + d, d)))  # times ((1, 0), (1, 1)): what a pair adds
        power = ((a + b) % (1 << 32), (a + 2 * b) % (1 << 32)), ((c + d) % (1 << 32), (c + 2 * d) % (1 << 32))
    reduced = [[[value % (1 << 32) for value in row] for row in matrix] for matrix in reversed(rows)]
    return np.array(reduced, np.uint32).reshape(-1, 2, 2), power
