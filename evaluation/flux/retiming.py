"""What the methods of a campaign chose, timed again: each choice beside tinygrad's own schedule, in turns, verified.

A method's time on a kernel is that of tinygrad's own schedule, divided by the median of the paired speed-ups: choices
that were timed in different comparisons are compared through the baseline that both were timed beside. That is not
enough for short kernels, of which a process has a gap of its own in every sample: theirs are timed in one piece, all of
them. What this needs of the compilers, binaries and references, is made beside the device, all at once (`Prepared`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from evaluation.flux.campaign import KCG, RETIME, TINY_BEAM, Campaign, Unit, assigned, turn_of
from evaluation.search.on_device import DeviceBench
from kcg.errors import DeviceError
from kcg.measure.jobs import PairedJob, PairedOutcome
from kcg.measure.pools import ServiceClosed
from kcg.measure.protocol import median
from kcg.measure.verify import References, references_job
from kcg.types import Region, Schedule, ScheduleKind

if TYPE_CHECKING:
    from kcg.kernel.program import Compiled


UNSTEADY_S = 50e-6  # on a GPU, samples of what is shorter differ by up to 26 % from one process to the next


@dataclass(frozen=True)
class Choices:
    """What every method chose for one kernel; nothing of those that did not come to it."""

    bench: DeviceBench
    calls: int
    by_method: dict[str, Schedule]

    def untimed(self) -> list[Schedule]:
        """Those that were not timed again yet; of a short kernel all, unless one piece timed all of them."""
        comparisons, chosen = self.bench.seen.comparisons, [*dict.fromkeys(self.by_method.values())]
        timed_s = (median(comparisons[s]["cold_s"]) for s in chosen if comparisons.get(s, {}).get("cold_s"))
        fastest_s = min(timed_s, default=UNSTEADY_S)
        pieces = {comparisons[s].get("piece") if s in comparisons else None for s in chosen}
        if self.bench.target.device != "CPU" and fastest_s < UNSTEADY_S and len(pieces) > 1:
            return chosen
        return [s for s in chosen if s not in comparisons]


def choices(campaign: Campaign, service: Any, predictor: Any) -> Iterator[Choices]:
    """Of every kernel that was searched, the largest first."""
    for region, calls in campaign.searched():
        yield choices_of(campaign, service, predictor, region, calls)


def choices_of(campaign: Campaign, service: Any, predictor: Any, region: Region, calls: int) -> Choices:
    """What is chosen by now for a kernel."""
    runs = campaign.journal.runs
    bench = DeviceBench(region, calls, service, predictor, campaign.journal)
    found = {"hand-coded": bench.space.baseline()}
    for method in campaign.methods:
        chosen = runs[method]["chosen"].get(region.id) if method in runs else None
        schedule = Schedule(*chosen) if chosen is not None else winner_of(bench, method)
        if schedule is not None and schedule.kind == ScheduleKind.OPTS:
            found[method] = schedule
    return Choices(bench, calls, found)


def winner_of(bench: DeviceBench, method: str) -> Schedule | None:
    """What a method found on a kernel; none where it was not done, or failed, or is kept elsewhere as kcg's is."""
    name, _, of = method.partition(":")
    if name == TINY_BEAM:
        beam = bench.seen.tiny.get(int(of))
        return None if beam is None or beam.reason else beam.schedule
    if name == "no-tensor-cores":
        return bench.space.without_tensor_cores()
    kept = bench.seen.replays.get(turn_of(method)) if name != KCG else None
    return kept.winner if kept is not None else None


SEEDS = (1, 2, 3)  # of the inputs under which a choice is verified
REFERENCES_TIMEOUT_S = 60.0  # for the references of one kernel: what takes longer is computed with the verification


@dataclass
class Prepared:
    """The compilers' work for the comparisons of some kernels. On a CPU, where it would disturb the samples, all of it
    is done before the first paired comparison, and the references are left to the verification."""

    _binaries: dict[tuple[str, Schedule], Future[Any]] = field(default_factory=dict)
    _references: dict[str, Future[Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, wanted: Iterable[tuple[DeviceBench, Iterable[Schedule]]]) -> Prepared:
        """Begin with it, in this order; a kernel of which no schedule is wanted has no paired comparison."""
        made, on_cpu = cls(), False
        for bench, schedules in wanted:
            if not (others := [*schedules]):
                continue
            on_cpu = bench.target.device == "CPU"
            for schedule in dict.fromkeys((bench.space.baseline(), *others)):
                made._binaries[bench.region.id, schedule] = bench.service.compiled(bench.region, schedule)
            if not on_cpu:
                made._references[bench.region.id] = bench.service.beside(
                    references_job, bench.region, (), SEEDS, timeout_s=REFERENCES_TIMEOUT_S
                )
        wait(made._binaries.values() if on_cpu else ())
        return made

    def __contains__(self, what: tuple[str, Schedule]) -> bool:
        return what in self._binaries

    def compiled(self, bench: DeviceBench, schedule: Schedule) -> Compiled:
        """The binary of a schedule that was wanted. Raises what the compiler raised, twice."""
        future = self._binaries[bench.region.id, schedule]
        if future.exception() is not None:  # that a process was killed is nothing of the schedule's
            future = bench.service.compiled(bench.region, schedule)
        compiled: Compiled = future.result().compiled
        return compiled

    def references(self, bench: DeviceBench) -> References | None:
        """None where they are computed with the verification, or could not be before it."""
        future = self._references.get(bench.region.id)
        return None if future is None or future.exception() is not None else future.result()


COMPARISON_TIMEOUT_S = 300.0
MAYBE_SHORT_S = 1e-3  # tinygrad's own schedule of a kernel that may be a short one with another
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
    for (unit,) in assigned(campaign, units, 1):
        found |= retime(campaign, choices_of(campaign, service, predictor, unit.region, unit.calls), prepared)
    return found


def retime(campaign: Campaign, chosen: Choices, prepared: Prepared | None = None) -> bool:
    """Time what was not timed yet, and was `prepared`; whether there was anything."""
    bench, untimed = chosen.bench, chosen.untimed()
    ready = prepared or Prepared.of([(bench, untimed)])
    for schedule in untimed:
        if campaign.left_s() > 0 and (bench.region.id, schedule) in ready:
            campaign.journal.add(
                "duel", bench.region.id, schedule, duel=compare_paired(campaign, bench, schedule, ready)
            )
    return bool(untimed)


def compare_paired(campaign: Campaign, bench: DeviceBench, schedule: Schedule, prepared: Prepared) -> dict[str, Any]:
    """A schedule beside tinygrad's own: samples of both in seconds, whether it is right, and how it is launched."""
    service, baseline = bench.service, bench.space.baseline()
    figures: dict[str, Any] = {"canary_s": campaign.canary_s, "piece": campaign.piece, "reason": ""}
    try:
        own, other = prepared.compiled(bench, baseline), prepared.compiled(bench, schedule)
        figures |= {"global": other.global_size, "local": other.local_size}  # of what is wrong or crashes too
        same = other.binary_hash == own.binary_hash
        outcome_of = prepared.references(bench)
        many = bench.target.device != "CPU" and campaign.own_s(bench.region) < MAYBE_SHORT_S
        job = PairedJob(
            bench.region,
            own,
            None if same else other,
            service.target,
            samples=SAMPLES if many else None,
            seeds=SEEDS,
            references=outcome_of,
        )
        outcome: PairedOutcome = service.compare_paired(job, timeout_s=COMPARISON_TIMEOUT_S).result()
    except (DeviceError, ServiceClosed):
        raise
    except Exception as error:  # a crash or a hang is this schedule's, and part of what is told of it
        return figures | {"reason": f"{type(error).__name__}: {error}"[:300]}
    result = outcome.finalist_verification or outcome.baseline_verification
    if result.unjudged:
        return figures | {"reason": f"unjudged: {result.reason}"[:300]}
    if not result.passed or not outcome.baseline_verification.passed:
        return figures | {"wrong": result.reason or outcome.baseline_verification.reason}
    return figures | {
        "name": bench.space.name(schedule),
        "own_s": outcome.baseline_cold_s,
        "own_again_s": outcome.again_cold_s,
        "cold_s": outcome.baseline_cold_s if same else outcome.finalist_cold_s,
        "noisy": outcome.noisy,
        "warm_s": outcome.baseline_warm_s if same else outcome.finalist_warm_s,
        "max_error": result.max_error,
        "clocks": dict(outcome.clocks),
    }
