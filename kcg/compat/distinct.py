"""Each kernel of a program lowered once: calls that run equal kernels get the program of the first of them.

tinygrad 0.14.0 compiles equal kernels once too, but then puts their programs into the calls one by one, through all
nodes of each kernel: of a step of Flux, 1200 calls of 70 kernels, 1.5 of the 7 s of a capture.

Private: `engine.realize.lower_and_compile`.
"""

from __future__ import annotations

from typing import Any

from kcg.compat.tiny import Ops, UOp


def lower_distinct_kernels() -> None:
    """Have this process, one of kcg's own, lower so until it ends."""
    from tinygrad.engine import realize

    lower_before = realize.lower_and_compile

    def lower_and_compile(linear: UOp) -> UOp:
        calls = linear.src
        if any(call.op is not Ops.CALL or call.src[0].op is Ops.CUSTOM_FUNCTION for call in calls):
            lowered: UOp = lower_before(linear)
            return lowered
        first: dict[tuple[UOp, Any], UOp] = {}
        for call in calls:
            first.setdefault((call.src[0], call.device), call)
        if len(first) == len(calls):
            lowered = lower_before(linear)
            return lowered
        made = dict(zip(first, lower_before(linear.replace(src=tuple(first.values()))).src, strict=True))
        bodies = [made[call.src[0], call.device].src[0] for call in calls]
        pairs = zip(calls, bodies, strict=True)
        return linear.replace(src=tuple(call.replace(src=(body, *call.src[1:])) for call, body in pairs))

    realize.lower_and_compile = lower_and_compile
