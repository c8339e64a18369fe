"""A scheduler and workers of a fleet in processes of their own, whose fixed functions are those of these tests."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kcg.fleet import unpickling

ROOT = Path(__file__).parents[2]  # tests.rules, which has it too, imports pytest
TASKS = "tests.fleet.fixed_tasks"


@contextmanager
def started(*words: object) -> Iterator[subprocess.Popen[str]]:
    """A process of this module, once it has said where it listens: its first line is in `.args`' place."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.fleet.processes", *map(str, words)],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def address_of(process: subprocess.Popen[str]) -> str:
    """Where a scheduler or worker that was started listens, once it does."""
    assert process.stdout is not None and process.stderr is not None
    line = process.stdout.readline()
    assert "://" in line, process.stderr.read()
    return next(word for word in line.split() if "://" in word)


async def _worker(scheduler: str, certificates: Path | None, nanny: bool) -> None:
    from kcg.fleet.security import security_for
    from kcg.fleet.servers import FleetNanny, FleetWorker

    kind = FleetNanny if nanny else FleetWorker
    async with kind(scheduler, security=security_for(scheduler, certificates), nthreads=1) as worker:
        print(worker.address if not nanny else worker.worker_address, flush=True)
        await worker.finished()


if __name__ == "__mp_main__":  # what a nanny starts
    unpickling.install(TASKS)

if __name__ == "__main__":
    role, address, folder = sys.argv[1:]
    unpickling.install(TASKS)
    if role == "scheduler":
        from kcg.fleet.scheduler import run

        run(address, Path(folder) if folder else None)
    else:
        asyncio.run(_worker(address, Path(folder) if folder else None, nanny=role == "nanny"))
