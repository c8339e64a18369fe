"""Opts as numbers: what each legal Opt would do to which axis, so that a policy scores what an action is.

An action has no fixed index. Its row says the kind of Opt, how much, what is left of the axis, how loads and stores
move along that axis, and what one thread and one workgroup would hold afterwards; beside it stand the places of the
axes that it acts on, so that a network can look up what it made of them. The last row is always to stop. Sizes are
base-2 logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from kcg.kernel.loop_nest import (
    ACTION_FEATURES,
    AXES_OF_ACTION,
    INNER,
    KINDS_OF_ACTION,
    STOP,
    WORKGROUP,
    ActionRows,
    AxisTable,
)
from kcg.kernel.opts.planner import ACTIONS, TAKES
from kcg.kernel.opts.schedule import Opt, opts_of
from kcg.types import Action

Array = np.ndarray[Any, Any]

_PLACE = {kind: i for i, kind in enumerate(KINDS_OF_ACTION)}
_FEATURE = {name: i for i, name in enumerate(ACTION_FEATURES)}
_ALONG_THE_NEST = ("UPCAST", "LOCAL", "THREAD")  # their axis counts all axes, that of the others those they may split


def opt_of(action: Action) -> Opt:
    """The Opt that an action applies. Its label says it: in a recorded table a step may lead to a schedule that was
    recorded in another order."""
    known = _by_label().get(action.label)
    return known if known is not None else opts_of(action.schedule)[-1]


@cache
def _by_label() -> dict[str, Opt]:
    return {str(opt): opt for opt in ACTIONS}


def action_rows(
    table: AxisTable, opts: Sequence[Opt], *, depth: int = 0, symbolic: frozenset[int] = frozenset()
) -> ActionRows:
    """The rows of `opts`, all legal at a schedule of `depth` steps with this axis table, and of stopping there.
    `symbolic` are the places of axes of symbolic extent, which UNROLL does not count."""
    features = np.zeros((len(opts) + 1, len(ACTION_FEATURES)), np.float32)
    axes = np.full((len(opts) + 1, AXES_OF_ACTION), -1, np.int64)
    along = _along(table)
    sizes = [(e, k) for e, k in zip(table.extents, table.kinds, strict=True)]
    held = sum(math.log2(max(e, 1)) for e, k in sizes if k in INNER)
    threads = sum(math.log2(max(e, 1)) for e, k in sizes if k in WORKGROUP)
    for name, value in (("held", held), ("held after", held), ("threads", threads), ("threads after", threads)):
        features[:, _FEATURE[name]] = value
    features[:, _FEATURE["depth"]] = depth
    places = {op: [i for i, kind in enumerate(table.kinds) if kind in TAKES[op]] for op in ("UNROLL", "GROUP")}
    places["UNROLL"] = [i for i in places["UNROLL"] if i not in symbolic]
    places["GROUPTOP"] = places["GROUP"]
    for row, opt in enumerate(opts):
        kind = opt.op if opt.op in _PLACE else "other"
        features[row, _PLACE[kind]] = 1.0
        found = _axes_of(opt, places, len(table.extents))
        axes[row, : len(found)] = found
        if opt.op == "TC" and isinstance(opt.arg, tuple):
            features[row, _FEATURE["core axes"]] = opt.axis if isinstance(opt.axis, int) else 0
            features[row, _FEATURE["core padding"]] = opt.arg[1]
        if found:
            features[row, along.start : along.stop] = along.rows[found[0]]
            _amounts(features[row], opt, table.extents[found[0]], kind, table.kinds[found[0]])
    features[-1, _PLACE[STOP]] = 1.0
    return ActionRows(features, axes)


def _axes_of(opt: Opt, places: dict[str, list[int]], count: int) -> list[int]:
    """The places of the axes that an Opt acts on."""
    if not isinstance(opt.axis, int):
        return []
    if opt.op == "SWAP":
        found = [opt.axis, opt.arg if isinstance(opt.arg, int) else -1]
    elif opt.op in places:
        found = [places[opt.op][opt.axis]] if opt.axis < len(places[opt.op]) else []
    else:
        found = [opt.axis] if opt.op in _ALONG_THE_NEST else []
    return found if all(0 <= place < count for place in found) else []


def _amounts(row: Array, opt: Opt, extent: int, kind: str, of: str) -> None:
    """`of` is the kind of the axis."""
    amount = (opt.arg or extent) if isinstance(opt.arg, int) and kind != "SWAP" else 1
    row[_FEATURE["amount"]] = math.log2(max(amount, 1))
    row[_FEATURE["extent"]] = math.log2(max(extent, 1))
    row[_FEATURE["rest"]] = math.log2(max(extent // max(amount, 1), 1))
    row[_FEATURE["whole"]] = amount == extent
    row[_FEATURE["power of two"]] = amount & (amount - 1) == 0
    if kind in ("UPCAST", "UNROLL"):
        row[_FEATURE["held after"]] += math.log2(max(amount, 1))
        if of in WORKGROUP:  # what one thread takes over, no other does
            row[_FEATURE["threads after"]] -= math.log2(max(amount, 1))
    if kind in ("LOCAL", "GROUP", "GROUPTOP"):
        row[_FEATURE["threads after"]] += math.log2(max(amount, 1))


@dataclass(frozen=True)
class _Along:
    rows: Array  # (axes, 5)
    start: int  # of their places among the features
    stop: int


def _along(table: AxisTable) -> _Along:
    """How loads and stores move along each axis."""
    rows = np.zeros((len(table.extents), 5), np.float32)
    least = np.full(len(table.extents), 64.0, np.float32)
    for access in table.accesses:
        for i, (step, used) in enumerate(zip(access.strides, access.used, strict=True)):
            if used:
                rows[i, 2 * access.is_store] += 1
                rows[i, 2 * access.is_store + 1] += step == 1
                least[i] = min(least[i], math.log2(1 + abs(step)))
    rows[:, 4] = np.where(least < 64.0, least, 0.0)
    start = _FEATURE["loads that move"]
    return _Along(rows, start, start + rows.shape[1])
