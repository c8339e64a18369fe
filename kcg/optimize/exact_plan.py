"""The plan of a sequence, chosen exactly: which calls run as one program, at the least cost.

A binary program (scipy's `milp`). Each option is a program in the place of some calls, with its seconds; every call
alone is always one. What holds of a plan:

- each call is run by one option, its owner. An option may compute cheap calls of others again, without storing them;
  a call that all who read it compute again has no owner, and is left out;
- what an option reads is stored by some chosen option, or was there before. A buffer is stored exactly where an option
  that stores it is chosen, so these need no variables of their own;
- some order of the chosen options keeps every hazard over base buffers, updates in place included. Cycles are cut off
  as they turn up: few candidates ever form one;
- in that order the stored intermediates fit into memory. A plan that does not fit is cut off and no other one; after
  `EXACT` of these, all plans with the program that runs where most is live, or with the programs that use what is live
  there: that is safe, and may cut off a plan that would fit.

Options that a block of equal blocks has too are one variable (`kcg.kernel.repeats`): a step of 57 blocks is as large a
problem as one of six.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kcg.compat.hazards import Access, successors_of
from kcg.kernel.repeats import Blocks
from kcg.types import Sequence as Calls

ROUNDS = 400  # plans that are looked at: cycles and what has no room are cut off one by one
EXACT = 16  # plans without room that are cut off one by one
SOLVER_S = 60.0  # of one of them, where a problem is far larger than any seen
UNITS = 1e6  # a solver's tolerances are absolute: costs are microseconds to it


def prepare_to_plan() -> None:
    """Load the solver, which takes more than a second."""
    import scipy.optimize
    import scipy.sparse  # noqa: F401


@dataclass(frozen=True)
class Option:
    """A program in the place of some calls."""

    own: tuple[int, ...]  # places of the calls that it runs, in order
    seconds: float
    again: tuple[int, ...] = ()  # calls of others that it computes again, and does not store
    name: Hashable = ""  # equal for the same program
    scratch_bytes: int = 0  # workspace while it runs

    @property
    def places(self) -> tuple[int, ...]:
        return tuple(sorted((*self.own, *self.again)))

    @property
    def is_alone(self) -> bool:
        """Whether it is one call as it was."""
        return len(self.own) == 1 and not self.again


@dataclass(frozen=True)
class SequencePlan:
    """One way to run a sequence: its options in an order that keeps all hazards."""

    options: tuple[Option, ...]
    seconds: float  # of the whole model, where the sequence stands for more blocks than it has
    peak_bytes: int  # of the intermediates that are stored, and workspace
    stored: frozenset[int]  # intermediates that are
    left_out: tuple[int, ...] = ()  # calls that run by themselves nowhere, since all who read them compute them again

    @property
    def programs(self) -> tuple[Option, ...]:
        """Those that are not one call as it was."""
        return tuple(option for option in self.options if not option.is_alone)


def best_plans(
    blocks: Blocks, options: Iterable[Option], *, count: int = 5, memory_bytes: float = np.inf
) -> list[SequencePlan]:
    """The `count` plans of least cost that differ in their programs, the best first; fewer where there are no more.

    `options` are of one sequence, among them one for every call alone. `memory_bytes` is what intermediates may take.
    Raises ValueError where a call has no option of its own.
    """
    return _Problem(blocks, tuple(dict.fromkeys(options))).best(count, memory_bytes)


# ---- what an option reads and stores


@dataclass(frozen=True)
class _Effects:
    """Of one option: what it needs stored, what it stores, and its accesses by call."""

    needs: frozenset[int]  # intermediates
    stores: frozenset[int]  # intermediates
    touches: frozenset[int]  # buffers
    accesses: tuple[tuple[int, Access], ...]  # place, access


class _Values:
    """The buffers of a sequence: which are values of one call, so that they may be left out or made again."""

    def __init__(self, sequence: Calls) -> None:
        self.sequence = sequence
        self.reads = [frozenset(c.views[slot].buffer for slot in c.reads) for c in sequence.calls]
        self.writes = [frozenset(c.views[slot].buffer for slot in c.writes) for c in sequence.calls]
        writers: dict[int, list[int]] = defaultdict(list)
        for place, written in enumerate(self.writes):
            for buffer in written:
                writers[buffer].append(place)
        self.maker = {
            buffer: places[0]
            for buffer, places in writers.items()
            if len(places) == 1
            and not sequence.buffers[buffer].held
            and sequence.users[buffer][0] == places[0]
            and buffer not in self.reads[places[0]]
            and len(sequence.users[buffer]) > 1
        }

    def effects(self, option: Option) -> _Effects:
        """Of an option. Raises ValueError where it makes something again that is no value of one call."""
        inside, own, again = set(option.places), set(option.own), set(option.again)
        if any(not self.writes[place] <= set(self.maker) for place in again):
            raise ValueError("what is held, updated in place, not read or written by several is not computed again")
        made = {buffer for place in inside for buffer in self.writes[place] if buffer in self.maker}
        redone = {buffer for place in again for buffer in self.writes[place]}
        stores = {b for b in made - redone if not inside.issuperset(self.sequence.users[b])}
        needs = {b for place in inside for b in self.reads[place] if b in self.maker and b not in made}
        used = [(p, self.reads[p] - redone, self.writes[p] if p in own else frozenset[int]()) for p in option.places]
        return _Effects(
            frozenset(needs),
            frozenset(stores),
            frozenset(buffer for _, read, written in used for buffer in read | written),
            tuple((place, Access(read, written)) for place, read, written in used),
        )


# ---- the binary program


class _Problem:
    def __init__(self, blocks: Blocks, options: tuple[Option, ...]) -> None:
        self.blocks, self.options = blocks, options
        self.values = _Values(blocks.sequence)
        self.effects = [self.values.effects(option) for option in options]
        numbers: dict[Hashable, int] = {}
        self.variable = [numbers.setdefault(self._key(option), len(numbers)) for option in options]
        self.variables = len(numbers)
        self.costs = np.zeros(self.variables)
        self.is_alone = np.ones(self.variables, bool)
        for option, variable in zip(options, self.variable, strict=True):
            self.costs[variable] += blocks.weight(option.places) * option.seconds * UNITS
            self.is_alone[variable] &= option.is_alone
        self.some_again = any(option.again for option in options)
        self.rows: dict[tuple[tuple[tuple[int, float], ...], float, float], None] = {}
        self._cover()
        self._need()

    def _key(self, option: Option) -> Hashable:
        pattern = tuple(place in option.again for place in option.places)
        return self.blocks.key(option.places), pattern, option.name, option.seconds, option.scratch_bytes

    def _add(self, row: Mapping[int, float], low: float, high: float) -> None:
        self.rows[tuple(sorted(row.items())), low, high] = None

    def _cover(self) -> None:
        """Each call has one owner; what some compute again has one at most, and `_need` says when it needs one."""
        owners: list[dict[int, float]] = [{} for _ in self.blocks.sequence.calls]
        alone = set[int]()
        for option, variable in zip(self.options, self.variable, strict=True):
            alone |= set(option.own if option.is_alone else ())
            for place in option.own:
                owners[place][variable] = owners[place].get(variable, 0) + 1
        if len(alone) < len(owners):
            raise ValueError("every call alone is an option")
        again = {place for option in self.options for place in option.again}
        for place, row in enumerate(owners):
            self._add(row, 0 if place in again else 1, 1)

    def _need(self) -> None:
        """What is read is stored."""
        storing: dict[int, dict[int, float]] = defaultdict(dict)
        for variable, effects in zip(self.variable, self.effects, strict=True):
            for buffer in effects.stores:
                storing[buffer][variable] = -1.0
        always = {  # whoever owns the maker stores it
            buffer
            for buffer, maker in self.values.maker.items()
            if all(
                maker not in option.again and (buffer in effects.stores or maker not in option.own)
                for option, effects in zip(self.options, self.effects, strict=True)
            )
        }
        for variable, effects in zip(self.variable, self.effects, strict=True):
            for buffer in effects.needs - always:
                row = dict(storing[buffer])
                row[variable] = row.get(variable, 0.0) + 1.0
                if row[variable] > 0:
                    self._add(row, -np.inf, 0)

    def best(self, count: int, memory_bytes: float) -> list[SequencePlan]:
        found: list[SequencePlan] = []
        too_large = 0
        for _ in range(ROUNDS):
            chosen = self._solve() if len(found) < count else None
            if chosen is None:
                break
            picked = [i for i, variable in enumerate(self.variable) if variable in chosen]
            order, cycle = self._order(picked)
            if cycle:
                self._cut(i for i in cycle if self.some_again or not self.options[i].is_alone)
                continue
            plan, most, live = self._plan(order, chosen)
            if plan.peak_bytes <= memory_bytes:
                found.append(plan)
            else:
                too_large += 1
                using = [i for i in order if self._uses(i, live)] if self.options[most].is_alone else [most]
                if too_large > EXACT and using:
                    self._cut(using)
                    continue
            others = np.flatnonzero(~self.is_alone)
            row = {int(v): -1.0 if v in chosen else 1.0 for v in others}
            if not row:
                break
            self._add(row, 1 - sum(v in chosen for v in others), np.inf)
        return found

    def _cut(self, options: Iterable[int]) -> None:
        """Not all of these together."""
        row = dict.fromkeys((self.variable[i] for i in options), 1.0)
        self._add(row, -np.inf, len(row) - 1)

    def _uses(self, option: int, live: frozenset[int]) -> bool:
        """Whether it is a program that reads or stores some of these."""
        effects = self.effects[option]
        return not self.options[option].is_alone and not live.isdisjoint(effects.needs | effects.stores)

    def _solve(self) -> frozenset[int] | None:
        """The variables that are chosen at the least cost; None where nothing is left."""
        if self.is_alone.all():  # as of most of a script's many sequences
            return frozenset(range(self.variables))
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array

        entries = [(i, v, factor) for i, (row, _, _) in enumerate(self.rows) for v, factor in row]
        numbers, columns, factors = (np.array(part) for part in zip(*entries, strict=True))
        matrix = csr_array((factors, (numbers, columns)), shape=(len(self.rows), self.variables))
        low, high = np.array([row[1] for row in self.rows]), np.array([row[2] for row in self.rows])
        found = milp(
            self.costs,
            integrality=np.ones(self.variables),
            bounds=Bounds(0, 1),
            constraints=LinearConstraint(matrix, low, high),
            options={"mip_rel_gap": 0.0, "time_limit": SOLVER_S},
        )
        return None if found.x is None else frozenset(map(int, np.flatnonzero(found.x > 0.5)))

    # -- order and memory

    def _order(self, picked: Sequence[int]) -> tuple[list[int], list[int]]:
        """The chosen options in an order that keeps every hazard, each as near to its last call's place as that allows;
        or, where there is none, a cycle of them."""
        accesses = sorted((place, i, access) for i in picked for place, access in self.effects[i].accesses)
        owner = [i for _, i, _ in accesses]
        after: dict[int, set[int]] = {i: set() for i in picked}
        for number, later in enumerate(successors_of([access for _, _, access in accesses])):
            after[owner[number]] |= {owner[other] for other in later}
        before = dict.fromkeys(picked, 0)
        for i, others in after.items():
            others.discard(i)
            for other in others:
                before[other] += 1
        ready = [(self.options[i].own[-1], i) for i, many in before.items() if not many]
        heapq.heapify(ready)
        order = []
        while ready:
            _, i = heapq.heappop(ready)
            order.append(i)
            for other in after[i]:
                before[other] -= 1
                if not before[other]:
                    heapq.heappush(ready, (self.options[other].own[-1], other))
        if len(order) == len(after):
            return order, []
        left = set(after).difference(order)
        cycles = (_shortest_cycle(i, {j: after[j] & left for j in left}) for i in sorted(left))
        return [], min((cycle for cycle in cycles if cycle), key=len)

    def _plan(self, order: Sequence[int], chosen: Iterable[int]) -> tuple[SequencePlan, int, frozenset[int]]:
        """The plan, the option that runs when most of its memory is taken, and which intermediates are there then."""
        buffers = self.blocks.sequence.buffers
        stored = frozenset(b for i in order for b in self.effects[i].stores)
        # what is written by several calls, or in place, and is not there before and after, is stored as well
        touched = frozenset(b for i in order for b in self.effects[i].touches)
        loose = {b for b in touched if not buffers[b].held and b not in self.values.maker}
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for turn, i in enumerate(order):
            effects = self.effects[i]
            for buffer in effects.needs | effects.stores | (effects.touches & loose):
                first.setdefault(buffer, turn)
                last[buffer] = turn
        change = np.zeros(len(order) + 1)
        for buffer, turn in first.items():
            change[turn] += buffers[buffer].size
            change[last[buffer] + 1] -= buffers[buffer].size
        live = np.cumsum(change)[:-1] + [self.options[i].scratch_bytes for i in order]
        most = int(np.argmax(live))
        missing = set(range(len(self.blocks.sequence.calls))).difference(*(self.options[i].own for i in order))
        plan = SequencePlan(
            tuple(self.options[i] for i in order),
            float(sum(self.costs[v] for v in chosen) / UNITS),
            int(live.max(initial=0)),
            stored | loose,
            tuple(sorted(missing)),
        )
        return plan, order[most], frozenset(buffer for buffer in first if first[buffer] <= most <= last[buffer])


def _shortest_cycle(start: int, after: Mapping[int, set[int]]) -> list[int]:
    """The shortest way from a node back to itself; empty where there is none."""
    came: dict[int, int] = {}
    waiting = deque([start])
    while waiting:
        at = waiting.popleft()
        for other in sorted(after[at]):
            if other == start:
                way = [at]
                while way[-1] != start:
                    way.append(came[way[-1]])
                return way
            if other not in came:
                came[other] = at
                waiting.append(other)
    return []
