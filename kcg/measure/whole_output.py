"""Every element of an output, and not only sampled ones: beside another binary's, and by projections.

Two right schedules differ in the last bits only. Where two outputs differ most the float64 reference is asked, and it
alone decides: so nothing is rejected for a harmless difference, and one wrong element among a hundred million is found.
That the first of the binaries is right everywhere is shown, for linear kernels, by random projections of its output.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kcg.kernel.evaluate import CONFIDENT, StoreIndex, StoreValues, evaluate
from kcg.kernel.projection import expected, plan, project, ratio, signs
from kcg.measure.inputs import to_values

if TYPE_CHECKING:
    from kcg.measure.references import Referee
    from kcg.measure.verify import CheckedBench

WHOLE_BELOW_BYTES = 512 << 20  # outputs that are copied back and compared whole
AGAIN_BELOW_BYTES = 32 << 20  # on the later seeds; larger ones there only where they are the same bit for bit
SUSPECTS = 48  # elements that differ most, judged by the reference
CHUNK = 1 << 22  # elements that are compared at once

LOOKED_THROUGH = 1 << 23  # points of a store among which those that write an element are looked for, one by one

FEW_ROWS_ABOVE = 1 << 28  # input elements: of a larger kernel only some rows are projected
FEW_ROWS = 64

BESIDE = "whole output beside the first binary's"
PROJECTED = "random projections of the whole output"

Bits = NDArray[Any]


class WholeOutput:
    """The outputs of the first binary that passed on one seed, and what those of the others are held against."""

    def __init__(
        self, bench: CheckedBench, seed: int, variables: dict[str, int], *, alone: bool, first: bool = True
    ) -> None:
        """`alone`: there is no other binary; `first`: on the first seed, whose outputs are also projected."""
        self._bench, self._seed, self._variables, self._alone, self._is_first = bench, seed, variables, alone, first
        self._slots = bench.outputs
        limit = WHOLE_BELOW_BYTES if first else AGAIN_BELOW_BYTES
        self._fits = sum(bench.by_slot[slot].nbytes for slot in self._slots) <= limit
        self._snapshots: dict[int, Bits] = {}
        self._first: dict[int, Bits] = {}

    def judge(self, ran: Callable[..., None]) -> str:
        """What is wrong with the outputs that are on the device now; empty if nothing is."""
        if not self._snapshots:
            if not self._alone:
                self._snapshots = {slot: self._bench.snapshot(slot) for slot in self._slots}
                self._first = {slot: self._bench.read(slot) for slot in self._slots} if self._fits else {}
            return judge_projections(self._bench, self._seed, ran) if self._is_first and self._fits else ""
        if all(self._bench.holds(slot, snapshot) for slot, snapshot in self._snapshots.items()):
            ran(BESIDE)
            return ""
        if not self._fits:
            return ""
        ran(BESIDE)
        bench = self._bench
        wanted = {slot: most_different(self._first[slot], bench.read(slot), self._dtype(slot)) for slot in self._slots}
        if not any(len(elements) for elements in wanted.values()):
            return ""
        indices = [StoreIndex(bench.ast, place, bench.values(), self._variables) for place in range(len(bench.ast.src))]
        found = [elements_to_points(index, wanted[index.slot]) for index in indices]
        expected_values = self._at([points for points, _ in found])
        return bench.compare(expected_values) or self._left_alone(wanted, indices, found)

    def _left_alone(
        self,
        wanted: dict[int, NDArray[np.int64]],
        indices: list[StoreIndex],
        found: list[tuple[NDArray[np.int64], bool]],
    ) -> str:
        """What is wrong with elements that differ though no store of the kernel writes them."""
        for slot, elements in wanted.items():
            here = [(index, *told) for index, told in zip(indices, found, strict=True) if index.slot == slot]
            if not all(complete for _, _, complete in here):
                continue
            written = [index.at(points)[0] for index, points, _ in here if len(points)]
            others = np.setdiff1d(elements, np.concatenate(written) if written else np.zeros(0, np.int64))
            if len(others):
                return f"wrote element {int(others[0])} of buffer {slot}, which the kernel leaves alone"
        return ""

    def _dtype(self, slot: int) -> str:
        return self._bench.by_slot[slot].dtype

    def _at(self, points: list[NDArray[np.int64]]) -> list[StoreValues]:
        return evaluate(self._bench.ast, self._bench.values(), points, self._variables)


def judge_projections(bench: CheckedBench, seed: int, ran: Callable[..., None]) -> str:
    """What random projections of the outputs on the device show to be wrong; empty if nothing, or if there are none."""
    for place in range(len(bench.ast.src)):
        if (told := projected(bench, seed, place)) is None or (found := plan(bench.ast, place)) is None:
            continue
        ran(PROJECTED)
        slot = found.slot
        values = to_values(bench.read(slot), bench.by_slot[slot].dtype)
        got = project(values, found, told.signs, rows=told.rows)
        ratios = ratio(told.values, told.error, got)
        if float(ratios.max(initial=0.0)) > CONFIDENT:
            at = int(ratios.argmax())
            row = at if told.rows is None else int(told.rows[at])
            return f"the projection of row {row} of buffer {slot} is {got[at]:.6g}, not {told.values[at]:.6g}"
    return ""


def projected(referee: Referee, seed: int, place: int) -> Projected | None:
    """What one store must project to on the inputs that are filled in, computed once; None if it is not linear."""
    key = (seed, referee.recipe, place)
    if key not in referee.projections:
        referee.projections[key] = Projected.of(referee, seed, place)
    told: Projected | None = referee.projections[key]
    return told


@dataclass(frozen=True, eq=False)
class Projected:
    """The projections that one store of a kernel must have on the inputs of one seed."""

    signs: NDArray[np.float64]
    rows: NDArray[np.int64] | None
    values: NDArray[np.float64]
    error: NDArray[np.float64]

    @staticmethod
    def of(bench: Referee, seed: int, place: int) -> Projected | None:
        """None where the store is not linear, or its output too large to be copied."""
        if (found := plan(bench.ast, place)) is None or bench.by_slot[found.slot].nbytes > WHOLE_BELOW_BYTES:
            return None
        rng = np.random.default_rng([seed, place])
        v, rows = signs(found, rng), None
        if sum(info.size for info in bench.buffers if info.is_input) > FEW_ROWS_ABOVE:
            rows = np.unique(rng.integers(0, found.rows, FEW_ROWS))
        return Projected(v, rows, *expected(found, bench.values(), v, rows))


def most_different(first: Bits, other: Bits, dtype: str, count: int = SUSPECTS) -> NDArray[np.int64]:
    """The elements in which two outputs differ most, relative to their size; none where they agree bit for bit."""
    scale: float | None = None
    scores: list[NDArray[np.float64]] = []
    places: list[NDArray[np.int64]] = []
    for begin in range(0, len(first), CHUNK):
        a, b = first[begin : begin + CHUNK], other[begin : begin + CHUNK]
        at = np.flatnonzero(a != b)
        if not len(at):
            continue
        x, y = (np.asarray(to_values(side[at], dtype), np.float64) for side in (a, b))
        with np.errstate(all="ignore"):
            if scale is None:  # small elements are compared with what is typical
                part = np.asarray(to_values(a[:: max(1, len(a) // 4096)], dtype), np.float64)
                finite = part[np.isfinite(part)]
                scale = float(np.sqrt(np.mean(np.square(finite)))) if len(finite) else 0.0
            score = np.abs(x - y) / (np.abs(x) + 0.1 * scale)
        same = (x == y) | (np.isnan(x) & np.isnan(y))
        if (
            a.dtype.kind in "iu" and dtype != "__bf16"
        ):  # float64 cannot tell large integers apart: any difference counts
            same, score = np.zeros(len(x), bool), score + 1.0
        score = np.where(same, 0.0, np.where(np.isnan(score), np.inf, score))
        best = np.argpartition(score, -count)[-count:] if len(score) > count else np.arange(len(score))
        best = best[score[best] > 0]
        scores.append(score[best])
        places.append(at[best] + begin)
    if not scores:
        return np.zeros(0, np.int64)
    order = np.argsort(-np.concatenate(scores), kind="stable")[:count]
    found: NDArray[np.int64] = np.concatenate(places)[order].astype(np.int64)
    return found


def elements_to_points(index: StoreIndex, elements: NDArray[np.int64]) -> tuple[NDArray[np.int64], bool]:
    """The points at which one store writes some elements, and whether there are no others.

    By strides where its index is a sum of them; else all points are looked through, if they are not more than
    `LOOKED_THROUGH`.
    """
    if not len(elements):
        return np.zeros((0, len(index.extents)), np.int64), True
    points = _by_strides(index, elements)
    if len(points) == len(elements):
        return points, True
    found = index.points_of(elements, LOOKED_THROUGH)
    return (points, False) if found is None else (found, True)


def _by_strides(index: StoreIndex, elements: NDArray[np.int64]) -> NDArray[np.int64]:
    """The same as far as the index is a sum of strides, which are read off it."""
    extents = index.extents
    basis = np.concatenate([np.zeros((1, len(extents)), np.int64), np.diag((extents > 1).astype(np.int64))])
    first = index.at(basis)[0]
    strides, rest = first[1:] - first[0], elements - first[0]
    points = np.zeros((len(elements), len(extents)), np.int64)
    for axis in np.argsort(-np.abs(strides), kind="stable"):
        if strides[axis] > 0:
            points[:, axis] = np.clip(rest // strides[axis], 0, extents[axis] - 1)
            rest = rest - points[:, axis] * strides[axis]
    where, opened = index.at(points)
    fitting: NDArray[np.int64] = points[(where == elements) & opened]
    return fitting
