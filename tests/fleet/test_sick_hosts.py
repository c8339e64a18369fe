"""A host that lives and cannot do what it is asked: others do it, and where none can it is said, and who could not."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kcg.dataset.__main__ import main as dataset
from kcg.dataset.journal import Journal
from kcg.errors import DeviceError, ExitCode, KcgError
from kcg.fleet import tasks
from kcg.fleet.local import LocalFleet
from kcg.fleet.service import MOST_HOSTS_LOST, Fleet
from kcg.fleet.status import read_status
from kcg.types import Status, Workload, WorkloadCall
from tests.commands import Ended, ended
from tests.conftest import CPU
from tests.fleet import asked, slow_hosts
from tests.fleet.regions import region_of
from tests.fleet.slow_hosts import FULL, slow_host
from tests.trusted import TRUSTED
from tests.waiting import waited

pytestmark = pytest.mark.usefixtures("neighbours")


@pytest.fixture(scope="module")
def sound() -> Iterator[LocalFleet]:
    """A host that can do everything, to which tests add one that cannot."""
    with LocalFleet(CPU, 1, cores=1) as fleet:
        waited(lambda: [host["ready"] for host in read_status(fleet.address, None)["hosts"]] == [True])
        yield fleet


@pytest.fixture(scope="module")
def scheduler() -> Iterator[str]:
    """The address of one without a host."""
    fleet = LocalFleet(CPU, 1, cores=1)
    fleet._devices = []
    with fleet:
        yield fleet.address


@pytest.mark.slow
def test_several_sick_hosts_do_not_end_a_driver_that_has_a_sound_one(sound: LocalFleet) -> None:
    """Nor where all of them are asked before the one that can, which joined last."""
    waited(lambda: len(read_status(sound.address, None)["hosts"]) == 1)  # those of other tests have left
    (first,) = (host["address"] for host in read_status(sound.address, None)["hosts"])
    with contextlib.ExitStack() as hosts:
        for _ in range(3):
            hosts.enter_context(slow_host(sound.address, CPU, slow_hosts.cannot_measure))
        fleet = hosts.enter_context(Fleet(sound.address, measure=tasks.echo))
        (service,) = fleet.services(4, alive=sound.check)
        service.hosts.sort(key=lambda host: host.address == first)
        assert asked.measured(service, *range(10, 22)) == [Status.OK] * 12
        assert service.device_error is None


@pytest.mark.slow
def test_where_no_host_can_measure_the_driver_ends_and_names_it(scheduler: str) -> None:
    with slow_host(scheduler, CPU, slow_hosts.cannot_measure), Fleet(scheduler, measure=tasks.echo) as fleet:
        (service,) = fleet.services()
        (host,) = service.hosts
        assert asked.measured(service, 5) == [Status.WORKER_DIED]
        said = str(service.device_error)
    assert isinstance(service.device_error, DeviceError) and "\n" not in said
    assert said.startswith(f"no host can measure {region_of(5).id[:12]}: worker {host.address}: OSError: ")
    assert FULL in said and said.endswith("run the same command again to go on")


@pytest.mark.slow
def test_what_a_sick_host_cannot_do_waits_for_one_that_is_gone(scheduler: str) -> None:
    """Not for ever. What it can do goes on meanwhile."""
    with (
        slow_host(scheduler, CPU, slow_hosts.cannot_draw),
        slow_host(scheduler, CPU, slow_hosts.cannot_draw),
        Fleet(scheduler, measure=tasks.echo, alone_s=3.0) as fleet,
    ):
        (service,) = fleet.services(2)
        one, other = service.hosts
        fleet._loop.call_soon_threadsafe(fleet._gone, other, "is gone")
        with pytest.raises(KcgError, match=f"worker {one.address}: .*{FULL}"):
            asked.drawn(service, 5)
        assert asked.measured(service, 5) == [Status.OK] and service.device_error is None


@pytest.mark.slow
def test_a_host_that_answers_no_check_is_not_waited_for(scheduler: str) -> None:
    """It would keep its neighbours from their checks, and a run from its end."""
    with slow_host(scheduler, CPU, slow_hosts.cannot_draw):
        (host,) = read_status(scheduler, None)["hosts"]
        os.kill(host["pid"], signal.SIGSTOP)
        try:
            with (
                Fleet(scheduler, measure=tasks.echo, check_s=1.0) as fleet,
                pytest.raises(KcgError, match=f"worker {host['address']} was not checked: it has not answered for 1 s"),
            ):
                fleet.services()
        finally:
            os.kill(host["pid"], signal.SIGCONT)


@pytest.mark.slow
def test_a_kernel_that_kills_hosts_ends_the_driver_which_names_it(scheduler: str) -> None:
    lines: list[str] = []
    with slow_host(scheduler, CPU, slow_hosts.dies), Fleet(scheduler, measure=tasks.echo, log=lines.append) as fleet:
        (service,) = fleet.services()
        assert asked.measured(service, 5) == [Status.WORKER_DIED]
        said = str(service.device_error)
    assert said.startswith(f"{MOST_HOSTS_LOST} hosts were lost over the kernel {region_of(5).id[:12]}")
    assert len(lines) == MOST_HOSTS_LOST and all("is gone; 1 batch in hand" in line for line in lines)


# ---- campaigns


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("sick") / "source.sqlite"
    with Journal.open(source) as journal:
        journal.add_workload(Workload("small", "x", tuple(WorkloadCall(region_of(size), 1) for size in (40, 48, 56))))
    return source


def generated(kernels: Path, out: Path, address: str) -> Ended:
    words = ("generate", "--from", kernels, "--out", out, "--device", CPU, "--schedules-per-kernel", 5)
    return ended(dataset, *map(str, (*words, "--predictor", "roofline", "--fleet", address)))


def schedules(out: Path) -> Counter[str]:
    """How many each kernel has in a journal; none that counts is there twice."""
    with contextlib.closing(sqlite3.connect(out)) as journal:
        query = f"SELECT region_id, schedule_body, trial FROM measurements WHERE {TRUSTED}"
        rows = journal.execute(query).fetchall()
    assert len(set(rows)) == len(rows)
    return Counter(region for region, _, trial in rows if not trial)


@pytest.mark.slow
@pytest.mark.parametrize("fault", [slow_hosts.cannot_measure, slow_hosts.cannot_answer, slow_hosts.cannot_draw])
def test_a_campaign_completes_beside_a_sick_host(
    sound: LocalFleet, fault: Callable[[], None], kernels: Path, tmp_path: Path
) -> None:
    """Of the service alone test_fleet has it by default: what one host cannot do another does."""
    with slow_host(sound.address, CPU, fault):
        done = generated(kernels, tmp_path / "j.sqlite", sound.address)
    assert done.returncode == 0 and done.stdout.endswith("complete\n"), done.stderr
    assert list(schedules(tmp_path / "j.sqlite").values()) == [5, 5, 5]
    assert FULL in done.stderr


@pytest.mark.slow
def test_a_campaign_that_nobody_draws_for_is_not_complete(
    scheduler: str, sound: LocalFleet, kernels: Path, tmp_path: Path
) -> None:
    out = tmp_path / "j.sqlite"
    with slow_host(scheduler, CPU, slow_hosts.cannot_draw):
        failed = generated(kernels, out, scheduler)
    assert failed.returncode == ExitCode.DEVICE_UNUSABLE and failed.stdout.endswith("; 3 kernels not complete\n")
    last = failed.stderr.splitlines()[-1]
    assert last.startswith("kcg: schedules of 3 kernels could not be drawn") and FULL in last and "tcp://" in last
    done = generated(kernels, out, sound.address)
    assert done.returncode == 0 and done.stdout.endswith("complete\n"), done.stderr
    assert list(schedules(out).values()) == [5, 5, 5]
