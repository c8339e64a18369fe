"""Training steps of the zoo: losses in NumPy, gradients against their finite differences."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tinygrad import Tensor

from kcg.workloads.family import Parameters, array_of, random_inputs
from kcg.workloads.zoo import unet_train
from tests.zoo.reference import (
    Array,
    State,
    attention,
    check_gradients,
    conv2d,
    cross_entropy,
    gelu_tanh,
    group_norm,
    heads,
    joined,
    layer_norm,
    linear,
    relu,
    rms_norm,
    sigmoid,
    silu,
)


def convolved(state: State, name: str, x: Array, *, stride: int = 1, padding: int | None = None) -> Array:
    weight = state[f"{name}.weight"]
    padding = weight.shape[2] // 2 if padding is None else padding
    return conv2d(x, weight, state.get(f"{name}.bias"), stride=stride, padding=padding)


def batch_normed(state: State, name: str, x: Array) -> Array:
    weight, bias = (state[f"{name}.{kind}"].reshape(1, -1, 1, 1) for kind in ("weight", "bias"))
    mean, variance = x.mean((0, 2, 3), keepdims=True), x.var((0, 2, 3), keepdims=True)
    out: Array = (x - mean) / np.sqrt(variance + 1e-5) * weight + bias
    return out


def max_pooled(x: Array, size: int, stride: int, padding: int) -> Array:
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)), constant_values=-np.inf)
    windows = np.lib.stride_tricks.sliding_window_view(x, (size, size), axis=(2, 3))
    out: Array = windows[:, :, ::stride, ::stride].max((-1, -2))
    return out


def transposed(state: State, name: str, x: Array) -> Array:
    """A transposed convolution of stride 2 with padding 1: every value spreads its kernel."""
    weight, window = state[f"{name}.weight"], state[f"{name}.weight"].shape[2]
    n, _, h, w = x.shape
    out = np.zeros((n, weight.shape[1], 2 * h + window - 2, 2 * w + window - 2))
    for i in range(window):
        for j in range(window):
            spread = np.einsum("nchw,co->nohw", x, weight[:, :, i, j])
            out[:, :, i : i + 2 * h : 2, j : j + 2 * w : 2] += spread
    return out[:, :, 1:-1, 1:-1] + state[f"{name}.bias"].reshape(1, -1, 1, 1)


def mlp_train(state: State, config: Any, *, pictures: Array, labels: Array) -> float:
    x = pictures
    for i in range(len(config.hidden)):
        x = relu(linear(state, f"l{i}", x))
    return cross_entropy(linear(state, f"l{len(config.hidden)}", x), labels)


def convnet_train(state: State, config: Any, *, pictures: Array, labels: Array) -> float:
    x = pictures
    for i in range(2):
        for kind in ("a", "b"):
            x = relu(convolved(state, f"{kind}{i}", x, padding=None if config.padded else 0))
        x = max_pooled(batch_normed(state, f"norm{i}", x), 2, 2, 0)
    return cross_entropy(linear(state, "out", x.reshape(len(x), -1)), labels)


def resnet_train(state: State, config: Any, *, pictures: Array, labels: Array) -> float:
    def conv(name: str, x: Array, stride: int = 1) -> Array:
        return batch_normed(state, f"{name}_norm", convolved(state, name, x, stride=stride))

    x = max_pooled(relu(conv("stem", pictures, 2)), 3, 2, 1)
    for i, stride in enumerate(config.strides):
        inner = relu(conv(f"b{i}.conv", relu(conv(f"b{i}.reduce", x)), stride))
        short = conv(f"b{i}.short", x, stride) if f"b{i}.short.weight" in state else x
        x = relu(conv(f"b{i}.grow", inner) + short)
    return cross_entropy(linear(state, "out", x.mean((2, 3))), labels)


def gpt2_train(state: State, config: Any, *, tokens: Array, following: Array) -> float:
    x = state["embedding"][tokens.astype(int)] + state["positions"]
    for i in range(config.layers):
        qkv = linear(state, f"h.{i}.c_attn", layer_norm(state, f"h.{i}.ln_1", x))
        q, k, v = (heads(part, config.heads) for part in np.split(qkv, 3, axis=-1))
        x = x + linear(state, f"h.{i}.c_proj", joined(attention(q, k, v, causal=True)))
        between = gelu_tanh(linear(state, f"h.{i}.c_fc", layer_norm(state, f"h.{i}.ln_2", x)))
        x = x + linear(state, f"h.{i}.mlp_proj", between)
    return cross_entropy(layer_norm(state, "ln_f", x) @ state["embedding"].T / np.sqrt(config.width), following)


def vit_train(state: State, config: Any, *, pictures: Array, labels: Array) -> float:
    patches = convolved(state, "patches", pictures, stride=config.patch, padding=0)
    x = patches.reshape(*patches.shape[:2], -1).transpose(0, 2, 1)
    token = np.broadcast_to(state["class_token"], (config.batch, 1, config.width))
    x = np.concatenate([token, x], axis=1) + state["positions"]
    for i in range(config.layers):
        qkv = linear(state, f"h.{i}.qkv", layer_norm(state, f"h.{i}.norm1", x))
        q, k, v = (heads(part, config.heads) for part in np.split(qkv, 3, axis=-1))
        x = x + linear(state, f"h.{i}.proj", joined(attention(q, k, v)))
        between = gelu_tanh(linear(state, f"h.{i}.fc1", layer_norm(state, f"h.{i}.norm2", x)))
        x = x + linear(state, f"h.{i}.fc2", between)
    return cross_entropy(linear(state, "head", layer_norm(state, "norm", x)[:, 0]), labels)


def rotated(x: Array) -> Array:
    """Pairs (i, i + d/2) as complex numbers, turned by position times a frequency."""
    half = x.shape[-1] // 2
    turns = np.arange(x.shape[-2])[:, None] * 10000.0 ** (-np.arange(half) / half)
    turned = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * turns)
    out: Array = np.concatenate([turned.real, turned.imag], axis=-1)
    return out


def llama_train(state: State, config: Any, *, tokens: Array, following: Array) -> float:
    x = state["embedding"][tokens.astype(int)]
    for i in range(config.layers):
        normed = rms_norm(state, f"h.{i}.attention_norm", x)
        q = rotated(heads(linear(state, f"h.{i}.wq", normed), config.heads))
        k = rotated(heads(linear(state, f"h.{i}.wk", normed), config.shared))
        v = heads(linear(state, f"h.{i}.wv", normed), config.shared)
        k, v = (np.repeat(part, config.heads // config.shared, axis=1) for part in (k, v))
        x = x + linear(state, f"h.{i}.wo", joined(attention(q, k, v, causal=True)))
        normed = rms_norm(state, f"h.{i}.ffn_norm", x)
        gated = silu(linear(state, f"h.{i}.w1", normed)) * linear(state, f"h.{i}.w3", normed)
        x = x + linear(state, f"h.{i}.w2", gated)
    return cross_entropy(linear(state, "output", rms_norm(state, "norm", x)), following)


def lstm_train(state: State, config: Any, *, words: Array, following: Array) -> float:
    x = state["embedding"][words.astype(int)]
    for layer in range(config.layers):
        hidden = cell = np.zeros((config.batch, config.width))
        outputs = []
        for step in range(config.steps):
            both = linear(state, f"l{layer}.input", x[:, step]) + linear(state, f"l{layer}.hidden", hidden)
            admit, forget, update, out = np.split(both, 4, axis=1)
            cell = sigmoid(forget) * cell + sigmoid(admit) * np.tanh(update)
            hidden = sigmoid(out) * np.tanh(cell)
            outputs.append(hidden)
        x = np.stack(outputs, axis=1)
    return cross_entropy(linear(state, "out", x), following)


def lora_train(state: State, config: Any, *, tokens: Array, following: Array) -> float:
    def adapted(name: str, x: Array) -> Array:
        change = state[f"{name}.lora_b"] @ state[f"{name}.lora_a"] * config.alpha / config.rank
        out: Array = x @ (state[f"{name}.weight"] + change).T
        return out

    x = state["embedding"][tokens.astype(int)]
    for i in range(config.layers):
        normed = rms_norm(state, f"h.{i}.norm1", x)
        made = (adapted(f"h.{i}.q", normed), linear(state, f"h.{i}.k", normed), adapted(f"h.{i}.v", normed))
        q, k, v = (heads(part, config.heads) for part in made)
        x = x + linear(state, f"h.{i}.o", joined(attention(q, k, v, causal=True)))
        x = x + adapted(f"h.{i}.down", gelu_tanh(adapted(f"h.{i}.up", rms_norm(state, f"h.{i}.norm2", x))))
    return cross_entropy(linear(state, "output", rms_norm(state, "norm", x)), following)


def autoencoder_train(state: State, config: Any, *, pictures: Array, noise: Array) -> float:
    x, stages = pictures, len(config.widths)
    for i in range(stages):
        x = relu(convolved(state, f"down{i}", x, stride=2, padding=1))
    mean, log_variance = np.split(linear(state, "latent", x.reshape(len(x), -1)), 2, axis=1)
    latent = mean + np.exp(log_variance / 2) * noise
    x = relu(linear(state, "first", latent)).reshape(x.shape)
    for i in reversed(range(stages)):
        x = transposed(state, f"up{i}", x)
        x = relu(x) if i else x
    divergence = (mean**2 + np.exp(log_variance) - log_variance - 1).sum() / 2
    return float((np.square(x - pictures).sum() + config.beta * divergence) / config.batch)


def unet_train_loss(state: State, config: Any, *, pictures: Array, noise: Array, times: Array) -> float:
    def normed(name: str, x: Array) -> Array:
        return group_norm(state, name, x, config.groups)

    def residual(name: str, x: Array) -> Array:
        inner = convolved(state, f"{name}.conv1", silu(normed(f"{name}.norm1", x)))
        inner = inner + linear(state, f"{name}.time", time)[:, :, None, None]
        inner = convolved(state, f"{name}.conv2", silu(normed(f"{name}.norm2", inner)))
        return inner + (convolved(state, f"{name}.short", x) if f"{name}.short.weight" in state else x)

    half, stages = config.widths[0] // 2, len(config.widths)
    angles = times[:, None] * np.exp(-2 * np.log(10000) / config.widths[0] * np.arange(half))
    time = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
    for name in ("time1", "time2"):
        time = silu(linear(state, name, time))
    angle = (times * np.pi / 2 / unet_train.STEPS)[:, None, None, None]
    x, skips = convolved(state, "in", np.cos(angle) * pictures + np.sin(angle) * noise), []
    for i in range(stages):
        x = residual(f"down{i}", x)
        skips.append(x)
        if i < stages - 1:
            x = convolved(state, f"shrink{i}", x, stride=2)
    qkv = convolved(state, "middle.qkv", normed("middle.norm", x))
    q, k, v = (
        heads(part.reshape(*part.shape[:2], -1).transpose(0, 2, 1), config.heads) for part in np.split(qkv, 3, axis=1)
    )
    x = x + convolved(state, "middle.proj", joined(attention(q, k, v)).transpose(0, 2, 1).reshape(x.shape))
    for i in reversed(range(stages)):
        if i < stages - 1:
            x = convolved(state, f"grow{i}", x.repeat(2, axis=2).repeat(2, axis=3))
        x = residual(f"up{i}", np.concatenate([x, skips[i]], axis=1))
    return float(np.square(convolved(state, "out", silu(normed("norm", x))) - noise).mean())


LOSSES: dict[str, Callable[..., float]] = {
    "mlp_train": mlp_train,
    "convnet_train": convnet_train,
    "resnet_train": resnet_train,
    "gpt2_train": gpt2_train,
    "vit_train": vit_train,
    "llama_train": llama_train,
    "lstm_train": lstm_train,
    "lora_train": lora_train,
    "autoencoder_train": autoencoder_train,
    "unet_train": unet_train_loss,
}
# families of many kernels: the preset, and the gradients that are soon reached from the loss
PART = {
    "convnet_train": ("mini", ("norm1.weight", "norm1.bias", "b1.weight", "out.weight")),
    "resnet_train": ("mini", ("b0.grow.weight", "b0.grow_norm.weight", "b0.short.weight", "out.bias")),
    "vit_train": ("mini", ("h.0.fc1.weight", "h.0.fc2.bias", "norm.weight", "head.weight")),
    "llama_train": ("mini", ("h.0.w2.weight", "h.0.w3.weight", "norm.weight", "output.weight")),
    "autoencoder_train": ("mini", ("latent.weight", "first.bias", "up1.weight", "up0.weight")),
    "unet_train": ("mini-odd", ("up0.norm2.bias", "out.weight")),
}


def family(name: str) -> Any:
    return importlib.import_module(f"kcg.workloads.zoo.{name}")


@pytest.mark.parametrize("name", LOSSES)
def test_gradients(name: str) -> None:
    preset, only = PART.get(name, ("mini", ()))
    check_gradients(name, LOSSES[name], gradients=family(name).gradients, preset=preset, only=only)


@pytest.mark.slow
def test_gradients_in_float16() -> None:
    # ReLU of a rounded number chooses another side now and then, which moves a gradient by several per cent
    gradients = family("mlp_train").gradients
    check_gradients("mlp_train", mlp_train, gradients=gradients, preset="mini-f16", tolerance=8e-2)


def test_a_step_of_gradient_descent() -> None:
    module = family("mlp_train")
    config, rate = module.PRESETS["mini"], 0.5
    p, drawn = Parameters(config.dtype, seed=1), random_inputs(module.inputs(config), 2)
    steps = module.run(p, config, **drawn), module.run(p, dataclasses.replace(config, rate=rate), **drawn)
    Tensor.realize(*steps[0], *steps[1])
    (loss, *gradients), (same_loss, *new) = ([array_of(t) for t in step] for step in steps)
    assert loss == same_loss
    for name, gradient, after in zip(module.gradients(config), gradients, new, strict=True):
        np.testing.assert_allclose(after, p.arrays()[name] - rate * gradient, rtol=1e-4, atol=1e-6)
