"""What a look that may fail says of an exception that nobody expected.

A run looks at much that may not be there: programs of kernels and regions, spaces, costs, entries of a store. A
refusal (`REFUSALS`) is an answer. Any other exception is a fault of kcg or of what it calls: the look has no answer
then, the run goes on, and what went wrong is said once, with its place, to whoever listens (`reported_to`): a run's
log, and so its result. Taken for a refusal, a ValueError hid that heads wider than 256 elements had no program.
"""

from __future__ import annotations

import logging
import re
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from kcg.errors import CodecError, KcgError, ScheduleError, VerificationError

REFUSALS = (ScheduleError, CodecError, VerificationError)
"""What says, in words, that a region or a schedule is not for something."""

_FOLDER = Path(__file__).parent
_OF_A_CHILD = re.compile(r'File "(?P<file>[^"\n]+)", line (?P<line>\d+)')  # of a traceback that came as text

log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Listener:
    say: Callable[[str], None]
    places: set[str] = field(default_factory=set)


_listeners = [_Listener(log.warning)]  # the last one hears
_lock = threading.Lock()


@contextmanager
def reported_to(say: Callable[[str], None]) -> Iterator[None]:
    """Inside the block `say` gets a line for each unexpected exception, each once. Elsewhere they are logged."""
    own = _Listener(say)
    with _lock:
        _listeners.append(own)
    try:
        yield
    finally:
        with _lock:
            _listeners.remove(own)


@contextmanager
def looking(what: str) -> Iterator[None]:
    """A block that looks for something and may not find it: it ends where it is refused, and where an unexpected
    exception is raised, which is reported. `what` follows "looking for". Raises other errors of kcg: of the device, or
    of a user."""
    try:
        yield
    except REFUSALS as refusal:
        log.debug("%s: %s", what, refusal)
    except KcgError:
        raise
    except Exception as error:
        report(what, error)


def report(what: str, error: BaseException) -> None:
    """Say, once, that looking for `what` ended in an unexpected exception, and where."""
    line = f"looking for {what} failed unexpectedly, and the run goes on without: {(place := place_of(error))}"
    with _lock:
        listener = _listeners[-1]
        if place in listener.places:
            return
        listener.places.add(place)
    listener.say(line)


def place_of(error: BaseException) -> str:
    """Where an exception was raised, the innermost line of kcg, and what it says, in one line:
    `kcg/kernel/tile/gemm.py:540: ValueError: min() arg is an empty sequence`. Of one that came from another process
    the place is that in the traceback which came with it."""
    frames = [(frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(error.__traceback__)]
    if error.__cause__ is not None:  # how pebble and concurrent.futures hand over a child's traceback
        frames += [(seen["file"], int(seen["line"])) for seen in _OF_A_CHILD.finditer(str(error.__cause__))]
    frames = [(file, line) for file, line in frames if Path(file) != Path(__file__)]  # where `looking` hands it on
    own = [(Path(file), line) for file, line in frames if Path(file).is_relative_to(_FOLDER)]
    file, line = own[-1] if own else (Path(frames[-1][0]), frames[-1][1]) if frames else (None, 0)
    words = " ".join(str(error).split())[:200]
    what = f"{type(error).__name__}: {words}" if words else type(error).__name__
    if file is None:
        return what
    shown = file.relative_to(_FOLDER.parent) if own else Path(file.name)
    return f"{shown.as_posix()}:{line}: {what}"
