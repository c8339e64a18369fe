"""Flux in kcg beside PyTorch on equal terms.

    python -m kcg.optimize flux --preset 1024 --device CUDA --budget 120s --report kcg-out/flux
    python -m evaluation.flux.equal --preset 1024 --device CUDA --result kcg-out/flux/RESULT.json --budget 9m

One state dict is in both: kcg's random weights, under diffusers' names, in a file of `--work` (24 GB); the inputs are
the same. Two processes share the GPU, one for each library. Contenders run in turns, blocks of steps that follow each
other, there and back (ABBA), so the GPU is as warm for the one as for the other. Told of each: every step's time by
device events, the joules that NVML counted, how long it was until the first step was there, memory, and how far its
output is from a run of the same layers in float32. A row is of one GPU, by its UUID; the same command goes on where
it was, also in the middle, and on another GPU makes another row. Writes evaluation/results/flux_equal.json.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from evaluation.flux.equal.blocks import REFERENCE, WEIGHTS
from evaluation.flux.equal.figures import KCG, compared, error_of, headline_of, order_of
from evaluation.flux.in_pytorch import check_installed
from evaluation.pytorch.turns import Lost, Side
from evaluation.rows import Row, Rows, rounded, run_of
from kcg.cli import parse_budget, run_script
from kcg.errors import UsageError

ROOT = Path(__file__).parents[3]
OUT = ROOT / "evaluation" / "results" / "flux_equal.json"
SIDES = {"torch": "evaluation.flux.equal.in_pytorch", "tinygrad": "evaluation.flux.equal.in_tinygrad"}
OWN = ("tinygrad", KCG)
CONTENDERS = "eager,default,max-autotune-no-cudagraphs,recipe,kcg"
LOADING_S, READY_S, BLOCK_S = 400.0, 600.0, 300.0


def main(
    preset: Annotated[str, typer.Option(help="mini, 768 or 1024")] = "mini",
    device: Annotated[str, typer.Option(help="as kcg.optimize --device")] = "auto",
    result: Annotated[Path | None, typer.Option(help="a RESULT.json of kcg's, of this preset")] = None,
    contenders: Annotated[str, typer.Option(help="with commas; tinygrad: its own schedules")] = CONTENDERS,
    steps: Annotated[int, typer.Option(help="of each, at least")] = 200,
    block: Annotated[int, typer.Option(help="steps that follow each other")] = 20,
    budget: Annotated[str, typer.Option(help="after which nothing new is begun; empty: none")] = "",
    work: Annotated[Path, typer.Option(help="the folder of weights and outputs")] = ROOT / "kcg-out" / "equal",
    out: Annotated[Path, typer.Option(help="the results file")] = OUT,
) -> None:
    """Run what is missing of this GPU, and write it down after every turn."""
    from kcg.compat.device import choose_device
    from kcg.report.result import read_result
    from kcg.workloads.registry import find

    begun, limit_s = time.monotonic(), parse_budget(budget) if budget else float("inf")
    dev = choose_device(device).dev
    preset = find("flux", preset, dev)[1]
    names = [name.strip() for name in contenders.split(",") if name.strip()]
    if KCG in names and result is None:
        raise UsageError("kcg's step needs its schedules: give --result RESULT.json, or --contenders without kcg")
    if result is not None and (known := read_result(result)) and (known.workload, known.preset) != ("flux", preset):
        raise UsageError(f"{result} is of {known.workload} {known.preset}: give that --preset")
    if set(names) - set(OWN):
        check_installed()
    (folder := (work / preset).absolute()).mkdir(parents=True, exist_ok=True)
    rows = Rows(out, run_of(preset, dev), headline=lambda found: headline_of(preset, found))
    needed = [*dict.fromkeys("tinygrad" if name in OWN else "torch" for name in names)]
    sides: dict[str, Side] = {}
    try:
        if not (folder / WEIGHTS).exists():
            needed = [*dict.fromkeys(["tinygrad", *needed])]  # which makes them
        for side in sorted(needed):  # tinygrad's first: it makes the weights
            sides[side] = Side(SIDES[side], {"dev": dev, "preset": preset})
            ask(sides[side], {"do": "load", "folder": str(folder)}, LOADING_S)
        first = next(iter(sides.values()))
        about = ask(first, {"do": "about"}, LOADING_S)
        key = str(about["uuid"])
        row: Row = {"contenders": {}, **rows.rows.get(key, {}), **about, "preset": preset}
        if "torch" in sides and not (folder / REFERENCE).exists():
            ask(sides["torch"], {"do": "reference", "folder": str(folder)}, LOADING_S)

        def side_of(name: str) -> Side:
            return sides["tinygrad" if name in OWN else "torch"]

        there = []
        for name in names:
            one: dict[str, Any] = row["contenders"].setdefault(name, {})
            if time.monotonic() - begun > limit_s:
                typer.echo(f"{name} is not run: the time is over")
                continue
            order = {"do": "ready", "name": name, "folder": str(folder)}
            order |= {"result": str(result.absolute())} if name == KCG and result is not None else {}
            try:
                one |= ask(side_of(name), order, READY_S)
            except Lost as error:
                one["reason"] = str(error)
                typer.echo(f"{name}: {error}")
                if not side_of(name).alive:
                    raise
                continue
            if (folder / REFERENCE).exists():
                one["error"] = rounded(error_of(folder / f"{name}.npy", folder / REFERENCE))
            there.append(name)
            typer.echo(f"{name}: ready after {one['ready_s']:.1f} s, error {one.get('error')}")
            rows.again([key])
            rows.add(key, row)
        if "eager" in there and KCG in there:
            row["kcg_from_eager"] = rounded(error_of(folder / f"{KCG}.npy", folder / "eager.npy"))
        while time.monotonic() - begun < limit_s:
            done = {name: row["contenders"][name].setdefault("blocks", []) for name in there}
            turn = min(map(len, done.values()), default=0)
            if not done or turn * block >= steps:
                break
            for name in order_of(there, turn):
                if len(done[name]) == turn:
                    done[name].append(ask(side_of(name), {"do": "block", "name": name, "steps": block}, BLOCK_S))
            rows.again([key])
            rows.add(key, row)
    finally:
        for one_side in sides.values():
            one_side.close()
    typer.echo(json.dumps(compared(row), indent=1))
    typer.echo(json.dumps(headline_of(preset, rows.rows), indent=1))


def ask(side: Side, order: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    """The answer. Raises Lost where the process is gone, or what it was asked for failed."""
    answer = side.ask(order, timeout_s)
    if "error" in answer and set(answer) == {"error"}:
        raise Lost(str(answer["error"]))
    return answer


if __name__ == "__main__":
    run_script(main)
