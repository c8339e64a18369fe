"""What the methods of a campaign chose, timed again: each choice beside tinygrad's own schedule, in turns, verified.

A method's time on a kernel is that of tinygrad's own schedule, divided by the median of the paired speed-ups: choices
that were timed in different duels are compared through the baseline that both were timed beside.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kcg.errors import DeviceError
from kcg.measure.jobs import DuelJob, DuelOutcome
from kcg.measure.pools import ServiceClosed
from kcg.search.live import LiveBench
from kcg.types import Region, Schedule, ScheduleKind

from .campaign import KCG, RETIME, TINY_BEAM, Campaign, Unit, turn_of
from .dealing import dealt
from .preparing import SEEDS, Prepared

TIMEOUT_S = 300.0
SHORT_S = 1e-3  # what tinygrad's own schedule takes longer for is no short kernel with any
SAMPLES = 100  # of a short kernel's: the protocol's 30 for what takes 0.5 ms leave 1.6 % of doubt about 15 µs


@dataclass(frozen=True)
class Choices:
    """What every method chose for one kernel; nothing of those that did not come to it."""

    bench: LiveBench
    calls: int
    by_method: dict[str, Schedule]

    def untimed(self) -> list[Schedule]:
        """Those that were not timed again yet."""
        return [s for s in dict.fromkeys(self.by_method.values()) if s not in self.bench.seen.duels]


def choices(campaign: Campaign, service: Any, predictor: Any) -> Iterator[Choices]:
    """Of every kernel that was searched, the largest first."""
    for region, calls in campaign.searched():
        yield choices_of(campaign, service, predictor, region, calls)


def choices_of(campaign: Campaign, service: Any, predictor: Any, region: Region, calls: int) -> Choices:
    """What is chosen by now for a kernel."""
    runs = campaign.journal.runs
    bench = LiveBench(region, calls, service, predictor, campaign.journal)
    found = {"hand-coded": bench.space.baseline()}
    for method in campaign.methods:
        chosen = runs[method]["chosen"].get(region.id) if method in runs else None
        schedule = Schedule(*chosen) if chosen is not None else winner_of(bench, method)
        if schedule is not None and schedule.kind == ScheduleKind.OPTS:
            found[method] = schedule
    return Choices(bench, calls, found)


def winner_of(bench: LiveBench, method: str) -> Schedule | None:
    """What a method found on a kernel; none where it was not done, or failed, or is kept elsewhere as kcg's is."""
    name, _, of = method.partition(":")
    if name == TINY_BEAM:
        beam = bench.seen.tiny.get(int(of))
        return None if beam is None or beam.reason else beam.schedule
    if name == "no-tensor-cores":
        return bench.space.without_tensor_cores()
    kept = bench.seen.plays.get(turn_of(method)) if name != KCG else None
    return kept.winner if kept is not None else None


def retime_all(campaign: Campaign, service: Any, predictor: Any) -> None:
    """Every kernel that no other process times or still searches: what was chosen for one so far is timed on the same
    device, in one go. What a later piece finds has a go of its own. Whoever timed something looks once more: another
    process may have found a kernel in these hands, and ended."""
    while _retime_once(campaign, service, predictor) and campaign.left_s() > 0:
        pass


def _retime_once(campaign: Campaign, service: Any, predictor: Any) -> bool:
    """Whether there was anything to time in the kernels that nobody else held."""
    campaign.journal.read_on()
    wanted = choices(campaign, service, predictor) if campaign.left_s() > 0 else ()
    prepared = Prepared.of((kernel.bench, kernel.untimed()) for kernel in wanted)
    units, found = (Unit(RETIME, region, calls) for region, calls in campaign.searched()), False
    for (unit,) in dealt(campaign, units, 1):
        found |= retime(campaign, choices_of(campaign, service, predictor, unit.region, unit.calls), prepared)
    return found


def retime(campaign: Campaign, chosen: Choices, prepared: Prepared | None = None) -> bool:
    """Time what was not timed yet, and was `prepared`; whether there was anything."""
    bench, untimed = chosen.bench, chosen.untimed()
    ready = prepared or Prepared.of([(bench, untimed)])
    for schedule in untimed:
        if campaign.left_s() <= 0:
            campaign.left.append("timing a choice again")
        elif (bench.region.id, schedule) in ready:
            campaign.journal.add("duel", bench.region.id, schedule, duel=duel(campaign, bench, schedule, ready))
    return bool(untimed)


def duel(campaign: Campaign, bench: LiveBench, schedule: Schedule, prepared: Prepared) -> dict[str, Any]:
    """A schedule beside tinygrad's own: samples of both in seconds, whether it is right, and how it is launched."""
    service, baseline = bench.service, bench.space.baseline()
    told: dict[str, Any] = {"canary_s": campaign.canary_s, "reason": ""}
    try:
        own, other = prepared.compiled(bench, baseline), prepared.compiled(bench, schedule)
        same = other.binary_hash == own.binary_hash
        told_of = prepared.references(bench)
        samples = SAMPLES if campaign.own_s(bench.region) < SHORT_S else None
        job = DuelJob(
            bench.region, own, None if same else other, service.target, samples=samples, seeds=SEEDS, foretold=told_of
        )
        outcome: DuelOutcome = service.duel(job, timeout_s=TIMEOUT_S).result()
    except (DeviceError, ServiceClosed):
        raise
    except Exception as error:  # a crash or a hang is this schedule's, and part of what is told of it
        return told | {"reason": f"{type(error).__name__}: {error}"[:300]}
    verdict = outcome.finalist_verification or outcome.baseline_verification
    if not verdict.passed or not outcome.baseline_verification.passed:
        return told | {"wrong": verdict.reason or outcome.baseline_verification.reason}
    return told | {
        "name": bench.space.name(schedule), "own_s": outcome.baseline_cold_s, "own_again_s": outcome.again_cold_s,
        "cold_s": outcome.baseline_cold_s if same else outcome.finalist_cold_s, "noisy": outcome.noisy,
        "warm_s": outcome.baseline_warm_s if same else outcome.finalist_warm_s, "max_error": verdict.max_error,
        "global": other.global_size, "local": other.local_size, "clocks": dict(outcome.clocks),
    }  # fmt: skip
