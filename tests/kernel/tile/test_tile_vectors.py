"""Matrix-vector products of one vector as one launch: what it computes, its text and its sizes, and its place in a
plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from tinygrad import Tensor

from kcg.kernel.reading.fuse import read_region
from kcg.kernel.reading.kernel import TileKernel, read_kernel
from kcg.kernel.reading.unsupported import UnsupportedTile
from kcg.kernel.reading.vectors import VECTORS, vectors_of
from kcg.kernel.regions import Form, Limits, candidates_of
from kcg.kernel.tile.compile import compile_tile
from kcg.kernel.tile.cost import predicted_seconds
from kcg.kernel.tile.forms import form_of
from kcg.kernel.tile.generate import generate_kernel
from kcg.kernel.tile.legal import is_legal, legal_values, starts
from kcg.kernel.tile.parameters import REDUCTION, TileParameters
from kcg.kernel.tile.pointwise import StreamPlan
from kcg.kernel.tile.prior import default_parameters
from kcg.kernel.tile.reduction import may_split
from kcg.kernel.tile.space import TileSpace, schedule_of
from kcg.kernel.tile.tiles import Tiled
from kcg.kernel.tile.vectors import alike
from kcg.optimize.planning import planned
from kcg.optimize.region_plans import Proposals, expected_saving_s, plans_of, propose
from kcg.types import Region
from kcg.workloads.registry import spec_of
from tests.captured import captured
from tests.chains import region_of, sequence_of
from tests.kernel.tile.running import HAS_TRITON, WITHOUT, Case, random_program, wrong_of
from tests.kernels import empty
from tests.known_targets import KNOWN_TARGETS
from tests.plans import run
from tests.slow import first

TARGET = KNOWN_TARGETS["sm_90"]
with_triton = pytest.mark.skipif(not HAS_TRITON, reason=WITHOUT)
TERMS = 40
PLAIN = TileParameters(REDUCTION, ((0,),), (1,), reduce_tile=64, num_stages=1)
CHANGES = ({}, {"tile": (4,)}, {"tile": (8,), "reduce_tile": 16}, {"reduce_tile": 8, "num_stages": 2})


def same(made: Tensor) -> Tensor:
    return made


def product(
    x: Tensor, rows: int, dtype: str = "bfloat16", *, bias: bool = True, then: Callable[[Tensor], Tensor] = same
) -> Tensor:
    made = x.matmul(empty(rows, x.shape[0], dtype=dtype).T, dtype="float32")
    return then(made + empty(rows, dtype=dtype).float() if bias else made).contiguous()


def products(*rows: int, terms: int = TERMS, dtype: str = "bfloat16") -> tuple[Tensor, ...]:
    """A modulation, or query, key and value of one token: each with a matrix and a bias of its own."""
    x = empty(terms, dtype=dtype)
    return tuple(product(x, count, dtype) for count in rows)


def unlike() -> tuple[Tensor, ...]:
    """Two of one text and two of others: without a bias, and stored in another format."""
    x = empty(TERMS, dtype="bfloat16")
    others = (product(x, 9, bias=False), product(x, 16, then=lambda made: made.relu().cast("bfloat16")))
    return product(x, 24), product(x, 16), *others


def gate_and_up(x: Tensor) -> Tensor:
    """Of one token as tinygrad cuts them: the second call has the join."""
    gate = product(x, 21, then=Tensor.silu)
    return product(x, 21, then=lambda made: gate * made)


def gated() -> tuple[Tensor, ...]:
    return (gate_and_up(empty(TERMS, dtype="bfloat16")),)


def gated_beside() -> tuple[Tensor, ...]:
    x = empty(TERMS, dtype="bfloat16")
    return gate_and_up(x), product(x, 12)


GROUPS: dict[str, tuple[Callable[[], tuple[Tensor, ...]], int, int]] = {
    "two": (lambda: products(24, 24), 2, 1),
    "three of odd rows": (lambda: products(13, 13, 13), 3, 1),
    "four of different rows": (lambda: products(24, 8, 8, 16), 4, 1),
    "eight": (lambda: products(*8 * (7,)), 8, 1),
    "odd terms": (lambda: products(24, 24, terms=45), 2, 1),
    "float32": (lambda: products(24, 8, 8, dtype="float32"), 3, 1),
    "unlike": (unlike, 4, 3),
    "gated": (gated, 1, 1),
    "gated beside another": (gated_beside, 2, 2),
}
"""Name -> tensors, products in the launch, and texts with tiles of 8 rows."""


def read(tensors: tuple[Tensor, ...]) -> tuple[Region, TileKernel]:
    region = region_of(*tensors)
    kernel = read_region(region)
    assert kernel.rows is None and len(kernel.written) == len(region.outputs)
    return region, kernel


def one_of(*tensors: Tensor) -> TileKernel:
    """The only kernel of some tensors."""
    (kernel,) = region_of(*tensors).kernels
    return read_kernel(Region((kernel,)))


@with_triton
@pytest.mark.parametrize("name", first(3, GROUPS))
def test_each_stores_its_own_result(name: str, tmp_path: Path) -> None:
    build, launched, texts = GROUPS[name]
    region, kernel = read(build())
    assert len(kernel.launched) == launched and all(map(vectors_of, kernel.launched))
    cases = {}
    for changes in CHANGES:
        p = replace(PLAIN, fast_math=False, **changes)
        program = generate_kernel(kernel, TARGET, p, interpreted=True)
        assert [launch.grid for launch in program.launches] == [
            sum(-(-one.extents[0] // p.tile[0]) for one in kernel.launched)
        ]
        cases[str(changes)] = Case(region, program)
    assert not wrong_of(cases, tmp_path)
    assert len(alike(tiled(kernel, 1))) <= texts if launched > 1 else texts == 1


def tiled(kernel: TileKernel, rows: int) -> tuple[Tiled, ...]:
    """The products of a launch, in tiles of so many rows."""
    form = form_of(PLAIN)
    plan: StreamPlan = form.plan(form.view(kernel), TARGET, replace(PLAIN, tile=(rows,)))
    return plan.tiled


def test_products_that_differ_in_buffers_alone_are_one_text() -> None:
    """However many there are: what compiling takes does not grow with them."""
    texts = [generate_kernel(read(products(*n * (64,)))[1], TARGET, PLAIN).source for n in (2, 8)]
    assert [text.count("tl.load") for text in texts] == [3, 3] and not any("if " in text for text in texts)
    _, kernel = read(products(64, 40, 24))
    assert len(alike(tiled(kernel, 8))) == 1, "no tile has a row too many"
    assert len(alike(tiled(kernel, 16))) == 3
    _, kernel = read(unlike())
    assert [len(group) for group in alike(tiled(kernel, 8))] == [2, 1, 1]


def test_a_pointers_name_is_no_buffers() -> None:
    _, kernel = read(products(*8 * (16,)))
    program = generate_kernel(kernel, TARGET, PLAIN)
    names = {a.slot: a.name for a in program.launches[0].arguments}
    assert set(names) == {buffer.slot for buffer in kernel.buffers} and len({*names.values()}) == len(names)
    assigned = {line.split(" = ")[0].strip() for line in program.source.splitlines() if " = " in line}
    assert "pointer" in assigned and assigned.isdisjoint(names.values())


@pytest.mark.slow
@with_triton
def test_random_groups_are_right(tmp_path: Path) -> None:
    """Of any number, rows, terms and formats, with and without a bias, and of any parameters."""
    rng, cases = Random(35), {}
    for number in range(6):
        x = empty(rng.choice((24, 33, 40, 64)), dtype=(dtype := rng.choice(("bfloat16", "float16", "float32"))))
        rows = [rng.randint(1, 40) for _ in range(2)]
        kinds = [(rng.choice(rows), rng.random() < 0.7) for _ in range(rng.randint(2, 8))]
        region, kernel = read(tuple(product(x, count, dtype, bias=bias) for count, bias in kinds))
        assert len(kernel.launched) == len(kinds)
        for program in range(2):
            cases[f"{number} {program} {dtype} {kinds}"] = Case(region, random_program(kernel, TARGET, rng))
    assert not wrong_of(cases, tmp_path)


# ---- parameters


def test_its_parameters_are_those_of_a_single_one() -> None:
    _, group = read(products(*4 * (4096,), terms=3072))
    alone = one_of(*products(4096, terms=3072))
    p = default_parameters(group, TARGET)
    assert p.form == REDUCTION and p.evict_first == (1,) and is_legal(group, TARGET, p)
    assert starts(group, TARGET) == (p,)
    for field in ("tile", "reduce_tile", "num_warps", "evict_first"):
        assert legal_values(group, TARGET, p, field) == legal_values(alone, TARGET, p, field)
    assert legal_values(group, TARGET, p, "split") == (1,)
    with pytest.raises(UnsupportedTile, match="split"):
        generate_kernel(group, TARGET, replace(p, split=2))
    with pytest.raises(UnsupportedTile, match="axes"):
        generate_kernel(group, TARGET, replace(p, axes=(), tile=()))
    source = generate_kernel(read(unlike())[1], TARGET, replace(PLAIN, evict_first=(1,))).source
    assert source.count("evict_first") == 3, "the matrix of each text"


def test_a_single_one_may_still_be_split() -> None:
    kernel = one_of(*products(64, terms=16_384))
    assert may_split(kernel) and default_parameters(kernel, TARGET).split > 1
    assert may_split(read(gated())[1]), "as of one kernel with two sums"


def test_one_launch_is_expected_to_take_less_than_several() -> None:
    _, kernel = read(products(*4 * (18_432,), terms=3072))
    both = [kernel, one_of(*products(18_432, terms=3072))]
    together_s, alone_s = (predicted_seconds(k, TARGET, default_parameters(k, TARGET)) for k in both)
    bytes_s = 4 * 18_432 * 3072 * 2 / 3.35e12
    assert bytes_s < together_s < 4 * alone_s


@with_triton
@pytest.mark.parametrize(("rows", "terms"), [((18_432,) * 6, 3072), ((2048, 512, 512), 2048)])
def test_large_groups_compile(
    rows: tuple[int, ...], terms: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    region, kernel = read(products(*rows, terms=terms))
    space = TileSpace(region, TARGET, kernel)
    (launch,) = compile_tile(region, space.start(), TARGET).launches
    report = dict(launch.compiled.report)
    assert not report["spilled_bytes"] and report["registers"] <= 64, report


@with_triton
def test_branches_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for tensors in (unlike(), gated_beside()):
        region, kernel = read(tensors)
        compile_tile(region, schedule_of(default_parameters(kernel, TARGET)), TARGET)


# ---- refusals


def test_what_is_none_is_refused_by_name() -> None:
    x, y = (empty(TERMS, dtype="bfloat16") for _ in range(2))
    with pytest.raises(UnsupportedTile, match=f"{VECTORS}: they read no vector in common"):
        read_region(region_of(product(x, 24), product(y, 16)))
    with pytest.raises(UnsupportedTile, match=f"{VECTORS}: they read no vector in common"):
        read_region(region_of(product(x, 24), product(x[8:], 16)))
    gate = product(x, 24)
    with pytest.raises(UnsupportedTile, match=f"{VECTORS}: one is more than a value"):
        read_region(region_of(gate, product(x, 24, then=lambda made: gate * made), product(x, 16)))


def test_products_of_several_rows_are_none() -> None:
    x = empty(2, TERMS)
    kernels = region_of((x @ empty(24, TERMS).T).contiguous(), x.sum(1).contiguous()).kernels
    assert not any(vectors_of(read_kernel(Region((kernel,)))) for kernel in kernels)


# ---- candidates


def test_equal_ones_are_proposed_in_groups_of_powers_of_two() -> None:
    sequence = sequence_of(*products(*11 * (24,)))
    found = {len(c.region.kernels): c.places for c in candidates_of(sequence) if c.form is Form.VECTOR}
    assert {size: len(places) for size, places in found.items()} == {8: 1, 4: 2, 2: 5}
    for size, places in found.items():
        assert sorted(place for group in places for place in group) == list(range(len(places) * size))
    (half,) = candidates_of(sequence_of(*products(*3 * (24,))), Limits(products=2, sharing=2))
    assert half.places == ((0, 1),)


def test_a_few_others_are_proposed_in_all_groups() -> None:
    found = candidates_of(sequence_of(*products(24, 8, 8)))
    assert {c.form for c in found} == {Form.VECTOR}
    assert sorted(len(c.region.kernels) for c in found for _ in c.places) == [2, 2, 2, 3]


def test_one_that_needs_anothers_result_is_proposed_where_each_row_needs_its_own() -> None:
    (found,) = (c for c in candidates_of(sequence_of(*gated())) if c.form is Form.VECTOR)
    assert len(found.region.kernels) == 2 and len(found.region.outputs) == 1
    x = empty(24, dtype="bfloat16")
    second = product(product(x, 24, then=lambda made: made.cast("bfloat16")), 24)
    assert not [c for c in candidates_of(sequence_of(second)) if c.form is Form.VECTOR]


@pytest.mark.parametrize("preset", first(1, ["mini-decode", "3.2-1b-decode"]))
def test_products_of_a_decoding_llama_are_candidates(preset: str) -> None:
    """In both layers query, key and value as one launch, and gate and up as one program, beside calls whose lengths are
    symbolic."""
    (sequence,) = spec_of("llama").capture(preset).sequences
    read = [(c, read_region(c.region)) for c in candidates_of(sequence) if c.form is Form.VECTOR]
    projections = [c for c, kernel in read if len(kernel.launched) == 3]
    gates = [c for c, kernel in read if len(kernel.launched) == 1 and len(kernel.reductions) == 2]
    assert [len(c.places) for c in (*projections, *gates)] == [2, 2]
    assert len(gates[0].region.outputs) == 1, "the gate is stored no more"


# ---- Flux


@pytest.fixture(scope="module")
def flux() -> Proposals:
    return propose(captured("flux", "1024"))


@pytest.mark.slow
def test_the_modulation_of_flux_is_planned_in_groups(flux: Proposals) -> None:
    """Of 38 equal products 6 and 3 were captured: so six groups of six run, and twelve of three, and two of each are
    left."""
    own = {key: c for key, c in flux.candidates.items() if c.form is Form.VECTOR}
    alone_s = {call.region.id: 5e-5 for call in flux.workload.calls}
    savings = {key: expected_saving_s(c, alone_s, TARGET) for key, c in own.items()}
    best, *_ = plans_of(flux, alone_s, savings)
    chosen = [c for c, _ in best.programs]
    assert sorted((len(c.region.kernels), read_region(c.region).extents) for c in chosen) == [
        (3, (9216,)),
        (6, (18432,)),
    ]
    for candidate in chosen:
        size = len(candidate.region.kernels)
        assert savings[candidate.region.id, ()] == pytest.approx(7.5e-6 * (size - 1), rel=0.01)
        calls = {call.region.id: call.calls for call in planned(flux.workload, [candidate.region]).calls}
        assert (calls[candidate.region.id], calls[candidate.region.kernels[0].id]) == (38 // size, 2)
    ((blocks, _),) = flux.sequences
    terms: dict[object, int] = {}
    assert run(blocks.sequence, terms, best.sequences[0]) == run(blocks.sequence, terms) != {}
