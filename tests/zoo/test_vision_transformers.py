"""Vision, speech and diffusion transformers of the zoo, and the diffusion decoder, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.zoo.reference import (
    Array,
    State,
    attention,
    check,
    conv2d,
    gelu_tanh,
    group_norm,
    heads,
    joined,
    layer_norm,
    linear,
    sigmoid,
    silu,
)

MINI, MINI_F16 = ("mini", 1e-4), ("mini-f16", 2e-2)


def of_presets(*presets: tuple[str, float]) -> pytest.MarkDecorator:
    """A test for each preset, with the tolerance for its dtype."""
    return pytest.mark.parametrize(("preset", "tolerance"), presets)


def encoder_block(state: State, name: str, x: Array, count: int, **how: Any) -> Array:
    """Pre-norm attention and MLP with the names of timm's ViT."""
    q, k, v = (
        heads(part, count)
        for part in np.split(linear(state, f"{name}.attn.qkv", layer_norm(state, f"{name}.norm1", x)), 3, -1)
    )
    x = x + linear(state, f"{name}.attn.proj", joined(attention(q, k, v, **how)))
    between = gelu_tanh(linear(state, f"{name}.mlp.fc1", layer_norm(state, f"{name}.norm2", x)))
    return x + linear(state, f"{name}.mlp.fc2", between)


def patches_of(x: Array, weight: Array, bias: Array | None = None) -> Array:
    """(batch, patches, width): each patch is flattened and multiplied."""
    n, channels, height, width = x.shape
    side = weight.shape[-1]
    cut = x.reshape(n, channels, height // side, side, width // side, side).transpose(0, 2, 4, 1, 3, 5)
    out: Array = cut.reshape(n, -1, channels * side * side) @ weight.reshape(len(weight), -1).T
    return out if bias is None else out + bias


def with_token(token: Array, patches: Array) -> Array:
    return np.concatenate([np.tile(token.reshape(1, 1, -1), (len(patches), 1, 1)), patches], axis=1)


def vit(state: State, config: Any, *, pictures: Array) -> Array:
    patches = patches_of(pictures, state["patch_embed.weight"], state["patch_embed.bias"])
    x = with_token(state["cls_token"], patches) + state["pos_embed"]
    for i in range(config.layers):
        x = encoder_block(state, f"blocks.{i}", x, config.heads)
    return linear(state, "head", layer_norm(state, "norm", x)[:, 0])


@pytest.mark.slow
@of_presets(MINI, MINI_F16)
def test_vit(preset: str, tolerance: float) -> None:
    check("vit", vit, preset=preset, tolerance=tolerance)


def clip_block(state: State, name: str, x: Array, count: int, *, causal: bool = False) -> Array:
    q, k, v = (
        heads(part, count)
        for part in np.split(linear(state, f"{name}.attn.in_proj", layer_norm(state, f"{name}.ln_1", x)), 3, -1)
    )
    x = x + linear(state, f"{name}.attn.out_proj", joined(attention(q, k, v, causal=causal)))
    between = linear(state, f"{name}.mlp.c_fc", layer_norm(state, f"{name}.ln_2", x))
    return x + linear(state, f"{name}.mlp.c_proj", between * sigmoid(1.702 * between))


def clip(state: State, config: Any, *, pictures: Array, tokens: Array) -> tuple[Array, ...]:
    patches = patches_of(pictures, state["visual.conv1.weight"])
    x = with_token(state["visual.class_embedding"], patches) + state["visual.positional_embedding"]
    x = layer_norm(state, "visual.ln_pre", x)
    for i in range(config.layers):
        x = clip_block(state, f"visual.resblocks.{i}", x, config.vision_heads)
    seen = linear(state, "visual.proj", layer_norm(state, "visual.ln_post", x)[:, 0])

    x = state["token_embedding"][tokens.astype(int)] + state["positional_embedding"]
    for i in range(config.layers):
        x = clip_block(state, f"resblocks.{i}", x, config.text_heads, causal=True)
    ends = [text[numbers.argmax()] for text, numbers in zip(layer_norm(state, "ln_final", x), tokens, strict=True)]
    read = linear(state, "text_projection", np.stack(ends))

    seen, read = (features / np.linalg.norm(features, axis=-1, keepdims=True) for features in (seen, read))
    return seen, read, np.exp(state["logit_scale"]) * seen @ read.T


@of_presets(MINI)
def test_clip(preset: str, tolerance: float) -> None:
    check("clip", clip, preset=preset, tolerance=tolerance)


def conv1d(x: Array, weight: Array, bias: Array, stride: int) -> Array:
    """With a kernel of three and one zero on each side."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1)))
    columns = [padded[:, :, tap : tap + x.shape[-1] : stride] for tap in range(3)]
    out: Array = sum(np.einsum("ncl,oc->nol", column, weight[..., tap]) for tap, column in enumerate(columns))
    return out + bias.reshape(-1, 1)


def whisper(state: State, config: Any, *, spectrogram: Array) -> Array:
    x = gelu_tanh(conv1d(spectrogram, state["conv1.weight"], state["conv1.bias"], 1))
    x = gelu_tanh(conv1d(x, state["conv2.weight"], state["conv2.bias"], 2)).transpose(0, 2, 1)
    half = config.width // 2
    angles = np.outer(np.arange(config.frames // 2), 10000 ** (-np.arange(half) / (half - 1)))
    x = x + np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    for i in range(config.layers):
        name = f"blocks.{i}"
        normed = layer_norm(state, f"{name}.attn_ln", x)
        assert f"{name}.attn.key.bias" not in state
        q, k, v = (
            heads(linear(state, f"{name}.attn.{part}", normed), config.heads) for part in ("query", "key", "value")
        )
        x = x + linear(state, f"{name}.attn.out", joined(attention(q, k, v)))
        between = gelu_tanh(linear(state, f"{name}.mlp.0", layer_norm(state, f"{name}.mlp_ln", x)))
        x = x + linear(state, f"{name}.mlp.2", between)
    return layer_norm(state, "ln_post", x)


@of_presets(MINI)
def test_whisper(preset: str, tolerance: float) -> None:
    check("whisper", whisper, preset=preset, tolerance=tolerance)


def mlp_mixer(state: State, config: Any, *, pictures: Array) -> Array:
    x = patches_of(pictures, state["stem.weight"], state["stem.bias"])
    for i in range(config.layers):
        for norm, mixer, across in (("norm1", "mlp_tokens", True), ("norm2", "mlp_channels", False)):
            normed = layer_norm(state, f"blocks.{i}.{norm}", x)
            mixed = normed.transpose(0, 2, 1) if across else normed
            mixed = gelu_tanh(linear(state, f"blocks.{i}.{mixer}.fc1", mixed))
            mixed = linear(state, f"blocks.{i}.{mixer}.fc2", mixed)
            x = x + (mixed.transpose(0, 2, 1) if across else mixed)
    return linear(state, "head", layer_norm(state, "norm", x).mean(1))


@of_presets(MINI, MINI_F16)
def test_mlp_mixer(preset: str, tolerance: float) -> None:
    check("mlp_mixer", mlp_mixer, preset=preset, tolerance=tolerance)


def dit(state: State, config: Any, *, latents: Array, timesteps: Array, classes: Array) -> Array:
    side, patch, width = config.size // config.patch, config.patch, config.width

    def sinusoids(value: float, channels: int) -> tuple[list[float], list[float]]:
        angles = [value / 10000 ** (2 * i / channels) for i in range(channels // 2)]
        return [float(np.sin(a)) for a in angles], [float(np.cos(a)) for a in angles]

    def position(row: int, column: int) -> list[float]:
        return [number for place in (column, row) for part in sinusoids(place, width // 2) for number in part]

    def modulated(x: Array, shift: Array, scale: Array) -> Array:
        out: Array = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
        return out * (1 + scale[:, None]) + shift[:, None]

    x = patches_of(latents, state["x_embedder.weight"], state["x_embedder.bias"])
    x = x + np.array([position(row, column) for row in range(side) for column in range(side)])
    times = np.array([[*cosines, *sines] for sines, cosines in (sinusoids(t, 256) for t in timesteps)])
    time = linear(state, "t_embedder.2", silu(linear(state, "t_embedder.0", times)))
    condition = silu(time + state["y_embedder.embedding"][classes.astype(int)])
    for i in range(config.layers):
        name = f"blocks.{i}"
        parts = np.split(linear(state, f"{name}.adaLN_modulation", condition), 6, -1)
        qkv = linear(state, f"{name}.attn.qkv", modulated(x, parts[0], parts[1]))
        q, k, v = (heads(part, config.heads) for part in np.split(qkv, 3, -1))
        x = x + parts[2][:, None] * linear(state, f"{name}.attn.proj", joined(attention(q, k, v)))
        between = gelu_tanh(linear(state, f"{name}.mlp.fc1", modulated(x, parts[3], parts[4])))
        x = x + parts[5][:, None] * linear(state, f"{name}.mlp.fc2", between)
    shift, scale = np.split(linear(state, "final_layer.adaLN_modulation", condition), 2, -1)
    cells = linear(state, "final_layer.linear", modulated(x, shift, scale)).reshape(-1, side, side, patch, patch, 8)
    out = np.zeros((config.batch, 8, config.size, config.size))
    for row in range(config.size):
        for column in range(config.size):
            out[:, :, row, column] = cells[:, row // patch, column // patch, row % patch, column % patch]
    return out


@of_presets(MINI)
def test_dit(preset: str, tolerance: float) -> None:
    check("dit", dit, preset=preset, tolerance=tolerance)


def swin_attention(state: State, name: str, x: Array, count: int, window: int, shift: int) -> Array:
    """Of (batch, size, size, channels): each window on the torus attends within its own continuous parts."""
    size = x.shape[1]
    q, k, v = np.split(linear(state, f"{name}.qkv", x), 3, -1)
    table, out = state[f"{name}.relative_position_bias_table"], np.zeros_like(x)
    inside = [(row, column) for row in range(window) for column in range(window)]
    span = 2 * window - 1
    index = [[(a - c + window - 1) * span + b - d + window - 1 for c, d in inside] for a, b in inside]
    bias = table[np.array(index)].transpose(2, 0, 1)
    for top in range(0, size, window):
        for left in range(0, size, window):
            rows = np.array([(top + row + shift) % size for row, _ in inside])
            columns = np.array([(left + column + shift) % size for _, column in inside])
            # a window that reaches over an edge holds parts that are not neighbours
            part = (rows < top) * 2 + (columns < left)
            hidden = np.where(part[:, None] == part[None], 0.0, -100.0)
            taken = (heads(values[:, rows, columns], count) for values in (q, k, v))
            out[:, rows, columns] = joined(attention(*taken, bias=bias + hidden))
    return linear(state, f"{name}.proj", out)


def swin(state: State, config: Any, *, pictures: Array) -> Array:
    side = config.size // config.patch
    x = patches_of(pictures, state["patch_embed.proj.weight"], state["patch_embed.proj.bias"])
    x = layer_norm(state, "patch_embed.norm", x).reshape(-1, side, side, config.width)
    for stage, count in enumerate(config.heads):
        if stage > 0:
            corners = [x[:, row::2, column::2] for column in range(2) for row in range(2)]
            normed = layer_norm(state, f"layers.{stage}.downsample.norm", np.concatenate(corners, -1))
            x = linear(state, f"layers.{stage}.downsample.reduction", normed)
        for block in range(2):
            name = f"layers.{stage}.blocks.{block}"
            shift = config.window // 2 if block == 1 and x.shape[1] > config.window else 0
            normed = layer_norm(state, f"{name}.norm1", x)
            x = x + swin_attention(state, f"{name}.attn", normed, count, config.window, shift)
            between = gelu_tanh(linear(state, f"{name}.mlp.fc1", layer_norm(state, f"{name}.norm2", x)))
            x = x + linear(state, f"{name}.mlp.fc2", between)
    return linear(state, "head", layer_norm(state, "norm", x).mean((1, 2)))


@of_presets(MINI)
def test_swin(preset: str, tolerance: float) -> None:
    check("swin", swin, preset=preset, tolerance=tolerance)


def diffusion_decoder(
    state: State, config: Any, *, latents: Array, noise: Array, timesteps: Array, fresh: Array | None = None
) -> tuple[Array, Array]:
    guided = noise[0] + config.guidance * (noise[1] - noise[0])
    after = np.empty_like(latents)
    for i, t in enumerate(timesteps):
        now, then = (np.sqrt(signal(step)) for step in (t, t - 20))  # amplitudes of the signal
        clean = (latents[i] - np.sqrt(1 - now**2) * guided[i]) / now
        if config.sampler == "ddim":
            after[i] = then * clean + np.sqrt(1 - then**2) * guided[i]
        elif config.sampler == "euler":
            sigmas = [np.sqrt(1 / amplitude**2 - 1) for amplitude in (now, then)]
            after[i] = then * (latents[i] / now + (sigmas[1] - sigmas[0]) * guided[i])
        else:
            assert fresh is not None
            skip, out = 0.25 / ((10 * t) ** 2 + 0.25), 10 * t / np.sqrt((10 * t) ** 2 + 0.25)
            after[i] = then * (skip * latents[i] + out * clean) + np.sqrt(1 - then**2) * fresh[i]
    return after, decoded(state, config, after / 0.18215)


def signal(timestep: float) -> float:
    """The product of 1 - variance over the timesteps so far, in the limit of many short ones."""
    if timestep <= 0:
        return 1.0
    middles = (np.arange(20000) + 0.5) / 20000 * timestep
    deviations = np.sqrt(0.00085) + (np.sqrt(0.012) - np.sqrt(0.00085)) * middles / 1000
    return float(np.exp(-np.square(deviations).mean() * timestep))


def decoded(state: State, config: Any, x: Array) -> Array:
    def conv(name: str, x: Array) -> Array:
        weight = state[f"{name}.weight"]
        return conv2d(x, weight, state[f"{name}.bias"], padding=weight.shape[-1] // 2)

    def activated(name: str, x: Array) -> Array:
        return silu(group_norm(state, name, x, config.groups, epsilon=1e-6))

    x = conv("conv_in", conv("post_quant_conv", x))
    for level, width in enumerate(config.widths):
        if level > 0:
            x = conv(f"up.{level}.upsample", x.repeat(2, axis=2).repeat(2, axis=3))
        for block in range(config.blocks):
            name = f"up.{level}.block.{block}"
            h = conv(f"{name}.conv1", activated(f"{name}.norm1", x))
            h = conv(f"{name}.conv2", activated(f"{name}.norm2", h))
            x = h + (x if x.shape[1] == width else conv(f"{name}.nin_shortcut", x))
    return np.clip(conv("conv_out", activated("norm_out", x)) / 2 + 0.5, 0, 1)


@of_presets(MINI)
def test_diffusion_decoder(preset: str, tolerance: float) -> None:
    check("diffusion_decoder", diffusion_decoder, preset=preset, tolerance=tolerance)
