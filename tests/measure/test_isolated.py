"""A process of its own sees nothing of a shell's settings that change what tinygrad does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kcg.measure.isolated import FOREIGN, IsolatedProcess, clean_environment
from tests.waiting import PATIENCE_S

REPORTED = (
    "import json, sys; import tinygrad.helpers as h; print(json.dumps([h.BEAM.value, h.NOOPT.value, h.JIT.value, "
)
REPORTED += "h.DEBUG.value, h.CACHEDB, h.getenv('JITBEAM', 7), h.getenv('IGNORE_BEAM_CACHE', 7), sys.path]))"


def test_a_shells_settings_do_not_reach_it_but_what_it_needs_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (*FOREIGN, "DEBUG"):
        monkeypatch.setenv(name, "3")
    monkeypatch.setenv("CACHEDB", str(tmp_path / "users.db"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "users"))
    cache, dev = tmp_path / "own.db", os.environ["DEV"]

    def report(environment: dict[str, str]) -> list[object]:
        return list(json.loads(subprocess.check_output([sys.executable, "-c", REPORTED], env=environment, text=True)))

    plain = {name: value for name, value in os.environ.items() if name not in (*FOREIGN, "DEBUG")}
    jit = report(plain)[2]  # tinygrad's own choice
    *found, paths = report(clean_environment(dev, cache, paths=[tmp_path / "ours"]))
    assert found == [0, 0, jit, 0, str(cache), 7, 7]
    assert isinstance(paths, list) and paths.index(str(tmp_path / "ours")) < paths.index(str(tmp_path / "users"))
    *found, _ = report(clean_environment(dev, cache, BEAM="2"))
    assert found[0] == 2, "what is asked for is there"


TOLD = "from kcg.measure import isolated; words = isolated.listening(); isolated.answer([words(), words()])"


def test_what_a_child_is_told_comes_before_its_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "told.py").write_text(TOLD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with IsolatedProcess("told", dev=os.environ["DEV"], label="test") as child:
        child.tell({"a": 1})
        ended = child.run({"b": 2}, timeout_s=PATIENCE_S, name="it")
    assert json.loads(ended.out[-1]) == [{"a": 1}, {"b": 2}], ended


ASIDE = "import sys, time; from kcg.measure import isolated; job = isolated.listening(aside=True)(); "
ASIDE += "isolated.answer({'job': job, 'input': sys.stdin.read()}); time.sleep(36_000)"


def test_a_job_aside_leaves_standard_input_empty_and_still_ends_the_child_with_its_parent() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", ASIDE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write('{"a": 1}\nnot for the script\n')
        child.stdin.flush()
        assert json.loads(child.stdout.readline()) == {"job": {"a": 1}, "input": ""}
        child.stdin.close()
        assert child.wait(PATIENCE_S) == -signal.SIGKILL
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
