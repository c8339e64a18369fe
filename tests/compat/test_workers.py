"""tinygrad's own pool of compiling processes."""

from __future__ import annotations

import pytest

from tests.commands import python

POOL = """
import gc, sys
from kcg.compat.workers import compile_without_collecting
if sys.argv[1:]:
    compile_without_collecting()
from tinygrad.engine.worker import get_worker_pool
own = "__import__('tinygrad.helpers').helpers.ALLOW_DEVICE_USAGE.value"
print(get_worker_pool().apply(gc.isenabled), get_worker_pool().apply(eval, (own,)))
"""


@pytest.mark.slow
def test_its_processes_look_for_no_circles_of_garbage_and_are_set_up_as_ever() -> None:
    told, untold = python("-c", POOL, "told", PARALLEL="1"), python("-c", POOL, PARALLEL="1")
    assert told.stdout == "False 0\n", told.stderr
    assert untold.stdout == "True 0\n", untold.stderr
