"""Language models of the zoo against NumPy."""

from __future__ import annotations

from typing import Any

from tests.zoo.reference import Array, State, attention, check, gelu_tanh, heads, joined, layer_norm, linear


def gpt2(state: State, config: Any, *, tokens: Array) -> Array:
    x = state["embedding"][tokens.astype(int)] + state["positions"]
    for i in range(config.layers):
        q, k, v = (
            heads(part, config.heads)
            for part in _split(linear(state, f"h.{i}.attn.c_attn", layer_norm(state, f"h.{i}.ln_1", x)))
        )
        x = x + linear(state, f"h.{i}.attn.c_proj", joined(attention(q, k, v, causal=True)))
        between = gelu_tanh(linear(state, f"h.{i}.mlp.c_fc", layer_norm(state, f"h.{i}.ln_2", x)))
        x = x + linear(state, f"h.{i}.mlp.c_proj", between)
    out: Array = layer_norm(state, "ln_f", x) @ state["embedding"].T * config.width**-0.5
    return out


def _split(x: Array) -> list[Array]:
    width = x.shape[-1] // 3
    return [x[..., i * width : (i + 1) * width] for i in range(3)]


def test_gpt2() -> None:
    check("gpt2", gpt2)
