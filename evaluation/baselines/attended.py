"""Attention in float64, at the values that are compared."""

from __future__ import annotations

import math

import numpy as np

from .cases import Array, picked


def attended(q: Array, k: Array, v: Array) -> list[float]:
    """The compared values of attention without a mask, each (heads, tokens, width): only those rows are computed."""
    heads, tokens, width = q.shape
    rows, columns = picked(heads * tokens, width)
    out = []
    for head, row in zip(*divmod(rows, tokens), strict=True):
        scores = k[head] @ q[head, row] / math.sqrt(width)
        weights = np.exp(scores - scores.max())
        out.append(weights / weights.sum() @ v[head][:, columns])
    return [float(value) for value in np.concatenate(out)]
