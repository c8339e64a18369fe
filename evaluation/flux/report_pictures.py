"""The pictures of a result as SVG files: where the time goes, and the roofline.

    python -m evaluation.flux.report_pictures kcg-out/flux/RESULT.json
    python -m evaluation.flux.report_pictures kcg-out/flux/RESULT.json --name flux-h200 --out docs

Writes NAME-share.svg and NAME-roofline.svg beside the result, drawn as in its report.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kcg.cli import run_script


def main(
    result: Annotated[Path, typer.Argument(help="the RESULT.json of a run")],
    name: Annotated[str, typer.Option(help="how the files begin; else workload and preset")] = "",
    out: Annotated[Path | None, typer.Option(help="the folder to write into, else the result's")] = None,
) -> None:
    """Draw, and say where."""
    from kcg.errors import UsageError
    from kcg.files import write_whole
    from kcg.report.charts import points_of, roofline_file, roofs_of, share_file
    from kcg.report.result import read_result
    from kcg.report.rows import rows_of

    read = read_result(result)
    rows = rows_of(read)
    if not points_of(rows):
        raise UsageError(f"no kernel of {result} has a time and something to compute: give the result of a run")
    stem = name or f"{read.workload}-{read.preset}".replace("/", "-").replace(":", "-")
    for picture, text in (("share", share_file(rows)), ("roofline", roofline_file(rows, roofs_of(read)))):
        path = (out or result.parent) / f"{stem}-{picture}.svg"
        write_whole(path, text.encode("utf-8", "replace"))
        typer.echo(path)


if __name__ == "__main__":
    run_script(main)
