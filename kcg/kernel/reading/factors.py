"""The factors of a product, and the format in which they are multiplied."""

from __future__ import annotations

from dataclasses import dataclass

from kcg.compat.tiny import DType, InvalidType, Ops, UOp, dtypes

NARROW = (dtypes.float16, dtypes.bfloat16)
"""Formats that are computed in float32 and rounded only where they are stored or multiplied by a tensor core."""


@dataclass(frozen=True)
class Factor:
    """One factor of a contraction's product: a value, or (with `gate`) a condition without which the product is 0."""

    node: UOp
    gate: bool = False
    inverted: bool = False


def factors_of(node: UOp) -> list[Factor]:
    """The factors of a product, through casts to wider floats, products and conditions that give 0 otherwise."""
    if node.op is Ops.CAST and _widens(node):
        return factors_of(node.src[0])
    if node.op is Ops.MUL and node.dtype is not dtypes.bool:
        return [f for s in node.src for f in factors_of(s)]
    if node.op is Ops.WHERE and dtypes.is_float(node.dtype):
        condition, one, other = node.src
        if is_zero(other) and _is_product(one):
            return [Factor(condition, gate=True), *factors_of(one)]
        if is_zero(one) and _is_product(other):
            return [Factor(condition, gate=True, inverted=True), *factors_of(other)]
    return [Factor(node)]


def _is_product(node: UOp) -> bool:
    while node.op is Ops.CAST and _widens(node):
        node = node.src[0]
    return bool(node.op is Ops.MUL)


def _widens(node: UOp) -> bool:
    """Whether a cast keeps every value."""
    source = node.src[0].dtype
    if dtypes.is_float(node.dtype):
        narrow = dtypes.fp8s if source in dtypes.fp8s else NARROW
        return source in narrow and node.dtype not in narrow
    return source is dtypes.int8 and node.dtype is dtypes.int32


def is_zero(node: UOp) -> bool:
    """Whether a value is the constant 0."""
    return bool(node.op is Ops.CONST and not isinstance(node.arg, InvalidType) and float(node.arg) == 0)


def product_dtype(reduce: UOp, sides: list[list[Factor]]) -> DType | None:
    """The format in which the operands are multiplied: a narrow one only where that loses nothing that the kernel
    keeps. None where tensor cores have none."""
    values = [[f.node for f in side if not f.gate] for side in sides]
    found = {node.dtype for side in values for node in side}
    if dtypes.is_int(reduce.dtype):
        return dtypes.int8 if found == {dtypes.int8} and all(len(side) == 1 for side in values) else None
    if not dtypes.is_float(reduce.dtype) or reduce.dtype is dtypes.float64 or dtypes.float64 in found:
        return None
    single = all(len(side) == 1 for side in values)
    if single and found <= set(dtypes.fp8s):
        return found.pop() if len(found) == 1 else dtypes.float16
    narrow = [d for d in found if d in NARROW]
    if len(narrow) == 1 and found <= {*narrow, *dtypes.fp8s, dtypes.weakfloat}:  # which hold all values of 8 bits
        product = reduce.src[0]
        while product.op is Ops.CAST:
            product = product.src[0]
        if single or product.dtype in NARROW:
            return narrow[0]
    return dtypes.float32
