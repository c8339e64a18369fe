"""Values at other ranges, with indices that are as short as can be."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from kcg.compat.tiny import Ops, UOp, dtypes

_PLAIN = (Ops.CONST, Ops.RANGE, Ops.PARAM)  # indices that are as short as can be


def moved(value: UOp, at: Mapping[UOp, UOp]) -> UOp:
    """A value at other ranges, its indices simplified."""
    return with_short_indices(value.substitute(dict(at)))


def with_short_indices(value: UOp) -> UOp:
    shorter = {}
    for node in value.toposort():
        if node.dtype is dtypes.weakint or node.op is Ops.REDUCE:
            continue
        places = [place for place, s in enumerate(node.src) if s.dtype is dtypes.weakint and s.op not in _PLAIN]
        if places:
            src = tuple(_short(s) if place in places else s for place, s in enumerate(node.src))
            shorter[node] = node.replace(src=src)
    return value.substitute({node: new for node, new in shorter.items() if node is not new}, walk=True)


def decided(value: UOp) -> UOp:
    """A value without choices whose condition is a constant."""
    new: dict[UOp, UOp] = {}
    for node in value.toposort():
        made = node.replace(src=tuple(new[s] for s in node.src)) if any(new[s] is not s for s in node.src) else node
        if made.op is Ops.WHERE and (condition := made.src[0].simplify()).op is Ops.CONST:
            made = made.src[1] if condition.arg else made.src[2]
        new[node] = made
    return new[value]


def _short(index: UOp) -> UOp:
    """An index with its products taken apart, so that a quotient and its rest become what was divided."""
    if index.op is Ops.WHERE:
        return index.replace(src=(index.src[0].simplify(), *map(_short, index.src[1:])))
    terms = _terms(index)
    if len(terms) < 2 or index.dtype is not dtypes.weakint:
        return index.simplify()
    short = _summed(terms).simplify()
    return _summed(_terms(short)) if short.op is Ops.ADD else short


def _summed(terms: dict[UOp, int]) -> UOp:
    """Terms times their factors, in an order that does not depend on where they come from."""
    order = sorted(terms, key=lambda term: (-abs(terms[term]), term.key))
    found = [term * terms[term] if terms[term] != 1 else term for term in order]
    return functools.reduce(lambda a, b: a + b, found)


def _terms(index: UOp, factor: int = 1) -> dict[UOp, int]:
    """A sum of terms times constants: the terms and their factors."""
    found: dict[UOp, int] = {}
    if index.op is Ops.ADD:
        for term, times in (pair for s in index.src for pair in _terms(s, factor).items()):
            found[term] = found.get(term, 0) + times
        return found
    if index.op is Ops.MUL:
        for one, other in (index.src, index.src[::-1]):
            if other.op is Ops.CONST and isinstance(other.arg, int):
                return _terms(one, factor * other.arg)
    return {index: factor}
