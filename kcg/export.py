"""kcg export RESULT.json --python FILE: a result as one Python module for tinygrad alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kcg.cli import command_app, examples, guarded, run_app
from kcg.commands import SETTINGS, command_name
from kcg.errors import ExitCode

app = command_app()


@app.command(context_settings=SETTINGS, epilog=examples("kcg export kcg-out/train/RESULT.json --python tuned_model.py"))
def export(
    result: Annotated[Path, typer.Argument(metavar="FILE", help="a RESULT.json")],
    python: Annotated[Path, typer.Option(metavar="FILE", help="the module to write, such as tuned_model.py")],
    kernels: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="a file of hand-written kernels that the search had; may be repeated"),
    ] = None,
) -> None:
    """Write a result as one Python module that needs tinygrad only and installs itself when it is imported."""
    from kcg.handover.export import export as write

    typer.echo(str(write(result, python, kernels=tuple(kernels or ()))))


def main() -> ExitCode:
    """The command."""
    return run_app(app, command_name("export"))


if __name__ == "__main__":
    guarded(main)
