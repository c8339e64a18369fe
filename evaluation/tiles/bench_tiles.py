"""Tile programs beside torch.compile, a copy, a sum and cuDNN, on one GPU: the tables of docs/experiments.

    python -m evaluation.tiles.bench_tiles --only matmul --budget 5m --work kcg-out/tiles
    python -m evaluation.tiles.bench_tiles --only rows,gemv,conv --budget 8m --work kcg-out/tiles
    python -m evaluation.tiles.bench_tiles --only rows --below .9 --revision NEW --work kcg-out/tiles-NEW
    python -m evaluation.tiles.bench_tiles --only generator
    python -m evaluation.tiles.bench_tiles --dry-run
    python -m evaluation.tiles.bench_tiles --table

Some kernels at a time: kcg's own search finds tile programs and Opts of each, then the fastest of both are timed in
turns with the contenders, in one process that PyTorch runs in. Every finished kernel is in the results file, every
finished search in the journal of `--work`: the same command goes on where it was. What libraries print and the lock of
the results are in a folder of their own, `logs` of `--work`. `generator` and `--dry-run` need no
device. `cases.py` says what is compared with what, `summary.py` which figures and thresholds there are.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from evaluation.pytorch import comparing
from evaluation.rows import Row, Rows, this_command
from evaluation.tiles import options
from evaluation.tiles.bench import LOGS, Bench, Contenders, Effort, in_one_line, limit_s
from evaluation.tiles.cases import SECTIONS, Case, all_calls, cases
from evaluation.tiles.generating import sample, shares, summed
from evaluation.tiles.summary import class_of, headline, seconds, share, tables
from kcg.cli import record_results, run_script
from kcg.compat.assembler import assembler
from kcg.compat.device import choose_device, prepare
from kcg.errors import UnknownName, UsageError
from kcg.kernel.tile.targets import triton_version
from kcg.measure.service import MeasureService
from kcg.types import Target

OUT = Path(__file__).parents[1] / "results" / "bench_tiles.json"
GENERATOR = "generator"


def shown(case: Case, row: dict[str, Any]) -> str:
    """A row in one line."""
    group = class_of({"section": case.section, "group": case.group})
    ratio = share(row, group) if seconds(row, group.contenders) else None
    return in_one_line(case, row, ratio)


def planned_for() -> Target:
    """An H100, where there is no device to ask."""
    from tests.known_targets import KNOWN_TARGETS

    return replace(KNOWN_TARGETS["sm_90"], model="NVIDIA H100", cache_bytes=50 << 20)


def of_sections(only: Sequence[str], target: Target, match: str, most: int) -> dict[str, list[Case]]:
    """The cases of each section; of more than `most` so many, evenly."""
    found = {}
    for section in (name for name in SECTIONS if name in only):
        of = [case for case in cases(section, target) if match in case.key]
        step = max(1.0, len(of) / most) if most else 1.0
        found[section] = [of[int(i * step)] for i in range(int(len(of) / step))]
    return found


def generator(
    only: Sequence[str], match: str, most: int, programs: int, *, out: Path | None, logs: Path | None = None
) -> None:
    """Generate and compile some programs of every case; with `out` keep what it cost, and which share of the workloads'
    time is generated. No device is asked."""
    target, costs = planned_for(), []
    for section, of in of_sections(only, target, match, most).items():
        found = list(sample(of, target, programs=programs))
        costs += found
        typer.echo(f"{section}: {len(of)} cases, {json.dumps(summed(found))}")
    if out is not None and costs:
        entry = summed(costs)
        figures: dict[str, Any] = {name: entry[name] for name in ("generate_ms", "compile_s") if name in entry}
        entry |= shares(all_calls(), target)
        figures["generated_share"] = entry["generated_share"]
        versions = {"triton": triton_version(), "ptxas": using.version if (using := assembler()) else ""}
        record_results(out, GENERATOR, {**entry, **versions, "command": this_command()}, figures, locks=logs)


def main(
    only: Annotated[str, typer.Option(help="sections, with commas between; generator is one")] = ",".join(SECTIONS),
    match: options.Match = "",
    most: Annotated[int, typer.Option(help="cases of a section, chosen evenly, or of --table the worst; 0: all")] = 0,
    budget: comparing.Budget = "",
    tiles: Annotated[int, typer.Option(help="tile programs measured for a matmul or convolution")] = 64,
    row_tiles: Annotated[int, typer.Option(help="the same for rows and matrix-vector products")] = 24,
    opts: options.OptsMeasured = 8,
    result: options.Results = None,
    samples: options.Samples = 24,
    search: options.SearchLimit = "200s",
    predictor: options.OfOpts = "auto",
    programs: Annotated[int, typer.Option(help="of each case, for generator and --dry-run")] = 3,
    work: options.Work = Path("kcg-out/tiles"),
    again: comparing.Again = False,
    retry: comparing.Retry = False,
    below: Annotated[float, typer.Option(help="time those again that are below this and of another revision")] = 0.0,
    revision: options.Revision = "",
    device: options.OnDevice = "cuda",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="generate and compile some of all, without a GPU")] = False,
    table: options.ShowTable = False,
    out: comparing.Out = OUT,
) -> None:
    """Time what is not in the results yet."""
    wanted = only.split(",")
    if unknown := [name for name in wanted if name not in (*SECTIONS, GENERATOR)]:
        raise UnknownName("section", unknown[0], [*SECTIONS, GENERATOR])
    if table:
        _print_tables(out, most)
        return
    if dry_run or GENERATOR in wanted:
        prepare("CUDA")  # kernels are scheduled for it, and nothing opens it
        on = [name for name in wanted if name != GENERATOR] if dry_run else list(SECTIONS)
        generator(on, match, most, programs, out=None if dry_run else out, logs=work / LOGS)
    if dry_run or wanted == [GENERATOR]:
        return
    from evaluation.tiles.searching import Searches, best_opts

    effort = Effort(
        {name: tiles if name in ("matmul", "conv") else row_tiles for name in SECTIONS},
        opts,
        samples,
        limit_s(search),
    )
    choice = choose_device(device)
    prepare(choice.dev)
    logs = work / LOGS
    logs.mkdir(parents=True, exist_ok=True)
    with MeasureService(choice.dev, run_id="bench_tiles") as service, Contenders.on(choice.device, logs) as contenders:
        settings = {"of_revision": revision} if revision else {}
        run = re.sub(r"\W+", "_", service.target.model.lower())
        rows = Rows(out, run, budget=budget, again=again, retry=retry, settings=settings, headline=headline, locks=logs)
        rows.again(slower(rows.rows, below, revision))
        with Searches(service, work, predictor=predictor) as searches:
            until = time.monotonic() + limit_s(budget)
            bench = Bench(service, searches, contenders, effort, shown, best_opts(result or []), until)
            for of in of_sections(wanted, service.target, match, most).values():
                bench.run(of, rows)
    typer.echo(json.dumps(headline(rows.rows), indent=1))
    if rows.left:
        typer.echo(f"{rows.left} kernels are left: run the same command again", err=True)


def slower(rows: Mapping[str, Row], below: float, revision: str) -> list[str]:
    """The rows whose share is below a limit, or that have none, made by code of another revision: so the same command
    goes on where it was."""
    return [
        key
        for key, row in rows.items()
        if below
        and (not revision or row.get("of_revision") != revision)
        and ((ratio := share(row, class_of(row))) is None or ratio < below)
    ]


def _print_tables(out: Path, most: int) -> None:
    if not out.exists():
        raise UsageError(f"there is no {out}: time something first")
    report = json.loads(out.read_text())
    for run in (name for name in report["runs"] if name != GENERATOR):
        typer.echo("\n".join([f"{run}:", "", *tables(report, run, most=most), ""]))


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    run_script(main)
