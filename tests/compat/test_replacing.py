"""The contract of programs in the place of calls: what is replaced computes the same, and what is not safe stays."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest
from tinygrad import Tensor, TinyJit, Variable, schedule
from tinygrad.engine import realize

from kcg.compat import planning, replacing
from kcg.compat.capture import choosing_opts
from kcg.compat.device import prepare
from kcg.compat.partition import BETWEEN, LIVE, OVERLAP, USED
from kcg.compat.sequences import recording_sequences
from kcg.compat.tiny import Ops, UOp
from kcg.errors import ScheduleError
from kcg.handover.installing import install, installing, placed_kernels
from kcg.kernel.codec import ast_of
from kcg.kernel.opts.schedule import RAW
from kcg.kernel.program import Program, ProgramLaunch, Scratch, program_of_parts
from kcg.kernel.sequences import partition_of, sequences_of_captured
from kcg.measure.device_info import detect
from kcg.types import Region
from tests.chains import X86, compiled_of, hiding, program_of, region_of, sequence_of
from tests.kernels import empty
from tests.slow import first

ROWS, WIDTH = 6, 16


def values(seed: int = 0, *, rows: int = ROWS) -> Tensor:
    """Small whole numbers, on which every order of the sums here is exact."""
    made = np.random.default_rng(seed).integers(-4, 5, (rows, WIDTH)).astype(np.float32)
    return Tensor(made).contiguous().realize()


def chain(x: Tensor) -> Tensor:
    """Three kernels: each reads what the one before stored; the last reads the first's backwards."""
    first = (x + 1).contiguous()
    second = (first.flip(1) * 2).contiguous()
    return (second.flip(0) - first).contiguous()


def fused(x: Tensor) -> Tensor:
    return ((x + 1).flip(1) * 2).flip(0) - (x + 1)


@pytest.fixture(scope="module")
def whole() -> tuple[Region, Program]:
    """The chain as a region, and one kernel for it. Buffers: 0 first, 1 x, 2 second, 3 the output."""
    region = region_of(chain(empty(ROWS, WIDTH)))
    assert region.args == ((0, 1), (2, 0), (3, 2, 0)) and region.outputs == (3,)
    program = program_of(region, {1: empty(ROWS, WIDTH)}, lambda x: {3: fused(x)})
    assert len(program.launches) == 1 and not program.scratch
    return region, program


@pytest.fixture
def planned() -> Iterator[list[list[UOp]]]:
    """What tinygrad's planner was given: the bodies of the calls of each linear."""
    seen: list[list[UOp]] = []

    def keep(linear: UOp, _: str) -> UOp:
        seen.append([call.src[0] for call in linear.src])
        return linear

    with planning.before_planning(keep):
        yield seen


def kinds(bodies: list[UOp]) -> list[Ops]:
    return [body.op for body in bodies]


# ---- n to one, one to n, with what they need in between ----


def test_three_calls_become_one(whole: tuple[Region, Program], planned: list[list[UOp]]) -> None:
    x = values()
    expected = chain(x).numpy()
    planned.clear()
    with install(dict([whole]), X86) as report:
        found = chain(x).numpy()
    assert kinds(planned[0]) == [Ops.PROGRAM]
    np.testing.assert_array_equal(found, expected)
    assert report.counts == {whole[0].id: 1} and not report.left
    assert kinds(after(planned, lambda: chain(values(1)).realize())) == [Ops.SINK] * 3, "nothing stays after the block"


def after(planned: list[list[UOp]], run: Callable[[], object]) -> list[UOp]:
    planned.clear()
    run()
    return planned[-1]


def test_one_call_becomes_two_with_a_buffer_between(planned: list[list[UOp]]) -> None:
    region = region_of(((empty(ROWS, WIDTH) + 1) * 3).contiguous())
    program = program_of(region, {1: empty(ROWS, WIDTH)}, lambda x: {0: ((x + 1).contiguous() * 3).contiguous()})
    assert len(program.launches) == 2 and len(program.scratch) == 1
    x = values()
    with install({region: program}, X86) as report:
        planned.clear()
        found = ((x + 1) * 3).contiguous().numpy()
    assert kinds(planned[0]) == [Ops.PROGRAM, Ops.PROGRAM] and report.counts.total() == 1
    np.testing.assert_array_equal(found, (x.numpy() + 1) * 3)


def with_workspace() -> tuple[Region, Program]:
    """One launch that also writes a workspace, which is the last of its arguments."""
    region = region_of((empty(ROWS, WIDTH) + 1).contiguous())
    launch = ProgramLaunch(compiled_of(storing_twice(ast_of(region.kernel))), (0, 1, 2))
    return region, Program((launch,), 2, (Scratch(ROWS * WIDTH, "float"),))


def storing_twice(ast: UOp) -> UOp:
    """The same kernel, storing its values to slot 2 as well."""
    (store,) = ast.src
    params = {u: u.replace(arg=replace(u.arg, slot=2)) for u in store.toposort() if is_slot(u, 0)}
    other = store.substitute(params, walk=True)
    ranges = {r: r.replace(arg=(r.arg[0] + 100, *r.arg[1:])) for r in other.toposort() if r.op is Ops.RANGE}
    return ast.replace(src=(store, other.substitute(ranges, walk=True)))


def is_slot(node: UOp, slot: int) -> bool:
    return node.op is Ops.PARAM and node.arg.slot == slot


def test_a_workspace_is_a_buffer_of_each_call(planned: list[list[UOp]]) -> None:
    region, program = with_workspace()
    x, y = values(), values(1)
    seen: list[UOp] = []

    def keep(linear: UOp, _: str) -> UOp:
        seen.append(linear)
        return linear

    step = TinyJit(lambda a, b: ((a + 1).contiguous().realize(), (b + 1).contiguous().realize()))
    with planning.before_planning(keep), install({region: program}, X86) as report:
        for _ in range(3):
            one, two = step(x, y)
    captured = seen[-1]
    assert [len(call.src) - 1 for call in captured.src] == [3, 3]
    assert captured.src[0].src[3] is not captured.src[1].src[3], "two calls never share a workspace"
    np.testing.assert_array_equal(one.numpy(), x.numpy() + 1)
    np.testing.assert_array_equal(two.numpy(), y.numpy() + 1)
    assert report.counts.total() == 4


def test_the_planner_may_reuse_no_buffer_that_the_program_still_reads() -> None:
    """Of the chain alone, the planner lays the third value where the first was; one kernel for both reads it."""

    def model(x: Tensor) -> Tensor:
        first = (x + 1).contiguous()
        second = (first.flip(1) * 2).contiguous()
        third = (second.flip(0) + 3).contiguous()
        return (third.flip(1) * third).contiguous()

    sequence = sequence_of(model(empty(ROWS, WIDTH)))
    region = sequence.region(1, 2)
    assert region.args == ((0, 1), (2, 0)) and region.outputs == (2,)
    program = program_of(
        region, {1: empty(ROWS, WIDTH)}, lambda first: {2: ((first.flip(1) * 2).flip(0) + 3).contiguous()}
    )
    x, planned = values(), list[UOp]()
    expected = model(x).numpy()

    def offsets(run: Callable[[], object]) -> list[tuple[int | None, ...]]:
        jit = planning_module()
        before = jit.memory_plan_rewrite

        def keep(*args: object) -> UOp:
            planned.append(before(*args))
            return planned[-1]

        jit.memory_plan_rewrite = keep
        try:
            run()
        finally:
            jit.memory_plan_rewrite = before
        return [tuple(offset_of(a) for a in call.src[1:]) for call in planned[-1].src]

    plain = TinyJit(lambda a: model(a).realize())
    laid = offsets(lambda: [plain(x) for _ in range(3)])
    assert laid[2][0] == laid[0][0] is not None, "the planner does reuse it, else this test shows nothing"
    tuned = TinyJit(lambda a: model(a).realize())
    with install({region: program}, X86) as report:
        laid = offsets(lambda: [tuned(x) for _ in range(2)])
    assert report.counts[region.id] == 2 and laid[1][0] != laid[1][1]
    for _ in range(3):
        np.testing.assert_array_equal(tuned(x).numpy(), expected)


def planning_module() -> object:
    from tinygrad.engine import jit

    return jit


def offset_of(argument: UOp) -> int | None:
    view = None if argument.op in (Ops.BUFFER, Ops.PARAM) else argument.contiguous_view()
    return None if view is None else int(view[1] * view[0].dtype.itemsize)


# ---- TinyJit, several sets of calls, variables, updates in place ----


def test_replays_are_bitwise_those_of_the_plain_program(whole: tuple[Region, Program]) -> None:
    def model(x: Tensor) -> Tensor:
        return (chain(x * 2) + x).contiguous()

    plain, tuned = TinyJit(lambda x: model(x).realize()), TinyJit(lambda x: model(x).realize())
    with install(dict([whole]), X86) as report:
        for _ in range(2):
            tuned(values())
    assert report.counts[whole[0].id] == 0
    region = sequence_of(model(empty(ROWS, WIDTH))).region(0, 1, 2)
    program = program_of(region, {1: empty(ROWS, WIDTH)}, lambda x: {3: fused(x * 2)})
    tuned = TinyJit(lambda x: model(x).realize())
    with install({region: program}, X86) as report:
        tuned(values()), tuned(values())
    assert report.counts[region.id] == 2, "once eagerly, once captured"
    tags = [call.tag for call in tuned.captured.linear.src]
    assert tags == [replacing.TAG + region.id, None], "what was planned, compiled and runs tells what it replaced"
    for seed in range(4):  # outside of the block: what was captured keeps its programs
        x = values(seed)
        assert tuned(x).numpy().tobytes() == plain(x).numpy().tobytes()
    out = values(9)
    for _ in range(3):  # its own output as its next input
        out = tuned(out)
    again = values(9)
    for _ in range(3):
        again = plain(again)
    assert out.numpy().tobytes() == again.numpy().tobytes()


def test_a_chain_is_replaced_as_often_as_it_is_there(whole: tuple[Region, Program], planned: list[list[UOp]]) -> None:
    x, y = values(), values(1)
    expected = [chain(x).numpy(), chain(y).numpy(), chain(chain(chain(x))).numpy()]
    planned.clear()
    with install(dict([whole]), X86) as report:
        one, two = chain(x), chain(y)
        Tensor.realize(one, two)
        assert kinds(planned[0]) == [Ops.PROGRAM] * 2 and report.counts.total() == 2
        three = chain(chain(chain(x))).realize()
    assert kinds(planned[1]) == [Ops.PROGRAM] * 3 and report.counts.total() == 5
    for found, wanted in zip((one, two, three), expected, strict=True):
        np.testing.assert_array_equal(found.numpy(), wanted)


def test_kernels_with_variables_run_at_any_value() -> None:
    def model(x: Tensor, n: UOp) -> Tensor:
        part = (x.shrink(((0, n), None)) + 1).contiguous()
        return (part * 2).contiguous().sum()

    n, x = Variable("n", 1, ROWS), values()
    region = sequence_of(model(empty(ROWS, WIDTH), n.bind(3))).region(0, 1)
    parts = [compiled_of(ast_of(kernel)) for kernel in region.kernels]
    program = program_of_parts(region, parts)
    with install({region: program}, X86) as report:
        for value in (2, 5):
            assert model(x, n.bind(value)).item() == ((x.numpy()[:value] + 1) * 2).sum()
        step = TinyJit(lambda a, b: model(a, b).realize())
        found = [step(x, n.bind(value)).item() for value in (1, 4, 6, 2)]
    assert found == [((x.numpy()[:value] + 1) * 2).sum() for value in (1, 4, 6, 2)]
    assert report.counts[region.id] == 4


def test_a_region_may_run_its_own_kernels_with_other_opts() -> None:
    region, x = region_of(chain(empty(ROWS, WIDTH))), values()
    expected = chain(x).numpy()
    place = replacing.Replacement(region, lambda device: placed_kernels(region, [RAW] * 3))
    with installing([place]) as report:
        np.testing.assert_array_equal(chain(x).numpy(), expected)
    assert report.counts.total() == 1


def test_an_update_in_place_stays_one() -> None:
    def model(state: Tensor, x: Tensor) -> Tensor:
        step = (x * 2).contiguous()
        return state.assign(state + step)

    region = region_of(model(empty(ROWS, WIDTH), empty(ROWS, WIDTH)))
    assert region.args == ((0, 1), (2, 0)) and region.outputs == (2,)
    state_in = empty(ROWS, WIDTH)
    program = program_of(region, {1: empty(ROWS, WIDTH), 2: state_in}, lambda x, s: {2: s.assign(s + x * 2)})
    (launch,) = program.launches
    assert set(launch.compiled.outputs) & set(launch.compiled.inputs), "it reads what it writes"
    x, state, plain = values(), values(1), values(1).numpy()
    step = TinyJit(lambda s, a: model(s, a).realize())
    with install({region: program}, X86) as report:
        for _ in range(4):
            step(state, x)
    np.testing.assert_array_equal(state.numpy(), plain + 4 * 2 * x.numpy())
    assert report.counts[region.id] == 2


@pytest.mark.gpu
def test_programs_are_nodes_of_a_cuda_graph() -> None:
    """Two chains of one step, each with an intermediate of its own, replayed as one graph."""
    prepare("CUDA")
    target, _ = detect("CUDA", 1)
    region = region_of(chain(empty(ROWS, WIDTH, device="CUDA")))
    program = program_of(
        region,
        {1: empty(ROWS, WIDTH, device="CUDA")},
        lambda x: {3: (((x + 1).flip(1) * 2).contiguous().flip(0) - (x + 1)).contiguous()},
        target=target,
    )
    assert len(program.launches) == 2 and len(program.scratch) == 1

    def model(x: Tensor, y: Tensor) -> Tensor:
        return (chain(x) + chain(y)).contiguous().realize()

    plain, tuned = TinyJit(model), TinyJit(model)
    pairs = [[values(seed).to("CUDA").realize(), values(seed + 9).to("CUDA").realize()] for seed in range(6)]
    with install({region: program}, target) as report:
        for _ in range(2):
            tuned(*pairs[0])
    assert report.counts[region.id] == 4
    (graph,) = tuned.captured.linear.src
    assert [call.tag for call in graph.src[0].src[0].src] == [replacing.TAG + region.id] * 4 + [None]
    for pair in pairs * 5:
        assert tuned(*pair).numpy().tobytes() == plain(*pair).numpy().tobytes()


# ---- what is not safe ----


def test_a_value_that_is_still_alive_leaves_the_calls_as_they_were(whole: tuple[Region, Program]) -> None:
    region, program = whole
    x, kept = values(), list[Tensor]()

    def model(a: Tensor) -> Tensor:
        first = (a + 1).contiguous()
        kept[:] = [first]
        second = (first.flip(1) * 2).contiguous()
        return (second.flip(0) - first).contiguous()

    with install({region: program}, X86) as report:
        found = model(x).numpy()
        step = TinyJit(lambda a: model(a).realize())
        for _ in range(3):
            step(x)
        assert report.left == {(region.id, LIVE): 3} and not report.counts
        np.testing.assert_array_equal(kept[0].numpy(), x.numpy() + 1)
        np.testing.assert_array_equal(found, chain(x).numpy())
        assert report.counts[region.id] == 1, "where nobody holds it, it is replaced: that is asked every time"


def test_a_value_that_only_a_view_or_another_capture_reaches_is_alive(whole: tuple[Region, Program]) -> None:
    region, program = whole
    x = values()

    def parts(a: Tensor) -> tuple[Tensor, Tensor]:
        first = (a + 1).contiguous()
        second = (first.flip(1) * 2).contiguous()
        return first, (second.flip(0) - first).contiguous()

    with install({region: program}, X86) as report:
        first, out = parts(x)
        row = first[1:2].relu()  # lazy, and all that is left of the value
        del first
        out.realize()
        assert report.left == {(region.id, LIVE): 1} and not report.counts
        np.testing.assert_array_equal(row.numpy(), np.maximum(x.numpy()[1:2] + 1, 0))
        kept: dict[str, Tensor] = {}

        def one(a: Tensor) -> Tensor:
            kept["first"], out = parts(a)
            return out.realize()

        step, later = TinyJit(one), TinyJit(lambda: (kept["first"] * 3).contiguous().realize())
        for seed in range(4):
            np.testing.assert_array_equal(step(values(seed)).numpy(), fused(values(seed)).numpy())
            np.testing.assert_array_equal(later().numpy(), (values(seed).numpy() + 1) * 3)
    assert not report.counts


def test_a_program_that_stores_the_value_as_well_may_stand_where_it_lives(whole: tuple[Region, Program]) -> None:
    region = Region(whole[0].kernels, whole[0].args, (0, 3))
    program = program_of(region, {1: empty(ROWS, WIDTH)}, lambda x: {0: (x + 1).contiguous(), 3: fused(x).contiguous()})
    x = values()
    with install({whole[0]: whole[1], region: program}, X86) as report:
        first = (x + 1).contiguous()
        second = (first.flip(1) * 2).contiguous()
        out = (second.flip(0) - first).contiguous()
        del second
        Tensor.realize(first, out)
    assert report.counts == {region.id: 1} and not report.left
    np.testing.assert_array_equal(first.numpy(), x.numpy() + 1)
    np.testing.assert_array_equal(out.numpy(), chain(x).numpy())


def test_a_value_that_another_call_reads_leaves_the_calls_as_they_were(whole: tuple[Region, Program]) -> None:
    x = values()

    def model() -> tuple[Tensor, Tensor]:
        first = (x + 1).contiguous()
        second = (first.flip(1) * 2).contiguous()
        return (second.flip(0) - first).contiguous(), (second * 5).contiguous()

    with install(dict([whole]), X86) as report:
        out, other = model()
        Tensor.realize(out, other)
    assert report.left == {(whole[0].id, USED): 1} and not report.counts
    np.testing.assert_array_equal(other.numpy(), (x.numpy() + 1)[:, ::-1] * 10)


def test_calls_that_another_must_run_between_stay(planned: list[list[UOp]]) -> None:
    def model(x: Tensor) -> Tensor:
        first = (x + 1).contiguous()
        between = (first * 3).contiguous()
        return (first - between).contiguous()

    sequence = sequence_of(model(empty(ROWS, WIDTH)))
    region = sequence.region(0, 2)
    program = program_of(
        region,
        {1: empty(ROWS, WIDTH), 3: empty(ROWS, WIDTH)},
        lambda x, between: {0: (x + 1).contiguous(), 2: (x + 1 - between).contiguous()},
    )
    x = values()
    with install({region: program}, X86) as report:
        found = model(x).numpy()
    assert report.left == {(region.id, BETWEEN): 1} and not report.counts
    np.testing.assert_array_equal(found, -2 * (x.numpy() + 1))


def test_regions_that_would_wait_for_each_other_are_not_both_replaced() -> None:
    """a1 to b1 and b2 to a2: each pair alone may run as one, both may not."""

    def model(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        a1, b2 = (x + 1).contiguous(), (y * 5).contiguous()
        return a1, b2, (a1 * 2).contiguous(), (b2 - 3).contiguous()

    sequence = sequence_of(*model(empty(ROWS, WIDTH), empty(ROWS, WIDTH)))
    kernels = [call.kernel for call in sequence.calls]
    assert len(set(kernels)) == 4 and None not in kernels
    a1, b2, b1, a2 = (Region((kernel,)) for kernel in kernels if kernel is not None)
    pairs = [Region((*p.kernels, *q.kernels), ((0, 1), (2, 3)), (0, 2)) for p, q in ((a1, a2), (b2, b1))]
    programs = {}
    for pair in pairs:
        parts = [compiled_of(ast_of(kernel)) for kernel in pair.kernels]
        programs[pair] = program_of_parts(pair, parts)
    x, y = values(), values(1)
    with install(programs, X86) as report:
        outputs = model(x, y)
        Tensor.realize(*outputs)
    assert report.counts == {pairs[0].id: 1} and report.left == {(pairs[1].id, BETWEEN): 1}
    wanted = (x.numpy() + 1, y.numpy() * 5, (x.numpy() + 1) * 2, y.numpy() * 5 - 3)
    for found, value in zip(outputs, wanted, strict=True):
        np.testing.assert_array_equal(found.numpy(), value)


def test_calls_in_another_order_than_the_regions_are_others() -> None:
    """A state that is updated and then read; and the same kernels on the same buffers, read and then updated."""

    def update_and_read(state: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        new = state.assign(state - x)
        return new, (new * 2).contiguous()

    sequence = sequence_of(*update_and_read(empty(ROWS, WIDTH), empty(ROWS, WIDTH)))
    region = sequence.region(0, 1)
    assert region.args == ((0, 1), (2, 0)) and region.outputs == (0, 2)
    program = program_of_parts(region, [compiled_of(ast_of(kernel)) for kernel in region.kernels])
    state, x, plain = values(1), values(), values(1).numpy()

    def read_and_update(s: Tensor, a: Tensor) -> Tensor:
        before = (s * 2).contiguous().realize()
        s.assign(s - a).realize()
        return before

    step = TinyJit(read_and_update)
    with install({region: program}, X86) as report:
        for _ in range(4):
            np.testing.assert_array_equal(step(state, x).numpy(), plain * 2)
            plain = plain - x.numpy()
        assert report.left == {(region.id, BETWEEN): 1} and not report.counts
        _, read = update_and_read(state, x)
        np.testing.assert_array_equal(read.numpy(), (plain - x.numpy()) * 2)
        assert report.counts.total() == 1


def test_a_state_that_is_written_in_between_keeps_its_reads_apart() -> None:
    """Both calls read one buffer; what is written into it between them makes two values of it."""
    x = values()

    def reads(state: Tensor) -> tuple[Tensor, Tensor]:
        return (state + 1).contiguous(), (state * 2).contiguous()

    sequence = sequence_of(*reads(empty(ROWS, WIDTH)))
    region = sequence.region(0, 1)
    assert region.args == ((0, 1), (2, 1)) and region.outputs == (0, 2)
    program = program_of(region, {1: empty(ROWS, WIDTH)}, lambda s: {0: (s + 1).contiguous(), 2: (s * 2).contiguous()})
    state = values(1)

    def step(s: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
        before = (s + 1).contiguous().realize()
        s.assign(s - a).realize()
        return before, (s * 2).contiguous().realize()

    plain, s = values(1).numpy(), TinyJit(step)
    with install({region: program}, X86) as report:
        for _ in range(4):
            before, later = s(state, x)
            np.testing.assert_array_equal(before.numpy(), plain + 1)
            plain = plain - x.numpy()
            np.testing.assert_array_equal(later.numpy(), plain * 2)
        assert report.left == {(region.id, BETWEEN): 1} and not report.counts
        Tensor.realize(*reads(state))
        assert report.counts.total() == 1


def test_buffers_that_share_memory_are_not_two() -> None:
    """A kernel from one part of a buffer into another: as far apart as it is long, and half of that."""
    kernel = compiled_region((empty(8) * 2).contiguous())
    base = Tensor(np.arange(20, dtype=np.float32)).contiguous().realize()

    def rebound(begin: int) -> Callable[[UOp, str], UOp]:
        def rewrite(linear: UOp, _: str) -> UOp:
            (call,) = linear.src
            return linear.replace(
                src=(call.replace(src=(call.src[0], *(base.uop.buf_uop[i : i + 8] for i in (0, begin)))),)
            )

        return rewrite

    for begin, reason in ((8, ""), (12, ""), (4, OVERLAP)):
        with install(dict([kernel]), X86) as report, planning.before_planning(rebound(begin)):
            (empty(8).realize() * 2).contiguous().realize()
        assert (report.counts.total(), list(report.left)) == (not reason, [(kernel[0].id, reason)] if reason else [])


def test_a_program_that_loads_whole_vectors_gets_no_buffer_at_another_address() -> None:
    kernel, base = compiled_region((empty(8) + 1).contiguous()), Tensor(np.arange(30, dtype=np.float32)).realize()
    assert (replacing.alignment("CPU"), replacing.alignment("CUDA:1")) == (64, 16)
    for begin, reason in ((16, ""), (4, replacing.UNALIGNED), (1, replacing.UNALIGNED)):
        view = base[begin : begin + 8].contiguous()
        with install(dict([kernel]), X86, aligned=True) as report:
            np.testing.assert_array_equal((view + 1).contiguous().numpy(), np.arange(begin + 1, begin + 9))
        assert list(report.left) == ([(kernel[0].id, reason)] if reason else [])


def compiled_region(output: Tensor) -> tuple[Region, Program]:
    region = region_of(output)
    return region, program_of_parts(region, [compiled_of(ast_of(region.kernel))])


def test_calls_on_several_devices_stay(whole: tuple[Region, Program]) -> None:
    x = values().shard(("CPU", "CPU:1"), axis=0).realize()
    region = region_of((empty(ROWS // 2, WIDTH) + 1).contiguous())
    program = program_of(region, {1: empty(ROWS // 2, WIDTH)}, lambda a: {0: (a + 1).contiguous()})
    with install({region: program}, X86) as report:
        found = (x + 1).contiguous().numpy()
    np.testing.assert_array_equal(found, values().numpy() + 1)
    assert not report.counts
    other = values().to("CPU:1").realize()
    with install(dict([whole]), X86) as report:
        np.testing.assert_array_equal(chain(other).numpy(), chain(values()).numpy())
    assert report.counts.total() == 2, "one on each device, each by itself"


def test_what_the_author_scheduled_stays(whole: tuple[Region, Program]) -> None:
    def fixed(linear: UOp, _: str) -> UOp:
        asts = [call.src[0].replace(arg=replace(call.src[0].arg, opts_to_apply=())) for call in linear.src]
        calls = [call.replace(src=(ast, *call.src[1:])) for call, ast in zip(linear.src, asts, strict=True)]
        return linear.replace(src=tuple(calls))

    x = values()
    with install(dict([whole]), X86) as report, planning.before_planning(fixed):
        np.testing.assert_array_equal(chain(x).numpy(), fused(x).numpy())
    assert not report.counts and not report.left


def test_programs_that_cannot_be_are_refused_before_they_run(whole: tuple[Region, Program]) -> None:
    region, program = whole
    silent = Region(region.kernels, region.args, (0, 3))
    with pytest.raises(ScheduleError, match=r"does not write the outputs \[0\]"), install({silent: program}, X86):
        pass
    wrong = Region(region.kernels, ((0, 2), (1, 0), (3, 2, 0)), (3,))
    with pytest.raises(ScheduleError, match="numbered by their first appearance"), install({wrong: program}, X86):
        pass
    silent_one, (out, x) = Region((region.kernels[0],)), (0, 1)
    compiled = compiled_of(ast_of(silent_one.kernel))
    elsewhere = Program((ProgramLaunch(compiled, (2, x)),), 2, (Scratch(ROWS * WIDTH, "float"),))
    with pytest.raises(ScheduleError, match=r"does not write the outputs \[0\]"), install({silent_one: elsewhere}, X86):
        pass
    beyond = Program((ProgramLaunch(compiled, (out, 2)),), 3)
    with (
        pytest.raises(ScheduleError, match=r"buffers that its region lacks: \[2\]"),
        install({silent_one: beyond}, X86),
    ):
        pass
    with pytest.raises(ValueError, match="buffers of its own"):
        Program(program.launches, 1)


@pytest.mark.parametrize(
    ("block", "places"),
    [
        (lambda: planning.before_planning(lambda linear, _: linear), [(schedule, "memory_plan_rewrite")]),
        (lambda: choosing_opts(lambda ast: None), [(realize, "lower_and_compile")]),
    ],
)
def test_blocks_that_end_in_another_order_pile_nothing_up(
    block: Callable[[], AbstractContextManager[None]], places: list[tuple[ModuleType, str]]
) -> None:
    """As blocks of several threads do, each of which begins before another one's end."""
    plain = [getattr(module, name) for module, name in places]
    last = ExitStack()
    last.enter_context(block())
    for _ in range(2 * sys.getrecursionlimit()):
        following = ExitStack()
        following.enter_context(block())
        last.close()
        last = following
    np.testing.assert_array_equal(values().numpy() + 1, (values() + 1).numpy())
    last.close()
    assert [getattr(module, name) for module, name in places] == plain


# ---- random programs ----


def random_model(rng: np.random.Generator, x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """A chain of row-wise kernels with further readers, each of which some random step picked. Returns what is asked
    for, and what only lives."""
    steps: list[Callable[[Tensor], Tensor]] = [
        lambda t: t + 1,
        lambda t: t.flip(1) * 2,
        lambda t: t - t.sum(axis=1, keepdim=True),
        lambda t: t.relu(),
    ]
    made, asked, alive = [x], list[Tensor](), list[Tensor]()
    for _ in range(int(rng.integers(3, 8))):
        parent = made[-1] if rng.random() < 0.7 else made[int(rng.integers(len(made)))]
        value = steps[int(rng.integers(len(steps)))](parent)
        if rng.random() < 0.3 and len(made) > 1:
            value = value + made[int(rng.integers(len(made)))]
        made.append(value.contiguous())
        if rng.random() < 0.25:
            asked.append((made[-1] * 3).contiguous())
        if rng.random() < 0.15:
            alive.append(made[-1])
    return [made[-1], *asked], alive


def some_again(rng: np.random.Generator, places: list[int]) -> list[int]:
    """Calls of a region that it computes again: none of the last, mostly none at all."""
    return [place for place in places[:-1] if rng.random() < 0.3]


SEEDS = [*range(8), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(8, 32))]


@pytest.mark.parametrize("seed", first(1, SEEDS))
def test_random_chains_are_replaced_only_where_it_is_safe(seed: int) -> None:
    """Random sets of calls as regions, half of which do not store what others need. A program hides from everybody what
    its region does not store, so that whoever reads it would read something else."""
    rng = np.random.default_rng(seed)
    draws, x = rng.integers(1 << 30), values(seed)

    def model(a: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        return random_model(np.random.default_rng(draws), a)

    def run(a: Tensor) -> list[np.ndarray]:
        outputs, alive = model(a)
        Tensor.realize(*outputs)
        return [t.numpy() for t in (*outputs, *alive)]

    expected = run(x)
    outputs, alive = model(empty(ROWS, WIDTH))
    sequence = sequence_of(*outputs)
    del outputs, alive
    count, programs = len(sequence.calls), dict[Region, Program]()
    for _ in range(6):
        size = int(rng.integers(2, min(count, 4) + 1))
        start = int(rng.integers(count - size + 1))
        some = range(start, start + size) if rng.random() < 0.7 else sorted(rng.choice(count, size, replace=False))
        some = list(map(int, some))
        region = sequence.region(*some, again=some_again(rng, some))
        if rng.random() < 0.5:  # it asks for too little, perhaps
            region = replace(region, outputs=(region.args[-1][0],))
        if region.outputs:
            programs[region] = hiding(region, keep=set(region.outputs))
    with install(programs, X86) as report:
        found = run(x)
        step = TinyJit(lambda a: [output.realize() for output in model(a)[0]])
        for _ in range(3):
            replayed = [t.numpy() for t in step(x)]
    for one, wanted in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, wanted)
    for one, wanted in zip(replayed, expected, strict=False):
        np.testing.assert_array_equal(one, wanted)
    assert report.counts.total() + report.left.total() > 0


def random_step(rng: np.random.Generator, states: list[Tensor], x: Tensor) -> Tensor:
    """Values and updates in place of some states, each of which reads some of what is there by then."""
    made = [x]
    for _ in range(int(rng.integers(4, 9))):
        known = [*made, *states]
        one, other = (known[int(rng.integers(len(known)))] for _ in range(2))
        value = [one + 1, one.flip(1) - other, one - one.max(axis=1, keepdim=True), other.relu()][int(rng.integers(4))]
        if rng.random() < 0.5:
            made.append(value.contiguous().realize())
        else:
            state = states[int(rng.integers(len(states)))]
            state.assign((value * 0.5).contiguous() if rng.random() < 0.5 else state - value).realize()
    return (made[-1] + states[0]).contiguous().realize()


@pytest.mark.parametrize("seed", first(1, SEEDS))
def test_random_updates_in_place_keep_their_order(seed: int) -> None:
    """As above, of a step that reads and writes the same memory many times, and is replayed."""
    rng = np.random.default_rng(100 + seed)
    draws = rng.integers(1 << 30)

    def replays(step: TinyJit, programs: dict[Region, Program] | None) -> tuple[list[bytes], Counter[str]]:
        """What four calls leave, and what was replaced in the second, which is captured."""
        states = [values(1), values(2)]
        with install(programs or {}, X86) as report:
            outputs = [step(*states, values(0)).numpy().tobytes()]
            eagerly = Counter(report.counts)
            outputs += [step(*states, values(n)).numpy().tobytes() for n in range(1, 4)]
        return [*outputs, *(state.numpy().tobytes() for state in states)], report.counts - eagerly

    def jitted() -> TinyJit:
        return TinyJit(lambda a, b, x: random_step(np.random.default_rng(draws), [a, b], x))

    with recording_sequences() as recorder:
        expected, _ = replays(jitted(), None)
    (sequence,) = [one for one in sequences_of_captured(recorder.sequences()) if one.steady]
    count, programs = len(sequence.calls), dict[Region, Program]()
    for _ in range(12):
        near = int(rng.integers(max(count - 3, 1))) + np.arange(min(count, 4))
        some = sorted(map(int, rng.choice(near, int(rng.integers(2, min(count, 3) + 1)), replace=False)))
        region = sequence.region(*some, again=some_again(rng, some))
        if rng.random() < 0.3:
            region = replace(region, outputs=(region.args[-1][0],))
        if region.outputs:
            programs[region] = hiding(region, keep=set(region.outputs))
    found, counts = replays(jitted(), programs)
    assert found == expected
    partition = partition_of(sequence)
    for region in programs:
        partition.claim(region)
    assert counts == {region: len(places) for region, places in partition.found.items()}, "as the sequence foretells"
    assert counts.total() + partition.left().total() > 0
