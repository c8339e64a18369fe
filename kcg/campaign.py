"""Generating a dataset: which kernels, which schedules, in what order, into a journal that can be resumed.

Schedules are drawn without any predictor: tinygrad's own choice, the unoptimised kernel, and random legal walks of
every length, half of them from the unoptimised kernel and half from tinygrad's choice, so that the good end of the
space is covered too. Which sampler drew a row is part of the row.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from kcg.compat.device import choose_device, prepare
from kcg.dataset.journal import Journal, Run
from kcg.errors import ScheduleError
from kcg.kernel.space import KernelSpace
from kcg.measure.protocol import PROTOCOL
from kcg.measure.service import MeasureService, Request
from kcg.types import RAW, Measurement, Schedule, Status, Workload, WorkloadCall
from kcg.workloads.registry import find

MAX_WALK = 8  # Opts of one random walk; BEAM's winners on Flux have 3 to 6
STOP_ABOVE = 10.0  # a schedule this much slower than the baseline gets one sample only
WALK_TRIES = 8  # walks drawn before a kernel counts as exhausted


@dataclass(frozen=True)
class CampaignSettings:
    """Settings of `python -m kcg.dataset generate`."""

    workloads: tuple[str, ...]
    out: Path
    preset: str = "auto"
    device: str = "auto"
    schedules_per_kernel: int = 20
    budget_s: float | None = None
    seed: int = 0
    command: str = ""


@dataclass(frozen=True)
class CampaignSummary:
    """What one occasion of a campaign did."""

    kernels: int
    measured: int  # rows added
    already_known: int  # rows found in the journal and not measured again
    statuses: dict[str, int]
    elapsed_s: float
    finished: bool  # every kernel has its schedules


@dataclass
class _KernelPlan:
    call: WorkloadCall
    space: KernelSpace
    rng: random.Random
    wanted: int
    seen: set[Schedule] = field(default_factory=set)
    keys: set[str] = field(default_factory=set)
    baseline_s: float | None = None
    exhausted: bool = False

    def draw(self) -> tuple[Schedule, str] | None:
        """The next schedule to measure and who drew it; None when enough, or nothing new is found."""
        if self.exhausted or len(self.keys) >= self.wanted:
            return None
        for schedule, sampler in ((self.space.baseline(), "hand-coded"), (RAW, "raw")):
            if schedule not in self.seen and self._is_new(schedule):
                return schedule, sampler
        for _ in range(WALK_TRIES):
            from_baseline = self.rng.random() < 0.5
            origin = self.space.baseline() if from_baseline else RAW
            schedule = self._walk(origin)
            if schedule not in self.seen and self._is_new(schedule):
                return schedule, "walk:hand-coded" if from_baseline else "walk:raw"
        self.exhausted = True
        return None

    def _is_new(self, schedule: Schedule) -> bool:
        try:
            key = self.space.key(schedule)
        except ScheduleError:
            return False
        self.seen.add(schedule)
        if key in self.keys:
            return False
        self.keys.add(key)
        return True

    def _walk(self, origin: Schedule) -> Schedule:
        schedule = origin
        for _ in range(self.rng.randint(1, MAX_WALK)):
            actions = self.space.actions(schedule)
            if not actions:
                break
            schedule = self.rng.choice(actions).schedule
        return schedule


def generate(settings: CampaignSettings, *, say: Callable[[str, float | None], None]) -> CampaignSummary:
    """Measure until every kernel has its schedules or the budget ends. A second call with the same journal goes on.

    `say(line, eta_s)` is told what happens, after every round.
    """
    started = time.monotonic()
    choice = choose_device(settings.device)
    specs = [find(name, settings.preset, choice.device) for name in settings.workloads]
    prepare(choice.dev)
    deadline = started + settings.budget_s if settings.budget_s is not None else None
    with (
        Journal.open(settings.out) as journal,
        MeasureService(choice.dev, run_id=uuid.uuid4().hex) as service,
    ):
        workloads: list[Workload] = []
        for spec, preset in specs:
            say(f"capturing {spec.name} {preset}", None)
            workloads.append(spec.capture(preset))
        target, toolchain = service.facts
        journal.add_target(target)
        journal.add_toolchain(toolchain)
        for workload in workloads:
            journal.add_workload(workload)
        started_text = datetime.now(UTC).isoformat(timespec="seconds")
        journal.add_run(Run(service.run_id, started_text, settings.command, {"device": choice.dev}))
        plans, known = _plans(settings, workloads, journal, service)
        statuses: dict[str, int] = {}
        measured = 0
        while not (deadline is not None and time.monotonic() >= deadline):
            batch = _next_batch(plans, 2 * service.compile_workers)
            if not batch:
                break
            measured += len(batch)
            for row in _measure(service, journal, batch):
                statuses[str(row.status)] = statuses.get(str(row.status), 0) + 1
            elapsed = time.monotonic() - started
            left = sum(max(p.wanted - len(p.keys), 0) for p in plans if not p.exhausted)
            eta = left * elapsed / measured
            if deadline is not None:
                eta = min(eta, deadline - time.monotonic())
            say(f"{measured} schedules measured, {left} to go, {measured / elapsed:.1f} a second", eta)
        finished = all(p.exhausted or len(p.keys) >= p.wanted for p in plans)
    return CampaignSummary(len(plans), measured, known, statuses, time.monotonic() - started, finished)


def _plans(
    settings: CampaignSettings, workloads: Sequence[Workload], journal: Journal, service: MeasureService
) -> tuple[list[_KernelPlan], int]:
    """One plan per distinct kernel, with what the journal already holds of it."""
    target, toolchain = service.facts
    plans: dict[tuple[str, tuple[tuple[str, int], ...]], _KernelPlan] = {}
    for workload in workloads:
        for call in workload.calls:
            key = (call.region.id, call.variables)
            if key not in plans:
                rng = random.Random(f"{settings.seed}:{key}")
                space = KernelSpace(call.region, target)
                plans[key] = _KernelPlan(call, space, rng, settings.schedules_per_kernel)
    known = 0
    for row in journal.known(target.fingerprint, toolchain.fingerprint, PROTOCOL):
        plan = plans.get((row.region_id, row.variables))
        if plan is not None and row.early_stop and row.schedule not in plan.seen:
            plan._is_new(row.schedule)
            service.remember(row)
            known += 1
            if row.schedule == plan.space.baseline() and row.status == Status.OK:
                plan.baseline_s = row.median_s
    for plan in plans.values():  # or the walks that were measured would be drawn again first, and end the kernel
        if plan.seen:
            plan.rng.seed(f"{settings.seed}:{plan.call.region.id}:{plan.call.variables}:{len(plan.seen)}")
    return list(plans.values()), known


def _next_batch(plans: Sequence[_KernelPlan], size: int) -> list[tuple[_KernelPlan, Schedule, str]]:
    """The next schedules, those of the kernels with the fewest first, so that a short budget covers all kernels."""
    batch: list[tuple[_KernelPlan, Schedule, str]] = []
    for plan in sorted(plans, key=lambda p: len(p.keys)):
        if len(batch) >= size:
            break
        if (drawn := plan.draw()) is not None:
            batch.append((plan, *drawn))
    return batch


def _measure(
    service: MeasureService, journal: Journal, batch: Sequence[tuple[_KernelPlan, Schedule, str]]
) -> list[Measurement]:
    requests = [
        Request(
            plan.call.region, schedule, plan.call.variables, sampler, in_search=True,
            stop_above_s=STOP_ABOVE * plan.baseline_s if plan.baseline_s else None,
        )
        for plan, schedule, sampler in batch
    ]  # fmt: skip
    rows = []
    futures: list[Future[Measurement]] = service.measure(requests)
    for (plan, _, sampler), future in zip(batch, futures, strict=True):
        row = future.result()
        if service.device_error is not None:  # what could not run is not recorded: a later occasion measures it
            raise service.device_error
        journal.record(row)
        if sampler == "hand-coded" and row.status == Status.OK:
            plan.baseline_s = row.median_s
        rows.append(row)
    return rows
