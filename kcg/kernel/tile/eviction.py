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
from functools import lru_cache

from kcg.compat.tiny import Ops, UOp
from kcg.kernel.ast import extent
from kcg.kernel.reading.accesses import Access
from kcg.kernel.reading.kernel import TileKernel
from kcg.kernel.tile.generate import described_operands
from kcg.kernel.tile.parameters import CONTRACTION, MOST_LOADS, REDUCTION, TileParameters
from kcg.kernel.tile.targets import evicts_copies
from kcg.kernel.tile.tiles import tiles_of
from kcg.types import Target

CROWDED = 4  # all buffers together need so large a part of L2, before they displace each other
FLASH_ATTENTION = 64  # and one that is to go first so large a part; of a contraction also one that is to stay
FEW = 3  # loads up to which each is a choice of its own
Loads = tuple[int, ...]
"""Numbers of loads in `TileKernel.loads`."""


def streamed(kernel: TileKernel, target: Target, p: TileParameters) -> tuple[Loads, ...]:
    """Which loads may be evicted first: none, all that are read once, and each of these alone."""
    once = read_once(kernel, target, p)
    again = p.form == REDUCTION or any(_is_reused(kernel, load, p) for load in kernel.loads)
    return _choices(once) if again else ((),)


def read_once(kernel: TileKernel, target: Target, p: TileParameters) -> Loads:
    """The large loads that hear a policy and are read once."""
    once, _ = _sorted_loads(kernel, target, p)
    return tuple(n for n in once if _bytes(kernel.loads[n]) * FLASH_ATTENTION >= target.cache_bytes)


def reused(kernel: TileKernel, target: Target, p: TileParameters) -> tuple[Loads, ...]:
    """Which loads may be evicted last: none, all that are read again and fit into L2, and each of these alone."""
    _, again = _sorted_loads(kernel, target, p)
    least = target.cache_bytes // FLASH_ATTENTION if p.form == CONTRACTION else 0
    return _choices(tuple(n for n in again if least <= _bytes(kernel.loads[n]) <= target.cache_bytes // 2))


def _choices(loads: Loads) -> tuple[Loads, ...]:
    if len(loads) > MOST_LOADS:
        return ((),)
    alone = ((n,) for n in loads) if len(loads) <= FEW else ()
    return tuple(dict.fromkeys(((), loads, *alone)))


def _sorted_loads(kernel: TileKernel, target: Target, p: TileParameters) -> tuple[Loads, Loads]:
    """The loads that hear a policy: those whose elements are read once, and those that are read again."""
    if sum(buffer.size * buffer.dtype.itemsize for buffer in kernel.buffers) * CROWDED < target.cache_bytes:
        return (), ()
    deaf = _deaf(kernel, p)
    heard = [n for n, load in enumerate(kernel.loads) if load.node not in deaf]
    again = tuple(n for n in heard if _is_reused(kernel, kernel.loads[n], p))
    return tuple(n for n in heard if n not in again), again


def _deaf(kernel: TileKernel, p: TileParameters) -> frozenset[UOp]:
    """The loads for which Triton drops a policy."""
    if p.form == REDUCTION and p.num_stages > 1 and not evicts_copies():
        return frozenset(n for r in kernel.reductions for n in r.backward_slice)
    if p.form != CONTRACTION:
        return frozenset()
    assert kernel.contraction is not None
    found = {side.factors[0].node for side in described_operands(kernel, p)}
    if p.num_stages > 1 and not evicts_copies():
        inside = {node for one in kernel.together for node in one.reduce.backward_slice}
        found.update(load.node for load in kernel.loads if load.node in inside)
    return frozenset(found)


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
