"""kcg list: the workloads that are known by name, their presets, and what each needs.

All of it is in the registry: nothing is captured, and no device is looked at.
"""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

from kcg import shell
from kcg.cli import command_app, counted, examples, guarded, pip_install, run_app, table_console
from kcg.commands import SETTINGS, command_name
from kcg.errors import ExitCode

EXTRAS = {"CPU": "clang", "GPU": "gpu"}  # nothing runs only with them, but faster

app = command_app()


def complete_name(incomplete: str) -> list[str]:
    """Names of workloads."""
    from kcg.workloads.registry import WORKLOADS

    return [name for name in WORKLOADS if name.startswith(incomplete)]


@app.command("list", context_settings=SETTINGS, epilog=examples("kcg list", "kcg list flux", "kcg list --json"))
def show(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="one workload, preset by preset", autocompletion=complete_name),
    ] = None,
    json_mode: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Show the workloads that kcg knows by name, with presets and what they need."""
    from kcg.workloads.registry import WORKLOADS, named_preset, spec_of

    found = [described(one) for one in (WORKLOADS if name is None else [spec_of(named_preset(name)[0]).name])]
    if json_mode:
        sys.stdout.write(json.dumps({"workloads": found}, indent=1) + "\n")
        return
    console = table_console()
    console.print(overview(found) if name is None else presets_of(found[0]))
    first = f"{found[0]['name']}/{found[0]['presets'][0]['name']}"
    command = shell.command(command_name("optimize"), first)
    lines = [
        f"to optimise one: {command}; without a preset it takes what fits the device",
        f"presets for a CPU are faster with a clang ({pip_install('clang')}); those for a GPU need a GPU, and "
        f"are faster on one of NVIDIA with Triton ({pip_install('gpu')})",
        f"sizes are of weights; {command_name('optimize')} NAME/PRESET --dry-run says what else is needed",
    ]
    if name is None:
        presets = sum(len(one["presets"]) for one in found)
        lines.insert(0, f"{counted(len(found), 'workload')}, {counted(presets, 'preset')}")
    sys.stdout.write("\n".join(lines) + "\n")


def described(name: str) -> dict[str, Any]:
    """A workload as `--json` prints it: name, about, and for each preset its name, device, what makes it faster, and
    the bytes of its weights, None where these are not known before it is captured."""
    from kcg.workloads.registry import spec_of

    spec = spec_of(name)
    on_cpu = spec.presets_for("CPU")
    presets = []
    for preset in spec.presets:
        device = "CPU" if preset in on_cpu else "GPU"
        weights = spec.weights_bytes(preset) if spec.weights_bytes is not None else None
        presets.append({"name": preset, "device": device, "extras": [EXTRAS[device]], "weights_bytes": weights})
    return {"name": name, "about": spec.about, "presets": presets}


def overview(found: list[dict[str, Any]]) -> Any:
    """A table of workloads, a line each."""
    from rich.table import Table

    table = Table("workload", "for a CPU", "for a GPU", "what it is", box=None, pad_edge=False)
    for one in found:
        columns = [", ".join(_shown(p) for p in one["presets"] if p["device"] == device) for device in EXTRAS]
        table.add_row(one["name"], *columns, one["about"])
    return table


def presets_of(one: dict[str, Any]) -> Any:
    """A table of the presets of one workload."""
    from rich.table import Table

    table = Table("preset", "device", "faster with", "weights", box=None, pad_edge=False, title=one["about"])
    for preset in one["presets"]:
        row = (preset["device"], ", ".join(preset["extras"]), _size(preset["weights_bytes"]) or "not known")
        table.add_row(f"{one['name']}/{preset['name']}", *row)
    return table


def _shown(preset: dict[str, Any]) -> str:
    size = _size(preset["weights_bytes"])
    return f"{preset['name']} ({size})" if size else str(preset["name"])


def _size(weights_bytes: int | None) -> str:
    if weights_bytes is None:
        return ""
    return f"{weights_bytes / 1e9:.1f} GB" if weights_bytes >= 1e9 else f"{weights_bytes / 1e6:.0f} MB"


def main() -> ExitCode:
    return run_app(app, command_name("list"))


if __name__ == "__main__":
    guarded(main)
