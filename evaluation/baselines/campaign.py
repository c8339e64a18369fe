"""A campaign: every method searches the same kernels of Flux on one kind of device, in pieces that go on.

A unit (`searches`) is one method on one kernel; kcg's is one run of its command, which deals with all kernels. What a
unit finds is in a journal (`evaluation.search.live_journal`) as soon as it is there. Several processes share the units
(`dealing`). In the end all choices are timed again beside tinygrad's own, in turns (`retiming`). Each piece times one
kernel first, the canary: a piece on a device that is not as fast as the first one's is refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from evaluation.search.live_journal import LiveJournal, Setting
from kcg.errors import UsageError
from kcg.types import RAW, Region

from .method_names import KCG, TINY_BEAM, check, turn_of

RETIME = "retime"
LEAST_S = 30.0  # with less time than this no search is begun
BEAM_GUESS_S = 40.0  # of BEAM=2 where nothing is known of a kernel yet; less below SHORT_S a call: at 1024 BEAM=4 took
SHORT_S = 1.5e-3  # 10 s at 0.5 ms, 70 s at 1.4 ms, and 10 to 260 s above


@dataclass(frozen=True)
class Unit:
    """One method on one kernel, or on all of them; or timing again what all methods chose for a kernel."""

    method: str
    region: Region | None = None
    calls: int = 1


@dataclass
class Campaign:
    """What is compared, and what is known of it."""

    journal: LiveJournal
    preset: str
    dev: str
    methods: tuple[str, ...]
    share: float = 0.95  # of the time with tinygrad's own schedules: the kernels that make it are searched
    say: Callable[[str], None] = print
    until: float = float("inf")  # on `time.monotonic`
    left: list[str] = field(default_factory=list)  # methods for which there was no time, once for each kernel
    canary_s: float | None = None  # of this piece
    piece: str = ""  # when it began, and its file: what its duels have in common

    def __post_init__(self) -> None:
        for method in self.methods:
            check(method)

    @property
    def setting(self) -> Setting:
        if self.journal.setting is None:
            raise UsageError(f"{self.journal.path} holds no campaign yet: begin it on its device")
        return self.journal.setting

    def searched(self) -> list[tuple[Region, int]]:
        """The kernels that make `share` of the time, with their calls, the largest first."""
        total = sum(calls * own_s for _, calls, own_s in self.setting.kernels)
        found, sum_s = list[tuple[Region, int]](), 0.0
        for region, calls, own_s in self.setting.kernels:
            if sum_s >= self.share * total:
                break
            found.append((region, calls))
            sum_s += calls * own_s
        return found

    def units(self) -> Iterator[Unit]:
        """Method by method, so that a piece that is cut leaves whole columns; of each those first that should take
        longest, so that no device is done long before another."""
        for method in self.methods:
            if method.startswith(KCG):
                yield Unit(method)
            else:
                kernels = sorted(self.searched(), key=lambda k: (self.beam_s(method, k[0]), self.own_s(k[0])))
                yield from (Unit(method, region, calls) for region, calls in reversed(kernels))

    def own_s(self, region: Region) -> float:
        """Seconds of a call with tinygrad's own schedule."""
        return next(own_s for known, _, own_s in self.setting.kernels if known == region)

    def beam_s(self, method: str, region: Region) -> float:
        """Seconds that BEAM should take on a kernel, by a narrower one if one is known; 0 of other methods."""
        name, _, of = method.partition(":")
        if name != TINY_BEAM:
            return 0.0
        known = {width: beam.wall_s for width, beam in self.journal.of(region.id).tiny.items() if width < int(of)}
        guess_s = BEAM_GUESS_S / 2 * min(1.0, 0.1 + self.own_s(region) / SHORT_S)
        return (known[max(known)] / max(known) if known else guess_s) * int(of)

    def done(self, unit: Unit) -> bool:
        """Whether the journal holds what a unit is to find; of timing again only `retiming` knows."""
        if unit.region is None:
            return unit.method in self.journal.runs
        seen, (name, _, of) = self.journal.of(unit.region.id), unit.method.partition(":")
        if name == TINY_BEAM:
            return int(of) in seen.tiny
        if name == "raw":
            return RAW in seen.rows
        if name == "no-tensor-cores":  # it is only timed again, beside tinygrad's own schedule
            return bool(seen.rows)
        return name != RETIME and turn_of(unit.method) in seen.plays

    def left_s(self) -> float:
        return self.until - time.monotonic()
