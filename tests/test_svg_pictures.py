"""Pictures: what is drawn by the library is a part of a page, whatever it shows and whatever a user has set."""

from __future__ import annotations

import warnings
from xml.etree import ElementTree

import matplotlib
import pytest

from kcg.pictures import Axis, Sheet, one_width, picture
from tests.html_page import Page

ODD = '$x_1$ <b>&"漢字" \x01 a\nb \ud800'


def draw(sheet: Sheet) -> None:
    x, y = Axis(1e-6, 1.0, log=True), Axis(0.0, 10.0)
    panel = sheet.panel(x, y, left=60, top=20, right=sheet.width - 10, bottom=sheet.height - 40)
    panel.frame(x=x.ticks(4, "{:g}".format), y=[(5.0, ODD)], title_x=ODD)
    panel.line([(1e-6, 0.0), (1.0, 10.0)], "curve")
    panel.dots([(1e-3, 5.0), (1.0, 10.0)], "step", radius=3, tip=4)
    panel.box((1e-6, 1e-3), (0.0, 5.0), "k0", tip=0)
    panel.text(1e-3, 5.0, ODD, "m", by=(2, -3))


def drawn(**titles: tuple[str, ...]) -> str:
    return one_width(ODD, draw, width=360, height=160, look="wide", **titles)


def test_places_are_those_of_the_values() -> None:
    page = Page(drawn())
    assert [(a["cx"], a["cy"], a["r"], a["data-i"]) for tag, a in page.tags if tag == "circle"] == [
        ("205", "70", "3", "4"),
        ("350", "20", "3", "5"),
    ]
    (box,) = [a for tag, a in page.tags if tag == "path" and a["class"] == "k0"]
    assert box["d"] == "M60 120L205 120L205 70L60 70z" and box["data-i"] == "0"
    assert {a["class"] for tag, a in page.tags if tag == "text"} == {"soft small m", "soft small e", "soft e", "m"}


def test_foreign_text_is_shown_as_it_is_and_warns_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        text = drawn(titles=(ODD,) * 6)
    ElementTree.fromstring(text.replace("\ud800", ""))
    shown = '$x_1$ <b>&"漢字" � a b �'
    page = Page(text)
    assert page.text.count(shown) == 3 and page.text.count(shown.replace(" a b ", " a\nb ")) == 3, "texts and titles"


def test_nothing_of_the_librarys_looks_is_left_and_a_users_settings_change_nothing() -> None:
    plain = drawn()
    with matplotlib.rc_context(
        {"figure.dpi": 300, "axes.grid": False, "svg.fonttype": "path", "savefig.bbox": "tight"}
    ):
        assert drawn() == plain
    for word in ("style=", "id=", "href", "clip", "#"):
        assert word not in plain, word


def test_both_widths_are_drawn_and_walked_through_where_a_script_shows_the_tips() -> None:
    shown = picture("here", "label", draw, heights=(160, 200), tips=("tip",) * 6)
    assert 'viewBox="0 0 960 160" data-figure="here" tabindex="0"' in shown.wide and "<title>" not in shown.wide
    assert 'class="fig narrow" viewBox="0 0 350 200"' in shown.narrow
    alone = picture("here", "label", draw, heights=(160, 200), tips=("tip",) * 6, titled=True)
    assert "tabindex" not in alone.wide and alone.narrow.count("<title>tip</title>") == 3


@pytest.mark.parametrize(("low", "high"), [(1e-6, 1e6), (1.0, 1e6), (2.0, 40.0), (41e-6, 55e-6), (1.01, 1.04)])
def test_a_logarithmic_axis_has_two_numbers_at_least(low: float, high: float) -> None:
    ticks = Axis(low, high, log=True).ticks(4, str)
    assert 2 <= len(ticks) <= 8 and all(low <= value <= high for value, _ in ticks)
