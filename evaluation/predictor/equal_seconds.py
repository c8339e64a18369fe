"""What an arm has after so many seconds of one region: choosing, compiling and measuring all take some.

`CORES` cores compile side by side and one device measures, which is given what is compiled first. A program takes as
long to compile as was recorded of it; where a compiler's cache answered, or nothing was recorded, the median of its
form. To measure one (inputs, checks and samples) takes the median of its form in recorded runs that only measured:
`costs_of`. Choosing takes what it took here, in seconds of a processor, whatever else the machine did: judging all
programs of the lattice by the arm's model, once, and then every choice. It goes on beside the compilers. What can be
had before a region is known is not counted: networks are trained, other regions are looked at. Nor is what a region
costs whoever searches it: inputs, and tinygrad's own program.

Arms wait for what they need, and for no more:

- One that chooses by what is known is asked whenever a core is free, and knows what was measured by then. So what it
  chooses first, as many as there are cores, it chooses by nothing that was measured. One whose order does not depend on
  measurements does not wait for any, either.
- A search of kcg's asks for a batch and goes on when all of it is measured: `searches.py` says how large it is.

An arm has the fastest of what it measured: what is measured stands before what is only expected, so an arm may have
less once its first program was measured than before, if that is not its first choice. Before anything is measured its
share is that of its first choice, and before it has chosen, what one by chance has.
"""

from __future__ import annotations

import heapq
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Final

from kcg.dataset.journal import Record, Run
from kcg.kernel.kinds import HasParameters, kind_of
from kcg.types import Schedule, ScheduleKind, Status

SECONDS: Final = (1.0, 2.0, 5.0, 10.0)
CORES: Final = 16
CACHED_S: Final = 0.04  # what took less was not compiled: of all programs of the record hardly any lie around it
BREAK_S: Final = 5.0  # between two rows of a region: something else was done
LEAST_ROWS: Final = 20  # of a region in a run: the clock of rows has whole seconds

Choose = Callable[[Sequence[int], Mapping[int, float]], int]
Clock = Callable[[], float]


@dataclass(frozen=True)
class FormCosts:
    """What compiling and measuring a program usually take, in seconds."""

    compile_s: float
    measure_s: float


def form_of(schedule: Schedule) -> str:
    """The form of a tile program."""
    kind = kind_of(schedule)
    assert isinstance(kind, HasParameters)
    return str(kind.parameters(schedule)["form"])


def costs_of(records: Iterable[Record], runs: Mapping[str, Run]) -> dict[str, FormCosts]:
    """By form, and of any form as "". A form that no run only measured takes what any takes."""
    alone = {name for name, run in runs.items() if run.description.get("stage") == "measure"}
    compiled = defaultdict[str, list[float]](list)
    recorded = defaultdict[tuple[str, str], list[tuple[float, str]]](list)
    for record in records:
        row = record.measurement
        if row.schedule.kind != ScheduleKind.TILE or row.status != Status.OK:
            continue
        form = form_of(row.schedule)
        if row.compile_s >= CACHED_S:
            compiled[form].append(row.compile_s)
        if row.run_id in alone:
            recorded[row.run_id, row.region_id].append((record.recorded_unix_s, form))
    measured = defaultdict[str, list[float]](list)
    for rows in recorded.values():
        at = sorted(one for one, _ in rows)
        gaps = [gap for one, other in pairwise(at) if (gap := other - one) <= BREAK_S]
        if len(gaps) >= LEAST_ROWS:
            ((form, _),) = Counter(form for _, form in rows).most_common(1)
            measured[form].append(sum(gaps) / len(gaps))

    def usual(found: Mapping[str, list[float]], form: str) -> float:
        return median(found.get(form) or [one for some in found.values() for one in some] or [0.0])

    return {form: FormCosts(usual(compiled, form), usual(measured, form)) for form in ("", *sorted(compiled))}


@dataclass(frozen=True)
class Costs:
    """What each program of a lattice takes, in seconds."""

    compile_s: Sequence[float]
    measure_s: Sequence[float]
    cores: int = CORES


@dataclass
class Bench:
    """Cores that compile, and a device."""

    costs: Costs
    ended: list[tuple[float, int]] = field(default_factory=list)  # when, and which program: in this order
    _cores: list[float] = field(default_factory=list)  # when each is free
    _compiled: list[tuple[float, int]] = field(default_factory=list)
    _device: float = 0.0

    def __post_init__(self) -> None:
        self._cores = [0.0] * self.costs.cores

    @property
    def core_is_free(self) -> float:
        """From when on."""
        return self._cores[0]

    def compile(self, place: int, now: float) -> None:
        """Give a program to the core that is free first, now or as soon as it is; then it waits for the device."""
        ready = max(heapq.heappop(self._cores), now) + self.costs.compile_s[place]
        heapq.heappush(self._cores, ready)
        heapq.heappush(self._compiled, (ready, place))

    def run(self, until: float = math.inf) -> None:
        """Measure what the device can begin before then. Nothing may be compiled earlier than that afterwards."""
        while self._compiled and (begin := max(self._device, self._compiled[0][0])) < until:
            _, place = heapq.heappop(self._compiled)
            self._device = begin + self.costs.measure_s[place]
            self.ended.append((self._device, place))


@dataclass(frozen=True)
class Timeline:
    """What one arm did on one lattice."""

    chosen_s: float  # when it had its first choice
    first: int
    ended: Sequence[tuple[float, int]]  # when which program was measured

    def measured(self, after_s: float) -> int:
        """How many programs by then."""
        return sum(at <= after_s for at, _ in self.ended)

    def share(self, after_s: float, seconds: Sequence[float], unknown: float) -> float:
        """See the module; `unknown` is the share of one by chance."""
        known = [seconds[place] for at, place in self.ended if at <= after_s]
        if not known and self.chosen_s > after_s:
            return unknown
        return min(seconds) / min(known or [seconds[self.first]])


def timeline_of(
    choose: Choose,
    seconds: Sequence[float],
    costs: Costs,
    *,
    begins_s: float = 0.0,
    limit_s: float = max(SECONDS),
    clock: Clock = time.process_time,
) -> Timeline:
    """An arm that is asked whenever a core is free; it has judged all programs by `begins_s`."""
    bench, now, left = Bench(costs), begins_s, list(range(len(seconds)))
    chosen: list[tuple[float, int]] = []
    while left and (now := max(now, bench.core_is_free)) < limit_s:
        bench.run(now)
        known = {place: seconds[place] for at, place in bench.ended if at <= now}
        began = clock()
        place = choose(left, known)
        now += clock() - began
        left.remove(place)
        chosen.append((now, place))
        bench.compile(place, now)
    bench.run()
    return Timeline(*(chosen[0] if chosen else (math.inf, 0)), bench.ended)
