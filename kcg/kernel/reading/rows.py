"""Rows that several kernels share: what numbers them in each store, and how their values are written.

Heads of one token are rows that read the same tables of a rotation. A tile then has an axis for the heads and one for
the tokens, so that a table is loaded once for its heads. A value that reads the other element of its pair is computed
for both at once, on halves of what is loaded once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from kcg.compat.tiny import AxisType, Ops, UOp
from kcg.kernel.ast import affine, extent, is_symbolic
from kcg.kernel.reading.accesses import BufferSlot, Stored, access_of
from kcg.kernel.reading.branches import pairs_of
from kcg.kernel.reading.cut import between, bounds_of
from kcg.kernel.reading.depth import depth_of
from kcg.kernel.reading.indices import moved
from kcg.kernel.reading.kernel import Rows, TileKernel, kernel_of
from kcg.kernel.reading.unsupported import UnsupportedTile

MOST_SIDES = 4  # each is written by itself
Ranges = tuple[UOp, ...]
_QUOTIENTS = (Ops.FLOORDIV, Ops.FLOORMOD, Ops.CDIV, Ops.CMOD)


def with_rows(wanted: list[Stored], kernel: TileKernel, buffers: dict[UOp, BufferSlot]) -> TileKernel:
    """The kernel with its rows; ranges in which several rows end are taken apart where nothing else helps."""
    try:
        rows = rows_of(kernel)
    except UnsupportedTile:
        width = max(math.prod(map(extent, r.src[1:])) for r in kernel.reductions)
        kernel = kernel_of([in_rows(s, width, s.store.address, buffers) for s in wanted], buffers)
        rows = rows_of(kernel)
    rows = _with_pairs(replace(rows, apart=_apart(kernel, rows)), kernel, buffers)
    return replace(kernel, rows=replace(rows, sides=_sides(kernel, rows, buffers)))


def in_rows(stored: Stored, width: int, address: UOp, buffers: dict[UOp, BufferSlot]) -> Stored:
    """A store with a range in whose course rows of so many elements end, as over the rows and what is along them: by an
    address of one of its elements."""
    steps = affine(address) or {}
    for axis in stored.outputs:
        step = steps.get(axis, 0)
        if step and step < width < step * extent(axis) and not width % step and not extent(axis) % (width // step):
            return _in_two(stored, axis, width // step, buffers)
    return stored


def in_groups(stored: Stored, buffers: dict[UOp, BufferSlot]) -> Stored:
    """A store with ranges of which something reads a quotient or its rest, as of heads that share keys, as over the
    quotients and what is in each."""
    for node in UOp.sink(stored.value, *stored.gates).toposort():
        if node.op in _QUOTIENTS and node.src[0] in stored.outputs and node.src[1].op is Ops.CONST:
            axis, inner = node.src[0], int(node.src[1].arg)
            if not is_symbolic(axis) and 1 < inner < extent(axis) and not extent(axis) % inner:
                return in_groups(_in_two(stored, axis, inner, buffers), buffers)
    return stored


def _in_two(stored: Stored, axis: UOp, inner: int, buffers: dict[UOp, BufferSlot]) -> Stored:
    """A store over two ranges in the place of one, the second of so many elements."""
    outer, along = (
        UOp(Ops.RANGE, axis.dtype, (axis.src[0].const_like(size),), (*axis.arg[:-1], place, AxisType.LOOP))
        for place, size in enumerate((extent(axis) // inner, inner))
    )
    at = {axis: outer * inner + along}
    node = moved(stored.store.node, at)
    outputs = [new for old in stored.outputs for new in ((outer, along) if old is axis else (old,))]
    gates = tuple(gate.substitute(at).simplify() for gate in stored.gates)
    return Stored(access_of(node, buffers), moved(stored.value, at), gates, tuple(outputs))


def rows_of(kernel: TileKernel) -> Rows:
    """How the values share rows: each reduction is of a row or of less, and each store of a value per row or of each
    element.

    Raises UnsupportedTile where they do not.
    """
    width = max(math.prod(map(extent, r.src[1:])) for r in kernel.reductions)
    if depth_of(kernel.reductions) > 1:
        raise UnsupportedTile("rows", "reductions inside reductions")
    if any(is_symbolic(axis) for s in kernel.stored for axis in s.outputs):
        raise UnsupportedTile("rows", "their number is known only when the program runs")
    if any(is_symbolic(axis) for r in kernel.reductions for axis in r.src[1:]):
        raise UnsupportedTile("rows", "their length is known only when the program runs")
    numbers, counts = [], set()
    for stored in kernel.stored:
        inside = [n for n in stored.value.toposort() if n.op is Ops.REDUCE]
        over = {axis for node in inside for axis in node.ranges}
        row = tuple(axis for axis in stored.outputs if axis in over)
        along = tuple(axis for axis in stored.outputs if axis not in over)
        if math.prod(map(extent, along)) != width:
            row, along = (stored.outputs, ()) if math.prod(map(extent, along)) == 1 else _first_rows(stored, width)
        if over & set(along):
            raise UnsupportedTile("rows", "a reduction is not of the whole row that it is used in")
        numbers.append((row, along))
        counts.add(math.prod(map(extent, row)))
    if len(counts) != 1:
        raise UnsupportedTile("rows", "stores of different numbers of rows")
    return Rows(counts.pop(), width, tuple(numbers))


def _first_rows(stored: Stored, width: int) -> tuple[tuple[UOp, ...], tuple[UOp, ...]]:
    """The last ranges that come to a row, of a value that does not say by itself which these are."""
    for place in range(len(stored.outputs)):
        if math.prod(map(extent, stored.outputs[place:])) == width:
            return stored.outputs[:place], stored.outputs[place:]
    raise UnsupportedTile("rows", "what is stored is neither a value nor a tile per row")


# ---- rows that read the same tables


def _apart(kernel: TileKernel, rows: Rows) -> tuple[tuple[Ranges, Ranges], ...]:
    """See `Rows.apart`; nothing where no tables are shared, or the stores do not have such rows alike, or rows do not
    fill a block."""
    if rows.width & (rows.width - 1):
        return ()
    wanted = next((found for found in map(_shared_by, kernel.stored, rows.numbers) if found is not None), None)
    if wanted is None:
        return ()
    found = []
    for stored, (row, along) in zip(kernel.stored, rows.numbers, strict=True):
        pair = _shared_by(stored, (row, along)) or _of_sizes(row, wanted)
        if pair is None or [_sizes(part) for part in pair] != [_sizes(part) for part in wanted]:
            return ()
        found.append(pair)
    return tuple(found)


def _shared_by(stored: Stored, numbers: tuple[Ranges, Ranges]) -> tuple[Ranges, Ranges] | None:
    """The ranges of rows without and with which something is read along them; None where all of them, or none, choose
    whatever is read."""
    row, along = numbers
    for load in _read_along(stored, along):
        own = tuple(axis for axis in row if axis in load.ranges)
        if 0 < len(own) < len(row):
            return tuple(axis for axis in row if axis not in own), own
    return None


def _read_along(stored: Stored, along: Ranges) -> list[UOp]:
    """What is loaded for each element of a row."""
    return [n for n in stored.value.toposort() if n.op is Ops.INDEX and not set(along).isdisjoint(n.ranges)]


def _of_sizes(row: Ranges, wanted: tuple[Ranges, Ranges]) -> tuple[Ranges, Ranges] | None:
    """Ranges of rows in two groups of the sizes of others."""
    left, found = list(row), []
    for axis in wanted[1]:
        same = next((one for one in left if extent(one) == extent(axis)), None)
        if same is None:
            return None
        left.remove(same)
        found.append(same)
    return tuple(left), tuple(found)


def _sizes(ranges: Ranges) -> list[int]:
    return [extent(axis) for axis in ranges]


def _with_pairs(rows: Rows, kernel: TileKernel, buffers: dict[UOp, BufferSlot]) -> Rows:
    """The rows with those of the values that use the other element of their pair."""
    pairs = [
        pairs_of(stored.value, row, along, buffers)
        for stored, (row, along) in zip(kernel.stored, rows.numbers, strict=True)
    ]
    found = [one for one in pairs if one is not None]
    nodes = UOp.sink(*(node for one in found for node in (*one.values, *(whole for whole, _ in one.tables)))).toposort()
    loads = tuple(access_of(node, buffers) for node in nodes if node.op is Ops.INDEX)
    return replace(rows, pairs=tuple(pairs), loads=loads)


def _sides(kernel: TileKernel, rows: Rows, buffers: dict[UOp, BufferSlot]) -> tuple[TileKernel, ...]:
    """The kernels of the rows between bounds of the range by which they read other tables."""
    if not rows.apart or any(len(own) != 1 for _, own in rows.apart):
        return ()
    bounds = sorted({b for stored, (_, (axis,)) in _by_store(kernel, rows) for b in bounds_of(stored).get(axis, ())})
    if not 0 < len(bounds) < MOST_SIDES:
        return ()
    cut = [between(stored, axis, bounds, buffers) for stored, (_, (axis,)) in _by_store(kernel, rows)]
    found = []
    for side in zip(*cut, strict=True):
        made = kernel_of(side, buffers)
        try:
            own = rows_of(made)
        except UnsupportedTile:
            return ()
        own = replace(own, apart=_apart(made, own))
        if not own.apart:
            return ()
        found.append(replace(made, rows=_with_pairs(own, made, buffers)))
    return tuple(found)


def _by_store(kernel: TileKernel, rows: Rows) -> Sequence[tuple[Stored, tuple[Ranges, Ranges]]]:
    return list(zip(kernel.stored, rows.apart, strict=True))
