"""Functions with bound variables, and with memory of their own such as a cache of keys and values: they are called
again and compared, their memory stays as it was, and what was found is for every value."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tinygrad import Tensor, TinyJit, Variable, nn

import kcg
from kcg import autotuning, tuning
from kcg.autotuning import facts_of, key_of
from kcg.compat.calling import kind_of
from kcg.compat.capture import is_hooked
from kcg.compat.opened import open_default
from kcg.compat.tiny import Context
from kcg.judge.whole_function import Function
from kcg.kernel.opts.schedule import Opt, schedule_of
from kcg.kernel.opts.space import KernelSpace
from kcg.kernel.symbolic import bounds_of, seen_by
from kcg.types import ModelCheck, RegionResult, Result, Schedule
from kcg.workloads.function import Call, capture_call
from tests.sample_result import sample_result
from tests.slow import first, some
from tests.small_result import finalist, unlike_baseline

open_default()
RNG = np.random.default_rng(0)
W = Tensor(RNG.normal(size=(24, 32)).astype(np.float32)).realize()
X = Tensor(RNG.normal(size=(24, 8)).astype(np.float32)).realize()
N, M = Variable("n", 1, 32).bind(17), Variable("m", 0, 7).bind(3)


@pytest.fixture(autouse=True)
def unused() -> Iterator[None]:
    yield
    for one in list(tuning._installed):
        one.remove()
    assert not is_hooked()


def columns(w: Tensor, n: Any) -> Tensor:
    return (w[:, :n] * 2).sum(axis=1)


class Decoder:
    """As a step of decoding: keys are kept, and those up to the position are looked at."""

    def __init__(self, *, lazy: bool = False) -> None:
        self.table = Tensor(RNG.normal(size=(5, 16)).astype(np.float32)).realize()
        self.keys = Tensor.zeros(32, 16).contiguous().realize()
        self._lazy = lazy

    def step(self, token: Tensor, position: Any) -> Tensor:
        row = self.table[token].reshape(1, 16) * 0.5
        stored = self.keys[position : position + 1].assign(row)
        if not self._lazy:
            stored.realize()
        return (self.keys[: position + 1] * row).exp().sum(axis=0)

    def stored_beside(self, token: Tensor, position: Any) -> Tensor:
        """As tinygrad's own model does: no tensor but what is returned says that something is stored."""
        row = self.table[token].reshape(1, 16) * 0.5
        stored = self.keys[position : position + 1].uop.store(row.uop)
        keys = Tensor(self.keys.uop.after(stored))
        return (keys[: position + 1] * row).exp().sum(axis=0)


def result_of(call: Call, other: Callable[[KernelSpace], Schedule] = unlike_baseline) -> Result:
    """A result with another schedule of every kernel of a call than tinygrad's own."""
    target, toolchain = facts_of(tuning.device_here())
    rows = []
    for found in capture_call(call, device="CPU").workload.calls:
        space = KernelSpace(found.region, target)
        if space.actions(space.start()):
            base, chosen = finalist(space, space.baseline()), replace(finalist(space, other(space)), cold_s=1e-6)
            rows.append(RegionResult(found.region, found.calls, base, chosen, 1, "improved", found.variables))
    made = replace(sample_result(), target=target, toolchain=toolchain, regions=tuple(rows), recomputes=())
    return replace(made, expectations=(), model_check=None, planning=None, complete=True)


def checked(function: Any, *args: Any, **kwargs: Any) -> ModelCheck:
    call = Call(function, args, kwargs)
    (check,) = Function(call).checks([result_of(call)], timeout_s=600.0)
    return check


def nested(values: dict[str, Any]) -> list[Tensor]:
    return [columns(values["w"], values["ns"][0])]


TOKEN = Tensor([2]).realize()
CALLS: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "positional": (columns, (W, N), {}),
    "keyword": (columns, (W,), {"n": N}),
    "nested": (nested, ({"w": W, "ns": (N, 3)},), {}),
    "several": (lambda w, x, n, m: columns(w, n) + columns(x, m + 1), (W, X, N, M), {}),
    "an expression": (lambda w, n: columns(w, n), (W, M + 2), {}),
    "a shape that is returned": (lambda w, n: w[:, :n] * 2 + 1, (W, N), {}),
    "no tensor": (lambda n: columns(W, n), (N,), {}),
    "a TinyJit": (TinyJit(lambda w, n: columns(w, n).realize()), (W, N), {}),
    "a method": (Decoder().step, (TOKEN, N), {}),
    "a method that is lazy": (Decoder(lazy=True).step, (TOKEN,), {"position": N}),
    "stored beside": (Decoder().stored_beside, (TOKEN, N), {}),
}


@pytest.mark.parametrize("name", some(CALLS, {"a TinyJit"}))
def test_it_is_called_again_and_gets_a_verdict(name: str) -> None:
    function, args, kwargs = CALLS[name]
    check = checked(function, *args, **kwargs)
    assert check.passed is True, check.reason


@pytest.mark.parametrize("lazy", first(1, [False, True]))
def test_what_it_keeps_is_afterwards_what_one_call_left(lazy: bool) -> None:
    decoder = Decoder(lazy=lazy)
    step = decoder.step
    expected = np.zeros((32, 16), np.float32)
    call = Call(step, (TOKEN, N))
    result = result_of(call)  # captures it: the one that realises has run once by then
    if not lazy:
        expected[17] = decoder.table.numpy()[2] * 0.5
    assert np.array_equal(decoder.keys.numpy(), expected)
    (check,) = Function(call).checks([result], timeout_s=600.0)
    assert check.passed is True and "1 tensor that it changes" in check.compared
    assert np.array_equal(decoder.keys.numpy(), expected), "neither another position nor other numbers"
    assert np.allclose(step(TOKEN, N).numpy(), step(TOKEN, N).numpy())


@pytest.mark.slow
def test_a_step_that_goes_on_from_its_own_memory_is_compared_from_the_same_start() -> None:
    state = Tensor.ones(8, 8).contiguous().realize()

    def grow(x: Tensor) -> Tensor:
        return (x.sum() + state.assign(state * 2 + 1).realize().sum(axis=0)).realize()

    check = checked(grow, X)
    assert check.passed is True and np.array_equal(state.numpy(), np.full((8, 8), 3.0, np.float32))


@pytest.mark.slow
def test_a_training_step_is_compared_and_trains_once() -> None:
    layer, x = nn.Linear(8, 4), X
    Tensor.realize(*nn.state.get_parameters(layer))
    optimizer = nn.optim.SGD(nn.state.get_parameters(layer), lr=0.01)

    def step(x: Tensor) -> Tensor:
        with Context(TRAINING=1):
            optimizer.zero_grad()
            loss = layer(x).square().mean().backward()
            optimizer.step()
        return loss.realize()

    call = Call(step, (x,))
    result = result_of(call)
    once = layer.weight.numpy()
    (check,) = Function(call).checks([result], timeout_s=600.0)
    assert check.passed is True, check.reason
    assert np.array_equal(layer.weight.numpy(), once)


def test_a_wrong_kernel_that_fills_the_cache_fails_the_check() -> None:
    """The maximum over 16 that writes nothing (tests/tuning/test_tuning.py), of which only the cache knows."""
    cache, x = Tensor.zeros(32, 48).contiguous().realize(), Tensor(RNG.normal(size=(16, 48)).astype(np.float32))
    x.realize()
    apart = x.contiguous().realize()

    def step(x: Tensor, position: Any) -> Tensor:
        cache[position : position + 1].assign(apart.max(axis=0).contiguous().reshape(1, 48)).realize()
        return (x * 2).realize()

    call = Call(step, (x, N))
    (large,) = [c for c in capture_call(call, device="CPU").workload.calls if "MAX" in c.region.kernel.ast_json]
    wrong = schedule_of([Opt("PADTO", 1, 32), Opt("UNROLL", 0, 32)])
    space = KernelSpace(large.region, facts_of(tuning.device_here())[0])
    row = RegionResult(
        large.region, 1, finalist(space, space.baseline()), finalist(space, wrong), 1, "improved", large.variables
    )
    (check,) = Function(call).checks([replace(result_of(call), regions=(row,))], timeout_s=600.0)
    assert check.passed is False and "differs" in check.reason


def test_kernels_of_a_function_are_judged_at_the_smallest_and_the_largest_value() -> None:
    """It is called with others later."""
    (call,) = capture_call(Call(columns, (W, N)), device="CPU").workload.calls
    low, high = bounds_of(call)
    assert (low.variables, high.variables) == ((("n", 1),), (("n", 32),))
    assert high.share == pytest.approx(16 / 31) and call.calls == 1
    assert dict(seen_by(call))[(("n", 17),)] == 1


def test_what_is_found_with_one_value_is_right_with_every_other(tmp_path: Path) -> None:
    with tuning.Tuned(result_of(Call(columns, (W, N))), tmp_path / "RESULT.json").apply():
        for n in range(1, 33):
            expected = W.numpy()[:, :n].sum(axis=1) * 2
            assert np.allclose(columns(W, Variable("n", 1, 32).bind(n)).numpy(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_another_value_of_the_same_variable_is_no_other_kind_of_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def tuned_at_once(call: Call, captured: Any, settings: Any, shown: Any, **rest: Any) -> tuning.Tuned:
        calls.append(call.name)
        return tuning.Tuned(result_of(call), settings.folder / "RESULT.json")

    monkeypatch.setattr(autotuning, "optimized", tuned_at_once)
    tuned = kcg.autotuned(cache=tmp_path, quiet=True)(columns)
    for n in (3, 17, 32, 1):
        expected = W.numpy()[:, :n].sum(axis=1) * 2
        assert np.allclose(tuned(W, Variable("n", 1, 32).bind(n)).numpy(), expected, rtol=1e-4, atol=1e-5)
    assert len(calls) == 1
    tuned(W, Variable("n", 1, 16).bind(3))
    tuned(W, Variable("other", 1, 32).bind(3))
    assert len(calls) == 3, "another range or another name are other kernels"


def test_a_result_is_kept_by_the_variables_and_not_by_their_values() -> None:
    facts = facts_of(tuning.device_here())
    workloads = [
        capture_call(Call(columns, (W, Variable("n", 1, most).bind(n))), device="CPU").workload
        for most, n in ((32, 3), (32, 32), (16, 3))
    ]
    first, same, other = (key_of(workload, *facts) for workload in workloads)
    assert first == same != other
    assert kind_of([N]) == kind_of([Variable("n", 1, 32).bind(2)]) != kind_of([Variable("n", 1, 33).bind(2)])
    assert kind_of(W[:, :N]) != kind_of(W), "a shape that varies"
