"""The contenders in pictures and tables: their order, their words and colours, and what a row says of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from evaluation.search.comparison_text import COLOURS, GREY

BLUE, VERMILION, GREEN, PINK, ORANGE, SKY, PURPLE, BLACK = COLOURS
KNOWN = {
    "tinygrad": ("tinygrad", BLACK), "BEAM=2": ("tinygrad, BEAM=2", PINK), "kcg": ("kcg", BLUE),
    "uops": ("UOps by hand", SKY), "cuda": ("CUDA by hand", ORANGE), "ptx": ("PTX by hand", PURPLE),
    "triton": ("Triton by hand", GREEN), "c": ("C by hand", GREEN), "torch": ("PyTorch", VERMILION),
    "eager": ("PyTorch eager", ORANGE), "compile": ("torch.compile", VERMILION),
    "compile-graphs": ("torch.compile, CUDA graphs", PURPLE),
}  # fmt: skip
"""Names in results -> words and colour. `tinygrad` is tinygrad with its hand-coded schedules."""

Found = Mapping[str, Any]
"""What a row says of one contender."""


def in_order(names: Iterable[str]) -> list[str]:
    """Each name once: those known here as they stand above, then all others as they come."""
    order = list(KNOWN)
    return sorted(dict.fromkeys(names), key=lambda name: order.index(name) if name in order else len(order))


def words(name: str) -> str:
    """What a reader calls it."""
    return KNOWN.get(name, (name, ""))[0]


def colour(name: str) -> str:
    """The same in every picture."""
    return KNOWN.get(name, ("", GREY))[1]


def reason(found: Found) -> str:
    """Why there is no time, short enough for a cell or a line."""
    text = " ".join(found["reason"].replace("|", "/").split())
    return text if len(text) <= 60 else text[:59] + "…"


def seconds(found: Found) -> tuple[float, float, float]:
    """Median with flushed caches, and the ends of its 95 % interval."""
    low, high = found["cold_interval_s"]
    return found["cold_s"], low, high


def rate(found: Found) -> tuple[float, float, float]:
    """The same as GB/s."""
    median, low, high = seconds(found)
    return found["gb_s"], found["gb_s"] * median / high, found["gb_s"] * median / low
