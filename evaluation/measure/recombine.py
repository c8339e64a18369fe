"""New kernels out of captured ones, for the fuzz campaign: parts of ASTs put together in ways no model happens to use.

Every step keeps to what tinygrad's scheduler writes: one flat index per access, ranges of constant extent, every index
inside its buffer, a store that no two points share. What comes out is normalised and survives the codec.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from evaluation.measure.rewriting import Affine, Unfit, cast, extent, number, rewritten
from kcg.compat.tiny import AddrSpace, AxisType, Invalid, Ops, ParamArg, UOp, dtypes
from kcg.errors import KcgError
from kcg.kernel.analysis import arithmetic
from kcg.kernel.codec import kernel_of, normalise
from kcg.types import Region

SIZES = (1, 2, 3, 4, 5, 7, 8, 11, 13, 16, 17, 23, 24, 31, 32, 33, 37, 48, 50, 64, 65, 96, 100, 127)
"""Extents to choose from: powers of two, their neighbours, primes, and 1."""

MAX_STEPS = 3  # steps that make one kernel
MAX_NODES = 160  # larger kernels are not grown further: they only take long to compile
MAX_FAILURES = 2000  # attempts without a new kernel after which the parts are taken to be used up

FLOATS = (dtypes.float32, dtypes.float16, dtypes.bfloat16)


@dataclass(frozen=True)
class Recombined:
    """A kernel that nobody wrote, and the names of the steps that made it."""

    region: Region
    origin: str


Step = Callable[[UOp, UOp, random.Random], UOp]
"""A step makes one AST of a base, and perhaps a donor. Raises Unfit where it cannot."""


def recombined(
    asts: Sequence[UOp], rng: random.Random, count: int, *, most_operations: float = math.inf
) -> Iterator[Recombined]:
    """At most `count` new kernels, all different and none among `asts`.

    Kernels with variables, device ranges or shaped buffers are no parts. Kernels of more than `most_operations`
    (`kcg.kernel.analysis.arithmetic`) are made smaller first. Ends early where nothing new is found any more.
    Raises KcgError where no AST can be used.
    """
    parts = [ast for ast in map(normalise, asts) if is_part(ast)]
    if not parts:
        raise KcgError("none of the kernels can be recombined")
    seen = {kernel_of(ast).id for ast in asts}
    failures = made = 0
    while made < count and failures < MAX_FAILURES:
        names = [rng.choice(list(STEPS)) for _ in range(rng.randint(1, MAX_STEPS))]
        try:
            ast = rng.choice(parts)
            for name in names:
                ast = STEPS[name](ast, rng.choice(parts), rng)
            ast = _tidy(_shrunk(ast, rng, most_operations))
        except Unfit:
            failures += 1
            continue
        region = Region((kernel_of(ast),))
        if region.id in seen:
            failures += 1
            continue
        seen.add(region.id)
        made, failures = made + 1, 0
        yield Recombined(region, " + ".join(names))


def is_part(ast: UOp) -> bool:
    """Whether a normalised kernel can be taken apart here."""
    nodes = list(ast.toposort())
    targets = {s.src[0] for s in nodes if s.op is Ops.STORE}
    stored = {t.src[0] for t in targets}
    return (
        len(nodes) <= MAX_NODES
        and len(stored) == len(ast.src)
        and all(
            not (node.op is Ops.PARAM and node.arg.addrspace is not AddrSpace.GLOBAL)
            and not (node.op is Ops.RANGE and (node.src[0].op is not Ops.CONST or node.arg[-1] is AxisType.DEVICE))
            and not (node.op is Ops.INDEX and (node.src[0].op is not Ops.PARAM or len(node.src) != 2))
            # read and written at different places: with other extents, one point may read what another one writes
            and not (node.op is Ops.INDEX and node.src[0] in stored and node not in targets)
            for node in nodes
        )
    )


# ***** the parts of an AST *****


def _stores(ast: UOp) -> list[tuple[UOp, UOp, tuple[UOp, ...]]]:
    """Index, value and ranges of each store."""
    return [(*(s.src[0].src if s.op is Ops.END else s.src), s.src[1:] if s.op is Ops.END else ()) for s in ast.src]


def _first(ast: UOp) -> tuple[UOp, UOp, tuple[UOp, ...]]:
    return _stores(ast)[0]


def _with(ast: UOp, index: UOp, value: UOp, ranges: Sequence[UOp]) -> UOp:
    """The AST with its first store replaced."""
    return UOp(Ops.SINK, dtypes.void, (_stored(index, value, ranges), *ast.src[1:]), ast.arg)


def _stored(index: UOp, value: UOp, ranges: Sequence[UOp]) -> UOp:
    store = UOp(Ops.STORE, None, (index, cast(value, index.dtype)))
    return UOp(Ops.END, None, (store, *ranges)) if ranges else store


def _computed_outside(value: UOp) -> list[UOp]:
    """The nodes of a value that are not inside a reduction or an address: each is one number per stored element."""
    leaves = (Ops.REDUCE, Ops.INDEX, Ops.RANGE, Ops.CONST)
    inner = value.toposort(gate=lambda node: node.op not in leaves)
    return list(dict.fromkeys([value, *inner, *(s for node in inner for s in node.src)]))


def _is_float(node: UOp) -> bool:
    return dtypes.is_float(node.dtype) and node.dtype not in dtypes.weaks and node.op is not Ops.PARAM


def _next_slot(ast: UOp) -> int:
    return 1 + max((n.arg.slot for n in ast.toposort() if n.op is Ops.PARAM), default=-1)


def _next_number(ast: UOp) -> int:
    return 1 + max((n.arg[0] for n in ast.toposort() if n.op is Ops.RANGE), default=-1)


def _over(
    roots: Sequence[UOp],
    kept: Sequence[UOp],
    base: UOp,
    targets: Sequence[UOp],
    rng: random.Random,
    given: Mapping[UOp, UOp] | None = None,
) -> list[UOp]:
    """A donor's `roots` as a part of `base`: its ranges `kept` become `targets`, its reductions get new ranges.

    Equal extents are paired first, the rest at random; a range that is left over stands still at 0.
    """
    free = rng.sample(list(targets), len(targets))
    pairs: dict[UOp, UOp] = {}
    for axis in rng.sample(list(kept), len(kept)):
        equal = [t for t in free if t.src[0] is axis.src[0]]
        if equal or free:
            pairs[axis] = (equal or free)[0]
            free.remove(pairs[axis])
        else:
            pairs[axis] = number(0)
    fresh = _next_number(base)
    gate = given or {}
    for node in UOp.sink(*roots).toposort(gate=lambda n: n not in gate):
        if node.op is Ops.RANGE and node not in pairs:
            pairs[node] = UOp(Ops.RANGE, None, node.src, (fresh, *node.arg[1:]))
            fresh += 1
    return rewritten(roots, ranges=pairs, given=given, first_slot=_next_slot(base))


# ***** the steps *****


def resize(base: UOp, donor: UOp, rng: random.Random) -> UOp:
    """Other extents for some ranges, with buffers to fit."""
    axes = [n for n in base.toposort() if n.op is Ops.RANGE]
    chosen = [axis for axis in axes if rng.random() < 0.6]
    bound = {r for n in base.toposort() if n.op is Ops.INDEX and Affine.of(n.src[1]) is None for r in n.src[1].ranges}
    sizes = {a: [s for s in _sizes(a) if a not in bound or s < extent(a)] or [extent(a)] for a in chosen}
    return _resized(base, {axis: rng.choice(sizes[axis]) for axis in chosen})


def _sizes(axis: UOp) -> tuple[int, ...]:
    """Extents that a range may have: tinygrad leaves out reductions over one element, and refuses them later."""
    return SIZES[1:] if axis.arg[-1] is AxisType.REDUCE else SIZES


def _resized(base: UOp, extents: Mapping[UOp, int]) -> UOp:
    return rewritten([base], ranges={r: r.replace(src=(number(e),)) for r, e in extents.items()})[0]


def epilogue(base: UOp, donor: UOp, rng: random.Random) -> UOp:
    """What the donor does with one of its intermediate values, done with the base's result."""
    index, value, ranges = _first(base)
    _, top, kept = _first(donor)
    holes = [n for n in _computed_outside(top) if _is_float(n) and n is not top and n.op is not Ops.CONST]
    if not holes or not _is_float(value):
        raise Unfit
    hole = rng.choice(holes)
    (grown,) = _over([top], kept, base, ranges, rng, {hole: cast(value, hole.dtype)})
    return _with(base, index, grown, ranges)


def operand(base: UOp, donor: UOp, rng: random.Random) -> UOp:
    """The donor's result in place of something that the base loads; a donor with a reduction only outside of one."""
    index, value, ranges = _first(base)
    _, result, kept = _first(donor)
    reduces = any(n.op is Ops.REDUCE for n in result.toposort())
    nodes = _computed_outside(value) if reduces else list(value.toposort())
    loads = [n for n in nodes if n.op is Ops.INDEX and _is_float(n) and n is not index]
    if not loads or not (_is_float(result) or result.dtype is dtypes.bool):
        raise Unfit
    load = rng.choice(loads)
    targets = [r for r in load.ranges if not reduces or r in ranges]
    (grown,) = _over([result], kept, base, targets, rng)
    return _with(base, index, value.substitute({load: cast(grown, load.dtype)}), ranges)


def reduction(base: UOp, donor: UOp, rng: random.Random) -> UOp:
    """The other reduction: a maximum for a sum, a sum for a maximum."""
    other = {Ops.ADD: Ops.MAX, Ops.MAX: Ops.ADD}
    nodes = [n for n in base.toposort() if n.op is Ops.REDUCE and n.arg[0] in other and n.dtype is not dtypes.bool]
    if not nodes:
        raise Unfit
    node = rng.choice(nodes)
    return base.substitute({node: node.replace(arg=(other[node.arg[0]], *node.arg[1:]))})


def retype(base: UOp, donor: UOp, rng: random.Random) -> UOp:
    """Other float types for some buffers, with casts around their accesses."""
    buffers = [n for n in base.toposort() if n.op is Ops.PARAM and n.dtype in FLOATS]
    types = {b: rng.choice([t for t in FLOATS if t is not b.dtype]) for b in buffers if rng.random() < 0.6}
    return rewritten([base], types=types)[0]


def layout(base: UOp, donor: UOp, rng: random.Random) -> UOp:
    """One access transposed, with a gap in a stride, or shifted: nothing that a vector may rely on stays aligned."""
    accesses = [n for n in base.toposort() if n.op is Ops.INDEX and (a := Affine.of(n.src[1])) and a.nested]
    if not accesses:
        raise Unfit
    access = rng.choice(accesses)
    axes = list(access.src[1].ranges)
    rng.shuffle(axes)
    strides, reach = {}, 1
    for axis in axes:
        strides[axis] = reach
        reach = reach * extent(axis) + rng.choice((0, 0, 1, 3))
    return rewritten([base], layouts={access: Affine(strides, rng.choice((0, 0, 1, 2, 5)))})[0]


def padded(base: UOp, donor: UOp, rng: random.Random) -> UOp:
    """Something that the base loads, padded along one range: shifted, and outside of it not loaded at all."""
    index, value, ranges = _first(base)
    loads = [
        (n, axis)
        for n in value.toposort()
        if n.op is Ops.INDEX and _is_float(n) and n is not index and (a := Affine.of(n.src[1]))
        for axis, stride in a.strides.items()
        if extent(axis) > 2 and stride
    ]
    if not loads:
        raise Unfit
    load, axis = rng.choice(loads)
    affine = Affine.of(load.src[1])
    assert affine is not None
    low = rng.randint(0, extent(axis) // 2)
    high = rng.randint(low + 1, extent(axis))
    below = UOp(Ops.CMPLT, None, (axis, number(low)))
    inside = UOp(Ops.CMPNE, None, (below, UOp(Ops.CONST, dtypes.bool, (), True)))
    inside = UOp(Ops.AND, None, (inside, UOp(Ops.CMPLT, None, (axis, number(high)))))
    address = UOp(Ops.ADD, None, (load.src[1], number(-low * affine.strides[axis])))
    address = UOp(Ops.WHERE, None, (inside, address, UOp(Ops.CONST, dtypes.bool, (), Invalid)))
    fill = UOp(Ops.CONST, load.dtype, (), load.dtype.const(rng.choice((0.0, 1.5, -2.0))))
    gated = UOp(Ops.WHERE, None, (inside, UOp(Ops.INDEX, None, (load.src[0], address)), fill))
    return _with(base, index, value.substitute({load: gated}, walk=True), ranges)


def second_output(base: UOp, donor: UOp, rng: random.Random) -> UOp:
    """One of the base's intermediate values, stored too: dense, in another buffer."""
    index, value, ranges = _first(base)
    values = [n for n in _computed_outside(value) if _is_float(n) and n.op is not Ops.CONST]
    if not values or not ranges or any(n is index for n in value.toposort()):
        raise Unfit
    fresh = _next_number(base)
    own = {
        r: r.replace(arg=(fresh + i, *r.arg[1:])) for i, r in enumerate(n for n in base.toposort() if n.op is Ops.RANGE)
    }
    kept = rng.choice(values).substitute(own)
    strides, reach = {}, 1
    for axis in rng.sample(list(ranges), len(ranges)):
        strides[own[axis]] = reach
        reach *= extent(axis)
    buffer = UOp(Ops.PARAM, None, (number(reach),), ParamArg(_next_slot(base), kept.dtype))
    index = UOp(Ops.INDEX, None, (buffer, Affine(strides, 0).node()))
    return UOp(Ops.SINK, dtypes.void, (*base.src, _stored(index, kept, [own[r] for r in ranges])), base.arg)


def in_place(base: UOp, donor: UOp, rng: random.Random) -> UOp:
    """The result written over something that the base loads at the same place."""
    index, value, ranges = _first(base)
    loads = [n for n in _computed_outside(value) if n.op is Ops.INDEX and n.src[1] is index.src[1]]
    users = [n for n in base.toposort() if n.op is Ops.INDEX]
    loads = [n for n in loads if n.dtype is index.dtype and [u.src[0] for u in users].count(n.src[0]) == 1]
    if not loads or any(index.src[0] is u.src[0] for u in users if u is not index) or len(base.src) > 1:
        raise Unfit
    return _with(base, index, value.substitute({rng.choice(loads): index}), ranges)


STEPS: dict[str, Step] = {
    step.__name__: step
    for step in (resize, epilogue, operand, reduction, retype, layout, padded, second_output, in_place)
}
"""Every step by name."""


def _shrunk(ast: UOp, rng: random.Random, most_operations: float) -> UOp:
    """The AST with smaller extents, until it takes at most so many operations."""
    while arithmetic(ast) > most_operations:
        axes = [n for n in ast.toposort() if n.op is Ops.RANGE and extent(n) > _sizes(n)[0]]
        if not axes:
            raise Unfit
        axis = max(axes, key=extent)
        ast = _resized(
            ast, {axis: rng.choice([s for s in _sizes(axis) if extent(axis) // 4 <= s < extent(axis)] or [SIZES[-1]])}
        )
    return ast


def _tidy(ast: UOp) -> UOp:
    """Slots and ranges numbered without gaps, in their order, outputs first; conditions that always hold left out.

    The scheduler leaves them out too. What only they use is a buffer that the code does not take, and with one in the
    middle tinygrad 0.14.0 calls threaded kernels on CPU:X86 with the wrong arguments
    (tests/measure/test_known_wrong.py).
    """
    while settled := [n for n in ast.toposort() if n.op is Ops.WHERE and n.src[0].vmin == n.src[0].vmax]:
        node = settled[0]
        branch = node.src[1] if node.src[0].vmin else node.src[2]
        if branch.op is Ops.CONST and branch.arg is Invalid:
            raise Unfit  # a load that never happens
        ast = ast.substitute({node: cast(branch, node.dtype) if branch.dtype is not node.dtype else branch})
    if not is_part(ast):
        raise Unfit
    outputs = list(dict.fromkeys(index.src[0] for index, _, _ in _stores(ast)))
    inputs = sorted({n for n in ast.toposort() if n.op is Ops.PARAM} - set(outputs), key=lambda n: n.arg.slot)
    axes = sorted({n for n in ast.toposort() if n.op is Ops.RANGE}, key=lambda n: n.arg)
    new = {b: b.replace(arg=replace(b.arg, slot=i)) for i, b in enumerate([*outputs, *inputs])}
    new |= {r: r.replace(arg=(i, *r.arg[1:])) for i, r in enumerate(axes)}
    return normalise(ast.substitute(new, walk=True))
