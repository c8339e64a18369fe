"""One optimisation at a time on a device, and in a folder."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kcg.errors import DeviceError, UsageError
from kcg.optimize import lock
from kcg.optimize.console import progress
from kcg.optimize.run import optimize
from kcg.optimize.session import Session
from kcg.optimize.settings import Settings

HOLD = """
import sys, time
from kcg.optimize.lock import alone_on
with alone_on(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A device that no other test knows of; its lock goes into the test's own folder."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return "CUDA"


@contextlib.contextmanager
def holder(device: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock until it is killed."""
    command = [sys.executable, "-c", HOLD, device]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def test_a_second_optimisation_is_refused_with_the_firsts_process_id(device: str) -> None:
    refused = r"process \d+\): wait until it ends, or add --wait"
    with holder(device) as first, pytest.raises(DeviceError, match=refused) as error, lock.alone_on(device):
        pass
    assert f"process {first.pid})" in str(error.value)
    with lock.alone_on(device):  # it went with the process, however that ended
        assert "process" in lock._holder(lock.path_of(device))


def test_one_process_at_a_time_measures_into_a_journal(device: str, tmp_path: Path) -> None:
    with lock.alone_with(tmp_path / "a.sqlite"), lock.alone_with(tmp_path / "b.sqlite"):
        refused = pytest.raises(UsageError, match=r"another process measures into .*a\.sqlite: wait until it ends")
        with refused, lock.alone_with(tmp_path / "c" / ".." / "a.sqlite"):
            pass
    with lock.alone_with(tmp_path / "a.sqlite"):
        pass


def test_who_waits_is_told_for_whom_and_goes_on_when_it_ends(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "POLL_S", 0.05)
    said = list[str]()
    with holder(device) as first:
        threading.Timer(0.5, first.kill).start()
        begin = time.monotonic()
        with lock.alone_on(device, wait=True, say=said.append):
            assert time.monotonic() - begin >= 0.4
    assert said == [f"waiting for process {first.pid}, which uses {device}"]


def test_devices_have_locks_of_their_own_and_a_cpu_none(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with lock.alone_on(device), lock.alone_on("AMD"), lock.alone_on("CPU:CLANG"), lock.alone_on("CPU:CLANG"):
        assert lock.path_of("CUDA") != lock.path_of("AMD")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert lock.path_of("CUDA").name.endswith("CUDA-3.lock")


def test_a_second_optimisation_in_a_folder_is_refused_before_it_touches_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = tmp_path / "journal.sqlite"
    journal.write_bytes(b"of the first")
    settings = Settings(str(Path(__file__).parent / "scripts" / "one_layer.py"), device="CPU", folder=tmp_path)
    monkeypatch.setattr(Session, "capture", lambda session: pytest.fail("it began"))
    refused = "another optimisation writes to .*: wait until it ends, add --wait, or choose another folder"
    with lock.alone_in(tmp_path), progress(quiet=True) as shown, pytest.raises(UsageError, match=refused):
        optimize(settings, shown)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"of the first"]
    monkeypatch.setattr(lock, "POLL_S", 0.05)
    said, first = list[str](), lock.alone_in(tmp_path)
    first.__enter__()  # it is free again
    threading.Timer(0.3, first.__exit__, (None, None, None)).start()
    with lock.alone_in(tmp_path, wait=True, say=said.append):
        assert said == [f"waiting for another optimisation, which writes to {tmp_path}"]
