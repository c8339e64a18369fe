"""A search that the hosts of a fleet measure for. Hosts of this CPU stand for others: their times say nothing."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kcg.compat.device import DeviceChoice
from kcg.dataset.journal import Journal
from kcg.errors import DeviceError, UsageError
from kcg.fleet.local import LocalFleet
from kcg.kernel.targets import TARGETS
from kcg.measure.protocol import PROTOCOL
from kcg.optimize import hosts as hosts_module
from kcg.optimize.baselines import measure_baselines
from kcg.optimize.device import Device
from kcg.optimize.hosts import check_hosts
from kcg.optimize.settings import Settings, with_fleet
from kcg.optimize.work import RegionWork
from kcg.search.problem import Observation
from kcg.types import Schedule, Status
from tests.conftest import CPU
from tests.fleet.lenient import widen
from tests.fleet.unpickling import unpickles_as_imported as unpickles_as_imported
from tests.optimize_run import Begun, begun, optimized
from tests.waiting import PATIENCE_S, waited

SCRIPT = Path(__file__).parents[1] / "scripts" / "one_layer.py"


@pytest.fixture(autouse=True)
def agreeing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times of a busy CPU are those of any host."""
    widen(monkeypatch)
    limits = hosts_module.limits_of
    monkeypatch.setattr(hosts_module, "limits_of", lambda target: replace(limits(target), agree=float("inf")))
    monkeypatch.setattr(hosts_module, "ALONE_S", 0.2)


@pytest.fixture(scope="module")
def fleets() -> Iterator[Callable[[], LocalFleet]]:
    """A fleet of two hosts: the one of an earlier test, as long as all of it is there."""
    with ExitStack() as stack:
        kept = list[LocalFleet]()

        def whole() -> LocalFleet:
            with suppress(DeviceError, IndexError):
                kept[-1].check()
                return kept[-1]
            kept.append(stack.enter_context(LocalFleet(CPU, 2, cores=2)))
            return kept[-1]

        yield whole


@pytest.fixture
def fleet(fleets: Callable[[], LocalFleet]) -> LocalFleet:
    local = fleets()
    waited(lambda: sum(host["ready"] for host in hosts_module.read_status(local.address, None)["hosts"]) == 2)
    return local


@contextmanager
def helped(fleet: LocalFleet, folder: Path) -> Iterator[Begun]:
    """A run whose baselines are timed, and for which the fleet measures."""
    settings = Settings("softmax", "mini", device=CPU, fleet=fleet.address, folder=folder)
    with begun(settings) as run:
        run.device.join_fleet()
        measure_baselines(run.works[:2], run.device, budget=run.budget, log=run.log)
        assert run.device.spread.size == 1, "nobody measures before they are asked to"
        run.device.use_others(run.works[:2])
        waited(lambda: run.device.hosts is not None and run.device.hosts.service is not None)
        there = run.device.hosts.service  # type: ignore[union-attr]
        waited(lambda: there is not None and run.device.spread.uses(there))
        yield run


def sent(device: Device, works: list[RegionWork], begin: int, end: int) -> list[Future[Observation]]:
    """Some of the schedules of one and two steps, of each kernel."""

    def steps(work: RegionWork) -> list[Schedule]:
        once = [action.schedule for action in work.space.actions(work.space.start())]
        twice = [action.schedule for first in once for action in work.space.actions(first)]
        return list(dict.fromkeys([*once, *twice]))[begin:end]

    return [future for work in works for future in device.measure(work, steps(work))]


def rows_of(folder: Path) -> list[tuple[Any, ...]]:
    with sqlite3.connect(f"file:{folder / 'journal.sqlite'}?mode=ro", uri=True) as journal:
        query = "SELECT run_id, sampler, status, region_id, schedule_body, variables, trial FROM measurements"
        return journal.execute(query).fetchall()


@pytest.mark.slow
def test_the_journal_of_a_run_has_what_is_doubtful(
    fleet: LocalFleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with helped(fleet, tmp_path) as run:
        device = run.device
        assert device.hosts is not None and device.hosts.service is not None
        admission = device.hosts.service._fleet._admission
        assert not wait(sent(device, run.works[:2], 0, 6), timeout=PATIENCE_S).not_done
        rows = rows_of(tmp_path)
        monkeypatch.setattr(admission, "recheck", lambda report, asked_unix_s: admission.drain(report.run_id, "drifts"))
        device.settle()
        device.check_journal()
        assert not device.hosts.service.hosts, "both measured since they were checked"
        assert {row.run_id for row in device.spread._known} == {device.run_id}
    with Journal.open(tmp_path / "journal.sqlite") as journal:
        theirs = {run_id for run_id, *_ in rows} - {device.run_id}
        assert theirs and theirs <= {doubt.run_id for doubt in journal.doubts()}
        assert {record.measurement.run_id for record in journal.records(PROTOCOL)} == {device.run_id}


@pytest.mark.slow
def test_hosts_measure_for_the_search_and_a_dead_scheduler_ends_only_that(fleet: LocalFleet, tmp_path: Path) -> None:
    with helped(fleet, tmp_path) as run:
        device, works = run.device, run.works[:2]
        assert device.spread.size == 3 and device.compilers == device.service.compile_workers + 2
        first = sent(device, works, 0, 6)
        assert not wait(first, timeout=PATIENCE_S).not_done
        judged = device.measure(works[0], [works[0].space.start()], sampler="reference")
        judged += device.measure_baselines(works)
        assert not wait(judged, timeout=PATIENCE_S).not_done
        before = rows_of(tmp_path)
        os.kill(fleet.pids[0], signal.SIGKILL)
        device.spread._holders.clear()
        second = sent(device, works, 6, 12)
        assert len(second) == 12, "enough for both"
        assert not wait(second, timeout=PATIENCE_S).not_done
        device.check_journal()
        lines = [line for line in run.log.warnings if "fleet" in line]
        assert lines == [
            f"the fleet at {fleet.address} (2 hosts) is left out, and the others go on: "
            f"the scheduler at {fleet.address} is gone"
        ]
        assert device.spread.size == 1 and device.compilers == device.service.compile_workers
    with sqlite3.connect(tmp_path / "journal.sqlite") as journal:
        runs = {run: json.loads(facts) for run, facts in journal.execute("SELECT run_id, json FROM runs")}
    hosts = {run for run, facts in runs.items() if facts.get("fleet")}
    searched = {run for run, sampler, *_ in before if sampler == "mcts"}
    assert searched <= runs.keys() and searched & hosts, "each row says its host's run, and the journal knows it"
    assert {run for run, sampler, *_ in before if sampler != "mcts"} == {device.run_id}, "one device judges"
    rows = rows_of(tmp_path)
    assert len({row[3:] for row in rows}) == len(rows) and len(rows) >= len(first) + len(second)
    assert Status.WORKER_DIED not in {row[2] for row in rows}, "what could not run is no row"


@pytest.mark.slow
def test_what_lost_hosts_had_in_hand_is_measured_here(fleet: LocalFleet, tmp_path: Path) -> None:
    with helped(fleet, tmp_path) as run:
        device, works = run.device, run.works[:2]
        asked = sent(device, works, 0, 10)
        for pid in fleet.pids[1:]:
            os.kill(pid, signal.SIGKILL)
        asked += sent(device, works, 10, 14)
        assert not wait(asked, timeout=PATIENCE_S).not_done
        device.check_journal()
        left_out = [line for line in run.log.warnings if "is left out" in line]
    rows = rows_of(tmp_path)
    assert Status.WORKER_DIED not in {row[2] for row in rows} and len({row[3:] for row in rows}) == len(rows)
    assert len(left_out) <= 1 and all(line.endswith("no host was there for 0.2 s") for line in left_out)


@pytest.mark.slow
def test_a_whole_run_with_a_fleet(fleet: LocalFleet, tmp_path: Path) -> None:
    done = optimized(SCRIPT, "--device", CPU, "--fleet", fleet.address, "--report", tmp_path, "--budget", "90s")
    assert done.returncode in (0, 3), done.stderr
    assert "the fleet at" in done.stderr and "measures too" in done.stderr


def test_a_fleet_without_a_device_like_this_one_is_refused(tmp_path: Path) -> None:
    here, there = TARGETS["x86_64"], TARGETS["sm_90"]
    host = {"ready": True, "model": there.model, "target": there.fingerprint}
    with pytest.raises(UsageError, match=r"^tcp://a:1: its hosts have NVIDIA H200 .*, and this machine AMD EPYC .*run"):
        check_hosts("tcp://a:1", [host, host, {"ready": False, "problem": "cannot be read"}], here)
    check_hosts("tcp://a:1", [host, {"ready": False}], here)  # what still opens may be like it
    check_hosts("tcp://a:1", [host, {**host, "target": here.fingerprint}], here)
    with pytest.raises(UsageError, match="there is no host: start one"):
        check_hosts("tcp://a:1", [], here)


def test_a_fleet_of_this_machine_is_its_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kcg.compat.device.cuda_count", lambda: 4)
    cuda, cpu = DeviceChoice("CUDA", ""), DeviceChoice("CPU:X86", "")
    settings = Settings("flux", fleet="local")
    assert with_fleet(settings, cuda) == replace(settings, fleet="", gpus=4)
    assert with_fleet(replace(settings, fleet="local:2"), cuda).gpus == 2
    far = replace(settings, fleet="tls://far:1", certificates=Path("keys"))
    assert with_fleet(far, cuda) == far == with_fleet(far, cpu)
    for wrong, choice, words in (
        (settings, cpu, "--fleet local: this run and a host on the same CPU would disturb each other"),
        (replace(settings, fleet="local:5"), cuda, "--fleet local:5: CUDA has 4 GPUs here"),
        (replace(settings, gpus=2), cuda, "--fleet local and --gpus 2"),
        (replace(far, measurements=0), cuda, "--fleet tls://far:1: --measurements 0 has no use for a fleet"),
        (replace(far, search="tinygrad-beam:2"), cuda, "--search tinygrad-beam:2 has no use for a fleet"),
        (replace(settings, certificates=Path("keys")), cuda, "--certificates: a fleet of this machine"),
        (replace(far, fleet=""), cuda, "--certificates: for --fleet tls://HOST:PORT only"),
    ):
        with pytest.raises(UsageError) as refused:
            with_fleet(wrong, choice)
        assert str(refused.value).startswith(words) or words in str(refused.value)


def test_a_scheduler_that_is_not_there_ends_the_run_before_it_captures(tmp_path: Path) -> None:
    ended = optimized(SCRIPT, "--device", CPU, "--fleet", "tcp://127.0.0.1:9", "--report", tmp_path / "out")
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-1].startswith("kcg: tcp://127.0.0.1:9: no scheduler there")
    assert not (tmp_path / "out").exists()
