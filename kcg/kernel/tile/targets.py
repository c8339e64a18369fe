"""What has to be on this machine to compile tile programs, and what its compilers are trusted with."""

from __future__ import annotations

import functools
import importlib.util
import re
from importlib import metadata

from kcg.cli import pip_install
from kcg.compat.assembler import assembler
from kcg.kernel.tile.device import device_of, not_searched, unsupported
from kcg.types import Target

MOST_STAGES = 6  # that a program may have
EVICTS_COPIES_SINCE = (3, 9)


def missing(target: Target) -> str:
    """Why this machine has no tile programs to be run on a target; empty where nothing is missing."""
    return not_searched(target) or cannot_compile(target)


def cannot_compile(target: Target) -> str:
    """Why no tile program can be compiled for a target on this machine; empty where nothing is missing."""
    if problem := unsupported(target):
        return problem
    if not triton_version():
        return f"Triton is not installed: {pip_install('gpu')}"
    return "" if assembler() is not None or not device_of(target).ptx else f"there is no ptxas: {pip_install('gpu')}"


def supported(target: Target) -> bool:
    """Whether tile programs can be compiled for a target."""
    return not unsupported(target)


def evicts_copies() -> bool:
    """Whether Triton hands the eviction policy of a load on where it copies asynchronously: 3.6 drops it there."""
    return _triton_is(EVICTS_COPIES_SINCE)


def _triton_is(least: tuple[int, int]) -> bool:
    """Whether Triton is of this version or a newer one, or of none that is known."""
    numbers = re.findall(r"\d+", triton_version())[:2]
    return not numbers or tuple(map(int, numbers)) >= least


@functools.cache
def triton_version() -> str:
    """The version of Triton, without importing it; empty where it is not installed."""
    if importlib.util.find_spec("triton") is None:
        return ""
    try:
        return metadata.version("triton")
    except metadata.PackageNotFoundError:
        return ""


SPECIALIZED_SINCE = (3, 9)
"""The first Triton of which no wrong warp specialised program is known."""
SPECIALIZED_STAGES = 4


@functools.cache
def most_specialized_stages() -> int:
    """The most stages with which a warp specialised program of one product is right by the compilers of this machine;
    0 where none is to be trusted. By ptxas 12.8 and 12.9 right programs become faults and NaN, whatever their stages.
    By Triton 3.6 and ptxas 13.0 one with 6 stages gave NaN on an H100 (128×128×64, without a persistent grid)."""
    using = assembler()
    if using is not None and not using.trusted:
        return 0
    return MOST_STAGES if _triton_is(SPECIALIZED_SINCE) else SPECIALIZED_STAGES
