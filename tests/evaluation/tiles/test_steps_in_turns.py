"""Two revisions in turns: what is made of the turns, and processes that end."""

from __future__ import annotations

import subprocess
import sys

import pytest

from evaluation.tiles.steps_in_turns import figures, headline, replayed, told
from kcg.errors import DeviceError

ECHO = "import sys\nfor line in sys.stdin: print([1e-3] * int(line), flush=True)"


def child(program: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", program], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def test_the_figure_is_of_neighbouring_turns() -> None:
    """Both slow down by a tenth as the device gets hot: their ratio does not."""
    turns = [(0.1 * heat, 0.11 * heat) for heat in (1.0, 1.05, 1.1, 1.1, 1.1, 1.1, 1.1, 1.1)]
    row = figures(turns)
    assert row["ratio"] == pytest.approx(1.1) and row["interval"] == pytest.approx([1.1, 1.1])
    assert row["before_ms"] == pytest.approx(110) and row["turns"] == 8
    assert headline({"flux_768": row}) == {"flux_768_ratio": row["ratio"]}


def test_a_process_replays_as_often_as_it_is_asked() -> None:
    with child(ECHO) as one:
        assert replayed(one, 3) == [1e-3] * 3
        assert one.stdin is not None
        one.stdin.close()


def test_a_process_that_ended_is_an_error() -> None:
    with child("raise SystemExit(3)") as one, pytest.raises(DeviceError, match="ended with 3"):
        told(one)
