"""A machine without clang, for a process that a test starts: the wheel `ziglang`, which the tests need, is hidden."""

from __future__ import annotations

import shutil
from pathlib import Path

HIDE = (
    "from importlib.machinery import PathFinder as _finder\n"
    "_find = _finder.find_spec\n"
    "_finder.find_spec = lambda name, *rest: None if name == 'ziglang' else _find(name, *rest)\n"
)
"""What such a process runs first, with an empty `PATH` and `CC`."""


def stand_in(folder: Path) -> dict[str, str]:
    """What lets plain tinygrad open its CPU where clang is missing: the environment of a process.

    The device compiles four helpers that no kernel needs; here they become a trap instruction.
    """
    if shutil.which("clang"):
        return {}
    script = folder / "cc"
    script.write_text("#!/bin/sh\ncat > /dev/null\nprintf '\\017\\013'\n")
    script.chmod(0o755)
    return {"CC": str(script)}
