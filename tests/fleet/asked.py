"""What tests ask of a service of a fleet, whoever of it does that."""

from __future__ import annotations

from kcg.campaign.sampling import DrawJob, draw, draw_timed
from kcg.campaign.settings import DEFAULT_MIX
from kcg.fleet.service import FleetService
from kcg.kernel.kinds import baseline_of
from kcg.measure.service import Request
from kcg.types import Status
from tests.fleet.regions import region_of
from tests.waiting import PATIENCE_S


def measured(service: FleetService, *sizes: int) -> list[Status]:
    """Asked at once: one host alone does not get all of them."""
    regions = [region_of(size) for size in sizes]
    requests = [Request(region, baseline_of(region, service.target), in_search=True) for region in regions]
    return [future.result(PATIENCE_S).status for future in service.measure(requests)]


def drawn(service: FleetService, *sizes: int) -> list[int]:
    mix = tuple(DEFAULT_MIX.items())
    jobs = [DrawJob(region_of(size), service.target, (), 3, mix, "0", predictor="roofline") for size in sizes]
    futures = [service.beside(draw_timed, draw, job, timeout_s=1.0) for job in jobs]
    return [len(future.result(PATIENCE_S).batch) for future in futures]
