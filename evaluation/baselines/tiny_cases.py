"""The cases in tinygrad, as its users write them."""

from __future__ import annotations

from typing import Any

from tinygrad import Tensor, dtypes

from kcg.workloads.family import tensor_of
from kcg.workloads.registry import Step, spec_of

from .cases import EPSILON, Case, angles, arrays


def build(case: Case, seed: int = 0) -> Step:
    """A step on realised inputs. Of `kind` family it is a preset of `kcg.workloads`."""
    if case["kind"] == "family":
        runnable = spec_of(case["name"]).runnable
        assert runnable is not None, f"{case['name']} changes its inputs"
        return runnable(case["preset"], seed)
    made = {name: tensor_of(values, case["dtype"]) for name, values in arrays(case, seed).items()}
    if case["kind"] == "rope":
        turn = angles(case)
        import numpy as np

        made |= {"cos": tensor_of(np.cos(turn), "float32"), "sin": tensor_of(np.sin(turn), "float32")}
        return Step(made, rope_backward if case["backward"] else rope)
    if case.get("program") == "one kernel":
        from .one_kernel import attention as in_one_kernel

        return Step(made, in_one_kernel)
    return Step(made, CALLS[case["kind"]])


def total(x: Tensor) -> Tensor:
    return x.sum()


def softmax(x: Tensor) -> Tensor:
    return x.softmax(-1, dtype=dtypes.float32).cast(x.dtype)


def layernorm(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return x.cast(dtypes.float32).layernorm(eps=EPSILON).cast(x.dtype) * scale + shift


def gelu_mlp(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return x.linear(up.transpose()).gelu().contiguous().linear(down.transpose())


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return q.scaled_dot_product_attention(k, v)


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Neighbours are pairs, as in Flux: x (tokens, heads, width), tables (tokens, width / 2)."""
    pairs = x.cast(dtypes.float32).reshape(*x.shape[:-1], -1, 2)
    a, b, cos, sin = pairs[..., 0], pairs[..., 1], cos.unsqueeze(1), sin.unsqueeze(1)
    return (a * cos - b * sin).stack(a * sin + b * cos, dim=-1).reshape(x.shape).cast(x.dtype)


def rope_backward(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The gradient with respect to what was rotated; `x` is that of the output."""
    given = Tensor.empty(*x.shape, dtype=x.dtype, device=x.device)  # a rotation's gradient does not read it
    (gradient,) = rope(given, cos, sin).gradient(given, gradient=x)
    return gradient


CALLS = {"sum": total, "softmax": softmax, "layernorm": layernorm, "gelu_mlp": gelu_mlp, "attention": attention}


def outputs_of(returned: Any) -> list[Tensor]:
    """What a step gave, as a list."""
    return [returned] if isinstance(returned, Tensor) else list(returned)
