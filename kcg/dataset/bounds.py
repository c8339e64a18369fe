"""Whether a Parquet file is in proportion: seen by a child with limited memory, before this process reads it.

3 KB can hold a billion equal numbers, a list of them in one row, or one long text that a million rows share, and what a
file says of itself need not be true. So the child reads all of it, as pyarrow does, and counts what comes. It begins
with the first file, is kept for those that follow, and ends with this process.
"""

from __future__ import annotations

import atexit
import json
import os
import queue
import select
import subprocess
import sys
import threading
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

VALUES, VALUES_PER_BYTE = 1 << 16, 8
"""Of one column, with the items of lists: so many, and so many more for each byte of the file. The published datasets
have 0.2 a byte."""
BYTES, BYTES_PER_BYTE = 64 << 20, 100
"""Of all columns, each row with a text of its own; and of the child's memory beside what it begins with. The published
datasets have 60 a byte."""
SECONDS, BYTES_PER_SECOND = 60.0, 1 << 20
"""That the child may take: so many, and one more for so many bytes. It reads a hundred times as many."""
ROWS = 1000  # at once


class OutOfProportion(ValueError):
    """A file would become larger than any of its size that kcg writes, or cannot be read."""


def check_bounds(path: Path) -> None:
    """Raises OutOfProportion, in one line; OSError where there is no such file, or the child does not begin."""
    found = path.stat()
    _check(path.absolute(), (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns))


@lru_cache(256)
def _check(path: Path, _: tuple[int, ...]) -> None:
    with _asking:
        if line := _ask(path):
            raise OutOfProportion(line)


# ---- the child, as this process sees it

_asking = threading.Lock()
_child: subprocess.Popen[bytes] | None = None
_begun_by = 0


def _ask(path: Path) -> str:
    """What is wrong with a file; empty where nothing is."""
    global _child, _begun_by
    if _child is None or _begun_by != os.getpid() or _child.poll() is not None:  # a copy of this process has none
        _end()
        _child, _begun_by = _begin(), os.getpid()
    assert _child.stdin is not None
    size = path.stat().st_size
    seconds = SECONDS + size / BYTES_PER_SECOND
    with suppress(BrokenPipeError):
        _child.stdin.write(json.dumps(os.fspath(path)).encode() + b"\n")
        _child.stdin.flush()
    if (answer := _line_of(_child, seconds)) is None:
        overdue = _child.poll() is None
        _end()
        return f"{size:,} bytes that take more than {seconds:.0f} s to read" if overdue else _too_much(size)
    return str(answer)


def _begin() -> subprocess.Popen[bytes]:
    environment = os.environ | {"ARROW_DEFAULT_MEMORY_POOL": "system"}  # the others map more than they were asked for
    child = subprocess.Popen(
        [sys.executable, "-m", __spec__.name],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for this process
    )
    if _line_of(child, SECONDS) is None:
        _kill(child)
        raise OSError("the process that looks at it first does not begin")
    return child


def _line_of(child: subprocess.Popen[bytes], seconds: float) -> Any:
    """The next line of a child; None where it ended, or none comes in time."""
    assert child.stdout is not None
    ready, _, _ = select.select([child.stdout], [], [], seconds)
    line = child.stdout.readline() if ready else b""
    return json.loads(line) if line else None


@atexit.register
def _end() -> None:
    global _child
    if _child is not None and _begun_by == os.getpid():
        _kill(_child)
    _child = None


def _kill(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.communicate()  # closes its pipes


# ---- in the child


def main() -> None:
    """Answer each line, the path of a file in JSON, with one: what is wrong with it."""
    import pyarrow.parquet  # noqa: F401  # what it maps is not the first file's

    jobs: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_take, args=(jobs,), daemon=True).start()
    print(json.dumps(""), flush=True)
    while True:
        print(json.dumps(_what_is_wrong(Path(jobs.get()))), flush=True)


def _take(jobs: queue.SimpleQueue[str]) -> None:
    for line in sys.stdin:
        jobs.put(json.loads(line))
    os._exit(0)  # the process that asks is gone, whatever is being read


def _what_is_wrong(path: Path) -> str:
    size = path.stat().st_size
    _limit_memory(_most_bytes(size))
    try:
        return _read(path, size)
    except MemoryError:
        return _too_much(size)
    except Exception as error:  # Arrow's, of a file that is damaged
        line = (str(error) or type(error).__name__).splitlines()[0]
        return _too_much(size) if "bad_alloc" in line else line


def _limit_memory(more: int) -> None:
    """Let this process have so many bytes more than it has now, where the system can."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        held = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmData"))
        limit = int(held.split()[1]) * 1024 + more
        resource.setrlimit(resource.RLIMIT_DATA, (limit if hard < 0 else min(hard, limit), hard))


def _read(path: Path, size: int) -> str:
    from pyarrow import parquet

    most, total, values = VALUES + VALUES_PER_BYTE * size, 0, dict[str, int]()
    with parquet.ParquetFile(path) as file:
        if file.metadata.num_rows > most:
            return f"{size:,} bytes that say to hold {file.metadata.num_rows:,} rows"
        for batch in file.iter_batches(batch_size=ROWS, use_threads=False):
            for name, array in zip(batch.schema.names, batch.columns, strict=True):
                count, held = _extent(array)
                values[name], total = values.get(name, 0) + count, total + held
                if values[name] > most:
                    return f"{size:,} bytes with {values[name]:,} values of {name}"
                if total > _most_bytes(size):
                    return f"{size:,} bytes that become more than {_most_bytes(size) >> 20:,} MB"
    return ""


def _extent(array: Any) -> tuple[int, int]:
    """How many values an array has, with the items of lists, and how many bytes where each has a text of its own."""
    import pyarrow as pa
    import pyarrow.compute as pc

    items = array.flatten() if pa.types.is_list(array.type) else array
    count = max(len(array), len(items))
    if not pa.types.is_dictionary(items.type):
        return count, array.nbytes
    texts = pc.binary_length(items.dictionary.cast(pa.large_binary())).take(items.indices)
    return count, pc.sum(texts.cast(pa.int64())).as_py() or 0


def _most_bytes(size: int) -> int:
    return BYTES + BYTES_PER_BYTE * size


def _too_much(size: int) -> str:
    return f"{size:,} bytes of which reading needs more than {_most_bytes(size) >> 20:,} MB"


if __name__ == "__main__":
    main()
