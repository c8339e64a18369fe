"""Rows a second of measuring compiled programs on one device, and where the time of a row goes.

    python -m kcg.dataset generate --compile-only --target h100 --workloads flux/768,llm/llama-1b-q4_k_m \\
        --regions 10 --kinds tile --kernels-per-family 20 --schedules-per-kernel 24 --out campaign.sqlite
    python -m evaluation.dataset.measure_rate campaign.sqlite --budget 120s   # on the GPU, with both files

A copy of the journal and of the programs beside it is measured, so that the same files may be measured again. The
first seconds, in which the device opens, are in `rows_per_s` and not in `rows_per_s_steady`, which counts from the
first row on. `ms_a_row` is the time of the child that has the device, by phase; what is left of it is waiting.
Updates evaluation/results/tile_data.json, run `measure rate`.
"""

from __future__ import annotations

import shutil
import tempfile
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from evaluation.rows import this_command
from kcg.campaign.generate import generate_on
from kcg.campaign.settings import CampaignSettings, Stage
from kcg.cli import parse_budget, record_results, run_script
from kcg.compat.device import choose_device, prepare
from kcg.dataset.journal import Journal
from kcg.dataset.programs import programs_beside
from kcg.errors import UsageError
from kcg.measure.protocol import PROTOCOL
from kcg.measure.service import MeasureService, ServiceSettings

OUT = Path(__file__).parents[1] / "results" / "tile_data.json"


def measured(journal: Path, device: str, budget_s: float | None) -> dict[str, Any]:
    """What measuring all that waits beside a journal comes to, in the time that is given."""
    choice = choose_device(device)
    prepare(choice.dev)
    settings = CampaignSettings(journal, device=device, stage=Stage.MEASURE, budget_s=budget_s)
    beside = ServiceSettings(references_beside=not choice.dev.startswith("CPU"))
    began = time.monotonic()
    with MeasureService(choice.dev, run_id=uuid.uuid4().hex, settings=beside) as service:
        summary = generate_on(settings, [(service, ())], began=began, log=lambda line, eta_s: print(line, flush=True))
        spent = Counter(service.spent_s)
        facts = {
            "model": service.target.model,
            "compilers": service.compile_workers,
            "binaries": service.binaries_timed,
            "children_replaced": service.children_replaced,
        }
    with Journal.open(journal, create=False, read_only=True) as stored:
        records = [record for record in stored.records(PROTOCOL) if record.measurement.run_id == service.run_id]
    rows, spent_s = len(records), {phase: seconds for phase, seconds in spent.items() if phase != "compile"}
    if not rows:
        raise UsageError(f"nothing was measured of {journal}: give a larger --budget, or other programs")
    stamps = sorted(record.recorded_unix_s for record in records)
    sampled = sum(sum(record.measurement.samples_s) for record in records)
    return {
        **facts,
        "rows": rows,
        "statuses": summary.statuses,
        "by_sampler": dict(Counter(record.measurement.sampler for record in records)),
        "regions": summary.kernels,
        "rows_per_s": rows / summary.elapsed_s,
        "rows_per_s_steady": (rows - 1) / max(stamps[-1] - stamps[0], 1e-9),
        "sampled_share": sampled / summary.elapsed_s,
        "device_busy": summary.device_busy,
        "ms_a_row": {phase: 1e3 * seconds / rows for phase, seconds in sorted(spent_s.items())},
    }


def main(
    journal: Annotated[Path, typer.Argument(metavar="FILE", help="a journal with programs beside it")],
    device: Annotated[str, typer.Option(metavar="NAME", help="auto, CUDA, CPU …")] = "auto",
    budget: Annotated[str | None, typer.Option(metavar="TIME", help="e.g. 2m; all by default")] = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="the results")] = OUT,
) -> None:
    """Measure a copy of what waits beside FILE, and say how fast."""
    with tempfile.TemporaryDirectory(prefix="kcg-rate-") as folder:
        copy = Path(folder) / "campaign.sqlite"
        for path, to in ((journal, copy), (programs_beside(journal), programs_beside(copy))):
            if not path.exists():
                raise UsageError(f"there is no {path}: the docstring of this script says what makes it")
            shutil.copy(path, to)
        entry = measured(copy, device, None if budget is None else parse_budget(budget))
    headline = {"rows_per_s": entry["rows_per_s_steady"]}
    record_results(out, "measure rate", {**entry, "command": this_command()}, headline)
    for name, value in entry.items():
        print(f"{name}: {value}")


if __name__ == "__main__":
    run_script(main)
