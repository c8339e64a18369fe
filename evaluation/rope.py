"""RoPE, forward and backward, over sequence lengths: tinygrad, kcg, PyTorch eager and compiled, and Triton.

    python evaluation/rope.py --device cuda --budget 8m
    python evaluation/rope.py --device cpu --size mini --tune 5s

Heads are those of Flux: 24 of 128, neighbours in pairs, bfloat16. Writes results/rope.json, and from it a picture and
the tables of both profilers (rope_*.svg, rope_*.md). The same command goes on where it was.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer
from baselines import opening

from kcg.commandline import guarded
from kcg.errors import UnknownName

OUT = Path(__file__).parent / "results" / "rope.json"
WORK = Path("kcg-out") / "rope"
DIRECTIONS = ("forward", "backward")
PYTORCH = {"eager": "eager", "triton": "triton", "compile": "default"}
SIZES: dict[str, dict[str, Any]] = {
    "full": {"heads": 24, "width": 128, "dtype": "bfloat16", "tokens": (512, 1024, 2048, 4096, 8192, 16384)},
    "mini": {"heads": 2, "width": 16, "dtype": "float32", "tokens": (32, 64)},
}


def headline(run: str) -> Any:
    """Of the longest sequence in each direction, the cold seconds of every contender."""

    from baselines.figures import key_of

    def made(rows: dict[str, Any]) -> dict[str, float]:
        told = {}
        for key in sorted(rows, key=lambda key: int(key.split()[1])):
            for name, found in rows[key]["contenders"].items():
                if found["status"] == "ok":
                    told[key_of(name, key.split()[0], "s", run)] = found["cold_s"]
        return told

    return made


def write(rows: dict[str, Any], out: Path, run: str) -> None:
    """The picture and the tables beside the results."""
    from baselines.plots import curves_of, lines_svg
    from baselines.reports import profiles_text, times_table

    text = [f"# RoPE, {run}", "", *times_table(rows), ""]
    for direction in DIRECTIONS:
        curves = curves_of(row for key, row in rows.items() if key.startswith(direction))
        if not curves:
            continue
        picture = out.with_name(f"{out.stem}_{direction}_{run}.svg")
        picture.write_text(lines_svg(f"RoPE, {direction}, L2 flushed; bands of 95 %", "tokens", curves))
        text += [f"![{direction}]({picture.name})", ""]
    for key, row in rows.items():
        text += profiles_text(key, row) if row.get("profiles") else []
    out.with_name(f"{out.stem}_{run}.md").write_text("\n".join(text))


def main(
    device: opening.Device = "auto",
    size: opening.Size = "full",
    tune: opening.Tune = "30s",
    contenders: opening.Names = "tinygrad,kcg,eager,compile,triton",
    budget: opening.Budget = "",
    again: opening.Again = False,
    retry: opening.Retry = False,
    work: opening.Work = WORK,
    out: opening.Out = OUT,
) -> None:
    """Time what is not in the results yet."""
    from baselines.comparing import TINY, in_torch

    from kcg.compat.device import choose_device

    if size not in SIZES:
        raise UnknownName("size", size, list(SIZES))
    chosen, lengths = opening.named("contender", contenders, (*TINY, *in_torch(PYTORCH))), SIZES[size]["tokens"]
    with opening.comparison(
        choose_device(device).dev, size, out, headline=headline, budget=budget, again=again, retry=retry, tune=tune,
        work=work,
    ) as opened:  # fmt: skip
        for direction in DIRECTIONS:
            for tokens in lengths:
                case = {**SIZES[size], "kind": "rope", "tokens": tokens, "backward": direction == "backward"}
                opened.time(f"{direction} {tokens}", case, chosen, profiled=tokens == lengths[-1])
        write(opened.rows.rows, out, opened.run)


if __name__ == "__main__":
    application = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    application.command()(main)
    guarded(lambda: application(standalone_mode=False))
