"""The action space of one region of one kernel: legal steps, identities, names, for any target, on any machine."""

from __future__ import annotations

import functools
import math
import random
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from kcg.compat import scheduling
from kcg.compat.renderers import planning_renderer
from kcg.compat.tiny import Scheduler
from kcg.kernel.codec import ast_of
from kcg.kernel.compile import UOPS_MAX, compile_schedule
from kcg.kernel.kinds import Lattice
from kcg.kernel.loop_nest import REDUCING, ActionRows, AxisTable, axis_table, count_uops
from kcg.kernel.opts.action_features import action_rows, opt_of
from kcg.kernel.opts.neighbours import followed, moved, variants
from kcg.kernel.opts.planner import legal_steps, planner_from, possible_on, try_step
from kcg.kernel.opts.schedule import RAW, Opt, opts_of, schedule_of, then
from kcg.kernel.opts.traits import traits_of
from kcg.kernel.opts.uniform import Uniform
from kcg.kernel.program import Program, program_of_parts
from kcg.types import Action, Kernel, Region, Schedule, Target, Variables

ACTIONS_KEPT = 512  # lists of them per kernel
STATES_KEPT = 4096  # schedule states per kernel; each shares most of its nodes with its parent

UOPS_OFFERED = round(1.02 * UOPS_MAX)
"""Steps to kernels that would have more micro-operations (`count_uops`) are not offered: a compilation of seconds would
only refuse them. The margin is by how much the count is usually too high."""

TILED = ("UPCAST", "UNROLL", "GROUP_REDUCE")
"""Kinds of axes that say what a thread computes; the others say which thread does."""


@functools.lru_cache(128)  # each region that has a kernel makes a space of it: of 40 of Flux 768 that was a second
def _unoptimised(kernel: Kernel, target: Target) -> Scheduler:
    return scheduling.initial_state(ast_of(kernel), planning_renderer(target))


@functools.lru_cache(1024)
def _hand_coded(kernel: Kernel, target: Target) -> Schedule:
    return schedule_of(scheduling.hand_coded(_unoptimised(kernel, target)))


class KernelSpace:
    """The `Space` (`kcg.kernel.kinds`) of tinygrad's Opts. All but the states themselves comes from a `Planner`, in
    microseconds; tinygrad answers for the few kernels that are outside of what it can do (symbolic extents)."""

    def __init__(self, region: Region, target: Target) -> None:
        self.region, self.target = region, target
        self.ast = ast_of(region.kernel)
        self._root = _unoptimised(region.kernel, target)
        self._planner = planner_from(self._root, target)
        self._states: OrderedDict[Schedule, Scheduler] = OrderedDict()
        self._tables: OrderedDict[Schedule, AxisTable] = OrderedDict()
        self._uops: OrderedDict[Schedule, int] = OrderedDict()
        self._actions: OrderedDict[Schedule, list[Action]] = OrderedDict()
        self._first: list[Action] = []

    def start(self) -> Schedule:
        return RAW

    def baseline(self) -> Schedule:
        """tinygrad's hand-coded Opts for this kernel on this target."""
        return _hand_coded(self.region.kernel, self.target)

    def without_tensor_cores(self) -> Schedule:
        """tinygrad's own schedule for a device that had none."""
        return schedule_of(scheduling.hand_coded(self._root, tensor_cores=False))

    def state(self, schedule: Schedule) -> Scheduler:
        """tinygrad's state after `schedule`; callers must not change it. Raises ScheduleError if it does not apply."""
        if schedule == RAW:
            return self._root
        if (found := self._states.get(schedule)) is not None:
            self._states.move_to_end(schedule)
            return found
        # a known parent saves applying the whole chain again
        opts = opts_of(schedule)
        parent = self._states.get(schedule_of(opts[:-1]), self._root if len(opts) == 1 else None)
        state = scheduling.apply(parent, opts[-1:]) if parent is not None else scheduling.apply(self._root, opts)
        _keep(self._states, schedule, state)
        return state

    def table(self, schedule: Schedule) -> AxisTable:
        """The axis table after `schedule`. Raises ScheduleError if it does not apply."""
        found = self._tables.get(schedule)
        if found is None:
            planner = self._planner
            found = planner.table(planner.state(schedule)) if planner else axis_table(self.state(schedule))
            _keep(self._tables, schedule, found)
        return found

    def symbolic_axes(self, schedule: Schedule) -> frozenset[int]:
        """The places in the axis table whose extent is symbolic: tinygrad's UNROLL does not count them.

        Raises ScheduleError if `schedule` does not apply.
        """
        if self._planner is not None:  # it takes no such kernel
            return frozenset()
        return frozenset(i for i, e in enumerate(self.state(schedule).full_shape) if not isinstance(e, int))

    def uops(self, schedule: Schedule) -> int:
        """About how many micro-operations the kernel will have. Raises ScheduleError if `schedule` does not apply."""
        found = self._uops.get(schedule)
        if found is None:
            planner = self._planner
            if planner is not None:
                found = planner.uops(planner.state(schedule))
            else:
                found = count_uops(self.state(schedule), self.table(schedule))
            _keep(self._uops, schedule, found)
        return found

    def prior(self) -> list[Schedule]:
        """tinygrad's own choice."""
        return [self.baseline()]

    def lattice(self, given: Sequence[Schedule], *, rng: random.Random, limit: int) -> Lattice:
        """See `kcg.kernel.opts.lattice`."""
        from kcg.kernel.opts.lattice import lattice

        return lattice(self, given, rng=rng, limit=limit)

    def actions(self, schedule: Schedule) -> list[Action]:
        found = self._actions.get(schedule)
        if found is None:
            found = self._list_actions(schedule)
            _keep(self._actions, schedule, found, ACTIONS_KEPT)
        return list(found)

    def _list_actions(self, schedule: Schedule) -> list[Action]:
        if self._planner is not None:
            opts = self._planner.legal(self._planner.state(schedule))
        else:
            opts = [opt for opt, _ in legal_steps(self.state(schedule), self.target)]
        children = ((opt, self.step(schedule, opt)) for opt in opts)
        return [Action(str(opt), child) for opt, child in children if child is not None]

    def sample(self, rng: random.Random, schedule: Schedule | None = None) -> Schedule | None:
        """One of `actions(schedule)`, each equally likely, without counting all of them; None where there is none."""
        schedule = RAW if schedule is None else schedule
        if schedule == RAW:  # asked for most often, and the only state whose tensor cores have to be tried
            self._first = self._first or self.actions(RAW)
            return rng.choice(self._first).schedule if self._first else None
        if self._planner is not None:
            possible = self._planner.legal(self._planner.state(schedule))
        else:
            possible = list(possible_on(self.target))
        rng.shuffle(possible)
        return next((child for opt in possible if (child := self.step(schedule, opt)) is not None), None)

    def uniform(self, rng: random.Random) -> Schedule | None:
        """See `kcg.kernel.opts.uniform`."""
        return self._uniform.draw(rng)

    def count(self) -> float:
        """About how many lists of Opts `uniform` draws from."""
        return self._uniform.count

    @functools.cached_property
    def _uniform(self) -> Uniform:
        return Uniform(self)

    def step(self, schedule: Schedule, opt: Opt) -> Schedule | None:
        """The schedule after one action of kcg's list, None where it is not legal."""
        if self._planner is not None:
            after = self._planner.apply(self._planner.state(schedule), opt)
            if after is None or not self._planner.fits(after, UOPS_OFFERED):
                return None
            child = then(schedule, opt)
            self._planner.keep(child, after)
            return child
        child = then(schedule, opt)
        if (state := try_step(self.state(schedule), opt)) is None:
            return None
        _keep(self._states, child, state)
        return child if count_uops(state, self.table(child)) <= UOPS_OFFERED else None

    def key(self, schedule: Schedule) -> str:
        if self._planner is not None:
            return self._planner.key(self._planner.state(schedule))
        return scheduling.canonical_key(self.state(schedule))

    def alike(self, schedule: Schedule) -> str:
        """Equal where two schedules differ in the order only in which a thread does its part. Most of these are the
        same binary; of the pairs that are not, 95 % are within 1 % on an H200's tensor cores, while a few small kernels
        were recorded up to twice as slow (`evaluation/search/alike.py`)."""
        if self._planner is not None:
            return self._planner.alike(self._planner.state(schedule))
        return self.key(schedule)

    def tile(self, schedule: Schedule) -> Hashable:
        """What one thread computes, and how a reduction is shared among threads: together how far its upcast, its
        unrolled and its grouped axes reach, by the buffers that they move in."""
        reach: dict[tuple[str, tuple[bool, ...]], int] = {}
        table = self.table(schedule)
        for axis, (kind, extent) in enumerate(zip(table.kinds, table.extents, strict=True)):
            if kind in TILED:
                moves = tuple(access.used[axis] for access in table.accesses)
                reach[kind, moves] = reach.get((kind, moves), 1) * extent
        return frozenset((*key, extent) for key, extent in reach.items() if extent > 1)

    # what predictors and policies see

    def loop_nests(self, schedules: Sequence[Schedule]) -> list[AxisTable]:
        """The loop nest after each schedule, with how many micro-operations its code has. Raises ScheduleError if one
        does not apply."""
        return [replace(self.table(schedule), uops=self.uops(schedule)) for schedule in schedules]

    def refusals(self, schedules: Sequence[Schedule]) -> list[float]:
        """How likely it is, by rule, that the compiler refuses each. Raises ScheduleError if one does not apply."""
        return [refusal(self, schedule) for schedule in schedules]

    def action_features(self, schedule: Schedule, actions: Sequence[Action] | None = None) -> ActionRows:
        """The rows of `actions` (by default all that there are from here), and of stopping; columns are
        `kcg.kernel.loop_nest.ACTION_FEATURES`. Raises ScheduleError if `schedule` does not apply."""
        opts = [opt_of(action) for action in (self.actions(schedule) if actions is None else actions)]
        table, symbolic = self.table(schedule), self.symbolic_axes(schedule)
        return action_rows(table, opts, depth=len(opts_of(schedule)), symbolic=symbolic)

    def groups(self, schedule: Schedule) -> tuple[int, ...]:
        """Traits, 1 or 0 each, that a predictor may misjudge alike wherever they are; as many for every schedule."""
        return traits_of(schedule)

    # other schedules of this kernel and of similar ones

    def variants(self, schedule: Schedule) -> list[Schedule]:
        """With one step less, and with another amount of one step."""
        return variants(self, schedule)

    def neighbours(self, schedule: Schedule) -> list[Schedule]:
        """The variants, and with a factor of one step moved to another."""
        return [*variants(self, schedule), *moved(self, schedule)]

    def family(self) -> Hashable:
        """The kinds of the axes in order, and whether tinygrad takes tensor cores: equal for similar kernels."""
        return self.table(RAW).kinds, self.table(self.baseline()).tensor_core

    def transfer(self, schedule: Schedule, other: object) -> Schedule | None:
        """Another kernel's schedule taken step by step; None where one of its steps is not legal here."""
        return followed(self.step, RAW, opts_of(schedule))

    # what becomes of a schedule

    def check(self, schedule: Schedule) -> None:
        """Raises ScheduleError where a schedule does not apply, by tinygrad's own passes, and what they raise where
        arguments are foreign."""
        opts = opts_of(schedule)
        for length in range(1, len(opts)):  # which the next schedules begin with, too: a third less work at 50 a kernel
            self.state(schedule_of(opts[:length]))
        self.state(schedule)

    def compile(self, schedule: Schedule, variables: Variables = (), also: tuple[Variables, ...] = ()) -> Program:
        """The program of one launch. Raises ScheduleError or the compiler's own error."""
        compiled = compile_schedule(self.region, schedule, self.target, variables=variables, also=also)
        return program_of_parts(self.region, [compiled])

    def name(self, schedule: Schedule) -> str:
        """tinygrad's name of the scheduled kernel."""
        return scheduling.kernel_name(self.state(schedule))

    def legend(self, schedule: Schedule) -> str:
        """What the name says, in words: `reduce; global 40 × 2, local 8, upcast 4, reduce 64, unroll 4`."""
        return describe_axes(self.state(schedule))


V = TypeVar("V")


def _keep(known: OrderedDict[Schedule, V], schedule: Schedule, value: V, most: int = STATES_KEPT) -> None:
    known[schedule] = value
    if len(known) > most:
        known.popitem(last=False)


_AXIS_WORDS = {
    "DEVICE": "device",
    "GLOBAL": "global",
    "WARP": "warp",
    "LOCAL": "local",
    "WEAK": "loop",
    "LOOP": "loop",
    "GROUP_REDUCE": "group",
    "REDUCE": "reduce",
    "UPCAST": "upcast",
    "UNROLL": "unroll",
    "THREAD": "thread",
}


def describe_axes(state: Any) -> str:
    """The axes of a schedule state in words, in the order in which tinygrad names them."""
    parts: list[tuple[str, list[str]]] = []
    for extent, axis_type in zip(state.full_shape, state.axis_types, strict=True):
        word = _AXIS_WORDS.get(axis_type.name, axis_type.name.lower())
        text = str(extent) if isinstance(extent, int) else extent.render()
        if parts and parts[-1][0] == word:
            parts[-1][1].append(text)
        else:
            parts.append((word, [text]))
    kind = "reduce" if state.reduceop is not None else "elementwise"
    axes = ", ".join(f"{word} {' × '.join(extents)}" for word, extents in parts)
    return f"{kind}; {axes}" if axes else kind


# ---- How likely the compiler refuses a schedule that tinygrad lets one choose, from the schedule state alone.
#
# Two reasons are known, and neither can be learned well from the few failures of a dataset: a code of more than
# `UOPS_MAX` micro-operations, of which there is a count beforehand that is a few per cent off, and a tensor core that
# tinygrad 0.14.0 cannot lower.

TOO_LONG_AT, TOO_LONG_WIDTH = 0.03, 0.02
"""Of `count_uops` over `UOPS_MAX`, as logarithms: where half are refused, and how fast that changes. Of the H200
dataset's training schedules 6 % are refused at 0.97, 8 % at 1.0, a third at 1.02."""
NEVER_LOWERED = 0.99


def refusal(space: KernelSpace, schedule: Schedule, uops: int | None = None) -> float:
    """The probability that compiling fails, 0 to 1; `uops` is `space.uops(schedule)`, where it is known.

    Raises ScheduleError where the schedule does not apply.
    """
    chance = too_long(space.uops(schedule) if uops is None else uops)
    table = space.table(schedule)
    if table.tensor_core and opts_of(schedule)[0].op == "TC" and len(opts_of(schedule)) > 1:
        alone = space.table(schedule_of(opts_of(schedule)[:1]))
        if upcasts_both_factors(table, alone):
            chance = max(chance, NEVER_LOWERED)
    return chance


def too_long(uops: int) -> float:
    """The probability that a code counted at so many micro-operations has more than the compiler takes."""
    return 1 / (1 + math.exp(-(math.log(max(uops, 1) / UOPS_MAX) - TOO_LONG_AT) / TOO_LONG_WIDTH))


def upcasts_both_factors(table: AxisTable, alone: AxisTable) -> bool:
    """Whether every axis that was upcast beside those of the tensor core itself runs through both factors, as those of
    a batch do: tinygrad 0.14.0 then fails on an assertion about the shape of the matrix operation. One more that runs
    through a single factor, or an unrolled one, avoids it. `alone` is the table of the tensor core without other Opts.

    Right for 3,442 of 3,443 schedules with tensor cores of the H200 dataset.
    """
    upcast, of_core = [i for i, kind in enumerate(table.kinds) if kind == "UPCAST"], alone.kinds.count("UPCAST")
    more = upcast[of_core:]  # those of the tensor core were made first, and stand first
    if not more or table.kinds.count("UNROLL") > alone.kinds.count("UNROLL"):
        return False
    reduced = [i for i, kind in enumerate(table.kinds) if kind in REDUCING]
    factors = [a.used for a in table.accesses if not a.is_store and any(a.used[i] for i in reduced)]
    return len(factors) > 1 and all(used[i] for used in factors for i in more)
