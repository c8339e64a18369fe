"""Chains of kernels as tile programs: random ones, hard ones, and programs with a fault, which must be found."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from tinygrad import Tensor, Variable

from kcg.kernel.chain import Chain
from kcg.kernel.reading.fuse import read_region
from kcg.kernel.reading.kernel import TileKernel
from kcg.kernel.reading.unsupported import UnsupportedTile
from kcg.kernel.tile.generate import generate_kernel
from kcg.kernel.tile.parameters import CONTRACTION, ROWS, TileParameters
from kcg.kernel.tile.prior import default_parameters
from kcg.kernel.tile.program import TileSource
from kcg.kernel.tile.rows import axes_apart, row_axes
from kcg.kernel.tile.views import RowsView
from kcg.measure.inputs import SPIKY_RECIPE, make_inputs_of_kernels
from kcg.types import Region
from tests.chains import region_of
from tests.kernel.tile.random_chains import FAMILIES, random_chain, random_regions
from tests.kernel.tile.running import HAS_TRITON, WITHOUT, Case, compare, random_program, wrong_of
from tests.kernel.tile.test_tile_regions import heads_and_rotation, projection, split_sum
from tests.kernels import empty
from tests.known_targets import KNOWN_TARGETS
from tests.waiting import PATIENCE_S

TARGET = KNOWN_TARGETS["sm_90"]
interpreted = pytest.mark.skipif(not HAS_TRITON, reason=WITHOUT)

LEAST_SHARE = {"rows": 0.85, "long_rows": 0.75, "integers": 0.95, "products": 0.75, "prologues": 0.8}
"""Of each family's regions, so many have a program: of 300 they were 0.93, 0.91, 1, 0.88 and 0.95."""


def drawn(kernel: TileKernel, rng: Random) -> TileSource:
    """A program of random parameters; of rows at random one that goes through them in a loop."""

    def looped(p: TileParameters) -> TileParameters:
        through = p.form == ROWS and rng.random() < 0.5
        return replace(p, reduce_tile=rng.choice((16, 32))) if through else p

    return random_program(kernel, TARGET, rng, looped)


@pytest.mark.slow
@interpreted
@pytest.mark.parametrize("seeds", [range(3), pytest.param(range(3, 40), marks=pytest.mark.slow)], ids=["some", "many"])
def test_random_chains_with_random_parameters(seeds: range, tmp_path: Path) -> None:
    cases: dict[str, Case] = {}
    refusals, made = Counter[tuple[str, str]](), Counter[str]()
    for family in FAMILIES:
        for seed in seeds:
            for number, region in enumerate(random_regions(random_chain(family, seed), Random(seed))):
                try:
                    kernel = read_region(region)
                    program = drawn(kernel, Random(seed))
                except UnsupportedTile as refusal:
                    refusals[family.__name__, str(refusal)] += 1
                    continue
                made[family.__name__] += 1
                cases[f"{family.__name__} {seed} {number}"] = Case(region, program, seed=seed + 1)
    wrong = dict(zip(cases, compare(list(cases.values()), tmp_path, timeout_s=PATIENCE_S), strict=True))
    assert not {name: text for name, text in wrong.items() if text}
    for name, share in LEAST_SHARE.items() if len(seeds) > 10 else ():
        refused = {reason: count for (family, reason), count in refusals.items() if family == name}
        assert made[name] >= share * (made[name] + sum(refused.values())), (name, refused)
    assert sum(made.values()) > 3 * sum(refusals.values()), refusals


# ---- what is hard


def stored_twice() -> Tensor:
    x = empty(6, 16)
    x.assign(x.softmax(-1).contiguous() * 2)
    return x


def read_and_written() -> tuple[Tensor, ...]:
    x = empty(6, 16)
    y = (x.sum(-1, keepdim=True) + empty(6, 16)).contiguous()
    x.assign(x * y)
    return x, y


def stored_in_part() -> tuple[Tensor, ...]:
    whole = empty(6, 20)
    whole[:, 2:10].assign(empty(6, 8).softmax(-1))
    return (whole * 2).contiguous(), whole


def symbolic_rows() -> Tensor:
    return empty(6, 16)[: Variable("n", 1, 6).bind(4)].softmax(-1).contiguous()


def symbolic_length() -> Tensor:
    x = empty(6, 16)[:, : Variable("n", 1, 16).bind(7)]
    return (x - x.max(1, keepdim=True)).exp().sum(1).contiguous()


def other_lengths() -> Tensor:
    x = empty(6, 32)
    parts = x.reshape(6, 4, 8).max(-1, keepdim=True).expand(6, 4, 8).reshape(6, 32)
    return (x.softmax(-1).contiguous() + parts) * empty(6, 8).sum(-1, keepdim=True)


def own_mask() -> Tensor:
    mask = (empty(6, 16) > 0.1).contiguous()
    return (mask.where(empty(6, 16), 0).sum(-1, keepdim=True) * mask).contiguous()


def stored(dtype: str, factor: float, *, of: str = "int32") -> Tensor:
    """Integers that a type does not hold, stored in it, with what is made of them."""
    x = (empty(6, 17, dtype=of) * factor).cast(dtype).contiguous().cast("int32")
    return (x * 3 - x.sum(-1, keepdim=True)).contiguous()


def padded(x: Tensor) -> Tensor:
    return (x.pad(((1, 2), (2, 3))) * 3).softmax(-1)


def shifted(x: Tensor) -> Tensor:
    return (x[:, 1:] + x[:, :-1]).softmax(-1)


def exponentials() -> Tensor:
    return empty(13, 13).exp().contiguous()


def product() -> Tensor:
    return (empty(24, 32) @ empty(32, 64)).contiguous()


def masked(share: int) -> Tensor:
    """Long rows of which a part is -inf, or all."""
    return empty(4, 300) * 0.1 + (empty(4, 300, dtype="int32") > share).where(0.0, -float("inf"))


HARD: dict[str, tuple[Callable[[], Tensor | tuple[Tensor, ...]], str]] = {
    "update in place": (stored_twice, "update in place"),
    "read, then written": (read_and_written, "update in place"),
    "stored in part": (stored_in_part, "intermediate of another layout"),
    "symbolic rows": (symbolic_rows, "rows"),
    "symbolic length": (symbolic_length, "rows"),
    "other lengths": (other_lengths, ""),
    "padded": (lambda: padded(exponentials()), ""),
    "padded norm": (lambda: padded(empty(5, 13).softmax(-1).contiguous()), "rows"),
    "shifted": (lambda: shifted(exponentials()), ""),
    "a slice": (lambda: empty(6, 16).softmax(-1).contiguous()[1:4].contiguous(), ""),
    "columns of rows": (lambda: empty(6, 16).softmax(-1).contiguous()[:, 3:9].contiguous(), "rows"),
    "transposed": (lambda: (lambda x: (x + x.T).softmax(-1))(exponentials()), ""),
    "transposed softmax": (lambda: (lambda x: (x + x.T).contiguous())(empty(16, 16).softmax(-1).contiguous()), ""),
    "flipped": (lambda: (empty(6, 16).softmax(-1).contiguous().flip(1) * empty(6, 16)).contiguous(), ""),
    "the largest of sums": (lambda: empty(16, 16).sum(1).contiguous().max(0), "rows"),
    "one row": (lambda: ((x := empty(40)) - x.max()).exp().contiguous().sum(), ""),
    "other numbers of rows": (lambda: (empty(6, 16).softmax(-1), empty(5, 16).softmax(-1)), "rows"),
    "elementwise, two buffers": (lambda: (lambda x: (x, (x * 2).sin().contiguous()))(exponentials()), ""),
    "elementwise, other shapes": (lambda: (lambda x: (x, (x[:5] * 2).contiguous()))(exponentials()), "several kernels"),
    "some rows of a product": (lambda: (product()[3:9] * 2).contiguous(), "use of a product's result"),
    "some columns": (lambda: (product()[:, 16:48] * 2).contiguous(), ""),
    "few columns": (lambda: (product()[:, 5:9] * 2).contiguous(), "several kernels"),
    "every other column": (lambda: (product()[:, ::2] * 2).contiguous(), "use of a product's result"),
    "sums of a product": (lambda: product().sum(1).contiguous(), "reduction of a product's result"),
    "sums along columns": (lambda: product().sum(0).contiguous(), "reduction beside the product"),
    "int8 wraps": (lambda: stored("int8", 77), ""),
    "uint8 wraps": (lambda: stored("uint8", -3), ""),
    "int16 wraps": (lambda: stored("int16", 9999), ""),
    "uint16 wraps": (lambda: stored("uint16", -5), ""),
    "int8 of floats": (lambda: stored("int8", 40.3, of="float32"), ""),
    "products of int8": (lambda: stored("int8", 1, of="int8") * 2, ""),
    "sum in int8": (
        lambda: empty(6, 16, dtype="int8").sum(1, keepdim=True, dtype="int8").contiguous().cast("int32")
        + empty(6, 16, dtype="int32"), ""),
    "integers of floats": (lambda: ((empty(6, 16) * 9.7).cast("int32").contiguous().float() * 0.5).softmax(-1), ""),
    "conditions": (own_mask, ""),
    "float16 overflows": (lambda: ((empty(6, 16) * 6e4).cast("float16").contiguous().float() * 1e-3).softmax(-1), ""),
    "bfloat16 rounds": (lambda: (empty(6, 16).softmax(-1).cast("bfloat16").contiguous().float() * 3).layernorm(), ""),
    "bits": (lambda: (exponentials().bitcast("int32") >> 20).contiguous().sum(-1), ""),
    "some are -inf": (lambda: masked(1).softmax(-1), ""),
    "all are -inf": (lambda: masked(2_000_000_000).logsumexp(-1), ""),
    "another's maximum": (
        lambda: (lambda x: (x * -200 - (x * 300).max(-1, keepdim=True).contiguous()).exp().sum(-1))(empty(4, 300)), ""),
}  # fmt: skip
"""Tensors, and the construct that is refused; none where the program is right."""


def region_named(name: str) -> Region:
    tensors = HARD[name][0]()
    return region_of(*(tensors if isinstance(tensors, tuple) else (tensors,)))


@pytest.mark.parametrize("name", [name for name, (_, construct) in HARD.items() if construct])
def test_what_cannot_be_one_program_is_refused_by_name(name: str) -> None:
    region = region_named(name)
    assert len(region.kernels) > 1
    with pytest.raises(UnsupportedTile) as refusal:
        default_parameters(read_region(region), TARGET)
    assert refusal.value.construct == HARD[name][1]


@interpreted
def test_what_is_hard_is_right(tmp_path: Path) -> None:
    cases = {}
    for name in (name for name, (_, construct) in HARD.items() if not construct):
        region = region_named(name)
        assert len(region.kernels) > 1, name
        kernel, rng = read_region(region), Random(name)
        for number in range(2):
            cases[f"{name} {number}"] = Case(region, drawn(kernel, rng), seed=number + 1)
    assert not wrong_of(cases, tmp_path)


SPIKED: dict[str, tuple[Callable[[Tensor], Tensor], int, int]] = {
    "looped, 32 of 133": (lambda x: x.softmax(-1), 133, 32),
    "looped, 64 of 300": (lambda x: x.softmax(-1), 300, 64),
    "held": (lambda x: x.softmax(-1), 33, 64),
    "an eighth of the scores": (lambda x: (x / 8).softmax(-1), 133, 32),
    "a part of the scores": (lambda x: (x * 0.3).softmax(-1), 133, 32),
    "with a mask": (lambda x: (empty(*x.shape, dtype="int32") > 2).where(-float("inf"), x).softmax(-1), 133, 32),
    "logarithms": (lambda x: x.log_softmax(-1), 133, 32),
    "all exponentials": (lambda x: (x.max(-1, keepdim=True).contiguous() - x).neg().exp(), 133, 32),
    "of 16 bits": (lambda x: x.cast("float16").softmax(-1, dtype="float32"), 133, 32),
}


@pytest.mark.slow
@interpreted
def test_rows_far_below_0_and_with_single_large_scores_are_right_in_float32(tmp_path: Path) -> None:
    """A row's maximum is subtracted before anything else is done: near -200 a product with log2(e) is off by 1e-5."""
    cases = {}
    for name, (build, width, step) in SPIKED.items():
        region = region_of(build(empty(7, width)))
        kernel = read_region(region)
        p = replace(default_parameters(kernel, TARGET), reduce_tile=step, fast_math=False)
        program = generate_kernel(kernel, TARGET, p, interpreted=True)
        for seed in (1, 2):
            inputs = make_inputs_of_kernels(Chain(region).asts, seed, recipe=SPIKY_RECIPE)
            cases[f"{name} {seed}"] = Case(region, program, seed=seed, inputs=inputs)
    assert not wrong_of(cases, tmp_path)


# ---- faults

SOFTMAX, LOOP, HEADS, APART = "softmax", "softmax in a loop", "heads", "heads apart from tokens"
PROJECTION, SUM = "projection", "sum of two products"


def faultless() -> dict[str, tuple[Region, TileSource]]:
    """Programs of odd extents, with their regions."""
    product_of = TileParameters(CONTRACTION, ((0,), (1,)), (16, 32), reduce_tile=16, num_stages=2, fast_math=False)
    found = {}
    for name, tensors, width in (
        (SOFTMAX, (empty(7, 33).softmax(-1),), 64),
        (LOOP, (empty(7, 33).softmax(-1),), 16),
        (HEADS, (heads_and_rotation("float32"),), 16),
        (APART, (heads_and_rotation("float32"),), 16),
        (PROJECTION, projection("float32"), 0),
        (SUM, split_sum("float32"), 0),
    ):
        region = region_of(*tensors)
        kernel = read_region(region)
        axes, tile = (
            (axes_apart(RowsView.of(kernel)), (2, 4))
            if name == APART
            else (row_axes(RowsView.of(kernel)) if width else (), (4,))
        )
        p = TileParameters(ROWS, axes, tile, reduce_tile=width) if width else product_of
        found[name] = region, generate_kernel(kernel, TARGET, p, interpreted=True)
    return found


FAULTS: dict[str, tuple[str, str, str]] = {
    "no mask of a store": (SOFTMAX, r"(tl\.store\(.*), mask=\w+\)", r"\1)"),
    "no mask of a load": (SOFTMAX, r"(tl\.load\(.*), mask=\w+, other=0\)", r"\1)"),
    "another neutral element": (SOFTMAX, r'float\("-inf"\)', "1e9"),
    "no neutral element": (SOFTMAX, r"tl\.where\(mask\w+, (\w+), 0\)", r"\1 + 1.0"),
    "another row": (SOFTMAX, r"(start) = (program) \* 4", r"\1 = \2 * 5"),
    "rows of another length": (SOFTMAX, r"= (rows2) \* 33", r"= \1 * 32"),
    "no correction of the sum": (LOOP, r"(acc) \* tl\.exp2\(.*\)\)\) \+", r"\1)) +"),
    "no correction at the end": (LOOP, r"(\br = tl\.sum\().*?(acc).*, 1, keep_dims", r"\1\2, 1, keep_dims"),
    "a part of the loop": (LOOP, r"range\(0, 33, 16\)", "range(0, 32, 16)"),
    "pairs the other way": (PROJECTION, r"tl\.join\((v\d*), (v\d*)\)", r"tl.join(\2, \1)"),
    "pairs not joined": (PROJECTION, r"tl\.join\((v\d*), v\d*\)\.reshape", r"tl.join(\1, \1).reshape"),
    "pairs side by side": (PROJECTION, r"tl\.join\((v\d*, v\d*)\)\.reshape", r"tl.join(\1).permute(0, 2, 1).reshape"),
    "the norm of the query for the key": (PROJECTION, r"tl\.where\(below, x2, x5\)", "x2"),
    "the key in the query's place": (PROJECTION, r"tl\.where\(below, out2, out3\)", "out2"),
    "the key's columns from another one on": (PROJECTION, r"start2 - 64\)", "start2 - 32)"),
    "another reduction of a head": (
        PROJECTION,
        r"tl\.sum\((parts), 2, keep_dims=True\)",
        r"tl.max(\1, 2, keep_dims=True)",
    ),
    "the sum of two heads": (PROJECTION, r"reshape\(16, 2, 16\)", "reshape(16, 1, 32)"),
    "one output is not stored": (PROJECTION, r"tl\.store\(out .*", "pass"),
    "one output in another place": (PROJECTION, r"if \(start2 < 128\):", "if (start2 < 96):"),
    "the first loop is forgotten": (SUM, r"(v\d+ = rows2 \* 48\n)", r"acc = tl.zeros([16, 32], tl.float32)\n    \1"),
    "the second loop is left out": (SUM, r"range\(0, 48, 16\)", "range(0, 0, 16)"),
    "an epilogue without its bias": (SUM, r"x2_block = tl\.load\(x2 \+ cols2\)", "x2_block = 0.0"),
    "a residual of another place": (SUM, r"tl\.load\(x \+ offset6", "tl.load(x + offset6 // 2"),
    "another reduction of a head's norm": (
        HEADS,
        r"tl\.sum\((\w+), 1, keep_dims=True\)",
        r"tl.max(\1, 1, keep_dims=True)",
    ),
    "pairs of rows the other way": (HEADS, r"tl\.join\((v\d*), (v\d*)\)", r"tl.join(\2, \1)"),
    "the same of each pair": (HEADS, r"(halves\d*)\[1\]", r"\1[0]"),
    "other heads": (APART, r"(start) = (v) \* 2", r"\1 = \2 * 3"),
    "no mask of the tokens": (APART, r"(tl\.store\(.*), mask=\w+\)", r"\1)"),
    "tables of other tokens": (APART, r"= heads2 \* 8", "= heads2 * 4"),
}
"""In which program which text becomes which other."""


@pytest.mark.slow
@interpreted
def test_every_fault_is_found(tmp_path: Path) -> None:
    right = faultless()
    cases = {name: Case(region, program) for name, (region, program) in right.items()}
    for name, (of, pattern, text) in FAULTS.items():
        region, program = right[of]
        source, count = re.subn(pattern, text, program.source)
        assert count and source != program.source, f"{name}: nothing of it is in the program"
        cases[name] = Case(region, replace(program, source=source))
    results = dict(zip(cases, compare(list(cases.values()), tmp_path), strict=True))
    assert not {name: results[name] for name in right if results[name]}
    assert not [name for name in FAULTS if not results[name]]
    for name, text in results.items():  # a program that does not run proves nothing
        assert "Error" not in text or "outside" in text, (name, text)
