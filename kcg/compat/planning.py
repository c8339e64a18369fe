"""Where tinygrad plans memory: the one place where a program's calls still name the buffers that they share.

What tinygrad's schedule gives back is planned already: values that are not needed at once are one buffer there.
`before_planning` stands in front of the planner, in both modules that call it: eagerly, and when a `TinyJit` is
captured. `kcg.compat.stretch` reads what comes by. Importing this module imports no tinygrad, see `kcg.compat.capture`.

Private: `schedule.memory_plan_rewrite` and `engine.jit.memory_plan_rewrite`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from kcg.compat.capture import Standing, when_imported

if TYPE_CHECKING:
    from kcg.compat.tiny import UOp

EAGER, JIT = "tinygrad.schedule", "tinygrad.engine.jit"
"""The modules that plan memory: of what is realised at once, and of what a `TinyJit` captured."""


@contextlib.contextmanager
def before_planning(rewrite: Callable[[UOp, str], UOp]) -> Iterator[None]:
    """Inside the block, whatever tinygrad plans the memory of goes through `rewrite(linear, module)` first, where
    `module` is `EAGER` or `JIT`. What others put in front of it inside the block stays after it."""
    standing: list[Standing] = []

    def put_into(module: Any) -> None:
        standing.append(Standing(module, "memory_plan_rewrite", lambda linear: rewrite(linear, module.__name__)))

    with when_imported(EAGER, put_into), when_imported(JIT, put_into):
        try:
            yield
        finally:
            for one in reversed(standing):
                one.take_out()


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
