"""Convolutional networks of the zoo against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

from tests.zoo.reference import (
    Array,
    State,
    attention,
    batch_norm,
    check,
    conv2d,
    gelu_tanh,
    group_norm,
    heads,
    joined,
    layer_norm,
    linear,
    relu,
    sigmoid,
    silu,
    softmax,
)


def _conv(state: State, name: str, x: Array, *, stride: int = 1, padding: int | None = None, groups: int = 1) -> Array:
    """With the padding that keeps the size unless given."""
    weight = state[f"{name}.weight"]
    padding = weight.shape[-1] // 2 if padding is None else padding
    return conv2d(x, weight, state.get(f"{name}.bias"), stride=stride, padding=padding, groups=groups)


def _conv_norm(state: State, name: str, x: Array, *, stride: int = 1, groups: int = 1) -> Array:
    return batch_norm(state, f"{name}.norm", _conv(state, f"{name}.conv", x, stride=stride, groups=groups))


def _max_pool(x: Array, size: int, *, stride: int) -> Array:
    padded = np.pad(x, ((0, 0), (0, 0), *[(size // 2, size // 2)] * 2), constant_values=-np.inf)
    out: Array = sliding_window_view(padded, (size, size), axis=(2, 3))[:, :, ::stride, ::stride].max((-2, -1))
    return out


def resnet(state: State, config: Any, *, x: Array) -> Array:
    x = _max_pool(relu(_conv_norm(state, "stem", x, stride=2)), 3, stride=2)
    for stage in range(config.stages):
        for block in range(2):
            name, stride = f"stages.{stage}.{block}", 2 if stage and not block else 1
            y = relu(_conv_norm(state, f"{name}.1", x))
            y = relu(_conv_norm(state, f"{name}.2", y, stride=stride, groups=config.groups))
            shortcut = x if block else _conv_norm(state, f"{name}.downsample", x, stride=stride)
            x = relu(_conv_norm(state, f"{name}.3", y) + shortcut)
    return linear(state, "head", x.mean((2, 3)))


def convnext(state: State, config: Any, *, x: Array) -> Array:
    x = _channel_norm(state, "stem_norm", _conv(state, "stem", x, stride=4, padding=0))
    for i in range(len(config.channels)):
        if i:
            x = _channel_norm(state, f"stages.{i}.norm", x)
            x = _conv(state, f"stages.{i}.downsample", x, stride=2, padding=0)
        name = f"stages.{i}.0"
        y = _conv(state, f"{name}.depthwise", x, groups=x.shape[1])
        y = _channel_norm(state, f"{name}.norm", y).transpose(0, 2, 3, 1)
        y = linear(state, f"{name}.project", gelu_tanh(linear(state, f"{name}.expand", y)))
        x = x + (y * state[f"{name}.scale"]).transpose(0, 3, 1, 2)
    return linear(state, "head", layer_norm(state, "norm", x.mean((2, 3)), epsilon=1e-6))


def _channel_norm(state: State, name: str, x: Array) -> Array:
    return layer_norm(state, name, x.transpose(0, 2, 3, 1), epsilon=1e-6).transpose(0, 3, 1, 2)


def efficientnet(state: State, config: Any, *, x: Array) -> Array:
    x = silu(_conv_norm(state, "stem", x, stride=2))
    for i, stage in enumerate(config.stages):
        for block in range(stage.blocks):
            name, stride = f"stages.{i}.{block}", 1 if block else stage.stride
            y = silu(_conv_norm(state, f"{name}.expand", x)) if stage.expansion > 1 else x
            y = silu(_conv_norm(state, f"{name}.depthwise", y, stride=stride, groups=y.shape[1]))
            squeezed = silu(_conv(state, f"{name}.reduce", y.mean((2, 3), keepdims=True)))
            y = _conv_norm(state, f"{name}.project", y * sigmoid(_conv(state, f"{name}.excite", squeezed)))
            x = x + y if x.shape == y.shape else y
    x = silu(_conv_norm(state, "head", x))
    return linear(state, "classifier", x.mean((2, 3)))


def mobilenet(state: State, config: Any, *, x: Array) -> Array:
    x = _hard_swish(_conv_norm(state, "stem", x, stride=2))
    for i, block in enumerate(config.blocks):
        name, activate = f"blocks.{i}", _hard_swish if block.swish else relu
        y = x if block.inner == x.shape[1] else activate(_conv_norm(state, f"{name}.expand", x))
        y = activate(_conv_norm(state, f"{name}.depthwise", y, stride=block.stride, groups=block.inner))
        if block.squeeze:
            squeezed = relu(_conv(state, f"{name}.reduce", y.mean((2, 3), keepdims=True)))
            y = y * np.clip(_conv(state, f"{name}.excite", squeezed) / 6 + 0.5, 0, 1)
        y = _conv_norm(state, f"{name}.project", y)
        x = x + y if x.shape == y.shape else y
    x = _hard_swish(_conv_norm(state, "last", x))
    return linear(state, "classifier", _hard_swish(linear(state, "hidden", x.mean((2, 3)))))


def _hard_swish(x: Array) -> Array:
    out: Array = x * np.clip(x + 3, 0, 6) / 6
    return out


def unet(state: State, config: Any, *, x: Array, timestep: Array, text: Array) -> Array:
    frequencies = 10000.0 ** (-np.arange(config.channels // 2) / (config.channels // 2))
    angles = timestep[:, None] * frequencies
    waves = np.concatenate([np.cos(angles), np.sin(angles)], -1)
    time = silu(linear(state, "time.1", silu(linear(state, "time.0", waves))))

    def stage(name: str, x: Array) -> Array:
        x = _residual_block(state, f"{name}.residual", x, config.groups, time)
        if f"{name}.proj_in.weight" not in state:
            return x
        y = group_norm(state, f"{name}.norm", x, config.groups).reshape(*x.shape[:2], -1).transpose(0, 2, 1)
        y = linear(state, f"{name}.proj_in", y)
        depth = config.transformers[int(np.log2(config.height // x.shape[2]))]
        for block in (f"{name}.blocks.{i}" for i in range(depth)):
            normed = layer_norm(state, f"{block}.norm1", y)
            y = y + attend(f"{block}.self", normed, normed)
            y = y + attend(f"{block}.cross", layer_norm(state, f"{block}.norm2", y), text)
            value, gate = np.split(linear(state, f"{block}.ff.in", layer_norm(state, f"{block}.norm3", y)), 2, -1)
            y = y + linear(state, f"{block}.ff.out", value * gelu_tanh(gate))
        out: Array = x + linear(state, f"{name}.proj_out", y).transpose(0, 2, 1).reshape(x.shape)
        return out

    def attend(name: str, x: Array, context: Array) -> Array:
        count = x.shape[-1] // config.head_size
        q = heads(linear(state, f"{name}.q", x), count)
        k, v = (heads(linear(state, f"{name}.{key}", context), count) for key in "kv")
        return linear(state, f"{name}.out", joined(attention(q, k, v)))

    x = _conv(state, "conv_in", x)
    skips, levels = [x], range(len(config.multipliers))
    for i in levels:
        if i:
            x = _conv(state, f"down.{i}.downsample", x, stride=2)
            skips.append(x)
        x = stage(f"down.{i}", x)
        skips.append(x)
    x = _residual_block(state, "mid.1.residual", stage("mid.0", x), config.groups, time)
    for i in reversed(levels):
        for block in range(2):
            x = stage(f"up.{i}.{block}", np.concatenate([x, skips.pop()], 1))
        if i:
            x = _conv(state, f"up.{i}.upsample", _doubled(x))
    return _conv(state, "conv_out", silu(group_norm(state, "norm_out", x, config.groups)))


def _residual_block(state: State, name: str, x: Array, groups: int, time: Array | None = None) -> Array:
    y = _conv(state, f"{name}.conv1", silu(group_norm(state, f"{name}.norm1", x, groups)))
    if time is not None:
        y = y + linear(state, f"{name}.time", time)[:, :, None, None]
    y = _conv(state, f"{name}.conv2", silu(group_norm(state, f"{name}.norm2", y, groups)))
    return y + (x if x.shape == y.shape else _conv(state, f"{name}.shortcut", x))


def _doubled(x: Array) -> Array:
    return x.repeat(2, axis=2).repeat(2, axis=3)


def vae_decoder(state: State, config: Any, *, latents: Array) -> Array:
    x = _conv(state, "conv_in", _conv(state, "post_quant", latents))
    x = _residual_block(state, "mid.0", x, config.groups)
    normed = group_norm(state, "mid.attention.norm", x, config.groups)
    q, k, v = (
        _conv(state, f"mid.attention.{key}", normed).reshape(*x.shape[:2], -1).transpose(0, 2, 1)[:, None]
        for key in "qkv"
    )
    x = x + _conv(state, "mid.attention.out", attention(q, k, v)[:, 0].transpose(0, 2, 1).reshape(x.shape))
    x = _residual_block(state, "mid.1", x, config.groups)
    for i in range(len(config.multipliers)):
        x = _conv(state, f"up.{i}.upsample", _doubled(x)) if i else x
        for block in range(2):
            x = _residual_block(state, f"up.{i}.{block}", x, config.groups)
    return _conv(state, "conv_out", silu(group_norm(state, "norm_out", x, config.groups)))


def yolo(state: State, config: Any, *, x: Array) -> tuple[Array, Array]:
    def conv(name: str, x: Array, stride: int = 1) -> Array:
        return silu(_conv_norm(state, name, x, stride=stride))

    def c2f(name: str, *parts: Array, add: bool = False) -> Array:
        kept, last = np.split(conv(f"{name}.1", np.concatenate(parts, 1)), 2, 1)
        y = conv(f"{name}.bottleneck.2", conv(f"{name}.bottleneck.1", last))
        return conv(f"{name}.2", np.concatenate([kept, last, y + last if add else y], 1))

    x = conv("stem", x, 2)
    features = []
    for i in range(len(config.channels) - 1):
        x = c2f(f"backbone.{i}.c2f", conv(f"backbone.{i}.down", x, 2), add=True)
        features.append(x)
    pools = [conv("backbone.sppf.1", x)]
    for _ in range(3):
        pools.append(_max_pool(pools[-1], 5, stride=1))
    coarse = conv("backbone.sppf.2", np.concatenate(pools, 1))
    ups = [coarse]  # from coarse to fine
    for i in reversed(range(config.scales - 1)):
        ups.append(c2f(f"up.{i}", _doubled(ups[-1]), features[len(features) - config.scales + i]))
    downs = [ups.pop()]
    for i in range(1, config.scales):
        downs.append(c2f(f"down.{i}.c2f", conv(f"down.{i}.conv", downs[-1], 2), ups.pop()))
    boxes, scores = [], []
    for i, x in enumerate(downs):
        n, _, height, width = x.shape
        sides = _conv(state, f"head.{i}.box.2", conv(f"head.{i}.box.1", conv(f"head.{i}.box.0", x)))
        weights = softmax(sides.reshape(n, 4, config.bins, -1).swapaxes(2, 3))
        left, top, right, bottom = (weights @ np.arange(config.bins)).transpose(1, 0, 2)
        places = np.stack(np.meshgrid(np.arange(width), np.arange(height)), 0).reshape(2, -1) + 0.5
        corners = places[0] - left, places[1] - top, places[0] + right, places[1] + bottom
        middle = [(corners[0] + corners[2]) / 2, (corners[1] + corners[3]) / 2]
        box = np.stack([*middle, corners[2] - corners[0], corners[3] - corners[1]], 1)
        boxes.append(box * (config.width / width))
        classes = _conv(state, f"head.{i}.class.2", conv(f"head.{i}.class.1", conv(f"head.{i}.class.0", x)))
        scores.append(sigmoid(classes).reshape(n, config.classes, -1))
    return np.concatenate(boxes, -1), np.concatenate(scores, -1)


FORWARDS = {f.__name__: f for f in (resnet, convnext, efficientnet, mobilenet, unet, vae_decoder, yolo)}


# in float16; YOLO only so, since its smallest model in float32 takes longest
IN_HALF = ("yolo",)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "preset", "tolerance"),
    [(name, "mini", 1e-4) for name in FORWARDS if name != "yolo"] + [(name, "mini-f16", 2e-2) for name in IN_HALF],
)
def test_convolutional(name: str, preset: str, tolerance: float) -> None:
    check(name, FORWARDS[name], preset=preset, tolerance=tolerance)
