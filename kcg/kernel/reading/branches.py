"""How what is made of a contraction's result is written: stores that are alike as one, pairs of columns by halves.

A program holds its tile in registers while it makes something of it, and each branch that does so keeps values of its
own: Flux's query and key with norms and rotations, a branch each and pairs moved to their neighbours' places, took
registers so far beyond 255 that up to 8 KB of them were spilled; as one branch on halves they fit.

- Stores that follow each other along the columns and differ in nothing but buffers and constants are one (`Branch`):
  which buffer and which constant is chosen once for a block.
- A value that uses the other column of its pair is computed for both columns of each pair at once (`Pairs`): the result
  is split, and what is made of the halves is joined just before it is stored. What is read for each column is read once
  and split as well.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from dataclasses import replace

from kcg.compat.tiny import AxisType, Ops, UOp, dtypes
from kcg.kernel.ast import extent
from kcg.kernel.reading.accesses import BufferSlot, Stored, access_of
from kcg.kernel.reading.indices import decided, moved
from kcg.kernel.reading.kernel import EVEN, ODD, SAME, Branch, EpilogueUse, Pairs

_MEMBER = 1 << 21  # the first number of ranges that number stores
Member = tuple[Stored, EpilogueUse]


def branches_of(
    also: Sequence[Stored], held: Sequence[EpilogueUse], buffers: dict[UOp, BufferSlot]
) -> tuple[Branch, ...]:
    """How all that is stored beside a contraction's result is written."""
    members = list(zip(also, held, strict=True))
    groups: list[tuple[list[Member], Branch | None]] = []
    for one in sorted(members, key=lambda member: member[1].first):
        if groups and (branch := _joined([*groups[-1][0], one], buffers)) is not None:
            groups[-1] = ([*groups[-1][0], one], branch)
        else:
            groups.append(([one], None))
    groups.sort(key=lambda group: min(map(members.index, group[0])))
    return tuple(branch or _by_halves(Branch(*group[0]), buffers) for group, branch in groups)


# ---- pairs


def _by_halves(branch: Branch, buffers: dict[UOp, BufferSlot]) -> Branch:
    """The branch with its value for both columns of each pair, where it uses the other column."""
    held, pair = branch.use, branch.use.pair
    if pair is None:
        return branch
    moves, values, result = dict(held.loads), [], dict[UOp, int]()
    for place in range(2):
        value, *loads = _of_column(UOp.sink(branch.stored.value, *moves), pair, place).src
        values.append(value)
        for old, new in zip(moves, loads, strict=True):
            if not any(axis in dict(held.parts) for axis in old.ranges):
                result[new] = {SAME: place, EVEN: 0, ODD: 1}.get(moves[old], 1 - place)
    both = (values[0], values[1])
    known = {load.src[0] for load, _ in held.loads}
    tables = _tables(both, held.rows, held.columns, buffers, known)
    return replace(branch, pairs=Pairs(both, tuple(result.items()), tables, _scaled(both, held, result)))


def pairs_of(
    value: UOp, rows: tuple[UOp, ...], columns: tuple[UOp, ...], buffers: dict[UOp, BufferSlot]
) -> Pairs | None:
    """A value of rows that memory has, for both columns of each pair; None where its columns have no pairs, or nothing
    is read side by side."""
    if not columns or extent(columns[-1]) != 2:
        return None
    even, odd = (_of_column(value, columns[-1], place) for place in range(2))
    tables = _tables((even, odd), rows, columns, buffers)
    return Pairs((even, odd), (), tables) if tables else None


def _of_column(value: UOp, pair: UOp, place: int) -> UOp:
    """A value at the even or at the odd column of each pair."""
    return decided(moved(value, {pair: pair.const_like(place)}))


def _inside(held: EpilogueUse) -> set[UOp]:
    """The ranges that number the columns that are summed together, all where none are: what is over other ranges only
    is the same for these columns."""
    if not held.parts:
        return set(held.columns)
    found, size = set[UOp](), 1
    for axis in reversed(held.columns):
        if size < held.unit:
            found.add(axis)
        size *= extent(axis)
    return found


def _scaled(values: tuple[UOp, UOp], held: EpilogueUse, result: Collection[UOp]) -> tuple[UOp, tuple[UOp, UOp]] | None:
    """The factors that both values have alike for a whole unit, as one, and the values without them. None where there
    are none, or where it is not the same to multiply the contraction's result by them."""
    inside = _inside(held)
    wide = [one.src[0] if one.op is Ops.CAST and dtypes.is_float(one.dtype) else one for one in values]
    products = [_terms(one, Ops.MUL) for one in wide]
    factors = [[one for one in product if inside.isdisjoint(one.ranges)] for product in products]
    rest = [[one for one in product if not inside.isdisjoint(one.ranges)] for product in products]
    if not factors[0] or factors[0] != factors[1] or not all(rest):
        return None
    even, odd = (functools.reduce(lambda a, b: a.alu(Ops.MUL, b), of) for of in rest)
    if not all(_is_linear(value, result) for value in (even, odd)):
        return None
    return functools.reduce(lambda a, b: a.alu(Ops.MUL, b), factors[0]), (even, odd)


def _is_linear(value: UOp, result: Collection[UOp]) -> bool:
    """Whether a value is a sum of products, each with one of some loads."""
    if value in result:
        return True
    if value.op is Ops.CAST and dtypes.is_float(value.dtype) and dtypes.is_float(value.src[0].dtype):
        return _is_linear(value.src[0], result)
    if value.op is Ops.ADD:
        return all(_is_linear(term, result) for term in value.src)
    if value.op is Ops.MUL:
        of = [one for one in value.src if any(node in result for node in one.toposort())]
        return len(of) == 1 and _is_linear(of[0], result)
    return False


def _tables(
    values: tuple[UOp, UOp],
    rows: tuple[UOp, ...],
    columns: tuple[UOp, ...],
    buffers: dict[UOp, BufferSlot],
    known: Collection[UOp] = (),
) -> tuple[tuple[UOp, tuple[UOp, UOp]], ...]:
    """What the two values read side by side for each pair, as one load of both columns and what it is split into;
    nothing of the buffers that are `known`."""
    found: dict[tuple[int, frozenset[tuple[UOp, int]]], dict[int, UOp]] = {}
    nodes = UOp.sink(*values).toposort()
    reduced = {node for reduction in nodes if reduction.op is Ops.REDUCE for node in reduction.src[0].toposort()}
    for node in nodes:
        if node.op is not Ops.INDEX or node.src[0] in known or node in reduced or len(node.src) != 2:
            continue
        access = access_of(node, buffers)
        ranges = set(node.ranges)
        if access.steps is None or access.gates or ranges.isdisjoint(columns) or ranges - {*rows, *columns}:
            continue
        steps = dict(access.steps)
        first = steps.pop(None, 0)
        key = (access.buffer.slot, frozenset((axis, step) for axis, step in steps.items() if axis is not None))
        found.setdefault(key, {})[first] = node
    tables = []
    for at in found.values():
        for first in sorted(at):
            if first in at and first + 1 in at:
                even, odd = at.pop(first), at.pop(first + 1)
                tables.append((even.replace(src=(even.src[0], even.src[1] + columns[-1])), (even, odd)))
    return tuple(tables)


# ---- stores that are alike


def _joined(members: Sequence[Member], buffers: dict[UOp, BufferSlot]) -> Branch | None:
    """Stores that follow each other along the columns as one; None where they are not alike."""
    (stored, held), *others = members
    if not others:
        return None
    here = [_over_ranges_of(held, one, buffers) for one in others]
    found = [one for one in here if one is not None]
    if len(found) != len(others) or stored.gates or any(one.gates for one, _ in others):
        return None
    if any(one.first != held.first + (n + 1) * held.count for n, (_, one) in enumerate(others)):
        return None
    alike = _Alike(members=[(stored, held), *found], buffers=buffers)
    value = alike.joined([one.value for one, _ in alike.members])
    if value is None or not alike.same_place([one.store.node for one, _ in alike.members]):
        return None
    different = tuple(slots for slots in alike.slots.values() if len(set(slots)) > 1)
    branch = Branch(replace(stored, value=value), held, len(members), alike.member, different)
    branch = _by_halves(branch, buffers)
    chosen = {slots[0] for slots in different}
    for node in (*branch.loads, stored.store.node):  # which buffer it is is known where its ranges are
        if access_of(node, buffers).buffer.slot in chosen and not node.ranges:
            return None
    return branch


def _over_ranges_of(held: EpilogueUse, member: Member, buffers: dict[UOp, BufferSlot]) -> Member | None:
    """A store and how it uses the result, over the ranges of another one; None where it has others."""
    stored, own = member
    pairs = [*zip(own.rows, held.rows, strict=False), *zip(own.columns, held.columns, strict=False)]
    shapes = [[[extent(axis) for axis in axes] for axes in (one.rows, one.columns)] for one in (held, own)]
    if shapes[0] != shapes[1] or own.parts != held.parts:
        return None
    nodes = UOp.sink(stored.value, stored.store.node, *(node for node, _ in own.loads))
    value, store, *loads = moved(nodes, dict(pairs)).src
    outputs = tuple(dict(pairs).get(axis, axis) for axis in stored.outputs)
    uses = tuple((node, move) for node, (_, move) in zip(loads, own.loads, strict=True))
    return Stored(access_of(store, buffers), value, (), outputs), replace(
        own, rows=held.rows, columns=held.columns, loads=uses
    )


class _Alike:
    """The comparison of values that are to be one: sums and products in any order, buffers and factors of any kind."""

    def __init__(self, members: Sequence[Member], buffers: dict[UOp, BufferSlot]) -> None:
        self.members, self.buffers = members, buffers
        count = UOp.const(len(members), dtypes.weakint)
        self.member = UOp(Ops.RANGE, dtypes.weakint, (count,), (_MEMBER, AxisType.LOOP))
        self.slots: dict[int, tuple[int, ...]] = {}  # of the first -> of all
        self._moves = {node: move for _, held in members for node, move in held.loads}
        self._numbers: dict[object, int] = {}
        self._number_of: dict[UOp, int] = {}

    def joined(self, nodes: Sequence[UOp]) -> UOp | None:
        """The value that is each of several, by `member`; None where they are not alike."""
        first = nodes[0]
        if len({self._number(node) for node in nodes}) > 1:
            return None
        if first in self._moves or first.op is Ops.INDEX:
            return first if first in self._moves or self.same_place(nodes) else None
        if dtypes.is_float(first.dtype):
            if all(node.op is Ops.CONST for node in nodes):
                return self._chosen([float(node.arg) for node in nodes], first)
            if any(node.op is Ops.MUL for node in nodes):
                return self._of_terms(nodes, Ops.MUL)
            if first.op is Ops.ADD:
                return self._of_terms(nodes, Ops.ADD)
        sources = [self.joined(of) for of in zip(*(node.src for node in nodes), strict=True)]
        found = [source for source in sources if source is not None]
        return first.replace(src=tuple(found)) if len(found) == len(sources) else None

    def same_place(self, nodes: Sequence[UOp]) -> bool:
        """Whether loads or stores are at the same place of buffers that correspond."""
        accesses = [access_of(node, self.buffers) for node in nodes]
        first, slots = accesses[0], tuple(access.buffer.slot for access in accesses)
        if any(
            one.address is not first.address and (one.steps is None or one.steps != first.steps) for one in accesses
        ):
            return False
        if any(one.gates != first.gates for one in accesses):
            return False
        if len({(one.buffer.dtype, one.buffer.size) for one in accesses}) > 1:
            return False
        return self.slots.setdefault(slots[0], slots) == slots

    def _of_terms(self, nodes: Sequence[UOp], op: Ops) -> UOp | None:
        """The sum or the product of several, whose terms may be in any order."""
        terms = [_terms(node, op) for node in nodes]
        found: list[UOp] = []
        if op is Ops.MUL:
            factors = [_constant(of) for of in terms]
            terms = [[one for one in of if one.op is not Ops.CONST] for of in terms]
        for one in terms[0]:
            same = [next(x for x in of if self._number(x) == self._number(one)) for of in terms[1:]]
            for of, other in zip(terms[1:], same, strict=True):
                of.remove(other)
            made = self.joined([one, *same])
            if made is None:
                return None
            found.append(made)
        if op is Ops.MUL and (not found or any(factor != 1 for factor in factors)):
            found.append(self._chosen(factors, nodes[0]))
        if op is Ops.MUL:  # what is of whole rows is multiplied once for each
            inside = _inside(self.members[0][1])
            found.sort(key=lambda one: not inside.isdisjoint(one.ranges))
        return functools.reduce(lambda a, b: a.alu(op, b), found)

    def _chosen(self, constants: Sequence[float], like: UOp) -> UOp:
        """A constant by the number of the store."""
        *others, value = [UOp.const(constant, like.dtype) for constant in constants]
        if len(set(constants)) == 1:
            return value
        for place, constant in reversed(list(enumerate(others))):
            value = (self.member < place + 1).where(constant, value)
        return value

    def _number(self, node: UOp) -> int:
        """Equal for values that differ in nothing but buffers, constants that are chosen, and the order of terms."""
        if node not in self._number_of:
            factors = [one for one in _terms(node, Ops.MUL) if one.op is not Ops.CONST]
            if node.op is Ops.MUL and dtypes.is_float(node.dtype) and len(factors) == 1:
                self._number_of[node] = self._number(factors[0])
            else:
                self._number_of[node] = self._numbers.setdefault(self._key(node), len(self._numbers))
        return self._number_of[node]

    def _key(self, node: UOp) -> object:
        if node in self._moves:
            return self._moves[node], frozenset(axis for axis in node.ranges if axis.arg[-1] is AxisType.REDUCE)
        if node.op is Ops.INDEX:
            access = access_of(node, self.buffers)
            where = frozenset(access.steps.items()) if access.steps is not None else access.address
            return Ops.INDEX, access.buffer.dtype, access.buffer.size, where
        if dtypes.is_float(node.dtype):
            if node.op is Ops.CONST:
                return Ops.CONST, node.dtype
            if node.op is Ops.MUL:
                return Ops.MUL, *sorted(self._number(one) for one in _terms(node, Ops.MUL) if one.op is not Ops.CONST)
            if node.op is Ops.ADD:
                return Ops.ADD, *sorted(map(self._number, _terms(node, Ops.ADD)))
        return node.op, node.dtype, node.arg, *map(self._number, node.src)


def _terms(node: UOp, op: Ops) -> list[UOp]:
    """The terms of a sum or a product."""
    return [term for source in node.src for term in _terms(source, op)] if node.op is op else [node]


def _constant(factors: Sequence[UOp]) -> float:
    """The product of the factors that are constants."""
    return functools.reduce(lambda a, b: a * b, (float(one.arg) for one in factors if one.op is Ops.CONST), 1.0)
