"""What a journal or an export holds, in numbers: how much, how it ended, which actions, and what was gained."""

from __future__ import annotations

import json
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

from kcg.dataset.noise import NoiseFloor, noise_floors
from kcg.dataset.records import Record
from kcg.errors import DataError
from kcg.types import Kernel, Measurement, ScheduleKind, Status, Workload

if TYPE_CHECKING:
    from rich.console import Console

NUMBER = re.compile(r"[-+]?\d[\d.,e+-]*")
MOST_REASONS = 12
HAND_CODED = "hand-coded"  # the sampler of tinygrad's own choice


class Source(Protocol):
    """What is counted: a `Journal` or an `Export`."""

    def kernels(self) -> dict[str, Kernel]: ...
    def workloads(self) -> list[Workload]: ...
    def protocols(self) -> list[int]: ...
    def records(self, protocol: int) -> Iterator[Record]: ...


@dataclass(frozen=True)
class WorkloadStats:
    """One workload: its distinct kernels, the measurements of its regions, and what the best of them gained."""

    name: str  # name/preset
    kernels: int
    rows: int
    speedup: float | None  # geometric mean of hand-coded over best median; None where nothing can be compared
    compared: int  # comparisons behind it: regions, per target, toolchain, protocol, inputs and cache state


@dataclass(frozen=True)
class Stats:
    """The numbers of a dataset. Speedups are of search timings: what to expect of a result, not one itself."""

    rows: int
    kernels: int
    regions_measured: int
    unique_binaries: int
    statuses: Mapping[str, int]
    reasons: Mapping[str, int]  # "status: first line of the cause" of what failed, numbers left out; the most frequent
    samplers: Mapping[str, int]  # rows
    protocols: Mapping[int, int]  # rows
    workloads: tuple[WorkloadStats, ...]
    rows_per_second: Mapping[str, float]  # by run, from its first row to its last; runs of one row have no rate
    schedules_per_kernel: tuple[int, float, int]  # minimum, median and maximum over the regions measured
    actions: Mapping[str, int]  # Opts by name, over distinct (region, schedule)
    noise_floors: tuple[NoiseFloor, ...]  # of kernels that were timed more than once in a run


def stats(source: Source) -> Stats:
    """Counts a journal or an export in one pass. Raises DataError where an `opts` schedule does not decode."""
    statuses: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    trials: list[Measurement] = []
    samplers: Counter[str] = Counter()
    protocols: Counter[int] = Counter()
    region_rows: Counter[str] = Counter()
    actions: Counter[str] = Counter()
    binaries: set[str] = set()
    schedules: dict[str, set[tuple[str, str]]] = defaultdict(set)
    times: dict[str, tuple[float, float, int]] = {}
    speed = _Speedups()
    for protocol in source.protocols():
        for record in source.records(protocol):
            m, at = record.measurement, record.recorded_unix_s
            statuses[str(m.status)] += 1
            samplers[m.sampler] += 1
            if m.status != Status.OK:
                reasons[f"{m.status}: {NUMBER.sub('#', m.reason)}"] += 1
            elif not m.early_stop:
                trials.append(m)
            protocols[protocol] += 1
            region_rows[m.region_id] += 1
            if m.binary_hash:
                binaries.add(m.binary_hash)
            schedule = (str(m.schedule.kind), m.schedule.body)
            if schedule not in schedules[m.region_id]:
                schedules[m.region_id].add(schedule)
                actions.update(_actions(m))
            first, last, count = times.get(m.run_id, (at, at, 0))
            times[m.run_id] = min(first, at), max(last, at), count + 1
            speed.add(m)
    sizes = sorted(len(s) for s in schedules.values()) or [0]
    return Stats(
        rows=sum(statuses.values()),
        kernels=len(source.kernels()),
        regions_measured=len(region_rows),
        unique_binaries=len(binaries),
        statuses=_most_first(statuses),
        reasons=dict(reasons.most_common(MOST_REASONS)),
        samplers=_most_first(samplers),
        protocols=dict(sorted(protocols.items())),
        workloads=tuple(_workload(w, region_rows, speed) for w in source.workloads()),
        rows_per_second={
            run: (count - 1) / (last - first) for run, (first, last, count) in sorted(times.items()) if last > first
        },
        schedules_per_kernel=(sizes[0], float(statistics.median(sizes)), sizes[-1]),
        actions=_most_first(actions),
        noise_floors=tuple(noise_floors(trials)),
    )


class _Speedups:
    """Medians of what worked, by what may be compared: same region, inputs, device, protocol and cache state."""

    def __init__(self) -> None:
        self._best: dict[tuple[Any, ...], float] = {}
        self._hand_coded: dict[tuple[Any, ...], list[float]] = defaultdict(list)

    def add(self, m: Measurement) -> None:
        if m.status != Status.OK or not m.median_s > 0:
            return
        group = (m.region_id, m.variables, m.input_recipe, m.target, m.toolchain, m.protocol, str(m.cache_state))
        self._best[group] = min(m.median_s, self._best.get(group, m.median_s))
        if m.sampler == HAND_CODED:
            self._hand_coded[group].append(m.median_s)

    def of(self, region_ids: set[str]) -> list[float]:
        """Hand-coded over best, one for each group of these regions that has a hand-coded row."""
        found = sorted((g, times) for g, times in self._hand_coded.items() if g[0] in region_ids)
        return [statistics.median(times) / self._best[group] for group, times in found]


def _workload(workload: Workload, region_rows: Mapping[str, int], speed: _Speedups) -> WorkloadStats:
    regions = {call.region.id for call in workload.calls}
    kernels = {kernel.id for call in workload.calls for kernel in call.region.kernels}
    speedups = speed.of(regions)
    return WorkloadStats(
        name=f"{workload.name}/{workload.preset}",
        kernels=len(kernels),
        rows=sum(region_rows.get(r, 0) for r in regions),
        speedup=statistics.geometric_mean(speedups) if speedups else None,
        compared=len(speedups),
    )


def _actions(m: Measurement) -> list[str]:
    if m.schedule.kind != ScheduleKind.OPTS:
        return []
    try:
        return [str(opt.op) for opt in m.schedule.opts]
    except (ValueError, TypeError) as e:
        raise DataError(f"a schedule of region {m.region_id} does not decode ({e}): leave that file out") from e


def _most_first(counts: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def to_json(stats: Stats) -> str:
    """The numbers as JSON text, for `evaluation/results` and the data card."""
    return json.dumps(asdict(stats), indent=2, allow_nan=False) + "\n"


def render(stats: Stats, console: Console) -> None:
    """Prints the numbers as tables."""
    from rich.markup import escape
    from rich.table import Table

    def table(title: str, *columns: str) -> Table:
        made = Table(title=title, title_justify="left")
        for i, column in enumerate(columns):
            made.add_column(column, justify="right" if i else "left")
        return made

    low, middle, high = stats.schedules_per_kernel
    summary = table("Dataset", "what", "count")
    for name, value in (
        ("measurements", f"{stats.rows:,}"),
        ("kernels", f"{stats.kernels:,}"),
        ("regions measured", f"{stats.regions_measured:,}"),
        ("unique binaries", f"{stats.unique_binaries:,}"),
        ("schedules per kernel (min / median / max)", f"{low:,} / {middle:,g} / {high:,}"),
    ):
        summary.add_row(name, value)
    console.print(summary)

    workloads = table("Workloads", "workload", "kernels", "measurements", "best / hand-coded (search timings)")
    for w in stats.workloads:
        gain = "-" if w.speedup is None else f"{w.speedup:.2f}x over {w.compared}"
        workloads.add_row(escape(w.name), f"{w.kernels:,}", f"{w.rows:,}", gain)
    console.print(workloads)

    for title, column, counts in (
        ("How they ended", "status", stats.statuses),
        ("Why they failed", "status: cause", stats.reasons),
        ("Who asked", "sampler", stats.samplers),
        ("Protocols", "protocol", stats.protocols),
        ("Actions (distinct schedules)", "Opt", stats.actions),
    ):
        shown = table(title, column, "count")
        for key, count in counts.items():
            shown.add_row(escape(str(key)) or "-", f"{count:,}")
        console.print(shown)

    if stats.noise_floors:
        floors = table("Noise floor: the same binary as A and as B", "kernels", "number", "median", "90 % below")
        for floor in stats.noise_floors:
            limit = f"below {floor.shorter_than_s * 1e6:,g} µs" if floor.shorter_than_s else "longer"
            floors.add_row(
                f"{floor.target[:8]} {limit}", f"{floor.kernels:,}", f"{floor.median:.1%}", f"{floor.p90:.1%}"
            )
        console.print(floors)

    if stats.rows_per_second:
        rates = table("Pace", "run", "measurements per second")
        for run, rate in stats.rows_per_second.items():
            rates.add_row(escape(run) or "-", f"{rate:,.1f}")
        console.print(rates)
