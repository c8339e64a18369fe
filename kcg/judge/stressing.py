"""Finalists under stress (`kcg.measure.stress`), in pieces of about a second between which others may have the device.

What passes adds up, over pieces and over runs: with `PROVISIONAL` launches a finalist may be chosen, with `LAUNCHES` it
is verified. What fails in any of them is out, whatever it passed before, and stays so: it is a row of the journal, of
which a run that goes on (`--resume`) neither searches nor judges the program again.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import wait
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kcg.errors import DeviceError, UsageError
from kcg.judge import bounds
from kcg.kernel.kinds import made_by
from kcg.measure import stress
from kcg.measure.device_info import first_line
from kcg.measure.jobs import StressJob
from kcg.measure.pools import Killed, ServiceClosed
from kcg.measure.protocol import PROTOCOL
from kcg.measure.service import OUT_OF_RESOURCES
from kcg.types import Finalist, JobKind, Measurement, Region, Status, Target, Variables

if TYPE_CHECKING:
    from kcg.judge.interface import Place
    from kcg.judge.kept import Side
    from kcg.kernel.symbolic import Bound
    from kcg.measure.service import MeasureService

PIECE_S: Final = 1.0  # of stress at once: then the device may be the search's
TIMEOUT_S: Final = 120.0  # of a piece, at least
SLOWER: Final = 5.0  # than it is expected to take, a piece is stopped
SAMPLER: Final = "stress"  # of a row that says that a program failed, and of its inputs
REJECTED: Final = "rejected: "
"""Begins the reason of what failed; what was not judged begins otherwise."""

Patience = Callable[[float], float | None]
"""How long to wait now for what should take so long, in seconds; None: as long as its own deadline allows."""


class Stressing:
    """What passed and failed under stress in one run, and before."""

    def __init__(
        self, service: MeasureService, *, failed: dict[Place, str], record: Callable[[Sequence[Measurement]], None]
    ) -> None:
        """`failed` says why of what failed before; what fails is put in it, and given to `record`."""
        self._service, self._failed, self._record = service, failed, record
        self._passed: dict[Place, int] = {}

    def passed(self, region: Region, side: Side, at: Sequence[Bound]) -> int:
        """How many launches a program passed at each end of its kernel's values, in this run or before."""
        return min(self._passed_at(region, side, end.variables) for end in at)

    def take_in(self, region: Region, side: Side, at: Sequence[Bound], launches: int) -> None:
        """It passed so many elsewhere, as its result says."""
        for end in at:
            place = _place(region, side, end.variables)
            self._passed[place] = max(self._passed.get(place, 0), min(launches, stress.LAUNCHES))

    def run(
        self,
        region: Region,
        side: Side,
        at: Sequence[Bound],
        *,
        launches: int,
        launch_s: float,
        patience: Patience,
        until: float | None = None,
    ) -> str:
        """Why a program that should pass so many launches at each end of its kernel's values is out: it failed in one
        of them ("rejected: …"), or nothing is known of them ("not judged: …"), since there was no time before `until`,
        by `time.monotonic`, or they were ended from outside. Empty where it passed, now or before. A launch is expected
        to take `launch_s`."""
        for end in at:
            if why := self._run_at(region, side, end.variables, launches, launch_s, patience, until):
                return bounds.reason_at(at, end, why)
        return ""

    def _run_at(
        self,
        region: Region,
        side: Side,
        variables: Variables,
        launches: int,
        launch_s: float,
        patience: Patience,
        until: float | None,
    ) -> str:
        place, compiled, service = _place(region, side, variables), side.compiled.at(variables), self._service
        if why := self._failed.get(place):
            return f"{REJECTED}{why}"
        before = self._passed.get(place, 0)
        done = self._passed[place] = self._passed_at(region, side, variables)
        if done >= launches:
            if before < launches:
                service.took_over(JobKind.STRESS, region, side.schedule, [compiled])
            return ""
        while done < launches:
            expected_s = (launches - done) * launch_s
            if until is not None and time.monotonic() + expected_s > until:
                left = f"{launches - done} launches" + (f" more, after {done}" if done else "")
                return f"not judged: the budget left no time for {left}, about {expected_s:.3g} s"
            count = min(launches_in(PIECE_S, launch_s), launches - done)
            job = StressJob(region, compiled, service.target, variables, before=done, count=count)
            future = service.stress(job, timeout_s=TIMEOUT_S + SLOWER * expected_s)
            _, waiting = wait([future], timeout=patience(expected_s))
            if waiting:
                return f"not judged: the budget was over before its {launches} launches were"
            try:
                outcome = future.result()
            except (DeviceError, ServiceClosed):
                raise
            except Exception as error:
                why = f"{type(error).__name__}: {first_line(error)}"
                if _says_nothing(error):
                    return f"not judged: stress was ended before its {launches} launches: {why}"
                return self._fail(region, side, variables, Status.WORKER_DIED, f"failed under stress: {why}")
            if outcome.wrong:
                return self._fail(region, side, variables, Status.WRONG, f"wrong under stress: {outcome.wrong}")
            done = self._passed[place] = done + count
            with contextlib.suppress(UsageError):  # where nothing can be kept it runs again next time
                stress.keep_pass(*self._key(region, side, variables), launches=done)
        return ""

    def _fail(self, region: Region, side: Side, variables: Variables, status: Status, why: str) -> str:
        place = _place(region, side, variables)
        self._failed[place] = why
        self._passed[place] = 0
        stress.forget_part(*self._key(region, side, variables))
        target, toolchain = self._service.facts
        row = Measurement(
            region_id=region.id,
            schedule=side.schedule,
            target=target.fingerprint,
            toolchain=made_by(toolchain, side.schedule),
            protocol=PROTOCOL,
            status=status,
            variables=variables,
            input_recipe=SAMPLER,
            reason=why,
            binary_hash=side.compiled.at(variables).binary_hash,
            sampler=SAMPLER,
            run_id=self._service.run_id,
        )
        self._record([row])
        return f"{REJECTED}{why}"

    def _passed_at(self, region: Region, side: Side, variables: Variables) -> int:
        place = _place(region, side, variables)
        if place in self._failed:
            return 0
        known = self._passed.get(place, 0)
        return known if known >= stress.LAUNCHES else max(known, stress.passed(*self._key(region, side, variables)))

    def _key(self, region: Region, side: Side, variables: Variables) -> stress.Key:
        return (region, side.compiled.at(variables).binary_hash, *self._service.facts, variables)


def failures_in(rows: Iterable[Measurement]) -> dict[Place, str]:
    """What failed under stress, and why, by the rows of a journal."""
    return {(row.region_id, row.binary_hash, row.variables): row.reason for row in rows if row.sampler == SAMPLER}


def launches_in(seconds: float, launch_s: float) -> int:
    """How many launches take about so many seconds, and at least one."""
    return min(max(int(seconds / launch_s), 1), stress.LAUNCHES) if launch_s else stress.LAUNCHES


def having_passed(one: Finalist, launches: int, target: Target) -> Finalist:
    """A finalist that has passed so many launches."""
    rules = tuple(rule for rule in one.verification.rules if stress.UNDER_STRESS not in rule)
    verification = replace(one.verification, rules=(*rules, stress.rule(target, launches)))
    return replace(one, verification=verification, launches=launches, launches_due=stress.LAUNCHES)


def _place(region: Region, side: Side, variables: Variables) -> Place:
    return region.id, side.compiled.at(variables).binary_hash, variables


def _says_nothing(error: Exception) -> bool:
    """Whether a job was ended by what may not be its program's: killed from outside, out of time on a busy machine, or
    of memory that others hold too."""
    memory = isinstance(error, MemoryError) or any(words in str(error).lower() for words in OUT_OF_RESOURCES)
    return memory or isinstance(error, Killed | TimeoutError)
