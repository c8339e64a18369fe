"""Pools of processes: forked by a server or begun afresh, they are the same, and end without a word."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import TimeoutError as FutureTimeout
from concurrent.futures import wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
from pebble import ProcessExpired

from kcg.measure import lifetime, pools
from kcg.measure.pools import end_pool, schedule, start_pool
from tests.commands import python
from tests.conftest import CPU
from tests.loaded import loaded
from tests.slow import first
from tests.waiting import PATIENCE_S, waited

linux = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere every process begins afresh")


def nothing() -> None:
    pass


def surroundings() -> dict[str, Any]:
    """What a child is: whom it descends from, and what of tinygrad is set in it."""
    import tinygrad.helpers as helpers
    from tinygrad import Device

    return {
        "parent": os.getppid(),
        "forked": lifetime.PRELOADED in sys.modules,
        "cache": helpers.CACHEDB,
        "debug": helpers.DEBUG.value,
        "beam": helpers.BEAM.value,
        "device": Device.DEFAULT,
        "dev": os.environ["DEV"],
        "said": os.environ.get("SAID"),
        "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "stdin": Path("/dev/fd/0").readlink(),
        "group": os.getpgid(0) == os.getpid(),
        "opened": sorted(Device._opened_devices),
    }


def test_a_compiler_has_loaded_what_its_first_job_needs(tmp_path: Path) -> None:
    """It reads that job under a lock of all compilers: whatever it imports then, these import one after the other."""
    pool = start_pool(1, lifetime.start_compiler, (CPU, os.getpid(), str(tmp_path / "cache.db")))
    try:
        job = schedule(pool, loaded, ("kcg.measure.child",), timeout_s=PATIENCE_S)
        assert job.result(timeout=PATIENCE_S) == [True]
    finally:
        end_pool(pool)


def seen_in_a_child(folder: Path, *gpu: str, **how: bool) -> dict[str, Any]:
    pool = start_pool(1, lifetime.start, (CPU, os.getpid(), str(folder / "cache.db"), *gpu), **how)
    try:
        found: dict[str, Any] = pool.schedule(surroundings).result(timeout=PATIENCE_S)
        return found
    finally:
        end_pool(pool)


def die() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


@linux
def test_a_job_that_its_child_died_of_was_taken_whatever_is_heard_first(tmp_path: Path) -> None:
    """On a busy machine a pool sees that its child is gone before it has read that the child took the job."""
    pool = start_pool(1, lifetime.start, (CPU, os.getpid(), str(tmp_path / "cache.db")))
    try:
        manager, died, deaf = pool._pool_manager, threading.Event(), threading.Event()
        assert pool.schedule(os.getpid).result(timeout=PATIENCE_S)
        read, expired = manager.process_next_message, manager.handle_worker_expiration

        def reads(timeout: float) -> None:
            deaf.set()
            assert died.wait(PATIENCE_S)
            read(timeout)

        def is_gone(expiration: Any) -> None:
            threading.Timer(0.3, died.set).start()
            expired(expiration)

        manager.process_next_message, manager.handle_worker_expiration = reads, is_gone
        assert deaf.wait(PATIENCE_S)
        job = schedule(pool, die, (), timeout_s=PATIENCE_S)
        assert isinstance(error := job.exception(timeout=PATIENCE_S), ProcessExpired), error
        assert error.exitcode == -signal.SIGSEGV
    finally:
        end_pool(pool)


@linux
def test_a_child_that_died_at_nothing_is_no_fault_of_the_job_that_waits(tmp_path: Path) -> None:
    pool = start_pool(1, lifetime.start, (CPU, os.getpid(), str(tmp_path / "cache.db")))
    try:
        manager = pool._pool_manager
        child, dispatch = pool.schedule(os.getpid).result(timeout=PATIENCE_S), manager.worker_manager.dispatch

        def too_late(task: Any) -> None:
            os.kill(child, signal.SIGKILL)
            waited(lambda: not manager.context.alive)

        manager.worker_manager.dispatch = too_late
        assert isinstance(schedule(pool, os.getpid, (), timeout_s=PATIENCE_S).exception(PATIENCE_S), BrokenProcessPool)
        manager.worker_manager.dispatch = dispatch
    finally:
        end_pool(pool)


@pytest.fixture
def forking(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server of this environment: the test that started this process's may have had another one."""
    pools._server.may_fork()
    monkeypatch.setattr(pools._server, "_environment", pools._environment())


@linux
@pytest.mark.usefixtures("forking")
def test_a_forked_child_is_what_one_begun_afresh_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEBUG", "3")  # the user's own
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # as PyTorch does once it is imported
    monkeypatch.setenv("DASK_LOGGING__DISTRIBUTED", "error")  # as a fleet does
    monkeypatch.setenv("WANDB_SILENT", "false")  # as a run does that is tracked
    forked, afresh = seen_in_a_child(tmp_path, fork=True), seen_in_a_child(tmp_path)
    assert forked.pop("forked") and not afresh.pop("forked")
    assert forked.pop("parent") != afresh.pop("parent") == os.getpid(), "a server forked it"
    assert forked == afresh
    messages = [forked[name] for name in ("cache", "debug", "beam", "device", "dev", "group", "opened")]
    assert messages == [str(tmp_path / "cache.db"), 0, 0, "CPU", CPU, True, []]


@linux
@pytest.mark.usefixtures("forking")
def test_a_child_has_the_environment_of_its_parent_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert seen_in_a_child(tmp_path, fork=True)["said"] is None
    monkeypatch.setenv("SAID", "later")
    messages = seen_in_a_child(tmp_path, fork=True)
    assert messages["said"] == "later" and not messages["forked"], "the server knows nothing of it"


@linux
@pytest.mark.usefixtures("forking")
@pytest.mark.parametrize("fork", first(1, [True, False]))
def test_a_child_sees_the_gpu_that_it_is_to_use(tmp_path: Path, fork: bool) -> None:
    messages = seen_in_a_child(tmp_path, "GPU-5", fork=fork)
    assert messages["gpus"] == "GPU-5" != os.environ.get("CUDA_VISIBLE_DEVICES")
    assert messages["forked"] is fork and messages["opened"] == [], "before a device is opened"


@pytest.mark.slow
@linux
def test_nothing_is_forked_where_a_program_has_a_fork_server_of_its_own(tmp_path: Path) -> None:
    """It has not loaded what a child needs, and a child would not know whose end to wait for."""
    program = f"""
import multiprocessing, os
from pathlib import Path
if __name__ == "__main__":
    process = multiprocessing.get_context("forkserver").Process(target=print, args=["theirs"])
    process.start()
    process.join()
    from tests.measure.test_pools import seen_in_a_child
    print(seen_in_a_child(Path({str(tmp_path)!r}), fork=True)["forked"])
"""
    (tmp_path / "program.py").write_text(program)
    done = python(tmp_path / "program.py")
    assert (done.stdout.split(), done.stderr) == (["theirs", "False"], "")


@pytest.mark.slow
def test_a_script_that_guards_nothing_is_not_run_again_by_its_children(tmp_path: Path) -> None:
    """A function of a library may start children, whoever calls it; processes of the program's own import it."""
    program = f"""
print("begun")
import multiprocessing
from multiprocessing import spawn
from pathlib import Path
from tests.measure.test_pools import seen_in_a_child
for fork in (False, True):
    seen_in_a_child(Path({str(tmp_path)!r}), fork=fork)
print("init_main_from_path" in spawn.get_preparation_data("theirs"))
"""
    (tmp_path / "program.py").write_text(program)
    done = python(tmp_path / "program.py")
    assert (done.stdout.split(), done.stderr) == (["begun", "True"], "")


@linux
def test_a_fork_server_that_still_dies_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connections are closed before it is gone: who asked at once, as often as servers may fail, asked the same."""
    with subprocess.Popen(["sleep", "600"]) as dying:
        monkeypatch.setattr(pools, "_server_pid", lambda: dying.pid)
        monkeypatch.setattr(pools, "DYING_S", 60.0)
        threading.Timer(0.3, dying.kill).start()
        with pytest.raises(EOFError), pools._Server().watched():
            raise EOFError
        assert pools._state(dying.pid) == "Z", "it has ended, and nobody has buried it"
        assert dying.wait() < 0 and pools._state(dying.pid) == ""


def test_a_fork_server_that_lives_on_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "_server_pid", os.getpid)
    monkeypatch.setattr(pools, "DYING_S", 0.01)
    with pytest.raises(OSError, match="too many open files"), pools._Server().watched():
        raise OSError("too many open files")


@pytest.mark.parametrize("dies_first", [False, True])
@pytest.mark.parametrize("fork", first(1, [pytest.param(True, marks=linux), False]))
def test_a_process_that_begins_while_its_pool_ends_prints_nothing(
    fork: bool, dies_first: bool, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a busy machine: the pool's locks are gone before the process looks for them, and the signal comes late."""
    from pebble.pool import process as pebble_process

    def late(worker: BaseProcess, stop: Any = pebble_process.stop_process) -> None:
        worker.join(5)  # what it does unless it is stopped
        stop(worker)

    pool = start_pool(1, nothing, (), fork=fork)
    if dies_first:
        with pytest.raises(Exception, match="Abnormal termination"):
            pool.schedule(os._exit, args=(5,)).result(timeout=PATIENCE_S)
        time.sleep(0.05)  # until another is started in its place
    else:
        assert pool.active  # which starts it
    monkeypatch.setattr(pebble_process, "stop_process", late)
    end_pool(pool)
    assert capfd.readouterr().err == ""


STEPS_S = {"ahead": lambda: 600.0, "back": lambda: -600.0, "zigzag": itertools.cycle((600.0, -600.0, 0.0)).__next__}


@pytest.mark.slow
@pytest.mark.parametrize("step_s", first(1, STEPS_S.values()), ids=STEPS_S)
def test_a_step_of_the_wall_clock_ends_no_job_and_a_hung_one_all_the_same(
    step_s: Callable[[], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """NTP, a virtual machine that goes on, a user. A job that is well gets its time, and one that hangs no more."""
    real = time.time
    pool = start_pool(2, nothing, ())
    try:
        well = schedule(pool, time.sleep, (0.5,), timeout_s=300.0)
        hung = schedule(pool, time.sleep, (600.0,), timeout_s=1.0)
        for job in (well, hung):
            while not (job.running() or job.done()):
                time.sleep(0.01)
        monkeypatch.setattr(time, "time", lambda: real() + step_s())
        assert well.result(timeout=120) is None
        assert wait([hung], timeout=120).done, "nobody ends it"
        assert isinstance(hung.exception(), FutureTimeout)
        assert schedule(pool, os.getpid, (), timeout_s=300.0).result(timeout=120) != os.getpid(), (
            "another took its place"
        )
    finally:
        end_pool(pool)
