"""What is stored of several contractions' results beside each other, cut into parts of one result each.

A concatenation of results is a value that is one contraction's up to a bound of a range, and another one's from there
on: each load of a result has a gate that says so, since beyond it the result has no elements. With the range as one of
its own for each part, from its bound on, gates and choices are constants, and go away.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping

from kcg.compat.tiny import AxisType, Ops, UOp
from kcg.kernel.tile.indices import decided, moved
from kcg.kernel.tile.ir import BufferSlot, Stored, access_of, buffer_of, extent, is_symbolic
from kcg.kernel.tile.program import TileRefusal

CUT = "results beside each other"
Bounds = dict[UOp, set[int]]
"""Of ranges the numbers at which a condition on them changes."""


def bounds_of(stored: Stored, results: Collection[int], buffers: Mapping[UOp, BufferSlot]) -> Bounds:
    """Where a store goes over from one result to another: the bounds of its ranges in gates of loads of results, which
    are named by their slots. Empty where it uses one at most."""
    loads = [node for node in stored.value.toposort() if _is_of(node, results, buffers)]
    if len({buffers[buffer_of(node)].slot for node in loads}) < 2:
        return {}
    found: Bounds = {}
    for node in (n for load in loads for gate in access_of(load, dict(buffers)).gates for n in gate.toposort()):
        axis, bound = node.src if node.op is Ops.CMPLT else (node, node)
        if axis in stored.outputs and bound.op is Ops.CONST and not is_symbolic(axis):
            found.setdefault(axis, set()).add(int(bound.arg))
    return found


def parts_of(
    stored: Stored, bounds: Bounds, results: Collection[int], buffers: Mapping[UOp, BufferSlot]
) -> list[tuple[int, Stored]]:
    """The parts of a store between its bounds, each with the slot of the result that it is of. Raises TileRefusal."""
    if len(bounds) > 1:
        raise TileRefusal(CUT, "along several ranges")
    found = []
    for part in _between(stored, bounds, buffers):
        slots = {buffers[buffer_of(node)].slot for node in part.value.toposort() if _is_of(node, results, buffers)}
        if len(slots) != 1:
            raise TileRefusal(CUT, f"{len(slots)} contractions in one part")
        found.append((slots.pop(), part))
    return found


def _is_of(node: UOp, slots: Collection[int], buffers: Mapping[UOp, BufferSlot]) -> bool:
    return node.op is Ops.INDEX and buffers[buffer_of(node)].slot in slots


def _between(stored: Stored, bounds: Bounds, buffers: Mapping[UOp, BufferSlot]) -> list[Stored]:
    """A store in parts, each over a range of its own in the place of the one that has bounds."""
    if not bounds:
        return [stored]
    ((axis, numbers),) = bounds.items()
    inner = sorted(number for number in numbers if 0 < number < extent(axis))
    found = []
    for place, (first, end) in enumerate(itertools.pairwise((0, *inner, extent(axis)))):
        kind = (axis.arg[0], place, AxisType.LOOP)
        own = UOp(Ops.RANGE, axis.dtype, (axis.src[0].const_like(end - first),), kind)
        at = {axis: own + first if first else own}
        store, value, *gates = decided(moved(UOp.sink(stored.store.node, stored.value, *stored.gates), at)).src
        outputs = tuple(own if one is axis else one for one in stored.outputs)
        gates = [gate for gate in gates if gate.op is not Ops.CONST or not gate.arg]
        found.append(Stored(access_of(store, dict(buffers)), value, tuple(gates), outputs))
    return found
