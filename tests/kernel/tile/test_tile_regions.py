"""Tile programs of several kernels: what they compute, in Triton's interpreter, against the float64 reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tinygrad import Tensor

from kcg.kernel.tile.fuse import read_region
from kcg.kernel.tile.generate import generate, row_axes
from kcg.kernel.tile.parameters import CONTRACTION, ROWS, TileParameters
from kcg.types import Region
from tests.chains import region_of
from tests.kernel.tile.running import HAS_TRITON, WITHOUT, Case, compare
from tests.kernels import empty
from tests.known_targets import KNOWN_TARGETS

TARGET = KNOWN_TARGETS["sm_90"]
interpreted = pytest.mark.skipif(not HAS_TRITON, reason=WITHOUT)


def softmax(dtype: str) -> Tensor:
    return empty(6, 40, dtype=dtype).softmax(-1)


def masked_softmax(dtype: str) -> Tensor:
    x = empty(2, 5, 33, dtype=dtype)
    return (x * 0.125 + (empty(5, 33) < 0).where(-float("inf"), 0.0).cast(dtype)).softmax(-1)


def layer_norm(dtype: str) -> Tensor:
    x = empty(7, 48, dtype=dtype)
    return x.layernorm().cast(dtype) * (1 + empty(48, dtype=dtype)) + empty(48, dtype=dtype)


def rms_norm(dtype: str) -> Tensor:
    x = empty(5, 64, dtype=dtype)
    wide = x.float()
    return (wide * (wide.square().mean(-1, keepdim=True) + 1e-6).rsqrt()).cast(dtype) * empty(64, dtype=dtype)


def heads_and_rotation(dtype: str) -> Tensor:
    """A norm over parts of rows, and a rotation of pairs by tables, stored heads first."""
    x = empty(6, 4, 16, dtype=dtype).float()
    x = (x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()).cast(dtype) * empty(16, dtype=dtype)
    pairs = x.float().reshape(6, 4, 8, 2)
    cos, sin = empty(6, 1, 8), empty(6, 1, 8)
    first, second = pairs[..., 0], pairs[..., 1]
    turned = Tensor.stack(first * cos - second * sin, first * sin + second * cos, dim=-1)
    return turned.reshape(6, 4, 16).permute(1, 0, 2).cast(dtype).contiguous()


def cross_entropy(dtype: str) -> Tensor:
    logits, labels = empty(6, 50, dtype=dtype), empty(6, dtype="int32")
    return logits.float().sparse_categorical_crossentropy(labels, reduction="none")


def projection(dtype: str) -> tuple[Tensor, ...]:
    """Query, key and value: norms of heads and rotations of the first two, heads first; the value as it is."""
    heads, size, rows = 4, 16, 40
    x, w, bias = empty(rows, 64, dtype=dtype), empty(3 * heads * size, 64, dtype=dtype), empty(192, dtype=dtype)
    made = (x @ w.transpose() + bias).cast(dtype).contiguous().reshape(rows, 3, heads, size)
    cos, sin = empty(rows, 1, size // 2), empty(rows, 1, size // 2)
    outputs = []
    for place in range(2):
        part = made[:, place].float()
        part = part * (part.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * empty(size, dtype=dtype)
        pairs = part.reshape(rows, heads, size // 2, 2)
        one, other = pairs[..., 0], pairs[..., 1]
        turned = Tensor.stack(one * cos - other * sin, one * sin + other * cos, dim=-1)
        outputs.append(turned.reshape(rows, heads, size).permute(1, 0, 2).cast(dtype).contiguous())
    return (*outputs, made[:, 2].permute(1, 0, 2).contiguous())


def activation_beside(dtype: str) -> tuple[Tensor, ...]:
    """A product, and a function of it: both are stored."""
    made = (empty(24, 32, dtype=dtype) @ empty(32, 64, dtype=dtype)).contiguous()
    return made, made.float().gelu().cast(dtype).contiguous()


def split_sum(dtype: str) -> tuple[Tensor, ...]:
    """The product of a concatenation, which is the sum of two: with what becomes of it."""
    x, y, w = empty(24, 32, dtype=dtype), empty(24, 48, dtype=dtype), empty(64, 80, dtype=dtype)
    part = (x @ w[:, :32].transpose()).contiguous()
    return ((empty(24, 64, dtype=dtype) + (y @ w[:, 32:].transpose() + part + empty(64, dtype=dtype)).gelu()),)


CHAINS: tuple[Callable[[str], Tensor], ...] = (
    softmax, masked_softmax, layer_norm, rms_norm, heads_and_rotation, cross_entropy,
)  # fmt: skip


def programs(region: Region) -> dict[str, TileParameters]:
    """Rows in one block, and in a loop."""
    kernel = read_region(region)
    assert kernel.rows is not None
    whole = 1 << (kernel.rows.width - 1).bit_length()
    axes = row_axes(kernel)
    return {
        name: TileParameters(ROWS, axes, (height,), reduce_tile=step, num_warps=1, num_stages=1)
        for name, height, step in (("held", 2, whole), ("in a loop", 4, 16))
    }


@interpreted
def test_rows_of_several_kernels(tmp_path: Path) -> None:
    cases = {}
    for chain in CHAINS:
        for dtype in ("float32", "float16", "bfloat16"):
            region = region_of(chain(dtype))
            for name, parameters in programs(region).items():
                program = generate(region, TARGET, parameters, interpreted=True)
                cases[f"{chain.__name__} {dtype} {name}"] = Case(region, program)
    wrong = dict(zip(cases, compare(list(cases.values()), tmp_path), strict=True))
    assert not {name: text for name, text in wrong.items() if text}


@interpreted
@pytest.mark.parametrize("changes", [{}, {"persistent": 1}, {"epilogue_parts": 2}], ids=str)
def test_what_is_made_of_a_contraction(changes: dict[str, int], tmp_path: Path) -> None:
    cases = {}
    for chain in (projection, activation_beside, split_sum):
        for dtype in ("float32", "float16", "bfloat16"):
            region = region_of(*chain(dtype))
            kernel = read_region(region)
            assert bool(kernel.also) != bool(kernel.before) and kernel.hidden == (chain is projection)
            parameters = TileParameters(CONTRACTION, ((0,), (1,)), (16, 32), reduce_tile=16, num_stages=2)
            program = generate(region, replace(TARGET, cores=3), replace(parameters, **changes), interpreted=True)
            assert len(program.launches) == 1
            cases[f"{chain.__name__} {dtype}"] = Case(region, program)
    wrong = dict(zip(cases, compare(list(cases.values()), tmp_path), strict=True))
    assert not {name: text for name, text in wrong.items() if text}


@interpreted
def test_loops_over_rows_that_begin_anywhere_read_whole_blocks(tmp_path: Path) -> None:
    """Rows of 61 elements: loops read 16 bytes at a time; where a block holds a row, it is loaded once, as it lies."""
    cases = {}
    for dtype, unit in (("bfloat16", 8), ("float16", 8), ("float32", 4)):
        x, labels = empty(6, 61, dtype=dtype), empty(6, dtype="int32")
        chains = {
            "softmax": x.softmax(-1),
            "norm": x.layernorm().cast(dtype) * empty(61, dtype=dtype),
            "cross-entropy": x.float().sparse_categorical_crossentropy(labels, reduction="none"),
        }
        for name, tensor in chains.items():
            region = region_of(tensor)
            for how, parameters in programs(region).items():
                program = generate(region, TARGET, parameters, interpreted=True)
                assert (f"// {unit} * {unit}" in program.source) == (how == "in a loop"), (name, how)
                cases[f"{name} {dtype} {how}"] = Case(region, program)
    wrong = dict(zip(cases, compare(list(cases.values()), tmp_path), strict=True))
    assert not {name: text for name, text in wrong.items() if text}
