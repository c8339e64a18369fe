"""What runs twice from the same memory leaves what it would leave, and fills what was not there."""

from __future__ import annotations

import numpy as np
import pytest
from tinygrad import Tensor, dtypes

from kcg.compat import lockstep
from kcg.compat.tiny import Buffer, Device
from tests.commands import python

UNSEEN = """
import json, sys
import numpy as np
from tests.judge import mutated_training
from kcg.compat import lockstep
if sys.argv[1] == "alone":
    lockstep._is_due = lambda count: False
found = []
mutated_training.Loop().check("", (1.0, 0.0), optimiser="adam", unoptimised=True, left=found)
print(json.dumps([[str(one.dtype), one.tobytes().hex()] for one in found]))
"""


@pytest.mark.slow
def test_comparing_steps_changes_nothing_that_a_program_computes() -> None:
    """Bit by bit: the losses and weights of a training loop with dropout, and Adam's state."""
    alone, compared = (python("-c", UNSEEN, how, DEV="CPU:X86") for how in ("alone", "compared"))
    assert alone.stdout.splitlines()[-1] == compared.stdout.splitlines()[-1], compared.stderr
    assert len(alone.stdout) > 1000


def test_memory_is_put_back_and_what_was_not_there_is_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lockstep, "ONES_BYTES", 24)
    there = Tensor(np.arange(10, dtype=np.float32)).contiguous().realize().uop.base.buffer
    absent = [Buffer(Device.DEFAULT, size, dtypes.float32) for size in (3, 10)]
    saved = lockstep._Saved([there, *absent, there])
    there.copy_from(Tensor(np.zeros(10, np.float32)).contiguous().realize().uop.base.buffer)
    for _ in range(2):
        saved.put_back()
        assert there.numpy().tolist() == list(range(10))
        assert all(np.isnan(one.numpy()).all() for one in absent)
        absent[1].copy_from(there)


def test_of_a_large_buffer_its_beginning_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lockstep, "SHAKEN_BYTES", 16)
    buffer = Tensor(np.ones(10, np.float32)).contiguous().realize().uop.base.buffer
    assert lockstep.shake(lockstep._beginning(buffer), seed=1) == 4
    assert (buffer.numpy() != 1).tolist() == [True] * 4 + [False] * 6
    assert lockstep._beginning(small := Buffer(Device.DEFAULT, 4, dtypes.float32).allocate()) is small


def test_powers_of_two_are_due() -> None:
    assert [count for count in range(1, 40) if lockstep._is_due(count)] == [1, 2, 4, 8, 16, 32]
