"""The regions whose generated programs are made wrong, and with which parameters each is generated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from tinygrad import Tensor

from kcg.kernel.reading.fuse import read_region
from kcg.kernel.tile.generate import generate_kernel
from kcg.kernel.tile.legal import is_legal
from kcg.kernel.tile.parameters import CONTRACTION, ELEMENTWISE, FLASH_ATTENTION, REDUCTION, ROWS, TMA, TileParameters
from kcg.kernel.tile.program import TileSource
from kcg.types import Region
from tests.chains import region_of
from tests.kernels import empty
from tests.known_targets import KNOWN_TARGETS

TARGET = KNOWN_TARGETS["sm_90"]


def _rows(width: int) -> TileParameters:
    return TileParameters(ROWS, ((0,),), (8,), reduce_tile=width, num_warps=4, num_stages=1)


@dataclass(frozen=True)
class Program:
    """A region, and the parameters of the program that is generated for it."""

    build: Callable[[], Tensor]
    parameters: TileParameters


def _half(*shape: int) -> Tensor:
    return empty(*shape, dtype="float16")


def _norm() -> Tensor:
    x = _half(9, 96).float()
    return (x * (x.square().mean(1, keepdim=True) + 1e-5).rsqrt() * _half(96).float()).half()


def _layernorm() -> Tensor:
    return (_half(9, 96).layernorm() * _half(96) + _half(96)).half()


def _scale() -> Tensor:
    largest = empty(9, 77).abs().max(1)
    return (largest == 0).where(1.0, largest / 127.0)


def _attention() -> Tensor:
    return _half(1, 2, 24, 16).scaled_dot_product_attention(_half(1, 2, 40, 16), _half(1, 2, 40, 16))


def _causal() -> Tensor:
    q, k, v = (empty(1, 2, 24, 16) for _ in range(3))
    return q.scaled_dot_product_attention(k, v, is_causal=True)


def _loss() -> Tensor:
    return empty(9, 133).logsumexp(1)


PROGRAMS: dict[str, Program] = {
    "affine": Program(
        lambda: (empty(5, 70) * 2 + empty(70)).relu(),
        TileParameters(ELEMENTWISE, ((1,),), (128,), num_warps=2, num_stages=1),
    ),
    "softmax": Program(lambda: empty(9, 133).softmax(1), _rows(256)),
    "softmax_loop": Program(lambda: empty(9, 300).softmax(1), _rows(256)),
    "logsumexp": Program(_loss, _rows(256)),
    "rms_norm": Program(_norm, _rows(128)),
    "layernorm": Program(_layernorm, _rows(128)),
    "row_max": Program(lambda: empty(9, 333).max(1), TileParameters(REDUCTION, ((0,),), (4,), reduce_tile=64)),
    "scale": Program(_scale, TileParameters(REDUCTION, ((0,),), (4,), reduce_tile=32)),
    "row_sum": Program(lambda: empty(40, 75).sum(1), TileParameters(REDUCTION, ((0,),), (8,), reduce_tile=32)),
    "matmul": Program(
        lambda: _half(40, 48).linear(_half(48, 24), _half(24)).gelu(),
        TileParameters(CONTRACTION, ((1,), (0,)), (32, 32), reduce_tile=16, loads=TMA, num_stages=2),
    ),
    "residual": Program(
        lambda: empty(40, 24) + empty(40, 50) @ empty(50, 24),
        TileParameters(CONTRACTION, ((0,), (1,)), (16, 32), reduce_tile=16, split=2),
    ),
    "convolution": Program(
        lambda: _half(1, 5, 9, 11).conv2d(_half(16, 5, 3, 3), padding=1).relu(),
        TileParameters(CONTRACTION, ((0,), (1, 2)), (16, 32), reduce_tile=16),
    ),
    "attention": Program(
        _attention, TileParameters(FLASH_ATTENTION, ((1,),), (16,), reduce_tile=16, loads=TMA, num_stages=2)
    ),
    "causal": Program(_causal, TileParameters(FLASH_ATTENTION, ((1,),), (16,), reduce_tile=16, num_stages=2)),
}


@cache
def region(name: str) -> Region:
    """The region of a program."""
    return region_of(PROGRAMS[name].build())


@cache
def generated(name: str) -> TileSource:
    """The right program of a region, as the interpreter takes it. Raises AssertionError where it is not legal."""
    kernel, parameters = read_region(region(name)), PROGRAMS[name].parameters
    assert is_legal(kernel, TARGET, parameters), name
    return generate_kernel(kernel, TARGET, parameters, interpreted=True)
