"""`kcg fleet scheduler`: what it listens on, what it refuses to, and how it ends."""

from __future__ import annotations

import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from kcg.fleet.__main__ import main
from kcg.fleet.certificates import make
from tests.commands import ended, python
from tests.slow import first_rows

ENDS_S = 120


def _has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


NEEDS_IPV6 = pytest.mark.skipif(not _has_ipv6(), reason="no IPv6 here")
IPV6 = pytest.param(signal.SIGINT, "[::1]", marks=[NEEDS_IPV6, pytest.mark.slow])


@pytest.mark.parametrize(
    ("number", "host"), first_rows(1, [(signal.SIGTERM, "127.0.0.1"), (signal.SIGINT, "127.0.0.1"), IPV6])
)
def test_it_says_where_to_join_and_ends_cleanly(number: int, host: str) -> None:
    command = [sys.executable, "-m", "kcg.fleet", "scheduler", "--listen", f"tcp://{host}:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if host == "[::1]":
                shown = ended(main, "status", shlex.split(line)[3])
                assert (shown.returncode, shown.stderr) == (0, "") and "0 hosts" in shown.stdout
            process.send_signal(number)
            out, err = process.communicate(timeout=ENDS_S)
        finally:
            process.kill()
    address = shlex.split(line)[3]
    shown = shlex.quote(address)
    assert address.startswith(f"tcp://{host}:") and f"kcg fleet worker {shown}" in line and f"--fleet {shown}" in line
    assert (process.returncode, out, err) == (0, "", "")


def test_it_listens_to_other_machines_with_tls_only(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    make(keys, days=2)
    for arguments, words in (
        (["--listen", "tcp://0.0.0.0:8786"], "plain text is for one machine only"),
        (["--listen", "0.0.0.0:8786"], "is no address"),
        (["--listen", "tls://0.0.0.0:8786", "--certificates", keys], "name one of its folders"),
        (
            ["--listen", "tls://0.0.0.0:8786", "--certificates", keys / "worker"],
            "scheduler.pem is not there",
        ),
    ):
        done = ended(main, "scheduler", *arguments)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert words in done.stderr


@pytest.mark.slow
@NEEDS_IPV6
def test_it_listens_on_every_address_of_ipv6(tmp_path: Path) -> None:
    """Dask is given such an address, and names one of this machine's: nothing is said of it but where to join."""
    make(tmp_path / "keys", days=2)
    command = [sys.executable, "-m", "kcg.fleet", "scheduler", "--listen", "tls://[::]:0"]
    command += ["--certificates", str(tmp_path / "keys" / "scheduler")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=ENDS_S)
        finally:
            process.kill()
    assert "tls://[" in line and (process.returncode, err) == (0, "")


@pytest.mark.slow
def test_a_port_that_is_taken_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        done = python("-m", "kcg.fleet", "scheduler", "--listen", f"tcp://127.0.0.1:{server.getsockname()[1]}")
    assert done.returncode == 2
    assert done.stderr.endswith("in use: give another --listen\n") and done.stderr.count("\n") == 1
