"""The units of a campaign: a method on a kernel, or kcg's own command; and the canary that a piece begins with."""

from __future__ import annotations

import time
from typing import Any

from evaluation.search.live import LiveBench
from kcg.errors import DeviceError
from kcg.measure.group import Request
from kcg.search.interface import Observation

from .campaign import LEAST_S, Campaign, Unit
from .kcg_run import run_kcg
from .method_names import TINY_BEAM, turn_of
from .pieces import piece_of

CANARY_SHARE = 0.02
MOST_S = 900.0  # that one unit may take


def search(campaign: Campaign, service: Any, predictor: Any, unit: Unit) -> None:
    """Do a unit, unless it is done or there is no time for it."""
    if campaign.done(unit):
        return
    if unit.region is None:
        run_kcg(campaign, unit)
        return
    name, _, of = unit.method.partition(":")
    if campaign.left_s() < (campaign.beam_s(unit.method, unit.region) or LEAST_S):
        campaign.left.append(unit.method)
        return
    bench = LiveBench(unit.region, unit.calls, service, predictor, campaign.journal, until=campaign.until)
    if name == TINY_BEAM:
        _beam(campaign, bench, unit, int(of))
    elif name == "raw":
        bench.raw_s(timeout_s=min(MOST_S, campaign.left_s()))
    elif name != "no-tensor-cores":  # which is only timed
        _play(campaign, bench, unit)


def _beam(campaign: Campaign, bench: LiveBench, unit: Unit, width: int) -> None:
    beam = bench.search_tiny(width, timeout_s=min(MOST_S, campaign.left_s()), keep_failure=campaign.left_s() > MOST_S)
    told = f"{beam.binaries} timed in {beam.wall_s:.0f} s" if beam is not None else "no time"
    campaign.say(f"{unit.method} on {bench.label}: {told}")
    if beam is None:
        campaign.left.append(unit.method)


def _play(campaign: Campaign, bench: LiveBench, unit: Unit) -> None:
    begin = time.monotonic()
    try:
        measurements = bench.play(turn_of(unit.method))[0].measurements
        told = f"{measurements} measured in {time.monotonic() - begin:.0f} s"
    except TimeoutError:  # what it measured is kept, and the next piece goes on from there
        campaign.left.append(unit.method)
        told = "cut, no time"
    campaign.say(f"{unit.method} on {bench.label}: {told}")


def fly_canary(campaign: Campaign, service: Any) -> float:
    """Time the canary, the kernel with the largest share, and keep of what the piece is that begins with it. Raises
    DeviceError where it is not what it was at first."""
    from kcg.kernel.space import KernelSpace

    region = campaign.setting.kernels[0][0]
    schedule = KernelSpace(region, campaign.setting.target).baseline()
    request = Request(region, schedule, trial=len(campaign.journal.canaries))
    row = Observation.of(service.measure([request])[0].result())
    if row.runtime_s is None:
        raise DeviceError(f"the canary fails here: {row.reason}")
    first_s = campaign.journal.canaries[0] if campaign.journal.canaries else row.runtime_s
    allowed = CANARY_SHARE if not campaign.dev.startswith("CPU") else float("inf")  # a CPU is shared
    if abs(row.runtime_s / first_s - 1) > allowed:
        raise DeviceError(
            f"the canary takes {row.runtime_s * 1e6:.1f} µs here, {first_s * 1e6:.1f} µs in the first piece: "
            "this device is not as fast, nothing was measured"
        )
    campaign.canary_s = row.runtime_s
    campaign.journal.add_canary(row.runtime_s)
    campaign.journal.add_piece(facts := piece_of(campaign, service))
    campaign.piece = f"{facts['began']} {facts['journal']}"
    return row.runtime_s
