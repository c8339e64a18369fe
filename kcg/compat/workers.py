"""Processes that do nothing but compile: tinygrad's own pool of them, and what holds in any of them."""

from __future__ import annotations

import atexit
import contextlib
import gc
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kcg.compat.tiny import UOp

KERNELS_EACH = 400  # that a process of a pool lowers: after tinygrad's own 16 another begins, which takes a second
COLLECT_EVERY = 50  # kernels


def stop_collecting() -> None:
    """Have this process, which only compiles, not look for circles of garbage: a lowering makes a million short-lived
    objects, and looking for circles among them is a fifth of its time. What it has loaded stays, with what little of
    that is garbage: to find it takes as long as half a kernel."""
    gc.freeze()
    gc.disable()


@contextlib.contextmanager
def not_collecting() -> Iterator[None]:
    """A block in which this process does not look for circles of garbage: of scheduling a model that is an eighth to a
    fifth, and finds next to none."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def compile_without_collecting() -> None:
    """Have the processes of tinygrad's pool `stop_collecting`, which this process has yet to start. Each ends after 16
    kernels."""
    from tinygrad.engine import worker

    worker._init_worker = _begin


def _begin() -> None:
    from tinygrad.engine.worker import _init_worker

    _init_worker()
    stop_collecting()


class Lowering:
    """tinygrad's lowering of kernels in this process and in its pool, whose processes `stop_collecting`: how long each
    took."""

    def __init__(self) -> None:
        self._seconds: weakref.WeakKeyDictionary[UOp, float] = weakref.WeakKeyDictionary()
        self._pool: Any = None

    def taken_s(self, program: UOp) -> float | None:
        """What lowering a program took, asked once; None where it was not lowered since the last time."""
        return self._seconds.pop(program, None)

    def watch(self, realize: Any) -> Callable[[], None]:
        """Put it into the module `tinygrad.engine.realize`; what is returned takes it out again."""
        pool_before, lower_before = realize.get_worker_pool, realize.to_program

        def get_worker_pool() -> Lowering | None:
            self._pool = _pool() or pool_before()
            return None if self._pool is None else self

        def to_program(ast: UOp, renderer: Any) -> UOp:
            begin = time.perf_counter()
            program: UOp = lower_before(ast, renderer)
            self._seconds[program] = time.perf_counter() - begin
            return program

        def undo() -> None:
            realize.get_worker_pool, realize.to_program = pool_before, lower_before

        realize.get_worker_pool, realize.to_program = get_worker_pool, to_program
        return undo

    def imap_unordered(self, function: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[tuple[int, UOp]]:
        """As of a pool: the place and the program of each task as it is done."""
        for place, program, seconds in self._pool.imap_unordered(_timed, ((function, task) for task in tasks)):
            self._seconds[program] = seconds
            yield place, program

    def terminate(self) -> None:
        """As of a pool."""
        self._pool.terminate()


def _pool() -> Any:
    """tinygrad's pool, of processes that lower many kernels and collect nothing, where it has none yet."""
    import multiprocessing

    from tinygrad.engine import worker
    from tinygrad.helpers import PARALLEL

    if worker.worker_pool is None and PARALLEL.value and not multiprocessing.current_process().daemon:
        worker.worker_pool = pool = worker._WorkerContext().Pool(PARALLEL.value, _begin, (), KERNELS_EACH)
        atexit.register(pool.close)
    return worker.worker_pool


_lowered = 0  # so many by this process


def _timed(call: tuple[Callable[[Any], Any], Any]) -> tuple[int, UOp, float]:
    global _lowered
    function, task = call
    begin = time.perf_counter()
    place, program = function(task)
    seconds = time.perf_counter() - begin
    _lowered += 1
    if _lowered % COLLECT_EVERY == 0:
        gc.collect()
    return place, program, seconds
