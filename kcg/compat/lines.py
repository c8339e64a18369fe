"""Which code is the user's: the lines that a value comes from. Importing this module imports no tinygrad."""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
from pathlib import Path
from types import FrameType

LINES = 3  # of the stack that are kept
CALLED_BY = " < "  # between a line and the one that called it

_KCG = Path(__file__).parent.parent
_MODELS = tuple(str(_KCG / "workloads" / name) for name in ("zoo", "flux.py", "layers.py"))


def users_line() -> str:
    """The innermost line that is neither tinygrad's nor kcg's machinery, nor, where there is another, of something
    installed; and the lines of the same folder that called it, the nearest ones: `file:line < file:line`. A layer that
    all of a model calls says little by itself. A cell of a notebook is named by its number: `In [3]:line`."""
    frame: FrameType | None = sys._getframe(1)
    found: list[str] = []
    folder = installed = ""
    while frame is not None and len(found) < LINES:
        path = frame.f_code.co_filename
        if is_machinery(path):
            pass
        elif is_installed(path):
            installed = installed or f"{path}:{frame.f_lineno}"
        elif not found or os.path.dirname(path) == folder:  # noqa: PTH120  # a thousand times
            folder = folder or os.path.dirname(path)  # noqa: PTH120
            found.append(f"{_cell(path) or path}:{frame.f_lineno}")
        frame = frame.f_back
    return CALLED_BY.join(found) or installed


def _cell(path: str) -> str:
    """What a notebook calls the cell that a file stands for, of which IPython makes up a name; empty where it is none,
    or no notebook runs here."""
    shell = sys.modules.get("IPython.core.getipython")
    if shell is None or (running := shell.get_ipython()) is None:
        return ""
    named: tuple[str, str] | None = running.compile.format_code_name(path)
    return "" if named is None else named[1].replace("In[", "In [")


@functools.cache
def is_machinery(path: str) -> bool:
    """Whether a file is tinygrad's, or kcg's but for its models: those are code that a line may name."""
    import tinygrad

    library = os.path.dirname(tinygrad.__file__) + os.sep  # noqa: PTH120  # as code objects name it
    ours = path.startswith(str(_KCG) + os.sep) and not path.startswith(_MODELS)
    return path.startswith(library) or ours or path.startswith("<frozen")


@functools.cache
def is_installed(path: str) -> bool:
    """Whether a file is of Python's own library, or of a package that is installed beside it."""
    folders = {sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return path.startswith(tuple(folders)) and not path.startswith(_MODELS)
