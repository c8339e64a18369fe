"""How long the steps of a program take: each replay of a `TinyJit` is timed while the program runs unchanged.

A replay is timed like a whole step of a model (`kcg.compat.programs.StepClock`), but runs once: what it changes, the
next one reads. Importing this module imports no tinygrad, and `ReplayClock.watch` may be called before a program does.

Private: `jit.CapturedJit.__call__`, `._linear`, `.expected_names` and `.expected_input_info`, `_TinyJit.captured`.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kcg.compat.capture import when_imported

if TYPE_CHECKING:
    from kcg.compat.programs import StepClock
    from kcg.compat.tiny import UOp

SKIPPED = 2  # executions of what was captured that are not timed: the one that captures, and the first replay
MOST = 1000  # replays of each that are kept, the last ones

SHAPES = "its steps change shape"
THREADS = "it replays several steps at once"
DEVICES = "its steps run on several devices"
"""Why no step of a program is timed."""


@dataclass(frozen=True)
class Replayed:
    """What a `TinyJit` captured, and how long its replays took."""

    given: str  # tells inputs apart by name, shape and dtype
    executions: int  # the one that captured it included
    seconds: tuple[float, ...]  # of its warm replays


@dataclass
class _Step:
    given: str
    device: str  # "" where it runs on several
    executions: int = 0
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=MOST))
    waited: deque[float] = field(default_factory=lambda: deque(maxlen=MOST))  # of replays in which it waited for a host


class ReplayClock:
    """Times the replays of one program in this process. Inside a timed replay nothing else is to take time: `aside()`
    is a block around it in which other watchers put off what they do."""

    def __init__(self, aside: Callable[[], AbstractContextManager[None]]) -> None:
        self.why_not = ""  # `SHAPES`, `THREADS` or `DEVICES`
        self.clock = ""  # what is read, in words
        self._aside = aside
        self._steps: list[_Step] = []
        self._known: weakref.WeakKeyDictionary[UOp, _Step] = weakref.WeakKeyDictionary()
        self._given: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._clocks: dict[str, StepClock] = {}
        self._busy = threading.Lock()

    def watch(self) -> AbstractContextManager[None]:
        """Begin. What is returned must live as long as the program."""
        return when_imported("tinygrad.engine.jit", self._watch)

    def steps(self) -> list[Replayed]:
        """What was captured, in the order of its first execution."""
        return [Replayed(one.given, one.executions, tuple(one.seconds or one.waited)) for one in self._steps]

    # ---- hooks ----

    def _watch(self, jit: Any) -> None:
        replay, call = jit.CapturedJit.__call__, jit._TinyJit.__call__

        @functools.wraps(replay)
        def timed(captured: Any, *args: Any) -> Any:
            step = self._step_of(captured)
            step.executions += 1
            with self._turn(step) as clock:
                if clock is None:
                    return replay(captured, *args)
                returned: list[Any] = []
                seconds, was_hidden = clock.once(lambda: returned.append(replay(captured, *args)))
                (step.seconds if was_hidden else step.waited).append(seconds)
                return returned[0]

        @functools.wraps(call)
        def watched(jitted: Any, *args: Any, **kwargs: Any) -> Any:
            returned = call(jitted, *args, **kwargs)
            if jitted.captured is not None:
                given = _given(jitted.captured)
                if self._given.setdefault(jitted, given) != given:
                    self.why_not = SHAPES
            return returned

        jit.CapturedJit.__call__, jit._TinyJit.__call__ = timed, watched

    def _step_of(self, captured: Any) -> _Step:
        linear = captured._linear
        if linear not in self._known:
            self._known[linear] = _Step(_given(captured), _device_of(linear))
            self._steps.append(self._known[linear])
        return self._known[linear]

    @contextlib.contextmanager
    def _turn(self, step: _Step) -> Iterator[StepClock | None]:
        """The clock of a replay that is timed; None of one that is not."""
        if not step.device:
            self.why_not = DEVICES
        if not self._busy.acquire(blocking=False):
            self.why_not = THREADS
            yield None
            return
        try:
            if self.why_not or step.executions <= SKIPPED:
                yield None
                return
            with self._aside():
                yield self._clock_of(step.device)
        finally:
            self._busy.release()

    def _clock_of(self, device: str) -> StepClock:
        from kcg.compat.programs import StepClock, clock_of

        if device not in self._clocks:
            self._clocks[device] = StepClock(device)
            self.clock = clock_of(device)
        return self._clocks[device]


def _given(captured: Any) -> str:
    inputs = ((view.key.hex()[:16], dtype.name) for view, _, dtype, _ in captured.expected_input_info)
    return f"{captured.expected_names} {list(inputs)}"


def _device_of(linear: UOp) -> str:
    """The one device on which all calls of a linear run; empty where there are several."""
    from kcg.compat.tiny import Ops

    calls = [call for call in linear.toposort() if call.op is Ops.CALL]
    devices = {argument.device for call in calls for argument in call.src[1:] if not argument.is_bound_var}
    device = devices.pop() if len(devices) == 1 else None
    return device if isinstance(device, str) else ""
