"""The parts of a step of Flux in PyTorch, cut as kcg's model of it cuts them, and the part that a kernel belongs to."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from evaluation.pytorch.kind import ITEM_BYTES
from evaluation.rows import rounded, speed
from kcg.compat.tiny import Ops, UOp
from kcg.kernel.analysis import contractions
from kcg.workloads.flux import PRESETS, FluxConfig

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


MATMUL, COPY = "ceiling matmul", "ceiling copy"
Row = dict[str, Any]


def build_region(case: dict[str, Any], device: str) -> tuple[Callable[..., Tensor], dict[str, Tensor]]:
    """The part `name` of `preset` on random inputs; weights are scaled by fan-in. Ceilings are parts too."""
    config = PRESETS[case["preset"]]
    part = (parts(config) | ceilings(device))[case["name"]]
    dtype, generator = getattr(torch, config.dtype), torch.Generator(device).manual_seed(0)
    made = {}
    for name, shape in part.shapes.items():
        deviation = shape[-1] ** -0.5 if name == "weight" and len(shape) > 1 else 1.0
        made[name] = torch.randn(shape, generator=generator, device=device, dtype=dtype) * deviation
    return part.call, made


def _copy(x: Tensor) -> Tensor:
    return x.clone()


def ceilings(device: str) -> dict[str, Part]:
    """What this device reaches: a large matmul, and a copy of many times its cache."""
    side, elements = (8192, 1 << 29) if device == "cuda" else (512, 1 << 22)
    square = {"x": (side, side), "weight": (side, side), "bias": (side,)}
    return {
        "ceiling matmul": Part(linear, square, 0, 3 * side * side, 2 * side**3),
        "ceiling copy": Part(_copy, {"x": (elements,)}, 0, 2 * elements),
    }


def names(preset: str) -> list[str]:
    """The ceilings, then the parts of a preset."""
    return [MATMUL, COPY, *parts(PRESETS[preset])]


def reported(row: Row, name: str, preset: str, device: str, rows: dict[str, Row]) -> Row:
    """A row with its part's calls in a step, the rates of each contender, and its share of the roofline of this device,
    which the ceilings among `rows` give."""
    part = (parts(PRESETS[preset]) | ceilings(device))[name]
    moved = part.values * ITEM_BYTES[PRESETS[preset].dtype]
    peak, bandwidth = (ceiling(rows, key, what) for key, what in ((MATMUL, "tflop_s"), (COPY, "gb_s")))
    for found in row.values():
        if found["status"] != "ok":
            continue
        found.update(speed(found["cold_s"], operations=part.operations, bytes=moved))
        if peak and bandwidth:
            floor_s = max(part.operations / (peak * 1e12), moved / (bandwidth * 1e9))
            found["roofline_share"] = rounded(floor_s / found["cold_s"])
    return {"calls": part.calls, "operations": part.operations, "bytes": moved, "contenders": row}


def ceiling(rows: dict[str, Row], key: str, what: str) -> float:
    """The best of a ceiling's contenders; 0 where there is none."""
    of = rows.get(f"region {key}", {"contenders": {}})["contenders"]
    return max((found.get(what, 0.0) for found in of.values()), default=0.0)


JOINED = "text and image joined"
ENDS = "embedders, rotation tables, last layer"


def part_of(ast: UOp, config: FluxConfig) -> str:
    """The part that a kernel belongs to: one of `flux_parts`, or `JOINED` or `ENDS`, which have no part there.

    Attention is every kernel that reads or writes scores, (heads, tokens, tokens). A matmul is known by its sizes; the
    last one of a single block is two kernels, over attention's and over the MLP's share of its inputs.
    """
    heads, both, hidden, mlp = config.heads, config.tokens, config.hidden, config.mlp_hidden
    by_slot = {u.arg.slot: u.max_numel() for u in ast.toposort() if u.op is Ops.PARAM and u.arg.slot >= 0}
    sizes = [by_slot[slot] for slot in sorted(by_slot)]  # the first is what the kernel writes
    if any(size == heads * both * both for size in sizes):
        return f"attention {heads}x{both}x{config.head_dim}"
    joined = f"linear_gated {both}x{hidden}x{hidden + mlp}"
    known = [*_linears(config).items(), *((joined, (both, hidden, inputs)) for inputs in (hidden, mlp))]
    for found in contractions(ast):
        of_size = [
            (name, rows, outputs, inputs)
            for name, (rows, outputs, inputs) in known
            if (found.operations, math.prod(found.reduce_shape)) == (2 * rows * outputs * inputs, inputs)
        ]
        # at small sizes 256x256 and 64x1024 outputs are as many: then the buffers tell
        for name, rows, outputs, inputs in of_size if len(of_size) > 1 else ():
            if not Counter((rows * inputs, rows * outputs)) - Counter(sizes):
                return name
        if of_size:
            return of_size[0][0]
    return _memory_part(sizes[0], set(sizes[1:]), config)


def _memory_part(written: int, read: set[int], config: FluxConfig) -> str:
    """The part of a kernel that is bound by memory, told by how many values it writes and reads of each buffer."""
    text, image, both, hidden = config.text_tokens, config.image_tokens, config.tokens, config.hidden
    for rows in (image, text, both):  # mean, then deviation, then both and a modulation's shift and scale applied
        applied = written == rows * hidden and rows in read
        if (written == rows or applied) and {rows * hidden} <= read <= {rows * hidden, rows, 6 * hidden, 3 * hidden}:
            return f"modulated_norm {rows}x{hidden}"
    inverse = both * 2 * config.heads  # of the deviation of every head's query and key
    projected = ({both * 3 * hidden}, {text * 3 * hidden, image * 3 * hidden})
    if (written == inverse and read in projected) or (written == both * hidden and inverse in read):
        return f"norm_rope {both}x{config.heads}x{config.head_dim}"
    if written == both * hidden and read in ({text * hidden, image * hidden}, projected[1]):
        return JOINED
    return ENDS


def _linears(config: FluxConfig) -> dict[str, tuple[int, int, int]]:
    """Name -> rows, outputs, inputs of every matmul with weights but the joined one."""
    found = {}
    for name in parts(config):
        if name.startswith("linear"):
            rows, outputs, inputs = (int(n) for n in name.partition(" ")[2].split("x"))
            found[name] = (rows, outputs, inputs)
    return found
