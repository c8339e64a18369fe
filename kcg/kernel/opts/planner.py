"""Schedules by arithmetic: which Opts are legal, what they lead to, and what the result looks like, without tinygrad.

tinygrad applies an Opt by rewriting the kernel's graph, 0.5 to 3 ms each. All that most Opts do is to split one axis in
two, or to rename two, under conditions on extents and kinds: `Planner` does that to a list of axes in microseconds. It
follows tinygrad 0.14.0's `Scheduler.apply_opt` and kcg's own limits to the letter; tests
compare every answer with theirs. TC and PADTO change the kernel itself: tinygrad applies them, once per kernel, and
arithmetic goes on from the result.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from kcg.compat import scheduling
from kcg.compat.renderers import planning_renderer
from kcg.compat.scheduling import to_tiny
from kcg.compat.tiny import AxisType, KernelOptError, OptOps, Scheduler
from kcg.errors import ScheduleError
from kcg.kernel.codec import ast_of
from kcg.kernel.loop_nest import INNER, AxisTable
from kcg.kernel.opts.plan_state import POSITION, Axis, InitialNest, Split, initial_nest
from kcg.kernel.opts.schedule import RAW, Opt, opts_of
from kcg.types import Region, Schedule, Target

# ---- kcg's own list of Opt actions, and which of them are legal for a schedule state.
#
# BEAM's list of tinygrad 0.14.0 has 193 actions; this one adds the amounts it leaves out (UPCAST and UNROLL by 8 and
# 16, LOCAL by 32 on every axis), and keeps the limits of BEAM on the size of what is unrolled and of a workgroup. PADTO
# is left out, as BEAM leaves it out by default: with UNROLL it makes wrong kernels (docs/architecture.md).

UPCAST_MAX = 256  # elements one thread may hold; BEAM's default
LOCAL_MAX = 1024  # threads of a workgroup; BEAM's default

TC_LOCAL_AXES_MAX = 2
"""LOCAL axes beside a warp. A workgroup has three dimensions, so with a third LOCAL axis tinygrad 0.14.0 merges the
warp with another one: its lanes are no longer neighbours and the kernel is wrong. Seen on one NVIDIA H200: 33 of 33
schedules with three were wrong, 120 of 120 with at most two were right."""

ACTIONS: tuple[Opt, ...] = (
    *(Opt("UPCAST", axis, amount) for amount in (0, 2, 3, 4, 5, 7, 8, 16) for axis in range(8)),
    *(Opt("UNROLL", axis, amount) for amount in (0, 2, 3, 4, 5, 7, 8, 16) for axis in range(5)),
    *(Opt("LOCAL", axis, amount) for amount in (2, 3, 4, 8, 13, 16, 29, 32) for axis in range(7)),
    *(Opt("GROUPTOP", axis, amount) for amount in (13, 16, 28, 29, 32, 49, 64, 256) for axis in range(3)),
    *(Opt("GROUP", axis, amount) for amount in (0, 4, 8, 16) for axis in range(3)),
    *(Opt("TC", axis, (-1, tc_opt, 1)) for axis, tc_opt in [(0, 0), *((i, 2) for i in range(9))]),
    *(Opt("SWAP", first, second) for first in range(5) for second in range(first + 1, 5)),
    *(Opt("THREAD", axis, amount) for amount in (2, 3, 4, 5, 8, 12, 16, 24, 32, 64) for axis in range(3)),
)
"""Every action, in the order in which searches see them."""

_GPU_ONLY = {"LOCAL", "GROUP", "GROUPTOP", "SWAP"}


@functools.cache
def possible_on(target: Target) -> tuple[Opt, ...]:
    """The actions that can ever be legal on `target`."""
    return tuple(
        a
        for a in ACTIONS
        if not (a.op in _GPU_ONLY and not target.has_local)
        and not (a.op == "TC" and not target.has_local)
        and not (a.op == "THREAD" and not (target.has_threads and _int(a.arg) <= target.max_threads))
    )


def _int(value: int | tuple[int, ...] | None) -> int:
    assert isinstance(value, int)
    return value


def legal_steps(state: Scheduler, target: Target) -> list[tuple[Opt, Scheduler]]:
    """Every legal action from `state` with the state it leads to.

    The answer is tinygrad's own (`Scheduler.apply_opt`); what it would surely refuse is skipped first, since copying
    and substituting costs 0.1 to 1 ms each.
    """
    return [(opt, after) for opt in possible_on(target) if (after := try_step(state, opt)) is not None]


def try_step(state: Scheduler, opt: Opt) -> Scheduler | None:
    """The state after `opt`, or None where tinygrad or the size limits refuse it."""
    tiny = to_tiny(opt)
    if opt.op == "TC":
        if state.applied_opts:
            return None
    elif not _may_be_legal(state, tiny):
        return None
    after = state.copy()
    try:
        after.apply_opt(tiny)
    except (KernelOptError, IndexError, ValueError, AssertionError):
        return None
    return after if _within_limits(after) else None


def _may_be_legal(state: Scheduler, tiny: Any) -> bool:
    try:
        axis = state.real_axis(tiny.op, tiny.axis)
    except KernelOptError:
        return False
    shape = state.full_shape
    if axis >= len(shape):
        return False
    if tiny.op is OptOps.SWAP:
        return bool(tiny.arg < len(shape))
    extent = shape[axis]
    if not isinstance(extent, int):
        return True  # symbolic: tinygrad decides
    # an amount equal to the extent is the same schedule as amount 0, which is in the list for these
    if tiny.arg == extent and tiny.op in (OptOps.UPCAST, OptOps.UNROLL, OptOps.GROUP):
        return False
    return extent > 1 and (tiny.arg == 0 or extent % tiny.arg == 0)


def _within_limits(state: Scheduler) -> bool:
    """BEAM's limits on registers and workgroups, tensor cores counted by what one thread holds."""
    core = getattr(state, "tensor_core", None)
    held_by_core = math.prod(core.dims) // core.threads if core else 1
    if core and state.axis_types.count(AxisType.LOCAL) > TC_LOCAL_AXES_MAX:
        return False
    upcast = local = 1
    for extent, axis_type in zip(state.full_shape, state.axis_types, strict=True):
        if axis_type in (AxisType.UPCAST, AxisType.UNROLL):
            upcast *= extent
        elif axis_type in (AxisType.WARP, AxisType.LOCAL, AxisType.GROUP_REDUCE):
            local *= extent
    return bool(upcast // held_by_core <= UPCAST_MAX and local <= LOCAL_MAX)


MAKES = {
    "UPCAST": "UPCAST",
    "UNROLL": "UNROLL",
    "LOCAL": "LOCAL",
    "GROUP": "GROUP_REDUCE",
    "GROUPTOP": "GROUP_REDUCE",
    "THREAD": "THREAD",
}
"""Kind of the axis that an Opt splits off."""

TAKES = {
    "UPCAST": ("GLOBAL", "LOCAL", "WEAK"),
    "UNROLL": ("GROUP_REDUCE", "REDUCE"),
    "LOCAL": ("GLOBAL", "WEAK"),
    "GROUP": ("REDUCE",),
    "GROUPTOP": ("REDUCE",),
    "THREAD": ("WEAK",),
}
"""Kinds of the axes that it may split."""

MOST = {"UPCAST": 16, "UNROLL": 32}  # tinygrad's own limits on an amount
GROUPS = ("GROUP", "GROUPTOP")
FROM_THE_TOP = ("GROUPTOP", "THREAD")
WHOLE_AS_ZERO = ("UPCAST", "UNROLL", "GROUP")  # kcg's list has amount 0 for these: the extent is the same schedule
SHARED = ("LOCAL", "GROUP_REDUCE", "WARP")  # threads of one workgroup
WITHIN_A_THREAD = ("UPCAST", "UNROLL", "REDUCE")
BY_TINYGRAD = ("TC", "PADTO")

STATES_KEPT = 4096
NOT_LEGAL = "{} is not legal here: {}"


@dataclass(frozen=True, slots=True)
class PlanState:
    """A schedule as axes. Two of the same kernel by different Opts are different states; `Planner.key` says."""

    initial: InitialNest
    axes: tuple[Axis, ...]  # in tinygrad's order
    splits: tuple[Split, ...] = ()
    opts: tuple[Opt, ...] = ()
    no_locals: bool = False


class _Sizes(NamedTuple):
    """What limits are on."""

    upcast: int
    local: int
    local_axes: int
    held: int  # product of the extents that multiply the shared memory of a reduction
    grouped: bool
    threaded: bool


def _sizes(axes: tuple[Axis, ...]) -> _Sizes:
    upcast = local = held = 1
    local_axes, grouped, threaded = 0, False, False
    for _, _, extent, kind, *_ in axes:
        if kind in INNER:
            upcast *= extent
            held *= extent if kind == "UPCAST" else 1
        elif kind in SHARED:
            local *= extent
            held *= extent
            local_axes += kind == "LOCAL"
            grouped = grouped or kind == "GROUP_REDUCE"
        elif kind == "THREAD":
            threaded = True
    return _Sizes(upcast, local, local_axes, held, grouped, threaded)


def plan_of(
    region: Region, target: Target, grounds: Mapping[tuple[Opt, ...], InitialNest] | None = None
) -> Planner | None:
    """A planner for a region of one kernel; None where the kernel is outside of what it can do (see `initial_nest`).

    With `grounds` that an earlier planner for the same kernel and target has read, tinygrad is not asked for these,
    which takes it 20 ms and more per kernel.
    """
    renderer = planning_renderer(target)

    def initial() -> Scheduler:
        return scheduling.initial_state(ast_of(region.kernel), renderer)

    if grounds and () in grounds:
        return Planner(initial, target, renderer, grounds=grounds)
    return planner_from(initial(), target)


def planner_from(root: Scheduler, target: Target) -> Planner | None:
    """A planner from the state of the unoptimised kernel, for `target`; None where the kernel is outside of it."""
    initial = None if root.applied_opts else initial_nest(root)
    return Planner(lambda: root, target, root.ren, grounds={(): initial}) if initial is not None else None


class Planner:
    """All schedules of one kernel on one target. `plan_of` makes one."""

    def __init__(
        self,
        root: Callable[[], Scheduler],
        target: Target,
        renderer: Any,
        *,
        grounds: Mapping[tuple[Opt, ...], InitialNest],
    ) -> None:
        self.target, self._make_root = target, root
        self._root: Scheduler | None = None
        self._by_tinygrad: dict[tuple[Opt, ...], PlanState | str] = {  # or why not
            opts: PlanState(g, g.axes, opts=opts, no_locals=g.no_locals) for opts, g in grounds.items()
        }
        self._start = PlanState(grounds[()], grounds[()].axes, no_locals=grounds[()].no_locals)
        self._states: OrderedDict[Schedule, PlanState] = OrderedDict()
        self._first: tuple[Opt, ...] = ()
        self._possible = [(opt.op, opt.axis, opt.arg, opt) for opt in possible_on(target)]
        self._has_local, self._has_threads = bool(renderer.has_local), bool(renderer.has_threads)
        self._shared_max = renderer.shared_max
        self._threads_max: int | None = renderer.global_max[0] if renderer.global_max is not None else None
        self._upcast_most = math.inf if renderer.target.device == "DSP" else MOST["UPCAST"]

    def grounds(self) -> dict[tuple[Opt, ...], InitialNest]:
        """What was read off tinygrad so far, by the Opts before it: for `plan_of` in another process or another day."""
        return {opts: found.initial for opts, found in self._by_tinygrad.items() if isinstance(found, PlanState)}

    def start(self) -> PlanState:
        """The unoptimised kernel."""
        return self._start

    def state(self, schedule: Schedule) -> PlanState:
        """The state after `schedule`, by tinygrad's rules alone. Raises ScheduleError if it does not apply."""
        if schedule == RAW:
            return self._start
        if (found := self._states.get(schedule)) is None:
            found = self._start
            for opt in opts_of(schedule):
                found = self.after(found, opt)
            self.keep(schedule, found)
        return found

    def keep(self, schedule: Schedule, state: PlanState) -> None:
        """Remembers that `state` is what `schedule` leads to: what `apply` gave need not be worked out again."""
        self._states[schedule] = state
        if len(self._states) > STATES_KEPT:
            self._states.popitem(last=False)

    def after(self, state: PlanState, opt: Opt) -> PlanState:
        """The state after `opt`, by tinygrad's rules alone. Raises ScheduleError where it is not legal."""
        if opt.op in BY_TINYGRAD:
            found = self._done_by_tinygrad(state, opt)
            if isinstance(found, str):
                raise ScheduleError(found)
            return found
        if opt.op == "NOLOCALS":
            if any(a.kind in SHARED for a in state.axes):
                raise ScheduleError(NOT_LEGAL.format(opt, "no locals can't have locals"))
            return replace(state, opts=(*state.opts, opt), no_locals=True)
        if opt.op == "SWAP":
            return self._swapped(state, opt)
        if opt.op not in MAKES:
            raise ScheduleError(f"tinygrad has no Opt named {opt.op!r}")
        i = self._place(state, opt)
        amount = opt.arg
        if i is None or not isinstance(amount, int):
            raise ScheduleError(NOT_LEGAL.format(opt, "there is no such axis" if i is None else "it needs an amount"))
        amount = amount or state.axes[i].extent
        if reason := self._refusal(state, _sizes(state.axes), opt.op, state.axes[i], amount):
            raise ScheduleError(NOT_LEGAL.format(opt, reason))
        return self._split(state, opt, i, amount)

    def apply(self, state: PlanState, opt: Opt) -> PlanState | None:
        """The state after an action of kcg's list, None where tinygrad or kcg's limits refuse it."""
        if opt.op in BY_TINYGRAD:
            if opt.op == "TC" and state.opts:
                return None
            found = self._done_by_tinygrad(state, opt)
            return found if isinstance(found, PlanState) and self._within_limits(found) else None
        if opt.op not in MAKES:
            try:
                after = self.after(state, opt)
            except ScheduleError:
                return None
            return after if self._within_limits(after) else None
        i = self._place(state, opt)
        if i is None or not isinstance(opt.arg, int):
            return None
        sizes = _sizes(state.axes)
        amount = self._legal_amount(state, sizes, opt.op, state.axes[i], opt.arg)
        return self._split(state, opt, i, amount) if amount else None

    def legal(self, state: PlanState) -> list[Opt]:
        """The Opts of kcg's list that `legal_steps` has steps for, in its order."""
        if not state.opts and self._first:
            return list(self._first)
        sizes, axes, found = _sizes(state.axes), state.axes, list[Opt]()
        meant: dict[tuple[str, int | None], Axis | None] = {}
        swaps = self._within_limits(state)
        for op, axis, arg, opt in self._possible:
            if op in MAKES:
                assert isinstance(arg, int)
                try:
                    split = meant[op, axis]
                except KeyError:
                    i = self._place(state, opt)
                    split = meant[op, axis] = axes[i] if i is not None and axes[i].kind in TAKES[op] else None
                if split is None or (arg and split.extent % arg):
                    continue  # most of them
                if self._legal_amount(state, sizes, op, split, arg):
                    found.append(opt)
            elif op == "SWAP":
                if swaps and isinstance(axis, int) and isinstance(arg, int) and _are_swappable(axes, axis, arg):
                    found.append(opt)
            elif self.apply(state, opt) is not None:
                found.append(opt)
        if not state.opts:
            self._first = tuple(found)  # asked for most often, and the only list with tensor cores
        return found

    def table(self, state: PlanState) -> AxisTable:
        """The axis table, as `kcg.kernel.loop_nest.axis_table` has it."""
        return state.initial.table(state.axes, state.splits)

    def uops(self, state: PlanState) -> int:
        """The number of micro-operations, as `kcg.kernel.loop_nest.count_uops` has it."""
        return state.initial.uops(state.axes, state.splits)

    def fits(self, state: PlanState, most: int) -> bool:
        """Whether `uops(state)` is at most this, which needs no count where little is unrolled."""
        return state.initial.fits(state.axes, state.splits, most)

    def key(self, state: PlanState) -> str:
        """Identity of the scheduled kernel (hex): equal where the same axes stand in the same order.

        Not equal for a kernel padded before and after the same splits (PADTO is in no list of actions).
        """
        rows = [(a.kind, a.extent, a.origin, a.step) for a in state.axes]
        return hashlib.sha256(repr((state.initial.key, state.no_locals, rows)).encode()).hexdigest()

    def alike(self, state: PlanState) -> str:
        """What all threads do, whatever the order in which each does its part (hex): equal where the same axes are
        spread over the grid and a workgroup in the same order, and the same elements are left to each thread."""
        spread = [(a.kind, a.extent, a.origin, a.step) for a in state.axes if a.kind not in WITHIN_A_THREAD]
        inside = sorted((a.kind, a.origin, a.step, a.extent) for a in state.axes if a.kind in WITHIN_A_THREAD)
        parts: list[tuple[str, int, int, int]] = []
        for kind, origin, step, extent in inside:
            if parts and parts[-1][:2] == (kind, origin) and parts[-1][2] * parts[-1][3] == step:
                step, extent = parts[-1][2], parts.pop()[3] * extent
            parts.append((kind, origin, step, extent))
        return hashlib.sha256(repr((state.initial.key, state.no_locals, spread, parts)).encode()).hexdigest()

    def _place(self, state: PlanState, opt: Opt) -> int | None:
        """`Scheduler.real_axis`: which axis an Opt of the kinds in `MAKES` means."""
        axes, axis = state.axes, opt.axis
        if not isinstance(axis, int) or axis < 0:
            return None
        if opt.op in ("UNROLL", *GROUPS):
            kinds = TAKES[opt.op]
            places = [i for i, a in enumerate(axes) if a.kind in kinds]
            return places[axis] if axis < len(places) else None
        return axis if axis < len(axes) else None

    def _legal_amount(self, state: PlanState, sizes: _Sizes, op: str, axis: Axis, amount: int) -> int:
        """The amount that the action splits off, 0 where tinygrad or kcg's limits refuse it."""
        extent = axis.extent
        if amount == 0:
            amount = extent
        elif extent % amount or (amount == extent and op in WHOLE_AS_ZERO):
            return 0
        made, core = MAKES[op], state.initial.core_held
        upcast = sizes.upcast * amount if made in INNER else sizes.upcast
        if (upcast // core if core else upcast) > UPCAST_MAX:
            return 0
        local = sizes.local * amount if made in SHARED else sizes.local
        if (local // amount if axis.kind in SHARED else local) > LOCAL_MAX:
            return 0
        if core:
            gone = axis.kind == "LOCAL" and amount == extent
            if sizes.local_axes + (made == "LOCAL") - gone > TC_LOCAL_AXES_MAX:
                return 0
        return 0 if self._refusal(state, sizes, op, axis, amount) else amount

    def _refusal(self, state: PlanState, sizes: _Sizes, op: str, axis: Axis, amount: int) -> str:
        """Why tinygrad refuses to split `amount` off an axis; empty where it does not."""
        initial, origin = state.initial, 1 << axis.origin
        if axis.kind not in TAKES[op]:
            return f"{op} is not for {axis.kind}"
        if amount < 2 or axis.extent % amount:
            return f"{amount} can't divide {axis.extent}"
        if amount > (self._upcast_most if op == "UPCAST" else MOST.get(op, math.inf)):
            return f"{amount} is too many"
        if op in GROUPS or op == "LOCAL":
            if not self._has_local:
                return "locals needed for opt"
            if state.no_locals:
                return "can't use locals"
        if initial.reduce_bytes and (op in GROUPS or sizes.grouped):
            needs = amount * sizes.held * initial.reduce_bytes
            if needs > self._shared_max:
                return f"exceeds maximum shared memory size: needs {needs}, max {self._shared_max}"
        if op in GROUPS:
            if not initial.groupable & origin:
                return "cannot have a GROUP_REDUCE inside another reduce"
            if any(o.op == "TC" for o in state.opts):
                return "no grouping with tensor cores"
        elif op == "THREAD":
            if not self._has_threads or self._threads_max is None or amount > self._threads_max:
                return "too many threads"
            if sizes.threaded or not initial.threadable & origin:
                return "can't apply range to this dim"
        return ""

    def _split(self, state: PlanState, opt: Opt, i: int, amount: int) -> PlanState:
        axis, kind, top = state.axes[i], MAKES[opt.op], opt.op in FROM_THE_TOP
        rest = axis.extent // amount
        number = max([a.number[0] for a in state.axes]) + 1
        uid = len(state.initial.axes) + len(state.splits)
        axes = list(state.axes)
        new_step, old_step = (axis.step * rest, axis.step) if top else (axis.step, axis.step * amount)
        new = Axis(POSITION[kind], (number,), amount, kind, axis.origin, new_step, uid)
        if rest > 1:
            axes[i] = Axis(axis.position, axis.number, rest, axis.kind, axis.origin, old_step, axis.uid)
            axes.append(new)
        else:
            axes[i] = new
        axes.sort()
        splits = (*state.splits, Split(axis.uid, rest, amount, top, kind))
        return PlanState(state.initial, tuple(axes), splits, (*state.opts, opt), state.no_locals)

    def _swapped(self, state: PlanState, opt: Opt) -> PlanState:
        first, second = opt.axis, opt.arg
        if not isinstance(first, int) or not isinstance(second, int) or first < 0 or second < 0 or first == second:
            raise ScheduleError(NOT_LEGAL.format(opt, "it needs two axes"))
        if not _are_swappable(state.axes, first, second):
            raise ScheduleError(NOT_LEGAL.format(opt, "swap only for globals"))
        axes = list(state.axes)
        a, b = axes[first], axes[second]
        axes[first], axes[second] = b._replace(number=a.number), a._replace(number=b.number)
        return PlanState(state.initial, tuple(axes), state.splits, (*state.opts, opt), state.no_locals)

    def _done_by_tinygrad(self, state: PlanState, opt: Opt) -> PlanState | str:
        """The state after an Opt that tinygrad applies, from which arithmetic goes on; or why it does not apply."""
        opts = (*state.opts, opt)
        if (found := self._by_tinygrad.get(opts)) is None:
            self._root = self._root or self._make_root()
            try:
                real = scheduling.apply(self._root, opts)
            except ScheduleError as error:
                found = str(error)
            else:
                initial = initial_nest(real)
                assert initial is not None, "no Opt makes an extent symbolic"
                found = PlanState(initial, initial.axes, (), opts, initial.no_locals)
            self._by_tinygrad[opts] = found
        return found

    def _within_limits(self, state: PlanState) -> bool:
        sizes, core = _sizes(state.axes), state.initial.core_held
        if core and sizes.local_axes > TC_LOCAL_AXES_MAX:
            return False
        return (sizes.upcast // core if core else sizes.upcast) <= UPCAST_MAX and sizes.local <= LOCAL_MAX


def _are_swappable(axes: tuple[Axis, ...], first: int, second: int) -> bool:
    return max(first, second) < len(axes) and axes[first].kind == axes[second].kind == "GLOBAL"
