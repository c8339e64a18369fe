"""Contractions on tensor cores: a loop over the reduced ranges, in each step one `tl.dot` of a block of either operand.

Three frames share the program's scalars: rows by reduced elements, reduced elements by columns, and rows by columns,
where everything else that the kernel computes of the result is written.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kcg.compat.tiny import UOp, dtypes
from kcg.kernel.tile.descriptors import Described
from kcg.kernel.tile.emit import NARROWEST, TYPES, Block, Frame, Lines, compute_type
from kcg.kernel.tile.ir import Contraction, Operand
from kcg.kernel.tile.reduction import Part, is_zero_outside
from kcg.kernel.tile.tiles import Axis, bind_axis, total_of

MIN_TILE = 16  # of tl.dot, along each of its axes
MIN_BYTES_TILE = 32  # of its reduced axis, where elements have 8 bits
PROMOTED = 128  # products of floats of 8 bits after which Hopper's sums, which keep 14 bits, are added in float32


@dataclass(frozen=True)
class Loop:
    """How the loop of a contraction is written."""

    step: int  # terms of one step
    precision: str
    parts: int = 1  # in which the result is finished and stored, side by side
    described: tuple[Described | None, Described | None] = (None, None)  # operands that TMA loads
    part: Part | None = None
    options: str = ""  # of the loop over terms


def write_contraction(
    contraction: Contraction, root: Frame, axes: tuple[Axis, Axis], starts: tuple[str, str], loop: Loop
) -> list[tuple[Frame, tuple[str, str]]]:
    """Writes the loop; returns the frames of rows by columns in which the sum is bound, one for each part of the
    tile, with the first row and column of each. `starts` are those of the tile."""
    lines, step, part = root.lines, loop.step, loop.part
    reduced = Axis(tuple(contraction.reduce.src[1:]), step)
    rows = Frame(lines, (axes[0].size, step), outer=root)
    columns = Frame(lines, (step, axes[1].size), outer=root)
    row = bind_axis(rows, axes[0], 0, starts[0])
    if loop.described[1] is None:
        bind_axis(columns, axes[1], 1, starts[1])

    accumulator = "int32" if contraction.sides[0].dtype is dtypes.int8 else "float32"
    total = root.writer.fresh("acc")
    body = Lines(root.writer, lines)
    counter = root.writer.fresh("k")
    vector = body.name(f"{counter} + tl.arange(0, {step})", "i") if None in loop.described else ""
    blocks = []
    for place, (side, frame, described) in enumerate(
        zip(contraction.sides, (rows, columns), loop.described, strict=True)
    ):
        inside = frame.inner(body)
        if described is not None:
            block = inside.new(
                described.load(inside, (starts[0], counter) if place == 0 else (counter, starts[1])),
                TYPES[side.dtype],
                frozenset({0, 1}),
            )
            blocks.append(inside.cast(block, _interpreted(block.type)) if inside.writer.interpreted else block)
            continue
        bind_axis(inside, reduced, 1 - place, counter, vector=vector)
        blocks.append(_operand(side, inside, 1 - place, frozenset(contraction.reduce.src[1:])))
    kind = ""
    if blocks[0].type == "float32":
        kind = f', input_precision="{loop.precision}"'
    elif blocks[0].type in NARROWEST:
        kind = f", max_num_imprecise_acc={min(step, PROMOTED)}"
    body.add(f"{total} = tl.dot({blocks[0].text}, {blocks[1].text}, {total}{kind}, out_dtype=tl.{accumulator})")
    lines.add(f"{total} = tl.zeros([{axes[0].size}, {axes[1].size}], tl.{accumulator})")
    end, _ = total_of(root, reduced.ranges)
    begin = "0"
    if part is not None and part.count > 1:
        chunk = -(-reduced.tiles // part.count) * step
        begin = lines.name(f"{part.number} * {chunk}", "begin")
        end = lines.name(f"tl.minimum({begin} + {chunk}, {end})", "end")
    how = "tl.range" if loop.options else "range"
    lines.extend(f"for {counter} in {how}({begin}, {end}, {step}{loop.options}):", body)

    width = axes[1].size // loop.parts
    totals = [total]
    if loop.parts == 2:
        totals = [root.writer.fresh("half") for _ in range(2)]
        lines.add(f"{', '.join(totals)} = {total}.reshape({axes[0].size}, 2, {width}).permute(0, 2, 1).split()")
    found = []
    for number, held in enumerate(totals):
        first = starts[1] if not number else lines.name(f"{starts[1]} + {number * width}", "start")
        result = Frame(lines, (axes[0].size, width), outer=root)
        bind_axis(result, axes[0], 0, starts[0], vector=row)
        bind_axis(result, replace(axes[1], size=width), 1, first, ragged=axes[1].total % axes[1].size != 0)
        bound = Block(held, accumulator, frozenset({0, 1}))
        result.bound[contraction.reduce] = result.cast(bound, compute_type(contraction.reduce))
        found.append((result, (starts[0], first)))
    return found


def _interpreted(type_: str) -> str:
    """The type in which Triton's interpreter multiplies right."""
    return "float32" if type_ in ("bfloat16", *NARROWEST) else type_


def _operand(side: Operand, inside: Frame, axis: int, reduced: frozenset[UOp]) -> Block:
    """One operand's block of one step, 0 where an element of the reduction does not exist."""
    values = [f.node for f in side.factors if not f.gate]
    gates = [f for f in side.factors if f.gate]
    type_ = TYPES[side.dtype]
    if inside.writer.interpreted:
        type_ = _interpreted(type_)
    product = inside.narrow(values[0], type_ if len(values) == 1 else "float32")
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
    if product.axes != frozenset({0, 1}):
        shape = inside.shape(frozenset({0, 1}))
        product = inside.new(f"tl.broadcast_to({inside.atom(product)}, {shape})", type_, frozenset({0, 1}))
    return product
