"""Generated programs compute what their kernels say: in Triton's interpreter, against the float64 reference."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from tinygrad import Tensor, Variable, dtypes
from tinygrad.dtype import float_to_fp8

from kcg.compat.tiny import Ops
from kcg.errors import ScheduleError
from kcg.kernel.codec import kernel_of
from kcg.kernel.compile import render_schedule
from kcg.kernel.opts.schedule import RAW
from kcg.kernel.reading.depth import depth_of
from kcg.kernel.reading.kernel import read_kernel
from kcg.kernel.reading.unsupported import UnsupportedTile
from kcg.kernel.tile.generate import generate, generate_kernel
from kcg.kernel.tile.legal import is_legal, random_parameters, starts
from kcg.kernel.tile.parameters import CONTRACTION, ELEMENTWISE, POINTER, REDUCTION, TMA, TileParameters
from kcg.kernel.tile.prior import default_parameters
from kcg.kernel.tile.program import WORKSPACE
from kcg.kernel.tile.space import TileSpace
from kcg.types import Region
from tests.kernel.tile.random_kernels import FAMILIES, random_kernel
from tests.kernel.tile.running import HAS_TRITON, MOST_PROGRAMS, WITHOUT, Case, compare
from tests.kernels import empty, example_asts, example_region, kernels_of
from tests.known_targets import KNOWN_TARGETS

TARGET = KNOWN_TARGETS["sm_90"]
interpreted = pytest.mark.skipif(not HAS_TRITON, reason=WITHOUT)

REFUSED = {"sharded.2": "range over devices"}
"""Of the examples, those that no tile program can express."""

EXAMPLES = [name for name in example_asts() if name not in REFUSED]

EVERY = 8  # of the examples, each eighth unless all are asked for


def case_of(region: Region, rng: Random, parameters: TileParameters | None = None) -> Case:
    kernel = read_kernel(region)
    chosen = parameters or random_parameters(kernel, TARGET, rng)
    variables = tuple((v.arg.name, rng.randint(int(v.vmin), int(v.vmax))) for v in kernel.variables)
    program = generate_kernel(kernel, TARGET, chosen, interpreted=True)
    return Case(region, program, variables, seed=rng.randint(1, 99))


def check(cases: dict[str, Case], folder: Path) -> None:
    wrong = dict(zip(cases, compare(list(cases.values()), folder), strict=True))
    assert not {name: text for name, text in wrong.items() if text}


@interpreted
@pytest.mark.parametrize(
    "names", [EXAMPLES[::EVERY], pytest.param(EXAMPLES, marks=pytest.mark.slow)], ids=["some", "all"]
)
def test_examples_with_the_priors_choice(names: list[str], tmp_path: Path) -> None:
    regions = {name: example_region(name) for name in names}
    rng = Random(0)
    cases = {
        name: case_of(region, rng, default_parameters(read_kernel(region), TARGET)) for name, region in regions.items()
    }
    check(cases, tmp_path)


@interpreted
def test_an_access_outside_of_the_buffers_is_an_error_unless_it_is_masked(tmp_path: Path) -> None:
    """What the interpreter of these tests is asked of every address: an edit of a right program each."""
    region = Region((kernel_of(*kernels_of(empty(3, 1000) + 1)),))
    right = case_of(region, Random(0), TileParameters(ELEMENTWISE, ((0,),), (4096,)))
    load, store, mask = "(x + i", "(out + i", "i < 3000"
    assert all(text in right.program.source for text in (load, store, mask))
    edits = {
        "as it is": ("", "", ""),  # a quarter of its addresses are outside, and masked
        "past the end": (load, "(x + 1 + i", "1 elements of a block"),
        "before the start": (load, "(x - 2 + i", "2 elements of a block"),
        "far away": (load, "(x + (i << 20)", "2999 elements of a block"),
        "a store": (store, "(out - 3 + i", "3 elements of a block"),
        "unmasked": (mask, "i < 4096", "1096 elements of a block"),
    }
    cases = [
        replace(right, program=replace(right.program, source=right.program.source.replace(before, after)))
        for before, after, _ in edits.values()
    ]
    found = compare(cases, tmp_path)
    for name, (_, _, words), seen in zip(edits, edits.values(), found, strict=True):
        assert (words in seen and "outside of the program's buffers" in seen) if words else not seen, f"{name}: {seen}"


@interpreted
@pytest.mark.parametrize(
    "names", [EXAMPLES[1::EVERY], pytest.param(EXAMPLES, marks=pytest.mark.slow)], ids=["some", "all"]
)
def test_examples_with_random_parameters(names: list[str], tmp_path: Path) -> None:
    check({name: case_of(example_region(name), Random(name)) for name in names}, tmp_path)


@interpreted
@pytest.mark.parametrize("seeds", [range(1), pytest.param(range(1, 40), marks=pytest.mark.slow)], ids=["one", "many"])
def test_random_kernels_with_random_parameters(seeds: range, tmp_path: Path) -> None:
    """Odd extents, layouts, formats, batch ranges, prologues and epilogues."""
    cases = {}
    for family in FAMILIES:
        for seed in seeds:
            region, rng = Region((kernel_of(random_kernel(family, seed)),)), Random(seed)
            drawn = (case_of(region, rng) for _ in range(50))
            cases[f"{family.__name__} {seed}"] = next(c for c in drawn if c.program.launches[0].grid <= MOST_PROGRAMS)
    check(cases, tmp_path)


@interpreted
def test_equal_factors_of_a_product_all_count(tmp_path: Path) -> None:
    """Of x * x @ w both factors are one node."""

    def drawn(*shape: int) -> Tensor:
        return empty(*shape, dtype="float16")

    def cubed(x: Tensor) -> Tensor:
        return x * x * x

    tensors = {
        "a square": drawn(40, 64).relu().square() @ drawn(64, 48),
        "on the other side": drawn(40, 64) @ drawn(64, 48).square(),
        "both": drawn(40, 64).square() @ drawn(64, 48).square(),
        "a cube in a batch": cubed(drawn(2, 33, 50)) @ drawn(2, 50, 21),
        "left out": (drawn(64, 1) > 0).where(drawn(40, 64).T.square(), 0).T @ drawn(64, 48),
    }
    cases = {}
    for name, x in tensors.items():
        region = Region((kernel_of(kernels_of(x)[-1]),))
        start = default_parameters(read_kernel(region), TARGET)
        assert start.form == CONTRACTION
        cases[name] = case_of(region, Random(name), start)
    check(cases, tmp_path)


@interpreted
def test_a_power_that_is_compared_does_not_overflow_on_the_way(tmp_path: Path) -> None:
    """As of the experts with the largest weights: 2^((x - m) c) is 1 where x and m are one, and m c is infinite."""
    x, m, kept = empty(8, 16), empty(8, 1), empty(8, 16)
    region = Region((kernel_of(kernels_of(((x - m).exp() == kept).sum(1))[-1]),))
    values = np.random.default_rng(0).choice(np.array([0.5, 2.5e38, -2.5e38], np.float32), (8, 16))
    held = {1: values.ravel(), 2: np.full(8, 2.5e38, np.float32), 3: (values > 1).astype(np.float32).ravel()}
    for start in starts(read_kernel(region), TARGET):
        case = replace(case_of(region, Random(0), start), inputs=held)
        assert "1.4426950408889634 +" not in case.program.source
        check({start.form: case}, tmp_path)


def split_kernels() -> dict[str, Region]:
    tensors = {
        "sum": empty(3, 1000).sum(1),
        "matrix_vector": (empty(1, 900, dtype="bfloat16") @ empty(900, 24, dtype="bfloat16")).silu(),
        "matmul": empty(20, 600, dtype="float16") @ empty(600, 33, dtype="float16") + empty(33, dtype="float16"),
        "largest": empty(3, 1000).max(1),
    }
    return {name: Region((kernel_of(kernels_of(x)[-1]),)) for name, x in tensors.items()}


@interpreted
def test_programs_that_share_a_reduction_add_their_parts_in_order(tmp_path: Path) -> None:
    cases = {}
    for name, region in split_kernels().items():
        for start in starts(read_kernel(region), TARGET):
            parameters = TileParameters(start.form, start.axes, (32,) * len(start.axes), reduce_tile=64, split=3)
            case = case_of(region, Random(name), parameters)
            if case.program.launches[0].grid <= 24:  # the interpreter takes programs one after another
                cases[f"{name} {start.form} {start.axes}"] = case
    assert {name.split()[0] for name in cases} == set(split_kernels())
    assert all(case.program.launches[0].arguments[-1].slot == WORKSPACE for case in cases.values())
    assert all(len(case.program.launches) == 2 and case.program.workspace_bytes > 0 for case in cases.values())
    check(cases, tmp_path)


@interpreted
def test_a_wrong_program_is_found(tmp_path: Path) -> None:
    """The comparison itself: a program whose sum leaves out a term, one that does not store, one that raises."""
    region = example_region("matmul_f32")
    kernel = read_kernel(region)
    case = case_of(region, Random(0), default_parameters(kernel, TARGET))
    right = case.program
    broken = [
        right.source.replace("range(0, 40,", "range(16, 40,"),
        right.source.replace("tl.store", "tl.zeros([1], tl.float32) # "),
        right.source.replace("tl.dot", "tl.no_such_function"),
    ]
    assert all(text != right.source for text in broken)
    programs = [type(right)(text, right.launches) for text in broken]
    results = compare([Case(region, program) for program in programs], tmp_path)
    assert all(results), results
    assert "no_such_function" in results[2]


def test_sources_are_the_same_every_time_and_small() -> None:
    for name in EXAMPLES[::7]:
        region = example_region(name)
        parameters = default_parameters(read_kernel(region), TARGET)
        first, second = (generate(region, TARGET, parameters) for _ in range(2))
        assert first == second
        assert len(first.source) < 20_000


@pytest.mark.parametrize(("name", "construct"), REFUSED.items())
def test_what_cannot_be_expressed_is_refused_by_name(name: str, construct: str) -> None:
    with pytest.raises(UnsupportedTile) as refusal:
        read_kernel(example_region(name))
    assert refusal.value.construct == construct


@pytest.mark.parametrize(
    ("name", "parameters", "construct"),
    [
        ("gelu", TileParameters(CONTRACTION, ((0,), (1,)), (16, 16), reduce_tile=16), "form"),
        ("gelu", TileParameters(REDUCTION, ((0,),), (16,), reduce_tile=16), "form"),
        ("matmul_f32", TileParameters(ELEMENTWISE, ((0,), (1,)), (16, 16)), "form"),
        ("matmul_f32", TileParameters(CONTRACTION, ((0,), (1,)), (16, 24), reduce_tile=16), "tile"),
        ("matmul_f32", TileParameters(CONTRACTION, ((0, 1),), (16,), reduce_tile=16), "axes"),
        ("matmul_f32", TileParameters(CONTRACTION, ((0, 1),), (16,), reduce_tile=16, epilogue_parts=2), "axes"),
        ("matmul_f32", TileParameters(CONTRACTION, ((0,), (1,)), (8, 16), reduce_tile=16), "tile"),
        ("matmul_f32", TileParameters(CONTRACTION, ((0,), (1,)), (16, 16), reduce_tile=24), "reduce_tile"),
        ("symbolic", TileParameters(REDUCTION, ((0,),), (16,), reduce_tile=16, split=2), "split"),
    ],
)
def test_parameters_that_do_not_fit_are_refused(name: str, parameters: TileParameters, construct: str) -> None:
    with pytest.raises(UnsupportedTile) as refusal:
        generate(example_region(name), TARGET, parameters)
    assert refusal.value.construct == construct


def test_grids_do_not_depend_on_variables() -> None:
    for name in ("symbolic", "symbolic_elementwise", "cache_update.0", "cache_update.1"):
        region = example_region(name)
        program = generate(region, TARGET, default_parameters(read_kernel(region), TARGET))
        (launch,) = program.launches
        assert launch.grid >= 1
        assert [a.variable for a in launch.arguments if a.slot is None] == [
            v.arg.name for v in read_kernel(region).variables
        ]


def test_parameters_survive_their_json_and_foreign_ones_are_refused() -> None:
    made = default_parameters(read_kernel(example_region("matmul_f16")), TARGET)
    assert TileParameters.from_json(made.to_json()) == made
    for text in (
        "",
        "[]",
        made.to_json().replace('"format":1', '"format":2'),
        made.to_json().replace('"num_warps":4', '"num_warps":"4"'),
        made.to_json().replace('"contraction"', '"convolution"'),
        made.to_json().replace('"axes":[[0],[1]]', '"axes":[0,1]'),
        made.to_json().replace('"tile":[', '"tile":[-1,'),
    ):
        assert text != made.to_json()
        with pytest.raises(ScheduleError):
            TileParameters.from_json(text)


@pytest.mark.slow
def test_what_is_chosen_is_legal_and_what_is_legal_can_be_generated() -> None:
    """The prior's choices, of kernels of few elements as well, programs drawn at random, and steps from there."""
    product = empty(256, 512, dtype="float16") @ empty(512, 768, dtype="float16")
    tensors = (product, empty(1 << 26).sum(), empty(40, 7200, dtype="float16") @ empty(7200, 40, dtype="float16"))
    regions = [*map(example_region, EXAMPLES[::5]), *(Region((kernel_of(kernels_of(x)[-1]),)) for x in tensors)]
    regions += [Region((kernel_of(random_kernel(family, seed)),)) for family in FAMILIES for seed in (0, 1)]
    for number, region in enumerate(regions):
        rng, target = Random(number), replace(TARGET, cores=(4, 132)[number % 2])
        kernel = read_kernel(region)
        for p in (*starts(kernel, target), *(random_parameters(kernel, target, rng) for _ in range(4))):
            assert is_legal(kernel, target, p), (region, p)
            assert TileParameters.from_json(p.to_json()) == p
            generate_kernel(kernel, target, p)
        space = TileSpace(region, target, kernel)
        schedule = space.start()
        while actions := space.actions(schedule):
            schedule = rng.choice(actions).schedule
            space.check(schedule)


def tma_cases() -> dict[str, Region]:
    tensors = {
        "rows": empty(40, 96, dtype="float16") @ empty(56, 96, dtype="float16").T + empty(56, dtype="float16"),
        "gelu": (empty(40, 96, dtype="bfloat16") @ empty(96, 56, dtype="bfloat16")).gelu(),
        "batch": empty(3, 40, 96) @ empty(3, 96, 56),
        "columns": empty(96, 40, dtype="float16").T @ empty(96, 56, dtype="float16"),
        "odd": empty(3, 33, 40, dtype="bfloat16") @ empty(3, 40, 56, dtype="bfloat16"),
    }
    return {name: Region((kernel_of(kernels_of(x)[-1]),)) for name, x in tensors.items()}


@pytest.mark.slow
@interpreted
def test_programs_with_descriptors_persistent_grids_and_parts(tmp_path: Path) -> None:
    few = replace(TARGET, cores=2)  # so that a program takes several tiles
    cases = {}
    for name, region in tma_cases().items():
        kernel = read_kernel(region)
        assert kernel.contraction is not None
        axes = tuple(side.ranges for side in kernel.contraction.sides)
        for persistent, parts, loads in ((0, 2, TMA), (1, 1, TMA), (1, 2, POINTER)):
            parameters = TileParameters(
                CONTRACTION, axes, (32, 32), 32, loads=loads, persistent=persistent, epilogue_parts=parts, group=2
            )
            program = generate_kernel(kernel, few, parameters, interpreted=True)
            assert program.launches[0].descriptors == (loads == TMA)
            assert not persistent or program.launches[0].grid == 2
            cases[f"{name} {loads} {persistent} {parts}"] = Case(region, program)
    check(cases, tmp_path)


@pytest.mark.slow
@interpreted
def test_what_is_added_to_each_sum_may_be_read_before_the_loop(tmp_path: Path) -> None:
    """Of every block of a tile, by descriptors, in a persistent grid, in halves and pieces; and once only."""
    x, w = empty(2, 24, 7, 7, dtype="float16"), empty(40, 24, 1, 1, dtype="float16")
    tensors = {
        "residual": empty(40, 96) @ empty(96, 56) + empty(40, 56),
        "odd": empty(3, 33, 40, dtype="bfloat16")
        @ empty(3, 40, 56, dtype="bfloat16")
        * empty(3, 33, 56).cast("bfloat16"),
        "picture": x.conv2d(w) + empty(2, 40, 7, 7, dtype="float16"),
    }
    cases = {}
    for name, tensor in tensors.items():
        region = Region((kernel_of(kernels_of(tensor)[-1]),))
        kernel = read_kernel(region)
        assert kernel.contraction is not None
        axes = tuple(side.ranges for side in kernel.contraction.sides)
        for columns, persistent, parts in ((32, 0, 1), (32, 1, 2), (48, 0, 2)):
            parameters = TileParameters(
                CONTRACTION, axes, (16, columns), 16, persistent=persistent, epilogue_parts=parts, read_early=True
            )
            program = generate_kernel(kernel, replace(TARGET, cores=2), parameters, interpreted=True)
            before, _, after = program.source.partition(" in range(")
            (slot,) = {load.buffer.slot for load in kernel.epilogue_loads}
            blocks = {(32, 1): 1, (32, 2): 2, (48, 2): 3}[columns, parts]
            (name,) = (a.name for a in program.launches[0].arguments if a.slot == slot)
            assert before.count(f"tl.load({name} + ") == blocks and f"tl.load({name} + " not in after
            cases[f"{name} {columns} {parts}"] = Case(region, program)
    check(cases, tmp_path)


@pytest.mark.slow
@interpreted
def test_columns_in_two_pieces_and_a_last_wave_that_is_shared(tmp_path: Path) -> None:
    cases = {}
    for name, region in tma_cases().items():
        kernel = read_kernel(region)
        assert kernel.contraction is not None
        axes = tuple(side.ranges for side in kernel.contraction.sides)
        for columns, tail, loads, parts in ((48, 1, TMA, 2), (48, 2, POINTER, 2), (96, 2, TMA, 1), (32, 3, TMA, 2)):
            parameters = TileParameters(
                CONTRACTION, axes, (16, columns), 16, loads=loads, tail=tail, epilogue_parts=parts, group=2
            )
            tiles = generate_kernel(kernel, TARGET, replace(parameters, tail=1)).launches[0].grid
            cores = next(n for n in (2, 4, 5) if tiles % n)  # so that the last wave is not full
            program = generate_kernel(kernel, replace(TARGET, cores=cores), parameters, interpreted=True)
            assert len(program.launches) == (2 if tail > 1 else 1)
            cases[f"{name} {columns} {tail} {loads}"] = Case(region, program)
    check(cases, tmp_path)


@pytest.mark.slow
@interpreted
def test_programs_that_take_tiles_in_turn_share_those_of_the_last_wave(tmp_path: Path) -> None:
    """Whole tiles in turn, then parts: as many as programs or more, of one step or of several, the last one empty."""
    cases = {}
    for name, region in tma_cases().items():
        kernel = read_kernel(region)
        assert kernel.contraction is not None
        axes = tuple(side.ranges for side in kernel.contraction.sides)
        for columns, persistent, tail, loads, parts in (
            (32, 1, 3, TMA, 2), (16, 2, 2, TMA, 1), (48, 1, 2, TMA, 2), (32, 1, 8, TMA, 1), (32, 1, 3, POINTER, 1),
        ):  # fmt: skip
            parameters = TileParameters(
                CONTRACTION, axes, (16, columns), 16, loads=loads, tail=tail, epilogue_parts=parts, group=2
            )
            tiles = generate_kernel(kernel, TARGET, replace(parameters, tail=1)).launches[0].grid
            cores = next(n for n in (1, 2, 4, 5) if tiles % (n * persistent) and n * persistent < tiles)
            parameters = replace(parameters, persistent=persistent)
            program = generate_kernel(kernel, replace(TARGET, cores=cores), parameters, interpreted=True)
            assert program.launches[0].grid == cores * persistent
            assert len(program.launches) == 2
            cases[f"{name} {columns} {persistent} {tail} {loads} {parts}"] = Case(region, program)
    check(cases, tmp_path)


def test_partial_tiles_that_32_bits_cannot_address_are_refused() -> None:
    p = TileParameters(CONTRACTION, ((0,), (1,)), (16, 16), reduce_tile=16, tail=1 << 23)
    with pytest.raises(UnsupportedTile, match="partial sums"):
        generate(Region((kernel_of(kernels_of(empty(48, 64) @ empty(64, 16))[-1]),)), replace(TARGET, cores=2), p)


@interpreted
def test_nothing_is_stored_past_a_symbolic_batch(tmp_path: Path) -> None:
    """A program for each element that may exist: what does not is masked, also where tiles are stored by TMA."""
    length = Variable("length", 1, 5).bind(3)
    a, b = empty(5, 32, 32, dtype="float16"), empty(5, 32, 48, dtype="float16")
    region = Region((kernel_of(kernels_of((a[:length] @ b[:length]).contiguous())[-1]),))
    kernel, few = read_kernel(region), replace(TARGET, cores=2)
    assert kernel.contraction is not None
    axes = tuple(side.ranges for side in kernel.contraction.sides)
    programs = []
    for loads, persistent in ((TMA, 0), (TMA, 1), (POINTER, 0), (POINTER, 1)):
        p = TileParameters(CONTRACTION, axes, (32, 48), 16, loads=loads, persistent=persistent)
        programs.append(generate_kernel(kernel, few, p, interpreted=True))
    assert not any(compare([Case(region, program, (("length", 3),)) for program in programs], tmp_path))
    for number in range(len(programs)):
        stored = np.load(tmp_path / f"case{number}.p0.npy").reshape(5, -1)
        assert (stored[3:] == 0x7E).all() and (stored[:3] != 0x7E).any(1).all()


def test_operands_that_tma_cannot_load_are_refused() -> None:
    region = Region((kernel_of(kernels_of(empty(40, 33, dtype="float16") @ empty(33, 41, dtype="float16"))[0]),))
    parameters = TileParameters(CONTRACTION, ((0,), (1,)), (32, 32), 32, loads=TMA)
    with pytest.raises(UnsupportedTile) as refusal:
        generate(region, TARGET, parameters)
    assert refusal.value.construct == "loads"


def test_the_worked_example_of_the_documents_is_what_is_generated() -> None:
    x, w, b = (empty(*shape, dtype="bfloat16") for shape in ((500, 256), (768, 256), (768,)))
    (ast,) = kernels_of((x.dot(w.T, dtype="float32") + b).silu().cast("bfloat16"))
    parameters = TileParameters(CONTRACTION, ((0,), (1,)), (128, 128), 64, num_warps=8, num_stages=3, group=4)
    program = generate(Region((kernel_of(ast),)), TARGET, parameters)
    page = (Path(__file__).parents[3] / "docs" / "tiles.md").read_text()
    begin = program.source.index("@triton.jit\ndef tile_kernel(")
    assert f"```python\n{program.source[begin:].strip()}\n```" in page


@interpreted
def test_a_sum_of_sums_is_one_sum(tmp_path: Path) -> None:
    """The gradient of a convolution: a sum over the window of sums over the channels."""
    x, w = empty(2, 4, 8, 8), empty(8, 4, 3, 3)
    y = x.conv2d(w, stride=2, padding=1).contiguous()
    (gradient,) = (y * empty(*(int(size) for size in y.shape))).sum().gradient(x)
    (ast,) = kernels_of(gradient)
    assert sum(node.op.name == "REDUCE" for node in ast.toposort()) == 2
    region = Region((kernel_of(ast),))
    kernel = read_kernel(region)
    assert len(kernel.reductions) == depth_of(kernel.reductions) == 1
    check({"gradient": case_of(region, Random(0), default_parameters(kernel, TARGET))}, tmp_path)


def gated(seen: str, rows: int = 24, columns: int = 40, terms: int = 48) -> Region:
    """A sum of products that are left out where a condition does not hold, which is seen by the product's terms alone,
    by each matrix of a batch, or by each row."""
    a, b = empty(2, rows, terms), empty(2, terms, columns)
    condition = empty(*{"terms": (1, 1, terms), "batch": (2, 1, terms), "rows": (1, rows, terms)}[seen], dtype="bool")
    chosen = condition.unsqueeze(-1).where(a.unsqueeze(-1) * b.unsqueeze(1), 0)
    return Region((kernel_of(kernels_of(chosen.sum(2))[-1]),))


@interpreted
@pytest.mark.parametrize("seen", ["terms", "batch", "rows"])
def test_what_is_left_out_of_a_product_may_be_infinite_in_either_operand(seen: str, tmp_path: Path) -> None:
    """Its other operand is no 0 that infinity is multiplied by: both are gated, or no tensor core is asked."""
    region, rng, cases = gated(seen), np.random.default_rng(7), []
    kernel = read_kernel(region)
    assert (kernel.contraction is None) == (seen == "rows")
    sizes = {b.slot: b.size for b in kernel.buffers}
    shapes = {2 * 24 * 48: (2, 24, 48), 2 * 48 * 40: (2, 48, 40)}
    slots = {size: slot for slot, size in sizes.items() if slot}
    (gate_size,) = set(slots) - set(shapes)
    gate = rng.random(gate_size) < 0.6
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in shapes.values())
    holds = {"terms": (1, 1, 48), "batch": (2, 1, 48), "rows": (1, 24, 48)}[seen]
    holds = np.broadcast_to(gate.reshape(holds), (2, 24, 48))
    wanted = np.einsum("bmk,bkn->bmn", np.where(holds, a, 0).astype(float), b.astype(float))
    a[~holds] = np.inf
    b[~holds.any(1)] = np.nan
    inputs = {slots[a.size]: a.ravel(), slots[b.size]: b.ravel(), slots[gate_size]: gate}
    for number in itertools.count():
        parameters = random_parameters(kernel, TARGET, Random(number)) if number else default_parameters(kernel, TARGET)
        case = replace(case_of(region, Random(number), parameters), inputs=inputs)
        cases += [case] if case.program.launches[0].grid <= MOST_PROGRAMS else []
        if len(cases) == 3:
            break
    compare(cases, tmp_path)
    for number in range(len(cases)):
        stored = np.load(tmp_path / f"case{number}.p0.npy").view(np.float32).reshape(2, 24, 40)
        assert np.allclose(stored, wanted, rtol=1e-4, atol=1e-4)


@interpreted
@pytest.mark.parametrize("kind", ["int8", "uint8", "int16"])
def test_a_product_of_narrow_integers_is_summed_before_it_wraps(kind: str, tmp_path: Path) -> None:
    """As in tinygrad's kernels for CUDA, by a tensor core and without one."""
    a, b = empty(32, 64, dtype=kind), empty(64, 48, dtype=kind)
    region = Region((kernel_of(kernels_of((a.unsqueeze(-1) * b.unsqueeze(0)).sum(1))[-1]),))
    source = render_schedule(region, RAW, TARGET)[1]
    assert any(f"({whole})((val0*val1))" in source for whole in ("int", "unsigned int", "uint"))
    rng, kernel = np.random.default_rng(3), read_kernel(region)
    bounds = np.iinfo(kind)
    x, y = (rng.integers(bounds.min, bounds.max, shape, kind) for shape in ((32, 64), (64, 48)))
    forms = starts(kernel, TARGET)
    assert {p.form for p in forms} == ({CONTRACTION, REDUCTION} if kind == "int8" else {REDUCTION})
    slots = {b.size: b.slot for b in kernel.buffers}
    inputs = {slots[x.size]: x.ravel(), slots[y.size]: y.ravel()}
    compare([replace(case_of(region, Random(0), p), inputs=inputs) for p in forms], tmp_path)
    for number in range(len(forms)):
        stored = np.load(tmp_path / f"case{number}.p0.npy").view(np.int32).reshape(32, 48)
        assert np.array_equal(stored, (x.astype(np.int64) @ y.astype(np.int64)).astype(np.int32))


@interpreted
@pytest.mark.parametrize(("kind", "largest"), [("fp8e4m3", 448.0), ("fp8e5m2", 57344.0)])
def test_floats_of_8_bits_are_rounded_and_saturated_as_tinygrad_does(kind: str, largest: float, tmp_path: Path) -> None:
    """Ties, denormals, what is beyond the largest, NaN. Infinity becomes the largest, as CUDA's conversion makes it."""
    rng = np.random.default_rng(5)
    steps = np.concatenate(
        [2.0 ** np.arange(-20, 18), 1.5 * 2.0 ** np.arange(-20, 18), [0, 447, 449, 464, 61439, 61440]]
    )
    ties = (steps[:, None] * (1 + np.arange(64) / 64)).ravel()
    near = ties * (1 + rng.choice([-1e-7, 0, 1e-7], ties.size))
    values = np.concatenate([near, -near, [1e30, np.nan], rng.standard_normal(2000)]).astype(np.float32)
    wanted = [float_to_fp8(float(x), getattr(dtypes, kind)) for x in values]
    values = np.concatenate([values, np.array([np.inf, -np.inf], np.float32)])
    wanted += [float_to_fp8(x, getattr(dtypes, kind)) for x in (largest, -largest)]
    region = Region((kernel_of(kernels_of(empty(values.size).cast(kind))[-1]),))
    case = case_of(region, Random(0), default_parameters(read_kernel(region), TARGET))
    compare([replace(case, inputs={1: values})], tmp_path)
    stored = np.load(tmp_path / "case0.p0.npy").view(np.uint8)
    assert not {float(x): (got, code) for x, got, code in zip(values, stored, wanted, strict=True) if got != code}


def odd_rows() -> dict[str, tuple[Region, int]]:
    """Kernels over rows that begin anywhere, and the elements of a block of theirs that 16 bytes are."""
    h, g = empty(13, 197, dtype="float16"), empty(13, 197, dtype="float16")
    b = empty(4, 9, 61, dtype="bfloat16")
    tensors = {
        "sum": (h.sum(1), 8),
        "max": (h.max(1), 8),
        "two": ((h * g).sum(1, dtype="float32"), 8),
        "exp": ((h - empty(13, 1, dtype="float16")).exp().sum(1), 8),
        "bfloat16": (b.sum(2, dtype="float32"), 8),
        "min": (b.min(2), 8),
        "wide": (empty(7, 203).max(1), 4),
        "bytes": (empty(5, 99, dtype="int8").max(1), 16),
        "later": (empty(6, 120, dtype="float16").shrink(((0, 6), (3, 100))).sum(1), 8),
    }
    return {name: (Region((kernel_of(kernels_of(x)[-1]),)), unit) for name, (x, unit) in tensors.items()}


@pytest.mark.slow
@interpreted
@pytest.mark.parametrize(
    "names",
    [("max", "two", "bfloat16", "wide", "bytes", "later"), pytest.param(("sum", "exp", "min"), marks=pytest.mark.slow)],
    ids=["some", "more"],
)
def test_rows_that_begin_anywhere_are_read_in_whole_blocks(names: tuple[str, ...], tmp_path: Path) -> None:
    """In one pass, in a loop and shared by programs; what follows a buffer is NaN."""
    cases, rows = {}, odd_rows()
    for name, (region, unit) in ((name, rows[name]) for name in names):
        kernel = read_kernel(region)
        chosen = default_parameters(kernel, TARGET)
        loop = replace(chosen, reduce_tile=16, num_warps=1)
        for number, p in enumerate((chosen, loop, replace(loop, split=2), replace(loop, tile=(4,) * len(loop.tile)))):
            assert f"// {unit} * {unit}" in generate_kernel(kernel, TARGET, p).source, name
            cases[f"{name} {number}"] = case_of(region, Random(number), p)
    check(cases, tmp_path)


@interpreted
def test_the_largest_of_growing_functions_is_the_function_of_the_largest(tmp_path: Path) -> None:
    x = empty(9, 40, dtype="bfloat16")
    capped = {"grows": (x * 0.3).tanh().max(1), "falls": (x * -0.7).sigmoid().max(1)}
    cases = {}
    for name, tensor in capped.items():
        region = Region((kernel_of(kernels_of(tensor)[-1]),))
        kernel = read_kernel(region)
        inside = kernel.reductions[0].src[0].toposort()
        assert not any(node.op is Ops.EXP2 for node in inside), name
        cases[name] = case_of(region, Random(1), default_parameters(kernel, TARGET))
    check(cases, tmp_path)


def test_a_flat_axis_is_read_as_one() -> None:
    """Whatever its rows' length: quotients and remainders would hide that elements are consecutive."""
    region = Region((kernel_of(kernels_of(empty(300, 49, dtype="float16") - empty(300, 1, dtype="float16"))[-1]),))
    kernel = read_kernel(region)
    (start,) = (p for p in starts(kernel, TARGET) if p.axes == ((0, 1),))
    text = generate_kernel(kernel, TARGET, start).source
    vector = text.split(" + tl.arange")[0].split("\n")[-1].split(" = ")[0].strip()
    assert f"tl.load(x + {vector}" in text and f"tl.store(out + {vector}," in text


@interpreted
def test_a_maximum_makes_of_nan_what_tinygrads_own_kernels_make_of_it(tmp_path: Path) -> None:
    """These compare and select; Triton's own maximum leaves out what is not a number."""
    made = {"maximum": Tensor.maximum, "minimum": Tensor.minimum, "clip": lambda x, y: x.clip(-0.25, 0.5) + y}
    rng = np.random.default_rng(0)
    values = {slot: rng.standard_normal(960).astype(np.float32) for slot in (1, 2)}
    for numbers in values.values():
        numbers[rng.random(960) < 0.3] = np.nan
    x, y = (Tensor(numbers.reshape(24, 40)).realize() for numbers in values.values())
    for name, function in made.items():
        folder = tmp_path / name
        folder.mkdir()
        (ast,) = kernels_of(function(empty(24, 40), empty(24, 40)))
        case = replace(case_of(Region((kernel_of(ast),)), Random(0)), inputs=values)
        check({name: case}, folder)
        got = np.load(folder / "case0.p0.npy").view(np.float32).reshape(24, 40)
        assert np.array_equal(got, function(x, y).numpy(), equal_nan=True), name
        assert np.isnan(got).any() and (
            name == "clip" or not np.array_equal(np.isnan(got), np.isnan(x.numpy() + y.numpy()))
        )
