"""Regions that compute a call again: it stays for whoever reads what it stores, and what is not safe stays as well."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from tinygrad import Tensor, TinyJit

from kcg.compat import planning, replacing
from kcg.compat.hazards import Access, Groups
from kcg.compat.partition import BETWEEN, REWRITTEN, UNSTORED, USED
from kcg.compat.sequences import recording_sequences
from kcg.compat.tiny import Ops, UOp
from kcg.errors import ScheduleError
from kcg.handover.installing import install, installing, placed_kernels
from kcg.kernel.opts.schedule import RAW
from kcg.kernel.program import Program
from kcg.kernel.sequences import partition_of, sequences_of_captured
from kcg.types import Region, Sequence
from tests.chains import X86, hiding, program_of, sequence_of
from tests.kernels import empty
from tests.slow import first

ROWS, WIDTH = 6, 16


def values(seed: int = 0) -> Tensor:
    made = np.random.default_rng(seed).integers(-4, 5, (ROWS, WIDTH)).astype(np.float32)
    return Tensor(made).contiguous().realize()


def both(x: Tensor) -> tuple[Tensor, Tensor]:
    """A value, and two calls that read it."""
    made = (x + 1).contiguous()
    return (made.flip(1) * 2).contiguous(), (made.flip(0) - 3).contiguous()


def plain(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return (x + 1)[:, ::-1] * 2, (x + 1)[::-1] - 3


@pytest.fixture(scope="module")
def pairs() -> list[tuple[Region, Program]]:
    """The value with each of its readers, in one kernel that does not store it."""
    sequence = sequence_of(*both(empty(ROWS, WIDTH)))
    regions = [sequence.region(0, reader, again=[0]) for reader in (1, 2)]
    assert all(r.args == ((0, 1), (2, 0)) and r.outputs == (2,) and r.again == (0,) for r in regions)
    builds = (lambda x: {2: ((x + 1).flip(1) * 2).contiguous()}, lambda x: {2: ((x + 1).flip(0) - 3).contiguous()})
    return [(r, program_of(r, {1: empty(ROWS, WIDTH)}, build)) for r, build in zip(regions, builds, strict=True)]


@pytest.fixture
def planned() -> Iterator[list[list[UOp]]]:
    """What tinygrad's planner was given: the calls of each linear."""
    seen: list[list[UOp]] = []

    def keep(linear: UOp, _: str) -> UOp:
        seen.append(list(linear.src))
        return linear

    with planning.before_planning(keep):
        yield seen


def kinds(calls: list[UOp]) -> list[Ops]:
    return [call.src[0].op for call in calls]


def test_a_call_stays_for_the_reader_that_does_not_make_it_again(
    pairs: list[tuple[Region, Program]], planned: list[list[UOp]]
) -> None:
    x = values()
    with install(dict(pairs[:1]), X86) as report:
        found = both(x)
        Tensor.realize(*found)
    assert kinds(planned[-1]) == [Ops.SINK, Ops.PROGRAM, Ops.SINK]
    made, program, other = planned[-1]
    assert made.src[1] not in program.src and made.src[2] in program.src, "it reads what the value is made of"
    assert made.src[1] in other.src
    for one, wanted in zip(found, plain(x.numpy()), strict=True):
        np.testing.assert_array_equal(one.numpy(), wanted)
    assert report.counts == {pairs[0][0].id: 1} and not report.left


def test_a_call_that_all_readers_make_again_is_left_out(
    pairs: list[tuple[Region, Program]], planned: list[list[UOp]]
) -> None:
    def model(a: Tensor) -> tuple[Tensor, Tensor]:
        found = both(a)
        Tensor.realize(*found)
        return found

    step, inputs = TinyJit(model), [values(seed) for seed in range(4)]
    planned.clear()
    with install(dict(pairs), X86) as report:
        found = [[t.numpy() for t in step(x)] for x in inputs]
    programs = [calls for calls in planned if Ops.PROGRAM in kinds(calls)]
    assert [kinds(calls) for calls in programs] == [[Ops.PROGRAM] * 2] * 2, "once eagerly, once captured"
    assert report.counts == {region.id: 2 for region, _ in pairs} and not report.left
    for one, x in zip(found, inputs, strict=True):
        np.testing.assert_array_equal(one, plain(x.numpy()))


def test_a_value_that_is_alive_is_stored_and_made_again(
    pairs: list[tuple[Region, Program]], planned: list[list[UOp]]
) -> None:
    x = values()
    with install(dict(pairs), X86) as report:
        made = (x + 1).contiguous()
        found = (made.flip(1) * 2).contiguous(), (made.flip(0) - 3).contiguous()
        Tensor.realize(*found)
    assert kinds(planned[-1]) == [Ops.SINK, Ops.PROGRAM, Ops.PROGRAM] and report.counts.total() == 2
    np.testing.assert_array_equal(made.numpy(), x.numpy() + 1)
    for one, wanted in zip(found, plain(x.numpy()), strict=True):
        np.testing.assert_array_equal(one.numpy(), wanted)


def test_a_call_that_is_another_regions_own_is_no_obstacle(pairs: list[tuple[Region, Program]]) -> None:
    """The value is the last of a region, which stores it, and its reader makes it again."""

    def model(x: Tensor) -> tuple[Tensor, Tensor]:
        before = (x.flip(1) * 5).contiguous()
        made = (before + 1).contiguous()
        return (made.flip(1) * 2).contiguous(), (before - made).contiguous()

    sequence = sequence_of(*model(empty(ROWS, WIDTH)))
    first = sequence.region(0, 1)
    assert len(first.outputs) == 2, "what the other region makes the value of is stored"
    programs = {first: hiding(first, set(first.outputs)), pairs[0][0]: pairs[0][1]}
    x = values()
    for order in (programs, dict(reversed(programs.items()))):
        with install(order, X86) as report:
            found = model(x)
            Tensor.realize(*found)
        before = x.numpy()[:, ::-1] * 5
        np.testing.assert_array_equal(found[0].numpy(), (before + 1)[:, ::-1] * 2)
        np.testing.assert_array_equal(found[1].numpy(), np.full_like(before, -1))
        assert report.counts == {first.id: 1, pairs[0][0].id: 1} and not report.left


def test_a_value_of_what_another_region_does_not_store_is_not_made_again(
    pairs: list[tuple[Region, Program]], planned: list[list[UOp]]
) -> None:
    """Whichever comes first, the other stays."""

    def model(x: Tensor) -> tuple[Tensor, Tensor]:
        made = ((x.flip(1) * 5).contiguous() + 1).contiguous()
        return (made.flip(1) * 2).contiguous(), (made.flip(0) - 3).contiguous()

    first = sequence_of(*model(empty(ROWS, WIDTH))).region(0, 1)
    assert len(first.outputs) == 1
    programs, x = {first: hiding(first, set(first.outputs)), pairs[0][0]: pairs[0][1]}, values()
    for order, left in ((programs, UNSTORED), (dict(reversed(programs.items())), USED)):
        winner, loser = order
        with install(order, X86) as report:
            found = model(x)
            Tensor.realize(*found)
        for one, wanted in zip(found, plain(x.numpy()[:, ::-1] * 5), strict=True):
            np.testing.assert_array_equal(one.numpy(), wanted)
        assert report.counts == {winner.id: 1} and report.left == {(loser.id, left): 1}


def test_its_own_kernels_may_make_it_again(planned: list[list[UOp]], pairs: list[tuple[Region, Program]]) -> None:
    """Kernels that tinygrad compiles store the value: into a buffer that nobody else has."""
    region, x = pairs[0][0], values()
    with installing([replacing.Replacement(region, lambda device: placed_kernels(region, [RAW] * 2))]) as report:
        found = both(x)
        Tensor.realize(*found)
    assert kinds(planned[-1]) == [Ops.SINK] * 4 and report.counts.total() == 1
    assert len({call.src[1] for call in planned[-1]}) == 4
    for one, wanted in zip(found, plain(x.numpy()), strict=True):
        np.testing.assert_array_equal(one.numpy(), wanted)


# ---- what its value is made of


def updated(state: Tensor, by: Tensor, *, row: int | None, waits: bool) -> tuple[Tensor, Tensor]:
    """A value is made of a state, which is updated, or a row of it; then the value is read, where it `waits` beside the
    new state."""
    made = (state + 1).contiguous().realize()
    if row is None:
        state.assign(state - by).realize()
    else:
        state[row : row + 1].assign(by[row : row + 1]).realize()
    read = made.flip(1) * 2
    return ((read + state) if waits else read).contiguous().realize(), (made * 3).contiguous().realize()


def recorded(model: Callable[..., object], *inputs: Tensor) -> Sequence:
    """What a `TinyJit` of a model captures."""
    step = TinyJit(model)
    with recording_sequences() as recorder:
        step(*inputs), step(*inputs)
    return next(one for one in sequences_of_captured(recorder.sequences()) if one.steady)


@pytest.mark.parametrize("row", [None, 2])
@pytest.mark.parametrize("waits", first(1, [True, False]))
def test_what_it_is_made_of_is_as_it_was(row: int | None, waits: bool) -> None:
    """A reader that needs the new state cannot run before the update, and would see it in what it makes again; one that
    does not need it runs before."""

    def model(state: Tensor, by: Tensor) -> tuple[Tensor, Tensor]:
        return updated(state, by, row=row, waits=waits)

    sequence = recorded(model, values(1), values(2))
    maker, reader = 0, next(i for i, c in enumerate(sequence.calls) if i and len(c.views) == 2 + waits and i > 1)
    region = sequence.region(maker, reader, again=[maker])
    program = hiding(region, set(region.outputs))
    partition = partition_of(sequence)
    assert len(partition.claim(region)) == (not waits)

    def replays() -> list[bytes]:
        state, step = values(1), TinyJit(model)
        outputs = [[one.numpy().tobytes() for one in step(state, values(seed))] for seed in range(4)]
        return [*itertools.chain(*outputs), state.numpy().tobytes()]

    expected = replays()
    with install({region: program}, X86) as report:
        assert replays() == expected
    if waits:
        assert not report.counts and report.left == {(region.id, BETWEEN): 1}
    else:
        assert report.counts == {region.id: 1} and not report.left


def test_the_planner_keeps_what_it_is_made_of() -> None:
    """Alone, what the value is made of is laid over once the value is there; its reader needs it later now."""

    def model(x: Tensor) -> Tensor:
        before = (x.flip(1) * 5).contiguous()
        made = (before + 1).contiguous()
        third = (made.flip(0) - 3).contiguous()
        fourth = (third.flip(1) * third).contiguous()
        return (made.flip(1) * 2 + fourth).contiguous()

    sequence = sequence_of(model(empty(ROWS, WIDTH)))
    region = sequence.region(1, 4, again=[1])
    program, x, laid = hiding(region, set(region.outputs)), values(), list[UOp]()
    expected = model(x).numpy()

    def captured(programs: dict[Region, Program]) -> tuple[TinyJit, list[tuple[int | None, ...]]]:
        from tinygrad.engine import jit

        step, before = TinyJit(lambda a: model(a).realize()), jit.memory_plan_rewrite
        jit.memory_plan_rewrite = lambda *args: laid.append(before(*args)) or laid[-1]
        try:
            with install(programs, X86) as report:
                step(x), step(x)
        finally:
            jit.memory_plan_rewrite = before
        assert report.counts[region.id] == 2 * len(programs)
        return step, [tuple(offset_of(a) for a in call.src[1:]) for call in laid[-1].src]

    _, places = captured({})
    assert places[0][0] is not None and places[0][0] in {place[0] for place in places[2:4]}, "else this shows nothing"
    step, places = captured({region: program})
    assert places[0][0] not in {place[0] for place in places[1:-1]}
    for _ in range(3):
        np.testing.assert_array_equal(step(x).numpy(), expected)


def offset_of(argument: UOp) -> int | None:
    view = None if argument.op in (Ops.BUFFER, Ops.PARAM) else argument.contiguous_view()
    return None if view is None else int(view[1] * view[0].dtype.itemsize)


def test_a_value_that_is_written_twice_is_not_made_again() -> None:
    """Its reader reads the second one, and nothing says that it is no other's."""

    def model(state: Tensor, x: Tensor) -> Tensor:
        state.assign(x + 1).realize()
        first = (state * 3).contiguous().realize()
        state.assign(x * 7).realize()
        return (first.flip(0) + state.flip(1) * 2).contiguous().realize()

    sequence = recorded(model, values(1), values(2))
    assert [len(call.views) for call in sequence.calls] == [2, 2, 2, 3]
    partition = partition_of(sequence)
    for maker in (0, 2):
        region = sequence.region(maker, 3, again=[maker])
        assert not partition.claim(region) and partition.left()[region.id, REWRITTEN] == 1


def test_what_is_stored_is_not_made_again(pairs: list[tuple[Region, Program]]) -> None:
    """A region that says both is none."""
    region = replace(pairs[0][0], outputs=(0, 2))
    partition = partition_of(sequence_of(*both(empty(ROWS, WIDTH))))
    assert not partition.claim(region) and partition.left() == {(region.id, REWRITTEN): 1}
    for again, words in (((0, 1), "some of the kernels"), ((2,), "some of the kernels"), ((0, 0), "each once")):
        wrong = replace(region, outputs=(2,), again=again)
        with pytest.raises(ScheduleError, match=words), install({wrong: pairs[0][1]}, X86):
            pass


def test_a_group_reads_what_a_call_reads_where_that_stands() -> None:
    """0 writes a; 1 makes b of it; 2 overwrites a; 3 reads b, and what 2 left or not."""

    def access(reads: str, writes: str) -> Access:
        return Access(frozenset(reads), frozenset(writes))

    for reads, orders in (("b", [[0], [1], [3], [2]]), ("ba", None)):
        groups = Groups([access("", "a"), access("a", "b"), access("", "a"), access(reads, "c")])
        assert groups.merge([3], again=[1]) == (orders is not None)
        assert groups.order() == (orders or [[0], [1], [2], [3]]), "what was refused leaves no trace"
