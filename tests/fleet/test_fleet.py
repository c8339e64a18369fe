"""A fleet of this machine: what is asked of it comes back once, whoever dies meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kcg.campaign.sampling import DrawJob, Drawn, draw, draw_timed
from kcg.campaign.settings import DEFAULT_MIX
from kcg.campaign.workers import Retiming, retime
from kcg.dataset.__main__ import main as dataset
from kcg.dataset.choices import HAND_CODED
from kcg.dataset.journal import Journal
from kcg.errors import DeviceError, ExitCode, UsageError
from kcg.fleet import security, tasks, trust
from kcg.fleet.__main__ import main as fleet_command
from kcg.fleet.local import LocalFleet
from kcg.fleet.service import MOST_TASKS_UNABLE, Fleet, FleetService
from kcg.fleet.settings import quiet
from kcg.fleet.status import read_status
from kcg.kernel.kinds import baseline_of
from kcg.kernel.opts.space import KernelSpace
from kcg.measure.service import MeasureService, Request
from kcg.types import Region, Schedule, Status, Workload, WorkloadCall
from tests.commands import Ended, ended
from tests.conftest import CPU
from tests.dataset.test_journal import forged
from tests.fleet import asked, slow_hosts
from tests.fleet.regions import region_of
from tests.fleet.slow_hosts import FULL, slow_host
from tests.rules import ROOT
from tests.trusted import TRUSTED
from tests.waiting import PATIENCE_S, waited

SLOW = 1000.0  # times as long, by the clock of a host: a busy machine may make the others slow as well


pytestmark = pytest.mark.usefixtures("neighbours")


@pytest.fixture(scope="module")
def local() -> Iterator[LocalFleet]:
    with LocalFleet(CPU, 2, cores=2) as fleet:
        yield fleet


@pytest.fixture
def joined(local: LocalFleet) -> Iterator[Callable[..., FleetService]]:
    opened: list[Fleet] = []

    def join(**settings: Any) -> FleetService:
        opened.append(Fleet(local.address, **settings))
        (service,) = opened[0].services(2, alive=local.check)
        return service

    yield join
    for fleet in opened:
        fleet.close()


@pytest.fixture(scope="module")
def measuring(local: LocalFleet, neighbours: None) -> Iterator[tuple[FleetService, list[str]]]:
    """A service whose hosts measure, and what is said of them; the last test that has it leaves it."""
    lines: list[str] = []
    with Fleet(local.address, log=lines.append) as fleet:
        (service,) = fleet.services(2, alive=local.check)
        yield service, lines


@pytest.fixture(scope="module")
def echoing(local: LocalFleet, neighbours: None) -> Iterator[FleetService]:
    """A service whose hosts measure nothing: to join costs each of them a check."""
    with Fleet(local.address, measure=tasks.echo) as fleet:
        (service,) = fleet.services(2, alive=local.check)
        yield service


def schedules(service: FleetService, region: Region, count: int) -> list[Schedule]:
    space = KernelSpace(region, service.target)
    return [space.start(), *(action.schedule for action in space.actions(space.start()))][:count]


def requests_of(service: FleetService, size: int, count: int = 2) -> list[Request]:
    region = region_of(size)
    return [Request(region, schedule, in_search=True) for schedule in schedules(service, region, count)]


def test_every_request_has_one_row_of_the_host_that_was_chosen(echoing: FleetService) -> None:
    """A hundred tasks with nothing to measure: were one done by another host, or twice, its host would be dropped."""
    service = echoing
    runs = runs_of(service)
    requests = [requests_of(service, 2 + n % 20, 1) for n in range(100)]
    futures = [future for some in requests for future in service.measure(some)]
    rows = [future.result(PATIENCE_S) for future in futures]
    assert [(row.region_id, row.schedule) for row in rows] == [(one.region.id, one.schedule) for (one,) in requests]
    assert {row.run_id for row in rows} == {host.facts.run_id for host in service.hosts}
    assert service.devices == 2 and service.compile_workers == 2 and runs_of(service) == runs


def test_a_kernel_stays_with_a_host_that_has_no_more_to_do(echoing: FleetService) -> None:
    service = echoing
    for _ in range(4):
        rows = [future.result(PATIENCE_S) for future in service.measure(requests_of(service, 7))]
        assert len({row.run_id for row in rows}) == 1
        service.remember(replace(rows[0], binary_hash="b" * 64))
        assert {service.hosts.index(host) for host in service.hosts if host.known.get(rows[0].region_id)} <= {
            [host.facts.run_id for host in service.hosts].index(rows[0].run_id)
        }


def test_what_is_measured_and_drawn_is_what_this_process_would(measuring: tuple[FleetService, list[str]]) -> None:
    service, _ = measuring
    region = region_of(5)
    rows = [future.result(PATIENCE_S) for future in service.measure(requests_of(service, 5, 3), together=True)]
    assert [row.status for row in rows] == [Status.OK] * 3 and all(row.samples_s and row.binary_hash for row in rows)
    assert sum(service.spent_s.values()) > 0
    job = DrawJob(region, service.target, (), 6, tuple(DEFAULT_MIX.items()), "0", predictor="roofline")
    drawn: Drawn = service.beside(draw_timed, draw, job, timeout_s=1.0).result(PATIENCE_S)
    assert drawn.batch == draw(job).batch
    assert (drawn.batch[0].schedule, drawn.batch[0].sampler) == (baseline_of(region, service.target), HAND_CODED)
    with pytest.raises(TypeError, match="does not run print"):
        service.beside(print, 1, timeout_s=1.0)


def test_a_host_killed_with_work_in_hand_loses_none_and_who_leaves_ends_all(
    local: LocalFleet, measuring: tuple[FleetService, list[str]]
) -> None:
    """Another one does it, and the process that was killed is started again."""
    service, lines = measuring
    before = {host.facts.run_id for host in service.hosts}
    futures = [
        future for size in range(30, 38) for future in service.measure(requests_of(service, size), together=True)
    ]
    victim = next(host for host in read_status(local.address, None)["hosts"] if host["run_id"] in before)
    done: Future[Any] = Future()
    futures[0].add_done_callback(lambda _: done.set_result(None))
    done.result(PATIENCE_S)
    os.kill(victim["pid"], signal.SIGKILL)
    rows = [future.result(PATIENCE_S) for future in futures]
    assert [row.status for row in rows] == [Status.OK] * len(futures)
    assert service.device_error is None
    waited(lambda: service.devices == 2 and len(service.hosts) == 2 and victim["run_id"] not in runs_of(service))
    assert any("is gone" in line for line in lines) and runs_of(service) - before, "a new process, a new run"

    futures = service.measure(requests_of(service, 50, 2), together=True)
    service._fleet.close()
    assert {future.result(PATIENCE_S).status for future in futures} <= {Status.WORKER_DIED, Status.OK}
    assert isinstance(service.device_error, DeviceError)


def runs_of(service: FleetService) -> set[str]:
    return {host.facts.run_id for host in service.hosts}


def test_what_comes_back_twice_counts_once(echoing: FleetService, monkeypatch: pytest.MonkeyPatch) -> None:
    service = echoing
    works: list[Any] = []
    post = service._fleet.post
    monkeypatch.setattr(service._fleet, "post", lambda work: (works.append(work), post(work))[1])
    (future,) = service.measure(requests_of(service, 9, 1))
    first = future.result(PATIENCE_S)
    service._fleet._loop.call_soon_threadsafe(service._fleet._place, works[0])
    waited(lambda: not any(host.flying for host in service.hosts))
    assert future.result() is first and works[0].hosts_lost == 0


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(slow_hosts.cannot_measure, marks=pytest.mark.slow),
        pytest.param(slow_hosts.cannot_answer, marks=pytest.mark.slow),
        pytest.param(slow_hosts.cannot_draw, marks=pytest.mark.slow),
    ],
)
def test_what_one_host_cannot_do_another_does(local: LocalFleet, fault: Callable[[], None]) -> None:
    """Whoever could not do several tasks that others did is not used any more, and is named."""
    lines: list[str] = []
    with slow_host(local.address, CPU, fault), Fleet(local.address, measure=tasks.echo, log=lines.append) as fleet:
        (service,) = fleet.services(3, alive=local.check)
        hosts = {host.address for host in service.hosts}
        for size in range(10, 90, 8):
            sizes = range(size, size + 8)
            if fault is slow_hosts.cannot_draw:
                assert all(asked.drawn(service, *sizes))
            else:
                assert asked.measured(service, *sizes) == [Status.OK] * 8
            if service.devices == 2:
                break
        assert service.device_error is None and len(hosts) == 3
        (sick,) = hosts - {host.address for host in service.hosts}
    first, last = lines
    assert "could not do a task" in first and sick in first and FULL in first
    assert f"others did {MOST_TASKS_UNABLE} tasks that it could not" in last and sick in last and FULL in last


def test_a_host_of_another_version_is_refused_by_its_name(local: LocalFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own check says what each has."""
    here = trust.versions()
    monkeypatch.setattr(trust, "versions", lambda: replace(here, tinygrad="0.0.1"))
    lines: list[str] = []
    with Fleet(local.address, log=lines.append) as fleet, pytest.raises(UsageError) as refused:
        fleet.services()
    difference = f"has tinygrad {here.tinygrad}, the driver 0.0.1: install the same"
    assert str(refused.value).startswith(f"no host of {local.address} can be used: worker tcp://127.0.0.1:")
    assert difference in str(refused.value) and "\n" not in str(refused.value)
    assert [line.endswith(difference) for line in lines] == [True] * 2


def test_a_scheduler_that_is_not_there_is_one_line_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for who is not there: they would for hours."""
    monkeypatch.setattr(security, "ANSWER_S", 36_000.0)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    for run in (
        lambda: ended(dataset, "generate", "--workloads", "rope/mini", "--out", tmp_path / "j", "--fleet", address),
        lambda: ended(fleet_command, "status", address),
        lambda: ended(fleet_command, "worker", address, "--device", CPU),
    ):
        gone: Ended = run()
        assert gone.returncode == 2 and gone.stderr.splitlines()[-1].startswith(f"kcg: {address}: no scheduler there")


@pytest.mark.parametrize(
    "where", ["host:1", "tcp://host", "tcp://127.0.0.1:0", "http://127.0.0.1:1", "local:0", "loco"]
)
def test_what_is_no_fleet_is_a_mistake_of_usage(where: str, tmp_path: Path) -> None:
    wrong = ended(
        dataset, "generate", "--workloads", "rope/mini", "--out", tmp_path / "j", "--device", CPU, "--fleet", where
    )
    assert wrong.returncode == 2 and where in wrong.stderr.splitlines()[-1]


@pytest.mark.parametrize("cores", ["999999999999999999999", "100000"])
def test_more_compilers_than_a_machine_can_run_are_a_mistake_of_usage(cores: str) -> None:
    wrong = ended(fleet_command, "worker", "tcp://127.0.0.1:1", "--device", "none", "--cores", cores)
    assert wrong.returncode == 2 and wrong.stderr.count("\n") == 1
    assert wrong.stderr.startswith("kcg: --cores: at most ") and "each core of this machine" in wrong.stderr


@pytest.mark.parametrize("words", [("generate", "--workloads", "rope/mini", "--out", "j"), ("retime", "j")])
def test_certificates_without_a_fleet_are_a_mistake_of_usage(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    wrong = ended(dataset, *words, "--certificates", "x")
    assert (wrong.returncode, wrong.stderr) == (2, "kcg: --certificates: for --fleet tls://HOST:PORT only\n")
    assert not list(tmp_path.iterdir())


def test_the_state_of_a_fleet_is_shown(local: LocalFleet, measuring: tuple[FleetService, list[str]]) -> None:
    service, _ = measuring
    found = json.loads(ended(fleet_command, "status", local.address, "--json").stdout)
    assert found["scheduler"] == local.address and len(found["hosts"]) == 2
    for host in found["hosts"]:
        assert host["ready"] and host["target"] == service.target.fingerprint and host["checked_unix_s"] > 0
        assert host["resources"] == {f"cpu:{service.target.fingerprint}": 1, "compile": 1}
    wrong = ended(fleet_command, "status", found["hosts"][0]["address"])
    assert wrong.returncode == 2 and wrong.stderr.endswith("no scheduler: give the scheduler's port\n")
    with pytest.raises(UsageError, match="a worker of a fleet answers there"):
        Fleet(found["hosts"][0]["address"])
    shown = ended(fleet_command, "status", local.address).stdout
    assert service.target.fingerprint[:8] in shown and "rows/s" in shown and "idle" in shown
    assert "passed" in shown or any("apart" in host["fault"] for host in found["hosts"]), "a host may be busy"


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A journal of two kernels."""
    source = tmp_path_factory.mktemp("fleet") / "source.sqlite"
    with Journal.open(source) as journal:
        calls = tuple(WorkloadCall(region_of(size), 1) for size in (40, 48))
        journal.add_workload(Workload("small", "x", calls))
    return source


@pytest.fixture(scope="module")
def alone(kernels: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What this process measures of them without a fleet."""
    out = tmp_path_factory.mktemp("alone") / "j.sqlite"
    done = generated(kernels, out)
    assert done.returncode == 0 and "complete" in done.stdout, done.stderr
    return out


@pytest.fixture(scope="module")
def campaign(local: LocalFleet, kernels: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a fleet of two hosts measures of them, with a table of one."""
    out = tmp_path_factory.mktemp("campaign") / "j.sqlite"
    done = generated(kernels, out, "--fleet", local.address, *TABLE)
    assert done.returncode == 0 and "complete" in done.stdout, done.stderr
    return out


TABLE = ("--schedules-per-kernel", 3, "--tables", 1, "--table-schedules", 5)


def generated(kernels: Path, out: Path, *more: object) -> Ended:
    words = ("generate", "--from", kernels, "--out", out, "--device", CPU, "--schedules-per-kernel", 5)
    return ended(dataset, *map(str, (*words, "--predictor", "roofline", *more)))


def rows_of(out: Path) -> Counter[tuple[str, str, int]]:
    """How often each schedule of each kernel is in a journal, by trial."""
    return sum(by_target(out).values(), Counter())


def by_target(out: Path) -> dict[str, Counter[tuple[str, str, int]]]:
    """The same of each target; no row that counts is there twice."""
    query = f"SELECT target, region_id, schedule_body, trial FROM measurements WHERE {TRUSTED}"
    found: dict[str, Counter[tuple[str, str, int]]] = {}
    with sqlite3.connect(out) as journal, contextlib.suppress(sqlite3.OperationalError):  # it has no tables yet
        for target, *row in journal.execute(query):
            found.setdefault(target, Counter())[tuple(row)] += 1
    assert all(set(rows.values()) == {1} for rows in found.values())
    return found


def test_a_campaign_has_each_row_once_with_the_run_of_its_host(
    local: LocalFleet, kernels: Path, campaign: Path, tmp_path: Path
) -> None:
    out = shutil.copy(campaign, tmp_path / "j.sqlite")
    rows = rows_of(out)
    assert set(rows.values()) == {1} and len({region for region, _, _ in rows}) == 2
    with Journal.open(out, create=False) as journal:
        runs = journal.runs()
        of_rows = {record.run_id for record in measured(journal)}
        assert of_rows <= set(runs) and all(runs[run].description["fleet"] for run in of_rows)
        assert len(journal.targets()) == 1 and journal.lattices(*next(iter(identities(journal))))
    again = generated(kernels, out, "--fleet", local.address, *TABLE)
    assert "0 schedules measured" in again.stdout and rows_of(out) == rows


@pytest.mark.slow
def test_hosts_agree_with_the_one_that_a_journal_began_with(
    local: LocalFleet, kernels: Path, campaign: Path, tmp_path: Path
) -> None:
    out = Path(shutil.copy(campaign, tmp_path / "j.sqlite"))
    with forged(out) as journal:
        runs = [(run, json.loads(facts)) for run, facts in journal.execute("SELECT run_id, json FROM runs")]
        of_hosts = [facts[trust.REFERENCE] for _, facts in runs if trust.REFERENCE in facts]
        assert of_hosts and len({reference["run_id"] for reference in of_hosts}) == 1, "all agreed with one"
        for reference in of_hosts:
            for kernel in reference["kernels"]:
                kernel.update({name: kernel[name] * 1e3 for name in ("a_s", "b_s", "warm_s")})
        journal.executemany("UPDATE runs SET json = ? WHERE run_id = ?", [(json.dumps(f), run) for run, f in runs])
    rows = rows_of(out)
    refused = generated(kernels, out, "--fleet", local.address, *TABLE)
    assert refused.returncode == ExitCode.USAGE and rows_of(out) == rows
    assert "as long as the host that j.sqlite began with" in refused.stderr.splitlines()[-1]


@pytest.mark.slow
def test_binaries_are_timed_again_on_the_hosts(local: LocalFleet, alone: Path, tmp_path: Path) -> None:
    """By each host once: what a host's run timed is no other occasion for it."""
    out = shutil.copy(alone, tmp_path / "j.sqlite")
    before = sum(rows_of(out).values())
    again = ended(dataset, "retime", out, "--share", "1", "--device", CPU, "--fleet", local.address)
    assert again.returncode == 0 and again.stdout.endswith("complete\n"), again.stderr
    query = "SELECT run_id, region_id, schedule_body FROM measurements WHERE sampler = 'retime'"
    with sqlite3.connect(out) as journal:
        rows = journal.execute(query).fetchall()
        runs = {run: json.loads(facts) for run, facts in journal.execute("SELECT run_id, json FROM runs")}
    assert again.stdout.startswith(f"{len(rows)} schedules timed again") and 0 < len(rows) <= before
    assert all(runs[run]["fleet"] and runs[run]["retime"] == 1.0 for run, *_ in rows), "of the host that timed it"
    assert len({row[1:] for row in rows}) == len(rows)


def test_what_is_timed_again_by_who_drifts_is_doubtful(
    campaign: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = shutil.copy(campaign, tmp_path / "j.sqlite")
    monkeypatch.setattr(MeasureService, "settle", lambda service: service.on_doubt(service.run_id, 0.0, "it drifts"))
    done = retime(Retiming(Path(out), share=0.2, device=CPU), log=lambda line, eta_s: None)
    with Journal.open(out) as journal:
        assert done.measured > 0 and list(journal.doubtful_rows().values()) == [done.measured]


@pytest.mark.slow
def test_hosts_do_not_time_again_what_they_timed(local: LocalFleet, campaign: Path, tmp_path: Path) -> None:
    out = shutil.copy(campaign, tmp_path / "j.sqlite")
    none = ended(dataset, "retime", out, "--share", "1", "--device", CPU, "--fleet", local.address)
    assert none.returncode == 2 and "nothing to compare" in none.stderr.splitlines()[-1]


def measured(journal: Journal) -> Iterator[Any]:
    for target, toolchain in identities(journal):
        yield from journal.known(target, toolchain, 1)


def identities(journal: Journal) -> Iterator[tuple[str, str]]:
    for target in journal.targets():
        for toolchain in journal.toolchains():
            yield target, toolchain


@pytest.fixture(scope="module")
def trusted() -> Iterator[LocalFleet]:
    """A host that is as fast as ever, to which tests add others that are not."""
    with LocalFleet(CPU, 1, cores=1) as fleet:
        waited(lambda: [host["ready"] for host in read_status(fleet.address, None)["hosts"]] == [True])
        yield fleet


@pytest.mark.slow
def test_a_host_that_is_slow_is_refused_at_joining(trusted: LocalFleet) -> None:
    lines: list[str] = []
    with Fleet(trusted.address, log=lines.append) as fleet:
        (service,) = fleet.services(alive=trusted.check)
        with slow_host(trusted.address, CPU, slow_hosts.slow_clock, SLOW):
            waited(lambda: bool(lines))
        assert service.devices == 1 and service.device_error is None
    (line,) = lines
    assert line.startswith("a host is not used: worker tcp://127.0.0.1:") and "tcp://127.0.0.1:" in line[40:]
    assert ("has a canary of" in line or "times as long as" in line) and line.endswith("leave it out")


@pytest.mark.slow
def test_a_host_that_drifts_is_drained_and_others_measure_what_it_did(
    trusted: LocalFleet, kernels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its clock is slow from its first row on: at the latest the check at the end of the campaign sees it."""
    monkeypatch.setattr(trust, "RECHECK_S", 30.0)  # so both have work in hand before one of them is checked
    out = tmp_path / "j.sqlite"
    with slow_host(trusted.address, CPU, slow_hosts.slow_after_work, SLOW):
        done = generated(kernels, out, "--fleet", trusted.address, "--schedules-per-kernel", 12)
    assert done.returncode == 0 and "complete" in done.stdout, done.stderr
    lines = [line for line in done.stderr.splitlines() if "is drained" in line]
    assert len(lines) == 1, done.stderr
    (line,) = lines
    assert line.startswith("kcg: a host (") and "its rows since its last check are doubtful: its host" in line
    with Journal.open(out, create=False) as journal:
        ((doubt, rows),) = journal.doubtful_rows().items()
        assert rows > 0 and "127.0.0.1" not in doubt.why and doubt.run_id in journal.runs()
        good = list(measured(journal))
        assert doubt.run_id not in {row.run_id for row in good}
        schedules = Counter(row.region_id for row in good if not row.trial)
        assert list(schedules.values()) == [12, 12] and len({row.region_id for row in good if row.trial}) == 2
        assert all(journal.runs()[row.run_id].description["report"]["kernels"] for row in good)


@pytest.mark.slow
def test_a_host_is_checked_while_it_measures_and_measures_on(
    trusted: LocalFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trust, "RECHECK_S", 0.0)
    with Fleet(trusted.address, measure=tasks.echo) as fleet:
        (service,) = fleet.services(alive=trusted.check)
        (host,) = service.hosts
        first = fleet._admission.hosts[host.facts.run_id].passed_unix_s
        rows = 0
        while fleet._admission.hosts[host.facts.run_id].passed_unix_s == first:
            (future,) = service.measure(requests_of(service, 7, 1))
            rows += future.result(PATIENCE_S).status == Status.OK
        service.settle()
        assert rows and not host.unchecked and service.devices == 1
        assert host in service.hosts and service.device_error is None


@pytest.mark.slow
def test_what_one_driver_told_a_host_is_neither_shown_nor_denied_to_another(trusted: LocalFleet) -> None:
    """Both measure the same kernel. What a row of elsewhere is worth, each of them decides for itself."""
    lines: list[str] = []
    with Fleet(trusted.address, log=lines.append) as one, Fleet(trusted.address, log=lines.append) as other:
        ((first,), (second,)) = (fleet.services(alive=trusted.check) for fleet in (one, other))
        (request,) = requests_of(first, 70, 1)

        def run_of(service: FleetService, trial: int) -> str:
            (future,) = service.measure([replace(request, trial=trial)])
            return future.result(PATIENCE_S).run_id

        (future,) = first.measure([request])
        row = future.result(PATIENCE_S)
        (own,) = runs_of(first)
        assert own == row.run_id == run_of(second, 0), "the host's own timings are for all whom it serves"
        for trial in (1, 2):
            first.remember(replace(row, run_id="elsewhere", trial=trial))
        assert run_of(first, 1) == "elsewhere" and run_of(second, 1) == own
        second.remember(replace(row, run_id="elsewhere", trial=2))
        first.distrust("elsewhere")
        assert run_of(first, 2) == own and run_of(second, 2) == "elsewhere"
        assert (first.devices, second.devices, lines) == (1, 1, [])


def command(kernels: Path, out: Path) -> list[str]:
    words = f"generate --from {kernels} --out {out} --device {CPU} --fleet local --predictor roofline"
    return [sys.executable, "-m", "tests.fleet.lenient", "kcg.dataset", *words.split(), "--schedules-per-kernel", "16"]


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_driver_that_ends_takes_its_fleet_with_it_and_goes_on(
    how: signal.Signals, kernels: Path, tmp_path: Path
) -> None:
    out = tmp_path / "j.sqlite"
    words, pipe = command(kernels, out), subprocess.PIPE
    driver = subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True, cwd=ROOT)
    waited(lambda: out.exists() and len(rows_of(out)) > 3)
    started = everything_below(driver.pid)
    assert len(started) > 4, "the scheduler, the host, its worker, compilers and the device's child"
    driver.send_signal(how)
    _, said = driver.communicate(timeout=PATIENCE_S)
    if how == signal.SIGINT:
        assert driver.returncode == 130 and "what was measured is kept; to go on:" in said.splitlines()[-1]
        assert "Traceback" not in said
    waited(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started))
    kept = rows_of(out)
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=PATIENCE_S, cwd=ROOT)
    rows = rows_of(out)
    assert "complete" in done.stdout and kept <= rows and set(rows.values()) == {1}


def everything_below(pid: int) -> set[int]:
    """The processes that a process started, and those started."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            parents[int(entry.parent.name)] = int(entry.read_text().rpartition(")")[2].split()[1])
    below = {pid}
    while more := {child for child, parent in parents.items() if parent in below} - below:
        below |= more
    return below - {pid}


@pytest.mark.slow
def test_time_in_a_queue_is_no_time_of_a_candidate(local: LocalFleet, joined: Callable[..., FleetService]) -> None:
    """Both hosts stand still for longer than the request may take, with it in hand."""
    service = joined()
    requests = [replace(request, timeout_s=15.0) for request in requests_of(service, 60, 1)]
    pids = [host["pid"] for host in read_status(local.address, None)["hosts"]]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    futures = service.measure(requests)
    time.sleep(20.0)
    assert not any(future.done() for future in futures)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    assert [future.result(PATIENCE_S).status for future in futures] == [Status.OK]


def test_what_a_connection_leaves_behind_is_not_printed(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """A message that waits to be sent when its connection ends: its time-out is nobody's."""
    loop = asyncio.new_event_loop()
    for make_quiet in (False, True):
        if make_quiet:
            quiet(loop)
        loop.create_future().set_exception(TimeoutError())
        gc.collect()
    loop.close()
    assert [record.name for record in caplog.records] == ["asyncio"] and capfd.readouterr().err == ""


def test_nothing_is_left_behind_in_the_loop_of_a_driver_that_leaves(
    local: LocalFleet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Dask's sender waits for ten milliseconds between two messages: here that ends as the loop stops."""
    leave = Fleet._leave

    async def at_the_last_moment(fleet: Fleet) -> None:
        await leave(fleet)
        time.sleep(0.03)
        fleet._loop.call_soon(fleet._loop.stop)

    monkeypatch.setattr(Fleet, "_leave", at_the_last_moment)
    for _ in range(5):
        fleet = Fleet(local.address)
        fleet.close()
        assert fleet._loop.is_closed()
        del fleet
        gc.collect()
    assert caplog.messages == []


@pytest.mark.slow
def test_a_fleet_that_is_left_ends_what_was_asked_of_it(
    joined: Callable[..., FleetService], caplog: pytest.LogCaptureFixture
) -> None:
    """As `who_leaves_ends_all` has it by default, and nothing is logged of it."""
    service = joined()
    futures = service.measure(requests_of(service, 50, 2), together=True)
    service._fleet.close()
    assert {future.result(PATIENCE_S).status for future in futures} <= {Status.WORKER_DIED, Status.OK}
    assert isinstance(service.device_error, DeviceError)
    del service._fleet
    gc.collect()
    assert caplog.messages == []


# ---- at the end, since the fleet has two targets from here on, and then no scheduler


@pytest.fixture(scope="module")
def mixed(trusted: LocalFleet) -> LocalFleet:
    """Two hosts whose targets differ in their cache."""
    with pytest.MonkeyPatch.context() as changed:
        changed.setenv("KCG_CACHE_BYTES", str(16 << 20))
        trusted.add_host()
    waited(lambda: len({host["target"] for host in read_status(trusted.address, None)["hosts"] if host["ready"]}) == 2)
    return trusted


@pytest.mark.slow
def test_each_target_of_a_fleet_has_rows_of_its_own(mixed: LocalFleet, kernels: Path, tmp_path: Path) -> None:
    out = tmp_path / "j.sqlite"
    done = generated(kernels, out, "--fleet", mixed.address)
    assert done.returncode == 0 and "complete" in done.stdout, done.stderr
    rows = by_target(out)
    assert len(rows) == 2
    for of_one in rows.values():
        schedules = Counter(region for region, _, trial in of_one if not trial)
        assert list(schedules.values()) == [5, 5], "a row of one target does not stand for one of the other"


@pytest.mark.slow
def test_a_scheduler_that_dies_ends_the_driver_which_goes_on_later(
    mixed: LocalFleet, kernels: Path, tmp_path: Path
) -> None:
    out = tmp_path / "j.sqlite"
    more = ("--schedules-per-kernel", 8)

    def kill_it() -> None:
        waited(lambda: out.exists() and bool(by_target(out)))
        os.kill(mixed.pids[0], signal.SIGKILL)

    killer = threading.Thread(target=kill_it)
    killer.start()
    gone = generated(kernels, out, "--fleet", mixed.address, *more)
    killer.join()
    assert gone.returncode == 5, gone.stdout
    last = gone.stderr.splitlines()[-1]
    assert last.startswith(f"kcg: the scheduler at {mixed.address} is gone; what was measured is kept: run the same")
    kept = by_target(out)
    done = generated(kernels, out, *more)  # by this process alone: rows of a fleet are rows like any
    assert done.returncode == 0 and "complete" in done.stdout, done.stderr
    rows = by_target(out)
    assert kept and all(some <= rows[target] for target, some in kept.items())
