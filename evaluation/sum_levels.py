"""The sum of 1 GiB of float32 at each level of abstraction, against what a copy of it moves.

    python evaluation/sum_levels.py --device cuda --budget 8m
    python evaluation/sum_levels.py --device cpu --size mini --tune 5s

tinygrad's expression as it schedules it, with BEAM=2 and with kcg; by hand in UOps, CUDA source and PTX, launched by
tinygrad; and PyTorch. All in turns, each in a process of its own. What runs on CUDA only says so elsewhere.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from kcg.commandline import guarded
from kcg.errors import UnknownName

OUT = Path(__file__).parent / "results" / "sum_levels.json"
WORK = Path("kcg-out") / "sum_levels"
ELEMENTS = {"full": 1 << 28, "mini": 1 << 18}
HAND = ("uops", "cuda", "ptx")
LEVELS = ("tinygrad", "BEAM=2", "kcg", *HAND, "torch")
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
    device: Annotated[str, typer.Option(help="as kcg.optimize --device")] = "auto",
    size: Annotated[str, typer.Option(help="full or mini")] = "full",
    tune: Annotated[str, typer.Option(help="kcg's budget")] = "60s",
    levels: Annotated[str, typer.Option(help="with commas between")] = ",".join(LEVELS),
    budget: Annotated[str, typer.Option(help="after which no new row is begun; empty: none")] = "",
    again: Annotated[bool, typer.Option("--again", help="forget the rows that are there")] = False,
    retry: Annotated[bool, typer.Option("--retry", help="forget those in which something failed")] = False,
    work: Annotated[Path, typer.Option(help="what kcg and BEAM found, for a call that goes on")] = WORK,
    out: Annotated[Path, typer.Option(help="the results file")] = OUT,
) -> None:
    """Time what is not in the results yet: the copy, then all levels."""
    from baselines.comparing import TINY, compare, shown
    from baselines.pool import Contender, Pool
    from baselines.reports import times_table
    from baselines.rows import Rows
    from baselines.turns import Turns

    from kcg.compat.device import choose_device
    from kcg.optimize.settings import parse_budget

    if size not in ELEMENTS:
        raise UnknownName("size", size, list(ELEMENTS))
    torch = Contender("torch", "torch_side", {"how": "eager"})
    known = {c.name: c for c in (*TINY, *(Contender(how, "tiny_side", {"how": how}) for how in HAND), torch)}
    if unknown := [name for name in levels.split(",") if name not in known]:
        raise UnknownName("level", unknown[0], list(known))
    dev = choose_device(device).dev
    run = f"{size}_{dev.lower().replace(':', '_')}"
    settings = {"tune": tune}
    rows = Rows(out, run, budget=budget, again=again, retry=retry, settings=settings, headline=headline(run))
    with Pool(dev, work=work) as pool:
        for key, contenders in ((COPY, [torch]), (SUM, [known[name] for name in levels.split(",")])):
            if rows.wanted(key):
                case = {"kind": key, "elements": ELEMENTS[size], "dtype": "float32"}
                row = compare(Turns(pool), case, contenders, tune_s=parse_budget(tune), work=work)
                rows.add(key, row)
                typer.echo(f"{key}: {shown(row)}")
    typer.echo("\n".join(times_table(rows.rows)))
    if rows.left:
        typer.echo(f"{rows.left} rows are left: run the same command again")


if __name__ == "__main__":
    application = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    application.command()(main)
    guarded(lambda: application(standalone_mode=False))
