"""Is what kcg finds worth as much in plain tinygrad? An unchanged program, in a fresh process, with `BEAM=N`.

    python evaluation/handover.py --preset mini --device CPU:CLANG --budget 150s
    python evaluation/handover.py --preset 1024 --device CUDA --result kcg-out/flux/RESULT.json

`python -m kcg.optimize apply` writes a result into a cache of its own, never the user's. `plain_step.py` then runs with
that cache, in turns with itself within `kcg.tuned`: it must search nothing, give the same output bit by bit, and be as
fast. Writes evaluation/results/handover.json; exit code 4 where any of this does not hold.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from kcg.commandline import guarded, record_results
from kcg.errors import UsageError, VerificationError

OUT = Path(__file__).parent / "results" / "handover.json"
FIGURES = ("kcg_s", "plain_s", "hand_coded_s", "ratio", "noise", "rows", "searched")
HOLDS = {
    "same_speed": "it is not as fast", "same_output": "its output is another", "right_output": "its output is wrong",
    "unhooked": "a program was hooked that should not be, or the other way round",
}  # fmt: skip


def main(
    preset: Annotated[str, typer.Option(help="of Flux: mini, 768 or 1024; auto: as kcg takes it")] = "auto",
    device: Annotated[str, typer.Option(help="as kcg.optimize --device")] = "auto",
    result: Annotated[Path | None, typer.Option(help="a RESULT.json; without one kcg is run first")] = None,
    budget: Annotated[str, typer.Option(help="time of that run")] = "150s",
    beam: Annotated[int, typer.Option(help="the width that the program is started with")] = 2,
    rounds: Annotated[int, typer.Option(help="processes of each kind")] = 2,
    replays: Annotated[int, typer.Option(help="timed steps in each")] = 7,
    case: Annotated[str, typer.Option(help="another case than Flux, as baselines/cases.py has it")] = "",
    out: Annotated[Path, typer.Option(help="the results file")] = OUT,
) -> None:
    """Hand over, run, compare, and write down."""
    with tempfile.TemporaryDirectory(prefix="kcg-handover-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        os.environ["CACHEDB"] = str(folder / "search.db")  # before anything imports tinygrad
        from baselines.handed_over import prove
        from baselines.opening import run_of
        from baselines.tuning import tune

        from kcg.compat.device import choose_device
        from kcg.optimize.result import read_result
        from kcg.optimize.settings import parse_budget
        from kcg.workloads.flux import PRESETS
        from kcg.workloads.registry import find

        dev = choose_device(device).dev
        preset = find("flux", preset, dev)[1]
        flux = {"kind": "family", "name": "flux", "preset": preset, "dtype": PRESETS[preset].dtype}
        what = json.loads(case) if case else flux
        if result is None:
            made = tune(what, dev, budget_s=parse_budget(budget), folder=folder / "kcg")
            result = Path(made["result"])
        told = read_result(result)
        if what == flux and (told.workload, told.preset) != ("flux", preset):
            raise UsageError(
                f"{result} is of {told.workload} {told.preset}: give --preset, or a result of flux {preset}"
            )
        if told.target.tinygrad_device != dev:
            raise UsageError(f"{result} was made for {told.target.tinygrad_device}: give --device, or another result")
        found = prove(what, dev, result.absolute(), folder, beam=beam, rounds=rounds, replays=replays)
    run = run_of(preset if not case else what["kind"], dev)
    headline = {f"{key}_{run}": found[key] for key in FIGURES}
    headline |= {f"{key}_{run}": int(found[key]) for key in HOLDS}
    facts = {"command": shlex.join(["python", *sys.argv]), "beam": beam, "case": what, "model": told.target.model}
    record_results(out, run, {**facts, "toolchain": vars(told.toolchain), **found}, headline)
    typer.echo(
        f"{run}: kcg {found['kcg_s'] * 1e3:.4g} ms, plain tinygrad with BEAM={beam} {found['plain_s'] * 1e3:.4g} ms, "
        f"hand-coded {found['hand_coded_s'] * 1e3:.4g} ms; {found['searched']} searches"
    )
    broken = [words for name, words in HOLDS.items() if not found[name]]
    if found["searched"] or found["rows_changed"]:
        broken.append(f"it searched {found['searched']} kernels")
    if broken:
        raise VerificationError(f"the hand-over does not hold: {'; '.join(broken)}")


if __name__ == "__main__":
    application = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    application.command()(main)
    guarded(lambda: application(standalone_mode=False))
