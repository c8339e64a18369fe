"""ResNet-50, GPT-2, Llama and BERT in PyTorch: the models of `kcg.workloads.zoo`, on the same weights and inputs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from evaluation.pytorch.kind import Case, Trained
from evaluation.pytorch.models import config_of, drawn_once, family_of
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
        k, v = (cached(p, f"{name}.cache_{letter}", config, new) for letter, new in (("k", k), ("v", v)))
    mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=not start, enable_gqa=True)
    mixed = mixed.transpose(1, 2).reshape(batch, tokens, width)
    return linear(p, f"{name}.attention.wo", mixed, width, bias=False)


def cached(p: Any, name: str, config: Any, new: Tensor) -> Tensor:
    """`new` (batch, heads, 1, d) put into the cache, then the cache up to there."""
    batch, heads, _, d = new.shape
    cache, at = p(name, batch, heads, config.context, d, fan_in=1), config.position
    cache[:, :, at : at + 1] = new
    return cache[:, :, : at + 1]


Tensor = torch.Tensor


class TorchParameters:
    """As `RepeatedParameters`: made when first asked for, the same numbers by name and seed. Those of up to `DRAWN`
    values are the zoo's own."""

    def __init__(self, dtype: str, device: str, seed: int) -> None:
        self.dtype, self.device, self.seed = dtype, device, seed
        self.tensors: dict[str, Tensor] = {}

    def __call__(self, name: str, *shape: int, fan_in: int | None = None, around: float = 0.0) -> Tensor:
        if name not in self.tensors:
            deviation = 0.1 if len(shape) == 1 and fan_in is None else (fan_in or math.prod(shape[1:])) ** -0.5
            count, dtype = math.prod(shape), getattr(torch, self.dtype)
            values = drawn_once(generator(self.seed, name), count, around, deviation)
            once = torch.from_numpy(values).to(dtype).to(self.device)
            self.tensors[name] = once.repeat(-(-count // len(once)))[:count].reshape(shape)
        return self.tensors[name]


def build_model(case: Case, device: str, seed: int) -> tuple[Callable[..., Tensor] | Trained, dict[str, Tensor]]:
    """A model's step, ready to be compiled, and its inputs."""
    family, config, run = family_of(case), config_of(case), RUNS[case["name"]]
    p, inputs = TorchParameters(config.dtype, device, seed), {}
    for key, spec in family.inputs(config).items():
        rng = generator(seed + 1, key)
        drawn = rng.integers(0, spec.below, spec.shape) if spec.below else rng.normal(size=spec.shape)
        dtype = torch.int64 if spec.below else getattr(torch, spec.dtype)
        inputs[key] = torch.from_numpy(drawn).to(device).to(dtype)
    run(p, config, **inputs)  # makes the parameters
    for tensor in p.tensors.values():
        torch._dynamo.mark_static_address(tensor)  # weights stay where they are

    def step(**given: Tensor) -> Tensor:
        return run(p, config, **given)

    if not hasattr(family, "gradients"):
        return step, inputs
    return Trained(step, [p.tensors[name].requires_grad_() for name in family.gradients(config)]), inputs


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
        for j in range(config.blocks[i]):
            name, stride = f"stages.{i}.{j}", 2 if i and not j else 1
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
    """Logits (batch, tokens, vocabulary): of a prompt, or of one token with a cache."""
    at = config.position
    table = p("embedding", config.vocabulary, config.width, fan_in=1)
    positions = p("positions", config.context if at else config.tokens, config.width, fan_in=1)
    x = table[tokens] + (positions[at : at + 1] if at else positions)
    for i in range(config.layers):
        name = f"h.{i}"
        q, k, v = _queries_keys_values(p, config, f"{name}.attn.c_attn", _layer_norm(p, f"{name}.ln_1", x))
        if at:
            k, v = (cached(p, f"{name}.cache_{letter}", config, new) for letter, new in (("k", k), ("v", v)))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=not at)
        x = x + _linear(p, f"{name}.attn.c_proj", mixed.transpose(1, 2).reshape(x.shape), config.width)
        between = _linear(p, f"{name}.mlp.c_fc", _layer_norm(p, f"{name}.ln_2", x), 4 * config.width)
        x = x + _linear(p, f"{name}.mlp.c_proj", functional.gelu(between, approximate="tanh"), config.width)
    return functional.linear(_layer_norm(p, "ln_f", x) * config.width**-0.5, table)


def _queries_keys_values(p: Any, config: Any, name: str, normed: Tensor) -> list[Tensor]:
    """Each (batch, heads, tokens, d)."""
    batch, tokens, width = normed.shape
    parts = _linear(p, name, normed, 3 * width).chunk(3, dim=-1)
    return [part.reshape(batch, tokens, config.heads, -1).transpose(1, 2) for part in parts]


def gpt2_train(p: Any, config: Any, *, tokens: Tensor, following: Tensor) -> Tensor:
    """The loss."""
    table = p("embedding", config.vocabulary, config.width, fan_in=1)
    x = table[tokens] + p("positions", config.tokens, config.width, fan_in=1)
    for i in range(config.layers):
        name = f"h.{i}"
        q, k, v = _queries_keys_values(p, config, f"{name}.c_attn", _layer_norm(p, f"{name}.ln_1", x))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + _linear(p, f"{name}.c_proj", mixed.transpose(1, 2).reshape(x.shape), config.width)
        between = _linear(p, f"{name}.c_fc", _layer_norm(p, f"{name}.ln_2", x), 4 * config.width)
        x = x + _linear(p, f"{name}.mlp_proj", functional.gelu(between, approximate="tanh"), config.width)
    logits = functional.linear(_layer_norm(p, "ln_f", x) * config.width**-0.5, table)
    return functional.cross_entropy(logits.float().flatten(0, 1), following.flatten())


def bert(p: Any, config: Any, *, tokens: Tensor, segments: Tensor, last: Tensor, masked: Tensor) -> Tensor:
    """Logits (batch, predictions, vocabulary) of the masked words."""
    batch, length, width = config.batch, config.tokens, config.width
    words = p("word_embedding", config.vocabulary, width, fan_in=1)
    x = words[tokens] + p("position_embedding", length, width, fan_in=1)
    x = _layer_norm(p, "embeddings.norm", x + p("segment_table", 2, width, fan_in=1)[segments])
    seen = torch.arange(length, device=tokens.device) <= last[:, None]
    padding = torch.zeros_like(seen, dtype=x.dtype).masked_fill(~seen, -math.inf)[:, None, None]
    for i in range(config.layers):
        name = f"layer.{i}"
        q, k, v = (
            _linear(p, f"{name}.{part}", x, width).reshape(batch, length, config.heads, -1).transpose(1, 2)
            for part in ("query", "key", "value")
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=padding)
        mixed = _linear(p, f"{name}.attention.output", mixed.transpose(1, 2).reshape(x.shape), width)
        x = _layer_norm(p, f"{name}.attention.norm", x + mixed)
        between = functional.gelu(_linear(p, f"{name}.intermediate", x, 4 * width), approximate="tanh")
        x = _layer_norm(p, f"{name}.output.norm", x + _linear(p, f"{name}.output", between, width))
    x = x.gather(1, masked[..., None].expand(-1, -1, width))
    x = _layer_norm(p, "transform.norm", functional.gelu(_linear(p, "transform", x, width), approximate="tanh"))
    return functional.linear(x * width**-0.5, words, p("words.bias", config.vocabulary))


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


RUNS = {"resnet": resnet, "gpt2": gpt2, "gpt2_train": gpt2_train, "llama": llama, "bert": bert}
"""By family: its step."""
