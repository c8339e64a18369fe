"""What kernels are alike in, whatever they compute: form, data types, and extents rounded to powers of two.

The form is a word of tile programs, but read from the AST's text alone: thousands of kernels take a second, foreign
ones are safe to read, and no kernel moves when the reader of tile programs learns of another one.

- `elementwise`, nothing is reduced. Its extent: elements that are stored.
- `contraction`, a sum of products of an operand with rows and one with columns. Its extents: the fewer of rows and
  columns, the more, what is neither (batches), and terms. So a product and its transpose are one class.
- `reduction`, any other. Its extents: results, and terms of each.

A kernel with several reductions has the forms and extents of each, of equal ones once. An extent is the product of all
ranges that it is made of, so that a view of other dimensions changes nothing. What is done to an element, how buffers
are laid out and how many there are is left out: a product, and the same with an activation and a sum, are one class.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kcg.errors import CodecError
from kcg.kernel.codec import FORMAT
from kcg.types import Kernel, canonical_json

ELEMENTWISE, CONTRACTION, REDUCTION = "elementwise", "contraction", "reduction"
VERSION: Final = 1  # part of every class: a change of what kernels are alike in is another number here
STEP: Final = 1  # of rounding: by how much each extent of near kernels differs at most
MOST_FACTORS: Final = 64  # of one product that are looked at
_KNOWN: dict[str, Likeness] = {}  # by kernel id


@dataclass(frozen=True)
class Likeness:
    """What the kernels of a class have in common."""

    form: str  # of several reductions one word for each, joined by `+`
    dtypes: tuple[str, ...]  # of buffers, each once, sorted
    extents: tuple[int, ...]  # binary logarithms, rounded; of symbolic extents the largest

    @property
    def name(self) -> str:
        """SHA-256 (hex) of it: the class."""
        text = canonical_json([VERSION, self.form, self.dtypes, self.extents])
        return hashlib.sha256(text.encode()).hexdigest()

    def is_near(self, other: Likeness) -> bool:
        """Whether form and data types are the same and every extent is within one step of rounding.

        Classes alone do not say it: 1,448 and 1,449 are rounded apart. With a step to each side all that is less than a
        factor of two away in each extent is near, and nothing that is more than a factor of four away in one.
        """
        if (self.form, self.dtypes, len(self.extents)) != (other.form, other.dtypes, len(other.extents)):
            return False
        return all(abs(own - its) <= STEP for own, its in zip(self.extents, other.extents, strict=True))


def likeness_of(kernel: Kernel) -> Likeness:
    """What a kernel is alike others in, in 0.1 ms. Raises CodecError where its text is no AST."""
    kernel_id = kernel.id
    if kernel_id not in _KNOWN:
        _KNOWN[kernel_id] = _read(kernel.ast_json)
    return _KNOWN[kernel_id]


def near_any(wanted: Iterable[Likeness], others: Iterable[Likeness]) -> set[Likeness]:
    """Those of `wanted` that are near one of the others."""
    known: Mapping[tuple[object, ...], set[Likeness]] = defaultdict(set)
    for one in others:
        known[one.form, one.dtypes].add(one)
    return {one for one in set(wanted) if any(map(one.is_near, known.get((one.form, one.dtypes), ())))}


def _read(ast_json: str) -> Likeness:
    try:
        value = json.loads(ast_json)
        if value["format"] != FORMAT:
            raise CodecError(f"the AST is not of format {FORMAT}")
        return _Nodes(value["nodes"]).likeness()
    except CodecError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError, ArithmeticError) as error:
        raise CodecError(f"the AST is malformed: {type(error).__name__}: {str(error)[:160]}") from error


class _Nodes:
    """The nodes of an AST as its text has them. Sets of ranges are numbers, a bit for each range."""

    def __init__(self, nodes: list[Any]) -> None:
        self.nodes = nodes
        self.sizes: list[float] = []  # of ranges
        self.over: list[int] = []  # of each node the ranges that it depends on
        self.reductions: list[tuple[int, int]] = []  # each node, and the ranges that it is over
        self.stored = 0  # ranges of what is stored
        most: list[float] = []  # of each node that is a size the largest value
        for i, (op, _dtype, sources, arg) in enumerate(nodes):
            if not all(type(s) is int and 0 <= s < i for s in sources):
                raise CodecError(f"AST node {i}: a source must be the index of an earlier node")
            over = self._over_any(sources)
            if op == "RANGE":
                over |= 1 << len(self.sizes)
                self.sizes.append(max(most[sources[0]], 1.0))
            elif op == "REDUCE":
                terms = self._over_any(sources[1:])
                self.reductions.append((i, terms))
                over &= ~terms
            elif op == "STORE":
                self.stored |= self.over[sources[0]]
            self.over.append(over)
            most.append(_most(op, arg, [most[s] for s in sources]))
        if not nodes:
            raise CodecError("the AST has no nodes")

    def likeness(self) -> Likeness:
        """See the module."""
        buffers = {str(row[3][1]) for row in self.nodes if row[0] == "PARAM" and row[3][4] is None}
        found = sorted({self._of_reduction(*reduction) for reduction in self.reductions})
        found = found or [(ELEMENTWISE, (self._rounded(self.stored),))]
        extents = tuple(extent for _, extents in found for extent in extents)
        return Likeness("+".join(form for form, _ in found), tuple(sorted(buffers)), extents)

    def _of_reduction(self, node: int, terms: int) -> tuple[str, tuple[int, ...]]:
        results = self.over[node]
        if self.nodes[node][3][0] != "ADD" or (sides := self._sides(node, results)) is None:
            return REDUCTION, (self._rounded(results), self._rounded(terms))
        fewer, more = sorted(map(self._rounded, sides))
        return CONTRACTION, (fewer, more, self._rounded(results & ~sides[0] & ~sides[1]), self._rounded(terms))

    def _sides(self, node: int, results: int) -> tuple[int, int] | None:
        """The ranges of rows and of columns: those of one of two factors that the other one lacks."""
        spans = {self.over[factor] & results for factor in self._factors(self.nodes[node][2][0])}
        pairs = [(one & ~other, other & ~one) for one in spans for other in spans if one & ~other and other & ~one]
        return max(pairs, key=lambda pair: (min(map(self._size, pair)), pair), default=None)

    def _factors(self, node: int) -> list[int]:
        """What is multiplied, through casts and through conditions without which it is a constant."""
        found, left = list[int](), [node]
        while left and len(found) + len(left) <= MOST_FACTORS:
            op, _dtype, sources, _arg = self.nodes[one := left.pop()]
            if op == "WHERE":
                values = [s for s in sources[1:] if self.nodes[s][0] != "CONST"]
                sources = values if len(values) == 1 else ()
            if op in ("MUL", "CAST", "WHERE") and sources:
                left += sources
            else:
                found.append(one)
        return found + left

    def _over_any(self, nodes: Iterable[int]) -> int:
        found = 0
        for node in nodes:
            found |= self.over[node]
        return found

    def _size(self, ranges: int) -> float:
        return math.prod(size for place, size in enumerate(self.sizes) if ranges >> place & 1)

    def _rounded(self, ranges: int) -> int:
        return round(math.log2(self._size(ranges)))


def _most(op: str, arg: Any, below: list[float]) -> float:
    """The largest value of a size: a constant, a variable, or what is computed of them."""
    match op:
        case "CONST":
            return float(arg) if type(arg) is int else 0.0
        case "PARAM":
            return float(arg[2][1]) if arg[2] is not None else 0.0
        case "ADD":
            return sum(below)
        case "MUL":
            return math.prod(below)
    return max(below, default=0.0)
