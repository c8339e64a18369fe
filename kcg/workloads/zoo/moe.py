"""Mixture of experts: Llama's decoder whose feed-forward is a few experts of many, chosen for each token by a router
(Shazeer et al., 2017; Jiang et al., 2024, Mixtral). Sizes are those of Mixtral, OLMoE, Granite 3 and Phi-3.5.

A prompt runs every expert on every token and weighs those that were not chosen with zero; one token at a time gathers
the weights of its experts only.
"""

from __future__ import annotations

from dataclasses import dataclass

from tinygrad import Tensor, UOp, dtypes

from kcg.workloads.family import Input, Parameters
from kcg.workloads.layers import linear
from kcg.workloads.zoo import llama

ABOUT = "a mixture of experts, the next token's logits: of a prompt, or with a cache"


@dataclass(frozen=True)
class Config(llama.Config):
    """Sizes as of Llama, `hidden` those of one expert."""

    experts: int = 8
    active: int = 2  # of them for a token
    sort: bool = False  # choose with a sort, as `topk` does, or by counting how many are larger


PRESETS = {
    "mini": Config(tokens=24, width=64, heads=4, kv_heads=2, hidden=96, vocabulary=320, experts=4, sort=True),
    "mini-f16": Config(
        dtype="float16", batch=2, position=21, context=48, layers=1, width=96, heads=6, kv_heads=2, hidden=128,
        vocabulary=512,
    ),
    "mini-odd": Config(
        tokens=35, width=84, heads=7, kv_heads=1, hidden=91, vocabulary=273, experts=5, active=3
    ),
    "mixtral": Config(dtype="float16", tokens=48, width=4096, hidden=14336, sort=True, theta=1e6),
    "mixtral-decode": Config(dtype="bfloat16", position=900, width=4096, hidden=14336, theta=1e6),
    "olmoe": Config(
        tokens=64, heads=16, kv_heads=16, hidden=1024, vocabulary=50304, experts=64, active=8, theta=1e4
    ),
    "olmoe-decode-b4": Config(
        dtype="bfloat16", batch=4, position=1200, context=4096, heads=16, kv_heads=16, hidden=1024, vocabulary=50304,
        experts=64, active=8, theta=1e4,
    ),
    "granite-1b": Config(
        dtype="bfloat16", tokens=256, width=1024, heads=16, hidden=512, vocabulary=49155, experts=32, active=8
    ),
    "granite-3b": Config(
        dtype="float16", batch=2, tokens=96, width=1536, heads=24, hidden=512, vocabulary=49155, experts=40, active=8
    ),
    "granite-3b-decode": Config(
        batch=3, position=450, context=1024, width=1536, heads=24, hidden=512, vocabulary=49155, experts=40, active=8
    ),
    "phi-3.5-decode": Config(
        dtype="float16", batch=2, position=250, context=512, width=4096, hidden=6400, vocabulary=32064, experts=16
    ),
}  # fmt: skip


def inputs(config: Config) -> dict[str, Input]:
    return llama.inputs(config)


def variables(config: Config) -> dict[str, UOp]:
    """As of Llama."""
    return llama.variables(config)


def run(p: Parameters, config: Config, *, tokens: Tensor, start_pos: UOp | None = None) -> Tensor:
    """Logits (batch, vocabulary) of the token after the last."""
    return llama.decoder(p, config, tokens, start_pos, _chosen_experts if config.position else _all_experts)


def _routed(p: Parameters, config: Config, name: str, x: Tensor) -> tuple[Tensor, Tensor]:
    """Of x (n, width) the chosen experts and their weights, both (n, active), the largest first."""
    logits = linear(p, f"{name}.router", x, config.experts, bias=False).cast(dtypes.float32).contiguous()
    if config.sort:
        largest, experts = logits.topk(config.active)
    else:
        one, other = logits.unsqueeze(-1), logits.unsqueeze(-2)
        before = Tensor.arange(config.experts).unsqueeze(0) < Tensor.arange(config.experts).unsqueeze(1)
        rank = ((other > one) | ((other == one) & before)).sum(-1).contiguous()
        places = rank.unsqueeze(-1) == Tensor.arange(config.active)
        experts = (places * Tensor.arange(config.experts).unsqueeze(-1)).sum(1).contiguous()
        largest = logits.gather(-1, experts)
    return experts, largest.softmax(-1).contiguous()


def _weights(p: Parameters, config: Config, name: str) -> list[Tensor]:
    """Gate and up (experts, width, hidden), and down (experts, hidden, width)."""
    w1, w3 = (
        p(f"{name}.experts.{w}", config.experts, config.hidden, config.width, fan_in=config.width) for w in ("w1", "w3")
    )
    w2 = p(f"{name}.experts.w2", config.experts, config.width, config.hidden, fan_in=config.hidden)
    return [w1.transpose(1, 2), w3.transpose(1, 2), w2.transpose(1, 2)]


def _all_experts(p: Parameters, config: Config, name: str, normed: Tensor) -> Tensor:
    x = normed.reshape(-1, config.width)
    experts, weights = _routed(p, config, name, x)
    shares = (experts.one_hot(config.experts) * weights.unsqueeze(-1)).sum(1).transpose().unsqueeze(-1).contiguous()
    w1, w3, w2 = _weights(p, config, name)
    gate = (x @ w1).silu().contiguous()  # (experts, n, hidden)
    between = (gate * (x @ w3) * shares.cast(x.dtype)).contiguous()
    joined = between.transpose(0, 1).reshape(len(x), -1) @ w2.reshape(-1, config.width)  # one sum over experts, hidden
    return joined.reshape(normed.shape)


def _chosen_experts(p: Parameters, config: Config, name: str, normed: Tensor) -> Tensor:
    x = normed.reshape(-1, 1, 1, config.width)
    experts, weights = _routed(p, config, name, normed.reshape(-1, config.width))
    w1, w3, w2 = (w[experts] for w in _weights(p, config, name))
    gate = (x @ w1).silu().contiguous()  # (n, active, 1, hidden)
    between = (gate * (x @ w3) * weights.reshape(*weights.shape, 1, 1).cast(x.dtype)).contiguous()
    return (between @ w2).contiguous().sum(1).reshape(normed.shape)
