"""kcg check RESULT.json: compare a result as a whole, where its run had no time for that."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from kcg.cli import command_app, examples, guarded, run_app, showing
from kcg.commands import SETTINGS, command_name
from kcg.errors import ExitCode

app = command_app(no_args_is_help=True)


@app.command(context_settings=SETTINGS, epilog=examples("kcg check kcg-out/train/RESULT.json"))
def check(
    result: Annotated[Path, typer.Argument(metavar="FILE", help="the RESULT.json of kcg optimize, or its folder")],
    quiet: Annotated[bool, typer.Option("--quiet", help="only what came out")] = False,
) -> None:
    """Run a script or a model with what was found, and compare what it leaves with tinygrad's own schedules.

    What came out is written into its RESULT.json. Nothing is searched. The exit code is that of kcg optimize."""
    from rich.console import Console

    from kcg.judge.later import checked
    from kcg.measure.lock import lock_device, lock_folder
    from kcg.optimize.console import print_result
    from kcg.report.endings import exit_code_of
    from kcg.report.page import write_report
    from kcg.report.result import read_result, write_result
    from kcg.workloads.left import FOLDER, forget

    path = result / "RESULT.json" if result.is_dir() else result
    before = read_result(path)  # first: where there is none, that is what is wrong

    def say(line: str) -> None:
        if not quiet:
            sys.stderr.write(f"{line}\n")

    with lock_folder(path.parent), lock_device(before.target.tinygrad_device):
        found = checked(before, path.parent, say=say)
        report = path.with_name("report.html")
        if found != before:
            write_result(found, path)
            report = write_report(found, path.parent)
        if found.complete:
            forget(path.parent / FOLDER)
    with showing():
        print_result(found, Console(highlight=False), files=(path, report))
    raise typer.Exit(int(exit_code_of(found)))


def main() -> ExitCode:
    return run_app(app, command_name("check"))


if __name__ == "__main__":
    guarded(main)
