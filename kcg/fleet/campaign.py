"""A campaign whose measuring is done by a fleet: `kcg dataset generate --fleet`, and `retime --fleet`."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kcg.campaign.generate import Log, captured, generate_on
from kcg.campaign.settings import CampaignSettings, CampaignSummary, Stage
from kcg.campaign.workers import Retiming, retime_on
from kcg.cli import counted
from kcg.compat.device import choose_device, prepare
from kcg.dataset.journal import Journal
from kcg.dataset.schema import check_header
from kcg.errors import UsageError
from kcg.fleet import unpickling
from kcg.fleet.local import LocalFleet
from kcg.fleet.service import Fleet, FleetService
from kcg.fleet.settings import HERE, configure
from kcg.fleet.trust import HostReport, references_of
from kcg.predictor.choice import AUTO, ROOFLINE
from kcg.types import Target, Workload

Say = Callable[[str], None]


def generate(
    settings: CampaignSettings, *, fleet: str, certificates: Path | None, log: Log, say: Say
) -> CampaignSummary:
    """As `kcg.campaign.workers.generate`, on the hosts of a fleet: `local`, `local:N`, or a scheduler's address. Every
    target that is there when it begins has rows of its own. `say` gets a line for each host that is lost, refused or
    drained, which `log`, of which the last counts, would hide."""
    began = time.monotonic()
    if settings.gpus is not None:
        raise UsageError("--gpus is for a run without a fleet: --fleet local:N says how many hosts there are")
    if settings.stage is not Stage.BOTH:
        raise UsageError("--compile-only and --measure-only are for one machine: leave --fleet out")
    if settings.predictor not in (AUTO, ROOFLINE):
        raise UsageError(f"--predictor {settings.predictor}: the hosts of a fleet follow auto or roofline")
    check_header(settings.out, create=True)  # before hosts are started and anything is captured
    with joined_fleet(fleet, settings, certificates, log, say) as services:
        for service in services:
            log(f"{counted(service.devices, 'host')} with {service.target.model} ({service.toolchain.compiler})", None)
        # to schedule without allocating, any device does that opens here
        prepare(choose_device("CPU").dev)
        workloads: dict[str, list[Workload]] = {}
        for device in dict.fromkeys(service.target.device for service in services):
            workloads[device] = list(captured(settings, device, log))
        parts = [(service, workloads[service.target.device]) for service in services]
        return generate_on(settings, parts, began=began, log=log)


def retime(retiming: Retiming, *, fleet: str, certificates: Path | None, log: Log, say: Say) -> CampaignSummary:
    """As `kcg.campaign.workers.retime`, on the hosts of a fleet: the rows of each target by its hosts."""
    began = time.monotonic()
    check_header(retiming.path, create=False)  # before hosts are started
    settings = CampaignSettings(retiming.path, (), device=retiming.device)
    with joined_fleet(fleet, settings, certificates, log, say) as services:
        return retime_on(services, retiming, began=began, log=log)


@contextmanager
def joined_fleet(
    fleet: str, settings: CampaignSettings, certificates: Path | None, log: Log, say: Say
) -> Iterator[list[FleetService]]:
    """The services of the targets of a fleet that `--device` allows, for a command: what Dask unpickles in this process
    is narrowed for good. They agree with what the journal's hosts had to agree with before. Raises UsageError where
    there are none."""
    configure()
    unpickling.install()
    earlier = _earlier(settings.out)
    if (found := re.fullmatch(HERE, fleet)) is not None:
        if certificates is not None:
            raise UsageError(f"--certificates: a fleet of this machine ({fleet}) has none")
        hosts = int(found[1]) if found[1] else None
        with LocalFleet(settings.device, hosts, settings.compile_workers) as local:
            log(f"starting {counted(local.hosts, 'host')}", None)
            with Fleet(local.address, log=say, earlier=earlier) as here:
                yield here.services(local.hosts, alive=local.check)
        return
    with Fleet(fleet, certificates=certificates, log=say, earlier=earlier) as remote:
        services = [one for one in remote.services() if _is_meant(one.target, settings.device)]
        if not services:
            raise UsageError(f"--device {settings.device}: no host of {fleet} has one")
        yield services


def _earlier(path: Path) -> list[HostReport]:
    """What hosts had to agree with that have measured for the journal at `path`; nothing where it is not there yet."""
    if not check_header(path, create=True):
        return []
    with Journal.open(path, read_only=True) as journal:
        return references_of(journal, f"the host that {path.name} began with")


def _is_meant(target: Target, device: str) -> bool:
    name, _, renderer = device.upper().partition(":")
    return device == "auto" or (target.device == name and renderer in ("", target.renderer))
