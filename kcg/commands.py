"""The commands of kcg: what each is for, where it lives, and how it is typed.

A command's module is imported when that command runs, and not before.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kcg import shell

SETTINGS: Final = {"help_option_names": ["-h", "--help"]}
"""Settings of every command, for typer's `context_settings`."""


class Command(NamedTuple):
    """One subcommand of `kcg`."""

    about: str  # one line for `kcg --help`
    module: str  # which holds its typer application, `app`

    @property
    def by_module(self) -> str:
        """What `python -m` calls it."""
        return self.module.removesuffix(".__main__")


COMMANDS: Final = {
    "optimize": Command("Find faster schedules for a workload or a script.", "kcg.optimize.__main__"),
    "run": Command("Run a program unchanged with all that was found.", "kcg.run"),
    "apply": Command("Hand a result to plain tinygrad, or take it back.", "kcg.apply"),
    "export": Command("Write a result as a module for tinygrad alone.", "kcg.export"),
    "check": Command("Complete what is provisional, and compare the whole, later.", "kcg.check"),
    "compare": Command("Show two results side by side.", "kcg.compare"),
    "ui": Command("Show all runs as a local page, live ones too.", "kcg.ui.__main__"),
    "list": Command("Show the workloads that kcg knows, and what they need.", "kcg.list"),
    "dataset": Command("Generate and share schedules' times.", "kcg.dataset.__main__"),
    "predictor": Command("See and share predictors and policies.", "kcg.predictor.__main__"),
    "store": Command("Keep and share verified schedules.", "kcg.store.__main__"),
    "fleet": Command("Run the hosts and the scheduler of a fleet.", "kcg.fleet.__main__"),
    "calibrate": Command("Fit what is predicted to this device, in two minutes.", "kcg.calibrate"),
    "doctor": Command("Say what kcg will use here, and what is missing.", "kcg.doctor"),
}

_started: list[str] = []  # the words with which this process was asked for a subcommand of `kcg`, if it was


def start_as(*words: str) -> None:
    """From now on commands are named as those that were typed after these words: `kcg`, or `python -m kcg`."""
    _started[:] = words


def command_name(name: str) -> str:
    """A command as the user of this process types it: `kcg apply`, or `python -m kcg.apply`."""
    return f"{program_name()} {name}" if _started else f"python -m {COMMANDS[name].by_module}"


def program_name() -> str:
    """What stands before a subcommand."""
    return " ".join(_started) or "python -m kcg"


# ---- what is printed to be typed next


def typed(name: str) -> str:
    """A command as it works where this process was started, whatever that was started as: `kcg apply` where the shell
    finds the `kcg` of this environment, else with the path of that, or by the interpreter that runs."""
    script = shell.script_here()
    return f"{script} {name}" if script else f"{shell.interpreter_here()} -m {COMMANDS[name].by_module}"


def as_typed(line: str) -> str:
    """A line that begins with a command of kcg as some process was started, as it works here."""
    first, _, rest = line.partition(" ")
    name = rest.partition(" ")[0]
    if first == "kcg" and name in COMMANDS:
        return typed(name) + rest.removeprefix(name)
    return f"{shell.interpreter_here()} {rest}" if first == "python" and rest.startswith("-m kcg") else line
