"""Attention as one tile program, told by dependence: in Triton's interpreter, against the float64 reference."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tinygrad import Tensor

from kcg.kernel.tile.fuse import read_region
from kcg.kernel.tile.generate import generate
from kcg.kernel.tile.legal import legal_values
from kcg.kernel.tile.parameters import POINTER, STREAM, TMA, TileParameters
from kcg.kernel.tile.program import TileRefusal
from kcg.kernel.tile.stream import stream_axes
from kcg.types import Region
from tests.chains import region_of
from tests.kernel.tile.running import HAS_TRITON, WITHOUT, Case, compare, wrong_of
from tests.kernels import empty
from tests.known_targets import KNOWN_TARGETS

TARGET = KNOWN_TARGETS["sm_90"]
interpreted = pytest.mark.skipif(not HAS_TRITON, reason=WITHOUT)
QUERIES, KEYS, SIZE = 24, 40, 16


def plain(dtype: str) -> Tensor:
    q, k, v = (empty(1, 2, rows, SIZE, dtype=dtype) for rows in (QUERIES, KEYS, KEYS))
    return q.scaled_dot_product_attention(k, v)


def causal(dtype: str) -> Tensor:
    q, k, v = (empty(2, QUERIES, SIZE, dtype=dtype) for _ in range(3))
    return q.scaled_dot_product_attention(k, v, is_causal=True)


def biased(dtype: str) -> Tensor:
    q, k, v = (empty(2, rows, SIZE, dtype=dtype) for rows in (QUERIES, KEYS, KEYS))
    return q.scaled_dot_product_attention(k, v, attn_mask=empty(QUERIES, KEYS, dtype=dtype))


def grouped(dtype: str) -> Tensor:
    """Four heads of queries, two of keys and values, tokens before heads in memory; the result as a linear layer has
    it."""
    q = empty(QUERIES, 4, SIZE, dtype=dtype).permute(1, 0, 2)
    k, v = (empty(KEYS, 2, SIZE, dtype=dtype).permute(1, 0, 2).repeat_interleave(2, dim=0) for _ in range(2))
    return q.scaled_dot_product_attention(k, v).permute(1, 0, 2).reshape(QUERIES, 4 * SIZE).contiguous()


def odd_heads(dtype: str) -> Tensor:
    """Elements that are not as many as a block has, and values of another size."""
    q, k, v = empty(2, 19, 20, dtype=dtype), empty(2, 37, 20, dtype=dtype), empty(2, 37, 24, dtype=dtype)
    return q.scaled_dot_product_attention(k, v)


ATTENTIONS: tuple[Callable[[str], Tensor], ...] = (plain, causal, biased, grouped, odd_heads)


def parameters(region: Region, loads: str = POINTER) -> TileParameters:
    axes = stream_axes(read_region(region))
    return TileParameters(STREAM, axes, (16,), reduce_tile=16, loads=loads, num_warps=4, num_stages=2)


@interpreted
@pytest.mark.parametrize("loads", [POINTER, TMA])
def test_attention(loads: str, tmp_path: Path) -> None:
    cases = {}
    for attention in ATTENTIONS:
        for dtype in ("float32", "float16", "bfloat16"):
            region = region_of(attention(dtype))
            assert len(region.kernels) > 2
            if loads == TMA and attention is grouped:
                continue  # a head of keys is no sum of steps
            program = generate(region, TARGET, parameters(region, loads), interpreted=True)
            assert ("make_tensor_descriptor" in program.source) == (loads == TMA)
            cases[f"{attention.__name__} {dtype}"] = Case(region, program)
    assert not wrong_of(cases, tmp_path)


def masked(rows: int, keys: int, allowed: Callable[[Tensor, Tensor], Tensor]) -> Region:
    """Attention of which a key takes part where `allowed` says so of the numbers of queries and keys."""
    q, k, v = empty(2, rows, SIZE), empty(2, keys, SIZE), empty(2, keys, SIZE)
    mask = allowed(Tensor.arange(rows).reshape(rows, 1), Tensor.arange(keys).reshape(1, keys))
    scores = (q @ k.transpose(-1, -2)) * 0.25
    return region_of((mask.where(scores, scores.full_like(0) - math.inf)).softmax(-1) @ v)


@interpreted
def test_blocks_of_keys_that_a_mask_leaves_out_are_not_visited(tmp_path: Path) -> None:
    """Keys up to a number that grows with the query's: a program ends there, and those with most keys are first."""
    bounded = {
        "up to the query": (40, 40, lambda q, k: k <= q),
        "before some more": (24, 60, lambda q, k: k < q + 17),
        "the added form": (24, 24, None),
    }
    cases = {}
    for name, (rows, keys, allowed) in bounded.items():
        region = region_of(causal("float32")) if allowed is None else masked(rows, keys, allowed)
        program = generate(region, TARGET, parameters(region), interpreted=True)
        assert f"tl.minimum({keys}, " in program.source, name
        cases[name] = Case(region, program)
    for name, allowed in {
        "from the query on": lambda q, k: k >= q,
        "every other": lambda q, k: (k + q) % 2 < 1,
    }.items():
        region = masked(40, 40, allowed)
        program = generate(region, TARGET, parameters(region), interpreted=True)
        assert "tl.minimum" not in program.source, name
        cases[name] = Case(region, program)
    assert not wrong_of(cases, tmp_path)


@interpreted
def test_what_is_missing_is_found(tmp_path: Path) -> None:
    """The comparison itself: no correction, a block of keys that is left out, keys past the end that count."""
    region = region_of(plain("float16"))
    right = generate(region, TARGET, parameters(region), interpreted=True)
    broken = [
        right.source.replace("* factor", "* (factor * 0 + 1)", 1),
        right.source.replace(f"range(0, {KEYS},", f"range(16, {KEYS},"),
        right.source.replace(f"< {KEYS}", f"< {KEYS + 8}"),
    ]
    assert all(text != right.source for text in broken)
    wrong = compare([Case(region, replace(right, source=text)) for text in broken], tmp_path)
    assert all(wrong), wrong


def test_keys_that_would_be_made_again_for_each_block_of_queries_are_refused() -> None:
    """Scaled on the way; with few queries each key is made once. A type that is widened is one load."""

    def attention(queries: int, scaled: bool) -> Region:
        q, k, v = empty(2, queries, 64), empty(2, 256, 64), empty(2, 256, 64, dtype="float16").float()
        k = k * empty(2, 256, 64) if scaled else k
        return region_of(q.scaled_dot_product_attention(k, v))

    assert read_region(attention(256, scaled=False)).stream is not None
    assert read_region(attention(128, scaled=True)).stream is not None
    with pytest.raises(TileRefusal, match="made again for each block of queries"):
        read_region(attention(256, scaled=True))


def test_warps_are_not_specialised() -> None:
    """Triton 3.6 made a program that ended in NaN, and one that never ended."""
    region = region_of(plain("float16"))
    p = replace(parameters(region, TMA), warp_specialize=True)
    with pytest.raises(TileRefusal, match="only a contraction's loop"):
        generate(region, KNOWN_TARGETS["sm_90"], p)
    assert legal_values(read_region(region), KNOWN_TARGETS["sm_90"], p, "warp_specialize") == (False,)
