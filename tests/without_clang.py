"""A machine without clang, for a process that a test starts: the wheel `ziglang`, which the tests need, is hidden."""

from __future__ import annotations

HIDE = (
    "import importlib.util as _util\n"
    "_find = _util.find_spec\n"
    "_util.find_spec = lambda name, *rest: None if name == 'ziglang' else _find(name, *rest)\n"
)
"""What such a process runs first, with an empty `PATH` and `CC`."""
