"""What a journal or an export holds, in numbers: how much, how it ended, which actions, and what was gained."""

from __future__ import annotations

import json
import math
import re
import statistics
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

from kcg.dataset.choices import HAND_CODED, is_chosen
from kcg.dataset.job_use import RunUse
from kcg.dataset.journal import Doubt, Record
from kcg.dataset.noise import NoiseFloor, Repeats, Spread, noise_floors
from kcg.dataset.splits import PARTS, TEST, make_splits, part_of_kernels
from kcg.errors import CodecError, DataError
from kcg.kernel.kinds import KINDS, CountsSteps, kind_named
from kcg.nouns import printable
from kcg.types import Kernel, Measurement, Region, Status, Target, Workload

if TYPE_CHECKING:
    from rich.console import Console


__all__ = ["ActionStats", "FamilyStats", "PartStats", "Source", "Stats", "WorkloadStats", "render", "stats", "to_json"]

NUMBER = re.compile(r"[-+]?\d[\d.,e+-]*")
MOST_REASONS = 8  # of each status
BINS_A_DECADE = 8  # of the histogram of runtimes
QUARTILES = (0.0, 0.25, 0.5, 0.75, 1.0)
DTYPES = ("float8_e4m3", "float8_e5m2", "bfloat16", "float16", "float32", "float64")  # narrow ones first


class Source(Protocol):
    """What is counted: a `Journal` or an `Export`."""

    def kernels(self) -> dict[str, Kernel]: ...
    def regions(self) -> dict[str, Region]: ...
    def targets(self) -> dict[str, Target]: ...
    def workloads(self) -> list[Workload]: ...
    def protocols(self) -> list[int]: ...
    def records(self, protocol: int) -> Iterator[Record]: ...
    def doubtful_rows(self) -> Mapping[Doubt, int]: ...


@dataclass(frozen=True)
class WorkloadStats:
    """One workload: its distinct kernels, the measurements of its regions, and what the best of them gained."""

    name: str  # name/preset
    kernels: int
    rows: int
    speedup: float | None  # geometric mean of hand-coded over best median; None where nothing can be compared
    compared: int  # comparisons behind it: regions, per target, toolchain, protocol, inputs and cache state


@dataclass(frozen=True)
class FamilyStats:
    """All presets of a workload together, each kernel once."""

    name: str
    presets: tuple[str, ...]
    kernels: int
    rows: int
    ok_rows: int
    compared: int  # comparisons of hand-coded with best, as in `WorkloadStats`
    speedup: float | None  # their geometric mean
    quartiles: tuple[float, ...]  # least, lower quartile, median, upper quartile and most of them; or empty


@dataclass(frozen=True)
class ActionStats:
    """One Opt, whatever its axis: in how many distinct schedules and in how many regions it occurs."""

    op: str
    arg: str | None  # as JSON, empty where it has none; None: whatever the argument
    schedules: int
    regions: int


@dataclass(frozen=True)
class PartStats:
    """One part of a split."""

    kernels: int
    rows: int
    twins: int  # of its kernels, those with a twin in training
    near: int  # and those near one in training (`kcg.dataset.splits.Split.near_in_training`)


@dataclass(frozen=True)
class Stats:
    """The numbers of a dataset. Speedups are of search timings: what to expect of a result, not one itself."""

    rows: int  # without doubtful ones, as all numbers but the next two
    doubtful_rows: int  # of a run that is not to be trusted at that time; an export has left them out
    doubts: Mapping[str, int]  # rows by why they are doubtful
    ok_rows: int
    chosen_rows: int  # that a cost or a search chose: they are for training only, and in no gain
    search_rows: int  # of the few samples of a search (`early_stop`)
    kernels: int
    regions_measured: int
    ok_regions: int  # with at least one row of status ok
    unjudged_rows: int  # the reference could not tell whether the output is right: neither ok nor failed
    unjudged_regions: int  # with such rows, and none of status ok
    schedules: int  # distinct, each of one region
    ok_schedules: int
    unique_binaries: int
    sharing_schedules: int  # distinct schedules whose binary is that of another one, too
    targets: Mapping[str, str]  # fingerprint -> in words
    statuses: Mapping[str, int]
    reasons: Mapping[
        str, int
    ]  # "status: first line of the cause" of what is not ok, numbers left out; the most frequent
    samplers: Mapping[str, int]  # rows
    sampler_statuses: Mapping[str, Mapping[str, int]]  # rows, by sampler and status
    kinds: Mapping[str, int]  # rows by the kind of schedule
    protocols: Mapping[int, int]  # rows
    families: tuple[FamilyStats, ...]
    workloads: tuple[WorkloadStats, ...]
    runs: Mapping[str, int]  # rows
    rows_per_second: Mapping[str, float]  # by run, see `_pace`; runs of fewer than 3 rows have no rate
    schedules_per_kernel: tuple[int, float, int]  # minimum, median and maximum over the regions measured
    schedule_counts: Mapping[int, int]  # distinct schedules -> regions that have so many
    actions: Mapping[str, int]  # Opts by name, over distinct (region, schedule)
    action_coverage: tuple[ActionStats, ...]
    walk_lengths: Mapping[int, int]  # Opts of a schedule -> distinct schedules
    runtimes: tuple[tuple[float, int], ...]  # rows of status ok: lower limit of a bin in seconds, and how many
    runtime_quartiles: tuple[float, ...]  # in seconds: least, lower quartile, median, upper quartile and most; or empty
    dtypes: Mapping[str, int]  # rows by the narrowest float among a kernel's buffers
    splits: Mapping[str, Mapping[str, PartStats]]  # empty where a kernel is no AST
    noise_floors: tuple[NoiseFloor, ...]  # of kernels that were timed in full more than once in a run
    search_noise: tuple[Spread, ...]  # the same of the few samples of a search
    drift: tuple[Spread, ...]  # |ratio - 1| of the medians of one identity in a later run and in its first


def stats(source: Source) -> Stats:
    """Counts a journal or an export in one pass. Raises DataError where an `opts` schedule does not decode."""
    statuses: Counter[tuple[str, str]] = Counter()  # sampler, status
    reasons: Counter[str] = Counter()
    trials: list[Measurement] = []
    protocols: Counter[int] = Counter()
    kinds: Counter[str] = Counter()
    rows: dict[str, Counter[bool]] = defaultdict(Counter)  # by region and whether they are ok
    unjudged: Counter[str] = Counter()  # rows by region
    times: dict[str, list[float]] = defaultdict(list)
    medians, searched, chosen_rows = array("d"), 0, 0
    schedules, speed, repeats = _Schedules(), _Speedups(), Repeats()
    for protocol in source.protocols():
        for record in source.records(protocol):
            m, at = record.measurement, record.recorded_unix_s
            ok = m.status == Status.OK
            statuses[m.sampler, str(m.status)] += 1
            protocols[protocol] += 1
            kinds[str(m.schedule.kind)] += 1
            searched += m.early_stop
            chosen_rows += (chosen := is_chosen(record.chosen.pool))
            rows[m.region_id][ok] += 1
            if ok:
                medians.append(m.median_s)
                repeats.add(m, at)
                if not m.early_stop:
                    trials.append(m)
            else:
                reasons[f"{m.status}: {NUMBER.sub('#', m.reason)}"] += 1
                unjudged[m.region_id] += m.status == Status.UNJUDGED
            times[m.run_id].append(at)
            schedules.add(m)
            if not chosen:
                speed.add(m)
    kernels, workloads = source.kernels(), source.workloads()
    totals = {region: counts.total() for region, counts in rows.items()}
    by_status, by_sampler, each = Counter[str](), Counter[str](), defaultdict[str, Counter[str]](Counter)
    for (sampler, status), count in statuses.items():
        by_status[status] += count
        by_sampler[sampler] += count
        each[sampler][status] += count
    doubts: Counter[str] = Counter()
    for doubt, count in source.doubtful_rows().items():
        doubts[doubt.why] += count
    sizes = sorted(len(s) for s in schedules.found.values())
    known = [ok for found in schedules.found.values() for ok in found.values()]
    return Stats(
        rows=sum(totals.values()),
        doubtful_rows=doubts.total(),
        doubts=_most_first(doubts),
        ok_rows=len(medians),
        chosen_rows=chosen_rows,
        search_rows=searched,
        kernels=len(kernels),
        regions_measured=len(rows),
        ok_regions=sum(counts[True] > 0 for counts in rows.values()),
        unjudged_rows=unjudged.total(),
        unjudged_regions=sum(n > 0 and not rows[region][True] for region, n in unjudged.items()),
        schedules=len(known),
        ok_schedules=sum(known),
        unique_binaries=len(schedules.owners),
        sharing_schedules=len(schedules.sharing),
        targets={k: f"{t.model} ({t.tinygrad_device}, {t.arch})" for k, t in sorted(source.targets().items())},
        statuses=_most_first(by_status),
        reasons=_most_of_each(reasons),
        samplers=_most_first(by_sampler),
        sampler_statuses={sampler: _most_first(each[sampler]) for sampler in _most_first(by_sampler)},
        kinds=_most_first(kinds),
        protocols=dict(sorted(protocols.items())),
        families=_families(workloads, rows, speed),
        workloads=tuple(_workload(w, totals, speed) for w in workloads),
        runs={run: len(recorded) for run, recorded in sorted(times.items())},
        rows_per_second={run: pace for run, recorded in sorted(times.items()) if (pace := _pace(recorded))},
        schedules_per_kernel=(sizes[0], float(statistics.median(sizes)), sizes[-1]) if sizes else (0, 0.0, 0),
        schedule_counts=dict(sorted(Counter(sizes).items())),
        actions=_most_first(schedules.actions),
        action_coverage=schedules.coverage(),
        walk_lengths=dict(sorted(schedules.lengths.items())),
        runtimes=_histogram(medians),
        runtime_quartiles=quartiles(medians),
        dtypes=_dtypes(kernels, totals),
        splits=_splits(kernels, workloads, source.regions(), totals),
        noise_floors=tuple(noise_floors(trials)),
        search_noise=repeats.noise(),
        drift=repeats.drift(),
    )


def _most_of_each(reasons: Mapping[str, int]) -> dict[str, int]:
    """The most frequent causes of each status, so that what is rare is not lost beside what is not."""
    kept: Counter[str] = Counter()
    found = {}
    for reason, rows in _most_first(reasons).items():
        status = reason.partition(": ")[0]
        kept[status] += 1
        if kept[status] <= MOST_REASONS:
            found[reason] = rows
    return found


class _Schedules:
    """The distinct schedules of each region: whether one worked, what is in it, and which share a binary."""

    def __init__(self) -> None:
        self.found: dict[str, dict[tuple[str, str], bool]] = defaultdict(dict)
        self.actions: Counter[str] = Counter()
        self.lengths: Counter[int] = Counter()
        self.owners: dict[str, tuple[str, str, str]] = {}  # of each binary, the first schedule
        self.sharing: set[tuple[str, str, str]] = set()
        self._schedules: Counter[tuple[str, str | None]] = Counter()  # by op and argument
        self._regions: dict[tuple[str, str | None], set[str]] = defaultdict(set)

    def add(self, m: Measurement) -> None:
        kind, body = str(m.schedule.kind), m.schedule.body
        here = self.found[m.region_id]
        if (kind, body) not in here:
            self._decode(m)
        here[kind, body] = here.get((kind, body), False) or m.status == Status.OK
        if m.binary_hash:
            mine = (m.region_id, kind, body)
            owner = self.owners.setdefault(m.binary_hash, mine)
            if owner != mine:
                self.sharing.update((owner, mine))

    def _decode(self, m: Measurement) -> None:
        kind = kind_named(m.schedule.kind) if m.schedule.kind in KINDS else None
        if not isinstance(kind, CountsSteps):
            return
        try:
            opts = kind.ops_and_arguments(m.schedule)
        except (ValueError, TypeError) as e:
            raise DataError(f"a schedule of region {m.region_id} does not decode ({e}): leave that file out") from e
        self.lengths[len(opts)] += 1
        self.actions.update(op for op, _ in opts)
        for action in {*opts, *((op, None) for op, _ in opts)}:
            self._schedules[action] += 1
            self._regions[action].add(m.region_id)

    def coverage(self) -> tuple[ActionStats, ...]:
        """By op; what holds whatever the argument comes first, then the argument of most schedules."""
        found = (ActionStats(*action, n, len(self._regions[action])) for action, n in self._schedules.items())
        return tuple(sorted(found, key=lambda a: (a.op, a.arg is not None, -a.schedules, a.arg or "")))


class _Speedups:
    """Medians of what worked, by what may be compared: same region, inputs, device, protocol and cache state."""

    def __init__(self) -> None:
        self._best: dict[tuple[Any, ...], float] = {}
        self._hand_coded: dict[str, dict[tuple[Any, ...], list[float]]] = defaultdict(lambda: defaultdict(list))

    def add(self, m: Measurement) -> None:
        if m.status != Status.OK or not m.median_s > 0:
            return
        group = (m.region_id, m.variables, m.input_recipe, m.target, m.toolchain, m.protocol, str(m.cache_state))
        self._best[group] = min(m.median_s, self._best.get(group, m.median_s))
        if m.sampler == HAND_CODED:
            self._hand_coded[m.region_id][group].append(m.median_s)

    def of(self, region_ids: set[str]) -> list[float]:
        """Hand-coded over best, smallest first, one for each group of these regions that has a hand-coded row."""
        found = (item for region in region_ids for item in self._hand_coded.get(region, {}).items())
        return sorted(statistics.median(times) / self._best[group] for group, times in found)


def quartiles(values: Sequence[float]) -> tuple[float, ...]:
    """Least, lower quartile, median, upper quartile and most, interpolated; empty where there is nothing."""
    ordered = sorted(values)
    if not ordered:
        return ()
    places = [q * (len(ordered) - 1) for q in QUARTILES]
    return tuple(ordered[int(p)] + (p % 1) * (ordered[math.ceil(p)] - ordered[int(p)]) for p in places)


def _histogram(seconds: Iterable[float]) -> tuple[tuple[float, int], ...]:
    """Bins of equal width on a logarithmic axis, the empty ones between two others included."""
    counts = Counter(math.floor(BINS_A_DECADE * math.log10(s)) for s in seconds if s > 0)
    if not counts:
        return ()
    return tuple((10 ** (n / BINS_A_DECADE), counts[n]) for n in range(min(counts), max(counts) + 1))


def _pace(recorded: list[float]) -> float:
    """Rows a second over the middle half of a run's rows, 0 where that is not known. Not from the first to the last: a
    schedule that another run drew, and whose binary was timed already, is a late row of the run that timed it."""
    times = sorted(recorded)
    low, high = len(times) // 4, len(times) - 1 - len(times) // 4
    return (high - low) / (times[high] - times[low]) if times[high] > times[low] else 0.0


def _families(
    workloads: Sequence[Workload], rows: Mapping[str, Mapping[bool, int]], speed: _Speedups
) -> tuple[FamilyStats, ...]:
    found: dict[str, list[Workload]] = defaultdict(list)
    for workload in workloads:
        found[workload.name].append(workload)
    families = []
    for name, members in sorted(found.items()):
        regions = {call.region.id: call.region for w in members for call in w.calls}
        speedups = speed.of(set(regions))
        measured = [rows[r] for r in regions if r in rows]
        families.append(
            FamilyStats(
                name=name,
                presets=tuple(w.preset for w in members),
                kernels=len({kernel.id for region in regions.values() for kernel in region.kernels}),
                rows=sum(sum(counts.values()) for counts in measured),
                ok_rows=sum(counts.get(True, 0) for counts in measured),
                compared=len(speedups),
                speedup=statistics.geometric_mean(speedups) if speedups else None,
                quartiles=quartiles(speedups),
            )
        )
    return tuple(families)


def _workload(workload: Workload, rows: Mapping[str, int], speed: _Speedups) -> WorkloadStats:
    regions = {call.region.id for call in workload.calls}
    speedups = speed.of(regions)
    return WorkloadStats(
        name=f"{workload.name}/{workload.preset}",
        kernels=len({kernel.id for call in workload.calls for kernel in call.region.kernels}),
        rows=sum(rows.get(r, 0) for r in regions),
        speedup=statistics.geometric_mean(speedups) if speedups else None,
        compared=len(speedups),
    )


def _splits(
    kernels: Mapping[str, Kernel],
    workloads: Iterable[Workload],
    regions: Mapping[str, Region],
    rows: Mapping[str, int],
) -> dict[str, dict[str, PartStats]]:
    """The parts of each split; the rows are those of regions of several kernels, too."""
    try:
        splits = make_splits(kernels, workloads)
    except CodecError:
        return {}
    found: dict[str, dict[str, PartStats]] = {}
    for name, split in splits.items():
        found[name] = {}
        measured: Counter[str | None] = Counter()
        for region, count in rows.items():
            members = [kernel.id for kernel in regions[region].kernels] if region in regions else [region]
            measured[part_of_kernels({split.parts.get(kernel) for kernel in members})] += count
        for part in PARTS:
            members = split.kernels_of(part)
            twins, near = (
                sum(k in those for k in members) for those in (split.shape_class_in_training, split.near_in_training)
            )
            found[name][part] = PartStats(len(members), measured[part], twins, near)
    return found


def _dtypes(kernels: Mapping[str, Kernel], rows: Mapping[str, int]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for kernel_id, kernel in kernels.items():
        if rows.get(kernel_id):
            counts[_dtype_of(kernel)] += rows[kernel_id]
    return _most_first(counts)


def _dtype_of(kernel: Kernel) -> str:
    """Read off the text alone, as tinygrad is not needed for it."""
    try:
        nodes = json.loads(kernel.ast_json)["nodes"]
        found = {str(node[1]) for node in nodes if node[0] == "PARAM"}
    except (ValueError, TypeError, LookupError, RecursionError):
        return "unknown"
    return next((d for d in DTYPES if d in found), "integers only")


def _most_first(counts: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def to_json(stats: Stats, used: Sequence[RunUse] = ()) -> str:
    """The numbers as JSON text, for `evaluation/results` and the data card; of a journal also what its runs did."""
    jobs = {"jobs": [asdict(one) for one in used]} if used else {}
    return json.dumps({**asdict(stats), **jobs}, indent=2, allow_nan=False) + "\n"


# ---- The numbers of a dataset on a terminal: some facts and one row a family, about a page in all.

REASONS = 2  # causes of failure that are told
ARGUMENTS = 4  # of each Opt
RUNS = 4


def render(stats: Stats, console: Console) -> None:
    """Prints the numbers."""
    from rich.table import Table
    from rich.text import Text

    facts = Table.grid(padding=(0, 2, 0, 0))
    facts.add_column(no_wrap=True)
    facts.add_column(overflow="fold")
    for name, value in _facts(stats):
        facts.add_row(Text(name, style="bold"), Text(printable(value)))  # never as markup: the texts are foreign
    console.print(facts)
    if not stats.families:
        return
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("family", overflow="fold", min_width=12)
    for column in ("presets", "kernels", "rows", "ok", "gain", "median", "most", "of"):
        table.add_column(column, justify="right", no_wrap=True)
    for f in stats.families:
        name = f.name if len(f.presets) > 1 else f"{f.name}/{f.presets[0]}"
        gains = ["–"] * 4
        if f.speedup is not None:
            gains = [*(f"{x:.2f}×" for x in (f.speedup, f.quartiles[2], f.quartiles[4])), f"{f.compared:,}"]
        ok = share(f.ok_rows, f.rows)
        table.add_row(Text(printable(name)), f"{len(f.presets):,}", f"{f.kernels:,}", f"{f.rows:,}", ok, *gains)
    console.print()
    console.print(
        "Each family, and its best schedules against hand-coded by search timings: gain is the geometric mean"
    )
    console.print(table)


def _facts(stats: Stats) -> Iterator[tuple[str, str]]:
    low, middle, high = stats.schedules_per_kernel
    protocols = ", ".join(f"{n:,} under protocol {p}" for p, n in stats.protocols.items())
    yield "target", "; ".join(stats.targets.values()) or "none"
    unjudged = f" and {stats.unjudged_rows:,} unjudged" if stats.unjudged_rows else ""
    yield "rows", f"{stats.rows:,}, of them {stats.ok_rows:,} ok{unjudged}" + (f"; {protocols}" if protocols else "")
    if stats.chosen_rows:
        yield "chosen", f"{stats.chosen_rows:,} rows, by a cost or a search: for training only, and in no gain"
    if stats.doubts:
        yield "doubtful", f"{stats.doubtful_rows:,} rows more, which count nowhere: {reasons_of_doubt(stats)}"
    yield (
        "schedules",
        f"{stats.schedules:,} distinct, {stats.ok_schedules:,} ok; least, median and most of a kernel "
        f"{low:,}, {middle:,g}, {high:,}",
    )
    yield (
        "kernels",
        f"{stats.kernels:,}; {stats.regions_measured:,} measured, {stats.ok_regions:,} with at least one row ok",
    )
    if stats.unjudged_rows:
        yield (
            "unjudged",
            f"{stats.unjudged_rows:,} rows: the reference cannot tell whether they are right; "
            f"{stats.unjudged_regions:,} kernels have none that is ok",
        )
    yield "unique binaries", f"{stats.unique_binaries:,}; {stats.sharing_schedules:,} schedules share theirs"
    yield "statuses", listed(stats.statuses, stats.rows)
    if stats.reasons:
        reasons = list(stats.reasons.items())[:REASONS]
        yield "causes", "; ".join(f"{' '.join(reason.split())[:60]} ({n:,})" for reason, n in reasons)
    yield (
        "samplers",
        "; ".join(
            f"{sampler or '(none)'} {share(n, stats.rows)}, {share(stats.sampler_statuses[sampler].get('ok', 0), n)} ok"
            for sampler, n in stats.samplers.items()
        ),
    )
    if stats.actions:
        yield "actions", "; ".join(_action(op, stats) for op in stats.actions)
        yield "walk lengths", listed(stats.walk_lengths, sum(stats.walk_lengths.values()))
    if stats.runtime_quartiles:
        least, lower, median, upper, most = map(duration, stats.runtime_quartiles)
        yield "runtimes", f"{least} to {most}; half from {lower} to {upper}, median {median}"
    if stats.dtypes:
        yield "data types", listed(stats.dtypes, sum(stats.dtypes.values()))
    if stats.splits:
        sizes = (
            f"{name} {' / '.join(f'{part.kernels:,}' for part in parts.values())}"
            for name, parts in stats.splits.items()
        )
        yield "splits", f"{', '.join(sizes)} kernels for training / validation / test"
        near = (f"{name} {parts[TEST].near:,} of {parts[TEST].kernels:,}" for name, parts in stats.splits.items())
        yield "near training", f"{', '.join(near)} kernels of the test are near one of training"
    for name, spreads in (("noise", stats.noise_floors), ("search noise", stats.search_noise), ("drift", stats.drift)):
        if spreads:
            parts = (f"{percent(s.median)} (90%: {percent(s.p90)}) {duration_class(s.shorter_than_s)}" for s in spreads)
            yield name, ", ".join(parts)
    if stats.rows_per_second:
        rates = [f"{rate:,.1f}" for rate in list(stats.rows_per_second.values())[:RUNS]]
        more = len(stats.rows_per_second) - len(rates)
        yield "rows a second", ", ".join(rates) + (f" and {more} more runs" if more else "")


def reasons_of_doubt(stats: Stats) -> str:
    """Why rows are doubtful, and how many for each reason."""
    return "; ".join(f"{' '.join(why.split())} ({rows:,})" for why, rows in stats.doubts.items())


def _action(op: str, stats: Stats) -> str:
    """One Opt, and the arguments that are in most schedules."""
    own = next(a for a in stats.action_coverage if a.op == op and a.arg is None)
    arguments = [a.arg for a in stats.action_coverage if a.op == op and a.arg]
    shown = ", ".join([*arguments[:ARGUMENTS], *(["…"] if len(arguments) > ARGUMENTS else [])])
    return f"{op} {share(own.schedules, stats.schedules)}" + (f" ({shown})" if shown else "")


def duration_class(shorter_than_s: float | None) -> str:
    """`below 20 µs`, or `longer` for what no limit holds."""
    return "longer" if shorter_than_s is None else f"below {duration(shorter_than_s)}"


def duration(seconds: float) -> str:
    """A time with three digits: `20 µs`, `1.25 ms`."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= 0.9995 * scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def share(part: float, whole: float) -> str:
    """`12%`, or `0.4%` where that says more; `–` of nothing."""
    if not whole:
        return "–"
    percent = 100 * part / whole
    return f"{percent:.0f}%" if percent >= 9.95 or percent == 0 else f"{percent:.1f}%" if percent >= 0.05 else "<0.1%"


def percent(fraction: float) -> str:
    """`1.2%` of 0.012."""
    return f"{100 * fraction:.1f}%" if fraction < 0.0995 else f"{100 * fraction:,.0f}%"


def listed(counts: Mapping[str, int] | Mapping[int, int], whole: int) -> str:
    """`ok 98%, wrong 2.0%`."""
    return ", ".join(f"{key} {share(n, whole)}" for key, n in counts.items()) or "none"
