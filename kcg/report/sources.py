"""The sources in a report: every text whole, packed into the page, and which lines differ between the two that matter.

The page unpacks them when a kernel is opened, so that hundreds of kernels with long programs stay a small page.
"""

from __future__ import annotations

import base64
import difflib
import gzip
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from kcg.report.rows import Row

MOST_PACKED_BYTES = 1_200_000
"""Of all sources, compressed: base64 makes it a third more, and a page is to stay below 3 MB."""

MOST_LINES = 5_000
"""The difference of longer sources is not worked out."""

LEAST_ALIKE = 0.1
"""Two sources that have less in common are two programs, such as CUDA and Triton: every line would differ."""

Part = tuple[str, int, int, int, int]
"""`equal`, `replace`, `delete` or `insert`, and the lines [first, end) of the one source and of the other."""


@dataclass(frozen=True)
class Sources:
    """What the page holds: base64 of gzip of JSON, `{number of the row: [difference or null, text of each side]}`."""

    packed: str
    held: frozenset[int]  # numbers of the rows whose sources are in it
    compared: frozenset[int]  # of them, those with a difference
    left_out: int  # rows whose sources would have made the page too large


def sources_of(rows: Sequence[Row], *, most_bytes: int = MOST_PACKED_BYTES) -> Sources:
    """The sources of `rows` in their order, as many as fit into `most_bytes`."""
    held: dict[int, list[object]] = {}
    counter, size = zlib.compressobj(9), 0
    with_text = [row for row in rows if any(side.source for _, side in row.sides)]
    for row in with_text:
        texts = [side.source.encode("utf-8", "replace").decode() for _, side in row.sides]
        entry: list[object] = [difference(texts[0], texts[1]) if row.changed else None, *texts]
        size += len(counter.compress(_json(entry))) + len(counter.flush(zlib.Z_SYNC_FLUSH))
        if size > most_bytes:
            break
        held[row.number] = entry
    packed = base64.b64encode(gzip.compress(_json(held), compresslevel=9, mtime=0)).decode()
    compared = frozenset(number for number, entry in held.items() if entry[0] is not None)
    return Sources(packed, frozenset(held), compared, len(with_text) - len(held))


def difference(one: str, other: str) -> Sequence[Part] | None:
    """How the lines of `one` become those of `other`; None where there is nothing to compare, or too much."""
    a, b = one.splitlines(), other.splitlines()
    if not a or not b or max(len(a), len(b)) > MOST_LINES:
        return None
    matcher = difflib.SequenceMatcher(None, a, b, autojunk=False)
    if matcher.quick_ratio() < LEAST_ALIKE or matcher.ratio() < LEAST_ALIKE:
        return None
    return matcher.get_opcodes()


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
