"""Kernels with symbolic variables: one call of a workload, one binary, two ends, and calls split between them."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tinygrad import Tensor, Variable, function

from kcg.campaign.tasks import distinct_calls
from kcg.compat.capture import calls_of, variable_names
from kcg.compat.renderers import planning_renderer
from kcg.compat.scheduling import simplified, with_device
from kcg.compat.stretch import accesses_of
from kcg.compat.tiny import Ops, UOp
from kcg.dataset.journal import Journal
from kcg.errors import CodecError
from kcg.kernel import compile as compiler
from kcg.kernel.analysis import arithmetic, certain_bytes, least_bytes, operations, work_at
from kcg.kernel.codec import ast_of, decode, kernel_of
from kcg.kernel.opts.schedule import RAW
from kcg.kernel.opts.space import KernelSpace
from kcg.kernel.symbolic import at_bounds, at_values, bounds_of, merged, ranges_of, seen_by, thinned
from kcg.measure.service import MeasureService, Request, ServiceSettings
from kcg.types import Kernel, Region, Status, Variables, Workload, WorkloadCall
from tests.kernels import empty
from tests.known_targets import KNOWN_TARGETS
from tests.waiting import PATIENCE_S

ROWS, COLUMNS, LARGEST = 64, 48, 32


def rows_summed(name: str = "length") -> Region:
    """The sums of the columns of the first `name` rows: a kernel whose work grows with its variable."""
    length = Variable(name, 1, LARGEST).bind(3)
    (call,) = calls_of(empty(ROWS, COLUMNS)[0:length].sum(0))
    return Region((kernel_of(call.ast),))


def block_doubled() -> Region:
    """A kernel of two variables: the first `n` rows and `m` columns, doubled."""
    n, m = Variable("n", 1, ROWS).bind(3), Variable("m", 1, COLUMNS).bind(5)
    (call,) = calls_of((empty(ROWS, COLUMNS)[0:n, 0:m] * 2).sum(1))
    return Region((kernel_of(call.ast),))


def sliced_product() -> UOp:
    """The product of the first rows with a matrix, in a function that is compiled by itself: it is given a buffer of
    the most rows there can be, and slices it."""

    @function(precompile=True)
    def product(x: Tensor, weight: Tensor) -> Tensor:
        return ((x * 2) @ weight).contiguous()

    start, length = Variable("start", 0, ROWS - 1).bind(3), Variable("length", 1, LARGEST).bind(5)
    x = empty(1, ROWS, COLUMNS)[:, start : start + length].contiguous()
    return calls_of(product(x, empty(COLUMNS, 24)))[-1].ast


def at(value: int, name: str = "length") -> Variables:
    return ((name, value),)


def test_calls_that_differ_in_values_only_are_one_in_the_order_of_their_values() -> None:
    fixed, region = WorkloadCall(Region((Kernel("fixed"),)), 2), Region((Kernel("{}"),))
    calls = [*(WorkloadCall(region, 1, at(n)) for n in (9, 3, 12, 3)), fixed, WorkloadCall(region, 4, at(10)), fixed]
    one, *others = merged(calls)
    assert others == [fixed, fixed], "what has no variables stays as it is"
    assert one.seen == ((at(3), 2), (at(9), 1), (at(10), 4), (at(12), 1))
    assert (one.calls, one.variables) == (8, at(12))
    assert merged([one, *others]) == (one, *others)
    assert merged(WorkloadCall(region, n, v) for v, n in reversed(seen_by(one))) == (one,), "from rows, in any order"


def test_calls_between_the_ends_are_split_linearly() -> None:
    region = Region((Kernel("{}"),))
    (call,) = merged(WorkloadCall(region, count, at(n)) for n, count in ((10, 1), (20, 2), (50, 5)))
    low, high = bounds_of(call)
    assert (low.variables, high.variables) == (at(10), at(50))
    assert high.share == pytest.approx((0 * 1 + 0.25 * 2 + 1 * 5) / 8) and low.share == pytest.approx(1 - high.share)
    assert [(c.variables, c.calls, c.seen) for c in at_bounds(call)] == [(at(10), 2, ()), (at(50), 6, ())]
    (only,) = bounds_of(WorkloadCall(region, 3, at(7)))
    assert (only.variables, only.share) == (at(7), 1.0)


def test_many_values_keep_the_ends_and_the_total() -> None:
    (call,) = merged(WorkloadCall(Region((Kernel("{}"),)), n % 3 + 1, at(n)) for n in range(1, 1001))
    few = thinned(call, kept=10)
    assert len(few.seen) == 10 and few.seen[0][0] == at(1) and few.seen[-1][0] == few.variables == at(1000)
    assert sum(count for _, count in few.seen) == few.calls == call.calls
    assert bounds_of(few)[1].share == pytest.approx(bounds_of(call)[1].share, abs=0.01)
    assert thinned(few, kept=10) == few


def test_of_several_variables_the_work_at_their_values_says_which_are_smaller() -> None:
    region = block_doubled()
    work = work_at(ast_of(region.kernel))
    seen = [(("m", m), ("n", n)) for m, n in ((40, 2), (3, 60), (20, 20), (30, 1))]
    (call,) = merged(WorkloadCall(region, 1, variables) for variables in seen)
    assert [variables for variables, _ in call.seen] == sorted(seen, key=lambda values: work(dict(values)))
    assert call.variables == (("m", 20), ("n", 20)), "neither variable is at its largest there"
    works = [work(dict(variables)) for variables in seen]
    expected = sum((w - min(works)) / (max(works) - min(works)) for w in works) / len(works)
    assert bounds_of(call)[1].share == pytest.approx(expected)


def test_operations_and_bytes_are_those_at_the_values() -> None:
    ast = ast_of(rows_summed().kernel)
    few, many = (at_values(ast, at(n)) for n in (4, 16))
    assert arithmetic(many) == 4 * arithmetic(few) > 0
    assert least_bytes(many) - least_bytes(few) == 4 * 12 * COLUMNS
    assert arithmetic(at_values(ast, ())) == arithmetic(ast), "the largest possible, where nothing is filled in"


@pytest.mark.parametrize(
    "rows",
    [
        lambda some: some.sum(0),
        lambda some: empty(8, COLUMNS) @ some.T,
        lambda some: some.T @ some,
        lambda some: some.T.softmax(-1),
        lambda some: some.max(0) * 2,
        lambda some: empty(ROWS, COLUMNS)[some.cast("int").sum(1)],  # a tensor that indexes
    ],
)
def test_an_axis_that_has_one_value_or_none_is_counted_like_any_other(rows: Callable[[Tensor], Tensor]) -> None:
    some = empty(ROWS, COLUMNS)[0 : Variable("n", 0, LARGEST).bind(3)]
    for call in calls_of(rows(some)):
        ast = ast_of(kernel_of(call.ast))
        for counted in (arithmetic, least_bytes, certain_bytes, operations):
            none, one, two, many = (counted(at_values(ast, at(n, "n"))) for n in (0, 1, 2, LARGEST))
            assert none <= one <= two <= many


def test_a_journal_keeps_every_value_and_one_with_an_entry_for_each_is_read_the_same(tmp_path: Path) -> None:
    region = rows_summed()
    (call,) = merged(WorkloadCall(region, n, at(n)) for n in (5, 2, 31))
    with Journal.open(tmp_path / "new.sqlite") as new, Journal.open(tmp_path / "old.sqlite") as old:
        new.add_workload(Workload("w", "p", (call,)))
        old.add_workload(Workload("w", "p", tuple(WorkloadCall(region, n, at(n)) for n in (5, 2, 31))))
        assert new.counts()["workload_calls"] == 3, "a row for each set of values, as before"
        assert new.workloads() == old.workloads() == [Workload("w", "p", (call,))]
        (stored,) = new.workloads()
        assert not new.add_workload(stored)


def test_a_campaign_measures_both_ends() -> None:
    (call,) = merged(WorkloadCall(rows_summed(), 1, at(n)) for n in (5, 2, 31))
    chosen = distinct_calls([Workload("w", "p", (call,))], shard=(1, 1), seed=0)
    assert sorted(c.variables for c in chosen) == [at(2), at(31)]


def test_a_slice_in_a_kernel_is_read_as_tinygrad_indexes_it() -> None:
    ast = sliced_product()
    kernel = kernel_of(ast)
    read = ast_of(kernel)
    assert {node.op for node in ast.toposort()} - {node.op for node in read.toposort()} == {Ops.SHRINK, Ops.RESHAPE}
    assert simplified(with_device(ast, None)).src == simplified(read).src, "the kernel that tinygrad schedules"
    assert kernel_of(read) == kernel and variable_names(ast) == {"length"} == {*ranges_of(kernel)}
    assert accesses_of(ast) == ((1, 2), (0,)), "for what runs beside it"
    with pytest.raises(CodecError, match="operation 'SHRINK' is not allowed"):
        decode(kernel.ast_json.replace('"MUL"', '"SHRINK"', 1))


def test_how_long_a_slice_is_may_be_no_variable_of_its_kernel() -> None:
    @function(precompile=True)
    def first(x: Tensor) -> Tensor:
        return (x[:, 0] * 2).contiguous()

    length = Variable("length", 1, LARGEST).bind(5)
    call = calls_of(first(empty(8, LARGEST)[:, :length].contiguous()))[-1]
    assert call.variables == () and ranges_of(kernel_of(call.ast)) == {}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeasureService]:
    with MeasureService(
        os.environ["DEV"], run_id="r", settings=ServiceSettings(cache_dir=tmp_path_factory.mktemp("cache"))
    ) as opened:
        yield opened


@pytest.mark.parametrize(
    "region", [rows_summed, pytest.param(lambda: Region((kernel_of(sliced_product()),)), id="sliced")]
)
def test_one_binary_runs_and_is_checked_with_every_value(service: MeasureService, region: Callable[[], Region]) -> None:
    region = region()
    baseline = KernelSpace(region, service.target).baseline()
    before = service.compilations
    requests = [Request(region, baseline, at(n), "t", in_search=True) for n in (1, 7, LARGEST)]
    rows = [future.result(timeout=PATIENCE_S) for future in service.measure(requests)]
    assert [row.status for row in rows] == [Status.OK] * 3 and all(row.checked for row in rows)
    assert [row.variables for row in rows] == [at(1), at(7), at(LARGEST)]
    assert len({row.key for row in rows}) == 3, "each is a measurement of its own"
    assert len({row.binary_hash for row in rows}) == 1 and service.compilations == before + 1
    assert service.has_compiled(region, baseline, at(7), at(1)) and not service.has_compiled(region, baseline, at(9))
    compiled = service.compiled(region, baseline, at(1), at(LARGEST)).result(timeout=PATIENCE_S).compiled
    assert service.compilations == before + 1
    assert [compiled.at(at(n)).values for n in (1, LARGEST)] == [(1,), (LARGEST,)]
    with pytest.raises(ValueError, match="other values"):
        compiled.at(at(9))


def test_launch_sizes_follow_the_values() -> None:
    """Those of a GPU, whose program is made without its compiler."""
    target = KNOWN_TARGETS["sm_90"]
    length = Variable("length", 1, ROWS).bind(3)
    (call,) = calls_of((empty(ROWS, COLUMNS)[0:length] + 1).contiguous())
    region = Region((kernel_of(call.ast),))
    program = compiler._program(region, RAW, planning_renderer(target), name="kernel")
    few, many = (compiler._launch(program.arg, at(n)) for n in (4, 16))
    assert math.prod(many.global_size) * math.prod(many.local_size) == 16 * COLUMNS
    assert math.prod(many.global_size) == 4 * math.prod(few.global_size) and (few.values, many.values) == ((4,), (16,))
