"""Tile programs of several kernels: what they compute, in Triton's interpreter, against the float64 reference."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tinygrad import Tensor

from kcg.kernel.reading.fuse import read_region
from kcg.kernel.reading.unsupported import UnsupportedTile
from kcg.kernel.tile.compile import compile_tile
from kcg.kernel.tile.cost import predicted_seconds
from kcg.kernel.tile.forms import plan_of
from kcg.kernel.tile.generate import generate, generate_kernel
from kcg.kernel.tile.legal import is_legal, legal_values
from kcg.kernel.tile.parameters import CONTRACTION, POINTER, ROWS, TMA, TileParameters
from kcg.kernel.tile.rows import row_axes
from kcg.kernel.tile.space import schedule_of
from kcg.kernel.tile.views import RowsView
from kcg.types import Region
from tests.chains import region_of
from tests.kernel.tile.running import HAS_TRITON, WITHOUT, Case, compare, wrong_of
from tests.kernels import empty
from tests.known_targets import KNOWN_TARGETS
from tests.slow import first

TARGET = KNOWN_TARGETS["sm_90"]
interpreted = pytest.mark.skipif(not HAS_TRITON, reason=WITHOUT)


def softmax(dtype: str) -> Tensor:
    return empty(6, 40, dtype=dtype).softmax(-1)


def masked_softmax(dtype: str) -> Tensor:
    x = empty(2, 5, 33, dtype=dtype)
    return (x * 0.125 + (empty(5, 33) < 0).where(-float("inf"), 0.0).cast(dtype)).softmax(-1)


def layer_norm(dtype: str) -> Tensor:
    x = empty(7, 48, dtype=dtype)
    return x.layernorm().cast(dtype) * (1 + empty(48, dtype=dtype)) + empty(48, dtype=dtype)


def rms_norm(dtype: str) -> Tensor:
    x = empty(5, 64, dtype=dtype)
    wide = x.float()
    return (wide * (wide.square().mean(-1, keepdim=True) + 1e-6).rsqrt()).cast(dtype) * empty(64, dtype=dtype)


def heads_and_rotation(dtype: str) -> Tensor:
    """A norm over parts of rows, and a rotation of pairs by tables, stored heads first."""
    x = empty(6, 4, 16, dtype=dtype).float()
    x = (x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()).cast(dtype) * empty(16, dtype=dtype)
    pairs = x.float().reshape(6, 4, 8, 2)
    cos, sin = empty(6, 1, 8), empty(6, 1, 8)
    first, second = pairs[..., 0], pairs[..., 1]
    turned = Tensor.stack(first * cos - second * sin, first * sin + second * cos, dim=-1)
    return turned.reshape(6, 4, 16).permute(1, 0, 2).cast(dtype).contiguous()


def cross_entropy(dtype: str) -> Tensor:
    logits, labels = empty(6, 50, dtype=dtype), empty(6, dtype="int32")
    return logits.float().sparse_categorical_crossentropy(labels, reduction="none")


def projection(
    dtype: str, *, heads: int = 4, size: int = 16, rows: int = 40, terms: int = 64, turned: int = 2
) -> tuple[Tensor, ...]:
    """Query, key and value: norms of heads and rotations of the first two, or of all, heads first; else as they are."""
    x, w = empty(rows, terms, dtype=dtype), empty(3 * heads * size, terms, dtype=dtype)
    bias = empty(3 * heads * size, dtype=dtype)
    made = (x @ w.transpose() + bias).cast(dtype).contiguous().reshape(rows, 3, heads, size)
    cos, sin = empty(rows, 1, size // 2), empty(rows, 1, size // 2)
    outputs = []
    for place in range(turned):
        part = made[:, place].float()
        part = part * (part.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * empty(size, dtype=dtype)
        pairs = part.reshape(rows, heads, size // 2, 2)
        one, other = pairs[..., 0], pairs[..., 1]
        both = Tensor.stack(one * cos - other * sin, one * sin + other * cos, dim=-1)
        outputs.append(both.reshape(rows, heads, size).permute(1, 0, 2).cast(dtype).contiguous())
    return (*outputs, *(made[:, place].permute(1, 0, 2).contiguous() for place in range(turned, 3)))


def flux_projection(
    dtype: str,
    *,
    heads: int = 4,
    size: int = 16,
    rows: int = 40,
    terms: int = 48,
    key_is_normed: bool = True,
    shifted: bool = False,
) -> tuple[Tensor, ...]:
    """As Flux has it: pairs are turned by a table for each pair and one for each column, the query is scaled, and the
    projection, in which the value is, is stored as well. With `shifted` a table is added before the norm divides."""
    x, w = empty(rows, terms, dtype=dtype), empty(3 * heads * size, terms, dtype=dtype)
    made = (x @ w.transpose() + empty(3 * heads * size, dtype=dtype)).cast(dtype).contiguous()
    cos, sin = empty(rows, 1, size // 2, 1), empty(rows, 1, size // 2, 2)
    outputs = []
    for place, factor in ((0, size**-0.5), (1, 1.0)):
        part = made.reshape(rows, 3, heads, size)[:, place].float()
        inverse = (part.square().mean(-1, keepdim=True) + 1e-6).rsqrt() if key_is_normed or place == 0 else 1.0
        pairs = (part * empty(size, dtype=dtype).float()).reshape(rows, heads, size // 2, 2)
        turned = pairs * cos + pairs.flip(-1) * sin + (sin if shifted else 0)
        turned = turned.reshape(rows, heads, size) * inverse * factor
        outputs.append(turned.permute(1, 0, 2).cast(dtype).contiguous())
    return (made, *outputs)


def activation_beside(dtype: str) -> tuple[Tensor, ...]:
    """A product, and a function of it: both are stored."""
    made = (empty(24, 32, dtype=dtype) @ empty(32, 64, dtype=dtype)).contiguous()
    return made, made.float().gelu().cast(dtype).contiguous()


def split_sum(dtype: str) -> tuple[Tensor, ...]:
    """The product of a concatenation, which is the sum of two: with what becomes of it."""
    x, y, w = empty(24, 32, dtype=dtype), empty(24, 48, dtype=dtype), empty(64, 80, dtype=dtype)
    part = (x @ w[:, :32].transpose()).contiguous()
    return ((empty(24, 64, dtype=dtype) + (y @ w[:, 32:].transpose() + part + empty(64, dtype=dtype)).gelu()),)


CHAINS: tuple[Callable[[str], Tensor], ...] = (
    softmax, masked_softmax, layer_norm, rms_norm, heads_and_rotation, cross_entropy,
)  # fmt: skip


def programs(region: Region) -> dict[str, TileParameters]:
    """Rows in one block, and in a loop."""
    kernel = read_region(region)
    assert kernel.rows is not None
    whole = 1 << (kernel.rows.width - 1).bit_length()
    axes = row_axes(RowsView.of(kernel))
    return {
        name: TileParameters(ROWS, axes, (height,), reduce_tile=step, num_warps=1, num_stages=1)
        for name, height, step in (("held", 2, whole), ("in a loop", 4, 16))
    }


@pytest.mark.slow
@interpreted
def test_rows_of_several_kernels(tmp_path: Path) -> None:
    cases = {}
    for chain in CHAINS:
        for dtype in ("float32", "float16", "bfloat16"):
            region = region_of(chain(dtype))
            for name, parameters in programs(region).items():
                program = generate(region, TARGET, parameters, interpreted=True)
                cases[f"{chain.__name__} {dtype} {name}"] = Case(region, program)
    assert not wrong_of(cases, tmp_path)


@interpreted
@pytest.mark.parametrize("changes", first(1, [{}, {"persistent": 1}, {"epilogue_parts": 2}]), ids=str)
@pytest.mark.parametrize("dtypes", first(1, [("bfloat16",), ("float32", "float16")]), ids=" ".join)
def test_what_is_made_of_a_contraction(changes: dict[str, int], dtypes: tuple[str, ...], tmp_path: Path) -> None:
    cases = {}
    for chain in (projection, activation_beside, split_sum):
        for dtype in dtypes:
            region = region_of(*chain(dtype))
            kernel = read_region(region)
            assert bool(kernel.also) != bool(kernel.chained) and kernel.hidden == (chain is projection)
            parameters = TileParameters(CONTRACTION, ((0,), (1,)), (16, 32), reduce_tile=16, num_stages=2)
            program = generate(region, replace(TARGET, cores=3), replace(parameters, **changes), interpreted=True)
            assert len(program.launches) == 1
            cases[f"{chain.__name__} {dtype}"] = Case(region, program)
    assert not wrong_of(cases, tmp_path)


@pytest.mark.slow
@interpreted
def test_a_sum_of_contractions_shares_the_tiles_of_its_last_wave(tmp_path: Path) -> None:
    """Three multiprocessors and four tiles: of the last one each program takes a part of both loops."""
    cases = {}
    for dtype in ("float32", "bfloat16"):
        region = region_of(*split_sum(dtype))
        kernel, target = read_region(region), replace(TARGET, cores=3)
        p = TileParameters(CONTRACTION, ((0,), (1,)), (16, 32), reduce_tile=16, num_stages=2)
        for tail in (2, 3):
            program = generate(region, target, replace(p, tail=tail), interpreted=True)
            assert len(program.launches) == 2 and program.launches[0].grid == 3 + tail
            cases[f"{dtype} {tail}"] = Case(region, program)
            for loads, parts in ((POINTER, 1), (TMA, 1), (TMA, 2)):
                turns = replace(p, tail=tail, persistent=1, loads=loads, epilogue_parts=parts)
                program = generate(region, target, turns, interpreted=True)
                assert len(program.launches) == 2 and program.launches[0].grid == 3
                assert ("begins" in program.source) == (loads == TMA), "one loop over all that a program has"
                cases[f"{dtype} {tail} {loads} {parts}"] = Case(region, program)
    assert legal_values(kernel, replace(target, cores=2), replace(p, tile=(16, 64)), "tail") == (1,), "it is full"
    assert not wrong_of(cases, tmp_path)


def sum_of_products(parts: int, dtype: str) -> Tensor:
    """Of 32, 48, 64 terms."""
    rows = [(empty(24, 32 + 16 * n, dtype=dtype), empty(64, 32 + 16 * n, dtype=dtype)) for n in range(parts)]
    *before, last = [x @ w.transpose() for x, w in rows]
    for product in before:
        last = last + product.contiguous()
    return last + empty(64, dtype=dtype)


@interpreted
def test_sums_of_contractions_by_tma_are_one_loop(tmp_path: Path) -> None:
    """A step chooses whose terms it has; not where one would have terms of two, as 64 of which 32 are the first's."""
    cases = {}
    for parts in (2, 3):
        region = region_of(sum_of_products(parts, "float16"))
        for step, persistent, tail in ((16, 0, 1), (16, 1, 1), (16, 1, 2), (64, 0, 1), (64, 1, 2)):
            p = TileParameters(CONTRACTION, ((0,), (1,)), (16, 32), step, persistent=persistent, tail=tail, loads=TMA)
            program = generate(region, replace(TARGET, cores=3), p, interpreted=True)
            assert program.source.count("tl.dot(") == (1 if step == 16 else parts)
            cases[f"{parts} {step} {persistent} {tail}"] = Case(region, program)
    assert not wrong_of(cases, tmp_path)


def joined(dtype: str, rows: int, columns: int, terms: tuple[int, int]) -> tuple[Tensor, ...]:
    """As Flux has it: the product of a concatenation, a gate for each column, a residual."""
    x, y, w = (
        empty(rows, terms[0], dtype=dtype),
        empty(rows, terms[1], dtype=dtype),
        empty(columns, sum(terms), dtype=dtype),
    )
    part = (x @ w[:, : terms[0]].transpose()).contiguous()
    made = y @ w[:, terms[0] :].transpose() + part + empty(columns, dtype=dtype)
    return (empty(rows, columns, dtype=dtype) + empty(columns, dtype=dtype) * made,)


@pytest.mark.slow
@interpreted
@pytest.mark.parametrize("stages", [4, pytest.param(3, marks=pytest.mark.slow)])
def test_programs_that_share_the_last_wave_load_ahead_from_tile_to_part(
    stages: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """432 tiles of Flux's widest tile: three for each of 132 programs, and a third of one of 36. The ring has its room
    beside what leaves, so it runs on while a tile is finished; nothing is spilled."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    region, target = region_of(*joined("bfloat16", 4608, 3072, (3072, 12288))), replace(TARGET, cores=132)
    p = TileParameters(
        CONTRACTION, ((0,), (1,)), (128, 256), 64, group=8, loads=TMA, persistent=1, tail=3, epilogue_parts=2,
        num_warps=8, num_stages=stages,
    )  # fmt: skip
    kernel = read_region(region)
    assert is_legal(kernel, target, p)
    first, second = compile_tile(region, schedule_of(p), target).launches
    report = dict(first.compiled.report)
    assert report["wgmma"] and not report["spilled_bytes"] and report["registers"] < 256, report
    assert stages * 384 * 64 * 2 + 128 * 128 * 2 <= report["shared_bytes"] <= plan_of(kernel, TARGET, p).shared_bytes
    assert not dict(second.compiled.report)["spilled_bytes"]
    whole, own, turns = (
        predicted_seconds(kernel, target, replace(p, **c)) for c in ({"tail": 1}, {"persistent": 0}, {})
    )
    assert turns < own < whole


def test_programs_with_turns_share_the_last_wave_where_there_is_one() -> None:
    """48 tiles of a product; of as many programs for each multiprocessor as they are persistent."""
    kernel = read_region(region_of(empty(96, 256) @ empty(256, 128)))
    p = TileParameters(CONTRACTION, ((0,), (1,)), (16, 16), 16, persistent=1, loads=TMA)
    for cores, persistent, candidates in ((5, 1, (1, 2, 3)), (5, 2, (1, 2)), (8, 1, (1,)), (11, 2, (1, 2, 3, 4, 6, 8))):
        found = legal_values(kernel, replace(TARGET, cores=cores), replace(p, persistent=persistent), "tail")
        assert found == candidates, (cores, persistent)
    assert legal_values(kernel, replace(TARGET, cores=5), replace(p, loads=POINTER), "tail") == (1,)
    with pytest.raises(UnsupportedTile, match="whole tiles and parts"):
        generate_kernel(kernel, replace(TARGET, cores=5), replace(p, tail=2, warp_specialize=True))


@interpreted
def test_loops_over_rows_that_begin_anywhere_read_whole_blocks(tmp_path: Path) -> None:
    """Rows of 61 elements: loops read 16 bytes at a time; where a block holds a row, it is loaded once, as it lies."""
    cases = {}
    for dtype, unit in (("bfloat16", 8), ("float16", 8), ("float32", 4)):
        x, labels = empty(6, 61, dtype=dtype), empty(6, dtype="int32")
        chains = {
            "softmax": x.softmax(-1),
            "norm": x.layernorm().cast(dtype) * empty(61, dtype=dtype),
            "cross-entropy": x.float().sparse_categorical_crossentropy(labels, reduction="none"),
        }
        for name, tensor in chains.items():
            region = region_of(tensor)
            for how, parameters in programs(region).items():
                program = generate(region, TARGET, parameters, interpreted=True)
                assert (f"// {unit} * {unit}" in program.source) == (how == "in a loop"), (name, how)
                cases[f"{name} {dtype} {how}"] = Case(region, program)
    assert not wrong_of(cases, tmp_path)


def rows_from(first: int, width: int, dtype: str) -> Tensor:
    """Rows of a buffer that has some elements before them, and none after."""
    return empty(first + 5 * width, dtype=dtype)[first:].reshape(5, width)


@interpreted
@pytest.mark.parametrize(
    "dtype", ["bfloat16", *(pytest.param(name, marks=pytest.mark.slow) for name in ("float16", "float32"))]
)
def test_steps_within_a_row_have_no_masks(dtype: str, tmp_path: Path) -> None:
    """Rows of any length from anywhere in a buffer, first and last ones included; steps of several sizes; rows that
    belong to no program's tile."""
    cases = {}
    for begin, width in ((0, 2), (0, 5), (3, 17), (0, 33), (5, 61), (8, 64), (1, 100), (7, 203)):
        x, labels = rows_from(begin, width, dtype), empty(5, dtype="int32")
        loss = region_of(x.float().sparse_categorical_crossentropy(labels, reduction="none"))
        kernel = read_region(loss)
        for height, step, warps in ((1, 16, 1), (2, 32, 1), (4, 64, 2), (1, 128, 4)):
            p = TileParameters(
                ROWS, row_axes(RowsView.of(kernel)), (height,), reduce_tile=step, num_warps=warps, num_stages=1
            )
            program = generate(loss, TARGET, p, interpreted=True)
            if width == 203 and step < 128:
                loops = re.findall(r"range\(\d+, \d+, \d+\):\n((?: {8}.*\n)+)", program.source)
                assert [f"< {width}" in body for body in loops] == [True, False, True], program.source
            cases[f"{width} from {begin} by {height}x{step}"] = Case(loss, program)
    assert not wrong_of(cases, tmp_path)


SHAPES: dict[str, tuple[str, dict[str, int]]] = {
    "heads of 16": ("float32", {}),
    "heads of 32, 17 rows": ("bfloat16", {"size": 32, "heads": 2, "rows": 17}),
    "heads of 64, 33 rows": ("bfloat16", {"size": 64, "heads": 2, "rows": 33}),
}


@pytest.mark.slow
@interpreted
def test_query_and_key_are_one_branch_that_works_on_halves(tmp_path: Path) -> None:
    """With a head in a block, two heads, or two of which each is finished alone; rows are no multiple of the tile's."""
    cases = {}
    for name, (dtype, shape) in SHAPES.items():
        size = shape.get("size", 16)
        for chain in (projection, flux_projection):
            region = region_of(*chain(dtype, **shape))
            branches = read_region(region).epilogue
            assert [branch.count for branch in branches if branch.pairs is not None] == [2]
            for columns, parts in ((size, 1), (2 * size, 1), (2 * size, 2)):
                p = TileParameters(CONTRACTION, ((0,), (1,)), (16, columns), 16, epilogue_parts=parts)
                if columns < 32 * parts:
                    continue
                program = generate(region, TARGET, p, interpreted=True)
                assert program.source.count("tl.join(") == parts**2, "halves of one store are stored in parts"
                cases[f"{name} {chain.__name__} {columns} in {parts}"] = Case(region, program)
    assert not wrong_of(cases, tmp_path)


@interpreted
def test_what_divides_a_head_is_multiplied_with_the_result_where_that_is_the_same(tmp_path: Path) -> None:
    """Not where something else is added to what is made of the result; not where a block has several heads."""
    cases = {}
    for shifted in (False, True):
        region = region_of(*flux_projection("float32", size=32, heads=2, shifted=shifted))
        (branch,) = read_region(region).epilogue
        assert branch.pairs is not None and (branch.pairs.scaled is None) == shifted
        for columns in (32, 64):
            p = TileParameters(CONTRACTION, ((0,), (1,)), (16, columns), 16)
            program = generate(region, TARGET, p, interpreted=True)
            cases[f"{shifted} {columns}"] = Case(region, program)
    assert not wrong_of(cases, tmp_path)


@pytest.mark.slow
@interpreted
def test_persistent_programs_finish_several_tiles_in_branches(tmp_path: Path) -> None:
    """By TMA and through pointers; of each program some tiles are of the query or the key, others of neither."""
    cases = {}
    for dtype in ("bfloat16", "float32"):
        region = region_of(*flux_projection(dtype, size=16, heads=4, rows=48, terms=64))
        for loads in (TMA, POINTER):
            for parts in (1, 2):
                p = TileParameters(CONTRACTION, ((0,), (1,)), (16, 32), 16, loads=loads, persistent=1, num_stages=2)
                p = replace(p, epilogue_parts=parts)
                program = generate(region, replace(TARGET, cores=4), p, interpreted=True)
                assert program.launches[0].grid == 4 and ("flatten=True" in program.source) == (loads == TMA)
                cases[f"{dtype} {loads} {parts}"] = Case(region, program)
    assert not wrong_of(cases, tmp_path)


@pytest.mark.slow
@interpreted
@pytest.mark.parametrize("stages", [4, pytest.param(3, marks=pytest.mark.slow)])
def test_the_projection_of_flux_fits(stages: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A persistent program on the widest tile, loads of the next tile beside the epilogue: nothing is spilled."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    region = region_of(*flux_projection("bfloat16", heads=24, size=128, rows=4608, terms=3072))
    p = TileParameters(
        CONTRACTION, ((0,), (1,)), (128, 256), 64, group=12, loads=TMA, persistent=1, epilogue_parts=2, num_warps=8,
        num_stages=stages,
    )  # fmt: skip
    kernel = read_region(region)
    assert is_legal(kernel, TARGET, p)
    (launch,) = compile_tile(region, schedule_of(p), TARGET).launches
    report = dict(launch.compiled.report)
    assert report["wgmma"] and not report["spilled_bytes"], report
    assert (
        0.9 * plan_of(kernel, TARGET, p).shared_bytes
        <= report["shared_bytes"]
        <= plan_of(kernel, TARGET, p).shared_bytes
    )


@interpreted
def test_three_stores_may_be_one_branch(tmp_path: Path) -> None:
    region = region_of(*projection("float32", heads=2, turned=3))
    kernel = read_region(region)
    assert [branch.count for branch in kernel.epilogue] == [3] and not kernel.is_branching
    p = TileParameters(CONTRACTION, ((0,), (1,)), (16, 32), 16)
    assert compare([Case(region, generate(region, TARGET, p, interpreted=True))], tmp_path) == [""]


def scaled_parts(count: int, factors: int, *, size: int = 32) -> tuple[Tensor, ...]:
    """Parts of a product's columns, each times some vectors of its own."""
    made = (empty(40, 64) @ empty(count * size, 64).transpose()).contiguous().reshape(40, count, size)
    outputs = []
    for place in range(count):
        part = made[:, place]
        for _ in range(factors):
            part = part * empty(size)
        outputs.append(part.contiguous())
    return tuple(outputs)


@interpreted
def test_a_pointer_that_is_chosen_has_no_buffers_name(tmp_path: Path) -> None:
    """Of 37 buffers, so many that names with a running number reach those with a buffer's."""
    region = region_of(*scaled_parts(7, 4))
    kernel = read_region(region)
    assert [branch.count for branch in kernel.epilogue] == [7] and len(kernel.buffers) == 37
    program = generate(region, TARGET, TileParameters(CONTRACTION, ((0,), (1,)), (16, 32), 16), interpreted=True)
    assert compare([Case(region, program)], tmp_path) == [""]


@interpreted
def test_stores_that_differ_in_more_than_buffers_and_constants_are_branches_of_their_own(tmp_path: Path) -> None:
    region = region_of(*flux_projection("float32", key_is_normed=False))
    kernel = read_region(region)
    assert [(branch.count, branch.pairs is not None) for branch in kernel.epilogue] == [(1, True), (1, True)]
    p = TileParameters(CONTRACTION, ((0,), (1,)), (16, 32), 16)
    assert compare([Case(region, generate(region, TARGET, p, interpreted=True))], tmp_path) == [""]


@pytest.mark.parametrize(("columns", "parts"), [(64, 1), (128, 2)])
def test_each_table_of_a_rotation_is_read_once(columns: int, parts: int) -> None:
    """A block of columns where it has a value for each column, a block of pairs where it has one for each pair: also
    for two heads of a tile, which are finished one after the other."""
    region = region_of(*flux_projection("bfloat16", size=64, heads=2))
    kernel = read_region(region)
    (branch,) = kernel.epilogue
    assert branch.pairs is not None and len(branch.pairs.tables) == 2, "of rows and columns, and the norm's weight"
    tables = [
        b.slot for b in kernel.buffers if not b.written and b.size in (40 * 32, 40 * 64) and b.dtype.itemsize == 4
    ]
    p = TileParameters(CONTRACTION, ((0,), (1,)), (16, columns), 16, epilogue_parts=parts)
    program = generate(region, TARGET, p)
    text, names = program.source, {a.slot: a.name for a in program.launches[0].arguments}
    assert len(tables) == 2 and [text.count(f"tl.load({names[slot]} +") for slot in tables] == [parts] * 2
    (weight,) = [b.slot for b in kernel.buffers if b.size == 64 and b.slot in dict(branch.buffers)]
    (chosen,) = re.findall(rf"(pointer\d*) = tl.where\(below\d*, {names[weight]}, ", text)
    assert text.count(f"tl.load({chosen} +") == parts


def test_a_reduction_that_differs_from_column_to_column_is_refused() -> None:
    made = (empty(16, 32) @ empty(32, 64)).contiguous().reshape(16, 4, 16)
    region = region_of((made.unsqueeze(-1) * made.unsqueeze(-2)).max(-1).contiguous())
    assert len(region.kernels) == 2
    with pytest.raises(UnsupportedTile, match="not the same for all of its columns"):
        read_region(region)
