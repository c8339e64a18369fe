"""What says that a kernel is unsupported: nothing that one program can be."""

from __future__ import annotations

from kcg.errors import ScheduleError


class UnsupportedTile(ScheduleError):
    """A kernel, or parameters for it, that no tile program can express. `construct` names what is in the way."""

    def __init__(self, construct: str, message: str = "") -> None:
        super().__init__(f"{construct}: {message}" if message else construct)
        self.construct = construct
