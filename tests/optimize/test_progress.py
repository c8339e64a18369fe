"""Progress on a terminal: no bar stands still, what is left is never 0, and who else writes there is not disturbed."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import time

import pytest

from kcg.optimize.console import Progress, progress
from kcg.optimize.log import RunLog
from kcg.report.phases import GOES_ON, JUDGING, PHASES

HEADER = "import subprocess, sys, time\nfrom kcg.optimize.console import progress\n"


def on_a_terminal(script: str) -> str:
    """What a script writes to a terminal of 90 columns on both its standard streams."""
    leader, follower = os.openpty()
    environment = {
        **os.environ,
        "TERM": "xterm",
        "NO_COLOR": "1",
        "COLUMNS": "90",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    child = subprocess.Popen([sys.executable, "-c", HEADER + script], stdout=follower, stderr=follower, env=environment)
    os.close(follower)
    seen = b""
    try:
        while chunk := os.read(leader, 1 << 16):
            seen += chunk
    except OSError:  # nobody writes to it any more
        pass
    os.close(leader)
    assert child.wait() == 0, seen.decode()
    return seen.decode()


def screen(written: str) -> list[str]:
    """The lines that such a terminal shows in the end: a carriage return writes over a line, an erasing empties it."""
    lines, column, row = [""], 0, 0
    for part in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|[^\x1b]", written):
        if part == "\r":
            column = 0
        elif part == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif part.startswith("\x1b"):
            if part.endswith("K"):
                lines[row] = ""
            elif part.endswith("A"):
                row -= int(part[2:-1] or 1)
        else:
            lines[row] = lines[row].ljust(column)[:column] + part + lines[row][column + 1 :]
            column += 1
    return [line.rstrip() for line in lines if line.strip()]


def test_a_program_that_writes_to_the_terminal_leaves_no_bars() -> None:
    written = on_a_terminal(
        "with progress() as p:\n"
        "    p.phase('running it')\n"
        "    time.sleep(0.3)\n"
        "    with p.paused():\n"
        "        subprocess.run([sys.executable, '-c', 'for i in range(3): print(i)'], stdout=sys.stderr.fileno())\n"
        "        p.line('it still runs')\n"
        "    p.phase('searching')\n"
        "    p.update(done_s=1, measurements=7)\n"
        "    time.sleep(0.3)\n"
        "print('done')\n"
    )
    assert screen(written) == ["running it ...", "0", "1", "2", "it still runs", "searching ...", "done"]
    assert "━" in written.partition("0")[0] and "7 measured" in written, "there were bars"
    assert "━" not in written[written.index("0\r\n") : written.index("it still runs")]


@pytest.mark.slow
def test_a_bar_counts_down_by_itself_and_says_that_the_budget_is_over() -> None:
    written = on_a_terminal(
        "with progress() as p:\n"
        "    p.until(time.monotonic() + 50)\n"
        "    p.goes_on('judging')\n"
        "    p.phase('judging 3 kernels')\n"
        "    shown, left = set(), p.left\n"
        "    p.left = lambda now: shown.add(left(now)) or left(now)\n"
        "    p.update(done_s=0, kernels=(0, 3), measurements=7)\n"
        "    while len(shown) < 3:\n"
        "        time.sleep(0.05)\n"
        "    p.until(time.monotonic() - 12)\n"
    )
    assert len(set(re.findall(r"0/3 kernels, 7 measured, 0:\d\d left", written))) > 1, "between updates too"
    assert re.search(r"0/3 kernels, 7 measured, 0:1\d over, still judging", written)
    assert screen(written) == ["judging 3 kernels ..."]


class Clock:
    """A time that a test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_what_is_left_is_never_nothing_and_past_the_end_it_says_by_how_much(clock: Clock) -> None:
    stream = io.StringIO()
    with progress(stream=stream) as shown:
        assert shown.left(clock.now) == "", "no end is known"
        shown.update(done_s=10.0, budget_s=30.0)
        lefts = [shown.left(clock.now + after_s) for after_s in (0, 19.5, 19.99, 20, 32)]
        assert lefts == [
            "0:20 left",
            "0:01 left",
            "0:01 left",
            "0:01 longer than expected",
            "0:12 longer than expected",
        ]
        shown.until(clock.now + 5)
        shown.goes_on("judging")
        shown.update(done_s=10.0, budget_s=99.0)
        assert shown.left(clock.now) == "0:05 left", "a budget is a budget, whatever is expected"
        assert shown.left(clock.now + 17) == "0:12 over, still judging"
        shares = [shown.share(clock.now + after_s, 0, None) for after_s in (-10, 0, 4.9, 5, 60)]
        assert [share is None for share in shares] == [False, False, False, True, True], "no bar is full and frozen"
        assert shares[:2] == [0, pytest.approx(10 / 15)]


def test_what_is_verified_is_shown_beside_the_best(clock: Clock) -> None:
    stream = io.StringIO()
    with progress(stream=stream) as shown:
        shown.update(done_s=41.0, kernels=(3, 9), total_s=0.21, verified_s=(0.214, 2.34))
    assert stream.getvalue() == "working: 0:41, 3/9 kernels, best 210 ms, verified 214 ms of 2.34 s\n"


def test_without_an_end_the_bar_is_of_the_phase(clock: Clock) -> None:
    shown = Progress(quiet=False, plain=True, stream=io.StringIO())
    assert [shown.share(clock.now, *of) for of in ((3, 12), (12, 12), (0, None))] == [0.25, None, None]


def test_every_phase_of_a_run_has_words_for_what_goes_on() -> None:
    assert tuple(GOES_ON) == PHASES
    shown = Progress(quiet=True, plain=True, stream=io.StringIO())
    log = RunLog(shown, started=time.monotonic())
    shown.until(time.monotonic() - 60)
    log.begin(JUDGING)
    assert shown.left(time.monotonic()).endswith(" over, still judging")
