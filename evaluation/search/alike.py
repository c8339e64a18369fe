"""How far apart are the runtimes of schedules that are alike, so that a search measures one of them?

    python -m evaluation.search.alike

From what methods measured on the kernels of Flux (the campaign's journals) and the recorded tables of the dataset, on
any machine. Compared are pairs of different binaries of which one takes at most a third longer than the kernel's best.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from kcg.cli import command_text, record_results, run_script
from kcg.kernel.opts.space import KernelSpace
from kcg.search.problem import Observation

ROOT = Path(__file__).parents[2]
SLOWEST = 4 / 3  # relative to the best
QUANTILES = (0.5, 0.9, 0.95, 0.99)


def main(
    work: Annotated[Path, typer.Option(help="the campaign's folder")] = ROOT / "evaluation" / "results" / "flux-table",
    dev: Annotated[str, typer.Option(help="whose journals")] = "CUDA",
    dataset: Annotated[Path, typer.Option(help="an export with replay tables")] = ROOT / "datasets" / "h200",
    out: Annotated[Path, typer.Option(help="the results file")] = ROOT / "evaluation" / "results" / "alike.json",
) -> None:
    """Write down the distances within and between groups."""
    found: dict[str, dict[str, float]] = {}
    for source, kernels in (("flux", _measured(work, dev)), ("tables", _recorded(dataset))):
        groups: dict[str, list[tuple[KernelSpace, list[Observation]]]] = defaultdict(list)
        for space, seen in kernels:
            cores = space.table(space.baseline()).tensor_core
            groups[f"{source}, {'tensor cores' if cores else 'others'}"].append((space, seen))
        found |= {name: _distances(members) for name, members in groups.items()}
    for name, row in found.items():
        typer.echo(f"{name}: " + ", ".join(f"{key} {value:.4g}" for key, value in row.items()))
    headline = {
        f"alike_p95_pct_{name.replace(', ', '_').replace(' ', '_')}": 100 * row["alike_p95"]
        for name, row in found.items()
        if "alike_p95" in row
    }
    record_results(out, "alike", {"command": command_text("evaluation.search.alike"), "groups": found}, headline)


def _distances(kernels: Iterable[tuple[KernelSpace, list[Observation]]]) -> dict[str, float]:
    """How many fast schedules and groups there are, kernels with pairs alike, and quantiles of the pairs' log-ratios:
    of those alike, and of neighbours, a step apart, that are not."""
    import numpy as np

    from kcg.search.moves import StepSets, near_duplicates

    schedules = groups = binaries = kernels_with = 0
    alike, near = list[float](), list[float]()
    for space, seen in kernels:
        limit_s, before, sets = SLOWEST * min(o.time_s for o in seen), len(alike), StepSets()
        by_key = {space.key(o.schedule): o for o in seen}.values()
        rows = [(space.alike(o.schedule), sets.of(o.schedule), o) for o in sorted(by_key, key=lambda o: o.time_s)]
        fast = [row for row in rows if row[2].time_s <= limit_s]
        schedules += len(fast)
        groups += len({kind for kind, _, _ in fast})
        binaries += len({o.binary_hash for _, _, o in fast})
        for place, (a, steps, one) in enumerate(fast):
            for b, others, other in rows[place + 1 :]:
                if one.binary_hash != other.binary_hash and (a == b or near_duplicates(steps, others)):
                    (alike if a == b else near).append(math.log(other.time_s / one.time_s))
        kernels_with += len(alike) > before
    row: dict[str, float] = {"schedules": schedules, "binaries": binaries, "groups": groups, "kernels": kernels_with}
    for name, values in (("alike", alike), ("neighbours", near)):
        row[f"{name}_pairs"] = len(values)
        row |= {f"{name}_p{100 * q:.0f}": float(np.quantile(values, q)) for q in QUANTILES if values}
    return row


def _measured(work: Path, dev: str) -> Iterator[tuple[KernelSpace, list[Observation]]]:
    from evaluation.flux.campaign import Campaign
    from evaluation.search.device_journal import DeviceJournal

    for preset in ("1024", "768"):
        journal = DeviceJournal(work / f"{dev}-{preset}.jsonl")
        campaign = Campaign(journal, preset, dev, ())
        for region, _ in campaign.searched():
            seen = [o for o in journal.of(region.id).rows.values() if math.isfinite(o.time_s)]
            if seen:
                yield KernelSpace(region, campaign.setting.target), seen


def _recorded(dataset: Path) -> Iterator[tuple[KernelSpace, list[Observation]]]:
    from kcg.dataset.reading import read_export
    from kcg.search.replay import kernels_of

    for kernel in kernels_of(read_export(dataset), "all"):
        records = kernel.table.records.values()
        yield (
            KernelSpace(kernel.region, kernel.target),
            [r.observation for r in records if math.isfinite(r.observation.time_s)],
        )


if __name__ == "__main__":
    run_script(main)
