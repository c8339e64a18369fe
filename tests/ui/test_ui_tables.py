"""Tables as pages: the order, the words and the place that an address asks for, and nothing else of it."""

from __future__ import annotations

import math

from kcg.ui.tables import PER_PAGE, Asked, Column, shown

Row = tuple[str, float | None]
COLUMNS: tuple[Column[Row], ...] = (
    Column("name", "Name", lambda row: row[0]),
    Column("time", "Time", lambda row: row[1], "n"),
)
START = Asked("time", down=True)
ROWS: list[Row] = [("b", 2.0), ("a", None), ("c", 3.0), ("d", math.nan), ("e", 1.0)]


def asked(**query: str) -> Asked:
    return Asked.of({name: [value] for name, value in query.items()}, START, columns=[c.name for c in COLUMNS])


def names(one: Asked) -> list[str]:
    return [name for name, _ in shown(ROWS, COLUMNS, one, text=lambda row: row[0]).rows]


def test_rows_without_a_value_come_last_in_either_order() -> None:
    assert names(asked()) == ["c", "b", "e", "a", "d"]
    assert names(asked(sort="time", down="0")) == ["e", "b", "c", "a", "d"]
    assert names(asked(sort="name")) == ["a", "b", "c", "d", "e"]


def test_what_no_table_has_is_as_if_it_were_not_asked_for() -> None:
    for query in ({"sort": "__class__"}, {"page": "-1"}, {"page": "9" * 400}, {"page": "²"}, {"down": "x"}):
        assert asked(**query) == asked()
    assert len(asked(find="x" * 10_000).find) == 100


def test_a_header_sorts_the_other_way_round_when_it_is_asked_again() -> None:
    once = asked().sorted_by("name", down_first=False)
    assert once == "?sort=name&down=0"
    assert asked(sort="name", down="0").sorted_by("name", down_first=False) == "?sort=name&down=1"
    assert asked(find="a b", page="3").link(page=4) == "?find=a+b&page=4"
    assert asked(page="3").link(only="failed") == "?only=failed", "from the first row on"


def test_thousands_of_rows_are_pages_and_one_beyond_the_last_is_the_last() -> None:
    rows: list[Row] = [(f"{i:05}", float(i)) for i in range(12_345)]
    found = shown(rows, COLUMNS, asked(page="99999"), text=lambda row: row[0])
    assert (found.pages, found.asked.page, found.first, found.count) == (124, 124, 12_301, 12_345)
    assert len(found.rows) == 45 and len(shown(rows, COLUMNS, asked(), text=lambda row: row[0]).rows) == PER_PAGE
    some = shown(rows, COLUMNS, asked(find="123 00"), text=lambda row: row[0])
    assert {name for name, _ in some.rows} == {"00123", "12300"} and some.every == 12_345
