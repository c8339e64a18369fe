"""Every figure that a document quotes beside a results file is in that file, which code of a clean tree made.

A block is what stands between two empty lines of README.md or of a page in docs. Where it, or what is above a table,
names files of evaluation/results, each number in it of three digits or more must be one of their numbers, rounded as it
is quoted, or be in a name of theirs. Figures of fewer digits are found by chance, and where a file has thousands of
numbers some of three are. Entries of docs/experiments are dated and say what was true then: of them only the trees of
the files that they name are looked at.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "evaluation" / "results"
NAMED = re.compile(r"\b(\w+\.json)\b")
NO_FIGURES = re.compile(
    r"`[^`]*`|\]\([^)]*\)|<!--.*?-->|https?://\S+"  # code, addresses
    r"|\b\d{4}-\d\d-\d\d\b|\b(?:Python|PyTorch|Triton|ptxas) \d+(?:\.\d+)+",  # dates, versions
    re.DOTALL,
)
FIGURE = re.compile(r"(?<![\w.\-/])(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?(?![\w/]|[.,]\d)")
SCALES = {r"ms|milliseconds": 1e3, r"µs|microseconds": 1e6, r"%": 1e2, r"GB/s": 1e-9, r"TFLOP/s": 1e-12}
"""What a number of a file, in seconds, bytes, operations or parts of one, is multiplied by beside such a unit."""
TIMES = {1e3, 1e6}
"""What only numbers with a name in `_s` are multiplied by."""
UNQUOTED = {
    "progress",
    "clocks",
    "clocks_after",
    "clocks_before",
    "canary_s",
    "target",
    "known_us",
    "dealt_s",
    "blocks",
}
"""What has so many numbers that any figure would be among them."""
COMPUTED = ("| variant | pairwise |", "| script | cold start |")
"""Tables over seeds and of shares of the longest run: computed from the numbers of the file."""


class Figures(NamedTuple):
    """The numbers of a results file, those that are seconds, and those that stand in its names."""

    numbers: set[float]
    seconds: set[float]
    names: set[str]


def leaves(value: Any, *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every value inside of a results file, and the names that lead there."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from leaves(inner, *path, name)
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner, *path)
    else:
        yield path, value


def figures(report: dict[str, Any]) -> Figures:
    found = [(path, value) for path, value in leaves(report) if not UNQUOTED & {*path}]
    numbers = [(path, float(value)) for path, value in found if type(value) in (int, float) and value]
    seconds = {value for path, value in numbers if any(re.search(r"_s(_|$)", name) for name in path)}
    runs_and_rows = {name for path, _ in found for name in path[:4]}
    names = {digits for name in runs_and_rows for digits in re.findall(r"\d+", name)}
    return Figures({value for _, value in numbers}, seconds, names)


def quoted(block: str) -> list[str]:
    """The numbers of three digits or more, as they are written; dates, versions, code and addresses are none."""
    found = dict.fromkeys(FIGURE.findall(NO_FIGURES.sub(" ", block)))
    return [figure for figure in found if len(re.sub(r"[,.]", "", figure).lstrip("0")) >= 3]


def is_in(figure: str, scales: list[float], file: Figures) -> bool:
    plain = figure.replace(",", "")
    zeros = min(len(plain) - len(plain.rstrip("0")), len(plain) - 3)  # 18,400 has three digits
    half = 0.5000001 * 10.0 ** (-len(plain.partition(".")[2]) if "." in plain else max(zeros, 0))
    numbers = ((number, scale) for scale in scales for number in (file.seconds if scale in TIMES else file.numbers))
    return plain in file.names or any(abs(number * scale - float(plain)) <= half for number, scale in numbers)


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """What stands between two empty lines, and what is above it where it is a table that names no file."""
    above = ""
    for block in re.split(r"\n\s*\n", text):
        table = block.startswith("|") and not block.startswith(COMPUTED) and not NAMED.search(block)
        yield (above if table else ""), block
        above = block


def unsourced(document: str, text: str, results: Path) -> Iterator[str]:
    """A line for every figure that no results file has which its block names."""
    for above, block in blocks(text):
        both = f"{above}\n{block}"
        files = {name: results / name for name in NAMED.findall(both) if (results / name).exists()}
        reports = [figures(json.loads(path.read_text(encoding="utf-8"))) for path in files.values()]
        scales = [1.0, *(by for unit, by in SCALES.items() if re.search(rf"(?<!\w)(?:{unit})(?!\w)", both))]
        for figure in quoted(block) if files else ():
            if not any(is_in(figure, scales, file) for file in reports):
                yield f"{document}: {figure} is not in {', '.join(files)}"


def dirty(text: str, results: Path) -> set[str]:
    """The runs of a changed tree in the results files that a document names."""
    paths = {results / name for name in NAMED.findall(text) if (results / name).exists()}
    found = ((path.name, at, value) for path in paths for at, value in leaves(json.loads(path.read_text())))
    return {f"{name}: {' '.join(at[1:2])}" for name, at, value in found if at[-1:] == ("dirty",) and value is True}


def read(pattern: str) -> dict[str, str]:
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in ROOT.glob(pattern)}


def test_every_figure_beside_a_results_file_is_in_it() -> None:
    documents = read("README.md") | read("docs/*.md")
    assert [line for document, text in documents.items() for line in unsourced(document, text, RESULTS)] == []


def test_no_document_names_a_run_of_a_changed_tree_but_those_known() -> None:
    documents = read("README.md") | read("docs/**/*.md")
    assert not set().union(*(dirty(text, RESULTS) for text in documents.values()))


def test_figures_of_no_file_and_changed_trees_are_seen(tmp_path: Path) -> None:
    runs = {"1024_cuda": {"dirty": False, "total_s": 0.11382}, "768": {"dirty": True, "share": 0.978, "bytes": 18412}}
    (tmp_path / "a.json").write_text(json.dumps({"runs": runs}))
    right = "At 1024 113.8 ms, 97.8 % (`a.json`, 2026-11-25, Python 3.11, `999`).\n\n| bytes |\n| 18,412 or 18,400 |"
    assert list(unsourced("a.md", right, tmp_path)) == []
    for true, wrong in (("113.8", "113.9"), ("1024", "1025"), ("97.8", "9.78"), ("18,412", "18,413"), ("ms", "s")):
        figure = "113.8" if true == "ms" else wrong
        assert list(unsourced("a.md", right.replace(true, wrong), tmp_path)) == [f"a.md: {figure} is not in a.json"]
    assert list(unsourced("a.md", "999 ms (`b.json`)\n\n`a.json`\n\n999", tmp_path)) == []
    assert dirty(right, tmp_path) == {"a.json: 768"} and dirty("`b.json`", tmp_path) == set()
