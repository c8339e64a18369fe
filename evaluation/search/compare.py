"""Strategies compared: how good is what each knows after 1 to 64 measurements, against the optimum and against BEAM.

    python -m evaluation.search.compare --replay
    python -m evaluation.search.compare --replay --part other --strategies random,mcts,mcts/oracle --tables 6 --docs ""

On the replay tables of a dataset, on any machine: every strategy on every kernel and seed, BEAM in the same lattice;
predictions are those of a checkpoint. `--part test` is Flux, which no network saw; `--part other` is where
defaults are chosen. The same command goes on where it was cut. Writes results/compare_search.json, and tables and a
picture into the document.
"""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import Annotated

import typer

from kcg.cli import command_text, record_results, run_script

ROOT = Path(__file__).parents[2]
CHECKPOINT, POLICY = (ROOT / "kcg" / of / "cuda.safetensors" for of in ("predictor/checkpoints", "rl/policies"))


def main(
    replay: Annotated[bool, typer.Option("--replay", help="on recorded tables, without a device")] = False,
    dev: Annotated[str, typer.Option("--device", help="on this device (CUDA, CPU …), kernels of Flux, instead")] = "",
    live: Annotated[str, typer.Option(hidden=True)] = "",  # what `--device` was called
    part: Annotated[str, typer.Option(help="of the split: test, other, validation, train, all")] = "test",
    strategies: Annotated[str, typer.Option(help="names with commas, NAME/GUIDE for ablations; empty: the field")] = "",
    default: Annotated[str, typer.Option(help="the strategy that is compared with the others")] = "mcts",
    beams: Annotated[str, typer.Option(help="widths of BEAM, with commas; empty: none")] = "1,2,4,8",
    seeds: Annotated[int, typer.Option(help="replays of each strategy on each kernel", min=1)] = 5,
    budget: Annotated[int, typer.Option(help="measurements of a replay, the baseline included")] = 64,
    tables: Annotated[int | None, typer.Option(help="so many kernels only, the first by id", min=1)] = None,
    dataset: Annotated[Path, typer.Option(help="an export with replay tables")] = ROOT / "datasets" / "h200",
    checkpoint: Annotated[Path, typer.Option(help="the predictor's file")] = CHECKPOINT,
    policy: Annotated[str, typer.Option(help="a policy's file; empty: what needs one is left out")] = str(POLICY),
    preset: Annotated[str, typer.Option(help="of Flux, with --live")] = "1024",
    time: Annotated[str | None, typer.Option(help="with --live: no kernel is begun after it, e.g. 8m")] = None,
    shard: Annotated[str, typer.Option(help="with --live, I/N: every Nth kernel, for one GPU of N")] = "",
    recorded: Annotated[
        bool, typer.Option("--recorded", help="with --live: only what was replayed, no device")
    ] = False,
    jobs: Annotated[int | None, typer.Option(help="processes; one a core by default", min=1)] = None,
    work: Annotated[Path, typer.Option(help="folder of what was replayed")] = ROOT / "kcg-out" / "compare",
    out: Annotated[Path, typer.Option(help="the results file")] = ROOT
    / "evaluation"
    / "results"
    / "compare_search.json",
    docs: Annotated[str, typer.Option(help="the document whose tables are written; empty: none")] = str(
        ROOT / "docs/experiments/2026-11-23-search-strategies.md"
    ),
) -> None:
    """Replay what is missing and write down the figures."""
    os.environ["OMP_NUM_THREADS"] = "1"  # also of the processes: matrices are small, and there is one process a core
    from evaluation.search.comparison import Settings, predictor_of
    from kcg.cli import parse_budget
    from kcg.dataset.reading import read_export
    from kcg.errors import UsageError

    log = functools.partial(typer.echo, err=True)
    if replay == bool(live):
        raise UsageError("say --replay, to compare on recorded tables, or --live CUDA")
    names = tuple(name.strip() for name in strategies.split(",") if name.strip())
    names = names or (("random", "predicted-beam", "mcts", "frugal-mcts") if dev else ())
    widths = [width.strip() for width in beams.split(",") if width.strip()]
    if not all(width.isdecimal() for width in widths):
        raise UsageError(f"--beams {beams}: write widths, for example 1,2,4,8")
    policy_path = Path(policy) if policy else None
    has_policy = policy_path is not None
    settings = Settings(names, default, tuple(map(int, widths)), seeds, budget).checked(has_policy=has_policy, log=log)

    from evaluation.documents import write_into
    from evaluation.search.comparison_text import regret_svg, sections
    from evaluation.search.device_journal import DeviceJournal, Shard
    from evaluation.search.on_device import ExtraContenders, compare_on_flux
    from evaluation.search.regret import Board, entry, headline
    from evaluation.search.replays import compare, guides_of, policy_of
    from evaluation.search.shared_budget import allocated
    from kcg.measure.device_info import usable_cores
    from kcg.search.replay import FILE, kernels_of

    extra, together = dict[str, object](), None
    if dev:
        part = "live"
        journal = DeviceJournal(work / f"{live}-{preset}.jsonl", shard=Shard.parse(shard))
        kernels, each, extra = compare_on_flux(
            live,
            preset,
            journal,
            predictor_of(checkpoint),
            settings,
            count=tables or 8,
            log=log,
            extra=ExtraContenders(policy_of(policy_path) if policy_path is not None else None, tiny_beams=[4]),
            recorded=recorded,
            budget_s=parse_budget(time) if time is not None else None,
        )
    else:
        kernels = kernels_of(read_export(dataset), part)[:tables]
        replays = compare(
            kernels,
            guides_of(checkpoint, policy_path),
            settings,
            tables=dataset / FILE,
            journal=work / f"{dataset.name}.jsonl",
            jobs=jobs or usable_cores(),
            log=log,
        )
        each = [replays[kernel.region.id] for kernel in kernels]
        together = allocated(
            kernels, checkpoint, default, budget=16 * len(kernels), seeds=seeds, jobs=jobs or usable_cores()
        )
    board = Board(kernels, each, settings, allocated=together)
    found, report = headline(board), entry(board, kernels) | extra
    report["command"], report["checkpoint"] = command_text("evaluation.search.compare"), checkpoint.name
    report["policy"] = policy_path.name if policy_path is not None else ""
    if part == "test" and (speed := out.with_name("bench_env.json")).exists():
        found |= json.loads(speed.read_text())["headline"]
    shown = found if part == "test" else {f"{part}_{name}": value for name, value in found.items()}
    record_results(out, f"flux {preset} {live}" if live else f"{dataset.name} {part}", report, shown)
    if docs and (document := Path(docs)).is_file():
        picture = document.with_name(f"{document.stem}-{part}.svg")
        picture.write_text(regret_svg(report))
        write_into(document, sections(report, found, part, picture.name))
    typer.echo(json.dumps(shown, indent=1))


if __name__ == "__main__":
    run_script(main)
