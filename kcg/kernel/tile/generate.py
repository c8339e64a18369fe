"""A tile program from a kernel and parameters: the functions of its module, and how they are launched."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kcg.kernel.ast import extent, is_symbolic
from kcg.kernel.reading.contractions import Contraction, Operand
from kcg.kernel.reading.depth import depth_of
from kcg.kernel.reading.fuse import read_region
from kcg.kernel.reading.kernel import TileKernel
from kcg.kernel.reading.unsupported import UnsupportedTile
from kcg.kernel.tile.attention_sums import Partials, write_attention_sums
from kcg.kernel.tile.contraction import (
    MIN_BYTES_TILE,
    MIN_TILE,
    Finished,
    Loop,
    Product,
    Sums,
    Turns,
    are_one_loop,
    counts_of,
    describe_operand,
    fits_epilogue,
    in_parts,
    in_the_sum,
    read_before,
    read_for_each,
    stored_blocks,
    stored_width,
    sub_tiles_of,
    swizzled,
    terms_of_part,
    turned,
    write_contraction,
    write_step,
)
from kcg.kernel.tile.descriptors import Described, describe
from kcg.kernel.tile.device import device_of
from kcg.kernel.tile.emit import POINTERS, TYPES, Block, Frame, Lines, Writer, compute_type
from kcg.kernel.tile.epilogue import store_branch, store_tile
from kcg.kernel.tile.flash_attention import write_attention
from kcg.kernel.tile.gluon import in_gluon
from kcg.kernel.tile.parameters import (
    ATTENTION,
    CONTRACTION,
    CONTRACTIONS,
    ELEMENTWISE,
    FLASH_ATTENTION,
    IN_GLUON,
    PIPELINED,
    POINTER,
    REDUCTION,
    ROWS,
    SPECIALIZED,
    TMA,
    TileParameters,
)
from kcg.kernel.tile.pipelined import write_pipelined
from kcg.kernel.tile.program import WORKSPACE, Argument, TileLaunch, TileSource
from kcg.kernel.tile.reduction import Part, accumulator, combine, reducer
from kcg.kernel.tile.row_reduction import MAX_BLOCK, write_row_reduction
from kcg.kernel.tile.specialized import write_specialized
from kcg.kernel.tile.tiles import (
    Axis,
    axes_of,
    bind_axis,
    bind_scalar,
    flat_place,
    is_power_of_two,
    launched_with,
    open_frame,
    rest_of,
    split_number,
    start_of,
    tiles_of,
    variable_name,
)
from kcg.kernel.tile.vectors import alike, bind_products
from kcg.types import Region, Target

ENTRY = "tile_kernel"
SUM_TILE, SUM_WARPS = 1024, 4  # of the launch that adds partial sums
STREAM_K_ROWS = 16  # of a tile, that one program of it adds
_END_OF_TILE = 'tl.inline_asm_elementwise("", "=r,0", [{}], dtype=tl.int32, is_pure=False, pack=1)'
"""No instruction: Triton 3.6 takes what a branch at the end of a flattened loop reads for the loop's results."""


def generate(region: Region, target: Target, parameters: TileParameters, *, interpreted: bool = False) -> TileSource:
    """The tile program of a region. Raises UnsupportedTile, with the construct that is in the way."""
    return generate_kernel(read_region(region), target, parameters, interpreted=interpreted)


def generate_kernel(
    kernel: TileKernel, target: Target, parameters: TileParameters, *, interpreted: bool = False
) -> TileSource:
    """See `generate`; of a kernel that is read already."""
    _check(kernel, parameters)
    writes = {
        ELEMENTWISE: _write_rows, REDUCTION: _write_rows, CONTRACTION: _write_contractions, ROWS: _write_row_reduction,
        FLASH_ATTENTION: _write_attention, SPECIALIZED: write_specialized, PIPELINED: write_pipelined,
    }  # fmt: skip
    write = writes[parameters.form]
    evictions = dict.fromkeys(parameters.evict_first, "evict_first") | dict.fromkeys(
        parameters.evict_last, "evict_last"
    )
    ptx = device_of(target).ptx

    writer = Writer(
        kernel, interpreted=interpreted, fast_math=parameters.fast_math and ptx, evictions=evictions, ptx=ptx,
        form=parameters.form,
    )  # fmt: skip
    main, grid = write(kernel, target, parameters, writer)
    partials = _partials(kernel, target, parameters)
    arguments = _arguments(kernel, workspace=_workspace_type(kernel) if partials else "")
    descriptors = any("make_tensor_descriptor" in line for line in main.text)
    first = TileLaunch(
        ENTRY, arguments, grid, parameters.num_warps, parameters.num_stages, parameters.maxnreg, descriptors
    )
    launches, bodies = [first], [_function(ENTRY, arguments, main)]
    if partials:
        lines, sums = _write_second(kernel, target, parameters, writer)
        launches.append(TileLaunch(f"{ENTRY}_sum", arguments, sums, SUM_WARPS, 1))
        bodies.append(_function(f"{ENTRY}_sum", arguments, lines))
    text = _functions(writer, bodies)
    text = in_gluon(text) if parameters.form in IN_GLUON else f"import triton\nimport triton.language as tl\n{text}"
    itemsize = 8 if partials and "64" in _workspace_type(kernel) else 4
    return TileSource(text, tuple(launches), partials * itemsize)


def _check(kernel: TileKernel, parameters: TileParameters) -> None:
    """Refuses what no kernel of this kind has; what the target allows is the legal set's to say."""
    if parameters.form in CONTRACTIONS and kernel.contraction is None:
        raise UnsupportedTile("form", "the kernel is no product of two operands with rows and columns")
    if (parameters.form in ATTENTION) != (kernel.attention is not None):
        raise UnsupportedTile("form", f"{parameters.form} of {'an' if kernel.attention else 'no'} attention")
    if (parameters.form == ROWS) != (kernel.rows is not None):
        raise UnsupportedTile("form", f"{parameters.form} of {'' if kernel.rows else 'no '}kernels over the same rows")
    if (parameters.form == ELEMENTWISE) != (not kernel.reductions):
        raise UnsupportedTile("form", f"{parameters.form} with {len(kernel.reductions)} reductions")
    if kernel.reductions and not is_power_of_two(parameters.reduce_tile):
        raise UnsupportedTile("reduce_tile", "a power of two")
    if not is_power_of_two(parameters.num_warps) or parameters.num_stages < 1 or parameters.split < 1:
        raise UnsupportedTile("num_warps, num_stages or split")
    if parameters.split > 1 and (not may_split(kernel) or parameters.form in IN_GLUON):
        raise UnsupportedTile("split", "its reductions do not all give one value for each output from the same ranges")
    if parameters.tail > 1 and (
        parameters.form != CONTRACTION
        or parameters.split > 1
        or not (may_stream_k(kernel) or can_halve(kernel, parameters))
    ):
        raise UnsupportedTile("tail", "programs share the last tiles of one product, or two each halves of its columns")
    loads = parameters.loads != POINTER or parameters.warp_specialize
    if parameters.form not in (*CONTRACTIONS, *ATTENTION) and loads:
        raise UnsupportedTile("loads", "only products have descriptors")
    if parameters.form not in (*CONTRACTIONS, SPECIALIZED) and parameters.persistent:
        raise UnsupportedTile("persistent", "only products and specialised warps have persistent programs")
    if parameters.form not in CONTRACTIONS and parameters.epilogue_parts > 1:
        raise UnsupportedTile("epilogue_parts", "only products have parts")
    if parameters.form in CONTRACTIONS and not len(parameters.axes) == len(parameters.tile) == 2:
        raise UnsupportedTile("axes", "a product's tile has rows and columns")
    if kernel.grouped and kernel.contraction is None:
        if parameters.form != REDUCTION or parameters.axes != (tuple(range(len(kernel.outputs))),):
            raise UnsupportedTile("axes", "products of one launch have tiles of rows")
    elif kernel.grouped and (
        parameters.form not in CONTRACTIONS or parameters.read_early or parameters.warp_specialize
    ):
        raise UnsupportedTile("form", "products of one launch are not specialised, and read nothing early")
    if not fits_epilogue(kernel, parameters):
        raise UnsupportedTile("tile", "what is made of the result needs other columns in one block")
    if parameters.epilogue_parts not in (1, 2) or (parameters.epilogue_parts == 2 and parameters.tile[1] < 32):
        raise UnsupportedTile("epilogue_parts", "1, or 2 halves of at least 16 columns")
    if any(n >= len(kernel.loads) for n in (*parameters.evict_first, *parameters.evict_last)):
        raise UnsupportedTile("evict_first or evict_last", f"the kernel has {len(kernel.loads)} loads")
    if parameters.read_early and (
        parameters.form not in (CONTRACTION, ROWS) or parameters.split > 1 or parameters.tail > 1
    ):
        raise UnsupportedTile("read_early", "programs finish a product's tiles themselves, or hold rows")
    if parameters.warp_specialize and (parameters.loads != TMA or parameters.form != CONTRACTION):
        raise UnsupportedTile("warp_specialize", "only a product's loop, where its loads are TMA")
    if parameters.warp_specialize and parameters.persistent and parameters.tail > 1:
        raise UnsupportedTile("warp_specialize", "programs that have whole tiles and parts of others have no such loop")


def can_describe(kernel: TileKernel, parameters: TileParameters) -> bool:
    """Whether TMA can load an operand of a contraction in tiles of these parameters."""
    return all(_by_tma(*launched) for launched in launched_with(kernel, parameters))


def described_operands(kernel: TileKernel, parameters: TileParameters) -> tuple[Operand, ...]:
    """The operands of a contraction that TMA loads with these parameters."""
    return _by_tma(kernel, parameters) if parameters.loads == TMA else ()


def _by_tma(kernel: TileKernel, parameters: TileParameters) -> tuple[Operand, ...]:
    """The operands of a contraction that TMA can load in tiles of these parameters: none, maybe."""
    key = parameters.axes, parameters.tile, parameters.reduce_tile
    if key not in kernel.by_tma:  # a search asks some thousand times for each
        kernel.by_tma[key] = _described_operands(kernel, replace(parameters, loads=TMA))
    return kernel.by_tma[key]


def _described_operands(kernel: TileKernel, parameters: TileParameters) -> tuple[Operand, ...]:
    try:
        one, other = axes_of(kernel, parameters)
        top = open_frame(kernel, Writer(kernel), ())
        found = list[Operand]()
        for number, contraction in enumerate(turned(each, parameters) for each in kernel.together):
            describe_both = _described_or_none if number else _described
            rows, columns = describe_both(contraction, kernel, (one, other), top, parameters)
            by_tma = (rows is not None, any(sub_tile is not None for sub_tile in columns))
            found += [side for side, described in zip(contraction.sides, by_tma, strict=True) if described]
    except UnsupportedTile:
        return ()
    return tuple(found)


def may_split(kernel: TileKernel) -> bool:
    """Whether programs may share the kernel's reductions: all are of the same ranges, one value for each output; or the
    keys of an attention."""
    first = kernel.reductions[0] if kernel.reductions else None
    return kernel.attention is not None or (
        first is not None
        and kernel.rows is None
        and not kernel.also
        and not kernel.chained
        and not kernel.grouped
        and all(
            r.src[1:] == first.src[1:]
            and r.arg == first.arg
            and set(r.ranges) == set(kernel.outputs)
            and accumulator(r) == accumulator(first)
            and not any(other in r.src[0].backward_slice_with_self for other in kernel.reductions)
            for r in kernel.reductions
        )
        and not any(map(is_symbolic, (*kernel.outputs, *first.src[1:])))
    )


def partials_of(kernel: TileKernel) -> int:
    """How many values each part of a split reduction leaves for the second launch."""
    if kernel.attention is not None:
        return Partials.of(kernel).count
    return len(kernel.reductions) * math.prod(kernel.extents)


def may_stream_k(kernel: TileKernel) -> bool:
    """Whether programs may share the last tiles of a contraction, which have one sum each: also what several
    contractions come to together."""
    if kernel.chained:
        sums = [one.reduce for one in (*kernel.chained, *kernel.together)]
        alone = set(sums) == set(kernel.reductions) and not kernel.also and not kernel.sharing_operand
        return alone and not any(map(is_symbolic, (*kernel.outputs, *(r for one in sums for r in one.src[1:]))))
    return may_split(kernel) and not kernel.sharing_operand and kernel.attention is None


def can_halve(kernel: TileKernel, parameters: TileParameters) -> bool:
    """Whether two programs may share a last tile by its columns: of persistent programs, where they cannot share its
    sums, and where no half is outside the result or has less than what is made of it needs."""
    if may_stream_k(kernel) or not parameters.persistent or parameters.tail != 2:
        return False
    launched = launched_with(kernel, parameters)
    whole = all(axes_of(*one)[1].total % parameters.tile[1] == 0 for one in launched)
    return parameters.tile[1] >= 2 * MIN_TILE and whole and fits_epilogue(kernel, halved(parameters))


def has_several_products(kernel: TileKernel, parameters: TileParameters) -> bool:
    """Whether a program has more than one product on the tensor core: a `tl.dot` for each piece of its columns, each
    contraction, and halves of the last tiles; or one of them that is made of three, or goes through several sums."""
    if kernel.attention is not None:
        return True
    return parameters.form in CONTRACTIONS and (
        len(sub_tiles_of(parameters.tile[1])) > 1
        or bool(kernel.chained or kernel.sharing_operand or kernel.grouped)
        or parameters.precision == "tf32x3"
        or (parameters.tail > 1 and can_halve(kernel, parameters))
    )


def halved(parameters: TileParameters) -> TileParameters:
    """The parameters of tiles with half of the columns, whose blocks are finished as wide as before."""
    rows, columns = parameters.tile
    return replace(parameters, tile=(rows, columns // 2), epilogue_parts=1)


# ---- elementwise kernels and reductions over rows


def _write_rows(kernel: TileKernel, _target: Target, parameters: TileParameters, writer: Writer) -> tuple[Lines, int]:
    """Tiles of a kernel, or of each product of a launch: a branch by the program's number where these are no one
    text."""
    depth = depth_of(kernel.reductions)
    sizes = (*parameters.tile, *_reduce_tiles(kernel, parameters, depth))
    if math.prod(sizes) > MAX_BLOCK:
        raise UnsupportedTile("tile", f"a block has at most {MAX_BLOCK:,} elements")
    if not kernel.grouped:
        root = open_frame(kernel, writer, sizes)
        return root.lines, _write_tiles(kernel, parameters, root, root.lines.name("tl.program_id(0)", "program"))
    lines, groups, begin = Lines(writer), alike(kernel, parameters), 0
    number = lines.name("tl.program_id(0)", "program")
    for group in groups:
        (first, own), *_ = group
        frame = open_frame(first, writer, sizes, lines if len(groups) == 1 else Lines(writer, lines))
        inside = frame.lines.name(f"{number} - {begin}", "tile") if begin else number
        tiles = sum(math.prod(tiles_of(*one)) for one in group)
        _write_tiles(first, own, frame, bind_products(frame, group, inside))
        conditions = [f"({number} >= {begin})"] if begin else []
        conditions += [f"({number} < {begin + tiles})"] if group is not groups[-1] else []
        if conditions:
            lines.extend(f"if {' & '.join(conditions)}:", frame.lines)
        begin += tiles
    if begin >= 1 << 31:
        raise UnsupportedTile("grid", "2^31 programs or more")
    return lines, begin


def _write_tiles(kernel: TileKernel, parameters: TileParameters, root: Frame, number: str) -> int:
    """Writes what the program with a number does. Returns how many programs there are."""
    axes = axes_of(kernel, parameters)
    rest = rest_of(kernel, axes)
    counts = [parameters.split, *(extent(r) for r in rest), *(axis.tiles for axis in axes)]
    grid = math.prod(counts)
    if grid >= 1 << 31:
        raise UnsupportedTile("grid", "2^31 programs or more")
    digits = split_number(root, number, counts)
    for axis, digit in zip(rest, digits[1 : 1 + len(rest)], strict=True):
        bind_scalar(root, axis, digit)
    for place, (axis, digit) in enumerate(zip(axes, digits[1 + len(rest) :], strict=True)):
        bind_axis(root, axis, place, start_of(root, digit, axis))
    part = Part(digits[0], parameters.split)
    root.reduce = reducer(kernel, first_axis=len(axes), part=part, stages=parameters.num_stages)
    if parameters.split > 1:
        _store_partials(root, kernel, part)
    else:
        for stored in kernel.stored:
            store_tile(root, stored)
    return grid


def _write_row_reduction(
    kernel: TileKernel, target: Target, parameters: TileParameters, writer: Writer
) -> tuple[Lines, int]:
    threads = device_of(target).threads(parameters.num_warps)
    return write_row_reduction(kernel, parameters, writer, threads=threads)


def _write_attention(
    kernel: TileKernel, _target: Target, parameters: TileParameters, writer: Writer
) -> tuple[Lines, int]:
    return write_attention(kernel, parameters, writer)


def _reduce_tiles(kernel: TileKernel, parameters: TileParameters, depth: int) -> tuple[int, ...]:
    """The steps of reductions: the longest has that of the parameters, those inside or around it take one element."""
    if depth <= 1:
        return (parameters.reduce_tile,) * depth
    return (*(1,) * (depth - 1), parameters.reduce_tile)


# ---- contractions


def _write_contractions(
    kernel: TileKernel, target: Target, parameters: TileParameters, writer: Writer
) -> tuple[Lines, int]:
    """The tiles of a contraction, or of several: each program takes a branch by its number, or tiles of all in turn.

    The branches follow each other: of one inside another's `else` Triton adds up the shared memory.
    """
    top = open_frame(kernel, writer, ())
    if parameters.persistent:
        return top.lines, _write_turns(kernel, parameters, target, top)
    if not kernel.grouped:
        return top.lines, _write_contraction(kernel, target, parameters, top)
    number, begin = top.lines.name("tl.program_id(0)", "program"), 0
    for one, own in launched_with(kernel, parameters):
        inside = Frame(Lines(writer, top.lines), (), outer=top)
        tile = inside.lines.name(f"{number} - {begin}", "tile") if begin else number
        end = begin + _write_contraction(one, target, own, inside, number=tile)
        conditions = [f"({number} >= {begin})"] if begin else []
        conditions += [f"({number} < {end})"] if one is not kernel.launched[-1] else []
        top.lines.extend(f"if {' & '.join(conditions)}:", inside.lines)
        begin = end
    return top.lines, begin


def _write_turns(kernel: TileKernel, parameters: TileParameters, target: Target, top: Frame) -> int:
    """A loop over the tiles of each contraction, one loop after the other; then such loops over halves of the tiles
    left, where two programs share each of these. Returns how many programs there are."""
    launched = launched_with(kernel, parameters)
    tiles = [math.prod(counts_of(*one)) for one in launched]
    programs = min(sum(tiles), target.cores * parameters.persistent)
    halves = parameters.tail > 1 and not may_stream_k(kernel)
    whole = sum(tiles) // programs * programs if halves else sum(tiles)
    if halves and not 0 < 2 * (sum(tiles) - whole) <= programs:
        raise UnsupportedTile("tail", "there is no last wave that halves of its tiles fit into")
    before = left = 0
    later = list[tuple[TileKernel, TileParameters, Turns]]()
    for (one, own), count in zip(launched, tiles, strict=True):
        own_whole = max(0, min(count, whole - before))
        if own_whole:
            _write_contraction(one, target, own, top, turns=Turns(programs, before, 0, own_whole))
        if own_whole < count:
            turns = Turns(programs, 2 * left, own_whole, count - own_whole, halves=True)
            later.append((one, halved(own), turns))
        before, left = before + count, left + count - own_whole
    for one, own, turns in later:
        _write_contraction(one, target, own, top, turns=turns)
    return programs


def _write_contraction(
    kernel: TileKernel,
    target: Target,
    parameters: TileParameters,
    top: Frame,
    *,
    number: str = "",
    turns: Turns | None = None,
) -> int:
    """Writes what the program with a number does, by default that of the launch; with `turns` it is a loop over tiles.
    Returns how many programs there are."""
    writer, contraction = top.writer, kernel.contraction
    assert contraction is not None
    one, other = axes_of(kernel, parameters)
    axes = (one, other)
    contraction = turned(contraction, parameters)
    least = MIN_BYTES_TILE if contraction.sides[0].dtype.itemsize == 1 else MIN_TILE
    if min(parameters.tile) < MIN_TILE or parameters.reduce_tile < least:
        raise UnsupportedTile("tile", f"a tensor core takes at least {MIN_TILE} rows and columns and {least} terms")
    rest = rest_of(kernel, axes)
    rows, columns = (axis.tiles for axis in axes)
    counts = counts_of(kernel, parameters)
    if turns is not None and turns.halves:
        columns, counts[-1] = columns // 2, counts[-1] // 2
    tiles = grid = math.prod(counts)
    if tiles >= 1 << 31:
        raise UnsupportedTile("grid", "2^31 programs or more")
    before = [turned(other, parameters) for other in kernel.chained]
    described = _described(contraction, kernel, axes, top, parameters)
    others = [_described_or_none(other, kernel, axes, top, parameters) for other in before]
    chain = [Product(of, *by_tma) for of, by_tma in zip((*before, contraction), (*others, described), strict=True)]
    in_one_loop = are_one_loop(chain, parameters.reduce_tile) and not parameters.warp_specialize
    number = number or top.lines.name("tl.program_id(0)", "program")
    root = top
    tail = stream_k_of(kernel, target, parameters)
    if turns is not None and tail is not None and in_one_loop:
        _write_items(kernel, parameters, top, axes, chain, Items(tail, turns.programs, number))
        return turns.programs
    if tail is not None:
        tiles = grid = tail.whole + tail.left * tail.count
    if turns is not None:
        grid, program, number = turns.programs, number, writer.fresh("tile")
        root = Frame(Lines(writer, top.lines), (), outer=top)
        if tail is None:
            tiles = turns.tiles * (2 if turns.halves else 1)
    item, part, shared, unit, half = number, None, "", "", ""
    if turns is not None and turns.halves:
        half = root.lines.name(f"{item} % 2", "half")
        number = root.lines.name(f"{turns.begin} + {item} // 2", "tile")
    if tail is not None:
        shared = root.lines.name(f"{item} >= {tail.whole}", "shared")
        unit = root.lines.name(f"{item} - {tail.whole}", "unit")
        part = Part(root.lines.name(f"{unit} % {tail.count}", "part"), tail.count)
        number = root.lines.name(f"tl.where({shared}, {tail.whole} + {unit} // {tail.count}, {item})", "tile")
    digits = split_number(root, number, counts)
    for axis, digit in zip(rest, digits[1:-1], strict=True):
        bind_scalar(root, axis, digit)
    row, column = swizzled(root, digits[-1], rows, columns, parameters.group)
    if half:
        column = root.lines.name(f"{column} * 2 + {half}", "column")
    part = part or Part(digits[0], parameters.split)
    specialized = ", warp_specialize=True" if parameters.warp_specialize else ""
    options = specialized if turns is None else ""
    starts = (start_of(root, row, axes[0]), start_of(root, column, axes[1]))
    if parameters.read_early:
        read_before(root, axes, starts, parameters.epilogue_parts, [load.node for load in read_for_each(kernel, axes)])
    others_of = [turned(other, parameters) for other in kernel.sharing_operand]
    sharing = tuple(Product(other, *_described_or_none(other, kernel, axes, top, parameters)) for other in others_of)
    sums = None
    for *first, last in [chain] if in_one_loop else [[product] for product in chain]:
        loop = Loop(
            parameters.reduce_tile, parameters.precision, last.rows, last.columns, part=part, shared=shared,
            options=options, sharing_operand=sharing, chained=tuple(first),
        )  # fmt: skip
        sums = write_contraction(last.contraction, root, axes, starts, loop, to=sums)
    assert sums is not None
    lines = Lines(writer, root.lines) if tail is not None else root.lines
    blocks = stored_blocks((contraction, *others_of), root, lines, sums, parameters.epilogue_parts)
    _finish(kernel, parameters, axes, blocks, top, part)
    if tail is not None:
        root.lines.extend(f"if {unit} < 0:", lines)
        root.lines.extend("else:", _partial_tile(root, sums, unit, most=_partial_width(parameters)))
    if turns is not None:
        in_branches = flattens_branches(kernel, parameters)
        how = specialized or (", flatten=True" if in_branches or not (kernel.is_branching or tail) else "")
        if in_branches and not writer.interpreted:
            root.lines.add(_END_OF_TILE.format(item))
        begin = turns.first(top.lines, program)
        top.lines.extend(f"for {item} in tl.range({begin}, {tiles}, {grid}{how}):", root.lines)
    return grid


def _finish(
    kernel: TileKernel,
    parameters: TileParameters,
    axes: tuple[Axis, Axis],
    blocks: Sequence[Finished],
    top: Frame,
    part: Part,
) -> None:
    """Stores all that is made of a tile's sums; of a split reduction the sums of a part."""
    for together in [blocks] if _are_of_one_store(kernel, axes[1]) else [[block] for block in blocks]:
        for block in together:
            block.frame.bound |= in_the_sum(kernel)
        for block in together[1:]:
            for plain in kernel.plain:  # asked for before anything is stored
                block.frame.value(plain.value)
        for block in together:
            if parameters.split > 1:
                _store_partials(block.frame, kernel, part)
                continue
            for plain in kernel.plain:
                descriptor = None  # masks the tile only
                outer = block.frame.outer
                masked = outer is not None and outer.scalar_masks
                if stores_by_tma(kernel, parameters) and not plain.gates and not masked:
                    descriptor = describe(plain.store, (axes[0], block.columns), top)
                store_tile(block.frame, plain, descriptor, block.starts)
        for branch in kernel.epilogue:
            store_branch(together, kernel, branch)


def flattens_branches(kernel: TileKernel, parameters: TileParameters) -> bool:
    """Whether a persistent program's loops are one although its tiles end in branches."""
    by_tma = parameters.loads == TMA and not parameters.warp_specialize
    return bool(parameters.persistent) and kernel.is_branching and by_tma


def stores_by_tma(kernel: TileKernel, parameters: TileParameters) -> bool:
    """Whether a tile's plain result leaves by TMA where it can. Not where the ring is full while a tile is finished and
    moves of branches or of partial tiles need room beside it, which stores through pointers share."""
    of_parts = parameters.persistent and parameters.tail > 1 and may_stream_k(kernel)
    apart = flattens_branches(kernel, parameters) or of_parts
    return parameters.loads == TMA and not apart


def _are_of_one_store(kernel: TileKernel, columns: Axis) -> bool:
    """Whether what is made of pairs of a contraction's columns is made of whole tiles: a tile is of one store."""
    held = [one for branch in kernel.epilogue for one in (branch.use.first, branch.use.count)]
    return any(branch.pairs for branch in kernel.epilogue) and not any(count % columns.size for count in held)


# ---- the last wave's tiles, each shared by programs: partial tiles in the workspace, added in order


@dataclass(frozen=True)
class StreamK:
    """So many tiles are a program each; those left are shared by `count` programs each."""

    whole: int
    left: int
    count: int


def stream_k_of(kernel: TileKernel, target: Target, parameters: TileParameters) -> StreamK | None:
    """The tiles of a contraction's last wave, where programs share their reductions. Raises UnsupportedTile where there
    is no such wave."""
    if parameters.tail <= 1 or not may_stream_k(kernel):
        return None
    tiles = math.prod(counts_of(kernel, parameters))
    programs = max(1, target.cores) * max(1, parameters.persistent)
    whole = tiles // programs * programs
    if not whole or whole == tiles:
        raise UnsupportedTile("tail", "there is no last wave that is not full")
    if (tiles - whole) * parameters.tail * math.prod(parameters.tile) >= 1 << 31:
        raise UnsupportedTile("tail", "2^31 partial sums or more")
    return StreamK(whole, tiles - whole, parameters.tail)


@dataclass(frozen=True)
class Items:
    """What persistent programs take in turn where they share the last tiles: whole tiles, as many each, then parts."""

    tail: StreamK
    programs: int
    program: str  # the number of one


def _write_items(
    kernel: TileKernel,
    parameters: TileParameters,
    top: Frame,
    axes: tuple[Axis, Axis],
    chain: Sequence[Product],
    items: Items,
) -> None:
    """One loop over the terms of all items of a program, so that loads run ahead from one to the next: Triton flattens
    loops only where the inner one's bounds do not depend on the outer one. What `chain` is, see `are_one_loop`."""
    writer, lines, step, tail = top.writer, top.lines, parameters.reduce_tile, items.tail
    whole, of_part = (terms_of_part(kernel.terms, step, count) for count in (1, tail.count))
    parts = lines.name(
        f"({tail.left * tail.count + items.programs - 1} - {items.program}) // {items.programs}", "parts"
    )
    steps = lines.name(f"{tail.whole // items.programs * (whole // step)} + {parts} * {of_part // step}", "steps")
    item, unit, counter, last, begins = (writer.fresh(hint) for hint in ("item", "unit", "k", "last", "begins"))
    lines.add(f"{item} = {items.program} - {items.programs}")
    for name in (unit, counter, last):
        lines.add(f"{name} = 0")

    body = Lines(writer, lines)
    opening = Frame(Lines(writer, body), (), outer=top)
    opening.lines.add(f"{item} = {item} + {items.programs}")
    opening.lines.add(f"{unit} = {item} - {tail.whole}")
    shared = opening.lines.name(f"{unit} >= 0", "shared")
    opening.lines.add(f"{counter} = tl.where({shared}, {unit} % {tail.count} * {of_part}, 0)")
    opening.lines.add(f"{last} = {counter} + tl.where({shared}, {of_part - step}, {whole - step})")
    number = opening.lines.name(f"tl.where({shared}, {tail.whole} + {unit} // {tail.count}, {item})", "tile")
    digits = split_number(opening, number, counts_of(kernel, parameters)[1:])
    row, column = swizzled(opening, digits[-1], axes[0].tiles, axes[1].tiles, parameters.group)
    found = [start_of(opening, row, axes[0]), start_of(opening, column, axes[1]), *digits[:-1]]
    held = [text if text.isdigit() else writer.fresh("held") for text in found]
    for name, text in zip(held, found, strict=True):
        if not text.isdigit():
            lines.add(f"{name} = 0")
            opening.lines.add(f"{name} = {text}")

    body.add(f"{begins} = {counter} == {last}")
    body.add(f"{counter} = {counter} + {step}")
    body.extend(f"if {begins}:", opening.lines)
    inside, end = Frame(body, (), outer=top), Frame(Lines(writer, body), (), outer=top)
    for frame in (inside, end):
        for axis, digit in zip(rest_of(kernel, axes), held[2:], strict=True):
            bind_scalar(frame, axis, digit)
    *chained, product = chain
    loop = Loop(step, parameters.precision, product.rows, product.columns, chained=tuple(chained))
    sums = write_step(product.contraction, inside, axes, (held[0], held[1]), loop, body, counter=counter)
    finishing = Lines(writer, end.lines)
    blocks = stored_blocks((product.contraction,), end, finishing, sums, parameters.epilogue_parts)
    _finish(kernel, parameters, axes, blocks, top, Part("0", 1))
    end.lines.extend(f"if {unit} < 0:", finishing)
    end.lines.extend("else:", _partial_tile(end, sums, unit, most=_partial_width(parameters)))
    for zero in sums.zeros():
        lines.add(zero)
        end.lines.add(zero)
    body.extend(f"if {counter} == {last}:", end.lines)
    lines.extend(f"for {writer.fresh('step')} in range({steps}):", body)


def _partial_width(parameters: TileParameters) -> int:
    """The most columns of a partial tile that are stored at once: all, or so many that float32 sums take no more room
    beside a ring that is full than a result of 16 bits does."""
    columns = parameters.tile[1]
    return stored_width(columns, 2 * parameters.epilogue_parts) if parameters.persistent else columns


def _partial_tile(root: Frame, sums: Sums, unit: str, *, most: int) -> Lines:
    """Stores what a part of the reduction came to: the pieces of one tile side by side, each row by row."""
    lines = Lines(root.writer, root.lines)
    rows = sums.rows.size
    elements = rows * sum(sub_tile.size for sub_tile in sums.sub_tiles)
    before = 0
    for total, sub_tile in zip(sums.names, sums.sub_tiles, strict=True):
        for name, at, width in in_parts(root, lines, total, (rows, sub_tile.size), most):
            inside = f"tl.arange(0, {rows})[:, None] * {sub_tile.size} + tl.arange(0, {width})[None, :]"
            lines.add(f"tl.store(workspace + {unit} * {elements} + {before + at} + {inside}, {name})")
        before += rows * sub_tile.size
    return lines


def _write_stream_k(kernel: TileKernel, tail: StreamK, parameters: TileParameters, writer: Writer) -> tuple[Lines, int]:
    """The second launch: adds the parts of each tile in order, some rows a program, and finishes them."""
    contraction = kernel.contraction
    assert contraction is not None
    one, other = axes_of(kernel, parameters)
    top = open_frame(kernel, writer, ())
    rest = rest_of(kernel, (one, other))
    height = min(STREAM_K_ROWS, one.size)
    counts = counts_of(kernel, parameters)[1:]
    number, strip = split_number(top, top.lines.name("tl.program_id(0)", "program"), [tail.left, one.size // height])
    tile = top.lines.name(f"{tail.whole} + {number}", "tile")
    digits = split_number(top, tile, counts)
    for axis, digit in zip(rest, digits[:-1], strict=True):
        bind_scalar(top, axis, digit)
    row, column = swizzled(top, digits[-1], one.tiles, other.tiles, parameters.group)
    rows = replace(one, size=height)
    first = top.lines.name(f"{start_of(top, row, one)} + {strip} * {height}", "start")
    elements, type_ = math.prod(parameters.tile), _workspace_type(kernel)
    for at, width in sub_tiles_of(other.size):
        frame = Frame(top.lines, (height, width), outer=top)
        inside = top.lines.name(
            f"({strip} * {height} + tl.arange(0, {height}))[:, None] * {width} + tl.arange(0, {width})[None, :]", "i"
        )
        place = f"workspace + {number} * {elements * tail.count} + {at * one.size} + {inside}"
        total, counter, body = writer.fresh("acc"), writer.fresh("part"), Lines(writer, top.lines)
        top.lines.add(f"{total} = tl.load({place})")
        body.add(f"{total} = {total} + tl.load({place} + {counter} * {elements})")
        top.lines.extend(f"for {counter} in range(1, {tail.count}):", body)
        start = top.lines.name(f"{start_of(top, column, other)} + {at}", "start")
        bind_axis(frame, rows, 0, first, ragged=one.total % one.size != 0)
        bind_axis(frame, replace(other, size=width), 1, start, ragged=other.total % other.size != 0)
        bound = Block(total, type_, frozenset({0, 1}))
        frame.bound[contraction.reduce] = frame.cast(bound, compute_type(contraction.reduce))
        frame.bound |= in_the_sum(kernel)
        store_tile(frame, kernel.stored[0])
    return top.lines, tail.left * (one.size // height)


def _described_or_none(
    contraction: Contraction, kernel: TileKernel, axes: tuple[Axis, Axis], top: Frame, parameters: TileParameters
) -> tuple[Described | None, tuple[Described | None, ...]]:
    """As `_described`; of a contraction that is added to another one it may be that TMA can load none."""
    try:
        return _described(contraction, kernel, axes, top, parameters)
    except UnsupportedTile:
        return None, ()


def _described(
    contraction: Contraction, kernel: TileKernel, axes: tuple[Axis, Axis], top: Frame, parameters: TileParameters
) -> tuple[Described | None, tuple[Described | None, ...]]:
    """The first operand, and the pieces of the second, where TMA loads them. Raises UnsupportedTile where none can
    be."""
    if parameters.loads != TMA:
        return None, ()
    reduced = Axis(tuple(contraction.reduce.src[1:]), parameters.reduce_tile)
    sub_tiles = [replace(axes[1], size=width) for _, width in sub_tiles_of(axes[1].size)]
    first, second = contraction.sides
    rows = describe_operand(first, kernel, (axes[0], reduced), top)
    columns = tuple(describe_operand(second, kernel, (reduced, sub_tile), top) for sub_tile in sub_tiles)
    if rows is None and not any(columns):
        raise UnsupportedTile("loads", "no operand lies in memory as TMA takes it")
    return rows, columns


# ---- split reductions: partial results in the workspace, added in order by a second launch


def _store_partials(frame: Frame, kernel: TileKernel, part: Part) -> None:
    """Stores what this part of the reductions came to, where the second launch looks for it."""
    place = flat_place(frame, kernel.outputs)
    conditions = frame.mask_of(place.axes, kernel.outputs)
    count = math.prod(kernel.extents)
    mask = f", mask={frame.all_of(conditions)}" if conditions else ""
    for which, node in enumerate(kernel.reductions):
        value = frame.value(node)
        offset = frame.lines.name(f"{part.number} * {len(kernel.reductions) * count} + {which * count}", "offset")
        if part.count * len(kernel.reductions) * count >= 1 << 31:
            raise UnsupportedTile("split", "2^31 partial sums or more")
        text = frame.cast(value, accumulator(node)).text
        frame.lines.add(f"tl.store(workspace + {offset} + {place.text}, {text}{mask})")


def _write_sums(kernel: TileKernel, parameters: TileParameters, writer: Writer) -> tuple[Lines, int]:
    """The second launch: adds the parts in order, and computes what the kernel makes of the sums."""
    count = math.prod(kernel.extents)
    size = min(SUM_TILE, 1 << max(0, count - 1).bit_length())
    axis = Axis(kernel.outputs, size)
    frame = open_frame(kernel, writer, (size,))
    number = frame.lines.name("tl.program_id(0)", "program")
    vector = bind_axis(frame, axis, 0, start_of(frame, number if axis.tiles > 1 else "0", axis))
    mask = f", mask={frame.masks[0]}, other=0" if frame.masks else ""
    body = Lines(writer, frame.lines)
    counter = writer.fresh("part")
    totals = []
    for which, node in enumerate(kernel.reductions):
        total = writer.fresh("acc")
        place = f"workspace + {counter} * {len(kernel.reductions) * count} + {which * count} + {vector}"
        first = place.replace(f"{counter} * {len(kernel.reductions) * count} + ", "")
        frame.lines.add(f"{total} = tl.load({first}{mask})")
        term = body.name(f"tl.load({place}{mask})")
        body.add(f"{total} = {combine(node, total, term)}")
        totals.append(total)
    frame.lines.extend(f"for {counter} in range(1, {parameters.split}):", body)
    for node, total in zip(kernel.reductions, totals, strict=True):
        bound = Block(total, accumulator(node), frozenset({0}))
        frame.bound[node] = frame.cast(bound, compute_type(node))
    store_tile(frame, kernel.stored[0])
    return frame.lines, axis.tiles


def _partials(kernel: TileKernel, target: Target, parameters: TileParameters) -> int:
    """How many values programs that share something leave for the second launch; 0 where there is none."""
    if parameters.split > 1:
        return parameters.split * partials_of(kernel)
    tail = stream_k_of(kernel, target, parameters)
    return tail.left * tail.count * math.prod(parameters.tile) if tail is not None else 0


def _write_second(kernel: TileKernel, target: Target, parameters: TileParameters, writer: Writer) -> tuple[Lines, int]:
    """The launch that adds them; and how many programs it has."""
    if kernel.attention is not None:
        return write_attention_sums(kernel, parameters, writer)
    if (tail := stream_k_of(kernel, target, parameters)) is not None:
        return _write_stream_k(kernel, tail, parameters, writer)
    return _write_sums(kernel, parameters, writer)


def _workspace_type(kernel: TileKernel) -> str:
    if kernel.attention is not None:
        return "float32"
    return accumulator(kernel.reductions[0])


# ---- the module's text


def _arguments(kernel: TileKernel, *, workspace: str) -> tuple[Argument, ...]:
    found = [Argument(f"p{b.slot}", POINTERS[TYPES[b.dtype]], b.slot) for b in kernel.buffers]
    if workspace:
        found.append(Argument("workspace", POINTERS[workspace], WORKSPACE))
    found += [Argument(variable_name(v), "i32", None, v.arg.name) for v in kernel.variables]
    return tuple(found)


def _functions(writer: Writer, bodies: Sequence[str]) -> str:
    """Functions, behind the helpers that they call."""
    return "".join("\n" + helper for helper in writer.helpers.values()) + "".join("\n\n" + b for b in bodies)


def _function(name: str, arguments: tuple[Argument, ...], lines: Lines) -> str:
    head = f"@triton.jit\ndef {name}({', '.join(a.name for a in arguments)}):\n"
    return head + "".join(f"    {line}\n" for line in lines.text)
