"""A network as numbers: its settings, and the arrays that these imply.

The network passes messages between the axes of a loop nest, or of a tile program, and its loads, stores and groups of
operations. Who predicts (`kcg.predictor.stacked`) and who reads a file take it as here, by NumPy alone; who trains
makes it of PyTorch (`kcg.training.network`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from kcg.predictor.features import (
    ACCESS_EDGES,
    ACCESS_FEATURES,
    AXIS_FEATURES,
    GROUP_EDGES,
    GROUP_FEATURES,
    KERNEL_FEATURES,
    SCHEDULE_FEATURES,
    TARGET_FEATURES,
    Array,
)
from kcg.types import ScheduleKind

SIZES = {
    "axes": len(AXIS_FEATURES), "accesses": len(ACCESS_FEATURES), "groups": len(GROUP_FEATURES),
    "access_edges": len(ACCESS_EDGES), "group_edges": len(GROUP_EDGES), "schedule": len(SCHEDULE_FEATURES),
    "kernel_x": len(KERNEL_FEATURES), "target_x": len(TARGET_FEATURES),
}  # fmt: skip
NODES = ("axes", "accesses", "groups")  # of nodes
OTHERS: Final = {"accesses": "access_edges", "groups": "group_edges"}
"""What axes have edges to, and the features of these edges."""
LEAST_LOG_SIGMA, MOST_LOG_SIGMA = -4.0, 2.0
MOST_SCALED = 8.0
"""Features, less their mean and by their spread, are cut there: what was never seen stays near what was."""
MOST_HIDDEN, MOST_LAYERS, MOST_WIDTH = 1024, 16, 4096
ATTENTION_HEADS = 4

Shapes = dict[str, tuple[int, ...]]
"""Of arrays, by name."""


@dataclass(frozen=True)
class NetSettings:
    """The shape of a network. Each switch is a row of `docs/experiments/2026-11-22-predictor-ablation.md`."""

    hidden: int = 64
    layers: int = 2
    dropout: float = 0.07
    messages: bool = True  # False: a multilayer perceptron on pooled nodes
    schedule: bool = True  # the numbers of the whole schedule, roofline terms among them
    kernel: bool = True  # the numbers of the kernel itself
    compare: bool = False  # attention between the candidates of one kernel: an experiment, which guides no search
    kind: str = ScheduleKind.OPTS  # of schedules that it is of
    widths: tuple[int, ...] = ()  # how many numbers it is told of each of `SIZES`, of another kind than Opts


def settings_of(given: Mapping[str, Any]) -> NetSettings:
    """The settings that a file's header holds. Raises TypeError where it holds others."""
    return NetSettings(**{**given, "widths": tuple(given.get("widths", ()))})


@dataclass(frozen=True, eq=False)
class Network:
    """One network: `numbers` are float32, named and shaped as `shapes(settings)` says."""

    settings: NetSettings
    numbers: Mapping[str, Array]


def sizes_of(settings: NetSettings) -> dict[str, int]:
    """How many numbers a network is told of each of `SIZES`. Raises ValueError where that cannot be."""
    if not settings.widths:
        return SIZES
    if len(settings.widths) != len(SIZES) or not all(type(n) is int and 0 < n <= MOST_WIDTH for n in settings.widths):
        raise ValueError(f"a network that is told of {settings.widths}")
    return dict(zip(SIZES, settings.widths, strict=True))


def linear(name: str, inputs: int, outputs: int) -> Shapes:
    """The arrays of a linear layer."""
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def shapes(settings: NetSettings) -> Shapes:
    """The arrays of a network. Raises ValueError where no network is of these settings."""
    hidden, layers = settings.hidden, settings.layers
    switches = settings.messages, settings.schedule, settings.kernel, settings.compare
    if any(type(size) is not int for size in (hidden, layers)) or not all(type(one) is bool for one in switches):
        raise ValueError(f"a network of {settings}")  # of a file: 64.0 equals 64, and is no length
    if not (1 <= hidden <= MOST_HIDDEN and 0 <= layers <= MOST_LAYERS):
        raise ValueError(f"a network of {layers} layers of {hidden}")
    sizes = sizes_of(settings)
    found: Shapes = {f"{name}_{what}": (size,) for name, size in sizes.items() for what in ("mean", "scale")}
    known = sizes["target_x"] + settings.schedule * sizes["schedule"] + settings.kernel * sizes["kernel_x"]
    found |= {"log_s_mean": (), **linear("whole.0", known, 2 * hidden), **linear("whole.2", 2 * hidden, hidden)}
    for name in NODES:
        found |= linear(f"embed.{name}", sizes[name], hidden)
    for i in range(layers if settings.messages else 0):
        for other, edges in OTHERS.items():
            for way in ("to", "from"):
                relation = f"layers.{i}.{way}_{other}"
                found |= linear(f"{relation}.source", hidden, hidden)
                found |= linear(f"{relation}.edge", sizes[edges], 2 * hidden)
        for name in NODES:  # axes hear from both kinds of others, the others from axes alone: sum and maximum each
            received = (1 + 2 * (len(OTHERS) if name == "axes" else 1)) * hidden
            change = f"layers.{i}.{name}.change"
            found |= {f"{change}.0.weight": (received,), f"{change}.0.bias": (received,)}
            found |= {**linear(f"{change}.1", received, hidden), **linear(f"{change}.4", hidden, hidden)}
    pooled = (1 + 2 * len(NODES)) * hidden
    found |= {"read.0.weight": (pooled,), "read.0.bias": (pooled,)}
    found |= {**linear("read.1", pooled, 2 * hidden), **linear("read.4", 2 * hidden, hidden)}
    if settings.compare:
        if hidden % ATTENTION_HEADS:
            raise ValueError(f"{ATTENTION_HEADS} heads of attention over {hidden}")
        found |= {"compare.in_proj_weight": (3 * hidden, hidden), "compare.in_proj_bias": (3 * hidden,)}
        found |= linear("compare.out_proj", hidden, hidden)
    return found | linear("heads", hidden, 4) | linear("skip", sizes["schedule"], 1)


def checked(tensors: Mapping[str, Array], expected: Shapes) -> dict[str, Array]:
    """Arrays of a file as float32, in the order of `expected`. Raises ValueError where they are not those, or not
    numbers."""
    if tensors.keys() != expected.keys():
        raise ValueError("the weights of another kind of network")
    found = {}
    for name, shape in expected.items():
        if tensors[name].shape != shape:
            raise ValueError(f"{name} of shape {tensors[name].shape}, not {shape}")
        if tensors[name].dtype.kind != "f":
            raise ValueError(f"{name} of {tensors[name].dtype}")
        with np.errstate(over="ignore"):  # what 32 bits cannot hold is not finite
            found[name] = tensors[name].astype(np.float32)
        if not np.isfinite(found[name]).all():
            raise ValueError("weights that are not numbers")
    return found
