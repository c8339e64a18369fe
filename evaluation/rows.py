"""Finished rows of a comparison in its results file, and the figures in them: medians, distances, rates.

A comparison that is cut off goes on where it was.
"""

from __future__ import annotations

import json
import math
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from kcg.cli import parse_budget, record_results
from kcg.measure.protocol import median, median_interval
from kcg.provenance import provenance

Row = dict[str, Any]


def run_of(size: str, dev: str) -> str:
    """The name of a run in a results file."""
    return f"{size}_{dev.lower().replace(':', '_')}"


def this_command() -> str:
    """The command that is running, as it can be typed again on any machine: `python -m MODULE ARGUMENTS`, of files in
    other folders the names alone."""
    spec = sys.modules["__main__"].__spec__
    script = ["-m", spec.name.removesuffix(".__main__")] if spec is not None else [Path(sys.argv[0]).name]
    arguments = [Path(one).name if one.startswith("/") else one for one in sys.argv[1:]]
    return shlex.join(["python", *script, *arguments]).encode("utf-8", "replace").decode()


class Rows:
    """The rows of one run in `out`, by key. Each is written as soon as it is there.

    Each tells the `settings` that it was made with. What is there already is kept, whatever its settings, unless
    `again` forgets all of it; with `retry` those in which something failed are made again, each kept until then. The
    lock of `out` is a file of the folder `locks`, where one is named.
    """

    def __init__(
        self,
        out: Path,
        run: str,
        *,
        budget: str = "",
        again: bool = False,
        retry: bool = False,
        settings: dict[str, Any] | None = None,
        headline: Callable[[dict[str, Row]], dict[str, Any]] = lambda rows: {},
        locks: Path | None = None,
    ) -> None:
        self._out, self._run, self._headline, self._locks = out, run, headline, locks
        self._until = time.monotonic() + parse_budget(budget) if budget else float("inf")
        self._settings = settings or {}
        self.rows: dict[str, Row] = {}
        self.left = 0  # rows for which there was no time
        kept = json.loads(out.read_text())["runs"].get(run) if out.exists() and not again else None
        if kept is not None:
            self.rows = kept["rows"]
        self._stale = {key for key, row in self.rows.items() if retry and failed(row)}

    def wanted(self, key: str) -> bool:
        """Whether a row is to be made now: it is not there, or to be made again, and there is time."""
        if key in self.rows and key not in self._stale:
            return False
        if time.monotonic() > self._until:
            self.left += 1
            return False
        return True

    def again(self, keys: Iterable[str]) -> None:
        """Make some rows again, each kept until then."""
        self._stale.update(key for key in keys if key in self.rows)

    def add(self, key: str, row: Row) -> None:
        """Keep a row."""
        self._stale.discard(key)
        self.rows[key] = {**row, **self._settings, **provenance(), "date": date.today().isoformat()}
        entry = {"command": this_command(), "rows": self.rows}
        record_results(self._out, self._run, entry, self._headline(self.rows), locks=self._locks)


def failed(row: Row) -> bool:
    """Whether a row, or one of its contenders, has no time."""
    return any(found.get("status") == "failed" for found in (row, *row.get("contenders", {}).values()))


FAR = {"float64": 1e-9, "float32": 1e-4, "float16": 3e-2, "bfloat16": 6e-2}
"""How far outputs may be apart, of their size: rounding of some layers, not a wrong result."""

SIGNIFICANT = 5  # digits of what is written


def figures(samples: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """State -> its median, the 95 % interval of that, and how many samples: `cold_s`, `cold_interval_s`, …"""
    report: dict[str, Any] = {}
    for state, taken in samples.items():
        report[f"{state}_s"] = rounded(median(taken))
        report[f"{state}_interval_s"] = [rounded(end) for end in median_interval(taken)]
        report["samples"] = len(taken)
    return report


def rounded(value: float) -> float:
    """As many digits as are worth writing."""
    return float(f"{value:.{SIGNIFICANT}g}")


def distance(values: Sequence[float], reference: Sequence[float]) -> float:
    """How far apart some values of an output are, of their size; infinite where one is not finite or missing."""
    if len(values) != len(reference) or not all(map(math.isfinite, values)):
        return math.inf
    size = math.sqrt(sum(r * r for r in reference))
    apart = math.sqrt(sum((v - r) ** 2 for v, r in zip(values, reference, strict=True)))
    return apart / size if size else math.inf


def speed(seconds: float, *, operations: float = 0.0, bytes: float = 0.0) -> dict[str, float]:
    """TFLOP/s and GB/s of one call, as far as its arithmetic and its least traffic are known."""
    report = {}
    if operations:
        report["tflop_s"] = rounded(operations / seconds * 1e-12)
    if bytes:
        report["gb_s"] = rounded(bytes / seconds * 1e-9)
    return report


def key_of(*words: object) -> str:
    """Words as a name of the headline: `BEAM=2`, `sum` -> `beam2_sum`."""
    return "_".join(str(word) for word in words).lower().replace("=", "").replace("-", "_").replace(" ", "_")
