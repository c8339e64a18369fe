"""kcg check RESULT.json: complete what is provisional in a result, and compare it as a whole."""

from __future__ import annotations

import sys
from dataclasses import replace
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
    """Give provisional programs the launches that they have to pass yet, and compare a script or model as a whole.

    The whole runs with what was found, where its run had no time for that, and what it leaves is compared with
    tinygrad's own schedules. Where it is wrong, what it is wrong with is left out, and the rest keeps its gain.
    RESULT.json and the report say what came out, and nothing is searched. Ended early, it goes on from there the next
    time. The exit code is that of kcg optimize.
    """
    from rich.console import Console

    from kcg.measure.lock import lock_device, lock_folder
    from kcg.optimize.completing import checked, completed
    from kcg.optimize.console import print_result
    from kcg.report.endings import ANSWERED, exit_code_of
    from kcg.report.page import write_report
    from kcg.report.result import read_result, write_result
    from kcg.report.words import provisional_line
    from kcg.workloads.left import FOLDER, forget

    path = result / "RESULT.json" if result.is_dir() else result
    before = found = read_result(path)  # first: where there is none, that is what is wrong

    def say(line: str) -> None:
        if not quiet:
            sys.stderr.write(f"{line}\n")

    report = path.with_name("report.html")
    with lock_folder(path.parent), lock_device(before.target.tinygrad_device):
        if line := provisional_line(before):
            say(line)
        try:
            for after_piece in completed(before, path.parent, say=say):
                found = after_piece
            found = checked(found, path.parent, say=say)
            found = replace(found, complete=exit_code_of(found) in ANSWERED)
        finally:
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
