"""How often is a race found that shows in one of so many launches? A power curve of stress, on a GPU.

    python -m evaluation.measure.race_power --budget 7m
    python -m evaluation.measure.race_power --compile PROGRAMS.json    # ahead, without a GPU; then --programs
    python -m evaluation.measure.race_power --show

Races of known rates are planted into generated tile programs (`planted_races`). Each trial has one of them stressed
from the beginning: by today's rules as judging does it (`Stressing.run`: 1,000 launches until it is provisional, then
the rest of 10,000 until it is verified, in pieces of a second), or by those of revision 696a093d (`stress_before`), in
the same child on the same GPU. Plain launches, which nobody judges, say what the rates are. Updates
results/race_power.json; a run that was cut off goes on where it was.
"""

from __future__ import annotations

import json
import math
import os
import random
import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from evaluation.measure.stress_before import REVISION
from evaluation.rows import Row, Rows, rounded, run_of
from kcg.cli import parse_budget, run_script
from kcg.compat.device import choose_device, prepare
from kcg.errors import DeviceError, UsageError
from kcg.files import write_whole
from kcg.measure.protocol import median
from kcg.measure.stress import LAUNCHES, LOOKED_AT_EVERY, PROVISIONAL, expected_s, launches_beside
from kcg.provenance import provenance
from kcg.types import Target

if TYPE_CHECKING:
    from evaluation.measure.planted_races import Planted
    from kcg.kernel.program import Program
    from kcg.measure.service import MeasureService

OUT: Final = Path(__file__).parents[2] / "evaluation" / "results" / "race_power.json"
RATES: Final = (1e-2, 3e-3, 1e-3, 3e-4, 1e-4)
EVERY: Final = {1e-2: 3, 3e-3: 3, 1e-3: 1, 3e-4: 2, 1e-4: 1}  # rounds: what is certain needs fewer trials
CONTROL: Final = 0.0
MEASURED: Final = ("matmul of asynchronous copies",)
"""Programs whose race shows at a rate that is only known from plain launches: no part of what is summed up by rate."""
TODAY, BEFORE = "today", "before"
TIMEOUT_S: Final = 120.0
WINDOWS, PLAIN_LAUNCHES = 100, 100_000  # at most, of the plain launches of one program
A_WINDOW: Final = 0.25  # expected races in a window of plain launches
_NUMBER = re.compile(r"^of (\d+) launches one", re.MULTILINE)

# ---- shares and their intervals


def wilson(found: float, of: float, *, z: float = 1.96) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson 1927)."""
    if not of:
        return 0.0, 1.0
    share = found / of
    middle, scale = share + z * z / (2 * of), 1 + z * z / of
    half = z * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of))
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)


def rate_of_windows(differed: int, windows: int, width: int) -> tuple[float, tuple[float, float]]:
    """The rate a launch, and its interval, of windows of `width` launches of which in some at least one differed."""

    def a_launch(share: float) -> float:
        return 1.0 if share >= 1 else -math.expm1(math.log1p(-share) / width)

    low, high = wilson(differed, windows)
    high = high if differed < windows else 1.0
    return a_launch(differed / windows), (a_launch(low), a_launch(high))


def expected_share(rate: float, runs: float) -> float:
    """How often one of so many independent runs at least differs."""
    return -math.expm1(runs * math.log1p(-rate))


def runs_by(rule: str, launches: int, target: Target) -> int:
    """How often the program ran in so many of the `launches` of a rule: those beside another stream count twice."""
    if not launches_beside(target):
        return launches
    beside = launches_beside(target, launches) if rule == TODAY else max(launches - LAUNCHES // 2, 0)
    return launches + beside


def fitted_rate(
    trials: Sequence[Trial], rule: str, target: Target, *, points: int = 400
) -> tuple[float, float, float] | None:
    """The rate a run at which a rule found what it found, and its 95 % interval, by likelihood: a trial says in which
    of the intervals between two looks the first race was, or that there was none. None without trials."""
    found = Counter(t.launches for t in trials if t.rule == rule)
    if not found:
        return None

    outcomes = []  # how many: runs before the last look that found nothing, and those behind it in which one differed
    for launches, count in found.items():
        before, runs = (
            runs_by(rule, number, target)
            for number in ((LAUNCHES, LAUNCHES) if launches is None else (max(launches - LOOKED_AT_EVERY, 0), launches))
        )
        outcomes.append((count, before, runs - before))

    def likelihood(rate: float) -> float:
        none = math.log1p(-rate)
        return sum(
            count * (before * none + (math.log(-math.expm1(runs * none)) if runs else 0.0))
            for count, before, runs in outcomes
        )

    rates = [10 ** (-7 + 6.5 * i / points) for i in range(points)]
    values = [likelihood(rate) for rate in rates]
    most = max(values)
    likely = [rate for rate, value in zip(rates, values, strict=True) if value >= most - 1.92]
    return rates[values.index(most)], likely[0], likely[-1]


# ---- what the rows say


@dataclass(frozen=True)
class Trial:
    """One program under stress by one rule: after how many launches it was found (None: it passed), and after how
    many seconds that was known. `provisional_s`: what the launches took after which today's rules let it be used."""

    program: str
    rate: float
    rule: str
    launches: int | None
    seconds: float
    provisional_s: float | None = None

    def found_after(self, launches: int) -> bool:
        """Whether it was found by so many launches."""
        return self.launches is not None and self.launches <= launches

    def found_within(self, seconds: float) -> bool:
        """Whether it was found within so many seconds."""
        return self.launches is not None and self.seconds <= seconds


def trials_of(rows: Iterable[Row]) -> list[Trial]:
    """Those of all rows that are trials and ended."""
    names = Trial.__dataclass_fields__
    return [
        Trial(**{str(name): row.get(name) for name in names})  # type: ignore[arg-type]
        for row in rows
        if row.get("kind") == "trial" and row.get("status") != "failed"
    ]


def taken_s(trials: Sequence[Trial], program: str, which: str) -> float | None:
    """The median seconds of a program's launches by today's rules until it is provisional, or by a rule to the end, of
    the trials that passed."""
    ours = [t for t in trials if t.program == program]
    if which == "provisional":
        found = [t.provisional_s for t in ours if t.provisional_s is not None]
    else:
        found = [t.seconds for t in ours if t.rule == which and t.launches is None]
    return median(found) if found else None


def share(found: Sequence[bool]) -> dict[str, Any]:
    """How many of how many, as a share with its interval."""
    low, high = wilson(sum(found), len(found))
    return {
        "found": sum(found),
        "trials": len(found),
        "share": rounded(sum(found) / len(found)) if found else None,
        "interval": [rounded(low), rounded(high)],
    }


def trials_at(rows: Mapping[str, Row], *, program: str = "") -> list[Trial]:
    """Those of one program, or of all whose races show at the planted rate."""
    return [t for t in trials_of(rows.values()) if (t.program == program if program else t.program not in MEASURED)]


def rate_of(rows: Mapping[str, Row], program: str, rate: float) -> float:
    """At which a race shows: as planted, or as plain launches say."""
    if program not in MEASURED:
        return rate
    return float(rows.get(f"{program} {rate:g} plain", {}).get("seen", rate))


def curve(rows: Mapping[str, Row], *, program: str = "") -> dict[str, dict[str, Any]]:
    """Rate -> what each rule found of it: of all programs, or of one."""
    trials = trials_at(rows, program=program)
    found: dict[str, dict[str, Any]] = {}
    names = {t.program for t in trials}
    until = {which: {name: taken_s(trials, name, which) for name in names} for which in ("provisional", TODAY)}
    for rate in sorted({t.rate for t in trials}, reverse=True):
        by = {rule: [t for t in trials if (t.rate, t.rule) == (rate, rule)] for rule in (TODAY, BEFORE)}

        def within(which: str, by: Any = by) -> dict[str, Any]:
            timed = [(t, until[which][t.program]) for t in by[BEFORE]]
            return share([t.found_within(s) for t, s in timed if s is not None])

        found[f"{rate:g}"] = {
            "provisional": share([t.found_after(PROVISIONAL) for t in by[TODAY]]),
            "before_for_the_seconds_of_provisional": within("provisional"),
            "verified": share([t.found_after(LAUNCHES) for t in by[TODAY]]),
            "before_for_the_seconds_of_verified": within(TODAY),
            "before": share([t.found_after(LAUNCHES) for t in by[BEFORE]]),
        }
    return found


def by_launches(rows: Mapping[str, Row], rate: float, target: Target) -> list[dict[str, Any]]:
    """After each look at what differs: the share that each rule had found, and what independent runs would give of the
    planted rate."""
    trials = [t for t in trials_at(rows) if t.rate == rate]
    table = []
    for launches in range(LOOKED_AT_EVERY, LAUNCHES + 1, LOOKED_AT_EVERY):
        row: dict[str, Any] = {"launches": launches}
        for rule in (TODAY, BEFORE):
            ours = [t.found_after(launches) for t in trials if t.rule == rule]
            expected = expected_share(rate, runs_by(rule, launches, target))
            row[rule] = {**share(ours), "expected": rounded(expected)}
        table.append(row)
    return table


def name_of_rate(rate: float) -> str:
    """As a word of a headline: 1e-3 -> 1e3."""
    return f"{rate:.0e}".replace("e-0", "e")


def headline(rows: Mapping[str, Row]) -> dict[str, Any]:
    """The figures of the whole: `race_1e3_detected` is that of today's rules at `verified`, `…_before` that of the
    revision before, `…_provisional` and `…_before_for_its_seconds` those for the seconds of the first 1,000 launches;
    `race_programs`, `race_trials`, and how often the control was taken for a race."""
    found = curve(rows)
    figures: dict[str, Any] = {}
    for rate in RATES:
        one, name = found.get(f"{rate:g}"), f"race_{name_of_rate(rate)}_detected"
        if one is not None:
            figures[name], figures[f"{name}_interval"] = one["verified"]["share"], one["verified"]["interval"]
            figures[f"{name}_before"], figures[f"{name}_before_interval"] = (
                one["before"]["share"],
                one["before"]["interval"],
            )
            figures[f"{name}_provisional"] = one["provisional"]["share"]
            figures[f"{name}_before_for_its_seconds"] = one["before_for_the_seconds_of_provisional"]["share"]
    trials = trials_of(rows.values())
    figures["race_programs"] = len({t.program for t in trials})
    figures["race_trials"] = len([t for t in trials if t.rate])
    figures["race_control_wrong"] = sum(t.launches is not None for t in trials if not t.rate)
    return figures


# ---- the device's part


def trial_today(
    service: MeasureService, planted: Planted, program: Program, launch_s: float, *, name: str, rate: float
) -> Row:
    """Judged as a run judges it: what a region needs to be provisional, and then what it needs to be verified."""
    from kcg.judge.kept import Side
    from kcg.judge.stressing import REJECTED, Stressing
    from kcg.kernel.symbolic import Bound

    stressing = Stressing(service, failed={}, record=lambda rows: None)
    side: Any = Side(planted.schedule, program)  # type: ignore[arg-type]
    begin, provisional_s, why = time.perf_counter(), None, ""
    for launches in (PROVISIONAL, LAUNCHES):
        why = stressing.run(
            planted.region,
            side,
            [Bound((), 1.0)],
            launches=launches,
            launch_s=launch_s,
            patience=lambda expected_s: None,
        )
        if why:
            break
        if launches == PROVISIONAL:
            provisional_s = rounded(time.perf_counter() - begin)
    seconds = rounded(time.perf_counter() - begin)
    row = _trial(name, rate, TODAY, why.removeprefix(f"{REJECTED}wrong under stress: "), seconds)
    return {**row, "provisional_s": provisional_s}


def trial_before(service: MeasureService, planted: Planted, program: Program, *, name: str, rate: float) -> Row:
    """Judged by the rules of the revision before."""
    from evaluation.measure.planted_races import before_job
    from kcg.measure.jobs import StressJob

    begin = time.perf_counter()
    job = StressJob(planted.region, program, service.target)
    outcome = service._device.submit(before_job, job, timeout_s=TIMEOUT_S).result()
    return _trial(name, rate, BEFORE, outcome.wrong, rounded(time.perf_counter() - begin))


def _trial(name: str, rate: float, rule: str, wrong: str, seconds: float) -> Row:
    row: Row = {"kind": "trial", "program": name, "rate": rate, "rule": rule, "seconds": seconds, "launches": None}
    if wrong:
        row["reason"] = wrong
        if number := _NUMBER.search(wrong):
            row["launches"] = int(number[1])
        elif "of buffer" in wrong and not wrong.startswith(("wrote", "not judged", "rejected")):
            row["launches"] = 1  # by the reference, at the first one
        else:
            row["status"] = "failed"
    return row


def plain(service: MeasureService, planted: Planted, rate: float, *, name: str) -> Row:
    """What plain launches say of the rate."""
    from evaluation.measure.planted_races import plain_job
    from kcg.measure.jobs import StressJob

    width = max(1, round(A_WINDOW / rate))
    windows = max(1, min(WINDOWS, PLAIN_LAUNCHES // width))
    job = StressJob(planted.region, planted.programs[rate], service.target)
    given = (job, planted.programs[CONTROL], windows, width)
    found = service._device.submit(plain_job, *given, timeout_s=TIMEOUT_S).result()
    seen, interval = rate_of_windows(found.differed, windows, width)
    return {
        "kind": "plain",
        "program": name,
        "rate": rate,
        "launches": windows * width,
        "windows": windows,
        "differed": found.differed,
        "seen": rounded(seen),
        "interval": [rounded(one) for one in interval],
        "launch_s": rounded(found.launch_s),
    }


def launch_s_of(service: MeasureService, planted: Planted) -> float:
    """What a launch under stress is expected to take, as a run expects it once the program was timed."""
    from evaluation.measure.planted_races import program_s
    from kcg.measure.jobs import StressJob

    job = StressJob(planted.region, planted.programs[CONTROL], service.target)
    seconds = service._device.submit(program_s, job, timeout_s=TIMEOUT_S).result()
    return expected_s(seconds, 0, service.target) / LAUNCHES


def orders(seed: int) -> Iterator[tuple[str, str]]:
    """Which rule comes first, trial by trial, at random: what is warm then is no rule's advantage."""
    drawn = random.Random(seed)
    while True:
        yield (TODAY, BEFORE) if drawn.random() < 0.5 else (BEFORE, TODAY)


def measure(service: MeasureService, rows: Rows, programs: Mapping[str, Planted], *, seed: int, rounds: int) -> None:
    """Make the rows that are not there: controls, plain launches, then round by round a trial of each rule of each
    rate of each program, until there is no time."""
    from evaluation.measure.planted_races import renamed

    launch_s = {name: launch_s_of(service, planted) for name, planted in programs.items()}
    order = orders(seed)

    def both(name: str, rate: float, number: int) -> None:
        planted = programs[name]
        for rule in next(order):
            key = f"{name} {rate:g} {rule} {number}"
            if not rows.wanted(key):
                continue
            program = renamed(planted.programs[rate], f"{number} {seed} {os.getpid()}")
            try:
                if rule == TODAY:
                    row = trial_today(service, planted, program, launch_s[name], name=name, rate=rate)
                else:
                    row = trial_before(service, planted, program, name=name, rate=rate)
            except DeviceError:
                raise
            except Exception as error:  # a program that faults: said, and the others go on
                row = {"kind": "trial", "program": name, "rate": rate, "rule": rule, "status": "failed"}
                row["reason"] = f"{type(error).__name__}: {error}"[:300]
            rows.add(key, {**row, "round": number})
            typer.echo(f"{key}: {row.get('launches')} {row.get('seconds')} {row.get('reason', '')[:90]}")

    for name in programs:
        both(name, CONTROL, 0)  # the first one pays for what is prepared once
        both(name, CONTROL, 1)
    passed = {t.program for t in trials_of(rows.rows.values()) if t.launches is None and not t.rate}
    if not passed & set(programs):
        raise DeviceError("no control passed: the programs do not run here, or are not right")
    programs = {name: planted for name, planted in programs.items() if name in passed}
    for name, planted in programs.items():
        for rate in RATES:
            if rows.wanted(key := f"{name} {rate:g} plain"):
                row: Row
                try:
                    row = plain(service, planted, rate, name=name)
                except DeviceError:
                    raise
                except Exception as error:  # said, and the others go on
                    row = {
                        "kind": "plain",
                        "program": name,
                        "rate": rate,
                        "status": "failed",
                        "reason": str(error)[:300],
                    }
                rows.add(key, row)
                typer.echo(f"{key}: {row.get('seen')} {row.get('interval')} {row.get('reason', '')}")
    for number in range(rounds):
        for rate in RATES:
            for name in programs:
                if number % EVERY[rate] == 0 and (name not in MEASURED or number % 2 == 0):
                    both(name, rate, number)
        if rows.left:
            break


# ---- programs that were compiled ahead


def write_programs(path: Path, programs: Mapping[str, Planted]) -> None:
    """Keep the binaries in a file."""
    from kcg.kernel.program import program_values

    kept = {
        name: {f"{rate:g}": program_values(program) for rate, program in one.programs.items()}
        for name, one in programs.items()
    }
    write_whole(path, json.dumps({"programs": kept, **provenance()}))


def read_programs(path: Path, target: Target) -> dict[str, Planted]:
    """The binaries of `write_programs`, with their regions."""
    from evaluation.measure.planted_races import SUBJECTS, Planted
    from kcg.kernel.program import program_from

    found = {}
    for name, kept in json.loads(path.read_text())["programs"].items():
        region = SUBJECTS[name].region()
        programs = {float(rate): program_from(values) for rate, values in kept.items()}
        found[name] = Planted(region, SUBJECTS[name].schedule(region, target), programs)
    return found


def compiled(target: Target, seed: int) -> dict[str, Planted]:
    """All programs, compiled here."""
    from evaluation.measure.planted_races import SUBJECTS, made

    return {name: made(name, target, (CONTROL, *RATES), seed=seed) for name in SUBJECTS}


# ---- the table


def table(rows: Mapping[str, Row], target: Target) -> str:
    """What was found, as Markdown: by rate, by program, and the rates of plain launches."""
    names = list(dict.fromkeys(t.program for t in trials_of(rows.values())))
    lines = [
        "| a race in one of | provisional | 696a093d for its seconds | verified | 696a093d | expected: provisional | "
        "verified | trials |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for name in ("", *names):
        for planted, one in curve(rows, program=name).items():
            rate = float(planted)
            if not rate:
                continue
            seen = ("provisional", "before_for_the_seconds_of_provisional", "verified", "before")
            cells = [_cell(one[which]) for which in seen]
            cells += [
                f"{expected_share(rate_of(rows, name, rate), runs_by(TODAY, launches, target)):.3f}"
                for launches in (PROVISIONAL, LAUNCHES)
            ]
            label = f"{1 / rate:,.0f}" + (f", {name}" if name else "")
            lines.append(f"| {label} | {' | '.join(cells)} | {one['verified']['trials']} |")
    for rate in (1e-3, 1e-4):
        lines += ["", f"| launches, {rate:g} | today | expected | 696a093d | expected |", "|---|--:|--:|--:|--:|"]
        for look in by_launches(rows, rate, target):
            cells = [part for rule in (TODAY, BEFORE) for part in (_cell(look[rule]), f"{look[rule]['expected']:.3f}")]
            lines.append(f"| {look['launches']:,} | {' | '.join(cells)} |")
    lines += ["", "| planted | rate at which today's rules find | 696a093d's |", "|---|--:|--:|"]
    for rate in RATES[2:]:  # of what nearly every first look finds, nothing follows
        ours = [t for t in trials_at(rows) if t.rate == rate]
        fitted = [fitted_rate(ours, rule, target) for rule in (TODAY, BEFORE)]
        cells = ["-" if one is None else f"{one[0]:.2g} ({one[1]:.2g} to {one[2]:.2g})" for one in fitted]
        lines.append(f"| {rate:g} | {' | '.join(cells)} |")
    lines += ["", "| plain launches of | planted | seen | interval | launches |", "|---|--:|--:|--:|--:|"]
    for row in rows.values():
        if row.get("kind") == "plain" and "seen" in row:
            low, high = row["interval"]
            figures = f"{row['rate']:g} | {row['seen']:.2g} | {low:.2g} to {high:.2g} | {row['launches']:,}"
            lines.append(f"| {row['program']} | {figures} |")
    lines += ["", "| seconds of | provisional | verified | 696a093d |", "|---|--:|--:|--:|"]
    trials = trials_of(rows.values())
    for name in names:
        taken = [taken_s(trials, name, which) for which in ("provisional", TODAY, BEFORE)]
        lines.append(f"| {name} | " + " | ".join("-" if s is None else f"{s:.3g}" for s in taken) + " |")
    failed = Counter(row["program"] for row in rows.values() if row.get("status") == "failed")
    return "\n".join([*lines, *(f"\n{count} trials of {name} failed" for name, count in failed.items())])


def _cell(one: Mapping[str, Any]) -> str:
    if one["share"] is None:
        return "-"
    low, high = one["interval"]
    return f"{one['share']:.3f} ({low:.2f} to {high:.2f})"


def main(
    device: Annotated[str, typer.Argument()] = "auto",
    budget: Annotated[str, typer.Option(help="time of this call")] = "7m",
    rounds: Annotated[int, typer.Option(help="trials of each rate of each program by each rule, at most")] = 200,
    seed: Annotated[int, typer.Option(help="of the hashes and of the order of trials")] = 1,
    compile_to: Annotated[Path | None, typer.Option("--compile", help="compile ahead into this file, and end")] = None,
    programs: Annotated[Path | None, typer.Option(help="a file of --compile; else they are compiled")] = None,
    show: Annotated[bool, typer.Option(help="print the tables of what is there, and end")] = False,
    out: Annotated[Path, typer.Option(help="the results file")] = OUT,
) -> None:
    """Plant races and see how often they are found."""
    gpu = an_h100()
    if compile_to is not None:
        write_programs(compile_to, compiled(gpu, seed))
        return
    if show:
        if not out.exists():
            raise UsageError(f"{out} is not there: measure first, or name a file with --out")
        for run, entry in json.loads(out.read_text())["runs"].items():
            typer.echo(f"{run}\n\n{table(entry['rows'], gpu)}\n\n{json.dumps(headline(entry['rows']))}")
        return
    begin = time.monotonic()
    choice = choose_device(device)
    prepare(choice.dev)
    from kcg.measure.service import MeasureService

    with tempfile.TemporaryDirectory(prefix="kcg-races-") as folder:
        os.environ["XDG_CACHE_HOME"] = folder  # what passes here is no pass of anybody's
        with MeasureService(choice.dev, run_id="race_power") as service:
            target = service.target
            planted = compiled(target, seed) if programs is None else read_programs(programs, target)
            settings = {"device": target.model, "seed": seed, "before_revision": REVISION}
            left_s = parse_budget(budget) - (time.monotonic() - begin)
            rows = Rows(out, run_of("tiles", choice.dev), budget=f"{max(left_s, 1):.0f}s", retry=True,
                        settings=settings, headline=headline)  # fmt: skip
            measure(service, rows, planted, seed=seed, rounds=rounds)
    typer.echo(table(rows.rows, target))
    typer.echo(json.dumps(headline(rows.rows)))


def an_h100() -> Target:
    """What the programs are compiled for without a GPU: an H100 or an H200."""
    from dataclasses import replace

    from tests.known_targets import KNOWN_TARGETS

    return replace(KNOWN_TARGETS["sm_90"], cores=132)


if __name__ == "__main__":
    run_script(main)
