"""All runs by kernel: what each kernel of each target took, run after run, and what was the best that was found."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from kcg.pictures import drawable
from kcg.ui.runs import KernelTime, Run
from kcg.ui.tables import Asked, Column


@dataclass(frozen=True)
class OverRuns:
    """One kernel, or region of several, on one target over all runs that have timed it, the oldest first."""

    name: str
    layer: str
    region: str  # its id
    model: str  # of the device
    device: str
    seen: tuple[tuple[Run, KernelTime], ...]

    @cached_property
    def times_s(self) -> tuple[float, ...]:
        """What a call took as each run chose."""
        return tuple(kernel.after_s for _, kernel in self.seen)

    @property
    def newest(self) -> KernelTime:
        return self.seen[-1][1]

    @cached_property
    def best(self) -> tuple[Run, KernelTime]:
        """The run that has the fastest."""
        return min(self.seen, key=lambda one: one[1].after_s)

    @cached_property
    def before_s(self) -> float:
        """Of a call with tinygrad's own schedule: the median of the runs."""
        return statistics.median(kernel.before_s for _, kernel in self.seen)

    @cached_property
    def drift(self) -> float:
        """By what share tinygrad's own schedule took longer in its slowest run than in its fastest; 0 in one run."""
        times = [kernel.before_s for _, kernel in self.seen]
        return max(times) / min(times) - 1

    @property
    def speedup(self) -> float:
        return self.before_s / self.best[1].after_s

    @property
    def weight_s(self) -> float:
        """What all its calls took in the newest run, before."""
        return self.newest.calls * self.newest.before_s

    @property
    def improved(self) -> int:
        """In how many runs it improved."""
        return sum(kernel.outcome == "improved" for _, kernel in self.seen)

    def text(self) -> str:
        """What is looked through for words."""
        return f"{self.name} {self.layer} {self.region} {self.model} {self.device}"


COLUMNS: Final[tuple[Column[OverRuns], ...]] = (
    Column("kernel", "Kernel", lambda row: row.layer or row.name),
    Column("device", "Device", lambda row: row.model),
    Column("runs", "Runs", lambda row: len(row.seen), "n"),
    Column("improved", "Improved", lambda row: row.improved / len(row.seen), "n"),
    Column("all", "All calls", lambda row: row.weight_s, "n"),
    Column("tinygrad", "tinygrad", lambda row: row.before_s, "n"),
    Column("drift", "Drift", lambda row: row.drift, "n"),
    Column("best", "Best", lambda row: row.best[1].after_s, "n"),
    Column("speedup", "Speed-up", lambda row: row.speedup, "n"),
    Column("newest", "Newest", lambda row: row.newest.after_s, "n"),
)
START: Final = Asked("all", down=True)


def over_runs(runs: Sequence[Run]) -> list[OverRuns]:
    """Every kernel of every target, what takes longest first; `runs` are the newest first. A name that several kernels
    of a target have is told apart by the first digits of the id."""
    found: dict[tuple[str, str, str], list[tuple[Run, KernelTime]]] = {}
    for run in reversed(runs):
        for kernel in run.kernels:
            if drawable(kernel.before_s, kernel.after_s):
                found.setdefault((run.target, kernel.region, kernel.values), []).append((run, kernel))
    names = Counter((target, _name(seen[-1][1])) for (target, _, _), seen in found.items())
    rows = [
        OverRuns(
            _name(kernel) + (f" ({kernel.region[:8]})" if names[target, _name(kernel)] > 1 else ""),
            kernel.layer,
            kernel.region,
            run.model,
            run.device,
            tuple(seen),
        )
        for (target, _, _), seen in found.items()
        for run, kernel in seen[-1:]
    ]
    return sorted(rows, key=lambda row: -row.weight_s)


def _name(kernel: KernelTime) -> str:
    return ", ".join(filter(None, (kernel.name, kernel.values)))
