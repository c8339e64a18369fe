"""Campaigns of a fleet while its processes are killed at random times: what the driver acknowledged is there, once.

A driver, a scheduler and two hosts, each a machine of its own (a network namespace, over TLS) where that is permitted,
else process trees on loopback. A supervisor starts again what has ended, as an operator would: with the same command.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from evaluation.fleet.acknowledged import Row, noted
from kcg.dataset.journal import IN_DOUBT
from kcg.errors import ExitCode
from kcg.fleet.certificates import make
from kcg.fleet.service import GO_ON
from tests.fleet.namespaces import Host, network, not_permitted

ROOT = Path(__file__).parents[2]
HOSTS = 2
KINDS = {"worker": 8, "host": 5, "scheduler": 3, "driver": 4}  # of twenty kills
LATEST_S = 4.0  # after a row was acknowledged since the last kill
PART = 0.75  # of a campaign's rows before which processes are killed: work is in hand then
STUCK_S = 400.0  # without a row: a driver waits three minutes for a host before it ends
POLL_S = 0.1
AGAIN_S = 2.0  # until what has ended is started again
LOOPBACK = "127.0.0.1"

Say = Callable[[str], None]


class Machine:
    """A tree of processes of this machine in the place of one that is in a namespace."""

    def __init__(self, host: Host | None = None) -> None:
        self.host, self.started = host, list[subprocess.Popen[str]]()

    @property
    def address(self) -> str:
        return LOOPBACK if self.host is None else self.host.address

    def start(self, *command: object, log: Path) -> subprocess.Popen[str]:
        """A process in it, whose output is added to a file."""
        words = [sys.executable, *map(str, command)]
        if self.host is not None:
            words = ["ip", "netns", "exec", self.host.namespace, *words]
        with log.open("a") as output:
            process = subprocess.Popen(
                words, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output, text=True,
                start_new_session=True,
            )  # fmt: skip
        self.started.append(process)
        return process

    @property
    def pids(self) -> set[int]:
        """Of all that was started in it and of what that started."""
        parents = parents_of_processes()
        found = {process.pid for process in self.started if process.poll() is None}
        while more := {pid for pid, parent in parents.items() if parent in found} - found:
            found |= more
        return found

    def kill(self) -> None:
        """End all of its processes at once, as a machine without power does."""
        found = self.pids
        if self.host is not None:
            done = subprocess.run(["ip", "netns", "pids", self.host.namespace], capture_output=True, text=True)
            found |= set(map(int, done.stdout.split()))
        for pid in found:
            kill(pid)
        for process in self.started:
            process.wait()
        self.started.clear()


@contextmanager
def machines(count: int) -> Iterator[list[Machine]]:
    """So many machines, which end with the block."""
    with contextlib.ExitStack() as stack:
        hosts: Sequence[Host | None] = [None] * count if not_permitted() else stack.enter_context(network(count))
        made = [Machine(host) for host in hosts]
        try:
            yield made
        finally:
            for machine in made:
                machine.kill()


def parents_of_processes() -> dict[int, int]:
    """The parent of each process there is."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):  # it ended meanwhile
            found[int(entry.parent.name)] = int(entry.read_text().rpartition(")")[2].split()[1])
    return found


def kill(pid: int) -> None:
    """`kill -9`."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@dataclass
class Site:
    """A fleet and its operator."""

    folder: Path
    kernels: Path  # a journal
    schedules: int  # of each kernel
    device: str
    driver: Machine
    scheduler: Machine
    hosts: list[Machine]
    secure: bool
    say: Say
    ends: Counter[str] = field(default_factory=Counter)  # how drivers ended
    unexpected: list[str] = field(default_factory=list)  # last lines of drivers that did not say how to go on
    restarts: Counter[str] = field(default_factory=Counter)
    campaign: int = 0
    driving: subprocess.Popen[str] | None = None
    complete: bool = False
    _since: dict[Machine, float] = field(default_factory=dict)  # when something was started in it

    @cached_property
    def wanted(self) -> int:
        """Rows of a campaign, at least."""
        with sqlite3.connect(self.kernels) as connection:
            return self.schedules * int(connection.execute("SELECT COUNT(*) FROM regions").fetchone()[0])

    @property
    def journal(self) -> Path:
        return self.folder / f"campaign{self.campaign}.sqlite"

    @property
    def notes(self) -> Path:
        return self.journal.with_suffix(".rows")

    @property
    def address(self) -> str:
        return f"{'tls' if self.secure else 'tcp'}://{self.scheduler.address}:8786"

    def words(self, role: str) -> list[object]:
        return ["--certificates", self.folder / "keys" / role] if self.secure else []

    def begin(self) -> None:
        """Begin the next campaign: another seed, another journal."""
        self.campaign, self.complete, self.driving = self.campaign + 1, False, None

    def attend(self) -> None:
        """Start what is not there, and see how the driver ended."""
        if self._due(self.scheduler):
            words = ("-m", "kcg.fleet", "scheduler", "--listen", self.address, *self.words("scheduler"))
            self._start(self.scheduler, "scheduler", *words)
        for number, host in enumerate(self.hosts, 1):
            if self._due(host):
                words = ("-m", "kcg.fleet", "worker", self.address, "--device", self.device, "--cores", 1)
                self._start(host, f"host{number}", *words, *self.words("worker"))
        if self.driving is not None and self.driving.poll() is not None:
            self._ended(self.driving.returncode)
            self.driving = None
        if not self.complete and self.driving is None and self._due(self.driver):
            words = (
                *("-m", "evaluation.fleet.acknowledged", self.notes, "generate", "--from", self.kernels),
                *("--out", self.journal, "--seed", self.campaign, "--schedules-per-kernel", self.schedules),
                *("--predictor", "roofline", "--fleet", self.address),
            )
            self.driving = self._start(self.driver, "driver", *words, *self.words("driver"))

    def _due(self, machine: Machine) -> bool:
        machine.started = [process for process in machine.started if process.poll() is None]
        return not machine.started and time.monotonic() - self._since.get(machine, 0.0) > AGAIN_S

    def _start(self, machine: Machine, name: str, *words: object) -> subprocess.Popen[str]:
        self._since[machine] = time.monotonic()
        self.restarts[name.rstrip("0123456789")] += 1
        return machine.start(*words, log=self.folder / f"{name}.log")

    def _ended(self, code: int) -> None:
        lines = (self.folder / "driver.log").read_text().strip().splitlines()
        last = lines[-1] if lines else ""
        self.complete = code == 0 and "complete" in last
        if self.complete:
            how = "complete"
        elif code == -signal.SIGKILL:
            how = "killed"
        elif GO_ON in last or (code == ExitCode.USAGE and last.startswith("kcg: ")):  # no scheduler there yet
            how = "said how to go on"
        else:
            how = "said something else"
            self.unexpected.append(last)
        self.ends[how] += 1
        self.say(f"the driver ended: {how} ({code})")

    def strike(self, kind: str, at: random.Random) -> str:
        """Kill one of a kind, if there is one; what was killed."""
        if kind in ("scheduler", "driver"):
            machine = self.scheduler if kind == "scheduler" else self.driver
            running = [process.pid for process in machine.started if process.poll() is None]
            for pid in running:
                kill(pid)
            return kind if running else ""
        host = at.choice(self.hosts)
        if kind == "host":
            there = bool(host.pids)
            host.kill()
            return "host" if there else ""
        workers = sorted(host.pids - {process.pid for process in host.started})
        if not workers:
            return ""
        pid = at.choice(workers)  # Dask's worker, the process that times, or one that compiles
        kill(pid)
        return "worker"


def killed(
    folder: Path, kernels: Path, *, device: str, seed: int, schedules: int, kinds: dict[str, int], say: Say
) -> dict[str, Any]:
    """Kill so many of each kind during campaigns, one after another, and see the last one to its end."""
    at = random.Random(seed)
    order = [kind for kind, count in kinds.items() for _ in range(count)]
    at.shuffle(order)
    secure = not not_permitted()
    if secure:
        make(folder / "keys", days=2)
    done, began = list[dict[str, Any]](), time.monotonic()
    with machines(2 + HOSTS) as (driver, scheduler, *hosts):
        site = Site(folder, kernels, schedules, device, driver, scheduler, hosts, secure, say)
        while order or not site.complete:
            if site.campaign == 0 or site.complete:
                site.begin()
            _one_campaign(site, order, done, at, began)
    found = [outcome(folder / f"campaign{n}.sqlite") for n in range(1, site.campaign + 1)]
    return {
        "network": "namespaces, TLS" if secure else f"loopback: {not_permitted()}",
        "kills": done,
        "campaigns": found,
        "restarts": dict(site.restarts),
        "driver_ends": dict(site.ends),
        "unexpected": site.unexpected,
        "wall_s": time.monotonic() - began,
    }


def _one_campaign(site: Site, order: list[str], done: list[dict[str, Any]], at: random.Random, began: float) -> None:
    """Attend to a campaign until it is complete, and kill on the way."""
    rows, grew, due = 0, time.monotonic(), None
    while not site.complete:
        site.attend()
        now, before = time.monotonic(), rows
        rows = len(noted(site.notes))
        if rows > before:
            grew = now
            if order and due is None and rows < PART * site.wanted:
                due = now + at.uniform(0.0, LATEST_S)
        if due is not None and now > due and order and (what := site.strike(order[0], at)):
            order.pop(0)
            done.append({"what": what, "at_s": now - began, "campaign": site.campaign, "rows": rows})
            site.say(f"kill {len(done)}, after {now - began:.0f} s: {what}, {rows} rows")
            due = None
        if now - grew > STUCK_S:
            raise RuntimeError(f"no row for {STUCK_S:g} s: see {site.folder}")
        time.sleep(POLL_S)


def outcome(journal: Path) -> dict[str, Any]:
    """What a campaign's journal has of what was acknowledged. What is in doubt is measured again: that is not twice."""
    with sqlite3.connect(f"file:{journal}?mode=ro", uri=True) as connection:
        rows_of = "SELECT lower(hex(identity)), run_id, trial FROM measurements"
        found = connection.execute(rows_of).fetchall()
        has_doubts = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'doubts'").fetchone()
        in_doubt = f" WHERE EXISTS (SELECT 1 FROM doubts WHERE {IN_DOUBT})" if has_doubts else " WHERE 0"
        doubtful = Counter(connection.execute(rows_of + in_doubt).fetchall())
        (integrity,) = connection.execute("PRAGMA integrity_check").fetchone()
        hosts = connection.execute("SELECT COUNT(DISTINCT run_id) FROM measurements").fetchone()[0]
    rows: list[Row] = [(str(identity), str(run), int(trial)) for identity, run, trial in found]
    acknowledged = noted(journal.with_suffix(".rows"))
    trusted = Counter(found) - doubtful
    times = Counter((identity, trial) for identity, _, trial in trusted.elements())
    return {
        "rows": len(rows),
        "acknowledged": len(acknowledged),
        "lost": len(acknowledged - set(rows)),
        "twice": sum(count - 1 for count in times.values()),
        "doubtful": doubtful.total(),
        "runs_of_hosts": hosts,
        "integrity": integrity,
    }
