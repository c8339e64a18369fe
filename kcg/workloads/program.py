"""Running somebody's program as Python would run it: a script, a module (`-m`) or code (`-c`).

`run_as_main` is what a process of its own does for `python script.py args…`: children that the program starts, classes
that it pickles and what it reads about itself are as under plain Python. It needs no tinygrad.
"""

from __future__ import annotations

import builtins
import hashlib
import importlib.abc
import importlib.machinery
import importlib.util
import shlex
import sys
import traceback
import types
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from kcg.errors import UsageError

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
                return f"-c {shlex.quote(shown)}"


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
        export = f"jupyter nbconvert --to script {shlex.quote(str(path))}"
        raise UsageError(f"{path} is a notebook: export it with `{export}` and give {path.with_suffix('.py')} instead")
    if path.is_dir():
        raise UsageError(f"{path} is a folder: give a script in it, or run it as a package with -m")
    if not path.is_file():
        raise UsageError(f"there is no script {path}")


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
                sys.path[0] = str(Path(path).resolve().parent)
            # not `get_code`, which would keep it beside the script
            return loader.source_to_code(loader.get_data(path), path)
        case Form.MODULE:
            sys.argv = ["-m", *program.arguments]
            spec = _module_spec(program.what)
            assert spec.origin is not None
            sys.argv[0] = spec.origin
            main.__dict__.update(
                __file__=spec.origin, __cached__=getattr(spec, "cached", None), __package__=spec.parent,
                __loader__=spec.loader, __spec__=spec,
            )  # fmt: skip
            return spec.loader.get_code(spec.name)  # type: ignore[union-attr, no-any-return]
        case Form.CODE:
            sys.argv = ["-c", *program.arguments]
            main.__dict__.update(__package__=None, __loader__=importlib.machinery.BuiltinImporter)
            if in_path:
                sys.path[0] = ""
            return importlib.abc.InspectLoader.source_to_code(program.what, "<string>")


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
    name, line = type(error).__name__, _line_of(error.msg if isinstance(error, SyntaxError) else error)
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
