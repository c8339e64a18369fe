"""The binaries that a host has, by the hash of each."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kcg.fleet.payload import Binary

KEPT = 4000  # by a host
SENT = 2000  # a driver takes a host to have the last ones that it sent there


class BinaryStore:
    """Those that a host has, by hash: the last few thousand."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Binary] = OrderedDict()
        self._lock = threading.Lock()

    def keep(self, binary: Binary) -> str:
        """Its hash."""
        with self._lock:
            self._kept[binary.id] = binary
            self._kept.move_to_end(binary.id)
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return binary.id

    def get(self, name: str) -> Binary | None:
        """The binary of a hash, if it is here."""
        return self._kept.get(name)
