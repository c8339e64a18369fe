"""A comparison on a device, case after case: kcg's own search, then all contenders in turns in a process of their own.

What a case is compared with is the matter of `pairing.py`; which programs of kcg take part, of the bench that is made.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from evaluation.rows import Row, Rows, rounded
from evaluation.tiles.cases import Case, Sums
from evaluation.tiles.summary import MODES, micro
from kcg.cli import parse_budget
from kcg.compat.assembler import PATH_VARIABLE, assembler
from kcg.errors import KcgError
from kcg.kernel.kinds import describe
from kcg.kernel.program import Executable
from kcg.kernel.tile.targets import triton_version
from kcg.measure.service import MeasureService
from kcg.types import Schedule

if TYPE_CHECKING:
    from evaluation.tiles.pairing import Order
    from evaluation.tiles.searching import Found, Searches, Wanted

LOGS = "logs"  # the folder of `--work` for what is no result
PAIRED_S = 240.0  # for the contenders of one kernel: torch.compile tunes its own for that long where it is slow
OPEN_S = 120.0
DRIVER = Path("/proc/driver/nvidia/version")


def in_one_line(case: Case, row: Row, ratio: float | None) -> str:
    """What became of a case: the contenders' times in µs, and why others have none."""
    timed = {n: micro(f["cold_s"]) for n, f in row["contenders"].items() if f.get("status") == "ok"}
    failed = [f"{n}: {f['reason']}" for n, f in row["contenders"].items() if f.get("status") == "failed"]
    words = "–" if ratio is None else f"{ratio:.3f}"
    return f"{case.key}: {words} {timed} {row.get('reason', '')} {'; '.join(failed)}"


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

    @staticmethod
    def on(device: str, folder: Path) -> Contenders:
        """Those of a device of the command line."""
        return Contenders(folder, device="cpu" if device == "CPU" else "cuda")

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


def limit_s(text: str) -> float:
    """A limit of the command line; empty: none."""
    return parse_budget(text) if text else math.inf


@dataclass(frozen=True)
class Effort:
    """How many programs are measured for each kernel of a section, and samples taken."""

    tiles: dict[str, int]
    opts: int
    samples: int
    search_s: float  # of the kernels that are searched together
    modes: tuple[str, ...] = MODES  # of torch.compile


@dataclass
class Bench:
    """The comparison of kernels: searches, then timing, some at a time. Of a kernel its fastest tile programs and Opts
    take part; `known` are Opts of earlier results by region."""

    service: MeasureService
    searches: Searches
    contenders: Contenders
    effort: Effort
    shown: Callable[[Case, Row], str]  # a row in one line
    known: Mapping[str, Schedule] = field(default_factory=dict)
    until: float = math.inf  # of searching, on `time.monotonic`
    together: int = 12  # cases that are searched, and then timed

    def run(self, of: Sequence[Case], rows: Rows) -> None:
        """Time what is not in the results yet, while there is time."""
        for first in range(0, len(of), self.together):
            part = [case for case in of[first : first + self.together] if rows.wanted(case.key)]
            if not part:
                continue
            begin = time.monotonic()
            wanted = {one.region.id: one for case in part for one in self.wanted(case)}
            self.searches.search(list(wanted.values()), until=min(begin + self.effort.search_s, self.until))
            typer.echo(f"searched {len(part)} in {time.monotonic() - begin:.0f} s")
            for case in part:
                if rows.wanted(case.key):
                    row = self._row(case)
                    rows.add(case.key, row)
                    typer.echo(self.shown(case, row))

    def wanted(self, case: Case) -> list[Wanted]:
        """What is to be searched for a case."""
        from evaluation.tiles.searching import Wanted

        tiles = self.effort.tiles[case.section]
        found = [Wanted(case.region, tiles, self.effort.opts, self.known.get(case.region.id))]
        if isinstance(case.against, Sums):
            found.append(Wanted(case.against.region, tiles, 1))
        return found

    def order(self, case: Case) -> Order:
        """The programs that take part."""
        from evaluation.tiles.pairing import Order, Settings

        programs = self.searches.compiled(case.region)
        return Order(case, programs, self.sums_of(case), Settings(self.effort.samples, self.effort.modes))

    def sums_of(self, case: Case) -> dict[str, Executable]:
        """The programs of a sum of as many bytes, where a case is compared with one."""
        found = self.searches.compiled(case.against.region) if isinstance(case.against, Sums) else {}
        return {f"sum {name}": runs for name, runs in found.items()}

    def about(self, case: Case, tile: str) -> dict[str, Any]:
        """What the search of a case came to, and the schedules that were timed; `tile` is the fastest of ours."""
        found = self.searches.found[case.region.id]
        return {**of_search(found), **chosen(found, tile)}

    def _row(self, case: Case) -> dict[str, Any]:
        begin = time.monotonic()
        try:
            answer = self.contenders.time(self.order(case))
        except Lost as error:
            answer = {"contenders": {}, "tile": "", "status": "failed", "reason": str(error)}
        facts = {
            "section": case.section,
            "group": case.group,
            "calls": case.calls,
            "bytes": case.bytes,
            "region": case.region.id,
            "paired_s": rounded(time.monotonic() - begin),
            "made_with": {**self._made_with(), **(self.contenders.about or {})},
        }
        return {**facts, **answer, **self.about(case, answer.get("tile", ""))}

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
