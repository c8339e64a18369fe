"""Recording the kernels of any tinygrad program, by running it unchanged.

The program runs in a process of its own (`python -m kcg.workloads.script`), as `python script.py`, `python -m module`
or `python -c code` would run it, so that nothing it does to tinygrad or to the process can disturb a search. tinygrad
is imported by the program, after whatever it sets in its environment. What was recorded is written when the process
ends, after the program's threads and exit handlers, however it ends. Only the process of the program itself is
recorded, not those that it starts. What it runs is written down while it runs too (`kcg.workloads.tally`): that is what
is left of a process that a signal ends at once.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import hashlib
import importlib.abc
import importlib.machinery
import importlib.util
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kcg import shell
from kcg.cli import counted
from kcg.cli import interrupted as report_interrupted
from kcg.errors import KcgError, ScriptError, UsageError
from kcg.files import meant_by, read_foreign, write_whole
from kcg.kernel.sequences import sequence_from_json, sequence_json, sequences_of_captured
from kcg.kernel.symbolic import VALUES_KEPT, merged, seen_by
from kcg.types import Kernel, LeftOut, Region, Workload, WorkloadCall
from kcg.types import Sequence as CallSequence
from kcg.workloads.lowered import LoweredWriter, read_lowered
from kcg.workloads.tally import Following, Tally, read_tally

if TYPE_CHECKING:
    from kcg.compat.capture import Recorder
    from kcg.compat.observing import RecordingObserver
    from kcg.compat.sequences import CapturedSequence, SequenceRecorder
    from kcg.kernel.lowered import Lowered
    from kcg.workloads.capture import Refused
    from kcg.workloads.left import Keeping


# ---- Running somebody's program as Python would run it: a script, a module (`-m`) or code (`-c`).
#
# `run_as_main` is what a process of its own does for `python script.py args…`: children that the program starts,
# classes that it pickles and what it reads about itself are as under plain Python. It needs no tinygrad.

TEXT_LENGTH = 300  # characters that are said of somebody else's message


class Form(StrEnum):
    """How a program is named on Python's command line."""

    SCRIPT = "script"
    MODULE = "module"
    CODE = "code"


_OPTIONS = {"-m": Form.MODULE, "-c": Form.CODE}


@dataclass(frozen=True)
class Program:
    """What `python` runs: the path of a script, the name of a module or package, or code, with its arguments."""

    form: Form
    what: str
    arguments: tuple[str, ...] = ()

    @property
    def command(self) -> list[str]:
        """Python's own arguments that run it."""
        options = [option for option, form in _OPTIONS.items() if form == self.form]
        return [*options, self.what, *self.arguments]

    @property
    def name(self) -> str:
        """A short name: of a script its file's, of code one that tells it from other code."""
        match self.form:
            case Form.SCRIPT:
                return Path(self.what).stem
            case Form.MODULE:
                return self.what
            case Form.CODE:
                return f"code-{hashlib.sha256(self.what.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"

    @property
    def label(self) -> str:
        """What messages call it."""
        match self.form:
            case Form.SCRIPT:
                return self.what
            case Form.MODULE:
                return f"-m {self.what}"
            case Form.CODE:
                lines = self.what.strip().splitlines() or [""]
                shown = lines[0] if len(lines) == 1 and len(lines[0]) <= 60 else lines[0][:60] + "…"
                return shell.command("-c", shown)


def program_of(words: Sequence[str]) -> Program:
    """The program of `SCRIPT args…`, `-m MODULE args…` or `-c CODE args…`. Raises UsageError where there is none."""
    first, *rest = words or ("",)
    if first not in _OPTIONS:
        return Program(Form.SCRIPT, first, tuple(rest))
    if not rest:
        raise UsageError(f"{first} needs {'the name of a module' if first == '-m' else 'the code'} after it")
    return Program(_OPTIONS[first], rest[0], tuple(rest[1:]))


def check_program(program: Program) -> None:
    """Raises UsageError for what Python could not start, with what to do. A module is looked up when it is run."""
    if program.form == Form.MODULE and program.what.endswith(".py"):
        name = ".".join(Path(program.what).with_suffix("").parts)
        raise UsageError(f"-m {program.what}: -m takes the name of a module, such as {name}")
    if program.form == Form.MODULE and not all(program.what.split(".")):
        raise UsageError(f"-m {program.what!r} is no name of a module: write package.module")
    if program.form != Form.SCRIPT:
        return
    path = Path(program.what)
    if path.suffix.lower() == ".ipynb":
        export = shell.command("jupyter nbconvert --to script", path)
        raise UsageError(
            f"{path} is a notebook: call kcg.tune in it, or export it with `{export}` and give "
            f"{path.with_suffix('.py')} instead"
        )
    if path.is_dir():
        raise UsageError(f"{path} is a folder: give a script in it, or run it as a package with -m")
    if not path.is_file():
        what_to_do = meant_by(path, "give its path, as seen from this folder")
        raise UsageError(f"there is no script {path}: {what_to_do}")


# ---- in the process that becomes the program ----


def run_as_main(program: Program) -> None:
    """Do in this process what `python` does with a program, and let out whatever it raises.

    The program's module stays `__main__` after it, for its threads and exit handlers; `runpy` would take it away.
    Raises UsageError where there is no such module, as Python says it in one line.
    """
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    if "multiprocessing" in sys.modules:
        # multiprocessing makes this alias when it is imported; what a spawned child returns is pickled under it
        sys.modules["__mp_main__"] = main
    sys.orig_argv = [*sys.orig_argv[:1], *program.command]
    _Compiled(_start(program, main)).exec_module(main)


class _Compiled(importlib.abc.InspectLoader):
    """Executes code in a module, as Python's own loaders do."""

    def __init__(self, code: types.CodeType | None) -> None:
        self._code = code

    def get_code(self, fullname: str) -> types.CodeType | None:
        return self._code

    def get_source(self, fullname: str) -> str | None:
        return None


def _start(program: Program, main: types.ModuleType) -> types.CodeType | None:
    """Set up what the program sees of itself, and compile it."""
    in_path = not sys.flags.safe_path  # sys.path begins with the working folder, for `python -m`
    match program.form:
        case Form.SCRIPT:
            path = str(Path(program.what).absolute())
            loader = importlib.machinery.SourceFileLoader("__main__", path)
            main.__dict__.update(__file__=path, __cached__=None, __package__=None, __loader__=loader)
            sys.argv = [program.what, *program.arguments]
            if in_path:
                _begin_path(str(Path(path).resolve().parent))
            # not `get_code`, which would keep it beside the script
            return loader.source_to_code(loader.get_data(path), path)
        case Form.MODULE:
            sys.argv = ["-m", *program.arguments]
            spec = _module_spec(program.what)
            assert spec.origin is not None
            sys.argv[0] = spec.origin
            main.__dict__.update(
                __file__=spec.origin,
                __cached__=getattr(spec, "cached", None),
                __package__=spec.parent,
                __loader__=spec.loader,
                __spec__=spec,
            )
            return spec.loader.get_code(spec.name)  # type: ignore[union-attr, no-any-return]
        case Form.CODE:
            sys.argv = ["-c", *program.arguments]
            main.__dict__.update(__package__=None, __loader__=importlib.machinery.BuiltinImporter)
            if in_path:
                _begin_path("")
            return importlib.abc.InspectLoader.source_to_code(program.what, "<string>")


def _begin_path(folder: str) -> None:
    """Let `sys.path` begin with a folder instead of the working one. Where kcg was found there alone, as in a checkout
    that is not installed, it is found at the end: processes that the program starts have kcg's functions to run."""
    found, sys.path[0] = Path(sys.path[0]).resolve(), folder
    root = Path(__file__).resolve().parents[2]
    if found == root and root not in [Path(one).resolve() for one in sys.path[1:]]:
        sys.path.append(str(root))


def _module_spec(name: str) -> importlib.machinery.ModuleSpec:
    """Of a module, or of the `__main__` of a package; packages above it are imported, as `python -m` does."""
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except (ImportError, ValueError) as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name is not None
        if missing and not (name + ".").startswith(f"{error.name}."):  # type: ignore[union-attr]
            raise  # it is there, but imports what is not
        spec = None
        if isinstance(error, ImportError) and not missing:
            raise
    if spec is None or spec.origin is None or not hasattr(spec.loader, "get_code"):
        raise UsageError(f"there is no module {name} to run with -m: it is looked for in the working folder first")
    return spec


# ---- how it ended ----


def exit_text(code: object, stack: traceback.StackSummary) -> str:
    """How a program that exited with `code` at `stack` ended, in words; empty where it ended well."""
    if code is None or (isinstance(code, int) and code == 0):
        return ""
    how = f"exit code {int(code)}" if isinstance(code, int) else repr(_line_of(code))
    return f"ended with {how}{place_of(stack)}"


def error_text(error: BaseException) -> str:
    """What a program raised, in words: the exception, file and line."""
    kind, line = type(error), _line_of(error.msg if isinstance(error, SyntaxError) else error)
    name = f"{kind.__module__}.error" if kind.__name__ == "error" else kind.__name__  # as of `struct`, which is no word
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        place = f" ({error.filename}, line {error.lineno})"
    else:
        place = place_of(traceback.extract_tb(error.__traceback__))
    return f"raised {name}{f': {line}' if line else ''}{place}"


def advice_on(program: Program, error: BaseException) -> str:
    """What to do where the cause of what a program raised is well known; else empty."""
    if isinstance(error, ImportError) and "relative import" in _line_of(error):
        return _as_module(program, error)
    return ""


def _line_of(value: object) -> str:
    try:
        text = str(value)
    except Exception as error:  # of a class of the program
        text = f"no message: {type(error).__name__}"
    return next((line.strip()[:TEXT_LENGTH] for line in text.splitlines() if line.strip()), "")


def place_of(stack: traceback.StackSummary) -> str:
    """The file and line of a stack, innermost last: the innermost of the program's own, else the one in a library."""
    frames = [f for f in stack if not f.filename.startswith("<frozen ") and f.filename != __file__]
    own = [f for f in frames if not _is_installed(f.filename)]
    if not (chosen := (own or frames)[-1:]):
        return ""
    return f" ({chosen[0].filename}, line {chosen[0].lineno})"


def _is_installed(file: str) -> bool:
    """Whether a file is of a library: one that is installed, of Python itself, or kcg's."""
    folders = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    folders += [str(Path(traceback.__file__).parent), str(Path(__file__).parents[1])]
    return any(file.startswith(folder + "/") for folder in folders)


def _as_module(program: Program, error: BaseException) -> str:
    """Which `-m` to use for a file that imports relatively."""
    files = [f.filename for f in traceback.extract_tb(error.__traceback__)]
    path = Path(program.what).absolute()
    if program.form != Form.SCRIPT or str(path) not in files:
        return "run it as -m package.module, from the folder that holds the package"
    parts, folder = [path.stem], path.parent
    while not parts[1:] or (folder / "__init__.py").is_file():
        parts.append(folder.name)
        if folder.parent == folder:
            break
        folder = folder.parent
    return f"run it as -m {'.'.join(reversed(parts))} in {folder}"


PREFIX = "script:"  # of the names of recorded workloads: no family of the zoo has one like it
NAME_LENGTH = 80  # characters of a workload's name and of its preset
SEQUENCES_KEPT = 200  # different ones: a script that changes its shapes all the time has thousands
NAMES_KEPT = 20  # of the kernels that are left out for one reason, in a result
WORKLOAD = "workload.json"  # in the folder of what a run recorded
MOST_OF_WORKLOAD = 1 << 28  # bytes
ENDING = (signal.SIGTERM, signal.SIGHUP)  # signals that end a process, which this one records before
INTERRUPT_AGAIN_S = 2.0  # a script that Ctrl-C has not ended by then is told again
TERMINATE_S = 5.0  # and then is told to end, if it does not listen
KILL_S = 5.0
FOLLOWING_S = 0.2  # between two looks at what a program ran


@dataclass(frozen=True)
class Captured:
    """What a program ran, and what is to be said of it."""

    workload: Workload
    notes: tuple[str, ...]  # a line each: that it failed, and what is not recorded. What is left out is the workload's
    interrupted: bool = False  # with this process, as by Ctrl-C
    lowered: Mapping[str, Lowered] = field(default_factory=dict)  # what its process lowered, by the id of the kernel

    @property
    def lines(self) -> tuple[str, ...]:
        """All of it: the notes, and a line for every reason for which kernels are left out."""
        return (*self.notes, *map(str, self.workload.left_out))


class Late(NamedTuple):
    """When a program runs for longer than it should, and what is done then."""

    after_s: float
    warn: Callable[[], None]


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


def capture_program(
    program: Program,
    *,
    dev: str,
    late: Late | None = None,
    keeping: Keeping | None = None,
    seen: Callable[[Workload], object] | None = None,
) -> Captured:
    """Record `program` in a child process; what it prints goes to stderr.

    The workload is `script:` and the program's name, its preset the arguments. tinygrad's cache is a new one for this
    run. With `keeping` it has fixed seeds, and what it leaves is kept, if it ends well (`kcg.workloads.left`). `seen`
    gets the kernels that it ran first while it goes on, in a thread. A program that still runs when it is `late` is
    waited for all the same. One that raises, exits with an error, is interrupted, or dies by a signal keeps what it
    ran, and a note says how it ended.

    Raises UsageError where there is no such program, ScriptError where it ran no kernel that can be recorded,
    KeyboardInterrupt where this process is interrupted before a kernel was recorded.
    """
    check_program(program)
    with tempfile.TemporaryDirectory(prefix="kcg-capture-", ignore_cleanup_errors=True) as folder:
        out = Path(folder) / "workload.json"
        kept, seed = ("", "") if keeping is None else (str(keeping.folder.absolute()), str(keeping.seed))
        command = [sys.executable, "-m", "kcg.workloads.script", str(out), kept, seed, program.form, program.what]
        environment = {**os.environ, "DEV": dev, "CACHEDB": str(Path(folder) / "cache.db")}
        if keeping is not None:
            environment["PYTHONHASHSEED"] = str(keeping.seed % 2**32)
        following = contextlib.nullcontext() if seen is None else _followed(Path(folder), workload_name(program), seen)
        with following as thread:
            code, interrupted = _run([*command, *program.arguments], environment, late)
        if thread is not None and not interrupted:
            thread.join()
        found = json.loads(out.read_text()) if out.exists() else None
        answer = found or _answer_of_the_dead(program, Path(folder), device=dev.split(":")[0], code=code)
        lowered = read_lowered(Path(folder))
    if interrupted and "error" in answer:
        report_interrupted(f"interrupted: {program.label} had run nothing that is recorded")
        raise KeyboardInterrupt
    if "error" in answer:
        kind, message = answer["error"]
        raise {"script": ScriptError, "usage": UsageError}.get(kind, KcgError)(message)
    return Captured(workload_of(answer), tuple(answer["notes"]), interrupted, lowered)


@contextlib.contextmanager
def _followed(folder: Path, name: str, seen: Callable[[Workload], object]) -> Iterator[threading.Thread]:
    """Inside this block `seen` gets the kernels that a program runs, as soon as they are written down, in a thread that
    is at its last ones then. What goes wrong with them is seen again by whoever has all of them."""
    ended, following = threading.Event(), Following(folder)

    def follow() -> None:
        with contextlib.suppress(Exception):
            while not ended.wait(FOLLOWING_S):
                if kernels := following.kernels():
                    seen(Workload(name, "", tuple(WorkloadCall(Region((kernel,)), 1) for kernel in kernels)))

    thread = threading.Thread(target=follow, name="kcg-following", daemon=True)
    thread.start()
    try:
        yield thread
    finally:
        ended.set()


def _unforeseen(code: int) -> str:
    if code >= 0:
        return f"replaced its process or ended it without Python (exit code {code})"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:  # one of those for real time has no name
        return f"was killed by signal {-code}"


def _answer_of_the_dead(program: Program, folder: Path, *, device: str, code: int) -> dict[str, Any]:
    """What `_Recording` would have answered for a program whose process ended with this exit code, without a word."""
    from kcg.workloads.capture import left_out

    tallied, ended = read_tally(folder), _unforeseen(code)
    name, preset = _names_of(program)
    workload = Workload(name, preset, tallied.calls, sequences=tallied.sequences)
    left = left_out(tallied.others, tallied.refused, tallied.elsewhere, device=device, names_kept=NAMES_KEPT)
    workload, notes = _noted(replace(workload, left_out=left), queued=tallied.queued)
    kernels = counted(len({call.region.id for call in workload.calls}), "kernel")
    kept = f"what it ran before is recorded, {kernels}"
    return _answer(program, workload, notes, ended=ended, kept=kept, processes=tallied.processes)


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
                    late.warn()
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


def workload_of(values: dict[str, Any], *, trusted: bool = True) -> Workload:
    """The workload that `workload_json` wrote; `trusted` where a process of kcg's own has just done so."""
    calls = merged(
        WorkloadCall(
            Region((Kernel(c["ast"]),)),
            count,
            tuple((name, value) for name, value in variables),
            seen_as=tuple((name, tuple(devices)) for name, devices in c["seen_as"]),
        )
        for c in values["calls"]
        for variables, count in c["seen"]
    )
    left_out = tuple(LeftOut(**{**left, "names": tuple(left["names"])}) for left in values["left_out"])
    sequences = tuple(sequence_from_json(text, trusted=trusted) for text in values.get("sequences", ()))
    made = Workload(values["name"], values["preset"], calls, left_out=left_out, sequences=sequences)
    return replace(made, calls=tuple(replace(c, replayed=made.replayed.get(c.region.id, 0)) for c in calls))


def keep_workload(folder: Path, workload: Workload) -> None:
    """Keep a workload beside what its script left, for what is compared later. Raises UsageError where that cannot be
    written."""
    write_whole(folder / WORKLOAD, json.dumps(workload_json(workload)))


def kept_workload(folder: Path) -> Workload | None:
    """What `keep_workload` wrote; None where there is nothing, or nothing whole."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError, KcgError):
        if (data := read_foreign(folder / WORKLOAD, most_bytes=MOST_OF_WORKLOAD)) is not None:
            return workload_of(json.loads(data), trusted=False)
    return None


# ---- in the child ----


class _Recording:
    """One program in this process: what it ran, how it ended, and the answer to the parent."""

    def __init__(self, out: Path, program: Program, *, dev: str, kept: Path | None = None, seed: int = 0) -> None:
        """Where it is to be `kept`, what the program leaves is, and it has this seed."""
        self.out, self.program, self.dev = out, program, dev
        self._kept, self._seed = kept, seed
        self._observer: RecordingObserver | None = None
        self._stopped: SystemExit | None = None  # holds what its functions held, until that is kept
        self.ended = ""  # how, in words, where it did not end well
        self.advice = ""  # what to do about it, where that is known
        self.error: tuple[str, str] | None = None  # kind and message, where nothing is to be recorded
        self.processes = 0  # that the program started
        self._tally: Tally | None = None
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
        stays.enter_context(when_imported("tinygrad", self._check_tinygrad))
        stays.enter_context(opening(self.dev))
        self._recorder = stays.enter_context(recording())
        self._sequences = stays.enter_context(recording_sequences())
        with contextlib.suppress(OSError):  # a full disk: what a sudden end leaves is lost then
            self._tally = Tally(self.out.parent, self._recorder, device=self.dev.split(":")[0])
            self._recorder.on_execution, self._sequences.on_run = self._tally.ran, self._tally.ran_sequence
            self._recorder.on_lowered = LoweredWriter(self.out.parent, self._recorder.kernels).lowered
        if self._kept is not None:
            self._observe(stays)
        _kept.append(stays)
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
            run_as_main(self.program)
        except BaseException as error:  # whatever the program raises
            if os.getpid() != self._pid:
                raise  # in a process that it forked, which ends as it would alone
            self._raised(error)
        atexit.register(self._keep_left)  # the last that is registered is the first that runs: tinygrad is still there

    def _observe(self, stays: contextlib.ExitStack) -> None:
        """Follow what the program's kernels compute, from fixed seeds."""
        from kcg.compat.observing import RecordingObserver
        from kcg.workloads.capture import kernel_or_reason

        assert self._recorder is not None
        kernels = self._recorder.kernels

        def name_of(ast: Any) -> str:
            if ast not in kernels:
                kernels[ast] = kernel_or_reason(ast)
            return "" if isinstance(kernels[ast], str) else kernels[ast].id

        self._observer = RecordingObserver(self._recorder, name_of, seed=self._seed)
        stays.enter_context(self._observer.watch())

    def _keep_left(self) -> None:
        """Keep what a program left that ended well, once; where that fails nothing is kept, and it runs again."""
        observer, self._observer = self._observer, None
        if observer is None or self._kept is None or self.ended or os.getpid() != self._pid:
            return
        from kcg.workloads import left

        with contextlib.suppress(Exception):  # of a device that is gone, or a full disk
            of = left.identity(self.program.command, seed=self._seed, dev=self.dev)
            left.keep(self._kept, observer.left(left.MOST_BYTES), of=of)
        self._stopped = None

    def _raised(self, error: BaseException) -> None:
        if isinstance(error, SystemExit):
            self._stopped = error
            self.ended = exit_text(error.code, traceback.extract_tb(error.__traceback__))
            return
        assert self._recorder is not None
        if isinstance(error, KcgError) and self._recorder.is_empty:
            self.error = ("usage", str(error))
            return
        self.ended, self.advice = error_text(error), advice_on(self.program, error)
        if sys.excepthook is not sys.__excepthook__:  # of the program, which may save something
            sys.excepthook(type(error), error, error.__traceback__)

    def _check_tinygrad(self, _: Any) -> None:
        from kcg.compat.versions import other_tinygrad

        if (folder := other_tinygrad()) is not None:
            raise UsageError(
                f"{self.program.label} imports another tinygrad than the installed one, in {folder}: run it where "
                "Python finds the installed one first"
            )

    def _watch_exit(self) -> None:
        """`os._exit` ends a process without exit handlers."""
        leave = os._exit

        def leave_after_writing(code: int) -> None:
            if os.getpid() == self._pid:
                self.ended = exit_text(code, traceback.extract_stack())
                self._keep_left()
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
                self._started(Path(os.fsdecode(arguments[0])).name.startswith("python"))

        sys.addaudithook(audit)

    def _watch_processes(self, module: Any) -> None:
        """Count the processes that the program starts; tinygrad's compilers are recorded."""
        start = module.BaseProcess.start

        def start_and_count(process: Any) -> None:
            self._started(not type(process).__module__.startswith("tinygrad."))
            self._starting.now = True
            try:
                start(process)
            finally:
                self._starting.now = False

        module.BaseProcess.start = start_and_count

    def _forked(self) -> None:
        self._started(os.getpid() == self._pid and not getattr(self._starting, "now", False))

    def _started(self, one: bool) -> None:
        """Count a process, if it is `one` of the program's."""
        self.processes += one
        if one and self._tally is not None:
            self._tally.started_process()

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
        workload, notes = workload_and_notes(self._recorder, *_names_of(self.program), device=device)
        if workload.calls and self._sequences is not None:
            found = sequences_on(device, self._sequences, self._recorder.kernels)
            workload = replace(workload, sequences=found)
        return _answer(self.program, workload, notes, ended=self.ended, advice=self.advice, processes=self.processes)


def _names_of(program: Program) -> tuple[str, str]:
    """The name and the preset of its workload."""
    return workload_name(program), bounded(shlex.join(program.arguments))


def _answer(
    program: Program,
    workload: Workload,
    notes: list[str],
    *,
    ended: str,
    processes: int,
    advice: str = "",
    kept: str = "what it ran before is recorded",
) -> dict[str, Any]:
    """What is said of a program that ran, with how it `ended` where that was not well, and how much of it is `kept`."""
    if processes:
        what = counted(processes, "process", "processes")
        notes.append(f"{what} that the program started: what runs there is not recorded")
    if workload.calls:
        if ended:
            notes.insert(0, f"{program.label} {ended}: {kept}{f'; {advice}' if advice else ''}")
        return {**workload_json(workload), "notes": notes}
    if ended:
        ran = "before it ran a tinygrad kernel that can be recorded"
        return {"error": ("script", f"{program.label} {ended}, {ran}; {advice or 'run it alone first'}")}
    notes += map(str, workload.left_out)
    imports = "does it realise its tensors?" if "tinygrad" in sys.modules else "it imported no tinygrad"
    why = "; ".join(notes) or imports
    return {"error": ("script", f"{program.label} ran no tinygrad kernel that can be recorded: {why}")}


_kept: list[contextlib.ExitStack] = []  # closed by the end of the process


def workload_and_notes(recorder: Recorder, name: str, preset: str, *, device: str) -> tuple[Workload, list[str]]:
    """What a program ran on `device`, with what is left out of it, and a line for all else that is to be said."""
    if recorder.is_empty:
        return Workload(name, preset, ()), []  # without importing tinygrad
    from kcg.workloads.capture import Elsewhere, left_out, to_workload

    refused: Refused = {}
    all_calls = recorder.calls()
    calls = [c for c in all_calls if c.device.split(":")[0] == device]
    elsewhere = [
        Elsewhere(c.device, c.ast.key.hex(), c.name, c.calls) for c in all_calls if c.device.split(":")[0] != device
    ]
    workload = to_workload(name, preset, calls, refused=refused, kernels=recorder.kernels)
    left = left_out(recorder.unrecorded(), refused, elsewhere, device=device, names_kept=NAMES_KEPT)
    return _noted(replace(workload, left_out=left), queued=recorder.queued)


def _noted(workload: Workload, *, queued: int) -> tuple[Workload, list[str]]:
    """The workload with few values of its variables, and a line for that and for what was `queued`."""
    from kcg.workloads.capture import thinned

    notes = []
    if queued:
        notes.append(f"{counted(queued, 'execution')} by HCQ2=1, which shows no ASTs, left out")
    few = thinned(workload)
    if few != workload:
        notes.append(
            f"of kernels that ran with more than {VALUES_KEPT} values of their variables, {VALUES_KEPT} are kept, and "
            "all executions count for the nearest of them"
        )
    return few, notes


def sequences_on(
    device: str, recorder: SequenceRecorder, kernels: dict[Any, Kernel | str] | None = None
) -> tuple[CallSequence, ...]:
    """What a program ran on `device`, in the order of the first run; of many different ones those that ran the most.
    `kernels` as of `sequences_of_captured`."""

    def runs_there(captured: CapturedSequence) -> bool:
        return any(name.split(":")[0] == device for call in captured.calls for name in call.devices)

    found = [(captured, seen) for captured, seen in recorder.sequences() if runs_there(captured)]
    weights = [len(captured.calls) * sum(count for _, count in seen) for captured, seen in found]
    kept = sorted(sorted(range(len(found)), key=lambda place: -weights[place])[:SEQUENCES_KEPT])
    return sequences_of_captured((found[place] for place in kept), kernels)


def main() -> None:
    """`python -m kcg.workloads.script OUT KEPT SEED FORM WHAT args…`: record a program into OUT, or say there why not;
    what it leaves, with this seed, into KEPT where that is not empty."""
    out, kept, seed, form, what, *arguments = sys.argv[1:]
    program, folder = Program(Form(form), what, tuple(arguments)), Path(kept) if kept else None
    _Recording(Path(out), program, dev=os.environ["DEV"], kept=folder, seed=int(seed or 0)).run()


if __name__ == "__main__":
    # run as a module of the package, so that what the script imports does not see this one as __main__
    from kcg.workloads.script import main as main_of_the_package

    main_of_the_package()
