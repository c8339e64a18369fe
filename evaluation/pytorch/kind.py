"""What is computed, apart from any library: a case as a plain dictionary, its kind, its inputs, its float64 reference.

A case has a `kind`, sizes, and a `dtype`. Inputs are normal, drawn by name and seed as those of `kcg.workloads` are, so
that every library starts from the same numbers. Each file of a comparison (`attention.py`, `rope.py`, …) defines its
kinds; `cases.py` knows all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluation.pytorch.turns import Contender
from kcg.workloads import family
from kcg.workloads.family import generator

Array = NDArray[Any]
Case = dict[str, Any]
Rows = dict[str, dict[str, Any]]

PICKED_ROWS, PICKED_COLUMNS = 8, 32  # of an output, for a comparison
REPEATED = 1 << 22  # so many values are drawn; a larger input repeats them
ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


def _no_tables(case: Case) -> dict[str, Array]:
    return {}


def _no_matmul(case: Case) -> float:
    return 0.0


def _as_they_come(key: str) -> int:
    return 0


def _none(rows: Rows) -> dict[str, float]:
    return {}


@dataclass(frozen=True)
class Kind:
    """What cases of one kind compute, in each library."""

    shapes: Callable[[Case], dict[str, tuple[int, ...]]]
    """Name -> shape of every input, weights included; without `tables`."""
    reference: Callable[..., list[float]]
    """The compared values, of the case and its inputs by name, all in float64."""
    in_tinygrad: Callable[[Case], Callable[..., Any]]
    """The program, as users of tinygrad write it."""
    in_torch: Callable[[], Callable[..., Any]]
    """The same in PyTorch, which only a process that runs it imports."""
    in_triton: Callable[[], Callable[..., Any]] | None = None
    tables: Callable[[Case], dict[str, Array]] = _no_tables
    """Further inputs, float32 whatever the dtype: tables of positions."""
    operations: Callable[[Case], float] = _no_matmul
    """Multiply-adds of matmuls, each two."""
    scaled: tuple[str, ...] = ()
    """Inputs that are weights of matmuls, scaled by fan-in."""
    mean: float = 0.0
    """Of the inputs."""
    reduces: bool = False
    """Whether the output is a single value; else it is as large as the first input."""


@dataclass(frozen=True)
class Trained:
    """A training step in PyTorch: a loss of the inputs, and the parameters whose gradients are wanted."""

    loss: Callable[..., Any]
    targets: Sequence[Any]


@dataclass(frozen=True)
class Entry:
    """A row of a comparison: its key and case, whether profilers are asked, and who runs it whatever was asked for."""

    key: str
    case: Case
    profiled: bool = False
    only: str = ""


@dataclass(frozen=True)
class Comparison:
    """What is compared with what: all that the program `compare` has to know of one results file."""

    name: str
    """Of the results file and of the working folder."""
    entries: Callable[[str], Sequence[Entry]]
    """By size, full or mini."""
    contenders: Sequence[Contender]
    usual: str
    """The contenders that run unless others are named, with commas between."""
    write: Callable[[Rows, Path, str], None]
    """Writes the pictures and the table of the rows of a run beside a results file."""
    tune: str = "60s"
    """kcg's budget for each case."""
    limit_s: float = 300.0
    """Seconds that making a contender ready may take."""
    figures: Sequence[tuple[str, str]] = (("s", "cold_s"),)
    """What of a contender is in the headline: words, and the figure's name."""
    label: Callable[[str], str] = str
    """A row's key in the headline; of rows that share one the last by `place` is told."""
    place: Callable[[str], int] = _as_they_come
    summary: Callable[[Rows], dict[str, float]] = _none
    """Further figures of the headline, of rows at full size on a GPU."""


SIZES = ("full", "mini")


def drawn(kind: Kind, case: Case, seed: int = 0) -> dict[str, Array]:
    """The inputs but for the tables, rounded by nobody yet."""
    made = {}
    for name, shape in kind.shapes(case).items():
        deviation = shape[-1] ** -0.5 if name in kind.scaled else 1.0
        count = math.prod(shape)
        values = generator(seed, name).standard_normal(min(count, REPEATED), np.float32)
        values = np.resize(values, shape)  # a gigabyte of new numbers takes longer than all else
        made[name] = values * np.float32(deviation) + np.float32(kind.mean)
    return made


def picked(rows: int, columns: int) -> tuple[Array, Array]:
    """Which rows and columns of an output are compared: the first and the last among them."""
    return tuple(  # type: ignore[return-value]
        np.unique(np.linspace(0, n - 1, min(n, most)).astype(np.int64))
        for n, most in ((rows, PICKED_ROWS), (columns, PICKED_COLUMNS))
    )


def values_of(output: Any) -> list[float]:
    """The compared values of an output, a NumPy array: rows are all axes but the last."""
    flat = np.asarray(output).reshape(-1, output.shape[-1] if output.ndim else 1)
    rows, columns = picked(*flat.shape)
    return [float(v) for v in flat[np.ix_(rows, columns)].ravel()]


def as_stored(values: Array, dtype: str) -> Array:
    """Rounded to `dtype`, as float32 or wider."""
    stored = family.as_stored(values, dtype)
    return (stored.astype(np.uint32) << 16).view(np.float32) if dtype == "bfloat16" else stored
