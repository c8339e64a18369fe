"""Do poisoned outputs, and looking at them after each timed run, change the times?

    python -m evaluation.measure.watched_timing CUDA --preset 1024

Each kernel as tinygrad schedules it, timed in turns in one process, cold and warm: plainly (A), watched as kcg times
it, plainly again (B). What A and B differ by is noise. The timing protocol keeps its version while what watching
changes is no more than that. Updates evaluation/results/watched_timing.json.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Annotated, Any

import typer

from evaluation.measure.on_flux import RESULTS, Device, OnFlux, Out, Preset, reported
from kcg.cli import run_script
from kcg.kernel.analysis import arithmetic, least_bytes
from kcg.kernel.codec import ast_of
from kcg.kernel.compile import compile_schedule
from kcg.kernel.kinds import ACTION_SPACE_VERSION
from kcg.kernel.opts.space import KernelSpace
from kcg.measure.device_info import detect
from kcg.measure.inputs import TIMED_SEED
from kcg.measure.protocol import median, samples_for
from kcg.measure.verify import CheckedBench
from kcg.measure.workbench import CacheFlusher
from kcg.types import Target, WorkloadCall

OUT = RESULTS / "watched_timing.json"
LONGEST_S = 0.3  # a longer kernel is left out: it says nothing more

Run = Callable[..., float]


def timed(runs: list[Run], flush: Callable[[], None], wanted: int) -> tuple[list[float], list[float]]:
    """Cold and warm medians of each, in turns: every round another one begins."""
    cold: list[list[float]] = [[] for _ in runs]
    warm: list[list[float]] = [[] for _ in runs]
    for turn in range(wanted):
        for place in range(len(runs)):
            i = (turn + place) % len(runs)
            cold[i].append(runs[i](flush=flush))
    for i, run in enumerate((*runs, *runs)):
        run(flush=None)
        warm[i % len(runs)].extend(run(flush=None) for _ in range(-(-wanted // 2)))
    return [median(samples) for samples in cold], [median(samples) for samples in warm]


def compare(call: WorkloadCall, target: Target, flusher: CacheFlusher) -> dict[str, Any] | None:
    """One row; None for a kernel that is too long."""
    space = KernelSpace(call.region, target)
    bench = CheckedBench(call.region, target)
    launch = bench.launcher(compile_schedule(call.region, space.baseline(), target), as_tinygrad=True)
    bench.fill(TIMED_SEED, bench.choose_recipe())
    first_s = min(launch() for _ in range(3))
    if first_s > LONGEST_S:
        return None

    def plain(*, flush: Callable[[], None] | None = None) -> float:
        if flush is not None:
            flush()
        return launch()

    watched = bench.watch(launch)
    cold, warm = timed([plain, watched, plain], flusher.flush, samples_for(first_s, flush_s=1e-3))
    assert not watched.result(), watched.result()
    row: dict[str, Any] = {"kernel": space.name(space.baseline()), "bytes": least_bytes(space.ast)}
    for state, (a, seen, b) in (("cold", cold), ("warm", warm)):
        row[state] = {
            "plain_s": a,
            "watched_s": seen,
            "plain_again_s": b,
            "change": seen / statistics.fmean((a, b)) - 1,
            "noise": abs(a - b) / min(a, b),
        }
    return row


def main(
    device: Device = "auto",
    preset: Preset = "auto",
    count: Annotated[int, typer.Option("--kernels", help="how many, spread over all by their work")] = 20,
    out: Out = OUT,
) -> None:
    """Time each both ways and keep the results."""
    run = OnFlux.begun("evaluation.measure.watched_timing", device, preset, out)
    target = detect(run.dev, ACTION_SPACE_VERSION)[0]
    flusher = CacheFlusher(target)
    calls = sorted(run.workload.calls, key=lambda c: arithmetic(ast_of(c.region.kernel)), reverse=True)
    chosen = calls[:: max(1, len(calls) // count)][:count]
    rows = [row for call in chosen if (row := compare(call, target, flusher)) is not None]
    headline = {}
    for state in ("cold", "warm"):
        headline[f"median_change_{state}"] = statistics.median(row[state]["change"] for row in rows)
        headline[f"worst_change_{state}"] = max((row[state]["change"] for row in rows), key=abs)
        headline[f"median_noise_{state}"] = statistics.median(row[state]["noise"] for row in rows)
        headline[f"worst_noise_{state}"] = max(row[state]["noise"] for row in rows)
    run.keep(target.tinygrad_device, rows, headline)
    for row in rows:
        seen = " ".join(f"{s} {row[s]['watched_s'] * 1e6:.1f} us {row[s]['change']:+.2%}" for s in ("cold", "warm"))
        typer.echo(f"{row['kernel']}: {seen} (noise {row['cold']['noise']:.2%}, {row['warm']['noise']:.2%})", err=True)
    reported(headline)


if __name__ == "__main__":
    run_script(main)
