"""Single operators of the zoo against NumPy: forward from the definition, backward from the analytic gradient."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.slow import first
from tests.zoo.reference import Array, State, check, gelu_tanh, sigmoid, silu
from tests.zoo.reference import softmax as probabilities


def rope(state: State, config: Any, **given: Array) -> tuple[Array, ...]:
    out = []
    for i, s in enumerate(config.shapes):
        pairs = (s.rotary or s.width) // 2
        if config.cached:
            cos, sin = state[f"table{i}"]
        else:
            angles = np.outer(s.start + np.arange(s.tokens), s.theta ** (-np.arange(pairs) / pairs))
            cos, sin = np.cos(angles), np.sin(angles)
        turn = cos + 1j * sin
        for names, by in ((("q", "k"), turn), (("q_gradient", "k_gradient"), turn.conj())):
            for name in names:
                x = given[f"{name}{i}"]
                heads_second = config.interleaved or not name.endswith("gradient")
                x = x.transpose(0, 2, 1, 3) if heads_second else x
                first, second = (
                    (slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2))
                    if config.interleaved
                    else (slice(0, pairs), slice(pairs, 2 * pairs))
                )
                turned = (x[..., first] + 1j * x[..., second]) * by
                y = x.copy()
                y[..., first], y[..., second] = turned.real, turned.imag
                heads_second = config.interleaved or name.endswith("gradient")
                out.append(y.transpose(0, 2, 1, 3) if heads_second else y)
    return tuple(out)


def norms(state: State, config: Any, **given: Array) -> tuple[Array, ...]:
    out: list[Array] = []
    for name in ("layer", "rms", "group", "batch"):
        for i, shape in enumerate(getattr(config, name)):
            x, upstream = given[f"{name}{i}"], given[f"{name}_gradient{i}"]
            place = np.indices(shape)
            channel = place[1] if name in ("group", "batch") else place[-1]
            group = {
                "layer": np.ravel_multi_index(tuple(place[:-1]), shape[:-1]),
                "rms": np.ravel_multi_index(tuple(place[:-1]), shape[:-1]),
                "group": place[0] * config.groups + place[1] * config.groups // shape[1],
                "batch": channel,
            }[name]
            centred = x if name == "rms" else x - _mean(x, group)
            root = np.sqrt(_mean(centred**2, group) + 1e-5)
            normed, scale = centred / root, state[f"{name}{i}.weight"][channel]
            # the Jacobian of dividing by the root, then that of centring
            inner = (upstream * scale - normed * _mean(upstream * scale * normed, group)) / root
            shift = 0 if name == "rms" else state[f"{name}{i}.bias"][channel]
            out += [normed * scale + shift, inner if name == "rms" else inner - _mean(inner, group)]
            out.append(np.bincount(channel.ravel(), (upstream * normed).ravel()))
            if name != "rms":
                out.append(np.bincount(channel.ravel(), upstream.ravel()))
    return tuple(out)


def _mean(x: Array, group: Any) -> Array:
    """The mean of the elements that share a group's number, at each of them."""
    means: Array = np.bincount(group.ravel(), x.ravel()) / np.bincount(group.ravel())
    return means[group]


def softmax(state: State, config: Any, **given: Array) -> tuple[Array, ...]:
    out: list[Array] = []
    for i, (kind, shape) in enumerate(config.cases):
        x, upstream, slope = given[f"scores{i}"], given[f"gradient{i}"], 1.0
        if kind == "causal":
            rows, columns = np.indices(shape)[-2:]
            x = np.where(columns - rows > shape[-1] - shape[-2], -np.inf, x)
        elif kind == "masked":
            seen = given[f"seen{i}"].reshape(shape[0], *([1] * (len(shape) - 2)), shape[-1])
            x = np.where(seen > 0, x, -np.inf)
        elif kind == "warm":
            x, slope = np.tanh(x / 30) * 30 / 0.7, (1 - np.tanh(x / 30) ** 2) / 0.7
        y = probabilities(x)
        if kind == "log":
            out += [np.log(y), upstream - y * upstream.sum(-1, keepdims=True)]
        else:  # the Jacobian diag(y) - y yᵀ
            out += [y, slope * (y * upstream - y * np.einsum("...i,...i", y, upstream)[..., None])]
    return tuple(out)


def cross_entropy(state: State, config: Any, **given: Array) -> tuple[Array, ...]:
    out: list[Any] = []
    for i, (kind, rows, classes) in enumerate(config.cases):
        x, target = given[f"logits{i}"], given[f"target{i}"]
        if kind == "binary":
            out += [np.mean(np.log1p(np.exp(-np.where(target > 0, x, -x)))), (sigmoid(x) - target) / x.size]
            continue
        if kind == "distill":
            teacher, student = probabilities(target / 2), probabilities(x / 2)
            out += [4 * (teacher * np.log(teacher / student)).sum() / rows, 2 * (student - teacher) / rows]
            continue
        found, weight = probabilities(x), np.full(rows, 1 / rows)
        wanted = probabilities(target) if kind == "soft" else np.eye(classes)[target.astype(int)]
        penalty = np.zeros(rows)
        if kind == "sparse":
            wanted = 0.9 * wanted + 0.1 / classes
        elif kind == "ignoring":
            weight = (target != 0) / (target != 0).sum()
            penalty = np.log(np.exp(x).sum(-1))
        loss = -(wanted * np.log(found)).sum(-1) + 1e-4 * penalty**2
        slope = found - wanted + 2e-4 * penalty[:, None] * found
        out += [(loss * weight).sum(), slope * weight[:, None]]
    return tuple(out)


def _erf(x: Array) -> Array:
    out: Array = np.vectorize(math.erf)(x)
    return out


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": gelu_tanh,
    "quick_gelu": lambda x: x * sigmoid(1.702 * x),
    "gelu_erf": lambda x: x * (1 + _erf(x / np.sqrt(2))) / 2,
    "silu": silu,
    "mish": lambda x: x * np.tanh(np.log1p(np.exp(x))),
    "squared_relu": lambda x: np.maximum(x, 0) ** 2,
    "hardswish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "elu": lambda x: np.where(x > 0, x, np.exp(x) - 1),
    "leaky_relu": lambda x: np.where(x > 0, x, 0.1 * x),
    "softplus": lambda x: np.log1p(np.exp(x)),
    "glu": sigmoid,
    "geglu": gelu_tanh,
    "swiglu": silu,
}


def activations(state: State, config: Any, **given: Array) -> tuple[Array, ...]:
    out: list[Array] = []
    for i, (name, shape) in enumerate(config.cases):
        x, other = given[f"x{i}"], given.get(f"other{i}", np.zeros(1))
        base = "_".join(part for part in name.split("_") if part not in ("bias", "scale", "backward", "residual"))
        f = ACTIVATIONS[base]
        if name.startswith("bias"):
            x = x + state[f"bias{i}"]
        elif name.startswith("scale"):
            x = x * state[f"scale{i}"][:, None, None] + state[f"shift{i}"][:, None, None]
        if x.shape == shape:
            out.append(other * _slope(f, x) if name.endswith("backward") else f(x) + other)
            continue
        gate, value = np.split(x, 2, axis=-1)
        both = np.concatenate([other * value * _slope(f, gate), other * f(gate)], axis=-1)
        out.append(both if name.endswith("backward") else f(gate) * value)
    return tuple(out)


def _slope(f: Callable[[Array], Array], x: Array) -> Array:
    """The derivative of a function of single numbers, as a central difference."""
    return (f(x + 1e-6) - f(x - 1e-6)) / 2e-6


def optimizers(state: State, config: Any, **given: Array) -> tuple[Array, ...]:
    out: list[Array] = []
    rate, power1, power2 = state["rate"], np.zeros(1), np.zeros(1)
    if "beta1_power" in state:
        power1, power2 = state["beta1_power"] * 0.9, state["beta2_power"] * 0.95
        out += [power1, power2]
    for i, (kind, shapes) in enumerate(config.steps):
        if kind == "clip":
            gradients = [state[f"{i}.{j}.gradient"] for j in range(len(shapes))]
            norm = np.linalg.norm(np.concatenate([g.ravel() for g in gradients]))
            out += [g * min(1, 1 / norm) for g in gradients]
            continue
        for j in range(len(shapes)):
            name = f"{i}.{j}"
            w = state[f"{name}.weights"]
            if kind == "average":
                out.append(state[f"{name}.average"] + 0.001 * (w - state[f"{name}.average"]))
                continue
            g, first = given[f"gradient{i}_{j}"], state[f"{name}.first"]
            if kind in ("sgd", "nesterov", "muon"):
                g = g if kind == "muon" else g + 0.1 * w
                first = first * 0.9 + g
                step = first if kind == "sgd" else g + 0.9 * first
                if kind == "muon":
                    step = _orthogonal(step) + 0.1 * w
                out += [first, w - rate * step]
                continue
            first, second = 0.9 * first + 0.1 * g, 0.95 * state[f"{name}.second"] + 0.05 * g**2
            step = first / (1 - power1) / (np.sqrt(second / (1 - power2)) + 1e-8)
            out += [first, second]
            if kind == "master":
                w = state[f"{name}.master"]
            if kind != "adam":
                step = step + 0.1 * w
            if kind == "lamb":
                step = step * np.linalg.norm(w) / np.linalg.norm(step)
            out += [w - rate * step] * (2 if kind == "master" else 1)
    return tuple(out)


def _orthogonal(matrix: Array) -> Array:
    """Two Newton-Schulz iterations: an odd polynomial of a matrix is that of its singular values."""
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    values = values / np.linalg.norm(values)
    for _ in range(2):
        values = 3.4445 * values - 4.775 * values**3 + 2.0315 * values**5
    out: Array = left * values @ right
    return out


def quantize(state: State, config: Any, **given: Array) -> tuple[Array, ...]:
    out: list[Any] = []
    for i, (kind, _) in enumerate(config.cases):
        if kind == "argmax":
            out.append(given[f"x{i}"].argmax(-1))
            continue
        if kind == "quantise":
            largest = np.abs(given[f"x{i}"]).max(-1, keepdims=True)
            out += [np.rint(given[f"x{i}"] * 127 / largest), largest / 127]
            continue
        weight, scale = given[f"weight{i}"], given[f"scale{i}"]
        if kind == "matmul_nibbles":
            weight = (np.concatenate([weight % 16, weight // 16], axis=-1) - 8).reshape(len(weight), -1)
        dense = weight * np.repeat(scale, weight.shape[1] // scale.shape[1], axis=1)
        if kind.startswith("dequantise"):
            out.append(dense)
        else:
            out.append(given[f"x{i}"] * given.get(f"row_scale{i}", 1.0) @ dense.T)
    return tuple(out)


@pytest.mark.parametrize("family", first(2, [rope, norms, softmax, cross_entropy, activations, optimizers, quantize]))
@pytest.mark.parametrize(("preset", "tolerance"), [("mini", 1e-4), ("mini-f16", 2e-2)])
def test_operators(family: Any, preset: str, tolerance: float) -> None:
    check(family.__name__, family, preset=preset, tolerance=tolerance)
