"""tinygrad's `Opt` as plain data: what one step of a schedule does, by name."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Opt:
    """One tinygrad `Opt` by name: `op` is the name of an `OptOps` member."""

    op: str
    axis: int | None = None
    arg: int | tuple[int, ...] | None = None

    def __str__(self) -> str:
        inner = ",".join(str(x) for x in (self.axis, self.arg) if x is not None)
        return f"{self.op}({inner})"
