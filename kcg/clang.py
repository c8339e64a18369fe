"""The clang of the wheel `ziglang`, for a machine that has no other.

tinygrad opens its CPU only where it finds a clang: what `CC` names, else `clang`. Importing kcg sets `CC` to the clang
of the wheel, for this process and what it starts, where neither is there. A `CC` that is set, to whatever it is, is
left alone: `CC=clang`, which is what tinygrad takes by itself, says no.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder

TYPE_CHECKING = False  # as typing has it, which importing kcg need not load
if TYPE_CHECKING:  # what importing kcg need not load where there is no such wheel
    from collections.abc import Iterator
    from pathlib import Path

OWN = "clang"  # what tinygrad takes where `CC` is not set

_named: list[str] = []  # what importing kcg set `CC` to


def name_for_tinygrad() -> None:
    """Set `CC` to the clang of the wheel, where tinygrad would find none by itself."""
    if "CC" in os.environ or _on_path(OWN) or (clang := packaged_clang()) is None:
        return
    os.environ["CC"] = clang
    _named.append(clang)
    if (helpers := sys.modules.get("tinygrad.helpers")) is not None:
        helpers.getenv.cache_clear()  # it may have read CC, in an attempt that failed


def cc_of_others() -> str:
    """What `CC` says to another process that the user starts: without what importing kcg set here."""
    cc = os.environ.get("CC", OWN)
    return OWN if cc in _named else cc


def packaged_clang() -> str | None:
    """clang as the wheel `ziglang` carries it: a script for `CC`, kept in the user's cache, that calls `zig clang`.

    None where there is no such wheel.
    """
    if os.name != "posix" or (zig := _zig()) is None:
        return None
    import hashlib
    import shlex

    text = f'#!/bin/sh\nexec {shlex.quote(zig)} clang "$@"\n'
    name = f"clang-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    return next((str(script) for folder in _folders() if _is_there(script := folder / name, text)), None)


def _zig() -> str | None:
    """The program of the wheel."""
    spec = PathFinder.find_spec("ziglang")  # as importlib.util does, which takes as long to import as all of kcg
    if spec is None or spec.origin is None:
        return None
    from pathlib import Path

    zig = Path(spec.origin).parent / "zig"
    return str(zig) if zig.is_file() else None


def _folders() -> Iterator[Path]:
    """Where the script may be, the best first."""
    from pathlib import Path

    yield Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kcg"
    import tempfile

    yield Path(tempfile.gettempdir()) / f"kcg-{os.getuid()}"


def _is_there(script: Path, text: str) -> bool:
    """Whether the script is there, or could be made."""
    try:
        if not (script.is_file() and script.read_text() == text):
            from kcg.files import whole

            with whole(script) as partial:
                partial.write_text(text)
                partial.chmod(0o755)
    except OSError:
        return False  # the folder cannot be written
    return True


def _on_path(program: str) -> bool:
    """Whether a program of this name is found, as `shutil.which` finds it, which takes longer to import."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    places = [f"{folder or os.curdir}{os.sep}{program}" for folder in folders]
    return any(os.access(place, os.X_OK) and not os.path.isdir(place) for place in places)  # noqa: PTH112
