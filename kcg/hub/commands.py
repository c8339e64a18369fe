"""What the commands share that push to the Hugging Face Hub and pull from it: what is typed, and what they print."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import typer

DatasetRepo = Annotated[str, typer.Argument(metavar="OWNER/NAME", help="a dataset on the Hugging Face Hub")]
ModelRepo = Annotated[str, typer.Argument(metavar="OWNER/NAME", help="a model on the Hugging Face Hub")]
Message = Annotated[str, typer.Option(metavar="TEXT", help="of the commit")]
Private = Annotated[bool, typer.Option("--private", help="a new one is private; a public one is refused")]
Branch = Annotated[str, typer.Option(metavar="NAME", help="the branch that gets the commit; made where it is missing")]
Commit = Annotated[str, typer.Option(metavar="COMMIT", help="40 hex digits")]
Out = Annotated[Path, typer.Option(metavar="FOLDER", help="a new or empty one")]


def say_pushed(repo: str, commit: str, command: str) -> None:
    """Print what a push made, and the command that uses it."""
    typer.echo(f"{repo} has it as {commit}\n{command}")


def say_pulled(folder: Path, files: Collection[str]) -> None:
    """Print what a pull brought."""
    typer.echo(f"{folder}: {len(files)} files, {', '.join(sorted(files))}")
