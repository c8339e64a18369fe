"""A digest tells any two contents of a buffer apart, also those that cheap sums confuse."""

from __future__ import annotations

import numpy as np
import pytest

from kcg.compat.hardware import device_pieces
from kcg.compat.tiny import Buffer, dtypes
from kcg.measure.device_info import detect
from kcg.measure.workbench import ALIGNED, COLUMNS, ROWS, DeviceDigest, expected_sums

TARGET = detect("CPU:X86", 1)[0]
SMALL = ROWS[-1]
WORDS = 2 * COLUMNS * SMALL + 1001  # two small pieces, and one that reaches back


@pytest.fixture(scope="module")
def digest() -> DeviceDigest:
    return DeviceDigest(TARGET)


def of(digest: DeviceDigest, words: np.ndarray) -> bytes:
    buffer = Buffer("CPU", words.nbytes, dtypes.uint8).allocate()
    buffer.allocator._copyin(buffer._buf, words.view(np.uint8).data)
    return digest.of(buffer).tobytes()


def test_rows_are_summed_as_numpy_sums_them(digest: DeviceDigest) -> None:
    words = np.random.default_rng(0).integers(0, 1 << 32, COLUMNS * SMALL, dtype=np.uint32)
    assert of(digest, words) == expected_sums(words).tobytes()


@pytest.mark.parametrize("kind", ["negated", "two signs", "swapped", "one bit", "last byte", "two zeros", "halves"])
def test_changes_that_cheap_sums_miss(digest: DeviceDigest, kind: str) -> None:
    values = np.random.default_rng(1).standard_normal(WORDS, dtype=np.float32)
    if kind == "two zeros":
        values = (values > 0).astype(np.float32)
    before, after = values.view(np.uint32), values.view(np.uint32).copy()
    if kind == "negated":
        after ^= np.uint32(1 << 31)
    elif kind == "two signs":
        after[[5, 4000]] ^= np.uint32(1 << 31)
    elif kind == "swapped":
        after[[7, 8]] = after[[8, 7]]
    elif kind == "one bit":
        after[COLUMNS * (SMALL + 1)] ^= np.uint32(1 << 13)
    elif kind == "last byte":
        after[-1] ^= np.uint32(1 << 24)
    elif kind == "two zeros":
        after[[int(np.flatnonzero(values[:4096])[0]), int(np.flatnonzero(values[:4096] == 0)[0])]] ^= np.uint32(
            0x3F800000
        )
    else:
        after[[100, 200]] ^= np.uint32(0x8000 << 16 | 0x8000)
    assert of(digest, before) != of(digest, after)
    assert of(digest, before) == of(digest, before.copy())


@pytest.mark.parametrize("count", [5, 4 * COLUMNS * SMALL, 4 * COLUMNS * SMALL + ALIGNED + 3, 4 * WORDS + 1])
def test_every_byte_counts_of_buffers_of_any_length(digest: DeviceDigest, count: int) -> None:
    rng = np.random.default_rng(3)
    before = rng.integers(0, 256, count, dtype=np.uint8)
    of_all = {of(digest, before)}
    places = {place for edge in (0, count // 2, 4 * COLUMNS * SMALL, count) for place in range(edge - 17, edge + 17)}
    changed = [place for place in sorted(places) if 0 <= place < count]
    for place in changed:
        after = before.copy()
        after[place] ^= 1 << int(rng.integers(8))
        of_all.add(of(digest, after))
    assert len(of_all) == 1 + len(changed)


def test_pairs_of_signs_are_never_missed_in_numpy() -> None:
    rng = np.random.default_rng(2)
    words = rng.standard_normal(COLUMNS, dtype=np.float32).view(np.uint32)
    plain = expected_sums(words)
    for _ in range(500):
        changed = words.copy()
        changed[rng.choice(COLUMNS, 2, replace=False)] ^= np.uint32(1 << 31)
        assert not np.array_equal(expected_sums(changed), plain)


@pytest.mark.gpu
def test_pieces_of_device_memory_come_back_in_order() -> None:
    data = np.random.default_rng(2).integers(0, 256, 3 << 20, dtype=np.uint8)
    buffer = Buffer("CUDA", data.nbytes, dtypes.uint8).allocate()
    buffer.allocator._copyin(buffer._buf, data.data)
    places = [(0, 4), (data.nbytes - 8, 8), (1 << 20, 1 << 20), (7, 1)]
    found = device_pieces("CUDA", [(buffer._buf, at, size) for at, size in places])
    assert found is not None
    assert np.array_equal(found, np.concatenate([data[at : at + size] for at, size in places]))
    assert device_pieces("CPU", []) is None
