"""Last waves of programs that cannot share sums: two programs have halves of the columns of each tile left."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tinygrad import Tensor

from kcg.kernel.reading.fuse import read_region
from kcg.kernel.reading.kernel import TileKernel
from kcg.kernel.reading.unsupported import UnsupportedTile
from kcg.kernel.tile.compile import compile_tile
from kcg.kernel.tile.cost import predicted_seconds
from kcg.kernel.tile.forms import plan_of
from kcg.kernel.tile.gemm import can_halve
from kcg.kernel.tile.generate import generate_kernel
from kcg.kernel.tile.legal import is_legal, legal_values
from kcg.kernel.tile.parameters import CONTRACTION, POINTER, TMA, TileParameters
from kcg.kernel.tile.prior import default_parameters
from kcg.kernel.tile.space import schedule_of
from kcg.kernel.tile.tiles import launched_tiles
from kcg.kernel.tile.views import MatmulView
from tests.chains import region_of
from tests.kernel.tile.running import HAS_TRITON, WITHOUT, Case, wrong_of
from tests.kernel.tile.test_tile_cuts import along_columns, both_ways, copied, of_flux, stacked, streams
from tests.kernel.tile.test_tile_regions import activation_beside, flux_projection
from tests.kernel.tile.test_tile_sharing import EVEN, gated, heads, in_batches, three
from tests.known_targets import KNOWN_TARGETS
from tests.slow import every

TARGET = KNOWN_TARGETS["sm_90"]
with_triton = pytest.mark.skipif(not HAS_TRITON, reason=WITHOUT)
PLAIN = TileParameters(CONTRACTION, ((0,), (1,)), (16, 32), 16, persistent=1, num_stages=2)

Made = Callable[[str], tuple[Tensor, ...]]
CHAINS: tuple[Made, ...] = (
    flux_projection, streams, activation_beside, copied, both_ways, stacked, along_columns,
    lambda dtype: heads(dtype, EVEN), lambda dtype: gated(dtype, EVEN), lambda dtype: three(dtype, EVEN),
    lambda dtype: in_batches(dtype, EVEN),
)  # fmt: skip


def tiles_of(kernel: TileKernel, p: TileParameters) -> int:
    assert kernel.contraction is not None
    return math.prod(launched_tiles(kernel, p)) * math.prod(kernel.extents[n] for n in kernel.contraction.batch)


@with_triton
@pytest.mark.parametrize("chain", every(3, CHAINS))
def test_halves_of_the_tiles_left_are_right(chain: Made, tmp_path: Path) -> None:
    """With as many multiprocessors as leave few tiles, of the last contraction or of several."""
    cases = {}
    region = region_of(*chain("bfloat16"))
    kernel = read_region(region)
    assert kernel.contraction is not None and not MatmulView.of(kernel).may_stream_k
    axes = tuple(side.ranges for side in kernel.contraction.sides)
    for loads, parts, persistent, turned in ((POINTER, 1, 1, True), (TMA, 2, 1, False), (TMA, 1, 2, False)):
        p = replace(
            PLAIN, axes=axes[::-1] if turned else axes, loads=loads, persistent=persistent, epilogue_parts=parts
        )
        tiles = tiles_of(kernel, p)
        if not can_halve(MatmulView.of(kernel), replace(p, tail=2)):
            assert turned, "only rows may be no multiple of a tile's, or heads in them"
            continue
        fits = [n for n in range(2, tiles) if 0 < 2 * (tiles % (n * persistent)) <= n * persistent < tiles]
        for cores in {fits[0], fits[-1]} if fits else ():
            program = generate_kernel(kernel, replace(TARGET, cores=cores), replace(p, tail=2), interpreted=True)
            (launch,) = program.launches
            assert launch.grid == cores * persistent and not program.workspace_bytes and "// 2" in program.source
            cases[f"{loads} {parts} {persistent} {turned} {cores}"] = Case(region, program)
    assert cases and not wrong_of(cases, tmp_path)


@pytest.mark.slow
def test_halves_are_candidates_where_they_fit_into_the_last_wave() -> None:
    """Of 2,560 rows there are 720 tiles of 128 × 256: 60 are left after five waves of 132, and 108 of 4,608 rows."""
    target, found = replace(TARGET, cores=132), []
    for rows in ((256, 2304), (512, 4096)):
        kernel = read_region(region_of(*of_flux(rows=rows)))
        p = default_parameters(kernel, target)
        assert p.persistent == 1 and p.tile == (128, 256)
        found.append(legal_values(kernel, target, p, "tail"))
        halves, whole = (replace(p, tail=2), p)
        assert is_legal(kernel, target, halves) == (rows == (256, 2304))
        assert not is_legal(kernel, target, replace(halves, persistent=0))
        assert not can_halve(MatmulView.of(kernel), replace(p, tile=(128, 128), tail=2)), "a head has 128 columns"
        if rows == (256, 2304):
            assert predicted_seconds(kernel, target, halves) < predicted_seconds(kernel, target, whole)
        else:
            with pytest.raises(UnsupportedTile, match="halves of its tiles"):
                generate_kernel(kernel, target, halves)
    assert found == [(1, 2), (1,)]
    odd = read_region(region_of(*copied("bfloat16")))
    assert legal_values(odd, replace(TARGET, cores=6), PLAIN, "tail") == (1, 2)
    assert [can_halve(MatmulView.of(odd), replace(PLAIN, tile=(16, n), tail=2)) for n in (16, 32, 64, 128)] == [
        False,
        True,
        True,
        False,
    ]


@pytest.mark.slow
@with_triton
@pytest.mark.parametrize(
    "made",
    [
        lambda: of_flux(rows=(256, 2304)),
        pytest.param(
            lambda: flux_projection("bfloat16", heads=24, size=128, rows=2560, terms=3072), marks=pytest.mark.slow
        ),
    ],
)
def test_halves_take_no_more_than_whole_tiles(
    made: Callable[[], tuple[Tensor, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Query, key and value of Flux with norms and rotations: nothing is spilled, and the rings of all loops are one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    region, target = region_of(*made()), replace(TARGET, cores=132)
    kernel = read_region(region)
    p = default_parameters(kernel, target)
    reports = []
    for tail in (1, 2):
        (launch,) = compile_tile(region, schedule_of(replace(p, tail=tail)), target).launches
        reports.append(dict(launch.compiled.report))
    whole, halves = reports
    assert (p.tile, p.persistent) == ((128, 256), 1)
    assert all(one["wgmma"] and not one["spilled_bytes"] and one["registers"] < 256 for one in reports), reports
    assert halves["shared_bytes"] == whole["shared_bytes"] <= plan_of(kernel, TARGET, p).shared_bytes
