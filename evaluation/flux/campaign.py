"""A campaign: every method searches the same kernels of Flux on one kind of device, in pieces that go on.

A unit (`searching`) is one method on one kernel; kcg's is one run of its command, which deals with all kernels. What a
unit finds is in a journal as soon as it is there. In the end all choices are timed again beside tinygrad's own, in
turns (`retiming`). Each piece times one kernel first, the canary: a piece on a device that is not as fast as the first
one's is refused.

The name of a method says what it asks for: `kcg:thorough:5m`, `tinygrad-beam:4`, `random:64`, `raw`. A run of kcg's
command may go on where another ended: `kcg:thorough:8m+4m` is `kcg:thorough:8m`, resumed for 4 minutes.

Several processes of one host share the units. All walk the same list, and each takes the next unit that nobody has
done and nobody holds. It is held by a lock of the operating system on a small file in `claims/` beside the journals,
which goes with its process, however that ends: no claim is ever stale, and the files may stay.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, TextIO

from evaluation.search.device_journal import DeviceJournal, Setting
from kcg.cli import parse_budget
from kcg.errors import UsageError
from kcg.files import locked
from kcg.kernel.opts.schedule import RAW
from kcg.measure.device_info import usable_cores
from kcg.optimize.settings import check_effort
from kcg.provenance import provenance
from kcg.types import Region

KCG, TINY_BEAM, FULL_BEAM, TINY_MCTS = "kcg", "tinygrad-beam", "full-beam", "tinygrad-mcts"
EAGER = "eager"  # PyTorch without torch.compile
BUDGET = 256  # measurements of a method that has no end of its own; BEAM=4 takes about as many


def check(method: str) -> None:
    """Raises UsageError where a width, an effort or a budget is missing or is none."""
    name, _, of = method.partition(":")
    if name == KCG and of:
        check_effort(effort_and_budget(method)[0])
        budgets_s(method)
    elif name == KCG or (name == TINY_BEAM and not of.isdecimal()):
        like = f"{TINY_BEAM}:4, kcg:quick or, with a budget, kcg:thorough:5m"
        raise UsageError(f"method {method!r}: write a width or an effort after it, like {like}")


def effort_and_budget(method: str) -> tuple[str, str]:
    """Of a kcg run, as its command takes them: `thorough` and `5m` of `kcg:thorough:5m`; without a budget, an empty
    one. Of one that goes on it is the budget of its last part."""
    effort, _, budget = method.removeprefix(f"{KCG}:").partition(":")
    return effort, budget.rpartition("+")[2]


def part_before(method: str) -> str:
    """The kcg run that this one goes on from; empty where it begins from cold."""
    return method.rpartition("+")[0]


def budgets_s(method: str) -> list[float]:
    """Seconds of each part of a kcg run with budgets of its own; none without. Raises UsageError."""
    budgets = method.removeprefix(f"{KCG}:").partition(":")[2]
    return [parse_budget(budget) for budget in budgets.split("+")] if budgets else []


def turn_of(method: str) -> tuple[str, int, int | None]:
    """How a method is run: BEAM to its own end, the others with a budget, `random:64` or `BUDGET`."""
    name, _, of = method.partition(":")
    if name == FULL_BEAM:
        return method, 0, None
    return name, 0, int(of) if of else BUDGET


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

    journal: DeviceJournal
    preset: str
    dev: str
    methods: tuple[str, ...]
    share: float = 0.95  # of the time with tinygrad's own schedules: the kernels that make it are searched
    log: Callable[[str], None] = print
    until: float = float("inf")  # on `time.monotonic`
    left: list[str] = field(default_factory=list)  # methods for which there was no time, once for each kernel
    canary_s: float | None = None  # of this piece
    piece: str = ""  # when it began, and its file: what its paired comparisons have in common

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
        return name != RETIME and turn_of(unit.method) in seen.replays

    def left_s(self) -> float:
        return self.until - time.monotonic()


def piece_of(campaign: Campaign, service: Any) -> dict[str, Any]:
    """Date and time (UTC), git revision, whether the tree was dirty, model of the device, version of its driver (empty
    where it has none), and the CPU cores that the process may use, with which it compiles. The host is not named."""
    target, toolchain = service.facts
    return {
        "began": datetime.now(UTC).isoformat(timespec="seconds"),
        **provenance(),
        "device": target.model,
        "driver": toolchain.driver,
        "cpu_cores": usable_cores(),
        "canary_s": campaign.canary_s,
        "journal": campaign.journal.path.name,
    }


ALONE = (KCG, TINY_BEAM, FULL_BEAM, RETIME, "raw")


def claim(campaign: Campaign, *what: str, wait: bool = False, shared: bool = False) -> TextIO | None:
    """A file that is locked until it is closed; None where another has it, unless it is to `wait`. `shared` claims are
    in the way only of those that are not."""
    folder = campaign.journal.path.parent / "claims"
    folder.mkdir(exist_ok=True)
    file = (folder / re.sub(r"[^\w.]+", "-", " ".join((campaign.dev, campaign.preset, *what)))).open("a")
    if locked(file, wait=wait, shared=shared):
        return file
    file.close()
    return None


def claim_journal(campaign: Campaign) -> TextIO:
    """The right to write its own file. What another process had written there before it ended is then known too.

    Raises UsageError where another process writes the same file: their lines would be mixed.
    """
    if (file := claim(campaign, campaign.journal.path.name)) is None:
        raise UsageError(f"another process writes {campaign.journal.path}: give each its own --shard, 0/2 and 1/2")
    campaign.journal.read_on()
    return file


def _what(unit: Unit) -> tuple[str, str]:
    return unit.method, unit.region.id if unit.region is not None else ""


def _searched_elsewhere(campaign: Campaign, unit: Unit) -> bool:
    """Whether a kernel is to be timed again, and another process still searches it, or all of them with kcg."""
    return unit.method == RETIME and any(
        other.region in (unit.region, None) and not campaign.done(other) and _held(campaign, other)
        for other in campaign.units()
    )


def _held(campaign: Campaign, unit: Unit) -> bool:
    if (file := claim(campaign, *_what(unit), shared=True)) is not None:  # others may be looking at the same moment
        file.close()
    return file is None


def assigned(campaign: Campaign, units: Iterable[Unit], at_once: int) -> Iterator[list[Unit]]:
    """Units that this process holds until it asks for the next, and that nobody has done. They run at once, so that
    the compilers have work: a method that measures few schedules at a time on `at_once` kernels; a level of BEAM is
    enough for all of them. What others hold is looked at once more in the end: they may have died, or be done."""
    passed: list[Unit] = []
    yield from _walk(campaign, units, at_once, passed)
    yield from _walk(campaign, passed, at_once, [])


def _walk(campaign: Campaign, units: Iterable[Unit], at_once: int, passed: list[Unit]) -> Iterator[list[Unit]]:
    for method, group in groupby(units, key=lambda unit: unit.method):
        most = 1 if method.partition(":")[0] in ALONE else at_once
        while True:
            with ExitStack() as held:
                together: list[Unit] = []
                for unit in group:
                    if campaign.done(unit):
                        continue
                    if _searched_elsewhere(campaign, unit) or (file := claim(campaign, *_what(unit))) is None:
                        passed.append(unit)
                        continue
                    campaign.journal.read_on()  # whoever held it may have done it
                    if campaign.done(unit):
                        file.close()
                        continue
                    held.enter_context(file)
                    together.append(unit)
                    if len(together) == most:
                        break
                if not together:
                    break
                yield together
