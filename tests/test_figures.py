"""Every figure that a document quotes beside a results file is in that file, which code of a clean tree made.

A block is what stands between two empty lines of README.md or of a page in docs. Where it names files of
evaluation/results, each number in it of three digits or more, rounded as it is quoted, must be a number of these files,
or be in a name of theirs. Figures of fewer digits are found by chance. Entries of docs/experiments are dated: they say
what was true then, so only the trees of the files that they name are looked at.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
NAMED = re.compile(r"\b(\w+\.json)\b")
NO_PROSE = re.compile(r"`[^`]*`|\]\([^)]*\)|<!--.*?-->|https?://\S+", re.DOTALL)
DATE = re.compile(r"\b\d{4}-\d\d-\d\d\b")
VERSION = re.compile(r"\b(?:Python|PyTorch|Triton|ptxas) \d+(?:\.\d+)+")
FIGURE = re.compile(r"(?<![\w.\-/])(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?(?![\w/]|[.,]\d)")
SCALES = {
    r"ms|milliseconds": 1e3,
    r"µs|microseconds": 1e6,
    r"ns": 1e9,
    r"%": 1e2,
    r"kB": 1e-3,
    r"MB": 1e-6,
    r"GB(?:/s)?|GFLOP(?:/s)?": 1e-9,
    r"TB(?:/s)?|TFLOP(?:/s)?": 1e-12,
}
"""What a number of a file, in seconds, bytes, operations or parts of one, is multiplied by where a block has the unit."""
DIRTY = {"eval_predictor.json: h200", "flux_torch_h100_recipe.json: 1024_cuda"}
"""Runs of a changed tree. They are to be made again, and leave this list then; documents say of them what they are."""


class Figures(NamedTuple):
    """The numbers of a results file, and those that stand in its names."""

    numbers: set[float]
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
    found = list(leaves(report))
    numbers = {float(value) for _, value in found if isinstance(value, int | float) and not isinstance(value, bool)}
    runs_and_rows = {name for path, _ in found for name in path[:4]}
    return Figures(numbers - {0.0}, {digits for name in runs_and_rows for digits in re.findall(r"\d+", name)})


def quoted(block: str) -> list[str]:
    """The numbers of three digits or more, as they are written; dates, versions, code and addresses are none."""
    for what in (NO_PROSE, DATE, VERSION):
        block = what.sub(" ", block)
    found = dict.fromkeys(FIGURE.findall(block))
    return [figure for figure in found if len(re.sub(r"[,.]", "", figure).lstrip("0")) >= 3]


def is_in(figure: str, scales: list[float], file: Figures) -> bool:
    plain = figure.replace(",", "")
    half = 0.5000001 * 10.0 ** -len(plain.partition(".")[2])
    near = any(abs(number * scale - float(plain)) <= half for scale in scales for number in file.numbers)
    return near or plain in file.names


def unsourced(document: str, text: str, results: Path) -> Iterator[str]:
    """A line for every figure that no results file has which its block names."""
    for block in re.split(r"\n\s*\n", text):
        files = {name: results / name for name in NAMED.findall(block) if (results / name).exists()}
        if files:
            read = [figures(json.loads(path.read_text(encoding="utf-8"))) for path in files.values()]
            scales = [1.0, *(by for unit, by in SCALES.items() if re.search(rf"(?<!\w)(?:{unit})(?!\w)", block))]
            for figure in quoted(block):
                if not any(is_in(figure, scales, file) for file in read):
                    yield f"{document}: {figure} is not in {', '.join(files)}"


def dirty(text: str, results: Path) -> set[str]:
    """The runs of a changed tree in the results files that a document names."""
    paths = {results / name for name in NAMED.findall(text) if (results / name).exists()}
    found = ((path.name, at, value) for path in paths for at, value in leaves(json.loads(path.read_text())))
    return {f"{name}: {' '.join(at[1:2])}" for name, at, value in found if at[-1:] == ("dirty",) and value is True}


RESULTS = ROOT / "evaluation" / "results"
NOW = {path.relative_to(ROOT).as_posix(): path.read_text() for path in (ROOT / "README.md", *ROOT.glob("docs/*.md"))}


def test_every_figure_beside_a_results_file_is_in_it() -> None:
    assert [line for document, text in NOW.items() for line in unsourced(document, text, RESULTS)] == []
