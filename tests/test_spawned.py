"""A pool that ends while its processes begin: nothing is printed."""

from __future__ import annotations

import os
import time
from multiprocessing.process import BaseProcess
from typing import Any

import pytest

from kcg.measure.spawned import end_pool, start_pool


def nothing() -> None:
    pass


@pytest.mark.parametrize("dies_first", [False, True])
def test_a_process_that_begins_while_its_pool_ends_prints_nothing(
    dies_first: bool, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a busy machine: the pool's locks are gone before the process looks for them, and the signal comes late."""
    from pebble.pool import process as pebble_process

    def late(worker: BaseProcess, stop: Any = pebble_process.stop_process) -> None:
        worker.join(5)  # what it does unless it is stopped
        stop(worker)

    pool = start_pool(1, nothing, ())
    if dies_first:
        with pytest.raises(Exception, match="Abnormal termination"):
            pool.schedule(os._exit, args=(5,)).result(timeout=60)
        time.sleep(0.05)  # until another is started in its place
    else:
        assert pool.active  # which starts it
    monkeypatch.setattr(pebble_process, "stop_process", late)
    end_pool(pool)
    assert capfd.readouterr().err == ""
