"""What corrections are worth on what a campaign measured of Flux's kernels: one schedule chosen after the other.

    python -m evaluation.predictor.choose_known
    python -m evaluation.predictor.choose_known --least 25 --result RESULT.json --result OTHER.json

A search that knew only the schedules which the campaign's methods timed begins with tinygrad's own and measures what is
expected to improve most. It is judged by how far its best is behind the best of all after so many measurements. With
`--result` what kcg's own runs timed is known too. Needs no device.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from evaluation.flux.known import AFTER, CORRECTIONS, followed, known_of
from evaluation.predictor.places import RESULTS, command
from evaluation.search.device_journal import DeviceJournal
from kcg.cli import record_results, run_script
from kcg.errors import UsageError
from kcg.kernel.opts.space import KernelSpace
from kcg.predictor.choice import choose_predictor


def main(
    work: Annotated[Path, typer.Option(help="the campaign's folder")] = RESULTS / "flux-table",
    result: Annotated[list[Path] | None, typer.Option(help="a RESULT.json of kcg's; may be repeated")] = None,
    least: Annotated[int, typer.Option(help="schedules that must be known of a kernel")] = 100,
    out: Annotated[Path, typer.Option(help="the results file")] = RESULTS / "choose_known.json",
) -> None:
    """Follow every kernel of which enough is known, then write the results."""
    journals = [DeviceJournal(path) for path in sorted(work.glob("CUDA-[0-9]*.jsonl")) if path.stem.count(".") == 0]
    known, rows = known_of(journals, result or []), dict[str, dict[str, list[float]]]()
    for journal in journals:
        if journal.setting is None:
            raise UsageError(f"{journal.path} holds no campaign yet: python -m evaluation.flux.table begins one")
        target, kernels = journal.setting.target, journal.setting.kernels
        predictor = choose_predictor("auto", target)
        for region, _, own_s in kernels:
            schedules = known.get(region.id, {})
            schedules.setdefault(KernelSpace(region, target).baseline(), own_s)
            if region.id not in rows and len(schedules) >= least:
                rows[region.id] = dict(followed(region, target, schedules, predictor))
                typer.echo(f"{len(rows)}: {len(schedules)} schedules", err=True)
    if not rows:
        raise UsageError(f"{work} has no kernel with {least} schedules: say another --work, or a smaller --least")
    headline = {
        f"{name}, behind after {count}": float(np.expm1(np.mean([row[name][place] for row in rows.values()])))
        for name in CORRECTIONS
        for place, count in enumerate(AFTER)
    }
    record_results(out, f"least {least}", {"command": command("choose_known"), "kernels": rows}, headline)
    for label, value in headline.items():
        typer.echo(f"{label}: {100 * value:.2f} %")


if __name__ == "__main__":
    run_script(main)
