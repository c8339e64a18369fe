"""kcg apply RESULT.json --beam N | --undo: a result in tinygrad's own BEAM cache, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kcg.cli import command_app, examples, guarded, run_app
from kcg.commands import SETTINGS, command_name
from kcg.errors import ExitCode, UsageError

app = command_app()


@app.command(
    context_settings=SETTINGS,
    epilog=examples("kcg apply kcg-out/train/RESULT.json --beam 2", "kcg apply --undo"),
)
def apply(
    result: Annotated[Path | None, typer.Argument(metavar="FILE", help="a RESULT.json; not needed with --undo")] = None,
    beam: Annotated[
        list[int] | None, typer.Option(metavar="N", help="the BEAM widths to serve; may be repeated")
    ] = None,
    undo: Annotated[bool, typer.Option("--undo", help="put back what the cache held before")] = False,
    cachedb: Annotated[Path | None, typer.Option(metavar="FILE", help="tinygrad's cache; its own by default")] = None,
) -> None:
    """Write a result into tinygrad's own BEAM cache, so that unchanged programs with BEAM=N use it; or undo that."""
    from kcg.handover.apply import apply as write
    from kcg.handover.apply import undo as restore

    if undo and result is not None:
        raise UsageError(f"--undo takes back whatever was applied: leave out {result}")
    if undo:
        typer.echo(str(restore(cachedb)))
        return
    if result is None:
        raise UsageError(f"which result? write: {command_name('apply')} RESULT.json --beam 2")
    typer.echo(str(write(result, widths=tuple(beam or (2,)), cache_db=cachedb)))


def main() -> ExitCode:
    """The command."""
    return run_app(app, command_name("apply"))


if __name__ == "__main__":
    guarded(main)
