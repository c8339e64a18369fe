"""Time and bytes per row of a dataset as it grows: a journal is written, merged, exported, read and resumed.

    python -m evaluation.dataset.bench_dataset --sizes 30000,100000,150000,300000,1000000 --from zoo.sqlite

Kernels are those of a journal (`python -m kcg.dataset capture --workloads zoo --out zoo.sqlite`), or recombined ones;
their rows are those of evaluation/measure/made_up_rows.py. Updates evaluation/results/bench_dataset.json.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from pyarrow import parquet

from evaluation.measure.made_up_rows import TARGET, TOOLCHAIN, campaign, describe, workloads_of
from evaluation.rows import this_command
from kcg.cli import record_results, run_script
from kcg.dataset.export import export, merge, read_export
from kcg.dataset.journal import Journal
from kcg.measure.protocol import PROTOCOL
from kcg.types import Workload

RESULTS = Path(__file__).parent.parent / "results" / "bench_dataset.json"
ROWS_A_KERNEL = 58  # where there are kernels enough: 150,000 over 2,600
LOOKUPS = 50  # kernels whose rows are looked up


class Watch:
    """Seconds by name: by the clock, and of this process's processor time, which a busy machine does not stretch."""

    def __init__(self) -> None:
        self.clock_s: Counter[str] = Counter()
        self.processor_s: Counter[str] = Counter()

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        began, processor = time.perf_counter(), time.process_time()
        yield
        self.clock_s[name] += time.perf_counter() - began
        self.processor_s[name] += time.process_time() - processor


def write(paths: list[Path], workloads: list[Workload], rows: int, watch: Watch) -> None:
    """Fills journals, each with some of the kernels."""
    regions = sorted({call.region.id for workload in workloads for call in workload.calls})
    for part, path in enumerate(paths):
        with Journal.open(path) as journal:
            describe(journal, workloads, rows)
            for records in campaign(regions, rows, part, len(paths)):
                with watch("write"), journal.bulk():
                    for r in records:
                        journal.record(r.measurement, recorded_unix_s=r.recorded_unix_s)


def bench(folder: Path, workloads: list[Workload], rows: int) -> dict[str, Any]:
    """Microseconds per row of each thing that is done with so many rows, and bytes per row of each column."""
    halves, joined, out = [folder / "a.sqlite", folder / "b.sqlite"], folder / "joined.sqlite", folder / "out"
    watch = Watch()
    write(halves, workloads, rows, watch)
    with watch("merge"):
        counts = [merge(halves, joined)]
    with Journal.open(joined, read_only=True) as journal:
        with watch("export"):
            export(journal, out)
        regions = random.Random(1).choices(sorted(journal.regions()), k=LOOKUPS)
        with watch("known"):
            ids = (TARGET.fingerprint, TOOLCHAIN.fingerprint, PROTOCOL)
            found = sum(len(list(journal.known(*ids, region_id=region_id))) for region_id in regions)
    data = read_export(out)
    with watch("read"):
        counts.append(sum(1 for _ in data.records(PROTOCOL)))
    with watch("table"):
        counts.append(len(data.table(PROTOCOL)))
    if set(counts) != {rows}:
        raise RuntimeError(f"{rows} rows were written; joined, read and in the table are {counts}")
    files = {p.name: p.stat().st_size for p in out.iterdir()}
    columns: Counter[str] = Counter()
    for path in out.glob("*.parquet"):
        meta = parquet.ParquetFile(path).metadata
        for group in map(meta.row_group, range(meta.num_row_groups)):
            for leaf in map(group.column, range(group.num_columns)):
                columns[f"{path.stem}.{leaf.path_in_schema.partition('.')[0]}"] += leaf.total_compressed_size
    by_clock, processor = (
        {name: round(1e6 * s / (found if name == "known" else rows), 2) for name, s in seconds.items()}
        for seconds in (watch.clock_s, watch.processor_s)
    )
    return {
        "rows": rows,
        "kernels": len(data.kernels()),
        "us_per_row": by_clock,
        "processor_us_per_row": processor,
        "bytes": sum(files.values()),
        "files": files,
        "bytes_per_row": {name: round(size / rows, 3) for name, size in columns.most_common()},
    }


def main(
    sizes: Annotated[str, typer.Option(help="rows, one dataset each")] = "30000,100000,150000,300000,1000000",
    source: Annotated[Path | None, typer.Option("--from", help="journal whose kernels are used")] = None,
) -> None:
    """Bench every size, then write the results."""
    found = []
    for rows in map(int, sizes.split(",")):
        workloads = workloads_of(source, rows // ROWS_A_KERNEL)
        with tempfile.TemporaryDirectory() as folder:
            found.append(bench(Path(folder), workloads, rows))
        one = found[-1]
        sys.stderr.write(f"{rows:,} rows, {one['bytes']:,} bytes: {one['processor_us_per_row']}\n")
    headline = {f"{k}_us_per_row_{one['rows']}": us for one in found for k, us in one["processor_us_per_row"].items()}
    headline |= {f"bytes_{one['rows']}": one["bytes"] for one in found}
    record_results(RESULTS, "synthetic", {"sizes": found, "command": this_command()}, headline)


if __name__ == "__main__":
    run_script(main)
