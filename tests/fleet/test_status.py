"""What workers say of themselves: read field by field, shown as text, and in nobody's way where it is odd."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from kcg.errors import UsageError
from kcg.fleet.__main__ import main
from kcg.fleet.connection import NOT_YET, UNREADABLE, hosts_of
from kcg.fleet.service import Fleet
from kcg.fleet.status import show
from tests.commands import ended
from tests.fleet.processes import address_of, started
from tests.rules import ROOT

READY: dict[str, Any] = {
    "device": "CPU:X86",
    "pid": 1,
    "ready": True,
    "run_id": "a",
    "model": "a model",
    "target": "0123456789abcdef",
    "compiler": "clang",
    "rows": 1,
    "rows_per_s": 1.0,
    "checked_unix_s": 1.0,
    "fault": "",
    "running": ["measures 8 of 74d03a28"],
}
OPENING = {"device": "CPU:X86", "pid": 1, "ready": False}
COMPILING = {"device": "none", "pid": 1, "ready": True, "compiles_only": True, "compiled": 3}
ODD: dict[str, Any] = {
    "a text": "hello",
    "a list": [1, 2],
    "an empty list": [],
    "a number": 7,
    "no fields": {},
    "a missing field": {"ready": True},
    "a text as rate": READY | {"rows_per_s": "x"},
    "no number as rate": READY | {"rows_per_s": "nan"},
    "for ever": READY | {"checked_unix_s": 1e400},
    "huge": READY | {"rows": 10**30},
    "a number as model": READY | {"model": 3},
    "nothing that runs": READY | {"running": None},
    "a list that runs": READY | {"running": [[]]},
    "ready as text": OPENING | {"ready": "no"},
    "nothing compiled": {"ready": True, "compiles_only": True},
}


class _Scheduler:
    def __init__(self, **workers: Any) -> None:
        self._workers = workers

    async def identity(self) -> dict[str, Any]:
        return {"workers": self._workers}


def host_of(metrics: Any, resources: Any = None) -> dict[str, Any]:
    worker = {"metrics": metrics, "resources": {"compile": 1} if resources is None else resources}
    return asyncio.run(hosts_of(_Scheduler(a=worker)))["a"]


@pytest.mark.parametrize("state", [READY, READY | {"running": ()}, OPENING, COMPILING])
def test_what_a_host_says_is_read(state: dict[str, Any]) -> None:
    found = host_of({"kcg": state | {"of another version": 1}, "cpu": 0.5})
    assert found == {**state, "resources": {"compile": 1}} | ({"running": []} if state.get("running") == () else {})
    assert host_of({"cpu": 0.5}) == {**NOT_YET, "resources": {"compile": 1}}, "it has said nothing yet"


@pytest.mark.parametrize("name", ODD)
def test_what_is_nothing_that_a_host_says_is_not_ready(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = host_of({"kcg": ODD[name]})
    assert not found["ready"] and found["problem"] == UNREADABLE
    show({"scheduler": "tcp://127.0.0.1:1", "hosts": [{"address": "tcp://127.0.0.1:2", **found}]})
    assert f"not ready: {UNREADABLE}" in capsys.readouterr().out


@pytest.mark.parametrize(("metrics", "resources"), [("x", {}), ({"kcg": READY}, {"compile": "x"}), ({}, [1])])
def test_so_is_one_with_odd_metrics_or_resources(metrics: Any, resources: Any) -> None:
    assert host_of(metrics, resources)["problem"] == UNREADABLE


def test_texts_are_shown_as_they_are_but_for_what_steers_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    said = READY | {"model": "[/red]", "device": "\x1b[2J\x1b]0;title\x07[bold]", "running": ["one\ntwo"]}
    show({"scheduler": "tcp://[::1]:1", "hosts": [{"address": "tcp://[::1]:2", **host_of({"kcg": said})}]})
    shown = capsys.readouterr().out
    assert "[/red]" in shown and "?[2J?]0;title?[bold]" in shown and "one?two" in shown and "tcp://[::1]:2" in shown
    assert all(c.isprintable() or c == "\n" for c in shown)


WORKERS = """
import asyncio, json, sys
from kcg.fleet.settings import configure
configure()
from kcg.fleet.servers import FleetWorker

async def main(address, states):
    workers = [FleetWorker(address, nthreads=1, memory_limit=0) for _ in states]
    for worker, state in zip(workers, states):
        worker.metrics["kcg"] = lambda worker, state=state: state
    await asyncio.gather(*workers)
    print("ready", flush=True)
    await asyncio.Event().wait()

asyncio.run(main(sys.argv[1], json.loads(sys.argv[2])))
"""


@pytest.fixture
def oddly_staffed() -> Iterator[str]:
    """A scheduler whose workers all say odd things."""
    odd = json.dumps(["hello", [1, 2], {"ready": True}, READY | {"rows_per_s": "x"}])
    with started("scheduler", "tcp://127.0.0.1:0", "") as scheduler:
        address = address_of(scheduler)
        command = [sys.executable, "-c", WORKERS, address, odd]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as workers:
            try:
                assert workers.stdout is not None and "ready" in workers.stdout.readline()
                yield address
            finally:
                workers.kill()


def test_neither_drivers_nor_the_status_fail_of_odd_workers(oddly_staffed: str) -> None:
    shown = ended(main, "status", oddly_staffed)
    assert (shown.returncode, shown.stdout.count(UNREADABLE), shown.stderr) == (0, 4, "")
    found = json.loads(ended(main, "status", oddly_staffed, "--json").stdout)
    assert [host["problem"] for host in found["hosts"]] == [UNREADABLE] * 4
    lines: list[str] = []
    with Fleet(oddly_staffed, log=lines.append) as fleet:
        with pytest.raises(UsageError, match=f"no host of .* can be used: worker .* {UNREADABLE}"):
            fleet.services()
        assert len(lines) == 4 and fleet.error is None
