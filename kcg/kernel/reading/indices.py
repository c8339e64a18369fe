"""Values at other ranges, with indices that are as short as can be."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping

from kcg.compat.tiny import Ops, PatternMatcher, UOp, UPat, dtypes, graph_rewrite

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
    return graph_rewrite(value, _DECIDED, walk=True)


def _chosen(choice: UOp) -> UOp | None:
    condition = choice.src[0].simplify()
    if condition.op is not Ops.CONST:
        return None
    return choice.src[1] if condition.arg else choice.src[2]


_DECIDED = PatternMatcher([(UPat(Ops.WHERE, name="choice"), _chosen)])


@functools.lru_cache(1 << 13)  # a region is read in several ways, and the next one has most of its indices
def _short(index: UOp) -> UOp:
    """An index with its products taken apart, so that a quotient and its rest become what was divided."""
    index = graph_rewrite(index, _DIVIDED, walk=True)
    if index.op is Ops.WHERE:
        return index.replace(src=(index.src[0].simplify(), *map(_short, index.src[1:])))
    terms = _terms(index)
    if len(terms) < 2 or index.dtype is not dtypes.weakint:
        return index.simplify()
    short = _summed(terms).simplify()
    return _summed(_terms(short)) if short.op is Ops.ADD else short


Polynomial = dict[tuple[int, UOp | None], int]
"""A sum of powers of a variable, times terms, times constants."""


def _by_size(index: UOp, size: UOp) -> tuple[UOp, UOp] | None:
    """A quotient by a size that is a variable and a constant, and the rest, where that is 0 or a range of this size."""
    variables = [node for node in size.toposort() if node.op is Ops.PARAM]
    if len(variables) != 1:
        return None
    divided, by = _polynomial(index, variables[0]), _polynomial(size, variables[0])
    if divided is None or by is None or by.pop((1, None), 0) != 1 or not by.keys() <= {(0, None)}:
        return None
    if any(power > 1 for power, _ in divided):
        return None
    quotient = {term: times for (power, term), times in divided.items() if power}
    terms = {term for _, term in divided}
    rest = {term: divided.get((0, term), 0) - by.get((0, None), 0) * quotient.get(term, 0) for term in terms}
    left = {term: times for term, times in rest.items() if times}
    zero, one = index.const_like(0), index.const_like(1)
    within = zero
    for term, times in left.items():
        if term is None or times != 1 or len(left) > 1 or term.op is not Ops.RANGE or term.src[0] is not size:
            return None
        within = term
    found = {one if term is None else term: times for term, times in quotient.items()}
    return _summed(found) if found else zero, within


def _without_quotient(divided: UOp, index: UOp, size: UOp) -> UOp | None:
    """A quotient by a size that is known only when the program runs, or its rest, without a division."""
    found = _by_size(index, size) if size.op is not Ops.CONST and not size.ranges else None
    return None if found is None else found[divided.op is Ops.FLOORMOD]


_DIVIDED = PatternMatcher(
    [(UPat((Ops.FLOORDIV, Ops.FLOORMOD), src=(UPat.var("index"), UPat.var("size")), name="divided"), _without_quotient)]
)
"""Quotients by a variable size, where what is divided is a multiple of it, and maybe a range of that size."""


def _polynomial(index: UOp, variable: UOp) -> Polynomial | None:
    """An index as a polynomial of a variable; None where terms are multiplied with each other."""
    if index.op is Ops.CONST:
        return {(0, None): int(index.arg)} if index.arg else {}
    if index is variable:
        return {(1, None): 1}
    if index.op not in (Ops.ADD, Ops.MUL):
        return {(0, index): 1}
    one, other = (_polynomial(s, variable) for s in index.src)
    if one is None or other is None:
        return None
    found: Polynomial = {}
    if index.op is Ops.ADD:
        for key, times in (*one.items(), *other.items()):
            found[key] = found.get(key, 0) + times
        return found
    for ((power, term), times), ((more, factor), again) in itertools.product(one.items(), other.items()):
        if term is not None and factor is not None:
            return None
        key = power + more, factor if term is None else term
        found[key] = found.get(key, 0) + times * again
    return found


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
