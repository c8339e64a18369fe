"""tinygrad's schedule state for a normalised AST: from the AST to a `Scheduler`, and from Opts to a scheduled AST."""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
from dataclasses import replace
from typing import Any

from tinygrad.codegen.simplify import pm_flatten_range, pm_load_collapse, pm_simplify_ranges, pm_split_ranges
from tinygrad.helpers import ansistrip
from tinygrad.schedule.multi import multi_pm
from tinygrad.schedule.rangeify import pm_mops
from tinygrad.uop.symbolic import sym

from kcg.compat.opts import Opt
from kcg.compat.tiny import (
    Context,
    KernelInfo,
    KernelOptError,
    Ops,
    OptOps,
    Scheduler,
    TinyOpt,
    UOp,
    graph_rewrite,
    hand_coded_optimizations,
)
from kcg.errors import ScheduleError


def to_tiny(opt: Opt) -> Any:
    """tinygrad's `Opt` of a kcg `Opt`. Raises ScheduleError for an op that this tinygrad does not have."""
    try:
        return TinyOpt(OptOps[opt.op], opt.axis, opt.arg)
    except KeyError:
        raise ScheduleError(f"tinygrad has no Opt named {opt.op!r}") from None


def from_tiny(opt: Any) -> Opt:
    """kcg's `Opt` of a tinygrad `Opt`."""
    return Opt(opt.op.name, opt.axis, tuple(opt.arg) if isinstance(opt.arg, tuple) else opt.arg)


def with_device(ast: UOp, device: str | tuple[str, ...] | None) -> UOp:
    """The AST with every buffer on `device`, or on several; tinygrad's caches and its code generation ask for one."""
    params = {
        p: p.replace(arg=replace(p.arg, device=device))
        for p in ast.toposort()
        if p.op is Ops.PARAM and p.arg.slot >= 0 and p.arg.device != device
    }
    return ast.substitute(params, walk=True) if params else ast


class QuickScheduler(Scheduler):  # type: ignore[misc]  # tinygrad counts as Any
    """tinygrad's `Scheduler`, which sorts its ranges anew whenever it is asked for one, with their order remembered.

    Trying an action asks a dozen times. The answers are the same; a test compares.
    """

    def __init__(self, ast: UOp, ren: Any) -> None:
        self._ranges_of: UOp | None = None
        super().__init__(ast, ren)

    def _remember(self) -> None:
        if self._ranges_of is not self.ast:
            self._rngs: list[UOp] = Scheduler.rngs.fget(self)
            self._shape: list[Any] | None = None
            self._ranges_of = self.ast

    @property
    def rngs(self) -> list[UOp]:
        self._remember()
        return list(self._rngs)

    @property
    def full_shape(self) -> list[Any]:
        self._remember()
        if self._shape is None:
            self._shape = list(Scheduler.full_shape.fget(self))
        return list(self._shape)

    def copy(self) -> QuickScheduler:
        self._remember()
        made = QuickScheduler.__new__(QuickScheduler)
        made.__dict__.update(self.__dict__)
        made.applied_opts = list(self.applied_opts)
        made.opt_range = itertools.count(max((r.arg[0] for r in self._rngs), default=0) + 1)
        return made


def with_loads_collapsed(ast: UOp) -> UOp:
    """The AST with tinygrad's indexing by a tensor as it runs: a load at a loaded index. Before, it is a sum over the
    whole table with a comparison. The first passes of `initial_state`."""
    sink = graph_rewrite(ast, pm_mops, name="early movement ops", bottom_up=True)
    return graph_rewrite(sink, pm_load_collapse, name="load collapse")


def initial_state(ast: UOp, renderer: Any) -> Scheduler:
    """The schedule state from which tinygrad's search and its hand-coded Opts start.

    The same passes in the same order as `codegen.full_rewrite_to_sink` runs before `apply_opts`; a test compares.
    """
    state = QuickScheduler(simplified(ast), renderer)
    state.convert_loop_to_global()
    return state


@functools.lru_cache(256)  # the spaces of all kinds begin with it
def simplified(ast: UOp) -> UOp:
    """The AST as tinygrad simplifies it before any Opt: loads at loaded indices, ranges split where an index takes
    them apart by a divisor, and neighbouring ranges merged where every index allows it."""
    sink = graph_rewrite(ast, multi_pm, name="multi_pm")
    sink = with_loads_collapsed(sink)
    sink = graph_rewrite(sink, pm_split_ranges + pm_flatten_range, ctx={}, name="split ranges")
    sink = graph_rewrite(sink, sym + pm_flatten_range, name="initial symbolic")
    return graph_rewrite(sink, pm_flatten_range + pm_simplify_ranges, ctx={}, name="simplify ranges")


def hand_coded(state: Scheduler, *, tensor_cores: bool = True) -> tuple[Opt, ...]:
    """tinygrad's own choice of Opts for the kernel of `state`; without `tensor_cores` as with `TC=0`."""
    if any(u.op is Ops.STAGE for u in state.ast.backward_slice):
        return ()
    with contextlib.nullcontext() if tensor_cores else Context(TC=0):
        done = hand_coded_optimizations(state.copy())
    return tuple(from_tiny(o) for o in done.applied_opts)


def apply(state: Scheduler, opts: tuple[Opt, ...]) -> Scheduler:
    """A copy of `state` after `opts`. Raises ScheduleError where one is not legal."""
    copy = state.copy()
    for opt in opts:
        try:
            copy.apply_opt(to_tiny(opt))
        except (KernelOptError, IndexError, AssertionError, ValueError) as error:
            why = ansistrip(str(error)) or "refused by tinygrad"
            raise ScheduleError(f"{opt} is not legal here: {why}") from error
    return copy


def kernel_name(state: Scheduler) -> str:
    """tinygrad's name of the scheduled kernel, without colours: `r_40_2_8_256`."""
    return re.sub(r"\s", "", ansistrip(state.copy().get_optimized_ast().arg.name))


def scheduled_ast(state: Scheduler) -> UOp:
    """The AST after the Opts, before expansion, with a neutral name and no record of the Opts that led to it."""
    return state.copy().get_optimized_ast(name_override="kernel").replace(arg=KernelInfo(name="kernel"), tag=None)


def canonical_key(state: Scheduler) -> str:
    """Identity of the scheduled AST (hex): the same kernel reached by another order of Opts has the same key.

    Range numbers depend on the order in which Opts created them; they are renumbered by their place.
    """
    ranges = state.rngs
    renumbered = {r: r.replace(arg=(i, r.arg[-1])) for i, r in enumerate(ranges)}
    # one walk: renumbered ranges must not be renumbered again
    sink = state.ast.substitute(renumbered, walk=True).replace(arg=KernelInfo(name="kernel"), tag=None)
    return str(sink.key.hex())
