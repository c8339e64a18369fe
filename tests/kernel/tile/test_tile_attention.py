"""Attention as one tile program, told by dependence: in Triton's interpreter, against the float64 reference."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tinygrad import Tensor, Variable

from kcg.kernel.reading.fuse import read_region
from kcg.kernel.reading.unsupported import UnsupportedTile
from kcg.kernel.tile.compile import compile_tile
from kcg.kernel.tile.cost import predicted_seconds
from kcg.kernel.tile.generate import generate
from kcg.kernel.tile.legal import legal_values
from kcg.kernel.tile.parameters import FLASH_ATTENTION, POINTER, SPECIALIZED, TMA, TileParameters
from kcg.kernel.tile.prior import default_parameters
from kcg.kernel.tile.space import TileSpace, schedule_of
from kcg.kernel.tile.views import AttentionView
from kcg.types import Region
from kcg.workloads.capture import step_workload
from kcg.workloads.llm import MINI, MOST_TOKENS, build
from tests.captured import captured
from tests.chains import region_of
from tests.kernel.tile.running import HAS_TRITON, WITHOUT, Case, compare, wrong_of
from tests.kernels import empty
from tests.known_targets import KNOWN_TARGETS
from tests.slow import first

TARGET = KNOWN_TARGETS["sm_90"]
interpreted = pytest.mark.skipif(not HAS_TRITON, reason=WITHOUT)
QUERIES, KEYS, SIZE = 24, 40, 16

SLOW = pytest.mark.slow


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
    axes = AttentionView.of(read_region(region)).axes
    return TileParameters(FLASH_ATTENTION, axes, (16,), reduce_tile=16, loads=loads, num_warps=4, num_stages=2)


@interpreted
@pytest.mark.parametrize("dtypes", first(1, [("bfloat16",), ("float32", "float16")]), ids=" ".join)
@pytest.mark.parametrize("loads", first(1, [POINTER, TMA]))
def test_attention(loads: str, dtypes: tuple[str, ...], tmp_path: Path) -> None:
    cases = {}
    for attention in ATTENTIONS:
        for dtype in dtypes:
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


def in_halves(tokens_first: bool, tokens: int) -> Region:
    """Causal attention of four heads, two of keys, whose result is stored by heads or by tokens."""
    order = (1, 0, 2) if tokens_first else (0, 1, 2)
    q = empty(*((tokens, 4, SIZE) if tokens_first else (4, tokens, SIZE))).permute(order)
    k, v = (empty(2, tokens, SIZE).repeat_interleave(2, dim=0) for _ in range(2))
    out = q.scaled_dot_product_attention(k, v, is_causal=True).permute(order)
    return region_of(out.reshape(tokens, 4 * SIZE).contiguous() if tokens_first else out)


def causal_and(rows: int, keys: int, made_of: Callable[[Tensor], Tensor]) -> Region:
    """Causal attention of which something else is made of each score."""
    q, k, v = empty(2, rows, SIZE), empty(2, keys, SIZE), empty(2, keys, SIZE)
    mask = Tensor.arange(keys).reshape(1, keys) <= Tensor.arange(rows).reshape(rows, 1) + keys - rows
    scores = made_of((q @ k.transpose(-1, -2)) * 0.25)
    return region_of(mask.where(scores, scores.full_like(0) - math.inf).softmax(-1) @ v)


def of_many(keys: int, dtype: str = "float32") -> Region:
    """More queries than one tile has, and keys that are no multiple of a step."""
    q, k, v = (empty(2, rows, SIZE, dtype=dtype) for rows in (100, keys, keys))
    return region_of(q.scaled_dot_product_attention(k, v))


MASKED: dict[str, tuple[Callable[[], Region], int]] = {
    # what is attended, and how many loops a program has
    "causal": (lambda: masked(150, 150, lambda q, k: k <= q), 2),
    "before some more": (lambda: masked(70, 200, lambda q, k: k < q + 77), 2),
    "fewer queries than keys": (lambda: causal_and(100, 190, lambda scores: scores), 2),
    "more keys than are reached": (lambda: masked(100, 300, lambda q, k: k <= q), 2),
    "of several heads": (lambda: in_halves(False, 80), 2),
    "of several heads, aligned": (lambda: in_halves(False, 128), 2),
    "of tokens with their heads": (lambda: in_halves(True, 80), 2),
    "a bias": (lambda: causal_and(100, 100, lambda scores: scores + empty(100, 100)), 2),
    "a bound of scores": (lambda: causal_and(100, 100, lambda scores: (scores / 3).tanh() * 3), 2),
    "ragged keys": (lambda: of_many(75), 2),
    "ragged keys of 16 bits": (lambda: of_many(75, "bfloat16"), 2),
    "few keys": (lambda: of_many(13), 1),
    "whole keys": (lambda: of_many(64), 1),
}


def wide(region: Region) -> TileParameters:
    return replace(parameters(region), tile=(64,))


@pytest.mark.slow
@interpreted
def test_masks_are_computed_where_they_matter(tmp_path: Path) -> None:
    """Blocks of which each query reaches each key have a loop of their own, without a mask."""
    cases = {}
    for name, (made, loops) in MASKED.items():
        region = made()
        program = generate(region, TARGET, wide(region), interpreted=True)
        first, *others = program.source.split(" in range(")[1:]
        assert len(others) == loops - 1, name
        if others:
            assert "mask" not in first or name == "a bias", name  # whose rows may not exist
            assert not re.search(r"tl.where\(.*float\(.-inf.\)\)", first), name
            assert re.search(r"tl.where\(.*float\(.-inf.\)\)", others[0]), name
        cases[name] = Case(region, program)
    assert not wrong_of(cases, tmp_path)


@pytest.mark.slow
@interpreted
def test_a_mask_that_is_missing_is_found(tmp_path: Path) -> None:
    """The comparison itself: one block more without a mask, and one that has neither."""
    broken = []
    for name in ("causal", "before some more", "of several heads", "ragged keys"):
        region = MASKED[name][0]()
        right = generate(region, TARGET, wide(region), interpreted=True)
        (middle,) = re.findall(r"range\(0, (\w+), 16\)", right.source)
        (end,) = re.findall(rf"range\({middle}, (\w+), 16\)", right.source)
        more = right.source.replace(f"range(0, {middle},", f"range(0, {middle} + 16,")
        more = more.replace(f"range({middle}, {end}", f"range({middle} + 16, {end}")
        broken += [Case(region, replace(right, source=more))]
        broken += [Case(region, replace(right, source=right.source.replace(f"({middle}, {end}", f"({end}, {end}")))]
    wrong = compare(broken, tmp_path)
    assert all(wrong), wrong


@pytest.mark.parametrize("name", ["causal", "of several heads, aligned", "of tokens with their heads"])
def test_tiles_with_most_keys_are_first(name: str) -> None:
    """Of all heads together, so that those with few keys fill the last wave."""
    region = MASKED[name][0]()
    program = generate(region, TARGET, wide(region), interpreted=True)
    lines = [line.strip() for line in program.source.split("def tile_kernel")[1].splitlines()[1:]]
    scalars = lines[: next(n for n, line in enumerate(lines) if "tl.minimum" in line) + 1]
    ends = []
    for number in range(program.launches[0].grid):
        values: dict[str, Any] = {"tl": SimpleNamespace(program_id=lambda _, n=number: n, minimum=min)}
        for line in scalars:
            if "tl.full" not in line:
                exec(line, values)
        ends.append(next(value for text, value in reversed(values.items()) if text.startswith("end")))
    assert ends == sorted(ends, reverse=True) and len(set(ends)) > 1


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

    assert read_region(attention(256, scaled=False)).attention is not None
    assert read_region(attention(128, scaled=True)).attention is not None
    with pytest.raises(UnsupportedTile, match="made again for each block of queries"):
        read_region(attention(256, scaled=True))


def scores_of_two_products() -> Tensor:
    q, k, r, s, v = (empty(2, 64, size, dtype="float16") for size in (32, 32, 16, 16, 32))
    return (q @ k.transpose(1, 2) + r @ s.transpose(1, 2)).float().softmax(-1).cast("float16") @ v


def of_two_softmaxes() -> Tensor:
    q, k, r, s, v = (empty(2, 64, 32, dtype="float16") for _ in range(5))
    one, other = ((a @ b.transpose(1, 2)).float().softmax(-1) for a, b in ((q, k), (r, s)))
    return (one - 0.3 * other).cast("float16") @ v


def with_a_sink() -> Tensor:
    q, k, v = (empty(2, 64, 32, dtype="float16") for _ in range(3))
    scores, sink = (q @ k.transpose(1, 2)).float(), empty(2, 1, 1)
    largest = scores.max(-1, keepdim=True).maximum(sink)
    weights = (scores - largest).exp()
    return (weights / (weights.sum(-1, keepdim=True) + (sink - largest).exp())).cast("float16") @ v


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (scores_of_two_products, "its scores are made of 2 sums"),
        (of_two_softmaxes, "it has 2 maxima, not one"),
        (with_a_sink, "0 products follow from the maximum, not one"),
    ],
)
def test_what_is_no_attention_is_refused_with_the_reason(made: Callable[[], Tensor], words: str) -> None:
    with pytest.raises(UnsupportedTile, match=f"and no attention \\({words}"):
        read_region(region_of(made()))


def test_warps_are_not_specialised() -> None:
    """Triton 3.6 made a program that ended in NaN, and one that never ended."""
    region = region_of(plain("float16"))
    p = replace(parameters(region, TMA), warp_specialize=True)
    with pytest.raises(UnsupportedTile, match="only a product's loop"):
        generate(region, KNOWN_TARGETS["sm_90"], p)
    assert legal_values(read_region(region), KNOWN_TARGETS["sm_90"], p, "warp_specialize") == (False,)


# ---- decoding: few queries, and keys that are split over programs

HEADS, KEY_HEADS = 8, 2
LENGTHS = (1, 17, 40, 300)  # of 300: parts without a key, and keys that are no multiple of anything


def decoded(
    keys: int,
    dtype: str = "float16",
    *,
    heads: int = HEADS,
    key_heads: int = KEY_HEADS,
    size: int = SIZE,
    queries: int = 1,
) -> Tensor:
    """The last tokens against a cache, each key and value of `heads / key_heads` query heads."""
    q = empty(1, heads, queries, size, dtype=dtype)
    k, v = (empty(1, key_heads, keys, size, dtype=dtype) for _ in range(2))
    return q.scaled_dot_product_attention(k, v, enable_gqa=True)


def alone(keys: int, dtype: str = "float16") -> Tensor:
    """Each head of queries has keys of its own: a product with one row."""
    return decoded(keys, dtype, key_heads=HEADS)


def with_mask(keys: int, dtype: str = "float16") -> Tensor:
    """Three tokens, of which each sees one key more than the one before; query heads by `repeat_interleave`."""
    q = empty(HEADS, 3, SIZE, dtype=dtype)
    k, v = (empty(KEY_HEADS, keys, SIZE, dtype=dtype).repeat_interleave(HEADS // KEY_HEADS, dim=0) for _ in range(2))
    mask = (Tensor.arange(keys).reshape(1, keys) <= Tensor.arange(3).reshape(3, 1) + keys - 3).where(0.0, -math.inf)
    return q.scaled_dot_product_attention(k, v, attn_mask=mask.cast(dtype))


def cached(keys: int, dtype: str = "float16") -> Tensor:
    """Of a cache of so many keys as many as a variable says."""
    length = Variable("length", 1, keys).bind(keys)
    q = empty(1, HEADS, 1, SIZE, dtype=dtype)
    k, v = (empty(1, KEY_HEADS, keys, SIZE, dtype=dtype)[:, :, :length] for _ in range(2))
    return q.scaled_dot_product_attention(k, v, enable_gqa=True)


def cached_alone(keys: int, dtype: str = "float16") -> Tensor:
    """The same, each head of queries with keys of its own."""
    length = Variable("length", 1, keys).bind(keys)
    q = empty(HEADS, 1, SIZE, dtype=dtype)
    k, v = (empty(HEADS, keys, SIZE, dtype=dtype)[:, :length] for _ in range(2))
    return q.scaled_dot_product_attention(k, v)


def in_parts(region: Region, split: int, loads: str = POINTER) -> TileParameters:
    return replace(parameters(region, loads), split=split)


@pytest.mark.slow
@interpreted
@pytest.mark.parametrize("split", [pytest.param(2, marks=SLOW), 3, pytest.param(8, marks=SLOW)])
def test_keys_are_split(split: int, tmp_path: Path) -> None:
    """40 keys are three steps: of eight parts five have none, and of causal rows more see none of a part's."""
    cases = {}
    for attention in ATTENTIONS:
        for loads in (POINTER, TMA):
            region = region_of(attention("bfloat16" if split == 3 else "float32"))
            if loads == TMA and attention is grouped:
                continue
            program = generate(region, TARGET, in_parts(region, split, loads), interpreted=True)
            assert len(program.launches) == 2 and "atomic" not in program.source
            cases[f"{attention.__name__} {loads}"] = Case(region, program)
    assert not wrong_of(cases, tmp_path)


@pytest.mark.slow
@interpreted
@pytest.mark.parametrize("split", [1, pytest.param(3, marks=SLOW), 16])
def test_few_queries(split: int, tmp_path: Path) -> None:
    cases = {}
    for attention in (decoded, alone, with_mask):
        region = region_of(attention(77, "float16" if split == 1 else "bfloat16"))
        cases[attention.__name__] = Case(region, generate(region, TARGET, in_parts(region, split), interpreted=True))
    for attention in (cached, cached_alone):
        region = region_of(attention(300))
        program = generate(region, TARGET, in_parts(region, split), interpreted=True)
        assert program.launches[0].grid == split * AttentionView.of(read_region(region)).tiles(16)
        for length in LENGTHS:
            cases[f"{attention.__name__} {length}"] = Case(region, program, (("length", length),))
    assert not wrong_of(cases, tmp_path)


@interpreted
def test_parts_are_added_in_the_same_order_every_time(tmp_path: Path) -> None:
    region = region_of(decoded(300))
    program = generate(region, TARGET, in_parts(region, 5), interpreted=True)
    assert not any(compare([Case(region, program), Case(region, program)], tmp_path))
    (slot,) = region.outputs
    one, other = ((tmp_path / f"case{number}.p{slot}.npy").read_bytes() for number in range(2))
    assert one == other


@interpreted
def test_what_is_missing_of_parts_is_found(tmp_path: Path) -> None:
    """No correction by the largest score, a part that is left out, a part that is read where another one's is."""
    region = region_of(decoded(300))
    right = generate(region, TARGET, in_parts(region, 4), interpreted=True)
    launch = right.source.index("tile_kernel_sum")
    first, second = right.source[:launch], right.source[launch:]
    broken = [
        first + second.replace("(shift", "0 * (shift"),
        first + second.replace("< 4, other=float", "< 3, other=float"),
        first.replace("tl.minimum(begin", "tl.minimum(16 + begin", 1) + second,
    ]
    assert all(text != right.source for text in broken)
    wrong = compare([Case(region, replace(right, source=text)) for text in broken], tmp_path)
    assert all(wrong), wrong


@pytest.mark.slow
@pytest.mark.parametrize("tokens_first", [False, True])
def test_causal_rows_of_several_heads_end_where_their_last_token_does(tokens_first: bool, tmp_path: Path) -> None:
    """Of tiles that begin anywhere in a head, and of tiles with all heads of some tokens."""
    region = in_halves(tokens_first, 40)
    cases = {}
    for split in (1, 2):
        program = generate(region, TARGET, in_parts(region, split), interpreted=True)
        assert "tl.minimum(40, " in program.source
        cases[f"{split}"] = Case(region, program)
    assert not wrong_of(cases, tmp_path)


@pytest.mark.slow
def test_the_prior_splits_keys_where_tiles_leave_multiprocessors_idle() -> None:
    """About as many programs as multiprocessors; none more where tiles are enough, or keys few."""
    target = replace(TARGET, cores=132)
    chosen = {
        keys: default_parameters(read_region(region_of(decoded(keys, heads=32, key_heads=8, size=64))), target)
        for keys in (256, 4096, 32_768)
    }
    assert {keys: p.form for keys, p in chosen.items()} == dict.fromkeys(chosen, FLASH_ATTENTION)
    assert chosen[256].split == 1
    assert all(0.8 * 132 <= 8 * p.split <= 132 for keys, p in chosen.items() if keys > 256)
    many = read_region(region_of(decoded(4096, heads=32, key_heads=8, size=64, queries=512)))
    assert (p := default_parameters(many, target)).split == 1 and p.form == SPECIALIZED


def test_a_split_is_a_step_of_the_space_and_costs_less_for_decoding() -> None:
    target = replace(TARGET, cores=132)
    region = region_of(decoded(32_768, heads=32, key_heads=8, size=64))
    kernel = read_region(region)
    space = TileSpace(region, target, kernel)
    p = space.parameters(space.start())
    assert {1, 8, 16, 32} <= set(legal_values(kernel, target, p, "split"))
    assert any(action.label.startswith("split,") for action in space.actions(space.start()))
    seconds = {split: predicted_seconds(kernel, target, replace(p, split=split)) for split in (1, 4, p.split)}
    assert seconds[1] > seconds[4] > seconds[p.split]
    few = read_region(region_of(plain("float16")))
    assert legal_values(few, target, replace(parameters(region_of(plain("float16"))), reduce_tile=128), "split") == (1,)


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TRITON, reason=WITHOUT)
@pytest.mark.parametrize("build", first(1, [alone, decoded, cached]))
def test_programs_for_decoding_spill_nothing(build: Callable[..., Tensor]) -> None:
    target = replace(TARGET, cores=132)
    for keys in (4096, 32_768):
        region = region_of(
            decoded(keys, heads=32, key_heads=8, size=64) if build is decoded else build(keys, "bfloat16")
        )
        schedule = schedule_of(default_parameters(read_region(region), target))
        variables = (("length", keys),) if build is cached else ()
        launches = compile_tile(region, schedule, target, variables=variables).launches
        assert len(launches) == 2
        assert all(dict(launch.compiled.report)["spilled_bytes"] == 0 for launch in launches)


@pytest.mark.slow
@interpreted
@pytest.mark.parametrize(
    "preset",
    ["smollm-decode-b16", *(pytest.param(p, marks=SLOW) for p in ("mini-decode", "3.2-1b-decode", "2-7b-decode"))],
)
def test_attention_of_a_decoding_llama(preset: str, tmp_path: Path) -> None:
    """The calls that read the cache up to a variable: of float32 and of 16 bits, of grouped heads and of others."""
    (sequence,) = captured("llama", preset).sequences
    kernels = [call.kernel for call in sequence.calls]
    assert kernels
    found = [place for place in range(len(kernels) - 4) if _is_attention(sequence.region(*range(place, place + 5)))]
    assert len(found) == 2  # of two layers
    if preset == "mini-decode":
        region = sequence.region(*range(found[0], found[0] + 5))
        program = generate(region, TARGET, in_parts(region, 2), interpreted=True)
        cases = {f"{n}": Case(region, program, (("start_pos", n),)) for n in (1, 20, 63)}
        assert not wrong_of(cases, tmp_path)


@cache
def of_a_token(context: int) -> Region:
    """The calls of a block of a small language model that read its cache, one token after so many."""
    config = replace(MINI, context=context, position=context - 1, blocks=1)
    (sequence,) = step_workload("llm", "mini", lambda: build(config)).sequences
    every = (sequence.region(*range(place, place + 5)) for place in range(len(sequence.calls) - 4))
    (region,) = filter(_is_attention, every)
    return region


def only_ends_count(region: Region, p: TileParameters, context: int, start: int) -> dict[int, np.ndarray]:
    """Inputs with which the first and the last key of each part of a program share all weight: one that is left out,
    is read twice or elsewhere changes the result by more than any rounding. Nothing is rotated."""
    _, query, turns, cache = region.args[0]
    size, heads, keys = MINI.head_size, MINI.kv_heads, start + 1
    chunk = -(-keys // (p.reduce_tile * p.split)) * p.reduce_tile
    ends = [at for at in {start, *(n * chunk - before for n in range(p.split) for before in (0, 1))} if 0 <= at < keys]
    rng = np.random.default_rng(start)
    held = rng.normal(size=(2, heads, context, size)).astype(np.float32)
    held[0] /= 4
    held[0][:, ends] = 2  # a score of 16, where others are of -1 to 1
    rope = np.repeat(np.float32([[1, 0]]), size // 2, axis=1).repeat(context, axis=0)
    return {query: np.ones(MINI.heads * size, np.float32), turns: rope.reshape(-1), cache: held.reshape(-1)}


@pytest.mark.slow
@interpreted
@pytest.mark.parametrize(
    ("context", "starts", "splits"),
    [(16, (0, 15), (1, 2)), (1024, (15, 1022, 1023), (3, 32)), (32_768, (15, 1023, 32_767), (56,))],
)
def test_attention_of_a_token_with_few_keys_and_with_many(
    context: int, starts: tuple[int, ...], splits: tuple[int, ...], tmp_path: Path
) -> None:
    """On ordinary data, and where each key at an end of a part has as much weight as any other."""
    region, cases, broken = of_a_token(context), {}, {}
    for split, loads in product(splits, (POINTER, TMA)):
        p = replace(in_parts(region, split, loads), reduce_tile=min(64, context))
        program = generate(region, TARGET, p, interpreted=True)
        assert len(program.launches) == (1 if split == 1 else 2)
        for start in starts:
            variables, name = (("start_pos", start),), f"{split} {loads} {start}"
            cases[name] = Case(region, program, variables)
            inputs = only_ends_count(region, p, context, start)
            cases[f"{name} ends"] = Case(region, program, variables, inputs=inputs)
            if split > 1 and start == context - 1:
                lost = f"begin + chunk - {p.reduce_tile},"  # the last step of each part
                for text, other in (("begin + chunk,", lost), ("* chunk\n", "* chunk + 1\n")):
                    wrong = replace(program, source=program.source.replace(text, other, 1))
                    assert wrong.source != program.source
                    broken[f"{name} {other}"] = Case(region, wrong, variables, inputs=inputs)
    assert not wrong_of(cases, tmp_path)
    assert set(wrong_of(broken, tmp_path)) == set(broken)


@pytest.mark.slow
@interpreted
def test_attention_of_a_piece_of_a_prompt(tmp_path: Path) -> None:
    """Each token sees the past and those of the piece before it, a variable number: with one and with many."""
    (sequence,) = captured("llm", "mini-prompt").sequences
    every = (sequence.region(*range(place, place + 6)) for place in range(len(sequence.calls) - 5))
    found = list(filter(_is_attention, every))
    assert len(found) == MINI.blocks
    program = generate(found[0], TARGET, parameters(found[0]), interpreted=True)
    pieces = [(0, 1), (20, 9), (MINI.context - MOST_TOKENS, MOST_TOKENS)]
    cases = {f"{at} {n}": Case(found[0], program, (("start_pos", at), ("toks", n))) for at, n in pieces}
    assert not wrong_of(cases, tmp_path)


def _is_attention(region: Region) -> bool:
    try:
        return read_region(region).attention is not None
    except UnsupportedTile:
        return False


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TRITON, reason=WITHOUT)
@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.slow)])
@pytest.mark.parametrize("causal", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_heads_of_every_size_spill_nothing(causal: bool, dtype: str) -> None:
    """By the prior's choice, which is of specialised warps where these have registers for a head. With a mask there is
    more to hold, in both types as much."""
    for size, form in ((64, SPECIALIZED), (128, SPECIALIZED), (256, FLASH_ATTENTION)):
        q, k, v = (empty(8, 4096, size, dtype=dtype) for _ in range(3))
        region = region_of(q.scaled_dot_product_attention(k, v, is_causal=causal))
        chosen = default_parameters(read_region(region), TARGET)
        assert chosen.form == form
        for launch in compile_tile(region, schedule_of(chosen), TARGET).launches:
            report = dict(launch.compiled.report)
            assert report["spilled_bytes"] == 0, (size, dtype, report)
