"""Softmax, LayerNorm, a GELU MLP, and a step of ResNet-50, GPT-2 and Llama: kcg against tinygrad and PyTorch.

    python evaluation/layers_torch.py --device cuda --budget 4m
    python evaluation/layers_torch.py --device cpu --size mini --tune 5s --only softmax

tinygrad hand-coded, with BEAM=2 and with kcg's schedules, a whole step under TinyJit; PyTorch eager, compiled, and
compiled into CUDA graphs. All in turns, each in a process of its own. The models are those of `kcg.workloads`, with the
same weights in both libraries; Llama decodes one token with a cache. The same command goes on where it was.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from kcg.commandline import guarded
from kcg.errors import UnknownName

OUT = Path(__file__).parent / "results" / "layers_torch.json"
WORK = Path("kcg-out") / "layers_torch"
LAYERS = {
    "full": {
        "softmax": ((4096, 4096), (32768, 1024), (2048, 65536)),
        "layernorm": ((4608, 3072), (16384, 1024), (65536, 768)),
        "gelu_mlp": ((2304, 1024), (4608, 3072)),
    },
    "mini": {"softmax": ((24, 40),), "layernorm": ((16, 48),), "gelu_mlp": ((16, 32),)},
}
MODELS = {
    "full": {"resnet": "resnet50-f16", "gpt2": "small", "llama": "3.2-1b-decode"},
    "mini": {"resnet": "mini", "gpt2": "mini", "llama": "mini-decode"},
}
PYTORCH = {"eager": "eager", "compile": "default", "compile-graphs": "reduce-overhead"}


def cases(size: str) -> dict[str, dict[str, Any]]:
    """Every case of a size by its key."""
    import importlib

    dtype = {"full": "bfloat16", "mini": "float32"}[size]
    found = {
        f"{kind} {rows}x{width}": {"kind": kind, "rows": rows, "width": width, "dtype": dtype}
        for kind, shapes in LAYERS[size].items()
        for rows, width in shapes
    }
    for name, preset in MODELS[size].items():
        config = importlib.import_module(f"kcg.workloads.zoo.{name}").PRESETS[preset]
        found[f"{name} {preset}"] = {"kind": "family", "name": name, "preset": preset, "dtype": config.dtype}
    return found


def headline(run: str) -> Any:
    """Cold seconds of every contender, by case."""

    from baselines.figures import key_of

    def made(rows: dict[str, Any]) -> dict[str, float]:
        return {
            key_of(name, key, "s", run): found["cold_s"]
            for key, row in rows.items()
            for name, found in row["contenders"].items()
            if found["status"] == "ok"
        }

    return made


def main(
    device: Annotated[str, typer.Option(help="as kcg.optimize --device")] = "auto",
    size: Annotated[str, typer.Option(help="full or mini")] = "full",
    only: Annotated[str, typer.Option(help="cases whose names contain this")] = "",
    tune: Annotated[str, typer.Option(help="kcg's budget for each case")] = "60s",
    contenders: Annotated[str, typer.Option(help="with commas between")] = ",".join(("tinygrad,BEAM=2,kcg", *PYTORCH)),
    limit: Annotated[float, typer.Option(help="seconds that making a contender ready may take")] = 300.0,
    budget: Annotated[str, typer.Option(help="after which no new row is begun; empty: none")] = "",
    again: Annotated[bool, typer.Option("--again", help="forget the rows that are there")] = False,
    retry: Annotated[bool, typer.Option("--retry", help="forget those in which something failed")] = False,
    work: Annotated[Path, typer.Option(help="what kcg and BEAM found, for a call that goes on")] = WORK,
    out: Annotated[Path, typer.Option(help="the results file")] = OUT,
) -> None:
    """Time what is not in the results yet."""
    from baselines.comparing import TINY, compare, shown
    from baselines.pool import Contender, Pool
    from baselines.reports import times_table
    from baselines.rows import Rows
    from baselines.turns import Turns

    from kcg.compat.device import choose_device
    from kcg.optimize.settings import parse_budget

    if size not in LAYERS:
        raise UnknownName("size", size, list(LAYERS))
    known = {c.name: c for c in TINY} | {n: Contender(n, "torch_side", {"how": how}) for n, how in PYTORCH.items()}
    if unknown := [name for name in contenders.split(",") if name not in known]:
        raise UnknownName("contender", unknown[0], list(known))
    dev, chosen = choose_device(device).dev, [known[name] for name in contenders.split(",")]
    run, settings = f"{size}_{dev.lower().replace(':', '_')}", {"tune": tune}
    rows = Rows(out, run, budget=budget, again=again, retry=retry, settings=settings, headline=headline(run))
    with Pool(dev, prepare_s=limit, work=work) as pool:
        for key, case in cases(size).items():
            if only in key and rows.wanted(key):
                row = compare(Turns(pool), case, chosen, tune_s=parse_budget(tune), work=work)
                rows.add(key, row)
                typer.echo(f"{key}: {shown(row)}")
    typer.echo("\n".join(times_table(rows.rows)))
    if rows.left:
        typer.echo(f"{rows.left} rows are left: run the same command again")


if __name__ == "__main__":
    application = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    application.command()(main)
    guarded(lambda: application(standalone_mode=False))
