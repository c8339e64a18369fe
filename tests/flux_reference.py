"""An independent forward pass of Flux.1 in NumPy float64, written from the published description, for the tests.

It shares no code and no layout decisions with `kcg.workloads.flux`: whole concatenations, separate double and single
blocks as published, softmax with the maximum subtracted, rotation through 2×2 matrices.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Reference:
    """Flux.1 from a state dict of float arrays; sizes other than `heads` and `axes_dim` are read off the weights."""

    def __init__(self, state: dict[str, Any], *, heads: int, axes_dim: tuple[int, ...] = (16, 56, 56)) -> None:
        self.state = {name: np.asarray(value, dtype=np.float64) for name, value in state.items()}
        self.heads, self.axes_dim = heads, axes_dim

    def _blocks(self, kind: str) -> int:
        return len({name.split(".")[1] for name in self.state if name.startswith(kind + ".")})

    def _linear(self, name: str, x: Array) -> Array:
        return np.einsum("...i,oi->...o", x, self.state[name + ".weight"], optimize=True) + self.state[name + ".bias"]

    def _embed(self, name: str, x: Array) -> Array:
        return self._linear(name + ".out_layer", silu(self._linear(name + ".in_layer", x)))

    def _split_heads(self, qkv: Array, norm: str) -> tuple[Array, Array, Array]:
        n = qkv.shape[0]
        q, k, v = qkv.reshape(n, 3, self.heads, -1).transpose(1, 2, 0, 3)
        q = rms_norm(q) * self.state[norm + ".query_norm.scale"]
        k = rms_norm(k) * self.state[norm + ".key_norm.scale"]
        return q, k, v

    def __call__(
        self, *, img: Any, img_ids: Any, txt: Any, txt_ids: Any, timestep: Any, y: Any, guidance: Any = None
    ) -> Array:
        given = [np.asarray(a, dtype=np.float64) for a in (img, img_ids, txt, txt_ids, timestep, y)]
        img, img_ids, txt, txt_ids, timestep, y = given
        vec = self._embed("time_in", sinusoidal(timestep[0])) + self._embed("vector_in", y[0])
        if guidance is not None:
            vec = vec + self._embed("guidance_in", sinusoidal(np.asarray(guidance, dtype=np.float64)[0]))
        vec = silu(vec)
        rotation = rotations(np.concatenate([txt_ids[0], img_ids[0]]), self.axes_dim)
        image, text = self._linear("img_in", img[0]), self._linear("txt_in", txt[0])
        split = text.shape[0]
        for i in range(self._blocks("double_blocks")):
            image, text = self._double(f"double_blocks.{i}", image, text, vec, rotation)
        x = np.concatenate([text, image])
        for i in range(self._blocks("single_blocks")):
            x = self._single(f"single_blocks.{i}", x, vec, rotation)
        shift, scale = np.split(self._linear("final_layer.adaLN_modulation.1", vec), 2)
        out: Array = self._linear("final_layer.linear", layer_norm(x[split:]) * (1 + scale) + shift)
        return out[None]

    def _double(self, block: str, image: Array, text: Array, vec: Array, rotation: Array) -> tuple[Array, Array]:
        image_mod = np.split(self._linear(f"{block}.img_mod.lin", vec), 6)
        text_mod = np.split(self._linear(f"{block}.txt_mod.lin", vec), 6)
        heads = []
        for name, x, mod in (("txt", text, text_mod), ("img", image, image_mod)):
            qkv = self._linear(f"{block}.{name}_attn.qkv", (1 + mod[1]) * layer_norm(x) + mod[0])
            heads.append(self._split_heads(qkv, f"{block}.{name}_attn.norm"))
        q, k, v = (np.concatenate(parts, axis=1) for parts in zip(*heads, strict=True))
        attended = attention(q, k, v, rotation)
        results = []
        for name, x, mod, mine in (
            ("img", image, image_mod, attended[text.shape[0] :]),
            ("txt", text, text_mod, attended[: text.shape[0]]),
        ):
            x = x + mod[2] * self._linear(f"{block}.{name}_attn.proj", mine)
            inner = gelu_tanh(self._linear(f"{block}.{name}_mlp.0", (1 + mod[4]) * layer_norm(x) + mod[3]))
            results.append(x + mod[5] * self._linear(f"{block}.{name}_mlp.2", inner))
        return results[0], results[1]

    def _single(self, block: str, x: Array, vec: Array, rotation: Array) -> Array:
        shift, scale, gate = np.split(self._linear(f"{block}.modulation.lin", vec), 3)
        both = self._linear(f"{block}.linear1", (1 + scale) * layer_norm(x) + shift)
        qkv, inner = both[:, : 3 * x.shape[1]], both[:, 3 * x.shape[1] :]
        q, k, v = self._split_heads(qkv, f"{block}.norm")
        joined = np.concatenate([attention(q, k, v, rotation), gelu_tanh(inner)], axis=1)
        return x + gate * self._linear(f"{block}.linear2", joined)


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def gelu_tanh(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def layer_norm(x: Array) -> Array:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)


def rms_norm(x: Array) -> Array:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)


def sinusoidal(t: Any, width: int = 256) -> Array:
    angles = 1000 * t * 10_000.0 ** (-np.arange(width // 2) / (width // 2))
    return np.concatenate([np.cos(angles), np.sin(angles)])


def rotations(ids: Array, axes_dim: tuple[int, ...], theta: float = 10_000.0) -> Array:
    """A 2×2 matrix per position and pair of channels: (L, head_dim/2, 2, 2)."""
    angles = [np.outer(ids[:, a], theta ** (-np.arange(0, dim, 2) / dim)) for a, dim in enumerate(axes_dim)]
    angle = np.concatenate(angles, axis=1)
    rows = [np.stack([np.cos(angle), -np.sin(angle)], -1), np.stack([np.sin(angle), np.cos(angle)], -1)]
    return np.stack(rows, axis=-2)


def attention(q: Array, k: Array, v: Array, rotation: Array) -> Array:
    """(heads, L, D) each to (L, heads·D)."""
    q, k = (np.einsum("lpij,hlpj->hlpi", rotation, x.reshape(*x.shape[:2], -1, 2)).reshape(x.shape) for x in (q, k))
    scores = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    out = weights / weights.sum(-1, keepdims=True) @ v
    return np.ascontiguousarray(out.transpose(1, 0, 2)).reshape(q.shape[1], -1)
