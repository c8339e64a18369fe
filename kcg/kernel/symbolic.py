"""Kernels that run with several values of their symbolic variables, such as the position of a decode loop.

Such a kernel has one schedule for all values: tinygrad compiles it once and passes the values to each launch, and its
BEAM cache cannot tell them apart. So it is one call of a workload and is searched once. What a schedule takes is
measured at two *bounds*, the smallest and the largest values that were seen, and the time of one call is the mean of
both, weighted by calls. Which values are smaller: where one variable differs, its value says; where several do, the
kernel's work at their values (arithmetic and elements stored). Calls between the bounds are split linearly: one whose
values lie a quarter of the way from the smallest to the largest counts as three quarters of a call at the smallest and
one quarter of a call at the largest.

The variables of a region of several kernels are those of all of its kernels. What takes the place of its calls runs
with every value that they can have, so the smallest and the largest that are possible are bounds of it too: it is
verified there, and no call counts as one of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from kcg.types import Kernel, Region, Sequence, Variables, WorkloadCall

if TYPE_CHECKING:
    from kcg.compat.tiny import UOp

VALUES_KEPT = 100
"""For how many values of its variables the calls of a kernel are counted apart, see `thinned`."""


@dataclass(frozen=True)
class Bound:
    """The smallest or the largest values of a kernel's variables, or the only ones; of a region of several kernels also
    the smallest and the largest that are possible."""

    variables: Variables
    share: float  # of the calls that count as calls with these values; the shares of a kernel or a region sum to 1


def merged(calls: Iterable[WorkloadCall]) -> tuple[WorkloadCall, ...]:
    """The calls with one entry for each kernel that has variables, at the place of its first."""
    found: dict[object, WorkloadCall] = {}
    counts: dict[str, dict[Variables, int]] = {}
    for place, call in enumerate(calls):
        if not call.variables:
            found[place] = call
            continue
        found.setdefault(call.region.id, call)
        counted = counts.setdefault(call.region.id, {})
        for variables, count in seen_by(call):
            counted[variables] = counted.get(variables, 0) + count
    return tuple(_with_values(c, counts[c.region.id]) if c.variables else c for c in found.values())


def seen_by(call: WorkloadCall) -> tuple[tuple[Variables, int], ...]:
    """Every set of values that a call was made with, and how often: what is stored, a row each."""
    return call.seen or ((call.variables, call.calls),)


def called(region: Region, counts: Mapping[Variables, int], *, replayed: int = 0) -> WorkloadCall:
    """The call of a region that ran with these values of its variables, each so often."""
    return thinned(_with_values(WorkloadCall(region, 1, replayed=replayed), counts))


def without(call: WorkloadCall, counts: Mapping[Variables, int]) -> WorkloadCall | None:
    """The call without so many of its executions with these values; None where none is left.

    Those with values that it has no count of, since it is `thinned`, are taken from others in their order.
    """
    left = Counter(dict(seen_by(call)))
    for values, count in counts.items():
        for other in (values, *left):
            taken = min(count, left[other])
            left[other] -= taken
            count -= taken
    bounds = dict.fromkeys((values for values, count in call.seen if not count), 0)  # see `at_possible_bounds`
    left = +left
    return _with_values(call, {**bounds, **left}) if left else None


def at_possible_bounds(call: WorkloadCall) -> WorkloadCall:
    """The call, seen also, but not once, with the smallest and the largest values that its variables can have: there it
    is timed and judged, and what it did counts as so much of both.

    tinygrad's own variables, whose names begin with an underscore, keep the values that they had.
    """
    if not call.variables:
        return call
    ranges, counts = ranges_of_region(call.region), dict(seen_by(call))
    for side in (0, 1):
        end = tuple((n, v if n.startswith("_") else ranges[n][side]) for n, v in call.variables)
        counts.setdefault(end, 0)
    return _with_values(call, counts)


def _with_values(call: WorkloadCall, counts: Mapping[Variables, int]) -> WorkloadCall:
    size = _size_of(call.region, counts)
    ordered = sorted(counts, key=lambda variables: (size(variables), variables))
    seen = tuple((variables, counts[variables]) for variables in ordered) if len(ordered) > 1 else ()
    return replace(call, calls=sum(counts.values()), variables=ordered[-1], seen=seen)


def _size_of(region: Region, bindings: Collection[Variables]) -> Callable[[Variables], float]:
    """What says which of a kernel's values are smaller, and how far one is from another."""
    differ = {name for name, _ in set().union(*bindings) - set(next(iter(bindings)))}
    if len(differ) < 2:
        return lambda variables: float(sum(value for name, value in variables if name in differ))
    from kcg.kernel.analysis import work_at
    from kcg.kernel.codec import ast_of

    works = [work_at(ast_of(kernel)) for kernel in region.kernels]
    return lambda variables: sum(work(dict(variables)) for work in works)


def of_names(variables: Variables, names: Collection[str]) -> Variables:
    """Those of some values whose variables have these names."""
    return tuple((name, value) for name, value in variables if name in names)


@lru_cache(4096)
def ranges_of(kernel: Kernel) -> dict[str, tuple[int, int]]:
    """The smallest and the largest value that each variable of a kernel can have, by name."""
    from kcg.kernel.codec import ast_of

    return {v.expr: (int(v.vmin), int(v.vmax)) for v in ast_of(kernel).variables()}


def ranges_of_region(region: Region) -> dict[str, tuple[int, int]]:
    """The same of all kernels of a region: values that each kernel with the variable can have."""
    found: dict[str, tuple[int, int]] = {}
    for kernel in region.kernels:
        for name, (low, high) in ranges_of(kernel).items():
            before = found.get(name, (low, high))
            found[name] = max(low, before[0]), min(high, before[1])
    return found


def mean_values(sequence: Sequence) -> Variables:
    """The mean of the values that each variable of a sequence had, rounded: with these its bytes are counted."""
    totals: Counter[str] = Counter()
    for variables, count in sequence.seen:
        for name, value in variables:
            totals[name] += count * value
    return tuple((name, round(total / sequence.executions)) for name, total in sorted(totals.items()))


def bounds_of(call: WorkloadCall) -> tuple[Bound, ...]:
    """Where a region is timed and verified: with the smallest and the largest values that were seen, or with the only
    ones; one of several kernels also with the smallest and the largest that are possible, before and behind these."""
    seen = _seen_bounds(call)
    if len(call.region.kernels) == 1 or not call.variables:
        return seen
    ranges, known = ranges_of_region(call.region), {end.variables for end in seen}
    low, high = (tuple((name, ranges[name][side]) for name, _ in call.variables) for side in (0, 1))
    before, behind = (() if one in known else (Bound(one, 0.0),) for one in (low, high))
    return (*before, *seen, *behind)


def _seen_bounds(call: WorkloadCall) -> tuple[Bound, ...]:
    if not call.seen:
        return (Bound(call.variables, 1.0),)
    size = _size_of(call.region, [variables for variables, _ in call.seen])
    (smallest, _), (largest, _) = call.seen[0], call.seen[-1]
    low, span = size(smallest), size(largest) - size(smallest)
    weight = sum(count * ((size(variables) - low) / span if span else 0.5) for variables, count in call.seen)
    share = weight / call.calls
    return Bound(smallest, 1.0 - share), Bound(largest, share)


def at_bounds(call: WorkloadCall) -> list[WorkloadCall]:
    """The call as one of its own for each end that was seen, for whoever measures with one set of values at a time."""
    *first, last = _seen_bounds(call)
    counts = [max(1, round(end.share * call.calls)) for end in first]
    counts.append(max(1, call.calls - sum(counts)))
    return [
        replace(call, calls=count, variables=end.variables, seen=())
        for end, count in zip([*first, last], counts, strict=True)
    ]


def thinned(call: WorkloadCall, *, kept: int = VALUES_KEPT) -> WorkloadCall:
    """The call with at most `kept` sets of values of its variables, and as many executions.

    A decode loop has one for each position. The first, the last and some evenly between stay, and each of them gets the
    executions of those nearest to it.
    """
    if len(call.seen) <= kept:
        return call
    last, parts = len(call.seen) - 1, max(kept, 2) - 1
    chosen = sorted({round(i * last / parts) for i in range(parts + 1)})
    counts: dict[Variables, int] = {}
    for place, (_, count) in enumerate(call.seen):
        nearest = call.seen[min(chosen, key=lambda c: abs(c - place))][0]
        counts[nearest] = counts.get(nearest, 0) + count
    return replace(call, seen=tuple(counts.items()))


def at_values(ast: UOp, variables: Variables) -> UOp:
    """The kernel with the values of its variables filled in: what it computes then, for counting operations and bytes.

    Axes of one value are left out, as tinygrad leaves them out of a schedule: its passes expect it. It is never
    compiled: a binary takes the values when it is launched.
    """
    from kcg.compat.tiny import AddrSpace, Ops

    values = dict(variables)
    found = {
        node: node.const_like(values[node.arg.name])
        for node in ast.toposort()
        if node.op is Ops.PARAM and node.arg.addrspace is AddrSpace.ALU and node.arg.name in values
    }
    return _without_single_axes(ast.substitute(found)) if found else ast


def _without_single_axes(ast: UOp) -> UOp:
    """The kernel with 0 in the place of every axis that has no other value, which ends nowhere then."""
    from kcg.compat.tiny import Ops

    single = {node for node in ast.toposort() if node.op is Ops.RANGE and node.vmin == node.vmax == 0}
    made: dict[UOp, UOp] = {}
    for node in ast.toposort() if single else ():
        first, rest = node.src[:1], node.src[1:]
        if node.op in (Ops.REDUCE, Ops.END):
            rest = tuple(axis for axis in rest if axis not in single)
        src = tuple(made[source] for source in (*first, *rest))
        if node in single:
            made[node] = node.const_like(0)
        elif node.op in (Ops.REDUCE, Ops.END) and not rest:
            made[node] = src[0] if src[0].dtype == node.dtype else src[0].cast(node.dtype)
        else:
            made[node] = node.replace(src=src)
    return made.get(ast, ast)
