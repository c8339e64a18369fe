"""Kernels that tinygrad 0.14.0 compiles wrong: each schedule is refused, or rejected by verification, or right.

What is right is said by NumPy on the data that the device was given, not by kcg's own reference. What the fuzz campaign
(`evaluation/measure/fuzz_verify.py`) finds is reduced to a case here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tinygrad import Tensor, dtypes

from kcg.compat.tiny import Ops, UOp
from kcg.errors import ScheduleError
from kcg.kernel.codec import ast_of, kernel_of
from kcg.kernel.compile import compile_schedule
from kcg.kernel.kinds import describe
from kcg.kernel.opts.schedule import RAW, Opt, schedule_of
from kcg.kernel.opts.space import KernelSpace
from kcg.measure.device_info import detect
from kcg.measure.inputs import RECIPE
from kcg.measure.service import MeasureService, Request
from kcg.measure.verify import CheckedBench
from kcg.measure.workbench import NAN_POISON
from kcg.types import Region, Schedule, Status, Target
from tests.kernels import empty, example_asts, kernels_of
from tests.slow import first
from tests.waiting import PATIENCE_S

DEV = "CPU:X86"
TARGET: Target = detect(DEV, 1)[0]
SEEDS = (1, 2)
Numpy = Callable[..., Any]


def _assign() -> Tensor:
    x = empty(6, 13)
    return x.assign(x * 2 + 1)


def _filled(rows: int, fill: float) -> Tensor:
    """`(rows, 7)`: five columns of an input, then two of `fill`, as one load that does not happen there."""
    return (Tensor.arange(7) < 5).where(empty(rows, 5).pad(((0, 0), (0, 2))), fill)


def _filled_numpy(a: Any, fill: float) -> Any:
    return np.pad(a.reshape(-1, 5), ((0, 0), (0, 2)), constant_values=fill)


CASES: dict[str, tuple[Callable[[], Tensor], Numpy]] = {
    "matmul": (lambda: empty(8, 16) @ empty(16, 8), lambda a, b: a.reshape(8, 16) @ b.reshape(16, 8)),
    "max of negatives": (
        lambda: (-empty(8, 16).abs() - 1).max(1), lambda a: (-np.abs(a.reshape(8, 16)) - 1).max(1)
    ),
    "product": (lambda: empty(8, 11).prod(1), lambda a: a.reshape(8, 11).prod(1)),
    "sum of squares and one": (
        lambda: (empty(8, 13).square() + 1).sum(1), lambda a: (a.reshape(8, 13) ** 2 + 1).sum(1)
    ),
    "assign": (_assign, lambda a: a * 2 + 1),
    # CPU:X86 writes what a gated store must not write to where the first gated load has the value that it takes instead
    "filled": (lambda: (_filled(6, 0.0) + 1).contiguous(), lambda a: _filled_numpy(a, 0.0) + 1),
    "matmul of filled": (
        lambda: (_filled(4, -2.0).reshape(4, 1, 7) * empty(5, 7).reshape(1, 5, 7)).sum(2),
        lambda a, b: _filled_numpy(a, -2.0) @ b.reshape(5, 7).T,
    ),
    "elementwise": (lambda: empty(7, 13) + empty(13), lambda a, b: a.reshape(7, 13) + b),
}  # fmt: skip


def chains(region: Region) -> list[Schedule]:
    """PADTO of each axis that it makes longer, alone and before and after an UNROLL, an UPCAST and a GROUP."""
    space = KernelSpace(region, TARGET)
    shape = space.state(RAW).full_shape
    found = []
    for pad in (Opt("PADTO", axis, amount) for axis in range(len(shape)) for amount in (4, 32)):
        try:
            if space.state(schedule_of([pad])).full_shape == shape:
                continue
        except ScheduleError:  # more than four times the work
            continue
        found.append([pad])
        for other in (Opt("UNROLL", 0, 4), Opt("UNROLL", 0, 0), Opt("UPCAST", 0, 0), Opt("GROUP", 0, 4)):
            found += [[pad, other], [other, pad]]
    assert found
    return [schedule_of(opts) for opts in found]


@pytest.mark.parametrize("name", first(2, CASES))
def test_padding_is_refused_rejected_or_right(name: str) -> None:
    build, expected = CASES[name]
    (ast,) = kernels_of(build())
    region = Region((kernel_of(ast),))
    bench = CheckedBench(region, TARGET)
    seen: dict[bytes, bool] = {}
    for schedule in chains(region):
        try:
            compiled = compile_schedule(region, schedule, TARGET)
        except Exception as error:  # tinygrad's own refusal, or kcg's
            assert isinstance(error, ScheduleError) or type(error).__name__ == "KernelOptError", schedule
            continue
        if compiled.binary in seen:
            continue
        launch = bench.launcher(compiled)
        result = bench.check(launch, (), seeds=SEEDS)
        bench.fill(5, RECIPE)
        bench.poison(NAN_POISON)
        launch()
        values = [bench.inputs[slot].astype(np.float64) for slot in sorted(bench.inputs)]
        want = np.asarray(expected(*values)).reshape(-1)
        is_right = np.allclose(bench.read(0), want, rtol=1e-4, atol=1e-4)
        bench.seed = None
        assert result.passed == is_right, (describe(schedule), result.reason)
        seen[compiled.binary] = is_right
    assert seen and any(seen.values())


def test_groups_need_shared_memory() -> None:
    """GROUP, alone or with PADTO, is refused on a target without shared memory instead of being ignored."""
    (ast,) = kernels_of(empty(8, 16).max(1))
    space = KernelSpace(Region((kernel_of(ast),)), TARGET)
    for opts in ([Opt("GROUP", 0, 4)], [Opt("PADTO", 1, 32), Opt("GROUP", 0, 4)]):
        with pytest.raises(ScheduleError):
            space.state(schedule_of(opts))


def unused_input() -> UOp:
    """`cat` of two inputs with an axis so short that only one is read, and that one in the last buffer."""
    ast = ast_of(kernel_of(example_asts()["cat"]))
    nodes = list(ast.toposort())
    (axis,) = (n for n in nodes if n.op is Ops.RANGE and n.vmax == 10)
    first, second = (n for slot in (1, 2) for n in nodes if n.op is Ops.PARAM and n.arg.slot == slot)
    return ast.substitute(
        {
            axis: axis.replace(src=(UOp(Ops.CONST, dtypes.weakint, (), 6),)),
            first: first.replace(arg=replace(first.arg, slot=2)),
            second: second.replace(arg=replace(second.arg, slot=1)),
        },
        walk=True,
    )


def test_thread_number_among_the_buffers() -> None:
    """tinygrad 0.14.0 numbers the thread's argument by the count of buffers that are left, not by the last one's slot.

    With an unused buffer before a used one, CPU:X86 then takes the thread's number for an address. No such kernel may
    pass for right: it is refused, rejected, or ends its process (found by fuzzing: 'its process died of SIGSEGV').
    """
    region = Region((kernel_of(unused_input()),))
    threaded = schedule_of([Opt("THREAD", 0, 2)])
    with MeasureService(DEV, run_id="known-wrong", compile_workers=1) as service:
        bad, good = (
            service.measure([Request(region, schedule, samples=1)])[0].result(timeout=PATIENCE_S)
            for schedule in (threaded, RAW)
        )
    assert bad.status in (Status.WORKER_DIED, Status.WRONG, Status.COMPILE_ERROR), (bad.status, bad.reason)
    assert good.status == Status.OK and good.checked, good.reason
