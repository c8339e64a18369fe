"""Which tile programs are wrong: programs of the raw space, before legality, and finalists, judged on a GPU.

    python -m kcg.dataset generate --compile-only --target h200 --workloads … --kinds tile --out source.sqlite
    python -m evaluation.dataset.wrong draw source.sqlite --target h200 --out raw.json
    python -m evaluation.dataset.wrong measure raw.json --device CUDA --budget 8m --out map.json
    python -m evaluation.dataset.wrong summary map.json

`draw` needs no GPU: `raw_programs.py` says how it draws. `compile` compiles ahead, where there is no GPU, or with
another Triton or assembler (`compiled_ahead.py`); what it wrote is measured with `--compiled`. `measure` appends one
line a program to its results, and goes on where it was when it is called again; `judging.py` says how it judges.
With `--finalists` it judges those of a file instead, by default with 10,000 launches each and beside tinygrad's own
schedule. `summary` counts outcomes, with 95 % intervals over regions, lists what is wrong, and updates
evaluation/results/tile_data.json, run `wrong programs`.
"""

from __future__ import annotations

import hashlib
import time
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from evaluation.dataset.wrong import raw_programs
from evaluation.dataset.wrong import summary as wrong_summary
from evaluation.dataset.wrong.compiled_ahead import Ahead, Compilers, compile_all, tools
from evaluation.dataset.wrong.judged_program import ALONE, BESIDE, CHECKED, Settings
from evaluation.dataset.wrong.judging import Judging
from evaluation.dataset.wrong.outcomes import Results, read_results
from evaluation.dataset.wrong.raw_programs import Limits, Programs, Wanted
from evaluation.rows import this_command
from kcg.campaign.settings import parse_shard
from kcg.cli import guarded, parse_budget, record_results
from kcg.compat.device import choose_device, prepare
from kcg.dataset.journal import Journal
from kcg.errors import DeviceError, UsageError
from kcg.kernel.targets import target_named
from kcg.measure.stress import LAUNCHES, PROVISIONAL
from kcg.types import Target

OUT = Path(__file__).parents[2] / "results" / "tile_data.json"
RUN = "wrong programs"
RAW_SETTINGS = Settings(launches=PROVISIONAL, verify_every=4)
FINALISTS_SETTINGS = Settings(launches=LAUNCHES, stress_s=20.0, verify=BESIDE)

application = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@application.command()
def draw(
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="a journal with workloads")],
    regions: Annotated[int, typer.Option(help="how many regions")] = 200,
    programs: Annotated[int, typer.Option(help="programs of the raw space, of all regions together")] = 4_000,
    legal: Annotated[int, typer.Option(help="programs beside them that are drawn from the legal ones")] = 0,
    target: Annotated[str, typer.Option(metavar="NAME", help="h100, h200, sm_80 …")] = "h200",
    seed: Annotated[int, typer.Option(help="of all draws")] = 0,
    out: Annotated[Path, typer.Option(metavar="FILE", help="regions and programs")] = Path("raw.json"),
) -> None:
    """Draw regions of SOURCE, and programs of each."""
    with Journal.open(source, create=False, read_only=True) as journal:
        workloads = journal.workloads()
    found = raw_programs.draw(workloads, target, Wanted(regions, programs, legal, seed), Limits())
    raw_programs.write(out, found)
    typer.echo(raw_programs.summary_of(found))


@application.command("compile")
def compile_ahead(
    raw: Annotated[Path, typer.Argument(metavar="FILE", help="what draw wrote")],
    finalists: Annotated[Path | None, typer.Option(metavar="FILE", help="compile these instead")] = None,
    source: Annotated[Path | None, typer.Option(metavar="FILE", help="a journal with the finalists' regions")] = None,
    target: Annotated[str, typer.Option(metavar="NAME", help="h100, h200, sm_80 …")] = "h200",
    compilers: Annotated[int | None, typer.Option(help="processes; as many as cores by default")] = None,
    budget: Annotated[str | None, typer.Option(metavar="TIME", help="e.g. 1h; all by default")] = None,
    limit: Annotated[float, typer.Option(help="seconds that one program may take")] = 30.0,
    out: Annotated[Path, typer.Option(metavar="FILE", help="programs")] = Path("raw.programs"),
) -> None:
    """Compile the programs of FILE, or finalists, that OUT does not have yet."""
    found = read_programs(raw, finalists, source)
    by = Compilers(compilers, None if budget is None else parse_budget(budget), limit)
    left = compile_all(found, target_named(target), out, by, lambda line: typer.echo(line))
    typer.echo(f"{len(found.programs) - left} of {len(found.programs)} programs are compiled, or do not compile: {out}")


@application.command()
def measure(
    raw: Annotated[Path, typer.Argument(metavar="FILE", help="what draw wrote")],
    device: Annotated[str, typer.Option(metavar="NAME", help="auto, CUDA, CPU …")] = "auto",
    budget: Annotated[str | None, typer.Option(metavar="TIME", help="e.g. 8m; all by default")] = None,
    finalists: Annotated[Path | None, typer.Option(metavar="FILE", help="judge these instead")] = None,
    source: Annotated[Path | None, typer.Option(metavar="FILE", help="a journal with the finalists' regions")] = None,
    launches: Annotated[int | None, typer.Option(help="of each program; 1,000, of finalists 10,000")] = None,
    stress: Annotated[float | None, typer.Option(help="seconds of launches of each; 0.2, of finalists 20")] = None,
    verify: Annotated[str, typer.Option(metavar="HOW", help="by the finalists' rules: alone, beside, no")] = "",
    compiled: Annotated[Path | None, typer.Option(metavar="FILE", help="what compile wrote")] = None,
    shard: Annotated[str, typer.Option(metavar="N/OF", help="this part of the regions, e.g. 2/4")] = "1/1",
    out: Annotated[Path, typer.Option(metavar="FILE", help="results, a line each")] = Path("map.json"),
) -> None:
    """Judge the programs of FILE, or finalists, that OUT has no results of yet."""
    began = time.monotonic()
    if verify not in ("", ALONE, BESIDE, CHECKED):
        raise UsageError(f"--verify {verify}: {ALONE}, {BESIDE} or {CHECKED}")
    every = read_programs(raw, finalists, source)
    found = raw_programs.part_of(every, *parse_shard(shard))
    settings = RAW_SETTINGS if finalists is None else FINALISTS_SETTINGS
    settings = replace(
        settings,
        verify=verify or settings.verify,
        launches=launches or settings.launches,
        stress_s=stress or settings.stress_s,
    )
    choice = choose_device(device)
    prepare(choice.dev)
    whole = hashlib.sha256((finalists or raw).read_bytes()).hexdigest()
    with ExitStack() as stack:
        ahead = None if compiled is None else stack.enter_context(Ahead(compiled))
        by = tools() if ahead is None else ahead.tools
        about = {"programs": whole, "settings": asdict(settings), "tools": by, "sampler": sampler_of(every)}
        results = stack.enter_context(Results(out, about))
        judging = stack.enter_context(Judging(choice.dev, found, results, settings, ahead))
        if found.target:
            check_target(judging.services[0].target, target_named(found.target), compiled=compiled is not None)
        budget_s = None if budget is None else max(1.0, parse_budget(budget) - (time.monotonic() - began))
        left = judging.run(budget_s, lambda line: typer.echo(line))
    typer.echo(f"{len(results.rows)} of {len(found.programs)} programs judged, {left} left, in {out}")
    if judging.errors:
        raise DeviceError("; ".join(judging.errors))


def read_programs(raw: Path, finalists: Path | None, source: Path | None) -> Programs:
    """What is to be judged: the programs of a file, or finalists whose regions it has, or a journal."""
    found = raw_programs.read(raw)
    if finalists is None:
        return found
    return replace(raw_programs.read_finalists(finalists, found.places, source), target=found.target)


def check_target(here: Target, drawn_for: Target, *, compiled: bool) -> None:
    """Raises UsageError where what is legal on the one may not be legal on the other, or what was `compiled` ahead does
    not run. On a CPU nothing of what was drawn compiles."""
    if here.device == "CPU" and not compiled:
        return
    if (here.arch, here.cores) != (drawn_for.arch, drawn_for.cores):
        raise UsageError(f"the programs were drawn for {drawn_for.model}, and this is {here.model}: draw with --target")


def sampler_of(programs: Programs) -> dict[str, Any]:
    """What is said of the draw beside the results: its settings, and how many settings have no text."""
    without: dict[str, int] = {}
    for place in programs.places:
        for rule, count in place.without_text.items():
            without[rule] = without.get(rule, 0) + count
    return {**programs.sampler, "without_text": without}


@application.command()
def summary(
    results: Annotated[list[Path], typer.Argument(metavar="FILE...", help="what measure wrote, of each shard")],
    finalists: Annotated[list[Path] | None, typer.Option(metavar="FILE", help="what it wrote of finalists")] = None,
    another: Annotated[list[Path] | None, typer.Option(metavar="FILE", help="the same by another compiler")] = None,
    listed: Annotated[int, typer.Option(help="how many wrong programs are listed")] = 100,
    run: Annotated[str, typer.Option(metavar="NAME", help="of the entry; of another one there is no headline")] = RUN,
    out: Annotated[Path, typer.Option(metavar="FILE", help="the figures")] = OUT,
) -> None:
    """Count outcomes, list what is wrong, and write the figures."""
    about, _ = read_results(results[0])
    rows = [*{row["key"]: row for path in (*results, *(finalists or ())) for row in read_results(path)[1]}.values()]
    entry = wrong_summary.figures_of(rows)
    if another:
        others = [read_results(path) for path in another]
        again = wrong_summary.by_another_compiler(rows, (row for _, found in others for row in found))
        entry["by_another_compiler"] = {"tools": others[0][0]["tools"], **again}
        typer.echo(f"by {others[0][0]['tools']}: {again['outcomes']}")
    typer.echo(wrong_summary.text_of(entry))
    typer.echo(wrong_summary.listing(rows, listed))
    headline = wrong_summary.headline_of(entry) if run == RUN else {}
    record_results(out, run, {**entry, "about": about, "command": this_command()}, headline)


if __name__ == "__main__":
    guarded(lambda: application(standalone_mode=False))
