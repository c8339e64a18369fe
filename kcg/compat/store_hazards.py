"""Whether a store reads the buffer that it writes, known without a walk through all that leads to it.

tinygrad 0.14.0 asks that of every store, twice, and walks the whole program before it each time: of one step of Flux,
whose every matmul is a store, that is most of the time of scheduling, and grows with the square of the number of
blocks. Here each node knows which buffers are below it. Where tinygrad's own answer would be no, that is the answer;
anything else goes to tinygrad's own function, so that schedules stay the same.

Private: `schedule.get_kernel_graph`, and in `schedule.rangeify` and `schedule.indexing` the patterns
`earliest_rewrites` and `pm_generate_realize_map` with their `fix_store_hazard` and `realize_store_after_src`.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from kcg.compat.capture import when_imported

if TYPE_CHECKING:
    from kcg.compat.tiny import UOp


class Below:
    """The buffers below each node of the programs that a thread schedules, until `forget`: one bit for each."""

    def __init__(self) -> None:
        self._of_thread = threading.local()

    def forget(self) -> None:
        """Let go of all nodes."""
        self._of_thread.__dict__.clear()

    def surely_not(self, base: UOp, node: UOp) -> bool:
        """Whether `node.toposort(enter_calls=False)` is known not to hold `base`: a buffer, or a parameter."""
        from tinygrad.uop import Ops

        if base.op is not Ops.BUFFER and base.op is not Ops.PARAM:
            return False
        bits: dict[UOp, int] = self._of_thread.__dict__.setdefault("bits", {})
        return not self._mask(node, bits) & bits.setdefault(base, 1 << len(bits))

    def _mask(self, root: UOp, bits: dict[UOp, int]) -> int:
        from tinygrad.uop import Ops

        known: dict[UOp, int] = self._of_thread.__dict__.setdefault("masks", {})
        stack = [root]
        while stack:
            node = stack[-1]
            if node in known:
                stack.pop()
                continue
            sources = node.src[1:] if node.op in (Ops.CALL, Ops.FUNCTION) else node.src
            if waiting := [source for source in sources if source not in known]:
                stack += waiting
                continue
            mask = bits.setdefault(node, 1 << len(bits)) if node.op in (Ops.BUFFER, Ops.PARAM) else 0
            for source in sources:
                mask |= known[source]
            known[stack.pop()] = mask
        return known[root]


below = Below()
_own: dict[str, Callable[..., Any]] = {}  # tinygrad's functions, by name


# tinygrad makes functions of a pattern anew from their code and the globals that they name: these have no closure


def _fix_store_hazard(target: Any, src: Any) -> Any:
    return None if below.surely_not(target.base, src) else _own["fix_store_hazard"](target, src)


def _realize_store_after_src(ctx: Any, dest: Any, src: Any) -> Any:
    return None if below.surely_not(dest.base, src) else _own["realize_store_after_src"](ctx, dest, src)


_INSTEAD = {"fix_store_hazard": _fix_store_hazard, "realize_store_after_src": _realize_store_after_src}
_lock = threading.Lock()
_undo: list[Callable[[], None]] = []
_blocks = 0  # that are open, in any thread


@contextlib.contextmanager
def quick_store_hazards() -> Iterator[None]:
    """Inside the block, and inside any other that is open, this process schedules so. It may begin before tinygrad is
    imported."""
    global _blocks
    with _lock:
        _blocks += 1
    try:
        with when_imported("tinygrad.schedule", _put_in):
            yield
    finally:
        with _lock:
            _blocks -= 1
            while _undo and not _blocks:
                _undo.pop()()


def _put_in(schedule: Any) -> None:
    from tinygrad.schedule import indexing, rangeify
    from tinygrad.uop.ops import PatternMatcher

    with _lock:
        if _undo:
            return
        for module, name in ((rangeify, "earliest_rewrites"), (indexing, "pm_generate_realize_map")):
            before = getattr(module, name)
            _own.update((f.__name__, f) for _, f in before.patterns if f.__name__ in _INSTEAD)
            changed = [(pattern, _INSTEAD.get(f.__name__, f)) for pattern, f in before.patterns]
            setattr(module, name, PatternMatcher(changed))
            _undo.append(functools.partial(setattr, module, name, before))
        graph_before = schedule.get_kernel_graph

        @functools.wraps(graph_before)
        def get_kernel_graph(sink: UOp) -> UOp:
            try:
                graph: UOp = graph_before(sink)
                return graph
            finally:
                below.forget()

        schedule.get_kernel_graph = get_kernel_graph
        _undo.append(functools.partial(setattr, schedule, "get_kernel_graph", graph_before))
