"""Softmax, LayerNorm, a GELU MLP, and a step of ResNet-50, GPT-2 and Llama: kcg against tinygrad and PyTorch.

    python evaluation/layers_torch.py --device cuda --budget 4m
    python evaluation/layers_torch.py --device cpu --size mini --tune 5s --only softmax
    python evaluation/layers_torch.py --device cuda --draw-only

tinygrad hand-coded, with BEAM=2 and with kcg's schedules, a whole step under TinyJit; PyTorch eager, compiled, and
compiled into CUDA graphs. All in turns, each in a process of its own. The models are those of `kcg.workloads`, with the
same weights in both libraries; Llama decodes one token with a cache.
Writes results/layers_torch.json, and from it a picture and a table. The same command goes on where it was.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from baselines import opening

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
USUAL = ",".join(("tinygrad,BEAM=2,kcg", *PYTORCH))


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


def main(
    device: opening.Device = "auto",
    size: opening.Size = "full",
    only: Annotated[str, typer.Option(help="cases whose names contain this")] = "",
    tune: opening.Tune = "60s",
    contenders: opening.Names = USUAL,
    limit: opening.Limit = 300.0,
    budget: opening.Budget = "",
    again: opening.Again = False,
    retry: opening.Retry = False,
    draw_only: opening.DrawOnly = False,
    work: opening.Work = WORK,
    out: opening.Out = OUT,
) -> None:
    """Time what is not in the results yet."""
    from baselines.comparing import TINY, in_torch
    from baselines.figures import cold_seconds
    from baselines.pictures import write_layers

    from kcg.compat.device import choose_device

    if size not in LAYERS:
        raise UnknownName("size", size, list(LAYERS))
    if draw_only:
        opening.redraw(write_layers, out, size, device)
        return
    chosen = opening.named("contender", contenders, (*TINY, *in_torch(PYTORCH)))
    with opening.comparison(
        choose_device(device).dev, size, out, headline=cold_seconds, budget=budget, again=again, retry=retry, tune=tune,
        work=work, limit=limit, write=write_layers,
    ) as opened:  # fmt: skip
        for key, case in cases(size).items():
            if only in key:
                opened.time(key, case, chosen)


if __name__ == "__main__":
    application = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    application.command()(main)
    guarded(lambda: application(standalone_mode=False))
