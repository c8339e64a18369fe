"""A process that runs one contender in PyTorch: eager, a mode of torch.compile, or Triton; a step of Flux too."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from .serving import Prepared, serve

COMPILED = ("default", "max-autotune", "max-autotune-no-cudagraphs", "reduce-overhead")
"""Modes of torch.compile; all but the first and the third replay CUDA graphs."""
WARM_UPS = 3  # calls until graphs are recorded


def prepare(case: dict[str, Any]) -> Prepared:
    """`how` is `eager`, a mode of torch.compile, or `triton`."""
    import torch

    how, device = case.get("how", "eager"), "cpu" if case["dev"].startswith("CPU") else "cuda"
    if how in COMPILED:
        import torch._functorch.config

        torch._dynamo.reset()
        torch._functorch.config.donated_buffer = False  # a backward pass is timed many times
    if case["kind"] == "flux":
        from .flux_steps import build_step as build
    elif case["kind"] == "region":
        from .flux_regions import build_region as build
    else:
        from .torch_cases import build
    with torch.no_grad():
        function, inputs = build(case, device)
    if how == "triton":
        if device == "cpu":
            os.environ["TRITON_INTERPRET"] = "1"
        from .triton_rope import rope as function
    elif how != "eager":
        assert how in COMPILED, f"no mode {how!r}"
        for tensor in inputs.values():
            torch._dynamo.mark_static_address(tensor)  # graphs read it where it is: no copy with every call
        if case["kind"] == "flux" and how.startswith("max-autotune"):
            # each kind of block once, as diffusers' documentation advises: 57 blocks are tuned for longer than we wait
            function.model.compile_repeated_blocks(mode=how, dynamic=False, fullgraph=True)
        else:
            function = torch.compile(function, mode=None if how == "default" else how, dynamic=False)
    call = _backward(function, inputs) if case.get("backward") else _forward(function, inputs, graphs=how in COMPILED)
    for _ in range(WARM_UPS):
        call()

    def values() -> Sequence[float]:
        from .cases import values_of

        found = call()
        first = found if isinstance(found, torch.Tensor) else found[0]
        return values_of(first.detach().float().cpu().numpy())

    facts: dict[str, Any] = {"torch": torch.__version__}
    if device == "cuda":
        facts |= {"memory_bytes": torch.cuda.max_memory_allocated(), "gpu": torch.cuda.get_device_name()}
    return Prepared(call, values, facts, lambda: profiled(call, device))


def _forward(function: Callable[..., Any], inputs: dict[str, Any], *, graphs: bool) -> Callable[[], Any]:
    """`graphs`: each call is a step of its own for CUDA graphs, if any; only the compiler's modes have them."""
    import torch

    def call() -> Any:
        if graphs:
            torch.compiler.cudagraph_mark_step_begin()
        with torch.no_grad():
            return function(**inputs)

    return call


def _backward(function: Callable[..., Any], inputs: dict[str, Any]) -> Callable[[], Any]:
    from .torch_cases import backward_of

    return backward_of(function, inputs)


def profiled(call: Callable[[], object], device: str) -> str:
    """The table of torch.profiler over ten calls."""
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device == "cuda" else [])
    with profile(activities=activities) as seen:
        for _ in range(10):
            call()
    by = "self_cuda_time_total" if device == "cuda" else "self_cpu_time_total"
    return str(seen.key_averages().table(sort_by=by, row_limit=12, max_name_column_width=60))


def make_clock(job: dict[str, Any]) -> Any:
    """Open the device: the GPU unless the job's is a CPU."""
    from .torch_clock import TorchClock

    return TorchClock("cpu" if job["dev"].startswith("CPU") else "cuda")


if __name__ == "__main__":
    serve(make_clock, prepare)
