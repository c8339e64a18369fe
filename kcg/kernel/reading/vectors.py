"""Matrix-vector products of one vector, each by itself or several in one launch.

Each streams a matrix and stores a value for each row. Alone, one is over before its last programs have made up for the
time that its first ones waited: 113 MB take 48 µs where memory needs 38. In one launch a program has rows of one of
them, by its number.
"""

from __future__ import annotations

from kcg.compat.tiny import Ops, UOp
from kcg.kernel.ast import affine, extent, is_symbolic
from kcg.kernel.reading.accesses import Access
from kcg.kernel.reading.kernel import TileKernel
from kcg.kernel.reading.packed import Packed, packed_sums, rows_of

VECTORS = "products of one vector"
Vector = tuple[int, tuple[int, ...]]
"""A vector that is read: the slot of its buffer, its first element, and step and count along each range."""


def vectors_of(kernel: TileKernel) -> frozenset[Vector]:
    """What a kernel multiplies the rows of a matrix with: what every row reads, in each of its sums. Nothing where it
    is no matrix-vector product: its sums are over the same ranges, one value for each row, none of another one's
    result, and each reads a matrix whose elements, or packed words, no other row reads."""
    if kernel.contraction is not None or not kernel.reductions or kernel.also or kernel.variables:
        return frozenset()
    outputs, over = set(kernel.outputs), kernel.reductions[0].src[1:]
    if not outputs or any(axis.op is not Ops.RANGE or is_symbolic(axis) for axis in (*outputs, *over)):
        return frozenset()
    is_packed = any(_is_of_rows(kernel, one) for one in packed_sums(kernel))
    found: list[set[Vector]] = []
    for node in kernel.reductions:
        inside = node.src[0].backward_slice_with_self
        loads = [load for load in kernel.loads if load.node in inside]
        is_sum = node.arg[0] is Ops.ADD and node.src[1:] == over and set(node.ranges) == outputs
        if not is_sum or any(one in inside for one in kernel.reductions):
            return frozenset()
        if not is_packed and not any(_is_streamed(load, {*outputs, *over}) for load in loads):
            return frozenset()
        found.append({vector for load in loads if (vector := _vector(load, over)) is not None})
    return frozenset(set.intersection(*found))


def _is_of_rows(kernel: TileKernel, packed: Packed) -> bool:
    """Whether all that is stored are values of rows of packed words, of chosen ones too."""
    return len(rows_of(kernel, packed)) + len(packed.apart & set(kernel.outputs)) == len(kernel.outputs)


def _is_streamed(load: Access, ranges: set[UOp]) -> bool:
    """Whether each point of a product reads an element of its own."""
    steps = load.steps
    if steps is None or load.gates or set(load.address.ranges) != ranges:
        return False
    width = 1
    for axis in sorted(ranges, key=lambda axis: abs(steps.get(axis, 0))):
        if abs(steps.get(axis, 0)) < width:
            return False
        width += abs(steps[axis]) * (extent(axis) - 1)
    return True


def _vector(load: Access, over: tuple[UOp, ...]) -> Vector | None:
    """A load that all rows have alike; None where it is another one."""
    steps = affine(load.address)
    if steps is None or load.gates or set(load.address.ranges) != set(over):
        return None
    along = (number for axis in over for number in (steps.get(axis, 0), extent(axis)))
    return load.buffer.slot, (steps.get(None, 0), *along)
