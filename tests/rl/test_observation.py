"""Actions as rows of features, and what a policy sees of a schedule."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch

from kcg.compat.scheduling import to_tiny
from kcg.errors import ScheduleError
from kcg.kernel.codec import kernel_of
from kcg.kernel.opts.planner import SHARED
from kcg.kernel.opts.space import KernelSpace
from kcg.predictor.features import MOST_AXES
from kcg.rl.observation import ACTION_FEATURES, AXES_OF_ACTION, KINDS_OF_ACTION, VIEWS_KEPT, Viewer, action_rows, opt_of
from kcg.types import RAW, Action, Opt, Region, Schedule
from tests.env_tasks import (
    TARGETS,
    viewer_of,
)
from tests.kernels import empty, kernels_of


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


# Actions as rows


def walked(space: KernelSpace, *, walks: int = 3, seed: int = 0) -> list[Schedule]:
    """Schedules on random walks from raw, and the hand-coded one."""
    rng, found = random.Random(seed), {RAW: None, space.baseline(): None}
    for _ in range(walks):
        schedule: Schedule | None = RAW
        while schedule is not None and len(schedule.opts) < 5:
            found[schedule] = None
            schedule = space.random_step(schedule, rng)
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


@pytest.mark.parametrize("name", KINDS_OF_KERNEL)
@pytest.mark.parametrize("target", TARGETS)
def test_a_row_names_the_axes_that_tinygrad_acts_on_and_what_it_leads_to(name: str, target: str) -> None:
    space = viewer_of(name, target).space
    after = {name: ACTION_FEATURES.index(f"{name} after") for name in ("held", "threads")}
    rest, extent = (ACTION_FEATURES.index(name) for name in ("rest", "extent"))
    seen = 0
    for schedule in walked(space):
        view = Viewer(space).view(schedule)
        state, table = space.state(schedule), space.table(schedule)
        assert len(view.rows) == len(view.steps) + 1
        assert (view.rows.axes[-1] == -1).all() and view.rows.features[-1, ACTION_FEATURES.index("is stop")] == 1
        for step, row, places in zip(view.steps, view.rows.features, view.rows.axes, strict=False):
            opt = opt_of(step)
            assert opt == step.schedule.opts[-1]
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
            assert row[after["held"]] == pytest.approx(math.log2(child.product("UPCAST", "UNROLL")), abs=1e-5)
            assert row[after["threads"]] == pytest.approx(math.log2(child.product(*SHARED)), abs=1e-5), (schedule, opt)
            seen += 1
    assert seen > 5


def test_the_order_of_rows_is_that_of_the_actions_and_says_nothing() -> None:
    space = viewer_of("matmul").space
    schedule = space.actions(RAW)[3].schedule
    opts = [opt_of(step) for step in space.actions(schedule)]
    rows = action_rows(space.table(schedule), opts, depth=1)
    order = random.Random(0).sample(range(len(opts)), len(opts))
    mixed = action_rows(space.table(schedule), [opts[i] for i in order], depth=1)
    assert np.array_equal(mixed.features, rows.features[[*order, -1]])
    assert np.array_equal(mixed.axes, rows.axes[[*order, -1]])
    report = {(*row, *axes) for row, axes in zip(rows.features.tolist(), rows.axes.tolist(), strict=True)}
    assert len(report) == len(rows), "no two actions look alike"


def test_a_row_says_how_loads_and_stores_move_along_its_axis() -> None:
    """A matmul (64, 96) @ (96, 80): its rows are read by one factor and stored, in steps of 80; its columns by the
    other, in steps of one."""
    view = viewer_of("matmul").view(RAW)
    first = ACTION_FEATURES.index("loads that move")
    report = {
        str(opt_of(s)): r[first : first + 5].tolist() for s, r in zip(view.steps, view.rows.features, strict=False)
    }
    assert report["UPCAST(0,4)"] == [1, 0, 1, 0, pytest.approx(math.log2(81))]
    assert report["UPCAST(1,4)"] == [1, 1, 1, 1, 1]
    assert report["UNROLL(0,4)"] == [2, 1, 0, 0, 1]


def test_places_beyond_what_a_graph_holds_are_no_places() -> None:
    """Of a kernel of 26 axes the graph has the first 24."""
    x = empty(*(2,) * 26).permute(*range(25, -1, -1))
    space = KernelSpace(Region((kernel_of(kernels_of((x + 1).contiguous())[-1]),)), TARGETS["CUDA"])
    table = space.table(RAW)
    extents = len(table.extents)
    if extents <= MOST_AXES:
        pytest.fail("the kernel has too few axes to show anything")
    rows = action_rows(table, [Opt("UPCAST", i, 0) for i in range(extents)])
    assert rows.axes[:, 0].tolist() == [*range(MOST_AXES), *[-1] * (extents - MOST_AXES), -1]
    (made_of,) = Viewer(space).view(RAW).graph.n_axes
    assert made_of == MOST_AXES and rows.axes.max() < made_of


def test_an_action_without_a_place_in_kcgs_list_is_read_off_its_schedule() -> None:
    opt = Opt("UPCAST", 0, 6)
    assert opt_of(Action("six", Schedule.from_opts([Opt("LOCAL", 1, 2), opt]))) == opt
    table = viewer_of("matmul").space.table(RAW)
    rows = action_rows(table, [Opt("NOLOCALS", None, None), Opt("PADTO", 0, 32), Opt("UNROLL", 7, 4)])
    other = KINDS_OF_ACTION.index("other")
    assert rows.features[:2, other].tolist() == [1.0, 1.0] and (rows.axes == -1).all()
    assert rows.axes.shape == (4, AXES_OF_ACTION)


# Views


def test_views_are_kept_the_latest_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    viewer = Viewer(viewer_of("sum").space)
    steps = [step.schedule for step in viewer.space.actions(RAW)]
    assert len(steps) > 4 and VIEWS_KEPT > 100
    monkeypatch.setattr("kcg.rl.observation.VIEWS_KEPT", 3)
    found = viewer.views([*steps, RAW, steps[0]])
    assert [view.schedule for view in found] == [*steps, RAW, steps[0]], "more at once than are kept"
    assert found[0] is found[-1]
    assert viewer.view(steps[0]) is found[0] and viewer.view(RAW) is found[-2]
    again = viewer.view(steps[1])
    assert again is not found[1] and np.array_equal(again.graph.axes, found[1].graph.axes)


def test_views_of_several_are_those_of_each() -> None:
    space = viewer_of("softmax.1").space
    schedules = [RAW, space.baseline(), *(step.schedule for step in space.actions(RAW)[:5])]
    for one, schedule in zip(Viewer(space).views(schedules), schedules, strict=True):
        alone = Viewer(space).view(schedule)
        assert one.steps == alone.steps and np.array_equal(one.rows.features, alone.rows.features)
        for name, rows in one.graph.counts().items():
            assert len(getattr(one.graph, name)) == rows.sum()
            assert np.allclose(getattr(one.graph, name), getattr(alone.graph, name), atol=1e-5)


def test_a_schedule_that_does_not_apply_has_no_view() -> None:
    viewer = viewer_of("sum")
    with pytest.raises(ScheduleError):
        viewer.view(Schedule.from_opts([Opt("UPCAST", 77, 4)]))
