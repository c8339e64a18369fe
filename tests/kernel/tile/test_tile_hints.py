"""Hints to compiler and caches: eviction policies of loads, limits of registers. They are steps only where they
change the program that is run."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from kcg.errors import ScheduleError
from kcg.kernel.kinds import parse
from kcg.kernel.reading.kernel import read_kernel
from kcg.kernel.tile.cost import predicted_seconds
from kcg.kernel.tile.generate import generate_kernel
from kcg.kernel.tile.legal import legal_values, starts
from kcg.kernel.tile.parameters import CONTRACTION, POINTER, TMA, TileParameters
from kcg.kernel.tile.prior import default_parameters
from kcg.kernel.tile.space import TileSpace, schedule_of
from kcg.kernel.tile.targets import evicts_copies, triton_version
from kcg.types import Region
from tests.kernel.tile.test_tile_kind import SM_90, compiled, linear, region, space, triton
from tests.kernels import empty


def decode(rows: int = 1) -> Region:
    """A product of few rows with 64 MB of weights, which are read once."""
    return region(empty(rows, 4096, dtype="bfloat16") @ empty(4096, 8192, dtype="bfloat16"))


def evictions(of: TileSpace, p: TileParameters) -> set[tuple[str, tuple[int, ...]]]:
    fields = ("evict_first", "evict_last")
    return {(f, value) for f in fields for value in legal_values(of.kernel, of.target, p, f) if value}


def test_what_is_read_once_may_go_first_and_what_is_read_again_may_stay() -> None:
    of = space(decode())
    start = of.parameters(of.start())
    weight = next(n for n, load in enumerate(of.kernel.loads) if load.buffer.size == 4096 * 8192)
    assert evictions(of, start) == {("evict_first", (weight,)), ("evict_last", (1 - weight,))}
    assert start.evict_first == (weight,), "a reduction begins with it"
    labels = {a.label: a.schedule for a in of.actions(of.start())}
    chosen = labels["evict_first,none"]
    of.check(chosen)
    texts = [generate_kernel(of.kernel, of.target, p).source for p in (start, of.parameters(chosen))]
    assert [text.count('eviction_policy="evict_first"') for text in texts] == [1, 0]
    assert not evictions(space(region(empty(1, 512) @ empty(512, 512))), start), "all of it stays in L2 anyway"


def test_a_policy_that_the_compiler_drops_is_no_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loads by descriptors have none; asynchronous copies have one in newer compilers only."""
    of = space(region(empty(2048, 4096, dtype="bfloat16") @ empty(4096, 4096, dtype="bfloat16")))
    start = of.parameters(of.start())
    pointers = replace(start, loads=POINTER, persistent=0, epilogue_parts=1)
    assert pointers.num_stages > 1
    for heard in (True, False):
        monkeypatch.setattr("kcg.kernel.tile.eviction.evicts_copies", lambda heard=heard: heard)
        assert not evictions(of, replace(pointers, loads=TMA)) and bool(evictions(of, pointers)) == heard
        assert evictions(of, replace(pointers, num_stages=1))


def test_a_reduction_begins_with_what_it_reads_once_going_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then what kernels before wrote stays in L2, and nothing is written to memory while it reads. Not where the
    compiler drops the policy, and not of what fits into L2."""
    monkeypatch.setattr("kcg.kernel.tile.eviction.evicts_copies", lambda: False)
    of = space(region(empty(32768, 1024, dtype="bfloat16").max(1)))
    start = of.parameters(of.start())
    assert start.evict_first == (0,)
    assert predicted_seconds(of.kernel, of.target, start) < predicted_seconds(
        of.kernel, of.target, replace(start, evict_first=())
    )
    looped = replace(start, tile=(1,), reduce_tile=256, num_warps=1, evict_first=())
    assert legal_values(of.kernel, of.target, looped, "evict_first") == ((), (0,))
    assert legal_values(of.kernel, of.target, replace(looped, num_stages=3), "evict_first") == ((),)
    small = space(region(empty(512, 1024, dtype="bfloat16").max(1)))
    assert small.parameters(small.start()).evict_first == ()


def test_a_load_that_other_tiles_of_a_flattened_axis_read_too_does_not_go_first() -> None:
    """A mask of all batches, where batches and rows are one axis."""
    x, mask = empty(25, 1777, 1777, dtype="bfloat16"), empty(1777, 1777, dtype="bool")
    of = space(region(mask.where(x, 0.0).max(2)))
    start = of.parameters(of.start())
    assert start.axes == ((0, 1),)
    assert [of.kernel.loads[n].buffer.size for n in start.evict_first] == [25 * 1777 * 1777]


def test_sums_down_columns_take_whole_sectors_by_many_programs_at_once() -> None:
    x, y = (empty(3000, 5120, dtype="bfloat16") for _ in range(2))
    of = space(region((x * y).sum(0)))
    start = of.parameters(of.start())

    def seconds(columns: int, rows: int, warps: int) -> float:
        p = replace(start, tile=(columns,), reduce_tile=rows, num_warps=warps)
        return predicted_seconds(of.kernel, of.target, p)

    good = seconds(16, 256, 8)
    assert seconds(8, 512, 8) > good, "half of each sector is thrown away"
    assert seconds(32, 64, 8) > good, "160 programs with 8 KB in flight each"
    assert seconds(256, 64, 16) > good, "20 programs"


@pytest.mark.parametrize(("vectors", "most"), [(9, 64), (20, 64), (20, 19)])
def test_lists_of_many_loads_are_read_back_or_no_candidates(
    vectors: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a space makes, its own reader takes."""
    monkeypatch.setattr("kcg.kernel.tile.eviction.MOST_LOADS", most)
    x = empty(4096, 8192)
    for _ in range(vectors):
        x = x + empty(8192)
    of = space(region(x))
    lists = [value for p in starts(of.kernel, of.target) for _, value in evictions(of, p)]
    assert any(len(value) == vectors for value in lists) == (vectors <= most)
    for schedule in (*of.neighbours(of.start()), *(a.schedule for a in of.actions(of.start()))):
        p = TileParameters.from_json(schedule.body)
        assert p.to_json() == schedule.body


@pytest.mark.slow
@triton
@pytest.mark.parametrize("stages", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_every_policy_is_another_binary(stages: int) -> None:
    if stages > 1 and not evicts_copies():
        pytest.skip(f"Triton {triton_version()} drops policies of asynchronous copies")
    for of in (decode(), region(empty(4096, 1024, dtype="bfloat16") @ empty(1024, 16384, dtype="bfloat16"))):
        tiles = space(of)
        p = replace(tiles.parameters(tiles.start()), loads=POINTER, persistent=0, epilogue_parts=1, evict_first=())
        p = replace(p, num_stages=stages) if p.form == CONTRACTION else p
        found = [p, *(replace(p, **{field: value}) for field, value in evictions(tiles, p))]
        assert len({compiled(of, one).binary_hash for one in found}) == len(found) > 1


def residual() -> Region:
    """A projection whose result is added to what is there: beside its sums a thread holds that too."""
    x, w, there = empty(4096, 1024, dtype="bfloat16"), empty(4096, 1024, dtype="bfloat16"), empty(4096, 4096)
    return region((x @ w.T).gelu() + there.cast("bfloat16"))


@pytest.mark.slow
def test_registers_are_limited_where_more_programs_fit_then() -> None:
    of = space(residual())
    p = replace(of.parameters(of.start()), tile=(128, 128), num_warps=8, num_stages=2, epilogue_parts=1)

    def limits(p: TileParameters) -> tuple[int, ...]:
        return legal_values(of.kernel, of.target, p, "maxnreg")

    assert limits(replace(p, loads=POINTER, persistent=0)) == (0, 128), "64 sums a thread, two programs"
    assert limits(replace(p, persistent=1)) == (0,), "a program has its multiprocessor for itself"
    assert limits(replace(p, loads=TMA, persistent=2, epilogue_parts=2)) == (0, 128)
    assert limits(replace(p, loads=POINTER, persistent=0, num_stages=6)) == (0,), "shared memory admits one program"
    assert limits(replace(p, loads=POINTER, persistent=0, tile=(64, 64))) == (0,), "few sums: it takes no more anyway"


def test_reads_are_early_where_there_are_some_and_registers_for_them() -> None:
    of = space(residual())
    p = replace(of.parameters(of.start()), tile=(128, 128), num_warps=8, num_stages=2, split=1, tail=1)

    def values(of: TileSpace, p: TileParameters) -> tuple[bool, ...]:
        return legal_values(of.kernel, of.target, p, "read_early")

    assert values(of, p) == (False, True)
    assert values(of, replace(p, tile=(128, 256))) == values(of, replace(p, tile=(128, 128), split=2)) == (False,)
    plain = space(linear())
    assert values(plain, plain.parameters(plain.start())) == (False,), "a bias is one row"


@pytest.mark.slow
@triton
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_loops_over_rows_load_ahead_where_the_compiler_can(dtype: str) -> None:
    """By asynchronous copies to shared memory; rows that begin at odd elements of 16 bits have none."""
    of = space(region(empty(600, 12544, dtype=dtype).max(1)))
    start = replace(of.parameters(of.start()), tile=(1,), reduce_tile=1024, num_warps=4)
    assert 3 in legal_values(of.kernel, of.target, start, "num_stages")
    programs = [compiled(of.region, replace(start, num_stages=stages)) for stages in (1, 2, 3)]
    shared = [dict(one.launches[0].compiled.report)["shared_bytes"] for one in programs]
    assert sorted(set(shared)) == shared
    odd = space(region(empty(600, 30521, dtype="bfloat16").max(1)))
    assert legal_values(odd.kernel, odd.target, start, "num_stages") == (1,)


@pytest.mark.slow
@triton
def test_a_limit_of_registers_is_kept() -> None:
    of = residual()
    base = default_parameters(read_kernel(of), SM_90)
    p = replace(
        base, tile=(128, 128), num_warps=8, num_stages=2, epilogue_parts=1, loads=POINTER, persistent=0, maxnreg=128
    )
    programs = (compiled(of, one) for one in (replace(p, maxnreg=0), p))
    free, limited = (dict(program.launches[0].compiled.report)["registers"] for program in programs)
    assert limited <= 128 < free


def test_bodies_of_before_are_read_and_stay_as_they_are() -> None:
    p = default_parameters(read_kernel(linear()), SM_90)
    assert "evict" not in p.to_json() and TileParameters.from_json(p.to_json()) == p
    assert "early" not in p.to_json()
    early = replace(p, read_early=True)
    assert TileParameters.from_json(early.to_json()) == early
    changed = replace(p, evict_first=(1,), evict_last=(0, 2))
    assert parse("tile", changed.to_json()) == schedule_of(changed)
    assert TileParameters.from_json(changed.to_json()) == changed
    for wrong in ('"evict_first":[-1]', '"evict_first":3', '"evict_first":["1"]'):
        with pytest.raises(ScheduleError):
            TileParameters.from_json(changed.to_json().replace('"evict_first":[1]', wrong))


def picture(size: int, *, stride: int = 1, window: int = 1) -> TileSpace:
    """A convolution of small pictures."""
    x, w = empty(4, 32, size, size, dtype="float16"), empty(64, 32, window, window, dtype="float16")
    return space(region(x.conv2d(w, stride=stride, padding=window // 2)))


def source(of: TileSpace, **changes: Any) -> str:
    p = default_parameters(of.kernel, of.target)
    p = replace(p, loads=POINTER, persistent=0, epilogue_parts=1, split=1, **changes)
    return generate_kernel(of.kernel, of.target, p).source


def test_threads_are_told_along_which_axis_elements_are_nearest_where_triton_cannot_tell() -> None:
    hint = "[{}, 1]), [{}])"
    columns, rows = hint.format(1, "1, 2"), hint.format(1, "2, 1")
    odd = picture(7)
    start = default_parameters(odd.kernel, odd.target)
    other = next(axes for form, axes in odd._bases if form == CONTRACTION and axes != start.axes)
    texts = [source(odd), source(odd, axes=other, tile=start.tile[::-1])]
    counts = sorted((text.count(columns), text.count(rows)) for text in texts)
    assert counts == [(0, 2), (2, 0)], "the picture, read and stored, whichever axis of the tile it is"
    assert source(picture(16, stride=2)).count("max_contiguous") == 1, "every second element is read"
    assert not source(picture(8)).count("max_contiguous"), "Triton sees pairs side by side by itself"
    assert not source(space(linear())).count("max_contiguous")


def test_ranges_that_lie_one_after_the_other_in_memory_are_one_in_an_address() -> None:
    """The weights of a window are read as a row of all its terms, and a picture that is read with a stride is stored
    as a row of its elements."""
    text = source(picture(8, window=3))
    weights = re.findall(r"tl\.load\(a \+ (\w+)", text)
    (address,) = set(weights)
    assert re.search(rf"\b{address} = (\w+) \+ ks\d*$", text, re.MULTILINE), text
    assert re.search(r"% 64$", source(picture(16, stride=2)), re.MULTILINE)
