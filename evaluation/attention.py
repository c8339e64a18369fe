"""Attention, forward, over sequence lengths: tinygrad's kernels, kcg's, one kernel in Triton, and PyTorch.

    python evaluation/attention.py --device cuda --budget 20m
    python evaluation/attention.py --device cpu --size mini --tune 5s --contenders tinygrad,kcg,c,eager,compile
    python evaluation/attention.py --device cuda --draw-only

Heads are those of Flux, 24 of 128, in bfloat16, without a mask; 4,608 tokens are its 1024 x 1024. `triton` is a program
whose attention is one kernel of UOps, in whose place kcg puts baselines/kernels/flash_triton.py; `c` the same on a CPU.
Writes results/attention.json, and from it a picture and a table. The same command goes on where it was.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer
from baselines import opening

from kcg.commandline import guarded
from kcg.errors import UnknownName

OUT = Path(__file__).parent / "results" / "attention.json"
WORK = Path("kcg-out") / "attention"
PYTORCH = {"eager": "eager", "compile": "default"}
SIZES: dict[str, dict[str, Any]] = {
    "full": {"heads": 24, "width": 128, "dtype": "bfloat16", "tokens": (4608, 512, 1024, 2048, 4096)},
    "mini": {"heads": 2, "width": 16, "dtype": "float32", "tokens": (32, 64)},
}


def headline(run: str) -> Any:
    """Cold seconds and TFLOP/s of every contender at each length."""

    from baselines.figures import key_of

    def made(rows: dict[str, Any]) -> dict[str, float]:
        told = {}
        for key, row in rows.items():
            for name, found in row["contenders"].items():
                if found["status"] == "ok":
                    told[key_of(name, key.split()[0], "s", run)] = found["cold_s"]
                    told[key_of(name, key.split()[0], "tflop_s", run)] = found["tflop_s"]
        return told

    return made


def main(
    device: opening.Device = "auto",
    size: opening.Size = "full",
    tune: opening.Tune = "60s",
    contenders: opening.Names = "tinygrad,BEAM=2,kcg,triton,eager,compile",
    budget: opening.Budget = "",
    again: opening.Again = False,
    retry: opening.Retry = False,
    draw_only: opening.DrawOnly = False,
    work: opening.Work = WORK,
    out: opening.Out = OUT,
) -> None:
    """Time what is not in the results yet."""
    from baselines.comparing import TINY, by_hand, in_torch
    from baselines.pictures import write_attention

    from kcg.compat.device import choose_device

    if size not in SIZES:
        raise UnknownName("size", size, list(SIZES))
    if draw_only:
        opening.redraw(write_attention, out, size, device)
        return
    hand = [by_hand("triton", "flash_triton.py", "CUDA"), by_hand("c", "flash_c.py", "CPU")]
    chosen = opening.named("contender", contenders, (*TINY, *hand, *in_torch(PYTORCH)))
    with opening.comparison(
        choose_device(device).dev, size, out, headline=headline, budget=budget, again=again, retry=retry, tune=tune,
        work=work, limit=600.0, write=write_attention,
    ) as opened:  # fmt: skip
        for tokens in SIZES[size]["tokens"]:
            opened.time(f"{tokens} tokens", {**SIZES[size], "kind": "attention", "tokens": tokens}, chosen)


if __name__ == "__main__":
    application = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    application.command()(main)
    guarded(lambda: application(standalone_mode=False))
