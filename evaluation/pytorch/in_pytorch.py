"""A process that runs one contender in PyTorch: eager, a mode of torch.compile, or Triton.

`evaluation.flux.in_pytorch` is the same for Flux: it has a `build` and a `compiled` of its own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch

from evaluation.pytorch.cases import FAMILY, arrays, kind_of
from evaluation.pytorch.kind import Case, Trained, values_of
from evaluation.pytorch.serving import Call, Prepared, serve
from kcg.compat.programs import SPIN_HZ, hidden_s, hiding
from kcg.measure.device_info import NoSensors, NvidiaSensors, Sensors
from kcg.measure.protocol import flush_bytes

AS_WRITTEN = ("eager", "triton")
"""All other ways are compiled: by a mode of torch.compile, or as `compiled` has it."""
WARM_UPS = 3  # calls until graphs are recorded

Tensor = torch.Tensor
Ready = tuple[Callable[..., Any] | Trained, dict[str, Tensor]]  # what is compiled, and its inputs


def build(case: Case, device: str, seed: int = 0) -> Ready:
    """The function of a case and its inputs on `device`."""
    if case["kind"] == FAMILY:
        from evaluation.pytorch.models_torch import build_model

        return build_model(case, device, seed)
    dtype, kind = getattr(torch, case["dtype"]), kind_of(case)
    made = {name: torch.from_numpy(values).to(device).to(dtype) for name, values in arrays(case, seed).items()}
    made |= {name: torch.from_numpy(values).to(device) for name, values in kind.tables(case).items()}
    return kind.in_torch(), made


def compiled(function: Callable[..., Any], how: str) -> Callable[..., Any]:
    """By a mode of torch.compile."""
    return torch.compile(function, mode=None if how == "default" else how, dynamic=False)


def prepare(
    case: Case,
    build: Callable[[Case, str], Ready] = build,
    compiled: Callable[[Callable[..., Any], str], Callable[..., Any]] = compiled,
) -> Prepared:
    """`how` is `eager`, a mode of torch.compile, or `triton`."""
    how, device = case.get("how", "eager"), "cpu" if case["dev"].startswith("CPU") else "cuda"
    if how not in AS_WRITTEN:
        from torch._functorch import config

        torch._dynamo.reset()
        if case.get("backward"):
            config.donated_buffer = False  # its pass is timed many times
    with torch.no_grad():
        made, inputs = build(case, device)
    function = made.loss if isinstance(made, Trained) else made
    if how == "triton":
        if device == "cpu":
            os.environ["TRITON_INTERPRET"] = "1"
        in_triton = kind_of(case).in_triton
        assert in_triton is not None, f"nothing in Triton for {case['kind']}"
        function = in_triton()
    elif how != "eager":
        for tensor in inputs.values():
            torch._dynamo.mark_static_address(tensor)  # graphs read it where it is: no copy with every call
        function = compiled(function, how)
    graphs = how not in AS_WRITTEN
    if isinstance(made, Trained):
        call = _trained(function, inputs, made.targets, graphs=graphs)
    elif case.get("backward"):
        call = backward_of(function, inputs)
    else:
        call = _forward(function, inputs, graphs=graphs)
    for _ in range(WARM_UPS):
        call()

    def values() -> Sequence[float]:
        found = call()
        compared = found if isinstance(found, torch.Tensor) else found[case.get("compared", 0)]
        return values_of(compared.detach().float().cpu().numpy())

    facts: dict[str, Any] = {"torch": torch.__version__}
    if device == "cuda":
        facts |= {"memory_bytes": torch.cuda.max_memory_allocated(), "gpu": torch.cuda.get_device_name()}
    return Prepared(call, values, facts, lambda: profiled(call, device))


def _forward(function: Callable[..., Any], inputs: dict[str, Any], *, graphs: bool) -> Callable[[], Any]:
    """`graphs`: each call is a step of its own for CUDA graphs, if any; only the compiler's modes have them."""

    def call() -> Any:
        if graphs:
            torch.compiler.cudagraph_mark_step_begin()
        with torch.no_grad():
            return function(**inputs)

    return call


def _trained(
    loss: Callable[..., Tensor], inputs: dict[str, Any], targets: Sequence[Tensor], *, graphs: bool
) -> Callable[[], tuple[Tensor, ...]]:
    """A loss and its gradients, as `_forward`; the backward pass is compiled with the loss."""

    def call() -> tuple[Tensor, ...]:
        if graphs:
            torch.compiler.cudagraph_mark_step_begin()
        found = loss(**inputs)
        return found, *torch.autograd.grad(found, list(targets))

    return call


def backward_of(function: Callable[..., Tensor], inputs: dict[str, Tensor]) -> Callable[[], Tensor]:
    """The backward pass of `function` as autograd runs it, for the gradient `x` of its output."""
    gradient = inputs["x"]
    given = torch.zeros_like(gradient).requires_grad_()
    output = function(**{**inputs, "x": given})

    def backward() -> Tensor:
        (found,) = torch.autograd.grad(output, given, gradient, retain_graph=True)
        return found

    return backward


def profiled(call: Callable[[], object], device: str) -> str:
    """The table of torch.profiler over ten calls."""
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device == "cuda" else [])
    with profile(activities=activities) as seen:
        for _ in range(10):
            call()
    by = "self_cuda_time_total" if device == "cuda" else "self_cpu_time_total"
    return str(seen.key_averages().table(sort_by=by, row_limit=12, max_name_column_width=60))


class TorchClock:
    """For what runs in PyTorch on `cpu` or `cuda`."""

    def __init__(self, device: str) -> None:
        self.on_cuda = device == "cuda"
        self.device = device
        cache = torch.cuda.get_device_properties(0).L2_cache_size if self.on_cuda else 0
        elements = flush_bytes("CUDA" if self.on_cuda else "CPU", cache) // 4
        self._flush = torch.ones(elements, dtype=torch.int32, device=device)
        self.sensors: Sensors = _sensors() if self.on_cuda else NoSensors()

    def synchronize(self) -> None:
        if self.on_cuda:
            torch.cuda.synchronize()

    def seconds(self, call: Call, state: str, host_s: float) -> float:
        def sample(busy_s: float) -> tuple[float, float]:
            flush()
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin = time.perf_counter()
            torch.cuda._sleep(int(busy_s * SPIN_HZ))
            first.record()
            call()
            sent_s = time.perf_counter() - begin
            last.record()
            last.synchronize()
            return float(first.elapsed_time(last)) * 1e-3, sent_s

        def flush() -> None:
            if state == "cold":
                self.flush()
                self.synchronize()

        self.synchronize()
        if state != "called" and self.on_cuda:
            return hiding(sample, hidden_s(host_s))[0]
        flush()
        begin = time.perf_counter()
        call()
        self.synchronize()
        return time.perf_counter() - begin

    def flush(self) -> None:
        """Fill the cache with what nobody reads, by a kernel that writes: a driver's memset may bypass the cache."""
        self._flush.add_(1)

    def canary(self) -> tuple[float, str]:
        """The median of some copies that compute, as `kcg.measure.canary` has them, and what of them is wrong."""
        from kcg.measure.canary import CPU_BYTES, DEVICE_BYTES, SAMPLES

        source = torch.arange((DEVICE_BYTES if self.on_cuda else CPU_BYTES) // 4, device=self.device)
        source = source.to(torch.int32)
        taken = [self.seconds(lambda: source * 3 + 7, "warm", 50e-6) for _ in range(2 * SAMPLES)][SAMPLES:]
        right = bool(((source * 3 + 7).long() == source.long() * 3 + 7).all())
        return median(taken), "" if right else "its result is wrong"


def _sensors() -> Sensors:
    try:
        return NvidiaSensors()
    except Exception:  # NVML is absent or refuses: many kinds of error, all of which mean that nothing is told
        return NoSensors()


def make_clock(job: dict[str, Any]) -> TorchClock:
    """Open the device: the GPU unless the job's is a CPU."""
    return TorchClock("cpu" if job["dev"].startswith("CPU") else "cuda")


if __name__ == "__main__":
    serve(make_clock, prepare)
