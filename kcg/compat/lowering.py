"""A program's kernels lowered together: each distinct one once, and what a driver compiles loaded in threads.

tinygrad 0.14.0 compiles equal kernels once too, but then puts their programs into the calls one by one, through all
nodes of each kernel: of a step of Flux, 1217 calls of 70 kernels, that is 1.5 of the 7 s of a capture. And it loads
programs one after the other when they first run: on CUDA they are PTX, which the driver compiles then, for 10 to 60 ms
each (one NVIDIA H200).

Private: `engine.realize.lower_and_compile` and `.runtime_cache`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from kcg.compat.capture import Standing
from kcg.compat.tiny import Device, Ops, UOp, to_program

COMPILES = ("CUDA",)  # devices whose driver compiles what it loads


def lower_ahead(calls: UOp, renderer: Any, is_free: Callable[[], bool]) -> int:
    """Lower and compile the kernels of a program as tinygrad does, one by one for as long as this process `is_free`:
    tinygrad, opening a device of that renderer, finds them in its cache. Gives how many; no device is opened."""
    done = 0
    for ast in dict.fromkeys(call.src[0] for call in calls.src if call.src[0].op is Ops.SINK):
        if not is_free():
            break
        with contextlib.suppress(Exception):  # which tinygrad raises again when it comes to it
            to_program(ast, renderer)
            done += 1
    return done


@contextlib.contextmanager
def lowering_together() -> Iterator[None]:
    """Inside the block, this process lowers so. What others put in front of tinygrad's function before the block, such
    as `recording`, sees one call of each kernel."""
    from tinygrad.engine import realize

    standing = _Together(realize, "lower_and_compile", lambda linear: linear)
    try:
        yield
    finally:
        standing.take_out()


class _Together(Standing):
    def __call__(self, linear: UOp, *rest: Any, **named: Any) -> UOp:
        first: dict[tuple[UOp, Any], UOp] = {}
        for call in linear.src:
            if call.op is not Ops.CALL or call.src[0].op is Ops.CUSTOM_FUNCTION:  # with calls inside
                return self._lowered(linear, *rest, **named)
            first.setdefault((call.src[0], call.device), call)
        lowered = self._lowered(linear.replace(src=tuple(first.values())), *rest, **named)
        load_in_threads(lowered.src)
        made = dict(zip(first, lowered.src, strict=True))

        def done(call: UOp) -> UOp:
            place = call.src[0], call.device
            tagged = made[place].tag != first[place].tag  # by `recording`
            return call.replace(src=(made[place].src[0], *call.src[1:]), tag=made[place].tag if tagged else call.tag)

        return linear.replace(src=tuple(map(done, linear.src)))

    def _lowered(self, linear: UOp, *rest: Any, **named: Any) -> UOp:
        lowered: UOp = super().__call__(linear, *rest, **named)
        return lowered


def load_in_threads(calls: Sequence[UOp]) -> None:
    """Load the programs of calls that are not loaded yet, where the driver compiles them. What does not load is left to
    tinygrad, which says why."""
    from tinygrad.engine.realize import runtime_cache

    waiting = {
        (call.src[0].key, call.device): call
        for call in calls
        if call.src[0].op is Ops.PROGRAM and isinstance(call.device, str) and call.device.split(":")[0] in COMPILES
    }
    elfs = {key: call.src[0].to_elf() for key, call in waiting.items() if key not in runtime_cache}

    def load(key: tuple[bytes, str]) -> None:
        with contextlib.suppress(Exception):
            runtime_cache[key] = Device[key[1]].runtime(elfs[key])

    if len(elfs) < 2:
        return
    with contextlib.suppress(RuntimeError):  # once the main thread has ended there are no pools
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(min(len(elfs), os.cpu_count() or 1), "kcg-load") as pool:
            list(pool.map(load, elfs))
