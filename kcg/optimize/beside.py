"""What need not be waited for: one thing at a time, in a thread of its own, while whoever asked for it goes on."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Generic, TypeVar

T = TypeVar("T")


class Beside(Generic[T]):
    """Does one thing at a time beside the thread that asks. Only one thread asks, apart from `end`."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._future: Future[T] | None = None

    @property
    def is_free(self) -> bool:
        """Whether nothing was begun whose value was not taken."""
        return self._future is None

    def begin(self, do: Callable[[], T]) -> None:
        """Begin something, where it `is_free`."""
        assert self._future is None
        self._future = self._pool.submit(do)

    def taken(self) -> T | None:
        """The value of what was begun, once it is there, and once only: None before. Raises what that raised."""
        if self._future is None or not self._future.done():
            return None
        future, self._future = self._future, None
        return future.result()

    def end(self, timeout_s: float | None = None) -> None:
        """Wait until what was begun is over, at most so long; nothing is begun any more."""
        self._pool.shutdown(wait=False)
        if (future := self._future) is not None:
            wait([future], timeout=timeout_s)
