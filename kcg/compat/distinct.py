"""Each kernel of a program lowered once: calls that run equal kernels get the program of the first of them.

tinygrad 0.14.0 compiles equal kernels once too, but then puts their programs into the calls one by one, through all
nodes of each kernel: of a step of Flux, 1217 calls of 70 kernels, that is 1.5 of the 7 s of a capture.

Private: `engine.realize.lower_and_compile`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from kcg.compat.capture import Standing
from kcg.compat.tiny import Ops, UOp


@contextlib.contextmanager
def lowering_distinct_kernels() -> Iterator[None]:
    """Inside the block, this process lowers so. What others put in front of tinygrad's function before the block, such
    as `recording`, sees distinct kernels only: begin it inside."""
    from tinygrad.engine import realize

    standing = _OneOfEach(realize, "lower_and_compile", lambda linear: linear)
    try:
        yield
    finally:
        standing.take_out()


class _OneOfEach(Standing):
    def __call__(self, linear: UOp, *rest: Any, **named: Any) -> UOp:
        first: dict[tuple[UOp, Any], UOp] = {}
        for call in linear.src:
            if call.op is not Ops.CALL or call.src[0].op is Ops.CUSTOM_FUNCTION:  # with calls inside
                return self._lowered(linear, *rest, **named)
            first.setdefault((call.src[0], call.device), call)
        if len(first) == len(linear.src):
            return self._lowered(linear, *rest, **named)
        lowered = self._lowered(linear.replace(src=tuple(first.values())), *rest, **named)
        made = {place: call.src[0] for place, call in zip(first, lowered.src, strict=True)}
        calls = (call.replace(src=(made[call.src[0], call.device], *call.src[1:])) for call in linear.src)
        return linear.replace(src=tuple(calls))

    def _lowered(self, linear: UOp, *rest: Any, **named: Any) -> UOp:
        lowered: UOp = super().__call__(linear, *rest, **named)
        return lowered
