"""What every method of a campaign chose by now for each kernel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from evaluation.search.live import LiveBench
from kcg.measure.protocol import median
from kcg.types import Region, Schedule, ScheduleKind

from .campaign import Campaign
from .method_names import KCG, TINY_BEAM, turn_of

SHORT_S = 50e-6  # on a GPU, samples of what is shorter differ by up to 26 % from one process to the next


@dataclass(frozen=True)
class Choices:
    """What every method chose for one kernel; nothing of those that did not come to it."""

    bench: LiveBench
    calls: int
    by_method: dict[str, Schedule]

    def untimed(self) -> list[Schedule]:
        """Those that were not timed again yet; of a short kernel all, unless one piece timed all of them."""
        duels, chosen = self.bench.seen.duels, [*dict.fromkeys(self.by_method.values())]
        fastest_s = min((median(duels[s]["cold_s"]) for s in chosen if duels.get(s, {}).get("cold_s")), default=SHORT_S)
        pieces = {duels[s].get("piece") if s in duels else None for s in chosen}
        if self.bench.target.device != "CPU" and fastest_s < SHORT_S and len(pieces) > 1:
            return chosen
        return [s for s in chosen if s not in duels]


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
