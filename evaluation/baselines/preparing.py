"""What the duels of a campaign need of the compilers: binaries and references, made beside the device, all at once."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from evaluation.search.live import LiveBench
from kcg.measure.references import Foretold, foretell_job
from kcg.types import Schedule

if TYPE_CHECKING:
    from kcg.kernel.compiled import Compiled

SEEDS = (1, 2, 3)  # of the inputs under which a choice is verified
TIMEOUT_S = 60.0  # for the references of one kernel: what takes longer is computed with the verification


@dataclass
class Prepared:
    """The compilers' work for the duels of some kernels. On a CPU, where it would disturb the samples, all of it is
    done before the first duel, and the references are left to the verification."""

    _binaries: dict[tuple[str, Schedule], Future[Any]] = field(default_factory=dict)
    _references: dict[str, Future[Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, wanted: Iterable[tuple[LiveBench, Iterable[Schedule]]]) -> Prepared:
        """Begin with it, in this order; a kernel of which no schedule is wanted has no duel."""
        made, on_cpu = cls(), False
        for bench, schedules in wanted:
            if not (others := [*schedules]):
                continue
            on_cpu = bench.target.device == "CPU"
            for schedule in dict.fromkeys((bench.space.baseline(), *others)):
                made._binaries[bench.region.id, schedule] = bench.service.compiled(bench.region, schedule)
            if not on_cpu:
                made._references[bench.region.id] = bench.service.beside(
                    foretell_job, bench.region, (), SEEDS, timeout_s=TIMEOUT_S
                )
        wait(made._binaries.values() if on_cpu else ())
        return made

    def __contains__(self, what: tuple[str, Schedule]) -> bool:
        return what in self._binaries

    def compiled(self, bench: LiveBench, schedule: Schedule) -> Compiled:
        """The binary of a schedule that was wanted. Raises what the compiler raised, twice."""
        future = self._binaries[bench.region.id, schedule]
        if future.exception() is not None:  # that a process was killed is nothing of the schedule's
            future = bench.service.compiled(bench.region, schedule)
        compiled: Compiled = future.result().compiled
        return compiled

    def references(self, bench: LiveBench) -> Foretold | None:
        """None where they are computed with the verification, or could not be before it."""
        future = self._references.get(bench.region.id)
        return None if future is None or future.exception() is not None else future.result()
