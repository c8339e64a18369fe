"""How long a dataset takes to load, graphs and all, ready to train: the first time, and from the cache.

    python -m evaluation.predictor.bench_loading datasets/h200

Writes results/bench_loading.json.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from evaluation.predictor.places import RESULTS, command
from kcg.cli import record_results, run_script
from kcg.measure.device_info import usable_cores
from kcg.predictor.training_data import load

OUT = RESULTS / "bench_loading.json"
ROWS = 100_000  # of which the figures are given


def main(dataset: Path, out: Annotated[Path, typer.Option(help="the results file")] = OUT) -> None:
    """Load twice with a new cache."""
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(2):
            began = time.perf_counter()
            data = load(dataset, cache=Path(folder))
            seconds.append(time.perf_counter() - began)
        nbytes = sum(path.stat().st_size for path in Path(folder).iterdir())
    entry = {
        "rows": len(data), "kernels": len(data.region_ids), "first_s": seconds[0], "cached_s": seconds[1],
        "cache_bytes": nbytes, "cores": usable_cores(), "load": os.getloadavg()[0],
        "command": command("bench_loading"),
    }  # fmt: skip
    scale = ROWS / len(data)
    headline = {"first_s_of_100000": seconds[0] * scale, "cached_s_of_100000": seconds[1] * scale}
    record_results(out, dataset.name, entry, headline)
    typer.echo(json.dumps({**entry, **headline}, indent=1))


if __name__ == "__main__":
    run_script(main)
