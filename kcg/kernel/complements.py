"""Products that tinygrad computes as a complement: x / (1 + x) becomes 1 - 1 / (1 + x), which is never 0 · inf.

After the rules for it in tinygrad/uop/symbolic.py (0.14.0). The result is as good as its distance from 1, not
as its size: where x is small it may be 0.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kcg.compat.tiny import DType, Ops, UOp, dtypes
from kcg.kernel.numerics import Value, unit_roundoff

_ROUNDINGS = 4  # of 1 + x, of its reciprocal (two), and of the difference


def complements(ast: UOp) -> dict[UOp, UOp]:
    """The x of every product in which x and 1 / (1 + x) come together, as factors of factors."""
    factors: dict[UOp, frozenset[UOp]] = {}
    found: dict[UOp, UOp] = {}
    for node in ast.toposort():
        if node.op is not Ops.MUL or not dtypes.is_float(node.dtype):
            continue
        a, b = (factors.get(side, frozenset((side,))) for side in node.src)
        factors[node] = a | b
        x = next((x for ours, theirs in ((a, b), (b, a)) for d in theirs for x in _below(d) if x in ours), None)
        if x is not None:
            found[node] = x
    return found


def _below(node: UOp) -> tuple[UOp, ...]:
    """The x of 1 / (1 + x)."""
    if node.op is not Ops.RECIPROCAL or node.src[0].op is not Ops.ADD:
        return ()
    one, other = node.src[0].src
    return tuple(x for c, x in ((one, other), (other, one)) if c.op is Ops.CONST and c.arg == 1)


def as_complement(product: Value, x: Value, dtype: DType) -> Value:
    """The product with the error that it has as a complement too."""
    size: NDArray[np.float64] = np.abs(product.data)
    with np.errstate(all="ignore"):
        share = np.abs(x.data / (1 + x.data))  # of the product: the rest is |product| / share
        error = np.where((share > 0) & np.isfinite(size), _ROUNDINGS * unit_roundoff(dtype) * size / share, 0.0)
    return product._replace(error=error if product.error is None else product.error + np.nan_to_num(error))
