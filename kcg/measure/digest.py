"""Comparing what is on a device without copying it: a digest of a buffer, computed there by kernels of tinygrad's own.

Each word of four bytes is mixed (so that a change of its high bits, a sign, reaches the low ones), multiplied by an odd
number that depends on its place, mixed again, and 4096 of them are summed modulo 2**32. A change of one word always
changes its sum, any other all but certainly. The kernels are compiled once, for pieces of two sizes, so that no buffer
needs further ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kcg.compat.tiny import Buffer, Device, dtypes
from kcg.errors import DeviceError
from kcg.measure.fill import launcher_of
from kcg.types import Target

COLUMNS = 4096  # words that are summed
ROWS = (1024, 32)  # sums of one piece: pieces of 16 MiB, then of 512 KiB; what is left is copied
MIX = 3266489917  # an odd constant of xxHash's last step
ODD = 2654435761  # neighbouring places get unrelated factors (Knuth's multiplicative hash)

Words = np.ndarray[Any, Any]


def expected_sums(words: Words) -> Words:
    """What the kernels compute for whole rows of `words` (uint32), in NumPy."""
    places = np.arange(len(words), dtype=np.uint32)
    factors = (places * np.uint32(ODD)) | np.uint32(1)
    mixed = (words ^ (words >> 15)) * factors
    mixed = (mixed ^ (mixed >> 13)) * np.uint32(MIX)
    sums: Words = (mixed ^ (mixed >> 16)).reshape(-1, COLUMNS).sum(1, dtype=np.uint32)
    return sums


class DeviceDigest:
    """Digests of buffers on one device. Raises DeviceError if the device does not compute them right."""

    def __init__(self, target: Target) -> None:
        self.device = target.device
        self._pieces = [(rows, self._compile(rows, target)) for rows in ROWS]
        for rows, launch in self._pieces:
            self._check(rows, launch)

    def _compile(self, rows: int, target: Target) -> Callable[[Any, Any], None]:
        from tinygrad import Tensor

        words = Tensor.empty(rows, COLUMNS, dtype=dtypes.uint32, device=target.device)
        places = Tensor.arange(rows * COLUMNS, dtype=dtypes.uint32).reshape(rows, COLUMNS)
        mixed = (words ^ (words >> 15)) * (places * ODD).bitwise_or(1)
        mixed = (mixed ^ (mixed >> 13)) * MIX
        summed = (mixed ^ (mixed >> 16)).sum(1, dtype=dtypes.uint32)
        (call,) = summed.schedule_linear().src
        return launcher_of(call.src[0], target)

    def _check(self, rows: int, launch: Callable[[Any, Any], None]) -> None:
        words = np.random.default_rng(rows).integers(0, 1 << 32, rows * COLUMNS, dtype=np.uint32)
        source = Buffer(self.device, words.nbytes, dtypes.uint8).allocate()
        source.allocator._copyin(source._buf, words.view(np.uint8).data)
        sums = Buffer(self.device, 4 * rows, dtypes.uint8).allocate()
        launch(sums, source)
        if not np.array_equal(copied(sums).view(np.uint32), expected_sums(words)):
            raise DeviceError(f"{self.device} does not compute the digest of a buffer right: it cannot be trusted")

    def of(self, buffer: Any) -> Words:
        """The digest of a buffer: equal for equal contents. `buffer` is one of bytes, its view included."""
        counts, left = [], buffer.nbytes
        for rows, _ in self._pieces:
            counts.append(left // (4 * rows * COLUMNS))
            left -= counts[-1] * 4 * rows * COLUMNS
        total = sum(count * rows for count, (rows, _) in zip(counts, self._pieces, strict=True))
        parts: list[Words] = []
        if total:
            sums = Buffer(self.device, 4 * total, dtypes.uint8).allocate()
            source_at = sums_at = 0
            for count, (rows, launch) in zip(counts, self._pieces, strict=True):
                for _ in range(count):
                    size = 4 * rows * COLUMNS
                    launch(_part(sums, 4 * rows, sums_at), _part(buffer, size, source_at))
                    source_at, sums_at = source_at + size, sums_at + 4 * rows
            parts.append(copied(sums))
        if left:
            parts.append(copied(_part(buffer, left, buffer.nbytes - left)))
        return np.concatenate(parts) if parts else np.empty(0, np.uint8)


def _part(buffer: Any, nbytes: int, offset: int) -> Any:
    return buffer.view(nbytes, dtypes.uint8, offset).ensure_allocated()


def copied(buffer: Any) -> Words:
    """The bytes of a buffer on the host, after everything that was launched before."""
    found = np.empty(buffer.nbytes, np.uint8)
    Device[buffer.device].synchronize()
    buffer.allocator._copyout(found.data, buffer._buf)
    return found
