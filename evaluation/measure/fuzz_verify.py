"""Fuzz verification: kernels of the workloads, and kernels recombined from them, each under several legal schedules.

    python -m evaluation.measure.fuzz_verify CPU:X86 --kernels 400 --padto --budget 10m

Goes on where it stopped. Updates evaluation/results/fuzz_verify.json, one entry per device. With `--padto` each kernel
also gets a walk with one PADTO in it, an Opt that kcg leaves out because it makes wrong kernels.
"""

from __future__ import annotations

import json
import re
import sys
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from evaluation.measure.fuzzing import fuzz_kernels, fuzz_schedules
from kcg.cli import command_text, parse_budget, record_results, run_script
from kcg.compat.device import choose_device, prepare
from kcg.dataset.journal import Journal
from kcg.kernel.kinds import describe
from kcg.kernel.opts.schedule import RAW
from kcg.measure.protocol import PROTOCOL
from kcg.measure.service import MeasureService, Request
from kcg.types import CacheState, Measurement, Status
from kcg.workloads.registry import WORKLOADS

RESULTS = Path(__file__).parents[2] / "evaluation" / "results" / "fuzz_verify.json"
BATCH = 6  # kernels whose schedules are compiled together


def summary(rows: list[Measurement], origins: dict[str, str]) -> dict[str, Any]:
    """The entry for the results."""
    unjudged = {row.region_id for row in rows if row.status == Status.UNJUDGED}
    judged = [row for row in rows if row.region_id not in unjudged]
    legal, padto = ([r for r in judged if (r.sampler == "padto") is flag] for flag in (False, True))
    raw = {row.region_id: str(row.status) for row in rows if row.schedule == RAW}
    statuses = Counter(str(row.status) for row in legal)
    headline = {
        "kernels": len({r.region_id for r in rows}), "kernels_unjudged": len(unjudged), "schedules": len(legal),
        "kernels_recombined": len({r.region_id for r in rows if origins[r.region_id] not in WORKLOADS}),
        "binaries": len({(r.region_id, r.binary_hash) for r in legal if r.binary_hash}),
        "checked": sum(row.checked for row in legal), "wrong": statuses["wrong"],
        "wrong_per_1000": 1000 * statuses["wrong"] / max(len(legal), 1),
        "failures_per_1000": 1000 * (1 - statuses["ok"] / max(len(legal), 1)),
        "schedules_padto": len(padto), "wrong_padto": sum(r.status == Status.WRONG for r in padto),
    }  # fmt: skip
    cases = [
        {
            "kernel": r.region_id,
            "origin": origins[r.region_id],
            "schedule": describe(r.schedule),
            "sampler": r.sampler,
            "reason": r.reason,
            "raw": raw.get(r.region_id, "not measured"),
        }
        for r in judged
        if r.status == Status.WRONG
    ]
    bad = [r for r in legal if r.status not in (Status.OK, Status.WRONG)]
    failures = Counter(f"{r.status}: {re.sub('[0-9]+', 'N', r.reason)[:80]}" for r in bad)
    return {
        "headline": headline,
        "statuses": statuses,
        "statuses_padto": Counter(str(r.status) for r in padto),
        "failures": dict(failures.most_common(20)),
        "wrong": cases,
        "unjudged": sorted(unjudged),
    }


def main(
    device: Annotated[str, typer.Argument()] = "auto",
    count: Annotated[int, typer.Option("--kernels", help="unique kernels")] = 300,
    walks: Annotated[int, typer.Option("--schedules", help="random walks of each kernel")] = 3,
    seed: Annotated[int, typer.Option(help="seed of kernels and walks")] = 0,
    padto: Annotated[bool, typer.Option("--padto", help="one walk more, with a PADTO")] = False,
    budget: Annotated[str, typer.Option(help="time of this call")] = "10m",
    journal_path: Annotated[Path, typer.Option("--from", help="journal")] = Path("kcg-out/fuzz_verify.sqlite"),
) -> None:
    """Measure and check what the journal does not hold yet, then write the results of all it holds."""
    choice, deadline = choose_device(device), time.monotonic() + parse_budget(budget)
    prepare(choice.dev)
    chosen, skipped = fuzz_kernels(count, seed)
    with Journal.open(journal_path) as journal, MeasureService(choice.dev, run_id=uuid.uuid4().hex) as service:
        target, toolchain = service.facts
        known = {
            (row.region_id, row.schedule) for row in journal.known(target.fingerprint, toolchain.fingerprint, PROTOCOL)
        }
        rows_of = Counter(key for key, _ in known)  # those with the fewest first, so that a short budget covers all
        todo, done = sorted(chosen.values(), key=lambda found: rows_of[found[0].id]), 0
        while todo and time.monotonic() < deadline:
            batch, todo, requests = todo[:BATCH], todo[BATCH:], []
            for region, origin in batch:
                journal.add_region(region, workload=origin)
                drawn = fuzz_schedules(region, target, walks=walks, padto=padto, seed=seed)
                for schedule, sampler in drawn.items():
                    if (region.id, schedule) not in known:
                        requests.append(
                            Request(region, schedule, sampler=sampler, samples=1, cache_state=CacheState.WARM)
                        )
            rows = [future.result() for future in service.measure(requests)]
            if service.device_error is not None:
                raise service.device_error
            for row in rows:
                journal.record(row)
            done += len(rows)
            wrong = sum(row.status == Status.WRONG for row in rows)
            sys.stderr.write(f"{len(chosen) - len(todo)} of {len(chosen)} kernels, {done} schedules, {wrong} wrong\n")
        rows = [r for r in journal.known(target.fingerprint, toolchain.fingerprint, PROTOCOL) if r.region_id in chosen]
    entry = summary(rows, {key: origin for key, (_, origin) in chosen.items()})
    entry |= {
        "kernels_skipped": skipped,
        "seed": seed,
        "target": target.fingerprint,
        "model": target.model,
        "command": command_text("evaluation.measure.fuzz_verify"),
    }
    name = target.tinygrad_device.lower().replace(":", "_")
    record_results(RESULTS, name, entry, {f"{key}_{name}": value for key, value in entry["headline"].items()})
    typer.echo(json.dumps(entry["headline"], indent=1))


if __name__ == "__main__":
    run_script(main)
