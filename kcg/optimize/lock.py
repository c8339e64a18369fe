"""One optimisation at a time on a device: two would disturb each other's samples.

The lock is the operating system's, on a file beside the temporary files, so that it goes when its process dies, however
it dies. The file says which process that is. A CPU has none: it is shared with everything else anyway.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from kcg.errors import DeviceError
from kcg.files import locked

POLL_S = 1.0


def path_of(dev: str) -> Path:
    """The file of a device, of those that this process is shown."""
    shown = os.environ.get("CUDA_VISIBLE_DEVICES") or os.environ.get("HIP_VISIBLE_DEVICES") or ""
    name = re.sub(r"[^A-Za-z0-9]+", "-", f"{dev.split(':')[0]}-{shown}").strip("-")
    return Path(tempfile.gettempdir()) / f"kcg-{os.getuid()}-{name}.lock"


@contextlib.contextmanager
def alone_on(dev: str, *, wait: bool = False, say: Callable[[str], None] = lambda line: None) -> Iterator[None]:
    """Hold the lock of a device. Raises DeviceError where another process has it, unless it is to `wait`."""
    if dev.startswith("CPU"):
        yield
        return
    path = path_of(dev)
    with path.open("a+") as file:
        told = False
        while not locked(file):
            holder = _holder(path)
            if not wait:
                raise DeviceError(f"another optimisation uses {dev} ({holder}): wait until it ends, or add --wait")
            if not told:
                say(f"waiting for {holder}, which uses {dev}")
                told = True
            time.sleep(POLL_S)
        file.seek(0)
        file.truncate()
        file.write(str(os.getpid()))
        file.flush()
        yield


def _holder(path: Path) -> str:
    try:
        return f"process {int(path.read_text())}"
    except (OSError, ValueError):
        return "process unknown"
