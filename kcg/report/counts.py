"""How many kernels there are, and how many regions of several kernels, in words: they are counted apart."""

from __future__ import annotations

from collections.abc import Iterable

from kcg.cli import counted
from kcg.types import Region


def how_many(regions: Iterable[Region]) -> str:
    """`21 kernels and 14 regions`. Each counts once, however many values its variables have."""
    kernels, several = _apart(regions)
    parts = [counted(len(kernels), "kernel")] if kernels or not several else []
    return " and ".join([*parts, *([counted(len(several), "region")] if several else [])])


def share_of(some: Iterable[Region], every: Iterable[Region]) -> str:
    """`18 of 21 kernels and 12 of 14 regions`: how many of these are among those."""
    found, parts = {region.id for region in some}, list[str]()
    for ids, noun in zip(_apart(every), ("kernel", "region"), strict=True):
        if ids:
            parts.append(f"{len(ids & found)} of {counted(len(ids), noun)}")
    return " and ".join(parts) or "0 of 0 kernels"


def nouns_of(regions: Iterable[Region]) -> str:
    """What a count of these is a count of: `kernels`, `regions` or `kernels and regions`."""
    kernels, several = _apart(regions)
    return " and ".join(["kernels"] * bool(kernels or not several) + ["regions"] * bool(several))


def _apart(regions: Iterable[Region]) -> tuple[set[str], set[str]]:
    """The ids of kernels, and of regions of several."""
    kernels, several = set[str](), set[str]()
    for region in regions:
        (several if len(region.kernels) > 1 else kernels).add(region.id)
    return kernels, several
