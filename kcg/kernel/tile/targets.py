"""For which targets tile programs are, and what has to be on this machine to compile them."""

from __future__ import annotations

import functools
import importlib.util
import re
from dataclasses import dataclass
from importlib import metadata

from kcg.cli import pip_install
from kcg.compat.assembler import assembler
from kcg.types import Target

MOST_STAGES = 6  # that a program may have
EVICTS_COPIES_SINCE = (3, 9)
LEAST = 80  # sm_80: what tensor cores and asynchronous copies of the generated programs need


COMPILED_ONLY = ("gfx942",)
"""Architectures of AMD for which tile programs compile; nothing was ever run there, and so nothing is searched."""


def missing(target: Target) -> str:
    """Why this machine has no tile programs to be run on a target; empty where nothing is missing."""
    if target.arch in COMPILED_ONLY:
        return f"tile programs compile for {target.arch}, and none was ever run there"
    return cannot_compile(target)


def cannot_compile(target: Target) -> str:
    """Why no tile program can be compiled for a target on this machine; empty where nothing is missing."""
    if not supported(target):
        return f"tile programs are for NVIDIA GPUs from sm_80 on, not for {target.device} {target.arch}"
    if not triton_version():
        return f"Triton is not installed: {pip_install('gpu')}"
    return "" if assembler() is not None or not is_nvidia(target) else f"there is no ptxas: {pip_install('gpu')}"


def supported(target: Target) -> bool:
    """Whether tile programs can be compiled for a target."""
    number = re.fullmatch(r"sm_(\d+)[af]?", target.arch)
    if number is None:
        return target.device == "AMD" and target.arch in COMPILED_ONLY
    return target.device in ("CUDA", "NV") and int(number[1]) >= LEAST


def is_nvidia(target: Target) -> bool:
    """Whether a target has what PTX has words for: approximate functions, limits of registers, eviction policies."""
    return target.arch.startswith("sm_")


@dataclass(frozen=True)
class Registers:
    """The registers of 32 bits that a program has."""

    lanes: int  # threads of a warp, which AMD calls a wave
    file: int  # of a multiprocessor
    most: int  # of one thread

    def of_thread(self, warps: int) -> int:
        """What each thread of a program of so many warps can have."""
        return min(self.most, self.file // (self.lanes * warps))


NVIDIAS_REGISTERS = Registers(lanes=32, file=65_536, most=255)  # from sm_80 on (CUDA C++ Programming Guide)
AMDS_REGISTERS = {"gfx942": Registers(lanes=64, file=131_072, most=512)}  # with those of accumulators (CDNA 3's ISA)


def registers_of(target: Target) -> Registers:
    """The registers of a target's programs."""
    return AMDS_REGISTERS.get(target.arch, NVIDIAS_REGISTERS)


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
