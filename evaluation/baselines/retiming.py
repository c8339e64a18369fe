"""What the methods of a campaign chose, timed again: each choice beside tinygrad's own schedule, in turns, verified.

A method's time on a kernel is that of tinygrad's own schedule, divided by the median of the paired speed-ups: choices
that were timed in different duels are compared through the baseline that both were timed beside. That is not enough
for short kernels, of which a process has a gap of its own in every sample: theirs are timed in one piece, all of them.
"""

from __future__ import annotations

from typing import Any

from evaluation.search.live import LiveBench
from kcg.errors import DeviceError
from kcg.measure.jobs import DuelJob, DuelOutcome
from kcg.measure.pools import ServiceClosed
from kcg.types import Schedule

from .campaign import RETIME, Campaign, Unit
from .choosing import Choices, choices, choices_of
from .dealing import dealt
from .preparing import SEEDS, Prepared

TIMEOUT_S = 300.0
SHORT_S = 1e-3  # tinygrad's own schedule of a kernel that may be a short one with another
SAMPLES = 120  # of these on a GPU: the protocol's 30 for what takes 0.5 ms leave 1.6 % of doubt about 15 µs


def retime_all(campaign: Campaign, service: Any, predictor: Any) -> None:
    """Every kernel that no other process times or still searches: what was chosen for one so far is timed on the same
    device, in one go. What a later piece finds has a go of its own. Whoever timed something looks once more: another
    process may have found a kernel in these hands, and ended."""
    while _retime_once(campaign, service, predictor) and campaign.left_s() > 0:
        pass
    if campaign.left_s() <= 0:
        untimed = sum(len(kernel.untimed()) for kernel in choices(campaign, service, predictor))
        campaign.left += ["timing a choice again"] * untimed


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
        if campaign.left_s() > 0 and (bench.region.id, schedule) in ready:
            campaign.journal.add("duel", bench.region.id, schedule, duel=duel(campaign, bench, schedule, ready))
    return bool(untimed)


def duel(campaign: Campaign, bench: LiveBench, schedule: Schedule, prepared: Prepared) -> dict[str, Any]:
    """A schedule beside tinygrad's own: samples of both in seconds, whether it is right, and how it is launched."""
    service, baseline = bench.service, bench.space.baseline()
    told: dict[str, Any] = {"canary_s": campaign.canary_s, "piece": campaign.piece, "reason": ""}
    try:
        own, other = prepared.compiled(bench, baseline), prepared.compiled(bench, schedule)
        told |= {"global": other.global_size, "local": other.local_size}  # of what is wrong or crashes too
        same = other.binary_hash == own.binary_hash
        told_of = prepared.references(bench)
        many = bench.target.device != "CPU" and campaign.own_s(bench.region) < SHORT_S
        job = DuelJob(
            bench.region, own, None if same else other, service.target, samples=SAMPLES if many else None,
            seeds=SEEDS, foretold=told_of,
        )  # fmt: skip
        outcome: DuelOutcome = service.duel(job, timeout_s=TIMEOUT_S).result()
    except (DeviceError, ServiceClosed):
        raise
    except Exception as error:  # a crash or a hang is this schedule's, and part of what is told of it
        return told | {"reason": f"{type(error).__name__}: {error}"[:300]}
    verdict = outcome.finalist_verification or outcome.baseline_verification
    if verdict.unjudged:
        return told | {"reason": f"unjudged: {verdict.reason}"[:300]}
    if not verdict.passed or not outcome.baseline_verification.passed:
        return told | {"wrong": verdict.reason or outcome.baseline_verification.reason}
    return told | {
        "name": bench.space.name(schedule), "own_s": outcome.baseline_cold_s, "own_again_s": outcome.again_cold_s,
        "cold_s": outcome.baseline_cold_s if same else outcome.finalist_cold_s, "noisy": outcome.noisy,
        "warm_s": outcome.baseline_warm_s if same else outcome.finalist_warm_s, "max_error": verdict.max_error,
        "clocks": dict(outcome.clocks),
    }  # fmt: skip
