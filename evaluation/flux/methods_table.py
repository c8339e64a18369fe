"""The table of a campaign: what every method makes of the whole model, kernel by kernel, and what it cost to find.

What one binary's times differ by in two processes (`strays`) is what a difference between two methods must exceed.
Samples of one process agree far better than two processes do: the host's gap before a launch is in every sample, the
same for minutes and another in the next process, and memory lies elsewhere. kcg's own command timed what it chose in a
process of its own, and the campaign timed the same again, so every run of kcg in a campaign tells of this.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluation.flux.campaign import BUDGET, EAGER, FULL_BEAM, KCG, TINY_BEAM, TINY_MCTS, Campaign, turn_of
from evaluation.flux.gaps import OWN, STEP, part_words
from evaluation.flux.retiming import Choices
from evaluation.rows import run_of, this_command
from kcg.cli import record_results
from kcg.kernel.kinds import describe
from kcg.kernel.opts.schedule import RAW
from kcg.measure.protocol import median, spread
from kcg.report.phases import MODEL

DRAWS = 4000
Array = NDArray[np.float64]


@dataclass
class Column:
    """One method: (K, DRAWS + 1) seconds of each kernel's calls, the first of them what was found, the rest drawn."""

    method: str
    seconds: Array
    there: NDArray[np.bool_]  # (K,) where it was tried, and is right: elsewhere tinygrad's own schedule stands
    wrong: int  # kernels of which its schedule gives a wrong result
    failed: int = 0  # whose schedule crashes or hangs

    @property
    def totals(self) -> Array:
        return np.asarray(self.seconds.sum(0))


def columns(chosen: Sequence[Choices], methods: Sequence[str], *, seed: int = 0) -> list[Column]:
    """A column for tinygrad's own schedules and for each method, drawn by a bootstrap over the samples of the
    comparisons."""
    own = [_own(kernel) for kernel in chosen]
    everywhere = np.ones(len(chosen), bool)
    found = [Column("hand-coded", np.stack([np.full(DRAWS + 1, s) for s in own]), everywhere, 0)]
    for method in methods:
        generator = np.random.default_rng(seed)
        column = Column(method, np.empty((len(chosen), DRAWS + 1)), everywhere.copy(), 0)
        for k, kernel in enumerate(chosen):
            if method == "raw":  # one sample, and no paired comparison: a step of it takes minutes
                raw = kernel.bench.seen.rows.get(RAW)
                column.there[k] = raw is not None and raw.runtime_s is not None
                column.seconds[k] = own[k] if raw is None or raw.runtime_s is None else kernel.calls * raw.runtime_s
                continue
            paired = kernel.bench.seen.comparisons.get(kernel.by_method.get(method, ""))  # type: ignore[call-overload]
            column.wrong += paired is not None and "wrong" in paired
            column.failed += bool(paired is not None and paired.get("reason"))
            column.there[k] = paired is not None and "cold_s" in paired
            column.seconds[k] = own[k] / _speedups(paired, generator)
        found.append(column)
    return found


def _own(kernel: Choices) -> float:
    """Seconds of all calls with tinygrad's own schedule: the median over all comparisons."""
    samples = [s for paired in kernel.bench.seen.comparisons.values() for s in paired.get("own_s", ())]
    return kernel.calls * float(np.median(samples)) if samples else math.nan


def _speedups(paired: dict[str, Any] | None, generator: np.random.Generator) -> Array:
    """(DRAWS + 1) the median of the paired speed-ups, and of DRAWS draws of the pairs; ones where there is none."""
    if paired is None or "cold_s" not in paired:
        return np.ones(DRAWS + 1)
    pairs = np.array(paired["own_s"]) / np.array(paired["cold_s"])
    drawn = np.median(pairs[generator.integers(len(pairs), size=(DRAWS, len(pairs)))], axis=1)
    return np.concatenate(([np.median(pairs)], drawn))


def against(column: Column, other: Column) -> list[float]:
    """How many times as long `column` takes as `other` where it was tried and is right, with its interval."""
    where = column.there & other.there
    return interval(column.seconds[where].sum(0) / other.seconds[where].sum(0)) if where.any() else []


def interval(values: Array) -> list[float]:
    """What was found, and 95 % of what was drawn."""
    return [float(values[0]), *map(float, np.quantile(values[1:], (0.025, 0.975)))]


def cost(campaign: Campaign, chosen: Sequence[Choices], method: str) -> dict[str, float]:
    """What a method took on all kernels together: measurements, and seconds from cold. kcg's hold judging all kernels
    of the model, but not its run as a whole, which has no counterpart. Methods that searched several kernels at once
    had to share the compilers: theirs are upper bounds."""
    name, _, of = method.partition(":")
    if name == KCG:
        if (run := campaign.journal.runs.get(method)) is None:
            return {}
        phases = dict(run["phases"])
        same = sum(run["measured"].get(kernel.bench.region.id, 0) for kernel in chosen)
        return {
            "measurements": same,
            "measurements_of_all_kernels": run["measurements"],
            "wall_s": run["search_s"] - phases.get(MODEL, 0.0),
            "whole_command_s": run["search_s"],
            **{f"{phase}_s": seconds for phase, seconds in phases.items()},
        }
    benches = [kernel.bench.seen for kernel in chosen]
    if name == TINY_BEAM:
        beams = [seen.tiny[int(of)] for seen in benches if int(of) in seen.tiny]
        return {"measurements": sum(b.binaries for b in beams), "wall_s": sum(b.wall_s for b in beams)}
    ended = [seen.replays[turn_of(method)] for seen in benches if turn_of(method) in seen.replays]
    return {"measurements": sum(e.replay.measurements for e in ended), "wall_s": sum(e.spent_s for e in ended)}


LIMITS_S = (0.0, 50e-6, 200e-6, math.inf)  # kernels of like duration are taken together
FEWEST = 5  # pairs, for less nothing is said
SHARE = 0.95


@dataclass(frozen=True)
class Stray:
    """Of kernels between two durations in seconds: how far apart the times of one binary are, as a share."""

    least_s: float
    below_s: float
    pairs: int
    median: float
    most: float  # of 95 in 100


def strays(campaign: Campaign, chosen: Sequence[Choices]) -> list[Stray]:
    """By duration, where there is enough to tell: what kcg's runs and the campaign's comparisons say of the same
    choices."""
    pairs = list[tuple[float, float]]()
    for kernel in chosen:
        for method, schedule in kernel.by_method.items():
            own_s = campaign.journal.runs.get(method, {}).get("cold_s", {}).get(kernel.bench.region.id)
            paired = kernel.bench.seen.comparisons.get(schedule, {})
            if method.startswith(KCG) and own_s and paired.get("cold_s"):
                pairs.append((own_s, median(paired["cold_s"])))
    return by_duration(pairs)


def by_duration(pairs: Iterable[tuple[float, float]]) -> list[Stray]:
    """Pairs of seconds of one binary each, one of either process."""
    apart = [(one, abs(math.log(other / one))) for one, other in pairs]
    found = []
    for least_s, below_s in pairwise(LIMITS_S):
        logs = sorted(far for seconds, far in apart if least_s <= seconds < below_s)
        if len(logs) >= FEWEST:
            most = logs[min(len(logs) - 1, math.ceil(SHARE * len(logs)) - 1)]
            found.append(Stray(least_s, below_s, len(logs), math.expm1(median(logs)), math.expm1(most)))
    return found


def floor_of(found: Iterable[Stray], seconds: float) -> float:
    """What a kernel's times in two processes are apart, most of the time; nothing where nothing is known of it."""
    return next((stray.most for stray in found if stray.least_s <= seconds < stray.below_s), 0.0)


BEAM4, BEAM8 = f"{TINY_BEAM}:4", f"{TINY_BEAM}:8"
LEAST_BEHIND = 0.02
SIZES = ("768", "1024")  # a run of `mini` tries the code, and says nothing of Flux


def headline(
    campaign: Campaign, table: Sequence[Column], rows: dict[str, Any], entry: dict[str, Any], rest_s: float
) -> dict[str, float]:
    """What is known; a method that was not tried on every kernel has no total, and nothing is said against it.

    In a total, tinygrad's own schedule stands where a method's choice is wrong; `over_opts` is how many times as long
    as kcg's best run a method takes on the kernels where it is right.
    The costs against BEAM=4 are those of kcg's cheapest run that is as fast on the kernels where BEAM=4 is right; those
    `by_total` of the cheapest whose total is not larger.
    """
    preset, found = campaign.preset, dict[str, float]()
    of = {column.method: column for column in table if column.method in rows}
    of |= {column.method.partition(":")[0]: column for column in of.values()}
    whole = {method: column for method, column in of.items() if not rows[column.method]["not_tried"]}
    for key, method in (("beam8_total_ms", BEAM8), ("mcts_total_ms", TINY_MCTS)):
        if method in whole:
            found[key] = 1e3 * rows[whole[method].method]["total_s"][0]
    if kcgs := [column for method, column in whole.items() if method.startswith(f"{KCG}:")]:
        best = min(kcgs, key=lambda column: float(column.totals[0]))
        found["opts_total_ms"] = 1e3 * rows[best.method]["total_s"][0]
        found["wrong_kernels"] = sum(column.wrong for column in kcgs)
        found["kernels_behind"] = len(entry["worse_than_baselines"][best.method])
        for key, method in (("beam8_over_opts", BEAM8), ("mcts_over_opts", TINY_MCTS)):
            if method in whole and (ratio := against(whole[method], best)):
                found[key] = ratio[0]
        if BEAM8 in whole and TINY_MCTS in whole:
            rival = np.minimum(whole[BEAM8].totals, whole[TINY_MCTS].totals)
            gain = interval(100 * (1 - (best.totals + rest_s) / (rival + rest_s)))
            found |= dict(zip(("gain_pct", "gain_pct_low", "gain_pct_high"), gain, strict=True))
        if BEAM4 in of:
            as_fast = [c for c in kcgs if (ratio := against(of[BEAM4], c)) and ratio[0] >= 1]
            found |= _costs([rows[c.method] for c in as_fast], rows[BEAM4])
        if BEAM4 in whole:
            below = [c for c in kcgs if c.totals[0] <= whole[BEAM4].totals[0]]
            paired = _costs([rows[c.method] for c in below], rows[BEAM4])
            found |= {f"{key}_by_total": value for key, value in paired.items()}
    found |= {key: 1e3 * s for key, s in entry["steps_s"].items()}
    compiled_s = [seconds for mode, seconds in entry["torch_s"].items() if mode != EAGER]
    found |= {"torch_compile_ms": 1e3 * min(compiled_s)} if compiled_s else {}
    return {f"{key}_{preset}": value for key, value in found.items()}


def _costs(rows: Sequence[dict[str, Any]], beam: dict[str, Any]) -> dict[str, float]:
    """Of the cheapest of some runs, against BEAM=4; nothing where there is none."""
    if not rows:
        return {}
    cheap = min(rows, key=lambda row: row["wall_s"])
    return {
        "measurements_vs_beam4": cheap["measurements"] / beam["measurements"],
        "search_wall_vs_beam4": cheap["wall_s"] / beam["wall_s"],
        "whole_command_vs_beam4": cheap["whole_command_s"] / beam["wall_s"],
    }


def overall(figures: dict[str, float]) -> dict[str, float]:
    """Of the two sizes together that are compared with targets: the dearest search, and all wrong kernels."""
    found = dict[str, float]()
    for key, of in (
        ("measurements_vs_beam4", max),
        ("search_wall_vs_beam4", max),
        ("measurements_vs_beam4_by_total", max),
        ("search_wall_vs_beam4_by_total", max),
        ("wrong_kernels", sum),
        ("kernels_behind", sum),
    ):
        if values := [figures[name] for size in SIZES if (name := f"{key}_{size}") in figures]:
            found[key] = of(values)
    return found


def worse(chosen: Sequence[Choices], table: Sequence[Column], method: str, strayed: Sequence[Stray]) -> list[str]:
    """Kernels on which a method is slower than the better of hand-coded and BEAM, by more than 2 % and noise: what
    tinygrad's own schedule differs by from itself in a paired comparison, and what a binary does from one process to
    the next."""
    ours = next(c for c in table if c.method == method)
    others = [c for c in table if c.method == "hand-coded" or c.method.startswith(TINY_BEAM)]
    found = []
    for k, kernel in enumerate(chosen):
        comparisons = [d for d in kernel.bench.seen.comparisons.values() if "own_s" in d]
        best = min(float(c.seconds[k, 0]) for c in others)
        noise = max((spread(d["own_s"], d["own_again_s"]) for d in comparisons), default=0.0)
        noise = max(noise, floor_of(strayed, best / kernel.calls))
        if ours.seconds[k, 0] > best * (1 + max(LEAST_BEHIND, noise)):
            found.append(f"{kernel.bench.label}: {ours.seconds[k, 0] / best:.3f}")
    return found


PUBLISHED_MS = {
    "unoptimised": 201654.093,
    "hand-coded, without tensor cores": 7989.641,
    "tensor cores where they can be, unoptimised elsewhere": 6317.517,
    "MCTS, 150 each": 825.108,
    "BEAM=20": 594.451,
    "the best of these five for each kernel": 592.40,
}
"""flux-tinygrad-opt, README.md and utils.py: sums of 1,423 kernels, timed one by one on an NVIDIA H100 with tinygrad of
2024, of Flux.1-schnell on two pictures, each with 1,024 image and 256 text tokens."""
ONE_RUN = (
    "One run of each method: an interval says how well its schedules are timed, not how far another run's would be. "
    "The first column compares on the kernels for which the method's choice is right; in the total, tinygrad's own "
    "schedule stands for the others."
)
PUBLISHED_PRESET = "768"  # which has as many tokens


def markdown(rows: dict[str, Any], entry: dict[str, Any], preset: str) -> list[str]:
    """The table, the slowest first: by the comparison on the same kernels, then by the total. Then PyTorch's whole
    steps, and the figures that others published."""
    heads = ["", "over kcg, same kernels", "total", "95 % interval", "TFLOP/s", "measured", "from cold"]
    lines = [ONE_RUN, "", cells(heads), "|---|" + "--:|" * (len(heads) - 1)]
    for method, row in sorted(rows.items(), key=_slowest_first):
        total, low, high = (f"{1e3 * s:,.1f}" for s in row["total_s"])
        notes = [
            f"{row[key]} {words}"
            for key, words in (("wrong", "wrong"), ("failed", "failed"), ("not_tried", "not tried"))
            if row.get(key)
        ]
        missing = f" ({', '.join(notes)}: hand-coded there)" if notes else ""
        over = " ({1:.3f}–{2:.3f})".format(*row["over_kcg"]) if row["over_kcg"] else ""
        over = f"{row['over_kcg'][0]:.3f}×{over}" if over else ""
        spent = f"{row['wall_s']:,.0f} s" if row.get("wall_s") else ""
        measured = str(row.get("measurements") or "")
        columns = [
            described(method) + missing,
            over,
            f"{total} ms",
            f"{low}–{high}" if low != high else "",
            f"{row['gflops'] / 1e3:.3g}",
            measured,
            spent,
        ]
        lines.append(cells(columns))
    beside = {
        f"PyTorch, {mode if mode == EAGER else f'torch.compile, {mode}'}: the whole step": f"{1e3 * seconds:.1f}"
        for mode, seconds in sorted(entry["torch_s"].items(), key=lambda step: -step[1])
    }
    if preset == PUBLISHED_PRESET:
        beside |= {f"published, H100: {what}": f"{known_ms:,.2f}" for what, known_ms in PUBLISHED_MS.items()}
    lines += [cells([what, "", f"{known} ms", *[""] * (len(heads) - 3)]) for what, known in beside.items()]
    return lines


def _slowest_first(item: tuple[str, dict[str, Any]]) -> tuple[float, float]:
    """On the kernels on which a method and kcg's best run are both right; a total also holds those where it is not."""
    row = item[1]
    return -row["over_kcg"][0] if row["over_kcg"] else -float("inf"), -row["total_s"][0]


def cells(words: Sequence[str]) -> str:
    """A line of a table."""
    return f"| {' | '.join(words)} |"


def described(method: str) -> str:
    """A method in words."""
    name, _, of = method.partition(":")
    words = {
        "hand-coded": "hand-coded, tensor cores",
        "full-beam": f"BEAM={of} over kcg's actions",
        KCG: f"kcg, {of.replace(':', ' in ')}",
        TINY_BEAM: f"BEAM={of}",
        "random": f"random, {of or BUDGET} each",
        TINY_MCTS: f"tinygrad's MCTS, {of or BUDGET} each",
        "raw": "unoptimised (one sample)",
        "no-tensor-cores": "hand-coded, without tensor cores",
    }
    return words.get(name, method)


HAND_CODED = "hand-coded"
Row = dict[str, Any]


def kernels_markdown(rows: dict[str, Row], kernels: Sequence[Row]) -> list[str]:
    """Two tables: microseconds of one call, and global and local sizes. `rows` are those of all methods, `kernels` what
    is known of each, the largest first. Empty where there are no kernels."""
    shown = [HAND_CODED, *_shown(rows)]
    heads = ["tinygrad's own" if method == HAND_CODED else described(method) for method in shown]
    times = [["", "kernel", "of", "calls", *heads], ["--:", "---", "---", *["--:"] * (1 + len(heads))]]
    sizes = [["", *heads], ["--:", *["---"] * len(heads)]]
    for number, kernel in enumerate(kernels, 1):
        name = [str(number), f"`{kernel['name']}`", part_words(kernel["part"]), str(kernel["calls"])]
        times.append([*name, *_times(kernel, shown)])
        sizes.append([str(number), *(_launch(kernel, method) for method in shown)])
    if not kernels:
        return []
    return [
        "",
        "One call of each kernel that was searched, in microseconds:",
        "",
        *map(cells, times),
        "",
        "Global × local sizes of the same (workgroups, threads of one):",
        "",
        *map(cells, sizes),
    ]


def _shown(rows: dict[str, Row]) -> Iterator[str]:
    """kcg's best run, BEAM of two widths, MCTS, and the best BEAM over kcg's actions, as far as they were tried."""
    for wanted in (KCG, f"{TINY_BEAM}:4", f"{TINY_BEAM}:8", TINY_MCTS, FULL_BEAM):
        tried = [method for method in rows if method == wanted or method.startswith(f"{wanted}:")]
        if tried:
            yield min(tried, key=lambda method: rows[method]["total_s"][0])


def _times(kernel: Row, shown: Sequence[str]) -> list[str]:
    """Of each method, the fastest in bold; in words where its choice is no good, nothing where it was not timed."""
    call_us = {
        method: 1e6 * kernel["seconds"][method] / kernel["calls"]
        for method in shown
        if method not in kernel["hand_coded_stands"]
    }
    no_good = dict.fromkeys(kernel["failed"], "failed") | dict.fromkeys(kernel["wrong"], "wrong")
    texts = {method: f"{us:,.0f}" if us >= 99.95 else f"{us:.1f}" for method, us in call_us.items()}
    fastest = texts[min(call_us, key=lambda method: call_us[method])] if call_us else ""
    texts = {method: f"**{text}**" if text == fastest else text for method, text in texts.items()}
    return [texts.get(method, no_good.get(method, "")) for method in shown]


def _launch(kernel: Row, method: str) -> str:
    """`48×16 · 32×4`: axes of size 1 behind the others are left out. With a mark where the choice is no good, which is
    all that is said where its launch is not known."""

    def product(sizes: Sequence[int]) -> str:
        last = max((axis for axis, size in enumerate(sizes) if size > 1), default=0)
        return "×".join(map(str, sizes[: last + 1]))

    launch = " · ".join(map(product, kernel["launch"].get(method, ())))
    mark = "wrong" if method in kernel["wrong"] else "failed" if method in kernel["failed"] else ""
    return f"{launch} ({mark})" if launch and mark else launch or mark


def write_down(campaign: Campaign, chosen: Sequence[Choices], torch: Path, out: Path, document: Path | None) -> None:
    """Record everything that is known of a campaign."""
    from kcg.kernel.analysis import arithmetic
    from kcg.kernel.opts.space import KernelSpace

    setting, searched = campaign.setting, {kernel.bench.region.id for kernel in chosen}
    table = columns(chosen, campaign.methods)
    rest_s = sum(calls * own_s for region, calls, own_s in setting.kernels if region.id not in searched)
    work = sum(calls * arithmetic(KernelSpace(region, setting.target).ast) for region, calls, _ in setting.kernels)
    tried = [column for column in table if column.there.any() or column.wrong]
    kcgs = [column for column in tried if column.method.startswith(KCG)]
    best = min(kcgs, key=lambda column: column.totals[0], default=None)
    rows = {
        column.method: {
            "total_s": (total := interval(column.totals + rest_s)),
            "gflops": work / total[0] / 1e9,
            "not_tried": int((~column.there).sum()) - column.wrong - column.failed,
            "wrong": column.wrong,
            "failed": column.failed,
            "over_kcg": against(column, best) if best is not None else [],
            **cost(campaign, chosen, column.method),
        }
        for column in tried
    }
    ours, strayed = [column.method for column in kcgs], strays(campaign, chosen)
    entry: dict[str, Any] = {
        "command": this_command(), "methods": rows,
        "target": setting.target.model, "driver": setting.toolchain.driver, "rest_s": rest_s, "share": campaign.share,
        "canaries_s": campaign.journal.canaries, "pieces": campaign.journal.pieces,
        "kernels": [_kernel(kernel, table, k, _part(kernel, campaign.preset)) for k, kernel in enumerate(chosen)],
        "worse_than_baselines": {method: worse(chosen, table, method, strayed) for method in ours},
        "one_binary_in_two_processes": [asdict(stray) for stray in strayed],
        "torch_s": _torch(torch, campaign.preset, setting.target.device), "steps_s": _steps(campaign, ours),
    }  # fmt: skip
    name, figures = run_of(campaign.preset, campaign.dev), headline(campaign, table, rows, entry, rest_s)
    record_results(out, name, entry, figures, overall=overall, ending=f"_{campaign.preset}")
    lines = [*markdown(rows, entry, campaign.preset), *kernels_markdown(rows, entry["kernels"])]
    campaign.log("\n".join(lines))
    if document is not None:
        from evaluation.documents import write_into

        write_into(document, {f"flux-table-{campaign.preset}": lines})


def _kernel(kernel: Choices, table: Sequence[Column], k: int, part: str) -> dict[str, Any]:
    """Of one kernel: seconds of all calls by method, how each choice is launched as far as that is known, and where
    tinygrad's own schedule stands because a method was not tried or its choice is no good."""
    seen = kernel.bench.seen
    comparisons = {m: seen.comparisons.get(schedule, {}) for m, schedule in kernel.by_method.items()}
    chosen = {**kernel.by_method, **({"raw": RAW} if RAW in seen.rows else {})}
    return {
        "name": kernel.bench.label,
        "part": part,
        "calls": kernel.calls,
        "seconds": {c.method: c.seconds[k, 0] for c in table},
        "choices": {m: describe(schedule) for m, schedule in kernel.by_method.items()},
        "launch": {m: seen.launches[schedule] for m, schedule in chosen.items() if schedule in seen.launches},
        "hand_coded_stands": [c.method for c in table if not c.there[k]],
        "wrong": {m: d["wrong"] for m, d in comparisons.items() if "wrong" in d},
        "failed": {m: d["reason"] for m, d in comparisons.items() if d.get("reason")},
    }


def _part(kernel: Choices, preset: str) -> str:
    """The part of a step that a kernel is of, as `parts.part_of` names it."""
    from evaluation.flux.parts import part_of
    from kcg.kernel.codec import ast_of
    from kcg.workloads.flux import PRESETS

    return part_of(ast_of(kernel.bench.region.kernel), PRESETS[preset])


def _torch(path: Path, preset: str, device: str) -> dict[str, float]:
    """A step in PyTorch by mode, seconds."""
    kept = json.loads(path.read_text())["runs"].get(f"{preset}_{device.lower()}") if path.exists() else None
    steps = {k.removeprefix(STEP): row for k, row in (kept or {"rows": {}})["rows"].items() if k.startswith(STEP)}
    return {mode: row["cold_s"] for mode, row in steps.items() if mode not in OWN and row["status"] == "ok"}


def _steps(campaign: Campaign, ours: Sequence[str]) -> dict[str, float]:
    """The whole step as kcg timed it when it compared the outputs, of the fastest of its runs."""
    checks = [campaign.journal.runs[m]["model_check"] for m in ours]
    passed = [check for check in checks if check and check["passed"]]
    best = min(passed, key=lambda check: check["after_s"], default=None)
    return {} if best is None else {"kcg_step_ms": best["after_s"], "hand_coded_step_ms": best["before_s"]}
