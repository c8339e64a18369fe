"""python -m kcg.compare A B: two results side by side, on the terminal and as a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kcg.cli import command_app, examples, guarded, run_app, showing
from kcg.commands import SETTINGS, command_name
from kcg.errors import ExitCode, UsageError
from kcg.nouns import printable

if TYPE_CHECKING:
    from rich.console import Console

    from kcg.report.compare import Comparison

app = command_app(no_args_is_help=True)

MOST_ROWS = 9  # of the terminal's table, with what stands around it in 24 lines


@app.command(context_settings=SETTINGS, epilog=examples("kcg compare kcg-out/flux-before kcg-out/flux"))
def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="RESULT.json of a run, or its folder")],
    b: Annotated[Path, typer.Argument(metavar="B", help="that of another run of the same workload")],
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="the page; else compare.html beside B")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object; the page with --out only")] = False,
) -> None:
    """Compare two results: which kernels became faster, and what else differs between the runs."""
    from rich.console import Console

    from kcg.files import write_whole
    from kcg.report.compare import FILE_NAME, match, render, to_dict
    from kcg.report.result import read_result

    files = [path / "RESULT.json" if path.is_dir() else path for path in (a, b)]
    if files[0].exists() and files[1].exists() and files[0].samefile(files[1]):
        raise UsageError(f"{files[0]} and {files[1]} are one file: give two results")
    ours, theirs = map(read_result, files)
    found = match(ours, theirs, names=(str(files[0]), str(files[1])))
    page = out or (None if as_json else files[1].with_name(FILE_NAME))
    if page is not None:
        if page.suffix == ".json" or page.is_dir():
            raise UsageError(f"--out {page} is no name for a page: give a file such as {FILE_NAME}")
        write_whole(page, render(found).encode("utf-8", "replace"))
    with showing():
        if as_json:
            print(json.dumps(to_dict(found), indent=1, allow_nan=False))
        else:
            print_comparison(found, Console(highlight=False))
            print(f"page: {page}")


def print_comparison(found: Comparison, console: Console) -> None:
    """What differs, the kernels where most changed, totals."""
    from rich.table import Table
    from rich.text import Text

    from kcg.optimize.console import MAX_WIDTH
    from kcg.report.compare import FASTER, SLOWER, against, calls_of, name_of, summary, sums_of, when_of
    from kcg.report.counts import how_many
    from kcg.report.formats import format_seconds

    def text(content: str, style: str = "") -> Text:
        return Text(printable(content), style=style)  # a result may be somebody else's

    width = min(console.width, MAX_WIDTH)
    console.print(text(f"A: {found.a_name}, {when_of(found.a)}"), soft_wrap=True)
    console.print(text(f"B: {found.b_name}, {when_of(found.b)}"), soft_wrap=True)
    for sentence in found.differences:
        console.print(text(sentence, style="" if console.no_color else "yellow"), width=width)
    console.print()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), width=width, header_style="")
    table.add_column(Text("kernel", "bold"), no_wrap=True, overflow="ellipsis", ratio=1)
    for title in ("calls", "A", "B", *(("B against A",) if found.comparable else ())):
        table.add_column(Text(title, "bold"), justify="right", no_wrap=True)
    table.add_column(Text("schedule", "bold"), no_wrap=True)
    for pair in found.pairs[:MOST_ROWS]:
        style = "" if console.no_color else {FASTER: "green", SLOWER: "red"}.get(found.change(pair), "")
        cells = [calls_of(pair), format_seconds(pair.a.after_s or None), format_seconds(pair.b.after_s or None)]
        ratio = [Text(against(pair), style=style)] if found.comparable else []
        table.add_row(text(name_of(pair.b)), *map(Text, cells), *ratio, Text("other" if pair.rescheduled else "same"))
    console.print(table)
    if rest := found.pairs[MOST_ROWS:]:
        a_s, b_s = sums_of(rest)
        more = how_many(pair.b.region for pair in rest)
        console.print(f"... and {more} more: {format_seconds(a_s)} and {format_seconds(b_s)}")
    console.print()
    for line in summary(found):
        console.print(text(line), width=width)


def main() -> ExitCode:
    return run_app(app, command_name("compare"))


if __name__ == "__main__":
    guarded(main)
