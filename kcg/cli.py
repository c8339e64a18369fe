"""What the commands share: errors as one line and an exit code, times and folders from the command line."""

from __future__ import annotations

import atexit
import contextlib
import errno
import gc
import io
import json
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from kcg import shell
from kcg.commands import COMMANDS, SETTINGS, command_name
from kcg.errors import ExitCode, KcgError, UsageError
from kcg.files import lock_file, write_whole
from kcg.provenance import provenance

if TYPE_CHECKING:
    import typer
    from rich.console import Console

SCRIPTS = ("evaluation", "training")  # folders of scripts that record figures


LONGEST_S: Final = 366 * 86400.0  # clocks and timeouts cannot take any number of seconds
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def command_text(name: str) -> str:
    """A command as it can be typed again: one of kcg's, or a module that `python -m` runs. What of it is no text is
    replaced, since files are to hold it."""
    started = command_name(name) if name in COMMANDS else shell.command("python", "-m", name)
    return shell.command(started, *sys.argv[1:]).encode("utf-8", "replace").decode()


def run_app(app: typer.Typer, program: str) -> ExitCode:
    """Run a command-line application on this process's arguments, called `program` in what it says."""
    code = app(args=sys.argv[1:], prog_name=program, standalone_mode=False)
    return ExitCode(code) if isinstance(code, int) else ExitCode.OK


def examples(*lines: str) -> str:
    """The end of a command's help, a command a line."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def command_app(**more: Any) -> typer.Typer:
    """The typer application of a command of kcg, with more of typer's settings where it needs some."""
    import typer

    return typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None, **more)


def command_group(*lines: str) -> typer.Typer:
    """A command that has subcommands, with examples at the end of its help."""
    return command_app(no_args_is_help=True, context_settings=SETTINGS, epilog=examples(*lines))


def run_script(main: Callable[..., object]) -> NoReturn:
    """Run the `main` of a script of `evaluation/` or `training/` as a command, whose options are its parameters."""
    import typer

    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    guarded(lambda: app(standalone_mode=False))


def table_console(*, width: int = 120, markup: bool = True) -> Console:
    """Where tables are printed; so wide where no terminal shows them. Without `markup` brackets are no styles."""
    from rich.console import Console

    console = Console(highlight=False, markup=markup)
    return console if console.is_terminal else Console(highlight=False, markup=markup, width=width)


def counted(number: int, noun: str, many: str = "") -> str:
    """`1 kernel`, `2 kernels`; `many` where it is not the noun with an s."""
    return f"{number} {noun if number == 1 else many or noun + 's'}"


def pip_install(extra: str) -> str:
    """The command that installs an extra of kcg: in a checkout at its pinned versions."""
    in_checkout = (Path(__file__).parent.parent / "constraints.txt").is_file()
    return f"pip install -c constraints.txt -e '.[{extra}]'" if in_checkout else f"pip install 'kcg[{extra}]'"


OPTIONAL = {
    **dict.fromkeys(("torch", "torch_geometric", "stable_baselines3", "sb3_contrib", "optuna", "wandb"), "train"),
    **dict.fromkeys(("pyarrow", "pandas", "datasets"), "data"),
    **dict.fromkeys(("distributed", "dask", "cryptography"), "fleet"),
    "triton": "gpu",
}
"""What only some commands need, and the extra that brings it."""

AGAIN_S = 0.25
"""A Ctrl-C that comes sooner after the first is the same one: `timeout -s INT` tells the process, then its group."""
ENDING = ("SIGINT", "SIGTERM", "SIGHUP")

QUIET_TRACKER = "ignore:resource_tracker:UserWarning"
"""Where a command is ended at once, multiprocessing's tracker cleans up after it: that is no news."""

NO_MEMORY = ("can't start new thread", "cannot allocate memory", "failed to map segment", "out of memory")
"""What errors of other kinds say where memory is what is missing."""

_last_acts: list[Callable[[], None]] = []
_lost_output: list[str] = []  # why standard output could not be written, if so
_reported: list[str] = []  # how to go on after an interrupt, where a command has said it itself
_goes_on: list[str] = []  # what an interrupted command has kept and how to go on, as it said when it began


def at_once(act: Callable[[], None]) -> None:
    """Have `act` called where this process is ended by a second Ctrl-C: it kills what would outlive it. It may neither
    wait nor take a lock."""
    _last_acts.append(act)


def goes_on(line: str) -> None:
    """Say what this command keeps where it is interrupted, and how to go on, before it begins."""
    _goes_on[:] = [line]


def collect_rarely() -> None:
    """Have this process look for circles of garbage once in 100,000 new objects: a lowering makes a million that live
    for a moment, and at Python's 700 looking among them is a sixth of its time."""
    gc.set_threshold(100_000)


def guarded(body: Callable[[], ExitCode | None]) -> NoReturn:
    """Run a command and leave the process with its exit code.

    Anything kcg raises on purpose is one line on stderr. Anything else is a bug of kcg: one line that says so, and the
    traceback only with `KCG_TRACEBACK=1`. SIGTERM and SIGHUP end a command as Ctrl-C does, with the line of `goes_on`;
    a second Ctrl-C ends it at once.
    """
    if {*Path(sys.argv[0]).parts[-3:-1]} & {*SCRIPTS}:
        provenance()  # of what runs, not of what is committed by the time there are results
    else:  # a script may run whole models here, whose memory a circle may hold
        collect_rarely()
    if QUIET_TRACKER not in sys.warnoptions:
        sys.warnoptions.append(QUIET_TRACKER)  # processes that are started take it over
    _open_streams()
    with _ended_by_signals():
        code = _code_of(body)
        with showing():
            pass  # what is still in the buffer
        if _lost_output and code == ExitCode.OK:
            code = ExitCode.USAGE
        _lost_output.clear()
    raise SystemExit(int(code))


def _code_of(body: Callable[[], ExitCode | None]) -> ExitCode:
    _reported.clear()
    _goes_on.clear()
    try:
        code = body() or ExitCode.OK
        # the command-line library makes an exit code of an interrupt, without a word
        return _interrupted() if code == ExitCode.INTERRUPTED and not _reported else code
    except KcgError as error:
        _complain(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED if _reported else _interrupted()
    except BrokenPipeError:
        _drop_output()
        return ExitCode.OK  # the reader of a pipe has seen enough
    except SystemExit as error:  # the command-line library's own way to end
        if isinstance(error.__context__, BrokenPipeError):
            _drop_output()
            return ExitCode.OK
        raise
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name not in OPTIONAL:
            return _failed(error)
        _complain(f"this needs {name}, which is not installed: {pip_install(OPTIONAL[name])}")
        return ExitCode.USAGE
    except Exception as error:
        if type(error).__name__ == "Abort" and isinstance(error.__context__, KeyboardInterrupt):
            return _interrupted()
        return _failed(error)


def _interrupted() -> ExitCode:
    _complain("; ".join(["interrupted", *_goes_on]))
    return ExitCode.INTERRUPTED


def interrupted(line: str) -> None:
    """Say that a command was interrupted, and how to go on, in its own words: nothing more is said of it."""
    _reported.append(line)
    _complain(line)


def _failed(error: Exception) -> ExitCode:
    """One line on an error that nobody foresaw, and its exit code."""
    if type(error).__name__ == "NoArgsIsHelpError":
        sys.stderr.write(f"{error}\n")
        return ExitCode.USAGE
    if (usage := getattr(error, "format_message", None)) is not None:  # the command-line library's own errors
        _complain(f"{usage().rstrip('.')}; --help lists what there is")
        return ExitCode.USAGE
    line = (str(error).strip().splitlines() or ["no message"])[0]
    if _is_about_memory(error):
        _complain("not enough memory: free some, or raise the limit (ulimit -v)")
        atexit.register(_leave, ExitCode.USAGE)  # libraries that found none end badly: by a signal, or never
        return ExitCode.USAGE
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EBADF, errno.EIO):
        with showing():
            pass
        if not _lost_output:
            what = error.filename or "the output"  # what is printed has no name
            _complain(f"cannot write {what}: {error.strerror}: free space, or choose another place")
        return ExitCode.USAGE
    if isinstance(error, OSError) and error.errno in (errno.ENAMETOOLONG, errno.EACCES) and error.filename:
        _complain(f"cannot use {error.filename}: {error.strerror}: check the path")
        return ExitCode.USAGE
    if os.environ.get("KCG_TRACEBACK"):
        traceback.print_exc()
    _complain(f"internal error: {type(error).__name__}: {line}; set KCG_TRACEBACK=1 for the traceback")
    return ExitCode.INTERNAL


def _is_about_memory(error: BaseException | None) -> bool:
    """Whether memory is what is missing, by an error or one that it came of."""
    while error is not None:
        if isinstance(error, MemoryError) or any(words in str(error).lower() for words in NO_MEMORY):
            return True
        error = error.__cause__ or error.__context__
    return False


def _leave(code: ExitCode) -> NoReturn:
    """End this process without what its libraries do at the end."""
    for act in _last_acts:
        with contextlib.suppress(Exception):
            act()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)


def _complain(line: str) -> None:
    from kcg.nouns import printable  # only for an error

    with contextlib.suppress(OSError, ValueError, AttributeError):  # nobody can be told
        sys.stderr.write(f"kcg: {printable(line)}\n")


# ---- standard streams ----


def _open_streams() -> None:
    """Give this process the standard streams that it was started without: the next file that is opened would be one of
    them. What is written to such an output fails, as it should."""
    for descriptor, flags in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, flags)
            if opened != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)
    if sys.stdout is not None and getattr(sys.stdout, "errors", "") == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # such as a file's name
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)


@contextlib.contextmanager
def showing() -> Iterator[None]:
    """A block that prints what a command found, which was kept elsewhere before: an output that cannot be written is
    said once, and changes the exit code of no command that has other news. A reader that went away is no news."""
    try:
        yield
        with contextlib.suppress(ValueError):  # somebody closed it
            sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
    except OSError as error:
        if not _lost_output:
            _complain(f"cannot write to standard output: {error.strerror}")
        _lost_output.append(str(error))
        _drop_output()


def _drop_output() -> None:
    """Let what is still in the buffer of standard output, and all that follows, go nowhere."""
    with contextlib.suppress(OSError, ValueError, io.UnsupportedOperation):
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, sys.stdout.fileno())
        os.close(sink)


# ---- signals ----


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Inside the block the first of `ENDING` raises KeyboardInterrupt. A second Ctrl-C ends the process; who is told to
    end again by the others is ending already. What the caller ignores, as `nohup` does, stays ignored."""
    first_s: list[float] = []

    def on_signal(number: int, frame: object) -> None:
        if not first_s:
            first_s.append(time.monotonic())
            raise KeyboardInterrupt
        if number == signal.SIGINT and time.monotonic() - first_s[0] > AGAIN_S:
            _end_at_once()

    if threading.current_thread() is not threading.main_thread():  # where there are no handlers
        yield
        return
    numbers = [getattr(signal, name) for name in ENDING if hasattr(signal, name)]
    before = {number: handler for number in numbers if (handler := signal.getsignal(number)) != signal.SIG_IGN}
    for number in before:
        signal.signal(number, on_signal)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        if signal.SIGINT in before:  # no traceback where it comes while the process ends
            atexit.register(signal.signal, signal.SIGINT, signal.SIG_DFL)


def _end_at_once() -> NoReturn:
    with contextlib.suppress(OSError):
        os.write(2, b"kcg: interrupted again: ended at once\n")
    _leave(ExitCode.INTERRUPTED)


def record_results(
    path: Path,
    run: str,
    entry: dict[str, Any],
    headline: dict[str, Any],
    *,
    overall: Callable[[dict[str, Any]], dict[str, Any]] = lambda headline: {},
    ending: str | None = None,
    locks: Path | None = None,
) -> dict[str, Any]:
    """Add what a script of `evaluation/` found to its results file: `entry` as `runs[run]`, `headline` to the headline,
    and what follows `overall` from the whole headline. Figures there whose names have this `ending` are all of this
    run: what an earlier one had and this one has not goes.

    Says with it at which revision, whether the tree was dirty (`kcg.provenance`), and on which day. Of several
    processes at once each adds its own, in turns: their lock is a hidden file in `locks`, else beside `path`. A new
    file takes the old one's place whole. Returns all of it. Raises UsageError where it cannot be written.
    """
    entry = {**entry, **provenance(), "date": date.today().isoformat()}
    with _lock_journal(path, locks or path.parent):
        report = json.loads(path.read_text()) if path.exists() else {"headline": {}, "runs": {}}
        report["runs"][run] = entry
        if ending is not None:
            stale = {key for key in report["headline"] if key.endswith(ending)} | set(overall(report["headline"]))
            report["headline"] = {key: value for key, value in report["headline"].items() if key not in stale}
        report["headline"].update(headline)
        report["headline"].update(overall(report["headline"]))
        write_whole(path, json.dumps(report, indent=1, sort_keys=True) + "\n")
    return report


@contextlib.contextmanager
def _lock_journal(path: Path, folder: Path) -> Iterator[None]:
    """Hold the lock of a hidden file of `path`, which itself is replaced."""
    with contextlib.ExitStack() as held:
        try:
            for needed in (path.parent, folder):
                needed.mkdir(parents=True, exist_ok=True)
            held.enter_context(lock_file(folder / f".{path.name}.lock", wait=True))
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}: choose a folder that can be written") from error
        yield


def parse_budget(text: str, option: str = "--budget") -> float:
    """Seconds of `120`, `120s`, `2m`, `1.5h`. Raises UsageError unless positive, and not more than a year."""
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+(?:e[0-9]+)?)\s*(s|m|min|h)?\s*", text.lower())
    if match is None or float(match[1]) <= 0:
        raise UsageError(f"{option} {text!r} is not a positive time: write for example 120s, 2m or 1h")
    if (seconds := float(match[1]) * _UNITS[match[2] or ""]) > LONGEST_S:
        raise UsageError(f"{option} {text!r} is more than a year: write for example 120s, 2m or 1h")
    return seconds
