"""The hosts of a fleet that measure for a search: those with the target and the toolchain of the device that judges."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from kcg.cli import counted
from kcg.errors import KcgError, UsageError
from kcg.fleet.payload import travels
from kcg.fleet.service import GO_ON, Fleet, FleetService
from kcg.fleet.status import read_status
from kcg.fleet.trust import limits_of
from kcg.measure.service import MeasureService, Request
from kcg.measure.spread import Spread
from kcg.nouns import plain
from kcg.types import Measurement, Target

ALONE_S: Final = 10.0
"""Where no host is left, what they had in hand waits so long for one that starts again: then others measure it."""


class FleetHosts:
    """A driver's part in a fleet. Its hosts open and are admitted from now on, and measure once `help` is called."""

    def __init__(
        self, address: str, certificates: Path | None, own: MeasureService, *, line: Callable[[str], None]
    ) -> None:
        """`own` is the service of the device that judges; `line` gets what becomes of hosts, in any thread.

        Raises:
            UsageError: there is no scheduler, it may not be talked to, or it has no host with such a device.
            DeviceError: the own device does not open.
        """
        check_hosts(address, read_status(address, certificates)["hosts"], own.target)
        self.address, self._own, self._line = address, own, line
        self.service: FleetService | None = None  # of those that can help, once it is known
        self._fleet = Fleet(address, certificates=certificates, log=line, alone_s=ALONE_S)
        self._closed = False

    def close(self) -> None:
        """Leave the fleet."""
        self._closed = True
        self._fleet.close()

    def help(
        self,
        spread: Spread,
        requests: Sequence[Request],
        *,
        seen: Callable[[Measurement], None],
        doubt: Callable[[str, float, str], None],
    ) -> threading.Thread:
        """Have the hosts measure for `spread` once they agree with its first device on `requests`, see `Spread.check`.
        Returns at once. `doubt` is told, in any thread, of hosts that drift, see `Measures.on_doubt`."""
        arguments = (spread, requests, seen, doubt)
        joining = threading.Thread(target=self._join, args=arguments, name="kcg-hosts", daemon=True)
        joining.start()
        return joining

    def _join(
        self,
        spread: Spread,
        requests: Sequence[Request],
        seen: Callable[[Measurement], None],
        doubt: Callable[[str, float, str], None],
    ) -> None:
        try:
            services = self._fleet.services()
        except KcgError as error:
            if not self._closed:
                self._line(f"the fleet at {self.address} does not help: {without_advice(str(error))}")
            return
        for service in services:
            if why := self._unfit(service):
                self._line(f"{counted(service.devices, 'host')} of the fleet not used: {why}")
                continue
            service.on_doubt = doubt
            self.service = service
            spread.check(
                service,
                f"the fleet at {self.address} ({counted(service.devices, 'host')})",
                requests,
                seen=seen,
                takes=lambda request: travels(request.schedule),
                agreed=limits_of(service.target).agree,
            )

    def _unfit(self, service: FleetService) -> str:
        """Why hosts do not measure for this run; empty where they do."""
        own = self._own
        if service.target.fingerprint != own.target.fingerprint:
            return f"with {service.target.model}, and this run is for {_described(own.target)}"
        if service.toolchain.fingerprints != own.toolchain.fingerprints:
            return f"with {service.toolchain.compiler}, and this run has {own.toolchain.compiler}"
        return ""

    def settle(self) -> None:
        """See `Measures.settle`."""
        if self.service is not None:
            self.service.settle()

    def run_facts(self, run_id: str) -> dict[str, Any]:
        """See `Measures.run_facts`."""
        return {} if self.service is None else self.service.run_facts(run_id)


def check_hosts(address: str, hosts: Sequence[dict[str, Any]], own: Target) -> None:
    """Raises UsageError where no host can measure for a run on `own`, by what the scheduler says of them."""
    hosts = [host for host in hosts if not host.get("compiles_only") and not host.get("problem")]
    if not hosts:
        raise UsageError(f"{address}: there is no host: start one with kcg fleet worker, or leave out --fleet")
    if all(host["ready"] for host in hosts) and own.fingerprint not in {host["target"] for host in hosts}:
        models = ", ".join(sorted({plain(f"{host['model']} ({host['target'][:8]})") for host in hosts}))
        raise UsageError(
            f"{address}: its hosts have {models}, and this machine {_described(own)}: what judges must be a device of "
            "theirs, so run this on one of the measuring hosts"
        )


def without_advice(line: str) -> str:
    """What happened to a fleet, without what a campaign is to do then: this run goes on by itself."""
    return line.removesuffix(f"; {GO_ON}")


def _described(target: Target) -> str:
    return f"{target.model} ({target.fingerprint[:8]})"
