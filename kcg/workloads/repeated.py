"""The workload of a model of many equal blocks, from captures of a few of them.

Scheduling takes longer than in proportion to the blocks, and all blocks but the first call the kernels that the ones
before them call. So how often each kernel is called is linear in the numbers of blocks, where what a block makes
depends on its neighbours only. That is an assumption about a model, and it is tested each time: a capture that was not
used to find the line must lie on it, kernel by kernel. Where it does not, the whole model is captured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import reduce

from kcg.types import Workload, WorkloadCall

CHECKED = 3  # blocks of each kind in the capture that must lie on the line: a first, a middle and a last one

Place = tuple[str, tuple[tuple[str, int], ...]]  # region and values of its variables


def of_repeated(capture: Callable[..., Workload], *blocks: int) -> Workload:
    """`capture(*blocks)`, where `capture(n, m)` is the workload of a model of n blocks of one kind and m of another.

    Few blocks are captured as they are. Of many, the sequences are those of the capture that was checked: every kernel
    and every way in which they are wired, of fewer blocks.
    """
    few = [tuple(1 + (kind == more) for kind in range(len(blocks))) for more in range(len(blocks))]
    one, checked = (1,) * len(blocks), (CHECKED,) * len(blocks)
    if min(blocks) <= CHECKED or sum(blocks) <= sum(map(sum, (*few, one, checked))):
        return capture(*blocks)
    base = capture(*one)
    more = [capture(*counts) for counts in few]
    slopes = [_difference(workload, base) for workload in more]
    expected = capture(*checked)
    if any(slope is None for slope in slopes) or _on_line(base, slopes, checked) != _counts(expected):
        return capture(*blocks)
    counts = _on_line(base, slopes, blocks)
    calls = tuple(replace(call, calls=counts[_place(call)]) for call in expected.calls)
    return replace(
        expected, calls=calls, held_bytes=_bytes_on_line(base.held_bytes, [w.held_bytes for w in more], blocks)
    )  # fmt: skip


def _place(call: WorkloadCall) -> Place:
    return call.region.id, call.variables


def _counts(workload: Workload) -> dict[Place, int]:
    return {_place(call): call.calls for call in workload.calls}


def _difference(more: Workload, base: Workload) -> dict[Place, int] | None:
    """How many calls of each kernel a block adds; None where it adds a kernel or takes one away."""
    after, before = _counts(more), _counts(base)
    return {place: after[place] - before[place] for place in before} if after.keys() == before.keys() else None


def _bytes_on_line(base: int, more: list[int], blocks: tuple[int, ...]) -> int:
    """Weights, inputs and outputs: each block has its own weights. What lives in between is a peak, and is taken as
    that of the checked capture: a lower bound."""
    return base + sum((count - 1) * max(one - base, 0) for one, count in zip(more, blocks, strict=True))


def _on_line(base: Workload, slopes: list[dict[Place, int] | None], blocks: tuple[int, ...]) -> dict[Place, int]:
    def with_blocks(counts: dict[Place, int], kind: int) -> dict[Place, int]:
        slope = slopes[kind] or {}
        return {place: count + (blocks[kind] - 1) * slope[place] for place, count in counts.items()}

    return reduce(with_blocks, range(len(blocks)), _counts(base))
