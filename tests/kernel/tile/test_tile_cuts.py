"""Results of contractions that are stored beside each other, as one program: what it computes, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from tinygrad import Tensor

from kcg.kernel.kinds import Unsupported, kind_named
from kcg.kernel.reading.fuse import read_region
from kcg.kernel.reading.kernel import TileKernel
from kcg.kernel.reading.unsupported import UnsupportedTile
from kcg.kernel.regions import Form, candidates_of
from kcg.kernel.tile.compile import compile_tile
from kcg.kernel.tile.cost import predicted_seconds
from kcg.kernel.tile.forms import plan_of
from kcg.kernel.tile.generate import generate, generate_kernel
from kcg.kernel.tile.legal import is_legal, legal_values
from kcg.kernel.tile.parameters import CONTRACTION, TMA, TileParameters
from kcg.kernel.tile.prior import default_parameters
from kcg.kernel.tile.space import schedule_of
from kcg.kernel.tile.tiles import launched_tiles
from kcg.types import Region
from tests.chains import region_of, sequence_of
from tests.kernel.tile.running import HAS_TRITON, WITHOUT, Case, random_program, wrong_of
from tests.kernels import empty
from tests.known_targets import KNOWN_TARGETS
from tests.slow import first_rows

TARGET = KNOWN_TARGETS["sm_90"]
FEW = replace(TARGET, cores=5)  # persistent programs of small kernels have several tiles
with_triton = pytest.mark.skipif(not HAS_TRITON, reason=WITHOUT)

PLAIN = TileParameters(CONTRACTION, ((0,), (1,)), (16, 32), reduce_tile=16, num_stages=2)
CHANGES = (
    {}, {"loads": TMA}, {"loads": TMA, "epilogue_parts": 2, "group": 4}, {"tile": (32, 64), "epilogue_parts": 2},
    {"tile": (32, 48)}, {"axes": ((1,), (0,))}, {"persistent": 1}, {"persistent": 2, "axes": ((1,), (0,)), "group": 4},
    {"loads": TMA, "persistent": 1, "epilogue_parts": 2},
)  # fmt: skip
TERMS = 40  # not a multiple of a step


def linear(rows: int, columns: int, dtype: str, *, x: Tensor | None = None, terms: int = TERMS) -> Tensor:
    """A projection of `x`, or of rows of its own."""
    x = empty(rows, terms, dtype=dtype) if x is None else x
    return (x @ empty(columns, terms, dtype=dtype).T + empty(columns, dtype=dtype)).contiguous()


def streams(
    dtype: str, *, rows: tuple[int, ...] = (13, 40), heads: int = 4, size: int = 16, terms: int = TERMS
) -> tuple[Tensor, ...]:
    """As double blocks of Flux have it: query, key and value of two streams are joined along the rows; query and key
    with norms of heads whose scales are those of the stream, and rotations of pairs, heads first."""
    made = [linear(n, 3 * heads * size, dtype, terms=terms).reshape(n, 3, heads, size) for n in rows]
    cos, sin = empty(sum(rows), 1, size // 2, 1), empty(sum(rows), 1, size // 2, 2)
    outputs = []
    for place, factor in ((0, size**-0.5), (1, 1.0)):
        joined = Tensor.cat(*(one[:, place].float() for one in made))
        scaled = Tensor.cat(*(one[:, place].float() * empty(size, dtype=dtype).float() for one in made))
        inverse = (joined.square().mean(-1, keepdim=True) + 1e-6).rsqrt().contiguous()
        pairs = scaled.reshape(sum(rows), heads, size // 2, 2)
        turned = (pairs * cos + pairs.flip(-1) * sin).reshape(sum(rows), heads, size) * inverse * factor
        outputs.append(turned.permute(1, 0, 2).cast(dtype).contiguous())
    value = Tensor.cat(*(one[:, 2] for one in made)).contiguous()
    return (*outputs, value)


def equal_streams(dtype: str) -> tuple[Tensor, ...]:
    """Of as many rows each: quotients of the rows' number say which it is."""
    return streams(dtype, rows=(24, 24))


def copied(dtype: str) -> tuple[Tensor, ...]:
    """Results as they are; the first one is an output as well."""
    first = linear(13, 64, dtype)
    return first, first.cat(linear(40, 64, dtype)).contiguous()


def three(dtype: str) -> tuple[Tensor, ...]:
    """What becomes of the joined results, and part of it: some rows past another bound are as they were."""
    joined = Tensor.cat(*(linear(n, 64, dtype)[:, 32:] for n in (13, 40, 5))).float()
    early = Tensor.arange(58).reshape(-1, 1) < 20
    return (early.where(joined, joined.gelu()).cast(dtype).contiguous(),)


def both_ways(dtype: str) -> tuple[Tensor, ...]:
    """Two stores with bounds of their own."""
    one, other = linear(13, 64, dtype), linear(40, 64, dtype)
    return one.cat(other).contiguous(), other.cat(one).silu().contiguous()


def stacked(dtype: str) -> tuple[Tensor, ...]:
    """Along a range of its own."""
    return (linear(13, 64, dtype).stack(linear(13, 64, dtype)).contiguous(),)


def along_columns(dtype: str) -> tuple[Tensor, ...]:
    """Of the same rows: contractions of one operand."""
    x = empty(37, TERMS, dtype=dtype)
    return (linear(37, 64, dtype, x=x).cat(linear(37, 32, dtype, x=x), dim=1).contiguous(),)


def scaled(dtype: str) -> tuple[Tensor, ...]:
    """The operand of one of them is computed on the way."""
    x = (empty(40, TERMS, dtype=dtype).float() * empty(40, 1)).cast(dtype).contiguous()
    return (linear(13, 64, dtype).cat(linear(40, 64, dtype, x=x)).contiguous(),)


Made = Callable[[str], tuple[Tensor, ...]]
CHAINS: dict[Made, int] = {
    streams: 1, equal_streams: 1, copied: 1, three: 2, both_ways: 1, stacked: 1, along_columns: 1,
    scaled: 1,
}  # fmt: skip
IN_ORDER = (streams, equal_streams)  # heads are neighbouring columns


def cut(chain: Made, dtype: str) -> tuple[Region, TileKernel]:
    """A chain, read; each program is of one contraction, without a choice or a condition that says of which."""
    region = region_of(*chain(dtype))
    kernel = read_region(region)
    assert len(kernel.grouped) == CHAINS[chain] and kernel.grouped_rows == (chain is not along_columns)
    assert not any(load.gates for one in kernel.launched for load in one.loads)
    return region, kernel


IN_FORMATS = [
    (streams, ("bfloat16", "float32")),
    *((chain, ("bfloat16",)) for chain in CHAINS if chain is not streams),
    *(pytest.param(chain, ("float16", "float32"), marks=pytest.mark.slow) for chain in CHAINS),
]


@with_triton
@pytest.mark.parametrize(("chain", "dtypes"), first_rows(1, IN_FORMATS))
def test_results_beside_each_other_are_right(chain: Made, dtypes: tuple[str, ...], tmp_path: Path) -> None:
    cases = {}
    for dtype in dtypes:
        region, kernel = cut(chain, dtype)
        for changes in CHANGES:
            p = replace(PLAIN, **changes)
            if dtype == "float32" and changes:
                continue
            try:
                program = generate_kernel(kernel, FEW, p, interpreted=True)
            except UnsupportedTile as refusal:
                assert refusal.construct == "tile" and (p.axes, p.tile) != (PLAIN.axes, PLAIN.tile), refusal
                continue
            assert len(program.launches) == 1 and (
                not p.persistent or program.launches[0].grid <= FEW.cores * p.persistent
            )
            cases[f"{dtype} {changes}"] = Case(region, program)
    assert len(cases) >= 2 + len(dtypes)
    assert not wrong_of(cases, tmp_path)


@pytest.mark.slow
@with_triton
@pytest.mark.parametrize(
    ("dtypes", "programs"),
    [(("bfloat16",), 2), pytest.param(("bfloat16", "float16"), 6, marks=pytest.mark.slow)],
    ids=["some", "many"],
)
def test_programs_of_random_parameters_are_right(dtypes: tuple[str, ...], programs: int, tmp_path: Path) -> None:
    cases = {}
    for chain in CHAINS:
        for dtype in dtypes:
            name = f"{chain.__name__} {dtype}"
            (region, kernel), rng = cut(chain, dtype), Random(name)
            for number in range(programs):
                cases[f"{name} {number}"] = Case(region, random_program(kernel, FEW, rng))
    assert not wrong_of(cases, tmp_path)


def test_every_tile_of_each_stream_is_a_program() -> None:
    """Three rows of tiles of the larger stream, then one of the other, of six columns each."""
    region = region_of(*streams("bfloat16", rows=(13, 40)))
    assert launched_tiles(read_region(region), PLAIN) == (3 + 1, 6)
    source = generate(region, TARGET, PLAIN)
    assert source.launches[0].grid == 24
    branches = [line.strip() for line in source.source.splitlines() if line.startswith("    if ")]
    assert [re.sub(r"\bprogram\d*", "n", line) for line in branches] == ["if (n < 18):", "if (n >= 18):"]


# ---- what is refused


def products() -> tuple[Tensor, ...]:
    return ((linear(13, 64, "float32") * linear(13, 64, "float32")).cat(linear(40, 64, "float32")).contiguous(),)


def with_another_tensor() -> tuple[Tensor, ...]:
    return (Tensor.cat(linear(13, 64, "float32"), empty(8, 64), linear(40, 64, "float32")).contiguous(),)


def along_both() -> tuple[Tensor, ...]:
    above = linear(13, 32, "float32").cat(linear(13, 32, "float32"), dim=1)
    return (above.cat(linear(40, 64, "float32")).contiguous(),)


def other_terms() -> tuple[Tensor, ...]:
    return (linear(13, 64, "float32").cat(linear(40, 64, "float32", terms=32)).contiguous(),)


def other_columns() -> tuple[Tensor, ...]:
    return (linear(13, 64, "float32").cat(linear(40, 80, "float32")[:, 16:]).contiguous(),)


def some_rows() -> tuple[Tensor, ...]:
    return (linear(13, 64, "float32").cat(linear(40, 64, "float32")[8:]).contiguous(),)


def joined_without_bounds() -> tuple[Tensor, ...]:
    return ((linear(13, 64, "float32") * linear(13, 64, "float32")).contiguous(),)


REFUSED = {
    products: "results beside each other: 2 products in one part",
    with_another_tensor: "results beside each other: 0 products in one part",
    along_both: "results beside each other: 2 products in one part",
    other_terms: "results beside each other: products of other formats, terms or columns",
    other_columns: "results beside each other: products of other formats, terms or columns",
    some_rows: "use of a product's result: in other rows, or not in all of them",
    joined_without_bounds: "several products: they share no operand",
}


@pytest.mark.parametrize("chain", REFUSED)
def test_what_cannot_be_cut_is_refused_by_name(chain: Callable[[], tuple[Tensor, ...]]) -> None:
    with pytest.raises(UnsupportedTile) as refusal:
        read_region(region_of(*chain()))
    assert str(refusal.value) == REFUSED[chain]


# ---- sizes


def of_flux(dtype: str = "bfloat16", rows: tuple[int, ...] = (512, 4096)) -> tuple[Tensor, ...]:
    return streams(dtype, rows=rows, heads=24, size=128, terms=3072)


def gated_residual(dtype: str = "bfloat16", rows: tuple[int, ...] = (512, 4096)) -> tuple[Tensor, ...]:
    """The last projection of both streams, with a gate for each column and the residual."""
    joined = Tensor.cat(*(linear(n, 3072, dtype, terms=12288).float() * empty(3072) for n in rows))
    return ((empty(sum(rows), 3072, dtype=dtype) + joined).cast(dtype).contiguous(),)


@pytest.mark.slow
@with_triton
@pytest.mark.parametrize(
    ("dtype", "tiles"),
    [
        ("bfloat16", "the prior's"),
        pytest.param("bfloat16", "square", marks=pytest.mark.slow),
        *(pytest.param("float16", tiles, marks=pytest.mark.slow) for tiles in ("the prior's", "square")),
    ],
)
@pytest.mark.parametrize("persistent", [1, pytest.param(0, marks=pytest.mark.slow)])
@pytest.mark.parametrize("made", [pytest.param(of_flux, marks=pytest.mark.slow), gated_residual])
def test_streams_of_flux_spill_nothing(
    made: Made, persistent: int, dtype: str, tiles: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By persistent programs, each with a loop for both, and by one for each tile. That the first ones spill nothing of
    query, key and value is shown where their halves are compared with them."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    region = region_of(*made(dtype))
    kernel = read_region(region)
    p = default_parameters(kernel, TARGET)
    assert (p.tile, p.loads, p.persistent, p.epilogue_parts, p.num_stages) == ((128, 256), TMA, 1, 2, 4)
    p = replace(p, tile=(128, 128), epilogue_parts=1) if tiles == "square" else p
    p = replace(p, persistent=persistent)
    assert is_legal(kernel, TARGET, p)
    (launch,) = compile_tile(region, schedule_of(p), TARGET).launches
    report = dict(launch.compiled.report)
    assert report["wgmma"] and not report["spilled_bytes"] and report["registers"] < 256, report
    assert (
        0.9 * plan_of(kernel, TARGET, p).shared_bytes
        <= report["shared_bytes"]
        <= plan_of(kernel, TARGET, p).shared_bytes
    )


def test_persistent_programs_are_candidates_where_some_have_several_tiles() -> None:
    """Of both streams together: 1,152 and 144 tiles."""
    region = region_of(*of_flux())
    kernel = read_region(region)
    p = default_parameters(kernel, TARGET)
    for cores, candidates in ((132, (0, 1, 2)), (647, (0, 1, 2)), (648, (0, 1)), (1295, (0, 1)), (1296, (0,))):
        assert legal_values(kernel, replace(TARGET, cores=cores), p, "persistent") == candidates
    space = kind_named("tile").space(region, TARGET)
    assert not isinstance(space, Unsupported)
    for persistent, words in ((1, ", persistent,"), (2, ", persistent x2,"), (0, ", tma, epilogue")):
        schedule = schedule_of(replace(p, persistent=persistent))
        space.check(schedule)
        assert words in space.name(schedule)


def test_persistent_programs_are_expected_to_take_turns_of_the_whole_list() -> None:
    """1,296 tiles are four of each of 324; 36 more are a fifth, whichever stream they are of."""
    cores, seconds = replace(TARGET, cores=324), {}
    for rows in ((512, 4096), (512, 4224), (640, 4096)):
        kernel = read_region(region_of(*of_flux(rows=rows)[2:]))
        seconds[rows] = predicted_seconds(kernel, cores, default_parameters(kernel, TARGET))
    full, *others = seconds.values()
    assert others[0] == pytest.approx(others[1], rel=0.01) and others[0] > 1.1 * full


def test_two_streams_are_expected_to_cost_little_more_than_one_of_all_rows() -> None:
    """As many tiles; a second weight comes from memory."""
    one = read_region(region_of(linear(4608, 9216, "bfloat16", terms=3072)))
    both = read_region(region_of(*of_flux()[2:]))
    for tile, tiles in (((128, 64), (36, 144)), ((256, 128), (18, 72))):
        for persistent in (0, 1):
            own = replace(PLAIN, tile=tile, reduce_tile=64, loads=TMA, num_warps=8, persistent=persistent)
            assert launched_tiles(one, own) == launched_tiles(both, own) == tiles
            one_s, both_s = (predicted_seconds(kernel, TARGET, own) for kernel in (one, both))
            assert one_s < both_s < 1.1 * one_s


def test_joined_streams_are_proposed_as_one_program() -> None:
    """All of it, and the copied value with the projections alone."""
    found = candidates_of(sequence_of(*streams("bfloat16", rows=(128, 512), heads=4, size=64, terms=256)))
    whole = max(found, key=lambda candidate: len(candidate.region.kernels))
    assert whole.form is Form.EPILOGUE and len(whole.region.outputs) == 3 and not whole.again
    assert len(read_region(whole.region).grouped) == 1
