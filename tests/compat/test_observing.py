"""What a program leaves is followed through memory, read bit by bit, and moved by one rounding unit at most."""

from __future__ import annotations

import numpy as np
import pytest
from tinygrad import Tensor, dtypes

from kcg.compat.observing import ALIVE, _Memory, _RecordedMemory, _written, piece_of, shake
from kcg.compat.tiny import Buffer, Device, DType
from tests.commands import python
from tests.kernels import kernels_of

REPLACED = """
from tinygrad import Tensor, TinyJit
from kcg.compat.observing import Observer
from kcg.handover.installing import install
from tests.compat.test_replacing import ROWS, WIDTH, X86, chain, empty, fused, program_of, region_of, values
region = region_of(chain(empty(ROWS, WIDTH)))
program = program_of(region, {1: empty(ROWS, WIDTH)}, lambda x: {3: fused(x)})
place = install({region: program}, X86)
observer = Observer(lambda ast: "", place.__enter__, seed=1)
stays = observer.watch()
step = TinyJit(lambda x: chain(x).realize())
for seed in range(4):
    out, other = step(values(seed)), (values(seed) * 3).realize()
print([(piece.place, piece.values.shape, piece.fed_by == (region.id,)) for piece in observer.pieces(1 << 20)[0]])
"""


def buffer_of(values: np.ndarray, dtype: DType) -> Buffer:
    return Tensor(values).cast(dtype).contiguous().realize().uop.base.buffer


def test_memory_is_followed_by_its_bytes() -> None:
    base, other = (Buffer(Device.DEFAULT, 64, dtypes.float32).allocate() for _ in range(2))
    memory = _Memory()
    memory.add(base.view(16, dtypes.float32, 64), frozenset("a"))
    assert memory.holds(base) and memory.holds(base.view(4, dtypes.float32, 124))
    for outside in (base.view(16, dtypes.float32, 0), base.view(16, dtypes.float32, 128), other):
        assert not memory.holds(outside)
    version = memory.version
    memory.add(base.view(16, dtypes.float32, 64), frozenset("a"))
    assert memory.version == version, "nothing new"
    memory.add(other, frozenset("b"))
    assert memory.version == version + 1
    memory.add(base.view(16, dtypes.float32, 64), frozenset("ab"))
    assert memory.version == version + 2, "what it came out of is new"
    assert (memory.fed_by(base), memory.fed_by(other)) == (frozenset("ab"), frozenset("b"))


def test_memory_that_is_new_is_no_news_to_what_was_recorded_before() -> None:
    first, second = (Buffer(Device.DEFAULT, 64, dtypes.float32).allocate() for _ in range(2))
    memory = _RecordedMemory()
    memory.add(first, frozenset("a"))
    assert memory.version == 0 and memory.holds(first)
    memory.add(first, frozenset("b"))
    assert memory.version == 1, "it was asked for"
    assert not memory.holds(second)
    memory.add(second, frozenset("a"))
    assert memory.version == 2 and memory.fed_by(second) == frozenset("a"), "and so was this one"


def test_what_a_kernel_stores_to_is_read_off_its_ast() -> None:
    a, b = Tensor.empty(4, 8), Tensor.empty(8, 4)
    (ast,) = kernels_of((a @ b).relu())
    assert _written(ast) == (0,)


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float16, dtypes.bfloat16, dtypes.float64])
def test_values_are_moved_by_one_rounding_unit_and_special_ones_stay(dtype: DType) -> None:
    special = [0.0, np.inf, -np.inf, np.nan]
    values = np.concatenate([np.random.default_rng(0).normal(size=200), special])
    buffer = buffer_of(values, dtype)
    before = piece_of(ALIVE, buffer, (len(values),))
    assert shake(buffer, seed=1) == 200
    after = piece_of(ALIVE, buffer, (len(values),))
    assert np.array_equal(before.values[-4:], after.values[-4:], equal_nan=True)
    old, new = (piece.values[:200].astype(np.float64) for piece in (before, after))
    moved = np.abs(new - old) / np.abs(old)
    assert (moved > 0).all() and (moved <= before.eps).all()
    assert 20 < (np.abs(new) > np.abs(old)).sum() < 180, "some up, some down"


def test_whole_numbers_are_not_moved() -> None:
    buffer = buffer_of(np.arange(8), dtypes.int32)
    assert shake(buffer, seed=1) == 0
    piece = piece_of(ALIVE, buffer, (2, 4))
    assert piece.eps == 0 and piece.values.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.slow
def test_what_comes_out_of_a_program_in_the_place_of_calls_is_observed() -> None:
    """Such a program is compiled from no AST that could be asked for."""
    done = python("-c", REPLACED, DEV="CPU:X86")
    assert done.stdout.splitlines()[-1] == "[('returned', (6, 16), True)]", done.stderr
