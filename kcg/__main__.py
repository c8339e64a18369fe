"""kcg COMMAND args…, which is also python -m kcg COMMAND args…"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from kcg import shell
from kcg.cli import examples, guarded, run_app
from kcg.commands import COMMANDS, SETTINGS, command_name, program_name, start_as
from kcg.errors import ExitCode, UnknownName, UsageError

COMPLETE = "_KCG_COMPLETE"
"""Set by a shell that asks for completions."""
INSTALL, SHOW = "--install-completion", "--show-completion"


class Commands(TyperGroup):
    """The commands of the table; one is imported when it runs, or when its own options are completed."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = COMMANDS.get(cmd_name)
        return command and get_command(import_module(command.module).app)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.about) for name, command in COMMANDS.items()])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in COMMANDS and not ctx.resilient_parsing:
            raise _unknown(args[0])
        return super().resolve_command(ctx, args)


def _unknown(word: str) -> UsageError:
    from kcg.workloads.registry import WORKLOADS

    if word.partition("/")[0] in WORKLOADS or word.endswith(".py"):
        return UsageError(f"{word} is no command: write {shell.command(command_name('optimize'), word)}")
    return UnknownName("command", word, list(COMMANDS))


app = typer.Typer(
    cls=Commands,
    context_settings=SETTINGS,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    epilog=examples(
        "kcg doctor",
        "kcg optimize flux/mini --budget 60s",
        "kcg optimize train.py --budget 5m",
        "kcg COMMAND --help",
    ),
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from kcg import __version__

        typer.echo(f"kcg {__version__}")
        raise typer.Exit


@app.callback()
def kcg(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Find faster schedules for tinygrad kernels, verify them, and hand them back to plain tinygrad."""


def _run_itself() -> ExitCode:
    """What is no command of the table. Raises UsageError where completion is to go where nothing can be written."""
    try:
        return run_app(app, program_name())
    except OSError as error:
        if INSTALL not in sys.argv or error.filename is None:
            raise
        shown = shell.command(program_name(), SHOW)
        raise UsageError(
            f"cannot write {error.filename}: {error.strerror}: set HOME to a folder that can be written, or add what "
            f"{shown} prints to your shell's start-up file"
        ) from error


def main(*started: str) -> None:
    """Run the command that the command line names as its own module would; `started` is what was typed before it."""
    start_as(*started or ("kcg",))
    name = "".join(sys.argv[1:2])
    if name not in COMMANDS or COMPLETE in os.environ:
        guarded(_run_itself)
    del sys.argv[1]
    if name == "run":  # which becomes the program: what that raises is its own
        import_module(COMMANDS[name].module).main()
    else:
        guarded(import_module(COMMANDS[name].module).main)


if __name__ == "__main__":
    main("python", "-m", "kcg")
