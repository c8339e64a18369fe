"""kcg's own list of Opt actions, and which of them are legal for a schedule state.

BEAM's list of tinygrad 0.14.0 has 193 actions; this one adds the amounts it leaves out (UPCAST and UNROLL by 8 and 16,
LOCAL by 32 on every axis), and keeps the limits of BEAM on the size of what is unrolled and of a workgroup.
PADTO is left out, as BEAM leaves it out by default: with UNROLL it makes wrong kernels (docs/architecture.md).
"""

from __future__ import annotations

import functools
import math
from typing import Any

from kcg.compat.scheduling import to_tiny
from kcg.compat.tiny import AxisType, KernelOptError, OptOps, Scheduler
from kcg.types import Opt, Target

ACTION_SPACE_VERSION = 1

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
