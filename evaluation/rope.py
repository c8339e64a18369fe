"""RoPE, forward and backward, over sequence lengths: tinygrad, kcg, PyTorch eager and compiled, and Triton.

    python evaluation/rope.py --device cuda --budget 8m
    python evaluation/rope.py --device cpu --size mini --tune 5s
    python evaluation/rope.py --device cuda --draw-only

Heads are those of Flux: 24 of 128, neighbours in pairs, bfloat16. Writes results/rope.json, and from it pictures of
time and GB/s and the tables of both profilers (rope_*.svg, rope_*.md). The same command goes on where it was.
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


def main(
    device: opening.Device = "auto",
    size: opening.Size = "full",
    tune: opening.Tune = "30s",
    contenders: opening.Names = "tinygrad,kcg,eager,compile,triton",
    budget: opening.Budget = "",
    again: opening.Again = False,
    retry: opening.Retry = False,
    draw_only: opening.DrawOnly = False,
    work: opening.Work = WORK,
    out: opening.Out = OUT,
) -> None:
    """Time what is not in the results yet."""
    from baselines.comparing import TINY, in_torch
    from baselines.pictures import write_rope

    from kcg.compat.device import choose_device

    if size not in SIZES:
        raise UnknownName("size", size, list(SIZES))
    if draw_only:
        opening.redraw(write_rope, out, size, device)
        return
    chosen, lengths = opening.named("contender", contenders, (*TINY, *in_torch(PYTORCH))), SIZES[size]["tokens"]
    with opening.comparison(
        choose_device(device).dev, size, out, headline=headline, budget=budget, again=again, retry=retry, tune=tune,
        work=work, write=write_rope,
    ) as opened:  # fmt: skip
        for direction in DIRECTIONS:
            for tokens in lengths:
                case = {**SIZES[size], "kind": "rope", "tokens": tokens, "backward": direction == "backward"}
                opened.time(f"{direction} {tokens}", case, chosen, profiled=tokens == lengths[-1])


if __name__ == "__main__":
    application = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    application.command()(main)
    guarded(lambda: application(standalone_mode=False))
