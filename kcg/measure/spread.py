"""Measurements of a search spread over several services of one kind of device; the first of them does all the rest.

Schedules of one kernel that are asked for together stay together on one service, and the next ones of that kernel go
where its inputs are while that service has not much more to do than the others. Each row says by its run which service
measured it. A service whose device is lost is left out: another one measures what it had. Only where the first is lost
does the run end, as with one device.

Before another GPU measures for a run it must agree with the first on a few kernels: two of the same model may differ by
their cooling, their power limits, or by whatever else uses them.
"""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

from kcg.cli import counted
from kcg.errors import DeviceError
from kcg.measure.pools import ServiceClosed
from kcg.measure.protocol import median
from kcg.measure.service import Request
from kcg.types import Measurement, Status, Target, Toolchain

AGREED: Final = 0.03
"""How far the times of another GPU may be from those of the first, in the median over the kernels of the check."""
CHECKED: Final = 5  # kernels on which they must agree
CHECK: Final = "gpu-check"  # the sampler of the check's rows, which are in no journal
CHECK_TRIAL: Final = 3  # its timings are shared with nothing else
PREPARED: Final = 4
"""So many schedules are about as much work for a device as the inputs of a kernel are that it does not hold: a tenth of
a second, at 25 to 80 schedules a second (NVIDIA H100)."""
CLOSE_S: Final = 20.0  # how long the end of a check is waited for, whose service is closed


class Member(Protocol):
    """What a spread needs of a service. No future raises; where the device is lost, `device_error` is set before the
    futures are done of what could not run."""

    @property
    def target(self) -> Target: ...
    @property
    def toolchain(self) -> Toolchain: ...
    @property
    def devices(self) -> int: ...
    @property
    def device_error(self) -> DeviceError | None: ...
    @property
    def spent_s(self) -> Mapping[str, float]: ...

    def measure(self, requests: Sequence[Request], *, together: bool = False) -> list[Future[Measurement]]: ...
    def remember(self, row: Measurement) -> None: ...
    def close(self) -> None: ...


@dataclass(eq=False)
class _Used:
    """A service that measures, and how many schedules it was asked for and has not answered."""

    member: Member
    name: str
    takes: Callable[[Request], bool] = lambda request: True
    asked: int = 0

    @property
    def load(self) -> float:
        """Schedules for each of its devices."""
        return self.asked / self.member.devices


@dataclass(eq=False)
class _Batch:
    """What goes to one service at once."""

    requests: Sequence[Request]
    futures: Sequence[Future[Measurement]]
    together: bool
    by_first: bool = False
    left: int = 0  # that have no answer
    again: list[int] = field(default_factory=list)  # places of those that could not run

    def __post_init__(self) -> None:
        self.left = len(self.requests)

    def part(self, places: Sequence[int]) -> _Batch:
        """Some of it, as a batch."""
        return _Batch(
            [self.requests[i] for i in places], [self.futures[i] for i in places], self.together, self.by_first
        )


class Spread:
    """Measures on one service, and on others that are added. `on_measurement` gets every row before its future is done,
    but for those of the check and of what could not run. Called from any thread."""

    def __init__(
        self,
        first: Member,
        *,
        report: Callable[[str], None] = lambda line: None,
        warn: Callable[[str], None] = lambda line: None,
    ) -> None:
        """In any thread `report` gets a line about each service that is used from then on, `warn` about each that is
        left out."""
        self.first, self.report, self.warn = first, report, warn
        self.on_measurement: Callable[[Measurement], None] = lambda row: None
        self._used = [_Used(first, "the first")]
        self._members = [first]  # those too that are checked, or were left out
        self._checks: list[threading.Thread] = []
        self._left_out: list[Member] = []
        self._holders: dict[str, _Used] = {}  # by region, who measured it last
        self.compilations = 0  # schedules that were compiled to be measured
        self._known: list[Measurement] = []  # whose binaries are not timed again, whoever timed them
        self._lock = threading.Lock()
        self._closed = False

    def close(self) -> None:
        """Close every service, the first last: the others may use its compilers."""
        self._closed = True
        for member in reversed(self._members):
            member.close()
        for check in self._checks:
            check.join(CLOSE_S)

    @property
    def size(self) -> int:
        """How many devices measure, those counted that will if they agree."""
        return sum(member.devices for member in list(self._members) if member not in self._left_out)

    def uses(self, member: Member) -> bool:
        """Whether a service measures now."""
        return any(used.member is member for used in list(self._used))

    @property
    def spent_s(self) -> Mapping[str, float]:
        """Where the time of the children of all services went, by phase."""
        total: defaultdict[str, float] = defaultdict(float)
        for member in self._members:
            for phase, seconds in dict(member.spent_s).items():  # a copy: its threads add phases
                total[phase] += seconds
        return total

    # ---- who measures ----

    def add(self, member: Member, name: str, *, takes: Callable[[Request], bool] = lambda request: True) -> None:
        """Let a service measure from now on, of what it `takes`. It knows of every binary that was timed before."""
        with self._lock:
            if member not in self._members:
                self._members.append(member)
            for row in self._known:
                member.remember(row)
            self._used.append(_Used(member, name, takes))

    def check(
        self,
        member: Member,
        name: str,
        requests: Sequence[Request],
        *,
        seen: Callable[[Measurement], None] = lambda row: None,
        takes: Callable[[Request], bool] = lambda request: True,
        agreed: float | None = None,
    ) -> None:
        """Add a service once it is seen to agree with the first on `requests`, within `agreed` or `AGREED`, or else
        close it and say why. Returns at once. `seen` gets the check's rows, in another thread."""
        self._members.append(member)
        within = AGREED if agreed is None else agreed
        arguments = (member, name, requests, seen, takes, within)
        check = threading.Thread(target=self._check, args=arguments, name="kcg-check", daemon=True)
        self._checks.append(check)
        check.start()

    def _check(
        self,
        member: Member,
        name: str,
        requests: Sequence[Request],
        seen: Callable[[Measurement], None],
        takes: Callable[[Request], bool],
        agreed: float,
    ) -> None:
        why, words = "", ""
        try:
            why = _another_kind(self.first, member)
            if not why:
                why, words = _compared(self.first, member, requests, seen, agreed)
        except DeviceError as error:
            why = str(error)
        except ServiceClosed:
            return
        if self._closed:
            return
        if why:
            self._leave_out(member, f"{name} is left out: {why}")
            member.close()
        else:
            self.add(member, name, takes=takes)
            self.report(f"{name} measures too: {words}")

    def _leave_out(self, member: Member, line: str) -> None:
        with self._lock:
            if member in self._left_out:
                return
            self._left_out.append(member)
            self._used = [used for used in self._used if used.member is not member]
        self.warn(line)

    # ---- measuring ----

    def remember(self, row: Measurement) -> None:
        """Take a measurement as made: no service times its binary again."""
        with self._lock:
            self._remember(row, self._members)

    def forget(self, run_id: str) -> None:
        """Tell no service of a run's rows that is added from now on."""
        with self._lock:
            self._known = [row for row in self._known if row.run_id != run_id]

    def _remember(self, row: Measurement, members: Sequence[Member]) -> None:
        if row.binary_hash:
            self._known.append(row)
            for member in members:
                member.remember(row)

    def measure(
        self, requests: Sequence[Request], *, together: bool = False, by_first: bool = False
    ) -> list[Future[Measurement]]:
        """Measure on whichever service, or `by_first`, see `MeasureService.measure`. The futures do not raise."""
        futures: list[Future[Measurement]] = [Future() for _ in requests]
        for future in futures:
            future.set_running_or_notify_cancel()  # not to be cancelled by whom it is given to
        whole = _Batch(requests, futures, together, by_first)
        for places in self._parts(requests, together=together or by_first):
            self._send(whole.part(places))
        return futures

    def _parts(self, requests: Sequence[Request], *, together: bool) -> list[list[int]]:
        """What may go to different services, by place: the schedules of each region, where not all go together."""
        if together or len(self._used) == 1:
            return [list(range(len(requests)))] if requests else []
        parts: dict[str, list[int]] = {}
        for place, request in enumerate(requests):
            parts.setdefault(request.region.id, []).append(place)
        return list(parts.values())

    def _send(self, batch: _Batch) -> None:
        with self._lock:
            used = self._chosen(batch)
            self.compilations += len({(request.region.id, request.schedule) for request in batch.requests})
        measured = used.member.measure(batch.requests, together=batch.together)
        for place, future in enumerate(measured):
            future.add_done_callback(partial(self._done, batch, used, place))

    def _chosen(self, batch: _Batch) -> _Used:
        """Who has the least to do, unless who holds the inputs has little more."""
        taking = [used for used in self._used if all(map(used.takes, batch.requests))]
        least = self._used[0] if batch.by_first else min(taking, key=lambda used: used.load)
        holder = self._holders.get(batch.requests[0].region.id)
        chosen = holder if holder in taking and holder.load < least.load + PREPARED and not batch.by_first else least
        chosen.asked += len(batch.requests)
        for request in batch.requests:
            self._holders[request.region.id] = chosen
        return chosen

    def _done(self, batch: _Batch, used: _Used, place: int, done: Future[Measurement]) -> None:
        row, member = done.result(), used.member
        lost = member.device_error is not None
        ran = row.status != Status.WORKER_DIED or not (lost or self._closed)
        again = lost and not ran and not self._closed and member is not self.first
        with self._lock:
            used.asked -= 1
            batch.left -= 1
            if again:
                batch.again.append(place)
            rest = batch.part(batch.again) if batch.again and not batch.left else None
            if ran:
                self._remember(row, [other for other in self._members if other is not member])
        if again:
            self._leave_out(member, f"{used.name} is left out, and the others go on: {member.device_error}")
        else:
            self._resolve(batch.futures[place], row, record=ran)
        if rest is not None:
            self._send(rest)

    def _resolve(self, future: Future[Measurement], row: Measurement, *, record: bool) -> None:
        try:
            if record:
                self.on_measurement(row)
        finally:  # whoever waits is not to wait for ever because the listener failed
            future.set_result(row)


# ---- Whether another service is as the first one.


def _another_kind(first: Member, other: Member) -> str:
    """Why what the other measures is of another kind; empty where it is of the same. Raises DeviceError where it does
    not open."""
    target, its_target = first.target, other.target
    if its_target.fingerprint != target.fingerprint:
        what = its_target.model if its_target.model != target.model else "set up in another way"
        return f"it is {what}, and the first is {target.model}"
    if other.toolchain.fingerprints != first.toolchain.fingerprints:
        return "its compiler or driver is not that of the first"
    return ""


def _compared(
    first: Member, other: Member, requests: Sequence[Request], seen: Callable[[Measurement], None], agreed: float
) -> tuple[str, str]:
    """Why the other's times cannot stand beside the first's, or else how they compare. Only kernels that run on the
    first count."""
    both = [member.measure(requests) for member in (first, other)]
    rows, its_rows = ([future.result() for future in futures] for futures in both)
    for row in (*rows, *its_rows):
        with contextlib.suppress(Exception):  # a listener's failure says nothing of the device
            seen(row)
    if other.device_error is not None:
        return str(other.device_error), ""
    pairs = [(a, b) for a, b in zip(rows, its_rows, strict=True) if a.status == Status.OK]
    if failed := next((b for _, b in pairs if b.status != Status.OK), None):
        return f"a kernel that runs on the first is {failed.status} on it: {failed.reason}", ""
    if not pairs:
        return "there is no kernel on which it can be compared with the first", ""
    ratio = median([b.median_s / a.median_s for a, b in pairs])
    words = f"it takes {ratio:.3f} times as long as the first, in the median of {counted(len(pairs), 'kernel')}"
    off = max(ratio, 1 / ratio) - 1 > agreed
    return (f"{words}, and may be off by {agreed:.0%}", "") if off else ("", words)
