"""Which kernels a function runs: scheduled where it is lazy, by running it else; what it did to tensors is undone."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from tinygrad import Tensor, TinyJit, nn

from kcg.compat.opened import open_default
from kcg.compat.tiny import Context
from kcg.errors import UsageError
from kcg.workloads.function import Call, CapturedCall, capture_call, scheduled_call, scheduled_tensors

open_default()
X = Tensor(np.arange(64, dtype=np.float32).reshape(8, 8)).realize()


def captured(function: Any, *args: Any, **kwargs: Any) -> CapturedCall:
    return capture_call(Call(function, args, kwargs), device="CPU")


def product(x: Tensor, *, more: Tensor | None = None) -> Tensor:
    return (x @ x + (0 if more is None else more)).relu()


def realising(x: Tensor) -> Tensor:
    return product(x).realize()


def test_a_lazy_function_is_scheduled_and_not_run() -> None:
    found = captured(product, X, more=X)
    assert not found.ran and not found.why_once
    assert [call.calls for call in found.workload.calls] == [1]
    assert found.workload.name == "function:product" and found.workload.preset == "8×8 float, 8×8 float"
    assert "test_capturing_calls.py" in found.workload.sequences[0].calls[0].origin


def test_a_function_that_realises_runs_once() -> None:
    calls: list[Tensor] = []

    def twice(x: Tensor) -> Tensor:
        calls.append(x)
        return realising(realising(x))

    found = captured(twice, X)
    assert found.ran and not found.why_once and len(calls) == 1
    assert [call.calls for call in found.workload.calls] == [2]
    assert found.returned.numpy().shape == (8, 8)


class Layer:
    @TinyJit
    def __call__(self, x: Tensor) -> Tensor:
        return realising(x)

    @TinyJit
    def method(self, x: Tensor) -> Tensor:
        return realising(x)


@pytest.mark.parametrize("function", [TinyJit(realising), Layer(), Layer().method], ids=["function", "object", "bound"])
def test_of_a_tinyjit_it_is_what_it_captures(function: Any) -> None:
    for _ in range(3):  # it has captured by now, and its kernels show nothing of where they came from
        function(X)
    assert captured(function, X).workload.calls == captured(realising, X).workload.calls


def test_a_tinyjit_inside_that_has_captured_is_named_with_what_to_do() -> None:
    inner = TinyJit(realising)
    for _ in range(3):
        inner(X)
    with pytest.raises(UsageError, match=r"no kernel of CPU that can be searched.*\.reset\(\)"):
        captured(lambda x: inner(x), X)


def test_new_weights_and_arguments_are_realised_first_and_are_no_kernels_of_it() -> None:
    layer, x = nn.Linear(8, 4), X + 1
    found = captured(layer, x)
    assert len(found.workload.calls) == 1 and not found.why_once
    assert layer.weight.uop.is_realized and x.uop.is_realized


def test_what_a_lazy_function_does_to_tensors_is_undone() -> None:
    state, drawn = Tensor.zeros(8, 8).contiguous().realize(), Tensor.rand(2).numpy()
    Tensor.manual_seed(7)
    first = Tensor.rand(2).numpy()
    Tensor.manual_seed(7)
    assert not captured(lambda x: state.assign(state + x), X).why_once
    assert captured(lambda x: x + Tensor.rand(8, 8), X).why_once == "it draws random numbers"
    assert not state.numpy().any()
    assert np.array_equal(Tensor.rand(2).numpy(), first) and drawn.shape == (2,)


def test_who_reads_while_it_runs_is_not_called_again() -> None:
    assert captured(lambda x: (x @ x).sum().item(), X).why_once.startswith("it reads values")


def test_a_training_step_runs_once() -> None:
    layer = nn.Linear(8, 1)
    Tensor.realize(*nn.state.get_parameters(layer))
    optimizer = nn.optim.SGD(nn.state.get_parameters(layer), lr=0.01)

    @TinyJit
    def step(x: Tensor) -> Tensor:
        with Context(TRAINING=1):
            optimizer.zero_grad()
            loss = layer(x).square().mean().backward()
            optimizer.step()
        return loss.realize()

    found = captured(step, X)
    assert found.ran and not found.why_once
    assert len(found.workload.calls) >= 3


@pytest.mark.parametrize("function", [lambda: None, lambda: X, lambda: 5])
def test_a_function_that_runs_nothing_is_refused(function: Any) -> None:
    with pytest.raises(UsageError, match="ran no kernel of CPU that can be searched: does it return or realise"):
        captured(function)


def test_without_a_device_weights_count_as_given_and_stay_lazy() -> None:
    layer = nn.Linear(8, 4)
    assert len(scheduled_call(Call(functools.partial(layer, X))).calls) == 1
    assert not layer.weight.uop.is_realized
    lazy = X @ X
    assert len(scheduled_tensors([lazy]).calls) == 1
    assert np.allclose(lazy.numpy(), X.numpy() @ X.numpy())
    for nothing in (lambda: X, lambda: realising(X)):
        with pytest.raises(UsageError, match="returns no lazy tensors"):
            scheduled_call(Call(nothing))
