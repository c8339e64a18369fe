"""Where what a kernel loads is needed: a causal softmax chooses -inf for half of its scores, and need not load these.

Conditions that only ranges decide are a load's gates then. No other value changes: a load gives 0 outside of its gates,
and what is made of that is not chosen.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from kcg.compat.tiny import Ops, UOp, dtypes
from kcg.kernel.ast import affine, is_invalid
from kcg.kernel.reading.accesses import Access
from kcg.kernel.reading.kernel import TileKernel

VECTOR_BYTES = 16  # that a thread loads at once


def needed_loads(kernel: TileKernel) -> dict[UOp, Access]:
    """The loads of a kernel by their nodes, with the conditions outside of which nothing uses them as gates."""
    roots = [n for s in kernel.all_stored for n in (s.value, *s.store.node.src[1:], *s.gates)]
    always: dict[UOp, frozenset[UOp]] = {root: frozenset() for root in roots}
    for node in reversed(UOp.sink(*roots).toposort()):
        if node not in always:
            continue  # the sink
        for place, source in enumerate(node.src):
            holds = always[node] | (_chosen_by(node.src[0], place) if node.op is Ops.WHERE and place else frozenset())
            always[source] = always[source] & holds if source in always else holds
    found = {}
    for load in kernel.loads:
        own = set(load.address.ranges)
        under = [c for c in always.get(load.node, ()) if set(c.ranges) <= own and c not in load.gates]
        gates = {gate for c in under if (gate := _of_vectors(c, load)) is not None}
        found[load.node] = replace(load, gates=(*load.gates, *sorted(gates, key=lambda g: g.key)))
    return found


def _chosen_by(condition: UOp, place: int) -> frozenset[UOp]:
    """What ranges alone decide, and what holds where a condition chooses its first (1) or its second (2) value."""
    if place == 1:
        return frozenset(_parts(condition))
    return frozenset((condition.logical_not(),)) if _is_of_ranges(condition) else frozenset()


def _parts(condition: UOp) -> Iterable[UOp]:
    """Conditions that all hold where one does."""
    if _is_of_ranges(condition):
        yield condition
    elif condition.op is Ops.AND:
        for part in condition.src:
            yield from _parts(part)
    elif condition.op is Ops.WHERE and condition.src[2].op is Ops.CONST and condition.src[2].arg is False:
        yield from _parts(condition.src[0])
        yield from _parts(condition.src[1])


def _is_of_ranges(condition: UOp) -> bool:
    nodes = condition.toposort()
    return not any(n.op in (Ops.INDEX, Ops.REDUCE) or is_invalid(n) for n in nodes) and bool(condition.ranges)


def _of_vectors(condition: UOp, load: Access) -> UOp | None:
    """A condition that is no stronger and the same for all elements that a thread loads at once; None where there is
    none."""
    unit, steps = VECTOR_BYTES // int(load.buffer.dtype.itemsize), load.steps or {}
    along = next((axis for axis, step in steps.items() if axis is not None and step == 1), None)
    if along is None or along not in condition.ranges or unit < 2:
        return condition
    if any(step % unit for axis, step in steps.items() if axis is not along):
        return condition  # it is loaded element by element
    grows = _direction(condition, along)
    if not grows:
        return None
    first = along // unit * unit
    return condition.substitute({along: first if grows < 0 else first + (unit - 1)}, walk=True)


def _direction(condition: UOp, along: UOp) -> int:
    """Whether a condition comes to hold (1) or ceases to (-1) as a range grows; 0 where that is not known."""
    if condition.op is Ops.CMPNE and condition.src[1].op is Ops.CONST and condition.src[1].arg is True:
        return -_direction(condition.src[0], along)
    if condition.op is not Ops.CMPLT:
        return 0
    less, more = (affine(_without_casts(side)) for side in condition.src)
    if less is None or more is None:
        return 0
    step = more.get(along, 0) - less.get(along, 0)
    return (step > 0) - (step < 0)


def _without_casts(node: UOp) -> UOp:
    """An index without its casts to wide integers, which change none."""
    if node.op is Ops.CAST and node.dtype in (dtypes.int32, dtypes.int64, dtypes.weakint):
        return _without_casts(node.src[0])
    return node.replace(src=tuple(map(_without_casts, node.src))) if node.op in (Ops.ADD, Ops.MUL) else node
