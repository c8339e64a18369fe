"""Where tinygrad plans memory: the one place where a program's calls still name the buffers that they share.

What tinygrad's schedule gives back is planned already: values that are not needed at once are one buffer there.
`before_planning` stands in front of the planner, in both modules that call it: eagerly, and when a `TinyJit` is
captured. `stretch_of` reads what comes by: calls, the memory that each slot binds, what each reads and writes, and what
is live. Importing this module imports no tinygrad, see `kcg.compat.capture`.

Private: `schedule.memory_plan_rewrite` and `engine.jit.memory_plan_rewrite`, `uop.ops.buffers` (which buffers are
backed by memory), `tensor.all_tensors`, `UOp.contiguous_view`, `Buffer.base`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from kcg.compat.capture import when_imported
from kcg.compat.hazards import Access

if TYPE_CHECKING:
    from kcg.compat.tiny import UOp

EAGER, JIT = "tinygrad.schedule", "tinygrad.engine.jit"
"""The modules that plan memory: of what is realised at once, and of what a `TinyJit` captured."""

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
        from kcg.compat.tiny import Ops

        body: UOp = self.node.src[0]
        return body if body.op is Ops.SINK else None

    @cached_property
    def access(self) -> Access:
        reads = {base for slot in self.reads for base in self.slots[slot].bases}
        writes = {base for slot in self.writes for base in self.slots[slot].bases}
        if any(device.startswith(FILES) for device in self.devices):
            writes.add(FILES)
        return Access(frozenset(reads), frozenset(writes))


@contextlib.contextmanager
def before_planning(rewrite: Callable[[UOp, str], UOp]) -> Iterator[None]:
    """Inside the block, whatever tinygrad plans the memory of goes through `rewrite(linear, module)` first, where
    `module` is `EAGER` or `JIT`. What others put in front of it inside the block stays after it."""
    ended = threading.Event()
    undo: list[Callable[[], None]] = []

    def put_into(module: Any) -> None:
        before = module.memory_plan_rewrite

        def memory_plan_rewrite(linear: UOp, held_bufs: set[UOp] | None = None) -> UOp:
            planned: UOp = before(linear if ended.is_set() else rewrite(linear, module.__name__), held_bufs)
            return planned

        def back() -> None:
            if module.memory_plan_rewrite is memory_plan_rewrite:
                module.memory_plan_rewrite = before

        module.memory_plan_rewrite = memory_plan_rewrite
        undo.append(back)

    with when_imported(EAGER, put_into), when_imported(JIT, put_into):
        try:
            yield
        finally:
            ended.set()
            for one in reversed(undo):
                one()


@contextlib.contextmanager
def at_first_planning(act: Callable[[], None]) -> Iterator[None]:
    """Has `act()` called once inside the block, before tinygrad plans the memory of anything. What it puts in front of
    the planner (`before_planning`) sees all that is planned, this first one included; what others put there since then
    sees that one twice."""
    undo: list[Callable[[], None]] = []
    lock, begun = threading.RLock(), threading.Event()

    def put_into(module: Any) -> None:
        before, covered = module.memory_plan_rewrite, threading.Event()

        def first(linear: UOp, held_bufs: set[UOp] | None = None) -> UOp:
            with lock:
                if asked := not begun.is_set():
                    begun.set()
                    back()
                    act()
            now = module.memory_plan_rewrite
            # who stands in front of this one comes by here again
            planned: UOp = (before if now is first or (covered.is_set() and not asked) else now)(linear, held_bufs)
            return planned

        def restore() -> None:
            if module.memory_plan_rewrite is first:
                module.memory_plan_rewrite = before
            else:
                covered.set()

        if not begun.is_set():
            module.memory_plan_rewrite = first
            undo.append(restore)

    def back() -> None:
        for one in reversed(undo):
            one()

    with when_imported(EAGER, put_into), when_imported(JIT, put_into):
        try:
            yield
        finally:
            back()


def live_buffers() -> set[UOp]:
    """Every buffer that a Tensor reaches which is alive. What it has in store may still be asked for.

    tinygrad's own answer differs by mode: eagerly it holds whatever is contiguous, though no Tensor may be left.
    """
    from tinygrad.tensor import all_tensors

    from kcg.compat.tiny import Ops

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
    from kcg.compat.tiny import Ops

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
    from kcg.compat.tiny import Ops

    place = index.src[0]
    while place.op is Ops.RESHAPE:
        place = place.src[0]
    return int(place.arg.slot) if place.op is Ops.PARAM and place.arg.slot >= 0 else None


def _slot(node: UOp, live: set[UOp]) -> Slot:
    from kcg.compat.tiny import Ops

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
    from tinygrad.uop.ops import buffers

    from kcg.compat.tiny import Ops

    return bool(node.op is Ops.PARAM or node in live or node in buffers)
