"""Contractions that share an operand as one program: what it computes, what it costs, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tinygrad import Tensor

from kcg.kernel.kinds import Unsupported, kind_named
from kcg.kernel.reading.fuse import read_region
from kcg.kernel.reading.kernel import TileKernel, read_kernel
from kcg.kernel.reading.unsupported import UnsupportedTile
from kcg.kernel.regions import Form, candidates_of
from kcg.kernel.repeats import blocks_of
from kcg.kernel.tile.compile import compile_tile
from kcg.kernel.tile.cost import predicted_seconds
from kcg.kernel.tile.forms import plan_of
from kcg.kernel.tile.generate import generate, generate_kernel
from kcg.kernel.tile.legal import is_legal, legal_values
from kcg.kernel.tile.parameters import CONTRACTION, REDUCTION, TMA, TileParameters
from kcg.kernel.tile.prior import default_parameters
from kcg.kernel.tile.program import TileSource
from kcg.kernel.tile.space import schedule_of
from kcg.optimize.exact_plan import best_plans
from kcg.optimize.region_plans import among, expected_saving_s, key_of, options_of, plans_of, propose
from kcg.types import Region
from tests.captured import captured
from tests.chains import region_of, sequence_of
from tests.kernel.tile.running import HAS_TRITON, WITHOUT, Case, compare, random_program, wrong_of
from tests.kernels import empty
from tests.known_targets import KNOWN_TARGETS

TARGET = KNOWN_TARGETS["sm_90"]
FEW = replace(TARGET, cores=3)  # persistent programs of small kernels have several tiles
with_triton = pytest.mark.skipif(not HAS_TRITON, reason=WITHOUT)

Sizes = tuple[int, int, int]
"""Rows, terms, columns."""
EVEN, ODD = (32, 32, 64), (37, 45, 51)


def operands(dtype: str, sizes: Sizes, count: int) -> tuple[Tensor, ...]:
    """What is shared, and the weights."""
    rows, terms, columns = sizes
    return empty(rows, terms, dtype=dtype), *(empty(columns, terms, dtype=dtype) for _ in range(count))


def gated(dtype: str, sizes: Sizes) -> tuple[Tensor, ...]:
    """Gate and up: only their product is seen."""
    x, one, other = operands(dtype, sizes, 2)
    return (((x @ one.T).silu().contiguous() * (x @ other.T)).contiguous(),)


def gate_kept(dtype: str, sizes: Sizes) -> tuple[Tensor, ...]:
    """The gate is an output as well, as a gradient needs it; with a residual."""
    x, one, other = operands(dtype, sizes, 2)
    gate = ((x @ one.T) + empty(sizes[2], dtype=dtype)).gelu().contiguous()
    return gate, (empty(sizes[0], sizes[2], dtype=dtype) + gate * (x @ other.T)).contiguous()


def apart(dtype: str, sizes: Sizes) -> tuple[Tensor, ...]:
    """Key and value: each is stored."""
    x, *weights = operands(dtype, sizes, 2)
    return tuple((x @ weight.T).contiguous() for weight in weights)


def three(dtype: str, sizes: Sizes) -> tuple[Tensor, ...]:
    """Query, key and value of as many heads, each with a bias."""
    x, *weights = operands(dtype, sizes, 3)
    return tuple((x @ weight.T + empty(sizes[2], dtype=dtype)).contiguous() for weight in weights)


def normed(dtype: str, sizes: Sizes) -> tuple[Tensor, ...]:
    """The operand that is shared is computed on the way."""
    x, one, other = operands(dtype, sizes, 2)
    x = ((x.float() * empty(sizes[0], 1)).cast(dtype) * empty(sizes[1], dtype=dtype)).contiguous()
    return (((x @ one.T).silu().contiguous() * (x @ other.T)).contiguous(),)


def turned(dtype: str, sizes: Sizes) -> tuple[Tensor, ...]:
    """What is shared is the operand of the columns."""
    x, *weights = operands(dtype, sizes, 2)
    return tuple((weight @ x.T).contiguous() for weight in weights)


def in_batches(dtype: str, sizes: Sizes) -> tuple[Tensor, ...]:
    """Operands with a range in common."""
    rows, terms, columns = sizes
    x, one, other = empty(3, rows, terms, dtype=dtype), *(empty(3, terms, columns, dtype=dtype) for _ in range(2))
    return (((x @ one).sigmoid().contiguous() * (x @ other)).contiguous(),)


def projections(dtype: str, sizes: Sizes) -> tuple[Tensor, ...]:
    """Query, key and value of grouped heads: fewer keys and values than queries."""
    rows, terms, columns = sizes
    x = empty(rows, terms, dtype=dtype)
    return tuple(
        (x @ empty(n, terms, dtype=dtype).T + empty(n, dtype=dtype)).contiguous()
        for n in (columns, columns // 2, columns // 4)
    )


def heads(dtype: str, sizes: Sizes, size: int = 16) -> tuple[Tensor, ...]:
    """The same, with a norm of each head of queries and keys and a rotation of pairs; all stored heads first."""
    rows, terms, columns = sizes
    x, cos, sin = empty(rows, terms, dtype=dtype), empty(rows, 1, size // 2), empty(rows, 1, size // 2)
    found = []
    for place, n in enumerate((columns, columns // 2, columns // 2)):
        made = (x @ empty(n, terms, dtype=dtype).T).contiguous().reshape(rows, n // size, size)
        if place < 2:
            wide = made.float()
            wide = wide * (wide.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * empty(size, dtype=dtype)
            pairs = wide.reshape(rows, n // size, size // 2, 2)
            a, b = pairs[..., 0], pairs[..., 1]
            turned = Tensor.stack(a * cos - b * sin, a * sin + b * cos, dim=-1)
            made = turned.reshape(rows, n // size, size).cast(dtype)
        found.append(made.permute(1, 0, 2).contiguous())
    return tuple(found)


Keep = Callable[[Tensor], Tensor]
"""Whether a product stays in the kernel that joins it (`inside`), or is the result of a call (`stored`)."""


def inside(product: Tensor) -> Tensor:
    return product


def stored(product: Tensor) -> Tensor:
    return product.contiguous()


def gate_of(dtype: str, sizes: Sizes, keep: Keep = inside) -> tuple[Tensor, ...]:
    x, one, other = operands(dtype, sizes, 2)
    return ((keep(x @ one.T).silu() * keep(x @ other.T)).contiguous(),)


def biased(dtype: str, sizes: Sizes, keep: Keep = inside) -> tuple[Tensor, ...]:
    """Gate and up with biases, each rounded on the way."""
    x, one, other = operands(dtype, sizes, 2)
    gate, up = (
        keep((x.float() @ weight.float().T + empty(sizes[2], dtype=dtype)).cast(dtype)) for weight in (one, other)
    )
    return ((gate.gelu() * up).contiguous(),)


def third(dtype: str, sizes: Sizes, keep: Keep = inside) -> tuple[Tensor, ...]:
    x, *weights = operands(dtype, sizes, 3)
    gate, up, more = (keep(x @ weight.T) for weight in weights)
    return ((gate.silu() * up + more.sigmoid()).contiguous(),)


def batched_gate(dtype: str, sizes: Sizes, keep: Keep = inside) -> tuple[Tensor, ...]:
    rows, terms, columns = sizes
    x, one, other = empty(3, rows, terms, dtype=dtype), *(empty(3, terms, columns, dtype=dtype) for _ in range(2))
    return ((keep(x @ one).sigmoid() * keep(x @ other)).contiguous(),)


def both_kept(dtype: str, sizes: Sizes) -> tuple[Tensor, ...]:
    """Somebody else reads both products."""
    x, *weights = operands(dtype, sizes, 2)
    gate, up = ((x @ weight.T).contiguous() for weight in weights)
    return gate, up, (gate.silu() * up).contiguous()


def gate_with_norm(dtype: str, sizes: Sizes) -> tuple[Tensor, ...]:
    """A norm of heads is made of what one kernel joins."""
    (made,) = gate_of(dtype, sizes)
    wide = made.reshape(sizes[0], sizes[2] // 16, 16).float()
    return ((wide * (wide.square().mean(-1, keepdim=True) + 1e-6).rsqrt()).cast(dtype).contiguous(),)


def gate_and_another(dtype: str, sizes: Sizes) -> tuple[Tensor, ...]:
    """Gate and up as one kernel, and another product of the same rows."""
    x, one, other, more = operands(dtype, sizes, 3)
    return ((x @ one.T).silu() * (x @ other.T)).contiguous(), (x @ more.T).contiguous()


def sum_of(dtype: str, sizes: Sizes, keep: Keep = inside) -> tuple[Tensor, ...]:
    """Products of different lengths, with a bias."""
    rows, terms, columns = sizes
    found = [
        keep(empty(rows, n, dtype=dtype) @ empty(columns, n, dtype=dtype).T) for n in (terms, terms // 2, 3 * terms)
    ]
    return ((found[0] + found[1] + found[2] + empty(columns, dtype=dtype)).gelu().contiguous(),)


Made = Callable[[str, Sizes], tuple[Tensor, ...]]
CHAINS: tuple[Made, ...] = (gated, gate_kept, apart, three, normed, turned, in_batches)
PLAIN = TileParameters(CONTRACTION, ((0,), (1,)), (16, 32), reduce_tile=16, num_stages=2)
BATCHED = {((0,), (1,)): ((1,), (2,)), ((1,), (0,)): ((2,), (1,))}  # the axes of what has a range more
CHANGES = (
    {}, {"loads": TMA}, {"loads": TMA, "persistent": 1, "epilogue_parts": 2}, {"tile": (32, 48), "group": 4},
    {"axes": ((1,), (0,))}, {"read_early": True},
)  # fmt: skip


def in_formats(first: Made, *others: Made, slow: Sequence[Made] = ()) -> list[Any]:
    """Chains and their formats: float32, of which one program is made, of the first alone unless all are asked for, and
    nothing of the slow ones."""
    return [
        (first, ("bfloat16", "float32")),
        *((chain, ("bfloat16",)) for chain in others),
        *(pytest.param(chain, ("bfloat16",), marks=pytest.mark.slow) for chain in slow),
        *(pytest.param(chain, ("float16", "float32"), marks=pytest.mark.slow) for chain in (first, *others, *slow)),
    ]


def sharing(region: Region) -> TileKernel:
    kernel = read_region(region)
    assert kernel.sharing_operand and len(kernel.together) == len(kernel.reductions) and kernel.operands.count(1) == 1
    return kernel


@pytest.mark.slow
@with_triton
@pytest.mark.parametrize(
    ("chain", "dtypes"), in_formats(gated, gate_kept, normed, turned, slow=(apart, three, in_batches))
)
def test_sums_of_one_loop_are_right(chain: Made, dtypes: tuple[str, ...], tmp_path: Path) -> None:
    cases = {}
    for dtype in dtypes:
        for sizes in (EVEN, ODD):
            region = region_of(*chain(dtype, sizes))
            kernel = sharing(region)
            for changes in CHANGES:
                p = replace(PLAIN, fast_math=False, **changes)
                p = replace(p, axes=BATCHED[p.axes]) if chain is in_batches else p
                if p.loads == TMA and (sizes == ODD or chain is normed):
                    continue  # rows that are not aligned to 16 bytes, and what is computed, TMA does not load
                if dtype == "float32" and changes:
                    continue
                program = generate_kernel(kernel, FEW, p, interpreted=True)
                assert len(program.launches) == 1
                cases[f"{dtype} {sizes} {changes}"] = Case(region, program)
    assert not wrong_of(cases, tmp_path)


JOINS = {gate_of: (1, 0), biased: (1, 0), third: (2, 0), batched_gate: (1, 0), sum_of: (0, 2)}
"""Functions that join products: how many share the loop of the contraction, and how many are before it."""


def kernels_of_joins(dtype: str, sizes: Sizes) -> dict[str, tuple[Region, TileKernel]]:
    """Each join as one kernel, and as a call behind those of the products."""
    found = {}
    for join, (sharing, before) in JOINS.items():
        for keep in (inside, stored):
            region = region_of(*join(dtype, sizes, keep))
            kernel = read_region(region)
            assert len(region.kernels) == (1 if keep is inside else sharing + before + 2)
            assert (len(kernel.sharing_operand), len(kernel.chained), len(kernel.written)) == (sharing, before, 1)
            assert len(kernel.outputs) == (3 if join is batched_gate else 2)
            found[f"{join.__name__} {keep.__name__} {dtype} {sizes}"] = region, kernel
    return found


@pytest.mark.slow
@with_triton
@pytest.mark.parametrize("sizes", [EVEN, pytest.param(ODD, marks=pytest.mark.slow)])
def test_a_join_is_read_alike_in_one_kernel_and_as_a_call_of_its_own(sizes: Sizes, tmp_path: Path) -> None:
    cases = {
        f"{name} {seed}": Case(region, random_program(kernel, FEW, Random(f"{name} {seed}")))
        for name, (region, kernel) in kernels_of_joins("bfloat16", sizes).items()
        for seed in range(2)
    }
    assert not wrong_of(cases, tmp_path)


@with_triton
def test_products_are_stored_where_somebody_else_reads_them(tmp_path: Path) -> None:
    region = region_of(*both_kept("bfloat16", ODD))
    kernel = sharing(region)
    assert len(kernel.written) == 3 and len(kernel.together) == 2
    cases = [Case(region, random_program(kernel, FEW, Random(seed))) for seed in range(3)]
    assert not any(compare(cases, tmp_path))


@with_triton
def test_one_kernel_of_several_products_is_part_of_regions(tmp_path: Path) -> None:
    """What is made of its result is written in its tiles; another product of the same rows is in its loop."""
    cases, found = {}, {}
    for chain in (gate_with_norm, gate_and_another):
        region = region_of(*chain("bfloat16", EVEN))
        kernel = sharing(region)
        found[chain] = len(region.kernels), len(kernel.together), len(kernel.epilogue)
        for seed in range(2):
            cases[f"{chain.__name__} {seed}"] = Case(region, random_program(kernel, FEW, Random(seed)))
    assert found == {gate_with_norm: (3, 2, 1), gate_and_another: (2, 3, 0)}
    assert not wrong_of(cases, tmp_path)


def test_the_same_product_twice_is_one() -> None:
    x, weight = operands("bfloat16", EVEN, 1)
    kernel = read_region(region_of(((x @ weight.T).silu() * (x @ weight.T)).contiguous()))
    assert kernel.contraction is not None and len(kernel.reductions) == len(kernel.together) == 1


def test_one_kernel_of_products_that_share_nothing_is_a_reduction() -> None:
    x, *weights = operands("float32", EVEN, 5)
    y, other = operands("float32", EVEN, 1)
    longer = empty(32, 48) @ empty(48, 64)
    sums = [x @ weight.T for weight in weights]
    for made in (
        (x @ weights[0].T) * (y @ other.T),
        (x @ weights[0].T) * longer,
        (sums[0] + longer).silu() * sums[1],
        sums[0].silu() * sums[1] + sums[2].silu() * sums[3] * sums[4],
    ):
        kernel = read_region(region_of(made.contiguous()))
        assert kernel.contraction is None and not kernel.sharing_operand and not kernel.chained
        assert default_parameters(kernel, TARGET).form == REDUCTION


def test_a_join_is_proposed_with_the_products_that_it_joins() -> None:
    """With gate and up neither of which is stored; so is a sum of different lengths."""
    for join in JOINS:
        sequence = sequence_of(*join("bfloat16", (64, 96, 128), stored))
        calls = len(sequence.calls)
        (found,) = [c for c in candidates_of(sequence) if len(c.region.kernels) == calls]
        elements = 64 * 128 * (3 if join is batched_gate else 1)
        assert found.form is Form.EPILOGUE and found.saved_bytes >= (calls - 1) * 2 * 2 * elements
        assert len(found.region.outputs) == 1 and read_region(found.region).contraction is not None


@pytest.mark.slow
@with_triton
@pytest.mark.parametrize(("chain", "dtypes"), in_formats(projections, slow=(heads,)))
def test_tiles_of_several_contractions_in_one_launch_are_right(
    chain: Made, dtypes: tuple[str, ...], tmp_path: Path
) -> None:
    cases = {}
    for dtype in dtypes:
        for sizes in ((32, 32, 64), (37, 45, 64 if chain is heads else 52)):
            region = region_of(*chain(dtype, sizes))
            kernel = read_region(region)
            assert len(kernel.grouped) == 2 and all(one.contraction for one in kernel.launched)
            for changes in CHANGES:
                p = replace(PLAIN, **changes)
                in_order = p.axes == PLAIN.axes and p.tile == PLAIN.tile
                if p.read_early or (p.loads == TMA and sizes[1] == 45):
                    continue
                if chain is heads and not in_order:
                    with pytest.raises(UnsupportedTile, match="other columns in one block"):
                        generate_kernel(kernel, TARGET, p)
                    continue
                program = generate_kernel(kernel, TARGET, p, interpreted=True)
                assert len(program.launches) == 1
                cases[f"{dtype} {sizes} {changes}"] = Case(region, program)
            for cores in (3, 5):  # more than the values have tiles
                for changes in ({}, {"group": 4}, {"epilogue_parts": 2}):
                    p = replace(PLAIN, persistent=1, **changes)
                    program = generate_kernel(kernel, replace(TARGET, cores=cores), p, interpreted=True)
                    assert program.launches[0].grid == cores
                    cases[f"{dtype} {sizes} {cores} programs {changes}"] = Case(region, program)
    assert not wrong_of(cases, tmp_path)


def test_every_tile_of_each_contraction_is_a_program() -> None:
    """24 of the queries, 12 of the keys, 6 of the values; a program is in one branch."""
    source = generate(region_of(*projections("bfloat16", (96, 64, 128))), TARGET, PLAIN)
    assert source.launches[0].grid == 24 + 12 + 6
    branches = [line.strip() for line in source.source.splitlines() if line.startswith("    if ")]
    assert [re.sub(r"\bprogram\d*", "n", line) for line in branches] == [
        "if (n < 24):", "if (n >= 24) & (n < 36):", "if (n >= 36):",
    ]  # fmt: skip


def taken(source: TileSource) -> list[list[tuple[int, int]]]:
    """Of each persistent program the tiles that it takes: of which contraction, and its number among that one's."""
    begins = re.findall(r"^    (first\d*) = (.*)$", source.source, re.MULTILINE)
    loops = re.findall(r"^    for tile\d* in tl\.range\((\w+), (\d+), (\d+)", source.source, re.MULTILINE)
    (program,) = re.findall(r"(program\d*) = tl\.program_id\(0\)", source.source)
    found = []
    for number in range(source.launches[0].grid):
        names = {program: number}
        names |= {name: eval(text, {}, names) for name, text in begins}
        ranges = [range(names[begin], int(end), int(step)) for begin, end, step in loops]
        found.append([(place, tile) for place, tiles in enumerate(ranges) for tile in tiles])
    return found


@pytest.mark.parametrize("cores", [1, 2, 3, 5, 7, 16, 23, 40, 41])
def test_persistent_programs_take_tiles_of_all_contractions_as_of_one_list(cores: int) -> None:
    """Tile after tile of 24, 12 and 6: each is somebody's, and nobody has more than one more than another."""
    region = region_of(*projections("bfloat16", (96, 64, 128)))
    for persistent in (1, 2):
        source = generate(region, replace(TARGET, cores=cores), replace(PLAIN, persistent=persistent))
        programs = taken(source)
        assert len(programs) == source.launches[0].grid == min(42, persistent * cores)
        whole = [(place, tile) for place, count in enumerate((24, 12, 6)) for tile in range(count)]
        assert programs == [whole[number :: len(programs)] for number in range(len(programs))]
        assert len({len(tiles) for tiles in programs}) <= 2


def test_descriptors_of_persistent_programs_are_made_once() -> None:
    """That of the operand which all read is one; none is made in a loop."""
    p = replace(PLAIN, persistent=1, loads=TMA, epilogue_parts=2)
    source = generate(region_of(*projections("bfloat16", (96, 64, 128))), replace(TARGET, cores=5), p).source
    made = re.findall(r"^( *)\w+ = tl\.make_tensor_descriptor\((\w+)", source, re.MULTILINE)
    assert len(made) == 1 + 3 + 3 and {indent for indent, _ in made} == {"    "}
    assert len({buffer for _, buffer in made}) == len(made)
    assert source.count("    for tile") == source.count(", flatten=True):") == 3


@pytest.mark.slow
@with_triton
@pytest.mark.parametrize("count", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_programs_of_random_parameters_are_right(count: int, tmp_path: Path) -> None:
    """Of each chain in one format, each format in turn, or in all."""
    formats, cases = [*enumerate(("bfloat16", "float16", "float32"))], {}
    for place, chain in enumerate((*CHAINS, projections, heads)):
        for number, dtype in (formats * 2)[place % 3 :][:count]:
            region = region_of(*chain(dtype, (33 + 7 * number, 64, 64)))
            program = random_program(read_region(region), FEW, Random(f"{chain.__name__} {number}"))
            cases[f"{chain.__name__} {dtype}"] = Case(region, program)
    assert not wrong_of(cases, tmp_path)


@with_triton
def test_programs_that_share_the_terms_add_every_sum(tmp_path: Path) -> None:
    """What joins both sums is made by the second launch; with and without tensor cores."""
    region = region_of(*gated("bfloat16", (24, 96, 40)))
    cases = []
    for form, tile in ((CONTRACTION, (16, 32)), (REDUCTION, (4, 4))):
        p = replace(PLAIN, form=form, tile=tile, split=3, num_stages=1)
        program = generate(region, TARGET, p, interpreted=True)
        assert len(program.launches) == 2 and program.workspace_bytes == 2 * 3 * 24 * 40 * 4
        cases.append(Case(region, program))
    assert compare(cases, tmp_path) == ["", ""]


def test_the_shared_operand_is_loaded_once() -> None:
    for chain, loads in ((gated, 3), (apart, 3), (three, 4), (turned, 3)):
        region = region_of(*chain("bfloat16", EVEN))
        for by_tma in (False, True):
            p = replace(PLAIN, loads=TMA) if by_tma else PLAIN
            _, loop = generate(region, TARGET, p).source.split("    for ")
            inside = [line for line in loop.splitlines()[1:] if line.startswith("        ")]
            assert sum(".load(" in line for line in inside) == loads, loop
            assert sum("tl.dot(" in line for line in inside) == loads - 1


# ---- what is refused


def other_rows() -> tuple[Tensor, ...]:
    return (empty(32, 48) @ empty(48, 64)).contiguous(), (empty(32, 48) @ empty(48, 16)).contiguous()


def widths_differ_and_are_joined() -> tuple[Tensor, ...]:
    x = empty(32, 48)
    gate = (x @ empty(48, 64)).contiguous()
    return gate, ((x @ empty(48, 16)).contiguous() * gate[:, :16]).contiguous()


def nothing_shared() -> tuple[Tensor, ...]:
    return (((empty(32, 48) @ empty(48, 64)).contiguous() * (empty(32, 48) @ empty(48, 64))).contiguous(),)


def terms_differ() -> tuple[Tensor, ...]:
    x = empty(32, 48)
    return (((x @ empty(48, 64)).contiguous() * (x[:, :32] @ empty(32, 64))).contiguous(),)


def formats_differ() -> tuple[Tensor, ...]:
    x = empty(32, 48, dtype="float16")
    return (x @ empty(48, 64, dtype="float16")).contiguous(), (x.float() @ empty(48, 64)).contiguous()


def sum_and_its_terms() -> tuple[Tensor, ...]:
    """Terms of a sum have no sums of their own."""
    one, other = ((empty(32, n) @ empty(n, 64)).contiguous() for n in (48, 32))
    return one, (one + other).contiguous()


def one_of_another() -> tuple[Tensor, ...]:
    x = empty(32, 48)
    return (x @ empty(48, 32)).contiguous(), ((x @ empty(48, 32)).contiguous() @ empty(32, 32)).contiguous()


REFUSED = {
    other_rows: "several products: products of other formats, terms or columns",
    widths_differ_and_are_joined: "several products: what they store has different shapes",
    nothing_shared: "several products: they share no operand",
    terms_differ: "several products: they are not 2 to 4 over the same rows, columns and terms",
    sum_and_its_terms: "several products: they are not 2 to 4 over the same rows, columns and terms",
    formats_differ: "several products: products of other formats, terms or columns",
    one_of_another: "several products: one is of another one's result",
}


@pytest.mark.parametrize("chain", REFUSED)
def test_what_cannot_be_one_launch_is_refused_by_name(chain: Callable[[], tuple[Tensor, ...]]) -> None:
    with pytest.raises(UnsupportedTile) as refusal:
        read_region(region_of(*chain()))
    assert str(refusal.value) == REFUSED[chain]


# ---- sizes


def test_legal_tiles_are_those_whose_sums_fit_into_registers() -> None:
    kernel = sharing(region_of(*gated("bfloat16", (1024, 4096, 14336))))
    p = default_parameters(kernel, TARGET)
    tiles = legal_values(kernel, TARGET, p, "tile")
    assert {(128, 64), (64, 128), (128, 128), (64, 256)} <= set(tiles) and not {(128, 256), (256, 128)} & set(tiles)
    assert p.tile == (128, 128) and p.num_warps == 8 and p.loads == TMA and is_legal(kernel, TARGET, p)
    assert not is_legal(kernel, TARGET, replace(p, num_warps=4)), "256 sums a thread"
    assert legal_values(kernel, TARGET, replace(p, persistent=0), "tail") == (1,)
    three_sums = sharing(region_of(*three("bfloat16", (1024, 4096, 4096))))
    assert default_parameters(three_sums, TARGET).tile == (128, 64)
    assert (128, 128) not in legal_values(three_sums, TARGET, p, "tile") or three_sums.operands == (1, 3)


def test_a_loop_of_two_products_is_expected_to_cost_no_more_than_two_loops() -> None:
    """With the same tile it loads less; both take the tensor core alike."""
    sizes = (1024, 4096, 4096)
    one, both = (read_region(region_of(*made)) for made in (apart("bfloat16", sizes)[:1], apart("bfloat16", sizes)))
    p = replace(default_parameters(both, TARGET), tile=(128, 64), persistent=0, epilogue_parts=1)
    alone_s, together_s = (predicted_seconds(kernel, TARGET, p) for kernel in (one, both))
    assert alone_s < together_s < 2 * alone_s
    assert plan_of(both, TARGET, p).shared_bytes == plan_of(one, TARGET, replace(p, tile=(128, 128))).shared_bytes


LLAMA = {"Llama 3 8B": (1024, 4096, 14336), "Llama 3.2 1B": (1024, 2048, 8192)}
MODELS = ["Llama 3 8B", pytest.param("Llama 3.2 1B", marks=pytest.mark.slow)]


@pytest.mark.slow
@with_triton
@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.slow)])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    "chain", [gated, both_kept, *(pytest.param(one, marks=pytest.mark.slow) for one in (gate_kept, gate_of))]
)
def test_the_priors_choice_for_llama_spills_nothing(
    chain: Made, model: str, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    region = region_of(*chain(dtype, LLAMA[model]))
    kernel = sharing(region)
    p = default_parameters(kernel, TARGET)
    (launch,) = compile_tile(region, schedule_of(p), TARGET).launches
    report = dict(launch.compiled.report)
    assert report["wgmma"] and not report["spilled_bytes"] and report["registers"] < 256, report
    assert report["shared_bytes"] <= plan_of(kernel, TARGET, p).shared_bytes


@pytest.mark.slow
@with_triton
@pytest.mark.parametrize("model", MODELS)
def test_branches_of_one_launch_have_shared_memory_in_common(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    rows, width, _ = LLAMA[model]
    for tensors in (projections("bfloat16", (rows, width, width)), heads("bfloat16", (rows, width, width), 128)):
        region = region_of(*tensors)
        kernel = read_region(region)
        p = default_parameters(kernel, TARGET)
        assert is_legal(kernel, TARGET, p) and p.loads == TMA and not p.persistent
        (launch,) = compile_tile(region, schedule_of(p), TARGET).launches
        report = dict(launch.compiled.report)
        assert report["wgmma"] and (len(region.kernels) > 3 or not report["spilled_bytes"]), report
        assert (
            0.9 * plan_of(kernel, TARGET, p).shared_bytes
            <= report["shared_bytes"]
            <= plan_of(kernel, TARGET, p).shared_bytes
        )


@pytest.mark.slow
@with_triton
@pytest.mark.parametrize("sums", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_shared_memory_of_halves_that_groups_of_warps_put_together(
    sums: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 rows of 8 warps: whether the result lies along the rows of the tile or along its columns."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    x, weight, *_ = operands("bfloat16", sizes := (1024, 2048, 8192), 1)
    region = region_of(*(gated("bfloat16", sizes) if sums == 2 else (x @ weight.T,)))
    for axes in (((0,), (1,)), ((1,), (0,))):
        for loads in ("pointer", TMA):
            p = replace(PLAIN, axes=axes, tile=(64, 128), reduce_tile=64, num_warps=8, persistent=1, loads=loads)
            p = replace(p, epilogue_parts=2)
            (launch,) = compile_tile(region, schedule_of(p), TARGET).launches
            expected = plan_of(read_region(region), TARGET, p).shared_bytes
            assert 0.9 * expected <= dict(launch.compiled.report)["shared_bytes"] <= expected, p


# ---- in a workload


@pytest.mark.slow
@with_triton
def test_gate_and_up_of_llama_are_proposed_and_planned() -> None:
    """So are query, key and value; both in every layer. Expected is what the parts move more than the region."""
    workload = captured("llama", "mini-f16")
    found = among(
        propose(workload), lambda region: not isinstance(kind_named("tile").space(region, TARGET), Unsupported)
    )
    regions = {key: read_region(c.region) for key, c in found.candidates.items()}
    several = {
        key: c for key, c in found.candidates.items() if len(regions[key].together) + len(regions[key].grouped) > 1
    }
    assert {(c.form, len(c.region.kernels), found.calls[key]) for key, c in several.items()} == {
        (Form.JOINED, 2, 2.0), (Form.PROLOGUE, 3, 2.0), (Form.SHARED, 3, 2.0), (Form.SHARED, 2, 2.0),
        (Form.SHARED, 2, 4.0),
    }  # fmt: skip
    kernels = ((call.region.id, read_kernel(call.region)) for call in workload.calls)
    alone_s = {name: predicted_seconds(k, TARGET, default_parameters(k, TARGET)) for name, k in kernels}
    savings = {key: expected_saving_s(c, alone_s, TARGET) for key, c in found.candidates.items()}
    best, *_ = plans_of(found, alone_s, savings)
    chosen = {len(c.region.outputs): times for c, times in best.programs if c in several.values()}
    assert chosen == {1: 2, 3: 2}, "gate and up, with or without their norm; query, key and value"


def test_gate_and_up_of_equal_blocks_are_one_decision() -> None:
    """Five blocks that stand for forty: the region occurs in each, and counts forty times in a plan."""
    x: Tensor = empty(64, 32)
    for _ in range(5):
        x = (x + gated_by(x, 96) @ empty(96, 32)).contiguous()
    sequence = sequence_of(x)
    blocks = blocks_of(sequence, {call.kernel.id: 40 for call in sequence.calls if call.kernel})
    candidates = [c for c in candidates_of(sequence) if len(c.region.kernels) == 2 and c.form is Form.JOINED]
    (found,) = [c for c in candidates if is_sharing(c.region)]
    assert len(found.places) == 5 and sum(blocks.weight(places) for places in found.places) == 40
    alone_s = {call.kernel.id: 1.0 for call in sequence.calls if call.kernel}
    best, *_ = best_plans(blocks, options_of(blocks, [found], alone_s, {key_of(found): 0.5}), count=1)
    assert {option.places for option in best.programs} == {tuple(sorted(places)) for places in found.places}
    assert best.seconds == 40 * 2.5


def gated_by(x: Tensor, hidden: int) -> Tensor:
    one, other = (empty(x.shape[1], hidden) for _ in range(2))
    return ((x @ one).silu().contiguous() * (x @ other)).contiguous()


def is_sharing(region: Region) -> bool:
    try:
        return bool(read_region(region).sharing_operand)
    except UnsupportedTile:
        return False
