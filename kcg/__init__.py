"""kcg: a learned cost model and kernel optimizer for tinygrad.

Importing it loads nothing but what is asked for. Where tinygrad would find no clang for its CPU, and the wheel
`ziglang` is installed, it sets `CC` to the clang of that wheel, for this process and what it starts. A `CC` that is set
stays as it is: `CC=clang`, which is what tinygrad takes by itself, says no.
"""

from __future__ import annotations

import sys
from importlib import import_module

TYPE_CHECKING = False  # as typing has it, which takes three times as long to import as all of this


def _check_python(version: tuple[int, ...], arguments: list[str]) -> None:
    """Raises ImportError for a Python that is too old for kcg; of `python -m kcg…` that is one line and exit code 2.

    This file is all of kcg that such a Python reads, so its syntax is one that Python 3.7 knows.
    """
    if version >= (3, 11):
        return
    line = "kcg needs Python 3.11 or later, and this is %d.%d: make an environment with a newer one" % version[:2]  # noqa: UP031
    if arguments[:1] == ["-m"]:  # as long as Python looks for the module
        sys.stderr.write("kcg: " + line + "\n")
        raise SystemExit(2)
    raise ImportError(line)


_check_python(tuple(sys.version_info[:2]), sys.argv)


def _name_clang() -> None:
    """Where tinygrad would find no clang, it finds that of the wheel `ziglang`; see `kcg.clang`."""
    from kcg.clang import name_for_tinygrad

    name_for_tinygrad()


_name_clang()

if TYPE_CHECKING:
    from typing import Any

    from kcg import data
    from kcg.autotuning import autotuned
    from kcg.handover.tuned import tuned
    from kcg.predicting import predict
    from kcg.tuning import load, tune

__version__ = "0.2.0"
__all__ = ["__version__", "autotuned", "data", "load", "predict", "tune", "tuned"]

_MODULES = {
    "autotuned": "kcg.autotuning",
    "load": "kcg.tuning",
    "predict": "kcg.predicting",
    "tune": "kcg.tuning",
    "tuned": "kcg.handover.tuned",
}


def __getattr__(name: str) -> Any:
    """What `kcg` offers, loaded when it is first asked for."""
    if name == "data":
        return import_module("kcg.data")
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
