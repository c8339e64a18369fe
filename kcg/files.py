"""Files that are seen whole or not at all: written under a temporary name, fsynced, renamed; and locks on files."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from kcg.errors import UsageError


@contextlib.contextmanager
def whole(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """A temporary name beside `path`: what was written there takes its place when the block ends, and is removed if the
    block raises. The folder is made. Raises OSError where it cannot be written, or where `path` is a device or a pipe:
    root could replace /dev/null by a file.

    What is not `durable` is not waited for until it is on the disk: a power cut may leave it empty.
    """
    if not path.name:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise OSError(errno.EINVAL, "it is a device or a pipe", str(path))
    # several machines may write to one folder, and number their processes alike
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield temporary
        if durable:
            sync(temporary)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    if durable:
        sync(path.parent)  # the rename itself must survive a power cut too


def write_whole(path: Path, data: bytes | str) -> None:
    """Write a file, whole or not at all; text as UTF-8.

    Raises:
        UsageError: the folder cannot be made or written.
    """
    try:
        with whole(path) as temporary:
            temporary.write_bytes(data.encode() if isinstance(data, str) else data)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}: choose a folder that can be written") from error


def read_foreign(path: Path, *, most_bytes: int, follow: bool = True) -> bytes | None:
    """What is in a file that anybody may have put there; None where it is larger, or no regular file: a pipe would be
    waited for, and a device has no end. Without `follow` a link is no file either. Raises OSError where it cannot be
    read."""
    how = os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | how)) as file:
        seen = os.fstat(file.fileno())
        if not stat.S_ISREG(seen.st_mode) or seen.st_size > most_bytes:  # a hole of gigabytes takes no disk
            return None
        data = file.read(min(seen.st_size, most_bytes) + 1)  # as many bytes as are asked for are allocated
        return data if len(data) <= most_bytes else None


def read_limited(path: Path, *, most_bytes: int) -> bytes:
    """As `read_foreign`. Raises ValueError where there is more, or no regular file."""
    if (data := read_foreign(path, most_bytes=most_bytes)) is None:
        raise ValueError(f"it is larger than {most_bytes >> 20} MiB, or no file")
    return data


def cache_folder(name: str) -> Path:
    """A folder of the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kcg" / name


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, as lists of checksums hold it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_text(value: str) -> bool:
    """Whether a string can be written: JSON can spell halves of characters (lone surrogates), which no file holds."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_disk_full(error: OSError) -> bool:
    """Whether writing failed for want of space: a full disk, a quota, or the largest file that is allowed."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def locked(file: IO[Any] | int, *, wait: bool = False, shared: bool = False) -> bool:
    """Take the operating system's lock on an open file, or on a folder by its descriptor; whether it was to be had,
    always where it is to `wait`.

    It goes when the file is closed, or its process ends, however that ends. `shared` ones are in the way only of those
    that are not.
    """
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def lock_file(path: Path, *, wait: bool = False) -> Iterator[bool]:
    """Hold the lock of a file that is there for that alone, and is removed at the end. Gives whether it was to be had,
    always where it is to `wait`. Raises OSError where there can be no such file.

    Only who holds the lock removes the file. So whoever got the lock of a file that its name leads to no more, as who
    waited for it, takes that of the file which is there now.
    """
    while True:
        with path.open("a") as file:
            if not locked(file, wait=wait):
                yield False
                return
            if not _leads_to(path, file):
                continue
            try:
                yield True
            finally:
                if _leads_to(path, file):
                    with contextlib.suppress(OSError):
                        path.unlink()
            return


def _leads_to(path: Path, file: IO[Any]) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def meant_by(path: Path, otherwise: str) -> str:
    """What to do about a file that is not there: the nearest that is, under the same path seen from a folder above, of
    a like name in its own folder, or in a run's; `otherwise` where there is none."""
    import difflib  # only for an error

    above = [Path(*[".."] * level) / path for level in (1, 2, 3) if not path.is_absolute()]
    found = [one for one in above if one.is_file()]
    beside = {one.name: one for one in path.parent.glob(f"*{path.suffix}") if one.is_file()}
    found += [beside[name] for name in difflib.get_close_matches(path.name, beside, 1)]
    found += sorted(Path("kcg-out").glob(f"*/{path.name}"))
    return f"did you mean {found[0]}?" if found else otherwise
