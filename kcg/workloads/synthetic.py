"""Drawing shapes for the synthetic families of the zoo, which fill the space between those of real models.

A draw depends on its seed only, by way of `random.Random.random`, whose values Python promises to keep.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random
from typing import TypeVar

Case = TypeVar("Case")

ALIGNED = 0.6
"""The share of extents that are a multiple of 8 or, if large, of 64, as most are in real models."""

GPU_PRESETS = {
    "f16": ("float16", 4),
    "bf16": ("bfloat16", 5),
    "f32": ("float32", 6),
    "f16-more": ("float16", 7),
    "bf16-more": ("bfloat16", 8),
    "f32-more": ("float32", 9),
}
"""Dtype and seed of the presets that every family has for a GPU."""


def gpu_presets(config: Callable[[str, int], Case]) -> dict[str, Case]:
    """The presets for a GPU, each `config(dtype, seed)`: sizes are the config's own defaults."""
    return {name: config(dtype, seed) for name, (dtype, seed) in GPU_PRESETS.items()}


def log_uniform(rng: Random, low: int, high: int) -> int:
    """An integer in [low, high] whose logarithm is uniform."""
    return round(math.exp(math.log(low) + rng.random() * math.log(high / low)))


def extent(rng: Random, low: int, high: int) -> int:
    """A log-uniform extent, often aligned."""
    drawn = log_uniform(rng, low, high)
    unit = 64 if drawn >= 512 else 8
    below = drawn // unit * unit
    return below if rng.random() < ALIGNED and below >= low else drawn


def one_of(rng: Random, choices: Sequence[Case]) -> Case:
    """One of `choices`, all equally likely; what stands there twice is twice as likely."""
    return choices[int(rng.random() * len(choices))]


def draw(seed: int, count: int, make: Callable[[Random], Case], fits: Callable[[Case], bool]) -> tuple[Case, ...]:
    """`count` different cases of `make` for which `fits` holds."""
    rng, found = Random(seed), dict[Case, None]()
    while len(found) < count:
        case = make(rng)
        if fits(case):
            found[case] = None
    return tuple(found)
