"""What recording scripts costs, and what of it a search need not do again.

    python -m evaluation.search.recording
    python -m evaluation.search.recording SCRIPT.py …

Each script is recorded by a process of its own, as `python -m kcg.optimize SCRIPT.py` records it. Processor seconds are
those of all its processes: on a busy machine they say more than the clock. Lowering is by the clock, the sum of all
kernels whose programs are used again, as baselines and in the check of the whole.
"""

from __future__ import annotations

import os
import platform
import resource
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from kcg.cli import command_text, record_results, run_script
from kcg.compat.device import choose_device
from kcg.workloads.script import Form, Program, capture_program

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(path for path in (Path(__file__).parent / "scripts").glob("*.py") if path.stem != "__init__")


def main(
    scripts: Annotated[list[Path] | None, typer.Argument(help="by default those of this package")] = None,
    device: Annotated[str, typer.Option(help="as of kcg optimize")] = "cpu",
    out: Annotated[Path, typer.Option(help="the results file")] = ROOT / "evaluation" / "results" / "recording.json",
) -> None:
    """Record each script, and write the results."""
    dev = choose_device(device).dev
    rows = {script.stem: recorded(script, dev) for script in scripts or SCRIPTS}
    headline = {
        "recording_cpu_s": round(sum(row["cpu_s"] for row in rows.values()), 1),
        "lowering_s": round(sum(row["lowering_s"] for row in rows.values()), 1),
        "used_again_min": min(row["used_again"] / row["kernels"] for row in rows.values()),
    }
    entry = {
        "command": command_text("evaluation.search.recording"),
        "device": dev,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "scripts": rows,
        **headline,
    }
    record_results(out, dev, entry, headline)
    for name, row in rows.items():
        took = f"{row['cpu_s']:6.1f} s of processors, {row['seconds']:6.1f} by the clock"
        lowering = f"lowered in {row['lowering_s']:.1f} s by the clock"
        again = f"{row['used_again']} of {row['kernels']} kernels used again, {lowering}"
        typer.echo(f"{name:12} {took}; {again}")


def recorded(script: Path, dev: str) -> dict[str, Any]:
    """What recording one script took."""
    before, begin = _children_s(), time.monotonic()
    found = capture_program(Program(Form.SCRIPT, str(script)), dev=dev)
    seconds, cpu_s = time.monotonic() - begin, _children_s() - before
    kernels = {call.region.id for call in found.workload.calls}
    used = [one for kernel, one in found.lowered.items() if kernel in kernels]
    return {
        "cpu_s": cpu_s,
        "seconds": seconds,
        "kernels": len(kernels),
        "used_again": len(used),
        "lowering_s": sum(one.seconds for one in used),
    }


def _children_s() -> float:
    """Processor seconds of all children that ended, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    run_script(main)
