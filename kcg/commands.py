"""The commands of kcg: what each is for, where it lives, and how it is typed.

A command's module is imported when that command runs, and not before.
"""

from __future__ import annotations

from typing import Final, NamedTuple

SETTINGS: Final = {"help_option_names": ["-h", "--help"]}
"""Settings of every command, for typer's `context_settings`."""


class Command(NamedTuple):
    """One subcommand of `kcg`."""

    about: str  # one line for `kcg --help`
    module: str  # which holds its typer application
    application: str = "app"
    by_module: str = ""  # what `python -m` calls it; empty where it is a subcommand only


OPTIMIZE: Final = "kcg.optimize.__main__"  # which holds three commands
COMMANDS: Final = {
    "optimize": Command("Find faster schedules for a workload or a script.", OPTIMIZE, by_module="kcg.optimize"),
    "run": Command("Run a program unchanged with all that was found.", "kcg.run", by_module="kcg.run"),
    "apply": Command("Hand a result to plain tinygrad, or take it back.", OPTIMIZE, "apply_app", "kcg.optimize apply"),
    "export": Command("Write a result as a module for tinygrad alone.", OPTIMIZE, "export_app", "kcg.optimize export"),
    "check": Command("Complete what is provisional, and compare the whole, later.", "kcg.check", by_module="kcg.check"),
    "compare": Command("Show two results side by side.", "kcg.compare", by_module="kcg.compare"),
    "ui": Command("Show all runs as a local page, live ones too.", "kcg.ui.__main__", by_module="kcg.ui"),
    "list": Command("Show the workloads that kcg knows, and what they need.", "kcg.listing"),
    "dataset": Command("Generate and share schedules' times.", "kcg.dataset.__main__", by_module="kcg.dataset"),
    "predictor": Command("See and share predictors and policies.", "kcg.predictor.__main__", by_module="kcg.predictor"),
    "store": Command("Keep and share verified schedules.", "kcg.store.__main__", by_module="kcg.store"),
    "fleet": Command("Run the hosts and the scheduler of a fleet.", "kcg.fleet.__main__", by_module="kcg.fleet"),
    "doctor": Command("Say what kcg will use here, and what is missing.", "kcg.doctor", by_module="kcg.doctor"),
}

_started: list[str] = []  # the words with which this process was asked for a subcommand of `kcg`, if it was


def start_as(*words: str) -> None:
    """From now on commands are named as those that were typed after these words: `kcg`, or `python -m kcg`."""
    _started[:] = words


def command_name(name: str) -> str:
    """A command as the user of this process types it: `kcg apply`, or `python -m kcg.optimize apply`."""
    by_module = COMMANDS[name].by_module
    if _started or not by_module:
        return f"{program_name()} {name}"
    return f"python -m {by_module}"


def program_name() -> str:
    """What stands before a subcommand."""
    return " ".join(_started) or "python -m kcg"
