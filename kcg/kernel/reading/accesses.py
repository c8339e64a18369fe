"""Buffers, addresses and what they reach: the loads and the store of a kernel.

An address is read as a sum of ranges times constants where it is one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from kcg.compat.tiny import AddrSpace, DType, InvalidType, Ops, UOp, dtypes


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
    def steps(self) -> dict[UOp | None, int] | None:
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


def extent(axis: UOp) -> int:
    """The largest number of steps of a range."""
    return int(axis.src[0].vmax)


def is_symbolic(axis: UOp) -> bool:
    """Whether a range's extent is known only when the program runs."""
    return bool(axis.src[0].op is not Ops.CONST)


def buffers_of(ast: UOp) -> dict[UOp, BufferSlot]:
    """The buffers of a kernel by their PARAM, in the order of their slots."""
    nodes = list(ast.toposort())
    written = {buffer_of(n.src[0]) for n in nodes if n.op is Ops.STORE}
    params = sorted((n for n in nodes if n.op is Ops.PARAM and not is_variable(n)), key=lambda n: n.arg.slot)
    return {p: BufferSlot(p.arg.slot, p.dtype, int(p.src[0].arg), p in written) for p in params}


def stored_of(ast: UOp, buffers: dict[UOp, BufferSlot]) -> Stored:
    """The only store of a kernel."""
    end = ast.src[0]
    store = end if end.op is Ops.STORE else end.src[0]
    ranges = () if end.op is Ops.STORE else tuple(end.src[1:])
    value, gates = _without_invalid(store.src[1])
    target = access_of(store.src[0], buffers)
    steps = affine(target.address) or {}
    outputs = sorted(ranges, key=lambda r: (-abs(steps.get(r, 0)), r.arg))
    return Stored(target, value, (*target.gates, *gates), tuple(outputs))


def is_variable(node: UOp) -> bool:
    """Whether a node is a symbolic size or position."""
    return bool(node.op is Ops.PARAM and node.arg.addrspace is AddrSpace.ALU)


def is_invalid(node: UOp) -> bool:
    """Whether a node is tinygrad's mark of a value that is not there."""
    return bool(node.op is Ops.CONST and isinstance(node.arg, InvalidType))


def buffer_of(index: UOp) -> UOp:
    """The PARAM that an INDEX is of."""
    base = index.src[0]
    return base if base.op is Ops.PARAM else base.src[0]


def access_of(index: UOp, buffers: dict[UOp, BufferSlot]) -> Access:
    places, gates = [], list[UOp]()
    for source in index.src[1:]:
        place, more = _without_invalid(source)
        places.append(place)
        gates += [gate for gate in more if gate not in gates]
    address = places[0] if places else UOp.const(0, dtypes.weakint)
    if len(places) > 1:
        shape = [int(s.arg) for s in index.src[0].src[1].src]
        for size, place in zip(shape[1:], places[1:], strict=True):
            address = address * size + place
    return Access(index, buffers[buffer_of(index)], address, tuple(gates))


def _without_invalid(node: UOp) -> tuple[UOp, list[UOp]]:
    """A value without the conditions under which it is there, and these."""
    gates = []
    while node.op is Ops.WHERE and any(is_invalid(s) for s in node.src[1:]):
        valid = is_invalid(node.src[2])
        gates.append(node.src[0] if valid else node.src[0].logical_not())
        node = node.src[1] if valid else node.src[2]
    return node, gates


def affine(address: UOp) -> dict[UOp | None, int] | None:
    """The factor of each range in an address that is a sum of ranges times constants, and at None the constant; None
    where it is another."""
    if address.op is Ops.CONST:
        return {None: int(address.arg)} if address.arg else {}
    if address.op is Ops.RANGE:
        return {address: 1}
    if address.op is Ops.ADD:
        parts = [affine(s) for s in address.src]
        total: dict[UOp | None, int] = {}
        for part in parts:
            if part is None:
                return None
            for axis, factor in part.items():
                total[axis] = total.get(axis, 0) + factor
        return total
    if address.op is Ops.MUL:
        for one, other in (address.src, address.src[::-1]):
            if other.op is Ops.CONST and (part := affine(one)) is not None:
                return {axis: factor * int(other.arg) for axis, factor in part.items()}
    return None
