"""A campaign on all GPUs of a machine: one worker each, every worker a process with a shard of the kernels."""

from __future__ import annotations

import json
import math
import os
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from kcg.campaign.generate import Say, check_in_place, generate_here, record_workloads
from kcg.campaign.settings import CampaignSettings, CampaignSummary
from kcg.compat.device import choose_device, cuda_count
from kcg.dataset.journal import Journal
from kcg.errors import DeviceError, KcgError
from kcg.measure import alone
from kcg.measure.pools import ServiceClosed
from kcg.measure.target import usable_cores

WORKER = "kcg.campaign.shards"
GRACE_S = 300.0  # beyond the budget, for the start of a worker and its last batches
POLL_S = 1.0


def generate(settings: CampaignSettings, *, say: Say) -> CampaignSummary:
    """Measure until every kernel has its schedules or the budget ends, on every GPU that is there. A second call with
    the same journal goes on. `say(line, eta_s)` is told what happens, about once a second."""
    choice = choose_device(settings.device)
    gpus = cuda_count() if choice.device == "CUDA" else 1
    if settings.gpus is not None:
        if settings.gpus > gpus:
            raise DeviceError(f"--gpus {settings.gpus}: {choice.dev} has {gpus} here")
        gpus = settings.gpus
    return generate_here(settings, say=say) if gpus == 1 else _on_gpus(settings, gpus, say)


def _on_gpus(settings: CampaignSettings, gpus: int, say: Say) -> CampaignSummary:
    began = time.monotonic()
    names = record_workloads(settings, say)
    part, parts = settings.shard
    left_s = None if settings.budget_s is None else max(settings.budget_s - (time.monotonic() - began), 1.0)
    jobs = []
    for gpu in range(gpus):
        one = replace(
            settings, workloads=(), source=settings.out, only=names, gpus=1, budget_s=left_s,
            shard=((part - 1) * gpus + gpu + 1, parts * gpus),
            compile_workers=settings.compile_workers or max(1, usable_cores() // gpus),
        )  # fmt: skip
        values = {**asdict(one), "out": str(one.out), "source": str(one.source)}
        jobs.append({"settings": values, "gpu": _visible(gpu)})
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
                say(f"{rows} schedules measured on {gpus} GPUs, {rows / spent:.1f} a second", eta)
        finally:
            stop.set()
    return _joined([_result(future) for future in futures], time.monotonic() - began)


def _visible(gpu: int) -> str:
    """The name by which CUDA_VISIBLE_DEVICES knows the `gpu`-th GPU of this process."""
    names = [n for n in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if n.strip()]
    return names[gpu].strip() if names else str(gpu)


def _work(job: dict[str, Any], timeout_s: float, stop: threading.Event) -> dict[str, Any]:
    name = f"the worker of GPU {job['gpu']}"
    ended = alone.run_alone(WORKER, job, dev="CUDA", timeout_s=timeout_s, name=name, label="campaign", stop=stop)
    if ended.returncode != 0 or not ended.out:
        raise DeviceError(f"{name} ended early ({ended.last_words}); what it measured is kept")
    answer: dict[str, Any] = json.loads(ended.out[-1])
    return answer


def _result(future: Future[dict[str, Any]]) -> CampaignSummary:
    try:
        return CampaignSummary(**future.result())
    except (TimeoutError, ServiceClosed) as error:
        raise DeviceError(f"{error}; what was measured is kept") from error


def _joined(parts: list[CampaignSummary], elapsed_s: float) -> CampaignSummary:
    statuses: dict[str, int] = {}
    for part in parts:
        for status, count in part.statuses.items():
            statuses[status] = statuses.get(status, 0) + count
    return CampaignSummary(
        sum(p.kernels for p in parts), sum(p.measured for p in parts), sum(p.already_known for p in parts), statuses,
        elapsed_s, all(p.finished for p in parts), sum(p.skipped for p in parts),
        fmean(p.compilers_busy for p in parts), fmean(p.device_busy for p in parts),
    )  # fmt: skip


def main() -> None:
    """`python -m kcg.campaign.shards`: one shard on one GPU; the job is one line of standard input."""
    job = alone.receive()
    os.environ["CUDA_VISIBLE_DEVICES"] = job["gpu"]
    values = job["settings"]
    for name in ("out", "source"):
        values[name] = Path(values[name])
    for name in ("workloads", "only", "shard"):
        values[name] = tuple(values[name])
    values["mix"] = tuple((who, share) for who, share in values["mix"])
    try:
        summary = generate_here(CampaignSettings(**values), say=lambda line, eta_s: None)
    except KcgError as error:
        raise SystemExit(str(error)) from None
    alone.answer(asdict(summary))


if __name__ == "__main__":
    main()
