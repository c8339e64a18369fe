"""Timing on an NVIDIA GPU: CUDA graphs of contenders in turns, each through copies of what it reads; and a token of a
model, by the host's clock."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kcg.workloads.family import Step

CAPTURING = 4  # steps that TinyJit captures in, and the first of its graph
ROUNDS, LOOPS = 10, 3  # timings of each, in turns; times that a graph goes through all copies
Call = Callable[[int], None]


def in_turns(calls: dict[str, Call], copies: int) -> dict[str, list[float]]:
    """Seconds of each call, of some rounds: a graph of it goes through all copies of what it reads."""
    import torch

    graphs = {}
    for name, call in calls.items():
        for number in range(copies):
            call(number)
        torch.cuda.synchronize()
        graphs[name] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphs[name]):
            for number in [*range(copies)] * LOOPS:
                call(number)
        graphs[name].replay()
    seen: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, graph in graphs.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            seen[name].append(begin.elapsed_time(end) / 1e3 / (copies * LOOPS))
    return seen


def chosen(seen: dict[str, list[float]]) -> tuple[str, float]:
    """The fastest by every other timing, and its median by the others."""
    best = min(seen, key=lambda name: statistics.median(seen[name][::2]))
    return best, statistics.median(seen[best][1::2])


def token_s(step: Step, tokens: int) -> float:
    """Seconds of a token, the median of so many that follow each other, each of which is waited for."""
    from tinygrad import TinyJit

    position, begin = step.inputs["start_pos"].unbind()
    others = {name: value for name, value in step.inputs.items() if name != "start_pos"}
    # what does not change is no argument, as in an application: a graph would set it anew for each token
    run, seconds = TinyJit(lambda start_pos: step.run(**others, start_pos=start_pos)), []
    for number in range(CAPTURING + tokens):
        begun = time.perf_counter()
        token, *_ = run(start_pos=position.bind(begin + number))
        token.item()
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds[CAPTURING:])
