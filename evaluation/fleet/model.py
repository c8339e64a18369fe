"""What a scheduler, a driver, a journal and a store can do, measured here, and how many hosts that is enough for."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from evaluation.fleet.rate import campaigns, cpu_s
from evaluation.measure.made_up_rows import describe, made_up, workloads_of
from kcg.dataset.journal import Journal
from kcg.fleet.connection import hosts_of
from kcg.fleet.service import POLL_S
from kcg.fleet.settings import configure
from kcg.store.entry import Entry, Timed
from kcg.store.folder import Store, open_folder
from tests.fleet.test_payload import FACTS

ROOT = Path(__file__).parents[2]
HOSTS = (10, 100, 1000)
ROWS_PER_S = (25.0, 80.0)  # of one host
BATCH = 8  # requests of a task
TASKS_OF_BATCH = 2  # it, and a draw of the next one
DASK_BYTES = 1024  # of a task or an answer, around kcg's payload
NETWORK_BYTES_PER_S = 125e6  # 1 Gbit/s
IDLE_S = 15.0
ROWS, ENTRIES, LOOKUPS = 2000, 200, 2000

HOSTS_ALIVE = """
import asyncio, sys
from kcg.fleet.settings import configure
configure()
from kcg.fleet.servers import FleetWorker

async def main(address, count):
    state = {"device": "CUDA 0", "pid": 1, "ready": True, "run_id": "0" * 32, "model": "NVIDIA H200",
             "target": "0" * 64, "compiler": "NVRTC 12.4", "rows": 1, "rows_per_s": 1.0, "checked_unix_s": 1.0,
             "fault": "", "running": ["measures 8 of 00000000"] * 4}
    workers = [FleetWorker(address, nthreads=64, memory_limit=0) for _ in range(count)]
    for worker in workers:
        worker.metrics["kcg"] = lambda worker: state
    await asyncio.gather(*workers)
    print("ready", flush=True)
    await asyncio.Event().wait()

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""
"""Hosts that do nothing but tell the scheduler that they live, many in one process."""


def measured(folder: Path, kernels: Path, *, device: str, hosts: int, schedules: tuple[int, int]) -> dict[str, float]:
    """What the model needs beside `rate`: costs in seconds of a core, sizes in bytes."""
    rows = campaigns(folder, kernels, device, schedules)
    return {**rows, **idle_hosts(hosts), **journal_rate(), **store_rate()}


# ---- parts ----


@contextmanager
def _process(*words: object) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, *map(str, words)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def idle_hosts(count: int) -> dict[str, float]:
    """What hosts cost that only live: the scheduler, and the driver, which looks at all of them in turns."""
    with _process("-m", "kcg.fleet.local", "scheduler") as scheduler:
        assert scheduler.stdout is not None
        address = scheduler.stdout.readline().strip()
        with _process("-c", HOSTS_ALIVE, address, count) as hosts:
            assert hosts.stdout is not None and "ready" in hosts.stdout.readline()
            before = cpu_s(scheduler.pid)
            time.sleep(IDLE_S)
            alive_s = (cpu_s(scheduler.pid) - before) / IDLE_S
            looks = asyncio.run(_looked(address, scheduler.pid, count))
    from distributed.scheduler import heartbeat_interval

    return {"hosts": count, "heartbeat_cpu_s": alive_s * heartbeat_interval(count) / count, **looks}


async def _looked(address: str, scheduler: int, count: int, times: int = 50) -> dict[str, float]:
    """What one look at the hosts costs for each of them."""
    configure()
    from distributed import Client
    from distributed.protocol import dumps

    async with Client(address, asynchronous=True, set_as_default=False) as client:
        answer = (await client.scheduler.identity())["workers"]
        ours, theirs = time.process_time(), cpu_s(scheduler)
        for _ in range(times):
            await hosts_of(client.scheduler)
        looks = times * count
        return {
            "look_driver_cpu_s": (time.process_time() - ours) / looks,
            "look_scheduler_cpu_s": (cpu_s(scheduler) - theirs) / looks,
            "look_bytes": sum(map(len, dumps(answer))) / count,
        }


def journal_rate() -> dict[str, float]:
    """Rows a second that one driver can record, each a transaction on disk."""
    with tempfile.TemporaryDirectory(dir=ROOT) as folder, Journal.open(Path(folder) / "journal.sqlite") as journal:
        workloads = workloads_of(None, 1)
        describe(journal, workloads, ROWS)
        rows = [one.measurement for one in made_up(workloads[0].calls[0].region.id, ROWS, seed=0, first=0)]
        began, cpu = time.perf_counter(), time.process_time()
        for row in rows:
            journal.record(row)
        seconds, spent = time.perf_counter() - began, time.process_time() - cpu
        size = (Path(folder) / "journal.sqlite").stat().st_size
    return {
        "journal_rows_per_s": len(rows) / seconds,
        "journal_cpu_s": spent / len(rows),
        "journal_bytes": size / len(rows),
    }


def store_rate() -> dict[str, float]:
    """Lookups a second in a store of some hundred entries on this disk; half of them find something."""
    with tempfile.TemporaryDirectory(dir=ROOT) as folder:
        store = open_folder(folder, new=True)
        entries = _entries(store)
        began = time.perf_counter()
        for number in range(LOOKUPS):
            entry = entries[number % len(entries)]
            region = entry.region.id if number % 2 else "0" * 64
            found = store.look_up(region, entry.ends, entry.target, entry.toolchain)
            assert bool(found) == bool(number % 2)
        return {"store_lookups_per_s": LOOKUPS / (time.perf_counter() - began)}


def _entries(store: Store) -> list[Entry]:
    """Entries of one region on so many targets."""
    from kcg.kernel.kinds import baseline_of

    region = workloads_of(None, 1)[0].calls[0].region
    schedule = baseline_of(region, FACTS.target)
    made = []
    for number in range(ENTRIES):
        target = replace(FACTS.target, model=f"model {number}")
        before, after = (Timed(schedule, s, (s * 0.99, s * 1.01)) for s in (2e-3, 1e-3))
        made.append(
            Entry(
                region,
                ((),),
                target,
                FACTS.toolchain,
                before,
                after,
                "r_64",
                ("equal",),
                1,
                "1",
                "",
                None,
                "2026-11-26",
            )
        )
        store.add(made[-1])
    return made


# ---- the model ----


def modelled(rate: dict[str, Any], costs: dict[str, float]) -> dict[str, Any]:
    """For each number of hosts and each rate: what part of one core, of a 1 Gbit/s network or of a disk's rate each
    part of one fleet is in use, which is the fullest, and for how many hosts it is enough."""
    return {
        f"{rows_per_s:g}_rows_per_s": {
            **{str(hosts): uses(rate, costs, hosts, rows_per_s) for hosts in HOSTS},
            **_limit(rate, costs, rows_per_s),
        }
        for rows_per_s in ROWS_PER_S
    }


def uses(rate: dict[str, Any], costs: dict[str, float], hosts: int, rows_per_s: float) -> dict[str, float]:
    """What part of each resource is in use, 1 all of it."""
    batch, rows = rate[str(BATCH)], hosts * rows_per_s
    tasks, looks = rows / BATCH * TASKS_OF_BATCH, hosts / POLL_S  # a draw is taken to be as large as a batch
    sent = tasks * (batch["bytes_in"] + batch["bytes_out"] + 2 * DASK_BYTES) + looks * costs["look_bytes"]
    return {
        "scheduler": rows * costs["campaign_scheduler_cpu_s"]
        + hosts * costs["heartbeat_cpu_s"] / heartbeat_s(hosts)
        + looks * costs["look_scheduler_cpu_s"],
        "driver": rows * costs["campaign_driver_cpu_s"] + looks * costs["look_driver_cpu_s"],
        "network": sent / NETWORK_BYTES_PER_S,
        "journal": rows / costs["journal_rows_per_s"],
    }


def heartbeat_s(hosts: int) -> float:
    """Dask's own interval, which grows with the hosts."""
    from distributed.scheduler import heartbeat_interval

    return float(heartbeat_interval(hosts))


def _limit(rate: dict[str, Any], costs: dict[str, float], rows_per_s: float) -> dict[str, Any]:
    """The part that is full first, and with how many hosts."""
    hosts = 1
    while max(uses(rate, costs, hosts + 1, rows_per_s).values()) <= 1.0:
        hosts += 1
    full = uses(rate, costs, hosts + 1, rows_per_s)
    first = max(full, key=lambda name: full[name])
    return {"limit": first, "hosts": hosts, "drivers_for_1000": -(-1000 // hosts)}


def rate_of(results: Path) -> dict[str, Any] | None:
    """What the part `rate` measured; None where it was not."""
    found = json.loads(results.read_text()) if results.exists() else {}
    sizes: dict[str, Any] | None = found.get("runs", {}).get("rate", {}).get("sizes")
    return sizes
