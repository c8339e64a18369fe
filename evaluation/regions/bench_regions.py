"""Regions of several kernels beside torch.compile, a copy, a sum and their parts, on one GPU: see docs/regions.md.

    python -m evaluation.regions.bench_regions --budget 8m --work kcg-out/tiles
    python -m evaluation.regions.bench_regions --only qkv --match 1024 --budget 8m --work kcg-out/tiles
    python -m evaluation.regions.bench_regions --only vectors --row-tiles 16 --opts 2 --search 40s --budget 130s
    python -m evaluation.regions.bench_regions --smoke --work kcg-out/smoke --out kcg-out/smoke/bench_regions.json
    python -m evaluation.regions.bench_regions --step 1024=RESULT.json --step 768=RESULT.json
    python -m evaluation.regions.bench_regions --dry-run
    python -m evaluation.regions.bench_regions --table

Some regions at a time: kcg's own search finds tile programs of each region and of what it is cut into, and Opts of
single kernels; then the fastest are timed in turns with torch.compile and a copy, in one process that PyTorch runs in,
with cold caches. Every finished region is in the results file, every finished search in the journal of `--work`, which
`evaluation.tiles.bench_tiles` reads and writes too: the same command goes on where it was. `--dry-run` needs no device.
`cases.py` says what is compared with what, `summary.py` which figures and thresholds there are. Figures of other
scripts in the results file stay, such as `plan_s`.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evaluation.pytorch import comparing
from evaluation.regions.cases import SECTIONS, Case, Cut, cases
from evaluation.regions.summary import PARTS, headline, tables
from evaluation.rows import Row, Rows, rounded
from evaluation.tiles import options
from evaluation.tiles.bench import LOGS, Bench, Contenders, Effort, in_one_line, limit_s, of_search
from evaluation.tiles.bench_tiles import planned_for
from evaluation.tiles.cases import Case as KernelCase
from evaluation.tiles.cases import Sums
from evaluation.tiles.summary import MODES, OURS, seconds
from kcg.cli import record_results, run_script
from kcg.compat.device import choose_device, prepare
from kcg.errors import UnknownName, UsageError
from kcg.kernel.composed import Part, region_of_part, schedule_of_parts
from kcg.kernel.kinds import describe
from kcg.kernel.reading.fuse import read_region
from kcg.kernel.reading.unsupported import UnsupportedTile
from kcg.kernel.tile.prior import default_parameters
from kcg.kernel.tile.words import described
from kcg.measure.service import MeasureService
from kcg.types import Region, Schedule, Target

if TYPE_CHECKING:
    from evaluation.tiles.pairing import Order
    from evaluation.tiles.searching import Wanted

OUT = Path(__file__).parents[1] / "results" / "bench_regions.json"
CONTRACTION, STREAM = "contraction", "stream"  # what a region is, by what its search costs


@dataclass
class RegionBench(Bench):
    """The comparison of regions. Of a region its fastest tile programs take part, the fastest of each way to cut it,
    and the best of each of its kernels as one program."""

    together: int = 4  # each has several searches
    schedules: dict[str, dict[str, Schedule]] = field(default_factory=dict)  # by region, what takes part

    def wanted(self, case: KernelCase) -> list[Wanted]:
        """The region, whatever it is cut into, and each of its kernels."""
        from evaluation.tiles.searching import Wanted

        found = []
        for region in parts_of(case):
            tiles = self.effort.tiles[CONTRACTION if has_contraction(region) else STREAM]
            opts = self.effort.opts if len(region.kernels) == 1 else 0
            found.append(Wanted(region, tiles, opts, self.known.get(region.id)))
        if isinstance(case.against, Sums):
            found.append(Wanted(case.against.region, self.effort.tiles[STREAM], 1))
        return found

    def order(self, case: KernelCase) -> Order:
        """Programs of whatever was found."""
        from evaluation.tiles.pairing import Order, Settings

        schedules = self.schedules[case.region.id] = self.found_of(case)
        programs = self.searches.compiled(case.region, schedules)
        return Order(case, programs, self.sums_of(case), Settings(self.effort.samples, self.effort.modes))

    def found_of(self, case: KernelCase) -> dict[str, Schedule]:
        """Name -> what takes part."""
        cuts = {f"{OURS} cut {number}": cut for number, cut in enumerate(cuts_of(case)[1:])}
        joined = {name: self._joined(case.region, cut) for name, cut in (*cuts.items(), (PARTS, singles_of(case)))}
        found = {name: schedule for name, schedule in joined.items() if schedule is not None}
        return self.searches.found[case.region.id].schedules() | found

    def _joined(self, region: Region, cut: Cut) -> Schedule | None:
        """The best of each part as one program; None where one of them has none."""
        parts = []
        for places in cut:
            best = self.searches.found[region_of_part(region, places)[0].id].best()
            if best is None:
                return None
            parts.append(Part(places, best))
        return schedule_of_parts(parts)

    def about(self, case: KernelCase, tile: str) -> dict[str, Any]:
        """What the searches came to, and what was timed."""
        schedules = self.schedules.get(case.region.id, {})
        found = {
            **of_search(self.searches.found[case.region.id]),
            "searches": {region.id[:12]: self._searched(region) for region in parts_of(case)[1:]},
        }
        for name, key in ((tile, "tile_program"), (PARTS, "parts_program")):
            if name in schedules:
                found[key] = describe(schedules[name])
                found[f"{key}_schedule"] = {"kind": schedules[name].kind, "body": schedules[name].body}
        return found

    def _searched(self, region: Region) -> dict[str, Any]:
        found = self.searches.found[region.id]
        best = found.best()
        return {
            "kernels": len(region.kernels),
            "best": describe(best) if best is not None else "",
            "best_s": min(
                [*(one["s"] for one in found.tiles), *([found.opts["s"]] if found.opts else [])], default=None
            ),
            "measured": found.measured,
            "failed": found.failed,
            "refused": found.refused,
        }


def cuts_of(case: KernelCase) -> tuple[Cut, ...]:
    """The ways to make programs of a case, the whole first."""
    assert isinstance(case, Case)
    return case.cuts


def parts_of(case: KernelCase) -> list[Region]:
    """The region of a case, whatever it is cut into, and each of its kernels; each once."""
    cuts = (*cuts_of(case), singles_of(case))
    found = [region_of_part(case.region, places)[0] for cut in cuts for places in cut]
    return list({region.id: region for region in found}.values())


def singles_of(case: KernelCase) -> Cut:
    """The cut that makes a program of each kernel."""
    return tuple((place,) for place in range(len(case.region.kernels)))


def has_contraction(region: Region) -> bool:
    """Whether one of a region's kernels is a contraction for tile programs."""
    for kernel in region.kernels:
        try:
            if read_region(Region((kernel,))).contraction is not None:
                return True
        except UnsupportedTile:
            continue
    return False


def shown(case: KernelCase, row: Row) -> str:
    """A row in one line."""
    ours, theirs = seconds(row, (OURS,)), seconds(row, MODES)
    return in_one_line(case, row, theirs / ours if ours and theirs else None)


def planned(of: Sequence[Case], target: Target) -> Iterator[str]:
    """Of each case what becomes of it: the program that a search begins with, or why there is none."""
    for case in of:
        yield f"{case.key}: {case.calls} calls, {case.bytes / 1e6:.1f} MB, {len(case.region.kernels)} kernels"
        for cut in case.cuts:
            for places in cut:
                region, _ = region_of_part(case.region, places)
                try:
                    kernel = read_region(region)
                    yield f"  {list(places)}: {described(default_parameters(kernel, target))}"
                except UnsupportedTile as refusal:
                    yield f"  {list(places)}: refused, {refusal}"


def steps(results: Sequence[str], out: Path) -> None:
    """Keep what a step took in some results: `PRESET=RESULT.json` each. Raises UsageError."""
    from kcg.report.result import read_result

    for text in results:
        preset, equals, path = text.partition("=")
        if not equals:
            raise UsageError(f"--step takes PRESET=RESULT.json, not {text!r}")
        check = read_result(Path(path)).model_check
        if check is None or check.after_s is None:
            raise UsageError(f"{path} has no time of a whole step")
        entry = {"before_s": check.before_s, "after_s": check.after_s, "clock": check.clock, "passed": check.passed}
        record_results(out, f"step {preset}", entry, {f"step_ms_{preset}": rounded(1e3 * check.after_s)})


def main(
    only: Annotated[str, typer.Option(help="sections, with commas between")] = ",".join(SECTIONS),
    match: options.Match = "",
    most: Annotated[int, typer.Option(help="cases of a section; 0: all")] = 0,
    budget: comparing.Budget = "",
    tiles: Annotated[int, typer.Option(help="tile programs measured for what has a contraction")] = 64,
    row_tiles: Annotated[int, typer.Option(help="the same for all else")] = 32,
    opts: options.OptsMeasured = 8,
    samples: options.Samples = 24,
    search: options.SearchLimit = "300s",
    predictor: options.OfOpts = "auto",
    work: options.Work = Path("kcg-out/tiles"),
    result: options.Results = None,
    again: comparing.Again = False,
    retry: comparing.Retry = False,
    revision: options.Revision = "",
    device: options.OnDevice = "cuda",
    smoke: Annotated[bool, typer.Option("--smoke", help="one case of each section, few programs and samples")] = False,
    step: Annotated[list[str] | None, typer.Option(help="PRESET=RESULT.json: keep what its step takes")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="list the cases, without a GPU")] = False,
    table: options.ShowTable = False,
    out: comparing.Out = OUT,
) -> None:
    """Time what is not in the results yet."""
    wanted = only.split(",")
    if unknown := [name for name in wanted if name not in SECTIONS]:
        raise UnknownName("section", unknown[0], list(SECTIONS))
    if step:
        steps(step, out)
        return
    if table:
        _print_tables(out)
        return
    if dry_run:
        prepare("CUDA")  # kernels are scheduled for it, and nothing opens it
        target = planned_for()
        for line in planned(_chosen(wanted, target, match, most), target):
            typer.echo(line)
        return
    if smoke:
        tiles, row_tiles, opts, samples, most = 4, 4, 1, 3, most or 1
    from evaluation.tiles.searching import Searches, best_opts

    effort = Effort({CONTRACTION: tiles, STREAM: row_tiles}, opts, samples, limit_s(search))
    choice = choose_device(device)
    prepare(choice.dev)
    logs = work / LOGS
    logs.mkdir(parents=True, exist_ok=True)
    with (
        MeasureService(choice.dev, run_id="bench_regions") as service,
        Contenders.on(choice.device, logs) as contenders,
    ):
        settings = {"of_revision": revision} if revision else {}
        run = re.sub(r"\W+", "_", service.target.model.lower())
        rows = Rows(out, run, budget=budget, again=again, retry=retry, settings=settings, headline=headline, locks=logs)
        with Searches(service, work, predictor=predictor) as searches:
            until = time.monotonic() + limit_s(budget)
            bench = RegionBench(service, searches, contenders, effort, shown, best_opts(result or []), until)
            bench.run(_chosen(wanted, service.target, match, most), rows)
    typer.echo(json.dumps(headline(rows.rows), indent=1))
    if rows.left:
        typer.echo(f"{rows.left} regions are left: run the same command again", err=True)


def _chosen(only: Sequence[str], target: Target, match: str, most: int) -> list[Case]:
    found: list[Case] = []
    for section in (name for name in SECTIONS if name in only):
        of = [case for case in cases(section, target) if match in case.key]
        found += of[: most or None]
    return found


def _is_comparison(entry: Mapping[str, Any]) -> bool:
    """Whether an entry of the results file is of this script: others are there too."""
    return any("section" in row for row in entry.get("rows", {}).values())


def _print_tables(out: Path) -> None:
    if not out.exists():
        raise UsageError(f"there is no {out}: time something first")
    report: Mapping[str, Any] = json.loads(out.read_text())
    for run in (name for name, entry in report["runs"].items() if _is_comparison(entry)):
        typer.echo("\n".join([f"{run}:", "", *tables(report, run), ""]))


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    run_script(main)
