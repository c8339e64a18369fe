"""Is what kcg finds worth as much in plain tinygrad? An unchanged program, in a fresh process, with `BEAM=N`.

    python -m evaluation.flux.handover --preset mini --device CPU:CLANG --budget 150s
    python -m evaluation.flux.handover --preset 1024 --device CUDA --result kcg-out/flux/RESULT.json
    python -m evaluation.flux.handover --preset 1024 --device CUDA --result kcg-out/flux/RESULT.json --way export

`python -m kcg.optimize apply` writes a result into a cache of its own, never the user's. `plain_step.py` then runs with
that cache, in turns with itself within `kcg.tuned`: it must search nothing, give the same output bit by bit, and be as
fast. BEAM's cache holds Opts only: a result with tile programs is handed over by `--way run` (`kcg.run`) or `--way
export` (a module). Writes evaluation/results/handover.json; exit code 4 where any of this does not hold.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from evaluation.rows import FAR, distance, rounded, run_of, this_command
from kcg.cli import record_results, run_script
from kcg.errors import DeviceError, KcgError, UsageError, VerificationError
from kcg.measure.protocol import median, median_interval, spread

ROOT = Path(__file__).parent.parent.parent
PROGRAM = "evaluation.flux.plain_step"
UNDER_KCG = f"""import runpy, sys, kcg
result, sys.argv = sys.argv[1], sys.argv[1:]
with kcg.tuned(result):
    runpy.run_module("{PROGRAM}", run_name="__main__", alter_sys=True)"""
MODULE = "exported_step"
WITH_MODULE = f"""import runpy, sys
sys.path.insert(0, sys.argv[1])
import {MODULE}
sys.argv = sys.argv[1:]
runpy.run_module("{PROGRAM}", run_name="__main__", alter_sys=True)"""
WAYS = ("beam", "run", "export")
TIMEOUT_S = 900.0
SAME = 0.02  # two processes of one binary may be this far apart, even where less is seen
Report = dict[str, Any]
OUT = ROOT / "evaluation" / "results" / "handover.json"
FIGURES = ("kcg_s", "plain_s", "hand_coded_s", "ratio", "noise", "rows", "searched")
HOLDS = {
    "same_speed": "it is not as fast",
    "same_output": "its output is another",
    "right_output": "its output is wrong",
    "unhooked": "a program was hooked that should not be, or the other way round",
}


def python(what: str, command: list[str], dev: str, cache: Path, *, beam: int = 0) -> str:
    """The standard output of `python command` on a device with a cache of its own. Raises KcgError where it fails."""
    from kcg.compat.device import clang_path
    from kcg.measure.isolated import clean_environment

    if dev.startswith("CPU") and "CC" not in os.environ and clang_path() is None:
        raise DeviceError("plain tinygrad opens the CPU only where it finds clang: pip install ziglang, or set CC")
    environment = clean_environment(dev, cache, paths=[ROOT], BEAM=str(beam))
    if dev.startswith("CPU"):
        environment.setdefault("CC", clang_path() or "")
    whole: Report = {"env": environment, "capture_output": True, "text": True, "timeout": TIMEOUT_S, "check": False}
    try:
        done = subprocess.run([sys.executable, *command], **whole)
    except subprocess.TimeoutExpired:
        raise KcgError(f"{what} did not end in {TIMEOUT_S:.0f} s") from None
    if done.returncode:
        words = (done.stderr.strip().splitlines() or ["it said nothing"])[-1][:300]
        raise KcgError(f"{what} ended with exit code {done.returncode}: {words}")
    return done.stdout


def step(
    case: dict[str, Any], dev: str, cache: Path, *, replays: int, beam: int = 0, how: Sequence[str] = ("-m", PROGRAM)
) -> Report:
    """One run of the program, which Python is to run as `how` says."""
    printed = python(f"the program ({how[0]})", [*how, json.dumps(case), str(replays)], dev, cache, beam=beam)
    return json.loads(printed.splitlines()[-1])


def searches(cache: Path) -> dict[tuple[Any, ...], bytes]:
    """The rows of BEAM's cache; a search ends in a new one."""
    from kcg.compat.beam import cache_table

    with sqlite3.connect(f"file:{cache}?mode=ro", uri=True) as database:
        return {tuple(row[:-1]): row[-1] for row in database.execute(f"SELECT * FROM {cache_table()}")}


def prove(
    case: dict[str, Any], dev: str, result: Path, folder: Path, *, beam: int, rounds: int, replays: int, way: str
) -> Report:
    """Hand the result over into `folder`, then run the step within `kcg.tuned` and in that way, in turns."""
    cache, empty, module = folder / "handed-over.db", folder / "empty.db", folder / f"{MODULE}.py"
    command, how, width = {
        "beam": (["apply", str(result), "--beam", str(beam), "--cachedb", str(cache)], ("-m", PROGRAM), beam),
        "run": ([], ("-m", "kcg.run", "--result", str(result), "-m", PROGRAM), 0),
        "export": (["export", str(result), "--python", str(module)], ("-c", WITH_MODULE, str(folder)), 0),
    }[way]
    printed = python(way, ["-m", "kcg.optimize", *command], dev, empty) if command else "nothing is handed over"
    before = searches(cache) if way == "beam" else {}
    of_kcg, plain = [], []
    for _ in range(rounds):
        of_kcg.append(step(case, dev, empty, replays=replays, how=("-c", UNDER_KCG, str(result))))
        plain.append(step(case, dev, cache if way == "beam" else empty, replays=replays, beam=width, how=how))
    own = step(case, dev, empty, replays=replays)
    after = searches(cache) if way == "beam" else {}
    return judged(of_kcg, plain, own, FAR[case.get("dtype", "bfloat16")], hooked=way != "beam") | {
        "way": way,
        "rows": len(before),
        "searched": len(after.keys() - before.keys()),
        "applied": printed.splitlines()[0],
        "rows_changed": sum(after.get(key) != value for key, value in before.items()),
    }


def judged(of_kcg: list[Report], plain: list[Report], own: Report, far: float, *, hooked: bool = False) -> Report:
    """The runs of both kinds beside each other; `hooked` where the handed-over ones are too.

    The noise is how far processes of one kind are apart, or half the interval of the median of all their samples.
    """
    seconds = {name: [s for r in runs for s in r["seconds"]] for name, runs in (("kcg", of_kcg), ("plain", plain))}
    noise = max(spread(r[0]["seconds"], other["seconds"]) for r in (of_kcg, plain) for other in r)
    for samples in seconds.values():
        low, high = median_interval(samples)
        noise = max(noise, (high - low) / 2 / median(samples))
    ratio = median(seconds["plain"]) / median(seconds["kcg"])
    return {
        "kcg_s": rounded(median(seconds["kcg"])),
        "plain_s": rounded(median(seconds["plain"])),
        "hand_coded_s": rounded(median(own["seconds"])),
        "ratio": rounded(ratio),
        "noise": rounded(noise),
        "same_speed": abs(ratio - 1) <= max(noise, SAME),
        "same_output": len({r["output"] for r in (*of_kcg, *plain)}) == 1,
        "right_output": distance(plain[0]["values"], own["values"]) <= far,
        "unhooked": all(r["unhooked"] != hooked for r in plain) and not any(r["unhooked"] for r in of_kcg),
        "ready_s": {name: [rounded(r["ready_s"]) for r in runs] for name, runs in (("kcg", of_kcg), ("plain", plain))},
        "seconds": {**seconds, "hand_coded": own["seconds"]},
    }


def main(
    preset: Annotated[str, typer.Option(help="of Flux: mini, 768 or 1024; auto: as kcg takes it")] = "auto",
    device: Annotated[str, typer.Option(help="as kcg.optimize --device")] = "auto",
    result: Annotated[Path | None, typer.Option(help="a RESULT.json; without one kcg is run first")] = None,
    budget: Annotated[str, typer.Option(help="time of that run")] = "150s",
    way: Annotated[str, typer.Option(help="beam, run or export: how it is handed over")] = "beam",
    beam: Annotated[int, typer.Option(help="the width that the program is started with")] = 2,
    rounds: Annotated[int, typer.Option(help="processes of each kind")] = 2,
    replays: Annotated[int, typer.Option(help="timed steps in each")] = 7,
    case: Annotated[str, typer.Option(help="another case than Flux, as evaluation/pytorch/cases.py has it")] = "",
    out: Annotated[Path, typer.Option(help="the results file")] = OUT,
) -> None:
    """Hand over, run, compare, and write down."""
    if way not in WAYS:
        raise UsageError(f"--way {way}: choose one of {', '.join(WAYS)}")
    with tempfile.TemporaryDirectory(prefix="kcg-handover-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        os.environ["CACHEDB"] = str(folder / "search.db")  # before anything imports tinygrad
        from evaluation.pytorch.tuning import tune
        from kcg.cli import parse_budget
        from kcg.compat.device import choose_device
        from kcg.report.result import read_result
        from kcg.workloads.flux import PRESETS
        from kcg.workloads.registry import find

        dev = choose_device(device).dev
        preset = find("flux", preset, dev)[1]
        flux = {"kind": "family", "name": "flux", "preset": preset, "dtype": PRESETS[preset].dtype}
        what = json.loads(case) if case else flux
        if result is None:
            made = tune(what, dev, budget_s=parse_budget(budget), folder=folder / "kcg")
            result = Path(made["result"])
        known_ = read_result(result)
        if what == flux and (known_.workload, known_.preset) != ("flux", preset):
            raise UsageError(
                f"{result} is of {known_.workload} {known_.preset}: give --preset, or a result of flux {preset}"
            )
        if known_.target.tinygrad_device != dev:
            raise UsageError(f"{result} was made for {known_.target.tinygrad_device}: give --device, or another result")
        found = prove(what, dev, result.absolute(), folder, beam=beam, rounds=rounds, replays=replays, way=way)
    run = run_of(preset if not case else what["kind"], dev) + (f"_{way}" if way != "beam" else "")
    headline = {f"{key}_{run}": found[key] for key in FIGURES}
    headline |= {f"{key}_{run}": int(found[key]) for key in HOLDS}
    facts = {"command": this_command(), "beam": beam, "case": what, "model": known_.target.model}
    record_results(out, run, {**facts, "toolchain": vars(known_.toolchain), **found}, headline)
    typer.echo(
        f"{run}: kcg {found['kcg_s'] * 1e3:.4g} ms, handed over ({way}) {found['plain_s'] * 1e3:.4g} ms, "
        f"hand-coded {found['hand_coded_s'] * 1e3:.4g} ms; {found['searched']} searches"
    )
    broken = [words for name, words in HOLDS.items() if not found[name]]
    if found["searched"] or found["rows_changed"]:
        broken.append(f"it searched {found['searched']} kernels")
    if broken:
        raise VerificationError(f"the hand-over does not hold: {'; '.join(broken)}")


if __name__ == "__main__":
    run_script(main)
