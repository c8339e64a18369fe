"""Generated programs made wrong by one edit each, as a generator that is wrong would write them.

programs.py     the regions, and the parameters that their programs are generated with
mutants.py      the edits
child.py        a process that runs programs in Triton's interpreter and judges them as a search and the finals do

An edit names what it looks for by a pattern, since names are numbered by the generator. `Shows` says on which data its
program is wrong, as in the catalogue of C kernels.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """An edit of the program of one region: every match of `pattern` becomes `replacement`, or match `which` alone."""

    program: str
    name: str
    kind: str  # of fault; empty where the program stays right
    pattern: str
    replacement: str
    shows: str = ""  # on which data it is wrong; empty where it stays right
    which: int | None = None

    @property
    def id(self) -> str:
        return f"tile/{self.program}/{self.name}"

    @property
    def result(self) -> str:
        return "wrong" if self.shows else "right"

    def of(self, source: str) -> str:
        """The edited text. Raises ValueError where the text has not what is looked for."""
        found = list(re.finditer(self.pattern, source))
        chosen = found if self.which is None else found[self.which : self.which + 1]
        if not chosen:
            raise ValueError(f"{self.id}: the program has no {self.pattern!r}")
        for match in reversed(chosen):
            source = source[: match.start()] + match.expand(self.replacement) + source[match.end() :]
        return source
