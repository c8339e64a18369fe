"""One search, step by step, with its real numbers: what each batch expected and found, and the tree at the end.

    python -m evaluation.search.draw

Replays the table of a kernel of Flux with the shipped predictor, and writes both into
docs/experiments/2026-11-23-one-search.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kcg.cli import command_text, record_results, run_script
from kcg.kernel.kinds import describe

ROOT = Path(__file__).parents[2]


def main(
    kernel: Annotated[str, typer.Option(help="the beginning of a region's id; else the largest")] = "",
    part: Annotated[str, typer.Option(help="of the split by workload")] = "test",
    measurements: Annotated[int, typer.Option(help="the budget, the baseline included", min=2)] = 17,
    dataset: Annotated[Path, typer.Option(help="an export with replay tables")] = ROOT / "datasets" / "h200",
    checkpoint: Annotated[Path, typer.Option(help="the predictor's file")] = ROOT
    / "kcg/predictor/checkpoints/cuda.safetensors",
    out: Annotated[Path, typer.Option(help="the results file")] = ROOT / "evaluation" / "results" / "draw_search.json",
    docs: Annotated[str, typer.Option(help="the document; empty: none")] = str(
        ROOT / "docs/experiments/2026-11-23-one-search.md"
    ),
) -> None:
    """Search, and write down how."""
    from evaluation.documents import write_into
    from evaluation.search.comparison import Bench, predictor_of
    from evaluation.search.drawing import batches, drawn, opened
    from kcg.dataset.reading import read_export
    from kcg.errors import UsageError
    from kcg.search.problem import Trials
    from kcg.search.replay import kernels_of

    kernels = [k for k in kernels_of(read_export(dataset), part) if k.region.id.startswith(kernel)]
    if not kernels:
        raise UsageError(f"no replay table of the part {part!r} has an id that begins with {kernel!r}")
    chosen = max(kernels, key=lambda k: k.calls * k.table.records[k.table.baseline()].observation.time_s)
    problem = Bench(chosen, predictor_of(checkpoint)).problem("mcts", seed=0, budget=measurements)
    graph = opened(Trials(problem))
    baseline_s = graph.trials.time_s(chosen.table.baseline())
    lines = ["| batch | schedule | predicted | corrected | measured | best so far |", "|---|---|---|---|---|---|"]
    for i, batch in enumerate(batches(graph), 1):
        for j, (schedule, predicted, corrected, measured) in enumerate(batch.rows):
            first = f"{i}, {batch.nodes} schedules predicted" if j == 0 else ""
            last = f"{batch.best_s * 1e6:,.0f} µs" if j == len(batch.rows) - 1 else ""
            shown = f"{measured * 1e6:,.0f} µs" if measured is not None else "failed"
            lines.append(
                f"| {first} | `{describe(schedule)}` | {predicted * 1e6:,.0f} µs | {corrected * 1e6:,.0f} µs | {shown} "
                f"| {last} |"
            )
    found = min(o.time_s for o in graph.trials.observations.values())
    table = chosen.table
    facts = {
        "hand_coded_us": baseline_s * 1e6, "found_us": found * 1e6, "optimum_us": table.best_s * 1e6,
        "schedules": float(len(table.records)), "measurements": float(problem.ledger.measurements),
        "predicted": float(problem.ledger.evaluations),
    }  # fmt: skip
    counted = f"the best of all {len(table.records):,} schedules {table.best_s * 1e6:,.0f} µs"
    ours = f"Hand-coded {baseline_s * 1e6:,.0f} µs, found {found * 1e6:,.0f} µs, {counted}"
    lines += ["", f"{ours}; {problem.ledger.measurements} binaries timed, {problem.ledger.evaluations} predicted."]
    tree = ["```text", *drawn(graph), "```"]
    report = {
        "command": command_text("evaluation.search.draw"),
        "kernel": chosen.region.id,
        "lines": lines,
        "tree": tree,
    }
    record_results(out, f"{dataset.name} {part}", report, facts)
    if docs:
        write_into(Path(docs), {"story": lines, "tree": tree})
    typer.echo("\n".join([*lines, *tree]))


if __name__ == "__main__":
    run_script(main)
