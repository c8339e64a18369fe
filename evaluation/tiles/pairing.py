"""All contenders of one kernel in one process: the same inputs, the same clock, cold caches, one sample each in turns.

It is a process of its own, so that a contender that faults costs one kernel. PyTorch runs here, and the programs of
kcg are loaded beside it (`loading.py`). Outputs are compared: with PyTorch's float32 where it computes the same, else
with the first program.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from evaluation.pytorch.in_pytorch import TorchClock, compiled
from evaluation.pytorch.serving import host_seconds
from evaluation.regions.functions import ATTENTIONS, BACKENDS, FUNCTIONS, by_backend
from evaluation.regions.summary import PARTS
from evaluation.rows import FAR, figures, rounded
from evaluation.tiles.cases import Case, Convolution, Function, Linear, Sums, View
from evaluation.tiles.loading import Driver, Loaded
from evaluation.tiles.summary import MODES
from kcg.kernel.chain import Chain
from kcg.kernel.program import Executable, Program, program_of_parts
from kcg.kernel.reading.kernel import read_kernel
from kcg.kernel.tile.targets import triton_version
from kcg.measure.device_info import first_line
from kcg.measure.inputs import BufferInfo, buffers_of_kernels, integer_bounds
from kcg.measure.protocol import PROTOCOL
from kcg.types import Region

SCREENING = 5  # samples that tell the fastest of a kernel's tile programs; it is timed again afterwards
WARM_UPS = 3
GRAPHED = ("decode",)  # sections that are timed as CUDA graphs: what takes some µs, of more than one launch
DTYPES: dict[str, torch.dtype] = {
    "half": torch.float16, "__bf16": torch.bfloat16, "float": torch.float32, "double": torch.float64,
    "signed char": torch.int8, "unsigned char": torch.uint8, "short": torch.int16, "int": torch.int32,
    "long": torch.int64, "bool": torch.bool,
}  # fmt: skip
"""By tinygrad's names."""

Call = Callable[[], Any]


@dataclass(frozen=True)
class Settings:
    """How a kernel's contenders are timed."""

    samples: int = 24
    modes: tuple[str, ...] = MODES


@dataclass(frozen=True)
class Order:
    """One kernel to be timed: its case, and the programs of kcg by name; `sums` are programs of `Sums.region`."""

    case: Case
    programs: Mapping[str, Executable]
    sums: Mapping[str, Executable]
    settings: Settings


# ---- inputs


def tensors_of(case: Case, device: str) -> list[torch.Tensor]:
    """A tensor for each buffer. Numbers are normal where a product or a region of several kernels is computed, weights
    scaled by fan-in, else positive, since what is passed to a kernel alone may be a sum, a deviation or a divisor.
    Integers stay below what they select from."""
    generator = torch.Generator(device).manual_seed(0)
    asts = Chain(case.region).asts
    bounds: dict[int, int] = {}
    for slot, below in (bound for ast in asts for bound in integer_bounds(ast).items()):
        bounds[slot] = min(below, bounds.get(slot, below))
    return [_filled(b, case, bounds.get(b.slot, 2), generator, device) for b in buffers_of_kernels(asts)]


def _filled(buffer: BufferInfo, case: Case, below: int, generator: torch.Generator, device: str) -> torch.Tensor:
    dtype, size = DTYPES[buffer.dtype], (buffer.size,)
    if not buffer.is_input:
        return torch.zeros(size, dtype=dtype, device=device)
    if not dtype.is_floating_point:
        return torch.randint(
            0, max(1, min(below, 100) if dtype.itemsize == 1 else below), size, generator=generator, device=device
        ).to(dtype)
    made = torch.empty(size, dtype=torch.float32, device=device)
    if case.section == "rows":
        return made.uniform_(0.1, 1.1, generator=generator).to(dtype)
    made.normal_(generator=generator)
    if isinstance(case.against, Linear) and buffer.slot == case.against.w.slot:
        made *= case.against.k**-0.5
    elif isinstance(case.against, Function):
        for view in case.against.weights:
            made *= view.size[-1] ** -0.5 if view.slot == buffer.slot else 1.0
    elif buffer.size >= 1 << 20 and case.section in ("gemv", "vectors", "conv"):
        made *= 0.05
    return made.to(dtype)


def viewed(tensors: Sequence[torch.Tensor], view: View) -> torch.Tensor:
    """The part of a buffer that a view names."""
    return torch.as_strided(tensors[view.slot], view.size, view.stride, view.offset)


# ---- what PyTorch runs


def linear(
    a: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None,
    gate: torch.Tensor | None,
    residual: torch.Tensor | None,
    partial: torch.Tensor | None,
    gelu: bool,
) -> torch.Tensor:
    """The region of a `Linear`, as a user of PyTorch writes it."""
    y = F.linear(a, w, bias) if partial is None else partial + F.linear(a, w)
    if partial is not None and bias is not None:
        y = y + bias
    if gelu:
        y = F.gelu(y, approximate="tanh")
    if gate is not None:
        y = gate * y
    if residual is not None:
        y = residual + y
    return y.to(a.dtype)


def arguments(of: Linear, tensors: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    """What `linear` takes."""
    views = (of.a, of.w, of.bias, of.gate, of.residual, of.partial)
    return (*(None if view is None else viewed(tensors, view) for view in views), of.gelu)


def given(of: Function, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """What a function takes, each part lying in memory by itself, as a user of PyTorch has it."""
    return tuple(viewed(tensors, view).contiguous() for view in of.takes)


def reference(of: Linear | Function, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """What PyTorch gives in float32, one tensor for each that is stored."""
    if isinstance(of, Function):
        made = FUNCTIONS[of.name](*(t.float() if t.dtype.is_floating_point else t for t in given(of, tensors)))
        return list(made) if isinstance(made, tuple) else [made]
    taken = arguments(of, tensors)
    return [linear(*(t.float() if isinstance(t, torch.Tensor) else t for t in taken))]


def stored(case: Case, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The parts of buffers in which a case's programs leave their results."""
    match case.against:
        case Linear() as of:
            return [viewed(tensors, of.out)]
        case Function() as of:
            return [viewed(tensors, view) for view in of.gives]
    return [tensors[slot] for slot in case.region.outputs or (read_kernel(case.region).store.buffer.slot,)]


def in_torch(case: Case, tensors: Sequence[torch.Tensor], settings: Settings) -> dict[str, Call]:
    """PyTorch's contenders by name, each made when it is first called."""
    match case.against:
        case Linear() as of:
            taken = arguments(of, tensors)
            found = {mode: _compiled(mode, taken) for mode in settings.modes}
            return {**found, "cublas": lambda: torch.mm(taken[0], taken[1].t())}
        case Convolution() as of:
            dtype, device = tensors[0].dtype, tensors[0].device
            return {
                "cudnn": _convolution(of, dtype, device, torch.contiguous_format),
                "cudnn channels last": _convolution(of, dtype, device, torch.channels_last),
                **(_with_residual(of, dtype, device) if of.residual else {}),
            }
        case Sums() as sums:
            matrix = torch.rand(sums.rows, sums.columns, device=tensors[0].device).to(DTYPES[sums.dtype])
            return {"sum": lambda: matrix.sum(), "sum of rows": lambda: matrix.sum(1)}
        case Function() as of if of.name in ATTENTIONS:
            own = given(of, tensors)
            return {backend: _calling(by_backend(of.name, backend), own) for backend in BACKENDS}
        case Function() as of:
            own = given(of, tensors)
            found = {mode: _calling(compiled(FUNCTIONS[of.name], mode), own) for mode in settings.modes}
            return {**found, **(_copies(case, tensors[0].device) if of.copied else {})}
    return _copies(case, tensors[0].device)


def _copies(case: Case, device: torch.device) -> dict[str, Call]:
    elements = max(1, case.bytes // 2 // 4)
    source, copy = (torch.ones(elements, device=device) for _ in range(2))
    return {"copy": lambda: copy.copy_(source), "copy by a kernel": lambda: torch.add(source, 0.0, out=copy)}


def _compiled(mode: str, taken: tuple[Any, ...]) -> Call:
    *tensors, gelu = taken
    return _calling(compiled(lambda *given: linear(*given, gelu), mode), tuple(tensors))


def _calling(function: Call, tensors: tuple[torch.Tensor, ...]) -> Call:
    return lambda: function(*tensors)


def _convolution(of: Convolution, dtype: torch.dtype, device: torch.device, layout: torch.memory_format) -> Call:
    x, w = (torch.randn(shape, device=device).to(dtype).to(memory_format=layout) for shape in (of.x, of.w))
    return lambda: F.conv2d(x, w, stride=of.stride, padding=of.padding)


def _with_residual(of: Convolution, dtype: torch.dtype, device: torch.device) -> dict[str, Call]:
    """The convolution, a bias, the residual and relu: by cuDNN's one call for it, and by torch.compile."""
    x, w = (torch.randn(shape, device=device).to(dtype) for shape in (of.x, of.w))
    bias = torch.randn(of.w[0], device=device).to(dtype)
    stride, padding = [of.stride] * 2, [of.padding] * 2
    added = torch.randn_like(F.conv2d(x, w, bias, stride, padding))

    def of_compile(*given: torch.Tensor) -> torch.Tensor:
        x, w, added, bias = given
        return torch.relu(F.conv2d(x, w, bias, stride, padding) + added)

    return {
        "cudnn with residual": lambda: torch.cudnn_convolution_add_relu(
            x, w, added, 1.0, bias, stride, padding, [1, 1], 1
        ),
        "default with residual": _calling(compiled(of_compile, "default"), (x, w, added, bias)),
    }


# ---- timing


class Table:
    """Times the contenders of one kernel after the other, by PyTorch's clock; on a CPU those of PyTorch alone."""

    def __init__(self, device: str = "cuda") -> None:
        torch.backends.cudnn.benchmark = True
        self.device, self.driver = device, Driver() if device == "cuda" else None  # without it no program loads
        self.clock = TorchClock(device)

    def row(self, order: Order) -> dict[str, Any]:
        """The row of a case: contender -> its time, or why it has none."""
        torch._dynamo.reset()
        case, found = order.case, dict[str, dict[str, Any]]()
        with torch.no_grad():
            tensors = tensors_of(case, self.device)
            calls = self._programs(order.programs, case.region, tensors, found)
            self._verify(calls, case, tensors, found)
            self._sums(order, calls, found)
            self._torch(order, tensors, calls, found)
            if case.section in GRAPHED and self.device == "cuda":
                calls = _in_graphs(calls, found)
            hosts = {name: host_seconds(self.clock, call) for name, call in calls.items()}
            tiles = [name for name in calls if name.startswith("tile ")]
            screened = self._samples({name: calls[name] for name in tiles}, hosts, SCREENING)
            best = min(tiles, key=lambda name: statistics.median(screened[name]), default="")
            kept = {name: call for name, call in calls.items() if name == best or name not in tiles}
            self.clock.sensors.begin()
            samples = self._samples(kept, hosts, order.settings.samples)
        for name, taken in samples.items():
            found.setdefault(name, {}).update(figures({"cold": taken}), status="ok", protocol=PROTOCOL)
        for name in tiles:
            found[name]["screened_s"] = rounded(statistics.median(screened[name]))
        clocks = {"clocks": dict(self.clock.sensors.readings()), "noisy": self.clock.sensors.slowdown()}
        return {"contenders": found, "tile": best, **clocks}

    def _programs(
        self, programs: Mapping[str, Executable], region: Region, tensors: Sequence[torch.Tensor], found: dict[str, Any]
    ) -> dict[str, Call]:
        calls: dict[str, Call] = {}
        for name, runs in programs.items():
            program = runs if isinstance(runs, Program) else program_of_parts(region, [runs])
            try:
                calls[name] = Loaded(self.driver, program, tensors)
                found[name] = {"report": _report(program)}
            except Exception as error:
                found[name] = {"status": "failed", "reason": f"it does not load: {first_line(error)}"}
        return calls

    def _verify(
        self, calls: dict[str, Call], case: Case, tensors: Sequence[torch.Tensor], found: dict[str, Any]
    ) -> None:
        """Take out the programs whose outputs are wrong, after a run on poisoned ones."""
        outputs = stored(case, tensors)
        far = max(FAR[str(t.dtype).removeprefix("torch.")] if t.dtype.is_floating_point else 0.0 for t in outputs)
        expected = reference(case.against, tensors) if isinstance(case.against, Linear | Function) else None
        # of what PyTorch does not compute the Opts are the first, or the kernels by themselves
        for name in sorted(calls, key=lambda name: name not in ("opts", PARTS)):
            for output in outputs:
                output.fill_(float("nan") if output.dtype.is_floating_point else 1)
            calls[name]()
            self.clock.synchronize()
            expected = [output.clone() for output in outputs] if expected is None else expected
            error = max(map(apart, outputs, expected))
            found[name]["error"] = rounded(error)
            if not error <= far:
                found[name].update(status="failed", reason=f"wrong: {error:.2g} of its size from the reference")
                del calls[name]

    def _sums(self, order: Order, calls: dict[str, Call], found: dict[str, Any]) -> None:
        """The tile program that sums as many bytes."""
        if isinstance(sums := order.case.against, Sums):
            of = DTYPES[sums.dtype]
            matrix = torch.rand(sums.rows * sums.columns, device=self.device).to(of)
            output = torch.zeros(sums.rows, dtype=of, device=self.device)
            for name, call in self._programs(order.sums, sums.region, [output, matrix], found).items():
                call()
                error = apart(output, matrix.view(sums.rows, sums.columns).sum(1))
                if error <= FAR["bfloat16"]:
                    calls[name] = call
                else:
                    found[name] = {"status": "failed", "reason": f"wrong: {error:.2g} of its size from PyTorch's"}

    def _torch(
        self, order: Order, tensors: Sequence[torch.Tensor], calls: dict[str, Call], found: dict[str, Any]
    ) -> None:
        """PyTorch's contenders: called some times, so that they are compiled and tuned, and compared where they compute
        the same."""
        of = order.case.against
        expected = reference(of, tensors) if isinstance(of, Linear | Function) else None
        for name, call in in_torch(order.case, tensors, order.settings).items():
            try:
                for _ in range(WARM_UPS):
                    made = call()
                self.clock.synchronize()
                found[name] = {}
                if expected is not None and name in (*order.settings.modes, *BACKENDS):
                    made = made if isinstance(made, tuple) else (made,)
                    found[name]["error"] = rounded(far := max(map(apart, made, expected)))
                    if not far <= FAR["bfloat16"]:
                        raise ValueError(f"wrong: {far:.2g} of its size from the reference")
                calls[name] = call
            except Exception as error:  # PyTorch's own kinds
                found[name] = {"status": "failed", "reason": first_line(error)[:300]}

    def _samples(self, calls: Mapping[str, Call], hosts: Mapping[str, float], count: int) -> dict[str, list[float]]:
        """Cold samples; every round another one begins."""
        names, samples = list(calls), {name: list[float]() for name in calls}
        for turn in range(count):
            for place in range(len(names)):
                name = names[(turn + place) % len(names)]
                samples[name].append(self.clock.seconds(calls[name], "cold", hosts[name]))
                self.clock.sensors.look()
        return samples


def _in_graphs(calls: Mapping[str, Call], found: dict[str, Any]) -> dict[str, Call]:
    """The calls as CUDA graphs, whose launches follow each other without the host; who cannot be one takes no part."""
    graphs: dict[str, Call] = {}
    for name, call in calls.items():
        try:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                call()
            graph.replay()
            torch.cuda.synchronize()
            graphs[name] = graph.replay
        except Exception as error:
            found[name] = {"status": "failed", "reason": f"no CUDA graph: {first_line(error)[:300]}"}
    return graphs


def apart(made: torch.Tensor, expected: torch.Tensor) -> float:
    """How far an output is from what is expected, of its size; where both are not finite they are alike."""
    a, b = made.float().reshape(-1), expected.float().reshape(-1)
    finite = torch.isfinite(b)
    if not torch.equal(torch.isfinite(a), finite):
        return float("inf")
    if not bool(finite.all()):
        a, b = a[finite], b[finite]
    return float((a - b).norm() / b.norm().clamp_min(1e-30))


def _report(program: Program) -> dict[str, Any]:
    """What the compiler said of the launch that takes longest, which is the first."""
    first = program.launches[0].compiled
    return {**dict(first.report), "launches": len(program.launches), "grid": list(first.global_size)}


def made_with(device: str) -> dict[str, Any]:
    """The card and the versions of what PyTorch's contenders were made with."""
    return {
        "gpu": torch.cuda.get_device_name() if device == "cuda" else "",
        "torch": torch.__version__,
        "torch_triton": triton_version(),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
    }


def serve(pipe: Connection, folder: str, device: str) -> None:
    """Answer orders until the pipe ends. What libraries print goes to a file of `folder`."""
    log = os.open(Path(folder) / "torch.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1), os.dup2(log, 2)
    table = Table(device)
    pipe.send(json.dumps(made_with(device)))
    while True:
        try:
            order: Order = pipe.recv()
        except EOFError:
            return
        try:
            answer = table.row(order)
        except Exception as error:  # a fault of the device ends this process for good: the next one is fresh
            answer = {"error": f"{type(error).__name__}: {first_line(error)}"[:300]}
        if device == "cuda":
            with contextlib.suppress(Exception):  # after a fault
                torch.cuda.empty_cache()
        pipe.send(json.dumps(answer))
