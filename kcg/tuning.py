"""Tuning a function of this process: `kcg.tune`, `kcg.load`, and the handle that both return."""

from __future__ import annotations

import contextlib
import html
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kcg.cli import counted
from kcg.errors import DeviceError, ExitCode, KcgError, UsageError
from kcg.nouns import printable
from kcg.types import RegionResult, Result

if TYPE_CHECKING:
    from kcg.optimize.console import Progress
    from kcg.optimize.settings import Settings
    from kcg.workloads.function import Call, CapturedCall

ROWS = 14  # of kernels, so that all of a handle's text fits 24 lines
NAME_WIDTH = 32


class TunedKernel(NamedTuple):
    """What became of one kernel, or of a region of several; times are of all its calls."""

    name: str
    layer: str  # or the line that most of its calls come from; empty where that is not known
    calls: int
    before_s: float
    after_s: float
    outcome: str  # `improved`, or why it keeps tinygrad's own schedule
    schedule: str  # in words


class Installed:
    """A result that this process uses. It stays until the end of the process; used as a context manager, until the end
    of the block, and `remove` takes it out. What a `TinyJit` captured meanwhile stays as it is."""

    def __init__(self, tuned: Tuned) -> None:
        self._tuned, self._stack = tuned, contextlib.ExitStack()
        self._put_in()
        _installed.append(self)  # else it would go with the last name of it

    def __enter__(self) -> Installed:
        return self

    def __exit__(self, *exc: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Have this process compile kernels as tinygrad schedules them again."""
        if self not in _installed:
            return
        with Installed._suspended(_installed[_installed.index(self) :]) as here:
            here.remove(self)
            _installed.remove(self)

    def _put_in(self) -> None:
        from kcg.handover.tuned import tuned as using

        self._stack.enter_context(using(self._tuned))

    @staticmethod
    def suspended() -> contextlib.AbstractContextManager[list[Installed]]:
        """Inside the block nothing that was applied is in use."""
        return Installed._suspended(list(_installed))

    @staticmethod
    @contextlib.contextmanager
    def _suspended(here: list[Installed]) -> Iterator[list[Installed]]:
        """Inside the block the last ones that were applied, in this order, are not in use; after it what is `here`."""
        for one in reversed(here):  # each stands in front of those before it
            one._stack.close()
        try:
            yield here
        finally:
            for one in here:
                one._put_in()


_installed: list[Installed] = []


@dataclass(frozen=True, repr=False)
class Tuned:
    """A result in this process: what was found, how to use it, and where it is kept. `print` shows its kernels."""

    result: Result
    path: Path  # its RESULT.json

    @property
    def kernels(self) -> tuple[TunedKernel, ...]:
        """Every kernel, the one that took longest first."""
        from kcg.kernel.kinds import describe
        from kcg.report.words import origin_of

        return tuple(
            TunedKernel(
                row.chosen.name or row.region.id[:12],
                origin_of(row),
                row.calls,
                row.before_s,
                row.after_s,
                row.outcome,
                describe(row.chosen.schedule),
            )
            for row in self._slowest_first
        )

    @property
    def _slowest_first(self) -> list[RegionResult]:
        return sorted(self.result.regions, key=lambda row: -row.before_s)

    @property
    def total_before_s(self) -> float:
        """Seconds that all kernels of one call take as tinygrad schedules them; without those that were not timed."""
        return self.result.total_before_s

    @property
    def total_after_s(self) -> float:
        """The same with what was chosen, which is tinygrad's own schedule where nothing improved."""
        return self.result.total_after_s

    def apply(self) -> Installed:
        """Use it in this process, from now on: every kernel of it that is compiled takes its schedule, also outside of
        the function. As `with result.apply():` until the end of the block.

        Raises VerificationError, MismatchError and ResultError as `kcg.tuned` does.
        """
        return Installed(self)

    def report(self) -> Path:
        """The path of its page report.html, which is made where it is missing."""
        from kcg.report.page import write_report

        page = self.path.with_name("report.html")
        return page if page.exists() else write_report(self.result, self.path.parent)

    def save(self, path: Path | str) -> Path:
        """Write its RESULT.json to `path`, whole; `kcg.load`, `kcg.tuned` and the commands read it there."""
        from kcg.report.result import write_result

        write_result(self.result, Path(path))
        return Path(path)

    def __str__(self) -> str:
        kernels = self.kernels
        lines = [self._headline, self._counts, *filter(None, [self._whole, self._provisional, self._missing])]
        width = max([6, *(len(_short(kernel)) for kernel in kernels[:ROWS])])
        lines.append(f"{_title(kernels):{width}}  {'calls':>6}  {'before':>9}  {'after':>8}  {'speed-up':>8}  outcome")
        for kernel, times in zip(kernels[:ROWS], self._times, strict=True):
            before, after, ratio = times
            figures = f"{kernel.calls:>6}  {before:>9}  {after:>8}  {ratio:>8}"
            lines.append(f"{_short(kernel):{width}}  {figures}  {kernel.outcome}")
        if len(kernels) > ROWS:
            lines.append(f"... and {self._more} more")
        return "\n".join(
            map(printable, [*lines, f"result: {self.path}", f"report: {self.path.with_name('report.html')}"])
        )

    __repr__ = __str__

    def _repr_html_(self) -> str:
        def cells(tag: str, *texts: str) -> str:
            return f"<tr>{''.join(f'<{tag}>{html.escape(text)}</{tag}>' for text in texts)}</tr>"

        shown = self.kernels[:ROWS]
        rows = [
            cells(
                "td",
                kernel.layer or kernel.name,
                str(kernel.calls),
                *times,
                kernel.outcome,
                kernel.schedule,
            )
            for kernel, times in zip(shown, self._times, strict=True)
        ]
        head = cells(
            "th",
            _title(shown),
            "calls",
            "before",
            "after",
            "speed-up",
            "outcome",
            "schedule",
        )
        page = f"report: {self.path.with_name('report.html')}"
        texts = filter(None, [self._headline, self._counts, self._whole, self._provisional, self._missing, page])
        more = f"<p>and {self._more} more</p>" if len(self.kernels) > ROWS else ""
        text = "".join(f"<p>{html.escape(line)}</p>" for line in texts)
        return f"{text}<table><thead>{head}</thead><tbody>{''.join(rows)}</tbody></table>{more}"

    @property
    def _times(self) -> list[tuple[str, str, str]]:
        """Before, after and speed-up of each kernel that is shown, in words."""
        from kcg.report.times import after_text, before_text, speedup_text

        return [(before_text(row), after_text(row), speedup_text(row)) for row in self._slowest_first[:ROWS]]

    @property
    def _headline(self) -> str:
        from kcg.report.times import totals_text

        return f"{self.result.workload.partition(':')[2] or self.result.workload}: {totals_text(self.result)}"

    @property
    def _counts(self) -> str:
        from kcg.report.counts import how_many
        from kcg.report.formats import format_seconds
        from kcg.report.result import OUTCOMES

        outcomes = [row.outcome for row in self.result.regions]
        counts = ", ".join(f"{outcomes.count(name)} {name}" for name in OUTCOMES if name in outcomes)
        searched = f"{counted(self.result.measurements, 'measurement')} in {format_seconds(self.result.search_s)}"
        return f"{how_many(row.region for row in self.result.regions)}: {counts or 'none'}; {searched}"

    @property
    def _more(self) -> str:
        """How many are not shown."""
        from kcg.report.counts import how_many

        return how_many(row.region for row in self._slowest_first[ROWS:])

    @property
    def _provisional(self) -> str:
        from kcg.report.words import provisional_line

        return provisional_line(self.result)

    @property
    def _missing(self) -> str:
        """Why it is not complete, and what to do; empty where it is."""
        from kcg.report.endings import incomplete

        return incomplete(self.result).replace("--budget ", "budget=")

    @property
    def _whole(self) -> str:
        from kcg.report.formats import format_seconds
        from kcg.report.words import checked_as

        if (check := self.result.model_check) is None:
            return ""
        what = f"whole {checked_as(self.result)}"
        if not check.passed:
            return f"{what}: {'FAILED, not used: ' if check.passed is False else ''}{check.reason}"
        times = f"; {format_seconds(check.before_s)} → {format_seconds(check.after_s)}" if check.after_s else ""
        return f"{what}: verified, error {check.error:.2g} of a tolerated {check.tolerance:.2g}{times}"


def _title(kernels: Sequence[TunedKernel]) -> str:
    """Of the column that `_short` is in."""
    return "layer" if any(kernel.layer for kernel in kernels) else "kernel"


def _short(kernel: TunedKernel) -> str:
    """Where a kernel comes from, or else its name, in so many columns."""
    from kcg.report.words import end_of

    return end_of(kernel.layer or kernel.name, NAME_WIDTH)


def load(path: Path | str) -> Tuned:
    """The handle of a RESULT.json, or of the folder that holds one. Raises ResultError where it cannot be read."""
    from kcg.report.result import read_result

    file = Path(path) / "RESULT.json" if Path(path).is_dir() else Path(path)
    return Tuned(read_result(file), file)


def tune(
    fn: Callable[..., Any],
    *args: Any,
    budget: str | float = "60s",
    device: str | None = None,
    search: str = "mcts",
    folder: Path | str | None = None,
    store: Path | str | None = None,
    quiet: bool = False,
    **kwargs: Any,
) -> Tuned:
    """Find faster schedules for the kernels that `fn(*args, **kwargs)` runs, verify them, and keep them in a folder.

    Where the function returns lazy tensors they are scheduled and not computed; else it runs once. At the end, where
    something was found, it is called a few times more, under `TinyJit`, to compare what it returns with what it returns
    as tinygrad schedules it. Tensors that it changes, such as a cache, are compared too; they are copied first, and
    stay as they were. A function that draws random numbers or reads values is not called again: then each kernel is
    verified, and the handle says that the whole is not. A `TinyJit` is tuned by what it captures, and a bound
    `Variable` may be an argument: what was found is for all of its values.

    Nothing of the process changes: `result.apply()` or `with kcg.tuned(result):` uses what was found.

    Args:
        budget: time from start to result, such as `60s` or `2m`, or seconds.
        device: tinygrad's default device, which is the one that is used; another is refused.
        search: a strategy, or one for each kind of schedule, as of `python -m kcg.optimize --search`.
        folder: where RESULT.json, report.html and the journal go, `kcg-out/NAME` by default.
        store: a store of results, a folder or `hf://OWNER/NAME@REVISION`: what it has is verified and not searched, and
            what is found is added.
        quiet: no progress on stderr.

    Raises:
        UsageError: an argument is wrong, or the function runs no kernel that can be searched.
        DeviceError: the device does not open, or went away.
    """
    from kcg.optimize.console import progress
    from kcg.workloads.function import Call

    started = time.monotonic()
    call = Call(check_callable(fn), args, kwargs)
    settings = settings_of(call, budget=budget, search=search, folder=folder, store="" if store is None else str(store))
    with Installed.suspended(), progress(quiet=quiet) as shown:
        check_not_inside()
        dev = device_here(device)
        captured = captured_call(call, shown, dev=dev)
        return optimized(call, captured, settings, shown, dev=dev, started=started)


def check_callable(fn: Any) -> Callable[..., Any]:
    """The function. Raises UsageError where it cannot be called."""
    if not callable(fn):
        raise UsageError(f"{type(fn).__name__} is no function: give one, and what it is to be called with after it")
    checked: Callable[..., Any] = fn
    return checked


def settings_of(
    call: Call, *, budget: str | float, search: str, folder: Path | str | None, store: str = ""
) -> Settings:
    """What tuning `call` is asked to do, but for its device. Raises UsageError for what is wrong with it."""
    from kcg.cli import parse_budget
    from kcg.optimize.settings import Settings, check_search, check_writable
    from kcg.workloads.function import PREFIX
    from kcg.workloads.script import bounded

    search = check_search(search)
    chosen = Path("kcg-out") / _file_name(call.name) if folder is None else Path(folder)
    check_writable(chosen, "folder=")
    return Settings(
        workload=PREFIX + bounded(call.name),
        search=search,
        budget_s=parse_budget(str(budget), "budget"),
        wait=True,
        folder=chosen,
        store=store,
        command=f"kcg.tune({call.name}, budget={str(budget)!r}, search={search!r})",
        in_memory=True,
    )


def _file_name(name: str) -> str:
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in name) or "function"


def device_here(asked: str | None = None) -> str:
    """What `DEV=` selects tinygrad's default device, which is opened. Raises DeviceError where it does not open,
    UsageError where another one is `asked` for."""
    from kcg.compat.device import choose_device
    from kcg.compat.opened import open_default

    wanted = choose_device(asked).dev if asked is not None else ""
    opened = open_default()
    here = f"CPU:{opened.renderer}" if opened.device == "CPU" else opened.device
    if wanted not in ("", here) and asked != opened.device:
        raise UsageError(f"device {asked!r}: this process runs on {here}: start it with DEV={wanted}")
    return here


def check_not_inside() -> None:
    """Raises UsageError where a result is in use: what it changes would be taken for tinygrad's own."""
    from kcg.compat.capture import is_hooked

    if is_hooked():
        raise UsageError("a result is in use here: tune outside of the block of kcg.tuned")


def captured_call(call: Call, shown: Progress, *, dev: str) -> CapturedCall:
    """What a call runs. Raises UsageError where that is nothing, and what the function raises, with a note."""
    from kcg.workloads.function import capture_call

    shown.phase(f"looking at which kernels {call.name} runs")
    try:
        captured = capture_call(call, device=dev.split(":")[0])
    except KcgError:
        raise
    except Exception as error:
        error.add_note(f"kcg called {call.name} to see which kernels it runs, and it raised this")
        raise
    for line in (*captured.notes, *map(str, captured.workload.left_out)):
        shown.line(f"kcg: {line}")
    return captured


def optimized(
    call: Call, captured: CapturedCall, settings: Settings, shown: Progress, *, dev: str, started: float
) -> Tuned:
    """Optimise what was captured since `started`. Raises DeviceError where the device went away, KeyboardInterrupt."""
    from kcg.compat.device import keeping_default
    from kcg.optimize.run import optimize
    from kcg.optimize.work import Captured

    taken = Captured(captured.workload, captured.seconds, call, captured.why_once)
    with keeping_default():
        finished = optimize(replace(settings, device=dev), shown, started=started, captured=taken)
    kept = f"what was found by then is in {finished.result_path}"
    if finished.exit_code == ExitCode.INTERRUPTED:
        shown.line(f"kcg: interrupted: {kept}", important=True)
        raise KeyboardInterrupt
    if finished.exit_code == ExitCode.DEVICE_UNUSABLE:
        raise DeviceError(f"{finished.lost}; {kept}")
    return Tuned(finished.result, finished.result_path)
