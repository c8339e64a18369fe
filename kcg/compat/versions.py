"""Which tinygrad this process imports: the one that is installed, or one in a folder before it on Python's path."""

from __future__ import annotations

import importlib.util
from importlib import metadata
from pathlib import Path


def other_tinygrad() -> Path | None:
    """The folder that tinygrad is imported from where that is not the installed package. Imports nothing."""
    found, installed = importlib.util.find_spec("tinygrad"), metadata.distribution("tinygrad").locate_file("tinygrad")
    if found is None or found.origin is None or not Path(str(installed)).is_dir():  # installed as editable
        return None
    folder = Path(found.origin).parent
    return None if folder.resolve() == Path(str(installed)).resolve() else folder


def tinygrad_version() -> str:
    """The version of the tinygrad that is imported here, as it was installed; of another one its folder."""
    folder = other_tinygrad()
    return metadata.version("tinygrad") if folder is None else f"another one, in {folder}"
