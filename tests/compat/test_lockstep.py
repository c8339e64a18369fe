"""What runs twice from the same memory leaves what it would leave, and fills what was not there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tinygrad import Tensor, dtypes

from kcg.compat import lockstep
from kcg.compat.observing import StepMemory
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
seen = mutated_training.Loop().check("", (1.0, 0.0), optimiser="adam", unoptimised=True, left=found)
assert seen.passed is (None if sys.argv[1] == "alone" else True), seen
print(json.dumps([[str(one.dtype), one.tobytes().hex()] for one in found]))
"""


REGION = """
import contextlib, sys
from tinygrad import Tensor, TinyJit
from kcg.compat.lockstep import Lockstep
from kcg.compat.observing import Observer
from kcg.compat.replacing import Replacement
from kcg.handover.installing import installing, placed_program
from kcg.judge.lockstep import Steps
from kcg.kernel.sums import summed_otherwise
from tests.compat.test_replacing import ROWS, WIDTH, X86, chain, empty, fused, program_of, region_of, values
from tests.judge.mutated_training import ROUNDING

factor = float(sys.argv[1])
region = region_of(chain(empty(ROWS, WIDTH)))
program = program_of(region, {1: empty(ROWS, WIDTH)}, lambda x: {3: fused(x) * factor})
is_own, steps, seen = [], Steps(ROUNDING, seed=0), []

@contextlib.contextmanager
def own():
    is_own.append(True)
    yield
    is_own.pop()

def prepare():
    replaced = installing([Replacement(region, placed_program(region, program, X86, False))], is_off=lambda: is_own)
    observer._stays.enter_context(replaced)
    lockstep.watch_planning()

def judge(step):
    seen.append(step)
    steps.judge(step)

observer = Observer(lambda ast: "", prepare, seed=1)
lockstep = Lockstep(own, frozenset([region.id]), judge, otherwise=summed_otherwise, most_bytes=1 << 28)
stays = [observer.watch(), lockstep.watch()]
step = TinyJit(lambda x: chain(x).realize())
for seed in range(4):
    step(values(seed))
check = steps.check([region.id], why_not=lockstep.why_not)
print(check.passed, len(seen), check.reason)
"""


ROUNDED = """
import contextlib
import numpy as np
from tinygrad import Tensor, TinyJit
from kcg.compat.lockstep import Lockstep
from kcg.compat.observing import Observer
from kcg.kernel.sums import summed_otherwise
from tests.judge.mutated_training import _Everything

seen = []

def judge(step):
    one, same, another = (step.rounded(seed, [0])[0].values for seed in (1, 1, 2))
    own = step.trial.own[0].values
    assert np.array_equal(one, same) and not np.array_equal(one, another)
    seen.append([float(np.abs(value / own - 1).max()) for value in (one, another)])

observer = Observer(lambda ast: "kernel", lambda: lockstep.watch_planning(), seed=1)
own = contextlib.nullcontext
lockstep = Lockstep(own, _Everything(), judge, otherwise=summed_otherwise, most_bytes=1 << 28)
stays = [observer.watch(), lockstep.watch()]
step = TinyJit(lambda x: (x.sum(1) * 3).contiguous().sqrt().realize())
given = [Tensor(np.random.default_rng(seed).random((8, 4096), np.float32)).realize() for seed in range(3)]
made = [step(x).numpy() for x in given]
wanted = [np.sqrt(3 * x.numpy().sum(1)) for x in given]
assert not lockstep.why_not, lockstep.why_not
assert np.allclose(made, wanted, rtol=1e-6), "the program goes on as if nothing had been"
print(len(seen), min(map(min, seen)), max(map(max, seen)))
"""


def test_sums_of_kernels_that_were_replaced_are_off_by_a_rounding() -> None:
    """√4096 · eps of float32 is 7.6e-6: by a fifth of it, times a normal number, half of that after a root."""
    done = python("-c", ROUNDED, DEV="CPU:X86")
    assert done.returncode == 0, done.stderr
    count, least, most = map(float, done.stdout.split())
    assert count >= 2 and least > 1e-7 and most < 1e-5


@pytest.mark.slow
def test_a_region_that_leaves_values_between_its_kernels_unstored_is_right() -> None:
    """Eagerly tinygrad keeps such values as if they were outputs; a wrong region is found."""
    for factor, passed in ((1.0, "True"), (1.01, "False")):
        done = python("-c", REGION, str(factor), DEV="CPU:X86")
        assert done.returncode == 0, done.stderr
        found, count, *reason = done.stdout.splitlines()[-1].split()
        assert found == passed and int(count) >= 3, (done.stdout, reason)


def test_what_is_planned_into_memory_later_came_out_of_nothing_that_was_there() -> None:
    arena, beyond = (Buffer(Device.DEFAULT, 64, dtypes.float32) for _ in range(2))
    memory = StepMemory([beyond])
    part, inside = arena.view(16, dtypes.float32, 64), arena.view(4, dtypes.float32, 72)
    memory.wrote(part, frozenset("a"))
    memory.wrote(inside, frozenset("b"))
    assert memory.fed_by(inside) == frozenset("ab"), "a part of it was written"
    memory.wrote(part, frozenset("c"))
    assert memory.fed_by(part) == frozenset("c")
    memory.wrote(part, frozenset())
    assert not memory.fed_by(part)
    for name in "ab":
        memory.wrote(beyond, frozenset(name))
    assert memory.fed_by(beyond) == frozenset("ab"), "several calls may write parts of it"


def test_files_and_memory_of_the_host_are_not_changed(tmp_path: Path) -> None:
    names = {"DISK:" + str(tmp_path / "weights"): True, "NPY": True, "PYTHON": True, Device.DEFAULT: False}
    assert {name: lockstep._is_host(Buffer(name, 4, dtypes.float32)) for name in names} == names


@pytest.mark.slow
def test_comparing_steps_changes_nothing_that_a_program_computes() -> None:
    """Bit by bit: the losses and weights of a training loop with dropout, and Adam's state."""
    alone, compared = (python("-c", UNSEEN, how, DEV="CPU:X86") for how in ("alone", "compared"))
    assert alone.stdout.splitlines()[-1] == compared.stdout.splitlines()[-1], compared.stderr
    assert len(alone.stdout) > 1000
    assert alone.returncode == compared.returncode == 0, compared.stderr


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
    monkeypatch.setattr(lockstep, "PART_BYTES", 16)
    buffer = Tensor(np.ones(10, np.float32)).contiguous().realize().uop.base.buffer
    assert lockstep.shake(lockstep._beginning(buffer), seed=1) == 4
    assert (buffer.numpy() != 1).tolist() == [True] * 4 + [False] * 6
    assert lockstep._beginning(small := Buffer(Device.DEFAULT, 4, dtypes.float32).allocate()) is small


def test_powers_of_two_are_due() -> None:
    assert [count for count in range(1, 40) if lockstep._is_due(count)] == [1, 2, 4, 8, 16, 32]
