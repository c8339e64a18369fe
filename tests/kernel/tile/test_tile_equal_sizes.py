"""Ranges are told apart by what they do, not by their length: what has a program where all sizes differ has one where
they are equal, and it is right. Attention, wide heads, and the sums that registers hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from tinygrad import Tensor, dtypes, nn

from kcg.kernel.reading.fuse import read_region
from kcg.kernel.reading.kernel import TileKernel
from kcg.kernel.reading.unsupported import UnsupportedTile
from kcg.kernel.regions import Form, candidates_of
from kcg.kernel.tile.compile import compile_tile
from kcg.kernel.tile.device import device_of
from kcg.kernel.tile.form import registers_for_sums
from kcg.kernel.tile.forms import form_of, plan_of
from kcg.kernel.tile.generate import generate_kernel
from kcg.kernel.tile.legal import is_legal, starts
from kcg.kernel.tile.parameters import FLASH_ATTENTION, ROWS
from kcg.kernel.tile.prior import default_parameters
from kcg.kernel.tile.space import schedule_of
from kcg.types import Region
from tests.chains import region_of, sequence_of
from tests.kernel.tile.running import HAS_TRITON, WITHOUT, Case, random_program, wrong_of
from tests.kernels import empty
from tests.known_targets import KNOWN_TARGETS
from tests.slow import first

TARGET = KNOWN_TARGETS["sm_90"]
OTHERS = [*(KNOWN_TARGETS[name] for name in ("sm_80", "gfx942")), replace(KNOWN_TARGETS["sm_80"], arch="sm_89")]
SIZE = 16
interpreted = pytest.mark.skipif(not HAS_TRITON, reason=WITHOUT)


def attention(batch: int, heads: int, queries: int, keys: int, size: int) -> Tensor:
    q, k, v = (empty(batch, heads, rows, size) for rows in (queries, keys, keys))
    return q.scaled_dot_product_attention(k, v)


def grouped(groups: int, heads: int, queries: int, keys: int, size: int) -> Tensor:
    k, v = (empty(groups, keys, size).repeat_interleave(heads, dim=0) for _ in range(2))
    return empty(groups * heads, queries, size).scaled_dot_product_attention(k, v)


def causal(heads: int, tokens: int, size: int) -> Tensor:
    return empty(heads, tokens, size).scaled_dot_product_attention(
        empty(heads, tokens, size), empty(heads, tokens, size), is_causal=True
    )


def normed(x: Tensor) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + 1e-3).rsqrt()


def normed_queries(heads: int, queries: int, keys: int, size: int) -> Tensor:
    q = normed(empty(heads, queries, size)).contiguous()
    return q.scaled_dot_product_attention(empty(heads, keys, size), empty(heads, keys, size))


def gate_and_up(rows: int, columns: int, terms: int) -> Tensor:
    x = empty(rows, terms)
    return ((x @ empty(terms, columns)).silu().contiguous() * (x @ empty(terms, columns))).contiguous()


def with_its_transpose(rows: int, terms: int) -> Tensor:
    x = empty(rows, terms)
    return ((x @ x.T).contiguous() @ x).contiguous()


def convolution(images: int, channels: int, filters: int, height: int, width: int) -> Tensor:
    x = empty(images, channels, height, width).conv2d(empty(filters, channels, 3, 3), padding=1)
    return x.contiguous().relu().contiguous()


PROGRAMS: dict[str, tuple[Callable[..., Tensor], tuple[int, ...]]] = {
    "attention": (attention, (2, 3, 24, 40, 16)),
    "of grouped queries": (grouped, (2, 3, 24, 40, 16)),
    "causal": (causal, (3, 24, 16)),
    "of normed queries": (normed_queries, (3, 24, 40, 16)),
    "matmul": (lambda m, n, k: (empty(m, k) @ empty(k, n)).contiguous().gelu().contiguous(), (24, 40, 16)),
    "batched": (lambda b, m, n, k: (empty(b, m, k) @ empty(b, k, n)).contiguous(), (3, 24, 40, 16)),
    "gate and up": (gate_and_up, (24, 40, 16)),
    "with its transpose": (with_its_transpose, (24, 40)),
    "norm": (lambda rows, columns: empty(rows, columns).layernorm().contiguous(), (24, 40)),
    "softmax": (lambda rows, columns: empty(rows, columns).softmax().T.contiguous(), (24, 40)),
    "softmax of columns": (lambda rows, columns: empty(rows, columns).softmax(0).contiguous(), (24, 40)),
    "heads": (lambda t, h, d: normed(empty(t, h, d)).permute(1, 0, 2).contiguous(), (24, 3, 16)),
    "convolution": (convolution, (2, 5, 16, 8, 4)),
}
Places = tuple[Form, tuple[int, ...], tuple[int, ...]]
Programs = dict[Places, tuple[Region, TileKernel]]


def programs_of(output: Tensor) -> Programs:
    """The candidate regions of a program that one tile program makes."""
    found: Programs = {}
    for one in candidates_of(sequence_of(output)):
        try:
            kernel = read_region(one.region)
            default_parameters(kernel, TARGET)
        except UnsupportedTile:
            continue
        found[one.form, tuple(sorted(one.places[0])), one.again] = (one.region, kernel)
    return found


@interpreted
@pytest.mark.slow
@pytest.mark.parametrize("least", [5, 1], ids=["long", "all"])
def test_equal_sizes_have_the_same_programs_and_right_ones(least: int, tmp_path: Path) -> None:
    """Those from `least` on are equal: of `all`, batch and heads are as many as all else."""
    cases = {}
    for name, (build, sizes) in PROGRAMS.items():
        if least == 1 and len(sizes) > 4:
            continue  # too much for an interpreter
        equal = programs_of(build(*(SIZE if one >= least else one for one in sizes)))
        if least > 1:
            assert equal.keys() >= programs_of(build(*sizes)).keys(), name
        for place, (region, kernel) in equal.items():
            chosen = default_parameters(kernel, TARGET)
            if not form_of(chosen).in_gluon:  # which the interpreter has not
                program = generate_kernel(kernel, TARGET, replace(chosen, fast_math=False), interpreted=True)
                cases[f"{name} {place} default"] = Case(region, program)
            cases[f"{name} {place} drawn"] = Case(region, random_program(kernel, TARGET, Random(1), _plain(kernel)))
    assert len(cases) > 30 and not wrong_of(cases, tmp_path)


def _plain(kernel: TileKernel) -> Callable[..., object]:
    """Of programs in Gluon the prior's plain one."""
    plain = next((p for p in starts(kernel, TARGET) if not form_of(p).in_gluon), None)
    return lambda p: p if not form_of(p).in_gluon or plain is None else plain


@pytest.mark.parametrize("queries, keys, size", [(128, 128, 128), (256, 128, 128), (64, 64, 64), (256, 256, 256)])
def test_keys_may_be_as_many_as_the_elements_of_a_head(queries: int, keys: int, size: int) -> None:
    kernel = read_region(region_of(attention(2, 4, queries, keys, size)))
    assert kernel.attention is not None and is_legal(kernel, TARGET, default_parameters(kernel, TARGET))


# ---- wide heads


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("size", first(1, [320, 257, 512]))
def test_wide_heads_have_a_program(size: int, dtype: str) -> None:
    q, k, v = (empty(2, 4, 256, size, dtype=dtype) for _ in range(3))
    kernel = read_region(region_of(q.scaled_dot_product_attention(k, v)))
    for target in (TARGET, *OTHERS[:1]):
        chosen = default_parameters(kernel, target)
        assert chosen.form == FLASH_ATTENTION and is_legal(kernel, target, chosen), target.arch


def test_wider_ones_are_refused_with_their_size() -> None:
    with pytest.raises(UnsupportedTile, match=r"rows of 1,024 elements, which are at most 512"):
        read_region(region_of(attention(1, 2, 32, 48, 600)))


@interpreted
def test_wide_heads_are_right(tmp_path: Path) -> None:
    cases = {}
    for size in (257, 320):
        region = region_of(attention(1, 1, 24, 40, size))
        kernel = read_region(region)
        cases[str(size)] = Case(
            region, generate_kernel(kernel, TARGET, default_parameters(kernel, TARGET), interpreted=True)
        )
    assert not wrong_of(cases, tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TRITON, reason=WITHOUT)
@pytest.mark.parametrize("dtype", ["float16", pytest.param("float32", marks=pytest.mark.slow)])
def test_wide_heads_spill_nothing(dtype: str) -> None:
    q, k, v = (empty(1, 4, 256, 512, dtype=dtype) for _ in range(3))
    region = region_of(q.scaled_dot_product_attention(k, v))
    made = compile_tile(region, schedule_of(default_parameters(read_region(region), TARGET)), TARGET)
    assert all(dict(launch.compiled.report)["spilled_bytes"] == 0 for launch in made.launches)


# ---- what registers hold


def instance_norm(size: int) -> list[Region]:
    """The candidate regions of two convolutions, each with the norm of each of its channels after it."""

    def block(x: Tensor) -> Tensor:
        return nn.InstanceNorm(32)(x.conv2d(Tensor.empty(32, 32, 3, 3, 3, dtype=dtypes.float32), padding=1)).relu()

    return [one.region for one in candidates_of(sequence_of(block(block(Tensor.empty(1, 32, size, size, size)))))]


@pytest.mark.slow
@pytest.mark.parametrize("size", [8, 32])
def test_no_default_has_more_sums_than_registers(size: int) -> None:
    """Of 32³ the norm of a channel needs 32,768 columns of the convolution's result in one tile."""
    refused = 0
    for region in instance_norm(size):
        try:
            kernel = read_region(region)
            chosen = default_parameters(kernel, TARGET)
        except UnsupportedTile:
            refused += 1
            continue
        assert is_legal(kernel, TARGET, chosen), chosen
        if chosen.form != ROWS:
            threads = device_of(TARGET).threads(chosen.num_warps)
            assert plan_of(kernel, TARGET, chosen).sums // threads <= registers_for_sums(TARGET, chosen.num_warps)
    assert bool(refused) == (size == 32)


@pytest.mark.slow
def test_every_default_is_legal_on_every_target() -> None:
    built = [build(*sizes) for build, sizes in PROGRAMS.values()]
    built += [attention(1, 2, queries, 512, size) for queries in (1, 64) for size in (16, 256, 512)]
    built += [(empty(m, k) @ empty(k, n)).contiguous() for m, n, k in ((8, 8, 8), (16, 16, 4096), (200, 5000, 300))]
    for output in built:
        sequence = sequence_of(output)
        regions = [one.region for one in candidates_of(sequence)]
        for region in (*regions, *(sequence.region(place) for place in range(len(sequence.calls)))):
            for target in (TARGET, *OTHERS):
                try:
                    kernel = read_region(region)
                    chosen = (default_parameters(kernel, target), *starts(kernel, target))
                except UnsupportedTile:
                    continue
                assert all(is_legal(kernel, target, p) for p in chosen), (target.arch, chosen)


def test_rows_that_no_registers_hold_are_not_legal() -> None:
    for width, legal in ((65_536, False), (40_000, True)):
        kernel = read_region(region_of(empty(64, width).softmax().contiguous()))
        chosen = replace(default_parameters(kernel, TARGET), reduce_tile=65_536, num_warps=32)
        assert chosen.form == ROWS and is_legal(kernel, TARGET, chosen) is legal, width
