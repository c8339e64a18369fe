"""A module of fixed functions, as kcg.fleet.tasks is one, for tests of what a fleet runs."""

from __future__ import annotations

import os
from os import system  # noqa: F401  # a name of this module that is no function of it
from typing import Any


def shout(payload: bytes) -> bytes:
    return payload.upper()


def fail(payload: bytes) -> bytes:
    raise ValueError(payload.decode())


def process(payload: bytes) -> bytes:
    return str(os.getpid()).encode()


class Runs:
    """Pickles as a call of `os.system`."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> Any:
        return os.system, (self.command,)


def hostile(payload: bytes) -> Any:
    """What no worker of kcg answers, and one with other code could."""
    return Runs(payload.decode())


def _private(payload: bytes) -> bytes:
    return payload


def set_up(service: object) -> None:
    """For this process: nobody else's to call."""
