"""A step of Flux in PyTorch: diffusers' transformer, eager, in every mode of torch.compile and by the
public recipe for it, and each of its parts.

    python -m evaluation.flux.against_torch --preset 1024 --device cuda --budget 8m
    python -m evaluation.flux.against_torch --preset 1024 --device cuda --part steps --modes kcg --result RESULT.json
    python -m evaluation.flux.against_torch --preset mini --device cpu --part regions
    python -m evaluation.flux.against_torch --preset 1024 --device cuda --part beside --document DOCUMENT.md

Each mode runs in a fresh process; the fastest is the one to beat. The parts are cut as kcg's kernels are, so that these
can be placed beside them (`--part beside`, which needs no device): those of a RESULT.json, or of the run that is in
optimize_flux.json. Told are time, TFLOP/s, GB/s and the share of the roofline, whose ceilings are measured here too.
Every finished row is in the results file: the same command goes on where it was.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from evaluation.flux.gaps import OWN, of_result, of_run, put_beside
from evaluation.flux.in_pytorch import RECIPE, check_installed
from evaluation.pytorch import comparing
from evaluation.pytorch.reports import times_table
from evaluation.pytorch.turns import IN_TINYGRAD, Contender, Pool, Turns
from kcg.cli import run_script
from kcg.errors import UnknownName, UsageError

OUT = Path(__file__).parent.parent / "results" / "flux_torch.json"
IN_TORCH = "evaluation.flux.in_pytorch"
MODES = ("eager", "default", "reduce-overhead", "max-autotune-no-cudagraphs", "max-autotune", RECIPE)
STEP_FAR = 0.25  # of a step's output in two orders of rounding; beyond it a mode is wrong
PARTS = ("all", "steps", "regions", "beside")


def headline(run: str) -> Any:
    """The figures of a run: seconds of a step in each mode, and of the best."""

    def made(rows: dict[str, dict[str, Any]]) -> dict[str, float]:
        steps = {mode: rows.get(f"step {mode}", {}) for mode in (*MODES, *OWN)}
        seconds = {mode: row["cold_s"] for mode, row in steps.items() if row.get("status") == "ok"}
        times = {f"{mode.replace('-', '_')}_s_{run}": s for mode, s in seconds.items()}
        of_torch = [s for mode, s in seconds.items() if mode not in OWN]
        return times | ({f"best_s_{run}": min(of_torch)} if of_torch else {})

    return made


def main(
    preset: Annotated[str, typer.Option(help="mini, 768 or 1024; auto: as kcg takes it")] = "auto",
    device: comparing.Device = "auto",
    part: Annotated[str, typer.Option(help="all, steps, regions or beside")] = "all",
    modes: Annotated[str, typer.Option(help="of the steps, with commas between")] = ",".join(MODES),
    only: Annotated[str, typer.Option(help="parts whose names contain this")] = "",
    compiled: Annotated[bool, typer.Option(help="parts by torch.compile too")] = True,
    samples: Annotated[int, typer.Option(help="of a step, at least")] = 15,
    limit: Annotated[float, typer.Option(help="seconds that making a mode ready may take")] = 420.0,
    result: Annotated[Path | None, typer.Option(help="kcg's RESULT.json, else that of the results")] = None,
    budget: comparing.Budget = "",
    document: Annotated[Path | None, typer.Option(help="whose table of the parts is written")] = None,
    again: comparing.Again = False,
    retry: comparing.Retry = False,
    out: comparing.Out = OUT,
) -> None:
    """Time what is not in the results yet."""
    from kcg.compat.device import choose_device
    from kcg.workloads.flux import PRESETS
    from kcg.workloads.registry import find

    if part not in PARTS:
        raise UnknownName("part", part, list(PARTS))
    if part == "beside" and device == "auto":
        raise UsageError("say --device: that of the rows, since none is asked here")
    dev = choose_device(device).dev if part != "beside" else device.upper()
    preset = find("flux", preset, dev)[1]
    wanted = modes.split(",") if part in ("all", "steps") else []
    if set(wanted) - set(OWN):
        check_installed()
    if "kcg" in wanted and result is None:
        raise UsageError("the step with kcg's schedules needs them: give --result RESULT.json")
    from evaluation.flux.parts import names, reported  # seconds: it imports PyTorch

    case = {"preset": preset, "dtype": PRESETS[preset].dtype}
    asked = comparing.RunSettings(budget, again, retry, limit=limit)
    with comparing.opened(dev, preset, out, asked, headline=headline) as opened:
        rows = opened.rows
        for mode in wanted:
            if rows.wanted(key := f"step {mode}"):
                first = OWN[0] if mode in OWN else MODES[0]  # whose output the others must have
                reference = rows.rows.get(f"step {first}", {}).get("values")
                what = {"kind": "family", "name": "flux"} if mode in OWN else {"kind": "flux"}
                how = {"how": "hand-coded" if mode == "tinygrad" else mode, "result": str(result)}
                contender = Contender(mode, IN_TINYGRAD if mode in OWN else IN_TORCH, how)
                with Pool(dev, prepare_s=limit) as alone:
                    step = {**case, **what, "far": STEP_FAR}
                    row = Turns(alone, least=samples).row([contender], step, reference, keep_values=mode == first)[mode]
                rows.add(key, row)
                typer.echo(f"{key}: {row.get('cold_s', row.get('reason'))}")
        contenders = [Contender(how, IN_TORCH, {"how": how}) for how in ("eager", "default")[: 1 + compiled]]
        for name in names(preset) if part in ("all", "regions") else ():
            if only in name and rows.wanted(key := f"region {name}"):
                row = Turns(opened.pool).row(contenders, {**case, "kind": "region", "name": name})
                rows.add(key, reported(row, name, preset, "cpu" if dev.startswith("CPU") else "cuda", rows.rows))
                shown = {how: found.get("cold_s", found.get("reason")) for how, found in row.items()}
                typer.echo(f"{key}: {shown}")
        if part == "beside" or (result is not None and part != "steps"):
            kernels = of_run(preset, dev) if result is None else of_result(result, preset, dev)
            put_beside(rows, kernels, preset, document)
        if part in ("all", "regions"):
            typer.echo("\n".join(times_table({k: r for k, r in rows.rows.items() if "contenders" in r})))


if __name__ == "__main__":
    run_script(main)
