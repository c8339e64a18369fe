"""Rows of a dataset that was never measured: as many as one likes, and as varied as those of a campaign on an H200.

Samples and binaries are distinct; schedules are walks of one to eight Opts, half of them from where another ended; a
fifth share the binary of another schedule, a tenth failed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from evaluation.measure.fuzzing import fuzz_kernels
from kcg.dataset.journal import Journal, Record, Run
from kcg.kernel.opts.schedule import Opt, opts_of, schedule_of
from kcg.measure.protocol import PROTOCOL, samples_for
from kcg.types import Measurement, Schedule, Status, Toolchain, Workload, WorkloadCall
from tests.known_targets import KNOWN_TARGETS

TARGET = KNOWN_TARGETS["sm_90"]
TOOLCHAIN = Toolchain(tinygrad="0.14.0", compiler="NVRTC 12.4", driver="550.54", triton="", action_space=1)
ROWS_PER_SECOND = 15.0  # of the campaign that is imitated
ROWS_A_RUN = 100_000
KERNELS_AT_ONCE = 50  # whose rows are written in one transaction
SAMPLERS = ("walk:raw", "walk:hand-coded", "beam:2/8", "greedy:0.3")
OPS = ("UPCAST", "UNROLL", "LOCAL", "GROUP", "GROUPTOP", "SWAP", "THREAD")
SIZES = (0, 2, 3, 4, 5, 7, 8, 16, 32)
MOST_OPTS = 8
REASONS = {
    Status.RESOURCE: "{0} bytes of shared memory are more than the {1} of the device",
    Status.COMPILE_ERROR: "nvrtc: error: kernel.cu({0}): identifier r{1} is undefined",
    Status.TIMEOUT: "it ran longer than {0} ms",
}


def workloads_of(source: Path | None, kernels: int) -> list[Workload]:
    """Workloads that hold so many kernels together, or fewer where the source has no more."""
    if source is None:
        regions, _ = fuzz_kernels(kernels, 0)
        return [Workload("fuzz", "recombined", tuple(WorkloadCall(region, 1) for region, _ in regions.values()))]
    with Journal.open(source, read_only=True) as journal:
        found, known = journal.workloads(), sorted(journal.regions())
    chosen = set(random.Random(0).sample(known, min(kernels, len(known))))
    return [Workload(w.name, w.preset, tuple(c for c in w.calls if c.region.id in chosen)) for w in found]


def describe(journal: Journal, workloads: list[Workload], rows: int) -> None:
    """Writes what the rows refer to."""
    for workload in workloads:
        journal.add_workload(workload)
    journal.add_target(TARGET)
    journal.add_toolchain(TOOLCHAIN)
    for run in range(-(-rows // ROWS_A_RUN)):
        journal.add_run(Run(f"{run:032x}", "2025-10-01T00:00:00+00:00", "kcg", {"driver": TOOLCHAIN.driver}))


def campaign(regions: list[str], rows: int, part: int, parts: int) -> Iterator[list[Record]]:
    """One part of a campaign of so many rows over kernels: lists of what a transaction writes."""
    for start in range(part, len(regions), parts * KERNELS_AT_ONCE):
        records: list[Record] = []
        for i in range(start, len(regions), parts)[:KERNELS_AT_ONCE]:
            first, last = rows * i // len(regions), rows * (i + 1) // len(regions)
            records += made_up(regions[i], last - first, seed=0, first=first)
        yield records


def made_up(region_id: str, count: int, *, seed: int, first: int) -> Iterator[Record]:
    """`count` rows of one kernel, as they were recorded one by one; `first` rows of other kernels came before."""
    rng, timings, walks = random.Random(f"{seed}:{region_id}"), list[dict[str, Any]](), dict[Schedule, int]()
    baseline_s = 10 ** rng.uniform(-5.5, -3.5)
    for number in range(first, first + count):
        schedule = None
        while schedule is None or schedule in walks:
            beginning = opts_of(rng.choice(list(walks)))[: MOST_OPTS - 1] if walks and rng.random() < 0.5 else ()
            schedule = schedule_of((*beginning, *_opts(rng, MOST_OPTS - len(beginning))))
        walks[schedule] = number
        shared = timings and rng.random() < 0.2
        timings.append(rng.choice(timings) if shared else _timing(rng, baseline_s))
        row = Measurement(
            region_id=region_id,
            schedule=schedule,
            target=TARGET.fingerprint,
            toolchain=TOOLCHAIN.fingerprint,
            protocol=PROTOCOL,
            early_stop=True,
            input_recipe="normal-v1:seed=0",
            sampler=rng.choice(SAMPLERS),
            compile_s=rng.lognormvariate(-1, 0.7),
            run_id=f"{number // ROWS_A_RUN:032x}",
            trial=0,
            **timings[-1],
        )
        yield Record(row, 1.76e9 + number / ROWS_PER_SECOND)


def _opts(rng: random.Random, most: int) -> list[Opt]:
    return [Opt(rng.choice(OPS), rng.randrange(4), rng.choice(SIZES)) for _ in range(rng.randint(1, most))]


def _timing(rng: random.Random, baseline_s: float) -> dict[str, Any]:
    """What schedules of one binary share."""
    sizes = [2 ** rng.randrange(8) for _ in range(4)]
    made: dict[str, Any] = {"launch": ((sizes[0] * rng.randint(1, 99), sizes[1], 1), (sizes[2], sizes[3], 1))}
    made |= {"binary_hash": rng.randbytes(32).hex()}
    if rng.random() < 0.1:
        status = rng.choice(list(REASONS))
        return made | {"status": status, "reason": REASONS[status].format(rng.randrange(10**6), rng.randrange(1000))}
    median_s = baseline_s * rng.lognormvariate(0.7, 0.8)
    samples = [abs(rng.gauss(median_s, 0.02 * median_s)) for _ in range(samples_for(median_s, early_stop=True))]
    clocks = {
        "memory_mhz": 3201.0,
        "power_w": round(rng.uniform(120, 690), 3),
        "slowdown_reasons": rng.choice((0.0, 4.0)),
        "sm_mhz_max": 1980.0,
        "sm_mhz_min": 1980.0 - rng.choice((0, 0, 0, 15, 30, 45)),
        "temperature_c": float(rng.randint(30, 60)),
    }
    return made | {"status": Status.OK, "checked": True, "samples_s": tuple(samples), "clocks": tuple(clocks.items())}
