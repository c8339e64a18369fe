"""A campaign that goes on does not know the rows of a host that was drained: it measures them again."""

from __future__ import annotations

from pathlib import Path

from kcg.campaign.generate import generate_here
from kcg.campaign.settings import CampaignSettings
from kcg.dataset.journal import Doubt, Journal
from kcg.dataset.stats import stats
from kcg.kernel.codec import kernel_of
from kcg.measure.protocol import PROTOCOL
from kcg.types import Region, Workload, WorkloadCall
from tests.conftest import CPU
from tests.kernels import empty, kernels_of


def test_doubtful_rows_are_measured_again(tmp_path: Path) -> None:
    source, out = tmp_path / "kernels.sqlite", tmp_path / "rows.sqlite"
    (ast,) = kernels_of(empty(32, 16) + 1)
    with Journal.open(source) as journal:
        journal.add_workload(Workload("w", "tiny", (WorkloadCall(Region((kernel_of(ast),)), 1),)))
    settings = CampaignSettings(out, (), source=source, device=CPU, schedules_per_kernel=2, compile_workers=1)
    first = generate_here(settings, log=lambda line, eta_s: None)
    with Journal.open(out) as journal:
        (run_id,) = {row.run_id for row in journal.measurements(PROTOCOL)}
        before = {row.key for row in journal.measurements(PROTOCOL)}
        journal.add_doubt(Doubt(run_id, 0.0, "its host drifted"))
    again = generate_here(settings, log=lambda line, eta_s: None)
    assert (again.measured, again.already_known) == (first.measured, 0)
    with Journal.open(out) as journal:
        rows = list(journal.measurements(PROTOCOL))
        assert {row.key for row in rows} == before and run_id not in {row.run_id for row in rows}
        found = stats(journal)
    assert (found.rows, found.doubtful_rows) == (again.measured, first.measured)
