"""How long tuning takes where a store has it, beside tuning from nothing.

    python -m evaluation.fleet.bench_store

`kcg optimize flux/mini` runs cold into an empty store, and then from an empty folder with what it left there, both with
the default effort, each with a tinygrad cache of its own. The second searches no kernel for which the first found
nothing: `spared` counts them. This several times, each with a store of its own, since searches do not find the same:
`store_hit_vs_cold` is the median of the time of the second over that of the first, from start to result as each run's
result says; what came from the store is counted, and every schedule of every second run has to be verified. Adds its
keys to results/bench_fleet.json.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from kcg.cli import command_text, record_results, run_script
from kcg.measure.protocol import median
from kcg.optimize.stored import SPARED
from kcg.report.result import read_result
from kcg.types import Result

ROOT = Path(__file__).parents[2]
OUT = ROOT / "evaluation" / "results" / "bench_fleet.json"


def main(
    workload: Annotated[str, typer.Option(help="a name, with its preset")] = "flux/mini",
    device: Annotated[str, typer.Option(help="as of kcg optimize")] = "auto",
    repeats: Annotated[int, typer.Option(min=1, help="of both runs")] = 3,
    out: Annotated[Path, typer.Option(help="the results file")] = OUT,
) -> None:
    """Run both, so many times, and write the figures."""
    load = os.getloadavg()[0]
    pairs = []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory(prefix="kcg-bench-store-") as folder:
            cold, warm = (optimized(workload, device, Path(folder), name) for name in ("cold", "store"))
        pairs.append(figures(cold, warm))
        typer.echo(f"{pairs[-1]['store_s']:.1f} s with a store, {pairs[-1]['cold_s']:.1f} s without", err=True)
    entry, headline = {"pairs": pairs}, summary(pairs)
    entry |= {"command": command_text("evaluation.fleet.bench_store"), "cores": os.cpu_count(), "load": load}
    record_results(out, "store", entry, headline)
    typer.echo(json.dumps(headline, indent=1))


def optimized(workload: str, device: str, folder: Path, name: str) -> Result:
    """The result of one run, in a process of its own. Raises CalledProcessError where it fails."""
    command = [sys.executable, "-m", "kcg", "optimize", workload, "--device", device]
    command += ["--store", str(folder / "tuned"), "--report", str(folder / name)]
    environment = {**os.environ, "CACHEDB": str(folder / f"{name}.db")}
    subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, check=True)
    return read_result(folder / name / "RESULT.json")


def figures(cold: Result, warm: Result) -> dict[str, Any]:
    """What is kept of both runs."""
    rows = [row for row in warm.regions if row.outcome == "improved"]
    check = warm.model_check
    return {
        "workload": f"{warm.workload}/{warm.preset}",
        "target": warm.target.model,
        "toolchain": warm.toolchain.compiler,
        "cold_s": cold.search_s,
        "store_s": warm.search_s,
        "cold_phases": dict(cold.phases),
        "store_phases": dict(warm.phases),
        "cold_improved": sum(row.outcome == "improved" for row in cold.regions),
        "store_improved": len(rows),
        "from_store": sum(bool(row.store) for row in rows),
        "spared": sum(row.note.startswith(SPARED) for row in warm.regions),
        "all_verified": all(row.chosen.verification.passed for row in rows),
        "whole_verified": check is not None and check.passed is True,
        "cold_speed_up": cold.total_before_s / cold.total_after_s,
        "store_speed_up": warm.total_before_s / warm.total_after_s,
        "warnings": list(warm.warnings),
    }


def summary(pairs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The headline of several pairs of runs."""
    return {
        "store_hit_vs_cold": median([pair["store_s"] / pair["cold_s"] for pair in pairs]),
        "store_cold_s": median([pair["cold_s"] for pair in pairs]),
        "store_hit_s": median([pair["store_s"] for pair in pairs]),
        "store_runs": len(pairs),
        "store_schedules": sum(pair["from_store"] for pair in pairs),
        "store_all_verified": all(pair["all_verified"] and pair["whole_verified"] for pair in pairs),
    }


if __name__ == "__main__":
    run_script(main)
