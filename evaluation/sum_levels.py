"""The sum of 1 GiB of float32 at each level of abstraction, against what a copy of it moves.

    python evaluation/sum_levels.py --device cuda --budget 8m
    python evaluation/sum_levels.py --device cpu --size mini --tune 5s
    python evaluation/sum_levels.py --device cuda --draw-only

tinygrad's expression as it schedules it, with BEAM=2 and with kcg; by hand in UOps, CUDA source and PTX, launched by
tinygrad; and PyTorch. All in turns, each in a process of its own. What runs on CUDA only says so elsewhere.
Writes results/sum_levels.json, and from it a picture and a table.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer
from baselines import opening

from kcg.commandline import guarded
from kcg.errors import UnknownName

OUT = Path(__file__).parent / "results" / "sum_levels.json"
WORK = Path("kcg-out") / "sum_levels"
ELEMENTS = {"full": 1 << 28, "mini": 1 << 18}
HAND = ("uops", "cuda", "ptx")
LEVELS = ",".join(("tinygrad,BEAM=2,kcg", *HAND, "torch"))
SUM, COPY = "sum", "copy"


def headline(run: str) -> Any:
    """Cold seconds and GB/s of every level, and GB/s of the copy, which reads and writes."""

    from baselines.figures import key_of

    def made(rows: dict[str, Any]) -> dict[str, float]:
        told = {}
        for key, row in rows.items():
            for name, found in row["contenders"].items():
                if found["status"] == "ok":
                    told[key_of(name, key, "s", run)] = found["cold_s"]
                    told[key_of(name, key, "gb_s", run)] = found["gb_s"]
        return told

    return made


def main(
    device: opening.Device = "auto",
    size: opening.Size = "full",
    tune: opening.Tune = "60s",
    levels: opening.Names = LEVELS,
    budget: opening.Budget = "",
    again: opening.Again = False,
    retry: opening.Retry = False,
    draw_only: opening.DrawOnly = False,
    work: opening.Work = WORK,
    out: opening.Out = OUT,
) -> None:
    """Time what is not in the results yet: the copy, then all levels."""
    from baselines.comparing import TINY
    from baselines.pictures import write_sum
    from baselines.pool import Contender

    from kcg.compat.device import choose_device

    if size not in ELEMENTS:
        raise UnknownName("size", size, list(ELEMENTS))
    if draw_only:
        opening.redraw(write_sum, out, size, device)
        return
    torch = Contender("torch", "torch_side", {"how": "eager"})
    by_hand = [Contender(how, "tiny_side", {"how": how}) for how in HAND]
    chosen = opening.named("level", levels, (*TINY, *by_hand, torch))
    with opening.comparison(
        choose_device(device).dev, size, out, headline=headline, budget=budget, again=again, retry=retry, tune=tune,
        work=work, write=write_sum,
    ) as opened:  # fmt: skip
        for key, contenders in ((COPY, [torch]), (SUM, chosen)):
            opened.time(key, {"kind": key, "elements": ELEMENTS[size], "dtype": "float32"}, contenders)


if __name__ == "__main__":
    application = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    application.command()(main)
    guarded(lambda: application(standalone_mode=False))
