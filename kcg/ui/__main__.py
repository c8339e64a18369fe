"""kcg ui [FOLDER] [--port 0] [--no-browser]"""

from __future__ import annotations

import os
import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from kcg.cli import command_app, examples, guarded, run_app
from kcg.commands import SETTINGS, command_name
from kcg.errors import ExitCode, UsageError

app = command_app()


@app.command(context_settings=SETTINGS, epilog=examples("kcg ui", "kcg ui runs --port 8080 --no-browser"))
def ui(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="where runs wrote their results")] = Path("kcg-out"),
    port: Annotated[
        int, typer.Option(metavar="N", min=0, max=65535, help="of this machine's own address; 0: a free one")
    ] = 0,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="print the address, and open nothing")] = False,
) -> None:
    """Show all runs below a folder as a page in the browser, those that go on as well, until Ctrl-C."""
    from kcg.ui.runs import Folder
    from kcg.ui.server import Server

    if not folder.is_dir():
        what = "is no folder" if folder.exists() else "is not there"
        raise UsageError(f"{folder} {what}: name the folder of results, such as that of kcg.optimize --report")
    runs = Folder(folder)
    with Server(runs, port=port) as server:
        if runs.look().is_empty:
            typer.echo(f"kcg: there is no run in {folder} yet: what is written there will be shown", err=True)
        typer.echo(f"{folder}: {server.url}\nCtrl-C ends it")
        sys.stdout.flush()
        if not no_browser and _has_screen():
            webbrowser.open(server.url)
        server.serve_forever()


def _has_screen() -> bool:
    """Whether a browser would have a window: one without would take this terminal."""
    return sys.platform in ("darwin", "win32") or any(name in os.environ for name in ("DISPLAY", "WAYLAND_DISPLAY"))


def main() -> ExitCode:
    """The command."""
    return run_app(app, command_name("ui"))


if __name__ == "__main__":
    guarded(main)
