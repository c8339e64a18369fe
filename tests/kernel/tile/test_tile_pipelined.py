"""Contractions by specialised warps, run on the CPU with barriers as the hardware has them: right, and nobody waits for
ever, reads what is overwritten, or touches what is another tile's."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
from tinygrad import Tensor

from kcg.kernel.reading.fuse import read_region
from kcg.kernel.tile.generate import generate_kernel
from kcg.kernel.tile.legal import is_legal
from kcg.kernel.tile.parameters import PIPELINED
from kcg.kernel.tile.pipelined import TILES, parts_of, pipelined_axes
from kcg.kernel.tile.prior import parameters_of
from kcg.kernel.tile.tiles import is_power_of_two
from kcg.kernel.tile.views import MatmulView
from kcg.types import Region
from tests.chains import region_of
from tests.kernel.tile.gluon_on_cpu import ProtocolError, wrong_in_gluon
from tests.kernel.tile.running import Case
from tests.kernel.tile.test_tile_on_gpu import matrix, product
from tests.kernel.tile.test_tile_regions import joined, projection
from tests.kernels import empty
from tests.known_targets import KNOWN_TARGETS
from tests.slow import every, some

TARGET = replace(KNOWN_TARGETS["sm_90"], cores=2)
"""Of a handful of tiles each multiprocessor has several."""
Tile = tuple[int, int]
POWERS_OF_TWO = tuple(tile for tile in TILES if is_power_of_two(tile[1]))
"""Tiles of which each has whole heads."""


def heads(rows: int, turned: int = 2) -> tuple[Tensor, ...]:
    """Query, key and value of two heads, so many of them with norms and rotations."""
    return projection("bfloat16", heads=2, size=128, rows=rows, terms=192, turned=turned)


def of_two_streams() -> Tensor:
    one, other = (product(rows, 256, 192).cast("bfloat16").contiguous() for rows in (320, 200))
    return one.cat(other).contiguous()


PRODUCTS: dict[str, tuple[Callable[[], Tensor | tuple[Tensor, ...]], tuple[Tile, ...]]] = {
    "plain": (lambda: product(384, 768, 192).cast("bfloat16"), TILES),
    "odd sizes": (lambda: product(200, 328, 136, "float16").cast("float16"), TILES),
    "other operand": (lambda: matrix(384, 192).matmul(matrix(192, 512), dtype="float32").cast("bfloat16"), TILES),
    "gelu": (lambda: (product(320, 256, 192) + empty(256, dtype="bfloat16").float()).gelu().cast("bfloat16"), TILES),
    "a factor of each row": (lambda: (product(320, 256, 192) * empty(320, 1)).cast("bfloat16"), TILES),
    "gate and residual": (
        lambda: (matrix(320, 256).float() + empty(1, 256) * product(320, 256, 192)).cast("bfloat16"), TILES,
    ),
    "residual in float32": (lambda: empty(320, 256) + product(320, 256, 192), TILES),
    "two sums as one": (lambda: joined("bfloat16", 320, 256, (128, 192)), TILES),
    "two products": (of_two_streams, POWERS_OF_TWO),
    "heads": (lambda: heads(384), POWERS_OF_TWO),
    "heads, half a tile": (lambda: heads(320), POWERS_OF_TWO),
    "values, half a tile": (lambda: heads(320, turned=0), POWERS_OF_TWO),
}  # fmt: skip
"""Tensors, and the tiles of their programs."""
GUARDED = ("a factor of each row", "residual in float32", "heads, half a tile", "values, half a tile")


def region_named(name: str) -> Region:
    made = PRODUCTS[name][0]()
    return region_of(*(made if isinstance(made, tuple) else (made,)))


def case_of(region: Region, tile: Tile, **changes: int) -> Case:
    kernel = read_region(region)
    p = parameters_of(kernel, TARGET, PIPELINED, pipelined_axes(MatmulView.of(kernel))[0])
    p = replace(p, tile=tile, epilogue_parts=parts_of(tile), **changes)
    assert is_legal(kernel, TARGET, p), p
    return Case(region, generate_kernel(kernel, TARGET, p))


def wrong_of(case: Case, seeds: int = 1) -> str:
    return next(filter(None, (wrong_in_gluon(replace(case, seed=1 + n)) for n in range(seeds))), "")


@pytest.mark.parametrize("name", some(PRODUCTS, {"odd sizes", "two products"}))
def test_products_are_right_and_keep_to_their_protocol(name: str) -> None:
    region, tiles = region_named(name), PRODUCTS[name][1]
    for tile in tiles:
        for stages in (3, 4):
            case = case_of(region, tile, num_stages=stages)
            assert case.program.launches[0].grid == TARGET.cores
            assert not wrong_of(case), (tile, stages)


@pytest.mark.parametrize("tile", TILES)
def test_no_block_is_written_where_one_may_still_leave(tile: Tile) -> None:
    """Also from tile to tile, where groups of warps that wait for each other give the one before time to leave."""
    source = case_of(region_named("plain"), tile, num_stages=3).program.source
    assert not overwritten(source)
    assert overwritten(source.replace("tma.store_wait(1)", "tma.store_wait(2)"))


def overwritten(source: str) -> list[str]:
    """Places that a group writes while a block that it sent from there may be on its way, in two turns of a loop that
    has no branches."""
    body = source.split("def compute(")[1].split("def load(")[0].rpartition("tma.store_wait(0)")[0]
    found, sent = [], list[str]()
    for line in (line.strip() for _ in range(2) for line in body.splitlines()):
        if match := re.fullmatch(r"tma\.store_wait\((\d+)\)", line):
            del sent[: len(sent) - int(match[1])]
        elif match := re.fullmatch(r"send\(.*, (leaving.*)\)", line):
            sent.append(match[1])
        elif (match := re.fullmatch(r"(leaving.*)\.store\(.*\)", line)) and match[1] in sent:
            found.append(match[1])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("group", [1, 4])
def test_heads_are_right_whoever_is_late(group: int) -> None:
    """Of four and a third tiles along the rows, in the order in which a search found one head in another's place."""
    assert not wrong_of(case_of(region_of(*heads(832)), (192, 128), group=group), seeds=2)


@pytest.mark.parametrize("name", some(PRODUCTS, PRODUCTS.keys() - {"heads, half a tile"}))
def test_a_group_behind_the_last_row_does_nothing_where_that_is_another_ones(name: str) -> None:
    """It stores no heads in the next one's place, and reads nothing by rows that are not there; what TMA alone moves
    may stay as it is."""
    case = case_of(region_named(name), PRODUCTS[name][1][-1])
    held = re.search(r"if start\d* < 320:", case.program.source)
    assert bool(held) == (name in GUARDED)
    if held:
        with pytest.raises(ProtocolError):
            wrong = wrong_of(changed(case, re.escape(held[0]), "if True:"))
            raise ProtocolError(wrong) if wrong else AssertionError("nobody saw it")


BROKEN = {
    "a slot is not given back": ("plain", r"mbarrier\.arrive\(empty.*count=1\)", "pass"),
    "a slot is given back too early": ("plain", r"warpgroup_mma_wait\(1,", "warpgroup_mma_wait(2,"),
    "the loads do not wait for a slot": ("plain", r"mbarrier\.wait\(empty.*", "pass"),
    "groups do not wait for a slot": ("plain", r"mbarrier\.wait\(full.*", "pass"),
    "a block is written while another is sent": ("heads", r"tma\.store_wait\(1\)", "tma.store_wait(2)"),
    "the only place of blocks": ("plain", r"\* 2 \+ 1\)", "* 2 + 0)"),
    "groups end before their blocks left": ("plain", r"tma\.store_wait\(0\)", "pass"),
    "no fence before a block is sent": ("plain", r"(leaving.*\.store.*\n +)fence_async_shared\(\)", r"\1pass"),
    "no fence behind what is read": ("gate and residual", r"(rows.*\.load.*\n +)fence_async_shared\(\)", r"\1pass"),
    "a block is sent to its neighbour's place": ("plain", r"\+ 32\], leaving", "+ 0], leaving"),
    "a group has another one's rows": ("plain", r"group \* 64", "0 * 64"),
    "tiles are left out": ("heads", r"range\((program), 12, 2\)", r"range(\1, 11, 2)"),
}
"""What is done -> of which product, and how."""


@cache
def whole(name: str) -> Case:
    """A program with which nothing is wrong."""
    case = case_of(region_named(name), (192, 128), num_stages=3)
    assert not wrong_of(case)
    return case


@pytest.mark.parametrize("what", every(4, BROKEN))
def test_a_broken_protocol_is_seen(what: str) -> None:
    name, text, by = BROKEN[what]
    case = whole(name)
    with pytest.raises(ProtocolError):
        wrong = wrong_of(changed(case, text, by), seeds=4)
        raise ProtocolError(wrong) if wrong else AssertionError("nobody saw it")


def changed(case: Case, text: str, by: str) -> Case:
    source, count = re.subn(text, by, case.program.source)
    assert count
    return replace(case, program=replace(case.program, source=source))
