"""Attention of which masks bound the keys from both sides: which blocks a program visits, and what it computes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tinygrad import Tensor, Variable

from kcg.kernel.reading.fuse import read_region
from kcg.kernel.tile.attention import reach_of, visited_blocks
from kcg.kernel.tile.compile import compile_tile
from kcg.kernel.tile.cost import predicted_seconds
from kcg.kernel.tile.generate import generate
from kcg.kernel.tile.parameters import FLASH_ATTENTION, SPECIALIZED, TMA, TileParameters
from kcg.kernel.tile.prior import default_parameters, parameters_of
from kcg.kernel.tile.space import schedule_of
from kcg.kernel.tile.tiles import Axis
from kcg.kernel.tile.views import AttentionView
from kcg.types import Region
from tests.chains import region_of
from tests.kernel.tile.running import HAS_TRITON, WITHOUT, Case, compare, wrong_of
from tests.kernels import empty
from tests.known_targets import KNOWN_TARGETS
from tests.slow import every, first

TARGET = replace(KNOWN_TARGETS["sm_90"], cores=132)
interpreted = pytest.mark.skipif(not HAS_TRITON, reason=WITHOUT)
SIZE, STEP = 16, 16

Numbers = Any  # of queries and keys: tensors, or arrays
Allowed = Callable[[Numbers, Numbers], Any]


def window(width: int, offset: int = 0) -> Allowed:
    """The last so many keys up to that of the query."""
    return lambda q, k: (k <= q + offset) & (k > q + offset - width)


def local(before: int, behind: int) -> Allowed:
    return lambda q, k: (k >= q - before) & (k <= q + behind)


def distance(q: Numbers, k: Numbers) -> Numbers:
    return (q - k).abs() if isinstance(q, Tensor) else np.abs(q - k)


def numbers(rows: int, keys: int) -> tuple[Tensor, Tensor]:
    return Tensor.arange(rows).reshape(rows, 1), Tensor.arange(keys).reshape(1, keys)


def masked(rows: int, keys: int, allowed: Allowed, *, heads: int = 2, dtype: str = "float32") -> Region:
    """Attention of which a key takes part where `allowed` says so of the numbers of queries and keys."""
    q, k, v = (empty(heads, count, SIZE, dtype=dtype) for count in (rows, keys, keys))
    scores = (q @ k.transpose(-1, -2)).float() * 0.25
    weights = allowed(*numbers(rows, keys)).where(scores, -math.inf).softmax(-1)
    return region_of(weights.cast(dtype) @ v)


SPANS: dict[str, tuple[int, int, Allowed]] = {
    "one key": (75, 75, window(1)),
    "less than a block": (100, 100, window(7)),
    "a block": (96, 96, window(16)),
    "several blocks": (150, 150, window(90)),
    "more than all keys": (100, 100, window(300)),
    "both sides": (75, 133, local(20, 9)),
    "both sides, wide": (200, 200, local(70, 60)),
    "fewer queries than keys": (50, 190, window(33, 140)),
    "more queries than keys": (190, 60, local(40, 40)),
    "from the query on": (100, 100, lambda q, k: k >= q),
    "from some before": (70, 96, lambda q, k: k > q - 30),
    "the same for all queries": (70, 120, lambda q, k: (k >= 37) & (k < 90)),
    "the distance": (100, 140, lambda q, k: distance(q, k) < 19),
    "sequences of one length": (120, 120, lambda q, k: k // 40 == q // 40),
    "causal sequences of one length": (120, 120, lambda q, k: (k // 24 == q // 24) & (k <= q)),
}
"""Queries, keys, and which of these a query has."""


def grouped(rows: int, width: int, tokens_first: bool) -> Region:
    """Four heads of queries, two of keys; a tile goes on with the next head, or has all heads of a token."""
    order = (1, 0, 2) if tokens_first else (0, 1, 2)
    q = empty(*((rows, 4, SIZE) if tokens_first else (4, rows, SIZE))).permute(order)
    k, v = (empty(2, rows, SIZE).repeat_interleave(2, dim=0) for _ in range(2))
    out = q.scaled_dot_product_attention(k, v, attn_mask=window(width)(*numbers(rows, rows))).permute(order)
    return region_of(out.reshape(rows, 4 * SIZE).contiguous() if tokens_first else out)


def added(rows: int, first: Allowed, *others: Allowed, dtype: str = "float32") -> Region:
    """Masks that are added to the scores, each of its own."""
    q, k, v = (empty(2, rows, SIZE, dtype=dtype) for _ in range(3))
    scores = (q @ k.transpose(-1, -2)).float() * 0.25
    for allowed in (first, *others):
        scores = scores + allowed(*numbers(rows, rows)).where(0.0, -math.inf)
    return region_of(scores.softmax(-1).cast(dtype) @ v)


def of_scores(made: Callable[[Tensor], Tensor]) -> Region:
    """Of which something else is made of each score."""
    q, k, v = (empty(2, 100, SIZE) for _ in range(3))
    scores = made((q @ k.transpose(-1, -2)) * 0.25)
    return region_of(window(37)(*numbers(100, 100)).where(scores, -math.inf).softmax(-1) @ v)


def padded() -> Region:
    """Keys that memory says are there."""
    there = empty(2, 1, 100) > 0
    return masked(100, 100, lambda q, k: window(37)(q, k) & (there | k.eq(q)))


OTHERS: dict[str, Callable[[], Region]] = {
    "16 bits": lambda: masked(90, 90, window(33), dtype="bfloat16"),
    "two added masks": lambda: added(90, lambda q, k: k <= q, lambda q, k: k > q - 40),
    "one added mask": lambda: added(90, window(40), dtype="float16"),
    "neither before nor behind": lambda: masked(90, 90, lambda q, k: ((k > q) | (k < q - 30)).logical_not()),
    "heads that share keys": lambda: grouped(80, 21, tokens_first=False),
    "heads that share keys, aligned": lambda: grouped(128, 70, tokens_first=False),
    "tokens with their heads": lambda: grouped(80, 21, tokens_first=True),
    "a bias": lambda: of_scores(lambda scores: scores + empty(100, 100)),
    "a bound of scores": lambda: of_scores(lambda scores: (scores / 3).tanh() * 3),
    "another mask in memory": padded,
    "rows without a key": lambda: masked(70, 60, lambda q, k: k > q + 20),
}


def parameters(region: Region, height: int = 16, **changes: Any) -> TileParameters:
    axes = AttentionView.of(read_region(region)).axes
    return replace(
        TileParameters(FLASH_ATTENTION, axes, (height,), reduce_tile=STEP, num_warps=4, num_stages=2), **changes
    )


SHAPES: tuple[dict[str, Any], ...] = (
    {"height": 16},
    {"height": 64},
    {"height": 64, "loads": TMA},
    {"height": 16, "split": 3},
)


@pytest.mark.slow
@interpreted
@pytest.mark.parametrize(
    "shape", [SHAPES[0], *(pytest.param(shape, marks=pytest.mark.slow) for shape in SHAPES[1:])], ids=str
)
def test_what_masks_leave_is_attended(shape: dict[str, Any], tmp_path: Path) -> None:
    regions = {name: masked(*span, heads=1) for name, span in SPANS.items()}
    regions |= {name: made() for name, made in OTHERS.items()}
    if "split" in shape:  # parts of the keys are told from other programs by where they begin: a third of the cases
        regions = dict(list(regions.items())[::3])
    cases = {}
    for name, region in regions.items():
        if shape.get("loads") == TMA and "heads" in name:
            continue  # a head of keys is no sum of steps
        program = generate(region, TARGET, parameters(region, **shape), interpreted=True)
        cases[name] = Case(region, program)
    assert not wrong_of(cases, tmp_path)


Loop = tuple[range, bool]
"""The first keys of a loop's blocks, and whether these are masked."""


def loops_of(source: str, program: int, **variables: int) -> tuple[int, list[Loop]]:
    """The first query of a program, and its loops over keys, by the statements of the text."""
    words = SimpleNamespace(
        program_id=lambda _: program, minimum=min, maximum=max, where=lambda condition, a, b: a if condition else b
    )
    values: dict[str, Any] = {"tl": words, **variables}
    found: list[Loop] = []
    (body,) = re.findall(r"def tile_kernel\(.*\n((?:    .*\n)+)", source)
    for part in re.split(r"^(?=    \S)", body, flags=re.MULTILINE):
        if loop := re.match(r" +for \w+ in (range\(.*\)):", part):
            found.append((eval(loop[1], values), "-inf" in part.split("tl.maximum")[0]))
            continue
        try:
            exec(part.strip(), values)
        except (AttributeError, NameError):  # no scalar
            continue
    starts = [value for name, value in values.items() if re.fullmatch(r"start\d*", name)]
    return (starts or [0])[0], found


@pytest.mark.parametrize("name", every(3, SPANS))
@pytest.mark.parametrize("height", first(1, [64, 16]))
def test_blocks_are_visited_that_hold_a_key_of_some_query(name: str, height: int) -> None:
    """Each of them once, and no other one; of 64 queries without a mask those of which each query has each key."""
    rows, keys, allowed = SPANS[name]
    region = masked(rows, keys, allowed, heads=1)
    program = generate(region, TARGET, parameters(region, height), interpreted=True)
    pairs = np.zeros((rows + height, keys + STEP), bool)  # those of queries past the end too
    pairs[:, :keys] = allowed(np.arange(rows + height)[:, None], np.arange(keys)[None, :])
    starts, counts = [], []
    for number in range(program.launches[0].grid):
        start, loops = loops_of(program.source, number)
        blocks = [first for visited, _ in loops for first in visited]
        tile = pairs[start : start + height]
        needed = [first for first in range(0, keys, STEP) if tile[:, first : first + STEP].any()]
        if "sequences" in name:  # bounds that are told are wider by a sequence
            assert set(needed) <= set(blocks) and blocks == list(range(blocks[0], blocks[-1] + STEP, STEP))
        else:
            assert blocks == needed, (start, loops)
            whole = [first for first in needed if height == 64 and tile[:, first : first + STEP].all()]
            assert whole == [first for visited, is_masked in loops if not is_masked for first in visited], start
        starts.append(start)
        counts.append(max(1, len(blocks)))  # a program takes time without any
    assert sorted(starts) == list(range(0, rows, height))
    attention = read_region(region).attention
    assert attention is not None
    mean, most = visited_blocks(reach_of(attention), Axis(attention.rows, height), keys, STEP)
    assert (mean, most) == (sum(counts) / len(counts), max(counts))


@interpreted
def test_a_bound_that_is_wrong_is_found(tmp_path: Path) -> None:
    """The comparison itself: a block less at the begin or the end, and one more without a mask on either side."""
    region = masked(*SPANS["both sides, wide"])
    right = generate(region, TARGET, parameters(region, 64), interpreted=True).source
    (begin, first), (_, middle), (_, end) = re.findall(r"in range\((\w+), (\w+), 16\)", right)
    broken = [
        right.replace(f"range({begin}, {first}", f"range({begin} + 16, {first}"),
        right.replace(f"range({middle}, {end}", f"range({middle}, {end} - 16"),
        re.sub(
            rf"range\({begin}, \w+(.*?)range\(\w+, ",
            rf"range({begin}, {begin} + 16\1range({begin} + 16, ",
            right,
            flags=re.DOTALL,
        ),
        right.replace(f", {middle}, 16)", f", {middle} + 16, 16)").replace(
            f"range({middle}, ", f"range({middle} + 16, "
        ),
    ]
    assert all(text != right for text in broken)
    program = generate(region, TARGET, parameters(region, 64), interpreted=True)
    wrong = compare([Case(region, replace(program, source=text)) for text in broken], tmp_path)
    assert all(wrong), wrong


# ---- decoding: the last keys of a cache, up to a variable

CACHE, RECENT = 300, 40


def recent(queries: int = 1) -> Region:
    """The last tokens against the last keys up to each, of as many as a variable says; two heads share keys."""
    before = Variable("before", 0, CACHE - queries).bind(CACHE - queries)
    length = before + queries
    q = empty(1, 4, queries, SIZE, dtype="float16")
    k, v = (empty(1, 2, CACHE, SIZE, dtype="float16")[:, :, :length] for _ in range(2))
    place = Tensor.arange(CACHE).reshape(1, CACHE)[:, :length]
    at = Tensor.arange(queries).reshape(queries, 1) + before
    mask = (place <= at) & (place > at - RECENT) if queries > 1 else place > at - RECENT
    return region_of(q.scaled_dot_product_attention(k, v, attn_mask=mask, enable_gqa=True))


@pytest.mark.slow
@interpreted
@pytest.mark.parametrize("queries", [1, 5])
def test_the_last_keys_of_a_cache_are_read(queries: int, tmp_path: Path) -> None:
    region = recent(queries)
    cases = {}
    for split in (1, 3):
        program = generate(region, TARGET, parameters(region, split=split), interpreted=True)
        for before in (0, 15, 100, CACHE - queries):
            cases[f"{split} {before}"] = Case(region, program, (("before", before),))
            if split == 1:
                _, [(visited, _)] = loops_of(program.source, 0, var_before=before)
                assert list(visited) == list(range(max(0, before + 1 - RECENT) // STEP * STEP, before + queries, STEP))
    assert not wrong_of(cases, tmp_path)


# ---- specialised warps, which the interpreter does not have: by the statements of the text

SPECIALIZED_SPANS: dict[str, tuple[int, int, Allowed]] = {
    "less than a block": (640, 640, window(20)),
    "a block": (384, 384, window(128)),
    "several blocks": (1024, 1024, window(500)),
    "both sides, odd": (330, 777, local(200, 150)),
    "from the query on": (512, 640, lambda q, k: k >= q),
    "queries without a key": (640, 200, window(64)),
    "the same for all queries": (256, 512, lambda q, k: (k >= 137) & (k < 390)),
}


def blocks_of(source: str, program: int, group: int | None) -> tuple[int, list[tuple[int, bool]]]:
    """The first query of a program's group, or of its tile, and the blocks of keys that it visits in order: the first
    key of each, and whether it is masked."""
    words = SimpleNamespace(
        program_id=lambda _: program, minimum=min, maximum=max, where=lambda condition, a, b: a if condition else b
    )
    values: dict[str, Any] = {"gl": words, "group": group}
    (body,) = re.findall(rf"def {'load' if group is None else 'compute'}\(.*\n((?:    .*\n)+)", source)
    for line in re.findall(r"^    (\w+ = .*)$", body, re.MULTILINE):
        try:
            exec(line, values)
        except (AttributeError, NameError, TypeError):  # no scalar
            continue
    named = {re.sub(r"\d+$", "", name): value for name, value in values.items()}
    (visited,) = re.findall(r"for number in range\((.*blocks\d*)\):\n.*slot", body)
    (key,) = re.findall(r"        key\d* = (.*number.*)", body)
    masked = re.search(r"        if (.*):", body)
    span = eval(f"range({visited})", values)
    numbers = list(span) if group is None else [span.start - 1, *span]  # one before the loop
    blocks = []
    for place, number in enumerate(numbers):
        at = {**values, "number": number}
        is_masked = place == 0 or masked is None or bool(eval(masked[1], at))
        blocks.append((eval(key, at), is_masked))
    return named["start"], blocks


@pytest.mark.slow
@pytest.mark.parametrize("name", SPECIALIZED_SPANS)
@pytest.mark.parametrize(("height", "step"), every(3, [(192, 64), (128, 128), (128, 64)]))
def test_specialised_warps_visit_blocks_that_hold_a_key_of_some_query(name: str, height: int, step: int) -> None:
    """Groups visit what is loaded, and what is left of it for them, from the last block on; there is at least one."""
    rows, keys, allowed = SPECIALIZED_SPANS[name]
    q, k, v = (empty(1, count, 64, dtype="bfloat16") for count in (rows, keys, keys))
    region = region_of(q.scaled_dot_product_attention(k, v, attn_mask=allowed(*numbers(rows, keys))))
    p = parameters_of(read_region(region), TARGET, SPECIALIZED, AttentionView.of(read_region(region)).axes)
    program = generate(region, TARGET, replace(p, tile=(height,), reduce_tile=step))
    pairs = np.zeros((rows + height, keys + step), bool)
    pairs[:, :keys] = allowed(np.arange(rows + height)[:, None], np.arange(keys)[None, :])
    for number in range(program.launches[0].grid):
        start, loaded = blocks_of(program.source, number, None)
        tile = pairs[start : start + height]
        needed = [first for first in range(0, keys, step) if tile[:, first : first + step].any()]
        order = [first for first, _ in loaded]
        assert order[::-1] == (needed or order[:1]), (start, needed)
        for group in range(height // 64):
            first, visited = blocks_of(program.source, number, group)
            assert first == start + 64 * group
            own = pairs[first : first + 64]
            assert [key for key, _ in visited] == order[-len(visited) :]
            assert not own[:, order[-len(visited)] + step :].any()  # what a group gives back
            for key, is_masked in visited:
                assert is_masked == (key == visited[0][0] or not own[:, key : key + step].all()), (first, key)


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TRITON, reason=WITHOUT)
@pytest.mark.parametrize("wide", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("size", "heads"), every(3, [(256, 4), (64, 8), (128, 8)]))
def test_windows_spill_nothing(size: int, heads: int, wide: bool) -> None:
    """By the prior's choice for both forms: of keys on both sides, which have most to mask."""
    others: list[Allowed] = [window(512), lambda q, k: k > q - 512]
    for allowed in others if wide else [local(256, 256)]:
        q, k, v = (empty(heads, 2048, size, dtype="bfloat16") for _ in range(3))
        region = region_of(q.scaled_dot_product_attention(k, v, attn_mask=allowed(*numbers(2048, 2048))))
        kernel = read_region(region)
        chosen = default_parameters(kernel, TARGET)
        assert chosen.form == (SPECIALIZED if size < 256 else FLASH_ATTENTION)
        for p in {chosen, parameters_of(kernel, TARGET, FLASH_ATTENTION, AttentionView.of(kernel).axes)}:
            (launch,) = compile_tile(region, schedule_of(p), TARGET).launches
            report = dict(launch.compiled.report)
            assert (report["spilled_bytes"], report["wgmma"]) == (0, 1), (p.form, report)


@pytest.mark.slow
def test_a_narrower_window_is_expected_to_take_less() -> None:
    """Of both forms, and of one token: then fewer bytes of the cache."""
    seconds: dict[str, list[float]] = {FLASH_ATTENTION: [], SPECIALIZED: []}
    for width in (256, 1024, 4096):
        q, k, v = (empty(32, 4096, 64, dtype="bfloat16") for _ in range(3))
        region = region_of(q.scaled_dot_product_attention(k, v, attn_mask=window(width)(*numbers(4096, 4096))))
        kernel = read_region(region)
        for form, found in seconds.items():
            p = parameters_of(kernel, TARGET, form, AttentionView.of(kernel).axes)
            found.append(predicted_seconds(kernel, TARGET, p))
    for found in seconds.values():
        assert found == sorted(found) and found[0] < 0.5 * found[-1]

    def decoding(width: int) -> float:
        q, k, v = (empty(1, heads, n, 64, dtype="bfloat16") for heads, n in ((32, 1), (8, 32_768), (8, 32_768)))
        mask = Tensor.arange(32_768).reshape(1, 32_768) >= 32_768 - width
        kernel = read_region(region_of(q.scaled_dot_product_attention(k, v, attn_mask=mask, enable_gqa=True)))
        return predicted_seconds(kernel, TARGET, default_parameters(kernel, TARGET))

    assert decoding(1024) < 0.7 * decoding(32_768)
