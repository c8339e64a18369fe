"""Layers that several families share, as tinygrad users write them."""

from __future__ import annotations

from dataclasses import dataclass

from tinygrad import Tensor, UOp, Variable, dtypes

from kcg.workloads.family import Parameters


def linear(p: Parameters, name: str, x: Tensor, outputs: int, *, bias: bool = True) -> Tensor:
    """x (…, inputs) times a weight (outputs, inputs), plus a bias."""
    inputs = int(x.shape[-1])
    out = x.linear(p(f"{name}.weight", outputs, inputs).transpose())
    return out + p(f"{name}.bias", outputs) if bias else out


@dataclass(frozen=True)
class Window:
    """A square window of a convolution, and how it moves; by default the size of the picture stays."""

    size: int
    stride: int = 1
    padding: int | None = None
    groups: int = 1  # of channels, each convolved by itself


def conv2d(p: Parameters, name: str, x: Tensor, outputs: int, window: Window | int, *, bias: bool = True) -> Tensor:
    """A convolution of x (n, channels, height, width) with a window, or one of that size."""
    w = Window(window) if isinstance(window, int) else window
    weight = p(f"{name}.weight", outputs, int(x.shape[1]) // w.groups, w.size, w.size)
    shift = p(f"{name}.bias", outputs) if bias else None
    padding = w.size // 2 if w.padding is None else w.padding
    return x.conv2d(weight, shift, groups=w.groups, stride=w.stride, padding=padding)


def layer_norm(p: Parameters, name: str, x: Tensor, *, epsilon: float = 1e-5) -> Tensor:
    """Over the last axis, with scale and shift; computed in float32, materialised in the dtype of x."""
    width = int(x.shape[-1])
    normed = x.cast(dtypes.float32).layernorm(eps=epsilon).cast(x.dtype)
    return (normed * p(f"{name}.weight", width, around=1.0) + p(f"{name}.bias", width)).contiguous()


def rms_norm(p: Parameters, name: str, x: Tensor, *, epsilon: float = 1e-6) -> Tensor:
    """Over the last axis, with a scale; computed in float32, materialised in the dtype of x."""
    wide = x.cast(dtypes.float32)
    normed = wide * (wide.square().mean(-1, keepdim=True) + epsilon).rsqrt()
    return (normed.cast(x.dtype) * p(f"{name}.weight", int(x.shape[-1]), around=1.0)).contiguous()


def group_norm(p: Parameters, name: str, x: Tensor, groups: int, *, epsilon: float = 1e-5) -> Tensor:
    """Of (n, channels, …) over each group of channels and all places; float32, in the dtype of x, not materialised."""
    channels = int(x.shape[1])
    grouped = x.cast(dtypes.float32).reshape(x.shape[0], groups, -1)
    normed = grouped.layernorm(eps=epsilon).reshape(x.shape).cast(x.dtype)
    shape = (1, channels, *([1] * (x.ndim - 2)))
    return normed * p(f"{name}.weight", channels, around=1.0).reshape(shape) + p(f"{name}.bias", channels).reshape(
        shape
    )


def batch_norm(p: Parameters, name: str, x: Tensor, *, epsilon: float = 1e-5) -> Tensor:
    """Of (n, channels, height, width) with running statistics, as in inference; not materialised."""
    channels = int(x.shape[1])
    scale, shift = p(f"{name}.weight", channels, around=1.0), p(f"{name}.bias", channels)
    mean, variance = p(f"{name}.running_mean", channels), p(f"{name}.running_var", channels, around=1.0)
    return x.batchnorm(scale, shift, mean, (variance + epsilon).rsqrt())


def conv_norm(
    p: Parameters, name: str, x: Tensor, outputs: int, size: int, *, stride: int = 1, groups: int = 1
) -> Tensor:
    """A convolution without bias that keeps the size (but for the stride), then a batch norm; not materialised."""
    out = conv2d(p, f"{name}.conv", x, outputs, Window(size, stride, groups=groups), bias=False)
    return batch_norm(p, f"{name}.norm", out)


def residual_block(
    p: Parameters, name: str, x: Tensor, channels: int, groups: int, *, time: Tensor | None = None
) -> Tensor:
    """Stable Diffusion's: twice group norm, SiLU and a 3x3 convolution, plus x; `time` (n, width) is added between."""
    y = group_norm(p, f"{name}.norm1", x, groups).silu().contiguous()
    y = conv2d(p, f"{name}.conv1", y, channels, 3)
    if time is not None:
        shift = linear(p, f"{name}.time", time, channels).contiguous()
        y = y + shift.reshape(-1, channels, 1, 1)
    y = group_norm(p, f"{name}.norm2", y.contiguous(), groups).silu().contiguous()
    if x.shape[1] != channels:
        x = conv2d(p, f"{name}.shortcut", x, channels, 1).contiguous()
    return (x + conv2d(p, f"{name}.conv2", y, channels, 3)).contiguous()


def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, bias: Tensor | None = None) -> Tensor:
    """softmax(q·kᵀ/√d + bias)·v of (batch, heads, tokens, d); scores and weights are materialised."""
    scores = (q @ k.transpose(-2, -1)).cast(dtypes.float32) * int(q.shape[-1]) ** -0.5
    if bias is not None:
        scores = scores + bias
    if causal:
        rows, columns = int(scores.shape[-2]), int(scores.shape[-1])
        scores = scores + Tensor.full((rows, columns), float("-inf"), buffer=False).triu(columns - rows + 1)
    weights = scores.cast(q.dtype).contiguous().softmax(-1, dtype=dtypes.float32).cast(q.dtype).contiguous()
    return (weights @ v).contiguous()


def start_position(position: int, context: int) -> dict[str, UOp]:
    """The bound variable of a step that reads the token after `position` others in a cache of `context` places; none of
    a prompt, whose position is 0."""
    return {"start_pos": Variable("start_pos", 1, context - 1).bind(position)} if position else {}


def cached(p: Parameters, name: str, context: int, new: Tensor, start: UOp) -> Tensor:
    """`new` (batch, heads, 1, d) put into a cache of `context` places at `start`, then the cache up to there."""
    batch, heads, _, d = new.shape
    cache = p(name, int(batch), int(heads), context, int(d), fan_in=1)
    written = cache.uop.after(cache[:, :, start : start + 1].uop.store(new.uop))
    return Tensor(written)[:, :, : start + 1]
