"""Processes that do nothing but compile: tinygrad's own pool of them, and what holds in any of them."""

from __future__ import annotations

import gc


def stop_collecting() -> None:
    """Have this process, which only compiles, not look for circles of garbage: a lowering makes a million short-lived
    objects, and looking for circles among them is a fifth of its time. What it has loaded stays, with what little of
    that is garbage: to find it takes as long as half a kernel."""
    gc.freeze()
    gc.disable()


def compile_without_collecting() -> None:
    """Have the processes of tinygrad's pool `stop_collecting`, which this process has yet to start. Each ends after 16
    kernels."""
    from tinygrad.engine import worker

    worker._init_worker = _begin


def _begin() -> None:
    from tinygrad.engine.worker import _init_worker

    _init_worker()
    stop_collecting()
