"""Timing of launches on an NVIDIA GPU: CUDA graphs of contenders in turns, each through copies of what it reads."""

from __future__ import annotations

import statistics
from collections.abc import Callable

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
