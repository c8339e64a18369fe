"""Losses of classifiers and language models over their logits, and the gradients with respect to the logits.

- `sparse`: cross-entropy with integer labels and label smoothing (Szegedy et al., 2016);
- `ignoring`: the mean over the rows whose label is not padding, with the z-loss of PaLM (Chowdhery et al., 2022);
- `soft`: cross-entropy with a distribution as the target, as of mixed-up pictures (Zhang et al., 2018);
- `distill`: Kullback-Leibler divergence to the softened logits of a teacher (Hinton et al., 2015);
- `binary`: sigmoid cross-entropy of many labels at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from tinygrad import Tensor, dtypes

from kcg.workloads.family import Input, Parameters

ABOUT = "cross-entropy and its kin, loss and gradient of the logits"

SMOOTHING, Z_LOSS, WARMTH, PADDING = 0.1, 1e-4, 2.0, 0


@dataclass(frozen=True)
class Config:
    """What one preset computes: kind of loss, rows, classes."""

    dtype: str
    cases: tuple[tuple[str, int, int], ...]


PRESETS = {
    "mini": Config(
        "float32", (("sparse", 12, 20), ("ignoring", 16, 30), ("binary", 4, 18))
    ),
    "mini-f16": Config("float16", (("soft", 64, 100), ("distill", 48, 512))),
    "mini-odd": Config(
        "float32", (("sparse", 49, 1001), ("ignoring", 91, 637), ("soft", 21, 343), ("binary", 65, 91))
    ),
    "language": Config(  # GPT-2, Llama 2
        "float16", (("sparse", 4096, 50257), ("ignoring", 2048, 32000))
    ),
    "language-bf16": Config(  # Llama 3, Gemma
        "bfloat16", (("ignoring", 1024, 128256), ("distill", 256, 256000))
    ),
    "language-f32": Config("float32", (("ignoring", 1229, 30522), ("sparse", 1000, 151936))),
    "pictures": Config(  # ImageNet-1k and -21k, with mixed-up labels
        "float16", (("sparse", 4096, 1000), ("soft", 512, 21843), ("binary", 256, 21841))
    ),
    "pictures-f32": Config(
        "float32", (("soft", 2048, 365), ("distill", 1024, 1000), ("binary", 4096, 80))
    ),
    "pixels-bf16": Config(  # segmentation with the classes of Cityscapes, ADE20K and COCO
        "bfloat16", (("ignoring", 524288, 19), ("sparse", 131072, 150), ("binary", 65536, 133))
    ),
    "contrastive": Config(  # CLIP's similarities, two-tower retrieval
        "float16", (("sparse", 4096, 4096), ("soft", 1536, 1536), ("distill", 333, 50000))
    ),
}  # fmt: skip


def inputs(config: Config) -> dict[str, Input]:
    found = {}
    for i, (kind, rows, classes) in enumerate(config.cases):
        found[f"logits{i}"] = Input((rows, classes), config.dtype)
        if kind in ("sparse", "ignoring"):
            found[f"target{i}"] = Input((rows,), "int32", below=classes)
        elif kind == "binary":
            found[f"target{i}"] = Input((rows, classes), "uint8", below=2)
        else:  # of a teacher; a softmax of these is the distribution
            found[f"target{i}"] = Input((rows, classes), config.dtype)
    return found


def run(p: Parameters, config: Config, **inputs: Tensor) -> tuple[Tensor, ...]:
    """For each case the mean loss, then its gradient with respect to the logits."""
    losses = {"sparse": _sparse, "ignoring": _ignoring, "soft": _soft, "distill": _distill, "binary": _binary}
    outputs = []
    for i, (kind, *_) in enumerate(config.cases):
        given, target = inputs[f"logits{i}"], inputs[f"target{i}"]
        loss, gradient = losses[kind](given.cast(dtypes.float32), target)
        outputs += [loss, gradient.cast(given.dtype)]
    return tuple(outputs)


def _normaliser(x: Tensor) -> Tensor:
    """log(sum(exp(x))) of each row, materialised: loss and gradient read it."""
    return x.logsumexp(-1, keepdim=True).contiguous()


def _sparse(x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    rows, classes = (int(n) for n in x.shape)
    normaliser = _normaliser(x)
    target = labels.unsqueeze(-1)._one_hot_along_dim(classes) * (1 - SMOOTHING) + SMOOTHING / classes
    loss = (target * (normaliser - x)).sum(-1).contiguous().mean()
    return loss, ((x - normaliser).exp() - target) / rows


def _ignoring(x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    normaliser = _normaliser(x)
    counts = (labels != PADDING).cast(dtypes.float32).unsqueeze(-1)
    total = counts.sum().contiguous()
    picked = x.gather(-1, labels.unsqueeze(-1)).contiguous()
    loss = (counts * (normaliser - picked + Z_LOSS * normaliser.square())).sum() / total
    target = labels.unsqueeze(-1)._one_hot_along_dim(int(x.shape[-1]))
    slope = (x - normaliser).exp() * (1 + 2 * Z_LOSS * normaliser) - target
    return loss, slope * counts / total


def _soft(x: Tensor, teacher: Tensor) -> tuple[Tensor, Tensor]:
    normaliser, target = _normaliser(x), teacher.cast(dtypes.float32).softmax().contiguous()
    loss = (target * (normaliser - x)).sum(-1).contiguous().mean()
    return loss, ((x - normaliser).exp() - target) / int(x.shape[0])


def _distill(x: Tensor, teacher: Tensor) -> tuple[Tensor, Tensor]:
    cool, wanted = x / WARMTH, teacher.cast(dtypes.float32) / WARMTH
    logs, wanted_logs = cool - _normaliser(cool), wanted - _normaliser(wanted)
    loss = (wanted_logs.exp() * (wanted_logs - logs)).sum(-1).contiguous().mean() * WARMTH**2
    return loss, (logs.exp() - wanted_logs.exp()) * (WARMTH / int(x.shape[0]))


def _binary(x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    wanted = target.cast(dtypes.float32)
    loss = (x.relu() - x * wanted + (1 + (-x.abs()).exp()).log()).sum(-1).contiguous().mean() / int(x.shape[1])
    return loss, (x.sigmoid() - wanted) / x.numel()
