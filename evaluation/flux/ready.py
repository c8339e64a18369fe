"""How soon a known result of Flux is ready, and where these seconds go.

    python -m evaluation.flux.ready --preset 1024 --device CUDA --result kcg-out/flux/RESULT.json

Three ways, each in a fresh process with random weights, after kcg's own cache has the result's programs:
- the check of the whole model: from its job, which comes when the model was planned and compiled (`--ahead` seconds
  after its child was started, as in a run that searches), to the first replay in turns;
- `python -m kcg.run` of an unchanged program (`plain_step.py`), and a module of `kcg.optimize export`: from the
  moment at which the weights are there to the end of the first captured step. The same program without kcg is beside
  them, which schedules and compiles all by itself.
Writes evaluation/results/bench_ready.json.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from evaluation.flux.handover import MODULE, PROGRAM, WITH_MODULE, python, step
from evaluation.rows import rounded, run_of, this_command
from kcg.cli import record_results, run_script
from kcg.errors import KcgError, UsageError
from kcg.nouns import noun_from_json, noun_to_json
from kcg.types import ModelCheck

ROOT = Path(__file__).parent.parent.parent
OUT = ROOT / "evaluation" / "results" / "bench_ready.json"
CHILD = "evaluation.flux.staged_check"
TIMEOUT_S = 400.0
REPLAYS = 2


def checked(path: Path, preset: str, dev: str, *, ahead_s: float) -> dict[str, Any]:
    """The stages of a check of the whole model, whose child was there so many seconds before, and what it found."""
    from kcg.judge.whole_model import PLAN, begun
    from kcg.report.result import read_result

    job = {"workload": "flux", "preset": preset, "seed": 0, "weights": "", "kernels": [], "programs": {}}
    begin = time.monotonic()
    with begun("flux", preset, 0, dev, module=CHILD) as process:
        process.tell({PLAN: ["flux", preset, noun_to_json(read_result(path).target)]})
        time.sleep(ahead_s)
        asked = job | {"results": [str(path)], "steady_s": 0.0, "steady_until": 0.0}
        ended = process.run(asked, timeout_s=TIMEOUT_S, name="the check")
    if ended.returncode or not ended.out:
        raise KcgError(f"the check failed: {ended.last_words}")
    stages, (check,) = json.loads(ended.err[-1]), json.loads(ended.out[-1])
    ready_s = next(at for name, at, _, _ in stages if name == "replays")
    return {
        "ready_s": ready_s,
        "whole_s": time.monotonic() - begin,
        "stages": stages,
        "check": str(noun_from_json(ModelCheck, check)),
    }


def main(
    result: Annotated[Path, typer.Option(help="a RESULT.json of Flux, made on this device")],
    preset: Annotated[str, typer.Option(help="of Flux: mini, 768 or 1024")] = "1024",
    device: Annotated[str, typer.Option(help="as kcg.optimize --device")] = "auto",
    ahead: Annotated[float, typer.Option(help="seconds that the check's child is there before its job")] = 60.0,
    ways: Annotated[str, typer.Option(help="which of check, run, export and plain, with commas")] = "check,run,plain",
    out: Annotated[Path, typer.Option(help="the results file")] = OUT,
) -> None:
    """Measure, print the stages, and write them down."""
    from kcg.compat.device import choose_device
    from kcg.report.result import read_result

    known, dev, path = read_result(result), choose_device(device).dev, result.absolute()
    if (known.workload, known.preset) != ("flux", preset):
        raise UsageError(f"{result} is of {known.workload} {known.preset}: give --preset")
    case = {"kind": "family", "name": "flux", "preset": preset}
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="kcg-ready-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        hows = {"run": ("-m", "kcg.run", "--result", str(path), "-m", PROGRAM), "plain": ("-m", PROGRAM)}
        hows["export"] = ("-c", WITH_MODULE, str(folder))
        for way in ways.split(","):
            if way == "check":
                found[way] = checked(path, preset, dev, ahead_s=ahead)
                show(found[way]["stages"])
                continue
            if way not in hows:
                raise UsageError(f"--ways {way}: choose of check, run, export and plain")
            if way == "export":
                command = ["-m", "kcg.optimize", "export", str(path), "--python", str(folder / f"{MODULE}.py")]
                python(way, command, dev, folder / "export.db")
            report = step(case, dev, folder / f"{way}.db", replays=REPLAYS, how=hows[way])
            ready_s = report["ready_s"] - report["built_s"]
            found[way] = {"ready_s": ready_s, "built_s": report["built_s"], "step_s": min(report["seconds"])}
    for way, one in found.items():
        since = f"weights, which took {one['built_s']:.1f} s" if "built_s" in one else "its job"
        typer.echo(f"{way}: ready {one['ready_s']:.2f} s after {since}")
    run = run_of(preset, dev)
    of_kcg = [one["ready_s"] for way, one in found.items() if way != "plain"]
    headline = {f"{way}_ready_s_{run}": rounded(one["ready_s"]) for way, one in found.items()}
    headline |= {"ready_s": rounded(max(of_kcg))} if of_kcg else {}
    record_results(out, run, {"command": this_command(), "model": known.target.model, **found}, headline)


def show(stages: list[tuple[str, float, float, int]]) -> None:
    """Print when each stage began and what it took, those within others behind them."""
    for name, at, took_s, depth in stages:
        typer.echo(f"{at:8.2f} s {'  ' * depth}{took_s:6.2f} s  {name}")


if __name__ == "__main__":
    run_script(main)
