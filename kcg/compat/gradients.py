"""Which calls of a step compute gradients, and what comes of them, so that a layer's backward kernels are named so.

What a gradient is says tinygrad when it makes one. Of what its scheduler stores in between nothing is known but who
uses it. Importing this module imports no tinygrad.

Private: `mixin.gradient.compute_gradient` (the gradient of each value that leads to a target).
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kcg.compat.stretch import PlannedCall

if TYPE_CHECKING:
    from kcg.compat.tiny import UOp

MODULE = "tinygrad.mixin.gradient"


class Gradients:
    """The gradients that a program made, without keeping any alive."""

    def __init__(self) -> None:
        self._made: weakref.WeakSet[UOp] = weakref.WeakSet()
        self._stored: weakref.WeakKeyDictionary[UOp, bool] = weakref.WeakKeyDictionary()  # buffer -> what it has now

    def watch(self, gradient: Any) -> Callable[[], None]:
        """Take in what this module of tinygrad makes. The answer undoes it."""
        before = gradient.compute_gradient

        @functools.wraps(before)
        def compute_gradient(root: UOp, *rest: Any, **named: Any) -> Any:
            found = before(root, *rest, **named)
            self._take(root, found.values())
            return found

        def undo() -> None:
            gradient.compute_gradient = before

        gradient.compute_gradient = compute_gradient
        return undo

    def _take(self, root: UOp, found: Iterable[UOp]) -> None:
        """New values alone, and none that is a constant: such a one is a value of the next forward pass, too."""
        from kcg.compat.tiny import Ops, UOp

        gradients, forward = list(found), set(root.toposort())
        reads: dict[UOp, bool] = {}
        for value in UOp.sink(*gradients).toposort():
            reads[value] = value.op in (Ops.BUFFER, Ops.PARAM) or any(reads[source] for source in value.src)
        self._made.update(value for value in gradients if reads[value] and value not in forward)

    def placed(self, sink: UOp, buffers: Mapping[UOp, UOp]) -> None:
        """What is computed next is kept in these buffers."""
        if not self._made:
            return
        of_gradient: dict[UOp, bool] = {}
        for value in sink.toposort():
            of_gradient[value] = value in self._made or any(of_gradient[source] for source in value.src)
        for value, place in buffers.items():
            self._stored[place.buf_uop] = of_gradient.get(value, False)

    def backward(self, stretch: Sequence[PlannedCall], layers: Sequence[str]) -> list[bool]:
        """Which calls of a layer are of its backward pass. One whose result is not known is where all that use it are,
        and where it comes of another call of that layer: a forward pass may be computed for gradients alone."""
        known = [self._of_gradient(call) for call in stretch]
        if True not in known:
            return [False] * len(stretch)
        before = _layers_before(stretch, layers)
        late = _used_by(stretch, known)
        return [
            bool(layer) and (of_gradient or (of_gradient is None and used and layer in earlier))
            for layer, of_gradient, used, earlier in zip(layers, known, late, before, strict=True)
        ]

    def _of_gradient(self, call: PlannedCall) -> bool | None:
        """Whether what a call writes comes of gradients; None where that is not known."""
        found = [self._stored.get(call.slots[slot].node.buf_uop) for slot in call.writes]
        return next((one for one in found if one is not None), None)


def _layers_before(stretch: Sequence[PlannedCall], layers: Sequence[str]) -> list[frozenset[str]]:
    """The layers of all calls that each comes of."""
    found: list[frozenset[str]] = []
    written: dict[Hashable, frozenset[str]] = {}  # memory -> the layers of what is in it
    for call, layer in zip(stretch, layers, strict=True):
        sources = [written[base] for slot in call.reads for base in call.slots[slot].bases if base in written]
        found.append(frozenset().union(*sources))
        for slot in call.writes:
            written[call.slots[slot].base] = found[-1] | {layer}
    return found


def _used_by(stretch: Sequence[PlannedCall], known: Sequence[bool | None]) -> list[bool]:
    """Of each call whether it comes of gradients or all do that use its result."""
    found = [False] * len(stretch)
    users: dict[Hashable, list[int]] = {}  # memory -> the calls that read it, up to the next that writes it
    for place in reversed(range(len(stretch))):
        call = stretch[place]
        uses = [user for slot in call.writes for user in users.pop(call.slots[slot].base, [])]
        found[place] = bool(uses) and all(found[user] for user in uses) if known[place] is None else bool(known[place])
        for slot in call.reads:
            for base in call.slots[slot].bases:
                users.setdefault(base, []).append(place)
    return found
