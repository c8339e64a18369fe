"""Recording the kernels of any tinygrad script, by running it unchanged.

The script runs in a process of its own (`python -m kcg.workloads.script`), as `python script.py` would run it, so that
nothing it does to tinygrad or to the process can disturb a search. tinygrad is imported by the script, after whatever
the script sets in its environment. What was recorded is written when the process ends, after the script's threads and
exit handlers. Only the process of the script itself is recorded, not those that it starts.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import importlib.machinery
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
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kcg.errors import KcgError, ScriptError, UsageError
from kcg.files import write_whole
from kcg.kernel.symbolic import merged, seen_by
from kcg.types import Kernel, Region, Workload, WorkloadCall

if TYPE_CHECKING:
    from kcg.compat.capture import Recorder

PREFIX = "script:"  # of the names of recorded workloads: no family of the zoo has one like it
NAME_LENGTH = 80  # characters of a workload's name and of its preset
REASONS_SAID = 3  # of refused kernels; the rest is counted

INTERRUPT_AGAIN_S = 2.0  # a script that Ctrl-C has not ended by then is told again
KILL_S = 5.0


def workload_name(script: Path) -> str:
    """`script:` and the file's name: the provenance of its kernels."""
    return PREFIX + bounded(script.stem)


def bounded(text: str) -> str:
    """A text that fits into a name: one line of printable characters of bounded length. What does not, is cut, and its
    hash tells it apart."""
    plain = "".join(c if c.isprintable() else " " for c in text)
    if plain == text and len(text) <= NAME_LENGTH:
        return text
    return f"{plain[: NAME_LENGTH - 10]}… {hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


def capture_script(script: Path, arguments: Sequence[str] = (), *, dev: str) -> Workload:
    """Record `script` in a child process; what it prints, and what was left out, goes to stderr.

    The workload is `script:` and the file's name, its preset the arguments. `sys.exit(0)` and `os._exit(0)` are normal
    ends. tinygrad's cache is a new one for this run. Raises UsageError where there is no such file, ScriptError where
    the script raises, exits with an error, or runs no kernel, KeyboardInterrupt where it or this process is
    interrupted.
    """
    if not script.is_file():
        raise UsageError(f"there is no script {script}")
    with tempfile.TemporaryDirectory(prefix="kcg-capture-", ignore_cleanup_errors=True) as folder:
        out = Path(folder) / "workload.json"
        command = [sys.executable, "-m", "kcg.workloads.script", str(out), str(script), *arguments]
        environment = {**os.environ, "DEV": dev, "CACHEDB": str(Path(folder) / "cache.db")}
        try:
            code = _run(command, environment)
            answer = json.loads(out.read_text()) if out.exists() else None
            if answer is not None and answer.get("ended") == "interrupted":
                raise KeyboardInterrupt
        except KeyboardInterrupt:
            sys.stderr.write(f"kcg: interrupted: what {script} ran is not recorded\n")
            raise
    if answer is None:
        raise ScriptError(f"{script} {_unforeseen(code)}, and its kernels are not recorded; run it alone first")
    for note in answer.get("notes", ()):
        sys.stderr.write(f"kcg: {note}\n")
    if "ended" in answer:
        raise {"script": ScriptError, "usage": UsageError}.get(answer["ended"], KcgError)(answer["message"])
    return workload_of(answer)


def _unforeseen(code: int) -> str:
    if code >= 0:
        return f"replaced its process or ended it without Python (exit code {code})"
    return f"was killed by {signal.Signals(-code).name}"


def _run(command: Sequence[str], environment: dict[str, str]) -> int:
    """Run the child to its end. It is interrupted with this process, and not before it can be without a traceback."""
    child: subprocess.Popen[bytes] | None = None
    try:
        with _interrupts_held():
            child = subprocess.Popen(command, env=environment, stdout=sys.stderr.fileno())
        try:
            return child.wait()
        except KeyboardInterrupt:
            # a terminal interrupts the script as well, which may still have something to save
            for patience in (INTERRUPT_AGAIN_S, KILL_S):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(patience)
                    break
                child.send_signal(signal.SIGINT)
            raise
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
        {"ast": c.region.kernel.ast_json, "seen": [[[list(v) for v in values], n] for values, n in seen_by(c)]}
        for c in workload.calls
    ]
    return {"name": workload.name, "preset": workload.preset, "calls": calls}


def workload_of(values: dict[str, Any]) -> Workload:
    """The workload that `workload_json` wrote."""
    calls = (
        WorkloadCall(Region((Kernel(c["ast"]),)), count, tuple((name, value) for name, value in variables))
        for c in values["calls"]
        for variables, count in c["seen"]
    )
    return Workload(values["name"], values["preset"], merged(calls))


# ---- in the child ----


class _ScriptLoader(importlib.machinery.SourceFileLoader):
    """Loads a script as Python loads the one that it is started with, whose code it does not keep beside it."""

    def set_data(self, path: str, data: Any, *, _mode: int = 0o666) -> None:
        """Keep nothing."""


class _Recording:
    """One script in this process: what it ran, how it ended, and the answer to the parent."""

    def __init__(self, out: Path, script: Path, arguments: Sequence[str], *, dev: str) -> None:
        self.out, self.script, self.arguments, self.dev = out, script, list(arguments), dev
        self.path = script.absolute()
        self.ended: tuple[str, str] | None = None  # kind and message, where it did not end well
        self.processes = 0  # that the script started
        self._pid = os.getpid()
        self._written = False
        self._recorder: Recorder | None = None

    def run(self) -> None:
        """Run the script to its end, whatever that is. `finish` is called when the process ends."""
        from kcg.compat.capture import opening, recording

        atexit.register(self.finish)  # the first that is registered is the last that runs
        self._watch_exit()
        self._watch_processes()
        # all of it stays in place until the process ends: threads and exit handlers of the script may run kernels too
        stays = contextlib.ExitStack()
        stays.enter_context(opening(self.dev))
        self._recorder = stays.enter_context(recording())
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
            self._execute()
        except SystemExit as stop:
            self._exited(stop.code)
        except KeyboardInterrupt:
            self.ended = ("interrupted", "")
        except KcgError as error:
            self.ended = ("usage", str(error))
        except BaseException as error:  # whatever the script raises
            self.ended = ("script", f"{self.script} raised {_where(error, self.path)}; run it alone first")
        _kept.append(stays)

    def _execute(self) -> None:
        """What `python script.py` does. `runpy` takes the module away at the end, which threads still need."""
        main = types.ModuleType("__main__")
        main.__dict__.update(__file__=str(self.path), __builtins__=__builtins__, __cached__=None, __package__=None)
        sys.modules["__main__"] = main
        sys.argv = [str(self.script), *self.arguments]
        if not sys.flags.safe_path:
            sys.path[0] = str(self.path.resolve().parent)  # it was the working folder, for `python -m`
        _ScriptLoader("__main__", str(self.path)).exec_module(main)

    def _exited(self, code: object) -> None:
        if isinstance(code, str):
            self.ended = ("script", f"{self.script} ended with {code.strip()[:300]!r}; run it alone first")
        elif code not in (None, 0):
            self.ended = ("script", f"{self.script} ended with exit code {code}; run it alone first")

    def _watch_exit(self) -> None:
        """`os._exit` ends a process without exit handlers."""
        leave = os._exit

        def leave_after_writing(code: int) -> None:
            if os.getpid() == self._pid:
                self._exited(code)
                self.finish()
            leave(code)

        os._exit = leave_after_writing  # type: ignore[assignment]

    def _watch_processes(self) -> None:
        from multiprocessing.process import BaseProcess

        start = BaseProcess.start

        def counted(process: BaseProcess) -> None:
            if not type(process).__module__.startswith("tinygrad."):  # its compilers are recorded
                self.processes += 1
            start(process)

        BaseProcess.start = counted  # type: ignore[assignment, method-assign]

    def finish(self) -> None:
        """Write the answer, once, and only in the process of the script itself: not in one that it forked."""
        if self._written or os.getpid() != self._pid:
            return
        self._written = True
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            answer = self._answer()
        except Exception as error:
            answer = _not_well("internal", f"recording {self.script} failed: {type(error).__name__}: {error}")
        write_whole(self.out, json.dumps(answer))

    def _answer(self) -> dict[str, Any]:
        if self.ended is not None:
            return _not_well(*self.ended)
        assert self._recorder is not None
        workload, notes = _workload_and_notes(self._recorder, self.script, self.arguments, self.dev.split(":")[0])
        if self.processes:
            what = _count(self.processes, "process", "processes")
            notes.append(f"{what} that the script started: what runs there is not recorded")
        if workload.calls:
            return {**workload_json(workload), "notes": notes}
        why = "; ".join(notes) or "does it realise its tensors?"
        return _not_well("script", f"{self.script} ran no tinygrad kernel that can be recorded: {why}")


_kept: list[contextlib.ExitStack] = []  # closed by the end of the process


def _not_well(kind: str, message: str) -> dict[str, Any]:
    return {"ended": kind, "message": message}


def _workload_and_notes(
    recorder: Recorder, script: Path, arguments: Sequence[str], device: str
) -> tuple[Workload, list[str]]:
    """What a script ran on `device`, and a line for everything that is left out of it."""
    if not recorder.counts and not recorder.unknown and not recorder.queued:
        return Workload(workload_name(script), bounded(shlex.join(arguments)), ()), []  # without importing tinygrad
    from kcg.kernel.symbolic import VALUES_KEPT
    from kcg.workloads.capture import thinned, to_workload

    refused: dict[str, Counter[str]] = {}
    all_calls = recorder.calls()
    calls = [c for c in all_calls if c.device.split(":")[0] == device]
    workload = to_workload(workload_name(script), bounded(shlex.join(arguments)), calls, refused=refused)
    notes = []
    if elsewhere := sum(c.calls for c in all_calls) - sum(c.calls for c in calls):
        notes.append(f"{_executions(elsewhere, f'kernels on other devices than {device}')} left out")
    if recorder.unknown:
        notes.append(f"{_executions(recorder.unknown, 'hand-written kernels')} left out")
    if recorder.queued:
        notes.append(f"{_executions(recorder.queued, 'kernels by HCQ2=1, which shows no ASTs,')} left out")
    notes += _refusals(refused)
    few = thinned(workload)
    if few != workload:
        notes.append(
            f"of kernels that ran with more than {VALUES_KEPT} values of their variables, {VALUES_KEPT} are kept, and "
            "all executions count for the nearest of them"
        )
    return few, notes


def _refusals(refused: dict[str, Counter[str]]) -> list[str]:
    ordered = sorted(refused.items(), key=lambda item: -item[1].total())
    said = [
        f"{_executions(counts.total(), _count(len(counts), 'kernel', 'kernels'))} left out: {reason}"
        for reason, counts in ordered[:REASONS_SAID]
    ]
    if rest := sum(counts.total() for _, counts in ordered[REASONS_SAID:]):
        said.append(f"{_executions(rest, 'kernels')} left out for other reasons")
    return said


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _executions(number: int, of: str) -> str:
    return f"{_count(number, 'execution', 'executions')} of {of} {'is' if number == 1 else 'are'}"


def _where(error: BaseException, path: Path) -> str:
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
    text = next((line.strip()[:300] for line in str(error).splitlines() if line.strip()), "")
    place = f" (line {lines[-1]})" if lines else ""
    return f"{type(error).__name__}: {text}{place}" if text else f"{type(error).__name__}{place}"


def main() -> None:
    """`python -m kcg.workloads.script OUT SCRIPT args…`: record a script and write its workload, or why not, to OUT."""
    out, script, *arguments = sys.argv[1:]
    _Recording(Path(out), Path(script), arguments, dev=os.environ["DEV"]).run()


if __name__ == "__main__":
    # run as a module of the package, so that what the script imports does not see this one as __main__
    from kcg.workloads.script import main as main_of_the_package

    main_of_the_package()
