"""What a process has loaded. Loads nothing of kcg itself, so that a child can be asked."""

from __future__ import annotations

import sys


def loaded(*modules: str) -> list[bool]:
    """Of each whether it was there before this was asked."""
    return [name in sys.modules for name in modules]
