"""What a policy observes of a schedule."""

from __future__ import annotations

import numpy as np
import pytest

from kcg.errors import ScheduleError
from kcg.kernel.codec import kernel_of
from kcg.kernel.kinds import describe
from kcg.kernel.opts.schedule import RAW, Opt, schedule_of
from kcg.kernel.opts.space import KernelSpace
from kcg.predictor.features import MOST_AXES
from kcg.rl.observation import OBSERVATIONS_KEPT, Observer
from kcg.types import Action, Region
from tests.env_tasks import TARGETS, observer_of
from tests.kernels import empty, kernels_of


def test_places_beyond_what_a_graph_holds_are_no_places() -> None:
    """Of a kernel of 26 axes the graph has the first 24."""
    x = empty(*(2,) * 26).permute(*range(25, -1, -1))
    space = KernelSpace(Region((kernel_of(kernels_of((x + 1).contiguous())[-1]),)), TARGETS["CUDA"])
    extents = len(space.table(RAW).extents)
    assert extents > MOST_AXES, "the kernel has too few axes to show anything"
    whole = [schedule_of([Opt("UPCAST", i, 0)]) for i in range(extents)]
    actions = [Action(describe(schedule), schedule) for schedule in whole]
    assert space.action_features(RAW, actions).axes[:, 0].tolist() == [*range(extents), -1]
    seen = Observer(space, lambda schedule: actions).observe(RAW)
    assert seen.rows.axes[:, 0].tolist() == [*range(MOST_AXES), *[-1] * (extents - MOST_AXES), -1]
    assert seen.graph.n_axes.tolist() == [MOST_AXES]


def test_observations_are_kept_the_latest_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    observer = Observer(observer_of("sum").space)
    steps = [step.schedule for step in observer.space.actions(RAW)]
    assert len(steps) > 4 and OBSERVATIONS_KEPT > 100
    monkeypatch.setattr("kcg.rl.observation.OBSERVATIONS_KEPT", 3)
    found = observer.observe_all([*steps, RAW, steps[0]])
    assert [observation.schedule for observation in found] == [*steps, RAW, steps[0]], "more at once than are kept"
    assert found[0] is found[-1]
    assert observer.observe(steps[0]) is found[0] and observer.observe(RAW) is found[-2]
    again = observer.observe(steps[1])
    assert again is not found[1] and np.array_equal(again.graph.axes, found[1].graph.axes)


def test_observations_of_several_are_those_of_each() -> None:
    space = observer_of("softmax.1").space
    schedules = [RAW, space.baseline(), *(step.schedule for step in space.actions(RAW)[:5])]
    for one, schedule in zip(Observer(space).observe_all(schedules), schedules, strict=True):
        alone = Observer(space).observe(schedule)
        assert one.steps == alone.steps and np.array_equal(one.rows.features, alone.rows.features)
        for name, rows in one.graph.counts().items():
            assert len(getattr(one.graph, name)) == rows.sum()
            assert np.allclose(getattr(one.graph, name), getattr(alone.graph, name), atol=1e-5)


def test_a_schedule_that_does_not_apply_has_no_observation() -> None:
    observer = observer_of("sum")
    with pytest.raises(ScheduleError):
        observer.observe(schedule_of([Opt("UPCAST", 77, 4)]))
