"""Tile programs beside torch.compile, a copy, a sum and cuDNN, on one GPU: the figures of docs/tiles.md.

    python -m evaluation.tiles.bench_tiles --only matmul --budget 5m --work kcg-out/tiles
    python -m evaluation.tiles.bench_tiles --only rows,gemv,conv --budget 8m --work kcg-out/tiles
    python -m evaluation.tiles.bench_tiles --only rows --below .9 --revision NEW --work kcg-out/tiles-NEW
    python -m evaluation.tiles.bench_tiles --only generator
    python -m evaluation.tiles.bench_tiles --dry-run
    python -m evaluation.tiles.bench_tiles --table

Some kernels at a time: kcg's own search finds tile programs and Opts of each, then the fastest of both are timed in
turns with the contenders, in one process that PyTorch runs in. Every finished kernel is in the results file, every
finished search in the journal of `--work`: the same command goes on where it was. What libraries print and the lock of
the results are in a folder of their own, `logs` of `--work`. `generator` and `--dry-run` need no
device. `cases.py` says what is compared with what, `summary.py` which figures and thresholds there are.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evaluation.rows import Row, Rows, rounded, this_command
from evaluation.tiles.cases import SECTIONS, Case, Sums, all_calls, cases
from evaluation.tiles.generating import sample, shares, summed
from evaluation.tiles.summary import GROUPS, headline, micro, seconds, share, tables
from kcg.cli import guarded, record_results
from kcg.compat.assembler import PATH_VARIABLE, assembler
from kcg.compat.device import choose_device, prepare
from kcg.errors import KcgError, UnknownName, UsageError
from kcg.kernel.kinds import describe
from kcg.kernel.tile.targets import triton_version
from kcg.measure.service import MeasureService
from kcg.optimize.settings import parse_budget
from kcg.types import Target

if TYPE_CHECKING:
    from evaluation.tiles.pairing import Order
    from evaluation.tiles.searching import Found, Searches

OUT = Path(__file__).parents[1] / "results" / "bench_tiles.json"
GENERATOR = "generator"
LOGS = "logs"  # the folder of `--work` for what is no result
TOGETHER = 12  # kernels that are searched, and then timed
PAIRED_S = 240.0  # for the contenders of one kernel: torch.compile tunes its own for that long where it is slow
OPEN_S = 120.0
DRIVER = Path("/proc/driver/nvidia/version")


class Lost(KcgError):
    """The process of the contenders died, or did not answer in time."""


@dataclass
class Contenders:
    """The process that times contenders; one that is lost is followed by a fresh one. Use as a context manager."""

    folder: Path
    device: str = "cuda"
    about: dict[str, Any] | None = None
    _pipe: Any = None
    _process: Any = None

    def __enter__(self) -> Contenders:
        return self

    def __exit__(self, *exc: object) -> None:
        self.end()

    def time(self, order: Order) -> dict[str, Any]:
        """The row of a kernel. Raises Lost."""
        if self._process is None or not self._process.is_alive():
            self._start()
        self._pipe.send(order)
        answer = self._answer(PAIRED_S)
        if "error" in answer:
            self.end()
            raise Lost(answer["error"])
        return answer

    def end(self) -> None:
        """Kill it."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None

    def _start(self) -> None:
        from evaluation.tiles.pairing import serve

        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, str(self.folder), self.device), name="contenders")
        with _as_users_have_it():
            self._process.start()
        theirs.close()
        self.about = self._answer(OPEN_S)

    def _answer(self, timeout_s: float) -> dict[str, Any]:
        try:
            if not self._pipe.poll(timeout_s):
                raise Lost(f"the contenders did not answer in {timeout_s:.0f} s")
            answer: dict[str, Any] = json.loads(self._pipe.recv())
        except (EOFError, OSError):
            self.end()
            raise Lost(f"the contenders' process ended: see torch.log in {self.folder}") from None
        except Lost:
            self.end()
            raise
        return answer


@contextlib.contextmanager
def _as_users_have_it() -> Iterator[None]:
    """torch.compile takes its own assembler, not that of our tile programs. What it compiled is kept for the next
    process on this machine."""
    before = dict(os.environ)
    os.environ.pop(PATH_VARIABLE, None)
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", f"{tempfile.gettempdir()}/kcg-inductor")
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@dataclass(frozen=True)
class Effort:
    """How many programs are measured for each kernel of a section, and samples taken."""

    tiles: dict[str, int]
    opts: int
    samples: int
    search_s: float  # of the kernels that are searched together


class Bench:
    """The comparison on a device: searches, then timing, some kernels at a time."""

    def __init__(
        self, service: MeasureService, searches: Searches, contenders: Contenders, effort: Effort, known: Any
    ) -> None:
        self.service, self.searches, self.contenders = service, searches, contenders
        self.effort, self.known = effort, known
        self.until = math.inf  # of searching, on `time.monotonic`

    def run(self, of: Sequence[Case], rows: Rows) -> None:
        """Time what is not in the results yet, while there is time."""
        for first in range(0, len(of), TOGETHER):
            part = [case for case in of[first : first + TOGETHER] if rows.wanted(case.key)]
            if not part:
                continue
            begin = time.monotonic()
            self.searches.search(self._wanted(part), until=min(begin + self.effort.search_s, self.until))
            typer.echo(f"searched {len(part)} in {time.monotonic() - begin:.0f} s")
            for case in part:
                if rows.wanted(case.key):
                    row = self._row(case)
                    rows.add(case.key, row)
                    typer.echo(shown(case, row))

    def _wanted(self, part: Sequence[Case]) -> list[Any]:
        from evaluation.tiles.searching import Wanted

        wanted = []
        for case in part:
            tiles = self.effort.tiles[case.section]
            wanted.append(Wanted(case.region, tiles, self.effort.opts, self.known.get(case.region.id)))
            if isinstance(case.against, Sums):
                wanted.append(Wanted(case.against.region, tiles, 1))
        return list({one.region.id: one for one in wanted}.values())

    def _row(self, case: Case) -> dict[str, Any]:
        from evaluation.tiles.pairing import Order, Settings

        found = self.searches.found[case.region.id]
        sums = self.searches.compiled(case.against.region) if isinstance(case.against, Sums) else {}
        sums = {f"sum {name}": runs for name, runs in sums.items()}
        order = Order(case, self.searches.compiled(case.region), sums, Settings(samples=self.effort.samples))
        begin = time.monotonic()
        try:
            answer = self.contenders.time(order)
        except Lost as error:
            answer = {"contenders": {}, "tile": "", "status": "failed", "reason": str(error)}
        about = {
            "section": case.section,
            "group": case.group,
            "calls": case.calls,
            "bytes": case.bytes,
            "region": case.region.id,
            "paired_s": rounded(time.monotonic() - begin),
            "made_with": {**self._made_with(), **(self.contenders.about or {})},
        }
        return {**about, **of_search(found), **answer, **chosen(found, answer.get("tile", ""))}

    def _made_with(self) -> dict[str, Any]:
        using = assembler()
        driver = re.search(r"\b(\d+\.\d+(?:\.\d+)*)\b", DRIVER.read_text()) if DRIVER.exists() else None
        return {
            "triton": triton_version(),
            "ptxas": using.version if using is not None else "",
            "driver": driver[1] if driver else "",
            "toolchain": self.service.toolchain.fingerprint,
        }


def of_search(found: Found) -> dict[str, Any]:
    """What the search of a kernel came to."""
    return {
        "search": {
            "measured": found.measured, "failed": found.failed, "reasons": found.reasons, "start_s": found.start_s,
            "best_s": found.tiles[0]["s"] if found.tiles else None, "hand_coded_s": found.hand_coded_s,
            "search_s": found.search_s, "cut_off": found.cut_off, "refused": found.refused,
        },
        "opts_from": found.opts.get("from", ""),
    }  # fmt: skip


def chosen(found: Found, tile: str) -> dict[str, Any]:
    """The schedules that were timed."""
    schedules = found.schedules()
    row = {"opts_schedule": schedules["opts"].body} if "opts" in schedules else {}
    if tile in schedules:
        row |= {"tile_program": describe(schedules[tile]), "tile_parameters": json.loads(schedules[tile].body)}
    return row


def shown(case: Case, row: dict[str, Any]) -> str:
    """A row in one line."""
    timed = {n: micro(f["cold_s"]) for n, f in row["contenders"].items() if f.get("status") == "ok"}
    failed = [f"{n}: {f['reason']}" for n, f in row["contenders"].items() if f.get("status") == "failed"]
    group = next(g for g in GROUPS if (g.section, g.group) == (case.section, case.group))
    ratio = share(row, group) if seconds(row, group.contenders) else None
    words = "–" if ratio is None else f"{ratio:.3f}"
    return f"{case.key}: {words} {timed} {row.get('reason', '')} {'; '.join(failed)}"


def planned_for() -> Target:
    """An H100, where there is no device to ask."""
    from tests.known_targets import KNOWN_TARGETS

    return replace(KNOWN_TARGETS["sm_90"], model="NVIDIA H100", cache_bytes=50 << 20)


def of_sections(only: Sequence[str], target: Target, match: str, most: int) -> dict[str, list[Case]]:
    """The cases of each section; of more than `most` so many, evenly."""
    found = {}
    for section in (name for name in SECTIONS if name in only):
        of = [case for case in cases(section, target) if match in case.key]
        step = max(1.0, len(of) / most) if most else 1.0
        found[section] = [of[int(i * step)] for i in range(int(len(of) / step))]
    return found


def generator(
    only: Sequence[str], match: str, most: int, programs: int, *, out: Path | None, logs: Path | None = None
) -> None:
    """Generate and compile some programs of every case; with `out` keep what it cost, and which share of the workloads'
    time is generated. No device is asked."""
    target, costs = planned_for(), []
    for section, of in of_sections(only, target, match, most).items():
        found = list(sample(of, target, programs=programs))
        costs += found
        typer.echo(f"{section}: {len(of)} cases, {json.dumps(summed(found))}")
    if out is not None and costs:
        entry = summed(costs)
        figures: dict[str, Any] = {name: entry[name] for name in ("generate_ms", "compile_s") if name in entry}
        entry |= shares(all_calls(), target)
        figures["generated_share"] = entry["generated_share"]
        versions = {"triton": triton_version(), "ptxas": using.version if (using := assembler()) else ""}
        record_results(out, GENERATOR, {**entry, **versions, "command": this_command()}, figures, locks=logs)


def main(
    only: Annotated[str, typer.Option(help="sections, with commas between; generator is one")] = ",".join(SECTIONS),
    match: Annotated[str, typer.Option(help="cases whose names contain this")] = "",
    most: Annotated[int, typer.Option(help="cases of a section, chosen evenly, or of --table the worst; 0: all")] = 0,
    budget: Annotated[str, typer.Option(help="after which no further kernel is begun; empty: none")] = "",
    tiles: Annotated[int, typer.Option(help="tile programs measured for a matmul or convolution")] = 64,
    row_tiles: Annotated[int, typer.Option(help="the same for rows and matrix-vector products")] = 24,
    opts: Annotated[int, typer.Option(help="Opts measured for each; 1: the hand-coded ones")] = 8,
    result: Annotated[list[Path] | None, typer.Option(help="RESULT.json whose Opts are taken instead")] = None,
    samples: Annotated[int, typer.Option(help="of each contender")] = 24,
    search: Annotated[str, typer.Option(help="limit of searching some kernels together")] = "200s",
    predictor: Annotated[str, typer.Option(help="of Opts: auto, roofline, or a checkpoint")] = "auto",
    programs: Annotated[int, typer.Option(help="of each case, for generator and --dry-run")] = 3,
    work: Annotated[Path, typer.Option(help="folder of the journal of searches, and of logs")] = Path("kcg-out/tiles"),
    again: Annotated[bool, typer.Option("--again", help="forget all rows that are there")] = False,
    retry: Annotated[bool, typer.Option("--retry", help="time those again in which something failed")] = False,
    below: Annotated[float, typer.Option(help="time those again that are below this and of another revision")] = 0.0,
    revision: Annotated[str, typer.Option(help="of this code, where it has no repository")] = "",
    device: Annotated[str, typer.Option(help="on CPU only to try this out: no tile program is there")] = "cuda",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="generate and compile some of all, without a GPU")] = False,
    table: Annotated[bool, typer.Option("--table", help="print the tables of what is there")] = False,
    out: Annotated[Path, typer.Option(help="the results file")] = OUT,
) -> None:
    """Time what is not in the results yet."""
    wanted = only.split(",")
    if unknown := [name for name in wanted if name not in (*SECTIONS, GENERATOR)]:
        raise UnknownName("section", unknown[0], [*SECTIONS, GENERATOR])
    if table:
        _print_tables(out, most)
        return
    if dry_run or GENERATOR in wanted:
        prepare("CUDA")  # kernels are scheduled for it, and nothing opens it
        on = [name for name in wanted if name != GENERATOR] if dry_run else list(SECTIONS)
        generator(on, match, most, programs, out=None if dry_run else out, logs=work / LOGS)
    if dry_run or wanted == [GENERATOR]:
        return
    from evaluation.tiles.searching import Searches, best_opts

    effort = Effort(
        {name: tiles if name in ("matmul", "conv") else row_tiles for name in SECTIONS},
        opts,
        samples,
        _seconds(search),
    )
    choice = choose_device(device)
    prepare(choice.dev)
    logs = work / LOGS
    logs.mkdir(parents=True, exist_ok=True)
    with MeasureService(choice.dev, run_id="bench_tiles") as service, _contenders(logs, choice.device) as contenders:
        settings = {"of_revision": revision} if revision else {}
        run = re.sub(r"\W+", "_", service.target.model.lower())
        rows = Rows(out, run, budget=budget, again=again, retry=retry, settings=settings, headline=headline, locks=logs)
        rows.again(slower(rows.rows, below, revision))
        with Searches(service, work, predictor=predictor) as searches:
            bench = Bench(service, searches, contenders, effort, best_opts(result or []))
            bench.until = time.monotonic() + _seconds(budget)
            for of in of_sections(wanted, service.target, match, most).values():
                bench.run(of, rows)
    typer.echo(json.dumps(headline(rows.rows), indent=1))
    if rows.left:
        typer.echo(f"{rows.left} kernels are left: run the same command again", err=True)


def slower(rows: Mapping[str, Row], below: float, revision: str) -> list[str]:
    """The rows whose share is below a limit, or that have none, made by code of another revision: so the same command
    goes on where it was."""
    groups = {(group.section, group.group): group for group in GROUPS if group.group}
    return [
        key
        for key, row in rows.items()
        if below
        and (not revision or row.get("of_revision") != revision)
        and ((ratio := share(row, groups[row["section"], row["group"]])) is None or ratio < below)
    ]


def _contenders(folder: Path, device: str) -> Contenders:
    return Contenders(folder, device="cpu" if device == "CPU" else "cuda")


def _seconds(text: str) -> float:
    """A limit of the command line; empty: none."""
    return parse_budget(text) if text else math.inf


def _print_tables(out: Path, most: int) -> None:
    if not out.exists():
        raise UsageError(f"there is no {out}: time something first")
    report = json.loads(out.read_text())
    for run in (name for name in report["runs"] if name != GENERATOR):
        typer.echo("\n".join([f"{run}:", "", *tables(report, run, most=most), ""]))


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    application = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    application.command()(main)
    guarded(lambda: application(standalone_mode=False))
