"""How Flux with tile programs stands beside PyTorch, in one headline: that of bench_attention.json.

    python -m evaluation.flux.headline

Takes in what other scripts found: matmuls of `evaluation.tiles.bench_tiles`, and whole steps, their power and energy of
`evaluation.flux.against_torch` on the same kind of GPU. Attention itself is there by
`evaluation.regions.bench_regions --only attention,decode`. No device is asked.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from evaluation.flux.against_torch import MODES
from evaluation.rows import Row, rounded, this_command
from evaluation.tiles.summary import OURS, Group, rows_of, share
from evaluation.tiles.summary import headline as figures_of_tiles
from kcg.cli import record_results, run_script

RESULTS = Path(__file__).parents[1] / "results"
OUT, TILES, STEPS = RESULTS / "bench_attention.json", RESULTS / "bench_tiles.json", RESULTS / "flux_torch_h100.json"
CUBLAS = Group("matmul", "", "matmul_vs_cublas_geomean", ("cublas",), (OURS,))
PRESETS = ("1024", "768")


def of_matmuls(rows: Mapping[str, Row]) -> dict[str, float]:
    """Flux's matmuls with their epilogues beside torch.compile, and those without one beside cuBLAS."""
    figures = figures_of_tiles(dict(rows))
    found = {
        name: figures[name] for name in ("regions_vs_compile_geomean", "regions_vs_compile_min") if name in figures
    }
    bare = [
        one for key, row in rows_of(rows, CUBLAS).items() if key.endswith("nothing") and (one := share(row, CUBLAS))
    ]
    return {**found, CUBLAS.figure: rounded(statistics.geometric_mean(bare))} if bare else found


def of_steps(runs: Mapping[str, Any]) -> dict[str, float]:
    """Whole steps one after the other, beside the fastest mode of torch.compile that was timed on the same GPU."""
    found: dict[str, float] = {}
    for preset in PRESETS:
        rows = runs.get(f"{preset}_cuda", {}).get("rows", {})
        timed = {
            mode: row for mode in (*MODES[1:], "kcg") if (row := rows.get(f"step {mode}", {})).get("status") == "ok"
        }
        ours = timed.pop("kcg", None)
        if ours is None or not timed:
            continue
        best = min(timed.values(), key=lambda row: row["cold_s"])
        found[f"step_ms_{preset}"] = rounded(1e3 * ours["cold_s"])
        found[f"compile_ms_{preset}"] = rounded(1e3 * best["cold_s"])
        found[f"step_vs_compile_{preset}"] = rounded(ours["cold_s"] / best["cold_s"])
        for name, row in (("step", ours), ("compile", best)):
            if power := row.get("clocks", {}).get("power_w"):
                found[f"{name}_joules_{preset}"] = rounded(power * row["cold_s"])
    return found


def main(
    tiles: Annotated[Path, typer.Option(help="results of bench_tiles")] = TILES,
    steps: Annotated[Path, typer.Option(help="results of against_torch")] = STEPS,
    out: Annotated[Path, typer.Option(help="the results file")] = OUT,
) -> None:
    """Add the figures of others to the headline."""
    found = of_steps(json.loads(steps.read_text())["runs"])
    for entry in json.loads(tiles.read_text())["runs"].values():
        found |= of_matmuls(entry.get("rows", {}))
    record_results(out, "of others", {"command": this_command(), "figures": found}, found)
    typer.echo(json.dumps(found, indent=1))


if __name__ == "__main__":
    run_script(main)
