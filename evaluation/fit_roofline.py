"""Fit the CPU constants of the analytic predictor to a journal, and say how well it ranks kernels left out of the fit.

    python -m kcg.dataset generate --workloads flux --preset mini --device CPU --schedules-per-kernel 40 --out FILE
    python evaluation/fit_roofline.py FILE

Writes evaluation/results/fit_roofline.json. The constants go into kcg/predictor/roofline.py by hand.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

import typer

from kcg.commandline import guarded
from kcg.dataset.journal import Journal
from kcg.errors import DataError, ExitCode
from kcg.measure.protocol import PROTOCOL
from kcg.predictor.fitting import fit_cpu, shipped_quality
from kcg.provenance import provenance


@dataclass(frozen=True)
class Settings:
    """Settings of the fit."""

    journal: Path
    holdout: float = 0.3  # share of the kernels whose quality is reported and which the fit does not see
    out: Path = Path(__file__).parent / "results" / "fit_roofline.json"


def run(settings: Settings) -> ExitCode:
    """Fit on all kernels, and once more without the held-out ones for an honest quality."""
    with Journal.open(settings.journal, create=False, read_only=True) as journal:
        targets = [t for t in journal.targets().values() if t.device == "CPU"]
        if len(targets) != 1:
            raise DataError(f"{settings.journal} has {len(targets)} CPU targets; the fit needs exactly one")
        rows, regions = list(journal.measurements(PROTOCOL)), journal.regions()
    target = targets[0]
    judged = fit_cpu(rows, regions, target, holdout=settings.holdout)
    final = fit_cpu(rows, regions, target)
    shipped = shipped_quality(rows, regions, target)
    headline = {
        "kendall_tau_large_heldout": judged.kendall_tau_large,
        "kendall_tau_large_shipped": shipped.kendall_tau_large,
        "kendall_tau_shipped": shipped.kendall_tau,
        "median_log_error_heldout": judged.median_log_error,
        "median_log_error_shipped": shipped.median_log_error,
        "rows": final.rows,
        "kernels": final.kernels,
    }
    report = json.loads(settings.out.read_text()) if settings.out.exists() else {"headline": {}}
    renderer = target.renderer.lower()
    report["headline"].update({f"{name}_{renderer}": value for name, value in headline.items()})
    report[renderer] = {
        "fitted_to_all": asdict(final), "heldout": asdict(judged), "shipped": asdict(shipped), "target": asdict(target),
        "command": f"python evaluation/fit_roofline.py {settings.journal.name}", "date": date.today().isoformat(),
        **provenance(),
    }  # fmt: skip
    settings.out.parent.mkdir(parents=True, exist_ok=True)
    settings.out.write_text(json.dumps(report, indent=1, sort_keys=True) + "\n")
    typer.echo(json.dumps(headline, indent=1))
    typer.echo(json.dumps(final.seconds, indent=1))
    return ExitCode.OK


def main(journal: Path) -> ExitCode:
    return run(Settings(journal))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python evaluation/fit_roofline.py JOURNAL")
    guarded(lambda: main(Path(sys.argv[1])))
