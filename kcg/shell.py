"""Lines that are printed to be copied into a shell, each word so that the shell gives it back as it was."""

from __future__ import annotations

import shlex
import shutil
import sys
import sysconfig
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


# ---- how the shell in which this process was started reaches its environment


def script_here() -> str:
    """How that shell starts the `kcg` of this environment; empty where it is not known."""
    own = Path(sys.argv[0])
    is_own = own.name == "kcg" and own.is_file()
    if (found := shutil.which("kcg")) is not None and (_is_here(found) or (is_own and own.samefile(found))):
        return "kcg"
    return word(_seen_from_here(own)) if is_own else ""


def interpreter_here() -> str:
    """How that shell starts the Python that runs: by its name where it finds it by that, else by its path."""
    own = Path(sys.executable or "python")
    for name in ("python", own.name):
        if (found := shutil.which(name)) is not None and _is_here(found):
            return name
    return word(_seen_from_here(own)) if sys.executable else "python"


def _is_here(program: str) -> bool:
    """Whether a program is of this environment, whose folder tells: an interpreter is a link to one that many have."""
    places = Path(sys.executable).parent, Path(sysconfig.get_path("scripts"))
    return any(place.is_dir() and place.samefile(Path(program).parent) for place in places)


def _seen_from_here(path: Path) -> str:
    """A path, shorter where it is in this folder; with a slash, since a bare name would be looked for."""
    path, folder = path.absolute(), Path.cwd()
    if not path.is_relative_to(folder):
        return str(path)
    inside = path.relative_to(folder)
    return str(inside) if len(inside.parts) > 1 else f"./{inside}"
