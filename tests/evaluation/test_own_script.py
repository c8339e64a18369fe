"""What README quotes of a script of one's own: what of it is shown, and that a run writes it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evaluation import own_script
from evaluation.own_script import (
    MARK,
    OWN_CLANG,
    SCRIPT,
    commands_on_path,
    environment,
    kcg_here,
    measure,
    part_of_readme,
    shown_lines,
)
from kcg.errors import KcgError
from kcg.report.result import read_result
from kcg.shell import script_here

PRINTED = """\
kcg 0.2.0: block.py on CPU:CLANG (the CPU, compiled by clang)
running block.py to record its kernels ...
(1, 256, 512)
timing 26 kernels as tinygrad schedules them: 0:05, 3/26 kernels, 3 measured, 0:55 left
searching with mcts ...
searching with mcts: 0:12, 59 measured, best 140 ms, 0:48 left
searching with mcts: 0:18, 70 measured, best 120 ms, 0:42 left
re-timing and verifying what was found for 13 kernels in a fresh process, about 15.7 s: 0:31, 8/13 kernels, 0:29 left
layer      calls   before    after  speed-up  schedule
qkv.weight     4  29.8 ms  21.2 ms     1.40×  UPCAST(0,4)
... and 6 more improved: 23.7 ms → 11.6 ms, see the report
not searched: 42, 12.6 ms, 9 % of the time: the time for searching was over

script:block: 148 ms → 88.3 ms, 1.67× as fast; 13 of 55 kernels improved
one step of 7: 21 ms → 12 ms, 1.75× as fast (sum of its kernels)
92 measurements, 60 compilations, 59.4 s (mcts guided by cpu, seed 0)
whole script: verified, error 0 of a tolerated 8.7e-05
warning: this machine is busy (its load average was 16.7 on 2 cores): its times are less certain,
and a budget searches less
result: kcg-out/block/RESULT.json
next:
  kcg apply kcg-out/block/RESULT.json --beam 2  # into tinygrad's BEAM cache
"""


def test_readme_shows_the_last_of_the_progress_and_what_came_of_it() -> None:
    shown = shown_lines(PRINTED.splitlines())
    assert [line.partition(" ")[0] for line in shown[:3]] == ["searching", "re-timing", "layer"]
    assert "best 120 ms" in shown[0] and "140 ms" not in "".join(shown)
    assert [line.split()[0] for line in shown[3:]] == [
        "qkv.weight", "...", "not", "script:block:", "one", "whole", "next:", "kcg",
    ]  # fmt: skip
    assert set(shown) <= set(PRINTED.splitlines())
    row, rest = "qkv.weight     4  29.8 ms  21.2 ms     1.40×  UPCAST(0,4)", "not searched: 3, which were not timed"
    more = shown_lines([*PRINTED.splitlines(), *[row.replace("qkv", f"l{n}") for n in range(9)], rest])
    assert sum("1.40×" in line for line in more) == 2 and rest not in more, "as many as README has room for"
    assert OWN_CLANG.sub("clang", "compiled by /tmp/a/caches-b_1/bin/clang)") == "compiled by clang)"
    entry = {"cores": 2, "device": "AMD EPYC", "typed": "kcg optimize", "shown": shown, "load": 0.3}
    assert "prints on two cores of an AMD EPYC (lines" in "\n".join(part_of_readme(entry))
    assert "EPYC, busy with other work, (lines" in "\n".join(part_of_readme({**entry, "load": 9.0}))


def test_a_run_finds_the_commands_of_this_environment_and_caches_that_are_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    variables = environment(tmp_path)
    first, *_, last = variables["PATH"].split(":")
    assert Path(kcg_here()) == Path(first) / "kcg" and last == "/nowhere"
    assert (
        Path(variables["CACHEDB"]).parent == Path(variables["XDG_CACHE_HOME"])
        and not Path(variables["CACHEDB"]).exists()
    )
    monkeypatch.undo()
    with commands_on_path():
        assert script_here() == "kcg"
    monkeypatch.setattr(own_script.sys, "executable", str(tmp_path / "python"))
    with pytest.raises(KcgError, match="install kcg into this environment"):
        kcg_here()


def test_a_run_writes_what_it_printed_and_readme_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However little there was time for."""
    script = tmp_path / "tiny.py"
    script.write_text(
        "from tinygrad import Tensor, TinyJit\n"
        "step = TinyJit(lambda x: (x @ x).sum().realize())\n"
        "for _ in range(5): step(Tensor.ones(32, 32).contiguous().realize())\n"
    )
    monkeypatch.setattr(own_script, "SCRIPT", script)
    readme, out = tmp_path / "README.md", tmp_path / "own_script.json"
    readme.write_text(f"before\n<!-- generated: {MARK} -->\nold\n<!-- end -->\nafter\n")
    found = measure(tmp_path / "runs", budget="15s", out=out, readme=readme, device="CPU:X86", least=0)
    assert read_result(found).workload == "script:tiny" and found.with_name("report.html").is_file()
    report = json.loads(out.read_text())
    run = report["runs"]["block"]
    assert run["typed"] == "kcg optimize tiny.py --budget 15s" and run["script"] == script.read_text()
    assert run["kernels"] >= 1 and run["exit_code"] in (0, 3, 6, 7) and len(run["revision"]) == 40
    assert run["shown"] and set(run["shown"]) <= set(run["printed"])
    assert report["headline"].keys() == {"before_s", "after_s", "speedup", "improved", "kernels", "seconds"}
    text = readme.read_text()
    assert "\n".join(part_of_readme(run)) in text and "old" not in text and text.endswith("after\n")
    monkeypatch.setattr(own_script, "printed_by", lambda *args, **more: ([], 3))  # the same result again
    with pytest.raises(KcgError, match=r"kernels improved: own_script\.json and README stay"):
        measure(tmp_path / "runs", out=out, readme=readme, least=1000)
    assert readme.read_text() == text and json.loads(out.read_text()) == report


def test_the_script_that_readme_shows_is_short_and_whole() -> None:
    lines = SCRIPT.read_text(encoding="utf-8").splitlines()
    assert 10 <= len(lines) <= 16 and max(map(len, lines)) <= 110
