"""kcg beside PyTorch, Triton and kernels written by hand: one program, a comparison each for a family of cases.

    python -m evaluation.pytorch.compare attention --device cuda --budget 20m
    python -m evaluation.pytorch.compare rope --device cpu --size mini --tune 5s --contenders tinygrad,kcg,eager
    python -m evaluation.pytorch.compare models --device cuda --only softmax,GPT-2
    python -m evaluation.pytorch.compare sum_levels --device cuda --draw-only

`attention`, `rope`, `sum_levels` and `models` (layers, and whole models) are in the files of their names, each with
what is run in tinygrad, PyTorch and Triton, and its float64 reference. All contenders are timed in turns, each in a
process of its own. Writes evaluation/results/NAME.json, and from it pictures and tables. The same command goes on where
it was.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from evaluation.pytorch import comparing
from evaluation.pytorch.cases import COMPARISONS
from evaluation.pytorch.comparing import RunSettings, named, opened, redraw
from evaluation.pytorch.kind import SIZES, Comparison, Rows
from evaluation.rows import key_of, run_of
from kcg.cli import run_script
from kcg.errors import UnknownName

RESULTS = Path(__file__).parent.parent / "results"
WORK = Path("kcg-out")


def headline(comparison: Comparison) -> Callable[[str], Callable[[Rows], dict[str, float]]]:
    """By run: the figures of every contender, by the rows' labels."""

    def of_run(run: str) -> Callable[[Rows], dict[str, float]]:
        def made(rows: Rows) -> dict[str, float]:
            own = comparison.summary(rows) if run == run_of("full", "CUDA") else {}
            return own | {
                key_of(name, comparison.label(key), words, run): found[figure]
                for key in sorted(rows, key=comparison.place)
                for name, found in rows[key]["contenders"].items()
                if found["status"] == "ok"
                for words, figure in comparison.figures
            }

        return made

    return of_run


def main(
    name: Annotated[str, typer.Argument(help=", ".join(COMPARISONS))],
    device: comparing.Device = "auto",
    size: Annotated[str, typer.Option(help="full or mini")] = "full",
    only: Annotated[
        str, typer.Option(help="cases whose names contain this, or one of these, with commas between")
    ] = "",
    tune: Annotated[str, typer.Option(help="kcg's budget for each case; empty: the comparison's usual one")] = "",
    contenders: Annotated[str, typer.Option(help="with commas between; empty: the usual ones")] = "",
    limit: Annotated[float, typer.Option(help="seconds for making a contender ready; 0: as usual")] = 0.0,
    budget: comparing.Budget = "",
    again: comparing.Again = False,
    retry: comparing.Retry = False,
    draw_only: Annotated[
        bool, typer.Option("--draw-only", help="time nothing: pictures and table of the rows there are")
    ] = False,
    work: Annotated[Path | None, typer.Option(help="what kcg and BEAM found, for a call that goes on")] = None,
    out: Annotated[Path | None, typer.Option(help="the results file")] = None,
) -> None:
    """Time what is not in the results yet."""
    if name not in COMPARISONS:
        raise UnknownName("comparison", name, list(COMPARISONS))
    if size not in SIZES:
        raise UnknownName("size", size, list(SIZES))
    comparison = COMPARISONS[name]
    out = out or RESULTS / f"{name}.json"
    if draw_only:
        redraw(comparison.write, out, size, device)
        return
    chosen = named("contender", contenders or comparison.usual, comparison.contenders)
    from kcg.compat.device import choose_device

    asked = RunSettings(budget, again, retry, tune or comparison.tune, work or WORK / name, limit or comparison.limit_s)
    dev, titled = choose_device(device).dev, headline(comparison)
    with opened(dev, size, out, asked, headline=titled, write=comparison.write) as rows:
        for entry in comparison.entries(size):
            if not only or any(part and part in entry.key for part in only.split(",")):
                by = named("contender", entry.only, comparison.contenders) if entry.only else chosen
                rows.time(entry.key, entry.case, by, profiled=entry.profiled)


if __name__ == "__main__":
    run_script(main)
