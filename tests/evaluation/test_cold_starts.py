"""What budgets of a script bring: each run once, what follows of all, and what the documents say of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evaluation import cold_starts
from evaluation.cold_starts import (
    SCRIPTS,
    TIMES,
    Settings,
    cold_start_s,
    gain_of,
    headline_of,
    lines_of,
    measure,
    shares_of,
    table_of,
)
from kcg.errors import KcgError

TINY = """\
from tinygrad import Tensor, TinyJit
step = TinyJit(lambda x: (x @ x).sum().realize())
for _ in range(5): step(Tensor.ones(32, 32).contiguous().realize())
"""


def run(script: str, times: float, gain: float) -> dict[str, Any]:
    return {"script": script, "times": times, "gain": gain, "speedup": 1 / (1 - gain), "cores": 2, "device": "AMD EPYC"}


def some_runs() -> dict[str, Any]:
    gains = {"a": (0.0, 0.2, 0.38, 0.4), "b": (0.1, 0.1, 0.3, 0.3), "c": (0.0, 0.0, 0.0, 0.0)}
    found = {
        f"{s}_{t:g}": run(s, t, g) for s, some in gains.items() for t, g in zip((1.0, 2, 5, 20), some, strict=True)
    }
    starts = {f"{s}_start": {"script": s, "cold_start_s": t} for s, t in (("a", 3.2), ("b", 6.0), ("c", 2.5))}
    return {**found, **starts}


def test_what_a_budget_brings_is_a_share_of_what_the_longest_gained() -> None:
    runs = some_runs()
    assert shares_of(runs) == {
        "a": {1.0: 0.0, 2.0: 0.5, 5.0: pytest.approx(0.95), 20.0: 1.0},
        "b": {1.0: pytest.approx(1 / 3), 2.0: pytest.approx(1 / 3), 5.0: 1.0, 20.0: 1.0},
    }
    headline = headline_of(runs)
    assert headline == {
        "share_1": 0.167,
        "share_2": 0.417,
        "share_5": 0.975,
        "share_20": 1.0,
        "scripts": 2,
        "enough": 5.0,
    }
    assert headline_of({}) == {"scripts": 0}
    timed = {"before_s": 2.0, "after_s": 1.0, "passed": True}
    assert gain_of(timed) == 0.5 == gain_of({**timed, "passed": None})
    assert gain_of({**timed, "passed": False}) == 0.0 == gain_of({**timed, "before_s": 0.0, "after_s": 0.0})


def test_the_documents_say_what_the_file_says() -> None:
    runs = some_runs()
    report = {"headline": headline_of(runs), "runs": runs}
    (line,) = lines_of(report)
    assert "in the median of 2 scripts, of what 20 times brings: 1 times 17 %, 2 times 42 %, 5 times 98 % (" in line
    assert "cold starts of 2 to 6 s" in line and "on two cores of an AMD EPYC" in line
    assert table_of(report)[4:] == [
        "| c | 2.5 s | – | – | – | – | 1.00× |",
        "| a | 3.2 s | 0 % | 50 % | 95 % | 100 % | 1.67× |",
        "| b | 6.0 s | 33 % | 33 % | 100 % | 100 % | 1.43× |",
    ]
    assert lines_of({"headline": {}, "runs": {}}) == [] == table_of({"headline": {}, "runs": {}})


def test_each_run_is_kept_at_once_and_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "one.py"
    script.write_text(TINY)
    settings = Settings(tmp_path, tmp_path / "cold_starts.json", (1.0, 5.0), starts=3)
    asked, seconds = list[float](), iter([3.0, 2.0, 9.0, *[1.0] * 9])

    def kcg_run(script: Path, budget_s: float, settings: Settings) -> dict[str, Any]:
        asked.append(budget_s)
        if len(asked) == 2:
            raise KcgError("it was ended")
        return {"gain": 0.25, "speedup": 4 / 3, "cores": 2, "device": "AMD EPYC", "wall_s": budget_s}

    monkeypatch.setattr(cold_starts, "cold_start_s", lambda script, settings: next(seconds))
    monkeypatch.setattr(cold_starts, "run_s", kcg_run)
    with pytest.raises(KcgError):
        measure([script], settings)
    assert json.loads(settings.out.read_text())["runs"].keys() == {"one_start", "one_1"}
    report = measure([script], settings)
    assert asked == [3.0, 15.0, 15.0], "budgets are of the median; what was there is not run again"
    assert report["headline"] == {"share_1": 1.0, "share_5": 1.0, "scripts": 1, "enough": 1.0}
    assert report["runs"]["one_5"]["times"] == 5.0 and len(report["runs"]["one_5"]["revision"]) == 40
    assert measure([script], settings) == report and len(asked) == 3
    script.write_text(TINY + "# another one\n")
    measure([script], settings)
    assert len(asked) == 5, "what is of another script is run again"
    measure([script], settings, anew=True)
    assert len(asked) == 7


def test_one_script_with_two_budgets(tmp_path: Path) -> None:
    script = tmp_path / "tiny.py"
    script.write_text(TINY)
    settings = Settings(tmp_path, tmp_path / "cold_starts.json", (0.5, 1.0), starts=1, device="CPU:X86")
    report = measure([script], settings)
    start = report["runs"]["tiny_start"]["cold_start_s"]
    for times in settings.times:
        found = report["runs"][f"tiny_{times:g}"]
        assert found["budget_s"] == times * start and found["wall_s"] > 0 and found["exit_code"] in (0, 3, 6, 7)
    assert lines_of(report) or not report["headline"]["scripts"]


def test_a_script_that_fails_is_one_line(tmp_path: Path) -> None:
    (script := tmp_path / "bad.py").write_text("raise SystemExit('it is broken')")
    with pytest.raises(KcgError, match=r"bad.py ended with exit code 1: it is broken"):
        cold_start_s(script, Settings(tmp_path))


def test_there_are_five_scripts_or_more_and_their_budgets() -> None:
    scripts = sorted(SCRIPTS.glob("*.py"))
    assert len(scripts) >= 5 and max(TIMES) == 20.0
    for script in scripts:
        compile(script.read_text(encoding="utf-8"), str(script), "exec")
