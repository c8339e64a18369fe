"""What tinygrad lowered in a program's process, written down while it runs, so that it is not lowered a second time.

`LoweredWriter` writes in the program's process, and never disturbs it: what cannot be written is not. `read_lowered`
reads in another one; a line that was cut off counts for nothing.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kcg.types import Kernel

if TYPE_CHECKING:
    from kcg.kernel.lowered import Lowered

LINES = "lowered.jsonl"
DEVICES = ("CPU",)  # of which lowering is worth it: a GPU's kernels are lowered on many cores beside it


class LoweredWriter:
    """Writes down what one process lowers, into a folder; what it forks writes nothing. Threads may share it."""

    def __init__(self, folder: Path, kernels: dict[Any, Kernel | str]) -> None:
        """`kernels` holds what `kernel_or_reason` made of ASTs before, and gets more."""
        self._kernels, self._live, self._lock = kernels, True, threading.Lock()
        self._lines = os.open(folder / LINES, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)
        os.register_at_fork(after_in_child=self._stop)

    def lowered(self, ast: Any, program: Any, device: str, seconds: float) -> None:
        """Write down what was lowered of an AST, where it can be used again."""
        if not self._live or device not in DEVICES:
            return
        try:
            if (line := self._line(ast, program, device, seconds)) is not None:
                data = (line + "\n").encode()
                with self._lock:
                    while data:
                        data = data[os.write(self._lines, data) :]
        except Exception:  # a full disk, a program that nobody foresaw: it is lowered again
            self._stop()

    def _line(self, ast: Any, program: Any, device: str, seconds: float) -> str | None:
        from kcg.compat.capture import why_fixed
        from kcg.compat.tiny import Device
        from kcg.kernel.lowered import lowered_json, lowered_of
        from kcg.workloads.capture import kernel_or_reason

        if why_fixed(ast):
            return None
        if ast not in self._kernels:
            self._kernels[ast] = kernel_or_reason(ast)
        kernel = self._kernels[ast]
        if isinstance(kernel, str):
            return None
        found = lowered_of(kernel, ast, program, Device[device].renderer, seconds)
        return None if found is None else lowered_json(kernel, found)

    def _stop(self) -> None:
        self._live = False


def read_lowered(folder: Path) -> dict[str, Lowered]:
    """What a `LoweredWriter` wrote into a folder, by the kernels' ids; nothing where it wrote nothing. Left out is a
    kernel that was lowered in two ways, as where a program changes tinygrad's settings on its way."""
    try:
        lines = (folder / LINES).read_text().split("\n")[:-1]
    except FileNotFoundError:
        lines = []
    if not lines:  # without importing tinygrad
        return {}
    from kcg.kernel.lowered import lowered_from

    found: dict[str, Lowered] = {}
    apart: set[str] = set()
    for kernel, one in map(lowered_from, lines):
        first = found.setdefault(kernel, one)
        if (first.settings, first.schedule) != (one.settings, one.schedule):
            apart.add(kernel)
    return {kernel: one for kernel, one in found.items() if kernel not in apart}
