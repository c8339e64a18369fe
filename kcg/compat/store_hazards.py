"""Whether a store reads the buffer that it writes, known without a walk through all that leads to it.

tinygrad 0.14.0 asks that of every store, twice, and walks the whole program before it each time. A step of Flux is a
chain of 1217 stores: that is three quarters of the time of scheduling it, and grows with the square of the number of
blocks. Here each node knows which buffers are below it. Where tinygrad's own answer would be no, that is the answer;
anything else goes to tinygrad's own function, so that schedules stay the same.

This is part of the module that `export` writes, see `kcg.compat.stretch`.

Private: `schedule.get_kernel_graph`, and in `schedule.rangeify` and `schedule.indexing` the patterns
`earliest_rewrites` and `pm_generate_realize_map` with their `fix_store_hazard` and `realize_store_after_src`.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tinygrad.uop.ops import UOp


class Below:
    """The buffers below each node of the program that a thread schedules: one bit for each. Outside of that it knows
    none."""

    def __init__(self) -> None:
        self._of_thread = threading.local()

    def begin(self) -> None:
        """The thread schedules a program."""
        self._of_thread.bits, self._of_thread.masks = {}, {}

    def forget(self) -> None:
        """It is done: let go of all nodes."""
        self._of_thread.__dict__.clear()

    @property
    def knows(self) -> int:
        """Of how many nodes it knows something."""
        return len(self._of_thread.__dict__.get("masks", ()))

    def surely_not(self, base: UOp, node: UOp) -> bool:
        """Whether `node.toposort(enter_calls=False)` is known not to hold `base`: a buffer, or a parameter."""
        from tinygrad.uop import Ops

        bits: dict[UOp, int] | None = self._of_thread.__dict__.get("bits")
        if bits is None or (base.op is not Ops.BUFFER and base.op is not Ops.PARAM):
            return False
        return not self._mask(node, bits) & bits.setdefault(base, 1 << len(bits))

    def _mask(self, root: UOp, bits: dict[UOp, int]) -> int:
        from tinygrad.uop import Ops

        known: dict[UOp, int] = self._of_thread.masks
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
tinygrads_own: dict[str, Callable[..., Any]] = {}  # its functions, by name


# tinygrad makes the functions of patterns anew of their code and the globals that they name: these have no closure


def _fix_store_hazard(target: Any, src: Any) -> Any:
    return None if below.surely_not(target.base, src) else tinygrads_own["fix_store_hazard"](target, src)


def _realize_store_after_src(ctx: Any, dest: Any, src: Any) -> Any:
    return None if below.surely_not(dest.base, src) else tinygrads_own["realize_store_after_src"](ctx, dest, src)


def find_store_hazards_quickly(schedule: Any) -> Callable[[], None]:
    """Have tinygrad, whose module `schedule` this is, schedule so; what is returned undoes it. Nothing is done, or
    undone, where it schedules so already, or where another version has no such functions."""
    from tinygrad.schedule import indexing, rangeify
    from tinygrad.uop.ops import PatternMatcher

    instead = {"fix_store_hazard": _fix_store_hazard, "realize_store_after_src": _realize_store_after_src}
    places = [(rangeify, "earliest_rewrites"), (indexing, "pm_generate_realize_map")]
    patterns = [getattr(module, name).patterns for module, name in places]
    found = {function.__name__: function for one in patterns for _, function in one if function.__name__ in instead}
    if found.keys() != instead.keys():
        return lambda: None
    tinygrads_own.update(found)
    graph_before = schedule.get_kernel_graph

    @functools.wraps(graph_before)
    def get_kernel_graph(sink: UOp) -> UOp:
        below.begin()
        try:
            graph: UOp = graph_before(sink)
            return graph
        finally:
            below.forget()

    places.append((schedule, "get_kernel_graph"))
    before = [getattr(module, name) for module, name in places]
    changed = [PatternMatcher([(p, instead.get(f.__name__, f)) for p, f in one]) for one in patterns]
    for (module, name), new in zip(places, [*changed, get_kernel_graph], strict=True):
        setattr(module, name, new)

    def undo() -> None:
        for (module, name), old in zip(places, before, strict=True):
            setattr(module, name, old)

    return undo
