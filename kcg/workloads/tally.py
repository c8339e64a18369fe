"""What a program ran, written down while it runs, so that it survives the sudden death of its process.

A signal such as SIGSEGV or SIGKILL ends a process without exit handlers. So the first execution of anything appends a
line to a file, and each execution is counted in another one, by a store into memory that the two share: what a process
has written to a file or to a shared mapping stays there when it dies. A line that was cut off by the end counts for
nothing. `Tally` writes in the program's process, and never disturbs it: what cannot be written is not. `read_tally`
reads in another one, and `Following` does while the program runs. A program that ends in any other way is recorded by
what its recorders know.

Importing this module imports no tinygrad.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kcg.compat.capture import Unrecorded, Variables, asked_as
from kcg.kernel.sequences import sequence_from_json, sequence_json, sequences_of_captured
from kcg.kernel.symbolic import merged
from kcg.types import Kernel, Region, Sequence, WorkloadCall

if TYPE_CHECKING:
    from kcg.compat.capture import Recorder
    from kcg.compat.sequences import CapturedSequence
    from kcg.workloads.capture import Elsewhere, Refused

LINES, COUNTS = "tally.jsonl", "tally.counts"
SLOTS = 1 << 22  # places of counts, of 8 bytes each: those that are used are on the disk
BLOCK = 4096  # so many are made at once
SEQUENCES = 200  # different ones are written, the first ones


class Tally:
    """Writes down what one process runs, into a folder. Threads may share it; what it forks writes nothing."""

    def __init__(self, folder: Path, recorder: Recorder, *, device: str) -> None:
        """Of the kernels, those of `device`, such as `CUDA`, are written in full."""
        self._recorder, self._device = recorder, device
        self._slots: dict[Hashable, int] = {}
        self._sequences: dict[CapturedSequence, int] = {}
        self._lock = threading.Lock()
        self._live, self._made = True, 0
        self._counts = os.open(folder / COUNTS, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        os.ftruncate(self._counts, 8 * SLOTS)
        self._view = memoryview(mmap.mmap(self._counts, 8 * SLOTS)).cast("Q")
        self._lines = os.open(folder / LINES, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)
        os.register_at_fork(after_in_child=self._stop)

    def ran(self, place: Hashable, executions: int) -> None:
        """Count executions of what a `Recorder` counts, under its lock: one for each kernel that a program runs, and so
        without one of its own where nothing is new."""
        if self._live and (slot := self._slots.get(place)):
            self._view[slot] += executions
        else:
            self._count(place, executions, lambda: self._described(place))

    def ran_sequence(self, captured: CapturedSequence, values: Variables) -> None:
        """Count one run of a sequence."""
        self._count((captured, values, captured.layers), 1, lambda: self._run_of(captured, values))

    def started_process(self) -> None:
        """Count a process that the program started."""
        self._count("processes", 1, lambda: {"kind": "processes"})

    def _count(self, place: Hashable, more: int, describe: Callable[[], dict[str, Any] | None]) -> None:
        if not self._live:
            return
        try:
            slot = self._slots.get(place)
            with self._lock:
                if slot is None:
                    slot = self._slots[place] = self._new(describe)
                if slot:
                    self._view[slot] += more
        except Exception:  # a full disk, an AST that nobody foresaw: the program goes on as it would alone
            self._stop()

    def _new(self, describe: Callable[[], dict[str, Any] | None]) -> int:
        """The slot of a new place, whose line is written; 0 for one that is not counted."""
        slot = len(self._slots) + 1
        if slot >= SLOTS or (line := describe()) is None:
            return 0
        if slot >= self._made:  # a page that the disk has no room for would kill the process
            os.posix_fallocate(self._counts, 8 * self._made, 8 * BLOCK)
            self._made += BLOCK
            if slot >= self._made:
                raise OSError("slots are taken one by one")
        self._write({**line, "slot": slot})
        return slot

    def _write(self, line: Mapping[str, Any]) -> None:
        data = (json.dumps(line) + "\n").encode()
        while data:
            data = data[os.write(self._lines, data) :]

    def _stop(self) -> None:
        self._live = False

    def _described(self, place: Any) -> dict[str, Any]:
        if isinstance(place, Unrecorded):
            return {"kind": "other", "key": place.key, "name": place.name, "reason": place.reason}
        if not isinstance(place, tuple):
            return {"kind": str(place)}
        tag, variables, device = place
        ast, name = self._recorder.asts[tag], self._recorder.names[tag]
        kernel_facts = {"device": device, "key": ast.key.hex(), "name": name}
        if device.split(":")[0] != self._device:
            return {"kind": "elsewhere", **kernel_facts}
        kernel = self._kernel(ast)
        if isinstance(kernel, str):
            return {"kind": "refused", **kernel_facts, "reason": kernel}
        return {"kind": "kernel", "ast": kernel.ast_json, "variables": variables, "seen_as": asked_as(ast)}

    def _kernel(self, ast: Any) -> Kernel | str:
        from kcg.workloads.capture import kernel_or_reason

        known: dict[Any, Kernel | str] = self._recorder.kernels
        if ast not in known:
            known[ast] = kernel_or_reason(ast)
        return known[ast]

    def _run_of(self, captured: CapturedSequence, values: Variables) -> dict[str, Any] | None:
        here = any(name.split(":")[0] == self._device for call in captured.calls for name in call.devices)
        number = self._sequences.get(captured)
        if not here or (number is None and len(self._sequences) >= SEQUENCES):
            return None
        text = ""
        if number is None:
            number = self._sequences[captured] = len(self._sequences)
            (sequence,) = sequences_of_captured([(captured, ((values, 1),))], self._recorder.kernels)
            text = sequence_json(sequence)
        layers = [list(call.layers[:1]) for call in captured.calls]
        return {"kind": "sequence", "number": number, "text": text, "variables": values, "layers": layers}


@dataclass(frozen=True)
class Tallied:
    """What a process had run when it ended."""

    calls: tuple[WorkloadCall, ...]  # those on the device that is recorded
    refused: Refused
    others: Mapping[Unrecorded, int]
    elsewhere: tuple[Elsewhere, ...]
    sequences: tuple[Sequence, ...]
    queued: int
    processes: int


def read_tally(folder: Path) -> Tallied:
    """What a `Tally` wrote into a folder; nothing where it wrote nothing."""
    from kcg.workloads.capture import Elsewhere, with_asked

    calls, seen_as = dict[tuple[str, Variables], WorkloadCall](), dict[str, dict[Any, None]]()
    refused: Refused = {}
    others, elsewhere, plain = Counter[Unrecorded](), list[Elsewhere](), Counter[str]()
    sequences: dict[int, _SeenSequence] = {}
    for line, count in _counted_lines(folder):
        match line["kind"]:
            case "kernel":
                region = Region((Kernel(line["ast"]),))
                variables = _variables(line)
                earlier = calls.get((region.id, variables))
                count += earlier.calls if earlier else 0  # on another device, or by another name
                calls[region.id, variables] = WorkloadCall(region, count, variables)
                name, devices = line["seen_as"]
                seen_as.setdefault(region.id, {})[name, tuple(devices)] = None
            case "refused":
                refused.setdefault(line["reason"], Counter())[line["key"], line["name"]] += count
            case "other":
                others[Unrecorded(line["key"], line["name"], line["reason"])] += count
            case "elsewhere":
                elsewhere.append(Elsewhere(line["device"], line["key"], line["name"], count))
            case "sequence":
                sequences.setdefault(line["number"], _SeenSequence(line["text"])).add(line, count)
            case kind:
                plain[kind] += count
    return Tallied(
        with_asked(merged(calls.values()), seen_as),
        refused,
        others,
        tuple(elsewhere),
        tuple(found.sequence() for found in sequences.values() if found.runs),
        plain["queued"],
        plain["processes"],
    )


class Following:
    """Reads the kernels that a `Tally` writes down, while it does."""

    def __init__(self, folder: Path) -> None:
        self._file, self._read, self._known = folder / LINES, 0, set[str]()

    def kernels(self) -> list[Kernel]:
        """Those that the program ran since the last time, each once; not those that run with values of variables."""
        try:
            with self._file.open("rb") as lines:
                lines.seek(self._read)
                data = lines.read()
        except FileNotFoundError:  # it ran nothing yet
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        found = {}
        for line in map(json.loads, whole.splitlines()):
            if line["kind"] == "kernel" and not line["variables"]:
                kernel = Kernel(line["ast"])
                if kernel.id not in self._known:
                    self._known.add(kernel.id)
                    found[kernel.id] = kernel
        return [*found.values()]


def _counted_lines(folder: Path) -> Iterator[tuple[dict[str, Any], int]]:
    """The whole lines that were written, with their counts."""
    try:
        lines = (folder / LINES).read_bytes().split(b"\n")[:-1]
        counts = (folder / COUNTS).open("rb")
    except FileNotFoundError:
        return
    with counts, mmap.mmap(counts.fileno(), 0, access=mmap.ACCESS_READ) as held:  # it is mostly empty
        for line in map(json.loads, lines):
            (count,) = struct.unpack_from("=Q", held, 8 * line["slot"])
            yield line, count


def _variables(line: Mapping[str, Any]) -> Variables:
    return tuple((name, value) for name, value in line["variables"])


class _SeenSequence:
    """A sequence, and the runs of it: with which values, and of which layers."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.runs: Counter[Variables] = Counter()
        self._layers: list[Counter[str]] = []

    def add(self, line: Mapping[str, Any], count: int) -> None:
        if not count:
            return
        self.runs[_variables(line)] += count
        self._layers = self._layers or [Counter() for _ in line["layers"]]
        for counter, named in zip(self._layers, line["layers"], strict=True):
            for layer, _ in named:
                counter[layer] += count

    def sequence(self) -> Sequence:
        read = sequence_from_json(self._text, trusted=True)
        pairs = zip(read.calls, self._layers, strict=True)
        calls = tuple(replace(call, layers=tuple(counter.most_common())) for call, counter in pairs)
        return replace(read, calls=calls, seen=tuple(sorted(self.runs.items())))
