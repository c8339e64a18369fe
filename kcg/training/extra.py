"""What training needs and the rest of kcg does not: the extra `train`."""

from __future__ import annotations

from importlib.util import find_spec

from kcg.cli import pip_install
from kcg.errors import UsageError


def need(*packages: str) -> None:
    """Raises UsageError, with what to install, where one of these is not installed. Imports none."""
    for package in packages:
        if find_spec(package) is None:
            raise UsageError(f"this needs {package}, which is not installed: {pip_install('train')}")
