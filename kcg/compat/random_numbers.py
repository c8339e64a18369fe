"""Where tinygrad's random numbers come from: of each device a seed and a counter, which every draw moves on.

They belong to the process: whoever schedules a draw that never runs leaves work for whoever draws next, and what a
program looks like depends on what was drawn before it.

Private: `Tensor._device_seeds` and `Tensor._device_rng_counters`, as `Tensor._next_counter` reads them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tinygrad import Tensor


@contextmanager
def drawing_from(seed: Tensor, counter: Tensor) -> Iterator[None]:
    """Inside the block, random numbers of the device of two tensors, each two uint32, come from these: as in a process
    that drew before. The counter's memory moves on when what is drawn is realised; the tensor stays as it is."""
    from tinygrad import Tensor

    device = str(seed.device)
    seeds, counters = Tensor._device_seeds, Tensor._device_rng_counters
    Tensor._device_seeds = {**seeds, device: seed}
    Tensor._device_rng_counters = {**counters, device: Tensor(counter.uop)}
    try:
        yield
    finally:
        Tensor._device_seeds, Tensor._device_rng_counters = seeds, counters
