"""The calls of a linear that is about to be planned: what memory each slot binds, what is read, written, and live.

Importing this module imports no tinygrad. It is part of the module that `export` writes: its own imports are of
tinygrad and of other such parts (`kcg.handover.export.PARTS`).

Private: `uop.ops.buffers` (which buffers are backed by memory), `tensor.all_tensors`, `UOp.contiguous_view`,
`Buffer.base`.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from kcg.compat.hazards import Access
from kcg.compat.records import dataclass

if TYPE_CHECKING:
    from tinygrad.uop.ops import UOp

FILES = ("DISK", "TINYFS")  # devices whose buffers may be the same file without being the same buffer


@dataclass(frozen=True)
class Slot:
    """What one slot of a call binds: memory, and which part of it."""

    node: Any  # tinygrad's UOp, or what stands for it where a stretch was captured earlier
    base: Hashable  # the memory: a BUFFER or a PARAM, or what backs several of them
    offset: int | None  # in bytes; None where it is not one plain part
    size: int  # bytes
    total: int  # bytes of the base
    dtype: str
    held: bool  # backed by memory before, bound by an input, or reachable from a live Tensor
    others: tuple[Hashable, ...] = ()  # further bases, of a value in parts on several devices

    @property
    def bases(self) -> tuple[Hashable, ...]:
        return (self.base, *self.others)

    def overlaps(self, other: Slot) -> bool:
        """Whether the two may share a byte."""
        if set(self.bases).isdisjoint(other.bases):
            return False
        if self.offset is None or other.offset is None:
            return True
        return self.offset < other.offset + other.size and other.offset < self.offset + self.size


@dataclass(frozen=True)
class PlannedCall:
    """One call before memory is planned."""

    node: Any  # as of a slot
    slots: tuple[Slot, ...]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    devices: tuple[str, ...]

    @property
    def ast(self) -> UOp | None:
        """The kernel's AST, where tinygrad is still to compile it."""
        from tinygrad.uop import Ops

        body: UOp = self.node.src[0]
        return body if body.op is Ops.SINK else None

    @cached_property
    def access(self) -> Access:
        reads = {base for slot in self.reads for base in self.slots[slot].bases}
        writes = {base for slot in self.writes for base in self.slots[slot].bases}
        if any(device.startswith(FILES) for device in self.devices):
            writes.add(FILES)
        return Access(frozenset(reads), frozenset(writes))


def live_buffers() -> set[UOp]:
    """Every buffer that a Tensor reaches which is alive. What it has in store may still be asked for.

    tinygrad's own answer differs by mode: eagerly it holds whatever is contiguous, though no Tensor may be left.
    """
    from tinygrad.tensor import all_tensors
    from tinygrad.uop import Ops

    stack = [t.uop for ref in list(all_tensors) if (t := ref()) is not None]
    seen, found = set(stack), set()
    while stack:
        node = stack.pop()
        if node.op is Ops.BUFFER:
            found.add(node)
        for source in node.src:
            if source not in seen:
                seen.add(source)
                stack.append(source)
    return found


def stretch_of(linear: UOp) -> list[PlannedCall]:
    """The calls of a linear that is about to be planned."""
    live, slots, known = live_buffers(), dict[Any, Slot](), dict[Any, tuple[tuple[int, ...], tuple[int, ...]] | None]()
    calls = []
    for node in linear.src:
        arguments = tuple(argument for argument in node.src[1:] if not argument.is_bound_var)
        for argument in arguments:
            if argument not in slots:
                slots[argument] = _slot(argument, live)
        if node.src[0] not in known:
            known[node.src[0]] = accesses_of(node.src[0])
        everything = tuple(range(len(arguments)))
        reads, writes = known[node.src[0]] or (everything, everything)
        bound = tuple(slots[argument] for argument in arguments)
        calls.append(PlannedCall(node, bound, reads, writes, _devices_of(bound)))
    return calls


def _devices_of(slots: tuple[Slot, ...]) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for slot in slots:
        device = slot.node.device
        found.update(dict.fromkeys((device,) if isinstance(device, str) else device or ()))
    return tuple(found)


def accesses_of(body: UOp) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The slots that a call's body reads, and those that it writes; None where that is not known."""
    from tinygrad.uop import Ops

    if body.op is Ops.COPY:
        return (1,), (0,)
    if body.op is Ops.PROGRAM:
        return tuple(body.arg.ins), tuple(body.arg.outs)
    if body.op is not Ops.SINK:
        return None
    reads, writes = set[int](), set[int]()
    for node in body.toposort():
        for place, source in enumerate(node.src):
            if source.op is Ops.INDEX:
                slot = _slot_of(source)
                if slot is None:
                    return None
                (writes if node.op is Ops.STORE and place == 0 else reads).add(slot)
        if node.op is Ops.STORE and node.src[0].op is not Ops.INDEX:
            return None
    return tuple(sorted(reads)), tuple(sorted(writes))


def _slot_of(index: UOp) -> int | None:
    from tinygrad.uop import GroupOp, Ops

    place = index.src[0]
    while place.op in GroupOp.Movement:
        place = place.src[0]
    return int(place.arg.slot) if place.op is Ops.PARAM and place.arg.slot >= 0 else None


def _slot(node: UOp, live: set[UOp]) -> Slot:
    from tinygrad.uop import Ops

    size, dtype = _bytes(node), node.dtype.name
    if node.op in (Ops.BUFFER, Ops.PARAM):
        base, first = _backing(node)
        return Slot(node, base, first, size, size, dtype, _is_held(node, live))
    bases = [n for n in node.toposort() if n.op in (Ops.BUFFER, Ops.PARAM) and not n.is_variable]
    held = any(_is_held(base, live) for base in bases)
    if len(bases) == 1 and not any(n.op in (Ops.MSELECT, Ops.MSTACK) for n in node.toposort()):
        base, first = _backing(bases[0])
        view, offset = node.contiguous_view(), None
        if view is not None and isinstance(view[1], int):
            offset = first + view[1] * int(view[0].dtype.itemsize)
        return Slot(node, base, offset, size, _bytes(bases[0]), dtype, held)
    backing = [_backing(base)[0] for base in bases] or [node]
    return Slot(node, backing[0], None, size, sum(map(_bytes, bases)), dtype, held, tuple(backing[1:]))


def _bytes(node: UOp) -> int:
    return int(node.max_numel()) * int(node.dtype.itemsize)


def _backing(node: UOp) -> tuple[Hashable, int]:
    """What tells memory from other memory, and where in it a buffer begins: two may be views of a third."""
    from tinygrad.uop.ops import buffers

    backed = buffers.get(node)
    if backed is None or not hasattr(backed, "base"):  # nothing yet, or one buffer on each of several devices
        return node, 0
    return ("memory", id(backed.base)), int(backed.offset)


def _is_held(node: UOp, live: set[UOp]) -> bool:
    from tinygrad.uop import Ops
    from tinygrad.uop.ops import buffers

    return bool(node.op is Ops.PARAM or node in live or node in buffers)
