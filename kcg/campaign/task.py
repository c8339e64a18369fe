"""One kernel of a campaign: what is known of it and what it asks for next."""

from __future__ import annotations

import math
from collections.abc import Iterable

from kcg.campaign.draw import HAND_CODED, DrawJob, Drawn, Known
from kcg.types import Measurement, Schedule, Status, Target, WorkloadCall


class KernelTask:
    """Remembers, and leaves the drawing to `draw`, which runs in a child."""

    def __init__(
        self, call: WorkloadCall, target: Target, *, wanted: int, mix: tuple[tuple[str, float], ...], seed: int,
        known: Iterable[Measurement] = (),
    ) -> None:  # fmt: skip
        self.call, self._target = call, target
        self._wanted, self._mix, self._seed = wanted, mix, f"{seed}:{call.region.id}:{call.variables}"
        self._known: dict[Schedule, Known] = {}
        self._keys: dict[Schedule, str] = {}
        self._ended: frozenset[str] = frozenset()
        self.baseline_s: float | None = None
        for row in known:
            self.tell(row)

    def job(self) -> DrawJob:
        """What to draw from."""
        return DrawJob(
            self.call.region, self._target, tuple(self._known.values()), self._wanted, self._mix, self._seed,
            self._ended,
        )  # fmt: skip

    def drawn(self, answer: Drawn) -> list[tuple[Schedule, str]]:
        """The schedules to measure next, and who drew each; empty when there are enough, or nothing new is found."""
        for schedule, key in zip(list(self._known), answer.keys, strict=True):
            self._keys[schedule] = key
        self._keys.update({schedule: key for schedule, _, key in answer.batch})
        self._ended = answer.ended
        return [(schedule, who) for schedule, who, _ in answer.batch]

    def tell(self, row: Measurement) -> None:
        """What measuring a schedule showed."""
        time_s = row.median_s if row.status == Status.OK else math.inf
        self._known[row.schedule] = Known(row.schedule, row.sampler, time_s, self._keys.get(row.schedule, ""))
        if row.sampler == HAND_CODED and row.status == Status.OK:
            self.baseline_s = row.median_s
