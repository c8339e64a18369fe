"""Options that the comparisons of tile programs and of regions share."""

from pathlib import Path
from typing import Annotated

import typer

Match = Annotated[str, typer.Option(help="cases whose names contain this")]
OptsMeasured = Annotated[int, typer.Option(help="Opts measured for each kernel; 1: the hand-coded ones")]
Samples = Annotated[int, typer.Option(help="of each contender")]
SearchLimit = Annotated[str, typer.Option(help="limit of searching some cases together")]
OfOpts = Annotated[str, typer.Option(help="of Opts: auto, roofline, or a checkpoint")]
Work = Annotated[Path, typer.Option(help="folder of the journal of searches, and of logs")]
Results = Annotated[list[Path] | None, typer.Option(help="RESULT.json whose Opts are taken instead")]
Revision = Annotated[str, typer.Option(help="of this code, where it has no repository")]
OnDevice = Annotated[str, typer.Option(help="on CPU only to try this out: no tile program is there")]
ShowTable = Annotated[bool, typer.Option("--table", help="print the tables of what is there")]
