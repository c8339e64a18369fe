"""Whether what a search promises itself comes true: the gain of each measurement beside what was expected of it.

    python -m evaluation.predictor.promised_gains RESULT.json OTHER.json

Every schedule that kcg's runs timed, but the first four of a kernel, is predicted once more from those that were timed
before it, and corrected as a search does. Needs no device. Writes results/promised_gains.json: by the deviation that
the correction gave, how far off it was, the expected improvement, and the improvement.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from evaluation.flux.known import Promise, promises_of
from evaluation.predictor.places import RESULTS
from kcg.cli import record_results, run_script
from kcg.errors import UsageError

OUT = RESULTS / "promised_gains.json"
EDGES = (0.0, 0.05, 0.08, 0.12, 0.2, float("inf"))  # of deviations, log-seconds


def of(some: list[Promise]) -> dict[str, float]:
    """The figures of those of one range of deviations."""
    report = {
        "measurements": len(some),
        "surprise_sd": float(np.std([p.surprise for p in some])),
        "promised": float(np.mean([p.promised for p in some])),
        "gained": float(np.mean([p.gained for p in some])),
        "improved": float(np.mean([p.gained > 0 for p in some])),
    }
    return {name: round(value, 5) for name, value in report.items()}


def main(
    results: Annotated[list[Path], typer.Argument(help="RESULT.json of searches with a learned predictor")],
    name: Annotated[str, typer.Option(help="of the entry in the results file")] = "flux",
    out: Annotated[Path, typer.Option(help="the results file")] = OUT,
) -> None:
    """Follow every kernel of the results, then write down what was promised and what came."""
    found = [promise for path in results for promise in promises_of(path)]
    if not found:
        raise UsageError("no kernel of these results has more than five measurements: give results of longer runs")
    ranges = {}
    for low, high in pairwise(EDGES):
        if some := [p for p in found if low <= p.deviation < high]:
            ranges[f"from {low:g}"] = of(some)
            typer.echo(f"deviation from {low:g}: {ranges[f'from {low:g}']}")
    headline = {f"{what}_{name}": value for what, value in of(found).items()}
    command = f"python -m evaluation.predictor.promised_gains{' RESULT.json' * len(results)} --name {name}"
    record_results(out, name, {"command": command, "by_deviation": ranges}, headline)


if __name__ == "__main__":
    run_script(main)
