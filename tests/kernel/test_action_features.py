"""Actions as rows of features: what each Opt would do to which axis."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from kcg.compat.scheduling import to_tiny
from kcg.kernel.loop_nest import INNER, WORKGROUP
from kcg.kernel.opts.action_features import ACTION_FEATURES, AXES_OF_ACTION, KINDS_OF_ACTION, action_rows, opt_of
from kcg.kernel.opts.schedule import RAW, Opt, opts_of, schedule_of
from kcg.kernel.opts.space import KernelSpace
from kcg.types import Action, Schedule
from tests.env_tasks import TARGETS, observer_of
from tests.slow import every


def walked(space: KernelSpace, *, walks: int = 3, seed: int = 0) -> list[Schedule]:
    """Schedules on random walks from raw, and the hand-coded one."""
    rng, found = random.Random(seed), {RAW: None, space.baseline(): None}
    for _ in range(walks):
        schedule: Schedule | None = RAW
        while schedule is not None and len(opts_of(schedule)) < 5:
            found[schedule] = None
            schedule = space.sample(rng, schedule)
    return list(found)


KINDS_OF_KERNEL = [
    "matmul",
    "softmax.1",
    "conv2d",
    "matmul_f16",
    "nested_reduce.1",
    "symbolic",
    "symbolic_elementwise",
    "cache_update.1",
    "symbolic sum",
]


@pytest.mark.parametrize("name", every(3, KINDS_OF_KERNEL))
@pytest.mark.parametrize("target", TARGETS)
def test_a_row_names_the_axes_that_tinygrad_acts_on_and_what_it_leads_to(name: str, target: str) -> None:
    space = observer_of(name, target).space
    after = {name: ACTION_FEATURES.index(f"{name} after") for name in ("held", "threads")}
    rest, extent = (ACTION_FEATURES.index(name) for name in ("rest", "extent"))
    seen = 0
    for schedule in walked(space):
        rows, steps = space.action_features(schedule), space.actions(schedule)
        state, table = space.state(schedule), space.table(schedule)
        assert len(rows) == len(steps) + 1
        assert (rows.axes[-1] == -1).all() and rows.features[-1, ACTION_FEATURES.index("is stop")] == 1
        for step, row, places in zip(steps, rows.features, rows.axes, strict=False):
            opt = opt_of(step)
            assert opt == opts_of(step.schedule)[-1]
            assert row[: len(KINDS_OF_ACTION)].sum() == 1 and row[KINDS_OF_ACTION.index(opt.op)] == 1
            if opt.op == "TC":
                assert (places == -1).all()
                continue
            real = state.real_axis(to_tiny(opt).op, opt.axis)
            assert places.tolist() == [real, opt.arg if opt.op == "SWAP" else -1], (schedule, opt)
            child = space.table(step.schedule)
            assert row[extent] == pytest.approx(math.log2(table.extents[real]))
            if opt.op != "SWAP":
                amount = opt.arg or table.extents[real]
                assert isinstance(amount, int) and row[rest] == pytest.approx(math.log2(table.extents[real] / amount))
            assert row[after["held"]] == pytest.approx(math.log2(child.product(*INNER)), abs=1e-5)
            assert row[after["threads"]] == pytest.approx(math.log2(child.product(*WORKGROUP)), abs=1e-5), (
                schedule,
                opt,
            )
            seen += 1
    assert seen > 5


def test_the_order_of_rows_is_that_of_the_actions_and_says_nothing() -> None:
    space = observer_of("matmul").space
    schedule = space.actions(RAW)[3].schedule
    actions = space.actions(schedule)
    rows = space.action_features(schedule)
    order = random.Random(0).sample(range(len(actions)), len(actions))
    mixed = space.action_features(schedule, [actions[i] for i in order])
    assert np.array_equal(mixed.features, rows.features[[*order, -1]])
    assert np.array_equal(mixed.axes, rows.axes[[*order, -1]])
    report = {(*row, *axes) for row, axes in zip(rows.features.tolist(), rows.axes.tolist(), strict=True)}
    assert len(report) == len(rows), "no two actions look alike"


def test_a_row_says_how_loads_and_stores_move_along_its_axis() -> None:
    """A matmul (64, 96) @ (96, 80): its rows are read by one factor and stored, in steps of 80; its columns by the
    other, in steps of one."""
    space = observer_of("matmul").space
    rows, first = space.action_features(RAW), ACTION_FEATURES.index("loads that move")
    moves = [row[first : first + 5].tolist() for row in rows.features]
    found = {action.label: row for action, row in zip(space.actions(RAW), moves, strict=False)}
    assert found["UPCAST(0,4)"] == [1, 0, 1, 0, pytest.approx(math.log2(81))]
    assert found["UPCAST(1,4)"] == [1, 1, 1, 1, 1]
    assert found["UNROLL(0,4)"] == [2, 1, 0, 0, 1]


def test_an_action_without_a_place_in_kcgs_list_is_read_off_its_schedule() -> None:
    opt = Opt("UPCAST", 0, 6)
    assert opt_of(Action("six", schedule_of([Opt("LOCAL", 1, 2), opt]))) == opt
    table = observer_of("matmul").space.table(RAW)
    rows = action_rows(table, [Opt("NOLOCALS", None, None), Opt("PADTO", 0, 32), Opt("UNROLL", 7, 4)])
    other = KINDS_OF_ACTION.index("other")
    assert rows.features[:2, other].tolist() == [1.0, 1.0] and (rows.axes == -1).all()
    assert rows.axes.shape == (4, AXES_OF_ACTION)
