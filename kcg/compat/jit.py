"""tinygrad's TinyJit without the uncaptured call that it begins with.

Private: `_TinyJit.cnt`, how often it was called (0: not captured yet, 1: captured at the next call).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tinygrad import TinyJit


def captured_at_once(function: Callable[..., Any]) -> Any:
    """A `TinyJit` of `function` that captures its first call.

    An uncaptured call keeps every value that a program made contiguous until it ends: a step of Flux 1024 ran out of
    the 141 GB of an H200 so. The memory of a captured call is planned.
    """
    jitted: Any = TinyJit(function)
    jitted.cnt = 1
    return jitted
