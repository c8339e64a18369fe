"""Processes that train networks beside one another: one alone cannot prepare batches fast enough for a GPU."""

from __future__ import annotations

import functools
import os
import threading
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import connection, get_context, parent_process
from pathlib import Path

from kcg.predictor.data import TrainingData, load


def workers(count: int) -> ProcessPoolExecutor:
    """A pool of new processes, which end when this one was killed, wherever they are."""
    return ProcessPoolExecutor(count, mp_context=get_context("spawn"), initializer=end_with_parent)


def end_with_parent() -> None:
    """Let this process end as soon as the one that started it has."""
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@functools.lru_cache(maxsize=1)
def dataset_of(folder: Path) -> TrainingData:
    """The rows of an export, loaded once for all that a process trains on them."""
    return load(folder)
