"""kcg: a learned cost model and kernel optimizer for tinygrad."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kcg import data
    from kcg.optimize.deploy import tuned

__version__ = "0.1.0"
__all__ = ["__version__", "data", "tuned"]


def __getattr__(name: str) -> Any:
    """`kcg.tuned` and `kcg.data`, loaded when first asked for: importing kcg loads nothing else."""
    if name == "data":
        import importlib

        return importlib.import_module("kcg.data")
    if name == "tuned":
        from kcg.optimize.deploy import tuned

        return tuned
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
