"""How far apart what two runs of a script left is, and how much of that is rounding.

The error of a piece (a tensor that was alive at the end, that the last `TinyJit` step returned, or that the script
read) is that of `kcg.optimize.model_verdict`: row by row, over the size of the whole. What is not finite with
tinygrad's own schedules must be the same with the chosen ones.

The tolerance. Nothing is known of a script but its kernels, so it is found in two steps. First

    3 · max(eps, √K · eps(sum)), with the largest √K · eps(sum) of all kernels

where eps is one rounding unit of the piece: about what the last kernel alone may do. Most scripts agree far better, and
are done. Where one does not, tinygrad's own schedules run once more with every floating value that the script begins
with changed by one rounding unit at random, and the error of that run (D) tells what the script makes of rounding; a
training loop makes a lot of it. Then

    3 · max(D, eps, eps(stored)) · max(1, √K · eps(sum) / max(eps, eps(stored)))

where eps(stored) is that of the coarsest dtype in which its kernels store anything. Each piece has a tolerance of its
own; above 0.25 nothing can be told. Whole numbers and booleans must be equal. Where they are not, a kernel is wrong
for certain only if no kernel of the script computes with floating values: else rounding may have turned a comparison,
and nothing can be told either.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kcg.commandline import counted
from kcg.compat.observing import ALIVE, READ, RETURNED, Piece
from kcg.optimize.model_verdict import FACTOR, MAX_TOLERANCE, eps_of, relative_error, rounding_of_sums
from kcg.types import ModelCheck, Result

if TYPE_CHECKING:
    from numpy.typing import NDArray

PLACES = {ALIVE: "alive at its end", RETURNED: "returned by its last TinyJit step", READ: "read by it"}


@dataclass(frozen=True)
class Rounding:
    """What is known of the arithmetic of a script's kernels."""

    sums: float  # `rounding_of_sums`
    stored: float  # one rounding unit of the coarsest floating dtype that a kernel stores; 0: none stores any
    floats: bool  # whether any of them computes with floating values


def rounding_of(result: Result) -> Rounding:
    """The rounding of the kernels of a result."""
    from kcg.compat.tiny import Ops, dtypes
    from kcg.kernel.codec import ast_of

    stored, floats = 0.0, False
    for kernel in {kernel for row in result.regions for kernel in row.region.kernels}:
        for node in ast_of(kernel).toposort():
            if dtypes.is_float(node.dtype):
                floats = True
                if node.op is Ops.PARAM:
                    stored = max(stored, eps_of(node.dtype))
    return Rounding(rounding_of_sums(result), stored, floats)


def same_layout(ours: Sequence[Piece], theirs: Sequence[Piece]) -> bool:
    """Whether two runs left tensors of the same kind, shape and dtype, in the same order."""

    def layout(pieces: Sequence[Piece]) -> list[Any]:
        return [(piece.place, piece.dtype, piece.values.shape) for piece in pieces]

    return layout(ours) == layout(theirs)


def equal(ours: Sequence[Piece], theirs: Sequence[Piece]) -> bool:
    """Whether two runs left the same bytes."""
    return same_layout(ours, theirs) and all(
        _bits(a.values) == _bits(b.values) for a, b in zip(ours, theirs, strict=True)
    )


def says_something(pieces: Sequence[Piece]) -> bool:
    """Whether there is any finite value that is not zero."""
    return any(_says_something(piece) for piece in pieces)


def judge_first(chosen: Sequence[Piece], own: Sequence[Piece], rounding: Rounding) -> ModelCheck | None:
    """Passed where the chosen schedules differ by no more than a single kernel may; None where it takes more runs."""
    judged = [_judged(c, o, 0.0, o.eps, rounding) for c, o in zip(chosen, own, strict=True)]
    if any(one.ratio > 1 for one in judged):
        return None
    worst = max(judged, key=lambda one: one.ratio)
    return ModelCheck(True, "", worst.error, worst.tolerance)


def judge(
    chosen: Sequence[Piece], own: Sequence[Piece], shaken: Sequence[Piece], rounding: Rounding, *, values: int
) -> ModelCheck:
    """The verdict where the chosen schedules differ by more than that. `shaken` was left by tinygrad's own schedules
    where the `values` with which the script begins were changed by one rounding unit."""
    judged = []
    for c, o, s in zip(chosen, own, shaken, strict=True):
        first = _judged(c, o, 0.0, o.eps, rounding)
        if first.ratio <= 1:
            judged.append(first)
            continue
        judged.append(_judged(c, o, _error(s, o), max(o.eps, rounding.stored) if o.eps else 0.0, rounding))
    failed = [j for j in judged if j.ratio > 1 and not j.is_open(rounding, values)]
    if failed:
        worst = max(failed, key=lambda one: one.ratio)
        return ModelCheck(False, worst.words(values), worst.error, worst.tolerance)
    opened = [j for j in judged if j.ratio > 1 or j.is_too_sensitive]
    if opened:
        share = f"{len(opened)} of {counted(len(judged), 'tensor')}"
        reason = f"no verdict: {share} may differ by rounding alone; the first, {opened[0].words(values)}"
        return ModelCheck(None, reason, opened[0].error, opened[0].tolerance)
    worst = max(judged, key=lambda one: one.ratio)
    return ModelCheck(True, "", worst.error, worst.tolerance)


def words_of(pieces: Sequence[Piece]) -> str:
    """What was compared, counted by where it was."""
    counts = Counter(piece.place for piece in pieces)
    return ", ".join(f"{counted(counts[place], 'tensor')} {words}" for place, words in PLACES.items() if counts[place])


@dataclass(frozen=True)
class _Judged:
    """One piece, its error and its tolerance; of whole numbers the error is the share that differs."""

    piece: Piece
    error: float
    tolerance: float

    @property
    def ratio(self) -> float:
        if self.error <= self.tolerance:
            return self.error / self.tolerance if self.tolerance else 0.0
        return math.inf if not self.tolerance else max(self.error / self.tolerance, math.nextafter(1.0, 2.0))

    @property
    def is_too_sensitive(self) -> bool:
        return not self.tolerance <= MAX_TOLERANCE

    def is_open(self, rounding: Rounding, values: int) -> bool:
        """Whether rounding may be why it differs."""
        if not self.piece.eps:
            return rounding.floats
        return self.is_too_sensitive or not values  # where nothing was shaken, D tells nothing

    def words(self, values: int) -> str:
        shape = "×".join(map(str, self.piece.values.shape)) or "single"
        name = f"a tensor ({shape} {self.piece.dtype}) {PLACES[self.piece.place]}"
        if not self.piece.eps:
            return f"{name} differs from that with tinygrad's own schedules in {self.error:.2g} of its values"
        if not math.isfinite(self.error):
            return f"{name} is not finite where it is with tinygrad's own schedules, or the other way round"
        explained = f"rounding explains {self.tolerance:.2g}"
        if not values:
            explained = "nothing that the script begins with could be changed to see what it makes of rounding"
        elif self.is_too_sensitive:
            explained = "one rounding unit in what the script begins with moves it too much to tell"
        return f"{name} differs by {self.error:.2g} of its size from that with tinygrad's own schedules; {explained}"


def _judged(chosen: Piece, own: Piece, moved: float, eps: float, rounding: Rounding) -> _Judged:
    tolerance = FACTOR * max(moved, eps) * max(1.0, rounding.sums / eps) if eps else 0.0
    return _Judged(own, _error(chosen, own), tolerance)


def _error(ours: Piece, own: Piece) -> float:
    import numpy as np

    if not own.eps:
        differ = np.asarray(ours.values != own.values)
        return float(differ.mean()) if differ.size else 0.0
    a, b = (np.asarray(piece.values, np.float64) for piece in (ours, own))
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return math.inf
    a, b = np.where(finite, a, 0.0), np.where(finite, b, 0.0)
    if not b.any():
        return math.inf if a.any() else 0.0
    return relative_error([a], [b])


def _says_something(piece: Piece) -> bool:
    import numpy as np

    values = np.asarray(piece.values)
    return bool((np.isfinite(values) & (values != 0)).any() if piece.eps else values.any())


def _bits(values: NDArray[Any]) -> bytes:
    import numpy as np

    return np.ascontiguousarray(values).tobytes()
