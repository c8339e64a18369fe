"""What the generator gives: the source of a tile program and how to launch it."""

from __future__ import annotations

from dataclasses import dataclass

WORKSPACE = -1
"""The slot of the workspace among a launch's arguments."""


@dataclass(frozen=True)
class Argument:
    """One parameter of the launched function: a buffer, the workspace, or a variable."""

    name: str
    type: str  # as Triton's signatures say it: "*fp32", "i32"
    slot: int | None = None  # of the buffer, or WORKSPACE; None: a variable
    variable: str = ""


@dataclass(frozen=True)
class TileLaunch:
    """One function of the source, and how it is compiled and launched."""

    entry: str
    arguments: tuple[Argument, ...]
    grid: int  # programs
    num_warps: int
    num_stages: int
    maxnreg: int = 0  # 0: the compiler's choice
    descriptors: bool = False  # it makes TMA descriptors, in Triton's global scratch

    @property
    def signature(self) -> dict[str, str]:
        """Name -> type, as `triton.compiler.ASTSource` takes it."""
        return {a.name: a.type for a in self.arguments}


@dataclass(frozen=True)
class TileSource:
    """A tile program: a Python module's text, and its launches in order, which are one program."""

    source: str  # without its header: what is compiled, and by which programs are the same
    launches: tuple[TileLaunch, ...]
    workspace_bytes: int = 0
    rounds_to_tf32: bool = False  # whether its products round float32 operands
    header: str = ""  # comments: the kernel, the form, the parameters and the generator's version

    @property
    def text(self) -> str:
        """The module as a person reads it."""
        return self.header + self.source
