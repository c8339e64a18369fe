"""The loop of a process that runs one contender: commands as lines of JSON, an answer to each.

It is asked to prepare a case, then for samples, then what its sensors saw. Whatever libraries print goes to standard
error. What goes wrong in one command is the answer to it; the process goes on.

Its clock follows kcg's protocol: device events, the last-level cache flushed or not. Both libraries hide the host in
the same way (`kcg.compat.programs.hiding`): before the first event the device is kept busy for as long as the host
needs to send the call off. What a caller waits for, host included, is the state `called`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from kcg.measure.device_info import Sensors, first_line

WARM_UPS = 3
PARENT_LOOK_S = 0.5


@dataclass
class Prepared:
    """A case that is ready: `call` sends it off, `values` gives some of its output for a comparison."""

    call: Callable[[], object]
    values: Callable[[], Sequence[float]]
    facts: dict[str, Any] = field(default_factory=dict)
    profile: Callable[[], str] | None = None


Command = Callable[[dict[str, Any]], dict[str, Any]]


def answering(opened: Callable[[dict[str, Any]], Mapping[str, Command]]) -> None:
    """Answer commands until standard input ends. The first line is the job: `opened` gets it and gives the commands, by
    what an order has as `do`."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    threading.Thread(target=_die_with, args=(os.getppid(),), daemon=True).start()
    commands = opened(json.loads(sys.stdin.readline()))
    for line in sys.stdin:
        order = json.loads(line)
        try:
            answer = commands[order["do"]](order)
        except Exception as error:  # a library's own kinds: each is what became of this contender
            if os.environ.get("KCG_TRACEBACK"):
                sys.excepthook(*sys.exc_info())
            answer = {"error": f"{type(error).__name__}: {first_line(error)}"[:300]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def serve(make_clock: Callable[[dict[str, Any]], Clock], prepare: Callable[[dict[str, Any]], Prepared]) -> None:
    """Answer commands until standard input ends. The first line is the job that `make_clock` takes."""
    answering(lambda job: commands_of(make_clock(job), prepare))


def commands_of(clock: Clock, prepare: Callable[[dict[str, Any]], Prepared]) -> Mapping[str, Command]:
    """What is answered of one case at a time."""
    state: dict[str, Any] = {}

    def prepared(case: dict[str, Any]) -> dict[str, Any]:
        state.clear()  # its memory, before that of the next
        begin = time.perf_counter()
        ready = prepare(case)
        ready.call()
        clock.synchronize()
        first_call_s = time.perf_counter() - begin
        for _ in range(WARM_UPS):
            ready.call()
        state.update(ready=ready, host_s=host_seconds(clock, ready.call))
        values = [float(v) for v in ready.values()]
        return {"prepare_s": first_call_s, "host_s": state["host_s"], "values": values, **ready.facts}

    def canary(_: dict[str, Any]) -> dict[str, Any]:
        seconds, wrong = clock.canary()
        return {"s": seconds, "wrong": wrong}

    def begin(_: dict[str, Any]) -> dict[str, Any]:
        clock.sensors.begin()
        return {}

    def sample(order: dict[str, Any]) -> dict[str, Any]:
        begin = time.perf_counter()
        seconds = clock.seconds(state["ready"].call, order["state"], state["host_s"])
        clock.sensors.look()
        return {"s": seconds, "spent_s": time.perf_counter() - begin}

    def readings(_: dict[str, Any]) -> dict[str, Any]:
        return {"clocks": dict(clock.sensors.readings()), "slowdown": clock.sensors.slowdown()}

    def profile(_: dict[str, Any]) -> dict[str, Any]:
        make = state["ready"].profile
        return {"text": make() if make is not None else ""}

    return {
        "prepare": prepared,
        "canary": canary,
        "begin": begin,
        "sample": sample,
        "readings": readings,
        "profile": profile,
    }


def _die_with(parent: int) -> None:
    """Kill this process and all that it started once its parent is gone: a compiler may be busy for minutes."""
    while os.getppid() == parent:
        time.sleep(PARENT_LOOK_S)
    os.killpg(0, signal.SIGKILL)


STATES = ("cold", "warm", "called")
Call = Callable[[], object]


class Clock(Protocol):
    """`seconds(call, state)` of one sample; `sensors` watch the device."""

    sensors: Sensors

    def seconds(self, call: Call, state: str, host_s: float) -> float: ...
    def synchronize(self) -> None: ...
    def canary(self) -> tuple[float, str]: ...


def host_seconds(clock: Clock, call: Call) -> float:
    """How long the host takes to send `call` off."""
    found = []
    for _ in range(3):
        clock.synchronize()
        begin = time.perf_counter()
        call()
        found.append(time.perf_counter() - begin)
    clock.synchronize()
    return min(found)
