"""Recording the kernels of any tinygrad program, by running it unchanged.

The program runs in a process of its own (`python -m kcg.workloads.script`), as `python script.py`, `python -m module`
or `python -c code` would run it, so that nothing it does to tinygrad or to the process can disturb a search. tinygrad
is imported by the program, after whatever it sets in its environment. What was recorded is written when the process
ends, after the program's threads and exit handlers, however it ends. Only the process of the program itself is
recorded, not those that it starts.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kcg.commandline import counted
from kcg.commandline import interrupted as say_interrupted
from kcg.errors import KcgError, ScriptError, UsageError
from kcg.files import write_whole
from kcg.kernel.sequences import sequence_from_json, sequence_json, sequences_of_captured
from kcg.kernel.symbolic import merged, seen_by
from kcg.types import Kernel, LeftOut, Region, Workload, WorkloadCall
from kcg.types import Sequence as CallSequence
from kcg.workloads.program import Form, Program, advice_on, check_program, error_text, exit_text, place_of, run_as_main

if TYPE_CHECKING:
    from kcg.compat.capture import Recorder
    from kcg.compat.sequences import CapturedSequence, SequenceRecorder

PREFIX = "script:"  # of the names of recorded workloads: no family of the zoo has one like it
NAME_LENGTH = 80  # characters of a workload's name and of its preset
SEQUENCES_KEPT = 200  # different ones: a script that changes its shapes all the time has thousands
NAMES_KEPT = 20  # of the kernels that are left out for one reason, in a result

ENDING = (signal.SIGTERM, signal.SIGHUP)  # signals that end a process, which this one records before
INTERRUPT_AGAIN_S = 2.0  # a script that Ctrl-C has not ended by then is told again
TERMINATE_S = 5.0  # and then is told to end, if it does not listen
KILL_S = 5.0


@dataclass(frozen=True)
class Captured:
    """What a program ran, and what is to be said of it."""

    workload: Workload
    notes: tuple[str, ...]  # a line each: that it failed, and what is not recorded. What is left out is the workload's
    interrupted: bool = False  # with this process, as by Ctrl-C

    @property
    def lines(self) -> tuple[str, ...]:
        """All of it: the notes, and a line for every reason for which kernels are left out."""
        return (*self.notes, *map(str, self.workload.left_out))


class Late(NamedTuple):
    """When a program runs for longer than it should, and what is done then."""

    after_s: float
    say: Callable[[], None]


def workload_name(program: Program) -> str:
    """`script:` and the program's name: the provenance of its kernels."""
    return PREFIX + bounded(program.name)


def bounded(text: str) -> str:
    """A text that fits into a name: one line of printable characters of bounded length. What does not, is cut, and its
    hash tells it apart."""
    plain = "".join(c if c.isprintable() else " " for c in text)
    if plain == text and len(text) <= NAME_LENGTH:
        return text
    return f"{plain[: NAME_LENGTH - 10]}… {hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


def capture_program(program: Program, *, dev: str, late: Late | None = None) -> Captured:
    """Record `program` in a child process; what it prints goes to stderr.

    The workload is `script:` and the program's name, its preset the arguments. tinygrad's cache is a new one for this
    run. A program that still runs when it is `late` is waited for all the same. One that raises, exits with an error,
    or is interrupted keeps what it ran, and a note says how it ended.

    Raises UsageError where there is no such program, ScriptError where it ran no kernel that can be recorded, or ended
    without Python, KeyboardInterrupt where this process is interrupted before a kernel was recorded.
    """
    check_program(program)
    with tempfile.TemporaryDirectory(prefix="kcg-capture-", ignore_cleanup_errors=True) as folder:
        out = Path(folder) / "workload.json"
        command = [sys.executable, "-m", "kcg.workloads.script", str(out), program.form, program.what]
        environment = {**os.environ, "DEV": dev, "CACHEDB": str(Path(folder) / "cache.db")}
        code, interrupted = _run([*command, *program.arguments], environment, late)
        answer = json.loads(out.read_text()) if out.exists() else None
    if interrupted and (answer is None or "error" in answer):
        say_interrupted(f"interrupted: {program.label} had run nothing that is recorded")
        raise KeyboardInterrupt
    if answer is None:
        raise ScriptError(f"{program.label} {_unforeseen(code)}, and its kernels are not recorded; run it alone first")
    if "error" in answer:
        kind, message = answer["error"]
        raise {"script": ScriptError, "usage": UsageError}.get(kind, KcgError)(message)
    return Captured(workload_of(answer), tuple(answer["notes"]), interrupted)


def _unforeseen(code: int) -> str:
    if code >= 0:
        return f"replaced its process or ended it without Python (exit code {code})"
    return f"was killed by {signal.Signals(-code).name}"


def _run(command: Sequence[str], environment: dict[str, str], late: Late | None) -> tuple[int, bool]:
    """Run the child to its end: its exit code, and whether it was interrupted with this process.

    It is interrupted with this process, and not before it can be without a traceback.
    """
    child: subprocess.Popen[bytes] | None = None
    try:
        with _interrupts_held():
            child = subprocess.Popen(command, env=environment, stdout=sys.stderr.fileno())
        try:
            if late is not None:
                try:
                    return child.wait(max(late.after_s, 0.0)), False
                except subprocess.TimeoutExpired:
                    late.say()
            return child.wait(), False
        except KeyboardInterrupt:
            # a terminal interrupts the script as well, which may still have something to save
            for patience, then in ((INTERRUPT_AGAIN_S, signal.SIGINT), (TERMINATE_S, signal.SIGTERM)):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    return child.wait(patience), True
                child.send_signal(then)
            return child.wait(KILL_S), True
    except subprocess.TimeoutExpired:
        raise KeyboardInterrupt from None
    finally:
        if child is not None and child.poll() is None:
            child.kill()
            child.wait()


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Ctrl-C waits for the end of the block, and in a process that is started inside, until that lets it come; SIGTERM
    too."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def workload_json(workload: Workload) -> dict[str, Any]:
    """A workload as plain JSON values."""
    calls = [
        {
            "ast": c.region.kernel.ast_json,
            "seen": [[[list(v) for v in values], n] for values, n in seen_by(c)],
            "seen_as": c.seen_as,
        }
        for c in workload.calls
    ]
    left_out = [asdict(left) for left in workload.left_out]
    answer = {"name": workload.name, "preset": workload.preset, "calls": calls, "left_out": left_out}
    return {**answer, "sequences": [sequence_json(sequence) for sequence in workload.sequences]}


def workload_of(values: dict[str, Any]) -> Workload:
    """The workload that `workload_json` wrote."""
    calls = merged(
        WorkloadCall(
            Region((Kernel(c["ast"]),)), count, tuple((name, value) for name, value in variables),
            seen_as=tuple((name, tuple(devices)) for name, devices in c["seen_as"]),
        )
        for c in values["calls"]
        for variables, count in c["seen"]
    )  # fmt: skip
    left_out = tuple(LeftOut(**{**left, "names": tuple(left["names"])}) for left in values["left_out"])
    sequences = tuple(sequence_from_json(text, trusted=True) for text in values.get("sequences", ()))
    return Workload(values["name"], values["preset"], calls, left_out=left_out, sequences=sequences)


# ---- in the child ----


class _Recording:
    """One program in this process: what it ran, how it ended, and the answer to the parent."""

    def __init__(self, out: Path, program: Program, *, dev: str) -> None:
        self.out, self.program, self.dev = out, program, dev
        self.ended = ""  # how, in words, where it did not end well
        self.advice = ""  # what to do about it, where that is known
        self.error: tuple[str, str] | None = None  # kind and message, where nothing is to be recorded
        self.processes = 0  # that the program started
        self._starting = threading.local()
        self._pid = os.getpid()
        self._written = False
        self._finishing = threading.RLock()
        self._recorder: Recorder | None = None
        self._sequences: SequenceRecorder | None = None

    def run(self) -> None:
        """Run the program to its end, whatever that is. `finish` is called when the process ends."""
        from kcg.compat.capture import opening, recording, when_imported
        from kcg.compat.sequences import recording_sequences

        atexit.register(self.finish)  # the first that is registered is the last that runs
        self._watch_exit()
        self._watch_signals()
        self._watch_programs()
        # all of it stays in place until the process ends: threads and exit handlers of the script may run kernels too
        stays = contextlib.ExitStack()
        stays.enter_context(when_imported("multiprocessing.process", self._watch_processes))
        os.register_at_fork(after_in_parent=self._forked)
        stays.enter_context(opening(self.dev))
        self._recorder = stays.enter_context(recording())
        self._sequences = stays.enter_context(recording_sequences())
        _kept.append(stays)
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
            run_as_main(self.program)
        except BaseException as error:  # whatever the program raises
            if os.getpid() != self._pid:
                raise  # in a process that it forked, which ends as it would alone
            self._raised(error)

    def _raised(self, error: BaseException) -> None:
        if isinstance(error, SystemExit):
            self.ended = exit_text(error.code, traceback.extract_tb(error.__traceback__))
            return
        assert self._recorder is not None
        if isinstance(error, KcgError) and self._recorder.is_empty:
            self.error = ("usage", str(error))
            return
        self.ended, self.advice = error_text(error), advice_on(self.program, error)
        if sys.excepthook is not sys.__excepthook__:  # of the program, which may save something
            sys.excepthook(type(error), error, error.__traceback__)

    def _watch_exit(self) -> None:
        """`os._exit` ends a process without exit handlers."""
        leave = os._exit

        def leave_after_writing(code: int) -> None:
            if os.getpid() == self._pid:
                self.ended = exit_text(code, traceback.extract_stack())
                self.finish()
            leave(code)

        os._exit = leave_after_writing  # type: ignore[assignment]

    def _watch_signals(self) -> None:
        """So do signals that tell it to end, unless the program handles them, or they are ignored, as by `nohup`."""

        def end(number: int, frame: types.FrameType | None) -> None:
            if os.getpid() == self._pid:
                where = place_of(traceback.extract_stack(frame))
                self.ended = f"was ended by {signal.Signals(number).name}{where}"
                self.finish()
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

        def end_at_once() -> None:
            for number in ENDING:
                if signal.getsignal(number) is end:
                    signal.signal(number, signal.SIG_DFL)

        for number in ENDING:
            if signal.getsignal(number) == signal.SIG_DFL:
                signal.signal(number, end)
        os.register_at_fork(after_in_child=end_at_once)

    def _watch_programs(self) -> None:
        """`os.exec` replaces the process; what is started as another Python is counted."""

        def audit(event: str, arguments: tuple[Any, ...]) -> None:
            if event == "os.exec" and os.getpid() == self._pid and not self._written:
                before = self.ended
                where = place_of(traceback.extract_stack())
                self.ended = f"replaced its process by {os.fsdecode(arguments[0])}{where}"
                self._write()
                self.ended = before  # what is to replace it may not exist
            elif event == "subprocess.Popen" and os.getpid() == self._pid:
                self.processes += Path(os.fsdecode(arguments[0])).name.startswith("python")

        sys.addaudithook(audit)

    def _watch_processes(self, module: Any) -> None:
        """Count the processes that the program starts; tinygrad's compilers are recorded."""
        start = module.BaseProcess.start

        def start_and_count(process: Any) -> None:
            self.processes += not type(process).__module__.startswith("tinygrad.")
            self._starting.now = True
            try:
                start(process)
            finally:
                self._starting.now = False

        module.BaseProcess.start = start_and_count

    def _forked(self) -> None:
        if os.getpid() == self._pid and not getattr(self._starting, "now", False):
            self.processes += 1

    def finish(self) -> None:
        """Write the answer, once, and only in the process of the program itself: not in one that it forked."""
        if os.getpid() != self._pid:
            return
        with self._finishing:  # a thread that ends the process waits until it is written
            if self._written:
                return
            self._written = True
            if threading.current_thread() is threading.main_thread():
                for number in (signal.SIGINT, *ENDING):
                    signal.signal(number, signal.SIG_IGN)
            self._write()

    def _write(self) -> None:
        try:
            answer = self._answer()
        except Exception as error:
            message = f"recording {self.program.label} failed: {type(error).__name__}: {error}"
            answer = {"error": ("internal", message)}
        write_whole(self.out, json.dumps(answer))

    def _answer(self) -> dict[str, Any]:
        if self.error is not None:
            return {"error": self.error}
        assert self._recorder is not None
        device = self.dev.split(":")[0]
        workload, notes = _workload_and_notes(self._recorder, self.program, device)
        if workload.calls and self._sequences is not None:
            workload = replace(workload, sequences=_sequences_on(device, self._sequences))
        if self.processes:
            what = counted(self.processes, "process", "processes")
            notes.append(f"{what} that the program started: what runs there is not recorded")
        if workload.calls:
            if self.ended:
                advice = f"; {self.advice}" if self.advice else ""
                notes.insert(0, f"{self.program.label} {self.ended}: what it ran before is recorded{advice}")
            return {**workload_json(workload), "notes": notes}
        if self.ended:
            ran, advice = "before it ran a tinygrad kernel that can be recorded", self.advice or "run it alone first"
            return {"error": ("script", f"{self.program.label} {self.ended}, {ran}; {advice}")}
        notes += map(str, workload.left_out)
        imports = "does it realise its tensors?" if "tinygrad" in sys.modules else "it imported no tinygrad"
        why = "; ".join(notes) or imports
        return {"error": ("script", f"{self.program.label} ran no tinygrad kernel that can be recorded: {why}")}


_kept: list[contextlib.ExitStack] = []  # closed by the end of the process


def _workload_and_notes(recorder: Recorder, program: Program, device: str) -> tuple[Workload, list[str]]:
    """What a program ran on `device`, with what is left out of it, and a line for all else that is to be said."""
    name, preset = workload_name(program), bounded(shlex.join(program.arguments))
    if recorder.is_empty:
        return Workload(name, preset, ()), []  # without importing tinygrad
    from kcg.kernel.symbolic import VALUES_KEPT
    from kcg.workloads.capture import Refused, left_out, thinned, to_workload

    refused: Refused = {}
    all_calls = recorder.calls()
    calls = [c for c in all_calls if c.device.split(":")[0] == device]
    elsewhere = [c for c in all_calls if c.device.split(":")[0] != device]
    workload = to_workload(name, preset, calls, refused=refused)
    workload = replace(workload, left_out=left_out(recorder, refused, elsewhere, device=device, names_kept=NAMES_KEPT))
    notes = []
    if recorder.queued:
        notes.append(f"{counted(recorder.queued, 'execution')} by HCQ2=1, which shows no ASTs, left out")
    few = thinned(workload)
    if few != workload:
        notes.append(
            f"of kernels that ran with more than {VALUES_KEPT} values of their variables, {VALUES_KEPT} are kept, and "
            "all executions count for the nearest of them"
        )
    return few, notes


def _sequences_on(device: str, recorder: SequenceRecorder) -> tuple[CallSequence, ...]:
    """What a program ran on `device`, in the order of the first run; of many different ones those that ran the most."""

    def runs_there(captured: CapturedSequence) -> bool:
        return any(name.split(":")[0] == device for call in captured.calls for name in call.devices)

    found = [(captured, seen) for captured, seen in recorder.sequences() if runs_there(captured)]
    weights = [len(captured.calls) * sum(count for _, count in seen) for captured, seen in found]
    kept = sorted(sorted(range(len(found)), key=lambda place: -weights[place])[:SEQUENCES_KEPT])
    return sequences_of_captured(found[place] for place in kept)


def main() -> None:
    """`python -m kcg.workloads.script OUT FORM WHAT args…`: record a program into OUT, or say there why not."""
    out, form, what, *arguments = sys.argv[1:]
    _Recording(Path(out), Program(Form(form), what, tuple(arguments)), dev=os.environ["DEV"]).run()


if __name__ == "__main__":
    # run as a module of the package, so that what the script imports does not see this one as __main__
    from kcg.workloads.script import main as main_of_the_package

    main_of_the_package()
