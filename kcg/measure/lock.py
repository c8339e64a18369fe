"""One optimisation at a time on a device: two would disturb each other's samples. And one in a folder: the second would
move the journal of the first away, and the first, when it ends, remove what the second has in its own beside it.

The lock of a device is the operating system's, on a file beside the temporary files, so that it goes when its process
dies, however it dies. The file says which process that is, and stays: between its end and a new one's rights other
users could not open it, and would lock another. A CPU has none: it is shared with everything else anyway.

An NVIDIA GPU is known by its UUID: `CUDA_VISIBLE_DEVICES` may call one and the same GPU `0`, `GPU-…`, or nothing. Its
file is there for all users of the machine, who may all write it; nothing but a process id is ever in it. Where it
cannot be opened, as where another user has put something there that only they may write, the lock is on a file of the
user's own, and holds among their processes only. So it is with devices that tell no UUID; their file has the name of
the device and the text of the variable, which tells two of them apart, but not that two texts name the same one.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

from kcg.compat.device import cuda_uuid, visible_gpu
from kcg.errors import DeviceError, KcgError, UsageError
from kcg.files import lock_file, locked

POLL_S = 1.0
EVERYBODYS = "kcg-GPU-"


def path_of(dev: str, gpu: int = 0) -> Path:
    """The file of a device, the `gpu`-th of those that this process is shown; of a GPU that tells its UUID that of all
    users."""
    device = dev.split(":")[0]
    uuid = cuda_uuid(gpu) if device in ("CUDA", "NV") else None  # one GPU, whichever of the two drives it
    if uuid is not None:
        return Path(tempfile.gettempdir()) / f"{EVERYBODYS}{uuid}.lock"
    shown = os.environ.get("CUDA_VISIBLE_DEVICES") or os.environ.get("HIP_VISIBLE_DEVICES") or ""
    if gpu:
        shown = visible_gpu(gpu)
    return _own_file(re.sub(r"[^A-Za-z0-9]+", "-", f"{device}-{shown}").strip("-"))


def _own_file(name: str) -> Path:
    return Path(tempfile.gettempdir()) / f"kcg-{os.getuid()}-{name}.lock"


def _open(path: Path) -> TextIO:
    """A device's file, made where there is none; the user's own in the place of everybody's that cannot be opened."""
    if path.name.startswith(EVERYBODYS):
        with contextlib.suppress(OSError):
            return open(path, "r+", opener=_writable_by_all)
        path = _own_file(path.stem.removeprefix("kcg-"))
    return path.open("a+")


def _writable_by_all(path: str, flags: int) -> int:
    """Opens a plain file that is nothing else. Anyone may put a link among the temporary files, and what it leads to
    would be written over. Raises OSError."""
    flags |= os.O_NOFOLLOW
    try:
        descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL)
        os.fchmod(descriptor, 0o666)  # whatever the umask
    except FileExistsError:
        descriptor = os.open(path, flags)  # Linux refuses O_CREAT for a file of another user in a folder like /tmp
    seen = os.fstat(descriptor)
    if not stat.S_ISREG(seen.st_mode) or seen.st_nlink != 1:
        os.close(descriptor)
        raise PermissionError(f"{path} is a link, or no plain file")
    return descriptor


@contextlib.contextmanager
def lock_device(
    dev: str, *, gpus: int = 1, wait: bool = False, log: Callable[[str], None] = lambda line: None
) -> Iterator[None]:
    """Hold the lock of a device, or those of the first `gpus` ones that are shown. Raises DeviceError where another
    process has one of them, unless it is to `wait`."""
    if dev.startswith("CPU"):
        yield
        return
    paths = {path_of(dev, gpu): dev if gpus == 1 else f"GPU {gpu} of {dev}" for gpu in range(gpus)}
    with contextlib.ExitStack() as held:
        for path in sorted(paths):  # everybody in the same order: two that wait do not wait for each other
            held.enter_context(_lock_file(path, paths[path], wait=wait, log=log))
        yield


@contextlib.contextmanager
def _lock_file(path: Path, name: str, *, wait: bool, log: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock of one device, which messages call by this name."""
    with _open(path) as file:

        def taken() -> tuple[KcgError, str]:
            holder = _holder(Path(file.name))
            refused = DeviceError(f"another optimisation uses {name} ({holder}): wait until it ends, or add --wait")
            return refused, f"waiting for {holder}, which uses {name}"

        _take(lambda: locked(file), taken, wait=wait, log=log)
        file.seek(0)
        file.truncate()
        file.write(str(os.getpid()))
        file.flush()
        yield


@contextlib.contextmanager
def lock_folder(folder: Path, *, wait: bool = False, log: Callable[[str], None] = lambda line: None) -> Iterator[None]:
    """Hold the lock of a folder, on the folder itself, so that no file is left. Raises UsageError where another process
    has it, unless it is to `wait`. Where a file system has no such locks there is none.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise UsageError(f"cannot read {folder}: {error.strerror}; choose another folder with --report DIR") from None
    try:
        refused = UsageError(
            f"another optimisation writes to {folder}: wait until it ends, add --wait, or choose another folder with "
            "--report DIR"
        )
        waiting = f"waiting for another optimisation, which writes to {folder}"
        _take(lambda: _locked_if_it_can_be(descriptor), lambda: (refused, waiting), wait=wait, log=log)
        yield
    finally:
        os.close(descriptor)


def is_locked(folder: Path) -> bool:
    """Whether a process holds the lock of a folder, or it cannot be told that none does.

    Who takes the lock in the microseconds that this needs is refused; so it is asked only of folders in which a run
    seems to be.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return False
    try:
        return not locked(descriptor, shared=True)
    except OSError:
        return True
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def lock_journal(journal: Path) -> Iterator[None]:
    """Hold the lock of a dataset's journal. Raises UsageError where another process of this machine measures into it:
    neither would know what the other has in hand, and both would time it."""
    name = hashlib.sha256(str(journal.resolve()).encode()).hexdigest()[:16]
    with lock_file(_own_file(f"journal-{name}")) as held:
        if not held:
            raise UsageError(f"another process measures into {journal}: wait until it ends, or take another journal")
        yield


def _take(
    lock: Callable[[], bool], taken: Callable[[], tuple[KcgError, str]], *, wait: bool, log: Callable[[str], None]
) -> None:
    """Take a lock. Where it is `taken`, that error is raised, or its line is said, once, and the lock waited for."""
    reported = False
    while not lock():
        refused, waiting = taken()
        if not wait:
            raise refused
        if not reported:
            log(waiting)
            reported = True
        time.sleep(POLL_S)


def _locked_if_it_can_be(descriptor: int) -> bool:
    try:
        return locked(descriptor)
    except OSError:
        return True


def _holder(path: Path) -> str:
    try:
        return f"process {int(path.read_text())}"
    except (OSError, ValueError):
        return "process unknown"
