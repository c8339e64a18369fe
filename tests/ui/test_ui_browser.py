"""The page of all runs in a real browser, beside runs that go on: it changes by itself, by key, in both themes."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kcg.dataset.journal import Journal
from kcg.measure.lock import lock_folder
from kcg.report.phases import SEARCH
from kcg.types import Status
from kcg.ui.server import Server
from tests.browser import CHROMIUM, Browser
from tests.dataset.test_journal import fill
from tests.slow import every
from tests.ui.test_ui_trials import trial
from tests.ui_server import live_file, serving, write_reported_run, write_run
from tests.waiting import PATIENCE_S

pytestmark = [
    pytest.mark.usefixtures("drawn"),
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the path"),
]

# waits until it may go on, so that it is seen as it runs, however long a page takes
WAITING = """
import sys, time
from pathlib import Path
while not Path(sys.argv[1]).exists():
    time.sleep(0.02)
from tinygrad import Tensor
(Tensor.ones(64, 64).contiguous() + 1).realize()
"""
PHASE = "document.querySelector('#running .phase')?.textContent"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(autouse=True)
def quiet_console(browser: Browser) -> Iterator[None]:
    browser.messages.clear()
    yield
    assert browser.messages == []


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Two runs that are finished, one that goes on, one that cannot be read."""
    root = tmp_path_factory.mktemp("runs")
    write_reported_run(root / "flux")
    write_run(root / "slower", faster=0.8, created="2026-03-01T00:00:00+00:00")
    (root / "bad").mkdir()
    (root / "bad" / "RESULT.json").write_text("<b>no result</b>")
    with lock_folder(live_file(root / "goes-on").path.parent):
        yield root


@pytest.fixture(scope="module")
def trials(folder: Path) -> Path:
    """The same with trials beside the run that goes on."""
    with Journal.open(folder / "goes-on" / "journal.sqlite") as journal, journal.bulk():
        fill(journal)
        for number in range(250):
            journal.record(trial(number))
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    with serving(folder) as found:
        yield found


def enter(browser: Browser, server: Server, *, width: int = 1200, dark: bool = False) -> None:
    """Open the address that is printed, and the page that its cookie opens."""
    browser.send("Page.navigate", url=server.url)
    browser.wait("document.documentElement?.dataset.script === 'ready' && location.search === ''")
    browser.open(server.url.partition("?")[0], width=width, dark=dark)
    browser.wait("document.documentElement?.dataset.script === 'ready'")


@pytest.mark.slow
def test_the_token_does_not_stay_in_the_address(browser: Browser, server: Server) -> None:
    enter(browser, server)
    assert server.token not in browser.js("location.href + document.documentElement.outerHTML")
    assert browser.js("document.cookie") == "", "no script reads it"


@pytest.mark.parametrize(("width", "dark"), every(5, itertools.product([320, 390, 760, 1200], [False, True])))
def test_nothing_reaches_beyond_the_page(browser: Browser, server: Server, width: int, dark: bool) -> None:
    enter(browser, server, width=width, dark=dark)
    assert browser.js("document.documentElement.scrollWidth") == width
    inner = "[...document.querySelectorAll('.table')].map(t => t.scrollWidth - t.clientWidth)"
    assert max(browser.js(inner)) <= 0, "tables need no scrolling"
    dark_now = browser.js("parseInt(getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0]) < 60")
    assert dark_now is dark
    shown = browser.js(
        "[...document.querySelectorAll('.live .fig')].filter(f => f.getBoundingClientRect().width).length"
    )
    assert shown == 1


@pytest.mark.parametrize(("width", "dark"), every(2, itertools.product([390, 1440], [False, True])))
def test_the_pages_of_a_run_and_of_kernels_fit(
    browser: Browser, server: Server, trials: Path, width: int, dark: bool
) -> None:
    enter(browser, server)
    live = browser.js("document.querySelector('#running a').getAttribute('href')")
    finished = browser.js("document.querySelector('#runs td.name a').getAttribute('href')")
    for path in (live, finished, "/kernels"):
        browser.open(server.url.partition("/?")[0] + path, width=width, dark=dark)
        browser.wait("document.documentElement?.dataset.script === 'ready'")
        assert browser.js("document.documentElement.scrollWidth") == width, path
        inner = "[0, ...[...document.querySelectorAll('.table, .table td')].map(t => t.scrollWidth - t.clientWidth)]"
        assert max(browser.js(inner)) <= 0, f"nothing in {path} has to be scrolled"


def test_trials_are_sorted_searched_and_paged_and_follow_a_run_that_goes_on(
    browser: Browser, server: Server, trials: Path
) -> None:
    def measured() -> list[str]:
        cells = browser.js("[...document.querySelectorAll('#trials [data-l=measured]')].map(c => c.textContent)")
        assert isinstance(cells, list)
        return cells

    enter(browser, server)
    browser.click("#running a")
    browser.wait("location.pathname.startsWith('/run/') && document.documentElement?.dataset.script === 'ready'")
    browser.click("#by-measured")
    browser.wait("location.search.includes('sort=measured') && document.documentElement?.dataset.script === 'ready'")
    assert browser.js("document.querySelector('th[aria-sort]').innerText.trim()").startswith("Measured")
    assert len(measured()) == 100 and measured()[0] == "250 µs", "the slowest first"
    browser.click("#next")
    browser.wait("location.search.includes('page=2') && document.documentElement?.dataset.script === 'ready'")
    assert "101 to 200" in browser.js("document.querySelector('.pages').textContent")
    browser.js("document.getElementById('find').focus()")
    browser.send("Input.insertText", text="wrong")
    with Journal.open(trials / "goes-on" / "journal.sqlite") as journal:
        journal.record(trial(900, status=Status.WRONG, samples_s=(), reason="it differs"))
    browser.wait("document.querySelector('#trials .groups').textContent.includes('failed 2')")
    assert browser.js("document.getElementById('find').value") == "wrong", "what is typed stays"
    browser.key("Enter")
    browser.wait("location.search.includes('find=wrong') && document.documentElement?.dataset.script === 'ready'")
    assert browser.js("document.querySelectorAll('#trials tbody tr').length") == 1
    assert "it differs" in browser.js("document.querySelector('#trials tbody').textContent")


def test_two_runs_that_are_selected_are_compared(browser: Browser, server: Server, folder: Path) -> None:
    enter(browser, server)
    assert browser.js("document.querySelector('button[form=compare]').disabled") is True
    browser.click("#runs tbody tr:nth-child(1) input")
    write_run(folder / "compared", faster=1.2, created="2026-03-19T00:00:00+00:00")
    rows = browser.js("document.querySelectorAll('#runs tbody tr').length")
    browser.wait(f"document.querySelectorAll('#runs tbody tr').length > {rows} - 1")
    browser.wait("document.querySelector('#runs tbody').textContent.includes('compared')")
    assert browser.js("document.querySelectorAll('#runs input:checked').length") == 1, "it stays selected"
    browser.click("#runs tr:has(input:not(:checked)) input")
    assert "Two are selected" in browser.js("document.getElementById('picked').textContent")
    browser.click("button[form=compare]")
    browser.wait("location.pathname === '/compare' && document.documentElement?.dataset.script === 'ready'")
    assert browser.js("self.origin") == "null"
    assert "drift: the same binaries" in browser.js("document.getElementById('totals').textContent")


@pytest.mark.slow
def test_a_run_that_goes_on_is_redrawn_without_a_reload(browser: Browser, server: Server, folder: Path) -> None:
    file = live_file(folder / "goes-on")
    enter(browser, server)
    browser.js("window.kept = document.querySelector('#runs table')")
    browser.wait("document.querySelector('.total').textContent.includes('500 ms')")
    before = browser.js("document.querySelector('.live .wide .curve').getAttribute('d')")
    file.begin(SEARCH, 8.0)
    file.show(9.0, 40, 0.25, budget_s=60.0, kernels=None)
    browser.wait("document.querySelector('.total b')?.textContent.includes('250 ms')")
    assert browser.js(PHASE) == "searching" and browser.js("document.title").startswith("1 running")
    assert browser.js("document.querySelector('.live .wide .curve').getAttribute('d')") != before
    assert browser.js("document.querySelector('#runs table') === window.kept") is True, "what did not change stays"


@pytest.mark.slow
def test_the_focus_stays_where_it_is_while_the_list_changes(browser: Browser, server: Server, folder: Path) -> None:
    enter(browser, server)
    browser.js("document.querySelector('#runs a').focus()")
    focused = browser.js("document.activeElement.id")
    rows = browser.js("document.querySelectorAll('#runs tbody tr').length")
    write_run(folder / "newer", faster=1.1, created="2026-03-20T00:00:00+00:00")
    browser.wait(f"document.querySelectorAll('#runs tbody tr').length === {rows + 1}")
    assert browser.js("document.activeElement.id") == focused != ""


def test_a_report_is_opened_by_key_and_cannot_ask_for_anything(browser: Browser, server: Server) -> None:
    enter(browser, server)
    browser.js("document.querySelector('#runs a[href^=\"/report/\"]').focus()")
    browser.key("Enter")
    browser.wait("location.pathname.startsWith('/report/') && document.documentElement?.dataset.script === 'ready'")
    assert browser.js("[self.origin, document.querySelectorAll('#kernels').length]") == ["null", 1]
    assert browser.js("fetch('/').then(() => 'answered', () => 'refused')") == "refused"
    browser.messages.clear()  # which say that it was


def test_trends_and_what_was_not_read_are_shown(browser: Browser, server: Server) -> None:
    enter(browser, server)
    assert browser.js("document.querySelectorAll('#trends .spark .curve').length") > 5
    text = browser.js("document.getElementById('rest').textContent")
    assert "bad/RESULT.json" in text and "not JSON" in text


def test_a_page_whose_server_ended_says_so(browser: Browser, tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        enter(browser, server)
    browser.wait("document.getElementById('state').textContent.startsWith('kcg ui has ended')")
    browser.messages.clear()  # the browser's own, of a server that is gone


@pytest.mark.slow
def test_a_real_run_is_seen_from_its_start_to_its_result(browser: Browser, tmp_path: Path) -> None:
    script, go, out = tmp_path / "waiting.py", tmp_path / "go", tmp_path / "out"
    script.write_text(WAITING)
    out.mkdir()
    options = ["--measurements", "2", "--predictor", "roofline", "--no-script-check", "--quiet"]
    command = [sys.executable, "-m", "kcg.optimize", script, *options, "--report"]

    def start(folder: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([*command, out / folder, "--", go], stdout=subprocess.DEVNULL, start_new_session=True)

    with serving(out) as server:
        enter(browser, server)
        assert "Nothing is running" in browser.js("document.getElementById('running').textContent")
        killed, run = start("killed"), start("waiting")
        try:
            browser.wait("document.querySelectorAll('#running article').length === 2")
            assert browser.js(PHASE) == "capturing the workload"
            killed.send_signal(signal.SIGKILL)
            killed.wait(PATIENCE_S)
            browser.wait("document.getElementById('rest').textContent.includes('was killed')")
            go.touch()
            code = run.wait(PATIENCE_S)
        finally:
            for process in (killed, run):
                process.kill()
                process.wait(PATIENCE_S)
        browser.wait("document.querySelectorAll('#running article').length === 0")
        browser.wait("document.querySelectorAll('#runs tbody tr').length === 1")
        states = {3: "nothing improved", 6: "nothing searched", 7: "whole not checked"}
        ended = states[code]  # 6 where the kernel is too short to be searched
        assert browser.js("document.querySelector('#runs .state').textContent") == ended
