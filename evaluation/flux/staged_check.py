"""The child of the check of a whole model, which also says when each of its stages began and what it took.

    python -m evaluation.flux.staged_check flux 768 < job.json

`ready.py` runs it. It does what `python -m kcg.judge.whole_model` does, with a clock around some of its functions, and
writes one line of JSON to standard error: a list of stage, second of its begin since the job was there (before: since
the process began), its seconds, and how many others it was within.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

BEFORE = "planned before the job"
LEAST_S = 0.02  # what is shorter is not said
STAGES = {
    "kcg.judge.whole_model:_step": "the step: weights and inputs",
    "kcg.workloads.flux_weights:random_weights": "random weights",
    "kcg.judge.step:perturbed": "perturbed inputs",
    "kcg.judge.step:_Program.__init__": "a program: put in place, captured, run once",
    "kcg.judge.step:_replay": "replays",
    "kcg.judge.step:judge_outputs": "comparing",
    "kcg.handover.remaking:remade": "the result's programs: from the cache, or made",
    "kcg.compat.captures:CapturedOnce.run": "capturing",
    "kcg.compat.replacing:Replacing.__call__": "finding the calls of regions",
    "kcg.compat.standalone:load_program": "loading machine code",
    "tinygrad.engine.jit:memory_plan_rewrite": "planning memory",
    "tinygrad.engine.realize:lower_and_compile": "lowering and compiling",
    "tinygrad.engine.realize:get_graph_runtime": "a graph",
    "tinygrad.engine.jit:CapturedJit.__call__": "a run of what was captured",
    "tinygrad.schedule:create_schedule": "scheduling",
}
"""Module and name of each function, and what it is called."""


class Clock:
    """What ran when."""

    def __init__(self) -> None:
        self.begin_s, self.job_s = time.perf_counter(), 0.0
        self.seen: list[tuple[str, float, float, int]] = []
        self._depth = 0

    def around(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, timed."""

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            begin, place = time.perf_counter(), len(self.seen)
            self._depth += 1
            try:
                return function(*args, **kwargs)
            finally:
                self._depth -= 1
                if (took_s := time.perf_counter() - begin) >= LEAST_S:
                    self.seen.insert(place, (name, begin, took_s, self._depth))

        return timed

    def told(self) -> list[tuple[str, float, float, int]]:
        """See the module."""
        return [
            (name, round(begin - (self.job_s if begin >= self.job_s > 0 else self.begin_s), 3), round(took_s, 3), depth)
            for name, begin, took_s, depth in self.seen
        ]


def function_at(place: str) -> tuple[Any, str, Callable[..., Any]]:
    """One of `STAGES`: the module or class that has it, its name there, and itself."""
    module, _, path = place.partition(":")
    holder: Any = importlib.import_module(module)
    *classes, attribute = path.split(".")
    for one in classes:
        holder = getattr(holder, one)
    return holder, attribute, getattr(holder, attribute)


def main() -> None:
    """Time the stages of the check's child."""
    clock = Clock()
    from kcg.judge import whole_model

    class Heard(whole_model.isolated.Awaited):
        """Notes when the last one was waited for, and when it came: that is the job."""

        def __call__(self) -> dict[str, Any]:
            clock.seen = [one for one in clock.seen if one[0] != BEFORE]
            clock.seen.append((BEFORE, clock.begin_s, time.perf_counter() - clock.begin_s, 0))
            job = super().__call__()
            clock.job_s = time.perf_counter()
            return job

    whole_model.isolated.Awaited = Heard  # type: ignore[misc]
    from kcg.compat.device import prepare

    prepare(os.environ["DEV"])  # before anything opens a device
    for place, name in STAGES.items():
        holder, attribute, function = function_at(place)
        setattr(holder, attribute, clock.around(name, function))
    try:
        whole_model.main()
    finally:
        print(json.dumps(clock.told()), file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
