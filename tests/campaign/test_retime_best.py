"""The fastest of a kernel timed again, in turns: the least of many noisy times is too low."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from kcg.campaign.generate import generate_here
from kcg.campaign.settings import CampaignSettings
from kcg.campaign.workers import Retiming, retime
from kcg.dataset.journal import Journal
from kcg.dataset.noise import RETIMED
from kcg.kernel.codec import kernel_of
from kcg.measure.protocol import PROTOCOL
from kcg.types import Region, Status, Workload, WorkloadCall
from tests.kernels import empty, kernels_of

CPU = "CPU:X86"


def test_the_fastest_of_each_kernel_are_timed_in_turns(tmp_path: Path) -> None:
    calls = tuple(WorkloadCall(Region((kernel_of(ast),)), 1) for n in (48, 64) for ast in kernels_of(empty(n, n).sum()))
    source, out = tmp_path / "source.sqlite", tmp_path / "j.sqlite"
    with Journal.open(source) as journal:
        journal.add_workload(Workload("small", "x", calls))
    settings = CampaignSettings(out, source=source, device=CPU, schedules_per_kernel=6, mix=(("walk:raw", 1.0),))
    assert generate_here(settings, log=lambda line, eta_s: None).finished
    done = retime(Retiming(out, 1.0, CPU, best=2, trials=3), log=lambda line, eta_s: None)
    assert done.measured == len(calls) * 2 * 3
    with Journal.open(out, create=False) as journal:
        (target,), (toolchain,) = journal.targets(), journal.toolchains()
        rows = [row for row in journal.known(target, toolchain, PROTOCOL) if row.status == Status.OK]
    for call in calls:
        of_call = [row for row in rows if row.region_id == call.region.id]
        first = {row.schedule: row.median_s for row in of_call if row.sampler != RETIMED and not row.trial}
        again = [row for row in of_call if row.sampler == RETIMED]
        assert Counter(row.trial for row in again) == {0: 2, 1: 2, 2: 2}
        assert len({row.schedule for row in again}) == 2
        assert min(first, key=lambda schedule: first[schedule]) in {row.schedule for row in again}
