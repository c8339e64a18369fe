"""ResNet-50, GPT-2 and Llama in PyTorch: the same models as in `kcg.workloads.zoo`, on the same weights and inputs."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from kcg.workloads.family import generator


def turns(config: Any, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the angle of every position that is read and every pair of channels."""
    pairs = config.width // config.heads // 2
    frequencies = config.theta ** -(torch.arange(pairs, device=device) / pairs)
    first = config.position
    positions = torch.arange(first, first + (1 if first else config.tokens), device=device)
    angles = positions[:, None] * frequencies
    return angles.cos(), angles.sin()


def _rotated(x: Tensor, at: tuple[Tensor, Tensor]) -> Tensor:
    """x (batch, heads, tokens, d): channel i and channel i + d/2 are a pair."""
    (first, second), (cos, sin) = x.float().chunk(2, dim=-1), at
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1).to(x.dtype)


def attended(
    p: Any, config: Any, name: str, normed: Tensor, at: tuple[Tensor, Tensor], linear: Callable[..., Tensor]
) -> Tensor:
    """What attention adds to the residual, (batch, tokens, width)."""
    batch, tokens, width = normed.shape
    d, start = width // config.heads, config.position
    q, k, v = (
        linear(p, f"{name}.attention.w{letter}", normed, heads * d, bias=False)
        .reshape(batch, tokens, heads, d)
        .transpose(1, 2)
        for letter, heads in (("q", config.heads), ("k", config.kv_heads), ("v", config.kv_heads))
    )
    q, k = _rotated(q, at), _rotated(k, at)
    if start:
        caches = []
        for letter, new in (("k", k), ("v", v)):
            shape = (batch, config.kv_heads, config.context, d)
            cache = p(f"{name}.cache_{letter}", *shape, fan_in=1)
            cache[:, :, start : start + 1] = new
            caches.append(cache[:, :, : start + 1])
        k, v = caches
    mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=not start, enable_gqa=True)
    mixed = mixed.transpose(1, 2).reshape(batch, tokens, width)
    return linear(p, f"{name}.attention.wo", mixed, width, bias=False)


Tensor = torch.Tensor


class TorchParameters:
    """As `kcg.workloads.family.Parameters`: made when first asked for, the same numbers by name and seed."""

    def __init__(self, dtype: str, device: str, seed: int) -> None:
        self.dtype, self.device, self.seed = dtype, device, seed
        self.tensors: dict[str, Tensor] = {}

    def __call__(self, name: str, *shape: int, fan_in: int | None = None, around: float = 0.0) -> Tensor:
        if name not in self.tensors:
            deviation = 0.1 if len(shape) == 1 and fan_in is None else (fan_in or math.prod(shape[1:])) ** -0.5
            values = generator(self.seed, name).normal(around, deviation, shape).astype(np.float32)
            self.tensors[name] = torch.from_numpy(values).to(self.device).to(getattr(torch, self.dtype))
        return self.tensors[name]


def build_model(name: str, preset: str, device: str, seed: int) -> tuple[Callable[..., Tensor], dict[str, Tensor]]:
    """A step of the family `name`, ready to be compiled, and its inputs."""
    family = importlib.import_module(f"kcg.workloads.zoo.{name}")
    config, run = family.PRESETS[preset], {"resnet": resnet, "gpt2": gpt2, "llama": llama}[name]
    p, inputs = TorchParameters(config.dtype, device, seed), {}
    for key, spec in family.inputs(config).items():
        rng = generator(seed + 1, key)
        drawn = rng.integers(0, spec.below, spec.shape) if spec.below else rng.normal(size=spec.shape)
        dtype = torch.int64 if spec.below else getattr(torch, spec.dtype)
        inputs[key] = torch.from_numpy(drawn).to(device).to(dtype)
    run(p, config, **inputs)  # makes the parameters
    for tensor in p.tensors.values():
        torch._dynamo.mark_static_address(tensor)  # weights stay where they are
    return lambda **given: run(p, config, **given), inputs


def _linear(p: Any, name: str, x: Tensor, outputs: int, *, bias: bool = True) -> Tensor:
    weight = p(f"{name}.weight", outputs, x.shape[-1])
    return functional.linear(x, weight, p(f"{name}.bias", outputs) if bias else None)


def _conv_norm(p: Any, name: str, x: Tensor, outputs: int, size: int, *, stride: int = 1, groups: int = 1) -> Tensor:
    weight = p(f"{name}.conv.weight", outputs, x.shape[1] // groups, size, size)
    x = functional.conv2d(x, weight, stride=stride, padding=size // 2, groups=groups)
    names = {"weight": 1.0, "bias": 0.0, "running_mean": 0.0, "running_var": 1.0}
    scale, shift, mean, variance = (p(f"{name}.norm.{n}", outputs, around=around) for n, around in names.items())
    return functional.batch_norm(x, mean, variance, scale, shift, eps=1e-5)


def resnet(p: Any, config: Any, *, x: Tensor) -> Tensor:
    """Logits (batch, classes)."""
    x = functional.max_pool2d(functional.relu(_conv_norm(p, "stem", x, config.stem, 7, stride=2)), 3, 2, 1)
    for i in range(config.stages):
        inner, outer = config.inner << i, config.outer << i
        for j, stride in enumerate((2 if i else 1, 1)):
            name = f"stages.{i}.{j}"
            y = functional.relu(_conv_norm(p, f"{name}.1", x, inner, 1))
            y = functional.relu(_conv_norm(p, f"{name}.2", y, inner, 3, stride=stride, groups=config.groups))
            if stride > 1 or x.shape[1] != outer:
                x = _conv_norm(p, f"{name}.downsample", x, outer, 1, stride=stride)
            x = functional.relu(_conv_norm(p, f"{name}.3", y, outer, 1) + x)
    return _linear(p, "head", x.mean((2, 3)), config.classes)


def _layer_norm(p: Any, name: str, x: Tensor) -> Tensor:
    width = x.shape[-1]
    return functional.layer_norm(x, (width,), p(f"{name}.weight", width, around=1.0), p(f"{name}.bias", width), 1e-5)


def gpt2(p: Any, config: Any, *, tokens: Tensor) -> Tensor:
    """Logits (batch, tokens, vocabulary)."""
    batch, length, width = config.batch, config.tokens, config.width
    table = p("embedding", config.vocabulary, width, fan_in=1)
    x = table[tokens] + p("positions", length, width, fan_in=1)
    for i in range(config.layers):
        qkv = _linear(p, f"h.{i}.attn.c_attn", _layer_norm(p, f"h.{i}.ln_1", x), 3 * width)
        q, k, v = (t.reshape(batch, length, config.heads, -1).transpose(1, 2) for t in qkv.chunk(3, dim=-1))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + _linear(p, f"h.{i}.attn.c_proj", mixed.transpose(1, 2).reshape(batch, length, width), width)
        between = _linear(p, f"h.{i}.mlp.c_fc", _layer_norm(p, f"h.{i}.ln_2", x), 4 * width)
        x = x + _linear(p, f"h.{i}.mlp.c_proj", functional.gelu(between, approximate="tanh"), width)
    return functional.linear(_layer_norm(p, "ln_f", x), table * width**-0.5)


def _rms_norm(p: Any, name: str, x: Tensor) -> Tensor:
    width = x.shape[-1]
    return functional.rms_norm(x, (width,), p(f"{name}.weight", width, around=1.0), 1e-6)


def llama(p: Any, config: Any, *, tokens: Tensor) -> Tensor:
    """Logits (batch, vocabulary) of the token after the last: of a prompt, or of one token with a cache."""
    at = turns(config, tokens.device)
    x = p("embedding", config.vocabulary, config.width, fan_in=1)[tokens]
    for i in range(config.layers):
        name = f"layers.{i}"
        x = x + attended(p, config, name, _rms_norm(p, f"{name}.attention_norm", x), at, _linear)
        normed, name = _rms_norm(p, f"{name}.ffn_norm", x), f"{name}.feed_forward"
        gate = functional.silu(_linear(p, f"{name}.w1", normed, config.hidden, bias=False))
        gate = gate * _linear(p, f"{name}.w3", normed, config.hidden, bias=False)
        x = x + _linear(p, f"{name}.w2", gate, config.width, bias=False)
    return _linear(p, "output", _rms_norm(p, "norm", x[:, -1]), config.vocabulary, bias=False)
