"""What pools of processes say of each call that is over: what was called, from when to when, and what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Call:
    """A function that was called, and what came of it: a result or an error. Times are by `time.monotonic`."""

    function: Callable[..., Any] | None  # None: processes were started or ended
    args: tuple[Any, ...]
    begin_s: float
    end_s: float
    result: Any = None
    error: BaseException | None = None


Called = Callable[[Call], object]
"""What gets each call when it is over, before its future is done, in any thread. It must not raise."""


def nobody(call: Call) -> None:
    """Who wants no calls."""


def seen(called: Called, function: Callable[..., Any] | None, args: tuple[Any, ...], run: Callable[[], T]) -> T:
    """What `run` gives; `called` gets that it ran, as a call of `function(*args)`."""
    begin, result, failure = time.monotonic(), None, None
    try:
        result = run()
    except BaseException as error:
        failure = error
        raise
    finally:
        called(Call(function, args, begin, time.monotonic(), result, failure))
    return result
