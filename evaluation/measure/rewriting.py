"""Kernel ASTs rewritten over other ranges: addresses keep their layout, and buffers get the size that they then need.

What `evaluation.measure.recombine` builds its steps on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kcg.compat.tiny import DType, Ops, UOp, dtypes

MAX_ELEMENTS = 1 << 22  # of one buffer


class Unfit(Exception):
    """The parts do not fit together: try others."""


def cast(value: UOp, dtype: DType) -> UOp:
    """The value as another type; itself where it is of that type, or a constant that takes any."""
    return value if value.dtype in (dtype, *dtypes.weaks) else UOp(Ops.CAST, None, (value,), dtype)


def number(value: int) -> UOp:
    """A constant of an address."""
    return UOp(Ops.CONST, dtypes.weakint, (), value)


def extent(axis: UOp) -> int:
    """How many values a range takes; 1 for the constant 0 that stands in for one."""
    return int(axis.vmax) + 1


@dataclass(frozen=True)
class Affine:
    """An address: an offset, and a stride for each range."""

    strides: dict[UOp, int]
    offset: int

    @staticmethod
    def of(node: UOp) -> Affine | None:
        """None where an address is anything else: gated, divided, loaded, or going backwards."""
        match node.op:
            case Ops.CONST if isinstance(node.arg, int):
                return Affine({}, node.arg) if node.arg >= 0 else None
            case Ops.RANGE:
                return Affine({node: 1}, 0)
            case Ops.ADD:
                a, b = map(Affine.of, node.src)
                if a is None or b is None:
                    return None
                keys = dict.fromkeys([*a.strides, *b.strides])
                return Affine({r: a.strides.get(r, 0) + b.strides.get(r, 0) for r in keys}, a.offset + b.offset)
            case Ops.MUL:
                a, b = map(Affine.of, node.src)
                if a is None or b is None or (a.strides and b.strides):
                    return None
                if b.strides:
                    a, b = b, a
                return Affine({r: s * b.offset for r, s in a.strides.items()}, a.offset * b.offset)
            case _:
                return None

    @property
    def size(self) -> int:
        """Elements that a buffer needs for it."""
        return 1 + self.offset + sum(s * (extent(r) - 1) for r, s in self.strides.items())

    @property
    def nested(self) -> bool:
        """Whether each stride steps over all that smaller ones reach: no two points share an address."""
        reach = 0
        for r, stride in sorted(self.strides.items(), key=lambda item: item[1]):
            if extent(r) > 1:
                if stride <= reach:
                    return False
                reach += stride * (extent(r) - 1)
        return True

    def moved(self, ranges: Mapping[UOp, UOp]) -> Affine:
        """The same layout over other ranges: what was dense stays dense, gaps stay gaps, overlaps stay overlaps."""
        old_reach = new_reach = 0
        strides: dict[UOp, int] = {}
        long = {r: s for r, s in self.strides.items() if extent(r) > 1}
        # a range of one element has no stride to keep: it becomes the outermost one, or two points might meet
        groups = [[r for r in long if long[r] == stride] for stride in sorted(set(long.values()))]
        for group in [*groups, *([r] for r in self.strides if r not in long)]:
            stride = long.get(group[0], old_reach + 1)
            new = stride if stride <= old_reach else stride - old_reach + new_reach
            for r in group:
                target = ranges.get(r, r)
                old_reach += stride * (extent(r) - 1)
                if target.op is Ops.RANGE:
                    strides[target] = strides.get(target, 0) + new
                    new_reach += new * (extent(target) - 1)
        return Affine(strides, self.offset)

    def node(self) -> UOp:
        terms = [r if s == 1 else UOp(Ops.MUL, None, (r, number(s))) for r, s in self.strides.items() if s]
        if self.offset or not terms:
            terms.append(number(self.offset))
        total = terms[0]
        for term in terms[1:]:
            total = UOp(Ops.ADD, None, (total, term))
        return total


def rewritten(
    roots: Sequence[UOp],
    *,
    ranges: Mapping[UOp, UOp] | None = None,
    given: Mapping[UOp, UOp] | None = None,
    layouts: Mapping[UOp, Affine] | None = None,
    types: Mapping[UOp, DType] | None = None,
    first_slot: int | None = None,
) -> list[UOp]:
    """`roots` over other `ranges` (a range or the constant 0 for each), with buffers of the size that they then need.

    `given` replaces nodes as they are, `layouts` gives the address of some INDEX, `types` the data type of some
    buffers. Buffers are numbered anew from `first_slot` if that is given. Raises Unfit where an address that is not
    affine would leave its buffer.
    """
    ranges, given, layouts, types = ranges or {}, given or {}, layouts or {}, types or {}
    order = list(UOp.sink(*roots).toposort(gate=lambda n: n not in given))[:-1]
    targets = {n.src[0] for n in order if n.op is Ops.STORE}
    sizes: dict[UOp, int] = {}
    slots: dict[UOp, int] = {}
    addresses: dict[UOp, UOp] = {}
    for node in order:
        if node.op is not Ops.INDEX:
            continue
        buffer, address = node.src
        affine = layouts.get(node) or Affine.of(address)
        if affine is not None and (node not in targets or affine.nested):
            affine = affine.moved(ranges)
            addresses[node], size = affine.node(), affine.size
        else:
            if any(extent(ranges.get(r, r)) > extent(r) for r in address.ranges):
                raise Unfit
            size = int(buffer.src[0].arg)
        if size > MAX_ELEMENTS:
            raise Unfit
        sizes[buffer] = max(sizes.get(buffer, 1), size)
        slots.setdefault(buffer, buffer.arg.slot if first_slot is None else first_slot + len(slots))
    done = dict(given)
    for node in order:
        if node.op is Ops.RANGE:
            done[node] = ranges.get(node, node)
            continue
        if node.op is Ops.PARAM:
            if node in slots:
                dtype = types.get(node, node.dtype)
                done[node] = UOp(
                    Ops.PARAM, None, (number(sizes[node]),), replace(node.arg, slot=slots[node], dtype=dtype)
                )
            continue
        src = [done.get(s, s) for s in node.src]
        if node in addresses:
            src[1] = addresses[node]
        for i, s in enumerate(node.src):
            if s.op is Ops.INDEX and s.src[0] in types and not (node.op is Ops.STORE and i == 0):
                src[i] = cast(src[i], s.dtype)
        if node.op is Ops.STORE:
            src[1] = cast(src[1], src[0].dtype)
        done[node] = UOp(node.op, node.dtype if node.op is Ops.CONST else None, tuple(src), node.arg)
    return [done[root] for root in roots]
