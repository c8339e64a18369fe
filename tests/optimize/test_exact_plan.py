"""The plan is the best of all partitions, its order keeps every value, and it fits into memory."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

import pytest

from kcg.kernel.repeats import Blocks, blocks_of
from kcg.optimize.exact_plan import Option, best_plans
from kcg.types import Kernel, SequenceBuffer, SequenceCall, SlotBinding
from kcg.types import Sequence as Calls
from tests.plans import buffers_of, run, stores, values_of
from tests.slow import first

INPUTS = 2


def random_calls(rng: random.Random, count: int, *, in_place: bool) -> Calls:
    """Calls of one output each, which read inputs and earlier values; some update what is there."""
    sizes = [rng.randint(1, 9) for _ in range(INPUTS + count)]
    held = [True] * INPUTS + [False] * count
    calls = []
    for place in range(count):
        own, known = INPUTS + place, INPUTS + place
        read = rng.sample(range(known), min(known, rng.randint(1, 3)))
        if in_place and rng.random() < 0.35:
            own = rng.choice(range(known))
            read = [b for b in read if b != own] + [own] * rng.randint(0, 1)
        views = tuple(SlotBinding(b, 0, sizes[b]) for b in dict.fromkeys([own, *read]))
        reads = tuple(slot for slot, view in enumerate(views) if view.buffer in read)
        calls.append(SequenceCall(Kernel(f"k{place}"), views, reads, (0,)))
    used = {view.buffer for call in calls for slot in call.reads for view in [call.views[slot]]}
    buffers = [SequenceBuffer(s, "char", h or b not in used) for b, (s, h) in enumerate(zip(sizes, held, strict=True))]
    return Calls(tuple(calls), tuple(buffers))


def random_options(rng: random.Random, calls: Calls, many: int, *, again: bool) -> list[Option]:
    count, values = len(calls.calls), values_of(calls)
    options = [Option((place,), rng.randint(1, 20)) for place in range(count)]
    for number in range(many):
        own = tuple(sorted(rng.sample(range(count), min(count, rng.choice([2, 2, 3])))))
        other = [p for p in range(own[-1]) if p not in own and buffers_of(calls, p)[1] <= values]
        redone = tuple(sorted(rng.sample(other, 1))) if again and other and rng.random() < 0.5 else ()
        options.append(Option(own, rng.randint(1, 25), redone, number, rng.randint(0, 3)))
    return options


def accesses(calls: Calls, option: Option) -> list[tuple[int, set[int], set[int]]]:
    redone = {b for place in option.again for b in buffers_of(calls, place)[1]}
    found = []
    for place in option.places:
        read, written = buffers_of(calls, place)
        found.append((place, read - redone, written if place in option.own else set[int]()))
    return found


def comes_before(calls: Calls, one: Option, other: Option) -> bool:
    """Whether something in `one` has to run before something in `other`."""
    return any(
        a < b and (written & (r | w) or read & w)
        for a, read, written in accesses(calls, one)
        for b, r, w in accesses(calls, other)
    )


def in_order(calls: Calls, chosen: Sequence[Option]) -> list[Option] | None:
    """Whatever is ready and ends first, until none is left; None where some wait for each other."""
    left, order = list(chosen), list[Option]()
    while left:
        ready = [o for o in left if not any(p is not o and comes_before(calls, p, o) for p in left)]
        if not ready:
            return None
        order.append(min(ready, key=lambda o: (o.own[-1], chosen.index(o))))
        left.remove(order[-1])
    return order


def peak(calls: Calls, order: Sequence[Option]) -> int:
    """Run through the order, allocating what is stored and freeing what nobody uses any more."""
    values, most = values_of(calls), 0
    loose = {b for b, buffer in enumerate(calls.buffers) if not buffer.held} - values

    def uses(option: Option) -> set[int]:
        made = {b for place in option.places for b in buffers_of(calls, place)[1]} & values
        read = {b for place in option.places for b in buffers_of(calls, place)[0]} & values
        touched = {b for _, r, w in accesses(calls, option) for b in r | w}
        return (read - made) | stores(calls, option) | (touched & loose)

    for turn, option in enumerate(order):
        begun = set[int]().union(*(uses(o) for o in order[: turn + 1]))
        needed = set[int]().union(*(uses(o) for o in order[turn:]))
        most = max(most, option.scratch_bytes + sum(calls.buffers[b].size for b in begun & needed))
    return most


def partitions(calls: Calls, options: Sequence[Option], left: frozenset[int]) -> Iterator[list[Option]]:
    if not left:
        yield []
        return
    if any(min(left) in option.again for option in options):
        yield from partitions(calls, options, left - {min(left)})  # nobody runs it: all who read it compute it again
    for option in options:
        if min(left) in option.own and left.issuperset(option.own):
            for rest in partitions(calls, options, left.difference(option.own)):
                yield [option, *rest]


def brute_force(calls: Calls, options: Sequence[Option], memory: float) -> list[float]:
    """The cost of every plan, the least first: of those with the same programs the least."""
    values, found = values_of(calls), dict[tuple[Option, ...], float]()
    for chosen in partitions(calls, options, frozenset(range(len(calls.calls)))):
        chosen = sorted(chosen, key=options.index)
        stored = set[int]().union(*(stores(calls, option) for option in chosen))
        needed = set[int]()
        for option in chosen:
            made = {b for place in option.places for b in buffers_of(calls, place)[1]}
            needed |= {b for place in option.places for b in buffers_of(calls, place)[0]} & values - made
        order = in_order(calls, chosen)
        if needed <= stored and order is not None and peak(calls, order) <= memory:
            programs = tuple(option for option in chosen if not option.is_alone)
            seconds = sum(option.seconds for option in chosen)
            found[programs] = min(seconds, found.get(programs, seconds))
    return sorted(found.values())


def untied(calls: Calls) -> Blocks:
    return Blocks(calls, (), (), (1.0,) * len(calls.calls))


@pytest.mark.parametrize("seed", first(6, range(60)))
def test_the_five_best_of_all_partitions_are_found(seed: int) -> None:
    rng = random.Random(seed)
    calls = random_calls(rng, rng.randint(3, 7), in_place=seed % 2 == 1)
    options = random_options(rng, calls, rng.randint(2, 9), again=seed % 3 == 0)
    expected = brute_force(calls, options, float("inf"))
    plans = best_plans(untied(calls), options)
    assert [plan.seconds for plan in plans] == pytest.approx(expected[:5])
    terms: dict[object, int] = {}
    for plan in plans:
        assert run(calls, terms, plan) == run(calls, terms), "every value that is held is the same"
        assert plan.peak_bytes == peak(calls, plan.options)


@pytest.mark.parametrize("seed", first(2, range(20)))
def test_a_plan_fits_into_memory(seed: int) -> None:
    rng = random.Random(1000 + seed)
    calls = random_calls(rng, 6, in_place=seed % 2 == 1)
    options = random_options(rng, calls, 8, again=seed % 2 == 0)
    free = best_plans(untied(calls), options)
    bound = free[0].peak_bytes - 1
    plans = best_plans(untied(calls), options, memory_bytes=bound)
    assert [plan.seconds for plan in plans] == pytest.approx(brute_force(calls, options, bound)[:5])
    assert all(plan.peak_bytes <= bound for plan in plans)


def pointwise(count: int, *reads: tuple[int, ...]) -> Calls:
    """Call i writes buffer i + 1 and reads those named; buffer 0 is an input, the last value is held."""
    calls = tuple(
        SequenceCall(
            Kernel(f"k{i}"),
            tuple(SlotBinding(b, 0, 4) for b in (i + 1, *read)),
            tuple(range(1, 1 + len(read))),
            (0,),
        )
        for i, read in enumerate(reads)
    )
    used = {b for read in reads for b in read}
    return Calls(calls, tuple(SequenceBuffer(4, "float", b == 0 or b not in used) for b in range(count + 1)))


def test_two_candidates_that_wait_for_each_other_are_not_both_chosen() -> None:
    # 0 -> 3 and 1 -> 2: {0, 2} and {1, 3} are each convex, and each needs the other first
    calls = pointwise(4, (0,), (0,), (2,), (1,))
    alone = [Option((i,), 10) for i in range(4)]
    plans = best_plans(untied(calls), [*alone, Option((0, 2), 1), Option((1, 3), 2)])
    assert [plan.seconds for plan in plans] == [21, 22, 40]
    assert all(len(plan.programs) < 2 for plan in plans)


def test_a_call_that_must_run_in_between_is_never_jumped_over() -> None:
    calls = pointwise(3, (0,), (1,), (1, 2))
    alone = [Option((i,), 10) for i in range(3)]
    (only,) = best_plans(untied(calls), [*alone, Option((0, 2), 1)])
    assert not only.programs


def test_a_cheap_producer_is_computed_again_where_that_spares_its_storage() -> None:
    calls = pointwise(3, (0,), (1,), (1,))
    alone = [Option((i,), 10) for i in range(3)]
    again = [Option((1,), 12, again=(0,)), Option((2,), 8, again=(0,))]
    first, second, third, *others = best_plans(untied(calls), [*alone, *again])
    assert (first.seconds, first.left_out, first.stored) == (20, (0,), frozenset()), "its value is nowhere in memory"
    assert (second.seconds, second.left_out, second.stored) == (28, (), {1}), "one of them reads it"
    assert [third.seconds, *(plan.seconds for plan in others)] == [30, 32]


def test_updates_in_place_are_not_computed_again() -> None:
    state, x = SlotBinding(0, 0, 4), SlotBinding(1, 0, 4)
    update = SequenceCall(Kernel("u"), (state, x), (0, 1), (0,))
    use = SequenceCall(Kernel("v"), (x, state), (1,), (0,))
    calls = Calls((update, use), (SequenceBuffer(4, "float", True), SequenceBuffer(4, "float", True)))
    with pytest.raises(ValueError, match="not computed again"):
        best_plans(untied(calls), [Option((0,), 1), Option((1,), 1), Option((1,), 0, again=(0,))])
    with pytest.raises(ValueError, match="every call alone"):
        best_plans(untied(calls), [Option((0, 1), 1)])


def test_equal_blocks_are_decided_alike_and_stand_for_all_of_the_model() -> None:
    blocks, kernels = 5, [Kernel(name) for name in "abc"]
    made: list[SequenceCall] = [SequenceCall(Kernel("first"), (SlotBinding(0, 0, 4), SlotBinding(1, 0, 4)), (1,), (0,))]
    for number in range(3 * blocks):
        out, before = (SlotBinding(b, 0, 4) for b in (number + 2, number + 1 if number else 0))
        made.append(SequenceCall(kernels[number % 3], (out, before), (1,), (0,)))
    last = 3 * blocks + 1
    calls = Calls(tuple(made), tuple(SequenceBuffer(4, "float", b in (1, last)) for b in range(last + 1)))
    found = blocks_of(calls, {"a": 1} | {kernel.id: 20 for kernel in kernels} | {Kernel("first").id: 1})
    (run,) = found.runs
    assert (run.start, run.period, run.blocks, found.blocks) == (1, 3, 5, (20.0,))
    options = [Option((place,), 1.0) for place in range(len(made))]
    options += [Option((1 + 3 * i, 2 + 3 * i), 1.5, name="ab") for i in range(blocks)]
    options += [Option((3 + 3 * i, 4 + 3 * i), 1.2, name="ca") for i in range(blocks - 1)]
    best, *_ = best_plans(found, options)
    starts = {option.own[0] for option in best.programs}
    across = {3 + 3 * i for i in range(blocks - 1)}
    assert starts == {1} | across, "what spans two blocks is chosen in all of them, and the first has an end of its own"
    assert best.seconds == pytest.approx(1 + 60 - 19 * 0.8 - 0.5)
    for plan in best_plans(found, options, count=20):
        middle = [tuple(o.own[0] - 3 * i for o in plan.programs if 3 * i < o.own[0] <= 3 * i + 3) for i in (1, 2, 3)]
        assert len(set(middle)) == 1, "the blocks in the middle are alike"


def test_without_candidates_there_is_one_plan() -> None:
    calls = pointwise(2, (0,), (1,))
    (plan,) = best_plans(untied(calls), [Option((0,), 1), Option((1,), 2)])
    assert plan.seconds == 3 and plan.peak_bytes == 4 and plan.stored == {1}
    assert [o.own for o in plan.options] == [(0,), (1,)]
    assert list(itertools.chain(*(o.again for o in plan.options))) == []
