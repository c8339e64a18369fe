"""Whether a `Result` may be used here: what its last check said, and that hardware and tinygrad are those that it was
made for."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from kcg.errors import MismatchError, VerificationError
from kcg.types import Result, Target

if TYPE_CHECKING:
    from kcg.compat.standalone import Opened


def check_model_result(result: Result) -> None:
    """Raises VerificationError where the whole model, or the script, failed with the schedules of the result."""
    if result.model_check is not None and result.model_check.passed is False:
        what = "script" if result.model_check.runs else "model"
        raise VerificationError(
            f"the result failed its last check, the whole {what}: {result.model_check.reason}: run the search again, "
            "with another --seed"
        )


def check_tinygrad(result: Result, installed: str) -> None:
    """Raises MismatchError where the result was made with another tinygrad."""
    if result.toolchain.tinygrad != installed:
        raise MismatchError(
            f"tinygrad: the result was made with {result.toolchain.tinygrad!r}, imported is {installed!r}: install "
            "that version, or run the search again with this one"
        )


def check_target(wanted: Target, here: Target | Opened) -> None:
    """Compare all that is known of the target here. Raises MismatchError with the first field that differs."""
    for name in (one.name for one in fields(here)):
        before, now = getattr(wanted, name), getattr(here, name)
        if before != now:
            device = name in ("device", "renderer")
            what = f"set DEV={wanted.tinygrad_device}" if device else "run the search on this machine"
            raise MismatchError(f"{name}: the result was made for {before!r}, here it is {now!r}: {what}")
