"""Lines that are printed to be copied into a shell, each word so that the shell gives it back as it was."""

from __future__ import annotations

import shlex
from pathlib import Path


def word(value: str | Path) -> str:
    """One word of a command, quoted where that is needed. A path that a command would take for an option begins with
    the folder that it is in."""
    text = str(value)
    return shlex.quote(f"./{text}" if isinstance(value, Path) and text.startswith("-") else text)


def command(name: str, *words: str | Path) -> str:
    """A command: `name` as it is, which may be several words, and what it is given."""
    return " ".join([name, *map(word, words)])


def setting(name: str, value: str | Path) -> str:
    """A variable of the environment, as it stands before a command or behind `export`."""
    return f"{name}={word(value)}"
