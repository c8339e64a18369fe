"""What the training steps of the zoo share: materialised activations, batch statistics, gradients of a loss."""

from __future__ import annotations

from collections.abc import Sequence

from tinygrad import Tensor, dtypes

from kcg.workloads import layers
from kcg.workloads.family import Parameters

LOSS_SCALE = 1024.0
"""Of float16 steps, as in mixed-precision training (Micikevicius et al., 2018): small gradients do not underflow."""


def kept(x: Tensor) -> Tensor:
    """x, materialised in the forward pass, and its gradient materialised in the backward pass.

    Without the second, tinygrad may fuse the two contractions that a gradient goes through.
    """
    return x.contiguous().contiguous_backward()


def step(
    p: Parameters, loss: Tensor, names: Sequence[str], *, rate: float = 0.0, loss_scale: float = LOSS_SCALE
) -> tuple[Tensor, ...]:
    """The loss and its gradient for each of the named parameters, or what plain gradient descent at `rate` makes of
    these parameters, in new tensors. Float16 gradients are of a scaled loss; they come back unscaled, in float32.
    """
    scale = loss_scale if p.dtype == "float16" else 1.0
    targets = [p.tensors[name] for name in names]
    gradients = (loss * scale).gradient(*targets)
    if scale != 1:
        gradients = [gradient.cast(dtypes.float32) * (1 / scale) for gradient in gradients]
    if rate:
        pairs = zip(targets, gradients, strict=True)
        return loss, *((target - rate * gradient).cast(target.dtype) for target, gradient in pairs)
    return loss, *gradients


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean of the cross-entropy over the last axis, in float32; logits and their gradient are materialised."""
    return kept(logits).cast(dtypes.float32).sparse_categorical_crossentropy(labels)


def batch_norm(p: Parameters, name: str, x: Tensor, *, epsilon: float = 1e-5) -> Tensor:
    """Of (n, channels, height, width) with the batch's own statistics, as in training (Ioffe and Szegedy, 2015)."""
    channels = int(x.shape[1])
    wide = x.cast(dtypes.float32)
    mean = wide.mean((0, 2, 3))
    centred = wide - mean.reshape(1, channels, 1, 1)
    variance = centred.square().mean((0, 2, 3))
    scale, shift = p(f"{name}.weight", channels, around=1.0), p(f"{name}.bias", channels)
    normed = centred * (variance + epsilon).rsqrt().reshape(1, channels, 1, 1)
    return (normed * scale.reshape(1, channels, 1, 1) + shift.reshape(1, channels, 1, 1)).cast(x.dtype)


def layer_norm(p: Parameters, name: str, x: Tensor, *, epsilon: float = 1e-5) -> Tensor:
    """As `layers.layer_norm`, its gradient materialised too."""
    return layers.layer_norm(p, name, x, epsilon=epsilon).contiguous_backward()


def rms_norm(p: Parameters, name: str, x: Tensor, *, epsilon: float = 1e-6) -> Tensor:
    """As `layers.rms_norm`, its gradient materialised too."""
    return layers.rms_norm(p, name, x, epsilon=epsilon).contiguous_backward()


def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False) -> Tensor:
    """softmax(q·kᵀ/√d)·v of (batch, heads, tokens, d); all between, and its gradients, are materialised."""
    q, k, v = (part.contiguous_backward() for part in (q, k, v))
    scores = (q @ k.transpose(-2, -1)).cast(dtypes.float32) * int(q.shape[-1]) ** -0.5
    if causal:
        rows, columns = int(scores.shape[-2]), int(scores.shape[-1])
        scores = scores + Tensor.full((rows, columns), float("-inf")).triu(columns - rows + 1)
    weights = kept(kept(scores.cast(q.dtype)).softmax(-1, dtype=dtypes.float32).cast(q.dtype))
    return kept(weights @ v)
