"""Tables that are written into documents by what measured them."""

from __future__ import annotations

from pathlib import Path

from kcg.errors import DataError


def write_into(document: Path, made: dict[str, list[str]]) -> None:
    """Put each part between its marks. Raises DataError where a mark has no end."""
    text = document.read_text()
    end = "<!-- end -->"
    for name, lines in made.items():
        before, mark, after = text.partition(f"<!-- generated: {name} -->")
        if mark:
            _, closed, rest = after.partition(end)
            if not closed:
                raise DataError(f"{document}: the mark {name} has no end")
            text = before + mark + "\n".join(["", "", *lines, "", ""]) + end + rest
    document.write_text(text)
