"""The guides to tile programs and regions show what their own examples print, and stay guides."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs"
MOST_WORDS = 2_500


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of a page in one language."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return [part.partition("\n```")[0] for part in text.split(f"```{language}\n")[1:]]


def printed(example: str) -> str:
    done = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, check=True, timeout=600)
    return done.stdout


def test_the_programs_of_the_guide_are_what_its_example_prints() -> None:
    example, *programs = blocks("tiles.md", "python")
    text = printed(example)
    assert len(programs) == 2
    assert [program for program in programs if program not in text] == []


@pytest.mark.slow
def test_the_plan_of_the_guide_is_what_its_example_prints() -> None:
    (example,), (shown,) = blocks("regions.md", "python"), blocks("regions.md", "text")
    assert printed(example).strip() == shown


@pytest.mark.parametrize("page", ["tiles.md", "regions.md"])
def test_a_guide_stays_short(page: str) -> None:
    assert len((DOCS / page).read_text(encoding="utf-8").split()) <= MOST_WORDS
