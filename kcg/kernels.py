"""Kernels written by hand, as candidates beside tinygrad's own schedules: what a user's file of kernels imports.

    from kcg.kernels import Launch, handwritten

    @handwritten.cuda(matches="3fa9c2d1", launch=Launch((128,), (256,)))
    def double(kernel):
        return 'extern "C" __global__ void double(float* out, const float* x) { ... }'

`python -m kcg.optimize flux --kernels my_kernels.py` reads the file in worker processes only, verifies each kernel as
every schedule that it reports, and uses it only where it is faster. docs/hand-written.md has an example of each kind.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from kcg.errors import UsageError
from kcg.types import Target

ID_DIGITS = 6  # the least of a kernel's id that names it
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_ID = re.compile(rf"[0-9a-f]{{{ID_DIGITS},64}}")

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Launch:
    """How a kernel is launched: blocks, threads in each, and dynamic shared memory in bytes."""

    blocks: tuple[int, ...] = (1,)  # up to three extents
    threads: tuple[int, ...] = (1,)
    shared_bytes: int = 0  # `extern __shared__`; what a kernel declares with a size is not counted


@dataclass(frozen=True)
class BufferView:
    """One buffer of a kernel. A hand-written kernel takes a pointer to each, in the order of their slots."""

    slot: int
    size: int  # elements
    dtype: str  # tinygrad's public name: "float32", "bfloat16"
    is_output: bool
    is_input: bool


@dataclass(frozen=True)
class KernelView:
    """What `matches`, `launch` and the functions that write source code see of one of the workload's kernels."""

    id: str
    buffers: tuple[BufferView, ...]  # in slot order
    ops: Mapping[str, int]  # how often each of tinygrad's operations occurs, e.g. {"MUL": 1, "REDUCE": 1}
    loops: tuple[int, ...]  # extents of the ranges over the output
    reduces: tuple[int, ...]  # extents of the ranges that are reduced
    contractions: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]  # of each matmul: its output's, its sum's extents
    operations: float  # arithmetic of one call
    bytes: int  # least traffic of one call
    target: Target
    ast: Any = field(repr=False)  # the kernel as tinygrad has it, a UOp, for what the fields above do not tell

    @property
    def outputs(self) -> tuple[BufferView, ...]:
        return tuple(b for b in self.buffers if b.is_output)

    @property
    def inputs(self) -> tuple[BufferView, ...]:
        return tuple(b for b in self.buffers if b.is_input)


Matches = str | tuple[str, ...] | Callable[[KernelView], bool]
"""Which kernels one is for: (the first digits of) their ids, or a predicate."""


@dataclass(frozen=True, eq=False)
class HandwrittenKernel:
    """One kernel of a user's file, as its decorator registered it."""

    name: str
    kind: str  # a key of DEVICES
    function: Callable[..., Any]
    matches: Matches
    launch: Launch | Callable[[KernelView], Launch] = field(default_factory=Launch)
    constants: Mapping[str, Any] | Callable[[KernelView], Mapping[str, Any]] = field(default_factory=dict)
    warps: int = 4
    stages: int = 3

    def wants(self, view: KernelView) -> bool:
        """Whether it is meant for a kernel. Raises whatever the user's predicate raises."""
        if callable(self.matches):
            return bool(self.matches(view))
        return view.id.startswith((self.matches,) if isinstance(self.matches, str) else self.matches)


DEVICES = {"uop": "", "c": "CPU", "cuda": "CUDA", "ptx": "CUDA", "triton": "CUDA"}
"""Kinds of hand-written kernels and the device that each is for; empty is any."""

_registries: list[list[HandwrittenKernel]] = []


@contextlib.contextmanager
def collecting() -> Iterator[list[HandwrittenKernel]]:
    """The kernels that are registered inside the block, in order."""
    found: list[HandwrittenKernel] = []
    _registries.append(found)
    try:
        yield found
    finally:
        _registries.pop()


def _register(kind: str, matches: Matches, **settings: Any) -> Callable[[F], F]:
    ids = (matches,) if isinstance(matches, str) else matches if isinstance(matches, tuple) else ()
    if not callable(matches) and (not ids or not all(isinstance(i, str) and _ID.fullmatch(i) for i in ids)):
        raise UsageError(f"matches={matches!r}: give at least {ID_DIGITS} digits of a kernel's id, or a predicate")

    def decorate(function: F) -> F:
        name = getattr(function, "__name__", "")
        if not _NAME.fullmatch(name):
            raise UsageError(f"a hand-written kernel is a function whose name is plain ASCII, not {function!r}")
        if _registries:
            _registries[-1].append(HandwrittenKernel(name, kind, function, matches, **settings))
        return function

    return decorate


class _Decorators:
    """`@handwritten.uop(...)` and its like. Each registers a function and gives it back unchanged."""

    def uop(self, *, matches: Matches) -> Callable[[F], F]:
        """A function that takes one flat placeholder per buffer, in slot order, and returns a SINK: what
        `Tensor.custom_kernel` takes. One with a keyword-only argument `kernel` is given the `KernelView` too."""
        return _register("uop", matches)

    def c(self, *, matches: Matches) -> Callable[[F], F]:
        """A function of the `KernelView` that returns C source, for a CPU. The C function has the same name and runs
        once."""
        return _register("c", matches)

    def cuda(self, *, matches: Matches, launch: Launch | Callable[[KernelView], Launch]) -> Callable[[F], F]:
        """A function of the `KernelView` that returns CUDA C++ source with an `extern "C" __global__` function of the
        same name."""
        return _register("cuda", matches, launch=launch)

    def ptx(self, *, matches: Matches, launch: Launch | Callable[[KernelView], Launch]) -> Callable[[F], F]:
        """A function of the `KernelView` that returns PTX text with an entry of the same name."""
        return _register("ptx", matches, launch=launch)

    def triton(
        self,
        *,
        matches: Matches,
        launch: Launch | Callable[[KernelView], Launch],
        constants: Mapping[str, Any] | Callable[[KernelView], Mapping[str, Any]] | None = None,
        warps: int = 4,
        stages: int = 3,
    ) -> Callable[[F], F]:
        """A Triton kernel, with or without `@triton.jit`: first a pointer per buffer, then constants (`tl.constexpr`).
        Of `launch` only `blocks` counts: Triton decides on threads and shared memory."""
        return _register("triton", matches, launch=launch, constants=constants or {}, warps=warps, stages=stages)


handwritten = _Decorators()
"""The decorators, by kind of kernel."""
