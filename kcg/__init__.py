"""kcg: a learned cost model and kernel optimizer for tinygrad."""

__version__ = "0.1.0"
