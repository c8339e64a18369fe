"""kcg: a learned cost model and kernel optimizer for tinygrad."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from kcg.autotuning import autotuned
    from kcg.optimize.deploy import tuned
    from kcg.predicting import predict
    from kcg.tuning import load, tune

__version__ = "0.1.0"
__all__ = ["__version__", "autotuned", "load", "predict", "tune", "tuned"]

_MODULES: Final = {
    "autotuned": "kcg.autotuning",
    "load": "kcg.tuning",
    "predict": "kcg.predicting",
    "tune": "kcg.tuning",
    "tuned": "kcg.optimize.deploy",
}


def __getattr__(name: str) -> Any:
    """What `kcg` offers, loaded when it is first asked for: importing kcg loads nothing else."""
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
