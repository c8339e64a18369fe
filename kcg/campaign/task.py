"""One kernel of a campaign: what is known of it and what it asks for next."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from kcg.campaign.draw import HAND_CODED, DrawJob, Drawn, Known, draw
from kcg.predictor.choice import AUTO
from kcg.types import Measurement, Schedule, ScheduleKind, Status, Target, WorkloadCall


class KernelTask:
    """Remembers, and leaves the drawing to `draw`, which runs in a child."""

    fill = True  # see `DrawJob`

    def __init__(
        self, call: WorkloadCall, target: Target, *, wanted: int, mix: tuple[tuple[str, float], ...], seed: int,
        most: int = 64, known: Iterable[Measurement] = (), predictor: str = AUTO,
    ) -> None:  # fmt: skip
        self.call, self.target = call, target
        self._wanted, self._mix, self.seed = wanted, mix, f"{seed}:{call.region.id}:{call.variables}"
        self._most, self._predictor = most, predictor
        self.known: dict[Schedule, Known] = {}
        self._keys: dict[Schedule, str] = {}
        self._ended: frozenset[str] = frozenset()
        self.baseline: Schedule | None = None  # once it is measured
        self.baseline_s: float | None = None
        self.repeated = False  # the baseline was timed a second time
        self.exhausted = False  # the last draw gave nothing
        known = list(known)
        for row in known:
            self.tell(row)

    @property
    def waiting(self) -> list[tuple[Schedule, str]]:
        """What is to be measured before anything is drawn."""
        return []

    def next_draw(self) -> tuple[Callable[..., Drawn], object] | None:
        """What a child is to run for the next schedules, and on what; None where there is nothing more to do."""
        if self.exhausted:
            return None
        return draw, DrawJob(
            self.call.region, self.target, tuple(self.known.values()), self._wanted, self._mix, self.seed, self._ended,
            self._most, self._predictor, self.fill,
        )  # fmt: skip

    def drawn(self, answer: Drawn) -> list[tuple[Schedule, str]]:
        """The schedules to measure next, and who drew each; empty when there are enough, or nothing new is found."""
        for schedule, key in zip(list(self.known), answer.keys, strict=True):
            self._keys[schedule] = key
        self._keys.update({schedule: key for schedule, _, key in answer.batch})
        self._ended, self.exhausted = answer.ended, not answer.batch
        return [(schedule, who) for schedule, who, _ in answer.batch]

    def tell(self, row: Measurement) -> None:
        """What measuring a schedule showed."""
        if row.schedule.kind != ScheduleKind.OPTS:
            return  # written by hand: nothing to draw from
        if row.trial:
            self.repeated = True
            return
        time_s = row.median_s if row.status == Status.OK else math.inf
        self.known[row.schedule] = Known(row.schedule, row.sampler, time_s, self._keys.get(row.schedule, ""))
        if row.status == Status.UNJUDGED:
            self.exhausted = True  # no schedule of it ever will be judged
        if row.sampler == HAND_CODED and row.status == Status.OK:
            self.baseline, self.baseline_s = row.schedule, row.median_s
