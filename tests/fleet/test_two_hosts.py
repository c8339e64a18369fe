"""A campaign on two hosts in network namespaces, by the commands that users run; one host is cut off on the way."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from kcg.dataset.journal import Journal
from kcg.fleet.certificates import make
from kcg.kernel.codec import kernel_of
from kcg.types import Region, Workload, WorkloadCall
from tests.conftest import CPU
from tests.fleet.namespaces import Host, network, not_permitted
from tests.kernels import empty, kernels_of
from tests.rules import ROOT
from tests.trusted import TRUSTED
from tests.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.skipif(bool(not_permitted()), reason=not_permitted())

SCHEDULES = 9  # of each of two kernels: two batches, each with a draw
SCHEDULER = """
from kcg.fleet import settings
settings.SETTINGS["distributed.scheduler.worker-ttl"] = "20s"
from kcg.fleet.__main__ import main
main()
"""
"""`kcg fleet scheduler`, which waits for twenty seconds only until a host that is silent is lost."""


WAIT = """
import sys, time
from pathlib import Path
from kcg.fleet.settings import configure
from kcg.fleet.status import read_status
address, keys, count = sys.argv[1:]
configure()
while sum(host["ready"] for host in read_status(address, Path(keys))["hosts"]) < int(count):
    time.sleep(0.2)
"""
"""Until so many hosts have opened their devices: one process, since `kcg fleet status` takes a second to start."""


@dataclass(frozen=True)
class Site:
    """A machine with a scheduler, two that measure, and where certificates and logs are."""

    address: str
    first: Host
    workers: list[Host]
    folder: Path

    def keys(self, role: str, of: str = "ours") -> tuple[object, ...]:
        return ("--certificates", self.folder / of / role)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    for name in ("ours", "theirs"):
        make(folder / name, days=2)
    with network(3) as (first, *workers), (folder / "log").open("w") as log:
        one = Site(f"tls://{first.address}:8786", first, workers, folder)
        words = ("scheduler", "--listen", one.address, *one.keys("scheduler"))
        scheduler = first.start(sys.executable, "-c", SCHEDULER, *words, stderr=log)
        assert scheduler.stdout is not None and one.address in scheduler.stdout.readline()
        for worker in workers:
            words = ("worker", one.address, "--device", CPU, "--cores", 1, *one.keys("worker"))
            worker.start(sys.executable, "-m", "kcg.fleet", *words, stderr=log)
        yield one


@pytest.mark.slow
def test_certificates_of_another_authority_are_refused(site: Site) -> None:
    for role, *words in (
        ("worker", "kcg.fleet", "worker", site.address),
        ("driver", "kcg.fleet", "status", site.address),
    ):
        done = site.workers[0].run(sys.executable, "-m", *words, *site.keys(role, "theirs"))
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert "its certificate is refused here" in done.stderr


@pytest.mark.slow
def test_a_campaign_completes_though_a_host_is_cut_off(site: Site, tmp_path: Path) -> None:
    """By default it is in parts: that hosts of other machines join (test_namespaces), that one which was killed loses
    nothing, and that a campaign of two completes (test_fleet)."""
    source, out, log = (tmp_path / name for name in ("source.sqlite", "out.sqlite", "log"))
    with Journal.open(source) as journal:
        regions = [Region((kernel_of(kernels_of(empty(size, 3) + size)[0]),)) for size in (40, 48)]
        journal.add_workload(Workload("small", "x", tuple(WorkloadCall(region, 1) for region in regions)))
    words = ("generate", "--from", source, "--out", out, "--fleet", site.address, *site.keys("driver"))
    words = (*words, "--schedules-per-kernel", SCHEDULES, "--predictor", "roofline")
    wait_for_hosts(site)  # then the driver begins once it has checked both
    with log.open("w") as stderr:
        driver = site.first.start(
            sys.executable, "-m", "tests.fleet.lenient", "kcg.dataset", *words, stderr=stderr, cwd=ROOT
        )
        wait_for_row(out, driver, log)
        site.workers[1].disconnect()
        said, _ = driver.communicate(timeout=PATIENCE_S)
    assert driver.returncode == 0 and "complete" in said, log.read_text()
    assert "is gone" in log.read_text(), "it had work in hand, which the other one did"
    assert set(rows_of(out).values()) == {1} and len(rows_of(out)) >= 2 * SCHEDULES


def rows_of(out: Path) -> Counter[tuple[str, int]]:
    """How often each identity is in a journal, by trial."""
    with closing(sqlite3.connect(out)) as journal:
        query = f"SELECT hex(identity), trial FROM measurements WHERE {TRUSTED}"
        return Counter(journal.execute(query).fetchall())


def wait_for_hosts(site: Site) -> None:
    _, keys = site.keys("driver")
    words = (site.address, keys, len(site.workers))
    done = site.first.run(sys.executable, "-W", "ignore", "-c", WAIT, *words, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr + (site.folder / "log").read_text()


def wait_for_row(out: Path, driver: subprocess.Popen[str], log: Path) -> None:
    def has_rows() -> bool:
        with suppress(sqlite3.OperationalError):  # it has no tables yet
            return out.exists() and bool(rows_of(out))
        return False

    assert wait_until(lambda: has_rows() or driver.poll() is not None) and has_rows(), log.read_text()
