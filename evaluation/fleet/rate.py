"""Measurements of nothing through a local fleet: what a task costs beside the device, and how many go through."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from kcg.campaign.generate import generate_on
from kcg.campaign.settings import CampaignSettings
from kcg.campaign.tasks import distinct_calls, workloads_of
from kcg.compat.device import choose_device, prepare
from kcg.fleet import tasks
from kcg.fleet.local import LocalFleet
from kcg.fleet.payload import Measured, MeasureJob, pack
from kcg.fleet.service import Fleet, FleetService
from kcg.kernel.kinds import baseline_of
from kcg.measure.protocol import median
from kcg.measure.service import Request
from kcg.predictor.choice import ROOFLINE
from kcg.types import Measurement
from kcg.workloads.registry import spec_of

BATCHES = (1, 8, 64)  # requests of a task
ROUNDS = 5
LEAST_S = 2.0  # of a round
IN_FLIGHT = 256  # tasks at once
TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
IDLE_S = 10.0
LONG_S = 600.0


@contextmanager
def echoing(device: str) -> Iterator[tuple[LocalFleet, FleetService]]:
    """A local fleet of one host with one compiler, whose device is never used."""
    with LocalFleet(device, 1, cores=1) as local, Fleet(local.address, measure=tasks.echo) as fleet:
        prepare(choose_device("CPU").dev)
        yield local, fleet.services(1, alive=local.check)[0]


def rates(device: str, *, rounds: int = ROUNDS, least_s: float = LEAST_S) -> dict[str, Any]:
    """Measurements a second in each size of batch, the median of some rounds, and what each process spends on one task,
    in seconds of a core. The rounds of the sizes take turns."""
    found: dict[int, list[dict[str, float]]] = {size: [] for size in BATCHES}
    with echoing(device) as (local, service):
        requests = Requests(service)
        send(service, requests, 1, 1.0)  # connections, and what is imported at first use
        for _ in range(rounds):
            for size in BATCHES:
                found[size].append(send(service, requests, size, least_s, scheduler=local.pids[0]))
        sizes = {size: payload_bytes(service, requests(size)) for size in BATCHES}
    return {
        str(size): {
            **{key: median([one[key] for one in some]) for key in some[0]},
            "rates": [one["per_s"] for one in some],
            **sizes[size],
        }
        for size, some in found.items()
    }


class Requests:
    """Requests of one small kernel, each with a trial of its own: none is what another was."""

    def __init__(self, service: FleetService) -> None:
        (call, *_) = distinct_calls([spec_of("rope").capture("mini")], shard=(1, 1), seed=0)
        self._region, self._schedule = call.region, baseline_of(call.region, service.target)
        self._trials = 0

    def __call__(self, count: int) -> list[Request]:
        first, self._trials = self._trials, self._trials + count
        trials = range(first, first + count)
        return [Request(self._region, self._schedule, (), in_search=True, trial=trial) for trial in trials]


def send(
    service: FleetService,
    requests: Requests,
    size: int,
    least_s: float,
    *,
    scheduler: int | None = None,
) -> dict[str, float]:
    """Send tasks of so many requests until the time is over, and wait for all: measurements a second, and seconds of a
    core that this process and the scheduler spent on a task."""
    room, sent = threading.Semaphore(IN_FLIGHT), list[Future[Measurement]]()
    began, ours, theirs = time.perf_counter(), time.process_time(), cpu_s(scheduler)
    while time.perf_counter() - began < least_s:
        room.acquire()
        some = service.measure(requests(size))
        some[-1].add_done_callback(lambda _: room.release())
        sent += some
    rows = [future.result(LONG_S) for future in sent]
    seconds, count = time.perf_counter() - began, len(sent) / size
    if len({row.trial for row in rows}) != len(rows) or not all(row.samples_s for row in rows):
        raise RuntimeError("a measurement is missing")
    return {
        "per_s": len(rows) / seconds,
        "driver_cpu_s": (time.process_time() - ours) / count,
        "scheduler_cpu_s": (cpu_s(scheduler) - theirs) / count,
    }


def campaigns(folder: Path, kernels: Path, device: str, schedules: Sequence[int]) -> dict[str, float]:
    """Two whole campaigns, a short one and a long one, whose device measures nothing: what driver and scheduler spend
    on one row more, in seconds of a core, with its share of drawing, of the campaign's own work and of the journal.
    What they spend while nothing happens is measured beside, and left out."""
    found = []
    with echoing(device) as (local, service):

        def spent() -> np.ndarray:
            return np.array([time.monotonic(), time.process_time(), cpu_s(local.pids[0])])

        before = spent()
        time.sleep(IDLE_S)
        idle = (spent() - before) / IDLE_S
        for number, count in enumerate(schedules):
            out = folder / f"echo{number}.sqlite"
            settings = CampaignSettings(
                out, source=kernels, device=device, schedules_per_kernel=count, predictor=ROOFLINE, seed=number
            )
            workloads = list(workloads_of(settings, service.target.device, lambda line: None))
            before = spent()
            done = generate_on(settings, [(service, workloads)], began=before[0], log=lambda line, eta: None)
            used = spent() - before
            found.append((done.measured, used[0], *(used - idle * used[0])[1:]))
    (few, few_s, *short), (many, many_s, *long) = found
    driver_s, scheduler_s = ((b - a) / (many - few) for a, b in zip(short, long, strict=True))
    return {
        "campaign_rows": many,
        "campaign_rows_per_s": (many - few) / (many_s - few_s),
        "campaign_driver_cpu_s": float(driver_s),
        "campaign_scheduler_cpu_s": float(scheduler_s),
    }


def cpu_s(pid: int | None) -> float:
    """Seconds of a core that a process has used."""
    if pid is None:
        return 0.0
    parts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(parts[11]) + int(parts[12])) * TICK_S


def payload_bytes(service: FleetService, requests: list[Request]) -> dict[str, int]:
    """Of a task and of its answer, as kcg packs them; Dask adds about 1 kB of its own to each."""
    rows = [future.result(LONG_S) for future in service.measure(requests)]
    return {"bytes_in": len(pack(MeasureJob(tuple(requests)))), "bytes_out": len(pack(Measured(tuple(rows))))}
