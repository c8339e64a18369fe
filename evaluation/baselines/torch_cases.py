"""The cases in PyTorch: the call, eager, compiled or in Triton."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from .cases import EPSILON, Case, angles, arrays

Tensor = torch.Tensor
Ready = tuple[Callable[..., Any], dict[str, Tensor]]  # what is compiled, and its inputs


def build(case: Case, device: str, seed: int = 0) -> Ready:
    """The function of a case and its inputs on `device`."""
    if case["kind"] == "family":
        from .torch_models import build_model

        return build_model(case["name"], case["preset"], device, seed)
    dtype = getattr(torch, case["dtype"])
    made = {name: torch.from_numpy(values).to(device).to(dtype) for name, values in arrays(case, seed).items()}
    if case["kind"] == "rope":
        turn = torch.from_numpy(angles(case).astype(np.float64)).to(device)
        made |= {"cos": turn.cos().float(), "sin": turn.sin().float()}
        return rope, made
    return CALLS[case["kind"]], made


def total(x: Tensor) -> Tensor:
    return x.sum()


def copy(x: Tensor) -> Tensor:
    return x.clone()


def softmax(x: Tensor) -> Tensor:
    return functional.softmax(x, dim=-1)


def layernorm(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:], scale, shift, EPSILON)


def gelu_mlp(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return functional.linear(functional.gelu(functional.linear(x, up), approximate="tanh"), down)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Of four dimensions: of three, PyTorch takes none of its fused kernels."""
    return functional.scaled_dot_product_attention(q[None], k[None], v[None])[0]


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Neighbours are pairs, as in Flux: x (tokens, heads, width), tables (tokens, width / 2)."""
    pairs = x.float().unflatten(-1, (-1, 2))
    a, b, cos, sin = pairs[..., 0], pairs[..., 1], cos.unsqueeze(1), sin.unsqueeze(1)
    return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2).to(x.dtype)


def backward_of(function: Callable[..., Tensor], inputs: dict[str, Tensor]) -> Callable[[], Tensor]:
    """The backward pass of `function` as autograd runs it, for the gradient `x` of its output."""
    gradient = inputs["x"]
    given = torch.zeros_like(gradient).requires_grad_()
    output = function(**{**inputs, "x": given})

    def backward() -> Tensor:
        (found,) = torch.autograd.grad(output, given, gradient, retain_graph=True)
        return found

    return backward


CALLS = {
    "sum": total, "copy": copy, "softmax": softmax, "layernorm": layernorm, "gelu_mlp": gelu_mlp,
    "attention": attention,
}  # fmt: skip
