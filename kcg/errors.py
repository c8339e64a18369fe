"""The one exception tree of kcg. An error that a user can cause carries one line: what is wrong, and what to do.

KcgError                    anything kcg raises on purpose            exit code 1
├── UsageError              a wrong argument, name, preset, budget    exit code 2
│   ├── UnknownName         no such workload, preset, strategy
│   └── ScriptError         the user's own script raised
├── DataError               a file that cannot be trusted or read     exit code 2
│   ├── CodecError          an AST that does not decode
│   ├── JournalError        a corrupt or foreign journal
│   ├── ResultError         a truncated or foreign RESULT.json
│   └── WeightsError        missing, extra or misshapen tensors
├── ScheduleError           a schedule that does not apply to its region
├── MismatchError           result, target and toolchain do not fit   exit code 2
├── DeviceError             the device is absent or unusable          exit code 5
└── VerificationError       the chosen schedules do not verify        exit code 4
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What a kcg command returns to the shell. `UNCHECKED`: improved, and the result is usable, but the whole was not
    checked, or parts of it are provisional."""

    OK = 0
    INTERNAL = 1
    USAGE = 2
    NOTHING_IMPROVED = 3
    VERIFICATION_FAILED = 4
    DEVICE_UNUSABLE = 5
    NOTHING_SEARCHED = 6
    UNCHECKED = 7
    INTERRUPTED = 130


class KcgError(Exception):
    """Base of every error kcg raises on purpose; `str(error)` is one line for the user."""

    exit_code: ExitCode = ExitCode.INTERNAL


class UsageError(KcgError):
    """The command line or an argument is wrong."""

    exit_code = ExitCode.USAGE


class UnknownName(UsageError):
    """A workload, preset or strategy of that name does not exist."""

    def __init__(self, noun: str, name: str, known: list[str]) -> None:
        import difflib  # only for an error

        meant = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {meant[0]}? There are" if meant else "choose one of"
        super().__init__(f"unknown {noun} {name!r}: {hint} {', '.join(sorted(known))}")


class ScriptError(UsageError):
    """The user's own script raised before its kernels could be recorded."""


class DataError(KcgError):
    """A file cannot be trusted or cannot be read."""

    exit_code = ExitCode.USAGE


class CodecError(DataError):
    """An AST in JSON is malformed, too large, or holds something outside the allow-list."""


class JournalError(DataError):
    """A journal is corrupt, of another schema, or not a journal at all."""


class ResultError(DataError):
    """A RESULT.json is truncated, of another schema, or not a result at all."""


class WeightsError(DataError):
    """A safetensors file does not hold exactly the tensors of the model."""


class ScheduleError(KcgError):
    """A schedule does not apply to its region on this target."""


class MismatchError(KcgError):
    """A result was made for another target or another tinygrad."""

    exit_code = ExitCode.USAGE


class DeviceError(KcgError):
    """The device is absent, or it cannot be used."""

    exit_code = ExitCode.DEVICE_UNUSABLE


class VerificationError(KcgError):
    """A schedule that was chosen does not compute what its region says."""

    exit_code = ExitCode.VERIFICATION_FAILED
