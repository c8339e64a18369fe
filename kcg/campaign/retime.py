"""Timing a part of what is known once more, on another occasion: how far a dataset drifts from machine to machine."""

from __future__ import annotations

import hashlib
import time
import uuid
from collections import Counter, defaultdict
from concurrent.futures import as_completed
from datetime import UTC, datetime
from pathlib import Path

from kcg.campaign.generate import LONGEST_TIMEOUT_S, STOP_ABOVE, Say, check_in_place
from kcg.campaign.settings import CampaignSummary
from kcg.compat.device import choose_device, prepare
from kcg.dataset.journal import Journal, Run
from kcg.dataset.repeats import RETIMED
from kcg.errors import UsageError
from kcg.measure.protocol import PROTOCOL
from kcg.measure.service import MeasureService, Request
from kcg.provenance import provenance
from kcg.types import Measurement, Status, Variables

BATCH = 32


def chosen_rows(rows: list[Measurement], share: float) -> list[Measurement]:
    """A share of the distinct binaries with status ok, by a hash: the same ones whenever asked. One row of each, and of
    each set of values of its kernel's variables."""
    found: dict[tuple[str, str, Variables], Measurement] = {}
    for row in rows:
        if row.status == Status.OK and row.early_stop and row.sampler != RETIMED:
            found.setdefault((row.region_id, row.binary_hash, row.variables), row)
    return [row for (_, binary, _), row in found.items() if _fraction(binary) < share]


def _fraction(text: str) -> float:
    return int.from_bytes(hashlib.sha256(f"retime:{text}".encode()).digest()[:6]) / 2**48


def retime(path: Path, *, share: float, device: str, command: str, budget_s: float | None, say: Say) -> CampaignSummary:
    """Time a share of a journal's binaries again on this machine and add the rows to it.

    A row stands under the identity of the first, with another run. What this run has timed already is left out.
    Raises UsageError where the journal has nothing of this target and toolchain.
    """
    began = time.monotonic()
    choice = choose_device(device)
    prepare(choice.dev)
    statuses: Counter[str] = Counter()
    with Journal.open(path, create=False) as journal, MeasureService(choice.dev, run_id=uuid.uuid4().hex) as service:
        target, toolchain = service.facts
        regions = journal.regions()
        known = list(journal.known(target.fingerprint, toolchain.fingerprint, PROTOCOL))
        if not (rows := chosen_rows(known, share)):
            if some := len(chosen_rows(known, 1.0)):
                raise UsageError(f"{share:.3g} of {some} binaries is none of them: give a larger --share, at most 1")
            raise UsageError(
                f"{path} has nothing that was timed on this target with this toolchain: nothing to compare"
            )
        facts = {"device": choice.dev, "retime": share, "compile_workers": service.compile_workers}
        facts |= provenance()
        journal.add_run(Run(service.run_id, datetime.now(UTC).isoformat(timespec="seconds"), command, facts))
        by_kernel: dict[tuple[str, Variables], list[Measurement]] = defaultdict(list)
        for row in rows:
            by_kernel[row.region_id, row.variables].append(row)
        requests = [
            Request(
                regions[region_id], row.schedule, row.variables, RETIMED, in_search=True, timeout_s=LONGEST_TIMEOUT_S,
                stop_above_s=STOP_ABOVE * min(r.median_s for r in some),
            )
            for (region_id, _), some in by_kernel.items() for row in some
        ]  # fmt: skip
        measured = 0
        for first in range(0, len(requests), BATCH):
            if budget_s is not None and time.monotonic() - began > budget_s:
                break
            for future in as_completed(service.measure(requests[first : first + BATCH], together=True)):
                row = future.result()
                if service.device_error is not None:
                    raise service.device_error
                journal.record(row)
                check_in_place(journal)
                statuses[str(row.status)] += 1
                measured += 1
            pace = measured / (time.monotonic() - began)
            say(f"{measured} of {len(requests)} timed again, {pace:.1f} a second", (len(requests) - measured) / pace)
    return CampaignSummary(
        len(by_kernel), measured, 0, dict(statuses), time.monotonic() - began, measured == len(requests)
    )
