"""What a comparison on a device saw, in files of lines: measurements, replays, winners, and what it was made on.

A line is written as soon as there is something to be kept. Several processes may work at once, each with a file of its
own: it reads all of them when it begins, and on from there when it is asked to (`DeviceJournal.read_on`).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from evaluation.search.comparison import Replay, Turn
from kcg.dataset.journal import status_and_reason
from kcg.errors import DataError, MismatchError, UsageError
from kcg.search.problem import Observation
from kcg.types import Kernel, Region, Schedule, Target, Toolchain, canonical_json

Launch = tuple[tuple[int, ...], tuple[int, ...]]
"""Global and local sizes: workgroups along each axis, and threads of one."""


@dataclass(frozen=True)
class Ended:
    """What a contender did on a kernel."""

    replay: Replay
    winner: Schedule
    spent_s: float  # from cold: what its measurements took, whoever made them, and what it drafted beside them


@dataclass(frozen=True)
class Beam:
    """What tinygrad's own BEAM did on a kernel; with a `reason` it failed, and its schedule is tinygrad's own."""

    schedule: Schedule
    binaries: int  # that it timed
    wall_s: float
    reason: str = ""


@dataclass
class Seen:
    """What is known of one kernel, and what it took."""

    rows: dict[Schedule, Observation] = field(default_factory=dict)
    row_s: dict[Schedule, float] = field(default_factory=dict)  # what measuring each took, compilation included
    full_s: dict[Schedule, float | None] = field(default_factory=dict)  # with all samples: of winners; None: it fails
    tiny: dict[int, Beam] = field(default_factory=dict)  # by width
    replays: dict[Turn, Ended] = field(default_factory=dict)
    comparisons: dict[Schedule, dict[str, Any]] = field(
        default_factory=dict
    )  # finalists beside tinygrad's own schedule
    launches: dict[Schedule, Launch] = field(default_factory=dict)  # as far as rows and paired comparisons show

    @property
    def spent_s(self) -> float:
        """Seconds that all measurements took."""
        return sum(self.row_s.values())

    def keep_launch(self, schedule: Schedule, sizes: Sequence[Sequence[int]] | None) -> None:
        """How a schedule is launched, where that is told."""
        if sizes and sizes[0]:
            self.launches[schedule] = (tuple(sizes[0]), tuple(sizes[1]))


@dataclass(frozen=True)
class Setting:
    """On what a comparison is made: the device, and the kernels with their calls and tinygrad's own seconds a call."""

    target: Target
    toolchain: Toolchain
    kernels: tuple[tuple[Region, int, float], ...]  # those on which the workload spends most of its time first


@dataclass(frozen=True)
class Shard:
    """Which process this is: `number` of `of`, from 0 on."""

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> Shard | None:
        """`I/N`; none for an empty text. Raises UsageError."""
        number, _, of = text.partition("/")
        if not text:
            return None
        if not (number.isdecimal() and of.isdecimal() and int(number) < int(of)):
            raise UsageError(f"a shard {text!r}: write I/N with I from 0 to N - 1, for example 0/4")
        return cls(int(number), int(of))


class DeviceJournal:
    """What was seen of every kernel, in a file of lines; also what the files of other processes beside it hold.

    A process with a `shard` writes a file of its own beside `path`. Of the journals `beside` it all is known of kernels
    that this one has too, if they are of the same device and toolchain; they are never written. Raises DataError where
    a file cannot be read.
    """

    def __init__(self, path: Path, *, shard: Shard | None = None, beside: Sequence[Path] = ()) -> None:
        self.shard, self._lock = shard, threading.Lock()
        self._whole, self._beside = path, [DeviceJournal(other) for other in beside]
        self.path = path if shard is None else path.with_suffix(f".{shard.number}{path.suffix}")
        self.kernels: dict[str, Seen] = {}
        self.setting: Setting | None = None
        self.canaries: list[float] = []  # seconds, one of each piece; those of the file that began it first
        self.pieces: list[dict[str, Any]] = []  # when, where and with what each was made; none of before it was kept
        self.runs: dict[str, dict[str, Any]] = {}  # by method: of one that deals with all kernels at once
        self._read_to: dict[Path, int] = {}  # bytes of each file
        self._cut = False  # whether the last line of its own file lacks its end
        path.parent.mkdir(parents=True, exist_ok=True)
        self.read_on()

    def read_on(self) -> None:
        """Take the lines that all files gained since they were read; its own too, which another process of the same
        shard may have written before this one."""
        whole = self._whole
        with self._lock:
            for file in (whole, *sorted(whole.parent.glob(f"{whole.stem}.*{whole.suffix}"))):
                self._read(file)
        for other in self._beside:
            other.read_on()
            self._share(other)

    def _read(self, file: Path) -> None:
        begin = self._read_to.get(file, 0)
        try:
            with file.open("rb") as opened:
                opened.seek(begin)
                gained = opened.read()
            complete = gained[: gained.rfind(b"\n") + 1]
            lines = complete.decode().split("\n")
        except FileNotFoundError:
            return
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{file} cannot be read ({error}): remove it to measure again") from error
        self._read_to[file] = begin + len(complete)
        if gained and file == self.path:
            self._cut = len(gained) > len(complete)
        for line in lines:
            self._taken(line)
        if self._taken(gained[len(complete) :]):  # only its end was cut off, or is just being written
            self._read_to[file] = begin + len(gained)

    def _taken(self, line: str | bytes) -> bool:
        """Whether a line could be taken: the last one of a run that was cut is not whole."""
        try:
            self._take(json.loads(line))
        except (ValueError, KeyError, TypeError):
            return False
        return True

    def _share(self, other: DeviceJournal) -> None:
        mine, theirs = self.setting, other.setting
        if mine is None or theirs is None or (mine.target, mine.toolchain) != (theirs.target, theirs.toolchain):
            return
        for region, _, _ in mine.kernels:
            for known in fields(Seen) if region.id in other.kernels else ():
                here = getattr(self.of(region.id), known.name)
                for key, value in getattr(other.of(region.id), known.name).items():
                    here.setdefault(key, value)

    def of(self, region_id: str) -> Seen:
        return self.kernels.setdefault(region_id, Seen())

    def _take(self, line: dict[str, Any]) -> None:
        if line["what"] == "setting":
            self.setting = self.setting or _setting(line)
            return
        if line["what"] == "canary":
            self.canaries.append(float(line["runtime_s"]))
            return
        if line["what"] == "piece":
            self.pieces.append(line["piece"])
            return
        if line["what"] == "run":
            self.runs[line["method"]] = line["run"]
            return
        seen, schedule = self.of(line["region"]), Schedule(line["kind"], line["body"])
        if line["what"] == "row":
            status, reason = status_and_reason(line["status"], line["reason"])
            seen.rows[schedule] = Observation(schedule, status, line["runtime_s"], line["binary"], reason)
            seen.row_s[schedule] = float(line["spent_s"])
            seen.keep_launch(schedule, line.get("launch"))
        elif line["what"] == "full":
            seen.full_s[schedule] = line["runtime_s"]
        elif line["what"] == "tiny":
            seen.tiny[line["width"]] = Beam(schedule, line["binaries"], line["wall_s"], line.get("reason", ""))
        elif line["what"] == "duel":
            if line["duel"].get("piece", "") < seen.comparisons.get(schedule, {}).get("piece", ""):
                return  # the files of several processes are read one after the other: the last piece is what counts
            seen.comparisons[schedule] = line["duel"]
            seen.keep_launch(schedule, [line["duel"][which] for which in ("global", "local") if which in line["duel"]])
        elif line["what"] == "play":
            curve = tuple((int(n), float(seconds)) for n, seconds in line["play"]["curve"])
            replay = Replay(**{**line["play"], "curve": curve})
            seen.replays[replay.contender, replay.seed, replay.budget] = Ended(replay, schedule, float(line["spent_s"]))

    def add(self, what: str, region_id: str, schedule: Schedule, **more: Any) -> None:
        """Keep one line."""
        self._add({"what": what, "region": region_id, "kind": str(schedule.kind), "body": schedule.body, **more})

    def add_replay(self, region_id: str, ended: Ended) -> None:
        """Keep what a contender did on a kernel."""
        self.add("play", region_id, ended.winner, play=asdict(ended.replay), spent_s=ended.spent_s)

    def add_run(self, method: str, run: dict[str, Any]) -> None:
        """Keep what a method did that deals with all kernels at once."""
        self._add({"what": "run", "method": method, "run": run})

    def add_canary(self, runtime_s: float) -> None:
        """Keep what the canary of this piece took."""
        self._add({"what": "canary", "runtime_s": runtime_s})

    def add_piece(self, facts: dict[str, Any]) -> None:
        """Keep when, where and with what this piece is made: all lines of this file up to the next such line."""
        self._add({"what": "piece", "piece": facts})

    def set(self, target: Target, toolchain: Toolchain, kernels: Sequence[tuple[Region, int, float]]) -> None:
        """Keep on what the comparison is made. Raises MismatchError where the journal is of another device, driver or
        compiler, UsageError where several processes would each choose the kernels."""
        if self.setting is None and self.shard is not None:
            raise UsageError(f"{self.path} holds no comparison yet: begin it once without --shard, which picks kernels")
        known = self.setting
        if known is not None and (known.target, known.toolchain) != (target, toolchain):
            raise MismatchError(
                f"{self.path} is of {known.target.model} with {known.toolchain.compiler} and driver "
                f"{known.toolchain.driver or 'none'}, this is {target.model} with {toolchain.compiler} and driver "
                f"{toolchain.driver or 'none'}: give another --work"
            )
        asts = [[[kernel.ast_json for kernel in region.kernels], calls, own_s] for region, calls, own_s in kernels]
        if self.setting is None:
            self._add({"what": "setting", "target": asdict(target), "toolchain": asdict(toolchain), "kernels": asts})

    def _add(self, stored: dict[str, Any]) -> None:
        line = canonical_json(stored).encode()
        with self._lock:
            self._read(self.path)
            with self.path.open("ab") as file:
                file.write(b"\n" * self._cut + line + b"\n")  # what follows a line that was cut is no part of it
                self._read_to[self.path] = file.tell()
            self._cut = False
            self._take(json.loads(line))


def _setting(line: dict[str, Any]) -> Setting:
    target = Target(**{**line["target"], "tensor_cores": tuple(line["target"]["tensor_cores"])})
    kernels = tuple(
        (Region(tuple(Kernel(text) for text in asts)), int(calls), float(own_s))
        for asts, calls, own_s in line["kernels"]
    )
    return Setting(target, Toolchain(**line["toolchain"]), kernels)
