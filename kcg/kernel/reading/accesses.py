"""Buffers, addresses and what they reach: the loads and the store of a kernel."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from kcg.compat.tiny import DType, Ops, UOp, dtypes
from kcg.kernel.ast import Affine, affine, buffer_of, extent, is_variable, shape_of, store_of, without_gates


@dataclass(frozen=True)
class BufferSlot:
    """One buffer of the kernel."""

    slot: int
    dtype: DType
    size: int  # elements
    written: bool


@dataclass(frozen=True)
class Access:
    """One load or store. `address` is the element, without the gate under which the access happens."""

    node: UOp  # the INDEX
    buffer: BufferSlot
    address: UOp
    gates: tuple[UOp, ...]

    @cached_property
    def steps(self) -> Affine | None:
        """How far it steps along each range, see `affine`."""
        return affine(self.address)


@dataclass(frozen=True)
class Stored:
    """What is stored into one buffer: a value over ranges of its own."""

    store: Access
    value: UOp  # what is stored
    gates: tuple[UOp, ...]  # conditions without which nothing is stored
    outputs: tuple[UOp, ...]  # ranges of the store, the one with the largest step first

    @property
    def extents(self) -> tuple[int, ...]:
        """Of `outputs`, symbolic ones with their largest value."""
        return tuple(extent(r) for r in self.outputs)


def buffers_of(ast: UOp) -> dict[UOp, BufferSlot]:
    """The buffers of a kernel by their PARAM, in the order of their slots."""
    nodes = list(ast.toposort())
    written = {buffer_of(n.src[0]) for n in nodes if n.op is Ops.STORE}
    params = sorted((n for n in nodes if n.op is Ops.PARAM and not is_variable(n)), key=lambda n: n.arg.slot)
    return {p: BufferSlot(p.arg.slot, p.dtype, int(p.src[0].arg), p in written) for p in params}


def stored_of(ast: UOp, buffers: dict[UOp, BufferSlot]) -> Stored:
    """The only store of a kernel."""
    end = ast.src[0]
    store = store_of(end)
    ranges = () if end is store else tuple(end.src[1:])
    value, gates = without_gates(store.src[1])
    target = access_of(store.src[0], buffers)
    steps = affine(target.address) or {}
    outputs = sorted(ranges, key=lambda r: (-abs(steps.get(r, 0)), r.arg))
    return Stored(target, value, (*target.gates, *gates), tuple(outputs))


def loads_of(*values: UOp) -> list[Access]:
    """The loads that values are made of."""
    whole = UOp.sink(*values)
    buffers = buffers_of(whole)
    return [access_of(node, buffers) for node in whole.toposort() if node.op is Ops.INDEX]


def access_of(index: UOp, buffers: dict[UOp, BufferSlot]) -> Access:
    places, gates = [], list[UOp]()
    for source in index.src[1:]:
        place, more = without_gates(source)
        places.append(place)
        gates += [gate for gate in more if gate not in gates]
    address = places[0] if places else UOp.const(0, dtypes.weakint)
    if len(places) > 1:
        for size, place in zip(shape_of(index)[1:], places[1:], strict=True):
            address = address * size + place
    return Access(index, buffers[buffer_of(index)], address, tuple(gates))
