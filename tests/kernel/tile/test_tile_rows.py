"""Rows that share tables: norms and rotations of heads, which a tile has apart from tokens."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from tinygrad import Tensor

from kcg.kernel.reading.fuse import read_region
from kcg.kernel.reading.unsupported import UnsupportedTile
from kcg.kernel.tile.generate import generate
from kcg.kernel.tile.legal import is_legal
from kcg.kernel.tile.parameters import ROWS, TileParameters
from kcg.kernel.tile.rows import axes_apart, row_axes, rows_of_threads
from kcg.kernel.tile.space import TileSpace
from kcg.kernel.tile.views import RowsView
from kcg.types import Region
from tests.chains import region_of
from tests.kernel.tile.running import HAS_TRITON, WITHOUT, Case, wrong_of
from tests.kernel.tile.test_tile_compiling import compiled
from tests.kernel.tile.test_tile_regions import layer_norm
from tests.kernels import empty
from tests.known_targets import KNOWN_TARGETS

TARGET = KNOWN_TARGETS["sm_90"]
FLUX = {"heads": 24, "size": 128, "dtype": "bfloat16"}
interpreted = pytest.mark.skipif(not HAS_TRITON, reason=WITHOUT)


def rotations(*rows: int, heads: int = 3, size: int = 16, dtype: str = "bfloat16") -> Region:
    """Query and key of one or several streams, each a buffer of query, key and value, with norms of heads whose scales
    are those of the stream and rotations of pairs, heads first; of several streams the joined value as well."""
    made = [empty(n, 3 * heads * size, dtype=dtype).reshape(n, 3, heads, size) for n in rows]
    cos, sin = empty(sum(rows), 1, size // 2, 1), empty(sum(rows), 1, size // 2, 2)
    outputs = []
    for place, factor in ((0, size**-0.5), (1, 1.0)):
        joined = Tensor.cat(*(one[:, place].float() for one in made))
        scaled = Tensor.cat(*(one[:, place].float() * empty(size, dtype=dtype).float() for one in made))
        inverse = (joined.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
        pairs = scaled.reshape(sum(rows), heads, size // 2, 2)
        turned = (pairs * cos + pairs.flip(-1) * sin).reshape(sum(rows), heads, size) * inverse * factor
        outputs.append(turned.permute(1, 0, 2).cast(dtype).contiguous())
    if len(rows) > 1:
        outputs.append(Tensor.cat(*(one[:, 2] for one in made)).contiguous())
    return region_of(*outputs)


def apart(region: Region, tile: tuple[int, int], size: int = 16, warps: int = 1) -> TileParameters:
    return TileParameters(
        ROWS, axes_apart(RowsView.of(read_region(region))), tile, reduce_tile=size, num_warps=warps, num_stages=1
    )


@pytest.mark.slow
@interpreted
@pytest.mark.parametrize(
    ("dtype", "streams"),
    [
        pytest.param("bfloat16", ((10,), (5, 13), (3, 4, 6)), marks=pytest.mark.slow),
        ("float32", ((5, 13),)),
        pytest.param("bfloat16", ((8, 16),), marks=pytest.mark.slow),
        pytest.param("float32", ((10,), (8, 16), (3, 4, 6)), marks=pytest.mark.slow),
    ],
)
def test_heads_apart_from_tokens(dtype: str, streams: tuple[tuple[int, ...], ...], tmp_path: Path) -> None:
    """Tiles that do not divide heads, tokens or streams, in one program and in many; and on one axis."""
    cases = {}
    for rows in streams:
        region = rotations(*rows, dtype=dtype)
        for tile in ((1, 2), (2, 4), (4, 8), (4, 32), (1, 1)):
            cases[f"{rows} {tile}"] = Case(region, generate(region, TARGET, apart(region, tile), interpreted=True))
        flat = TileParameters(
            ROWS, row_axes(RowsView.of(read_region(region))), (4,), reduce_tile=16, num_warps=1, num_stages=1
        )
        cases[f"{rows} flat"] = Case(region, generate(region, TARGET, flat, interpreted=True))
        loop = apart(region, (2, 4), size=8)
        cases[f"{rows} in a loop"] = Case(region, generate(region, TARGET, loop, interpreted=True))
    assert not wrong_of(cases, tmp_path)


def test_each_stream_has_programs_of_its_own() -> None:
    """No program of one asks whether it is of the other; each element and each table is loaded once."""
    region = rotations(512, 4096, **FLUX)
    program = generate(region, TARGET, apart(region, (4, 8), 128, 4))
    first, second = program.source.split("if (program >= ")
    assert program.launches[0].grid == 6 * (64 + 512)
    for side in (first, second):
        assert "mask" not in side and side.count("tl.load(") == 3 + 2 + 2  # rows, tables, weights
    assert "tl.where" not in program.source


@pytest.mark.slow
@interpreted
@pytest.mark.parametrize(
    "rows",
    [(4608,), (512, 4096), pytest.param((2560,), marks=pytest.mark.slow)],
    ids=lambda rows: "+".join(map(str, rows)),
)
def test_rotations_move_16_bytes_at_once_and_nothing_between_threads(rows: tuple[int, ...], tmp_path: Path) -> None:
    region = rotations(*rows, **FLUX)
    space = TileSpace(region, TARGET, read_region(region))
    p = space.parameters(space.start())
    assert (
        len(p.axes) == 2 and p.tile[0] > 1 and p.tile[1] >= rows_of_threads(RowsView.of(space.kernel), 32 * p.num_warps)
    )
    tiles = {"start": p, "one warp": replace(p, tile=(4, 2), num_warps=1), "one head": replace(p, tile=(1, p.tile[1]))}
    assert all(is_legal(space.kernel, TARGET, one) for one in tiles.values())
    made = compiled({name: generate(region, TARGET, one) for name, one in tiles.items()}, "sm_90", tmp_path)
    for name, row in made.items():
        assert row["shared"] == 0, name
        assert row["loads"] == ["ld.global.v4.b32"] and row["stores"] == ["st.global.v4.b32"], name


@pytest.mark.slow
@interpreted
def test_programs_of_rotations_spill_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for rows in ((4608,), (512, 4096)):
        region = rotations(*rows, **FLUX)
        space = TileSpace(region, TARGET, read_region(region))
        (launch,) = space.compile(space.start()).launches
        report = dict(launch.compiled.report)
        assert report["registers"] <= 128 and report["spilled_bytes"] == report["stack_bytes"] == 0


def test_a_table_that_threads_hold_otherwise_than_rows_is_no_candidate() -> None:
    region = rotations(4608, **FLUX)
    kernel = read_region(region)
    assert [is_legal(kernel, TARGET, apart(region, (4, n), 128, 4)) for n in (2, 4, 8, 16)] == [
        False,
        False,
        True,
        True,
    ]


def test_rows_that_share_nothing_have_one_axis() -> None:
    kernel = read_region(region_of(layer_norm("bfloat16")))
    assert axes_apart(RowsView.of(kernel)) == ()
    other = TileParameters(ROWS, ((), (0,)), (1, 1), reduce_tile=64, num_warps=1, num_stages=1)
    with pytest.raises(UnsupportedTile):
        generate(region_of(layer_norm("bfloat16")), TARGET, other)


@interpreted
def test_what_is_read_beside_a_norm_may_be_asked_for_before_it(tmp_path: Path) -> None:
    """Of few rows it is, by the prior; the values are the same."""
    region = region_of(layer_norm("bfloat16"))
    space = TileSpace(region, TARGET, read_region(region))
    p = space.parameters(space.start())
    assert p.read_early
    early, late = (generate(region, TARGET, replace(p, read_early=one), interpreted=True) for one in (True, False))
    order = [re.findall(r"tl\.(load|sum)", program.source) for program in (early, late)]
    assert order[0] == ["load"] * 3 + ["sum"] * 2 and order[1][-1] == "load"
    assert not wrong_of({"early": Case(region, early), "late": Case(region, late)}, tmp_path)
