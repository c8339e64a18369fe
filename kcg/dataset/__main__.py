"""kcg dataset generate | retime | capture | stats | export | card | verify | merge | add | push | pull"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kcg import shell
from kcg.cli import command_group, command_text, counted, examples, goes_on, guarded, run_app, table_console
from kcg.commands import command_name
from kcg.errors import DeviceError, ExitCode, JournalError, UsageError
from kcg.hub.commands import Branch, Commit, DatasetRepo, Message, Private, say_pulled, say_pushed

if TYPE_CHECKING:
    from kcg.campaign.settings import CampaignSummary
    from kcg.optimize.console import Progress

WhichFleet = Annotated[
    str | None, typer.Option(metavar="WHERE", help="local, local:N hosts, or the scheduler of a fleet: tls://HOST:PORT")
]
Certificates = Annotated[Path | None, typer.Option(metavar="DIR", help="of a fleet, which TLS needs")]

CAPTURED = Path("captured.sqlite")  # what `capture` writes by default

app = command_group("kcg dataset stats FILE", "kcg dataset COMMAND --help")


def complete_workload(incomplete: str) -> list[str]:
    """Names for the last of those that were typed."""
    from kcg.workloads.registry import completions

    typed, comma, last = incomplete.rpartition(",")
    return [f"{typed}{comma}{name}" for name in completions(last)]


def _names(workloads: str, then: str = "") -> tuple[str, ...]:
    """The workloads that are named. Raises UsageError for a program, with the command that records its kernels, and
    what to do `then`."""
    names = tuple(name for word in workloads.split(",") if (name := word.strip()))
    for name in names:
        if Path(name).suffix in (".py", ".ipynb"):
            record = shell.command(f"{command_name('dataset')} capture --", name)
            end = f", and {command_name('dataset')} {then}" if then else ""
            raise UsageError(f"{name} is a program, no workload: {record} records its kernels{end}")
    return names


@app.callback()
def commands() -> None:
    """Kernels, schedules and their measured runtimes: generate, look at, export, verify, share."""


@app.command(
    epilog=examples(
        "kcg dataset generate --workloads rope/mini --out rope.sqlite --budget 2m",
        "kcg dataset generate --from captured.sqlite --out measured.sqlite",
    )
)
def generate(
    out: Annotated[Path, typer.Option(metavar="FILE", help="the journal to write; an existing one is resumed")],
    workloads: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="NAME, NAME/PRESET, NAME/all or zoo, separated by commas",
            autocompletion=complete_workload,
        ),
    ] = "",
    source: Annotated[
        Path | None,
        typer.Option("--from", metavar="FILE", help="a journal whose kernels are measured too, e.g. of capture"),
    ] = None,
    preset: Annotated[str, typer.Option(metavar="NAME", help="preset of the workloads that name none")] = "auto",
    device: Annotated[str, typer.Option(metavar="NAME", help="auto, CPU, CUDA …")] = "auto",
    kinds: Annotated[
        str | None, typer.Option(metavar="NAMES", help="of schedules: opts, tile; all that the device has by default")
    ] = None,
    regions: Annotated[
        int, typer.Option(min=0, metavar="N", help="regions of several kernels of each workload's preset, at most")
    ] = 0,
    schedules_per_kernel: Annotated[
        int, typer.Option(metavar="N", help="distinct schedules of each kind of each kernel and region")
    ] = 20,
    kernels_per_family: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="of each workload, over its presets")
    ] = None,
    tables: Annotated[int, typer.Option(min=0, metavar="N", help="kernels that get a replay table, too")] = 0,
    table_schedules: Annotated[int, typer.Option(min=1, metavar="N", help="of each table, at most")] = 1000,
    budget: Annotated[str | None, typer.Option(metavar="TIME", help="e.g. 2m; no limit by default")] = None,
    samplers: Annotated[
        str | None,
        typer.Option(
            "--samplers",
            "--mix",
            metavar="NAMES",
            help="who draws, each as much or NAME=SHARE: walk:raw, walk:hand-coded, beam:WIDTH, beam:WIDTH/CHILDREN, "
            "greedy:EPSILON, near:best, near:prior, uniform, random, prior, mcts; separated by commas",
        ),
    ] = None,
    compile_only: Annotated[
        bool, typer.Option("--compile-only", help="no device: draw and compile for --target, beside the journal")
    ] = False,
    measure_only: Annotated[
        bool, typer.Option("--measure-only", help="measure what --compile-only left beside the journal")
    ] = False,
    target: Annotated[str, typer.Option(metavar="NAME", help="of --compile-only: h100, h200, sm_80 …")] = "",
    compilers: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="processes that compile; one a core by default")
    ] = None,
    shard: Annotated[str, typer.Option(metavar="N/OF", help="this part of the kernels, e.g. 2/4")] = "1/1",
    gpus: Annotated[int | None, typer.Option(min=1, metavar="N", help="how many GPUs; all by default")] = None,
    predictor: Annotated[
        str, typer.Option(metavar="NAME", help="of greedy samplers: auto, roofline, or a checkpoint")
    ] = "auto",
    seed: Annotated[int, typer.Option(metavar="N", help="seed of the random walks")] = 0,
    fleet: WhichFleet = None,
    certificates: Certificates = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="only the summary line")] = False,
) -> None:
    """Measure schedules of kernels into a journal.

    The kernels are those of workloads, or of another journal. A journal that is there is resumed.
    """
    from kcg.cli import parse_budget
    from kcg.optimize.settings import check_certificates

    check_certificates(fleet or "", certificates)
    if schedules_per_kernel < 1:
        raise UsageError(f"--schedules-per-kernel {schedules_per_kernel}: at least 1")
    names = _names(workloads, f"{shell.command('generate', '--from', CAPTURED, '--out', out)} measures them")
    given = bool(names) or source is not None
    if compile_only and tables:
        raise UsageError("--tables needs times: leave it out of --compile-only")
    _check_stage(out, compile_only=compile_only, measure_only=measure_only, target=target, given=given)
    if not given and not measure_only:
        raise UsageError("--workloads is empty: name at least one, for example flux")
    budget_s = parse_budget(budget) if budget is not None else None
    from kcg.campaign.settings import (
        DEFAULT_MIX,
        TILE_MIX,
        CampaignSettings,
        Stage,
        parse_kinds,
        parse_mix,
        parse_shard,
    )
    from kcg.optimize.console import progress
    from kcg.predictor.choice import check_choice

    settings = CampaignSettings(
        workloads=names,
        source=source,
        out=out,
        preset=preset,
        device=device,
        budget_s=budget_s,
        seed=seed,
        schedules_per_kernel=schedules_per_kernel,
        kernels_per_family=kernels_per_family,
        shard=parse_shard(shard),
        mix=tuple(DEFAULT_MIX.items()) if samplers is None else parse_mix(samplers),
        tile_mix=tuple(TILE_MIX.items()) if samplers is None else parse_mix(samplers),
        kinds=() if kinds is None else parse_kinds(kinds),
        regions=regions,
        target=target,
        stage=Stage.COMPILE if compile_only else Stage.MEASURE if measure_only else Stage.BOTH,
        compile_workers=compilers,
        gpus=gpus,
        tables=tables,
        table_schedules=table_schedules,
        predictor=check_choice(predictor),
        command=command_text("dataset"),
    )
    from kcg.measure.lock import lock_journal

    with lock_journal(out), progress(quiet=quiet) as shown:
        shown.phase(f"generating into {out}")
        log = _progress_lines(shown)
        if fleet is None:
            from kcg.campaign.workers import generate as generate_here

            summary = generate_here(settings, log=log)
        else:
            from kcg.fleet.campaign import generate as generate_there

            summary = generate_there(
                settings,
                fleet=fleet,
                certificates=certificates,
                log=log,
                say=lambda line: shown.line(f"kcg: {line}", important=True),
            )
    typer.echo(_compiled_line(summary) if compile_only else _measured_line(summary))
    if summary.undrawn:
        raise DeviceError(
            f"schedules of {counted(summary.undrawn, 'kernel')} could not be drawn, the last of "
            f"{summary.why_undrawn}; what was measured is kept: run the same command again to go on"
        )
    if not summary.measured and not summary.compiled and not summary.finished:
        typer.echo("kcg: the budget was over before anything was measured: give a larger --budget", err=True)
        raise typer.Exit(ExitCode.NOTHING_SEARCHED)


def _measured_line(summary: CampaignSummary) -> str:
    return (
        f"{counted(summary.kernels, 'kernel')}: {counted(summary.measured, 'schedule')} measured in "
        f"{summary.elapsed_s:.0f} s ({_statuses(summary)}), {_before(summary)}; compilers busy "
        f"{summary.compilers_busy:.0%}, device {summary.device_busy:.0%}; {_end(summary)}"
    )


def _compiled_line(summary: CampaignSummary) -> str:
    each = f", {summary.program_bytes / summary.waiting:,.0f} bytes a schedule" if summary.waiting else ""
    return (
        f"{counted(summary.kernels, 'kernel')}: {counted(summary.compiled, 'schedule')} compiled in "
        f"{summary.elapsed_s:.0f} s (else {_statuses(summary)}), {_before(summary)}; compilers busy "
        f"{summary.compilers_busy:.0%}; {counted(summary.waiting, 'schedule')} in {summary.program_bytes / 1e6:.1f} MB"
        f"{each}; {_end(summary)}"
    )


def _statuses(summary: CampaignSummary) -> str:
    return ", ".join(f"{n} {status}" for status, n in sorted(summary.statuses.items())) or "nothing new"


def _before(summary: CampaignSummary) -> str:
    left_out = f", {counted(summary.skipped, 'kernel')} left out" if summary.skipped else ""
    return f"{summary.already_known} known before{left_out}"


def _end(summary: CampaignSummary) -> str:
    if summary.undrawn:
        return f"{counted(summary.undrawn, 'kernel')} not complete"
    return "complete" if summary.finished else "budget reached, run again to go on"


def _check_stage(out: Path, *, compile_only: bool, measure_only: bool, target: str, given: bool) -> None:
    """Raises UsageError where the options that part a campaign contradict each other, or nothing was compiled, and
    UnknownName for a target that nobody knows."""
    from kcg.dataset.programs import ProgramFile, programs_beside
    from kcg.kernel.targets import target_named

    if compile_only and measure_only:
        raise UsageError("--compile-only and --measure-only: one of them, or neither to do both at once")
    if compile_only and not target:
        raise UsageError("--compile-only needs --target: what will measure, for example h100")
    if target and not compile_only:
        raise UsageError(f"--target {target} is for --compile-only: what is measured here is for this device")
    if target:
        target_named(target)
    if measure_only and given:
        raise UsageError("--measure-only measures what waits beside --out: leave --workloads and --from out")
    if measure_only:
        ProgramFile.open(programs_beside(out), create=False).close()


@app.command(epilog=examples("kcg dataset retime measured.sqlite --share 0.01"))
def retime(
    journal: Annotated[Path, typer.Argument(metavar="FILE", help="a journal that has rows of this device")],
    share: Annotated[
        float, typer.Option(min=0.0, max=1.0, metavar="NUMBER", help="of its binaries: 0.01 is 1 %")
    ] = 0.01,
    best: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="instead, the fastest of each kernel; --share is 1 then")
    ] = None,
    trials: Annotated[int, typer.Option(min=1, metavar="N", help="of each, in turns with its kernel's others")] = 1,
    device: Annotated[str, typer.Option(metavar="NAME", help="auto, CPU, CUDA …")] = "auto",
    budget: Annotated[str | None, typer.Option(metavar="TIME", help="e.g. 2m; no limit by default")] = None,
    fleet: WhichFleet = None,
    certificates: Certificates = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="only the summary line")] = False,
) -> None:
    """Time a part of a journal once more.

    On another day or machine `stats` then tells the drift. The fastest of many are seen too fast: their times in turns
    say which is.
    """
    from kcg.cli import parse_budget
    from kcg.optimize.settings import check_certificates

    check_certificates(fleet or "", certificates)
    budget_s = parse_budget(budget) if budget is not None else None
    from kcg.campaign.workers import Retiming
    from kcg.campaign.workers import retime as retime_here
    from kcg.measure.lock import lock_journal
    from kcg.optimize.console import progress

    share = share if best is None else 1.0
    retiming = Retiming(journal, share, device, command_text("dataset"), budget_s, best, trials)
    with lock_journal(journal), progress(quiet=quiet) as shown:
        shown.phase(f"timing {f'{share:.1%}' if best is None else f'the {best} fastest'} of {journal} again")
        log = _progress_lines(shown)
        if fleet is None:
            summary = retime_here(retiming, log=log)
        else:
            from kcg.fleet.campaign import retime as retime_there

            summary = retime_there(
                retiming,
                fleet=fleet,
                certificates=certificates,
                log=log,
                say=lambda line: shown.line(f"kcg: {line}", important=True),
            )
    counts = ", ".join(f"{n} {status}" for status, n in sorted(summary.statuses.items())) or "nothing"
    end = "complete" if summary.finished else "budget reached"
    typer.echo(f"{summary.measured} schedules timed again in {summary.elapsed_s:.0f} s ({counts}); {end}")


@app.command(
    epilog=examples(
        "kcg dataset capture --out captured.sqlite -- train.py --its-own arguments",
        "kcg dataset capture --workloads flux/mini",
    )
)
def capture(
    program: Annotated[
        list[str] | None,
        typer.Argument(metavar="PROGRAM", help="after --: SCRIPT args…, -m MODULE args… or -c CODE args…"),
    ] = None,
    module: Annotated[
        str | None, typer.Option("-m", metavar="MODULE", help="a module or package to run, as of python")
    ] = None,
    code: Annotated[str | None, typer.Option("-c", metavar="CODE", help="code to run, as of python")] = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="the journal that gets the kernels")] = CAPTURED,
    device: Annotated[str, typer.Option(metavar="NAME", help="auto, CPU, CUDA …")] = "auto",
    workloads: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="instead of a program: NAME, NAME/PRESET, NAME/all or zoo",
            autocompletion=complete_workload,
        ),
    ] = "",
) -> ExitCode:
    """Record every kernel of a program, or of workloads.

    A program runs unchanged, and how often it executed each is recorded, too. Of one that fails or is interrupted what
    it ran is kept. Workloads are only scheduled: the device of their presets need not be there, and `generate --from`
    measures them.
    """
    from kcg.compat.device import choose_device
    from kcg.dataset.journal import Journal
    from kcg.workloads.script import capture_program, program_of

    words = [*(["-m", module] if module else ["-c", code] if code else ()), *(program or ())]
    if (not words) == (not workloads) or (module and code):
        raise UsageError("capture takes a program, or --workloads: a script, -m MODULE or -c CODE")
    if not words:
        _capture_workloads(workloads, out, device)
        return ExitCode.OK

    captured = capture_program(program_of(words), dev=choose_device(device).dev)
    for line in captured.lines:
        typer.echo(f"kcg: {line}", err=True)
    workload = captured.workload
    with Journal.open(out) as journal:
        journal.add_workload(workload)
    kernels = len({c.region.id for c in workload.calls})
    executed = sum(c.calls for c in workload.calls)
    what = f"{counted(kernels, 'kernel')}, executed {counted(executed, 'time')}"
    typer.echo(f"{workload.name}: {what}, recorded in {out}")
    return ExitCode.INTERRUPTED if captured.interrupted else ExitCode.OK


def _capture_workloads(workloads: str, out: Path, device: str) -> None:
    from kcg.campaign.settings import CampaignSettings
    from kcg.campaign.tasks import workloads_of
    from kcg.compat.device import choose_device, prepare
    from kcg.dataset.journal import Journal
    from kcg.optimize.console import progress

    names = _names(workloads)
    # to schedule without allocating, any device does that opens here
    prepare(choose_device("CPU").dev)
    wanted = choose_device(device).device if device == "auto" else device.upper().partition(":")[0]
    count = 0
    with progress() as shown, Journal.open(out) as journal:
        for workload in workloads_of(CampaignSettings(out, names), wanted, lambda line: shown.phase(line)):
            journal.add_workload(workload)
            count += 1
        kernels = counted(journal.counts()["kernels"], "distinct kernel")
    typer.echo(f"{counted(count, 'workload')} captured, {kernels} in {out}")


@app.command(epilog=examples("kcg dataset stats measured.sqlite", "kcg dataset stats FOLDER --html page.html"))
def stats(
    source: Annotated[Path, typer.Argument(metavar="FILE", help="a journal, or a folder written by export")],
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="also write one page with plots, for any browser")
    ] = None,
    json_mode: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Show what was measured. Rows, kernels, statuses, coverage of actions, gains over hand-coded, and jobs of runs."""
    from kcg.dataset import job_use
    from kcg.dataset.export import read_export
    from kcg.dataset.journal import Journal
    from kcg.dataset.stats import render, to_json
    from kcg.dataset.stats import stats as compute

    used: list[job_use.RunUse] = []
    if source.is_dir():
        found = compute(read_export(source))
    else:
        with Journal.open(source, create=False, read_only=True) as journal, journal.snapshot():
            found = compute(journal)
            used = job_use.uses(journal.jobs(), journal.runs())
    if html is not None:
        from kcg.dataset.stats_page import render_page
        from kcg.files import write_whole

        write_whole(html, render_page(found, title=source.resolve().name).encode("utf-8", "replace"))
    if json_mode:
        sys.stdout.write(to_json(found, used) + "\n")
    else:
        render(found, table_console())
        job_use.render(used, table_console())
        if html is not None:
            typer.echo(f"page: {html}")


@app.command(epilog=examples("kcg dataset export measured.sqlite FOLDER"))
def export(
    source: Annotated[Path, typer.Argument(metavar="FILE", help="a journal, or an export, which gets today's columns")],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="where the Parquet files go")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace an earlier export")] = False,
) -> None:
    """Write a journal as immutable Parquet. With checksums, its replay tables if it has some, and a card."""
    from kcg.campaign.tables import tables_of
    from kcg.dataset.export import export as export_now
    from kcg.dataset.export import read_export
    from kcg.dataset.journal import Journal
    from kcg.dataset.publish import CARD, write_card
    from kcg.search.replay import FILE, NamedTable, read_tables, write_tables

    def extras(tables: list[NamedTable]) -> dict[str, Callable[[Path], None]] | None:
        return {FILE: lambda path: write_tables(tables, path)} if tables else None

    if source.is_dir():
        data = read_export(source)
        tables = read_tables(source) if FILE in data.checksums else []
        files = export_now(data, folder, overwrite=overwrite, extras=extras(tables))
    else:
        with Journal.open(source, create=False, read_only=True) as journal:
            files = export_now(journal, folder, overwrite=overwrite, extras=extras(tables_of(journal)))
    write_card(folder)
    typer.echo(f"{folder}: {', '.join(sorted([*files, CARD]))}")


@app.command(epilog=examples("kcg dataset card FOLDER"))
def card(folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="that of an export")]) -> None:
    """Write the data card of an export, its README.md, again."""
    from kcg.dataset.publish import write_card

    typer.echo(str(write_card(folder)))


@app.command(epilog=examples("kcg dataset verify FOLDER --workers 8"))
def verify(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="that of an export")],
    workers: Annotated[
        int, typer.Option(min=1, metavar="N", help="processes that decode kernels and apply schedules")
    ] = 2,
    quiet: Annotated[bool, typer.Option("--quiet", help="only what was found")] = False,
) -> ExitCode:
    """Read a whole export again: files, ids, kernels, schedules. Exit code 4 where something is wrong."""
    from kcg.dataset.check import verify as verify_now
    from kcg.optimize.console import progress

    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder: give the folder of an export")
    with progress(quiet=quiet) as shown:
        shown.phase(f"verifying {folder}")
        report = verify_now(folder, workers=workers, log=_progress_lines(shown))
    for problem in report.problems:
        typer.echo(problem)
    skipped = f", {report.skipped_rows:,} rows skipped" if report.skipped_rows else ""
    typer.echo(
        f"{folder}: {report.rows:,} rows, {report.kernels:,} kernels, {report.schedules:,} schedules, "
        f"{report.binaries:,} binaries{skipped}; "
        + ("no problem was found" if report.ok else f"{len(report.problems):,} lines of problems")
    )
    return ExitCode.OK if report.ok else ExitCode.VERIFICATION_FAILED


@app.command(epilog=examples("kcg dataset merge one.sqlite two.sqlite --out both.sqlite"))
def merge(
    journals: Annotated[list[Path], typer.Argument(metavar="FILE", help="journals to join")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="the new journal")],
    same_target: Annotated[
        bool, typer.Option("--same-target", help="refuse a journal of another target than the first")
    ] = False,
) -> None:
    """Join journals; identical rows are kept once."""
    from kcg.dataset.export import merge as merge_now
    from kcg.dataset.programs import merge_programs

    if out.exists():
        raise JournalError(f"{out} exists already: choose a new file, nothing is overwritten")
    rows = merge_now(journals, out, same_target=same_target)
    waiting, nbytes = merge_programs(journals, out)
    beside = f", and beside it {counted(waiting, 'compiled schedule')} ({nbytes / 1e6:.1f} MB)" if waiting else ""
    typer.echo(f"{out}: {rows} rows{beside}")


@app.command(epilog=examples("kcg dataset add kcg-out --out all.sqlite"))
def add(
    folders: Annotated[list[Path], typer.Argument(metavar="RESULT_FOLDER", help="those of runs of kcg optimize")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="the dataset's journal; an existing one is added to")],
    dirty: Annotated[
        bool, typer.Option("--dirty", help="also runs by code that was changed or whose revision is not known")
    ] = False,
) -> None:
    """Add what runs of kcg optimize measured, and their jobs. What is there already is not added again."""
    from kcg.dataset.export import add as add_now
    from kcg.measure.lock import lock_journal

    with lock_journal(out):
        added = add_now(folders, out, dirty=dirty)
    typer.echo(
        f"{out}: {counted(added.rows, 'new row')}, of them {added.chosen} chosen and {added.uniform} drawn uniformly; "
        f"{counted(added.jobs, 'new job')}"
    )


@app.command(epilog=examples("kcg dataset push FOLDER OWNER/NAME --private"))
def push(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="an export, or a folder of exports")],
    repo: DatasetRepo,
    revision: Branch = "main",
    message: Message = "",
    private: Private = False,
) -> None:
    """Upload to the Hugging Face Hub in one commit. The token is HF_TOKEN. Prints the commit."""
    from kcg.dataset.publish import EXPORTS

    commit = EXPORTS.push(folder, repo, branch=revision, message=message, private=private)
    say_pushed(repo, commit, shell.command(command_name("dataset"), "pull", repo, "FOLDER", "--revision", commit))


@app.command(epilog=examples("kcg dataset pull OWNER/NAME FOLDER --revision COMMIT"))
def pull(
    repo: DatasetRepo,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="a new or empty one")],
    revision: Commit,
) -> None:
    """Download one commit from the Hugging Face Hub. It arrives whole, and its checksums are compared."""
    from kcg.dataset.publish import EXPORTS

    say_pulled(folder, EXPORTS.pull(repo, folder, revision=revision))


def _progress_lines(shown: Progress) -> Callable[[str, float | None], None]:
    """What long work tells its progress, as a bar or lines with the time that is left."""
    begin = time.monotonic()

    def log(line: str, eta_s: float | None) -> None:
        elapsed = time.monotonic() - begin
        shown.update(done_s=elapsed, budget_s=elapsed + eta_s if eta_s is not None else None, note=line)

    return log


def main() -> ExitCode:
    if sys.argv[1:2] in (["generate"], ["retime"]):
        goes_on(f"what was measured is kept; to go on: {command_text('dataset')}")
    return run_app(app, command_name("dataset"))


if __name__ == "__main__":
    guarded(main)
