"""The benchmark of fleets: what it counts as lost and as there twice, and what its model finds full first."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evaluation.fleet.acknowledged import noted
from evaluation.fleet.bench_fleet import captured
from evaluation.fleet.kills import Machine, killed, outcome
from evaluation.fleet.model import modelled, uses
from kcg.dataset.journal import Doubt, Journal, identity_of
from kcg.types import Measurement, Status
from tests.conftest import CPU

RATE = {"8": {"bytes_in": 5000, "bytes_out": 5000}}
COSTS = {
    "campaign_driver_cpu_s": 1e-3, "campaign_scheduler_cpu_s": 5e-4, "heartbeat_cpu_s": 5e-4,
    "look_scheduler_cpu_s": 1e-5, "look_driver_cpu_s": 1e-5, "look_bytes": 1000.0, "journal_rows_per_s": 3000.0,
}  # fmt: skip


def measurement(**fields: Any) -> Measurement:
    from kcg.types import Schedule, ScheduleKind

    made = Measurement("0" * 64, Schedule(ScheduleKind.OPTS, "[]"), "1" * 64, "2" * 64, 1, Status.OK, samples_s=(1e-6,))
    return replace(made, **fields)


def test_what_was_acknowledged_and_is_not_there_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "campaign.sqlite"
    rows = [measurement(run_id="a"), measurement(run_id="a", trial=1), measurement(run_id="b", trial=1)]
    with Journal.open(path) as journal:
        for row in rows:
            journal.record(row)
    notes = path.with_suffix(".rows")
    gone = measurement(run_id="a", trial=2)
    notes.write_text("".join(f"{identity_of(r.key).hex()} {r.run_id} {r.trial}\n" for r in [*rows, gone]))
    assert len(noted(notes)) == 4
    found = outcome(path)
    assert (found["rows"], found["lost"], found["twice"], found["integrity"]) == (3, 1, 1, "ok")
    with Journal.open(path) as journal:
        journal.add_doubt(Doubt("b", 0.0, "it drifted"))
    found = outcome(path)
    assert (found["rows"], found["lost"], found["twice"], found["doubtful"]) == (3, 1, 0, 1)


def test_a_machine_of_this_one_ends_with_all_that_it_started(tmp_path: Path) -> None:
    machine = Machine()
    nested = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)"
    process = machine.start("-c", f"import subprocess, sys; {nested}", log=tmp_path / "log")
    assert process.args[0] == sys.executable  # type: ignore[index]
    while len(machine.pids) < 2:
        assert process.poll() is None
    pids = machine.pids
    machine.kill()
    assert not machine.pids and all(not Path(f"/proc/{pid}/exe").exists() for pid in pids)


def test_the_first_that_is_full_is_the_limit() -> None:
    found = modelled(RATE, COSTS)
    assert found["25_rows_per_s"]["limit"] == "driver" and 35 < found["25_rows_per_s"]["hosts"] <= 40
    assert found["80_rows_per_s"]["hosts"] < found["25_rows_per_s"]["hosts"] < 1000
    slow = modelled(RATE, {**COSTS, "journal_rows_per_s": 250.0})["25_rows_per_s"]
    assert (slow["limit"], slow["hosts"], slow["drivers_for_1000"]) == ("journal", 10, 100)
    one, ten = (uses(RATE, COSTS, hosts, 25.0) for hosts in (1, 10))
    assert ten["journal"] == pytest.approx(10 * one["journal"]) and ten["driver"] > 9 * one["driver"]


@pytest.mark.slow
def test_a_campaign_outlives_a_kill_of_each_kind(tmp_path: Path) -> None:
    kinds = {"worker": 1, "host": 1, "scheduler": 1, "driver": 1}
    found = killed(tmp_path, captured(tmp_path), device=CPU, seed=0, schedules=8, kinds=kinds, say=lambda line: None)
    assert len(found["kills"]) == 4 and not found["unexpected"]
    assert all(one["lost"] == one["twice"] == 0 and one["integrity"] == "ok" for one in found["campaigns"])
    with closing(sqlite3.connect(tmp_path / "campaign1.sqlite")) as journal:
        assert journal.execute("SELECT COUNT(*) FROM measurements").fetchone()[0] == found["campaigns"][0]["rows"]
