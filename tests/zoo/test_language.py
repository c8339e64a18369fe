"""Language models of the zoo against NumPy: encoders, decoders with a cache, experts, scans."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.captured import captured
from tests.slow import first_rows
from tests.zoo.reference import (
    Array,
    State,
    attention,
    check,
    gelu_tanh,
    heads,
    joined,
    layer_norm,
    linear,
    rms_norm,
    sigmoid,
    silu,
    softmax,
)


def bert(
    state: State, config: Any, *, tokens: Array, segments: Array, last: Array, masked: Array | None = None
) -> Array:
    embedded = state["word_embedding"][tokens.astype(int)] + state["segment_table"][segments.astype(int)]
    x = layer_norm(state, "embeddings.norm", embedded + state["position_embedding"])
    hidden = np.where(np.arange(config.tokens) > last[:, None], -np.inf, 0.0)[:, None, None]
    for i in range(config.layers):
        q, k, v = (heads(linear(state, f"layer.{i}.{part}", x), config.heads) for part in ("query", "key", "value"))
        mixed = linear(state, f"layer.{i}.attention.output", joined(attention(q, k, v, bias=hidden)))
        x = layer_norm(state, f"layer.{i}.attention.norm", x + mixed)
        between = linear(state, f"layer.{i}.output", gelu_tanh(linear(state, f"layer.{i}.intermediate", x)))
        x = layer_norm(state, f"layer.{i}.output.norm", x + between)
    if masked is None:
        if config.head == "span":
            return linear(state, "span", x)
        return linear(state, "classifier", np.tanh(linear(state, "pooler", x[:, 0])))
    x = np.stack([rows[places] for rows, places in zip(x, masked.astype(int), strict=True)])
    x = layer_norm(state, "transform.norm", gelu_tanh(linear(state, "transform", x)))
    out: Array = x @ state["word_embedding"].T * config.width**-0.5 + state["words.bias"]
    return out


def t5(state: State, config: Any, *, tokens: Array) -> Array:
    x = state["embedding"][tokens.astype(int)]
    bias = np.zeros((config.heads, config.tokens, config.tokens))
    for query, key in np.ndindex(config.tokens, config.tokens):
        bucket = distance = abs(key - query)
        if distance >= 8:  # from there to 128, eight buckets of equal width on a logarithmic scale
            bucket = min(15, 8 + math.floor(2 * math.log2(distance / 8) + 1e-9))
        bias[:, query, key] = state["relative_attention_bias"][bucket + 16 * (key > query)]
    for i in range(config.layers):
        normed = rms_norm(state, f"block.{i}.attention.norm", x)
        q, k, v = (heads(linear(state, f"block.{i}.attention.{letter}", normed), config.heads) for letter in "qkv")
        mixed = attention(q * np.sqrt(config.head_width), k, v, bias=bias)
        x = x + linear(state, f"block.{i}.attention.o", joined(mixed))
        normed, name = rms_norm(state, f"block.{i}.feed_forward.norm", x), f"block.{i}.feed_forward"
        gated = gelu_tanh(linear(state, f"{name}.wi_0", normed)) * linear(state, f"{name}.wi_1", normed)
        x = x + linear(state, f"{name}.wo", gated)
    return rms_norm(state, "final_layer_norm", x)


def mamba(state: State, config: Any, *, tokens: Array, **states: Array) -> tuple[Array, ...]:
    x = state["embedding"][tokens.astype(int)]
    batch, count, inner = len(x), config.tokens, 2 * config.width
    last = []
    for i in range(config.layers):
        name = f"layers.{i}"
        both = linear(state, f"{name}.in_proj", rms_norm(state, f"{name}.norm", x))
        u, gate = both[..., :inner], both[..., inner:]
        earlier = states.get(f"earlier_{i}", np.zeros((batch, inner, config.window - 1))).transpose(0, 2, 1)
        u, mixed = np.concatenate([earlier, u], axis=1), state[f"{name}.conv1d.bias"]
        for j in range(config.window):
            mixed = mixed + u[:, j : j + count] * state[f"{name}.conv1d.weight"][:, 0, j]
        u = silu(mixed)
        low, b, c = np.split(linear(state, f"{name}.x_proj", u), [-2 * config.state, -config.state], axis=-1)
        delta, a = np.log1p(np.exp(linear(state, f"{name}.dt_proj", low))), -np.exp(state[f"{name}.A_log"])
        h, y = states.get(f"state_{i}", np.zeros((batch, inner, config.state))), np.empty_like(u)
        for t in range(count):
            h = np.exp(delta[:, t, :, None] * a) * h + (delta[:, t] * u[:, t])[..., None] * b[:, t, None]
            y[:, t] = (h * c[:, t, None]).sum(-1) + state[f"{name}.D"] * u[:, t]
        last.append(h)
        x = x + linear(state, f"{name}.out_proj", y * silu(gate))
    logits = rms_norm(state, "norm", x)[:, -1] @ state["embedding"].T * config.width**-0.5
    return logits, *(last if count == 1 else ())


def lstm(state: State, config: Any, *, tokens: Array, **given: Array) -> tuple[Array, ...]:
    logits = []
    for step in range(config.steps):
        x = state["embedding"][tokens[:, step].astype(int)]
        for i in range(len(config.hidden)):
            gates = linear(state, f"layer.{i}.gates", np.concatenate([x, given[f"output_{i}"]], axis=1))
            write, forget, new, show = np.split(gates, 4, axis=1)
            given[f"cell_{i}"] = sigmoid(forget) * given[f"cell_{i}"] + sigmoid(write) * np.tanh(new)
            x = sigmoid(show) * np.tanh(given[f"cell_{i}"])
            if config.projection:
                x = linear(state, f"layer.{i}.projection", x)
            given[f"output_{i}"] = x
        logits.append(linear(state, "decoder", x))
    return np.stack(logits, axis=1), *(given[f"cell_{i}"] for i in range(len(config.hidden)))


def llama(state: State, config: Any, *, tokens: Array, layer: Any = None) -> Array:
    x = state["embedding"][tokens.astype(int)]
    batch, count, width = x.shape
    d, past = width // config.heads, config.position
    for i in range(config.layers):
        name = f"layers.{i}"
        normed = rms_norm(state, f"{name}.attention_norm", x)
        out = np.zeros_like(x)
        q, k, v = (linear(state, f"{name}.attention.w{letter}", normed) for letter in "qkv")
        for b in range(batch):
            for head in range(config.heads):
                shared = head * config.kv_heads // config.heads
                queries = rotated(q[b, :, head * d : (head + 1) * d], past, config.theta)
                keys = rotated(k[b, :, shared * d : (shared + 1) * d], past, config.theta)
                values = v[b, :, shared * d : (shared + 1) * d]
                if past:
                    keys = np.concatenate([state[f"{name}.cache_k"][b, shared, :past], keys])
                    values = np.concatenate([state[f"{name}.cache_v"][b, shared, :past], values])
                for t in range(count):
                    seen = past + t + 1
                    weights = softmax(keys[:seen] @ queries[t] / np.sqrt(d))
                    out[b, t, head * d : (head + 1) * d] = weights @ values[:seen]
        x = x + linear(state, f"{name}.attention.wo", out)
        normed = rms_norm(state, f"{name}.ffn_norm", x)
        x = x + (layer or llama_layer)(state, config, name, normed)
    return linear(state, "output", rms_norm(state, "norm", x)[:, -1])


def llama_layer(state: State, config: Any, name: str, normed: Array) -> Array:
    gate = silu(linear(state, f"{name}.feed_forward.w1", normed))
    return linear(state, f"{name}.feed_forward.w2", gate * linear(state, f"{name}.feed_forward.w3", normed))


def moe_layer(state: State, config: Any, name: str, normed: Array) -> Array:
    out = np.zeros_like(normed)
    for place in np.ndindex(normed.shape[:-1]):
        x = normed[place]
        logits = state[f"{name}.router.weight"] @ x
        chosen = np.argsort(-logits)[: config.active]
        for expert, share in zip(chosen, softmax(logits[chosen]), strict=True):
            w1, w2, w3 = (state[f"{name}.experts.w{i}"][expert] for i in (1, 2, 3))
            out[place] += share * (w2 @ (silu(w1 @ x) * (w3 @ x)))
    return out


def rotated(x: Array, past: int, theta: float) -> Array:
    """Rows of x as complex numbers, first half real and second imaginary, turned by their position."""
    half = x.shape[-1] // 2
    positions = past + np.arange(len(x))[:, None]
    turned = (x[:, :half] + 1j * x[:, half:]) * np.exp(1j * positions * theta ** -(np.arange(half) / half))
    return np.concatenate([turned.real, turned.imag], axis=-1)


moe = partial(llama, layer=moe_layer)


@pytest.mark.parametrize(
    ("name", "forward", "preset", "tolerance"),
    first_rows(
        1,
        [
            ("bert", bert, "mini", 1e-4),
            ("llama", llama, "mini", 1e-4),
            ("llama", llama, "mini-decode", 1e-4),
            ("t5", t5, "mini", 1e-4),
            ("moe", moe, "mini", 1e-4),
            ("moe", moe, "mini-f16", 2e-2),
            ("mamba", mamba, "mini", 1e-4),
            ("mamba", mamba, "mini-step", 1e-4),
            ("lstm", lstm, "mini", 1e-4),
        ],
    ),
)
def test_language(name: str, forward: Any, preset: str, tolerance: float) -> None:
    check(name, forward, preset=preset, tolerance=tolerance)


def test_decoding_is_captured_with_its_position() -> None:
    calls = captured("llama", "mini-decode").calls
    symbolic = [call for call in calls if call.variables]
    assert symbolic and all(call.variables == (("start_pos", 37),) for call in symbolic)
