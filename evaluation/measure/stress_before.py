"""Stress as it was at revision 696a093d, to be compared with: the first half of the launches alone, all of the second
half beside another stream. What launches, compares and restores is the same to the letter, and is taken from today's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kcg.compat.programs import hidden_s
from kcg.compat.streams import Stream, second_stream
from kcg.measure import stress
from kcg.measure.stress import FLUSHED_EVERY, HOST_S, LAUNCHES, LOOKED_AT_EVERY
from kcg.types import Variables

if TYPE_CHECKING:
    from kcg.kernel.program import Executable
    from kcg.measure.verify import CheckedBench

REVISION = "696a093d"


def stressed(
    bench: CheckedBench, runs: Executable, variables: Variables, *, flush: Callable[[], None], launches: int = LAUNCHES
) -> str:
    """What is wrong with a program after so many launches on the inputs that are filled in; empty if nothing is."""
    if reason := bench.watch(bench.launcher(runs, as_tinygrad=True), variables, tf32=runs.tf32).reason:
        return reason  # the first launch, by the reference
    own, beside = stress._Repeated(bench, runs), None
    stream = second_stream(bench.device)
    alone = launches if stream is None else launches - launches // 2
    for number in range(1, launches + 1):
        if stream is not None and number == alone + 1:
            beside = _Beside(own, stream)
        if number % FLUSHED_EVERY == 0:
            flush()
            if beside is not None:
                beside.hold_now()
        if beside is None:
            own.launch(number)
        else:
            beside.launch(number)
        if number % LOOKED_AT_EVERY == 0 or number in (alone, launches):
            for words, one in (("", own), (", beside another stream,", beside)):
                if one is not None and (where := one.differs()):
                    return f"of {number} launches one{words} left another {where}"
    reason = bench.left_behind()
    if not reason and beside is not None and (slot := beside.wrote_outside()) is not None:
        bench.tainted, reason = True, f"wrote outside buffer {slot}, beside another stream"
    return reason


class _Beside(stress._Beside):
    """As today's, but for when both streams are held back: where the cache is emptied, for what the host took since."""

    def __init__(self, own: stress._Repeated, stream: Stream) -> None:
        super().__init__(own, stream)
        self._sending_s = FLUSHED_EVERY * 2 * HOST_S
        self.hold_now()

    def hold_now(self) -> None:
        """What is sent from here on begins on both streams at once, when the host has sent as much as since the last
        time."""
        self._stream.wait()
        self._spin(hidden_s(self._sending_s))
        self._stream.follow()
        self._sending_s = 0.0
