"""kcg run --result RESULT.json script.py args | -m module args | -c code args: with all that was found."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kcg.cli import command_app, examples, run_app
from kcg.commands import SETTINGS, command_name
from kcg.errors import UsageError
from kcg.handover.run import ProgramRun, end

app = command_app(no_args_is_help=True)
AS_PYTHON = {**SETTINGS, "allow_interspersed_args": False, "ignore_unknown_options": True}
"""What comes after the program's name is its own, and `-m` and `-c` are Python's."""

_runs: list[ProgramRun] = []  # what was asked for; its hooks stay until the process ends


@app.command(
    context_settings=AS_PYTHON,
    epilog=examples(
        "kcg run --result kcg-out/train/RESULT.json train.py --its-own arguments",
        "kcg run --result RESULT.json -m package.module",
    ),
)
def run(
    result: Annotated[Path, typer.Option(metavar="FILE", help="the RESULT.json of kcg optimize")],
    program: Annotated[
        list[str], typer.Argument(metavar="PROGRAM", help="script.py args, -m module args, or -c code args")
    ],
    kernels: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="a file of hand-written kernels that the search had; may be repeated"),
    ] = None,
) -> None:
    """Run a program unchanged with everything of a result in place. Its exit status is the program's."""
    from kcg.handover.checks import check_model_result
    from kcg.report.result import read_result
    from kcg.workloads.script import check_program, program_of

    found = read_result(result)
    check_model_result(found)
    asked = program_of(program)
    check_program(asked)
    files = tuple(path.absolute() for path in kernels or ())
    if missing := [path for path in files if not path.is_file()]:
        raise UsageError(f"there is no file of kernels {missing[0]}")
    _runs.append(ProgramRun(result, found, asked, files))


def main() -> None:
    """Read the command line, then become the program."""
    try:
        run_app(app, command_name("run"))
    except Exception as error:
        end(error)
    for one in _runs:
        one.run()


if __name__ == "__main__":
    # run as a module of the package, so that what the program imports does not see this one as __main__
    from kcg.run import main as main_of_the_package

    main_of_the_package()
