"""The step of one result by two revisions of kcg, in turns on one device: whether a change of the generator costs time.

    git worktree add ../before REVISION
    python -m evaluation.tiles.steps_in_turns kcg-out/flux/RESULT.json ../before

Two processes have the model and its weights in memory at the same time, each with the programs that its own revision
makes of the result. They take turns of some replays, in the order ABBA, so that clocks and heat are the same for both;
both are begun anew some times, since a process has its own places in memory. The figure is the median ratio of
neighbouring turns, with its 95 % interval. Writes evaluation/results/steps_in_turns.json.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from evaluation.rows import Rows, rounded, run_of
from kcg.cli import run_script
from kcg.errors import DeviceError
from kcg.measure.protocol import median, median_interval
from kcg.report.result import read_result

ROOT = Path(__file__).parents[2]
OUT = ROOT / "evaluation" / "results" / "steps_in_turns.json"
CHILD = Path(__file__).with_name("step_of_result.py")
WARM = 5  # replays before the first turn


def main(
    result: Annotated[Path, typer.Argument(help="a RESULT.json of a workload that runs")],
    before: Annotated[Path, typer.Argument(help="a checkout of the other revision")],
    replays: Annotated[int, typer.Option(help="of a turn")] = 10,
    rounds: Annotated[int, typer.Option(help="of four turns, of each pair of processes")] = 5,
    processes: Annotated[int, typer.Option(help="pairs of processes")] = 3,
    revision: Annotated[str, typer.Option(help="what the other revision is called")] = "",
    out: Annotated[Path, typer.Option(help="the results file")] = OUT,
) -> None:
    """Replay in turns, and write the ratio down."""
    made = read_result(result)
    dev = made.target.tinygrad_device
    rows = Rows(out, run_of("steps", dev), headline=headline)
    turns: list[tuple[float, float]] = []
    facts: list[dict[str, Any]] = []
    for pair in range(processes):
        with replaying(result, dev, before) as one, replaying(result, dev, ROOT) as other:
            facts = [told(one), told(other)]
            for child in (one, other):
                replayed(child, WARM)
            for number in range(2 * rounds):  # AB, BA, AB, BA, ...
                order = (one, other) if number % 2 == 0 else (other, one)
                seconds = {id(child): median(replayed(child, replays)) for child in order}
                turns.append((seconds[id(one)], seconds[id(other)]))
        typer.echo(f"pair {pair + 1}: {line_of(turns)}")
    name = f"{made.workload}_{made.preset}"
    rows.add(name, {**figures(turns), "before": revision or before.name, "replays": replays, "processes": processes,
                    "programs": [one["served"] for one in facts],
                    "generators": [one["generator"] for one in facts]})  # fmt: skip


def figures(turns: list[tuple[float, float]]) -> dict[str, Any]:
    """The median of each revision, and of the ratios of neighbouring turns, with its interval."""
    ratios = [now / before for before, now in turns]
    return {
        "before_ms": rounded(1e3 * median([before for before, _ in turns])),
        "ms": rounded(1e3 * median([now for _, now in turns])),
        "ratio": rounded(median(ratios)),
        "interval": [rounded(end) for end in median_interval(ratios)],
        "turns": len(turns),
    }


def line_of(turns: list[tuple[float, float]]) -> str:
    """What is known so far."""
    row = figures(turns)
    low, high = row["interval"]
    return f"{row['before_ms']} ms before, {row['ms']} ms now, ratio {row['ratio']} ({low} to {high})"


def headline(rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The ratio of each workload."""
    return {f"{name}_ratio": row["ratio"] for name, row in rows.items()}


# ---- the processes


@contextlib.contextmanager
def replaying(result: Path, dev: str, checkout: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that replays the step by the kcg of a checkout."""
    paths = [str(checkout.resolve()), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "DEV": dev}
    child = subprocess.Popen(
        [sys.executable, str(CHILD), str(result.resolve()), dev], cwd=checkout, env=environment, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        yield child
    finally:
        assert child.stdin is not None
        child.stdin.close()
        child.wait()


def replayed(child: subprocess.Popen[str], count: int) -> list[float]:
    """The seconds of so many replays."""
    assert child.stdin is not None
    child.stdin.write(f"{count}\n")
    child.stdin.flush()
    found: list[float] = told(child)
    return found


def told(child: subprocess.Popen[str]) -> Any:
    """The next line of a child."""
    assert child.stdout is not None
    if not (line := child.stdout.readline()):
        raise DeviceError(f"a process that replays the step ended with {child.wait()}: its errors are above")
    return json.loads(line)


if __name__ == "__main__":
    run_script(main)
