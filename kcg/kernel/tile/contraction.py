"""Contractions on tensor cores: a loop over the reduced ranges, in each step a `tl.dot` for each piece of the tile.

Three frames share the program's scalars: rows by reduced elements, reduced elements by columns, and rows by columns,
where everything else that the kernel computes of the result is written.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from kcg.compat.tiny import Ops, UOp, dtypes
from kcg.kernel.ast import extent, is_symbolic
from kcg.kernel.reading.accesses import Access
from kcg.kernel.reading.contractions import Contraction, Operand
from kcg.kernel.reading.factors import NARROW
from kcg.kernel.reading.kernel import TileKernel
from kcg.kernel.reading.packed import written_out
from kcg.kernel.reading.unsupported import UnsupportedTile
from kcg.kernel.tile.descriptors import Boxes, Described, boxes_of, describe
from kcg.kernel.tile.emit import FP8, TYPES, Block, Frame, Lines, compute_type
from kcg.kernel.tile.parameters import TF32X3, TileParameters
from kcg.kernel.tile.reduction import Part, is_zero_outside
from kcg.kernel.tile.tiles import (
    Axis,
    Tiled,
    axes_of,
    bind_axis,
    bind_within,
    count_of,
    is_power_of_two,
    split_number,
    total_of,
)
from kcg.kernel.tile.unpack import Words
from kcg.kernel.tile.views import MIN_TILE, MatmulView

FEW_ROWS = 8  # below, a tensor core's 16 rows are mostly padding: the product is summed without one
WGMMA_ROWS = 64  # of the result, which a group of four warps holds
PROMOTED = 128  # products of floats of 8 bits after which Hopper's sums, which keep 14 bits, are added in float32


@dataclass(frozen=True)
class Product:
    """A contraction with the operand first that a tile has the rows of, and how blocks lie in memory of the operands
    that TMA loads."""

    contraction: Contraction
    rows: Boxes | None = None  # of the first operand
    columns: tuple[Boxes | None, ...] = ()  # and of the pieces of the second

    @property
    def is_described(self) -> bool:
        """Whether TMA loads one of its operands."""
        return self.rows is not None or any(self.columns)

    @property
    def by_tma(self) -> tuple[Operand, ...]:
        """The operands that TMA loads."""
        held = (self.rows is not None, any(self.columns))
        return tuple(side for side, described in zip(self.contraction.sides, held, strict=True) if described)

    def described(self, top: Frame) -> DescribedProduct:
        """Writes the descriptors of its operands."""
        rows = describe(self.rows, top) if self.rows is not None else None
        columns = tuple(describe(one, top) if one is not None else None for one in self.columns)
        return DescribedProduct(self.contraction, rows, columns)


@dataclass(frozen=True)
class DescribedProduct:
    """A contraction, and by which descriptors TMA loads its operands."""

    contraction: Contraction
    rows: Described | None  # of the first operand
    columns: tuple[Described | None, ...]  # and of the pieces of the second


@dataclass(frozen=True)
class ProductLoop:
    """How the loop of a contraction is written."""

    step: int  # terms of one step
    precision: str
    product: DescribedProduct
    part: Part | None = None
    shared: str = ""  # the condition under which a program has only its part, where others have all
    options: str = ""  # of the loop over terms
    sharing_operand: tuple[DescribedProduct, ...] = ()  # others that it makes too; what they load alike is loaded once
    chained: tuple[DescribedProduct, ...] = ()  # others whose terms come first, on the same sums: see `are_one_loop`


@dataclass(frozen=True)
class Sums:
    """What the loop leaves: a sum for each piece of the tile."""

    names: tuple[str, ...]
    type: str
    rows: Axis
    sub_tiles: tuple[Axis, ...]
    row: str  # the first of the tile
    columns: tuple[str, ...]  # the first of each piece
    vector: str  # the rows' numbers, where the loop has them
    ragged: bool  # columns past the end are possible
    counter: str  # of terms
    sharing_operand: tuple[tuple[str, ...], ...] = ()  # of each other contraction that the loop makes as `names`

    def zeros(self) -> list[str]:
        """The statements that begin sums."""
        sizes = [sub_tile.size for sub_tile in self.sub_tiles]
        return [
            f"{name} = tl.zeros([{self.rows.size}, {size}], tl.{self.type})"
            for names in (self.names, *self.sharing_operand)
            for name, size in zip(names, sizes, strict=True)
        ]


@dataclass(frozen=True)
class Finished:
    """A block of the result that is finished and stored at once."""

    frame: Frame  # of rows by columns, in which the sum is bound
    starts: tuple[str, str]  # its first row and column
    columns: Axis


@lru_cache(256)
def sub_tiles_of(size: int) -> tuple[tuple[int, int], ...]:
    """The powers of two that a size along the columns is the sum of, widest first: where each begins, and its width.
    Each is a product of its own with the same rows."""
    widths = [1 << bit for bit in reversed(range(size.bit_length())) if size >> bit & 1]
    return tuple((sum(widths[:i]), width) for i, width in enumerate(widths))


def are_one_loop(products: Sequence[Product], step: int) -> bool:
    """Whether one loop can go through the terms of several products, one after the other: TMA loads all operands in
    equal blocks, so that a step chooses descriptors, and no step has terms of two."""
    blocks = {tuple(map(_block, (product.rows, *(product.columns or (None,))))) for product in products}
    before = [product.contraction for product in products[:-1]]
    apart = all(terms_of(one) % step == 0 and not any(map(is_symbolic, one.reduce.src[1:])) for one in before)
    return apart and len(blocks) == 1 and None not in next(iter(blocks))


def _block(boxes: Boxes | None) -> tuple[object, ...] | None:
    """What is alike of descriptors among which a step may choose."""
    return None if boxes is None else (tuple(r for r, _ in boxes.leading), boxes.transposed, boxes.sizes)


def terms_of(contraction: Contraction) -> int:
    """Products of each sum, at most."""
    return math.prod(map(extent, contraction.reduce.src[1:]))


def terms_of_part(terms: int, step: int, count: int) -> int:
    """Terms of all of `count` parts but the last, which may have fewer: whole steps."""
    return -(-terms // (step * count)) * step


def write_contraction(
    root: Frame, axes: tuple[Axis, Axis], starts: tuple[str, str], loop: ProductLoop, *, to: Sums | None = None
) -> Sums:
    """Writes the loop. `starts` are the tile's first row and column; `to` is what another loop left, to go on from."""
    lines, step, part = root.lines, loop.step, loop.part
    body, contraction = Lines(root.writer, lines), loop.product.contraction
    sums = write_step(root, axes, starts, loop, body, to=to)
    if to is None:
        for zero in sums.zeros():
            lines.add(zero)
    terms = sum(map(terms_of, (contraction, *(one.contraction for one in loop.chained))))
    end = str(terms) if loop.chained else total_of(root, contraction.reduce.src[1:])[0]
    begin = "0"
    if part is not None and part.count > 1:
        chunk = terms_of_part(terms, step, part.count)
        begin = lines.name(f"{part.number} * {chunk}", "begin")
        last = lines.name(f"tl.minimum({begin} + {chunk}, {end})", "end")
        if loop.shared:
            begin = lines.name(f"tl.where({loop.shared}, {begin}, 0)", "begin")
            last = lines.name(f"tl.where({loop.shared}, {last}, {end})", "end")
        end = last
    how = "tl.range" if loop.options else "range"
    about = f"the terms of the product, {step} at a time"
    lines.extend(f"for {sums.counter} in {how}({begin}, {end}, {step}{loop.options}):", body, about)
    return sums


def write_step(
    root: Frame,
    axes: tuple[Axis, Axis],
    starts: tuple[str, str],
    loop: ProductLoop,
    body: Lines,
    *,
    counter: str = "",
    to: Sums | None = None,
) -> Sums:
    """Writes one step, which adds products to sums, into the body of a loop that counts terms."""
    lines, step, contraction = root.lines, loop.step, loop.product.contraction
    reduced = Axis(tuple(contraction.reduce.src[1:]), step)
    sub_tiles = [replace(axes[1], size=width) for _, width in sub_tiles_of(axes[1].size)]
    firsts = [lines.name(f"{starts[1]} + {at}", "start") if at else starts[1] for at, _ in sub_tiles_of(axes[1].size)]
    ragged = axes[1].total % axes[1].size != 0
    products = (loop.product, *loop.sharing_operand)
    described = [(one.rows, *(one.columns or (None,) * len(sub_tiles))) for one in products]

    rows = Frame(lines, (axes[0].size, step), outer=root, words=("rows", "ks"))
    by_pointers = any(by_tma[0] is None for by_tma in described)
    row = bind_axis(rows, axes[0], 0, starts[0]) if by_pointers else ""
    columns = [Frame(lines, (step, sub_tile.size), outer=root, words=("ks", "cols")) for sub_tile in sub_tiles]
    for number, (frame, sub_tile, start) in enumerate(zip(columns, sub_tiles, firsts, strict=True)):
        if any(by_tma[1 + number] is None for by_tma in described):
            bind_axis(frame, sub_tile, 1, start, ragged=ragged)

    accumulator = "int32" if contraction.sides[0].dtype is dtypes.int8 else "float32"
    totals = [to.names] if to is not None else [tuple(root.writer.fresh("acc") for _ in sub_tiles) for _ in products]
    counter = first = counter or root.writer.fresh("k")
    if loop.chained:
        first, described[0] = _chosen(body, counter, (*loop.chained, products[0]))
    written = [unpacks(one.contraction) and terms_of(one.contraction) % step == 0 for one in products]
    plain = (of for of, apart in zip(described, written, strict=True) if not apart)
    vector = body.name(f"{first} + tl.arange(0, {step})", "ks") if any(None in of for of in plain) else ""
    for product, by_tmas, names, apart in zip(products, described, totals, written, strict=True):
        if apart:
            write_unpacked(product.contraction, (rows, *columns), first, loop, body, names)
            continue
        blocks = []
        for place, (frame, by_tma) in enumerate(zip((rows, *columns), by_tmas, strict=True)):
            side, inside = product.contraction.sides[place > 0], frame.inner(body)
            if by_tma is not None:
                corner = (starts[0], first) if place == 0 else (first, firsts[place - 1])
                blocks.append(described_block(side, inside, by_tma, corner))
                continue
            bind_axis(inside, reduced, 1 if place == 0 else 0, first, vector=vector)
            terms = frozenset(contraction.reduce.src[1:])
            rounded = is_rounded(product.contraction, place, loop)
            blocks.append(operand_block(side, inside, 1 if place == 0 else 0, terms, rounded=rounded))
        add_products(product.contraction, blocks, loop, body, names)
    own, *others = totals
    return Sums(
        own, accumulator, axes[0], tuple(sub_tiles), starts[0], tuple(firsts), row, ragged, counter, tuple(others)
    )


def _chosen(
    body: Lines, counter: str, products: Sequence[DescribedProduct]
) -> tuple[str, tuple[Described | None, ...]]:
    """The descriptors by which a step loads its operands, where it has terms of one of several products; and the number
    of its first term among those of that one."""
    ends = list(itertools.accumulate(terms_of(one.contraction) for one in products))[:-1]
    begin, *others = [(one.rows, *one.columns) for one in reversed(products)]
    names = [body.writer.fresh("chosen") for _ in begin]
    body.add(f"{', '.join(names)} = {', '.join(one.name for one in begin if one is not None)}")
    first = str(ends[-1])
    for end, start, described in zip(reversed(ends), [*reversed(ends[:-1]), 0], others, strict=True):
        chosen = Lines(body.writer, body)
        for name, one in zip(names, described, strict=True):
            assert one is not None
            chosen.add(f"{name} = {one.name}")
        body.extend(f"if {counter} < {end}:", chosen)
        first = f"tl.where({counter} < {end}, {start}, {first})"
    place = body.name(f"{counter} - {first}", "k")
    return place, tuple(one and replace(one, name=name) for one, name in zip(begin, names, strict=True))


def write_unpacked(
    contraction: Contraction, frames: Sequence[Frame], first: str, loop: ProductLoop, body: Lines, names: Sequence[str]
) -> None:
    """Writes one step of a product with packed weights: a product for each choice among the numbers that share bytes,
    of terms that lie beside each other. Which block of weights it is, and with which scale, is then a scalar."""
    factors = [[factor.node for factor in side.factors] for side in contraction.sides]
    operands, size = written_out(factors, tuple(contraction.reduce.src[1:]), loop.step, MIN_TILE)
    choices, axis = operands[0].written, Axis(operands[0].ranges, size)
    body.writer.exact_bytes = body.writer.ptx
    begin = body.name(f"{first} // {choices}", "start") if choices > 1 else first
    for at in range(0, loop.step // choices, size):
        start = body.name(f"{begin} + {at}", "start") if at else begin
        inside = [frame_of_terms(frame, body, axis, int(place > 0), start) for place, frame in enumerate(frames)]
        words = [Words(operands[place > 0], frame) for place, frame in enumerate(inside)]
        for choice in range(choices):
            blocks = [
                unpacked_block(
                    contraction.sides[place > 0], one, 1 - int(place > 0), choice,
                    rounded=is_rounded(contraction, place, loop),
                )
                for place, one in enumerate(words)
            ]  # fmt: skip
            add_products(contraction, blocks, loop, body, names)


def frame_of_terms(frame: Frame, body: Lines, axis: Axis, operand: int, start: str) -> Frame:
    """The frame of an operand's block of terms."""
    sizes = (axis.size, frame.sizes[1]) if operand else (frame.sizes[0], axis.size)
    inside = replace(frame.inner(body), sizes=sizes)
    bind_within(inside, axis, 1 - operand, start)
    return inside


def unpacked_block(side: Operand, words: Words, axis: int, choice: int, *, rounded: bool = False) -> Block:
    """The block of an operand at one of the choices, whose terms lie along an axis."""
    taken, frame = words.unpacked, words.frame
    nodes = taken.terms[choice].src
    for node, load in taken.loads.items():
        frame.writer.accesses.setdefault(node, load)
    for node in nodes if taken.bits else ():
        words.bind(node)
    side = replace(side, factors=tuple(replace(f, node=n) for f, n in zip(side.factors, nodes, strict=True)))
    return operand_block(side, frame, axis, frozenset(taken.ranges), rounded=rounded)


def add_products(
    contraction: Contraction, blocks: Sequence[Block], loop: ProductLoop, body: Lines, names: Sequence[str]
) -> None:
    """Writes the products of the first block with each other one, added to the sums with these names."""
    one, *others = blocks
    kind = ""
    if one.type == "float32" and loop.precision == TF32X3 and (exact := held_exactly(contraction)) is not None:
        split = [_in_two(block, body) for block in (others if exact == 0 else [one])]
        for place, (total, other) in enumerate(zip(names, others, strict=True)):
            for part in split[place if exact == 0 else 0]:
                first, second = (one.text, part) if exact == 0 else (part, other.text)
                body.add(f'{total} = tl.dot({first}, {second}, {total}, input_precision="tf32")')
        return
    if one.type == "float32":
        kind = body.writer.precision(loop.precision)
    elif one.type in FP8:
        kind = f", max_num_imprecise_acc={min(loop.step, PROMOTED)}"
    accumulator = "int32" if one.type == "int8" else "float32"
    for total, other in zip(names, others, strict=True):
        body.add(f"{total} = tl.dot({one.text}, {other.text}, {total}{kind}, out_dtype=tl.{accumulator})")


def is_rounded(contraction: Contraction, place: int, loop: ProductLoop) -> bool:
    """Whether an operand has to have values of 16 bits, as `add_products` relies on."""
    return loop.precision == TF32X3 and held_exactly(contraction) == int(place > 0)


def held_exactly(contraction: Contraction) -> int | None:
    """Which operand of a product of float32 has values of 16 bits, which tf32 holds: the product is then that of the
    other one's two halves with it, where others take three products."""
    for place, side in enumerate(contraction.sides):
        if side.dtype is dtypes.float32 and _is_narrow(side):
            return place
    return None


def _is_narrow(side: Operand) -> bool:
    values = [factor.node for factor in side.factors if not factor.gate]
    return len(values) == 1 and values[0].dtype in NARROW


def _in_two(block: Block, body: Lines) -> tuple[str, str]:
    """A block as the sum of what tf32 holds of it, its first 11 bits, and of the rest. Of an infinity there is none."""
    bits = body.name(f"{block.text}.to(tl.int32, bitcast=True) & -8192", "bits")
    high = body.name(f"{bits}.to(tl.float32, bitcast=True)", "high")
    rest = body.name(f"{block.text} - {high}", "rest")
    return high, body.name(f'tl.where(tl.abs({block.text}) == float("inf"), 0.0, {rest})', "low")


def unpacks(contraction: Contraction) -> bool:
    """Whether an operand is made of bytes."""
    if any(map(is_symbolic, contraction.reduce.src[1:])):
        return False
    nodes = (n for side in contraction.sides for factor in side.factors for n in factor.node.toposort())
    is_of_floats = dtypes.is_float(contraction.sides[0].dtype)
    return is_of_floats and any(n.op is Ops.INDEX and n.dtype in (dtypes.uint8, dtypes.int8) for n in nodes)


def read_before(root: Frame, axes: tuple[Axis, Axis], starts: tuple[str, str], parts: int, loads: list[UOp]) -> None:
    """Writes loads of the result's elements before the loop, so that they are on their way while it runs. The blocks
    are those in which the tile is stored."""
    most = stored_width(axes[1].size, parts)
    for at, width in sub_tiles_of(axes[1].size):
        size = min(width, most)
        for place in range(at, at + width, size):
            frame = Frame(root.lines, (axes[0].size, size), outer=root, words=("rows", "cols"))
            first = root.lines.name(f"{starts[1]} + {at}", "start") if at else starts[1]
            start = root.lines.name(f"{first} + {place - at}", "start") if place > at else first
            bind_axis(frame, axes[0], 0, starts[0])
            bind_axis(frame, replace(axes[1], size=size), 1, start, ragged=axes[1].total % axes[1].size != 0)
            for node in loads:
                frame.read(node)


def stored_blocks(
    contractions: tuple[Contraction, ...],
    root: Frame,
    lines: Lines,
    sums: Sums,
    parts: int,
    layout: Callable[[int], str] = lambda columns: "",
) -> list[Finished]:
    """The blocks in which a tile is finished and stored, written into `lines`; with two parts the widest piece is
    stored in halves. `contractions` are those that the loop made; `layout` is that of blocks of so many columns."""
    found, most = [], sums.sub_tiles[0].size // parts
    for number, (sub_tile, first) in enumerate(zip(sums.sub_tiles, sums.columns, strict=True)):
        size = (sums.rows.size, sub_tile.size)
        totals = [in_parts(root, lines, of[number], size, most) for of in (sums.names, *sums.sharing_operand)]
        for blocks in zip(*totals, strict=True):
            _, place, width = blocks[0]
            start = first if not place else lines.name(f"{first} + {place}", "start")
            frame = Frame(lines, (sums.rows.size, width), outer=root, layout=layout(width), words=("rows", "cols"))
            stored = Finished(frame, (sums.row, start), replace(sub_tile, size=width))
            bind_axis(frame, sums.rows, 0, sums.row, vector=sums.vector)
            bind_axis(frame, stored.columns, 1, start, ragged=sums.ragged)
            for one, (held, *_) in zip(contractions, blocks, strict=True):
                text = lines.name(frame.laid(held)) if layout(width) and width < sub_tile.size else held
                block = Block(text, sums.type, frozenset({0, 1}))
                frame.bound[one.reduce] = frame.cast(block, compute_type(one.reduce))
            found.append(stored)
    return found


def block_widths(size: int, parts: int) -> list[int]:
    """The columns of the blocks of `stored_blocks`, each once."""
    most, found = stored_width(size, parts), set[int]()
    for _, width in sub_tiles_of(size):
        while width > most:
            width //= 2
        found.add(width)
    return sorted(found)


def interpreted_type(type_: str) -> str:
    """The type in which Triton's interpreter multiplies right."""
    return "float32" if type_ in ("bfloat16", *FP8) else type_


def stored_width(size: int, parts: int) -> int:
    """The most columns that are stored at once."""
    return sub_tiles_of(size)[0][1] // parts


def in_parts(root: Frame, lines: Lines, total: str, sizes: tuple[int, int], most: int) -> list[tuple[str, int, int]]:
    """A sum in blocks of at most so many columns, halved as often as it takes: of each the variable, its first column,
    and how many there are."""
    rows, width = sizes
    if width <= most:
        return [(total, 0, width)]
    halves, half = [root.writer.fresh("half") for _ in range(2)], width // 2
    lines.add(f"{', '.join(halves)} = {total}.reshape({rows}, 2, {half}).permute(0, 2, 1).split()")
    return [
        (held, number * half + place, size)
        for number, name in enumerate(halves)
        for held, place, size in in_parts(root, lines, name, (rows, half), most)
    ]


def boxes_of_operand(side: Operand, kernel: TileKernel, axes: tuple[Axis, Axis]) -> Boxes | None:
    """How TMA can load an operand's blocks. None where it is not one load as it stands, or TMA cannot."""
    (factor, *others) = side.factors
    if others or factor.node.op is not Ops.INDEX or factor.node.dtype is not side.dtype:
        return None
    return boxes_of(next(load for load in kernel.loads if load.node is factor.node), axes)


def described_block(side: Operand, frame: Frame, described: Described, corner: tuple[str, str]) -> Block:
    """The block of an operand that TMA loads from a corner on, in the type that the tensor core takes."""
    block = frame.new(described.load(frame, corner), TYPES[side.dtype], frozenset({0, 1}))
    return frame.cast(block, interpreted_type(block.type)) if frame.writer.interpreted else block


def operand_block(side: Operand, inside: Frame, axis: int, reduced: frozenset[UOp], *, rounded: bool = False) -> Block:
    """One operand's block of one step, 0 where an element of the reduction does not exist. `rounded`: a value of 16
    bits is rounded to these, also where float32 is multiplied."""
    values = [f.node for f in side.factors if not f.gate]
    gates = [f for f in side.factors if f.gate]
    type_ = TYPES[side.dtype]
    if inside.writer.interpreted:
        type_ = interpreted_type(type_)
    first = type_ if len(values) == 1 else "float32"
    if rounded:  # as the kernel stores it: what follows relies on it
        first = TYPES[values[0].dtype]
    product = inside.narrow(values[0], first)
    for node in values[1:]:
        other = inside.narrow(node, "float32")
        product = inside.new(f"{product.text} * {other.text}", "float32", product.axes | other.axes)
    product = inside.cast(product, type_)
    conditions = []
    for gate in gates:
        block = inside.value(gate.node)
        conditions.append(inside.new(f"{block.text} == 0", "int1", block.axes) if gate.inverted else block)
    mask = inside.masks.get(axis)
    if mask is not None and not all(is_zero_outside(node, reduced) for node in values):
        conditions.append(Block(mask, "int1", frozenset({axis})))
    for condition in conditions:
        zero = "0" if type_ == "int8" else "0.0"
        text = f"tl.where({condition.text}, {inside.atom(product)}, tl.full([], {zero}, tl.{type_}))"
        product = inside.new(text, type_, product.axes | condition.axes)
    if inside.shape(product.axes) != (shape := inside.shape(frozenset({0, 1}))):
        product = inside.new(f"tl.broadcast_to({inside.atom(product)}, {shape})", type_, frozenset({0, 1}))
    return product


# ---- which tile a program has


@dataclass(frozen=True)
class Turns:
    """Persistent programs take tiles in turn, those of several contractions as of one list: tile t is that of program
    t % `programs`. So each has as many as any other, or one more."""

    programs: int
    before: int  # tiles of the list before those of this contraction
    begin: int  # the first of its tiles in the list
    tiles: int  # so many of them
    halves: bool = False  # as two each, with half of the columns

    def first(self, lines: Lines, program: str) -> str:
        """A program's first tile of this contraction, which may be past the last one."""
        ahead = -self.before % self.programs
        return lines.name(f"({program} + {ahead}) % {self.programs}", "first") if ahead else program


@dataclass(frozen=True, eq=False)
class TiledProduct(Tiled):
    """The tiles of one product of a launch, and what each is made of."""

    axes: tuple[Axis, Axis]
    view: MatmulView
    numbers: tuple[tuple[int, ...], ...]  # of the output ranges of each axis
    step: int  # terms
    tma: bool  # TMA loads what it can

    @staticmethod
    def of(view: MatmulView, p: TileParameters, step: int, tma: bool) -> TiledProduct:
        """Those of a product by itself, see `products_of`."""
        rows, columns = axes_of(view.kernel, p)
        turned(view.contraction, p.axes)
        return TiledProduct(view.kernel, (rows, columns), view, p.axes, step, tma)

    @cached_property
    def is_turned(self) -> bool:
        """Whether the tile has the second operand's ranges as rows."""
        return sorted(self.numbers[0]) != sorted(self.view.contraction.sides[0].ranges)

    @cached_property
    def is_in_order(self) -> bool:
        """Whether it has the operands' ranges as they are."""
        return self.numbers == tuple(side.ranges for side in self.view.contraction.sides)

    @cached_property
    def own(self) -> Product:
        """The contraction that is stored."""
        return self._product(self.view.contraction)

    @cached_property
    def sharing(self) -> tuple[Product, ...]:
        """Others with as many terms, each a sum of its own."""
        return tuple(map(self._product, self.kernel.sharing_operand))

    @cached_property
    def chain(self) -> tuple[Product, ...]:
        """What is added to the sum, along K, and the contraction itself last."""
        return (*map(self._product, self.kernel.chained), self.own)

    def _product(self, contraction: Contraction) -> Product:
        return _planned(self.view, turned(contraction, self.numbers), self.axes, self.step, self.tma)

    @property
    def by_tma(self) -> tuple[Operand, ...]:
        """The operands that TMA loads, of what is stored: none where it loads none of the first."""
        found = (self.own, *self.sharing) if self.own.is_described else ()
        return tuple(side for one in found for side in one.by_tma)

    @cached_property
    def in_one_loop(self) -> bool:
        """Whether one loop goes through the terms of all of these."""
        return are_one_loop(self.chain, self.step)

    @cached_property
    def sums(self) -> int:
        """Sums of a tile: one for each element and each contraction."""
        return self.axes[0].size * self.axes[1].size * len(self.kernel.together)

    @cached_property
    def read_for_each(self) -> tuple[Access, ...]:
        """What is read beside the sum for each element of the tile."""
        return read_for_each(self.kernel, [axis.ranges for axis in self.axes])

    @cached_property
    def halved(self) -> TiledProduct:
        """Tiles with half of the columns."""
        rows, columns = self.axes
        return replace(self, axes=(rows, replace(columns, size=columns.size // 2)))

    def fits_epilogue(self, parts: int) -> bool:
        """Whether the tile's columns, stored in so many parts, are what is made of the result needs: all that belongs
        together is in one block, and each block belongs to the same stores as a whole."""
        uses = self.kernel.epilogue_uses
        if not uses:
            return True
        columns = self.axes[1]
        width = columns.size // parts
        whole = all(use.first % width == 0 and use.count % width == 0 and width % use.unit == 0 for use in uses)
        total = count_of(self.kernel, self.view.contraction.sides[1].ranges)
        return self.is_in_order and is_power_of_two(columns.size) and whole and total % columns.size == 0


@lru_cache(4096)
def products_of(
    view: MatmulView, form: str, axes: tuple[tuple[int, ...], ...], tile: tuple[int, ...], step: int, tma: bool
) -> tuple[TiledProduct, ...]:
    """The products of a launch, each in a form's tiles along its own ranges; `tma`: TMA loads what it can. A search
    asks some thousand times for each. Raises UnsupportedTile where the tile's axes are not their rows and columns."""
    p = TileParameters(form, axes, tile)
    first, *others = view.launched
    found = [TiledProduct.of(first, p, step, tma)]
    for one in others:
        sides = one.contraction.sides[::-1] if found[0].is_turned else one.contraction.sides
        found.append(TiledProduct.of(one, p.changed(axes=tuple(side.ranges for side in sides)), step, tma))
    return tuple(found)


def _planned(view: MatmulView, contraction: Contraction, axes: tuple[Axis, Axis], step: int, tma: bool) -> Product:
    if not tma or unpacks(contraction):
        return Product(contraction)
    reduced = Axis(tuple(contraction.reduce.src[1:]), step)
    sub_tiles = [replace(axes[1], size=width) for _, width in sub_tiles_of(axes[1].size)]
    first, second = contraction.sides
    rows = boxes_of_operand(first, view.kernel, (axes[0], reduced))
    columns = tuple(boxes_of_operand(second, view.kernel, (reduced, sub_tile)) for sub_tile in sub_tiles)
    return Product(contraction, rows, columns) if rows is not None or any(columns) else Product(contraction)


def turned(contraction: Contraction, numbers: Sequence[Sequence[int]]) -> Contraction:
    """The contraction with the operand first that has the rows of a tile, whose axes hold these output ranges."""
    own = [sorted(n) for n in numbers]
    if own == [sorted(side.ranges) for side in contraction.sides]:
        return contraction
    if own == [sorted(side.ranges) for side in contraction.sides[::-1]]:
        return replace(contraction, sides=contraction.sides[::-1])
    raise UnsupportedTile("axes", "the rows and the columns of a product are its operands' own ranges")


def in_the_sum(kernel: TileKernel) -> dict[UOp, Block]:
    """What the contractions that are added to another one count once they are in its sum."""
    return {other.reduce: Block("0.0", "float32", constant=0.0) for other in kernel.chained}


def read_for_each(kernel: TileKernel, axes: Iterable[Sequence[UOp]]) -> tuple[Access, ...]:
    """What is read beside a contraction's sum for each element of a tile, whose axes have these ranges."""
    held = [set(ranges) for ranges in axes]
    inside = {node for one in kernel.one_hot_sums for node in one.reduce.backward_slice}
    loads = (x for x in kernel.epilogue_loads if x.node not in inside)
    return tuple(x for x in loads if all(not ranges.isdisjoint(x.node.ranges) for ranges in held))


def swizzled(frame: Frame, number: str, rows: int, columns: int, group: int) -> tuple[str, str]:
    """The tile's row and column: `group` rows of tiles are gone through together, column by column."""
    if rows == 1 or columns == 1 or group <= 1:
        row, column = split_number(frame, number, [rows, columns])
        return row, column
    group = min(group, rows)
    block = frame.lines.name(f"{number} // {group * columns}", "block")
    inside = frame.lines.name(f"{number} % {group * columns}", "inside")
    if rows % group == 0:
        height = str(group)
    else:
        height = frame.lines.name(f"tl.minimum({rows} - {block} * {group}, {group})", "height")
    row = frame.lines.name(f"{block} * {group} + {inside} % {height}", "row")
    return row, frame.lines.name(f"{inside} // {height}", "column")
