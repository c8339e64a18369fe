"""Schedules are the same, and found without a walk through all that leads to each store."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tinygrad import Tensor, schedule

from kcg.compat import store_hazards
from kcg.compat.quick_schedules import scheduling_quickly
from kcg.workloads import flux


def _values() -> Tensor:
    return Tensor.arange(16).reshape(4, 4).contiguous().realize()


def _flipped() -> Tensor:
    x = _values()
    return x.assign(x.flip(0) + 1)


def _transposed() -> Tensor:
    x = _values()
    return x.assign(x.T + x.sum())


def _shifted() -> Tensor:
    x = _values()
    x[1:].assign(x[:-1])
    return x


def _added() -> Tensor:
    x = _values()
    return x.assign(x + 1)


def _chained() -> Tensor:
    x, y = _values(), _values()
    y.assign((x + y).contiguous())
    x.assign((y.T @ x).contiguous() + y)
    return x + y


@pytest.mark.parametrize("made", [_flipped, _transposed, _shifted, _added, _chained])
def test_what_is_assigned_of_itself_is_as_without(made: Callable[[], Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a store reads what it writes, tinygrad's own function says what to do."""
    expected, values = _kernels(made(), monkeypatch), made().tolist()
    with scheduling_quickly():
        assert _kernels(made(), monkeypatch) == expected and made().tolist() == values


def _kernels(made: Tensor, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    monkeypatch.setattr(schedule, "schedule_cache", {})
    return [call.src[0].key for call in made.linear_with_vars()[0].src]


@pytest.mark.slow
def test_a_step_of_flux_is_scheduled_alike_and_no_store_looked_at_by_walking(monkeypatch: pytest.MonkeyPatch) -> None:
    def step() -> Tensor:
        model, inputs = flux.build("mini", double_blocks=1, single_blocks=1)
        return flux.step(model, inputs)

    expected, untouched = _kernels(step(), monkeypatch), schedule.get_kernel_graph
    with scheduling_quickly():
        walks = [
            name
            for name in store_hazards.tinygrads_own
            if not monkeypatch.setitem(store_hazards.tinygrads_own, name, _walks)
        ]
        assert len(walks) == 2 and _kernels(step(), monkeypatch) == expected
        with scheduling_quickly():
            pass
        assert schedule.get_kernel_graph is not untouched, "the outer block is open"
    assert schedule.get_kernel_graph is untouched
    assert store_hazards.below.knows == 0, "nothing of the program is kept"


def _walks(*args: object, **named: object) -> None:
    raise AssertionError("it walks")
