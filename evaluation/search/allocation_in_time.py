"""How far does a budget of seconds get, where compiling takes most of them? The allocator on recorded tables, in time.

    python -m evaluation.search.allocation_in_time
    python -m evaluation.search.allocation_in_time --part other --compilers 8 --measuring 16

The searches and the allocator are those of `kcg.optimize` on a GPU; compiling and drafting are slept, and what a device
would time is in the tables. So the order of events is that of a run on a GPU, on any machine, `--speed` times as fast.
Writes results/allocation_in_time.json.
"""

from __future__ import annotations

import functools
import os
import random
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import typer

from kcg.cli import command_text, record_results, run_script
from kcg.search.allocation import Allocator, Limits
from kcg.search.problem import Ledger, Measure, Observation
from kcg.types import Schedule

ROOT = Path(__file__).parents[2]
CHECKPOINT = ROOT / "kcg" / "predictor" / "checkpoints" / "cuda.safetensors"
DRAFT_S, COMPILE_S = 1.0, {True: (3.0, 5.0), False: (1.0, 2.0)}  # of a batch; with tensor cores, and without
SHOWN_S = (10, 15, 20, 25, 30, 40, 50)


def main(
    part: Annotated[str, typer.Option(help="of the split: test, other")] = "test",
    compilers: Annotated[int, typer.Option(help="processes that compile", min=1)] = 16,
    measuring: Annotated[int, typer.Option(help="schedules that are with the device; 0: as kcg.optimize")] = 0,
    speed: Annotated[float, typer.Option(help="of the clock")] = 5.0,
    runs: Annotated[int, typer.Option(help="with other compiling times each", min=1)] = 3,
    out: Annotated[Path, typer.Option(help="the results file")] = ROOT
    / "evaluation"
    / "results"
    / "allocation_in_time.json",
) -> None:
    """Run it, and write down what the workload takes after so many seconds."""
    os.environ["OMP_NUM_THREADS"] = "1"
    from evaluation.search.comparison import predictor_of
    from kcg.dataset.reading import read_export
    from kcg.optimize.search import SEARCHING
    from kcg.search.replay import kernels_of

    kernels, predictor = kernels_of(read_export(ROOT / "datasets" / "h200"), part), predictor_of(CHECKPOINT)
    limits = Limits.on_gpu(compilers, max(2, SEARCHING * compilers // 4))
    limits = replace(limits, measuring=measuring or limits.measuring)
    most, found = limits.measuring, [_run(kernels, predictor, compilers, limits, speed, n) for n in range(runs)]
    total_ms = {str(s): fmean(run["total_ms"][s] for run in found) for s in SHOWN_S}
    entry = {
        "command": command_text("evaluation.search.allocation_in_time"),
        "total_ms": total_ms,
        "runs": found,
        "optimum_ms": 1e3 * sum(k.calls * k.table.best_s for k in kernels),
    }
    typer.echo(", ".join(f"{s} s: {ms:.2f} ms" for s, ms in total_ms.items()))
    headline = {f"{part}_{most}_after_{s}_s": ms for s, ms in total_ms.items()}
    record_results(out, f"{part}_{compilers}_{most}", entry, headline)


def _run(
    kernels: Sequence[Any], predictor: Any, compilers: int, limits: Limits, speed: float, seed: int
) -> dict[str, Any]:
    """One search of all kernels: their seconds together after so many, in milliseconds, and what was measured."""
    from evaluation.search.comparison import Bench
    from kcg.kernel.opts.space import KernelSpace
    from kcg.search.strategies import strategy

    rng, benches = random.Random(seed), (Bench(kernel, predictor, batch_size=1) for kernel in kernels)
    problems = [bench.problem("mcts", seed=0, budget=None) for bench in benches]  # asks for all predictions
    best_s = {kernel.region.id: kernel.hand_coded_s for kernel in kernels}
    calls = {kernel.region.id: kernel.calls for kernel in kernels}
    events, seen = [(0.0, sum(calls[k] * best_s[k] for k in calls))], Counter[str]()

    def report(name: str, observation: Observation) -> None:
        best_s[name] = min(best_s[name], observation.time_s)
        seen[name] += 1
        events.append(((time.monotonic() - begin) * speed, sum(calls[k] * best_s[k] for k in calls)))

    with ThreadPoolExecutor(compilers) as pool:
        ledger = Ledger()
        allocator = Allocator(ledger, limits, report=report)
        for kernel, problem in zip(kernels, problems, strict=True):
            space = KernelSpace(kernel.region, kernel.target)
            between = COMPILE_S[space.table(space.baseline()).tensor_core]
            problem.known[kernel.table.baseline()] = kernel.table.records[kernel.table.baseline()].observation
            measure = functools.partial(_slept, pool, kernel.table.measurer(Ledger()), between, speed, rng)
            allocator.enter(
                kernel.region.id, kernel.calls, replace(problem, ledger=ledger, measure=measure), strategy("mcts")
            )
        begin = time.monotonic()
        ledger.deadline = begin + SHOWN_S[-1] / speed
        allocator.run()
        pool.shutdown(cancel_futures=True)
    total_ms = {s: 1e3 * next(t for at, t in reversed(events) if at <= s) for s in SHOWN_S}
    return {"total_ms": total_ms, "measurements": seen.total(), "most": [n for _, n in seen.most_common(6)]}


def _slept(
    pool: ThreadPoolExecutor,
    measure: Measure,
    between: tuple[float, float],
    speed: float,
    rng: random.Random,
    schedules: Sequence[Schedule],
) -> list[Future[Observation]]:
    def compiled(done: Future[Observation], compile_s: float) -> Observation:
        time.sleep(compile_s / speed)
        return done.result()

    time.sleep(DRAFT_S / speed)
    return [pool.submit(compiled, done, rng.uniform(*between)) for done in measure(schedules)]


if __name__ == "__main__":
    run_script(main)
