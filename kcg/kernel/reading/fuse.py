"""Several kernels as one: what one loads of an earlier one is that value itself, computed where it is used.

The load's address, taken apart by the steps with which the earlier kernel stores, says at which of its output ranges
the value is. Nothing in between is rounded or stored, unless it is observed: then it is stored as well. What is left is
one value for each buffer that is stored, over ranges of its own. Equal expressions are one in the program's text, so
that what several of these values need is loaded and computed once.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import replace
from functools import lru_cache

from kcg.compat.scheduling import simplified
from kcg.compat.tiny import AddrSpace, AxisType, Ops, PatternMatcher, UOp, UPat, dtypes, graph_rewrite
from kcg.kernel.ast import affine, extent, is_symbolic
from kcg.kernel.codec import ast_of
from kcg.kernel.reading.accesses import Access, BufferSlot, Stored, access_of, buffers_of, stored_of
from kcg.kernel.reading.attention import no_attention, with_attention
from kcg.kernel.reading.branches import branches_of
from kcg.kernel.reading.cut import CUT, parts_of
from kcg.kernel.reading.factors import NARROW, factors_of
from kcg.kernel.reading.indices import moved, with_short_indices
from kcg.kernel.reading.kernel import (
    EVEN,
    ODD,
    SAME,
    SEVERAL,
    SWAPPED,
    EpilogueUse,
    TileKernel,
    kernel_of,
    read_kernel,
    refuse_unknown,
    with_shared_operand,
)
from kcg.kernel.reading.merging import with_reductions_merged, with_steps_merged
from kcg.kernel.reading.packed import BYTES, packed_sums, rows_of
from kcg.kernel.reading.rows import in_groups, in_rows, with_rows
from kcg.kernel.reading.unsupported import UnsupportedTile
from kcg.kernel.reading.vectors import VECTORS, vectors_of
from kcg.types import Kernel, Region

MOST_KERNELS = 16
_SHARED = 1 << 20  # the first number of ranges that several reductions are over
MOST_NODES = 4096  # of all values together: each use of a value may be a copy of it over other ranges


def read_region(region: Region) -> TileKernel:
    """A region, read as one kernel. Raises UnsupportedTile, with the construct that is in the way."""
    if len(region.kernels) == 1:
        return read_kernel(region)
    kernel = _fused(region.id, region)
    if any(one.one_hot_sums for one in kernel.launched):
        raise UnsupportedTile("several kernels", "a product is finished with sums over one-hot rows")
    return kernel


@lru_cache(256)
def _fused(_id: str, region: Region) -> TileKernel:
    if len(region.kernels) > MOST_KERNELS:
        raise UnsupportedTile("several kernels", f"more than {MOST_KERNELS}")
    parts = _independent(region)
    if not all(vectors_of(read_kernel(Region((kernel,)))) for kernel in region.kernels):
        return _as_one_or_launch(region, parts)
    try:
        return _products_of_vector(region, parts)
    except UnsupportedTile as unsupported:
        first = unsupported
    try:
        return _as_one_or_launch(region, parts)
    except UnsupportedTile:
        raise first from None


def _as_packed(region: Region) -> TileKernel | None:
    """A product of one vector with packed weights, with what is looked up for it or made of its result: as a row that
    a program holds it would be taken byte by byte."""
    if not any(node.op is Ops.PARAM and node.dtype in BYTES for k in region.kernels for node in ast_of(k).toposort()):
        return None
    try:
        kernel = _combined(region, frozenset(range(len(region.kernels))), holding=True, as_rows=False)
    except UnsupportedTile:
        return None
    if not (sums := packed_sums(kernel)):
        return None
    numbered = sum(axis in sums[0].apart for axis in kernel.outputs) + len(rows_of(kernel, sums[0]))
    return kernel if numbered == len(kernel.outputs) else None


def _as_one_or_launch(region: Region, parts: list[frozenset[int]]) -> TileKernel:
    if (packed := _as_packed(region)) is not None:
        return packed
    try:
        return _as_one(region, frozenset(range(len(region.kernels))))
    except UnsupportedTile:
        kernels = [_as_one(region, part) for part in parts] if len(parts) > 1 else []
        if not kernels or any(kernel.contraction is None for kernel in kernels):
            raise
    return _in_one_launch(kernels, SEVERAL)


def _as_one(region: Region, calls: frozenset[int]) -> TileKernel:
    try:
        return _combined(region, calls, holding=True)
    except UnsupportedTile as unsupported:
        first = unsupported
    several = first.construct in (SEVERAL, CUT)
    if not several and not any(_has_maximum(kernel) for kernel in region.kernels):
        raise first
    try:
        made = _combined(region, calls, holding=False)
        if several or made.attention is not None:  # of one query for each head the products may be no contractions
            return made
    except UnsupportedTile as unsupported:
        if several and first.construct != CUT:
            raise unsupported from None
    raise first


@lru_cache(1024)
def _has_maximum(kernel: Kernel) -> bool:
    return any(node.op is Ops.REDUCE and node.arg[0] is Ops.MAX for node in ast_of(kernel).toposort())


def _combined(region: Region, calls: frozenset[int], *, holding: bool, as_rows: bool = True) -> TileKernel:
    """Kernels of a region as one; `holding` the results of contractions, or with those too made where they are used.
    Reductions are `as_rows` that programs hold, or as of one kernel."""
    buffers: dict[UOp, BufferSlot] = {}
    made: dict[int, Stored] = {}  # slot -> what it holds so far
    loaded: set[int] = set()
    products: dict[int, TileKernel] = {}  # slot -> the contraction whose result is held
    for ast in (ast for number, ast in enumerate(_renamed(region)) if number in calls):
        refuse_unknown(ast)
        own = buffers_of(ast)
        buffers |= {param: buffer for param, buffer in own.items() if param not in buffers or buffer.written}
        plain = stored_of(ast, own)
        is_product = kernel_of((plain,), own).contraction is not None
        stored = _inlined(plain, own, {slot: s for slot, s in made.items() if slot not in products or is_product})
        slot = stored.store.buffer.slot
        loaded |= {access.buffer.slot for access in _loads(stored, buffers)} - set(made)
        if slot in made or slot in loaded:
            raise UnsupportedTile("update in place", "a buffer is written that was read or written before")
        made[slot] = stored
        if is_product and holding:
            terms = _slots(plain, own) & products.keys()
            made_of = kernel_of((stored,), buffers)
            is_sum = made_of.contraction is not None and not _slots(stored, buffers) & products.keys()
            if not is_sum or (terms and not made_of.chained) or terms & set(region.outputs):
                raise UnsupportedTile(SEVERAL, "they are no terms of one sum")
            products = {n: product for n, product in products.items() if n not in terms} | {slot: made_of}
    shared: dict[UOp, list[UOp]] = {}
    wanted = [_with_shared_ranges(made[slot], shared) for slot in region.outputs if slot in made]
    if len(products) > 1:
        kernel = _with_products(products, wanted, buffers)
    elif products:
        (product,) = products.values()
        kernel = _with_product(product, wanted, buffers)
    else:
        wanted = sorted(wanted, key=lambda s: -math.prod(s.extents))
        kernel = kernel_of(wanted, buffers)
        if not holding and not any(node.arg[0] is Ops.MAX for node in kernel.reductions):
            kernel = _with_contractions(wanted, buffers)
        elif not holding:
            kernel = _with_attention(wanted, buffers)
        elif kernel.reductions and as_rows:
            kernel = with_rows(wanted, kernel, buffers)
        elif kernel.also and not kernel.reductions:
            kernel = kernel_of(_over_ranges_of_first(wanted, buffers), buffers)
    if sum(1 for _ in UOp.sink(*(s.value for s in kernel.all_stored)).toposort()) > MOST_NODES:
        raise UnsupportedTile("several kernels", "they compute too much again")
    return _with_used_buffers(kernel)


def _with_attention(wanted: list[Stored], buffers: dict[UOp, BufferSlot]) -> TileKernel:
    """An attention. Raises UnsupportedTile where it is none."""
    if len(wanted) > 1:
        raise no_attention("something else is stored beside its result")
    return with_attention(in_groups(wanted[0], buffers), buffers)


def _with_used_buffers(kernel: TileKernel) -> TileKernel:
    """A kernel without the buffers that none of its programs reads or writes."""
    used = {stored.store.buffer.slot for stored in kernel.written}
    for one in kernel.launched:
        used |= {access.buffer.slot for access in one.loads}
        used |= {slot for branch in one.epilogue for slots in branch.buffers for slot in slots}
    kept = tuple(sorted((b for b in kernel.buffers if b.slot in used), key=lambda b: b.slot))
    return replace(kernel, buffers=kept)


# ---- names


@lru_cache(256)
def _simplified(kernel: Kernel) -> UOp:
    return with_reductions_merged(simplified(ast_of(kernel)))


@lru_cache(16)  # a region is read in several ways, one after another
def _renamed(region: Region) -> tuple[UOp, ...]:
    """The kernels with the region's numbers for their buffers, and with ranges that no two have in common."""
    numbers = itertools.count()
    found = []
    for kernel, slots in zip(region.kernels, region.args, strict=True):
        ast = _simplified(kernel)
        new: dict[UOp, UOp] = {}
        for node in ast.toposort():
            if node.op is Ops.PARAM and node.arg.addrspace is not AddrSpace.ALU:
                new[node] = node.replace(arg=replace(node.arg, slot=slots[node.arg.slot]))
            elif node.op is Ops.RANGE:
                new[node] = node.replace(arg=(next(numbers), node.arg[-1]))
        ast = ast.substitute(new, walk=True)
        found.append(with_short_indices(ast) if ast.variables() else ast)
    return tuple(found)


def _with_shared_ranges(stored: Stored, shared: dict[UOp, list[UOp]]) -> Stored:
    """A value whose reductions of equal length and of one level are over the same range, so that one loop can make
    several of them."""
    value = graph_rewrite(with_short_indices(stored.value), _SHARED_RANGES, ctx=shared, walk=True)
    return replace(stored, value=with_short_indices(value))


def _without_factors(node: UOp) -> UOp:
    """A sum with what each of its terms is multiplied by outside of it, where that is itself made of a reduction: of a
    softmax's weights times values the division by their sum."""
    if node.arg[0] is not Ops.ADD or not dtypes.is_float(node.dtype):
        return node
    factors, ranges = factors_of(_with_weights_apart(node)), set(node.src[1:])
    fixed = [f.node for f in factors if not f.gate and not ranges & set(f.node.ranges)]
    if any(f.gate for f in factors) or not any(n.op is Ops.REDUCE for f in fixed for n in f.toposort()):
        return node
    terms = [f.node for f in factors if ranges & set(f.node.ranges)]
    total = node.replace(src=(_product(terms, node), *node.src[1:]))
    return _product([total, *fixed], node)


def _with_weights_apart(node: UOp) -> UOp:
    """The terms of a sum, where weights that a maximum shifts are rounded only without what all of them are divided by:
    they are at most 1 before, too."""
    new, ranges = dict[UOp, UOp](), set(node.src[1:])
    for factor in (f.node for f in factors_of(node.src[0]) if not f.gate):
        if factor.op is not Ops.CAST or factor.dtype not in NARROW or not dtypes.is_float(factor.src[0].dtype):
            continue
        inside = factors_of(factor.src[0])
        own = [f.node for f in inside if ranges & set(f.node.ranges)]
        fixed = [f.node for f in inside if not ranges & set(f.node.ranges)]
        shifted = any(n.op is Ops.REDUCE and n.arg[0] is Ops.MAX for one in own for n in one.toposort())
        if fixed and own and shifted and not any(f.gate for f in inside):
            weight = _product(own, factor.src[0]).cast(factor.dtype)
            new[factor] = _product([weight, *fixed], weight)
    return node.src[0].substitute(new) if new else node.src[0]


def _product(factors: list[UOp], like: UOp) -> UOp:
    found = [f if f.dtype is like.dtype else f.cast(like.dtype) for f in factors]
    return functools.reduce(lambda a, b: a * b, found)


def _over_shared_range(node: UOp, shared: dict[UOp, list[UOp]]) -> UOp:
    """A reduction over the range that those of its length and level have in common. What is made anew for each of its
    terms is of a lower level: the scores of an attention whose keys are as many as the elements of a head are sums over
    another range than the maximum and the sums of them, which are over one."""
    ranges = node.src[1:]
    if any(axis.op is not Ops.RANGE or (is_symbolic(axis) and len(ranges) > 1) for axis in ranges):
        return node
    size = ranges[0].src[0]
    if len(ranges) > 1:
        size = size.const_like(math.prod(map(extent, ranges)))
    inner = [n for n in node.src[0].toposort() if n.op is Ops.REDUCE and set(ranges) & set(n.ranges)]
    used, levels = {over for n in inner for over in n.src[1:]}, shared.setdefault(size, [])
    axis = next((one for one in levels if one not in used), None)
    if axis is None:
        number = _SHARED + sum(map(len, shared.values()))
        axis = UOp(Ops.RANGE, ranges[0].dtype, (size,), (number, AxisType.REDUCE))
        levels.append(axis)
    at, left = {}, axis
    for one in reversed(ranges):
        at[one] = left % extent(one) if one is not ranges[0] else left
        left = left // extent(one)
    return node.replace(src=(moved(node.src[0], at), axis))


_SHARED_RANGES = PatternMatcher(
    [(UPat(Ops.REDUCE, name="node"), lambda ctx, node: _without_factors(_over_shared_range(node, ctx)))]
)
"""The context is the shared ranges by their size, one for each level."""


# ---- values in the place of loads


def _inlined(stored: Stored, own: dict[UOp, BufferSlot], made: dict[int, Stored]) -> Stored:
    """What a kernel stores, with the values of earlier kernels in the place of their loads."""
    new = {
        access.node: _value_at(made[access.buffer.slot], access)
        for access in _loads(stored, own)
        if access.buffer.slot in made
    }
    if not new:
        return stored
    if any(node in new for node in UOp.sink(*stored.store.node.src[1:], *stored.gates).toposort()):
        raise UnsupportedTile("address from an intermediate", "where a value is stored depends on one that is not")
    return replace(stored, value=with_steps_merged(stored.value.substitute(new)))


def _loads(stored: Stored, own: dict[UOp, BufferSlot]) -> list[Access]:
    bodies = UOp.sink(stored.value, *stored.store.node.src[1:], *stored.gates)
    return [access_of(node, own) for node in bodies.toposort() if node.op is Ops.INDEX]


def _slots(stored: Stored, buffers: dict[UOp, BufferSlot]) -> set[int]:
    """The buffers that a store's value is made of."""
    return {access.buffer.slot for access in _loads(stored, buffers)}


def _value_at(stored: Stored, access: Access) -> UOp:
    """The value that a load finds: that of the store, at the ranges that its address comes to."""
    if stored.gates:
        raise UnsupportedTile("intermediate that is stored in part")
    if stored.store.node.dtype is not access.node.dtype:
        raise UnsupportedTile("intermediate whose bits are read as another type")
    steps = affine(stored.store.address)
    if steps is None:
        raise UnsupportedTile("intermediate of another layout", "its address is no sum of ranges times constants")
    step = 1
    for axis in reversed(stored.outputs):
        if steps.pop(axis, 0) != step:
            raise UnsupportedTile("intermediate of another layout", "its elements do not follow each other")
        step *= extent(axis)
    if steps or step != stored.store.buffer.size:
        raise UnsupportedTile("intermediate that is stored in part")
    at: dict[UOp, UOp] = {}
    step = 1
    for axis in reversed(stored.outputs):
        digit = access.address // step if step > 1 else access.address
        last = step * extent(axis) == stored.store.buffer.size
        at[axis] = (digit if last else digit % extent(axis)).simplify()
        step *= extent(axis)
    value = moved(stored.value, at)
    if value.dtype is not access.node.dtype:
        value = value.cast(access.node.dtype)
    for gate in access.gates:  # outside of it a load gives 0
        value = gate.where(_loading_where(gate, value), value.const_like(0))
    return value


def _loading_where(gate: UOp, value: UOp) -> UOp:
    """A value that loads nothing from outside of its buffers where a condition does not hold."""
    return graph_rewrite(value, _GATED, ctx=gate, walk=True)


def _gated(ctx: UOp, load: UOp) -> UOp | None:
    if not _may_be_outside(load):
        return None
    return load.replace(src=(load.src[0], load.src[1].valid(ctx), *load.src[2:]))


_GATED = PatternMatcher([(UPat(Ops.INDEX, name="load"), _gated)])
"""The context is the condition outside of which nothing is loaded from beyond a buffer."""


def _may_be_outside(load: UOp) -> bool:
    """Whether a load's address alone does not say that it is in its buffer."""
    index = load.src[1]
    while (inner := index.get_idx()) is not index:
        index = inner
    return bool(len(load.src) != 2 or index.vmin < 0 or index.vmax >= load.src[0].max_numel())


# ---- what is made of a contraction's result while a tile of it is in registers


def _with_product(product: TileKernel, wanted: list[Stored], buffers: dict[UOp, BufferSlot]) -> TileKernel:
    """The contraction with all that is stored beside its result. Raises UnsupportedTile where that needs more of the
    result than some neighbouring columns of the same row."""
    (first,) = product.stored
    also = [stored for stored in wanted if stored.store.buffer.slot != first.store.buffer.slot]
    if first.gates:
        raise UnsupportedTile("intermediate that is stored in part")
    width = _columns_of(product)
    also = [in_rows(stored, width, _used(stored, first, buffers), buffers) for stored in also]
    held = tuple(_held(stored, first, width, buffers) for stored in also)
    branches = branches_of(also, held, buffers)
    nodes = UOp.sink(first.value, *first.store.node.src[1:], *(n for b in branches for n in b.loads)).toposort()
    loads = [access_of(n, buffers) for n in nodes if n.op is Ops.INDEX]
    return replace(
        product,
        also=tuple(also),
        epilogue_uses=held,
        epilogue=branches,
        hidden=len(also) == len(wanted),
        buffers=tuple(buffers.values()),
        loads=tuple(access for access in loads if access.buffer.slot != first.store.buffer.slot),
    )


def _with_products(products: dict[int, TileKernel], wanted: list[Stored], buffers: dict[UOp, BufferSlot]) -> TileKernel:
    """Contractions whose results lie beside each other in what is stored, each with its part of that: the tiles of all
    of them are programs of one launch. Raises UnsupportedTile."""
    own = [(stored.store.buffer.slot, stored) for stored in wanted if stored.store.buffer.slot in products]
    cut = [parts_of(stored, products, buffers) for stored in wanted if stored.store.buffer.slot not in products]
    if not all(cut) or all(len(parts) == 1 for parts in cut):
        raise UnsupportedTile(SEVERAL, "they are no terms of one sum")
    found: dict[int, list[Stored]] = {slot: [] for slot in products}
    for slot, part in itertools.chain(own, *cut):
        found[slot].append(part)
    if not all(found.values()):
        raise UnsupportedTile(CUT, "nothing is stored of one of them")
    return _in_one_launch([_with_product(product, found[slot], buffers) for slot, product in products.items()], CUT)


def _used(stored: Stored, product: Stored, buffers: dict[UOp, BufferSlot]) -> UOp:
    """The address of an element of a contraction's result that a store uses."""
    for access in _loads(stored, buffers):
        if access.buffer.slot == product.store.buffer.slot:
            return access.address
    raise UnsupportedTile("several kernels", "one of them has nothing to do with the product's result")


def _columns_of(product: TileKernel) -> int:
    """Elements of a row of a contraction's result, which is stored row after row."""
    assert product.contraction is not None
    rows, columns = (side.ranges for side in product.contraction.sides)
    if product.contraction.batch or (*rows, *columns) != tuple(range(len(product.outputs))):
        raise UnsupportedTile("result of a product", "it is not rows by columns")
    steps, step = affine(product.store.address), 1
    for axis in reversed(product.outputs):
        if steps is None or steps.pop(axis, 0) != step or is_symbolic(axis):
            raise UnsupportedTile("result of a product", "it is not stored row after row")
        step *= extent(axis)
    if steps or step != product.store.buffer.size:
        raise UnsupportedTile("result of a product", "it is stored in part")
    return _count_of_columns(product)


def _held(stored: Stored, product: Stored, width: int, buffers: dict[UOp, BufferSlot]) -> EpilogueUse:
    """How a store uses the result of a contraction with rows of so many columns. Raises UnsupportedTile."""
    places = [_place(access, width) for access in _loads(stored, buffers) if access.buffer == product.store.buffer]
    rows = _digits({axis: step for _, row, _ in places for axis, step in row.items() if axis is not None})
    if any(row != dict(rows) for _, row, _ in places) or _size(rows) * width != product.store.buffer.size:
        raise UnsupportedTile("use of a product's result", "in other rows, or not in all of them")
    reduced = {axis for node in stored.value.toposort() if node.op is Ops.REDUCE for axis in node.src[1:]}
    steps = {axis: abs(step) for _, _, column in places for axis, step in column.items() if axis is not None}
    along = {axis: steps.get(axis, 0) for axis in stored.outputs if axis not in dict(rows)}
    columns = _digits(along, missing=1)
    first = min(column.get(None, 0) for _, _, column in places)
    loads, parts = [], {}
    for node, _, column in places:
        inside = [axis for axis in column if axis in reduced]
        if inside:
            (axis,) = inside if len(inside) == 1 else (None,)
            outer = [(a, s) for a, s in columns if axis is not None and s >= extent(axis)]
            whole = {None: first, **dict(outer), axis: 1} if first else {**dict(outer), axis: 1}
            if (
                axis is None
                or column != whole
                or math.prod(extent(a) for a, s in columns if s < extent(axis)) != extent(axis)
            ):
                raise UnsupportedTile("reduction of a product's result", "it is not over neighbouring columns")
            parts[axis] = extent(axis)
            loads.append((node, SAME))
            continue
        move = _move(column, columns, first)
        if move is None:
            raise UnsupportedTile("use of a product's result", "it is moved in another way than within pairs")
        loads.append((node, move))
    for node in stored.value.toposort():
        if node.op is Ops.REDUCE and any(axis not in parts for axis in node.src[1:]):
            raise UnsupportedTile("reduction beside the product")
        if node.op is Ops.REDUCE and any(step < parts[node.src[1]] and a in node.ranges for a, step in columns):
            raise UnsupportedTile("reduction of a product's result", "it is not the same for all of its columns")
    return EpilogueUse(
        tuple(a for a, _ in rows), tuple(a for a, _ in columns), first, tuple(loads), tuple(parts.items())
    )


Steps = dict[UOp | None, int]


def _place(access: Access, width: int) -> tuple[UOp, Steps, Steps]:
    """A load of the result: its node, row and column. Raises UnsupportedTile."""
    row, column = affine((access.address // width).simplify()), affine((access.address % width).simplify())
    if access.gates or row is None or column is None:
        raise UnsupportedTile("use of a product's result", "its place is no sum of ranges times constants")
    return access.node, row, column


def _digits(steps: dict[UOp, int], missing: int = 0) -> list[tuple[UOp, int]]:
    """Ranges that number elements without gaps, and the step of each, the largest first: with at most so many whose
    step is not known. Raises UnsupportedTile."""
    found: list[tuple[UOp, int]] = []
    left, step = dict(steps), 1
    while left:
        axis = next((a for a, s in left.items() if s == step), None)
        if axis is None:
            axis = next((a for a, s in left.items() if s == 0), None)
            missing -= 1
        if axis is None or missing < 0 or is_symbolic(axis):
            raise UnsupportedTile("use of a product's result", "its elements do not follow each other")
        found.append((axis, step))
        step *= extent(axis)
        del left[axis]
    return found[::-1]


def _size(digits: list[tuple[UOp, int]]) -> int:
    return math.prod(extent(axis) for axis, _ in digits)


def _move(column: Steps, columns: list[tuple[UOp, int]], first: int) -> str | None:
    """How a load's column differs from that of the element that is computed."""
    pair, step = columns[-1]
    own = {axis: s for axis, s in columns if axis is not pair}
    rest = {axis: s for axis, s in column.items() if axis is not None and axis is not pair}
    offset, along = column.get(None, 0) - first, column.get(pair, 0)
    if rest != own or step != 1:
        return None
    if along == 1 and not offset:
        return SAME
    if extent(pair) != 2:
        return None
    return {(0, 0): EVEN, (0, 1): ODD, (-1, 1): SWAPPED}.get((along, offset))


# ---- contractions of one launch, or of the same operand


def _independent(region: Region) -> list[frozenset[int]]:
    """The calls of a region in parts that make nothing for each other."""
    written = [
        {slots[b.slot] for b in buffers_of(ast_of(kernel)).values() if b.written}
        for kernel, slots in zip(region.kernels, region.args, strict=True)
    ]
    found: list[frozenset[int]] = []
    for number, slots in enumerate(region.args):
        users = {n for n in range(number) if written[n] & set(slots) or written[number] & set(region.args[n])}
        near = [part for part in found if part & users]
        found = [part for part in found if part not in near] + [frozenset([number]).union(*near)]
    return found


def _in_one_launch(kernels: list[TileKernel], construct: str) -> TileKernel:
    """Contractions whose tiles are programs of one launch, the largest one's first, each with what is made of its
    result: of the same rows, or each of rows of its own and of as many terms and columns. Raises UnsupportedTile."""
    read = [_rows_read(kernel) for kernel in kernels]
    grouped_rows = len(set(read)) > 1
    forms = {(*rows[:2], _count_of_columns(kernel)) for rows, kernel in zip(read, kernels, strict=True) if rows}
    if None in read or (grouped_rows and len(forms) > 1):
        raise UnsupportedTile(construct, "products of other formats, terms or columns")
    return _launched(kernels, grouped_rows=grouped_rows)


def _launched(kernels: list[TileKernel], *, grouped_rows: bool = False) -> TileKernel:
    """Kernels whose tiles are programs of one launch, the largest one's first."""
    first, *others = sorted(kernels, key=lambda kernel: -math.prod(kernel.extents))
    slots = {buffer.slot: buffer for kernel in kernels for buffer in kernel.buffers}
    variables = {v.arg.name: v for kernel in kernels for v in kernel.variables}
    return replace(
        first,
        grouped=tuple(others),
        grouped_rows=grouped_rows,
        buffers=tuple(slots[slot] for slot in sorted(slots)),
        variables=tuple(variables[name] for name in sorted(variables)),
    )


def _products_of_vector(region: Region, parts: list[frozenset[int]]) -> TileKernel:
    """Matrix-vector products of one vector, in one launch where some do not need each other; what needs another one's
    result, row by row, is computed beside it. Raises UnsupportedTile."""
    read = [
        {(slots[slot], form) for slot, form in vectors_of(read_kernel(Region((kernel,))))}
        for kernel, slots in zip(region.kernels, region.args, strict=True)
    ]
    if not set.intersection(*read):
        raise UnsupportedTile(VECTORS, "they read no vector in common")
    kernels = [_combined(region, part, holding=True, as_rows=False) for part in parts]
    if not all(map(vectors_of, kernels)):
        raise UnsupportedTile(VECTORS, "one is more than a value for each row by way of another one's result")
    return _launched(kernels)


def _count_of_columns(kernel: TileKernel) -> int:
    assert kernel.contraction is not None
    return math.prod(kernel.extents[n] for n in kernel.contraction.sides[1].ranges)


def _rows_read(kernel: TileKernel) -> tuple[object, ...] | None:
    """The first operand of a contraction by itself: its format, its terms, its rows, and what it is read from."""
    contraction = kernel.contraction
    if contraction is None or contraction.batch or kernel.chained or kernel.sharing_operand or kernel.grouped:
        return None
    rows = contraction.sides[0]
    inside = {node for factor in rows.factors for node in factor.node.toposort()}
    slots = {load.buffer.slot for load in kernel.loads if load.node in inside}
    return rows.dtype, kernel.reduce_extent, math.prod(kernel.extents[n] for n in rows.ranges), frozenset(slots)


def _with_contractions(wanted: list[Stored], buffers: dict[UOp, BufferSlot]) -> TileKernel:
    """What is stored of contractions that are terms of one sum, or share an operand. A store whose range runs over rows
    and columns is as over both. Raises UnsupportedTile."""
    grouped = [in_groups(stored, buffers) for stored in wanted]
    try:
        return _of_same_shape(wanted, buffers)
    except UnsupportedTile:
        if all(len(one.outputs) == len(stored.outputs) for one, stored in zip(grouped, wanted, strict=True)):
            raise
    return _of_same_shape(grouped, buffers)


def _of_same_shape(wanted: list[Stored], buffers: dict[UOp, BufferSlot]) -> TileKernel:
    if len({stored.extents for stored in wanted}) > 1:
        raise UnsupportedTile(SEVERAL, "what they store has different shapes")
    stored = _over_ranges_of_first(wanted, buffers)
    kernel = kernel_of(stored, buffers)
    return kernel if kernel.contraction is not None else with_shared_operand(stored, buffers)


# ---- elements


def _over_ranges_of_first(wanted: list[Stored], buffers: dict[UOp, BufferSlot]) -> list[Stored]:
    """Stores of elementwise values, all over the ranges of the first. Raises UnsupportedTile."""
    (first, *others), found = wanted, wanted[:1]
    for stored in others:
        if [axis.src[0] for axis in stored.outputs] != [axis.src[0] for axis in first.outputs]:
            raise UnsupportedTile("several kernels", "elementwise ones of different shapes")
        at = dict(zip(stored.outputs, first.outputs, strict=True))
        store = access_of(moved(stored.store.node, at), buffers)
        gates = tuple(gate.substitute(at) for gate in stored.gates)
        found.append(Stored(store, moved(stored.value, at), gates, first.outputs))
    return found
