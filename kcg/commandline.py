"""What the commands share: errors as one line and an exit code, times and folders from the command line."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any, NoReturn

from kcg.errors import ExitCode, KcgError, UsageError
from kcg.files import locked, write_whole
from kcg.provenance import provenance

SCRIPTS = ("evaluation", "training")  # folders of scripts that record figures


def command_text(module: str) -> str:
    """The command as it can be typed again."""
    return shlex.join(["python", "-m", module, *sys.argv[1:]])


def counted(number: int, noun: str, many: str = "") -> str:
    """`1 kernel`, `2 kernels`; `many` where it is not the noun with an s."""
    return f"{number} {noun if number == 1 else many or noun + 's'}"


def guarded(body: Callable[[], ExitCode | None]) -> NoReturn:
    """Run a command and leave the process with its exit code.

    Anything kcg raises on purpose is one line on stderr. Anything else is a bug of kcg: one line that says so, and the
    traceback only with `KCG_TRACEBACK=1`.
    """
    if Path(sys.argv[0]).parent.name in SCRIPTS:
        provenance()  # of what runs, not of what is committed by the time there are results
    try:
        code = body() or ExitCode.OK
    except KcgError as error:
        code = error.exit_code
        _complain(str(error))
    except KeyboardInterrupt:
        code = ExitCode.INTERRUPTED
        _complain("interrupted")
    except BrokenPipeError:
        code = ExitCode.OK  # the reader of a pipe has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Exception as error:
        if (usage := getattr(error, "format_message", None)) is not None:  # the command-line library's own errors
            _complain(f"{usage()}; --help lists what there is")
            raise SystemExit(int(ExitCode.USAGE)) from None
        code = ExitCode.INTERNAL
        if os.environ.get("KCG_TRACEBACK"):
            traceback.print_exc()
        line = (str(error).strip().splitlines() or ["no message"])[0]
        _complain(f"internal error: {type(error).__name__}: {line}; set KCG_TRACEBACK=1 for the traceback")
    raise SystemExit(int(code))


def _complain(line: str) -> None:
    sys.stderr.write(f"kcg: {line}\n")


def record_results(
    path: Path,
    run: str,
    entry: dict[str, Any],
    headline: dict[str, Any],
    *,
    overall: Callable[[dict[str, Any]], dict[str, Any]] = lambda headline: {},
    ending: str | None = None,
) -> dict[str, Any]:
    """Add what a script of `evaluation/` found to its results file: `entry` as `runs[run]`, `headline` to the headline,
    and what follows `overall` from the whole headline. Figures there whose names have this `ending` are all of this
    run: what an earlier one had and this one has not goes.

    Says with it at which revision, whether the tree was dirty (`kcg.provenance`), and on which day. Of several
    processes at once each adds its own, in turns. A new file takes the old one's place whole. Returns all of it. Raises
    UsageError where it cannot be written.
    """
    entry = {**entry, **provenance(), "date": date.today().isoformat()}
    with _alone_with(path):
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
def _alone_with(path: Path) -> Iterator[None]:
    """Hold the lock of a hidden file beside `path`, which itself is replaced; the hidden file may stay."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.with_name(f".{path.name}.lock").open("a")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}: choose a folder that can be written") from error
    with file:
        locked(file, wait=True)
        yield
