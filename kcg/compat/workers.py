"""tinygrad's own pool of compiling processes."""

from __future__ import annotations

import gc


def compile_without_collecting() -> None:
    """Have the processes of tinygrad's pool, which this process has yet to start, not look for circles of garbage: a
    lowering makes a million short-lived objects, and a process compiles 16 kernels."""
    from tinygrad.engine import worker

    worker._init_worker = _begin


def _begin() -> None:
    from tinygrad.engine.worker import _init_worker

    _init_worker()
    gc.collect()
    gc.freeze()
    gc.disable()
