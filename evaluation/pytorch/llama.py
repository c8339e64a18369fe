"""One token of a Llama in PyTorch, as `torch.compile` takes it best: a cache of fixed size, one position as a tensor.

The module has the sizes of a preset of the workload `llm` and random weights. It is written for CUDA graphs, as
gpt-fast and the static cache of transformers are: no shape depends on the position, and nothing is read back inside.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, rms_norm, scaled_dot_product_attention, silu

from kcg.workloads.llm import LlmConfig


class Block(nn.Module):
    """A layer: attention over a cache of (heads, context, head size), and a gated product."""

    def __init__(self, config: LlmConfig, made: dict[str, Any]) -> None:
        super().__init__()
        self.config, width, keys = config, config.width, config.kv_heads * config.head_size
        queries = config.heads * config.head_size
        self.norms = nn.ParameterList(torch.ones(width, **made) for _ in range(2))
        self.qkv = nn.Linear(width, queries + 2 * keys, bias=False, **made)
        self.output = nn.Linear(queries, width, bias=False, **made)
        self.gate_and_up = nn.Linear(width, 2 * config.hidden, bias=False, **made)
        self.down = nn.Linear(config.hidden, width, bias=False, **made)
        shape = (1, config.kv_heads, config.context, config.head_size)
        self.register_buffer("keys", torch.zeros(shape, **made))
        self.register_buffer("values", torch.zeros(shape, **made))

    def forward(self, x: Tensor, position: Tensor, turn: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        """x (1, 1, width) at `position` (1,); `mask` (1, context) says which keys there are."""
        config, size = self.config, self.config.head_size
        sizes = [config.heads * size, config.kv_heads * size, config.kv_heads * size]
        made = self.qkv(rms_norm(x, (config.width,), self.norms[0], config.epsilon)).split(sizes, dim=-1)
        query, key, value = (one.view(1, 1, -1, size).transpose(1, 2) for one in made)
        query, key = rotated(query, turn), rotated(key, turn)
        self.keys.index_copy_(2, position, key)
        self.values.index_copy_(2, position, value)
        made_of = scaled_dot_product_attention(query, self.keys, self.values, attn_mask=mask, enable_gqa=True)
        x = x + self.output(made_of.transpose(1, 2).reshape(1, 1, -1))
        both = self.gate_and_up(rms_norm(x, (config.width,), self.norms[1], config.epsilon))
        gate, up = both.chunk(2, dim=-1)
        out: Tensor = x + self.down(silu(gate) * up)
        return out


class Llama(nn.Module):
    """A token (1, 1) at a position (1,) to the next token (1, 1), the most likely one."""

    def __init__(self, config: LlmConfig, device: str, dtype: torch.dtype) -> None:
        super().__init__()
        made: dict[str, Any] = {"device": torch.device(device), "dtype": dtype}
        self.config = config
        self.embedding = nn.Parameter(torch.randn(config.vocabulary, config.width, **made) * config.width**-0.5)
        self.blocks = nn.ModuleList(Block(config, made) for _ in range(config.blocks))
        self.norm = nn.Parameter(torch.ones(config.width, **made))
        angles = torch.outer(torch.arange(config.context), config.theta ** -(torch.arange(0, 1, 2 / config.head_size)))
        self.register_buffer("turns", torch.stack((angles.cos(), angles.sin())).to(device))
        self.register_buffer("places", torch.arange(config.context, device=device))

    def logits(self, token: Tensor, position: Tensor) -> Tensor:
        """(1, 1, vocabulary)."""
        x = embedding(token, self.embedding)
        cosine, sine = self.turns.index_select(1, position).to(x.dtype)
        mask = (self.places <= position)[None]
        for block in self.blocks:
            x = block(x, position, (cosine, sine), mask)
        return rms_norm(x, (self.config.width,), self.norm, self.config.epsilon) @ self.embedding.T

    def forward(self, token: Tensor, position: Tensor) -> Tensor:
        return self.logits(token, position).argmax(-1)


def rotated(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """x (1, heads, 1, head size), whose halves are the parts of a rotation."""
    cosine, sine = turn
    one, other = x.chunk(2, dim=-1)
    return torch.cat((one * cosine - other * sine, other * cosine + one * sine), dim=-1)
