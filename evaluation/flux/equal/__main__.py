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
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from evaluation.flux.equal.blocks import REFERENCE, WEIGHTS
from evaluation.flux.equal.figures import KCG, compared, error_of, headline_of, order_of, overall_of
from evaluation.flux.in_pytorch import check_installed
from evaluation.pytorch.turns import Lost, Side
from evaluation.rows import Row, Rows, rounded, run_of
from kcg.cli import parse_budget, run_script
from kcg.errors import UsageError
from kcg.provenance import provenance

ROOT = Path(__file__).parents[3]
OUT = ROOT / "evaluation" / "results" / "flux_equal.json"
SIDES = {"torch": "evaluation.flux.equal.in_pytorch", "tinygrad": "evaluation.flux.equal.in_tinygrad"}
OWN = ("tinygrad", KCG)
CONTENDERS = "eager,default,max-autotune-no-cudagraphs,recipe,kcg"
PATIENCE_S, READY_S = 400.0, 600.0


def main(
    preset: Annotated[str, typer.Option(help="mini, 768 or 1024")] = "mini",
    device: Annotated[str, typer.Option(help="as kcg.optimize --device")] = "auto",
    result: Annotated[Path | None, typer.Option(help="a RESULT.json of kcg's, of this preset")] = None,
    contenders: Annotated[str, typer.Option(help="with commas; tinygrad: its own schedules")] = CONTENDERS,
    later: Annotated[str, typer.Option(help="contenders that get ready once the others are done, with commas")] = "",
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

    begun, limit_s = time.monotonic(), parse_budget(budget) if budget else math.inf
    dev = choose_device(device).dev
    preset = find("flux", preset, dev)[1]
    names, last = ([name.strip() for name in some.split(",") if name.strip()] for some in (contenders, later))
    if KCG in (*names, *last) and result is None:
        raise UsageError("kcg's step needs its schedules: give --result RESULT.json, or --contenders without kcg")
    if result is not None and (known := read_result(result)) and (known.workload, known.preset) != ("flux", preset):
        raise UsageError(f"{result} is of {known.workload} {known.preset}: give that --preset")
    if {*names, *last} - set(OWN):
        check_installed()
    (folder := (work / preset).absolute()).mkdir(parents=True, exist_ok=True)

    def headline(found: dict[str, Row]) -> dict[str, Any]:
        before = json.loads(out.read_text())["headline"] if out.exists() else {}
        now = headline_of(preset, found)
        return now | overall_of(before | now) | {"revision": provenance()["revision"]}

    rows = Rows(out, run_of(preset, dev), headline=headline)
    with Turns(dev, preset, folder, rows, result, until=begun + limit_s) as turns:
        turns.open([*names, *last])
        for some in (names, last):
            turns.make_ready(some)
            turns.run(steps, block)
    typer.echo(json.dumps(compared(turns.row), indent=1))
    typer.echo(json.dumps(headline_of(preset, rows.rows), indent=1))


def side_of(name: str) -> str:
    """Which process has a contender."""
    return "tinygrad" if name in OWN else "torch"


class Turns:
    """The processes of a comparison on one GPU, and its row. Use as a context manager: leaving it ends them."""

    def __init__(
        self, dev: str, preset: str, folder: Path, rows: Rows, result: Path | None, *, until: float = math.inf
    ) -> None:
        """`folder` has the weights and outputs; nothing is begun after `until`, by `time.monotonic`."""
        self._dev, self._preset, self._folder, self._rows, self._result = dev, preset, folder, rows, result
        self._until = until
        self._sides: dict[str, Side] = {}
        self._ready: list[str] = []
        self.row: Row = {"contenders": {}}

    def __enter__(self) -> Turns:
        return self

    def __exit__(self, *_: object) -> None:
        for side in self._sides.values():
            side.close()

    def open(self, names: Sequence[str]) -> None:
        """Have the processes of these load their weights, which tinygrad's makes where there are none, and the outputs
        of a float32 run."""
        needed = set(map(side_of, names))
        if not (self._folder / WEIGHTS).exists():
            needed.add("tinygrad")
        for side in sorted(needed):  # tinygrad's first
            self._sides[side] = Side(SIDES[side], {"dev": self._dev, "preset": self._preset})
            self._ask(side, {"do": "load"})
        about = self._ask(min(needed), {"do": "about"})
        self._key = str(about["uuid"])
        self.row = {**self.row, **self._rows.rows.get(self._key, {}), **about, "preset": self._preset}
        if "torch" in self._sides and not (self._folder / REFERENCE).exists():
            self._ask("torch", {"do": "reference"})

    def make_ready(self, names: Sequence[str]) -> None:
        """Have each contender take its first step; one that fails, or for which there is no time, is left out and says
        why."""
        for name in names:
            one: dict[str, Any] = self.row["contenders"].setdefault(name, {})
            left_s, side = self._until - time.monotonic(), side_of(name)
            try:
                if left_s <= 0 or not self._sides[side].alive:
                    raise Lost("there was no time for it" if left_s <= 0 else "its process ended before")
                own = {"result": str(self._result.absolute())} if name == KCG and self._result is not None else {}
                found = self._ask(side, {"do": "ready", "name": name, **own}, min(READY_S, left_s))
            except Lost as error:
                one["reason"] = str(error)
                typer.echo(f"{name}: {error}")
                self._ready = [other for other in self._ready if self._sides[side_of(other)].alive]
                self._keep()
                continue
            if any(one.get(key, value) != value for key, value in found.items() if key != "ready_s"):
                one.clear()  # blocks of another program
            one |= found
            one.pop("reason", None)
            if (reference := self._folder / REFERENCE).exists():
                one["error"] = rounded(error_of(self._folder / f"{name}.npy", reference))
            self._ready.append(name)
            typer.echo(f"{name}: ready after {one['ready_s']:.1f} s, error {one.get('error')}")
            self._keep()
        if {"eager", KCG}.issubset(self._ready):
            apart = error_of(self._folder / f"{KCG}.npy", self._folder / "eager.npy")
            self.row["kcg_from_eager"] = rounded(apart)

    def run(self, steps: int, block: int) -> None:
        """Turns of a block of each that is ready, until each has so many steps, or the time is over."""
        blocks = {name: self.row["contenders"][name].setdefault("blocks", []) for name in self._ready}
        turn = 1 + max((one["turn"] for some in blocks.values() for one in some), default=-1)
        while any(sum(len(one["seconds"]) for one in some) < steps for some in blocks.values()):
            for name in order_of(self._ready, turn):
                if time.monotonic() >= self._until:
                    return
                found = self._ask(side_of(name), {"do": "block", "name": name, "steps": block})
                blocks[name].append({"turn": turn, **found})
            turn += 1
            self._keep()

    def _keep(self) -> None:
        self._rows.again([self._key])
        self._rows.add(self._key, {**self.row, "compared": compared(self.row)})

    def _ask(self, side: str, order: dict[str, Any], timeout_s: float = PATIENCE_S) -> dict[str, Any]:
        """The answer. Raises Lost where the process is gone or did not answer in time, or what it was asked failed."""
        answer = self._sides[side].ask({**order, "folder": str(self._folder)}, timeout_s)
        if set(answer) == {"error"}:
            raise Lost(str(answer["error"]))
        return answer


if __name__ == "__main__":
    run_script(main)
