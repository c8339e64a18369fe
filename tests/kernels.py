"""Example kernel ASTs shared by the tests: scheduled from lazy tensors, so no device is opened and no data exists.

`example_asts()` covers each op family that tinygrad's scheduler puts into a kernel: contractions in three float
formats, reductions, gathers, padding, symbolic shapes, integers, bools, special floats and random numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any

import numpy as np
import pytest
from _pytest.mark import ParameterSet
from tinygrad import Tensor, Variable, dtypes

from kcg.compat.tiny import Ops, UOp
from kcg.kernel.codec import kernel_of
from kcg.kernel.opts.schedule import Opt
from kcg.kernel.opts.schedule import schedule_of as of_opts
from kcg.kernel.opts.space import KernelSpace
from kcg.types import Region, Schedule
from tests.known_targets import KNOWN_TARGETS


def kernels_of(*tensors: Tensor) -> list[UOp]:
    """The kernel ASTs that realising `tensors` would run, in order."""
    linear, _variables = tensors[0].linear_with_vars(*tensors[1:])
    return [call.src[0] for call in linear.src if call.src[0].op is Ops.SINK]


def empty(*shape: int, dtype: str = "float32", device: str = "CPU") -> Tensor:
    """A lazy tensor that holds nothing."""
    return Tensor.empty(*shape, dtype=dtype, device=device)


def _matmul(dtype: str, device: str = "CPU") -> Tensor:
    return empty(24, 40, dtype=dtype, device=device) @ empty(40, 32, dtype=dtype, device=device)


def _special_floats(device: str) -> Tensor:
    x = empty(64, device=device)
    inner = (x > 1).where(-0.0, (x > 0).where(math.inf, (x > -1).where(-math.inf, math.nan)))
    return (x > 2).where(inner, 1 / inner).cast("float32")


def _assign(device: str) -> Tensor:
    x = empty(8, 8, device=device)
    return x.assign(x * 2 + 1)


def _symbolic(device: str) -> Tensor:
    length = Variable("length", 1, 32).bind(20)
    return (empty(32, 16, device=device)[:length] * 3).sum(0)


def _symbolic_elementwise(device: str) -> Tensor:
    length = Variable("length", 1, 32).bind(20)
    return (empty(32, 16, device=device)[:length] + 1).contiguous()


def _cache_update(device: str) -> Tensor:
    """One step of a key-value cache: a store at a symbolic position, then a sum of symbolic length."""
    position = Variable("position", 0, 30).bind(3)
    cache = empty(1, 32, 2, 8, device=device)
    cache[:, position : position + 1].assign(empty(1, 1, 2, 8, device=device) + 1)
    return cache[:, : position + 1].sum(1)


def _attention(device: str) -> Tensor:
    q, k, v = (empty(2, 3, 16, 8, device=device) for _ in range(3))
    return q.scaled_dot_product_attention(k, v, is_causal=True)


def _rms_norm(x: Tensor) -> Tensor:
    return x * x.square().mean(1, keepdim=True).rsqrt()


def _set_item(device: str) -> Tensor:
    x = empty(8, 4, device=device)
    x[1:3] = empty(2, 4, device=device) + 1
    return x


def _sharded(device: str) -> Tensor:
    devices = (device, f"{device}:1")
    return (
        Tensor.arange(16).float().shard(devices, axis=0) + empty(16, device=device).shard(devices, axis=0)
    ).contiguous()


def _all_reduce(device: str) -> Tensor:
    devices = (device, f"{device}:1")
    a, b = empty(8, 16, device=device), empty(16, 8, device=device)
    return a.shard(devices, axis=1) @ b.shard(devices, axis=0)


def _sharded_scalar(device: str) -> Tensor:
    """Sums over devices are of buffers without dimensions, as in the loss of a model in parallel."""
    return empty(16, 32, device=device).shard((device, f"{device}:1"), axis=0).square().mean().sqrt()


def _tensors(device: str) -> dict[str, Callable[[], Tensor | tuple[Tensor, ...]]]:
    def new(*shape: int, dtype: str = "float32") -> Tensor:
        return empty(*shape, dtype=dtype, device=device)

    return {
        "matmul_f16": lambda: _matmul("float16", device),
        "matmul_f32": lambda: _matmul("float32", device),
        "matmul_bf16": lambda: _matmul("bfloat16", device),
        "matmul_int8": lambda: new(16, 24, dtype="int8").dot(new(24, 8, dtype="int8"), dtype=dtypes.int32),
        "softmax": lambda: new(12, 50).softmax(),
        "layernorm": lambda: new(6, 48).layernorm(),
        "conv2d": lambda: new(2, 4, 9, 9).conv2d(new(6, 4, 3, 3), new(6), padding=1),
        "embedding": lambda: new(20, 8)[new(5, dtype="int32")],
        "take_along": lambda: new(6, 10).gather(1, new(6, 4, dtype="int32")),
        "cat": lambda: new(4, 6).cat(new(4, 5), dim=1),
        "pad": lambda: new(5, 6).pad(((1, 2), (0, 3)), value=2.5),
        "argmax": lambda: new(5, 17).argmax(1),
        "cumsum": lambda: new(4, 300).cumsum(1),
        "causal_mask": lambda: (Tensor.arange(16).reshape(16, 1) >= Tensor.arange(16)).where(new(16, 16), -math.inf),
        "assign": lambda: _assign(device),
        "symbolic": lambda: _symbolic(device),
        "symbolic_elementwise": lambda: _symbolic_elementwise(device),
        "cache_update": lambda: _cache_update(device),
        "attention": lambda: _attention(device),
        "set_item": lambda: _set_item(device),
        "sharded": lambda: _sharded(device),
        "all_reduce": lambda: _all_reduce(device),
        "sharded_scalar": lambda: _sharded_scalar(device),
        "int_math": lambda: (new(40, dtype="int32") // 7) * (new(40, dtype="int32") % 5) - (new(40, dtype="int32") ^ 3),
        "int_negative_div": lambda: new(40, dtype="int8").div(new(40, dtype="int8"), rounding_mode="trunc"),
        "shift": lambda: (new(40, dtype="uint32") << 5) | (new(40, dtype="uint32") >> 27),
        "bool_logic": lambda: (new(30) > 0) & (new(30, dtype="bool") | (new(30) != 1)),
        "special_floats": lambda: _special_floats(device),
        "rand": lambda: Tensor.rand(7, 9, device=device),
        "randn": lambda: Tensor.randn(64, device=device),
        "max_pool": lambda: new(1, 3, 8, 8).max_pool2d((2, 2)),
        "avg_pool": lambda: new(1, 3, 9, 9).avg_pool2d((3, 3), padding=1),
        "sort": lambda: new(4, 8).sort(1),
        "one_hot": lambda: new(9, dtype="int32").one_hot(6).cast("int32"),
        "gelu": lambda: new(33, 5).gelu(),
        "trigonometry": lambda: new(50).sin() + (new(50).abs() + 1).log() + new(50).sigmoid().sqrt(),
        "power": lambda: (new(20).abs() + 0.5) ** 1.5,
        "float_to_int": lambda: (new(40) * 20).cast(dtypes.int32),
        "bitcast": lambda: new(16).bitcast(dtypes.int32) + 1,
        "bitcast_size": lambda: new(16, dtype="uint8").bitcast("float32") + 1,
        "float64": lambda: new(10, 10, dtype="float64").sum(0).cast("float32"),
        "product": lambda: new(6, 5).prod(1),
        "integer_sum": lambda: new(6, 50, dtype="uint8").sum(1),
        "any": lambda: (new(6, 50) > 2.5).any(1),
        "round": lambda: (new(60) * 10).round(),
        "group_norm_style": lambda: (new(4, 8, 6) - new(4, 8, 6).mean((1, 2), keepdim=True)).square().mean((1, 2)),
        "two_outputs": lambda: (new(8, 8) + 1, new(8, 8) * 2),
        "scalar": lambda: new(1000).mean(),
        "bf16_norm": lambda: _rms_norm(new(8, 64, dtype="bfloat16")),
        "f16_norm": lambda: _rms_norm(new(8, 64, dtype="float16")),
        "f16_softmax": lambda: new(8, 64, dtype="float16").softmax(),
        "flip_stride": lambda: new(12, 6).flip(0)[::2].contiguous(),
        "tril": lambda: new(10, 10).tril(),
        "nested_reduce": lambda: (new(6, 7).sum(1, keepdim=True).expand(6, 7) * new(6, 7)).sum(),
        "logsumexp": lambda: new(6, 40).logsumexp(1),
        "std": lambda: new(9, 40).std(1),
        "erf": lambda: new(40).erf(),
        "conv_transpose": lambda: new(1, 4, 5, 5).conv_transpose2d(new(4, 3, 3, 3), stride=2),
        "interpolate": lambda: new(1, 3, 8, 8).interpolate((13, 13), mode="linear"),
        "cross_entropy": lambda: new(5, 10).sparse_categorical_crossentropy(new(5, dtype="int32")),
        "bool_reduce": lambda: new(9, 30, dtype="bool").sum(1),
        "int_min": lambda: new(9, 30, dtype="int32").min(1),
        "scatter": lambda: new(5, 6).scatter(1, new(5, 2, dtype="int32"), new(5, 2)),
    }


SEVERAL = {
    "softmax": 3,
    "layernorm": 3,
    "argmax": 2,
    "cache_update": 2,
    "attention": 4,
    "sharded": 3,
    "all_reduce": 7,
    "sharded_scalar": 5,
    "rand": 2,
    "randn": 3,
    "sort": 11,
    "group_norm_style": 2,
    "two_outputs": 2,
    "bf16_norm": 2,
    "f16_norm": 2,
    "f16_softmax": 3,
    "nested_reduce": 2,
    "logsumexp": 2,
    "std": 2,
    "interpolate": 2,
    "cross_entropy": 3,
}
"""Kernels of each tensor that takes more than one, so that names are known before anything is scheduled."""

TYPICAL = (
    "matmul_f16", "matmul_bf16", "matmul_int8", "conv2d", "embedding", "softmax.1", "assign", "cache_update.1",
    "interpolate.0", "rand.1", "trigonometry", "int_negative_div", "sharded.2", "float64", "integer_sum", "bool_reduce",
    "int_min", "float_to_int", "bitcast", "sharded_scalar.3", "product", "symbolic_elementwise", "symbolic",
    "special_floats", "sort.4", "round", "cross_entropy.2",
)  # fmt: skip
"""A quarter of the examples that has every operation, format, conversion, reduction and kind of axis of them all."""


@contextmanager
def _seeded(device: str) -> Iterator[None]:
    """Random numbers after the first ones, whose kernels make a device's seed; and after no others, which this process
    may have drawn and not made: they would be made too."""
    before = Tensor._device_seeds, Tensor._device_rng_counters
    Tensor._device_seeds, Tensor._device_rng_counters = {}, {}
    kernels_of(Tensor.rand(1, device=device))
    try:
        yield
    finally:
        Tensor._device_seeds, Tensor._device_rng_counters = before


@cache
def _scheduled(tensor: str, device: str) -> list[UOp]:
    with _seeded(device) if tensor in ("rand", "randn") else nullcontext():
        out = _tensors(device)[tensor]()
        kernels = kernels_of(*(out if isinstance(out, tuple) else (out,)))
    assert len(kernels) == SEVERAL.get(tensor, 1), f"{tensor} takes {len(kernels)} kernels"
    return kernels


class Examples(Mapping[str, UOp]):
    """Name -> kernel AST (SINK), scheduled when it is first asked for: all of them take seconds."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._names = {
            tensor if tensor not in SEVERAL else f"{tensor}.{i}": (tensor, i)
            for tensor in _tensors(device)
            for i in range(SEVERAL.get(tensor, 1))
        }

    def __getitem__(self, name: str) -> UOp:
        tensor, place = self._names[name]
        return _scheduled(tensor, self._device)[place]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def example_ast(name: str, device: str = "CPU") -> UOp:
    """One of `example_asts`."""
    return example_asts(device)[name]


@cache
def example_asts(device: str = "CPU") -> Examples:
    """Name -> kernel AST (SINK). A name has a suffix `.i` where its tensor takes several kernels."""
    return Examples(device)


def examples(*, without: Collection[str] = ()) -> list[ParameterSet]:
    """Parameters `name`: all of `example_asts`; those that are not typical are `slow`."""
    names = [name for name in example_asts() if name not in without]
    return [pytest.param(name, marks=() if name in TYPICAL else pytest.mark.slow) for name in names]


def all_examples() -> list[ParameterSet]:
    """Parameters `names`: those of `TYPICAL` together; `slow` are those of all examples."""
    return [
        pytest.param(TYPICAL, id="typical"),
        pytest.param(tuple(example_asts()), id="all", marks=pytest.mark.slow),
    ]


def on_targets(targets: Iterable[str], *, whole: Sequence[str]) -> list[ParameterSet]:
    """Parameters `(target, names)`: what is typical on the targets of `whole`, each fourth of it on the others; `slow`
    are all examples on every target."""
    params = []
    for target in targets:
        params.append(pytest.param(target, TYPICAL[:: 1 if target in whole else 4], id=target))
        params.append(pytest.param(target, tuple(example_asts()), id=f"{target}-all", marks=pytest.mark.slow))
    return params


@cache
def example_region(name: str) -> Region:
    """A region of one of `example_asts`."""
    return Region((kernel_of(example_ast(name)),))


def round_to_bf16(values: np.ndarray) -> np.ndarray:
    """Float32 values as bfloat16 holds them."""
    return ((values.astype(np.float32).view(np.uint32) + 0x8000) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def small_matmul() -> KernelSpace:
    """The space of a matmul of 64 × 96 × 80 on an H100 or H200."""
    (ast,) = kernels_of(empty(64, 96) @ empty(96, 80))
    return KernelSpace(Region((kernel_of(ast),)), KNOWN_TARGETS["sm_90"])


def schedule_of(*steps: tuple[str, int, Any]) -> Schedule:
    """The schedule of some Opts: operation, axis, amount."""
    return of_opts([Opt(*step) for step in steps])
