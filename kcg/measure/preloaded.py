"""What a fork server holds ready for the children of `kcg.measure.pools`: only it imports this module.

A child that begins in it has Python, tinygrad and numpy loaded, which takes one that begins afresh half a second, and
has the rules compiled by which tinygrad lowers a kernel, which takes the first kernel of a process another 0.2 s. No
device is opened here: a copy of an open one would be broken.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
from dataclasses import replace

from kcg.measure.lifetime import without_the_users_settings

gc.disable()  # while nothing but what stays is made: looking for circles among it was a tenth of the time
# a child begins with Ctrl-C blocked, as with a thread of a pool: its parent is who ends it
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})

without_the_users_settings()

import kcg.kernel.compile  # noqa: E402
import kcg.measure.child  # noqa: E402
import kcg.measure.pools  # noqa: E402
import kcg.measure.verify  # noqa: E402
from kcg.compat.device import import_runtime  # noqa: E402

import_runtime("CPU")


def _lower_one() -> None:
    """Lower a product with tinygrad's own schedule and with another: tinygrad compiles its rules when they are first
    used."""
    from tinygrad import Tensor

    from kcg.kernel.codec import kernel_of
    from kcg.kernel.kinds import space_of
    from kcg.kernel.targets import TARGETS
    from kcg.types import Region

    renderer = "X86" if os.environ.get("DEV", "").endswith("X86") else "CLANG"
    target = replace(TARGETS["x86_64"], renderer=renderer)
    one, other = (Tensor.empty(16, 16, device="CPU") for _ in range(2))
    region = Region((kernel_of((one @ other).schedule_linear().src[-1].src[0]),))
    space = space_of(region, target)
    for schedule in (space.baseline(), space.actions(space.start())[0].schedule):
        kcg.kernel.compile.render_schedule(region, schedule, target)


with contextlib.suppress(Exception):  # what fails here fails in a child by name
    _lower_one()

# what is loaded stays: a child that looks for circles among it copies every page of it. Of 170,000 objects a
# thousand are garbage, and to find these would take another tenth of the time
gc.freeze()
gc.enable()

SERVER_PID = os.getpid()
