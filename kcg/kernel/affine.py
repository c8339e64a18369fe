"""Loads at affine positions, read as strided views of the buffer: no gather, no copy where the strides allow.

A load in a kernel mostly reads element `base + Σ stride · range` of its buffer, perhaps zero outside a mask (padding).
`Reader` walks such a load over a grid of its ranges in pieces that stay in cache, each a float64 view.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from kcg.compat.tiny import AxisType, Invalid, Ops, UOp, dtypes
from kcg.errors import VerificationError
from kcg.kernel.numerics import unit_roundoff

WINDOW = 1 << 20  # elements of one piece: 8 MiB, in cache
COMPUTED_A_PIECE = 1 << 16  # elements that are computed in the time that a piece more takes

Array = NDArray[Any]
Grid = Mapping[UOp, NDArray[np.int64]]
"""The values, ascending, that each range takes."""
Conditions = Callable[[tuple[UOp, ...], Grid], Array]
"""Computes whether all of some conditions hold, on a grid with its axes in the mapping's order."""


@runtime_checkable
class Computed(Protocol):
    """A buffer of `size` elements, each one of `block`, computed when asked for; `kcg.measure.inputs.Hashed` is one."""

    @property
    def block(self) -> Array: ...
    @property
    def size(self) -> int: ...
    def of(self, block: Array) -> Computed:
        """The same with other numbers in the block."""
        ...

    def window(self, first: int, count: int) -> Array:
        """The elements `first` to `first + count`."""
        ...


@dataclass(frozen=True, eq=False)
class Access:
    """Elements `base + Σ strides[range] · range` of a buffer; 0 where a condition of `mask` is false."""

    slot: int
    size: int  # elements of the buffer
    base: int
    strides: Mapping[UOp, int]  # also 0, for ranges that only the mask depends on
    mask: tuple[UOp, ...] = ()
    variance: float = 0.0  # (relative rounding error)² of casts after the load


def affine(node: UOp) -> tuple[int, dict[UOp, int]] | None:
    """`(base, stride of each range)` of an integer expression; None if it is not affine in ranges of fixed extent."""
    match node.op:
        case Ops.CONST if isinstance(node.arg, int):
            return int(node.arg), {}
        case Ops.RANGE if node.arg[-1] is not AxisType.DEVICE and node.src[0].op is Ops.CONST:
            return 0, {node: 1}
        case Ops.CAST if dtypes.is_int(node.dtype) and node.dtype.itemsize >= 4:
            return affine(node.src[0])
        case Ops.ADD:
            left, right = affine(node.src[0]), affine(node.src[1])
            if left is None or right is None:
                return None
            return left[0] + right[0], {
                r: left[1].get(r, 0) + right[1].get(r, 0) for r in dict.fromkeys((*left[1], *right[1]))
            }
        case Ops.MUL:
            left, right = affine(node.src[0]), affine(node.src[1])
            if left is None or right is None or (left[1] and right[1]):
                return None
            (base, strides), factor = (left, right[0]) if left[1] else (right, left[0])
            return base * factor, {r: s * factor for r, s in strides.items()}
        case _:
            return None


def access_of(index: UOp) -> Access | None:
    """The access of an INDEX; None if its position is not affine. A gate (`Invalid`) becomes the mask."""
    source, positions = index.src[0], index.src[1:]
    dims = [0]
    if source.op is Ops.RESHAPE:
        shape = source.src[1].src if source.src[1].op is Ops.STACK else source.src[1:]
        if any(s.op is not Ops.CONST for s in shape):
            return None
        dims, source = [int(s.arg) for s in shape], source.src[0]
    if source.op is not Ops.PARAM or source.src[0].op is not Ops.CONST or len(dims) != len(positions):
        return None
    base, strides, mask = 0, dict[UOp, int](), []
    for dim, position in zip(dims, positions, strict=True):
        if position.op is Ops.WHERE and position.src[2].op is Ops.CONST and position.src[2].arg is Invalid:
            mask.append(position.src[0])
            position = position.src[1]
        if (part := affine(position)) is None:
            return None
        base = base * dim + part[0]
        strides = {r: strides.get(r, 0) * dim + part[1].get(r, 0) for r in dict.fromkeys((*strides, *part[1]))}
    return _masked(Access(source.arg.slot, int(source.src[0].arg), base, strides), mask)


def load_of(node: UOp) -> Access | None:
    """The access of a value that is a plain float load, perhaps cast between floats, perhaps zero outside a mask."""
    if not dtypes.is_float(node.dtype):
        return None
    match node.op:
        case Ops.INDEX:
            return access_of(node)
        case Ops.CAST:
            if (inner := load_of(node.src[0])) is None:
                return None
            return Access(inner.slot, inner.size, inner.base, inner.strides, inner.mask,
                          inner.variance + cast_variance(node))  # fmt: skip
        case Ops.WHERE if node.src[2].op is Ops.CONST and node.src[2].arg == 0:
            inner = load_of(node.src[1])
            return None if inner is None else _masked(inner, [node.src[0]])
        case _:
            return None


def cast_variance(cast: UOp) -> float:
    """(relative rounding error)² of a cast to a float: 0 to a type that holds all values of its source."""
    source = cast.src[0].dtype
    narrower = not dtypes.is_float(source) or unit_roundoff(cast.dtype) > unit_roundoff(source)
    return unit_roundoff(cast.dtype) ** 2 if narrower else 0.0


def _masked(access: Access, conditions: Sequence[UOp]) -> Access | None:
    """The access under further conditions; None if one depends on anything but ranges of fixed extent."""
    strides = dict(access.strides)
    for condition in conditions:
        for node in condition.toposort():
            if node.op in (Ops.INDEX, Ops.PARAM, Ops.REDUCE):
                return None
            if node.op is Ops.RANGE:
                if affine(node) is None:
                    return None
                strides.setdefault(node, 0)
    return Access(access.slot, access.size, access.base, strides, (*access.mask, *conditions), access.variance)


class Reader:
    """One buffer as float64, an array or something computed."""

    def __init__(self, values: Array | Computed) -> None:
        self._computed: Computed | None = None
        if isinstance(values, Computed):
            self._computed = values.of(np.asarray(values.block, np.float64))
            self._flat: Array = self._computed.block  # every number that there is
            self.size = int(values.size)
        else:
            self._flat = values.reshape(-1)
            self.size = self._flat.size
        self._integral: bool | None = None

    @property
    def integral(self) -> bool:
        """Whether all values are integers."""
        if self._integral is None:
            parts = (self._flat[s : s + WINDOW] for s in range(0, self._flat.size, WINDOW))
            self._integral = all(bool((np.rint(part) == part).all()) for part in parts)
        return self._integral

    def pieces(self, access: Access, grid: Grid, conditions: Conditions) -> Iterator[tuple[dict[UOp, slice], Array]]:
        """Pieces that together cover the grid of an access: where each lies in the grid, and its values.

        The axes of a piece are the keys of its position, by falling stride. Raises VerificationError for an access
        outside the buffer.
        """
        order = sorted(access.strides, key=lambda r: -abs(access.strides[r]))
        axes = [_Axis.over(r, access.strides[r], grid[r]) for r in order]
        self._check(access, axes)
        # parts are left out unread of the axis of the largest stride: elsewhere that is one piece per part, which costs
        # more than reading them, unless they are computed and large
        options: list[list[_Axis]] = []
        for place, axis in enumerate(axes):
            parts = _consecutive(grid[axis.range]) if axis.length != len(grid[axis.range]) else []
            left_out = (axis.length - len(grid[axis.range])) * abs(axis.stride) // max(1, len(parts))
            apart = bool(parts) and (not place or (self._computed is not None and left_out > COMPUTED_A_PIECE))
            options.append([_Axis.over(axis.range, axis.stride, part) for part in parts] if apart else [axis])
        for head in itertools.product(*options):
            for cut in self._split(head):
                if (piece := self._piece(access, cut, grid, conditions)) is not None:
                    yield piece

    def _check(self, access: Access, axes: Sequence[_Axis]) -> None:
        ends = [sorted((a.stride * a.start, a.stride * (a.start + a.step * (a.length - 1)))) for a in axes]
        low, high = (access.base + sum(end[i] for end in ends) for i in (0, 1))
        if not access.mask and (low < 0 or high >= min(self.size, access.size)):
            raise VerificationError(f"an access is outside its buffer {access.slot} of {self.size} elements")

    def _piece(
        self, access: Access, axes: Sequence[_Axis], grid: Grid, conditions: Conditions
    ) -> tuple[dict[UOp, slice], Array] | None:
        first = access.base + sum(a.stride * a.start for a in axes)
        low = sum(min(0, a.reach) for a in axes)
        window = self._window(first + low, sum(abs(a.reach) for a in axes) + 1)
        view = as_strided(
            window[-low:], [a.length for a in axes], [8 * a.stride * a.step for a in axes], writeable=False
        )
        where: dict[UOp, slice] = {}
        for i, axis in enumerate(axes):
            last = axis.start + axis.step * (axis.length - 1)
            begin, end = np.searchsorted(grid[axis.range], (axis.start, last + 1))
            where[axis.range] = slice(int(begin), int(end))
            if end - begin != axis.length:
                if begin == end:
                    return None
                view = view.take(grid[axis.range][begin:end] - axis.start, i)
        if access.mask:
            view = np.where(conditions(access.mask, {r: grid[r][s] for r, s in where.items()}), view, 0.0)
        return where, view

    def _window(self, first: int, count: int) -> Array:
        begin, end = max(0, first), min(self.size, max(0, first + count))
        if self._computed is not None:
            part = self._computed.window(begin, max(0, end - begin))
        else:
            part = np.asarray(self._flat[begin:end], np.float64)
        if len(part) == count:
            return part
        before = min(count, max(0, -first))  # a padded load: the mask hides what is outside
        return np.pad(part, (before, count - before - len(part)))

    def _split(self, axes: Sequence[_Axis]) -> Iterator[list[_Axis]]:
        """The axes cut into pieces that fit a window: those of the largest strides are cut."""
        if not axes:
            yield []
            return
        axis, rest = axes[0], list(axes[1:])
        inside, count = 1 + sum(abs(a.reach) for a in rest), math.prod(a.length for a in rest)
        fits = inside <= WINDOW and count <= WINDOW
        most = 1
        step = abs(axis.stride * axis.step)
        if fits and not (self._computed is not None and step - inside > COMPUTED_A_PIECE):
            most = min(WINDOW // count, 1 + (WINDOW - inside) // step if step else WINDOW)
        for begin in range(0, axis.length, most):
            part = axis.part(begin, min(most, axis.length - begin))
            if fits:
                yield [part, *rest]
            else:
                yield from ([part, *cut] for cut in self._split(rest))


class _Axis(NamedTuple):
    """Values `start + step · i` of one range, `length` of them."""

    range: UOp
    stride: int  # in elements of the buffer, for 1 of the range
    start: int
    step: int
    length: int

    @classmethod
    def over(cls, axis: UOp, stride: int, values: NDArray[np.int64]) -> _Axis:
        """The values, or all between the first and the last where these are not evenly spaced."""
        first, last = int(values[0]), int(values[-1])
        steps = np.diff(values)
        step = int(steps[0]) if len(steps) and (steps == steps[0]).all() else 1
        return cls(axis, stride, first, step, (last - first) // step + 1)

    @property
    def reach(self) -> int:
        return self.stride * self.step * (self.length - 1)

    def part(self, begin: int, length: int) -> _Axis:
        return self._replace(start=self.start + self.step * begin, length=length)


def _consecutive(values: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    return np.split(values, np.flatnonzero(np.diff(values) != 1) + 1)
