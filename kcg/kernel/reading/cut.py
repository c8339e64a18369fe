"""What is stored of several contractions' results beside each other, cut into parts of one result each.

A concatenation is one result up to a bound of a range and another one from there on, and comparisons of that range with
constants say which. Where each part has a range of its own, from its bound on, these are constants, and choices and
gates that depend on them go away.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence

from kcg.compat.tiny import AxisType, Ops, UOp
from kcg.kernel.ast import buffer_of, extent, is_symbolic
from kcg.kernel.reading.accesses import BufferSlot, Stored, access_of
from kcg.kernel.reading.indices import decided, moved
from kcg.kernel.reading.unsupported import UnsupportedTile

CUT = "results beside each other"
Buffers = dict[UOp, BufferSlot]


def parts_of(stored: Stored, results: Collection[int], buffers: Buffers) -> list[tuple[int, Stored]]:
    """The parts of a store, each with the slot of the only one of `results` that it is of: the store itself, or what
    its range is cut into. Nothing where no range says which result it is of. Raises UnsupportedTile where one does, but
    not for all of its elements."""
    used, wrong = _used(stored, results, buffers), list[int]()
    if len(used) == 1:
        return [(used.pop(), stored)]
    for axis, bounds in bounds_of(stored).items():
        slots = [_used(part, results, buffers) for part in between(stored, axis, bounds, buffers)]
        if all(len(one) == 1 for one in slots):
            ends = [
                bound for bound, (one, other) in zip(bounds, itertools.pairwise(slots), strict=True) if one != other
            ]
            parts = between(stored, axis, ends, buffers)
            return [(_used(part, results, buffers).pop(), part) for part in parts]
        wrong += [len(one) for one in slots if len(one) != 1 and min(map(len, slots)) < len(used)]
    if wrong:
        raise UnsupportedTile(CUT, f"{wrong[0]} products in one part")
    return []


def _used(stored: Stored, results: Collection[int], buffers: Buffers) -> set[int]:
    """Which results a value is made of."""
    loads = (node for node in stored.value.toposort() if node.op is Ops.INDEX)
    return {buffers[buffer_of(node)].slot for node in loads} & set(results)


def bounds_of(stored: Stored) -> dict[UOp, list[int]]:
    """Of ranges the elements from which on a comparison of it, or of a quotient of it, with a constant is another."""
    found: dict[UOp, set[int]] = {}
    for node in stored.value.toposort():
        if node.op not in (Ops.CMPLT, Ops.CMPNE, Ops.CMPEQ) or node.src[1].op is not Ops.CONST:
            continue
        axis, step = node.src[0], 1
        if axis.op is Ops.FLOORDIV and axis.src[1].op is Ops.CONST:
            axis, step = axis.src[0], int(axis.src[1].arg)
        if axis in stored.outputs and not is_symbolic(axis):
            bounds = [int(node.src[1].arg), int(node.src[1].arg) + (node.op is not Ops.CMPLT)]
            found.setdefault(axis, set()).update(step * one for one in bounds if 0 < step * one < extent(axis))
    return {axis: sorted(bounds) for axis, bounds in found.items() if bounds}


def between(stored: Stored, axis: UOp, bounds: Sequence[int], buffers: Buffers) -> list[Stored]:
    """A store in parts, each over a range of its own in the place of one that has bounds; over none where that is of
    one element."""
    found = []
    for place, (first, end) in enumerate(itertools.pairwise((0, *bounds, extent(axis)))):
        kind = (axis.arg[0], place, AxisType.LOOP)
        own = UOp(Ops.RANGE, axis.dtype, (axis.src[0].const_like(end - first),), kind)
        alone = end - first == 1
        at = {axis: axis.const_like(first) if alone else own + first if first else own}
        store, value, *gates = decided(moved(UOp.sink(stored.store.node, stored.value, *stored.gates), at)).src
        gates = [gate for gate in gates if gate.op is not Ops.CONST or not gate.arg]
        outputs = tuple(own if one is axis else one for one in stored.outputs if one is not axis or not alone)
        found.append(Stored(access_of(store, buffers), value, tuple(gates), outputs))
    return found
