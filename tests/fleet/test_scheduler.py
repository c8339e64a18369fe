"""`kcg fleet scheduler`: what it listens on, what it refuses to, and how it ends."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from kcg.fleet.__main__ import main
from kcg.fleet.certificates import make
from tests.commands import ended, python

ENDS_S = 120


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_says_where_to_join_and_ends_cleanly(number: int) -> None:
    command = [sys.executable, "-m", "kcg.fleet", "scheduler", "--listen", "tcp://127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            process.send_signal(number)
            out, err = process.communicate(timeout=ENDS_S)
        finally:
            process.kill()
    address = line.split()[3]
    assert (
        address.startswith("tcp://127.0.0.1:")
        and f"kcg fleet worker {address}" in line
        and f"--fleet {address}" in line
    )
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


def test_a_port_that_is_taken_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        done = python("-m", "kcg.fleet", "scheduler", "--listen", f"tcp://127.0.0.1:{server.getsockname()[1]}")
    assert done.returncode == 2
    assert done.stderr.endswith("in use: give another --listen\n") and done.stderr.count("\n") == 1
