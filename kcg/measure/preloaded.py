"""What a fork server holds ready for the children of `kcg.measure.pools`: only it imports this module.

A child that begins in it has Python, tinygrad and numpy loaded, which takes one that begins afresh half a second. No
device is opened here: a copy of an open one would be broken.
"""

from __future__ import annotations

import os
import signal

from kcg.measure.lifetime import without_the_users_settings

# a child begins with Ctrl-C blocked, as with a thread of a pool: its parent is who ends it
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})

without_the_users_settings()

import kcg.kernel.compile  # noqa: E402
import kcg.measure.child  # noqa: E402
import kcg.measure.pools  # noqa: E402
import kcg.measure.verify  # noqa: E402, F401
from kcg.compat.device import import_runtime  # noqa: E402

import_runtime("CPU")

SERVER_PID = os.getpid()
