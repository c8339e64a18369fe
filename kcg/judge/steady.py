"""The step of a plan under stress: the same inputs again and again, and every replay has to give the same bits.

What a wait that is missing between programs, or in one of them, gets wrong shows once in many replays, and a comparison
with a tolerance may not see it even then. So the captured step of the fastest plan that is right is replayed for some
seconds, in turns on two sets of inputs of which every value in between differs: what is read too early, or was not
written at all, is of the other set. Every replay has to leave what the first one on its set left.

Most replays are of the capture that is timed, and only their outputs are looked at. Some are of a second capture in
which no values share memory, where everything that was computed can be looked at afterwards. That one also tells which
program it was, where it sees the difference again. A step that differs with tinygrad's own schedules too says nothing
of the others.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from kcg.types import ModelCheck, Target

if TYPE_CHECKING:
    from kcg.compat.captures import Value

STEADY_S: Final = 5.0  # for which a step is replayed, where there is time
STEADY_CPU_S: Final = 1.0  # the same of a CPU, whose programs have no copies that may come too late
ALL_LOOKED_AT_EVERY: Final = 10  # replays, of which one is of the capture without shared memory
AGAIN: Final = 3  # times as many replays as it took to see a difference, to see which program it is of

UNSTEADY: Final = "the step gave another "
"""Begins the reason why a plan failed here."""
OWN_DIFFERS: Final = "replayed with the same inputs, the step differs with tinygrad's own schedules too"


@dataclass(frozen=True)
class Stress:
    """For how long a step is replayed once all plans were compared, and who is told of what is known by then."""

    seconds: float = STEADY_S
    until: float = math.inf  # on the clock `time.monotonic`, when all is to be over
    compared: Callable[[list[ModelCheck]], None] = lambda _: None  # gets the checks before, and once a replay differs
    differs: Callable[[str], None] = lambda _: None  # gets the reason as soon as a replay differs


class Captured(Protocol):
    """A captured step."""

    def run(self, inputs: dict[str, Any]) -> list[Any]:
        """Replay it; gives the buffers of its outputs."""

    def values(self) -> list[Value]:
        """What it computes in the order of its programs, where it was captured without shared memory."""


class Capturing(Protocol):
    """Gives a step with the schedules of one plan, or tinygrad's own; one capture of each kind is kept at most."""

    def shared(self) -> Captured:
        """As it runs."""

    def apart(self) -> Captured | None:
        """The one without shared memory; None where there is no memory for it."""


@dataclass(frozen=True)
class Seen:
    """What replays showed."""

    same: int  # replays that gave what the first one gave
    reason: str = ""  # what is wrong; empty where nothing is
    own_differs: bool = False  # whether replays differ with tinygrad's own schedules too: then no reason is one


def steady(plan: Capturing, own: Capturing, sets: Sequence[dict[str, Any]], target: Target, *, stress: Stress) -> Seen:
    """Replay a plan's step on `sets` of inputs in turns, and where it differs that of tinygrad's own schedules."""
    begin = time.monotonic()
    end = min(begin + stress.seconds, stress.until)
    if begin >= end:
        return Seen(0)
    short = _Replays(plan.shared(), sets, target)
    whole: _Replays | None = None
    number, found = 0, None
    while found is None:
        now = time.monotonic()
        if not short.has_outputs or now >= end:
            return Seen(number)
        looked_at = (number + 1) % ALL_LOOKED_AT_EVERY == 0
        if looked_at and whole is None and now - begin < end - now:  # capturing it takes time too
            whole = _all_of(plan, sets, target)
        found = (whole if looked_at and whole is not None else short).differs()
        number += 1
    stress.differs(_reason(found, number, found.kernel))
    end = min(time.monotonic() + stress.seconds, stress.until)  # there is time for what follows, but not for ever
    kernel = found.kernel
    if not kernel:
        whole = whole or _all_of(plan, sets, target)
        again = _until_it_differs(whole, AGAIN * number, end) if whole is not None else None
        kernel = again.kernel if again is not None else ""
    del short, whole  # there is memory for one of these
    theirs = None if found.output else _all_of(own, sets, target)
    theirs = theirs or _Replays(own.shared(), sets, target)
    end = min(time.monotonic() + stress.seconds, stress.until)
    if _until_it_differs(theirs, AGAIN * number, end) is not None:
        return Seen(0, own_differs=True)
    return Seen(number - 1, _reason(found, number, kernel))


def _reason(found: _Difference, number: int, kernel: str) -> str:
    what = "output" if found.output else "value within"
    which = f"the first value that differs is of {kernel}" if kernel else "which program it is was not seen again"
    return f"{UNSTEADY}{what} in replay {number} with the same inputs; {which}"


def _all_of(step: Capturing, sets: Sequence[dict[str, Any]], target: Target) -> _Replays | None:
    found = step.apart()
    return None if found is None else _Replays(found, sets, target, values=found.values())


def _until_it_differs(replays: _Replays, most: int, end: float) -> _Difference | None:
    """Replay a step until it differs, at most so many times and not after `end`."""
    for _ in range(most):
        if time.monotonic() >= end:
            break
        if (found := replays.differs()) is not None:
            return found
    return None


@dataclass(frozen=True)
class _Difference:
    output: bool  # whether an output differs, or a value in between alone
    kernel: str  # what wrote the first value that differs; empty where only outputs were looked at


class _Replays:
    """Replays of one capture on sets of inputs in turns, each compared with the first on its set."""

    def __init__(
        self, step: Captured, sets: Sequence[dict[str, Any]], target: Target, *, values: Sequence[Value] = ()
    ) -> None:
        self._step, self._sets, self._target, self._values = step, sets, target, values
        self._turn = 0
        step.run(sets[-1])  # what the first replay on a set leaves alone is of the other one, as ever after
        self._first = [self._left_by(inputs) for inputs in sets]

    @property
    def has_outputs(self) -> bool:
        """Whether there is anything to compare: outputs may all be on other devices."""
        return bool(self._first[0][0])

    def differs(self) -> _Difference | None:
        """Replay it once more; where that gave something else than the first one."""
        place = self._turn % len(self._sets)
        self._turn += 1
        (outputs, values), (right, right_values) = self._left_by(self._sets[place]), self._first[place]
        first = next((v for v, a, b in zip(self._values, values, right_values, strict=True) if a != b), None)
        if outputs == right and first is None:
            return None
        return _Difference(outputs != right, first.kernel if first is not None else "")

    def _left_by(self, inputs: dict[str, Any]) -> tuple[list[bytes], list[bytes]]:
        """Digests of the outputs and of all values of one replay."""
        outputs = [self._digest(buffer) for buffer in self._step.run(inputs)]
        return outputs, [self._digest(value.buffer) for value in self._values]

    def _digest(self, buffer: Any) -> bytes:
        """Equal for equal bits. What is large stays on a GPU, and nothing is kept of what is looked at in place."""
        from kcg.measure.workbench import contents_of, on_host

        found = on_host(buffer)
        bits = contents_of(buffer, self._target) if found is None else found
        return hashlib.blake2b(bits.data, digest_size=16).digest()
