"""A long table as pages: in which order, which rows of it, and where in it one is, all in the page's address.

So a table of thousands of rows is as quick as a short one, is sorted and looked through without a script, and a page
that is loaded again shows the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Generic, TypeVar
from urllib.parse import urlencode

MOST_FIND: Final = 100  # characters that are looked for
PER_PAGE: Final = 100  # rows
LARGEST_PAGE: Final = 10**6

Key = str | float | None
"""What rows are sorted by; those without one come last, in either order."""

T = TypeVar("T")


@dataclass(frozen=True)
class Column(Generic[T]):
    """A column of a table that can be sorted."""

    name: str  # in the address, and unique
    title: str
    key: Callable[[T], Key]
    look: str = ""  # class of its cells


@dataclass(frozen=True)
class Asked:
    """What an address asks for; anything else in it is as if it were not there."""

    sort: str  # name of a column
    down: bool = False
    page: int = 1
    find: str = ""  # words that rows must have
    only: str = ""  # name of a group of rows
    start: Asked | None = field(default=None, compare=False)  # what is asked for where nothing is said

    @classmethod
    def of(cls, query: Mapping[str, Sequence[str]], start: Asked, *, columns: Iterable[str]) -> Asked:
        """What a query says, `start` where it says nothing."""
        stated = {name: values[-1] for name, values in query.items() if values}
        sort, page = stated.get("sort", ""), stated.get("page", "")
        known = sort in set(columns)
        return Asked(
            sort if known else start.sort,
            stated.get("down") == "1" if known else start.down,
            min(max(int(page), 1), LARGEST_PAGE) if page.isascii() and page.isdecimal() and len(page) < 10 else 1,
            stated.get("find", "")[:MOST_FIND].strip(),
            stated.get("only", ""),
            start,
        )

    def link(self, **changes: object) -> str:
        """The address of this page with something else asked for; from its first row on, unless that is named."""
        asked = replace(self, **{"page": 1, **changes})  # type: ignore[arg-type]
        start = self.start or Asked("")
        query: dict[str, str] = {}
        if (asked.sort, asked.down) != (start.sort, start.down):
            query = {"sort": asked.sort, "down": "1" if asked.down else "0"}
        query |= {"only": asked.only} if asked.only else {}
        query |= {"find": asked.find} if asked.find else {}
        query |= {"page": str(asked.page)} if asked.page > 1 else {}
        return "?" + urlencode(query, errors="replace")

    def sorted_by(self, column: str, *, down_first: bool) -> str:
        """The address by which the header of a column sorts: the other way round, where it is sorted by already."""
        return self.link(sort=column, down=not self.down if column == self.sort else down_first)


@dataclass(frozen=True)
class Shown(Generic[T]):
    """One page of a table."""

    asked: Asked
    columns: tuple[Column[T], ...]
    rows: tuple[T, ...]
    first: int  # number of the first row, from 1
    count: int  # of rows on all pages
    every: int  # before any were looked for

    @property
    def pages(self) -> int:
        return max(math.ceil(self.count / PER_PAGE), 1)


def shown(rows: Sequence[T], columns: tuple[Column[T], ...], asked: Asked, *, text: Callable[[T], str]) -> Shown[T]:
    """The page that is asked for; `text` is what is looked through for words. A page beyond the last is the last."""
    words = asked.find.lower().split()
    found = [row for row in rows if all(word in text(row).lower() for word in words)] if words else list(rows)
    key = next(column.key for column in columns if column.name == asked.sort)
    keyed = [(key(row), row) for row in found]
    have = [one for one in keyed if _is_key(one[0])]
    have.sort(key=lambda one: one[0], reverse=asked.down)  # type: ignore[arg-type,return-value]
    ordered = [row for _, row in have] + [row for value, row in keyed if not _is_key(value)]
    page = min(asked.page, max(math.ceil(len(ordered) / PER_PAGE), 1))
    begin = (page - 1) * PER_PAGE
    part = tuple(ordered[begin : begin + PER_PAGE])
    return Shown(replace(asked, page=page), columns, part, begin + 1, len(ordered), len(rows))


def _is_key(value: Key) -> bool:
    return value is not None and (isinstance(value, str) or math.isfinite(value))
