"""A fleet of two machines, as network namespaces: who is let in over the wire, and who is not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from kcg.fleet.certificates import make
from tests.fleet.namespaces import Host, network, not_permitted
from tests.slow import first_rows

pytestmark = pytest.mark.skipif(bool(not_permitted()), reason=not_permitted())

JOIN = """
import asyncio, sys
from pathlib import Path
from kcg.errors import KcgError
from kcg.fleet.security import require_scheduler, security_for

async def join(address, folder):
    from distributed import Client
    from kcg.fleet.servers import FleetWorker
    async with FleetWorker(address, security=security_for(address, folder / "worker"), nthreads=1) as worker:
        security = security_for(address, folder / "driver")
        async with Client(address, security=security, asynchronous=True) as client:
            print(worker.address in (await client.scheduler.identity(n_workers=-1))["workers"])

address, folder = sys.argv[1], Path(sys.argv[2])
try:
    require_scheduler(address, security_for(address, folder / "worker"), "worker")
    asyncio.run(join(address, folder))
except KcgError as error:
    print("kcg:", error, file=sys.stderr)
    raise SystemExit(2)
"""
"""What a worker and a driver do: in this order, from a folder of certificates."""

STOCK = """
import asyncio, sys
from distributed.comm import connect
from distributed.security import Security

async def ask(address, trusted, folder):
    arguments = {}
    if address.startswith("tls"):
        files = {"tls_client_cert": f"{folder}/worker.pem", "tls_client_key": f"{folder}/worker.key"}
        arguments = Security(tls_ca_file=trusted, **files).get_connection_args("client")
    comm = await connect(address, timeout=20, **arguments)
    await comm.write({"op": "identity"})
    print("answered", await comm.read())

asyncio.run(ask(*sys.argv[1:]))
"""
"""What somebody else does, with Dask alone: nothing on this side refuses anything."""


@dataclass(frozen=True)
class TwoMachines:
    """A machine with a scheduler, its log, another machine, and folders of certificates."""

    address: str
    other: Host
    log: Path
    keys: Path

    def joined(self, address: str, name: str) -> subprocess.CompletedProcess[str]:
        return self.other.run(sys.executable, "-W", "ignore", "-c", JOIN, address, self.keys / name)

    def asked(self, address: str, folder: Path) -> subprocess.CompletedProcess[str]:
        """What Dask alone gets; it accepts our schedulers."""
        trusted = self.keys / "ours" / "worker" / "ca.pem"
        return self.other.run(sys.executable, "-W", "ignore", "-c", STOCK, address, trusted, folder)


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoMachines]:
    folder = tmp_path_factory.mktemp("machines")
    make(folder / "ours", days=2)
    make(folder / "ours", days=1, hosts=["expired"], now=datetime.now(UTC) - timedelta(days=2))
    make(folder / "theirs", days=2)
    log = folder / "log"
    with network(2) as (first, second), log.open("w") as stderr:
        listen = f"tls://{first.address}:8786"
        words = ("-m", "kcg.fleet", "scheduler", "--listen", listen, "--certificates", folder / "ours" / "scheduler")
        process = first.start(sys.executable, *words, stderr=stderr)
        assert process.stdout is not None
        assert listen in process.stdout.readline(), log.read_text()
        yield TwoMachines(listen, second, log, folder)


def test_a_worker_and_a_driver_join_from_another_machine(machines: TwoMachines) -> None:
    done = machines.joined(machines.address, "ours")
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


@pytest.mark.slow
def test_who_has_another_authority_is_told_in_one_line(machines: TwoMachines) -> None:
    done = machines.joined(machines.address, "theirs")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "its certificate is refused here" in done.stderr


def test_plain_text_is_refused_on_both_sides(machines: TwoMachines) -> None:
    address = machines.address.replace("tls://", "tcp://")
    done = machines.joined(address, "ours")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "plain text is for one machine only" in done.stderr
    stock = machines.asked(address, machines.keys / "ours" / "worker")
    assert stock.returncode == 1 and "answered" not in stock.stdout


@pytest.mark.parametrize(
    ("folder", "why"),
    first_rows(1, [("theirs/worker", "certificate verify failed"), ("ours/expired", "certificate has expired")]),
)
def test_the_scheduler_refuses_a_certificate_by_itself(machines: TwoMachines, folder: str, why: str) -> None:
    """Whatever the other side checks: with one line in its own log."""
    before = machines.log.read_text()
    stock = machines.asked(machines.address, machines.keys / folder)
    assert stock.returncode == 1 and "answered" not in stock.stdout
    says = machines.log.read_text().removeprefix(before)
    assert "TLS handshake failed" in says and why in says and says.count("\n") == 1


def test_an_expired_certificate_is_not_even_tried(machines: TwoMachines) -> None:
    script = JOIN.replace('folder / "worker"', "folder")
    done = machines.other.run(sys.executable, "-c", script, machines.address, machines.keys / "ours" / "expired")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "expired on" in done.stderr


def test_the_network_is_gone_afterwards() -> None:
    with pytest.raises(RuntimeError), network(2) as hosts:
        process = hosts[0].start("sleep", "1000")
        names = [host.namespace for host in hosts]
        raise RuntimeError
    assert process.poll() is not None
    assert not {*names} & {path.name for path in Path("/run/netns").iterdir()}
