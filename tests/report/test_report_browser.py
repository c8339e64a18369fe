"""The report in a real browser: every section, picture and source by pointer, finger and key, in both themes."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote, urlparse

import pytest

from kcg.kernel.kinds import describe
from kcg.report.next_steps import next_steps
from kcg.report.page import write_report
from kcg.types import ProgressPoint
from tests.browser import CHROMIUM, Browser
from tests.report.test_timeline import some_runs
from tests.sample_result import RULES, sample_plan, sample_result
from tests.slow import every, some

pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the path")]

PICTURES = {"share": "path", "roofline": "circle", "timeline": "circle", "expected": "circle"}
SECTIONS = (
    "time",
    "timeline",
    "next",
    "roofline",
    "expected",
    "kernels",
    "sources",
    "kept",
    "verification",
    "failures",
    "run",
)
COLLIDING = """
(boxes => boxes.flatMap(([p, a], i) => boxes.slice(i + 1).filter(([q]) =>
  Math.min(p.right, q.right) > Math.max(p.left, q.left) && Math.min(p.bottom, q.bottom) > Math.max(p.top, q.top) + 4
).map(([, b]) => `${a} / ${b}`)))
([...document.querySelectorAll('svg[data-figure=NAME] text:not([transform])')]
  .map(t => [t.getBoundingClientRect(), t.textContent]).filter(([r]) => r.width))
"""
TIP = "(t => t.hidden ? '' : t.textContent)(document.getElementById('tip'))"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder, result = tmp_path_factory.mktemp("report"), sample_result()
    some_runs(folder / "journal.sqlite")
    verified = (ProgressPoint(8.0, 3, 0.9 * result.total_before_s), ProgressPoint(9.5, 3, result.total_after_s))
    path = write_report(replace(result, verified_progress=verified), folder)
    assert path.stat().st_size < 3_000_000
    return path.as_uri()


@pytest.fixture(scope="module")
def page_of_a_plan(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_report(sample_plan(), tmp_path_factory.mktemp("plan")).as_uri()


@pytest.fixture(autouse=True)
def quiet_console(browser: Browser) -> Iterator[None]:
    browser.messages.clear()
    yield
    assert browser.messages == []


def ready(browser: Browser, page: str, *, width: int = 1200, dark: bool = False) -> None:
    browser.open(page, width=width, dark=dark)
    browser.wait("document.documentElement.dataset.script === 'ready'")


def tips(browser: Browser, picture: str) -> list[str]:
    found: list[str] = browser.js(f"JSON.parse(document.getElementById('tips').textContent)[{json.dumps(picture)}]")
    return found


def overflow(browser: Browser) -> list[str]:
    """What reaches beyond the right edge, unless it is within something that scrolls by itself."""
    found: list[str] = browser.js(
        "[...document.querySelectorAll('main *')].filter(e => e.getBoundingClientRect().right > innerWidth + 0.5"
        " && !e.closest('.table, pre')).map(e => e.outerHTML.slice(0, 120))"
    )
    return found


@pytest.mark.slow
@pytest.mark.parametrize("width", [320, 390, 760, 1200])
def test_a_plan_stays_within_the_page(browser: Browser, page_of_a_plan: str, width: int) -> None:
    ready(browser, page_of_a_plan, width=width)
    assert browser.js("document.querySelector('nav a[href=\"#plan\"]') !== null")
    assert browser.js("document.documentElement.scrollWidth") == width and overflow(browser) == []
    inner = "[...document.querySelectorAll('#plan .table')].map(t => t.scrollWidth - t.clientWidth)"
    assert max(browser.js(inner)) <= 0, "nothing of it has to be scrolled"


@pytest.mark.parametrize(("width", "dark"), every(3, itertools.product([390, 760, 900, 901, 1200], [False, True])))
def test_nothing_reaches_beyond_the_page_and_text_can_be_read(
    browser: Browser, page: str, width: int, dark: bool
) -> None:
    readable(browser, page, width, dark=dark)


@pytest.mark.parametrize(("width", "columns"), [(1699, 1), (1700, 2), (1920, 2)])
def test_a_wide_screen_is_used(browser: Browser, page_of_a_plan: str, page: str, width: int, columns: int) -> None:
    for shown in (page, page_of_a_plan):
        ready(browser, shown, width=width)
        assert browser.js("document.documentElement.scrollWidth") == width and overflow(browser) == []
        tops, lefts = browser.js(
            "(r => [r.map(b => b.top + scrollY), r.map(b => b.left)])"
            "(['time', document.getElementById('plan') ? 'plan' : 'timeline'].map("
            "id => document.getElementById(id).getBoundingClientRect()))"
        )
        assert (tops[0] == tops[1] and lefts[0] < lefts[1]) is (columns == 2)
    used = "(r => r.right - r.left)(document.querySelector('main section#kernels').getBoundingClientRect())"
    assert browser.js(used) > (0.9 if columns == 2 else 0.75) * width
    readable(browser, page, width, dark=False)


def readable(browser: Browser, page: str, width: int, *, dark: bool) -> None:
    """Nothing reaches beyond the page, and every text of its pictures is there to be read."""
    ready(browser, page, width=width, dark=dark)
    browser.js("document.querySelectorAll('details').forEach(d => { if (!d.closest('.sources')) d.open = true })")
    assert browser.js("document.documentElement.scrollWidth") == width
    assert overflow(browser) == []
    shown = "narrow" if width <= 900 else "wide"
    for name in PICTURES:
        boxes = browser.js(
            f"[...document.querySelectorAll('svg[data-figure={name}]')].filter(s => s.getBoundingClientRect().width)"
            ".map(s => [s.classList.contains('narrow') ? 'narrow' : 'wide',"
            " Math.min(...[...s.querySelectorAll('text')].map("
            "t => parseFloat(getComputedStyle(t).fontSize) * s.getScreenCTM().a)),"
            " [...s.querySelectorAll('text')].filter(t => { const r = t.getBoundingClientRect(),"
            " b = s.getBoundingClientRect(); return r.right > b.right + 1 || r.left < b.left - 1 }).length])"
        )
        assert [kind for kind, *_ in boxes] == [shown], name
        assert boxes[0][1] >= 9.5, f"{name}: text of {boxes[0][1]:.1f} pixels"
        assert boxes[0][2] == 0, f"{name}: text beyond the picture"
        assert browser.js(COLLIDING.replace("NAME", name)) == [], f"{name}: texts on each other"


@pytest.mark.parametrize("width", [390, 1200])
def test_rules_and_programs_are_a_table_whose_names_stay_in_sight(browser: Browser, page: str, width: int) -> None:
    ready(browser, page, width=width)
    heads = browser.js("[...document.querySelectorAll('.matrix th.rule')].map(h => h.textContent)")
    assert set(heads) == set(RULES)
    marks = browser.js(
        "[...document.querySelectorAll('.matrix tbody tr')].map(r => [...r.cells].slice(5).map(c => c.textContent))"
    )
    assert len(marks) == 16 and ["✓"] * len(RULES) in marks and [""] * len(RULES) in marks
    assert ["?", *[""] * (len(RULES) - 1)] in marks, "of what was proven wrong"
    browser.js(
        "(m => { m.style.maxWidth = '320px'; m.style.maxHeight = '300px'; m.scrollTo(400, 200) })"
        "(document.querySelector('.matrix'))"
    )
    left, top = browser.js("(m => [m.scrollLeft, m.scrollTop])(document.querySelector('.matrix'))")
    assert left > 50 and top > 50
    name, head, box = browser.js(
        "['.matrix tbody tr:last-child th', '.matrix thead th.rule:last-child', '.matrix']"
        ".map(s => document.querySelector(s).getBoundingClientRect()).map(r => [r.left, r.top])"
    )
    assert name[0] >= box[0] and 0 <= head[1] - box[1] < 5


@pytest.mark.parametrize("dark", [False, True])
def test_the_verdict_can_be_read(browser: Browser, page: str, dark: bool) -> None:
    ready(browser, page, dark=dark)
    contrasts = browser.js(
        "(() => { const light = c => { const v = c.match(/[\\d.]+/g).slice(0, 3).map(x => x / 255)"
        ".map(x => x <= .04045 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4);"
        " return .2126 * v[0] + .7152 * v[1] + .0722 * v[2] };"
        " const ratio = (a, b) => (Math.max(a, b) + .05) / (Math.min(a, b) + .05);"
        " const card = light(getComputedStyle(document.querySelector('.number.whole')).backgroundColor);"
        " const verdict = document.querySelector('.verdict');"
        " return ['good', 'doubt', 'bad'].map(look => { verdict.className = 'verdict ' + look;"
        " return ratio(light(getComputedStyle(verdict.querySelector('a')).color), card) }) })()"
    )
    assert min(contrasts) >= 4.5, contrasts


@pytest.mark.parametrize("dark", [False, True])
def test_colours_follow_the_theme_with_enough_contrast(browser: Browser, page: str, dark: bool) -> None:
    ready(browser, page, dark=dark)
    contrasts = browser.js(
        "(() => { const light = c => { const v = c.match(/[\\d.]+/g).slice(0, 3).map(x => x / 255)"
        ".map(x => x <= .04045 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4);"
        " return .2126 * v[0] + .7152 * v[1] + .0722 * v[2] };"
        " const ratio = (a, b) => (Math.max(a, b) + .05) / (Math.min(a, b) + .05);"
        " const card = light(getComputedStyle(document.querySelector('section')).backgroundColor);"
        " const texts = [...document.querySelectorAll('svg.wide text')];"
        " const on = texts.filter(t => t.classList.contains('on')), off = texts.filter(t => !on.includes(t));"
        " const bars = [...document.querySelectorAll('svg.wide path[data-i]:not(.f)')];"
        " return [card, Math.min(...off.map(t => ratio(light(getComputedStyle(t).fill), card))),"
        " Math.min(...bars.map(b => ratio(light(getComputedStyle(b).fill), light(getComputedStyle(on[0]).fill))))] })()"
    )
    assert (contrasts[0] < 0.2) is dark
    assert min(contrasts[1:]) >= 4, contrasts


@pytest.mark.parametrize("picture", some(PICTURES, {"share", "timeline"}))
def test_a_mark_says_what_it_is_to_a_pointer(browser: Browser, page: str, picture: str) -> None:
    ready(browser, page)
    assert browser.js(TIP) == ""
    mark = f"svg.wide[data-figure={picture}] {PICTURES[picture]}[data-i='0']"
    browser.point(mark)
    browser.wait(f"{TIP} !== ''")
    assert browser.js(TIP) in tips(browser, picture)
    x, y = browser.js("(r => [r.right, r.bottom])(document.getElementById('tip').getBoundingClientRect())")
    assert 0 < x <= 1200 and 0 < y <= 900
    browser.point("#run h2")
    browser.wait(f"{TIP} === ''")


@pytest.mark.parametrize("picture", some(PICTURES, {"roofline"}))
def test_a_mark_says_what_it_is_to_a_finger(browser: Browser, page: str, picture: str) -> None:
    ready(browser, page, width=390)
    browser.tap(f"svg.narrow[data-figure={picture}] {PICTURES[picture]}[data-i='0']")
    browser.wait(f"{TIP} !== ''")
    assert browser.js(TIP) in tips(browser, picture)
    left, right = browser.js("(r => [r.left, r.right])(document.getElementById('tip').getBoundingClientRect())")
    assert left >= 0 and right <= 390


@pytest.mark.parametrize("picture", some(PICTURES, {"timeline", "expected"}))
def test_a_picture_is_walked_through_by_key(browser: Browser, page: str, picture: str) -> None:
    ready(browser, page)
    shown = tips(browser, picture)
    browser.js(f"document.querySelector('svg.wide[data-figure={picture}]').focus()")
    for key, expected in (("ArrowRight", 0), ("ArrowRight", 1), ("ArrowLeft", 0), ("ArrowLeft", 0), ("End", -1)):
        browser.key(key)
        assert browser.js(TIP) == shown[expected], key
    browser.key("Escape")
    assert browser.js(TIP) == ""


def test_everything_is_reached_by_tab(browser: Browser, page: str) -> None:
    ready(browser, page)
    wanted = {*(f"#{name}" for name in SECTIONS), *PICTURES, "source-of", "summary", "kernel-filter", "button"}
    browser.js("document.body.focus()")
    seen: set[str] = set()
    for _ in range(90):
        browser.key("Tab")
        seen.add(
            browser.js(
                "(e => e.getAttribute('href') || e.dataset.figure || e.id || e.localName)(document.activeElement)"
            )
        )
    assert wanted <= seen, wanted - seen


def test_every_section_has_its_link(browser: Browser, page: str) -> None:
    ready(browser, page)
    for name in SECTIONS:
        browser.js("scrollTo(0, 0)")
        browser.click(f"nav a[href='#{name}']")
        browser.wait(
            f"(r => r.top < innerHeight && r.bottom > 0)(document.getElementById('{name}').getBoundingClientRect())"
        )


def test_the_sources_of_a_kernel_are_unpacked_when_it_is_chosen(browser: Browser, page: str) -> None:
    ready(browser, page)
    sample = sample_result()
    assert browser.js("document.querySelectorAll('.sources pre').length") == 0, "none before one is opened"
    chosen = next(i for i, r in enumerate(sample.regions) if r.outcome == "improved" and r.calls == 57)
    browser.js(
        f"(s => {{ s.value = 'source-{chosen}'; s.dispatchEvent(new Event('change')) }})"
        "(document.getElementById('source-of'))"
    )
    opened = "document.querySelector('.sources details[open]')"
    browser.wait(f"{opened}.dataset.filled === 'done'")
    region = sample.regions[chosen]
    marked = {
        tag: browser.js(f"[...{opened}.querySelectorAll('pre {tag}')].map(e => e.textContent).join('')")
        for tag in ("del", "ins")
    }
    assert marked["del"] == f"- {region.baseline.source.splitlines()[2]}\n"
    assert marked["ins"] == f"+ {region.chosen.source.splitlines()[2]}\n"
    assert "lines are the same" in browser.js(f"{opened}.innerText")
    colours = browser.js(f"['del', 'ins'].map(t => getComputedStyle({opened}.querySelector(t)).backgroundColor)")
    assert len({*colours, "rgba(0, 0, 0, 0)"}) == 3
    assert browser.js(f"{opened}.querySelector('.pair').hidden")
    browser.js(f"{opened}.querySelectorAll('.views button')[1].focus()")
    browser.key("Enter")
    assert browser.js(f"[...{opened}.querySelectorAll('.views button')].map(b => b.ariaPressed)") == ["false", "true"]
    texts = browser.js(f"[...{opened}.querySelectorAll('.pair pre')].map(p => p.textContent)")
    assert texts == [region.baseline.source, region.chosen.source], "whole"
    shown = " ".join(browser.js(f"{opened}.innerText").split())
    for finalist in (region.baseline, region.chosen):
        assert describe(finalist.schedule) in shown and "grid 40 × 2 × 8, group 16 × 4 × 1" in shown
    left, right = browser.js(f"[...{opened}.querySelectorAll('.pair pre')].map(p => p.offsetTop)")
    assert left == right, "side by side"
    browser.click("#kernels summary")
    browser.click("#kernels details[open] a[href^='#source-']")
    browser.wait(f"{opened}.id !== 'source-{chosen}'")
    assert browser.js(f"{opened}.id") == browser.js("location.hash.slice(1)")
    assert browser.js("document.getElementById('source-of').value") == browser.js("location.hash.slice(1)")


def test_the_table_of_kernels_is_sorted_and_filtered_by_key(browser: Browser, page: str) -> None:
    ready(browser, page)
    calls = (
        "[...document.querySelectorAll('#kernel-table tbody tr:not([hidden]) [data-l=calls]')].map(c => +c.dataset.v)"
    )
    sorted_by = "[...document.querySelectorAll('#kernel-table th[aria-sort]')].map(h => [h.textContent, h.ariaSort])"
    as_written = browser.js(calls)
    assert browser.js(sorted_by) == [["Before", "descending"]]
    browser.js("[...document.querySelectorAll('th button')].find(b => b.textContent === 'Calls').focus()")
    browser.key("Enter")
    assert browser.js(calls) == sorted(as_written, reverse=True) and browser.js(sorted_by) == [["Calls", "descending"]]
    browser.key("Enter")
    assert browser.js(calls) == sorted(as_written) and browser.js(sorted_by) == [["Calls", "ascending"]]
    browser.click("#kernel-table th button")
    names = browser.js("[...document.querySelectorAll('#kernel-table td.name')].map(c => c.dataset.v)")
    assert len(names) == 16 and browser.js(
        f"(n => n.join() === n.slice().sort((a, b) => a.localeCompare(b)).join())({json.dumps(names)})"
    )
    browser.js("document.getElementById('kernel-filter').focus()")
    browser.send("Input.insertText", text="Improved softmax")
    assert browser.js("document.querySelector('.tools [role=status]').textContent") == "1 of 16 kernels"
    assert browser.js(calls) == [57]
    browser.js("(f => { f.value = ''; f.dispatchEvent(new Event('input')) })(document.getElementById('kernel-filter'))")
    assert (
        len(browser.js(calls)) == 16 and browser.js("document.querySelector('.tools [role=status]').textContent") == ""
    )


def test_a_command_is_copied(browser: Browser, page: str) -> None:
    ready(browser, page)
    browser.js("navigator.clipboard.writeText = async text => { globalThis.copied = text }")
    steps = next_steps(sample_result(), Path(unquote(urlparse(page).path)).with_name("RESULT.json"))
    assert len(steps) > 1 and browser.js("document.querySelectorAll('#next button.copy').length") == len(steps)
    for section, command in (("#run", sample_result().command), ("#next", steps[0].command)):
        browser.click(f"{section} [data-copy] + button.copy")
        browser.wait(f"document.querySelector('{section} button.copy').textContent === 'Copied'")
        assert browser.js("copied") == command


def test_what_is_not_allowed_to_be_copied_is_selected(browser: Browser, page: str) -> None:
    ready(browser, page)
    browser.js(
        "navigator.clipboard.writeText = async () => { throw new Error('no') }; document.execCommand = () => false"
    )
    browser.js("document.querySelector('#run button.copy').focus()")
    browser.key("Enter")
    browser.wait("document.querySelector('#run button.copy').textContent.startsWith('Selected')")
    assert browser.js("getSelection().toString()") == sample_result().command


def test_without_scripts_everything_but_the_sources_is_there(browser: Browser, page: str) -> None:
    browser.open(page, scripts=False)
    root = browser.send("DOM.getDocument")["root"]["nodeId"]
    counted = {
        name: len(browser.send("DOM.querySelectorAll", nodeId=root, selector=name)["nodeIds"])
        for name in (
            "svg.wide",
            ".sources noscript p",
            "label[hidden], .tools[hidden]",
            "#kernels tbody tr",
            "th button",
        )
    }
    assert counted == {
        "svg.wide": 4,
        ".sources noscript p": 1,
        "label[hidden], .tools[hidden]": 2,
        "#kernels tbody tr": 16,
        "th button": 0,
    }


@pytest.mark.slow
@pytest.mark.usefixtures("drawn")
def test_a_large_result_is_drawn_too(browser: Browser, tmp_path: Path) -> None:
    sample = sample_result()
    result = replace(sample, regions=sample.regions * 4, expectations=sample.expectations * 12)
    ready(browser, write_report(result, tmp_path).as_uri(), width=390)
    assert browser.js("document.documentElement.scrollWidth") == 390 and overflow(browser) == []
    browser.tap("svg.narrow[data-figure=share] path[data-i='12']")
    browser.wait(f"{TIP} !== ''")
    assert "52 more kernels" in browser.js(TIP)
