"""kcg doctor: which device and compiler will be used, what is missing, and how to get it."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from kcg.cli import command_app, examples, guarded, pip_install, run_app
from kcg.commands import SETTINGS, command_name
from kcg.errors import ExitCode, KcgError
from kcg.shell import setting

if TYPE_CHECKING:
    from kcg.kernel.kinds import Tools
    from kcg.types import Target

app = command_app()

CORE = (
    "tinygrad",
    "numpy",
    "gymnasium",
    "safetensors",
    "huggingface_hub",
    "pebble",
    "scipy",
    "threadpoolctl",
    "typer",
    "rich",
    "jinja2",
    "matplotlib",
)
EXTRAS = {
    "train": ("torch", "torch_geometric", "stable_baselines3", "sb3_contrib", "wandb", "optuna"),
    "data": ("pyarrow", "pandas", "datasets"),
    "gpu": ("triton",),
}


@dataclass(frozen=True)
class Finding:
    """One line of the diagnosis. `ok` False means that something does not work without it."""

    what: str
    found: str
    ok: bool = True
    advice: str = ""


def examine(device: str) -> list[Finding]:
    """Everything the doctor looks at, in the order in which a run needs it."""
    found = [_python(), *_packages(), *_compilers()]
    from kcg.compat.device import choose_device, prepare

    try:
        choice = choose_device(device)
    except KcgError as error:
        found.append(Finding("device", f"{device} cannot be used", ok=False, advice=str(error)))
        return found
    found.append(Finding("device", f"{choice.dev}: {choice.why}"))
    prepare(choice.dev)
    from kcg.measure.service import MeasureService

    try:
        with MeasureService(choice.dev, run_id="doctor") as service:
            target, toolchain = service.facts
    except KcgError as error:
        found.append(Finding("opens", "no", ok=False, advice=str(error)))
        return found
    cores = f"{target.cores} cores" if target.device == "CPU" else f"{target.cores} multiprocessors"
    memory = f", {target.memory_bytes / 2**30:.0f} GiB" if target.device != "CPU" else ""
    found.append(Finding("opens", f"yes: {target.model}, {target.arch}, {cores}{memory}"))
    found.append(Finding("compiler", toolchain.compiler + (f", driver {toolchain.driver}" if toolchain.driver else "")))
    found += _programs(target)
    if target.tensor_cores:
        found.append(Finding("tensor cores", f"{len(target.tensor_cores)} kinds, e.g. {target.tensor_cores[0]}"))
    from kcg.predictor.choice import shipped_path

    learned = f"learned, for {target.device}:{target.renderer}"
    found.append(Finding("predictor", learned if shipped_path(target) else "analytic: none was learned for it"))
    return found


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    ok = sys.version_info >= (3, 11)
    return Finding("python", version, ok, "" if ok else "kcg needs Python 3.11 or later")


def _packages() -> list[Finding]:
    from kcg.compat.versions import tinygrad_version

    found = []
    missing = [name for name in CORE if importlib.util.find_spec(name) is None]
    found.append(
        Finding(
            "packages",
            f"missing: {', '.join(missing)}" if missing else "all of the core",
            not missing,
            f"pip install {' '.join(missing)}" if missing else "",
        )
    )
    if "tinygrad" not in missing:
        version = tinygrad_version()
        ok = version == "0.14.0"
        found.append(Finding("tinygrad", version, ok, "" if ok else "pip install tinygrad==0.14.0"))
    for extra, names in EXTRAS.items():
        absent = [name for name in names if importlib.util.find_spec(name) is None]
        text = f"not installed: {', '.join(absent)}" if absent else "installed"
        found.append(Finding(f"extra {extra}", text, True, pip_install(extra) if absent else ""))
    return found


def _compilers() -> list[Finding]:
    from kcg.compat.device import clang_of_others, clang_path, has_cuda

    clang = clang_path()
    if clang is None:
        advice = (
            "kcg runs without it, through tinygrad's X86 assembler, 3 times slower; plain tinygrad 0.14.0 cannot "
            "open its CPU device without it: apt install clang, or pip install ziglang"
        )
        found = [Finding("clang", "not found", True, advice)]
    elif clang == clang_of_others():
        found = [Finding("clang", clang)]
    else:
        found = [
            Finding(
                "clang", clang, True, f"for plain tinygrad on the CPU: import kcg, or export {setting('CC', clang)}"
            )
        ]
    found.append(Finding("NVIDIA GPU", "found" if has_cuda() else "none"))
    return found


def _programs(target: Target) -> list[Finding]:
    """What makes the programs of each kind that needs more than tinygrad; of one that has none for a GPU, why."""
    from kcg.kernel.kinds import KINDS, kind_named, kinds_for

    kinds = map(kind_named, kinds_for(target) if target.device == "CPU" else KINDS)
    return [_found(f"{kind.noun}s", kind.tools(target)) for kind in kinds if kind.noun]


def _found(what: str, tools: Tools) -> Finding:
    if not tools.missing:
        return Finding(what, tools.found or "found", True, tools.advice)
    if not tools.possible:
        return Finding(what, f"none, Opts only: {tools.missing}")
    words, _, remedy = tools.missing.partition(": ")
    advice = f"up to 10 times faster matmuls with it: {remedy}" if remedy else ""
    return Finding(what, f"none, Opts only: {words}", True, advice)


@app.command(context_settings=SETTINGS, epilog=examples("kcg doctor", "kcg doctor --device CUDA"))
def doctor(
    device: Annotated[str, typer.Option(metavar="NAME", help="auto, CPU, CUDA …")] = "auto",
) -> None:
    """Say what device and compiler kcg will use here, what is missing, and how to get it."""
    found = examine(device)
    width = max(len(f.what) for f in found)
    for finding in found:
        mark = "ok  " if finding.ok and not finding.advice else "note" if finding.ok else "FAIL"
        typer.echo(f"{mark}  {finding.what:{width}}  {finding.found}")
        if finding.advice:
            typer.echo(f"      {'':{width}}  {finding.advice}")
    if not all(f.ok for f in found):
        raise typer.Exit(int(ExitCode.DEVICE_UNUSABLE))


def main() -> ExitCode:
    return run_app(app, command_name("doctor"))


if __name__ == "__main__":
    guarded(main)
