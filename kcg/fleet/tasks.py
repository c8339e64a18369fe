"""The functions that a host runs for drivers: these and no others. Each takes bytes and gives bytes.

A task names one of them; what comes in is a payload of `kcg.fleet.payload`, which cannot name code. What goes wrong is
an answer too, so that nothing that was raised travels. The scheduler imports this module, and nothing heavy with it.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kcg.errors import DataError, DeviceError
from kcg.fleet.binaries import BinaryStore

if TYPE_CHECKING:
    from kcg.fleet.compiling import Compilers
    from kcg.fleet.payload import Checked, HostFacts, MeasureJob
    from kcg.measure.service import MeasureService, TimingKey
    from kcg.types import Measurement

RATE_S = 30.0  # over which a rate of rows is taken
ROWS_KEPT = 20_000  # that drivers told a host of, some 3 kB each: those of the kernels that it was asked for last


@dataclass
class Host:
    """The service of this process, and what the tasks did with it."""

    service: MeasureService
    facts: HostFacts
    checked_unix_s: float  # when it was checked last; at the start that was its canary alone
    fault: str = ""  # what that check found, as far as one host can tell
    on_failure: Callable[[DeviceError], None] = lambda error: None
    binaries: BinaryStore = field(default_factory=BinaryStore)  # that were compiled elsewhere
    rows: int = 0
    running: dict[int, str] = field(default_factory=dict)  # by number of the task
    _tasks: int = 0
    _alone: bool = False  # one task runs, or waits for the others to end; no other begins
    _spent_s: dict[str, float] = field(default_factory=dict)  # as it was reported last
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _recent: deque[tuple[float, int]] = field(default_factory=deque)
    _given: OrderedDict[tuple[str, str], dict[TimingKey, Measurement]] = field(default_factory=OrderedDict)

    @contextmanager
    def task(self, what: str) -> Iterator[None]:
        """Inside the block `what` is shown among the tasks that run. It begins when none runs alone."""
        with self._changed:
            self._changed.wait_for(lambda: not self._alone)
            number = self._begun(what)
        try:
            yield
        finally:
            with self._changed:
                del self.running[number]
                self._changed.notify_all()

    @contextmanager
    def alone(self, what: str) -> Iterator[None]:
        """As `task`, when all that runs has ended; what is asked meanwhile, by whatever driver, begins afterwards."""
        with self._changed:
            self._changed.wait_for(lambda: not self._alone)
            self._alone = True
            self._changed.wait_for(lambda: not self.running)
            number = self._begun(what)
        try:
            yield
        finally:
            with self._changed:
                del self.running[number]
                self._alone = False
                self._changed.notify_all()

    def _begun(self, what: str) -> int:
        self._tasks += 1
        self.running[self._tasks] = what
        return self._tasks

    def known(self, job: MeasureJob) -> dict[TimingKey, Measurement]:
        """The timings of a kernel that its driver told of, with this job or before, without those that it doubts. They
        are for that driver alone: another one may doubt others, and does not know of these."""
        from kcg.measure.service import timing_key

        place = (job.driver, job.requests[0].region.id)
        with self._changed:
            rows = self._given.pop(place, {}) | {timing_key(row): row for row in job.known if row.binary_hash}
            rows = {key: row for key, row in rows.items() if row.run_id not in job.doubtful}
            if rows:
                self._given[place] = rows
            while sum(map(len, self._given.values())) > ROWS_KEPT:
                self._given.popitem(last=False)
            return rows

    def measured(self, rows: int) -> tuple[tuple[str, float], ...]:
        """Count rows. Gives where the time of the children went since this was asked last, by phase, in seconds."""
        with self._changed:
            self.rows += rows
            self._recent.append((time.monotonic(), rows))
            before, self._spent_s = self._spent_s, dict(self.service.spent_s)
            return tuple((phase, float(s - before.get(phase, 0.0))) for phase, s in sorted(self._spent_s.items()))

    @property
    def rows_per_s(self) -> float:
        """Of the last half minute."""
        with self._changed:
            since = time.monotonic() - RATE_S
            while self._recent and self._recent[0][0] < since:
                self._recent.popleft()
            return sum(rows for _, rows in self._recent) / RATE_S


_hosts: list[Host] = []


def install(host: Host | None) -> None:
    """Have the tasks of this process run with a host's service, or with none."""
    _hosts[:] = [] if host is None else [host]


_compilers: list[Compilers] = []


def install_compilers(compilers: Compilers | None) -> None:
    """Have the tasks of this process compile, or not."""
    _compilers[:] = [] if compilers is None else [compilers]


def _compiling() -> Compilers:
    if not _compilers:
        raise DataError("this host does not compile for others")
    return _compilers[0]


def _host() -> Host:
    if not _hosts:
        raise DeviceError("the device of this host is not open")
    return _hosts[0]


def _answer(act: Callable[[], Any]) -> bytes:
    from kcg.fleet.payload import Failure, pack

    try:
        return pack(act())
    except DataError as error:
        return pack(Failure(str(error)))
    except DeviceError as error:
        return pack(Failure(str(error), device=True))
    except Exception as error:
        return pack(Failure(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"))


def check(payload: bytes) -> bytes:
    """What this host is and how fast it is now: `Checked`. Takes nothing.

    Waits until the host has nothing in hand; compiling and drawing wait, too. No timing of before is shared with a
    later request: a row is no older than the check before it.
    """

    def act() -> Any:
        _asked_nothing(payload)
        return _check(_host())

    return _answer(act)


def _asked_nothing(payload: bytes) -> None:
    """Raises DataError for a payload where none is expected."""
    if payload:
        raise DataError("a payload that kcg cannot trust: nothing is expected")


def _check(host: Host) -> Checked:
    from kcg.fleet.payload import Checked
    from kcg.fleet.trust import host_report, too_noisy

    with host.alone("is checked"):
        host.service.forget()
        try:
            report = host_report(host.service)
        except DeviceError as error:
            host.on_failure(error)
            raise
        host.checked_unix_s, host.fault = time.time(), report.fault or too_noisy(report)
    return Checked(host.facts, report)


def compiler(payload: bytes) -> bytes:
    """What this host is that only compiles: `CompilerFacts`. Takes nothing."""

    def act() -> Any:
        _asked_nothing(payload)
        return _compiling().facts

    return _answer(act)


def compile(payload: bytes) -> bytes:
    """`CompileTask` to `Compilations`, in the children of a host that only compiles. Time limits begin here."""
    from kcg.fleet.payload import Compilations, CompileTask, unpack

    return _answer(lambda: Compilations(_compiling().compile(unpack(payload, CompileTask))))


def blob(payload: bytes) -> bytes:
    """`BinariesWanted` to `Binaries`, of what this host compiled."""
    from kcg.fleet.payload import Binaries, BinariesWanted, unpack

    def act() -> Any:
        found = [_compiling().binaries.get(name) for name in unpack(payload, BinariesWanted).names]
        if any(binary is None for binary in found):
            raise DataError("a binary that is wanted is not here")
        return Binaries(tuple(binary for binary in found if binary is not None))

    return _answer(act)


def measure(payload: bytes) -> bytes:
    """`MeasureJob` to `Measured`, on the device of this host. Time limits begin here."""
    return _answer(lambda: _measure(payload, _measure_here))


def echo(payload: bytes) -> bytes:
    """As `measure`, without the device: every request takes a microsecond. For the cost of all that is around it."""
    return _answer(lambda: _measure(payload, _measure_nothing))


def _measure(payload: bytes, function: Callable[[Host, MeasureJob], list[Measurement]]) -> Any:
    from kcg.fleet.payload import Measured, MeasureJob, unpack

    host = _host()
    job = unpack(payload, MeasureJob)
    with host.task(f"measures {len(job.requests)} of {job.requests[0].region.id[:8]}"):
        rows = function(host, job)
    return Measured(tuple(rows), host.measured(len(rows)))


def _measure_here(host: Host, job: MeasureJob) -> list[Measurement]:
    from kcg.fleet.compiling import outcomes

    if job.made and not host.facts.takes_binaries:
        raise DataError("this host runs only what it compiled: start it with --take-binaries")
    made, known = outcomes(job, host.binaries), host.known(job)
    rows = [future.result() for future in host.service.measure(job.requests, together=True, made=made, known=known)]
    if (error := host.service.device_error) is not None:  # then rows are none of the schedules' faults
        host.on_failure(error)
        raise error
    return rows


def _measure_nothing(host: Host, job: MeasureJob) -> list[Measurement]:
    from kcg.measure.protocol import PROTOCOL
    from kcg.types import Measurement, Status

    facts = host.facts
    return [
        Measurement(
            request.region.id,
            request.schedule,
            facts.target.fingerprint,
            facts.toolchain.fingerprint,
            PROTOCOL,
            Status.OK,
            request.cache_state,
            request.variables,
            samples_s=(1e-6,),
            early_stop=request.early_stop,
            sampler=request.sampler,
            run_id=facts.run_id,
            trial=request.trial,
        )
        for request in job.requests
    ]


def draw(payload: bytes) -> bytes:
    """`DrawJob` to `Drawn`, or `LatticeJob` to `LatticeDrawn`, in a compiling child of this host: on a CPU no sample is
    taken meanwhile."""
    return _answer(lambda: _draw(payload))


def _draw(payload: bytes) -> Any:
    from kcg.campaign import sampling, tables
    from kcg.campaign.generate import DRAW_TIMEOUT_S
    from kcg.fleet.payload import unpack

    host = _host()
    job: Any = unpack(payload, sampling.DrawJob, tables.LatticeJob)
    function = tables.draw_lattice if isinstance(job, tables.LatticeJob) else sampling.draw
    with host.task(f"draws for {job.region.id[:8]}"):
        return host.service.beside(sampling.draw_timed, function, job, timeout_s=DRAW_TIMEOUT_S).result()
