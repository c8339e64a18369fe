"""One reading of ASTs for all: ranges and their extents, buffers, and addresses as sums of ranges times constants.

What tile programs, projections, loop nests, work and traffic, inputs and references ask of a node is said here once.
"""

from __future__ import annotations

from collections.abc import Callable

from kcg.compat.tiny import AddrSpace, AxisType, InvalidType, Ops, UOp, dtypes

Affine = dict[UOp | None, int]
"""The factor of each range, and at None the constant, where it is not 0."""


# ---- ranges


def extent(axis: UOp) -> int:
    """The largest number of steps of a range."""
    return int(axis.src[0].vmax)


def is_symbolic(axis: UOp) -> bool:
    """Whether a range's extent is known only when the program runs."""
    return bool(axis.src[0].op is not Ops.CONST)


def is_local(axis: UOp) -> bool:
    """Whether a node is a range that one device goes through, and not one that numbers devices."""
    return bool(axis.op is Ops.RANGE and axis.arg[-1] is not AxisType.DEVICE)


# ---- what else stands in an AST


def is_variable(node: UOp) -> bool:
    """Whether a node is a symbolic size or position."""
    return bool(node.op is Ops.PARAM and node.arg.addrspace is AddrSpace.ALU)


def is_invalid(node: UOp) -> bool:
    """Whether a node is tinygrad's mark of a value that is not there."""
    return bool(node.op is Ops.CONST and isinstance(node.arg, InvalidType))


def store_of(sink: UOp) -> UOp:
    """The STORE of a kernel's sink, or of one source of it."""
    return sink.src[0] if sink.op is Ops.END else sink


# ---- accesses


def buffer_of(index: UOp) -> UOp:
    """The PARAM that an INDEX is of."""
    node = index.src[0]
    while node.op is not Ops.PARAM and node.src:
        node = node.src[0]
    return node


def slot_of(index: UOp) -> int:
    """The number of the buffer that an INDEX is of."""
    return int(buffer_of(index).arg.slot)


def shape_of(index: UOp) -> list[int]:
    """The extents by which the places of an INDEX number the elements of its buffer; symbolic ones with their largest
    value."""
    source = index.src[0]
    if source.op is not Ops.RESHAPE:
        return [int(source.max_numel())]
    sizes = source.src[1].src if source.src[1].op is Ops.STACK else source.src[1:]
    return [int(size.vmax) for size in sizes]


def without_gates(node: UOp) -> tuple[UOp, list[UOp]]:
    """A place or a value without the conditions under which it is there, and these."""
    gates = []
    while node.op is Ops.WHERE and any(is_invalid(s) for s in node.src[1:]):
        valid = is_invalid(node.src[2])
        gates.append(node.src[0] if valid else node.src[0].logical_not())
        node = node.src[1] if valid else node.src[2]
    return node, gates


def affine(
    address: UOp, *, is_axis: Callable[[UOp], bool] = lambda node: node.op is Ops.RANGE, through_casts: bool = False
) -> Affine | None:
    """An address as a sum of ranges times constants; None where it is another.

    `is_axis` says which nodes count as ranges; a cast to a wide integer changes nothing where it is looked `through`.
    """

    def read(node: UOp) -> Affine | None:
        if node.op is Ops.CONST and isinstance(node.arg, int):
            return {None: int(node.arg)} if node.arg else {}
        if is_axis(node):
            return {node: 1}
        if through_casts and node.op is Ops.CAST and dtypes.is_int(node.dtype) and node.dtype.itemsize >= 4:
            return read(node.src[0])
        if node.op is Ops.ADD:
            total: Affine = {}
            for source in node.src:
                if (part := read(source)) is None:
                    return None
                for axis, factor in part.items():
                    total[axis] = total.get(axis, 0) + factor
            return total
        if node.op is Ops.MUL:
            one, other = map(read, node.src)
            if one is None or other is None:
                return None
            if set(one) - {None}:
                one, other = other, one
            if set(one) - {None}:
                return None  # of two ranges
            return {axis: factor * one.get(None, 0) for axis, factor in other.items()}
        return None

    return read(address)
