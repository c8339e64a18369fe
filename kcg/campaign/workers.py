"""A campaign on all GPUs of a machine: one worker each, every worker a process with a shard of the kernels."""

from __future__ import annotations

import hashlib
import json
import math
import os
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kcg.campaign.generate import LONGEST_TIMEOUT_S, STOP_ABOVE, Log, check_in_place, generate_here, record_workloads
from kcg.campaign.settings import CampaignSettings, CampaignSummary, Stage, joined
from kcg.compat.device import check_gpus, choose_device, prepare, visible_gpu
from kcg.dataset.journal import Doubt, Journal, Run
from kcg.dataset.noise import RETIMED
from kcg.errors import DeviceError, KcgError, UsageError
from kcg.measure import isolated
from kcg.measure.device_info import usable_cores
from kcg.measure.interface import Measures
from kcg.measure.pools import ServiceClosed
from kcg.measure.protocol import PROTOCOL
from kcg.measure.service import MeasureService, Request
from kcg.provenance import provenance
from kcg.types import Measurement, Status, Variables

# ---- Timing a part of what is known once more, in another run: how far a dataset drifts from machine to machine.

BATCH = 32


def chosen_rows(rows: list[Measurement], share: float, best: int | None = None) -> list[Measurement]:
    """A share of the distinct binaries with status ok, by a hash: the same ones whenever asked. One row of each, and of
    each set of values of its kernel's variables. With `best`, so many of the fastest of each kernel that are there, the
    fastest first."""
    found: dict[tuple[str, str, Variables], Measurement] = {}
    for row in rows:
        if row.status == Status.OK and row.early_stop and row.sampler != RETIMED:
            found.setdefault((row.region_id, row.binary_hash, row.variables), row)
    chosen = [row for (_, binary, _), row in found.items() if _fraction(binary) < share]
    if best is None:
        return chosen
    by_kernel: dict[tuple[str, Variables], list[Measurement]] = defaultdict(list)
    for row in sorted(chosen, key=lambda row: (row.median_s, row.binary_hash)):
        by_kernel[row.region_id, row.variables].append(row)
    return [row for some in by_kernel.values() for row in some[:best]]


def _fraction(text: str) -> float:
    return int.from_bytes(hashlib.sha256(f"retime:{text}".encode()).digest()[:6]) / 2**48


@dataclass(frozen=True)
class Retiming:
    """What of a journal is timed again."""

    path: Path
    share: float  # of its binaries
    device: str  # as of `--device`
    command: str = ""  # that asked for it
    budget_s: float | None = None
    best: int | None = None  # of each kernel, so many of the fastest; None: all of that share
    trials: int = 1  # of each, in turns with the others of its kernel


def retime(retiming: Retiming, *, log: Log) -> CampaignSummary:
    """Time a share of a journal's binaries again on this machine and add the rows to it.

    A row stands under the identity of the first, with another run. What this run has timed already is left out.
    Raises UsageError where the journal has nothing of this target and toolchain.
    """
    began = time.monotonic()
    choice = choose_device(retiming.device)
    prepare(choice.dev)
    with MeasureService(choice.dev, run_id=uuid.uuid4().hex) as service:
        return retime_on([service], retiming, began=began, log=log)


def retime_on(services: Sequence[Measures], retiming: Retiming, *, began: float, log: Log) -> CampaignSummary:
    """As `retime`, on the target of each service, one after the other. `began` is when the time of the budget began, by
    `time.monotonic`. Raises UsageError where the journal has nothing for any of them."""
    path, share = retiming.path, retiming.share
    with Journal.open(path, create=False) as journal:
        chosen = [(service, _to_retime(journal, service, retiming)) for service in services]
        if not any(rows for _, (rows, _) in chosen):
            if some := sum(among for _, (_, among) in chosen):
                raise UsageError(f"{share:.3g} of {some} binaries is none of them: give a larger --share, at most 1")
            raise UsageError(
                f"{path} has nothing that was timed on this target with this toolchain: nothing to compare"
            )
        summaries = [
            _retime(journal, service, rows, retiming, began=began, log=log) for service, (rows, _) in chosen if rows
        ]
    return joined(summaries, time.monotonic() - began)


def _to_retime(journal: Journal, service: Measures, retiming: Retiming) -> tuple[list[Measurement], int]:
    """The rows to time again, and how many binaries there are. Those that one of the service's own runs timed are none:
    it would be no other occasion."""
    target, toolchain = service.target, service.toolchain
    known = [row for name in toolchain.fingerprints for row in journal.known(target.fingerprint, name, PROTOCOL)]
    others = [row for row in known if not service.run_facts(row.run_id)]
    return chosen_rows(others, retiming.share, retiming.best), len(chosen_rows(others, 1.0))


def _retime(
    journal: Journal,
    service: Measures,
    rows: Sequence[Measurement],
    retiming: Retiming,
    *,
    began: float,
    log: Log,
) -> CampaignSummary:
    """Time rows of one target again, and record that with the run of the host that did it."""
    deadline = None if retiming.budget_s is None else began + retiming.budget_s
    began, regions = time.monotonic(), journal.regions()
    started = datetime.now(UTC).isoformat(timespec="seconds")
    facts: dict[str, Any] = {"device": service.target.tinygrad_device, "retime": retiming.share}
    facts |= {} if retiming.best is None else {"best": retiming.best, "trials": retiming.trials}
    facts |= {"compile_workers": service.compile_workers}
    runs: set[str] = set()
    by_kernel: dict[tuple[str, Variables], list[Measurement]] = defaultdict(list)
    for row in rows:
        by_kernel[row.region_id, row.variables].append(row)
    requests = [
        Request(
            regions[region_id],
            row.schedule,
            row.variables,
            RETIMED,
            in_search=True,
            careful=retiming.best is not None,
            timeout_s=LONGEST_TIMEOUT_S,
            stop_above_s=STOP_ABOVE * min(r.median_s for r in some),
            trial=trial,
        )
        for (region_id, _), some in by_kernel.items()
        for trial in range(retiming.trials)
        for row in some
    ]

    def add_run(run_id: str) -> None:
        if run_id not in runs:
            more = service.run_facts(run_id)
            journal.add_run(Run(run_id, started, retiming.command, {**facts, **provenance(), **more}))
            runs.add(run_id)

    def doubt(run_id: str, since_unix_s: float, why: str) -> None:
        add_run(run_id)
        journal.add_doubt(Doubt(run_id, since_unix_s, why))

    service.on_doubt = doubt
    statuses: Counter[str] = Counter()
    measured, size = 0, BATCH * service.devices
    for first in range(0, len(requests), size):
        if deadline is not None and time.monotonic() > deadline:
            break
        for future in as_completed(service.measure(requests[first : first + size], together=True)):
            row = future.result()
            if service.device_error is not None:
                raise service.device_error
            add_run(row.run_id)
            journal.record(row)
            check_in_place(journal)
            statuses[str(row.status)] += 1
            measured += 1
        pace = measured / (time.monotonic() - began)
        log(f"{measured} of {len(requests)} timed again, {pace:.1f} a second", (len(requests) - measured) / pace)
    service.settle()  # rows that became doubtful meanwhile are marked, and not timed once more
    finished = measured == len(requests)
    return CampaignSummary(len(by_kernel), measured, 0, dict(statuses), time.monotonic() - began, finished)


WORKER = "kcg.campaign.workers"
GRACE_S = 300.0  # beyond the budget, for the start of a worker and its last batches
POLL_S = 1.0


def generate(settings: CampaignSettings, *, log: Log) -> CampaignSummary:
    """Measure until every kernel has its schedules or the budget ends, on every GPU that is there. A second call with
    the same journal goes on. `log(line, eta_s)` gets what happens, about once a second."""
    if settings.stage is Stage.COMPILE:
        return generate_here(settings, log=log)
    gpus = check_gpus(choose_device(settings.device), settings.gpus)
    return generate_here(settings, log=log) if gpus == 1 else _on_gpus(settings, gpus, log)


def _on_gpus(settings: CampaignSettings, gpus: int, log: Log) -> CampaignSummary:
    began = time.monotonic()
    names = record_workloads(settings, log)
    part, parts = settings.shard
    left_s = None if settings.budget_s is None else max(settings.budget_s - (time.monotonic() - began), 1.0)
    jobs = []
    for gpu in range(gpus):
        one = replace(
            settings,
            workloads=(),
            source=settings.out,
            only=names,
            gpus=1,
            regions=0,  # which are among those workloads
            budget_s=left_s,
            shard=((part - 1) * gpus + gpu + 1, parts * gpus),
            compile_workers=settings.compile_workers or max(1, usable_cores() // gpus),
        )
        values = {**asdict(one), "out": str(one.out), "source": str(one.source)}
        jobs.append({"settings": values, "gpu": visible_gpu(gpu)})
    stop = threading.Event()
    with Journal.open(settings.out) as journal, ThreadPoolExecutor(gpus) as threads:
        before = journal.counts()["measurements"]
        timeout_s = math.inf if left_s is None else left_s + GRACE_S
        futures = [threads.submit(_work, job, timeout_s, stop) for job in jobs]
        try:
            while not all(future.done() for future in futures):
                time.sleep(POLL_S)
                check_in_place(journal)
                rows, spent = journal.counts()["measurements"] - before, time.monotonic() - began
                eta = None if settings.budget_s is None else max(settings.budget_s - spent, 0.0)
                log(f"{rows} schedules measured on {gpus} GPUs, {rows / spent:.1f} a second", eta)
        finally:
            stop.set()
    return joined([_result(future) for future in futures], time.monotonic() - began)


def _work(job: dict[str, Any], timeout_s: float, stop: threading.Event) -> dict[str, Any]:
    name = f"the worker of GPU {job['gpu']}"
    ended = isolated.run_isolated(WORKER, job, dev="CUDA", timeout_s=timeout_s, name=name, label="campaign", stop=stop)
    if ended.returncode != 0 or not ended.out:
        raise DeviceError(f"{name} ended early ({ended.last_words}); what it measured is kept")
    answer: dict[str, Any] = json.loads(ended.out[-1])
    return answer


def _result(future: Future[dict[str, Any]]) -> CampaignSummary:
    try:
        return CampaignSummary(**future.result())
    except (TimeoutError, ServiceClosed) as error:
        raise DeviceError(f"{error}; what was measured is kept") from error


def main() -> None:
    """`python -m kcg.campaign.workers`: one shard on one GPU; the job is one line of standard input."""
    job = isolated.receive()
    os.environ["CUDA_VISIBLE_DEVICES"] = job["gpu"]
    values = job["settings"]
    for name in ("out", "source"):
        values[name] = Path(values[name])
    for name in ("workloads", "only", "shard", "kinds"):
        values[name] = tuple(values[name])
    for name in ("mix", "tile_mix"):
        values[name] = tuple((who, share) for who, share in values[name])
    values["stage"] = Stage(values["stage"])
    try:
        summary = generate_here(CampaignSettings(**values), log=lambda line, eta_s: None)
    except KcgError as error:
        raise SystemExit(str(error)) from None
    isolated.answer(asdict(summary))


if __name__ == "__main__":
    main()
