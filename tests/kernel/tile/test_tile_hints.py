"""Hints to compiler and caches: eviction policies of loads, limits of registers. They are steps only where they
change the program that is run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcg.errors import ScheduleError
from kcg.kernel.kinds import parse
from kcg.kernel.tile.generate import generate_kernel
from kcg.kernel.tile.ir import read_kernel
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
    labels = {a.label: a.schedule for a in of.actions(of.start())}
    chosen = labels[f"evict_first,{weight}"]
    of.check(chosen)
    text = generate_kernel(of.kernel, of.target, of.parameters(chosen)).source
    assert text.count('eviction_policy="evict_first"') == 1 and of.name(chosen) != of.name(of.start())
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


@triton
@pytest.mark.parametrize("stages", [1, 3])
def test_every_policy_is_another_binary(stages: int) -> None:
    if stages > 1 and not evicts_copies():
        pytest.skip(f"Triton {triton_version()} drops policies of asynchronous copies")
    for of in (decode(), region(empty(4096, 1024, dtype="bfloat16") @ empty(1024, 16384, dtype="bfloat16"))):
        tiles = space(of)
        p = replace(tiles.parameters(tiles.start()), loads=POINTER, persistent=0, epilogue_parts=1)
        p = replace(p, num_stages=stages) if p.form == CONTRACTION else p
        found = [p, *(replace(p, **{field: value}) for field, value in evictions(tiles, p))]
        assert len({compiled(of, one).binary_hash for one in found}) == len(found) > 1


def residual() -> Region:
    """A projection whose result is added to what is there: beside its sums a thread holds that too."""
    x, w, there = empty(4096, 1024, dtype="bfloat16"), empty(4096, 1024, dtype="bfloat16"), empty(4096, 4096)
    return region((x @ w.T).gelu() + there.cast("bfloat16"))


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
    changed = replace(p, evict_first=(1,), evict_last=(0, 2))
    assert parse("tile", changed.to_json()) == schedule_of(changed)
    assert TileParameters.from_json(changed.to_json()) == changed
    for wrong in ('"evict_first":[-1]', '"evict_first":3', '"evict_first":["1"]'):
        with pytest.raises(ScheduleError):
            TileParameters.from_json(changed.to_json().replace('"evict_first":[1]', wrong))
