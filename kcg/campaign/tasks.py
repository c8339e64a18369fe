"""Which kernels a campaign measures: those of named workloads and of journals, each once, split into shards."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator

from kcg.campaign.sampling import HAND_CODED, DrawJob, Drawn, Known, draw
from kcg.campaign.settings import CampaignSettings
from kcg.dataset.journal import Journal
from kcg.errors import UsageError
from kcg.kernel.codec import ast_of
from kcg.kernel.symbolic import at_bounds
from kcg.measure.inputs import buffers_of
from kcg.predictor.choice import AUTO
from kcg.types import Measurement, Schedule, ScheduleKind, Status, Target, Workload, WorkloadCall
from kcg.workloads.registry import WORKLOADS, WorkloadSpec, find, spec_of

MEMORY_SHARE = 0.25  # of the device's memory that one kernel's buffers may take

Key = tuple[str, tuple[tuple[str, int], ...]]  # region and values of its variables


def chosen_specs(settings: CampaignSettings, device: str) -> list[tuple[WorkloadSpec, str]]:
    """The workloads that the settings name, with presets. `name/all` is every preset that suits the device, and `zoo`
    every preset of every workload that does. Raises UnknownName, UsageError."""
    found: dict[tuple[str, str], WorkloadSpec] = {}
    for text in settings.workloads:
        name, _, preset = text.partition("/")
        if name == "zoo" and preset:
            raise UsageError(f"--workloads {text}: zoo means all presets of all workloads, and has none of its own")
        for one in WORKLOADS if name == "zoo" else (name,):
            if name == "zoo" or (preset or settings.preset) == "all":
                found |= {(one, p): spec_of(one) for p in spec_of(one).presets_for(device)}
            else:
                spec, chosen = find(one, preset or settings.preset, device)
                found[one, chosen] = spec
    return [(spec, preset) for (_, preset), spec in found.items()]


def workloads_of(settings: CampaignSettings, device: str, log: Callable[[str], None]) -> Iterator[Workload]:
    """Every workload of the campaign: captured, or read from the journal that `settings.source` names."""
    kernels = 0
    if settings.source is not None:
        with Journal.open(settings.source, create=False, read_only=True) as journal:
            stored = [w for w in journal.workloads() if not settings.only or f"{w.name}/{w.preset}" in settings.only]
        kernels += sum(len(workload.calls) for workload in stored)
        yield from stored
    for spec, preset in chosen_specs(settings, device):
        log(f"capturing {spec.name} {preset}")
        workload = spec.capture(preset)
        kernels += len(workload.calls)
        yield workload
    if not kernels:
        raise UsageError("there are no kernels to measure: name workloads, or a journal that holds some")


def distinct_calls(
    workloads: Iterable[Workload], *, shard: tuple[int, int], seed: int, per_family: int | None = None
) -> list[WorkloadCall]:
    """Each kernel once, or where it ran with several values of its variables once for the smallest and once for the
    largest; those of one shard, in an order of chance.

    Of a family, all presets of a workload, there are `per_family` at most. To which shard a kernel belongs depends on
    nothing but its identity.
    """
    families: dict[str, dict[Key, WorkloadCall]] = {}
    for workload in workloads:
        for call in (end for merged in workload.calls for end in at_bounds(merged)):
            families.setdefault(workload.name, {}).setdefault((call.region.id, call.variables), call)
    distinct: dict[Key, WorkloadCall] = {}
    for calls in families.values():
        for call in in_order(calls, seed=seed)[:per_family]:
            distinct[call.region.id, call.variables] = call
    return shard_of(in_order(distinct, seed=seed), shard)


def shard_of(calls: Iterable[WorkloadCall], shard: tuple[int, int]) -> list[WorkloadCall]:
    """Those of the calls that belong to one shard, in their order."""
    number, count = shard
    return [c for c in calls if _hash(f"shard:{(c.region.id, c.variables)}") % count == number - 1]


def in_order(calls: dict[Key, WorkloadCall], *, seed: int) -> list[WorkloadCall]:
    """The calls in an order of chance that depends on the seed and on each kernel's identity only."""
    return [calls[key] for key in sorted(calls, key=lambda key: _hash(f"{seed}:{key}"))]


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def why_not(call: WorkloadCall, target: Target) -> str:
    """Why a kernel cannot be measured on a target; empty if it can."""
    buffers = buffers_of(ast_of(call.region.kernel))
    nbytes = sum(info.nbytes for info in buffers)
    if nbytes > MEMORY_SHARE * target.memory_bytes:
        return f"its buffers take {nbytes / 1e9:.1f} GB"
    if target.device == "CPU" and any("bfloat16" in str(info.dtype) for info in buffers):
        return "bfloat16 does not compile on this CPU"
    return ""


# ---- One kernel of a campaign: what is known of it and what it asks for next.


class KernelTask:
    """Remembers, and leaves the drawing to `draw`, which runs in a child."""

    fill = True  # see `DrawJob`

    def __init__(
        self,
        call: WorkloadCall,
        target: Target,
        *,
        wanted: int,
        mix: tuple[tuple[str, float], ...],
        seed: int,
        most: int = 64,
        known: Iterable[Measurement] = (),
        predictor: str = AUTO,
    ) -> None:
        self.call, self.target = call, target
        self._wanted, self._mix, self.seed = wanted, mix, f"{seed}:{call.region.id}:{call.variables}"
        self._most, self._predictor = most, predictor
        self.known: dict[Schedule, Known] = {}
        self._keys: dict[Schedule, str] = {}
        self._ended: frozenset[str] = frozenset()
        self.baseline: Schedule | None = None  # once it is measured
        self.baseline_s: float | None = None
        self.repeated = False  # the baseline was timed a second time
        self.exhausted = False  # the last draw gave nothing
        known = list(known)
        for row in known:
            self.record(row)

    @property
    def waiting(self) -> list[tuple[Schedule, str]]:
        """What is to be measured before anything is drawn."""
        return []

    def next_draw(self) -> tuple[Callable[..., Drawn], object] | None:
        """What a child is to run for the next schedules, and on what; None where there is nothing more to do."""
        if self.exhausted:
            return None
        return draw, DrawJob(
            self.call.region,
            self.target,
            tuple(self.known.values()),
            self._wanted,
            self._mix,
            self.seed,
            self._ended,
            self._most,
            self._predictor,
            self.fill,
        )

    def drawn(self, answer: Drawn) -> list[tuple[Schedule, str]]:
        """The schedules to measure next, and who drew each; empty when there are enough, or nothing new is found."""
        for schedule, key in zip(list(self.known), answer.keys, strict=True):
            self._keys[schedule] = key
        self._keys.update({schedule: key for schedule, _, key in answer.batch})
        self._ended, self.exhausted = answer.ended, not answer.batch
        return [(schedule, who) for schedule, who, _ in answer.batch]

    def record(self, row: Measurement) -> None:
        """What measuring a schedule showed."""
        if row.schedule.kind != ScheduleKind.OPTS:
            return  # written by hand: nothing to draw from
        if row.trial:
            self.repeated = True
            return
        time_s = row.median_s if row.status == Status.OK else math.inf
        self.known[row.schedule] = Known(row.schedule, row.sampler, time_s, self._keys.get(row.schedule, ""))
        if row.status == Status.UNJUDGED:
            self.exhausted = True  # no schedule of it ever will be judged
        if row.sampler == HAND_CODED and row.status == Status.OK:
            self.baseline, self.baseline_s = row.schedule, row.median_s
