"""How long the candidates of Flux's step and its five best plans take to find, on one core.

    python -m evaluation.regions.plan_time
    python -m evaluation.regions.plan_time --preset 768 --whole

Costs are expected ones (`kcg.optimize.region_plans`) for one H100 or H200; how long a plan takes does not depend on
whether they are right. `--whole` takes all 57 blocks as they are scheduled, too (half a minute); without it only the
sequence that a run of `python -m kcg.optimize flux` has, of three blocks of each kind. Updates
evaluation/results/bench_regions.json; seconds are of the processor.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from evaluation.rows import Row, Rows, rounded
from kcg.cli import run_script
from kcg.compat.device import choose_cpu, prepare
from kcg.kernel.reading.kernel import read_kernel
from kcg.kernel.tile.cost import predicted_seconds
from kcg.kernel.tile.prior import default_parameters
from kcg.optimize.region_plans import expected_saving_s, plans_of, propose
from kcg.types import Target, Workload
from kcg.workloads import flux, registry
from kcg.workloads.capture import lazy_workload
from tests.known_targets import KNOWN_TARGETS

RESULTS = Path(__file__).parents[2] / "evaluation" / "results" / "bench_regions.json"
RUN = "plan_time"


def whole_step(preset: str) -> Workload:
    """All blocks of Flux, as they are scheduled."""
    return lazy_workload("flux", preset, flux.step(*flux.build(preset)))


def analytic_s(workload: Workload, target: Target) -> dict[str, float]:
    """What each kernel is expected to take alone, by the prior's choice of a tile program."""
    found = {}
    for call in workload.calls:
        kernel = read_kernel(call.region)
        found[call.region.id] = predicted_seconds(kernel, target, default_parameters(kernel, target))
    return found


def timed(workload: Workload, target: Target) -> Row:
    """Seconds of the candidates and of the plans of one workload, and what the best of them is expected to save."""
    alone_s = analytic_s(workload, target)
    begun = time.process_time()
    proposals = propose(workload)
    proposed = time.process_time()
    savings = {key: expected_saving_s(c, alone_s, target) for key, c in proposals.candidates.items()}
    plans = plans_of(proposals, alone_s, savings)
    solved = time.process_time()
    best = plans[0]
    return {
        "calls": sum(len(blocks.sequence.calls) for blocks, _ in proposals.sequences),
        "candidates": len(proposals.candidates),
        "candidates_s": rounded(proposed - begun),
        "plan_s": rounded(solved - proposed),
        "plans": len(plans),
        "programs": len(best.programs),
        "expected_s": rounded(best.seconds),
        "expected_saving_s": rounded(best.saved_s),
        "saved_bytes": int(best.saved_bytes),
        "peak_bytes": max(plan.peak_bytes for plan in best.sequences),
    }


def headline(rows: dict[str, Row]) -> dict[str, Any]:
    """The slowest."""
    return {"plan_s": max(row["plan_s"] for row in rows.values())}


def main(
    preset: Annotated[list[str] | None, typer.Option(help="of Flux; may be repeated")] = None,
    whole: Annotated[bool, typer.Option(help="the step of all blocks, as it is scheduled, too")] = False,
    results: Annotated[Path, typer.Option(help="the results file")] = RESULTS,
) -> None:
    """Measure, then write the results."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    prepare(choose_cpu().dev)
    target = KNOWN_TARGETS["sm_90"]
    rows = Rows(results, RUN, again=True, settings={"target": target.model}, headline=headline)
    for name in preset or ["1024", "768"]:
        sources = [(f"flux {name}", registry.spec_of("flux").capture)] + [(f"flux {name} whole", whole_step)] * whole
        for key, capture in sources:
            row = timed(capture(name), target)
            rows.add(key, row)
            sys.stderr.write(f"{key}: {row}\n")


if __name__ == "__main__":
    run_script(main)
