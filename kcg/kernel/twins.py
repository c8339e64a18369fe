"""A kernel's identity without its sizes: two kernels that differ only in them are twins, see `twin_id`.

A predictor that has learned from a kernel has also learned much of its twin, so a test set of kernels "never seen"
says which of its kernels have twins in training.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from typing import Any

from kcg.compat.tiny import GroupOp, Ops
from kcg.errors import CodecError
from kcg.kernel.codec import FORMAT
from kcg.types import Kernel, canonical_json

TWIN_FORMAT = 1
"""Part of every twin id: a change of what makes two kernels twins is another number here."""

MAX_TERMS = 64  # longest chain of one operation that is compared without its order

_UNORDERED = frozenset(op.name for op in (*GroupOp.Commutative, Ops.REDUCE, Ops.END, Ops.SINK))
_CHAINS = frozenset(op.name for op in (Ops.ADD, Ops.MUL))
_INTEGERS = ("int", "uint", "weakint")
_KNOWN: dict[str, str] = {}  # twin ids by kernel id: 0.2 kB each


def twin_id(kernel: Kernel) -> str:
    """SHA-256 (hex) of a kernel's AST without its extents: operations, data types, axis types and who reads what.

    Left out are the values of integer and finite float constants (extents, strides, offsets and bounds are integers; a
    scale such as 1/n is a float), limits of variables and all names. Each node's hash is made of its sources' hashes,
    so that it does not matter which nodes coincide because two sizes are equal; the order of what commutes is left
    out. Where a size of 1 or a multiple changes the structure, kernels are no twins. Raises CodecError where
    the text is no AST; it is not checked as `decode` checks it.
    """
    kernel_id = kernel.id
    if kernel_id not in _KNOWN:
        _KNOWN[kernel_id] = _twin_of(kernel.ast_json)
    return _KNOWN[kernel_id]


def _twin_of(ast_json: str) -> str:
    try:
        value = json.loads(ast_json)
        if value["format"] != FORMAT:
            raise CodecError(f"the AST is not of format {FORMAT}")
        return _hash_of_rows(value["nodes"])
    except CodecError:
        raise
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError, struct.error) as error:
        raise CodecError(f"the AST is malformed: {type(error).__name__}: {str(error)[:160]}") from error


def _hash_of_rows(rows: list[Any]) -> str:
    labels = _labels(rows)
    hashes: list[str] = []
    terms: list[list[str]] = []  # of each node: itself, or what it adds or multiplies together
    for i, (op, dtype, sources, arg) in enumerate(rows):
        if not all(0 <= s < i for s in sources):
            raise CodecError(f"AST node {i}: a source must be the index of an earlier node")
        below = [hashes[s] for s in sources]
        chain = op in _CHAINS and dtype.startswith(_INTEGERS)
        if chain:
            flat = [t for s in sources for t in (terms[s] if rows[s][:2] == [op, dtype] else [hashes[s]])]
            below = flat if len(flat) <= MAX_TERMS else below
        if op in ("REDUCE", "END"):
            below = [below[0], *sorted(below[1:])]  # ranges have no order, what they close is first
        elif op in _UNORDERED:
            below.sort()
        label = labels[i] if i in labels else _without_sizes(op, arg)
        text = canonical_json([TWIN_FORMAT, op, dtype, label, below])
        hashes.append(hashlib.sha256(text.encode()).hexdigest())
        terms.append(below if chain else [hashes[i]])
    return hashes[-1]


def _labels(rows: list[Any]) -> dict[int, object]:
    """Ranges and variables by their rank, so that gaps in the numbers (a size of 1 has no range) do not count."""
    ranges = sorted((row[3][:-1], i) for i, row in enumerate(rows) if row[0] == "RANGE")
    variables = [i for i, row in enumerate(rows) if row[0] == "PARAM" and row[3][4] is not None]
    found: dict[int, object] = {i: [rank, rows[i][3][-1]] for rank, (_, i) in enumerate(ranges)}
    return found | {i: rank for rank, i in enumerate(variables)}


def _without_sizes(op: str, arg: Any) -> object:
    """What of a node's argument is no size."""
    if op == "CONST":
        if type(arg) is int:
            return None
        if isinstance(arg, str) and arg != "Invalid":  # the bits of a float
            value = struct.unpack("<d", bytes.fromhex(arg)[::-1])[0]
            return None if math.isfinite(value) else str(value)
        return arg
    if op == "PARAM":
        slot, _dtype, _limits, _multiple_of, _name, space, axis, volatile = arg
        return [slot, space, axis, volatile]
    return arg
