"""live.json: where a run stands, for who watches it from outside; `kcg.ui` does.

It is written whole beside the journal when a phase begins and at most once a second, and not waited for until it is on
the disk: a write takes 0.2 ms, and 2 ms with all the points it may have. It never ends a run: where it cannot be
written, nobody watches. Of a run that was killed it says what it said last; whether one goes on is what the folder's
lock says (`kcg.measure.lock`).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from kcg.errors import ResultError
from kcg.files import read_foreign, whole
from kcg.nouns import noun_from_json, noun_to_json
from kcg.types import ProgressPoint

FILE_NAME: Final = "live.json"
INTERVAL_S: Final = 1.0
MOST_POINTS: Final = 400  # beyond, every second one is left out
MAX_BYTES: Final = 1 << 20
ADDED: Final = frozenset({("Live", "verified_s")})  # with schema 2


@dataclass(frozen=True)
class Live:
    """Where a run stands, or how it ended. Seconds are since its start."""

    workload: str
    preset: str
    device: str  # as tinygrad calls it
    search: str
    budget: str
    created: str  # when it was started, ISO date and time
    phase: str = ""  # one of `kcg.optimize.log.PHASES`
    since_s: float = 0.0  # when that began
    elapsed_s: float = 0.0  # when this was written
    budget_s: float | None = None  # when the run is expected to end
    measurements: int = 0
    kernels: tuple[int, int] | None = None  # how many are done in this phase, of how many
    nouns: str = "kernels"  # what these are
    points: tuple[ProgressPoint, ...] = ()  # the first is with tinygrad's own schedules, the last the best so far
    exit_code: int | None = None  # None: it goes on, or was killed
    verified_s: tuple[float, float] | None = None  # by what was verified so far, and by tinygrad's own schedules
    schema: int = 2


class LiveFile:
    """The file of one run, which keeps it up to date."""

    def __init__(self, path: Path, live: Live, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.path, self.live, self._clock = path, live, clock
        self._next_s = float("-inf")

    def name(self, workload: str, preset: str) -> None:
        """What the workload is called, once it is captured."""
        self._update(workload=workload, preset=preset)

    def begin(self, phase: str, elapsed_s: float) -> None:
        """A phase begins, or goes on."""
        if phase != self.live.phase:
            self._update(urgent=True, phase=phase, since_s=elapsed_s, elapsed_s=elapsed_s, kernels=None)

    def show(
        self,
        elapsed_s: float,
        measurements: int,
        total_s: float | None,
        *,
        budget_s: float | None,
        kernels: tuple[int, int] | None,
        nouns: str = "kernels",
        verified_s: tuple[float, float] | None = None,
    ) -> None:
        """Where the phase stands; where `total_s` or `verified_s` is None the best that is known stays."""
        points = self.live.points
        if total_s is not None:
            points = (*points, ProgressPoint(elapsed_s, measurements, total_s))
            if len(points) > MOST_POINTS:
                points = (*points[:-1:2], points[-1])
        verified_s = self.live.verified_s if verified_s is None else verified_s
        where: dict[str, Any] = {"kernels": kernels, "nouns": nouns, "points": points, "verified_s": verified_s}
        self._update(elapsed_s=elapsed_s, measurements=measurements, budget_s=budget_s, **where)

    def end(self, exit_code: int, elapsed_s: float) -> None:
        """How the run ended."""
        self._update(urgent=True, exit_code=exit_code, elapsed_s=elapsed_s)

    def forget(self) -> None:
        """Remove the file: the run came to nothing."""
        with contextlib.suppress(OSError):
            self.path.unlink()

    def _update(self, *, urgent: bool = False, **changes: Any) -> None:
        self.live = replace(self.live, **changes)
        if urgent or self._clock() >= self._next_s:
            self._next_s = self._clock() + INTERVAL_S
            with contextlib.suppress(OSError), whole(self.path, durable=False) as temporary:
                temporary.write_text(noun_to_json(self.live), encoding="utf-8", errors="replace")


def read_live(path: Path) -> Live:
    """What a file of `LiveFile` says. Raises ResultError where it is none, or OSError where it cannot be read."""
    if (data := read_foreign(path, most_bytes=MAX_BYTES)) is None:
        raise ResultError(f"{path.name} is larger than {MAX_BYTES >> 20} MiB, or no file, and no state of a run")
    try:
        return noun_from_json(Live, data.decode(), may_lack=ADDED)
    except UnicodeDecodeError as error:
        raise ResultError(f"{path.name} is no text: {error.reason}") from None
