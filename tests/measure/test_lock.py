"""One optimisation at a time on a device, and in a folder."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kcg.errors import DeviceError, UsageError
from kcg.measure import lock
from kcg.optimize import run as run_module
from kcg.optimize.console import progress
from kcg.optimize.run import optimize
from kcg.optimize.settings import Settings
from tests.waiting import PATIENCE_S

UUID = "4f5e5ad6-2c4b-5a43-a1c9-5d7f0a0f2b44"
HOLD = """
import sys, time
from kcg.measure.lock import lock_device
with lock_device(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A device that no other test knows of; its lock goes into the test's own folder."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
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
    with holder(device) as first, pytest.raises(DeviceError, match=refused) as error, lock.lock_device(device):
        pass
    assert f"process {first.pid})" in str(error.value)
    with lock.lock_device(device):  # it went with the process, however that ended
        assert "process" in lock._holder(lock.path_of(device))


def test_one_process_at_a_time_measures_into_a_journal(device: str, tmp_path: Path) -> None:
    with lock.lock_journal(tmp_path / "a.sqlite"), lock.lock_journal(tmp_path / "b.sqlite"):
        refused = pytest.raises(UsageError, match=r"another process measures into .*a\.sqlite: wait until it ends")
        with refused, lock.lock_journal(tmp_path / "c" / ".." / "a.sqlite"):
            pass
    with lock.lock_journal(tmp_path / "a.sqlite"):
        pass


def test_who_waits_knows_for_whom_and_goes_on_when_it_ends(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "POLL_S", 0.05)
    lines = list[str]()
    with holder(device) as first:

        def told(line: str) -> None:
            lines.append(line)
            first.kill()

        with lock.lock_device(device, wait=True, log=told):
            assert first.wait(PATIENCE_S) == -signal.SIGKILL
    assert lines == [f"waiting for process {first.pid}, which uses {device}"]


def test_devices_have_locks_of_their_own_and_a_cpu_none(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        lock.lock_device(device),
        lock.lock_device("AMD"),
        lock.lock_device("CPU:CLANG"),
        lock.lock_device("CPU:CLANG"),
    ):
        assert lock.path_of("CUDA") != lock.path_of("AMD")


def test_one_gpu_has_one_lock_whatever_it_is_called(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = {"": UUID, "0": UUID, f"GPU-{UUID}": UUID, "1": UUID.replace("4", "5")}
    monkeypatch.setattr(lock, "cuda_uuid", lambda gpu=0: shown[os.environ.get("CUDA_VISIBLE_DEVICES", "")])
    with lock.lock_device("CUDA"):
        for name in ("0", f"GPU-{UUID}"):
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", name)
            refused = pytest.raises(DeviceError, match=rf"process {os.getpid()}\): wait")
            with refused, lock.lock_device("CUDA:PTX"):
                pass
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
        with lock.lock_device("CUDA"):
            assert lock.path_of("AMD").name.endswith("AMD-1.lock"), "others go by the text"
    monkeypatch.setattr(lock, "cuda_uuid", lambda gpu=0: None)  # an old driver
    assert lock.path_of("CUDA").name.endswith("CUDA-1.lock")


def test_every_gpu_that_is_used_is_locked(device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "cuda_uuid", lambda gpu=0: str(9 - gpu))
    with lock.lock_device("CUDA", gpus=2):
        assert {path.name for path in tmp_path.iterdir()} == {"kcg-GPU-9.lock", "kcg-GPU-8.lock"}
        for gpus, named in ((1, "CUDA"), (2, "GPU 1 of CUDA")):  # in the order of the files, as everybody takes them
            refused = pytest.raises(DeviceError, match=rf"uses {named} \(process {os.getpid()}\): wait")
            with refused, lock.lock_device("CUDA", gpus=gpus):
                pass
    with lock.lock_device("CUDA"):
        pass
    monkeypatch.setattr(lock, "cuda_uuid", lambda gpu=0: None)  # an old driver
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    assert lock.path_of("CUDA", 1).name.endswith("CUDA-6.lock")


def test_the_lock_of_a_gpu_is_for_all_users(device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "cuda_uuid", lambda gpu=0: UUID)
    with lock.lock_device("CUDA"):
        (file,) = tmp_path.iterdir()
        assert file.name == f"kcg-GPU-{UUID}.lock" and file.stat().st_mode & 0o777 == 0o666


@pytest.mark.parametrize("put_there", ["a link", "a second name", "a folder", "a queue"])
def test_what_another_user_put_in_its_place_is_not_written(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, put_there: str
) -> None:
    monkeypatch.setattr(lock, "cuda_uuid", lambda gpu=0: UUID)
    victim, place = tmp_path / "victim", lock.path_of("CUDA")
    victim.write_text("precious")
    put = {"a link": place.symlink_to, "a second name": place.hardlink_to}
    put.get(put_there, lambda _: os.mkfifo(place) if put_there == "a queue" else place.mkdir())(victim)
    with lock.lock_device("CUDA"), pytest.raises(DeviceError, match=f"process {os.getpid()}"), lock.lock_device("CUDA"):
        pass
    assert victim.read_text() == "precious" and (tmp_path / f"kcg-{os.getuid()}-GPU-{UUID}.lock").exists()


def test_a_second_optimisation_in_a_folder_is_refused_before_it_touches_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = tmp_path / "journal.sqlite"
    journal.write_bytes(b"of the first")
    settings = Settings(str(Path(__file__).parents[1] / "scripts" / "one_layer.py"), device="CPU", folder=tmp_path)
    monkeypatch.setattr(run_module, "capture", lambda *steps, **rest: pytest.fail("it began"))
    refused = "another optimisation writes to .*: wait until it ends, add --wait, or choose another folder"
    with lock.lock_folder(tmp_path), progress(quiet=True) as shown, pytest.raises(UsageError, match=refused):
        optimize(settings, shown)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"of the first"]
    monkeypatch.setattr(lock, "POLL_S", 0.05)
    lines, first = list[str](), lock.lock_folder(tmp_path)
    first.__enter__()  # it is free again

    def told(line: str) -> None:
        lines.append(line)
        first.__exit__(None, None, None)

    with lock.lock_folder(tmp_path, wait=True, log=told):
        assert lines == [f"waiting for another optimisation, which writes to {tmp_path}"]
