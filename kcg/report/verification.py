"""What was checked of each program, as a table: programs down, rules across.

Some rules have a number in their name, of launches or of timed runs, which differs from program to program. Such a rule
is one column, and its number is in the cell.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kcg.report.rows import Row
from kcg.types import Verification

PASSED: Final = "✓"
RAN: Final = "?"
"""In the cell of a rule that ran on a program that did not pass: which of its rules found it is in the reason."""

_NUMBER = re.compile(r"(\d+) (.+)")
_OF_THEM = re.compile(r", \d+ of them ")


@dataclass(frozen=True)
class Program:
    """One program's row of the table."""

    row: Row
    cells: tuple[str, ...]  # of each rule: `PASSED` or a number, `RAN`, or empty where the rule does not apply


@dataclass(frozen=True)
class Rules:
    """The table."""

    names: tuple[str, ...]  # those first that most programs passed
    passed: tuple[int, ...]  # how many programs passed each
    programs: tuple[Program, ...]


def rules_of(rows: Sequence[Row]) -> Rules:
    """The rules that ran on the chosen programs of `rows`, in the order of these."""
    seen = [_by_name(row.region.chosen.verification.rules) for row in rows]
    checks = [row.region.chosen.verification for row in rows]
    ran = Counter(name for found in seen for name in found)
    passed = Counter(name for found, check in zip(seen, checks, strict=True) if check.passed for name in found)
    names = sorted(ran, key=lambda name: -passed[name])  # those of one count as they were first seen
    programs = [
        Program(row, tuple(_cell(name, found, check) for name in names))
        for row, found, check in zip(rows, seen, checks, strict=True)
    ]
    return Rules(tuple(names), tuple(passed[name] for name in names), tuple(programs))


def _by_name(rules: Sequence[str]) -> dict[str, int]:
    """Rules without their numbers, and these, the largest where a rule ran twice; 0 where it has none."""
    found: dict[str, int] = {}
    for rule in rules:
        count, name = (int(parts[1]), parts[2]) if (parts := _NUMBER.fullmatch(rule)) else (0, rule)
        name = _OF_THEM.sub(", some of them ", name)
        found[name] = max(count, found.get(name, 0))
    return found


def _cell(name: str, found: dict[str, int], check: Verification) -> str:
    if name not in found:
        return ""
    if not check.passed:
        return RAN
    return f"{found[name]:,}" if found[name] else PASSED
