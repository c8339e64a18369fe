"""What a fleet costs, and what it withstands.

    python -m evaluation.fleet.bench_fleet                   # all four, about twenty minutes on two idle cores
    python -m evaluation.fleet.bench_fleet --part kills      # twenty kill -9 during CPU campaigns, about eight minutes
    python -m evaluation.fleet.bench_fleet --part rate       # measurements of nothing a second, one minute
    python -m evaluation.fleet.bench_fleet --part overhead   # a campaign with --fleet local and without, ten minutes
    python -m evaluation.fleet.bench_fleet --part model      # a thousand hosts, from what is measured; after rate

Each part adds its own keys to results/bench_fleet.json; see kills.py, rate.py, overhead.py and model.py beside this.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from kcg.cli import command_text, record_results, run_script
from kcg.errors import UsageError

ROOT = Path(__file__).parents[2]
OUT = ROOT / "evaluation" / "results" / "bench_fleet.json"
WORKLOAD = "rope/mini"
CPU = "CPU:X86"  # tinygrad's own assembler: no compiler has to start
KILLED_SCHEDULES = 12  # of each kernel, in a campaign that is killed
ECHOED_SCHEDULES = (20, 100)  # of each, in two that measure nothing
FAKE_HOSTS = 40


class Part(StrEnum):
    """Of the benchmark."""

    ALL = "all"
    RATE = "rate"
    KILLS = "kills"
    OVERHEAD = "overhead"
    MODEL = "model"


Figures = tuple[dict[str, Any], dict[str, Any]]  # a run's entry, and its headline


def kills(folder: Path, out: Path, *, seed: int, schedules: int, repeats: int) -> Figures:
    """Twenty, and what was lost."""
    from evaluation.fleet.kills import KINDS, killed

    found = killed(folder, captured(folder), device=CPU, seed=seed, schedules=KILLED_SCHEDULES, kinds=KINDS, say=say)
    return {"seed": seed, **found}, {
        "kills": len(found["kills"]),
        "rows_lost": sum(one["lost"] for one in found["campaigns"]),
        "rows_twice": sum(one["twice"] for one in found["campaigns"]),
        "rows_under_kills": sum(one["rows"] for one in found["campaigns"]),
        "drivers_without_advice": len(found["unexpected"]),
    }


def rate(folder: Path, out: Path, *, seed: int, schedules: int, repeats: int) -> Figures:
    """Measurements of nothing: requests of one small kernel, of which none is what another was."""
    from evaluation.fleet.rate import rates

    sizes = rates(CPU)
    names = {"1": "noop_tasks_per_s", "8": "noop_rows_per_s_of_8", "64": "noop_rows_per_s_of_64"}
    return {"sizes": sizes}, {name: sizes[size]["per_s"] for size, name in names.items()}


def overhead(folder: Path, out: Path, *, seed: int, schedules: int, repeats: int) -> Figures:
    """A campaign with a local fleet and without, in ABBA."""
    from evaluation.fleet.overhead import compared

    found = compared(folder, captured(folder), device=CPU, schedules=schedules, repeats=repeats, say=say)
    return found, {
        "local_overhead": found["overhead"],
        "local_overhead_with_start": found["overhead_with_start"],
        "local_overhead_runs": len(found["runs"]),
    }


def model(folder: Path, out: Path, *, seed: int, schedules: int, repeats: int) -> Figures:
    """How many hosts one scheduler and one driver are enough for."""
    from evaluation.fleet.model import measured, modelled, rate_of

    if (sizes := rate_of(out)) is None:
        raise UsageError(f"{out} has no rate: run --part rate first")
    costs = measured(folder, captured(folder), device=CPU, hosts=FAKE_HOSTS, schedules=ECHOED_SCHEDULES)
    found = modelled(sizes, costs)
    return {"costs": costs, "model": found}, {
        f"{name}_{key.partition('_')[0]}": one[name] for key, one in found.items() for name in ("hosts", "limit")
    } | {"journal_rows_per_s": costs["journal_rows_per_s"], "store_lookups_per_s": costs["store_lookups_per_s"]}


PARTS: dict[Part, Callable[..., Figures]] = {
    Part.RATE: rate,
    Part.MODEL: model,
    Part.KILLS: kills,
    Part.OVERHEAD: overhead,
}


def captured(folder: Path) -> Path:
    """A journal with the kernels of the campaigns, none measured."""
    out = folder / "captured.sqlite"
    if not out.exists():
        words = ("dataset", "capture", "--workloads", WORKLOAD, "--device", CPU, "--out", str(out))
        subprocess.run([sys.executable, "-m", "kcg", *words], cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    return out


def say(line: str) -> None:
    typer.echo(line, err=True)


def main(
    part: Annotated[Part, typer.Option(help="which of them")] = Part.ALL,
    seed: Annotated[int, typer.Option(help="of the kills")] = 0,
    schedules: Annotated[int, typer.Option(help="of each kernel, in the campaigns of overhead")] = 24,
    repeats: Annotated[int, typer.Option(help="of four campaigns each, in overhead")] = 5,
    out: Annotated[Path, typer.Option(help="the results file")] = OUT,
) -> None:
    """Measure, and add each part to the results as soon as it is over."""
    for name, measure in PARTS.items():
        if part not in (Part.ALL, name):
            continue
        load = os.getloadavg()[0]
        with tempfile.TemporaryDirectory(prefix="kcg-bench-fleet-") as folder:
            entry, headline = measure(Path(folder), out, seed=seed, schedules=schedules, repeats=repeats)
        about = {"command": command_text("evaluation.fleet.bench_fleet"), "cores": os.cpu_count(), "load": load}
        record_results(out, str(name), {**entry, **about}, headline)
        typer.echo(json.dumps({str(name): headline}, indent=1))


if __name__ == "__main__":
    run_script(main)
