"""A small model that does what its preset says; `python -m tests.tiny_models` is the child that checks it."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kcg.workloads import registry
from kcg.workloads.family import Step
from kcg.workloads.registry import Published, WorkloadSpec

DTYPES = ("float32", "bfloat16", "float16")
TIMES = {"dies-once-tuned": 1, "dies-twice-tuned": 2}  # so many processes die, counted in `TMPDIR`
BAD = ("hangs", "dies-at-once", "dies-when-tuned", *TIMES, "nan", "zero", "other-kernels")


UNSTEADY = "TINY_UNSTEADY"  # an environment variable: the name of a kernel of which every so-manieth launch is wrong


def disturbed(call: Callable[..., Any], name: str, every: int, *, first: int = 0) -> Callable[..., Any]:
    """The `call` of tinygrad's programs on a CPU with one bit wrong in the output of every so-manieth launch of a
    kernel, counted from the `first` on."""
    launches = itertools.count(1)

    def launch(program: Any, *buffers: Any, **how: Any) -> Any:
        taken = call(program, *buffers, **how)
        if program.name == name:
            number = next(launches) - first
            if number > 0 and number % every == 0:
                buffers[0].cpu_view().view(fmt="B")[1] ^= 1  # of a float32 a part in 32,768 at most
        return taken

    return launch


def _forward(x: Any, first: Any, second: Any) -> Any:
    scores = (x @ first).contiguous()
    largest = scores.max(axis=1, keepdim=True).contiguous()
    return ((scores - largest).square().contiguous() @ second).contiguous()


def _parameters(preset: str, make: Callable[..., Any]) -> tuple[Any, Any, Any]:
    dtype = preset if preset in DTYPES else "float32"
    x, first, second = (make(*shape, dtype=dtype) for shape in ((8, 12), (12, 16), (16, 24)))
    return x, first, second


def lazy(preset: str) -> Any:
    """The output on empty tensors: for capture."""
    from tinygrad import Tensor

    return _forward(*_parameters(preset, Tensor.empty))


def step(preset: str, seed: int, weights: str = "") -> Step:
    """The same on random tensors, standard deviation 1/sqrt(fan_in), times the number that the file `weights` holds."""
    import numpy as np
    from tinygrad import Tensor
    from tinygrad.engine import realize
    from tinygrad.runtime.ops_cpu import CPUProgram

    from kcg.compat.capture import Standing

    generator = np.random.default_rng(seed)

    def random(*shape: int, dtype: str) -> Any:
        values = generator.normal(scale=shape[0] ** -0.5, size=shape).astype(np.float32)
        return Tensor(values).cast(dtype).contiguous().realize()

    x, first, second = _parameters(preset, random)
    if UNSTEADY in os.environ:
        name, every, before = os.environ[UNSTEADY].split(":")
        call = disturbed(CPUProgram.__call__, name, int(every), first=int(before))
        CPUProgram.__call__ = call  # type: ignore[method-assign]
    if weights:
        first = (first * float(Path(weights).read_text())).contiguous().realize()

    def run(x: Any) -> Any:
        tuned = type(realize.lower_and_compile) is Standing  # as kcg hands schedules over
        if preset == "hangs":
            time.sleep(36_000)
        if preset == "dies-at-once" or (preset == "dies-when-tuned" and tuned):
            os.abort()
        if preset in TIMES and tuned:
            for died in (Path(os.environ["TMPDIR"], f"died-{place}") for place in range(TIMES[preset])):
                if not died.exists():
                    died.touch()
                    os.abort()
        if preset == "other-kernels":
            return (x @ second.reshape(12, 32)).contiguous()
        out = _forward(x, first, second)
        return out * float("nan") if preset == "nan" else out * 0 if preset == "zero" else out

    return Step({"x": x}, run)


def plan(preset: str) -> Any:
    """Schedule it on nothing."""
    return lazy(preset).linear_with_vars()[0]


TINY = WorkloadSpec(
    name="tiny",
    about="two layers with a square between",
    presets=(*DTYPES, *BAD),
    auto_preset=lambda _: "float32",
    capture=lambda preset: _capture(preset),
    runnable=step,
    plan=plan,
    published=Published(lambda preset, weights, download: None, step),
)


def _capture(preset: str) -> Any:
    from kcg.workloads.capture import lazy_workload

    return lazy_workload("tiny", preset, lazy(preset))


if __name__ == "__main__":
    from kcg.judge.whole_model import main

    registry.WORKLOADS["tiny"] = lambda: TINY
    main()
