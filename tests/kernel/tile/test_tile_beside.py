"""Contractions that do not need each other as one program: what it computes, its sizes, and its place in a plan."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from tinygrad import Tensor

from kcg.kernel.reading.fuse import read_region
from kcg.kernel.reading.kernel import TileKernel, read_kernel
from kcg.kernel.regions import Candidate, Form, candidates_of
from kcg.kernel.tile.compile import compile_tile
from kcg.kernel.tile.cost import predicted_seconds
from kcg.kernel.tile.forms import plan_of
from kcg.kernel.tile.gemm import idle_share
from kcg.kernel.tile.generate import generate_kernel
from kcg.kernel.tile.legal import is_legal
from kcg.kernel.tile.parameters import CONTRACTION, TMA, TileParameters
from kcg.kernel.tile.prior import default_parameters
from kcg.kernel.tile.space import schedule_of
from kcg.kernel.tile.tiles import launched_tiles
from kcg.optimize.region_plans import Proposals, expected_saving_s, plans_of, propose
from kcg.types import Region
from tests.captured import captured
from tests.chains import region_of, sequence_of
from tests.kernel.tile.running import HAS_TRITON, WITHOUT, Case, random_program, wrong_of
from tests.kernels import empty
from tests.known_targets import KNOWN_TARGETS
from tests.plans import run
from tests.slow import first_rows

TARGET = KNOWN_TARGETS["sm_90"]
FEW = replace(TARGET, cores=5)  # persistent programs of small kernels have several tiles
with_triton = pytest.mark.skipif(not HAS_TRITON, reason=WITHOUT)

PLAIN = TileParameters(CONTRACTION, ((0,), (1,)), (16, 32), reduce_tile=16, num_stages=2)
CHANGES = (
    {}, {"loads": TMA}, {"tile": (32, 48), "group": 4}, {"axes": ((1,), (0,))}, {"persistent": 1},
    {"persistent": 2, "axes": ((1,), (0,)), "group": 4}, {"loads": TMA, "persistent": 1, "epilogue_parts": 2},
)  # fmt: skip
ROWS, TERMS, COLUMNS = (13, 40), 40, 64  # of text and image; terms are not a multiple of a step


def linear(x: Tensor, columns: int = COLUMNS) -> Tensor:
    return x @ empty(columns, x.shape[1], dtype=x.dtype).T + empty(columns, dtype=x.dtype)


def hidden(dtype: str) -> tuple[Tensor, ...]:
    """The first matmul of an MLP, of text and image."""
    return tuple(linear(empty(n, TERMS, dtype=dtype)).gelu().contiguous() for n in ROWS)


def gated_residuals(dtype: str) -> tuple[Tensor, ...]:
    """Parts of one buffer as operands; each with a gate for each column and the residual."""
    joined, start = empty(sum(ROWS), TERMS, dtype=dtype), [0, ROWS[0]]
    made = (linear(joined[begin : begin + n]) for begin, n in zip(start, ROWS, strict=True))
    return tuple((empty(*x.shape, dtype=dtype) + empty(COLUMNS, dtype=dtype) * x).contiguous() for x in made)


def equal_rows(dtype: str) -> tuple[Tensor, ...]:
    return tuple(linear(empty(24, TERMS, dtype=dtype)).contiguous() for _ in range(2))


def three(dtype: str) -> tuple[Tensor, ...]:
    return tuple(linear(empty(n, TERMS, dtype=dtype)).contiguous() for n in (*ROWS, 5))


def normed_heads(dtype: str) -> tuple[Tensor, ...]:
    """Each with more in its epilogue: a norm of each head."""
    found = []
    for n in ROWS:
        heads = linear(empty(n, TERMS, dtype=dtype)).contiguous().reshape(n, COLUMNS // 16, 16).float()
        found.append((heads * (heads.square().mean(-1, keepdim=True) + 1e-6).rsqrt()).cast(dtype).contiguous())
    return tuple(found)


Made = Callable[[str], tuple[Tensor, ...]]
CHAINS: dict[Made, int] = {hidden: 1, gated_residuals: 1, equal_rows: 1, three: 2, normed_heads: 1}


def beside(chain: Made, dtype: str) -> tuple[Region, TileKernel]:
    region = region_of(*chain(dtype))
    kernel = read_region(region)
    assert kernel.grouped_rows and len(kernel.grouped) == CHAINS[chain] and not kernel.sharing_operand
    assert len(kernel.written) == len(region.outputs)
    return region, kernel


IN_FORMATS = [
    (hidden, ("bfloat16", "float32")),
    *((chain, ("bfloat16",)) for chain in CHAINS if chain not in (hidden, equal_rows)),
    *(pytest.param(chain, ("float16", "float32"), marks=pytest.mark.slow) for chain in CHAINS),
    pytest.param(equal_rows, ("bfloat16",), marks=pytest.mark.slow),
]


@with_triton
@pytest.mark.parametrize(("chain", "dtypes"), first_rows(2, IN_FORMATS))
def test_each_stores_its_own_result(chain: Made, dtypes: tuple[str, ...], tmp_path: Path) -> None:
    cases = {}
    for dtype in dtypes:
        region, kernel = beside(chain, dtype)
        for changes in CHANGES if dtype != "float32" else CHANGES[:1]:
            p = replace(PLAIN, fast_math=False, **changes)
            if chain is normed_heads and (p.axes, p.tile) != (PLAIN.axes, PLAIN.tile):
                continue  # heads are neighbouring columns
            program = generate_kernel(kernel, FEW, p, interpreted=True)
            tiles = math.prod(launched_tiles(kernel, p))
            programs = min(tiles, FEW.cores * p.persistent) if p.persistent else tiles
            assert [launch.grid for launch in program.launches] == [programs]
            cases[f"{dtype} {changes}"] = Case(region, program)
    assert not wrong_of(cases, tmp_path)


@pytest.mark.slow
@with_triton
def test_programs_of_random_parameters_are_right(tmp_path: Path) -> None:
    cases = {}
    for chain in CHAINS:
        (region, kernel), rng = beside(chain, "bfloat16"), Random(chain.__name__)
        for number in range(3):
            cases[f"{chain.__name__} {number}"] = Case(region, random_program(kernel, FEW, rng))
    assert not wrong_of(cases, tmp_path)


# ---- Flux


@pytest.fixture(scope="module")
def flux() -> Proposals:
    return propose(captured("flux", "1024"))


@pytest.fixture(scope="module")
def layers(flux: Proposals) -> dict[tuple[int, ...], Candidate]:
    """The layers that are no projection of query, key and value, by columns and terms."""
    found = {}
    for candidate in flux.candidates.values():
        if candidate.form is Form.BESIDE:
            kernel = read_region(candidate.region)
            assert [one.extents[0] for one in kernel.launched] == [4096, 512]
            found[kernel.extents[1], kernel.terms] = candidate
    assert found.pop((9216, 3072))
    return found


@pytest.mark.slow
def test_the_same_layer_of_both_streams_is_proposed_in_every_block(
    flux: Proposals, layers: dict[tuple[int, ...], Candidate]
) -> None:
    assert set(layers) == {(3072, 3072), (12288, 3072), (3072, 12288)}
    assert {flux.calls[c.region.id, c.again] for c in layers.values()} == {19}


@pytest.mark.slow
@with_triton
@pytest.mark.parametrize("persistent", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_layers_of_both_streams_spill_nothing(
    layers: dict[tuple[int, ...], Candidate], persistent: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the prior's choice, which is persistent, and by one program for each tile."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for candidate in layers.values():
        kernel = read_region(candidate.region)
        p = default_parameters(kernel, TARGET)
        assert (p.tile, p.loads, p.persistent) == ((128, 256), TMA, 1) and is_legal(kernel, TARGET, p)
        p = replace(p, persistent=persistent)
        (launch,) = compile_tile(candidate.region, schedule_of(p), TARGET).launches
        report = dict(launch.compiled.report)
        assert report["wgmma"] and not report["spilled_bytes"] and report["registers"] < 256, report
        assert (
            0.9 * plan_of(kernel, TARGET, p).shared_bytes
            <= report["shared_bytes"]
            <= plan_of(kernel, TARGET, p).shared_bytes
        )


@pytest.mark.slow
def test_one_launch_is_expected_to_take_less_than_two(layers: dict[tuple[int, ...], Candidate]) -> None:
    for candidate in layers.values():
        kernels = [read_region(candidate.region), *(read_kernel(Region((k,))) for k in candidate.region.kernels)]
        both_s, *alone_s = (predicted_seconds(k, TARGET, default_parameters(k, TARGET)) for k in kernels)
        assert 0.9 * sum(alone_s) < both_s < sum(alone_s)


@pytest.mark.slow
def test_what_is_idle_in_last_waves_is_expected_to_be_saved(layers: dict[tuple[int, ...], Candidate]) -> None:
    """12 × 4 of 132 tiles of 128 × 256, and 12 × 32 of 3 × 132."""
    candidate = layers[3072, 12288]
    shares = {k: idle_share(read_kernel(Region((k,))), TARGET) for k in candidate.region.kernels}
    assert sorted(shares.values()) == pytest.approx([1 - 384 / 396, 1 - 48 / 132])
    alone_s = {k.id: 1e-4 for k in candidate.region.kernels}
    saved_s = expected_saving_s(candidate, alone_s, TARGET)
    assert saved_s == pytest.approx(1.5e-6 + 1e-4 * sum(shares.values()))


def test_two_calls_of_one_kernel_are_idle_twice() -> None:
    made = (linear(empty(512, 3072, dtype="bfloat16"), 3072).contiguous() for _ in range(2))
    (candidate,) = candidates_of(sequence_of(*made))
    first, second = candidate.region.kernels
    assert candidate.form is Form.BESIDE and first == second
    assert expected_saving_s(candidate, {first.id: 1e-4}, TARGET) == pytest.approx(1.5e-6 + 2e-4 * (1 - 48 / 132))


@pytest.mark.slow
def test_a_plan_with_them_leaves_what_the_model_leaves(
    flux: Proposals, layers: dict[tuple[int, ...], Candidate]
) -> None:
    ((blocks, _),) = flux.sequences
    alone_s = {call.region.id: 1e-4 for call in flux.workload.calls}
    best, *_ = plans_of(flux, alone_s, {(c.region.id, c.again): 1e-5 for c in layers.values()})
    assert {c.region for c, _ in best.programs} == {c.region for c in layers.values()}
    assert [times for _, times in best.programs] == [19, 19, 19]
    terms: dict[object, int] = {}
    assert run(blocks.sequence, terms, best.sequences[0]) == run(blocks.sequence, terms) != {}
