"""Which kernels tile programs can express, and what is refused by which reason: the zoo, Flux, and tinygrad's own
operator tests.

    python -m evaluation.tiles.coverage zoo
    python -m evaluation.tiles.coverage times
    python -m evaluation.tiles.coverage operators CHECKOUT
    python -m evaluation.tiles.coverage programs CHECKOUT
    python -m evaluation.tiles.coverage programs CHECKOUT --interpret --dataset datasets/cpu
    python -m evaluation.tiles.coverage table

`zoo` reads all presets of every workload, `times` weighs the kernels of `datasets/h200` by what tinygrad's own schedule
took, `operators` takes a checkout of tinygrad, or what `evaluation.tiles.operators` wrote of one, and `programs`
compiles and interprets random programs of all of these. Updates evaluation/results/tile_coverage.json; `zoo` goes on
where it was cut off.
"""

from __future__ import annotations

import gc
import json
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from evaluation.rows import Row, Rows, rounded, this_command
from evaluation.tiles import programs as trying
from evaluation.tiles.operators import kernels_of_tests
from kcg.campaign.sampling import HAND_CODED
from kcg.cli import guarded, record_results
from kcg.compat.scheduling import simplified
from kcg.dataset.reading import read_export
from kcg.kernel.codec import ast_of
from kcg.kernel.reading.kernel import read_ast
from kcg.kernel.reading.unsupported import UnsupportedTile
from kcg.kernel.tile.generate import generate_kernel
from kcg.kernel.tile.parameters import CONTRACTION, ELEMENTWISE, REDUCTION
from kcg.kernel.tile.prior import default_parameters
from kcg.kernel.tile.targets import triton_version
from kcg.types import Kernel, Region, Status, Target
from kcg.workloads import registry
from tests.known_targets import KNOWN_TARGETS

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "evaluation" / "results" / "tile_coverage.json"
OPERATORS, TIMES = "test_ops", "hand-coded times"
FORMS = (ELEMENTWISE, REDUCTION, CONTRACTION)
application = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass
class Found:
    """What became of kernels: the form of each program that was generated, or why there is none; milliseconds of one
    core for reading a kernel and for all of it, with the choice of parameters and the text."""

    forms: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    read_ms: list[float] = field(default_factory=list)
    all_ms: list[float] = field(default_factory=list)

    def try_kernel(self, kernel: Kernel, target: Target) -> bool:
        """Whether a kernel has a tile program."""
        gc.disable()  # as in the children that compile: looking through all that is loaded here took up to 150 ms
        begin = time.process_time()
        try:
            read = read_ast(simplified(ast_of(kernel)))
            known = time.process_time()
            parameters = default_parameters(read, target)
            generate_kernel(read, target, parameters)
            done = time.process_time()
        except UnsupportedTile as refusal:
            self.refused[refusal.construct] += 1
            return False
        finally:
            gc.enable()
        self.forms[parameters.form] += 1
        self.read_ms.append(1e3 * (known - begin))
        self.all_ms.append(1e3 * (done - begin))
        return True

    def row(self) -> Row:
        """As it is stored."""
        generated = self.forms.total()
        row: Row = {"kernels": generated + self.refused.total(), "generated": generated}
        row |= {"forms": dict(self.forms), "refused": dict(self.refused)}
        if generated:
            written = [one - read for one, read in zip(self.all_ms, self.read_ms, strict=True)]
            row |= {
                "generate_ms": rounded(statistics.median(self.all_ms)),
                "generate_ms_max": rounded(max(self.all_ms)),
            }
            row |= {
                "generate_read_ms": rounded(statistics.median(written)),
                "generate_read_ms_max": rounded(max(written)),
            }
        return row


def single(regions: Iterable[Region]) -> list[Kernel]:
    """The kernels of regions, each once."""
    return list({kernel.id: kernel for region in regions for kernel in region.kernels}.values())


def of_workload(name: str) -> list[Kernel]:
    """The kernels of all presets of a workload, each once."""
    spec = registry.spec_of(name)
    return single(call.region for preset in spec.presets for call in spec.capture(preset).calls)


def summed(rows: Mapping[str, Row]) -> dict[str, Any]:
    """The headline of the zoo's rows."""
    kernels, generated = (sum(row[name] for row in rows.values()) for name in ("kernels", "generated"))
    return {
        "zoo_kernels": kernels,
        "zoo_generated": rounded(generated / kernels),
        "generate_ms": rounded(statistics.median(row["generate_ms"] for row in rows.values())),
        "generate_ms_max": max(row["generate_ms_max"] for row in rows.values()),
        "generate_read_ms": rounded(statistics.median(row["generate_read_ms"] for row in rows.values())),
    }


@application.command()
def zoo(
    again: Annotated[bool, typer.Option(help="forget the rows that are there")] = False,
    only: Annotated[list[str] | None, typer.Option(help="these workloads")] = None,
) -> None:
    """Read the kernels of all presets of every workload; equal ones of one workload are one."""
    target = KNOWN_TARGETS["sm_90"]
    rows = Rows(RESULTS, "zoo", again=again, headline=summed)
    for name in only or registry.WORKLOADS:
        if rows.wanted(name):
            found = Found()
            for kernel in of_workload(name):
                found.try_kernel(kernel, target)
            rows.add(name, found.row())
            sys.stderr.write(f"{name}: {rows.rows[name]}\n")


@application.command()
def times(dataset: Annotated[Path, typer.Option(help="an export")] = ROOT / "datasets" / "h200") -> None:
    """Weigh the kernels of a dataset by the time of tinygrad's own schedule."""
    target, export, found = KNOWN_TARGETS["sm_90"], read_export(dataset), Found()
    taken: dict[str, list[float]] = {}
    for protocol in export.protocols():
        for measurement in export.measurements(protocol):
            if measurement.sampler == HAND_CODED and measurement.status == Status.OK:
                taken.setdefault(measurement.region_id, []).append(measurement.median_s)
    regions = export.regions()
    seconds = {region_id: statistics.median(found_s) for region_id, found_s in taken.items()}
    expressed = {
        region_id: found.try_kernel(regions[region_id].kernels[0], target)
        for region_id in seconds
        if len(regions[region_id].kernels) == 1
    }
    total = sum(seconds[region_id] for region_id in expressed)
    share = sum(seconds[region_id] for region_id, right in expressed.items() if right) / total
    entry = {
        **found.row(),
        "command": this_command(),
        "hand_coded_s": rounded(total),
        "generated_share": rounded(share),
    }
    record_results(RESULTS, TIMES, entry, {"generated_share": entry["generated_share"]})
    sys.stderr.write(f"{entry}\n")


@application.command()
def operators(
    checkout: Annotated[Path, typer.Argument(help="of tinygrad's repository, or kernels of its tests")],
) -> None:
    """Read the kernels of tinygrad's operator tests."""
    found = Found()
    kernels, tests = kernels_of_tests(checkout)
    for kernel in kernels:
        found.try_kernel(kernel, KNOWN_TARGETS["sm_90"])
    row = found.row()
    entry = {**row, "tests": tests, "command": this_command()}
    headline = {"operators_kernels": row["kernels"], "operators_generated": rounded(row["generated"] / row["kernels"])}
    record_results(RESULTS, OPERATORS, entry, headline)
    sys.stderr.write(f"{entry}\n")


@application.command()
def programs(
    checkout: Annotated[Path, typer.Argument(help="of tinygrad's repository, or kernels of its tests")],
    dataset: Annotated[list[Path] | None, typer.Option(help="exports with kernels of the zoo and Flux")] = None,
    kernels: Annotated[int, typer.Option(help="of the tests, and as many of each dataset")] = 100,
    choices: Annotated[int, typer.Option(help="programs of each: the prior's choice, and random ones")] = 2,
    interpret: Annotated[bool, typer.Option(help="run the smaller ones in Triton's interpreter instead")] = False,
    workers: Annotated[int, typer.Option(help="processes that compile at once")] = 1,
    seed: Annotated[int, typer.Option(help="of the sample")] = 0,
) -> None:
    """Compile random programs for sm_90, or interpret them."""
    target, rng = KNOWN_TARGETS["sm_90"], random.Random(seed)
    found, _ = kernels_of_tests(checkout)
    sources = [found, *(single(read_export(p).regions().values()) for p in dataset or (ROOT / "datasets" / "h200",))]
    sample = [k for source in sources for k in rng.sample(source, min(kernels, len(source)))]
    made = (
        trying.interpreted(sample, target, choices=choices)
        if interpret
        else trying.compiled(sample, target, choices=choices, workers=workers)
    )
    tried = []
    for one in made:
        tried.append(one)
        if one.failure:
            sys.stderr.write(f"{one}\n")
    right = [one for one in tried if not one.failure]
    failures = Counter(one.failure for one in tried if one.failure)
    version = triton_version()
    entry: dict[str, Any] = {"command": this_command(), "triton": version, "programs": len(tried), "right": len(right)}
    entry |= {"failures": dict(failures.most_common()), "kernels": len({one.kernel_id for one in tried})}
    run, headline = f"interpreted by Triton {version}", {}
    if not interpret:
        run, taken = f"compiled by Triton {version}", [one.compile_s for one in right]
        entry |= {"compile_s": rounded(statistics.median(taken)), "compile_s_max": rounded(max(taken))}
        headline = {f"compile_s_{version}": entry["compile_s"]}
    record_results(RESULTS, run, entry, headline)
    sys.stderr.write(f"{entry}\n")


@application.command()
def table() -> None:
    """Print the table of docs/experiments/2026-11-25-tile-coverage.md."""
    runs = json.loads(RESULTS.read_text())["runs"]
    rows = list(runs["zoo"]["rows"].values())
    named = {f"the zoo and Flux: all presets of {len(rows)} workloads": rows}
    named |= {"tinygrad's operator tests": [runs[OPERATORS]], "`datasets/h200`, by hand-coded time": [runs[TIMES]]}
    typer.echo("| kernels of | kernels | elementwise | reduction | contraction | refused | generate |")
    typer.echo("|---" * 7 + "|")
    for name, found in named.items():
        forms, refused = (sum((Counter(row[what]) for row in found), Counter[str]()) for what in ("forms", "refused"))
        count = sum(row["kernels"] for row in found)
        share = found[0].get("generated_share", forms.total() / count)
        reasons = ", ".join(f"{reason} {number:,}" for reason, number in refused.most_common()) or "none"
        cells = [f"{count:,}", *(f"{forms[form]:,}" for form in FORMS), reasons, f"{share:.1%}"]
        typer.echo(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    guarded(lambda: application(standalone_mode=False))
