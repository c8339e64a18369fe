"""A campaign: every method searches the same kernels of Flux on one kind of device, in pieces that go on where the last
one ended.

A unit (`searches`) is one method on one kernel; kcg's is one run of its command, which deals with all kernels. What a
unit finds is in a journal (`kcg.search.live_journal`) as soon as it is there. In the end all choices are timed again
beside tinygrad's own, in turns (`retiming`). Each piece times one kernel first, the canary: a piece on a device that is
not as fast as the first one's is refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from kcg.errors import UsageError
from kcg.search.live import LiveBench
from kcg.search.live_journal import LiveJournal, Setting, Shard
from kcg.types import Region, Schedule

KCG, TINY_BEAM = "kcg", "tinygrad-beam"
LEAST_S = 30.0  # with less time than this no search is begun
BUDGET = 256  # measurements of a method that has no end of its own; BEAM=4 takes about as many


@dataclass(frozen=True)
class Unit:
    """One method on one kernel, or on all of them."""

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

    def __post_init__(self) -> None:
        for method in self.methods:
            name, _, of = method.partition(":")
            if (name == TINY_BEAM and not of.isdecimal()) or (name == KCG and not of):
                raise UsageError(f"method {method!r}: write a width or an effort after it, like beam:4 or kcg:quick")

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
        """Those of this process: method by method, so that a piece that is cut leaves whole columns."""
        shard, alone = self.journal.shard or Shard(0, 1), 0
        for method in self.methods:
            if method.startswith(KCG):
                if alone % shard.of == shard.number:
                    yield Unit(method)
                alone += 1
            else:
                yield from (Unit(method, r, c) for r, c in self.searched()[shard.number :: shard.of])

    def left_s(self) -> float:
        return self.until - time.monotonic()


def waves(units: Iterable[Unit], at_once: int) -> Iterator[list[Unit]]:
    """Units that run at once, so that the compilers have work: a method that measures one schedule after the other on
    so many kernels. BEAM has compilers of its own."""
    together: list[Unit] = []
    for unit in units:
        alone = unit.method.partition(":")[0] in (KCG, TINY_BEAM, "raw")
        if together and (alone or unit.method != together[0].method or len(together) == at_once):
            yield together
            together = []
        if alone:
            yield [unit]
        else:
            together.append(unit)
    if together:
        yield together


def turn_of(method: str) -> tuple[str, int, int | None]:
    """How a method is played: BEAM to its own end, the others with a budget, `random:64` or `BUDGET`."""
    name, _, of = method.partition(":")
    if name == "full-beam":
        return method, 0, None
    return name, 0, int(of) if of else BUDGET


def winner_of(bench: LiveBench, method: str) -> Schedule | None:
    """What a method found on a kernel; none where it was not done, or failed, or keeps it elsewhere as kcg does."""
    name, _, of = method.partition(":")
    if name == TINY_BEAM:
        beam = bench.seen.tiny.get(int(of))
        return None if beam is None or beam.reason else beam.schedule
    if name == "no-tensor-cores":
        return bench.space.without_tensor_cores()
    kept = bench.seen.plays.get(turn_of(method)) if name != KCG else None
    return kept.winner if kept is not None else None
