"""A part of the recorded dataset that trains in seconds: real kernels and real times of one H200."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path

from kcg.dataset.export import export
from kcg.dataset.journal import Journal
from kcg.dataset.reading import read_export
from kcg.measure.protocol import PROTOCOL
from kcg.types import Workload

H200 = Path(__file__).parent.parent / "datasets" / "h200"
TILES = H200.parent / "h200-tiles"
PER_KERNEL = 24


def small_dataset(folder: Path, *, families: dict[str, int], seed: int = 0, of: Path = H200) -> Path:
    """An export with so many kernels, or regions, of each family, up to `PER_KERNEL` rows each; its folder."""
    whole = read_export(of)
    rng = random.Random(seed)
    kept: list[Workload] = []
    left = dict(families)
    wanted: set[str] = set()
    for workload in whole.workloads():
        calls = [call for call in workload.calls if not call.variables]
        chosen = rng.sample(calls, min(len(calls), left.get(workload.name, 0)))
        if chosen:
            left[workload.name] -= len(chosen)
            wanted |= {call.region.id for call in chosen}
            kept.append(Workload(workload.name, workload.preset, tuple(chosen)))
    rows = defaultdict(list)
    for record in whole.records(PROTOCOL, regions=wanted):
        rows[record.measurement.region_id].append(record.measurement)
    with Journal.open(folder / "small.sqlite") as journal, journal.bulk():
        for workload in kept:
            journal.add_workload(workload)
        for fingerprint, target in whole.targets().items():
            journal.add_target(target, fingerprint)
        for fingerprint, toolchain in whole.toolchains().items():
            journal.add_toolchain(toolchain, fingerprint)
        for run in whole.runs().values():
            journal.add_run(run)
        for measured in rows.values():
            for row in rng.sample(measured, min(len(measured), PER_KERNEL)):
                journal.record(row)
    with Journal.open(folder / "small.sqlite", create=False) as journal:
        export(journal, folder / "export")
    return folder / "export"
