"""kcg store list | add | verify | push | pull"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kcg import shell
from kcg.cli import command_group, counted, examples, guarded, run_app, table_console
from kcg.commands import command_name
from kcg.errors import CodecError, DataError, ExitCode, UsageError
from kcg.hub.commands import Branch, Commit, DatasetRepo, Message, Out, Private, say_pushed
from kcg.nouns import plain

if TYPE_CHECKING:
    from kcg.store.folder import Found

app = command_group("kcg store list STORE", "kcg store COMMAND --help")

Location = Annotated[str, typer.Argument(metavar="STORE", help="a folder, or hf://OWNER/NAME@REVISION")]


@app.callback()
def commands() -> None:
    """Verified schedules by region, target and toolchain: look at, add to, share."""


@app.command("list", epilog=examples("kcg store list tuned", "kcg store list hf://OWNER/NAME@REVISION --json"))
def show(
    store: Location,
    json_mode: Annotated[bool, typer.Option("--json", help="print one JSON object for each")] = False,
) -> None:
    """Show what a store has. Kernels, schedules, speed-ups, targets, and which run each came from."""
    import json

    from rich.table import Table

    from kcg.kernel.kinds import describe
    from kcg.store.location import open_store

    found = list(open_store(store).all())
    for bad in (one for one in found if one.problem):
        typer.echo(f"kcg: {bad.path}: {bad.problem}", err=True)
    entries = sorted((e for one in found if (e := one.entry)), key=lambda e: (e.target.model, -e.baseline.cold_s))
    if json_mode:
        for e in entries:
            report = {
                "id": e.id,
                "key": e.key,
                "region": e.region.id,
                "kernels": len(e.region.kernels),
                "name": e.name,
                "ends": e.ends,
                "target": e.target.fingerprint,
                "model": e.target.model,
                "schedule": [str(e.chosen.schedule.kind), e.chosen.schedule.body],
                "before_s": e.baseline.cold_s,
                "after_s": e.chosen.cold_s,
                "created": e.created,
                "revision": e.revision,
            }
            sys.stdout.write(json.dumps(report, sort_keys=True) + "\n")
        return
    nothing = sum(one.nothing is not None for one in found)
    also = f", and {counted(nothing, 'kernel')} for which nothing was found" if nothing else ""
    table = Table(title=f"{store}: {counted(len(entries), 'schedule')}{also}")
    for column in ("kernel", "target", "before", "after", "speed-up", "schedule", "of"):
        table.add_column(column, justify="right" if column in ("before", "after", "speed-up") else "left")
    for e in entries:
        before, after = (f"{1e6 * side.cold_s:,.1f} µs" for side in (e.baseline, e.chosen))
        what = f"{len(e.region.kernels)} kernels" if len(e.region.kernels) > 1 else plain(e.name) or e.region.id[:12]
        words = plain(describe(e.chosen.schedule))
        row = (what, plain(e.target.model), before, after, f"{e.speed_up:.2f}×", words, plain(e.created[:10]))
        table.add_row(*row)
    table_console(width=160, markup=False).print(table)


@app.command(epilog=examples("kcg store add kcg-out/flux/RESULT.json tuned"))
def add(
    result: Annotated[Path, typer.Argument(metavar="FILE", help="the RESULT.json of a run")],
    store: Annotated[str, typer.Argument(metavar="STORE", help="a folder; a new one is made")],
) -> None:
    """Add the verified schedules of a result. What the store has that is faster stays."""
    from kcg.report.result import read_result
    from kcg.store.entry import entries_of
    from kcg.store.location import open_store

    found, into = read_result(result), open_store(store, new=True)
    if not into.writable:
        raise UsageError(f"{store} is only read: give a folder that can be written")
    if found.model_check is not None and found.model_check.passed is False:
        raise UsageError(f"{result}: the whole is wrong with its schedules ({found.model_check.reason}): none is added")
    entries = entries_of(found, found.deployed)
    if not entries:
        raise UsageError(f"{result} has no verified schedule that is faster than tinygrad's own: nothing to add")
    added = sum(into.add(entry) for entry in entries)
    typer.echo(f"{store}: {added} of {counted(len(entries), 'schedule')} added")


@app.command(epilog=examples("kcg store verify tuned"))
def verify(store: Location) -> None:
    """Read and check every entry.

    Hash, schema, kernels and schedules: speed and results are verified where a schedule is used.
    """
    from kcg.store.location import open_store

    count, bad = 0, 0
    for one in open_store(store).all():
        count += 1
        if problem := one.problem or _undecoded(one):
            bad += 1
            typer.echo(f"{one.path}: {problem}")
    if bad:
        raise DataError(f"{bad} of {counted(count, 'entry', 'entries')} of {store} cannot be used, as said above")
    typer.echo(f"{store}: {counted(count, 'entry', 'entries')}, all whole")


def _undecoded(found: Found) -> str:
    """Why a kernel of what was found is none, in a line; reading an entry looks at its id only."""
    from kcg.kernel.codec import ast_of

    if (one := found.entry or found.nothing) is None:
        return ""
    for kernel in one.region.kernels:
        try:
            ast_of(kernel)
        except CodecError as error:
            return f"kernel {kernel.id[:12]}: {error}: delete it"
    return ""


@app.command(epilog=examples("kcg store push tuned OWNER/NAME --private"))
def push(
    store: Annotated[Path, typer.Argument(metavar="FOLDER", help="a store")],
    repo: DatasetRepo,
    revision: Branch = "main",
    message: Message = "",
    private: Private = False,
) -> None:
    """Upload to the Hugging Face Hub in one commit. The token is HF_TOKEN. Prints how to use the commit."""
    from kcg.store.publish import STORES

    commit = STORES.push(store, repo, branch=revision, message=message, private=private)
    say_pushed(repo, commit, shell.command(command_name("optimize"), "WORKLOAD", "--store", f"hf://{repo}@{commit}"))


@app.command(epilog=examples("kcg store pull OWNER/NAME --revision COMMIT --out FOLDER"))
def pull(repo: DatasetRepo, revision: Commit, out: Out) -> None:
    """Download one commit from the Hugging Face Hub. It arrives whole, every entry is read, and it can be added to."""
    from kcg.store.publish import STORES

    entries = len(STORES.pull(repo, out, revision=revision)) - 1  # all files but the marker
    typer.echo(f"{out}: {counted(entries, 'entry', 'entries')}")


def main() -> ExitCode:
    return run_app(app, command_name("store"))


if __name__ == "__main__":
    guarded(main)
