"""`kcg.autotuned`: a function is tuned when it is first called with new shapes, and its result is kept by content.

What is kept is found by the kernels that a call runs, the target and the toolchain: in the next process the first call
looks which kernels it runs, and searches nothing. A result of another driver or tinygrad has another name, and is not
found. The folder holds one folder a result, each with what a run leaves; deleting one has it tuned anew.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
import uuid
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

from kcg.errors import ExitCode, MismatchError, ResultError, UsageError, VerificationError
from kcg.files import cache_folder, lock_file
from kcg.tuning import (
    Installed,
    Tuned,
    captured_call,
    check_callable,
    check_not_inside,
    device_here,
    load,
    optimized,
    settings_of,
)
from kcg.types import Target, Toolchain, Workload, content_id

if TYPE_CHECKING:
    from kcg.optimize.console import Progress
    from kcg.optimize.settings import Settings
    from kcg.workloads.function import Call, CapturedCall

P = ParamSpec("P")
R = TypeVar("R")

KEY_LENGTH = 32  # characters of a hash, in the names of folders


class Autotuned(Generic[P, R]):
    """A function that is tuned by itself; call it as the function. What it is given and what it returns is realised.

    A first call with new shapes, data types, devices, strings or booleans takes the budget where nothing is kept yet,
    and else a few seconds: for looking which kernels it runs, and at the device. Numbers do not count: a kernel with
    another constant is left to tinygrad. Nor does what a `Variable` is bound to: its kernels are verified at the
    smallest and the largest value that it can have. A function that returns lazy tensors is called twice in a first
    call, one that realises something once. Both are called a few times more at the end of tuning (`kcg.tune`), where
    what they change is a copy.

    What was found stays in use in this process, for equal kernels of other functions too.
    """

    def __init__(
        self, function: Callable[P, R], *, cache: Path | None, budget: str | float, search: str, quiet: bool
    ) -> None:
        self._function, self._cache = check_callable(function), cache
        self._budget, self._search, self._quiet = budget, search, quiet
        self._results: dict[Hashable, Tuned | None] = {}  # by what tells calls apart; None: nothing was tuned
        self._tuning = threading.RLock()
        functools.update_wrapper(self, function)
        from kcg.cli import parse_budget
        from kcg.optimize.settings import check_search

        check_search(search)
        parse_budget(str(budget), "budget")

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        return self if owner is None else functools.partial(self, owner)

    @property
    def results(self) -> tuple[Tuned, ...]:
        """What it has, of each kind of call so far."""
        return tuple(dict.fromkeys(one for one in self._results.values() if one is not None))

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        from kcg.compat.calling import is_captured_now, kind_of, realized

        realized([args, kwargs])  # else they were a part of other kernels than were tuned
        kind = kind_of((args, kwargs))
        if kind not in self._results and not is_captured_now():
            with self._tuning:
                if kind not in self._results:
                    captured = self._first(kind, args, kwargs)
                    if captured is not None and captured.ran:
                        returned: R = captured.returned
                        return returned
        answer: R = realized(self._function(*args, **kwargs))
        return answer

    def _first(self, kind: Hashable, args: Any, kwargs: Any) -> CapturedCall | None:
        """Have what a call of a new kind needs; what it ran, or None where another result is in use meanwhile."""
        from kcg.optimize.console import progress
        from kcg.workloads.function import Call

        call, started = Call(self._function, args, kwargs), time.monotonic()
        with Installed.suspended(), progress(quiet=self._quiet) as shown:
            try:
                check_not_inside()
            except UsageError:
                return None
            dev = device_here()
            captured = captured_call(call, shown, dev=dev)
            found = self._kept(call, captured, shown, dev=dev, started=started)
        self._results[kind] = found
        if any(row.outcome == "improved" for row in found.result.regions):
            try:
                found.apply()
            except (MismatchError, ResultError, VerificationError) as error:
                shown.line(f"kcg: {call.name} runs as tinygrad schedules it: {error}", important=True)
        return captured

    def _kept(self, call: Call, captured: CapturedCall, shown: Progress, *, dev: str, started: float) -> Tuned:
        """The result of what was captured: what is kept, or else what tuning gives, by one process at a time."""
        folder = (self._cache or default_cache()) / key_of(captured.workload, *facts_of(dev))
        settings = settings_of(call, budget=self._budget, search=self._search, folder=folder)
        if (found := _usable(folder, settings)) is not None:
            return found
        lock = folder.with_suffix(".lock")
        with contextlib.ExitStack() as held:
            try:
                folder.parent.mkdir(parents=True, exist_ok=True)
                if not held.enter_context(lock_file(lock)):
                    shown.line(f"kcg: another process tunes {call.name}: waiting for its result")
                    held.enter_context(lock_file(lock, wait=True))
                    started = time.monotonic()
            except OSError as error:
                raise UsageError(f"cannot write to {folder.parent}: {error.strerror}: choose another cache=") from None
            if (found := _usable(folder, settings)) is not None:
                return found
            return optimized(call, captured, settings, shown, dev=dev, started=started)


def _usable(folder: Path, settings: Settings) -> Tuned | None:
    """The result of a folder; None where there is none that can be read, or where it has no answer and this budget
    may bring more: it was another one, or the run was killed in it."""
    from kcg.optimize.live import FILE_NAME, read_live
    from kcg.report.endings import exit_code_of, may_find_more

    try:
        found = load(folder / "RESULT.json")
    except ResultError:
        return None
    result = found.result
    if result.complete and not (exit_code_of(result) == ExitCode.NOTHING_IMPROVED and may_find_more(result)):
        return found
    with contextlib.suppress(OSError, ResultError):
        if read_live(folder / FILE_NAME).exit_code is None:
            return None
    return found if found.result.budget == settings.budget_text else None


def key_of(workload: Workload, target: Target, toolchain: Toolchain) -> str:
    """What a result is kept by: the kernels with their variables, whatever these are bound to, where they run, and by
    which tools."""
    kernels = sorted({(c.region.id, tuple(name for name, _ in c.variables)) for c in workload.calls})
    seen = [[kernel, [names]] for kernel, names in kernels]
    return content_id([seen, target.fingerprint, toolchain.tile_fingerprint])[:KEY_LENGTH]


@functools.cache
def facts_of(dev: str) -> tuple[Target, Toolchain]:
    """The target of a device and its tools, as a child tells them once. Raises DeviceError where it does not open."""
    from kcg.compat.device import keeping_default
    from kcg.measure.service import MeasureService

    with keeping_default(), MeasureService(dev, run_id=uuid.uuid4().hex) as service:
        return service.facts


def default_cache() -> Path:
    """Where results are kept by default: `kcg/tuned` in the user's cache folder."""
    return cache_folder("tuned")


@overload
def autotuned(fn: Callable[P, R], /) -> Autotuned[P, R]: ...
@overload
def autotuned(
    *, cache: Path | str | None = None, budget: str | float = "60s", search: str = "mcts", quiet: bool = False
) -> Callable[[Callable[P, R]], Autotuned[P, R]]: ...
def autotuned(
    fn: Callable[P, R] | None = None,
    /,
    *,
    cache: Path | str | None = None,
    budget: str | float = "60s",
    search: str = "mcts",
    quiet: bool = False,
) -> Autotuned[P, R] | Callable[[Callable[P, R]], Autotuned[P, R]]:
    """Decorate a function so that it tunes itself: `@kcg.autotuned(cache="tuned", budget="60s")`, see `Autotuned`.

    Of several processes one tunes, and the others wait for its result.

    Args:
        cache: the folder in which results are kept, `kcg/tuned` in the user's cache folder by default.
        budget, search, quiet: as of `kcg.tune`.

    Raises UsageError for a wrong argument, at once; a call of it raises what `kcg.tune` does.
    """

    def decorate(function: Callable[P, R]) -> Autotuned[P, R]:
        folder = None if cache is None else Path(cache)
        return Autotuned(function, cache=folder, budget=budget, search=search, quiet=quiet)

    return decorate if fn is None else decorate(fn)
