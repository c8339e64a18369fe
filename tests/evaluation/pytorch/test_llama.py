"""The Llama that `torch.compile` is measured on: a step with its cache gives what all tokens at once give."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import embedding, rms_norm, scaled_dot_product_attention, silu

from evaluation.pytorch.llama import Llama, rotated
from kcg.workloads.llm import LLAMA_1B

SMALL = replace(LLAMA_1B, blocks=2, width=64, hidden=96, heads=4, kv_heads=2, head_size=16, vocabulary=50, context=12)


def at_once(model: Llama, tokens: Tensor) -> Tensor:
    """The logits after each of some tokens (1, n), without a cache."""
    config, count = model.config, tokens.shape[1]
    x = embedding(tokens, model.embedding)
    cosine, sine = model.turns[:, :count].to(x.dtype)
    for block in model.blocks:
        made = block.qkv(rms_norm(x, (config.width,), block.norms[0], config.epsilon))
        sizes = [config.heads * config.head_size, *[config.kv_heads * config.head_size] * 2]
        q, k, v = (one.view(1, count, -1, config.head_size).transpose(1, 2) for one in made.split(sizes, dim=-1))
        q, k = rotated(q, (cosine, sine)), rotated(k, (cosine, sine))
        seen = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + block.output(seen.transpose(1, 2).reshape(1, count, -1))
        gate, up = block.gate_and_up(rms_norm(x, (config.width,), block.norms[1], config.epsilon)).chunk(2, dim=-1)
        x = x + block.down(silu(gate) * up)
    return rms_norm(x, (config.width,), model.norm, config.epsilon) @ model.embedding.T


def test_a_step_with_its_cache_gives_what_all_tokens_at_once_give() -> None:
    torch.manual_seed(0)
    model = Llama(SMALL, "cpu", torch.float32).eval()
    tokens = torch.randint(0, SMALL.vocabulary, (1, 9))
    with torch.no_grad():
        wanted = at_once(model, tokens)
        for number in range(tokens.shape[1]):
            found = model.logits(tokens[:, number : number + 1], torch.tensor([number]))
            assert torch.allclose(found[0, 0], wanted[0, number], atol=1e-4), number
        last = model(tokens[:, -1:], torch.tensor([8]))
    assert last.item() == wanted[0, -1].argmax().item()
