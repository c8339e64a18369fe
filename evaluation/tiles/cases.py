"""The kernels that are compared, taken from workloads without a device, and what each is compared with.

- matmul: the twelve linear layers of Flux's blocks with their epilogues, at 1024 and 768: torch.compile's same region.
- rows: kernels of Flux and of the zoo's softmax and norms that reduce rows or work element by element, and move more
  than the last-level cache holds: a copy of as many bytes. Kernels without a reduction count as short rows.
- gemv: matrix-vector products of Llama's decode from 16 MB of weights on: a sum of as many bytes.
- conv: the convolutions of ResNet-50, batch 32, float16, with what tinygrad fuses into them: cuDNN's bare convolution.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from kcg.compat.tiny import Ops, UOp
from kcg.kernel.analysis import arithmetic, least_bytes
from kcg.kernel.ast import affine, extent
from kcg.kernel.codec import ast_of, kernel_of
from kcg.kernel.reading.accesses import Access
from kcg.kernel.reading.kernel import TileKernel, read_kernel
from kcg.kernel.reading.unsupported import UnsupportedTile
from kcg.types import Region, Target, WorkloadCall
from kcg.workloads.registry import spec_of

FLUX = ("1024", "768")
DECODES = ("2-7b-decode", "3.2-1b-decode")  # of one sequence: a batch of eight is a matmul
RESNET = "resnet50-f16"
WIDE = 16_384
"""Elements of a row beyond which less of the copy bandwidth is asked for."""
LARGE_BYTES, LEAST_BYTES = 64e6, 16e6
"""Of the weights of a matrix-vector product: one class from the first on, another between the two."""


@dataclass(frozen=True)
class View:
    """A strided part of one buffer of a kernel, in elements."""

    slot: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int = 0


@dataclass(frozen=True)
class Linear:
    """`residual + gate * (partial + gelu(a wᵀ + bias))`, as far as there are such: what torch.compile is given."""

    m: int
    n: int
    k: int
    out: View
    a: View
    w: View
    bias: View | None = None
    gate: View | None = None
    residual: View | None = None
    partial: View | None = None
    gelu: bool = False

    @property
    def epilogue(self) -> str:
        """What follows the product, in words."""
        beside = [name for name in ("bias", "partial", "gate", "residual") if getattr(self, name) is not None]
        return " ".join([*beside, *(["gelu"] if self.gelu else [])]) or "nothing"


@dataclass(frozen=True)
class Convolution:
    """A convolution's shapes, channels first, and whether a residual as large as its output is added."""

    x: tuple[int, int, int, int]
    w: tuple[int, int, int, int]
    stride: int
    padding: int
    residual: bool = False


@dataclass(frozen=True)
class Sums:
    """The sums of the rows of a matrix, as many bytes as the weights of a matrix-vector product."""

    rows: int
    columns: int
    dtype: str
    region: Region


@dataclass(frozen=True)
class Function:
    """A function of `evaluation.regions.functions`, what it takes and what it gives as parts of a region's buffers."""

    name: str
    takes: tuple[View, ...]
    gives: tuple[View, ...]
    weights: tuple[View, ...] = ()  # of those that it takes: matrices, their rows scaled by their length
    copied: bool = False  # whether a copy of as many bytes is timed beside it


Against = Linear | Convolution | Sums | Function | None


@dataclass(frozen=True)
class Case:
    """One kernel of a section, or a region of several. `group` is its class within the section, which has a threshold
    of its own."""

    section: str
    group: str
    name: str
    region: Region
    calls: int
    bytes: int
    operations: float
    against: Against = None

    @property
    def key(self) -> str:
        """Of its row in the results."""
        return f"{self.section} {self.name}"


def all_calls() -> list[tuple[str, WorkloadCall]]:
    """All kernels of the workloads that cases are taken from, each once, with symbolic sizes too."""
    zoo = {name: spec_of(name).presets_for("CUDA") for name in ("softmax", "norms")}
    presets = {"flux": FLUX, "llama": DECODES, "resnet": (RESNET,), **zoo}
    calls = [(f"{n} {p}/{i}", c) for n, ps in presets.items() for p in ps for i, c in enumerate(_captured(n, p))]
    return list({call.region.id: (name, call) for name, call in reversed(calls)}.values())


def cases(section: str, target: Target) -> list[Case]:
    """The cases of a section, each kernel once. `target` says how large its last-level cache is."""
    seen: set[str] = set()
    found = []
    for case in SECTIONS[section](target):
        if case.region.id not in seen:
            seen.add(case.region.id)
            found.append(case)
    return found


@functools.cache
def _captured(name: str, preset: str) -> tuple[WorkloadCall, ...]:
    return spec_of(name).capture(preset).calls


def _calls(name: str, presets: Sequence[str]) -> Iterator[tuple[str, WorkloadCall, TileKernel]]:
    """The kernels that a tile program can be generated for, with a name; without symbolic sizes."""
    for preset in presets:
        for number, call in enumerate(_captured(name, preset)):
            try:
                kernel = read_kernel(call.region)
            except UnsupportedTile:
                continue
            if not kernel.variables:
                yield f"{name} {preset}/{number} {_sizes(kernel)}", call, kernel


def _sizes(kernel: TileKernel) -> str:
    shape = "x".join(map(str, kernel.extents)) or "1"
    return f"{shape} of {kernel.reduce_extent}" if kernel.reductions else shape


def _case(section: str, group: str, name: str, call: WorkloadCall, against: Against = None) -> Case:
    ast = ast_of(call.region.kernel)
    return Case(section, group, name, call.region, call.calls, least_bytes(ast), arithmetic(ast), against)


# ---- matmuls


def _matmuls(target: Target) -> Iterator[Case]:
    for preset in FLUX:
        for name, call, kernel in _calls("flux", (preset,)):
            if call.calls > 1 and (linear := linear_of(kernel)) is not None:
                yield _case("matmul", preset, f"{name}, {linear.epilogue}", call, linear)


def linear_of(kernel: TileKernel) -> Linear | None:
    """A linear layer and its epilogue, as Flux has them: told by what each load depends on, and by the order of the
    buffers. None for what is none, such as a batched product."""
    if kernel.contraction is None or kernel.contraction.batch or len(kernel.outputs) != 2:
        return None
    if [side.ranges for side in kernel.contraction.sides] != [(0,), (1,)] or len(kernel.reduce_ranges) != 1:
        return None
    row, column, (inner,) = *kernel.outputs, kernel.reduce_ranges
    parts: dict[str, View] = {}
    for load in sorted(kernel.loads, key=lambda load: load.buffer.slot):
        along = [axis for axis in (row, column, inner) if axis in (affine(load.address) or {})]
        view = _view(load, along)
        if along == [row, inner]:
            parts["a"] = view
        elif along == [column, inner]:
            parts["w"] = view
        elif along == [column]:
            parts["bias" if "w" in parts else "gate"] = view
        elif along == [row, column]:
            parts["partial" if "w" in parts else "residual"] = view
        else:
            return None
    m, n = kernel.extents
    gelu = any(node.op is Ops.EXP2 for node in kernel.value.toposort())
    return Linear(m, n, kernel.reduce_extent, out=_view(kernel.store, [row, column]), gelu=gelu, **parts)


def _view(access: Access, along: Sequence[UOp]) -> View:
    steps = affine(access.address) or {}
    offset = int(steps.get(None, 0))
    return View(access.buffer.slot, tuple(map(extent, along)), tuple(int(steps[axis]) for axis in along), offset)


# ---- rows


def _rows(target: Target) -> Iterator[Case]:
    presets = {name: spec_of(name).presets_for("CUDA") for name in ("softmax", "norms")}
    for family, of_family in {"flux": FLUX, **presets}.items():
        for name, call, kernel in _calls(family, of_family):
            if kernel.contraction is not None or _is_matvec(kernel):
                continue
            case = _case("rows", "wide" if kernel.reduce_extent > WIDE else "short", name, call)
            in_place = any(load.buffer == kernel.store.buffer for load in kernel.loads)
            if case.bytes > target.cache_bytes and not in_place:
                yield case


def _is_matvec(kernel: TileKernel) -> bool:
    """Whether a kernel sums the products of one matrix and a vector."""
    many, sizes = kernel.reduce_extent, [b.size for b in kernel.buffers if not b.written]
    matrices = [size for size in sizes if size >= math.prod(kernel.extents) * many]
    return bool(kernel.reductions) and len(matrices) == 1 and many > 1 and many in sizes


# ---- matrix-vector products


def _products(target: Target) -> Iterator[Case]:
    for name, call, kernel in _calls("llama", DECODES):
        if kernel.contraction is None and _is_matvec(kernel):
            matrix = max((b for b in kernel.buffers if not b.written), key=lambda b: b.size)
            if (weights := matrix.size * matrix.dtype.itemsize) >= LEAST_BYTES:
                group = "from 64 MB" if weights >= LARGE_BYTES else "from 16 MB"
                rows, columns = math.prod(kernel.extents), kernel.reduce_extent
                yield _case("gemv", group, name, call, sums(rows, columns, matrix.dtype.name))


def sums(rows: int, columns: int, dtype: str) -> Sums:
    """The sums of the rows of a matrix as one kernel. `dtype` is tinygrad's name of it."""
    from tinygrad import Tensor, dtypes

    of = next(d for d in dtypes.all if d.name == dtype)
    (call,) = Tensor.empty(rows, columns, dtype=of).sum(1).schedule_linear().src
    return Sums(rows, columns, dtype, Region((kernel_of(call.src[0]),)))


# ---- convolutions


def _convolutions(target: Target) -> Iterator[Case]:
    for name, call, kernel in _calls("resnet", (RESNET,)):
        if (convolution := convolution_of(kernel)) is not None:
            window = convolution.w[-1]
            yield _case("conv", f"{window}x{window}", name, call, convolution)


def convolution_of(kernel: TileKernel) -> Convolution | None:
    """A convolution of square pictures with square windows, padded by half of them: told by sizes alone."""
    if kernel.contraction is None or len(kernel.extents) < 3:
        return None
    channels, *windows = (extent(axis) for axis in kernel.reduce_ranges)
    window = windows[0] if windows else 1
    batch, filters = kernel.extents[:2]
    read, *beside = [b.size for b in kernel.buffers if not b.written]
    if (weights := filters * channels * window**2) not in beside:
        return None
    side, made = math.isqrt(read // (batch * channels)), math.isqrt(math.prod(kernel.extents[2:]))
    if batch * channels * side**2 != read:
        return None
    x, w = (batch, channels, side, side), (filters, channels, window, window)
    beside.remove(weights)
    return Convolution(x, w, side // made, window // 2, residual=batch * filters * made**2 in beside)


SECTIONS: dict[str, Callable[[Target], Iterator[Case]]] = {
    "matmul": _matmuls,
    "rows": _rows,
    "gemv": _products,
    "conv": _convolutions,
}
"""Section -> its cases."""
