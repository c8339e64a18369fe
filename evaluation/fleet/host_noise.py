"""How far checks of one host are apart that should be the same: what the limits for other hosts have to leave.

    python -m evaluation.fleet.host_noise CPU:X86 --checks 20
    python -m evaluation.fleet.host_noise CUDA --checks 20

Each check opens a service of its own and reports as a host of a fleet does (`kcg.fleet.trust`). Writes
evaluation/results/host_noise.json. Every check is compared with every other one, as if one were the first host of the
target: the median over the reference kernels, and the kernel that is furthest off.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from kcg.cli import record_results, run_script
from kcg.fleet.trust import HostReport, apart, host_report, ratios_of

OUT = Path(__file__).parents[1] / "results" / "host_noise.json"


def figures(reports: Sequence[HostReport]) -> dict[str, Any]:
    """Shares by which checks differ, 0.03 for 3 %: the half, 99 of 100 and all of them are no further apart."""
    pairs = [list(ratios_of(*pair).values()) for pair in itertools.combinations(reports, 2)]
    return {
        "agree": _spread([apart(statistics.median(ratios)) for ratios in pairs]),
        "each": _spread([max(map(apart, ratios)) for ratios in pairs]),
        "noise": _spread([kernel.noise for report in reports for kernel in report.kernels]),
        "canary": _spread([apart(a.canary_s / b.canary_s) for a, b in itertools.combinations(reports, 2)]),
    }


def _spread(found: list[float]) -> dict[str, float]:
    ordered = sorted(found)
    places = {"median": 0.5, "p99": 0.99, "most": 1.0}
    return {name: round(ordered[int(place * (len(ordered) - 1))], 4) for name, place in places.items()}


def main(
    device: Annotated[str, typer.Argument(help="as kcg.optimize --device")] = "auto",
    checks: Annotated[int, typer.Option(min=2, help="how many")] = 20,
    out: Annotated[Path, typer.Option(help="the results file")] = OUT,
) -> None:
    """Check this host again and again."""
    from kcg.compat.device import choose_device, prepare
    from kcg.measure.service import MeasureService

    dev = choose_device(device).dev
    prepare(dev)
    reports, seconds, load = [], [], []
    for _ in range(checks):
        with MeasureService(dev, run_id="") as service:
            target = service.target
            begin = time.perf_counter()
            reports.append(host_report(service))
        seconds.append(time.perf_counter() - begin)
        load.append(os.getloadavg()[0])
        typer.echo(f"{len(reports)}/{checks}: {seconds[-1]:.1f} s, {reports[-1].fault or 'right'}")
    right = [report for report in reports if not report.fault]
    found = figures(right)
    name = dev.lower().replace(":", "_")
    entry = {
        "command": f"python -m evaluation.fleet.host_noise {dev} --checks {checks}",
        "model": target.model,
        "cores": os.cpu_count(),
        "load_average": [round(min(load), 1), round(max(load), 1)],
        "faults": [report.fault for report in reports if report.fault],
        "check_s": round(statistics.median(seconds), 2),
        "figures": found,
        "times": [[asdict(kernel) for kernel in report.kernels] for report in right],
    }
    headline = {f"{what}_{part}_{name}": value for what, parts in found.items() for part, value in parts.items()}
    record_results(out, name, entry, headline)
    typer.echo(json.dumps(found))


if __name__ == "__main__":
    run_script(main)
