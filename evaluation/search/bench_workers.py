"""What searches in processes of their own cost, with one thread each for NumPy's BLAS and with as many as it takes.

    python -m evaluation.search.bench_workers
    python -m evaluation.search.bench_workers --processes 12 --known 100 --batches 8

Each process goes on from made-up measurements of a matmul, as a search does that was resumed, and asks for so many
batches more, which are answered at once with made-up times too. Both settings take turns. Needs no device.
"""

from __future__ import annotations

import os
import random
import resource
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Annotated

import typer
from tinygrad import Tensor

from kcg.cli import command_text, record_results, run_script
from kcg.kernel.codec import kernel_of
from kcg.kernel.opts.space import KernelSpace
from kcg.measure import lifetime
from kcg.search import workers
from kcg.search.problem import Ledger, Observation, Problem
from kcg.types import Region, Schedule, Status
from tests.known_targets import KNOWN_TARGETS

ROOT = Path(__file__).parents[2]
TARGET = KNOWN_TARGETS["sm_90"]
BATCH = 2
SPREAD = 0.2  # standard deviation of a made-up time, in log-seconds


def matmul() -> Region:
    a, b = (Tensor.empty(*shape, dtype="bfloat16", device="CPU") for shape in ((4608, 3072), (3072, 9216)))
    return Region((kernel_of(a.matmul(b).schedule_linear().src[0].src[0]),))


def walked(space: KernelSpace, rng: random.Random) -> Schedule:
    """A schedule some random steps from the unoptimised one."""
    schedule: Schedule = space.start()
    for _ in range(rng.randint(1, 6)):
        if actions := space.actions(schedule):
            schedule = rng.choice(actions).schedule
    return schedule


def made_up(schedule: Schedule, rng: random.Random) -> Observation:
    return Observation(schedule, Status.OK, 5e-3 * rng.lognormvariate(0.0, SPREAD), binary_hash=f"{rng.random()}")


def spent(processes: int, known: int, batches: int) -> tuple[float, float]:
    """CPU seconds of a process, and seconds until all have what they asked for."""
    region = matmul()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as folder:
        initargs = ("CPU", os.getpid(), str(Path(folder) / "cache.db"))
        with workers.SearchWorkers(processes, "auto", TARGET, initargs) as search_workers:

            def search(place: int) -> None:
                space, drawn = KernelSpace(region, TARGET), random.Random(place)
                seen = {s: made_up(s, drawn) for s in (walked(space, drawn) for _ in range(known))}

                ledger = Ledger(max_measurements=batches * BATCH)

                def measure(batch: Sequence[Schedule]) -> list[Future[Observation]]:
                    answers: list[Future[Observation]] = [Future() for _ in batch]
                    ledger.measurements += len(batch)
                    for future, schedule in zip(answers, batch, strict=True):
                        future.set_result(made_up(schedule, drawn))
                    return answers

                problem = Problem(
                    space=space,
                    predict=list,
                    measure=measure,
                    known=seen,
                    batch_size=BATCH,
                    rng=drawn,
                    ledger=ledger,
                )
                list(search_workers.strategy("mcts", region, place=place, seed=str(place))(problem))

            begin = time.monotonic()
            with ThreadPoolExecutor(processes) as pool:
                for done in [pool.submit(search, place) for place in range(processes)]:
                    done.result()
            wall_s = time.monotonic() - begin
            first = {child._process.pid for child in search_workers._children}
            forked_s = sum(used_s(pid) for parent in first if parent for pid in lifetime.children_of(parent))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime + forked_s) / processes, wall_s


def used_s(pid: int) -> float:
    """CPU seconds of a process that lives, and is not this one's own child: nobody else counts those."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def main(
    processes: Annotated[int, typer.Option(help="that search at once")] = 4,
    known: Annotated[int, typer.Option(help="measurements that each goes on from")] = 100,
    batches: Annotated[int, typer.Option(help="that each asks for")] = 6,
    rounds: Annotated[int, typer.Option(help="of both settings in turns")] = 2,
    out: Annotated[Path, typer.Option(help="the results file")] = ROOT
    / "evaluation"
    / "results"
    / "bench_workers.json",
) -> None:
    """Measure both settings in turns and write the results."""
    settings = {"one thread": workers.ONE_CORE, "as many as BLAS takes": {}}
    seen: dict[str, list[tuple[float, float]]] = {name: [] for name in settings}
    for _ in range(rounds):
        for name, variables in settings.items():
            workers.ONE_CORE = variables  # type: ignore[misc]
            seen[name].append(spent(processes, known, batches))
            typer.echo(f"{name}: {seen[name][-1][0]:.1f} s of CPU time each, {seen[name][-1][1]:.1f} s")
    cpu_s, wall_s = ({name: median(pair[i] for pair in pairs) for name, pairs in seen.items()} for i in (0, 1))
    one, many = settings
    headline = {"cpu_ratio": cpu_s[many] / cpu_s[one], "wall_ratio": wall_s[many] / wall_s[one]}
    entry = {
        "command": command_text("evaluation.search.bench_workers"),
        "cores": os.cpu_count(),
        "cpu_s": cpu_s,
        "wall_s": wall_s,
    }
    record_results(out, f"{processes} processes, {os.cpu_count()} cores", entry, headline)


if __name__ == "__main__":
    run_script(main)
