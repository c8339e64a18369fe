"""What the commands share: errors as one line and an exit code, times and folders from the command line."""

from __future__ import annotations

import os
import shlex
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

from kcg.errors import ExitCode, KcgError


def command_text(module: str) -> str:
    """The command as it can be typed again."""
    return shlex.join(["python", "-m", module, *sys.argv[1:]])


def guarded(body: Callable[[], ExitCode | None]) -> NoReturn:
    """Run a command and leave the process with its exit code.

    Anything kcg raises on purpose is one line on stderr. Anything else is a bug of kcg: one line that says so, and the
    traceback only with `KCG_TRACEBACK=1`.
    """
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
