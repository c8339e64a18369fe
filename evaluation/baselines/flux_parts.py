"""The parts of a step of Flux in PyTorch, cut as kcg's model of it cuts them: what each kernel has to beat."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional

from kcg.workloads.flux import FluxConfig

Tensor = torch.Tensor


@dataclass(frozen=True)
class Part:
    """One part: what it computes on tensors of these shapes, how often a step calls it, its arithmetic and least bytes.

    `operations` counts multiply-adds of matmuls only; `values` how many values are read and written, each once.
    """

    call: Callable[..., Tensor]
    shapes: dict[str, tuple[int, ...]]
    calls: int
    values: int
    operations: int = 0


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.linear(x, weight, bias)


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.gelu(functional.linear(x, weight, bias), approximate="tanh")


def linear_gated(x: Tensor, weight: Tensor, bias: Tensor, gate: Tensor, residual: Tensor) -> Tensor:
    return residual + gate * functional.linear(x, weight, bias)


def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(query, key, value)


def modulated_norm(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:], eps=1e-6) * (1 + scale) + shift


def gelu(x: Tensor) -> Tensor:
    return functional.gelu(x, approximate="tanh")


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x (tokens, heads, width), tables (tokens, 1, width / 2): neighbours are pairs."""
    pairs = x.float().unflatten(-1, (-1, 2))
    a, b = pairs[..., 0], pairs[..., 1]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2).to(x.dtype)


def norm_rope(x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RMS norm of every head, then the rotation: what stands between a projection and attention."""
    return rope(functional.rms_norm(x, x.shape[-1:], weight, 1e-6), cos, sin)


def parts(config: FluxConfig) -> dict[str, Part]:
    """The parts of a step by name, such as `linear 4608x9216x3072` (rows, outputs, inputs)."""
    hidden, mlp, both = config.hidden, config.mlp_hidden, config.tokens
    heads, dim, double, single = config.heads, config.head_dim, config.double_blocks, config.single_blocks
    found: dict[str, Part] = {}

    def add_linear(call: Callable[..., Tensor], rows: int, outputs: int, inputs: int, calls: int) -> None:
        name = f"{call.__name__} {rows}x{outputs}x{inputs}"
        before = found[name].calls if name in found else 0
        shapes = {"x": (rows, inputs), "weight": (outputs, inputs), "bias": (outputs,)}
        if call is linear_gated:
            shapes |= {"gate": (1, outputs), "residual": (rows, outputs)}
        values = sum(_count(s) for s in shapes.values()) + rows * outputs
        found[name] = Part(call, shapes, before + calls, values, 2 * rows * outputs * inputs)

    for rows in (config.image_tokens, config.text_tokens):
        add_linear(linear, rows, 3 * hidden, hidden, double)
        add_linear(linear_gated, rows, hidden, hidden, double)
        add_linear(linear_gelu, rows, mlp, hidden, double)
        add_linear(linear_gated, rows, hidden, mlp, double)
        add_linear(linear, 1, 6 * hidden, hidden, double)
    add_linear(linear, both, 3 * hidden, hidden, single)
    add_linear(linear_gelu, both, mlp, hidden, single)
    add_linear(linear_gated, both, hidden, hidden + mlp, single)
    add_linear(linear, 1, 3 * hidden, hidden, single)
    head, table = (1, heads, both, dim), (both, 1, dim // 2)
    three = dict.fromkeys(("query", "key", "value"), head)
    name = f"attention {heads}x{both}x{dim}"
    found[name] = Part(attention, three, double + single, 4 * _count(head), 4 * both * both * hidden)
    for rows, calls in ((config.image_tokens, 2 * double), (config.text_tokens, 2 * double), (both, single)):
        shapes = {"x": (rows, hidden), "shift": (1, hidden), "scale": (1, hidden)}
        found[f"modulated_norm {rows}x{hidden}"] = Part(modulated_norm, shapes, calls, 2 * rows * hidden)
    found[f"gelu {both}x{mlp}"] = Part(gelu, {"x": (both, mlp)}, single, 2 * both * mlp)
    turned = {"x": (both, heads, dim), "cos": table, "sin": table}
    moved = 2 * both * hidden + 2 * _count(table)
    found[f"rope {both}x{heads}x{dim}"] = Part(rope, turned, 2 * (double + single), moved)
    found[f"norm_rope {both}x{heads}x{dim}"] = Part(
        norm_rope, {**turned, "weight": (dim,)}, 2 * (double + single), moved
    )
    return found


def _count(shape: tuple[int, ...]) -> int:
    return int(torch.Size(shape).numel())
