"""What regions compute, as a user of PyTorch writes it. Each takes tensors in the order of `Function.takes`.

Values are stored in the data type of the first tensor; norms and rotations are computed in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

LAYER_EPSILON = 1e-5  # of `evaluation.pytorch.layers`
EPSILON = 1e-6  # of Flux, and of the zoo's RMSNorm

Tensor = torch.Tensor


def softmax(x: Tensor) -> Tensor:
    """Of rows."""
    return F.softmax(x, dim=-1)


def layer_norm(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Of rows, scaled and shifted."""
    return F.layer_norm(x, x.shape[-1:], scale, shift, LAYER_EPSILON)


def rms_norm(x: Tensor, scale: Tensor) -> Tensor:
    """Of rows, scaled."""
    return F.rms_norm(x, x.shape[-1:], scale, EPSILON)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Of each row, float32."""
    return F.cross_entropy(logits.float(), labels.long(), reduction="none")


def modulated_norm(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """Flux's norm of rows, by a scale and a shift that are computed from the conditioning, float32."""
    return (F.layer_norm(x.float(), x.shape[-1:], eps=EPSILON) * (1 + scale) + shift).to(x.dtype)


def norm_rope(x: Tensor, scale: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RMS norm of each head of x (tokens, heads, width), then the rotation of neighbours.

    `cos` is (tokens, 1, pairs), `sin` (tokens, 1, pairs, 2): the first of a pair takes the first sine of its other.
    """
    return rope(F.rms_norm(x, x.shape[-1:], scale, EPSILON), cos, sin)


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The rotation alone, see `norm_rope`."""
    pairs = x.float().unflatten(-1, (-1, 2))
    a, b = pairs[..., 0], pairs[..., 1]
    return torch.stack((a * cos + b * sin[..., 0], b * cos + a * sin[..., 1]), dim=-1).flatten(-2).to(x.dtype)


def rotations(made: Tensor, query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
    """Query and key of `made` (tokens, 3 x heads x width), heads first, the query scaled for attention."""
    width = query.shape[0]
    q, k, _ = made.unflatten(-1, (-1, width)).chunk(3, dim=1)
    q = norm_rope(q, query, cos, sin) * width**-0.5
    return q.transpose(0, 1), norm_rope(k, key, cos, sin).transpose(0, 1)


def joined_rotations(
    text: Tensor,
    image: Tensor,
    text_query: Tensor,
    text_key: Tensor,
    image_query: Tensor,
    image_key: Tensor,
    cos: Tensor,
    sin: Tensor,
) -> tuple[Tensor, ...]:
    """Query, key and value of two streams, each with norms of its own: normalised, joined, then rotated."""
    width = text_query.shape[0]
    streams = [made.unflatten(-1, (-1, width)).chunk(3, dim=1) for made in (text, image)]
    queries, keys = (
        torch.cat([F.rms_norm(of[place], (width,), scale, EPSILON) for of, scale in zip(streams, scales, strict=True)])
        for place, scales in enumerate(((text_query, image_query), (text_key, image_key)))
    )
    value = torch.cat([of[2] for of in streams]).flatten(1)
    return (rope(queries, cos, sin) * width**-0.5).transpose(0, 1), rope(keys, cos, sin).transpose(0, 1), value


def projected(
    x: Tensor, weight: Tensor, bias: Tensor, query: Tensor, key: Tensor, cos: Tensor, sin: Tensor
) -> tuple[Tensor, ...]:
    """Query, key and value of x: a linear layer, then `rotations`."""
    made = F.linear(x, weight, bias)
    return (*rotations(made, query, key, cos, sin), made.chunk(3, dim=-1)[2])


def joined_projections(
    text: Tensor,
    text_weight: Tensor,
    text_bias: Tensor,
    image: Tensor,
    image_weight: Tensor,
    image_bias: Tensor,
    *rest: Tensor,
) -> tuple[Tensor, ...]:
    """Query, key and value of two streams: their linear layers, then `joined_rotations`."""
    made = (F.linear(text, text_weight, text_bias), F.linear(image, image_weight, image_bias))
    return joined_rotations(*made, *rest)


def attention(query: Tensor, key: Tensor, value: Tensor, **how: Any) -> Tensor:
    """Of each head: query (heads, queries, width), key and value (heads, keys, width)."""
    return F.scaled_dot_product_attention(query[None], key[None], value[None], **how)[0]


def attention_of_scaled(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The same, whose query is scaled already."""
    return attention(query, key, value, scale=1.0)


def causal_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The same, of keys up to the query's place."""
    return attention(query, key, value, is_causal=True)


def grouped_causal_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The same of query (heads of keys, heads that share these, queries, width)."""
    return attention(query.flatten(0, 1), key, value, is_causal=True, enable_gqa=True).view(query.shape)


def decoding_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Of one token: query (heads of keys, heads that share these, width), key and value (heads, keys, width)."""
    heads = query.flatten(0, 1).unsqueeze(1)
    return attention(heads, key, value, enable_gqa=True).view(query.shape)


ATTENTIONS = (
    "attention",
    "attention_of_scaled",
    "causal_attention",
    "grouped_causal_attention",
    "decoding_attention",
)
BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION,
            "efficient": SDPBackend.EFFICIENT_ATTENTION}  # fmt: skip
"""What PyTorch's attention may run on, by our names."""


def by_backend(name: str, backend: str) -> Callable[..., Any]:
    """One of `ATTENTIONS` on one of `BACKENDS`. Calling it raises where PyTorch has none for it."""

    def run(*tensors: Tensor) -> Any:
        with sdpa_kernel(BACKENDS[backend]):
            return FUNCTIONS[name](*tensors)

    return run


FUNCTIONS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        softmax,
        layer_norm,
        rms_norm,
        cross_entropy,
        modulated_norm,
        rotations,
        joined_rotations,
        projected,
        joined_projections,
        attention,
        attention_of_scaled,
        causal_attention,
        grouped_causal_attention,
        decoding_attention,
    )
}
"""By name, as `Function.name` has it."""
