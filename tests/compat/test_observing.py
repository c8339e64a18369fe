"""What a program leaves is followed through memory, read bit by bit, and moved by one rounding unit at most."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tinygrad import Tensor, dtypes

from kcg.compat.observing import ALIVE, READS, _Memory, _piece, _RecordedMemory, _shake, _written
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
observer = Observer(lambda ast: "", place.__enter__, seed=1, shake=False)
stays = observer.watch()
step = TinyJit(lambda x: chain(x).realize())
for seed in range(4):
    out, other = step(values(seed)), (values(seed) * 3).realize()
print([(piece.place, piece.values.shape, piece.fed_by == (region.id,)) for piece in observer.pieces(1 << 20)[0]])
"""


LOOP = """
import json, sys
from tinygrad import Tensor, TinyJit
from kcg.compat.observing import Observer
from kcg.kernel.codec import kernel_of
names = []
def asked(ast):
    names.append(kernel_of(ast).id)
    return names[-1]
observer = Observer(asked, lambda: None, seed=1, shake=False, disturbed=sys.argv[1:])
stays = observer.watch()
step = TinyJit(lambda x: (x * 3).contiguous().realize())
other = TinyJit(lambda x: (x + 1).contiguous().realize())
values = [step(Tensor([1.0 + place] * 4).realize()).tolist()[0] for place in range(30)]
replays = [observer.replays]
values += [other(Tensor([2.0] * 4).realize()).tolist()[0] for _ in range(60)]
read = [piece for piece in observer.pieces(1 << 20)[0] if piece.place == "read"]
flags = [piece.replayed for piece in read]
print(json.dumps([values, names[0], replays, len(read), flags[:4], flags[-1], read[15].values.tolist()[0]]))
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
    before = _piece(ALIVE, buffer, (len(values),))
    assert _shake(buffer, seed=1) == 200
    after = _piece(ALIVE, buffer, (len(values),))
    assert np.array_equal(before.values[-4:], after.values[-4:], equal_nan=True)
    old, new = (piece.values[:200].astype(np.float64) for piece in (before, after))
    moved = np.abs(new - old) / np.abs(old)
    assert (moved > 0).all() and (moved <= before.eps).all()
    assert 20 < (np.abs(new) > np.abs(old)).sum() < 180, "some up, some down"


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float16, dtypes.bfloat16])
def test_values_are_disturbed_by_about_a_part_of_their_size(dtype: DType) -> None:
    values = np.random.default_rng(0).normal(size=200).astype(np.float32)
    buffer = buffer_of(values, dtype)
    before = _piece(ALIVE, buffer, (200,)).values.astype(np.float64)
    assert _shake(buffer, seed=1, bits=6) == 200
    moved = np.abs(_piece(ALIVE, buffer, (200,)).values.astype(np.float64) / before - 1)
    assert (moved >= 2.0**-7.1).mean() > 0.95 and moved.max() <= 2.0**-5.9


def test_whole_numbers_are_not_moved() -> None:
    buffer = buffer_of(np.arange(8), dtypes.int32)
    assert _shake(buffer, seed=1) == 0
    piece = _piece(ALIVE, buffer, (2, 4))
    assert piece.eps == 0 and piece.values.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.slow
def test_what_comes_out_of_a_program_in_the_place_of_calls_is_observed() -> None:
    """Such a program is compiled from no AST that could be asked for."""
    done = python("-c", REPLACED, DEV="CPU:X86")
    assert done.stdout.splitlines()[-1] == "[('returned', (6, 16), True)]", done.stderr


@pytest.mark.slow
def test_first_and_last_reads_are_kept_and_whether_steps_had_replayed() -> None:
    """Without graphs, as in a run in which something is changed."""
    plain = json.loads(python("-c", LOOP, DEV="CPU:X86", JIT="2").stdout.splitlines()[-1])
    values, kernel, replays, count, first, last, sixteenth = plain
    assert values[:3] == [3.0, 6.0, 9.0] and values[-1] == 3.0
    assert replays == [True] and count == READS and sixteenth == 48.0, "the first 16, and the last ones"
    assert first == [False, False, True, True] and last, "a call that is captured, and one before it"
    moved = json.loads(python("-c", LOOP, kernel, DEV="CPU:X86", JIT="2").stdout.splitlines()[-1])[0]
    apart = [abs(now / before - 1) for now, before in zip(moved, values, strict=True)]
    assert all(2.0**-7.1 < one < 2.0**-5.9 for one in apart[:30]) and not any(apart[30:])
