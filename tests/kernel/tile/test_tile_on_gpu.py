"""Tile programs on a GPU: repeated, concurrent and replayed launches are bitwise equal, and right."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tinygrad import Tensor, TinyJit

from kcg.compat.device import prepare
from kcg.compat.tiny import dtypes
from kcg.kernel.installing import install
from kcg.kernel.program import Program
from kcg.kernel.tile.compile import compile_tile
from kcg.kernel.tile.generate import generate_kernel
from kcg.kernel.tile.ir import read_kernel
from kcg.kernel.tile.parameters import CONTRACTION, POINTER, TMA, TileParameters
from kcg.kernel.tile.space import schedule_of
from kcg.measure.device_info import detect
from kcg.types import Region
from tests.chains import region_of
from tests.kernel.tile.running import HAS_TRITON, WITHOUT
from tests.kernels import empty
from tests.known_targets import KNOWN_TARGETS

M, N, K = 1_600, 1_536, 512
"""13 × 12 tiles of 128 × 128, the last row of them half empty: with 132 multiprocessors the last wave has 24."""

PROGRAMS: dict[str, dict[str, Any]] = {
    "pointers": {},
    "tma": {"loads": TMA},
    "persistent": {"loads": TMA, "persistent": 1, "epilogue_parts": 2},
    "split": {"split": 4},
    "shared last wave": {"tail": 3},
    "shared last wave by tma": {"tail": 2, "loads": TMA, "epilogue_parts": 2},
    "two pieces": {"tile": (128, 192), "epilogue_parts": 2},
    "two pieces, shared last wave": {"tile": (128, 96), "tail": 2, "group": 4},
}


def model(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return (x @ w.T + b).gelu().contiguous()


def linear(device: str | None = None) -> Region:
    shapes = ((M, K), (N, K), (N,))
    return region_of(model(*(empty(*shape, dtype="bfloat16", device=device) for shape in shapes)))


def parameters(name: str, region: Region) -> TileParameters:
    contraction = read_kernel(region).contraction
    assert contraction is not None
    axes = tuple(side.ranges for side in contraction.sides)
    plain = TileParameters(CONTRACTION, axes, (128, 128), 64, loads=POINTER, num_warps=8, num_stages=3, group=8)
    return replace(plain, **PROGRAMS[name])


@pytest.mark.parametrize("name", PROGRAMS)
def test_they_are_programs_of_this_kernel(name: str) -> None:
    region = linear()
    target = replace(KNOWN_TARGETS["sm_90"], cores=132)
    source = generate_kernel(read_kernel(region), target, parameters(name, region))
    assert len(source.launches) == (2 if "split" in PROGRAMS[name] or "tail" in PROGRAMS[name] else 1)


def inputs(seed: int) -> list[Tensor]:
    rng = np.random.default_rng(seed)
    made = (rng.standard_normal(shape, np.float32) for shape in ((M, K), (N, K), (N,)))
    x, w, b = (Tensor(a, device="CUDA").cast(dtypes.bfloat16).contiguous().realize() for a in made)
    return [x, (w * 0.05).cast(dtypes.bfloat16).contiguous().realize(), b]


def wanted(x: Tensor, w: Tensor, b: Tensor) -> np.ndarray[Any, Any]:
    a, c, d = (t.float().numpy().astype(np.float64) for t in (x, w, b))
    y = a @ c.T + d
    return 0.5 * y * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3)))


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_TRITON, reason=WITHOUT)
@pytest.mark.parametrize("name", PROGRAMS)
def test_launches_are_bitwise_equal(name: str) -> None:
    """Two independent calls of one program in a step, which a graph may run at once: each has its own workspace."""
    prepare("CUDA")
    target, _ = detect("CUDA", 1)
    region = linear("CUDA")
    program = compile_tile(region, schedule_of(parameters(name, region)), target)
    assert isinstance(program, Program)
    one, other = inputs(1), inputs(2)

    def step(*tensors: Tensor) -> list[Tensor]:
        found = [model(*tensors[:3]), model(*tensors[3:])]
        Tensor.realize(*found)
        return found

    with install({region: program}, target) as report:
        eager = [t.numpy() for t in step(*one, *other)]
        again = [t.numpy() for t in step(*one, *other)]
        jitted = TinyJit(step)
        for _ in range(2):
            jitted(*one, *other)
    assert report.counts[region.id] >= 4, report
    for found, tensors in zip(eager, (one, other), strict=True):
        right = wanted(*tensors)
        assert np.abs(found.astype(np.float64) - right).max() < 0.02 * max(1.0, np.abs(right).max())
    first = [a.tobytes() for a in eager]
    assert [a.tobytes() for a in again] == first
    for _ in range(50):
        replayed = jitted(*one, *other)
        assert [t.numpy().tobytes() for t in replayed] == first
        jitted(*other, *one)  # whatever a workspace holds is another's
