"""The kernels of a run of kcg on Flux with their times."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from kcg.compat.tiny import UOp
from kcg.errors import UnknownName, UsageError
from kcg.kernel.codec import ast_of

from .opening import run_of

OPTIMIZED = Path(__file__).parent.parent / "results" / "optimize_flux.json"


@dataclass(frozen=True)
class Timed:
    """A kernel of a step, and the seconds of all its calls with tinygrad's own schedule and with kcg's."""

    ast: UOp
    name: str
    calls: int
    hand_coded_s: float
    kcg_s: float


def of_result(path: Path, preset: str, device: str) -> list[Timed]:
    """The kernels of a RESULT.json. Raises UsageError where it is of something else."""
    from kcg.optimize.result import read_result

    result = read_result(path)
    made = (result.workload, result.preset, result.target.device)
    if made != ("flux", preset, device.partition(":")[0]):
        raise UsageError(f"{path} is of {made[0]} {made[1]} on {made[2]}: give the result of flux {preset} on {device}")
    return [Timed(ast_of(r.region.kernel), r.chosen.name, r.calls, r.before_s, r.after_s) for r in result.regions]


def of_run(preset: str, device: str, path: Path = OPTIMIZED) -> list[Timed]:
    """The kernels of a run in the results of `evaluation/optimize_flux.py`: no ASTs, but in the order of a step's first
    calls, which is that of a model with one block of each kind.

    Raises UnknownName where there is no such run, UsageError where its kernels are not those of the present model.
    """
    from kcg.workloads import flux
    from kcg.workloads.capture import lazy_workload

    runs = json.loads(path.read_text())["runs"]
    if (run := run_of(preset, device)) not in runs:
        raise UnknownName("run", run, list(runs))
    model, inputs = flux.build(preset, double_blocks=1, single_blocks=1)
    captured, kept = lazy_workload("flux", preset, flux.step(model, inputs)).calls, runs[run]["kernels"]
    if len(captured) != len(kept):
        raise UsageError(f"{path} has {len(kept)} kernels of {run}, the model has {len(captured)}: give --result")
    return [
        Timed(ast_of(call.region.kernel), told["name"], told["calls"], told["before_s"], told["after_s"])
        for call, told in zip(captured, kept, strict=True)
    ]
