"""When, on what and with which revision a piece of a campaign is made: what its rows cannot tell later."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from kcg.measure.target import usable_cores
from kcg.provenance import provenance

from .campaign import Campaign


def piece_of(campaign: Campaign, service: Any) -> dict[str, Any]:
    """Date and time (UTC), git revision, whether the tree was dirty, model of the device, version of its driver (empty
    where it has none), and the CPU cores that the process may use, with which it compiles. The host is not named."""
    target, toolchain = service.facts
    return {
        "began": datetime.now(UTC).isoformat(timespec="seconds"), **provenance(), "device": target.model,
        "driver": toolchain.driver, "cpu_cores": usable_cores(), "canary_s": campaign.canary_s,
        "journal": campaign.journal.path.name,
    }  # fmt: skip
