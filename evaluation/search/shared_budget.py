"""One budget for several recorded kernels, allocated by expected saving (`kcg.search.allocation`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from evaluation.search.comparison import Bench, Contender, predictor_of
from kcg.search.allocation import Allocator, Limits
from kcg.search.problem import Ledger, Observation
from kcg.search.replay import RecordedKernel

if TYPE_CHECKING:
    from kcg.predictor.features import Array


def allocated(
    kernels: Sequence[RecordedKernel], checkpoint: Path, name: str, *, budget: int, seeds: int, jobs: int = 1
) -> Array:
    """(seeds, budget + 1) the workload's seconds after so many measurements of all kernels together.

    A kernel of which nothing was measured has tinygrad's own schedule. No policy is asked: `optimize` has none.
    """
    if jobs < 2 or seeds < 2:
        return np.stack([_allocated(kernels, checkpoint, name, budget, seed) for seed in range(seeds)])
    from kcg.training.predictor import workers

    with workers(min(jobs, seeds)) as pool:
        futures = [pool.submit(_allocated, kernels, checkpoint, name, budget, seed) for seed in range(seeds)]
        return np.stack([future.result() for future in futures])


def _allocated(kernels: Sequence[RecordedKernel], checkpoint: Path, name: str, budget: int, seed: int) -> Array:
    ledger = Ledger(max_measurements=budget)
    best_s = {kernel.region.id: kernel.hand_coded_s for kernel in kernels}
    calls = {kernel.region.id: kernel.calls for kernel in kernels}
    totals = np.full(budget + 1, sum(calls[k] * best_s[k] for k in calls))
    binaries: set[tuple[str, str]] = set()

    def report(region_id: str, observation: Observation) -> None:
        if observation.binary_hash:
            binaries.add((region_id, observation.binary_hash))
        best_s[region_id] = min(best_s[region_id], observation.time_s)
        totals[len(binaries) :] = sum(calls[k] * best_s[k] for k in calls)

    allocator = Allocator(ledger, Limits(measuring=1, least_saving=0.0), report=report)
    predictor = predictor_of(checkpoint)
    for kernel in kernels:
        bench = Bench(kernel, predictor, batch_size=1)
        problem = bench.problem(name, seed=seed, budget=None)
        problem = replace(problem, ledger=ledger, measure=kernel.table.measurer(ledger))
        allocator.enter(kernel.region.id, kernel.calls, problem, Contender.of(name).search())
    allocator.run()
    return totals
