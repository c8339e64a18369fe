"""Recombined kernels are new, valid, the same for the same seed, and keep every access inside its buffer."""

from __future__ import annotations

import random
from functools import cache

import numpy as np
import pytest

from evaluation.measure.fuzzing import MOST_EXPANDED, fuzz_schedules
from evaluation.measure.recombine import STEPS, Recombined, _tidy, is_part, recombined
from evaluation.measure.rewriting import Unfit
from kcg.compat.tiny import Ops, UOp
from kcg.errors import KcgError
from kcg.kernel.analysis import arithmetic
from kcg.kernel.codec import ast_of, kernel_of, normalise
from kcg.kernel.compile import compile_schedule
from kcg.kernel.kinds import describe
from kcg.kernel.opts.schedule import RAW
from kcg.kernel.opts.space import KernelSpace
from kcg.kernel.reference import buffers, evaluate, sample_points
from kcg.types import Region, Target
from tests.kernels import example_asts
from tests.known_targets import KNOWN_TARGETS

X86 = Target(
    device="CPU",
    renderer="X86",
    arch="x86_64,native",
    model="test",
    cores=2,
    has_local=False,
    has_threads=True,
    max_threads=2,
    shared_bytes=0,
    memory_bytes=1 << 33,
    cache_bytes=1 << 24,
)
MOST_OPERATIONS = 2e5
COUNT = 120


@cache
def some(count: int, seed: int = 0) -> list[Recombined]:
    asts = list(example_asts().values())
    return list(recombined(asts, random.Random(seed), count, most_operations=MOST_OPERATIONS))


def evaluated(ast: UOp, count: int = 64) -> None:
    """The reference raises where an access at one of the points leaves its buffer."""
    rng = np.random.default_rng(0)
    inputs = {}
    for use in buffers(ast):
        dtype = "float32" if use.dtype_name == "bfloat16" else use.dtype_name
        inputs[use.slot] = rng.integers(0, 2, use.size).astype(dtype)
    evaluate(ast, inputs, sample_points(ast, count, rng))


def test_kernels_are_new_and_different() -> None:
    asts = list(example_asts().values())
    ids = [new.region.id for new in some(COUNT)]
    assert len(set(ids)) == COUNT
    assert not set(ids) & {kernel_of(ast).id for ast in asts}
    assert {name for new in some(COUNT) for name in new.origin.split(" + ")} == set(STEPS)


def test_same_seed_same_kernels() -> None:
    again = recombined(list(example_asts().values()), random.Random(0), 60, most_operations=MOST_OPERATIONS)
    assert [(n.region.id, n.origin) for n in again] == [(n.region.id, n.origin) for n in some(COUNT)[:60]]
    assert some(60, 1)[0].region.id != some(COUNT)[0].region.id


def test_kernels_are_normal_and_small_enough() -> None:
    for new in some(COUNT):
        ast = ast_of(new.region.kernel)
        assert normalise(ast) is ast and is_part(ast), new.origin
        assert arithmetic(ast) <= MOST_OPERATIONS
        assert [use.slot for use in buffers(ast)] == list(range(len(buffers(ast)))), new.origin
        assert not any(n.op is Ops.REDUCE and any(r.vmax == 0 for r in n.src[1:]) for n in ast.toposort())


def test_every_access_is_inside_its_buffer() -> None:
    for new in some(COUNT)[:80]:
        evaluated(ast_of(new.region.kernel))


def test_no_two_points_store_to_one_element() -> None:
    looked_at = 0
    for new in some(COUNT):
        ast = ast_of(new.region.kernel)
        addresses = UOp.sink(*(_without_value(s) for s in ast.src))
        points = sample_points(addresses, 4096, np.random.default_rng(0))
        for at, stored in zip(points, evaluate(addresses, {}, points), strict=True):
            if len(stored.indices) < len(at):
                continue  # gated: some points store nothing
            assert len(np.unique(stored.indices)) == len(np.unique(at, axis=0)), new.origin
            looked_at += len(at)
    assert looked_at > 12_000


def _without_value(sink: UOp) -> UOp:
    """The same store of 0, whose address alone is looked at."""
    store = sink.src[0] if sink.op is Ops.END else sink
    dtype = store.src[0].dtype
    zero = UOp(Ops.CONST, dtype, (), dtype.const(0))
    new = UOp(Ops.STORE, None, (store.src[0], zero))
    return UOp(Ops.END, None, (new, *sink.src[1:])) if sink.op is Ops.END else new


def test_tinygrad_compiles_them() -> None:
    for new in some(COUNT)[:4]:
        for schedule in {RAW, KernelSpace(new.region, X86).baseline()}:
            assert compile_schedule(new.region, schedule, X86).binary, new.origin


def test_tinygrad_schedules_them_for_a_gpu() -> None:
    for new in some(COUNT)[:20]:
        space = KernelSpace(new.region, KNOWN_TARGETS["sm_90"])
        assert space.state(space.baseline()).full_shape is not None


@cache
def _parts() -> list[UOp]:
    return [ast for ast in map(normalise, example_asts().values()) if is_part(ast)]


@pytest.mark.parametrize("name", STEPS)
def test_each_step_alone(name: str) -> None:
    """Every step fits some examples, and what it makes is a kernel that the codec takes and the reference computes."""
    rng = random.Random(name)
    parts = _parts()[rng.randrange(3) :: 3]
    made = 0
    for base in parts:
        try:
            ast = _tidy(STEPS[name](base, rng.choice(parts), rng))
        except Unfit:
            continue
        kernel_of(ast)
        evaluated(ast, 16)
        made += ast is not base
    assert made >= 4


def test_schedules_of_the_campaign() -> None:
    """The same for the same seed, with tinygrad's choice and the unoptimised one; PADTO only where it is asked for."""
    for new in some(COUNT)[:6]:
        drawn = fuzz_schedules(new.region, X86, walks=3, padto=False, seed=1)
        assert drawn == fuzz_schedules(new.region, X86, walks=3, padto=False, seed=1)
        assert RAW in drawn and KernelSpace(new.region, X86).baseline() in drawn and len(drawn) <= 5
        assert not any("PADTO" in describe(schedule) for schedule in drawn)
    region = Region((kernel_of(example_asts()["matmul_f32"]),))
    padded = [s for s, who in fuzz_schedules(region, X86, walks=2, padto=True, seed=0).items() if who == "padto"]
    assert len(padded) == 1 and str(padded[0]).count("PADTO") == 1
    assert KernelSpace(region, X86).table(padded[0]).expanded() <= MOST_EXPANDED


def test_nothing_to_recombine() -> None:
    asts = [example_asts()[name] for name in ("symbolic", "cache_update.1")]
    assert not any(is_part(normalise(ast)) for ast in asts)
    with pytest.raises(KcgError, match="none of the kernels can be recombined"):
        next(recombined(asts, random.Random(0), 1))


def test_used_up_parts_end_the_search() -> None:
    """A kernel of one element and no ranges has few relatives: the iterator ends instead of running for ever."""
    scalar = next(ast for ast in example_asts().values() if len(ast.toposort()) < 40)
    found = list(recombined([scalar], random.Random(0), 20, most_operations=MOST_OPERATIONS))
    assert len(found) <= 20
