"""Which kernels a campaign measures: those of named workloads and of journals, each once, split into shards."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from kcg.campaign.sampling import Choice, DrawJob, Drawn, Known, draw
from kcg.campaign.settings import CampaignSettings
from kcg.dataset.choices import HAND_CODED
from kcg.dataset.journal import Journal
from kcg.errors import UsageError
from kcg.kernel.chain import Chain
from kcg.kernel.kinds import Unsupported, kind_named, kinds_for, own_kind
from kcg.kernel.regions import candidates_of
from kcg.kernel.repeats import blocks_of_workload
from kcg.kernel.symbolic import at_bounds, called, of_names, ranges_of_region
from kcg.measure.inputs import buffers_of_kernels
from kcg.predictor.choice import AUTO
from kcg.types import Measurement, Region, Schedule, ScheduleKind, Status, Target, Variables, Workload, WorkloadCall
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


REGIONS = "+regions"  # ends the preset of a workload that is regions of several kernels


def with_regions(workload: Workload, count: int, target: Target) -> Iterator[Workload]:
    """A workload, and as one of its own those regions of several of its kernels that rules propose and that some kind
    has programs for: `count` of them, what saves most bytes of the whole workload first. Nothing beside it where there
    is none, as of a workload that was captured without its sequences."""
    yield workload
    found: dict[str, tuple[float, Region, Counter[Variables]]] = {}
    for blocks in blocks_of_workload(workload) if count else ():
        for candidate in candidates_of(blocks.sequence):
            region, times = candidate.region, sum(blocks.weight(places) for places in candidate.places)
            names, executions = ranges_of_region(region), blocks.sequence.executions
            saved, _, seen = found.get(region.id, (0.0, region, Counter()))
            for variables, each in blocks.sequence.seen or (((), executions),):
                seen[of_names(variables, names)] += max(round(times * each), 1)
            found[region.id] = saved + times * executions * candidate.saved_bytes, region, seen
    calls: list[WorkloadCall] = []
    for _, region, seen in sorted(found.values(), key=lambda one: (-one[0], one[1].id)):
        if len(calls) == count:
            break
        if _has_programs(region, target):
            calls.append(called(region, seen))
    if calls:
        yield Workload(workload.name, f"{workload.preset}{REGIONS}", tuple(calls))


def _has_programs(region: Region, target: Target) -> bool:
    kinds = [kind_named(name) for name in kinds_for(target) if name not in (own_kind(region), ScheduleKind.SOURCE)]
    return any(not isinstance(kind.space(region, target), Unsupported) for kind in kinds)


def kinds_of(call: WorkloadCall, kinds: Iterable[str], target: Target) -> list[str]:
    """The kinds of which schedules are drawn of a call: those that are asked for, by default all that the target has.
    What was written by hand is drawn from nothing, and of several kernels as tinygrad runs them nothing is chosen."""
    wanted, none_of = set(kinds), {ScheduleKind.SOURCE, ScheduleKind.PARTS}
    if len(call.region.kernels) > 1:
        none_of.add(ScheduleKind.OPTS)
    return [kind for kind in kinds_for(target) if kind not in none_of and (not wanted or kind in wanted)]


def distinct_calls(
    workloads: Iterable[Workload], *, shard: tuple[int, int], seed: int, per_family: int | None = None
) -> list[WorkloadCall]:
    """Each kernel once, or where it ran with several values of its variables once for the smallest and once for the
    largest; those of one shard, in an order of chance.

    Of a family, all presets of a workload, there are `per_family` kernels at most; its regions of several count beside
    them. To which shard a kernel belongs depends on
    nothing but its identity.
    """
    families: dict[tuple[str, bool], dict[Key, WorkloadCall]] = {}
    for workload in workloads:
        of_several = workload.preset.endswith(REGIONS)
        for call in (end for merged in workload.calls for end in at_bounds(merged)):
            families.setdefault((workload.name, of_several), {}).setdefault((call.region.id, call.variables), call)
    distinct: dict[Key, WorkloadCall] = {}
    for (_, of_several), calls in families.items():
        for call in in_order(calls, seed=seed)[: None if of_several else per_family]:
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
    """Why a region cannot be measured on a target; empty if it can."""
    buffers = buffers_of_kernels(Chain(call.region).asts)
    nbytes = sum(info.nbytes for info in buffers)
    if nbytes > MEMORY_SHARE * target.memory_bytes:
        return f"its buffers take {nbytes / 1e9:.1f} GB"
    if target.device == "CPU" and any("bfloat16" in str(info.dtype) for info in buffers):
        return "bfloat16 does not compile on this CPU"
    return ""


# ---- One region and kind of a campaign: what is known of it and what it asks for next.


@dataclass(frozen=True)
class Drawing:
    """How schedules are drawn of a region."""

    kind: str = ""  # of the schedules; empty: that of tinygrad's own choice
    most: int = 64  # of one batch
    predictor: str = AUTO  # see `DrawJob`


class KernelTask:
    """The schedules of one kind for one region. Remembers, and leaves the drawing to `draw`, which runs in a child."""

    fill = True  # see `DrawJob`

    def __init__(
        self,
        call: WorkloadCall,
        target: Target,
        *,
        wanted: int,
        mix: tuple[tuple[str, float], ...],
        seed: int,
        how: Drawing = Drawing(),
        known: Iterable[Measurement] = (),
        waits: Iterable[Choice] = (),
    ) -> None:
        """`known` were measured, and those that `waits` holds are compiled and will be."""
        own = own_kind(call.region)
        self.call, self.target, self.kind = call, target, how.kind or own
        words = (seed, call.region.id, call.variables, *([] if self.kind == own else [self.kind]))
        self._wanted, self._mix, self.seed, self._how = wanted, mix, ":".join(map(str, words)), how
        self.known: dict[Schedule, Known] = {}
        self.choices: dict[Schedule, Choice] = {}
        self._keys: dict[Schedule, str] = {}
        self._ended: frozenset[str] = frozenset()
        self.baseline: Schedule | None = None  # once it is measured
        self.baseline_s: float | None = None
        self.repeated = False  # the baseline was timed a second time
        self.exhausted = False  # the last draw gave nothing
        for choice in waits:
            self.wait(choice)
        for row in list(known):
            self.record(row)

    @property
    def waiting(self) -> list[Choice]:
        """What is to be measured before anything is drawn."""
        return []

    def next_draw(self) -> tuple[Callable[..., Drawn], object] | None:
        """What a child is to run for the next schedules, and on what; None where there is nothing more to do."""
        if self.exhausted or len(self.known) >= self._wanted:
            return None
        return draw, DrawJob(
            self.call.region,
            self.target,
            tuple(self.known.values()),
            self._wanted,
            self._mix,
            self.seed,
            self._ended,
            self._how.most,
            self._how.predictor,
            self.fill,
            self.kind,
        )

    def drawn(self, answer: Drawn) -> list[Choice]:
        """The schedules to measure next; empty when there are enough, or nothing new is found."""
        for schedule, key in zip(list(self.known), answer.keys, strict=True):
            self._keys[schedule] = key
        self._keys.update({choice.schedule: choice.key for choice in answer.batch})
        self._ended, self.exhausted = answer.ended, not answer.batch
        return list(answer.batch)

    def wait(self, choice: Choice) -> None:
        """A schedule is compiled, and will be measured by another run."""
        key = choice.key or self._keys.get(choice.schedule, "")
        self.known[choice.schedule] = Known(choice.schedule, choice.sampler, math.inf, key, waits=True)

    def record(self, row: Measurement) -> None:
        """What measuring a schedule showed."""
        if row.sampler != HAND_CODED and row.schedule.kind != self.kind:
            return  # of another kind, such as what was written by hand
        if row.trial:
            self.repeated = True
            return
        time_s = row.median_s if row.status == Status.OK else math.inf
        self.known[row.schedule] = Known(row.schedule, row.sampler, time_s, self._keys.get(row.schedule, ""))
        if row.status == Status.UNJUDGED:
            self.exhausted = True  # no schedule of it ever will be judged
        if row.sampler == HAND_CODED and row.status == Status.OK:
            self.baseline, self.baseline_s = row.schedule, row.median_s


class WaitingTask(KernelTask):
    """Schedules that were drawn and compiled by another run, to be measured: nothing more is drawn."""

    def __init__(
        self, *given: Any, known: Iterable[Measurement] = (), waits: Iterable[Choice] = (), **settings: Any
    ) -> None:
        super().__init__(*given, known=known, **settings)
        self._waits = [choice for choice in waits if choice.schedule not in self.known]

    @property
    def waiting(self) -> list[Choice]:
        """Those of them that have no row yet, tinygrad's own choice first: it says how long the others may take."""
        return sorted(self._waits, key=lambda choice: choice.sampler != HAND_CODED)

    def next_draw(self) -> None:
        """Nothing."""
        return
