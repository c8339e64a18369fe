"""The settings of a campaign, read off the command line, and what one run of it did."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from statistics import fmean

from kcg.errors import UnknownName, UsageError

DEFAULT_MIX: Mapping[str, float] = {
    "walk:raw": 0.2,
    "walk:hand-coded": 0.2,
    "beam:2/8": 0.25,
    "greedy:0.3": 0.15,
    "near:best": 0.2,
}
"""Shares of the schedules of a kernel by sampler, beside the unoptimised and the hand-coded one, which always come.

Two fifths are random walks, which cover the space; the rest follows what is fast, since a search lives at the good end
of it."""

TILE_MIX: Mapping[str, float] = {"uniform": 0.5, "near:prior": 0.2, "near:best": 0.2, "prior": 0.1}
"""The same of kinds that tinygrad does not make by itself: half of them uniform. One draw of `mcts` takes a core as
long as all others of a kernel together, 2 to 8 s."""


class Stage(StrEnum):
    """What a run does of a campaign."""

    BOTH = "both"  # what is compiled is measured at once
    COMPILE = "compile"  # where there is no device: programs into a file
    MEASURE = "measure"  # those of that file


@dataclass(frozen=True)
class CampaignSettings:
    """Settings of `python -m kcg.dataset generate`."""

    out: Path
    workloads: tuple[str, ...] = ()  # name, name/preset, name/all, or zoo
    source: Path | None = None  # a journal whose workloads are measured too
    only: tuple[str, ...] = ()  # of the source, these workloads (name/preset); all if empty
    preset: str = "auto"
    device: str = "auto"
    schedules_per_kernel: int = 20  # of each kind
    kernels_per_family: int | None = None  # None: all
    tables: int = 0  # kernels that get a replay table
    table_schedules: int = 1000  # of each table, at most
    mix: tuple[tuple[str, float], ...] = tuple(DEFAULT_MIX.items())
    tile_mix: tuple[tuple[str, float], ...] = tuple(TILE_MIX.items())
    kinds: tuple[str, ...] = ()  # of schedules; all that the target has if empty
    regions: int = 0  # of several kernels, of each preset of a workload, at most
    target: str = ""  # of what is only compiled, by name
    stage: Stage = Stage.BOTH
    shard: tuple[int, int] = (1, 1)  # this part of so many
    budget_s: float | None = None
    seed: int = 0
    predictor: str = "auto"  # whom greedy samplers follow: auto, roofline, or the path of a checkpoint
    compile_workers: int | None = None  # None: one a core
    gpus: int | None = None  # None: all
    command: str = ""


@dataclass(frozen=True)
class CampaignSummary:
    """What one run of a campaign did."""

    kernels: int  # and regions of several of them
    measured: int  # rows added
    already_known: int  # rows found in the journal and not measured again
    statuses: dict[str, int]
    elapsed_s: float
    finished: bool  # every kernel has its schedules
    skipped: int = 0  # kernels that do not fit into the device's memory, or have no schedule here
    compilers_busy: float = 0.0  # share of the compiling children's time spent on drawing and compiling
    device_busy: float = 0.0  # the same of the device's child
    undrawn: int = 0  # kernels that lack schedules, since they could not be drawn
    why_undrawn: str = ""  # of the last one of them
    compiled: int = 0  # schedules that wait to be measured, added by this run
    waiting: int = 0  # so many wait by now
    program_bytes: int = 0  # of the file that holds them and their programs


def joined(parts: Sequence[CampaignSummary], elapsed_s: float) -> CampaignSummary:
    """What several runs of one campaign, at the same time, did together."""
    statuses: Counter[str] = Counter()
    for part in parts:
        statuses.update(part.statuses)
    return CampaignSummary(
        sum(p.kernels for p in parts),
        sum(p.measured for p in parts),
        sum(p.already_known for p in parts),
        dict(statuses),
        elapsed_s,
        all(p.finished for p in parts),
        sum(p.skipped for p in parts),
        fmean(p.compilers_busy for p in parts),
        fmean(p.device_busy for p in parts),
        sum(p.undrawn for p in parts),
        next((p.why_undrawn for p in parts if p.why_undrawn), ""),
        sum(p.compiled for p in parts),
        max(p.waiting for p in parts),  # in the one file
        max(p.program_bytes for p in parts),
    )


def parse_mix(text: str) -> tuple[tuple[str, float], ...]:
    """`walk:raw=0.5,beam:2/8=0.5`, or `walk:raw,beam:2/8` for equal shares, as sampler and share, in that order; the
    shares are scaled to a sum of 1. The names are those of `kcg.campaign.samplers`. Raises UsageError, UnknownName.
    """
    from kcg.campaign.samplers import sampler

    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise UsageError("--samplers is empty: for example walk:raw,beam:2/8 or walk:raw=0.7,mcts=0.3")
    if len({"=" in part for part in parts}) > 1:
        raise UsageError(f"--samplers {text}: give every sampler a share or none of them")
    shares: dict[str, float] = {}
    for part in parts:
        name, equals, share = part.partition("=")
        sampler(name)
        try:
            value = float(share) if equals else 1.0
        except ValueError:
            value = math.nan
        if not 0 < value < math.inf or name in shares:
            raise UsageError(f"--samplers: {part!r} is not one sampler with a positive share")
        shares[name] = value
    total = sum(shares.values())
    return tuple((name, value / total) for name, value in shares.items())


def parse_shard(text: str) -> tuple[int, int]:
    """`2/4` as (2, 4). Raises UsageError."""
    found = re.fullmatch(r"(\d{1,4})/(\d{1,4})", text)
    number, count = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= number <= count:
        raise UsageError(f"--shard {text}: the part and the number of parts, for example 2/4")
    return number, count


def parse_kinds(text: str) -> tuple[str, ...]:
    """`opts,tile` as those kinds. Raises UsageError, UnknownName."""
    from kcg.kernel.kinds import KINDS

    found = tuple(dict.fromkeys(name for word in text.split(",") if (name := word.strip())))
    if not found:
        raise UsageError("--kinds is empty: for example opts,tile")
    for name in found:
        if name not in KINDS:
            raise UnknownName("kind", name, list(KINDS))
    return found
