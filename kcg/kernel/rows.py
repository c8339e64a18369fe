"""Which elements of its inputs a kernel reduces to one output: read off its AST, whatever the layout.

Who wants to know whether a reduction leaves out a term must change that term; who wants a row of zeros must know what
the row is.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kcg.compat.tiny import AxisType, Invalid, Ops, UOp, dtypes
from kcg.kernel.arithmetic import Value
from kcg.kernel.ast import buffer_of, store_of
from kcg.kernel.reference import Run

Elements = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ReducedLoad:
    """A load, inside a reduction, of another element for each of its terms."""

    ast: UOp
    place: int  # of the store among the kernel's
    reduction: UOp
    load: UOp
    variables: Mapping[str, int]

    @property
    def slot(self) -> int:
        """The buffer that is read."""
        return int(buffer_of(self.load).arg.slot)

    @functools.cached_property
    def terms(self) -> int:
        """How many terms the reduction has."""
        return math.prod(self._extents)

    @property
    def decides(self) -> bool:
        """Whether one term may be the whole result, so that all others may be left out unseen: of a maximum, a minimum,
        any and all."""
        op = self.reduction.arg[0]
        return op is Ops.MAX or (op is Ops.MUL and self.reduction.dtype is dtypes.bool)

    @property
    def equals(self) -> UOp | None:
        """The load, the same for all terms, with which the reduction compares this one for equality: of an argmax."""
        return self._equality[0] if self._equality else None

    def equal_to(self, values: NDArray[Any]) -> NDArray[Any]:
        """Stored bits of this load that count as equal to those of `equals`: of an argmin the negated ones."""
        assert self._equality is not None
        return np.asarray(-values if self._equality[1] is Ops.MUL else ~values if self._equality[1] else values)

    @functools.cached_property
    def _equality(self) -> tuple[UOp, Ops | None] | None:
        """`equals`, and by what the load is turned round before it is compared."""
        for u in self.reduction.src[0].toposort():
            for ours, other in (u.src, u.src[::-1]) if u.op in (Ops.CMPNE, Ops.CMPEQ) else ():
                turned = ours.op in (Ops.MUL, Ops.XOR) and ours.src[1].op is Ops.CONST and ours.src[1].arg == -1
                load = ours.src[0] if turned else ours
                if load is self.load and other.op is Ops.INDEX and not _varies(other, self.reduction):
                    held = load.dtype is other.dtype and (ours.op is not Ops.MUL or load.dtype.fmt is not None)
                    return (other, ours.op if turned else None) if held else None
        return None

    @functools.cached_property
    def is_alike_for_all_terms(self) -> bool:
        """Whether the kernel makes no difference between the terms: this load is the only one of its buffer, nothing
        else varies from term to term, each is read, and each is a term of the outputs at all points of a row."""
        sink = self.ast.src[self.place]
        reduced = frozenset(self.reduction.src[1:])
        ranges = reduced | frozenset(sink.src[1:] if sink.op is Ops.END else ())
        others = [u for u in self.ast.toposort() if u.op is Ops.INDEX and u is not self.load]
        outside = self.reduction.src[0].toposort(gate=lambda u: u is not self.load)
        gated = any(u.op is Ops.CONST and u.arg is Invalid for at in self.load.src[1:] for u in at.toposort())
        return (
            not gated
            and frozenset(self.load.ranges) <= ranges
            and not reduced & outside.keys()
            and all(int(buffer_of(u).arg.slot) != self.slot for u in others)
        )

    def elements(
        self, points: Elements, terms: Elements, rng: np.random.Generator
    ) -> tuple[Elements, NDArray[np.bool_]]:
        """The element that is read for a term of each point, both of one length, and whether it is read at all. Ranges
        of other reductions are anywhere."""
        return self._of(self.load, points, terms, rng)

    def compared(self, points: Elements, rng: np.random.Generator) -> tuple[int, Elements]:
        """The buffer of `equals` and the element that is compared with at each point."""
        assert self.equals is not None
        found, _ = self._of(self.equals, points, np.zeros(len(points), np.int64), rng)
        return int(buffer_of(self.equals).arg.slot), found

    @functools.cached_property
    def _run(self) -> Run:
        return Run(self.ast, {}, self.variables)

    @functools.cached_property
    def _extents(self) -> list[int]:
        return [self._run.extent(r) for r in self.reduction.src[1:]]

    def _of(
        self, load: UOp, points: Elements, terms: Elements, rng: np.random.Generator
    ) -> tuple[Elements, NDArray[np.bool_]]:
        sink, count = self.ast.src[self.place], len(points)
        ranges = sink.src[1:] if sink.op is Ops.END else ()
        known = {r: Value(np.ascontiguousarray(points[:, axis])) for axis, r in enumerate(ranges)}
        known |= {
            r: Value(at) for r, at in zip(self.reduction.src[1:], np.unravel_index(terms, self._extents), strict=True)
        }
        for r in (u for at in load.src[1:] for u in at.toposort() if u.op is Ops.RANGE and u not in known):
            if r.arg[-1] is not AxisType.DEVICE:
                known[r] = Value(rng.integers(0, self._run.extent(r), count))
        order = self._run._scope(load.src[1:], None).order
        with np.errstate(all="ignore"):
            where, gate = self._run._flat_index(load, self._run._compute(order, load.src[1:], known))
        opened = np.ones(count, bool) if gate is None else np.broadcast_to(gate, count)
        return np.broadcast_to(where, count).astype(np.int64), opened


def reduced_loads(ast: UOp, variables: Mapping[str, int]) -> Iterator[ReducedLoad]:
    """The loads of a kernel of which a reduction reads another element for each term, where no input says which: of
    each buffer and reduction the first."""
    for place, sink in enumerate(ast.src):
        for reduction in (u for u in store_of(sink).src[1].toposort() if u.op is Ops.REDUCE):
            seen: set[int] = set()
            for load in reduction.src[0].toposort():
                if load.op is Ops.INDEX and _varies(load, reduction) and not _is_indirect(load):
                    found = ReducedLoad(ast, place, reduction, load, variables)
                    if found.slot not in seen:
                        seen.add(found.slot)
                        yield found


def _varies(load: UOp, reduction: UOp) -> bool:
    return not frozenset(reduction.src[1:]).isdisjoint(load.ranges)


def _is_indirect(load: UOp) -> bool:
    return any(u.op is Ops.INDEX for at in load.src[1:] for u in at.toposort())
