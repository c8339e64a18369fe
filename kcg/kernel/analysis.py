"""What a kernel computes: its contractions, arithmetic and least traffic, and contractions computed more than once.

tinygrad fuses across matmuls where the result is joined with something else (`cat`, `pad`, `stack`) or, in older
schedules, used inside another reduction. Such a kernel computes the same product many times, and no schedule of that
kernel can mend it: the model needs a `.contiguous()`. Nor can one mend a product that is made once and reduced at once,
as `(x @ w).max(1)`: that is no matmul any more. `find_recompute` says where.

All functions take the SINK AST of a kernel before optimisation. A symbolic extent counts with its largest possible
value; `kcg.kernel.symbolic.at_values` fills in another. Ranges over devices do not count: what is said is said of one
device. Indexing by a tensor (a gather, an embedding, a loss that picks a class) counts as it runs: a load at a loaded
index, not the sum over the whole table that the AST spells. A one-hot matrix that tinygrad does multiply by counts as
that.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from kcg.compat.scheduling import with_loads_collapsed
from kcg.compat.tiny import AxisType, GroupOp, Ops, UOp, dtypes, sym_infer
from kcg.errors import CodecError
from kcg.kernel.ast import affine, buffer_of, extent, is_local, is_variable
from kcg.kernel.codec import FORMAT
from kcg.types import Kernel, Recompute, Region, Target, canonical_json

NOTABLE = 1.05
"""A kernel is reported from this ratio of contraction operations in scope to those needed."""

Box = dict[UOp, tuple[int, int]]
"""For some ranges of a kernel the half-open interval in which a value is used; ranges not named are used in full."""


@dataclass(frozen=True)
class Contraction:
    """One multiply-add reduction of a kernel: a matmul, a convolution, a sum of squares.

    `value_shape` holds the extents of the ranges that the value depends on and where it is used; `reduce_shape` those
    that it sums over; `repeat_shape` those of the further ranges in scope, over which the same value is made again.
    """

    operations: int  # 2 x the product of the extents of all ranges in scope
    needed: int  # 2 x the product of the extents of the ranges its value depends on, as far as it is used
    value_shape: tuple[int, ...]
    reduce_shape: tuple[int, ...]
    repeat_shape: tuple[int, ...]
    scope_shape: tuple[int, ...]  # extents in scope without the contraction's own
    inside: tuple[int, ...] = ()  # extents of the reductions it is nested in
    node: UOp | None = field(default=None, compare=False, repr=False)  # the REDUCE, of the AST as tinygrad runs it

    @property
    def factor(self) -> float:
        """How many times each value is computed; 1 is right."""
        return self.operations / self.needed


def contractions(ast: UOp) -> list[Contraction]:
    """The multiply-add reductions of a kernel: REDUCEs with ADD of a MUL, possibly through CASTs.

    In scope of one are the ranges of the store it feeds, its own, and those of the reductions around it if its value
    depends on one of theirs (otherwise tinygrad computes it before their loops).
    """
    found: list[Contraction] = []
    seen: set[tuple[UOp, frozenset[UOp]]] = set()
    for top, scopes in _stores(_as_run(ast)):
        boxes = _used(top)
        for node in top.toposort():
            if not _is_contraction(node):
                continue
            outer = [r for r in scopes[node] if r not in node.ended_ranges]
            if (node, frozenset(outer)) in seen:
                continue
            seen.add((node, frozenset(outer)))
            own, value = _extents(node.ended_ranges), [r for r in outer if r in node.ranges]
            box = boxes.get(node, {})
            value_shape = tuple(_extent(r, box) for r in value)
            around = [r for r in outer if r not in scopes[top]]
            found.append(
                Contraction(
                    operations=2 * math.prod(own) * math.prod(_extents(outer)),
                    needed=2 * math.prod(own) * max(1, math.prod(value_shape)),
                    value_shape=value_shape,
                    reduce_shape=own,
                    repeat_shape=_extents(r for r in outer if r not in node.ranges),
                    scope_shape=_extents(outer),
                    inside=_extents(around),
                    node=node,
                )
            )
    return found


def operations(ast: UOp) -> int:
    """Operations of the kernel's contractions, everything that is computed again included."""
    return sum(c.operations for c in contractions(ast))


def float_operations(ast: UOp) -> int:
    """The same of contractions of floats."""
    found = contractions(ast)
    return sum(c.operations for c in found if c.node is not None and dtypes.is_float(c.node.dtype))


def arithmetic(ast: UOp) -> float:
    """All arithmetic of a kernel on values (not on addresses), each operation times the extents of its scope.

    For a roofline: a multiply-add is two operations, an `exp2` or a `where` is one, a cast none.
    """
    scopes = (scope for top, scopes in _stores(_as_run(ast)) for scope in _arithmetic_scopes(top, scopes))
    return float(sum(math.prod(_extents(scope)) for scope in scopes))


def _arithmetic_scopes(top: UOp, scopes: dict[UOp, list[UOp]]) -> Iterator[list[UOp]]:
    """The ranges in scope of each operation on values."""
    for node in _values(top):
        if node.op is Ops.REDUCE or (node.op in GroupOp.ALU and not _is_address(node)):
            yield scopes[node]


def work_at(ast: UOp) -> Callable[[Mapping[str, int]], float]:
    """The work of a kernel as a function of the values of its variables: its arithmetic and the elements it stores."""
    scopes: Counter[tuple[UOp, ...]] = Counter()
    for top, of_top in _stores(_as_run(ast)):
        scopes.update(tuple(filter(is_local, scope)) for scope in (of_top[top], *_arithmetic_scopes(top, of_top)))
    extents = {axis: axis.src[0] for scope in scopes for axis in scope}

    def work(values: Mapping[str, int]) -> float:
        known = {axis: sym_infer(size, dict(values)) for axis, size in extents.items()}
        return float(sum(count * math.prod(known[axis] for axis in scope) for scope, count in scopes.items()))

    return work


def least_bytes(ast: UOp) -> int:
    """Least traffic of a kernel in bytes: each touched element of a buffer is read once and written once.

    Of a table that a tensor indexes that is one row for each index, unless the whole table is less. An estimate: equal
    indices touch less, and what a condition skips is not touched. For what cannot be less there is `certain_bytes`.
    """
    return sum(_touched(ast).values())


def least_bytes_of_region(region: Region, asts: Sequence[UOp]) -> int:
    """The same of one call of a region whose kernels are `asts`: what it reads that it did not write, and its outputs,
    each once."""
    if not region.args:
        return least_bytes(asts[0])
    moved: dict[tuple[str, int], int] = {}
    written: set[int] = set()
    for ast, slots in zip(asts, region.args, strict=True):
        of = {(role, slots[buffer.arg.slot]): count for (role, buffer), count in _touched(ast).items()}
        for (role, number), count in of.items():
            if number in region.outputs if role == "w" else number not in written:
                moved[role, number] = max(moved.get((role, number), 0), count)
        written |= {number for role, number in of if role == "w"}
    return sum(moved.values())


def _touched(ast: UOp) -> dict[tuple[str, UOp], int]:
    """Bytes of each buffer that are read, and that are written, once each."""
    counted: dict[tuple[str, UOp], int] = {}
    for role, buffer, node in _accesses(_as_run(ast)):
        box: Box = {}
        for index in node.src[1:]:
            if index.op is Ops.WHERE:
                box = _both(box, _condition(index.src[0], True))
        addresses = [_address(index) for index in node.src[1:]]
        touched = math.prod(_extent(r, box) for r in UOp.sink(*addresses).ranges if is_local(r))
        if len(addresses) == 1:  # windows that overlap touch an element only once
            touched = min(touched, int(addresses[0].vmax) - int(addresses[0].vmin) + 1)
        counted[role, buffer] = counted.get((role, buffer), 0) + touched
    return {
        (role, buffer): min(count, buffer.max_numel()) * buffer.dtype.itemsize
        for (role, buffer), count in counted.items()
    }


def certain_bytes(ast: UOp) -> int:
    """Bytes that every program for this kernel moves, whatever is in its buffers: a bound from below.

    Counted are the elements of which it is certain that they are written, or that a value stored depends on them: not
    what only one side of a condition uses, nor a load at a loaded index, and symbolic extents with their least value.
    Of accesses to one buffer the largest counts, since they may be to the same elements.
    """
    return sum(count * buffer.dtype.itemsize for (_, buffer), count in _certainly_touched(ast).items())


def certain_work(asts: Sequence[UOp], outputs: Iterable[int]) -> tuple[int, int]:
    """`certain_bytes` and `certain_operations` of kernels that run in order, as one program that stores nothing in
    between may run them: what none of them wrote before is read once, and `outputs` are written once.

    Slots are the same buffer in all of them. A kernel counts if all that it writes is needed, of what is an
    intermediate every element. Where one of them chooses -inf, as a mask of attention does, only what is written
    counts: a program may leave out what others read and compute.
    """
    observed, moved, operations = set(outputs), dict[tuple[str, int], int](), 0
    needed, masked = set(observed), any(map(_chooses_infinity, asts))
    touched = [
        {(role, int(buffer.arg.slot)): (count, buffer) for (role, buffer), count in _certainly_touched(ast).items()}
        for ast in asts
    ]
    written = [{int(buffer.arg.slot) for role, buffer, _ in _accesses(_as_run(ast)) if role == "w"} for ast in asts]
    for place in reversed(range(len(asts))):
        if not written[place] <= needed:
            continue
        operations += 0 if masked else certain_operations(asts[place])
        before = set[int]().union(*written[:place])
        whole = {
            (role, slot) for (role, slot), (count, buffer) in touched[place].items() if count >= buffer.max_numel()
        }
        for (role, slot), (count, buffer) in touched[place].items():
            if slot in observed if role == "w" else slot not in before and not masked:
                moved[role, slot] = max(moved.get((role, slot), 0), count * buffer.dtype.itemsize)
        needed -= {slot for role, slot in whole if role == "w"}
        needed |= {slot for role, slot in whole if role == "r"}
    return sum(moved.values()), operations


def _chooses_infinity(ast: UOp) -> bool:
    """Whether a choice of a kernel has -inf on one side."""
    sides = (side for node in ast.toposort() if node.op is Ops.WHERE for side in node.src[1:])
    return any(side.op is Ops.CONST and side.arg == -math.inf for side in sides)


def _certainly_touched(ast: UOp) -> dict[tuple[str, UOp], int]:
    """Elements of each buffer that are certainly read, and written."""
    ast = _as_run(ast)
    needed = _unconditional(ast)
    counted: dict[tuple[str, UOp], int] = {}
    for role, buffer, node in _accesses(ast):
        if node in needed:
            count = min(_least_touched(node.src[1:]), buffer.max_numel())
            counted[role, buffer] = max(count, counted.get((role, buffer), 0))
    return counted


def certain_operations(ast: UOp) -> int:
    """Operations of the contractions that every program for this kernel computes: those whose values are certainly
    used, and in which no condition, variable, division or loaded index could make terms equal or zero."""
    ast = _as_run(ast)
    needed = _unconditional(ast)
    found: dict[UOp, int] = {}
    for top, _ in _stores(ast):
        for node in _values(top):
            if _is_contraction(node) and node in needed and not _may_share(node):
                found[node] = 2 * math.prod(_extents([*node.ended_ranges, *node.ranges]))
    return sum(found.values())


def find_recompute(ast: UOp, kernel_id: str, calls: int, target: Target | None = None) -> Recompute | None:
    """A contraction of the kernel that is computed more than once, or reduced as soon as it is made where storing it is
    faster by the costs of tile programs, and what would help; None if there is none.

    `calls` is how often a workload calls the kernel. Reported is the contraction that wastes most; the waste is that of
    all of them. Padding wastes below 5 % are not reported. Costs are those of `target`, or of an H200 where that has no
    tile programs; what storing a product gains on a CPU they do not tell, and nothing is said of it there.
    """
    found = contractions(ast)
    wasted = sum(c.operations - c.needed for c in found)
    if wasted <= 0 or wasted < (NOTABLE - 1) * sum(c.needed for c in found):
        return _better_stored(ast, found, kernel_id, calls, target)
    worst = max(found, key=lambda c: c.operations - c.needed)
    product, remedy = _named(worst)
    if worst.inside:
        advice = f"{product} is recomputed {worst.factor:g} times inside a matmul over {_times(worst.inside)}: "
        advice += f"{remedy}used"
    elif worst.repeat_shape:
        advice = f"{product} is recomputed {worst.factor:g} times, once per element of {_times(worst.repeat_shape)}: "
        advice += f"{remedy}broadcast"
    else:
        advice = f"{product} is computed at shape {_times(worst.scope_shape)}, {worst.factor:g} times what is used, "
        advice += f"because it is joined with something else (cat, pad or stack): {remedy}joined"
    return Recompute(
        kernel_id=kernel_id, factor=worst.factor, wasted_operations=float(wasted), calls=calls, advice=advice
    )


def _named(product: Contraction) -> tuple[str, str]:
    """A contraction in words, and how advice to store it begins."""
    shape = _times(product.value_shape)
    name = f"the product over range K={_times(product.reduce_shape)} with value shape {shape}"
    return name, f"call .contiguous() on that intermediate (shape {shape}) before it is "


def _better_stored(
    ast: UOp, found: Iterable[Contraction], kernel_id: str, calls: int, target: Target | None
) -> Recompute | None:
    largest = max((c for c in found if c.inside), key=lambda c: c.operations, default=None)
    if largest is None or largest.node is None or (target is not None and target.device == "CPU"):
        return None
    from kcg.kernel.stored_products import better_stored  # by the costs of tile programs, which few runs need

    expected = better_stored(_as_run(ast), largest.node, target)
    if expected is None:
        return None
    product, remedy = _named(largest)
    alone, stored = (f"{1e6 * one:,.0f} µs" for one in (expected.as_it_is_s, expected.stored_s))
    advice = (
        f"{product} is reduced over {_times(largest.inside)} as soon as it is made, which is no matmul: {alone} are "
    )
    advice += f"expected of the kernel on {expected.model}, {stored} of two that store it: {remedy}reduced"
    return Recompute(kernel_id=kernel_id, factor=1.0, wasted_operations=0.0, calls=calls, advice=advice)


@lru_cache(64)
def _as_run(ast: UOp) -> UOp:
    """The AST with indexing by a tensor as tinygrad runs it; callers ask several things of the same kernel."""
    return with_loads_collapsed(ast)


def _accesses(ast: UOp) -> list[tuple[str, UOp, UOp]]:
    """Every INDEX of a buffer that is read or written: which, the buffer, and the INDEX."""
    nodes = list(ast.toposort())
    targets = {node.src[0] for node in nodes if node.op is Ops.STORE}
    loaded = {s for node in nodes for i, s in enumerate(node.src) if not (node.op is Ops.STORE and i == 0)}
    found = []
    for node in nodes:
        if node.op is Ops.INDEX and (buffer := buffer_of(node)).op is Ops.PARAM:
            found += [(role, buffer, node) for role, some in (("w", targets), ("r", loaded)) if node in some]
    return found


def _address(index: UOp) -> UOp:
    """Where an access goes when it does: an index without the condition on which it is valid."""
    return index.src[1] if index.op is Ops.WHERE and index.src[1].dtype == dtypes.weakint else index


def _certain_sources(node: UOp) -> tuple[UOp, ...]:
    """The sources without which the value of a node is never known."""
    if node.op is Ops.WHERE:
        return tuple(node.src[:1])
    if node.dtype == dtypes.bool and node.op in (Ops.AND, Ops.OR, Ops.MUL, Ops.MAX, Ops.REDUCE):
        return ()  # known as soon as one term is
    if node.op is Ops.MUL and (
        gates := tuple(s for s in node.src if s.op is Ops.CAST and s.src[0].dtype == dtypes.bool)
    ):
        return gates  # which tinygrad turns into a condition on the other factor
    return tuple(node.src[1:] if node.op is Ops.INDEX else node.src)


def _unconditional(ast: UOp) -> set[UOp]:
    """The nodes whose value decides what is stored whatever the buffers hold, and the INDEX of every such store."""
    seen: set[UOp] = set()
    stack = [
        node for node in ast.toposort() if node.op is Ops.STORE and not any(i.op is Ops.WHERE for i in node.src[0].src)
    ]
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack.extend(_certain_sources(node))
    return seen


def _least_touched(indices: Iterable[UOp]) -> int:
    """Distinct elements at least: exact where an address is a sum of ranges times constants, else 1 (0 if gated)."""
    count, known = 1, set[UOp]()
    for index in indices:
        if index.op is Ops.WHERE:
            return 0
        if (terms := _linear(index)) is not None:
            here = _distinct(terms)
            count = max(count, here) if known & terms.keys() else count * here  # a diagonal is no product
            known |= terms.keys()
    return count


def _linear(address: UOp) -> dict[UOp, int] | None:
    """The factor of each range in an address that is a sum of ranges times constants; None where it is another."""
    found = affine(address, is_axis=is_local)
    return None if found is None else {axis: factor for axis, factor in found.items() if axis is not None}


def _distinct(terms: dict[UOp, int]) -> int:
    """How many values a sum of ranges times factors takes at least.

    From the smallest factor on: values further apart than all so far reach multiply them. Multiples of the first step
    that leave no gap make one longer row. Otherwise |A + B| >= |A| + |B| - 1.
    """
    count, reach, step, gapless = 1, 0, 0, True
    for factor, steps in sorted((abs(f), _least_extent(axis)) for axis, f in terms.items() if f):
        if steps == 0:
            return 0
        if steps == 1:
            continue
        step = step or factor
        if gapless and factor % step == 0 and factor <= reach + step:
            count += (steps - 1) * (factor // step)
        elif factor > reach:
            count, gapless = count * steps, False
        else:
            count, gapless = count + steps - 1, False
        reach += (steps - 1) * factor
    return count


def _least_extent(axis: UOp) -> int:
    return max(0, int(axis.src[0].vmin))


def _may_share(node: UOp) -> bool:
    """Whether a program could compute less than the ranges of a contraction say."""
    nodes = list(node.toposort())
    if any(n.op is Ops.WHERE or n.dtype == dtypes.bool for n in nodes):
        return True
    if any(map(is_variable, nodes)):
        return True
    return any(_linear(index) is None for n in nodes if n.op is Ops.INDEX for index in n.src[1:])


def _times(shape: Iterable[int]) -> str:
    return "x".join(str(n) for n in shape) or "1"


def _extent(axis: UOp, box: Box) -> int:
    low, high = box.get(axis, (0, extent(axis)))
    return max(0, min(high, extent(axis)) - max(low, 0))


def _extents(axes: Iterable[UOp]) -> tuple[int, ...]:
    return tuple(_extent(r, {}) for r in axes if is_local(r))


def _is_contraction(node: UOp) -> bool:
    if node.op is not Ops.REDUCE or node.arg[0] is not Ops.ADD or not node.ended_ranges:
        return False
    source = node.src[0]
    while source.op is Ops.CAST:
        source = source.src[0]
    return bool(source.op is Ops.MUL)


def _stores(ast: UOp) -> list[tuple[UOp, dict[UOp, list[UOp]]]]:
    """Each thing that the kernel stores, and for every node under it the ranges in its scope, ordered as stored.

    A value that depends on no reduction's range is in the scope of its own ranges only, but a reduction is always in
    the scope of its store: tinygrad spreads the store's ranges over threads, each of which reduces for itself. What one
    thread holds of a range that is upcast already shares every value that does not depend on it.
    """
    out = []
    for top in ast.src:
        nodes = list(top.toposort())
        store_ranges: dict[UOp, None] = {}
        for node in nodes:
            if node.op is Ops.END:
                store_ranges.update(dict.fromkeys(r for e in node.ended_ranges for r in e.ranges))
            elif node.op is Ops.STORE:
                store_ranges.update(node.ranges)
        owners: dict[UOp, list[UOp]] = {}
        for node in nodes:
            if node.op is Ops.REDUCE:
                for axis in node.ended_ranges:
                    owners.setdefault(axis, []).append(node)
        scopes: dict[UOp, list[UOp]] = {}
        for node in reversed(nodes):  # a reduction's scope is known before that of what it sums
            scope = dict.fromkeys(node.ranges)
            enclosing = [owner for axis in node.ranges for owner in owners.get(axis, ()) if owner is not node]
            if node.op is Ops.REDUCE:
                scope.update(dict.fromkeys(node.ended_ranges))
            if node.op is Ops.REDUCE or enclosing:
                scope.update(store_ranges)
            for owner in enclosing:
                scope.update(dict.fromkeys(scopes.get(owner, ())))
            order = {r: i for i, r in enumerate(store_ranges)}
            own = {*node.ranges, *(node.ended_ranges if node.op is Ops.REDUCE else ())}
            counted = (r for r in scope if is_local(r) and (r in own or r.arg[-1] is not AxisType.UPCAST))
            scopes[node] = sorted(counted, key=lambda r: order.get(r, len(order)))
        scopes[top] = [r for r in store_ranges if is_local(r)]
        out.append((top, scopes))
    return out


def _used(top: UOp) -> dict[UOp, Box]:
    """For every node under a store, where its value is used, as far as `where` conditions on single ranges tell."""
    boxes: dict[UOp, Box] = {top: {}}
    for node in reversed(list(top.toposort())):
        box = boxes.get(node, {})
        for i, source in enumerate(node.src):
            narrowed = box
            if node.op is Ops.WHERE and i > 0:
                narrowed = _both(box, _condition(node.src[0], i == 1))
            boxes[source] = _hull(boxes[source], narrowed) if source in boxes else narrowed
    return boxes


def _condition(node: UOp, truth: bool) -> Box:
    """Where a condition holds (or does not): exact for comparisons of one range with a constant, else everywhere."""
    if node.op is Ops.CMPNE and node.src[1].op is Ops.CONST and node.src[1].dtype == dtypes.bool:
        return _condition(node.src[0], truth != bool(node.src[1].vmax))
    if node.op is Ops.AND and truth:
        return _both(_condition(node.src[0], True), _condition(node.src[1], True))
    if node.op is Ops.CMPLT and node.src[0].op is Ops.RANGE and node.src[1].op is Ops.CONST:
        axis, bound = node.src[0], int(node.src[1].vmax)
        return {axis: (0, bound) if truth else (bound, extent(axis))}
    return {}


def _both(a: Box, b: Box) -> Box:
    out = dict(a)
    for axis, (low, high) in b.items():
        known = out.get(axis, (low, high))
        out[axis] = (max(low, known[0]), min(high, known[1]))
    return out


def _hull(a: Box, b: Box) -> Box:
    """The smallest box around two; a range that one of them uses in full is used in full."""
    return {axis: (min(a[axis][0], b[axis][0]), max(a[axis][1], b[axis][1])) for axis in a if axis in b}


def _values(top: UOp) -> list[UOp]:
    """The nodes under a store that compute values: addresses, extents and ranges are left out."""
    seen: dict[UOp, None] = {}
    stack = [top]
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen[node] = None
        if node.op in (Ops.INDEX, Ops.RANGE, Ops.PARAM):
            continue
        if node.op in (Ops.END, Ops.REDUCE, Ops.AFTER):
            stack.append(node.src[0])
        else:
            stack.extend(node.src)
    return list(seen)


def _is_address(node: UOp) -> bool:
    """Whether an operation only compares or combines positions: it belongs to control, not to arithmetic."""
    if node.dtype == dtypes.weakint:
        return True
    return node.dtype == dtypes.bool and all(s.op is Ops.CONST or _is_address(s) for s in node.src)


# ---- A kernel's identity without its sizes: two kernels that differ only in them are of one class, see `shape_class`.
#
# A predictor that has learned from a kernel has also learned much of its shape class, so a test set of kernels "never
# seen" says which of its kernels have one of their class in training.

SHAPE_CLASS_FORMAT = 1
"""Part of every class: a change of what makes two kernels of one class is another number here."""

MAX_TERMS = 64  # longest chain of one operation that is compared without its order

_UNORDERED = frozenset(op.name for op in (*GroupOp.Commutative, Ops.REDUCE, Ops.END, Ops.SINK))
_CHAINS = frozenset(op.name for op in (Ops.ADD, Ops.MUL))
_INTEGERS = ("int", "uint", "weakint")
_KNOWN: dict[str, str] = {}  # classes by kernel id: 0.2 kB each


def shape_class(kernel: Kernel) -> str:
    """SHA-256 (hex) of a kernel's AST without its extents: operations, data types, axis types and who reads what.

    Left out are the values of integer and finite float constants (extents, strides, offsets and bounds are integers; a
    scale such as 1/n is a float), limits of variables and all names. Each node's hash is made of its sources' hashes,
    so that it does not matter which nodes coincide because two sizes are equal; the order of what commutes is left
    out. Where a size of 1 or a multiple changes the structure, kernels are of two classes. Raises CodecError where
    the text is no AST; it is not checked as `decode` checks it.
    """
    kernel_id = kernel.id
    if kernel_id not in _KNOWN:
        _KNOWN[kernel_id] = _shape_class_of(kernel.ast_json)
    return _KNOWN[kernel_id]


def _shape_class_of(ast_json: str) -> str:
    try:
        value = json.loads(ast_json)
        if value["format"] != FORMAT:
            raise CodecError(f"the AST is not of format {FORMAT}")
        return _hash_of_rows(value["nodes"])
    except CodecError:
        raise
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError, struct.error) as error:
        raise CodecError(f"the AST is malformed: {type(error).__name__}: {str(error)[:160]}") from error


def _hash_of_rows(rows: list[Any]) -> str:
    labels = _labels(rows)
    hashes: list[str] = []
    terms: list[list[str]] = []  # of each node: itself, or what it adds or multiplies together
    for i, (op, dtype, sources, arg) in enumerate(rows):
        if not all(0 <= s < i for s in sources):
            raise CodecError(f"AST node {i}: a source must be the index of an earlier node")
        below = [hashes[s] for s in sources]
        chain = op in _CHAINS and dtype.startswith(_INTEGERS)
        if chain:
            flat = [t for s in sources for t in (terms[s] if rows[s][:2] == [op, dtype] else [hashes[s]])]
            below = flat if len(flat) <= MAX_TERMS else below
        if op in ("REDUCE", "END"):
            below = [below[0], *sorted(below[1:])]  # ranges have no order, what they close is first
        elif op in _UNORDERED:
            below.sort()
        label = labels[i] if i in labels else _without_sizes(op, arg)
        text = canonical_json([SHAPE_CLASS_FORMAT, op, dtype, label, below])
        hashes.append(hashlib.sha256(text.encode()).hexdigest())
        terms.append(below if chain else [hashes[i]])
    return hashes[-1]


def _labels(rows: list[Any]) -> dict[int, object]:
    """Ranges and variables by their rank, so that gaps in the numbers (a size of 1 has no range) do not count."""
    ranges = sorted((row[3][:-1], i) for i, row in enumerate(rows) if row[0] == "RANGE")
    variables = [i for i, row in enumerate(rows) if row[0] == "PARAM" and row[3][4] is not None]
    found: dict[int, object] = {i: [rank, rows[i][3][-1]] for rank, (_, i) in enumerate(ranges)}
    return found | {i: rank for rank, i in enumerate(variables)}


def _without_sizes(op: str, arg: Any) -> object:
    """What of a node's argument is no size."""
    if op == "CONST":
        if type(arg) is int:
            return None
        if isinstance(arg, str) and arg != "Invalid":  # the bits of a float
            value = struct.unpack("<d", bytes.fromhex(arg)[::-1])[0]
            return None if math.isfinite(value) else str(value)
        return arg
    if op == "PARAM":
        slot, _dtype, _limits, _multiple_of, _name, space, axis, volatile = arg
        return [slot, space, axis, volatile]
    return arg
