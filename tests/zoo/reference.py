"""Layers in NumPy float64, written from their definitions, for the checks of the workload families.

They share no code with kcg. `check(name, forward)` runs a family's `mini` preset on random parameters and inputs and
compares it with `forward(state, config, **inputs)`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from tinygrad import Tensor

from kcg.compat.capture import recording
from kcg.kernel.analysis import find_recompute, operations
from kcg.kernel.codec import ast_of, kernel_of
from kcg.workloads.family import Parameters, array_of, random_inputs

Array = NDArray[np.float64]
State = dict[str, Array]


class _Recorded(Parameters):
    """Parameters that keep their first values, which an optimiser's step replaces."""

    def __init__(self, dtype: str, *, seed: int) -> None:
        super().__init__(dtype, seed=seed)
        self.before: State = {}

    def __call__(self, name: str, *shape: int, **how: Any) -> Tensor:
        found = super().__call__(name, *shape, **how)
        if name not in self.before:
            self.before[name] = array_of(found)
        return found


def realized(*outputs: Tensor) -> None:
    """Realise all outputs together, as one step, and assert that hardly any multiplication is done twice on the way."""
    with recording() as recorder:
        Tensor.realize(*outputs)
    kernels = [(kernel_of(call.ast), call.calls) for call in recorder.calls()]
    asts = [(ast_of(kernel), kernel.id, calls) for kernel, calls in kernels]
    found = [find_recompute(ast, key, calls) for ast, key, calls in asts]
    wasted = sum(row.calls * row.wasted_operations for row in found if row is not None)
    assert kernels and wasted <= 0.05 * sum(calls * operations(ast) for ast, _, calls in asts)


def check(name: str, forward: Callable[..., Any], *, preset: str = "mini", tolerance: float = 1e-4) -> None:
    """Every output of the family within `tolerance` of the largest magnitude of the reference's."""
    family: Any = importlib.import_module(f"kcg.workloads.zoo.{name}")
    config = family.PRESETS[preset]
    p, drawn = _Recorded(config.dtype, seed=1), random_inputs(family.inputs(config), 2)
    given = {key: array_of(t) for key, t in drawn.items()}
    run = family.run(p, config, **drawn)
    state = p.before
    made = run if isinstance(run, tuple) else (run,)
    realized(*made)
    outputs = [array_of(t) for t in made]
    wanted = forward(state, config, **given)
    references = [np.asarray(w, np.float64) for w in (wanted if isinstance(wanted, tuple) else (wanted,))]
    assert len(outputs) == len(references)
    for i, (output, reference) in enumerate(zip(outputs, references, strict=True)):
        assert output.shape == reference.shape, f"output {i}: {output.shape} instead of {reference.shape}"
        assert np.isfinite(reference).all(), f"reference {i} is not finite"
        assert reference.size == 1 or np.ptp(reference) > 0, f"reference {i} is constant and says nothing"
        error = np.abs(output - reference).max() / np.abs(reference).max()
        assert error < tolerance, f"output {i} is off by {error:.2e} of its largest value"


def check_gradients(
    name: str,
    loss: Callable[..., float],
    *,
    gradients: Callable[[Any], list[str]],
    preset: str = "mini",
    tolerance: float = 2e-3,
    only: Collection[str] = (),
) -> None:
    """For a family whose outputs are a loss and gradients of the parameters named by `gradients(config)`, in order.

    Each gradient is compared, along three random directions, with the central difference of `loss` in float64. Where
    `only` names some of them, the others are not computed, which spares most of the compiling.
    """
    family: Any = importlib.import_module(f"kcg.workloads.zoo.{name}")
    config = family.PRESETS[preset]
    p, drawn = Parameters(config.dtype, seed=1), random_inputs(family.inputs(config), 2)
    given = {key: array_of(t) for key, t in drawn.items()}
    run, names = family.run(p, config, **drawn), gradients(config)
    assert len(run) == 1 + len(names)
    if only:
        run = run[0], *(t for t, key in zip(run[1:], names, strict=True) if key in only)
        names = [key for key in names if key in only]
        assert len(names) == len(only)
    realized(*run)
    got_loss, *got = (array_of(t) for t in run)
    state = p.arrays()
    wanted = loss(state, config, **given)
    assert abs(float(got_loss.sum()) - wanted) < tolerance * abs(wanted)
    rng, step = np.random.default_rng(3), 1e-7  # so short that hardly ever a ReLU changes sides within it
    for key, gradient in zip(names, got, strict=True):
        assert gradient.shape == state[key].shape
        for _ in range(3):
            direction = rng.normal(size=state[key].shape)
            ends = [loss({**state, key: state[key] + sign * step * direction}, config, **given) for sign in (1, -1)]
            slope = (ends[0] - ends[1]) / (2 * step)
            scale = np.linalg.norm(gradient) * np.linalg.norm(direction) / np.sqrt(direction.size)
            assert abs(float((gradient * direction).sum()) - slope) < tolerance * scale, key


def linear(state: State, name: str, x: Array) -> Array:
    out: Array = np.einsum("...i,oi->...o", x, state[f"{name}.weight"], optimize=True)
    return out + state[f"{name}.bias"] if f"{name}.bias" in state else out


def conv2d(
    x: Array, weight: Array, bias: Array | None = None, *, stride: int = 1, padding: int = 0, groups: int = 1
) -> Array:
    """x (n, c, h, w), weight (o, c/groups, kh, kw)."""
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    windows = sliding_window_view(x, weight.shape[2:], axis=(2, 3))[:, :, ::stride, ::stride]
    n, c, h, w, kh, kw = windows.shape
    split = windows.reshape(n, groups, c // groups, h, w, kh, kw)
    kernels = weight.reshape(groups, -1, *weight.shape[1:])
    out: Array = np.einsum("ngchwij,gocij->ngohw", split, kernels, optimize=True).reshape(n, -1, h, w)
    return out if bias is None else out + bias.reshape(1, -1, 1, 1)


def layer_norm(state: State, name: str, x: Array, *, epsilon: float = 1e-5) -> Array:
    out: Array = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon)
    return out * state[f"{name}.weight"] + state[f"{name}.bias"]


def rms_norm(state: State, name: str, x: Array, *, epsilon: float = 1e-6) -> Array:
    out: Array = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + epsilon) * state[f"{name}.weight"]
    return out


def group_norm(state: State, name: str, x: Array, groups: int, *, epsilon: float = 1e-5) -> Array:
    grouped = x.reshape(x.shape[0], groups, -1)
    normed = (grouped - grouped.mean(-1, keepdims=True)) / np.sqrt(grouped.var(-1, keepdims=True) + epsilon)
    shape = (1, -1, *([1] * (x.ndim - 2)))
    out: Array = normed.reshape(x.shape) * state[f"{name}.weight"].reshape(shape) + state[f"{name}.bias"].reshape(shape)
    return out


def batch_norm(state: State, name: str, x: Array, *, epsilon: float = 1e-5) -> Array:
    weight, bias, mean, variance = (
        state[f"{name}.{key}"].reshape(1, -1, 1, 1) for key in ("weight", "bias", "running_mean", "running_var")
    )
    out: Array = (x - mean) / np.sqrt(variance + epsilon) * weight + bias
    return out


def softmax(x: Array) -> Array:
    exponentials = np.exp(x - x.max(-1, keepdims=True))
    out: Array = exponentials / exponentials.sum(-1, keepdims=True)
    return out


def attention(q: Array, k: Array, v: Array, *, causal: bool = False, bias: Array | float = 0.0) -> Array:
    """Of (batch, heads, tokens, d)."""
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1]) + bias
    if causal:
        rows, columns = scores.shape[-2:]
        hidden = np.arange(columns)[None] > np.arange(rows)[:, None] + columns - rows
        scores = np.where(hidden, -np.inf, scores)
    return softmax(scores) @ v


def heads(x: Array, count: int) -> Array:
    """(batch, tokens, width) to (batch, count, tokens, width/count)."""
    return x.reshape(*x.shape[:2], count, -1).transpose(0, 2, 1, 3)


def joined(x: Array) -> Array:
    """The inverse of `heads`."""
    return x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1)


def sigmoid(x: Array) -> Array:
    out: Array = 1 / (1 + np.exp(-x))
    return out


def silu(x: Array) -> Array:
    return x * sigmoid(x)


def gelu_tanh(x: Array) -> Array:
    """tinygrad's `gelu`."""
    out: Array = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return out


def relu(x: Array) -> Array:
    return np.maximum(x, 0)


def cross_entropy(logits: Array, labels: Array) -> float:
    """Mean over all rows; `labels` are integers as floats."""
    flat, index = logits.reshape(-1, logits.shape[-1]), labels.reshape(-1).astype(int)
    logs = flat - flat.max(-1, keepdims=True)
    logs = logs - np.log(np.exp(logs).sum(-1, keepdims=True))
    return float(-logs[np.arange(len(index)), index].mean())
