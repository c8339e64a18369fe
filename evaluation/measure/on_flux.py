"""How a script that measures single kernels of Flux begins and ends: its device, its kernels, its results."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from evaluation.rows import run_of
from kcg.cli import record_results
from kcg.compat.device import choose_device, prepare
from kcg.kernel.analysis import arithmetic, least_bytes
from kcg.kernel.codec import ast_of
from kcg.types import Workload, WorkloadCall
from kcg.workloads.registry import find

RESULTS: Final = Path(__file__).parents[2] / "evaluation" / "results"
OPERATIONS_PER_BYTE: Final = 100  # what weighs a kernel's traffic against its arithmetic

Device = Annotated[str, typer.Argument(help="as kcg.optimize --device")]
Preset = Annotated[str, typer.Option(help="of Flux")]
Out = Annotated[Path, typer.Option(help="the results file")]


@dataclass(frozen=True)
class OnFlux:
    """One call of such a script: where it measures, what, and where that goes."""

    dev: str
    preset: str
    workload: Workload
    module: str
    asked: str  # the device as it was named
    out: Path

    @classmethod
    def begun(cls, module: str, device: str, preset: str, out: Path) -> OnFlux:
        """Chooses the device and records the kernels. Raises DeviceError and UnknownName."""
        choice = choose_device(device)
        spec, preset = find("flux", preset, choice.device)
        prepare(choice.dev)
        return cls(choice.dev, preset, spec.capture(preset), module, device, out)

    def keep(self, tinygrad_device: str, rows: list[dict[str, Any]], headline: dict[str, Any], **more: Any) -> None:
        """Writes the rows with what more there is to say of them, and the headline under the name of this run."""
        name = run_of(self.preset, tinygrad_device)
        entry = {"kernels": rows, "command": f"python -m {self.module} {self.asked} --preset {self.preset}", **more}
        record_results(self.out, name, entry, {f"{key}_{name}": value for key, value in headline.items()})


def work_of(call: WorkloadCall) -> float:
    """Operations of one call, and its traffic weighed against them."""
    ast = ast_of(call.region.kernel)
    return float(arithmetic(ast) + OPERATIONS_PER_BYTE * least_bytes(ast))


def reported(headline: dict[str, Any]) -> None:
    """Prints a headline, the one line of a script on stdout."""
    typer.echo(json.dumps(headline))
