"""Rows a second of a campaign's measuring with one GPU of a machine and with two.

    python -m evaluation.fleet.bench_gpus            # on a host with two NVIDIA GPUs, less than four minutes
    python -m evaluation.fleet.bench_gpus --mini     # on a CPU: that it works, no figure

Kernels of one step of Flux, and of each the same schedules, drawn as a campaign draws: tinygrad's own, the unoptimised
kernel, random walks. In some rounds all is compiled beforehand, so that the GPUs are what limits; each has new
processes, which have opened their GPU and hold no inputs. In others compiling is included: by new compilers with an
empty cache, as many with one GPU as with two. Rounds with one and with two take turns.

Each round is in the results as soon as it is over: results/bench_fleet.json, run `gpus`; with --mini only with --out.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from kcg.campaign.generate import LONGEST_TIMEOUT_S, MOST_KERNELS_AT_ONCE, STOP_ABOVE
from kcg.campaign.sampling import DrawJob, Drawn, draw
from kcg.campaign.tasks import distinct_calls, why_not
from kcg.cli import command_text, record_results, run_script
from kcg.compat.device import DeviceChoice, check_gpus, choose_device, prepare, visible_gpu
from kcg.errors import DeviceError
from kcg.kernel.analysis import arithmetic
from kcg.kernel.codec import ast_of
from kcg.kernel.program import Executable
from kcg.measure import child
from kcg.measure.device_info import usable_cores
from kcg.measure.lock import lock_device
from kcg.measure.protocol import median
from kcg.measure.service import MeasureService, Request
from kcg.measure.spread import Member, Spread
from kcg.types import Measurement, Region, Schedule, Target, Toolchain
from kcg.workloads.registry import spec_of

MODULE = "evaluation.fleet.bench_gpus"
OUT = Path(__file__).parents[2] / "evaluation" / "results" / "bench_fleet.json"
MIX = (("walk:raw", 0.4), ("walk:hand-coded", 0.6))
ROUNDS = (("compiled", 1), ("compiled", 2), ("compiling", 1), ("compiling", 2), ("compiled", 2), ("compiled", 1))
"""What is done in each, and how many GPUs measure."""
LIMIT_S = 225.0  # no round begins that would end later, if it takes what the longest of its kind took
WARM_TRIAL = 1000  # of what is measured before the clock runs
TIMEOUT_S = 8.0
DRAW_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    preset: str
    kernels: int
    schedules: int  # of each kernel


FULL, MINI = Size("1024", 64, 12), Size("mini", 3, 3)

Batch = tuple[Region, tuple[Schedule, ...]]
Programs = Mapping[tuple[str, Schedule], Executable]


@dataclass(eq=False)
class Compiled:
    """A service that times what is compiled already."""

    service: MeasureService
    programs: Programs
    lock: threading.Lock = field(default_factory=threading.Lock)  # a batch goes to the device in one go

    @property
    def target(self) -> Target:
        return self.service.target

    @property
    def toolchain(self) -> Toolchain:
        return self.service.toolchain

    @property
    def devices(self) -> int:
        return self.service.devices

    @property
    def device_error(self) -> DeviceError | None:
        return self.service.device_error

    @property
    def spent_s(self) -> Mapping[str, float]:
        return self.service.spent_s

    def measure(
        self, requests: Sequence[Request], *, together: bool = False, made: object = None
    ) -> list[Future[Measurement]]:
        with self.lock:
            return [self.service.measure_compiled(r, self.programs[r.region.id, r.schedule]) for r in requests]

    def remember(self, row: Measurement) -> None:
        self.service.remember(row)

    def close(self) -> None:
        self.service.close()


@contextmanager
def services(choice: DeviceChoice, count: int) -> Iterator[list[MeasureService]]:
    """So many services, one a GPU, all opened, with the compilers of the first, which run. On a CPU all are of it."""
    first = MeasureService(choice.dev, run_id=uuid.uuid4().hex)
    opened = [first]
    try:
        for gpu in range(1, count):
            name = visible_gpu(gpu) if choice.device == "CUDA" else ""
            opened.append(MeasureService(choice.dev, run_id=uuid.uuid4().hex, gpu=name, compilers_of=first))
        for service in opened:
            _ = service.facts
        wait([first.beside(child.ping, timeout_s=60) for _ in range(2 * first.compile_workers)])
        yield opened
    finally:
        for service in reversed(opened):
            service.close()


def drawn(service: MeasureService, size: Size) -> list[Batch]:
    """The kernels, those with most arithmetic first, and the schedules of each: the same ones whenever asked."""
    calls = distinct_calls([spec_of("flux").capture(size.preset)], shard=(1, 1), seed=0)
    fit = [call for call in calls if not why_not(call, service.target)]
    fit.sort(key=lambda call: -arithmetic(ast_of(call.region.kernel)))
    jobs = [
        DrawJob(c.region, service.target, (), size.schedules, MIX, f"0:{c.region.id}", fill=False)
        for c in fit[: size.kernels]
    ]
    answers: list[Drawn] = [f.result() for f in [service.beside(draw, j, timeout_s=DRAW_TIMEOUT_S) for j in jobs]]
    found = [
        (job.region, tuple(choice.schedule for choice in answer.batch))
        for job, answer in zip(jobs, answers, strict=True)
    ]
    return [batch for batch in found if batch[1]]


def compiled(service: MeasureService, batches: Sequence[Batch]) -> dict[tuple[str, Schedule], Executable]:
    """The program of every schedule that compiles."""
    sent = {(region.id, s): service.compiled(region, s) for region, schedules in batches for s in schedules}
    wait(sent.values())
    return {key: done.result().compiled for key, done in sent.items() if done.exception() is None}


def requests_of(batch: Batch, trial: int) -> list[Request]:
    """As a campaign asks."""
    region, schedules = batch
    return [
        Request(region, s, (), "bench", in_search=True, stop_above_best=STOP_ABOVE, timeout_s=timeout_s, trial=trial)
        for s, timeout_s in zip(schedules, (LONGEST_TIMEOUT_S, *[TIMEOUT_S] * (len(schedules) - 1)), strict=True)
    ]


def measured(
    members: Sequence[Member], batches: Sequence[Batch], *, trial: int, at_once: int, compilers: int
) -> tuple[dict[str, Any], list[Measurement]]:
    """One round: how fast all was measured, so many kernels at once, and the rows."""
    spread = Spread(members[0])
    for gpu, member in enumerate(members[1:], 1):
        spread.add(member, f"GPU {gpu}")

    def measure(batch: Batch) -> list[Measurement]:
        return [future.result() for future in spread.measure(requests_of(batch, trial), together=True)]

    before, began = spread.spent_s, time.perf_counter()
    with ThreadPoolExecutor(at_once) as threads:
        rows = [row for rows in threads.map(measure, batches) for row in rows]
    seconds = time.perf_counter() - began
    if spread.size != len(members) or spread.first.device_error is not None:
        raise DeviceError(f"a device was lost: {spread.first.device_error or 'not the first'}")
    spent = {phase: s - before.get(phase, 0.0) for phase, s in spread.spent_s.items()}
    compiling_s = spent.pop("compile", 0.0)
    return {
        "rows": len(rows),
        "seconds": seconds,
        "rows_per_s": len(rows) / seconds,
        "devices_busy": sum(spent.values()) / seconds / len(members),
        "compilers_busy": compiling_s / seconds / compilers,
        "rows_by_service": sorted(Counter(row.run_id for row in rows).values(), reverse=True),
        "statuses": dict(Counter(str(row.status) for row in rows)),
    }, rows


def agreement(rows: Sequence[Measurement], runs: Sequence[str]) -> float | None:
    """What the second GPU takes where the first takes 1, in the median of what both have timed."""
    times: dict[tuple[str, Schedule], dict[str, float]] = {}
    for row in rows:
        if row.samples_s:
            times.setdefault((row.region_id, row.schedule), {})[row.run_id] = row.median_s
    ratios = [one[runs[1]] / one[runs[0]] for one in times.values() if len(one) == len(runs) == 2]
    return median(ratios) if ratios else None


@dataclass
class Bench:
    """What was found so far."""

    choice: DeviceChoice
    out: Path | None
    mini: bool
    about: dict[str, Any]
    started: float
    rounds: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: {"compiled": [], "compiling": []})
    agreement: float | None = None

    def has_time(self, kind: str) -> bool:
        """Whether a round more ends in time, if it takes what the longest of its kind took, or else of all."""
        alike = self.rounds[kind] or [one for rounds in self.rounds.values() for one in rounds]
        longest_s: float = max((one["wall_s"] for one in alike), default=0.0)
        return time.monotonic() - self.started + longest_s < LIMIT_S

    def took(self, kind: str, gpus: int, found: dict[str, Any], *, since: float) -> None:
        """Keep a round, and write all that is known."""
        self.rounds[kind].append({"gpus": gpus, **found, "wall_s": time.monotonic() - since})
        rate = found["rows_per_s"]
        typer.echo(f"{kind}, {gpus} measuring: {found['rows']} rows, {rate:.1f} a second", err=True)
        entry = {**self.about, "rounds": self.rounds, "agreement": self.agreement}
        entry["wall_s"] = time.monotonic() - self.started
        if self.out is not None:
            record_results(self.out, "gpus_mini" if self.mini else "gpus", entry, {} if self.mini else self.headline)

    def rate(self, kind: str, gpus: int) -> float | None:
        """The median of the rounds with so many GPUs, in rows a second."""
        rates = [one["rows_per_s"] for one in self.rounds[kind] if one["gpus"] == gpus]
        return median(rates) if rates else None

    @property
    def headline(self) -> dict[str, float]:
        """The figures of what is measured by now."""
        found: dict[str, float] = {}
        for kind, name in (("compiled", ""), ("compiling", "_compiling")):
            one, two = self.rate(kind, 1), self.rate(kind, 2)
            found |= {f"rows_per_s_{n}{name}": r for n, r in (("one_gpu", one), ("two_gpus", two)) if r is not None}
            if one is not None and two is not None:
                found[f"two_gpus_vs_one{name}"] = two / one
        return found


def warm(members: Sequence[MeasureService], batch: Batch, programs: Programs, *, trial: int) -> None:
    """Have a new child of each that has opened its device, and holds the inputs of one kernel at most."""
    region, schedules = batch
    schedule = next(s for s in schedules if (region.id, s) in programs)
    for service in members:
        service.fresh_child()
    request = Request(region, schedule, (), "bench", in_search=True, trial=trial)
    wait([service.measure_compiled(request, programs[region.id, schedule]) for service in members])


def run(size: Size, bench: Bench) -> None:
    """All rounds that there is time for."""
    with services(bench.choice, 2) as opened:
        batches = drawn(opened[0], size)
        programs = compiled(opened[0], batches)
        batches = [(region, tuple(s for s in some if (region.id, s) in programs)) for region, some in batches]
        batches = [batch for batch in batches if batch[1]]
        bench.about |= {
            "device": opened[0].target.model,
            "compile_workers": opened[0].compile_workers,
            "kernels": len(batches),
            "schedules": len(programs),
            "prepared_s": time.monotonic() - bench.started,
        }
        both = list[Measurement]()
        for trial, (kind, gpus) in enumerate(ROUNDS):
            if not bench.has_time(kind):
                continue
            since = time.monotonic()
            if kind == "compiled":
                found, rows = with_programs(opened[:gpus], batches, programs, trial=trial)
                both += rows
                bench.agreement = agreement(both, [service.run_id for service in opened])
            else:
                found = with_compiling(bench.choice, gpus, batches, programs)
            bench.took(kind, gpus, found, since=since)


def with_programs(
    used: Sequence[MeasureService], batches: Sequence[Batch], programs: Programs, *, trial: int
) -> tuple[dict[str, Any], list[Measurement]]:
    """One round in which nothing is compiled."""
    warm(used, batches[-1], programs, trial=WARM_TRIAL + trial)
    members = [Compiled(service, programs) for service in used]
    found, rows = measured(members, batches, trial=trial, at_once=2 * len(used), compilers=1)
    del found["compilers_busy"]
    return found, rows


def with_compiling(choice: DeviceChoice, gpus: int, batches: Sequence[Batch], programs: Programs) -> dict[str, Any]:
    """One round in which all is compiled, by services of its own."""
    with services(choice, gpus) as used:
        warm(used, batches[-1], programs, trial=WARM_TRIAL)
        workers = used[0].compile_workers
        at_once = max(min(workers // 2, MOST_KERNELS_AT_ONCE), 2 * gpus)
        return measured(used, batches, trial=0, at_once=at_once, compilers=workers)[0]


def main(
    mini: Annotated[bool, typer.Option("--mini", help="few small kernels, on a CPU too, and no figure")] = False,
    device: Annotated[str, typer.Option(help="auto, CUDA, or with --mini a CPU")] = "auto",
    out: Annotated[Path | None, typer.Option(help="the results file")] = None,
) -> None:
    """Measure, and merge what is found into the results."""
    started, size = time.monotonic(), MINI if mini else FULL
    choice = choose_device(device)
    if not mini:
        check_gpus(choice, 2)
    prepare(choice.dev)
    about = {
        "command": command_text(MODULE),
        "workload": f"flux/{size.preset}",
        "mix": dict(MIX),
        "cores": usable_cores(),
    }
    bench = Bench(choice, OUT if out is None and not mini else out, mini, about, started)
    with lock_device(choice.dev, gpus=2):
        run(size, bench)
    figures = {} if mini else {**bench.headline, "agreement": bench.agreement}
    typer.echo(json.dumps({**bench.about, **figures}, indent=1, sort_keys=True))


if __name__ == "__main__":
    run_script(main)
