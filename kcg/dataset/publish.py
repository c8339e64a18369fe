"""The data card of an export: a README.md that says what the data is, for the Hugging Face Hub and for any reader.

Every number on it is counted from the export that it describes, and the same export always gives the same card.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from kcg.dataset.columns import CHOICE, OF_CHOICE, constants_in
from kcg.dataset.export import CHECKSUMS, Export, read_export
from kcg.dataset.journal import Run
from kcg.dataset.noise import Spread
from kcg.dataset.reading import KERNELS, MEASUREMENTS, MOST_OF_LIST
from kcg.dataset.schema import disk_full
from kcg.dataset.stats import Stats, duration, duration_class, listed, percent, reasons_of_doubt, share
from kcg.dataset.stats import stats as compute
from kcg.errors import DataError, UsageError
from kcg.files import is_disk_full, read_limited, sha256_of, whole
from kcg.hub.publisher import Publisher, listing
from kcg.measure import protocol
from kcg.types import ScheduleKind, Status

# ---- What the names in an export mean, in words, for its card: samplers, statuses, files and columns.

SAMPLERS = {
    "hand-coded": "tinygrad's own choice, once for each kernel: what everything is compared with",
    "raw": "the unoptimised kernel",
    "walk:raw": "random legal walks of any length from the unoptimised kernel",
    "walk:hand-coded": "random legal walks of any length from tinygrad's own choice",
    "beam": "what tinygrad's BEAM would measure, level by level (beam:WIDTH/CHILDREN)",
    "greedy": "walks along the best predicted of some steps, at random with a probability (greedy:EPSILON)",
    "start": "where a search of tile programs begins: the cheapest by the analytic cost",
    "near": "the fastest measured so far, their last Opts taken back and one to three others instead",
    "near:prior": "the first choices of the analytic cost and their neighbours, what it expects to be fast more often",
    "uniform": "all legal schedules, each as likely; of a large space of Opts, all lists of at most six steps",
    "random": "legal walks, every step as likely",
    "prior": "the kind's own choices, then what is expected to be fast, best first",
    "mcts": "what a tree search would measure next",
    "rest": "schedules of a small space that no sampler drew, so that a kernel has as many as were wanted, or all",
    "lattice": "every schedule of a declared lattice, for a replay table",
    "retime": "binaries of an earlier run, timed again on another occasion",
    "final": "what a run found to be fastest, and tinygrad's own, timed again to be judged",
    "stress": "what a run chose, and one of thousands of launches then showed to be wrong",
}
"""By the name of a sampler, or the part before its colon."""

STATUSES = {
    Status.OK: "timed",
    Status.COMPILE_ERROR: "did not compile",
    Status.COMPILE_TIMEOUT: "took too long to compile",
    Status.RESOURCE: "needs more registers, memory or threads than there are",
    Status.LAUNCH_ERROR: "could not be started on the device",
    Status.TIMEOUT: "ran too long and was stopped",
    Status.WRONG: "computed something else than the kernel says",
    Status.UNJUDGED: "neither right nor wrong: the reference does not know enough of the right output to tell",
    Status.WORKER_DIED: "took the measuring process down with it",
    Status.NOISY: "gave times that varied too much",
}

FILES = {
    "kernels.parquet": "one row a kernel",
    "measurements.parquet": "one row a schedule that was compiled and timed, or failed: with its time and its splits",
    "timings.parquet": "samples and binary of a measurement; schedules that share a binary share the row",
    "replay.parquet": "replay tables: declared lattices of schedules, each timed to the last one",
    "doubts.json": "which rows of the journal were left out, since their host was not to be trusted then, and why",
    "runs.json": "each occasion of measuring: when, by which command, with which mix of samplers",
    "targets.json": "the hardware behind `target`",
    "toolchains.json": "the compilers behind `toolchain`",
    "workloads.json": "the programs: which kernels each calls and how often",
}

COLUMNS = {
    "kernels.parquet": {
        "id": "SHA-256 of `ast_json`",
        "ast_json": "the kernel: a tinygrad AST before optimisation, as canonical JSON",
        "workloads": "every `name/preset` that has this kernel",
        "nodes": "nodes of the AST",
        "operations": "arithmetic of one call; of what a tensor indexes, that of the elements that are picked",
        "bytes": "least memory traffic of one call; of a table that a tensor indexes, what is picked from it",
        "split_workload, split_kernel, split_twin, split_alike": "its part of each split: train, validation or test",
        "twin": "its class of twins: kernels that differ in sizes only",
        "workload_twin_in_training, kernel_twin_in_training": "held out, but a twin is in training",
        "alike": "its class of kernels of one form, data types of buffers and extents, rounded to powers of two",
        "near_in_training": "held out under `alike`, but near a kernel of training: of the same form and data types, "
        "and each rounded extent the same or the next power of two",
    },
    "measurements.parquet": {
        "region_id": "the kernel's id",
        "split_workload, split_kernel, split_twin, split_alike": "the kernel's part of each split: train on `train` of "
        "one of them; of several kernels that of the one that is held out most",
        "near_in_training": "as of the kernel; of several kernels, that each is in training or near one that is: leave "
        "these out of figures on `test` of `split_alike`",
        "median_s": "the time: median of the samples in seconds, as float32; null where `status` is not `ok`",
        "n_samples": "how many samples it is the median of",
        "schedule_kind, schedule_body": "the schedule; for `opts` a JSON list of `[op, axis, argument]`, in order",
        "target, toolchain": "ids of targets.json and toolchains.json",
        "protocol": "version of the timing protocol",
        "status": "`ok`, or how it failed",
        "reason": "first line of the cause of a failure",
        "cache_state": "`cold`: the last-level cache is flushed before every sample; `warm`: it is not",
        "variables": "values of the kernel's symbolic variables, as JSON",
        "input_recipe": "how the inputs were made",
        "checked": "the output was compared with a float64 reference on one seed",
        "early_stop": "only the few samples of a search were taken",
        "sampler": "who asked for this schedule",
        "pool": "from what it was drawn, how many schedules that has, and digits that are equal for equal pools, as "
        "`legal:1320000` or `candidates:812:1f3a9c02`; null where nobody told",
        "scores": "what was expected of it, as JSON: `predicted_s`, `corrected_s`, `failure_probability`; or null",
        "probability": "with which one draw of its sampler gives it, the propensity; null where nobody can tell",
        "weight": "what the row weighs in training: 1, or of what a cost or a search chose (its `pool` is another than "
        "`legal`) the inverse propensity, clipped; such rows are for training only, and in no part where their kernel "
        "is held out",
        "at_least_s": "of what took too long and was stopped, the seconds after which it was: a lower bound of inputs, "
        "checks and launches together",
        "compile_s": "seconds of compiling",
        "run_id": "id of runs.json",
        "trial": "number of the repetition within a run",
        "recorded_unix_s": "when it was recorded",
        "timing": "row of timings.parquet, counted from 0",
    },
    "timings.parquet": {
        "samples_s": "raw samples in seconds; the time of a schedule is their median",
        "binary_hash": "first 8 bytes of the SHA-256 of the binary",
        "launch": "global and local size",
        "clock_*": "what the device told: clocks, temperature, power",
    },
    "replay.parquet": {
        "region_id": "the kernel's id, as in kernels.parquet",
        "target, toolchain": "ids of targets.json and toolchains.json",
        "actions": "the actions that declare the lattice, in order",
        "schedules": "how many schedules the lattice has, all of them timed",
        "best_s": "seconds of the fastest of them",
        "hand_coded_s": "seconds of tinygrad's own choice",
        "table": "as JSON: of each schedule its body, how it ended, its time, its binary, and where actions lead",
    },
}
"""Columns by name, and what they mean; some share a line."""


CARD = "README.md"
LICENSE = "mit"  # that of kcg, whose code wrote the kernels; a test compares it with the LICENSE of the repository
HUB_SPLIT = "unsplit"
TASKS = ("tabular-regression", "graph-ml")  # as the Hub names them
BY_RUN = ("shard", "compile_workers", "revision", "dirty", "report")
"""Facts of a run that do not make it one of another kind; a `report` is that of its host in a fleet."""
SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))


def write_card(folder: Path | str) -> Path:
    """Write README.md into the folder of an export, and its checksum to the others; the path of the card.

    Raises DataError where the folder is no export that can be trusted, UsageError where it cannot be written.
    """
    folder = Path(folder)
    try:
        export = _without_card(folder)
        _write(folder / CARD, render_card(export))
        _write(folder / CHECKSUMS, listing({**export.checksums, CARD: sha256_of(folder / CARD)}))
    except OSError as e:
        if is_disk_full(e):
            raise disk_full(folder) from e
        raise UsageError(f"no card can be written to {folder}: {e.strerror or e}") from e
    return folder / CARD


def _without_card(folder: Path) -> Export:
    """The export with any card that it has taken off its list, so that it is whole while the card changes."""
    try:
        listed = json.loads(read_limited(folder / CHECKSUMS, most_bytes=MOST_OF_LIST))
    except (OSError, ValueError):
        return read_export(folder)  # which says what is wrong
    if isinstance(listed, dict) and CARD in listed:
        if (folder / CARD).is_file() and sha256_of(folder / CARD) == listed[CARD]:
            read_export(folder)  # all of it must be right before anything is changed
        del listed[CARD]
        _write(folder / CHECKSUMS, listing(listed))
    return read_export(folder)


def _write(path: Path, text: str) -> None:
    with whole(path) as part:
        part.write_text(text, encoding="utf-8")


def render_card(export: Export) -> str:
    """The card as text."""
    stats = compute(export)
    models = sorted({_plain(target.model) for target in export.targets().values()})
    title = f"Measured schedules of tinygrad kernels on {' and '.join(models) or 'no device'}"
    sections = [
        _summary(stats, title), _provenance(export, stats), _measuring(export, stats), _sampling(export, stats),
        _outcomes(stats), _trust(stats), _splits(export, stats), _files(export), _loading(export, stats),
        _limits(stats, export),
    ]  # fmt: skip
    return _header(export, stats, title) + "\n\n".join(itertools.chain(*sections)) + "\n"


def _header(export: Export, stats: Stats, title: str) -> str:
    """What the Hub reads: YAML, with every text in JSON's quotes, which are YAML's too.

    The Hub calls the rows of a file without splits `train`, test rows too. They are called `unsplit` here, so that
    nobody asks for a training set and gets all: the columns `split_*` make it.
    """
    size = next((name for limit, name in SIZES if stats.rows < limit), "1M<n<10M")
    lines = [
        "---",
        f"license: {LICENSE}",
        f"pretty_name: {json.dumps(title)}",
        "task_categories:",
        *(f"- {task}" for task in TASKS),
        "tags:",
        *(f"- {tag}" for tag in ("tinygrad", "kernels", "compilers", "autotuning", "cost-model", "performance")),
        "size_categories:",
        f"- {size}",
        "configs:",
    ]
    for name in ("measurements", "timings", "kernels", "replay"):
        if f"{name}.parquet" in export.checksums:
            default = ["  default: true"] if name == "measurements" else []
            lines += [f"- config_name: {name}", "  data_files:", f"  - split: {HUB_SPLIT}"]
            lines += [f"    path: {name}.parquet", *default]
    return "\n".join([*lines, "---", "", ""])


def _summary(stats: Stats, title: str) -> Iterator[str]:
    yield f"# {title}"
    which = "ordered lists of tinygrad's `Opt`s"
    if ScheduleKind.TILE in stats.kinds:
        which += ", and parameters of generated programs"
    yield (
        "Kernels of real programs as [tinygrad](https://github.com/tinygrad/tinygrad) makes them, many schedules of "
        f"each ({which}), and how long each took on the device, or how it failed. Measured "
        "and checked by kcg; this card is generated from the data."
    )
    low, middle, high = stats.schedules_per_kernel
    runtimes = [duration(s) for s in stats.runtime_quartiles]
    yield _table(
        ("what", "how much"),
        [
            ("distinct schedules with status ok", f"{stats.ok_schedules:,} of {stats.schedules:,}"),
            ("kernels with at least one of them", f"{stats.ok_regions:,} of {stats.kernels:,}"),
            ("families of workloads", f"{len(stats.families):,}, with {len(stats.workloads):,} presets"),
            ("rows", f"{stats.rows:,}, of them {stats.ok_rows:,} ok and {stats.search_rows:,} of few samples"),
            *([("rows that could not be judged", f"{stats.unjudged_rows:,}")] if stats.unjudged_rows else []),
            ("unique binaries", f"{stats.unique_binaries:,}; {stats.sharing_schedules:,} schedules share theirs"),
            ("schedules of a kernel", f"{low:,} to {high:,}, median {middle:,g}"),
            ("runtimes", f"{runtimes[0]} to {runtimes[4]}, median {runtimes[2]}" if runtimes else "none"),
            ("data types (narrowest float of a kernel's buffers), of the rows", listed(stats.dtypes, stats.rows)),
        ],
    )


def _provenance(export: Export, stats: Stats) -> Iterator[str]:
    yield "## Where the kernels come from"
    yield (
        "Each family is a program written in plain tinygrad for kcg, or a user's script that was run unchanged; its "
        "presets vary sizes, batches and data types. Gain is the hand-coded schedule's time over that of the fastest "
        "schedule found, as a geometric mean over kernels, by search timings."
    )
    yield _table(
        ("family", "what it is", "presets", "kernels", "rows", "gain", "most"),
        [
            (
                f"`{_plain(f.name)}`",
                _about(f.name),
                f"{len(f.presets)}",
                f"{f.kernels:,}",
                f"{f.rows:,}",
                "" if f.speedup is None else f"{f.speedup:.2f}×",
                f"{f.quartiles[4]:.2f}×" if f.quartiles else "",
            )
            for f in stats.families
        ],
    )


def _about(family: str) -> str:
    from kcg.workloads.registry import WORKLOADS, spec_of
    from kcg.workloads.script import PREFIX

    if family in WORKLOADS:
        return _plain(spec_of(family).about)
    return "a captured script" if family.startswith(PREFIX) else "a workload that this kcg does not have"


def _measuring(export: Export, stats: Stats) -> Iterator[str]:
    yield "## How it was measured"
    made_on = []
    for t in export.targets().values():
        watts = f", {t.power_limit_w:g} W" if t.power_limit_w is not None else ""
        clock = f", at most {t.clock_limit_mhz:g} MHz" if t.clock_limit_mhz is not None else ""
        made_on.append(
            f"- Target `{t.fingerprint[:12]}`: {_plain(t.model)} ({t.tinygrad_device}, {_plain(t.arch)}), {t.cores} "
            f"{'cores' if t.device == 'CPU' else 'processors'}, {t.memory_bytes / 2**30:.0f} GiB, last-level cache "
            f"{t.cache_bytes / 2**20:.0f} MiB{watts}{clock}"
        )
    for c in export.toolchains().values():
        rest = "".join(f", {name} {_plain(v)}" for name, v in (("driver", c.driver), ("Triton", c.triton)) if v)
        made_on.append(
            f"- Toolchain `{c.fingerprint[:12]}`: tinygrad {_plain(c.tinygrad)}, {_plain(c.compiler)}{rest}; kcg's "
            f"list of actions in version {c.action_space}"
        )
    yield "\n".join(made_on)
    how_often = []
    if protocol.PROTOCOL in stats.protocols:
        words = (protocol.__doc__ or "").strip().partition("\n\n")
        yield words[0].replace("\n", " ")
        yield words[2].replace("\n", " ")
        many, few = (
            ", ".join(f"{n} {'otherwise' if limit == float('inf') else duration_class(limit)}" for limit, n in samples)
            for samples in (protocol.MOST_SAMPLES, protocol.SEARCH_SAMPLES)
        )
        how_often.append(
            f"At most so many samples by the duration of the kernel: {many}. Rows with `early_stop`: {few}."
        )
    for version, rows in stats.protocols.items():
        if version != protocol.PROTOCOL:
            how_often.append(f"{rows:,} rows are of timing protocol {version}, which the kcg of that time describes.")
    yield "\n".join(how_often)


def _sampling(export: Export, stats: Stats) -> Iterator[str]:
    yield "## Who chose the schedules"
    yield _table(
        ("sampler", "what it draws", "rows", "ok"),
        [
            (
                f"`{_plain(name) or '(none)'}`",
                SAMPLERS.get(name) or SAMPLERS.get(name.partition(":")[0], ""),
                f"{rows:,}",
                share(stats.sampler_statuses[name].get("ok", 0), rows),
            )
            for name, rows in stats.samplers.items()
        ],
    )
    groups: dict[str, list[Run]] = {}
    for run in export.runs().values():
        facts = {k: v for k, v in run.description.items() if v is not None and k not in BY_RUN}
        groups.setdefault(", ".join(f"{k} {_words(facts[k])}" for k in sorted(facts)), []).append(run)
    yield "Runs of one kind are one line; each run is in `runs.json`."
    rows = []
    for asked, runs in sorted(groups.items(), key=lambda group: (min(run.started for run in group[1]), group[0])):
        days = sorted(run.started[:10] for run in runs)
        when = days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"
        count = sum(stats.runs.get(run.run_id, 0) for run in runs)
        rows.append((_plain(when), f"{len(runs):,}", f"{count:,}", _plain(asked)))
    yield _table(("when", "runs", "rows", "how"), rows)


def _words(value: Any) -> str:
    """A value of a run's description: a mix as `walk:raw=0.25 …`."""
    if isinstance(value, dict):
        return " ".join(f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in sorted(value.items()))
    return str(value)


def _outcomes(stats: Stats) -> Iterator[str]:
    yield "## How they ended"
    words = {str(status): text for status, text in STATUSES.items()}
    yield _table(
        ("status", "meaning", "rows", "share"),
        [(f"`{s}`", words.get(s, ""), f"{n:,}", share(n, stats.rows)) for s, n in stats.statuses.items()],
    )
    if stats.doubts:
        yield (
            f"{stats.doubtful_rows:,} rows that were measured are left out, since their host was not to be trusted "
            f"then (`doubts.json`): {_plain(reasons_of_doubt(stats))}."
        )
    if stats.reasons:
        yield "The most frequent causes, numbers left out:"
        yield _table(("rows", "status: cause"), [(f"{n:,}", _plain(why)) for why, n in stats.reasons.items()])


def _trust(stats: Stats) -> Iterator[str]:
    yield "## Noise and drift"
    kinds = (
        ("noise: timed in full, twice in one run", stats.noise_floors),
        ("noise: the few samples of a search, twice in one run", stats.search_noise),
        ("drift: a later run against the first", stats.drift),
    )
    rows = [
        (
            name,
            duration_class(s.shorter_than_s),
            f"{s.compared if isinstance(s, Spread) else s.kernels:,}",
            percent(s.median),
            percent(s.p90),
        )
        for name, found in kinds
        for s in found
    ]
    if not rows:
        yield "No schedule was timed more than once."
        return
    yield "How far timings of one binary are apart. Differences between schedules below these mean nothing."
    yield _table(("what", "kernels", "compared", "median", "90% below"), rows)


def _splits(export: Export, stats: Stats) -> Iterator[str]:
    yield "## Splits"
    yield (
        "By workload (Flux is test, whole; some families are validation), by kernel, by twin (kernels that differ in "
        "sizes only are in one part), and alike: kernels of one form, data types and rounded extents are in one part, "
        "whatever family they are of, those of Flux in the test. The columns `split_*` of measurements.parquet and of "
        "kernels.parquet say which part a row's kernel is in: train on `train` of one split, and report on its `test`. "
        "The strictest figure is on the rows of the test of `split_alike` without `near_in_training`."
    )
    if export.lacks(KERNELS):
        yield "These files were written before the split `alike`: `kcg.data.load` makes its columns from the kernels."
    yield _table(
        ("split", "part", "kernels", "rows", "with a twin in training", "near one in training"),
        [
            (
                name,
                part,
                f"{p.kernels:,}",
                f"{p.rows:,}",
                *(["", ""] if part == "train" else [f"{p.twins:,}", f"{p.near:,}"]),
            )
            for name, parts in stats.splits.items()
            for part, p in parts.items()
        ],
    )


def _files(export: Export) -> Iterator[str]:
    sizes = {name: (export.folder / name).stat().st_size for name in sorted(export.checksums) if name != CARD}
    yield "## Files and columns"
    yield f"{sum(sizes.values()):,} bytes in all, without this card; `{CHECKSUMS}` has the same SHA-256 sums."
    yield _table(
        ("file", "what it holds", "bytes", "SHA-256"),
        [(name, FILES.get(name, ""), f"{n:,}", f"`{export.checksums[name]}`") for name, n in sizes.items()],
    )
    same = {MEASUREMENTS: export.constants(), **_of_replay(export)}
    for name, columns in COLUMNS.items():
        if name not in export.checksums:
            continue
        left_out = set(same.get(name, {}))
        if name == MEASUREMENTS and not export.has_choices():
            left_out |= {*CHOICE, *OF_CHOICE}
        if name in (KERNELS, MEASUREMENTS):
            left_out |= export.lacks(name)
        yield f"{name}:"
        yield _table(
            ("column", "meaning"),
            [
                (", ".join(f"`{c}`" for c in there), words)
                for names, words in columns.items()
                if (there := [c for c in names.split(", ") if c not in left_out])
            ],
        )
    yield from _same(same)


def _of_replay(export: Export) -> dict[str, dict[str, Any]]:
    """What is the same in every replay table. Raises DataError where the file is none."""
    import pyarrow
    from pyarrow import parquet

    name = "replay.parquet"
    if name not in export.checksums:
        return {}
    try:
        return {name: constants_in(parquet.read_schema(export.folder / name).metadata)}
    except (pyarrow.ArrowException, OSError, TypeError, ValueError) as error:
        line = (str(error) or type(error).__name__).splitlines()[0]
        raise DataError(f"{export.folder / name} cannot be read ({line}): export again") from error


def _same(files: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """The columns that are left out since every row has the same value."""
    rows = []
    for name, same in files.items():
        words = {c: words for names, words in COLUMNS[name].items() for c in names.split(", ")}
        for column, value in same.items():
            text = value if isinstance(value, str) else json.dumps(value)
            rows.append((name, f"`{column}`", f"`{_plain(text) or ' '}`", words.get(column, "")))
    if rows:
        yield "The same in every row, so that they are no columns there:"
        yield _table(("file", "what", "value", "meaning"), rows)


def _loading(export: Export, stats: Stats) -> Iterator[str]:
    version = max(stats.protocols, default=protocol.PROTOCOL)
    yield "## How to load it"
    yield _code(
        "import pyarrow.parquet as pq",
        "",
        'rows = pq.read_table("measurements.parquet")  # or pandas.read_parquet: median_s is the time in seconds',
        'wanted = [("split_workload", "=", "train"), ("status", "=", "ok")]',
        'train = pq.read_table("measurements.parquet", filters=wanted)',
        'timings = pq.read_table("timings.parquet").take(rows["timing"])  # all samples, one list for each row',
        'kernels = pq.read_table("kernels.parquet")',
    )
    from_hub = [
        f"From the Hub the rows come as one split, `{HUB_SPLIT}`, whatever part they are in: "
        f'`load_dataset("OWNER/NAME", split="{HUB_SPLIT}").filter(lambda row: row["split_workload"] == "train")`.'
    ]
    if "replay.parquet" in export.checksums:
        from_hub.append(
            "The replay tables are the config `replay`: "
            f'`load_dataset("OWNER/NAME", "replay", split="{HUB_SPLIT}")`, or `kcg.search.replay.read_tables`.'
        )
    yield "\n".join(from_hub)
    yield "With kcg, which checks sums and ids first:"
    yield _code(
        "import kcg",
        "",
        'data = kcg.data.load(".")  # or "OWNER/NAME@REVISION" of the Hub, with all 40 hex digits of the commit',
        'table = data.to_arrow(["region_id", "schedule_body", "status", "median_s"])',
        "# to_pandas(), to_datasets(): train, validation and test; to_pyg(): graphs for torch-geometric",
        f"for record in data.export.records({version}):",
        "    print(record.measurement.schedule, record.measurement.median_s)",
        "    break",
    )
    yield "A baseline, least squares of the logarithms, on what it never saw:"
    yield _code(*_baseline(stats))


def _baseline(stats: Stats) -> Iterator[str]:
    """The lines of an example that trains on columns of numbers; where there are tile programs, on their parameters."""
    of_tiles = ["num_warps", "num_stages", "reduce_tile"] if ScheduleKind.TILE in stats.kinds else []
    yield from (
        "import kcg",
        "import numpy as np",
        "",
        f"names = {json.dumps(['operations', 'bytes', *of_tiles])}",
        'parts = kcg.data.load(".").parts("alike", ["median_s", "near_in_training", *names])',
        'train, test = (parts[part].drop_null() for part in ("train", "test"))  # what was timed and has all of these',
        "",
        "",
        "def numbers(rows):",
        "    return np.column_stack([np.ones(len(rows)), *(np.log1p(rows[name].to_numpy()) for name in names)])",
        "",
        "",
        'fit = np.linalg.lstsq(numbers(train), np.log(train["median_s"].to_numpy()), rcond=None)[0]',
        'error = np.abs(numbers(test) @ fit - np.log(test["median_s"].to_numpy()))',
        'print("off by a factor of", np.exp(np.median(error[~test["near_in_training"].to_numpy()])))',
    )


def _limits(stats: Stats, export: Export) -> Iterator[str]:
    yield "## Known limits"
    yield "\n".join(_known_limits(stats, export))
    yield "## Licence"
    yield f"{LICENSE.upper()}, as kcg itself. What it holds are kernels and times: no weights, no pictures, no texts."


def _known_limits(stats: Stats, export: Export) -> Iterator[str]:
    if stats.search_rows:
        few = [n for _, n in protocol.SEARCH_SAMPLES]
        yield (
            f"- {share(stats.search_rows, stats.rows)} of the rows are search timings (`early_stop`), of {min(few)} to "
            f"{max(few)} samples, one of a hopeless schedule. The fastest of many such is fast by luck, too: gains "
            "here are what to expect, not results."
        )
    if stats.chosen_rows:
        yield (
            f"- {share(stats.chosen_rows, stats.rows)} of the rows were chosen by a cost or a search, since they were "
            "expected to be fast. They are for training only, by their `weight`: no split tests on them, and no gain "
            "here is theirs."
        )
    yield "- A kernel is timed alone, its inputs random and, where `cache_state` is `cold`, no data in the cache."
    yield "- Checked means checked at sampled points, on one seed. It is no proof."
    yield "- Schedules that share a binary share its timing: they are rows, not independent measurements."
    if len(export.targets()) == 1:
        yield "- One model of hardware. Its times say little about another one."
    if (missing := stats.kernels - stats.ok_regions) > 0:
        unjudged = f", or could not be judged ({stats.unjudged_regions:,} of them)" if stats.unjudged_regions else ""
        yield f"- {missing:,} kernels have no row with status ok: not measured yet, too large, never right{unjudged}."
    yield (
        "- `bytes` and `operations` are counted from the kernel, not measured. What equal indices of a gather, or a "
        "condition, spare on top is not taken off."
    )
    yield "- Samples are rounded to float32, readings of the device to three digits, and a binary's hash to 8 bytes."


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = (" | ".join(cell.replace("|", "/") for cell in row) for row in rows)
    return "\n".join([f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(f"| {row} |" for row in cells)])


def _code(*lines: str) -> str:
    return "\n".join(["```python", *lines, "```"])


def _plain(text: str) -> str:
    """Foreign text as one line that is no markup."""
    line = "".join(c if c.isprintable() else " " for c in " ".join(text.split()))
    return line.replace("<", "&lt;").replace("`", "'")[:300]


# ---- Exports on the Hugging Face Hub: only Parquet, JSON and Markdown travel, and every export among what is pushed or
# pulled agrees with its `checksums.json`.


def _check(root: Path, names: Sequence[str]) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for path in (PurePosixPath(name) for name in names):
        if path.name == CHECKSUMS:
            checksums = read_export(root / path.parent).checksums
            found |= {str(path.parent / file): digest for file, digest in checksums.items()}
    return found


EXPORTS = Publisher(
    repository="dataset",
    suffixes=(".parquet", ".json", ".md"),
    marker=CHECKSUMS,
    holds="export",
    made_by="write one with python -m kcg.dataset export",
    check=_check,
    message="kcg: push a dataset",
)
