"""Eviction policies of loads: which loads of a program are streamed, which are read again, and where a policy is heard.

A policy matters where more is read than the L2 cache has room for. What is read once may then go first, so that what
other programs or other loops ask for again stays; or what is asked for again may go last. What kernels before wrote
stays as well, and need not be written to memory while a reduction reads: of 50 to 105 MB, those that evicted them
first took .92 to .97 of a copy's bandwidth on an H100, those without a policy .62 to .86. TMA has no policies in
Triton, and loads that are copied asynchronously only in newer ones: there the word would change nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable
from functools import lru_cache

from kcg.compat.tiny import Ops, UOp
from kcg.kernel.ast import extent
from kcg.kernel.reading.accesses import Access
from kcg.kernel.reading.kernel import TileKernel
from kcg.kernel.tile.parameters import MOST_LOADS, TileParameters
from kcg.kernel.tile.targets import evicts_copies
from kcg.kernel.tile.tiles import tiles_of
from kcg.types import Target

CROWDED = 4  # all buffers together need so large a part of L2, before they displace each other
LARGE = 64  # and one that is to go first so large a part; of a product also one that is to stay
FEW = 3  # loads up to which each is a choice of its own
Loads = tuple[int, ...]
"""Numbers of loads in `TileKernel.loads`."""


def streamed(
    kernel: TileKernel, target: Target, p: TileParameters, deaf: Collection[UOp] = (), *, always: bool = False
) -> tuple[Loads, ...]:
    """Which loads may be evicted first: none, all that are read once, and each of these alone. `deaf` are the loads for
    which Triton drops a policy; `always`: also where nothing is read again that would stay."""
    once = read_once(kernel, target, p, deaf)
    again = always or any(_is_reused(kernel, load, p) for load in kernel.loads)
    return _choices(once) if again else ((),)


def read_once(kernel: TileKernel, target: Target, p: TileParameters, deaf: Collection[UOp] = ()) -> Loads:
    """The large loads that hear a policy and are read once."""
    once, _ = _sorted_loads(kernel, target, p, deaf)
    return tuple(n for n in once if _bytes(kernel.loads[n]) * LARGE >= target.cache_bytes)


def reused(
    kernel: TileKernel, target: Target, p: TileParameters, deaf: Collection[UOp] = (), *, large: bool = False
) -> tuple[Loads, ...]:
    """Which loads may be evicted last: none, all that are read again and fit into L2, and each of these alone; `large`:
    of those that are large."""
    _, again = _sorted_loads(kernel, target, p, deaf)
    least = target.cache_bytes // LARGE if large else 0
    return _choices(tuple(n for n in again if least <= _bytes(kernel.loads[n]) <= target.cache_bytes // 2))


def deaf_copies(p: TileParameters, loads: Iterable[UOp]) -> frozenset[UOp]:
    """Of the loads that a loop with several stages copies asynchronously those for which Triton drops a policy."""
    return frozenset() if p.num_stages <= 1 or evicts_copies() else frozenset(loads)


def _choices(loads: Loads) -> tuple[Loads, ...]:
    if len(loads) > MOST_LOADS:
        return ((),)
    alone = ((n,) for n in loads) if len(loads) <= FEW else ()
    return tuple(dict.fromkeys(((), loads, *alone)))


def _sorted_loads(kernel: TileKernel, target: Target, p: TileParameters, deaf: Collection[UOp]) -> tuple[Loads, Loads]:
    """The loads that hear a policy: those whose elements are read once, and those that are read again."""
    if sum(buffer.size * buffer.dtype.itemsize for buffer in kernel.buffers) * CROWDED < target.cache_bytes:
        return (), ()
    heard = [n for n, load in enumerate(kernel.loads) if load.node not in deaf]
    again = tuple(n for n in heard if _is_reused(kernel, kernel.loads[n], p))
    return tuple(n for n in heard if n not in again), again


def _is_reused(kernel: TileKernel, load: Access, p: TileParameters) -> bool:
    """Whether programs, or loops of one program, read elements of a load more than once."""
    ranges = set(load.address.ranges)
    if math.prod(extent(r) for r in ranges) > load.buffer.size or not ranges:
        return True  # windows that overlap, or one element
    held = {n for axis in p.axes for n in axis}
    readers = math.prod(
        count
        for axis, count in zip(p.axes, tiles_of(kernel, p), strict=True)
        if not all(kernel.outputs[n] in ranges for n in axis)
    )
    readers *= math.prod(e for n, e in enumerate(kernel.extents) if n not in held and kernel.outputs[n] not in ranges)
    return readers > 1 or (kernel.reduce_extent > p.reduce_tile and _loops(kernel)[load.node] > 1)


@lru_cache(256)
def _loops(kernel: TileKernel) -> Counter[UOp]:
    """How many loops read each load, where what stands outside of reductions counts as one."""
    found: Counter[UOp] = Counter()
    for body in (kernel.value, *(r.src[0] for r in kernel.reductions)):
        found.update(n for n in body.toposort(gate=lambda n: n.op is not Ops.REDUCE) if n.op is Ops.INDEX)
    return found


def _bytes(load: Access) -> int:
    return int(load.buffer.size * load.buffer.dtype.itemsize)
