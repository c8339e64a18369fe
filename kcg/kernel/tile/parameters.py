"""The parameters of a tile program: what they are, and how they are stored."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Any

from kcg.errors import ScheduleError
from kcg.types import canonical_json

FORMAT = 1
ELEMENTWISE, REDUCTION, CONTRACTION, ROWS, FLASH_ATTENTION = "elementwise", "reduction", "contraction", "rows", "stream"
SPECIALIZED = "specialized"
PIPELINED = "pipelined"
PREFIX = "prefix"
PACKED = "packed"
UNPACKING = "unpacking"
FORMS = (ELEMENTWISE, REDUCTION, CONTRACTION, PIPELINED, ROWS, FLASH_ATTENTION, SPECIALIZED, PREFIX, PACKED, UNPACKING)
"""The forms, by their stored names: what each decides is in the file that writes its programs."""
NARROWEST = 16  # columns of a product's sub-tile
POINTER, TMA = "pointer", "tma"
EXACT, TF32 = "ieee", "tf32"
TF32X3 = "tf32x3"
"""A precision in which a product is made of three."""
PRECISIONS = (EXACT, TF32X3, TF32)
"""Exact products; three products of tf32 that are nearly exact; one of tf32, only where the user allows it."""

LISTS = {"evict_first", "evict_last"}
"""Fields that are lists of loads."""

LATER = LISTS | {"read_early", "unpacked"}
"""Fields that bodies of before lack: at their defaults they are left out, so that equal schedules have equal bodies."""

MOST_AXES, MOST_LOADS = 8, 64
"""How long lists may be: of axes, and of loads with an eviction policy."""

_WORDS = {"form": FORMS, "loads": (POINTER, TMA), "precision": PRECISIONS}


@dataclass(frozen=True)
class TileParameters:
    """One tile program of a kernel. Two of equal fields are one program. Fields are named as they are stored; where the
    field of compilers has another word for one, its comment says it.

    `axes` says which output ranges each axis of the tile holds, by their number in `TileKernel.outputs`, flattened
    with the last one changing fastest; of a contraction these are the rows (M) and the columns (N). Ranges that no
    axis holds are a program each. Of several kernels over the same rows (`rows`) the only axis has the ranges that
    number the rows, and `reduce_tile` is how much of a row is held at once. Of attention (`stream`, `specialized`) the
    only axis has the queries, and `reduce_tile` is how many keys are taken in one step.
    """

    form: str  # one of FORMS
    axes: tuple[tuple[int, ...], ...]
    tile: tuple[
        int, ...
    ]  # elements along each axis: powers of two; of a contraction's columns also the sum of two, and
    # rows of groups of warps three times 64
    reduce_tile: int = 0  # elements of the reduction in one step, a power of two; 0: nothing is reduced
    split: int = 1  # split-K: programs that share a reduction, by float32 partials and an ordered second launch
    tail: int = 1  # stream-K: programs that share each tile of a last wave that is not full, by sums, or 2 by columns
    group: int = 1  # swizzle: rows of tiles that neighbouring programs take together, so that columns are found in L2
    read_early: bool = False  # prefetch: operands of the epilogue are asked for before the loop
    evict_first: tuple[int, ...] = ()  # loads that L2 need not keep, by their number in `TileKernel.loads`
    evict_last: tuple[int, ...] = ()  # loads that it keeps longest
    loads: str = POINTER  # of a contraction's operands: POINTER or TMA
    persistent: int = 0  # programs a multiprocessor, each taking tiles in turn; 0: one program a tile
    epilogue_parts: int = 1  # 2: the tile is stored in halves, which takes less shared memory
    warp_specialize: bool = False
    num_warps: int = 4
    num_stages: int = 2
    maxnreg: int = 0  # registers a thread; 0: the compiler's choice
    fast_math: bool = True  # tanh by the hardware's approximation
    precision: str = EXACT  # of float32 operands, one of PRECISIONS
    unpacked: int = 0  # of packed products: neighbouring bytes that a thread takes out of memory and apart at once

    def changed(self, **fields: Any) -> TileParameters:
        """With other values of some fields. A search makes a hundred thousand: `dataclasses.replace`, which looks at
        every field, would be a sixth of its time."""
        made = object.__new__(TileParameters)
        made.__dict__.update(self.__dict__, **fields)
        return made

    @property
    def powers(self) -> tuple[int, ...]:
        """The sizes that must be powers of two: of columns whose size is the sum of two, these two; three groups of
        warps have three times as many rows."""
        if self.form not in (CONTRACTION, PIPELINED) or len(self.tile) != 2:
            return self.tile
        rows, columns = self.tile
        low = columns & -columns
        if self.form == PIPELINED and rows % 3 == 0:
            rows //= 3
        return (rows, columns) if low in (0, columns) or low < NARROWEST else (rows, low, columns - low)

    def to_json(self) -> str:
        """Canonical JSON: what a `tile` schedule stores."""
        values = {k: v for k, v in asdict(self).items() if k not in LATER or v}
        return canonical_json({"format": FORMAT, **values})

    @staticmethod
    def from_json(text: str) -> TileParameters:
        """The parameters of a stored text, every field checked for its type. Raises ScheduleError, in one line."""
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            raise ScheduleError("its body is not JSON") from None
        if not isinstance(found, dict) or found.pop("format", None) != FORMAT:
            raise ScheduleError("its body is not of a format that this kcg reads")
        if set(found) | LATER != {f.name for f in fields(TileParameters)}:
            raise ScheduleError("its body lacks a field or has one too many")
        for name in ("axes", "tile", *sorted(LISTS & set(found))):
            most = MOST_LOADS if name in LISTS else MOST_AXES
            if not isinstance(found[name], list) or len(found[name]) > most:
                raise ScheduleError(f"{name} is not a short list")
        if not all(isinstance(axis, list) and all(map(_is_size, axis)) for axis in found["axes"]):
            raise ScheduleError("axes are not lists of range numbers")
        for name in ("tile", *sorted(LISTS & set(found))):
            if not all(map(_is_size, found[name])):
                raise ScheduleError(f"{name} is not a list of sizes")
            found[name] = tuple(found[name])
        found["axes"] = tuple(map(tuple, found["axes"]))
        made = TileParameters(**found)
        for field in fields(TileParameters):
            value = getattr(made, field.name)
            if field.name in ("fast_math", "read_early", "warp_specialize"):
                right = type(value) is bool
            elif field.name in _WORDS:
                right = value in _WORDS[field.name]
            else:
                right = isinstance(value, tuple) or _is_size(value)
            if not right:
                raise ScheduleError(f"{field.name} cannot be {value!r}")
        return made


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 24
