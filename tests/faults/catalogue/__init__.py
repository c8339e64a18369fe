"""The fault catalogue: small programs, and C kernels for each of them, right and wrong.

programs.py     the programs, as tinygrad schedules them: one kernel each
NAME.c          the kernels of one program; a line that begins with //! says what the next one is
judging.py      how one is judged: checked and timed as in a search, then compared as in the finals

A wrong kernel is wrong on data that a program could hold: the line says on which. `not promised` is what differs only
where no promise is made (on NaN in the inputs); such kernels are judged too, and neither verdict is a fault.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

RIGHT, WRONG, NOT_PROMISED = "right", "wrong", "not promised"
FOLDER = Path(__file__).parent

_MARK = re.compile(r"^//! (.*)$", re.MULTILINE)
_WRONG = re.compile(rf"({WRONG}|{NOT_PROMISED}) \| ([\w -]+) \| (.+ Shows .+\.)")
_RIGHT = re.compile(rf"{RIGHT}: (.+)")
_ENTRY = re.compile(r"^void (\w+)\(", re.MULTILINE)


@dataclass(frozen=True)
class CKernel:
    """One kernel of the catalogue."""

    program: str
    name: str
    result: str  # RIGHT, WRONG or NOT_PROMISED
    kind: str  # of fault; empty where it is right
    description: str
    source: str  # its own C function, after what the file's kernels share

    @property
    def id(self) -> str:
        return f"{self.program}/{self.name}"


def read(program: str) -> tuple[CKernel, ...]:
    """The kernels of a program, in the order of its file. Raises ValueError where a mark is not understood."""
    parts = _MARK.split((FOLDER / f"{program}.c").read_text())
    shared, found = parts[0], []
    for mark, code in zip(parts[1::2], parts[2::2], strict=True):
        entry = _ENTRY.search(code)
        right, wrong = _RIGHT.fullmatch(mark), _WRONG.fullmatch(mark)
        if entry is None or (right is None and wrong is None):
            raise ValueError(f"{program}.c: {mark!r} is no mark of a kernel")
        result, kind, wanted = wrong.groups() if wrong is not None else (RIGHT, "", right[1] if right else "")
        found.append(CKernel(program, entry[1], result, kind, wanted, f"{shared}\n{code.strip()}\n"))
    return tuple(found)
