"""python -m kcg.dataset generate | capture | stats | export | merge"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from kcg.commandline import command_text, guarded
from kcg.errors import ExitCode, JournalError, UsageError

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.callback()
def commands() -> None:
    """Kernels, schedules and their measured runtimes: generate, capture, look at, export."""


@app.command()
def generate(
    out: Annotated[Path, typer.Option(help="the journal to write; an existing one is resumed")],
    workloads: Annotated[str, typer.Option(help="NAME, NAME/PRESET, NAME/all or zoo, separated by commas")] = "",
    source: Annotated[
        Path | None, typer.Option("--from", help="a journal whose kernels are measured too, e.g. of capture")
    ] = None,
    preset: Annotated[str, typer.Option(help="preset of the workloads that name none")] = "auto",
    device: Annotated[str, typer.Option(help="auto, CPU, CUDA …")] = "auto",
    schedules_per_kernel: Annotated[int, typer.Option(help="distinct schedules of each kernel")] = 20,
    kernels_per_family: Annotated[int | None, typer.Option(min=1, help="of each workload, over its presets")] = None,
    budget: Annotated[str | None, typer.Option(help="time, e.g. 2m; no limit by default")] = None,
    mix: Annotated[str | None, typer.Option(help="who draws: walk:raw=0.25,beam:2/8=0.35 and so on")] = None,
    shard: Annotated[str, typer.Option(help="this part of the kernels, e.g. 2/4")] = "1/1",
    gpus: Annotated[int | None, typer.Option(min=1, help="how many GPUs; all by default")] = None,
    seed: Annotated[int, typer.Option(help="seed of the random walks")] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", help="only the summary line")] = False,
) -> None:
    """Measure schedules of the kernels of workloads, into a journal that can be resumed."""
    from kcg.optimize.settings import parse_budget

    if schedules_per_kernel < 1:
        raise UsageError(f"--schedules-per-kernel {schedules_per_kernel}: at least 1")
    names = tuple(n.strip() for n in workloads.split(",") if n.strip())
    if not names and source is None:
        raise UsageError("--workloads is empty: name at least one, for example flux")
    budget_s = parse_budget(budget) if budget is not None else None
    from kcg.campaign.settings import DEFAULT_MIX, CampaignSettings, parse_mix, parse_shard
    from kcg.optimize.console import progress

    settings = CampaignSettings(
        workloads=names, source=source, out=out, preset=preset, device=device, budget_s=budget_s, seed=seed,
        schedules_per_kernel=schedules_per_kernel, kernels_per_family=kernels_per_family, shard=parse_shard(shard),
        mix=tuple(DEFAULT_MIX.items()) if mix is None else parse_mix(mix), gpus=gpus,
        command=command_text("kcg.dataset"),
    )  # fmt: skip
    from kcg.campaign.shards import generate as generate_now

    with progress(quiet=quiet) as shown:
        shown.phase(f"generating into {out}")

        def say(line: str, eta_s: float | None) -> None:
            elapsed = time.monotonic() - begin
            shown.update(done_s=elapsed, budget_s=elapsed + eta_s if eta_s is not None else None, note=line)

        begin = time.monotonic()
        summary = generate_now(settings, say=say)
    counts = ", ".join(f"{n} {status}" for status, n in sorted(summary.statuses.items())) or "nothing new"
    left_out = f", {summary.skipped} kernels left out" if summary.skipped else ""
    end = "complete" if summary.finished else "budget reached, run again to go on"
    typer.echo(
        f"{summary.kernels} kernels: {summary.measured} schedules measured in {summary.elapsed_s:.0f} s ({counts}), "
        f"{summary.already_known} known before{left_out}; {end}"
    )


@app.command()
def capture(
    script: Annotated[Path | None, typer.Argument(help="a tinygrad script, after --")] = None,
    arguments: Annotated[list[str] | None, typer.Argument(help="its own arguments")] = None,
    out: Annotated[Path, typer.Option(help="the journal that gets the kernels")] = Path("captured.sqlite"),
    device: Annotated[str, typer.Option(help="auto, CPU, CUDA …")] = "auto",
    workloads: Annotated[str, typer.Option(help="instead of a script: NAME, NAME/PRESET, NAME/all or zoo")] = "",
) -> None:
    """Record every kernel of a script, run unchanged, with how often it was executed; or those of named workloads.

    Workloads are only scheduled: the device of their presets need not be there, and `generate --from` measures them.
    """
    from kcg.compat.device import choose_device
    from kcg.dataset.journal import Journal
    from kcg.workloads.script import capture_script

    if (script is None) == (not workloads):
        raise UsageError("capture takes a script, or --workloads")
    if script is None:
        _capture_workloads(workloads, out, device)
        return

    workload = capture_script(script, tuple(arguments or ()), dev=choose_device(device).dev)
    with Journal.open(out) as journal:
        journal.add_workload(workload)
    executed = sum(c.calls for c in workload.calls)
    typer.echo(f"{workload.name}: {len(workload.calls)} kernels, executed {executed} times, recorded in {out}")


def _capture_workloads(workloads: str, out: Path, device: str) -> None:
    from kcg.campaign.kernels import workloads_of
    from kcg.campaign.settings import CampaignSettings
    from kcg.compat.device import choose_device, prepare
    from kcg.dataset.journal import Journal
    from kcg.optimize.console import progress

    names = tuple(n.strip() for n in workloads.split(",") if n.strip())
    # to schedule without allocating, any device does that opens here
    prepare(choose_device("CPU").dev)
    wanted = choose_device(device).device if device == "auto" else device.upper().partition(":")[0]
    count = 0
    with progress() as shown, Journal.open(out) as journal:
        for workload in workloads_of(CampaignSettings(out, names), wanted, lambda line: shown.phase(line)):
            journal.add_workload(workload)
            count += 1
        kernels = journal.counts()["kernels"]
    typer.echo(f"{count} workloads captured, {kernels} distinct kernels in {out}")


@app.command()
def stats(
    source: Annotated[Path, typer.Argument(help="a journal, or a folder written by export")],
    json_mode: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Rows, kernels, statuses, coverage of actions, gains over hand-coded."""
    from kcg.dataset.export import read_export
    from kcg.dataset.journal import Journal
    from kcg.dataset.stats import render, to_json
    from kcg.dataset.stats import stats as compute

    if source.is_dir():
        found = compute(read_export(source))
    else:
        with Journal.open(source, create=False, read_only=True) as journal:
            found = compute(journal)
    if json_mode:
        sys.stdout.write(to_json(found) + "\n")
    else:
        from rich.console import Console

        render(found, Console(highlight=False))


@app.command()
def export(
    journal: Annotated[Path, typer.Argument(help="a journal")],
    folder: Annotated[Path, typer.Argument(help="where the Parquet files go")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace an earlier export")] = False,
) -> None:
    """Write a journal as immutable Parquet with checksums."""
    from kcg.dataset.export import export as export_now
    from kcg.dataset.journal import Journal

    with Journal.open(journal, create=False, read_only=True) as source:
        files = export_now(source, folder, overwrite=overwrite)
    typer.echo(f"{folder}: {', '.join(sorted(files))}")


@app.command()
def merge(
    journals: Annotated[list[Path], typer.Argument(help="journals to join")],
    out: Annotated[Path, typer.Option(help="the new journal")],
) -> None:
    """Join journals; identical rows are kept once."""
    from kcg.dataset.export import merge as merge_now

    if out.exists():
        raise JournalError(f"{out} exists already: choose a new file, nothing is overwritten")
    typer.echo(f"{out}: {merge_now(journals, out)} rows")


def main() -> ExitCode:
    code = app(prog_name="python -m kcg.dataset", standalone_mode=False)
    return ExitCode(code) if isinstance(code, int) else ExitCode.OK


if __name__ == "__main__":
    guarded(main)
