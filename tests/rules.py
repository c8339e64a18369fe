"""The rules of the packages as checkers: each reads a file of Python and yields what breaks the rule, as lines."""

from __future__ import annotations

import ast
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from tests.commands import python

ROOT = Path(__file__).parent.parent

# -- the packages, lowest first; those of one level are siblings and do not import each other

LEVELS = (
    {"errors", "shell", "types"},
    {"commands", "files", "nouns", "provenance", "unexpected"},
    {"clang", "cli", "hub", "kernels", "pictures"},
    {"compat"},
    {"kernel"},
    {"workloads", "measure", "store"},
    {"dataset"},
    {"predictor"},
    {"search", "data"},
    {"rl"},
    {"campaign", "training"},
    {"fleet", "report"},
    {"handover"},
    {"judge"},
    {"optimize"},
    {"apply", "calibrate", "check", "compare", "doctor", "export", "list", "predicting", "run", "tuning", "ui"},
    {"__main__", "autotuning"},
)
LEVEL = {package: level for level, packages in enumerate(LEVELS) for package in packages}

TINYGRAD_PUBLIC = {"Tensor", "dtypes", "Device", "TinyJit", "nn", "Variable", "UOp", "function"}
FORBIDDEN_CALLS = {
    "eval",
    "exec",
    "compile",
    "__import__",
    "pickle.load",
    "pickle.loads",
    "pickle.Unpickler",
    "cloudpickle.load",
    "cloudpickle.loads",
    "dill.load",
    "dill.loads",
    "joblib.load",
    "marshal.load",
    "marshal.loads",
    "shelve.open",
    "torch.load",
    "pandas.read_pickle",
}
UNPICKLERS = {"kcg.fleet.unpickling"}
"""Modules that may derive a class from an unpickler: this one is in the place of Python's own, for what Dask sends, and
admits a list of names. It unpickles nothing that comes from a user's file."""
OPT_WORDS = {"Opt", "RAW", "opts_to_apply"}
AXIS_WORDS = {"UPCAST", "UNROLL", "LOCAL", "GROUP", "GROUPTOP", "TC", "PADTO", "SWAP", "THREAD", "NOLOCALS"}
WORDS_OF_KINDS = AXIS_WORDS | OPT_WORDS
NAMING = {"id", "attr", "arg", "name", "asname", "rest"}
"""Fields of a node that hold a name."""
HEAVY = {
    "tinygrad",
    "numpy",
    "torch",
    "torch_geometric",
    "pyarrow",
    "scipy",
    "gymnasium",
    "matplotlib",
    "jinja2",
    "wandb",
    "optuna",
    "stable_baselines3",
    "sb3_contrib",
    "triton",
    "networkx",
    "huggingface_hub",
    "safetensors",
    "pandas",
    "datasets",
    "dask",
    "distributed",
    "cryptography",
}


class Import(NamedTuple):
    """One imported module or name: `module` is absolute, `name` is set for `from module import name`."""

    module: str
    name: str
    line: int
    lazy: bool  # inside a function or under `if TYPE_CHECKING:`: importing the file does not run it


@dataclass(frozen=True)
class Source:
    """A parsed Python file and the dotted name of its module."""

    path: Path
    module: str

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """As `ast.walk` gives them, in half of its time."""
        found: list[ast.AST] = [self.tree]
        for node in found:  # which grows meanwhile
            for field in node._fields:
                value = getattr(node, field, None)
                if isinstance(value, ast.AST):
                    found.append(value)
                elif isinstance(value, list):
                    found += [one for one in value if isinstance(one, ast.AST)]
        return found

    @cached_property
    def imports(self) -> list[Import]:
        """Every import of the file, those inside functions and under TYPE_CHECKING included."""
        found: list[Import] = []
        parent = self.module if self.path.name == "__init__.py" else self.module.rpartition(".")[0]

        def visit(node: ast.AST, lazy: bool) -> None:
            if isinstance(node, ast.Import):
                found.extend(Import(alias.name, "", node.lineno, lazy) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = ".".join(parent.split(".")[: len(parent.split(".")) - node.level + 1]) if node.level else ""
                module = ".".join(filter(None, (base, node.module or "")))
                found.extend(Import(module, alias.name, node.lineno, lazy) for alias in node.names)
            inside = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            typing_only = node.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" else []
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):  # an expression imports nothing
                    visit(child, inside or child in typing_only)

        visit(self.tree, False)
        return found


def sources(root: Path, folder: str) -> list[Source]:
    """Every Python file under `root/folder`."""
    found = []
    for path in sorted((root / folder).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found.append(Source(path, ".".join(parts[:-1] if parts[-1] == "__init__" else parts)))
    return found


def package_of(module: str) -> str:
    """`kcg.kernel.codec` -> `kernel`; empty for the package itself and for other packages."""
    parts = module.split(".")
    return parts[1] if parts[0] == "kcg" and len(parts) > 1 else ""


def package_imported(item: Import) -> str:
    """The package that an import reaches: `from kcg import errors` reaches `errors`."""
    if item.module == "kcg" and item.name in LEVEL:
        return item.name
    return package_of(item.module)


# -- the checkers: each returns the violations as lines; test_rules_checkers.py runs each on files that break the rule


def upward_imports(source: Source) -> Iterator[str]:
    """Imports that do not go down. An entry (`__main__`, `kcg.doctor`, `kcg` itself) may import any package lazily."""
    here = package_of(source.module)
    entry = source.path.name == "__main__.py" or here in ("doctor", "")
    if here and here not in LEVEL:
        yield f"{source.module}: {here!r} is no package; name its level in LEVELS"
        return
    for item in source.imports:
        package = package_imported(item)
        if package in ("", here) or (entry and item.lazy):
            continue
        if package not in LEVEL:
            yield f"{source.module}:{item.line}: imports {package!r}, which is no package"
        elif not here or LEVEL[package] >= LEVEL[here]:
            yield f"{source.module}:{item.line}: {here or 'kcg'} imports {package}, which is not below it"


def circles(sources: Iterable[Source]) -> Iterator[str]:
    """Modules that import each other in a circle, imports inside functions and for typing included. Entries may."""
    known = {
        s.module: s for s in sources if s.path.name != "__main__.py" and package_of(s.module) not in ("", "doctor")
    }
    below = {
        module: {f"{i.module}.{i.name}" if f"{i.module}.{i.name}" in known else i.module for i in source.imports}
        for module, source in known.items()
    }

    def above(module: str) -> list[str]:
        return [m for m, imported in below.items() if m != module and module in imported]

    while loose := [m for m, imported in below.items() if not (imported - {m}) & below.keys() or not above(m)]:
        for module in loose:
            del below[module]
    for module, imported in below.items():
        yield f"{module} imports {', '.join(sorted((imported - {module}) & below.keys()))}: a circle"


NOT_THE_FIELDS = {
    *("adopted", "auction", "bidder", "bidders", "bidding", "bids", "bout", "contest", "dealing", "dealt", "duel"),
    *("foretold", "kin", "lifeline", "occasion", "room", "rooms", "said", "seldom", "spawned", "survey", "thinker"),
    *("thinkers", "thinking", "told", "verdict", "verdicts"),
}
"""Words of earlier kcg for which the field has its own: `kin` are similar kernels, a `duel` a paired comparison."""


def own_words(source: Source) -> Iterator[str]:
    """Names of a file that are not the field's words."""
    names: dict[str, int] = {}
    for node in source.nodes:
        name = getattr(node, "name", None) or getattr(node, "id", None) or getattr(node, "arg", None)
        if isinstance(name, str):
            names.setdefault(name, getattr(node, "lineno", 0))
    for name, line in names.items():
        for word in {*re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower())} & NOT_THE_FIELDS:
            yield f"{source.module}:{line}: {name}: {word!r} is not the field's word for it"


MOST_PARAMETERS = 8
_READ_OFF = re.compile(r"(\.command|\.jit)\b")
"""Decorators that read a signature: the options of a command, the arguments of a GPU kernel."""


def many_parameters(source: Source) -> Iterator[str]:
    """Functions of more than eight parameters, `*args` and `**kwargs` not counted, nor what a method is called on. Of
    commands, also those that `run_script` runs, the parameters are options, and of GPU kernels arguments."""
    commands = {
        ast.unparse(node.args[0])
        for node in source.nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "run_script" and node.args
    }
    for node in source.nodes:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        name = getattr(node, "name", "a lambda")
        if name in commands or any(_READ_OFF.search(ast.unparse(d)) for d in getattr(node, "decorator_list", ())):
            continue
        names = [one.arg for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
        count = len(names) - (names[:1] in (["self"], ["cls"]))
        if count > MOST_PARAMETERS:
            yield f"{source.module}:{node.lineno}: {name} has {count} parameters: make a dataclass of some"


def private_tinygrad(source: Source) -> Iterator[str]:
    """Imports of tinygrad's internals outside of `kcg/compat`."""
    if package_of(source.module) == "compat":
        return
    for item in source.imports:
        package, *rest = item.module.split(".")
        if package != "tinygrad" or rest[:1] == ["nn"]:
            continue
        if rest or (item.name and item.name not in TINYGRAD_PUBLIC):
            yield f"{source.module}:{item.line}: tinygrad internals ({item.module} {item.name}): go through kcg.compat"


def forbidden_calls(source: Source) -> Iterator[str]:
    """Calls that execute or unpickle data, under the names by which the file knows them, and classes of unpicklers."""
    alias = {}
    for node in source.nodes:
        if isinstance(node, ast.Import):
            alias.update({a.asname or a.name: a.name for a in node.names})
        elif isinstance(node, ast.ImportFrom) and node.module:
            alias.update({a.asname or a.name: f"{node.module}.{a.name}" for a in node.names})

    def full_name(node: ast.expr) -> str:
        """Empty where it is no name with dots."""
        tail: list[str] = []
        while isinstance(node, ast.Attribute):
            tail.insert(0, node.attr)
            node = node.value
        return ".".join([alias.get(node.id, node.id), *tail]) if isinstance(node, ast.Name) else ""

    for node in source.nodes:
        if isinstance(node, ast.ClassDef) and source.module not in UNPICKLERS:
            for base in (full_name(base) or ast.unparse(base) for base in node.bases):
                if base.endswith("Unpickler"):
                    yield f"{source.module}:{node.lineno}: derives a class from {base}"
        if isinstance(node, ast.Call):
            called = full_name(node.func)
            if called.removeprefix("builtins.") in FORBIDDEN_CALLS:
                yield f"{source.module}:{node.lineno}: calls {called}"
            if any(k.arg == "allow_pickle" and not _is_false(k.value) for k in node.keywords):
                yield f"{source.module}:{node.lineno}: allows pickle"


WALL_CLOCK = {
    "kcg.dataset.journal": "recordings, which other machines read; `unix_now_s` never steps within a process",
    "kcg.fleet.host": "hosts tell each other when they were checked",
    "kcg.fleet.status": "how long ago that was",
    "kcg.fleet.tasks": "hosts tell each other when they were checked",
    "kcg.ui.runs": "since when another process has not written: a file's time",
}
"""Modules that may ask for the wall clock, and why: what they tell leaves the process."""


def wall_clocks(source: Source) -> Iterator[str]:
    """Lines that ask for a clock which is set ahead and back while a program runs."""
    for node in source.nodes:
        named = (
            isinstance(node, ast.Attribute) and node.attr in ("time", "time_ns") and ast.unparse(node.value) == "time"
        )
        imported = (
            isinstance(node, ast.ImportFrom) and node.module == "time" and any(n.name == "time" for n in node.names)
        )
        if (named or imported) and source.module not in WALL_CLOCK:
            yield f"{source.module}:{node.lineno} asks for the wall clock: take time.monotonic, or add it to WALL_CLOCK"


CLOCKS = {"monotonic", "perf_counter", "process_time", "thread_time", "time"}


def timed_asserts(source: Source) -> Iterator[str]:
    """Assertions that compare how long something took: on a machine with much to do it may take any time."""

    def took(node: ast.AST) -> bool:
        """Whether it is so many seconds after, or before, what a clock says."""
        return isinstance(node, ast.BinOp) and any(
            isinstance(one, ast.Call)
            and isinstance(one.func, ast.Attribute)
            and one.func.attr in CLOCKS
            and isinstance(one.func.value, ast.Name)
            and one.func.value.id == "time"
            for one in ast.walk(node)
        )

    if not any(f"time.{clock}(" in source.text for clock in CLOCKS):
        return
    for function in (node for node in source.nodes if isinstance(node, ast.FunctionDef)):
        spent = {
            target.id
            for node in ast.walk(function)
            if isinstance(node, ast.Assign) and took(node.value)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(function):
            compared = ast.walk(node.test) if isinstance(node, ast.Assert) else ()
            parts = [part for one in compared if isinstance(one, ast.Compare) for part in ast.walk(one)]
            if any(took(part) or (isinstance(part, ast.Name) and part.id in spent) for part in parts):
                yield f"{source.module}:{node.lineno}: asserts how long something took: give it a clock of its own"


def _is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


def words_of_kinds(source: Source) -> Iterator[str]:
    """Names and texts in code that only the package of a kind of schedule may know, outside of `kcg/compat` and
    `kcg/kernel`. Prose may say them."""
    if package_of(source.module) in ("compat", "kernel"):
        return
    for node in source.nodes:
        if isinstance(node, ast.Constant):
            printed = {node.value} & AXIS_WORDS if isinstance(node.value, str) else set()
        else:
            names = [getattr(node, field) for field in node._fields if field in NAMING]
            printed = {name for name in names if isinstance(name, str)} & WORDS_OF_KINDS if names else set()
        for word in sorted(printed):
            line = getattr(node, "lineno", 0)
            yield f"{source.module}:{line}: {word} is a word of a kind of schedule: go through kcg.kernel.kinds"


DEVICES = "kcg.kernel.tile.device"
"""What alone tells one GPU from another, for tile programs."""
_ARCHITECTURE = re.compile(r"(sm_|gfx)\d")


def asks_for_architectures(source: Source) -> Iterator[str]:
    """Names of architectures in the code of tile programs, and what reads one off a target, outside of `DEVICES`. Prose
    may say them."""
    if not source.module.startswith(DEVICES.rpartition(".")[0]) or source.module == DEVICES:
        return
    prose = {id(node.value) for node in source.nodes if isinstance(node, ast.Expr)}
    for node in source.nodes:
        named = isinstance(node, ast.Attribute) and node.attr in ("arch", "model", "tensor_cores")
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            named = bool(_ARCHITECTURE.search(node.value))
        if named:
            line = getattr(node, "lineno", 0)
            yield f"{source.module}:{line}: {ast.unparse(node)} tells GPUs apart: make it a field of {DEVICES}"


FORMS = "kcg.kernel.tile.forms"
"""The registry of the forms of tile programs."""
FORM_NAMES = "kcg.kernel.tile.parameters"
"""What their stored names are, and what a stored field may be."""


def asks_for_forms(source: Source, forms: Mapping[str, tuple[str, str]], constants: Container[str]) -> Iterator[str]:
    """Code outside of the files of `forms` (stored name -> module and class) that asks for one by its name: imports the
    class or the constant of the name, or compares with it. What depends on a form is the form's to say."""
    modules, classes = ({of[part] for of in forms.values()} for part in (0, 1))
    if source.module in (FORM_NAMES, *modules):
        return
    for item in source.imports:
        of_class = item.module in modules and item.name in classes and source.module != FORMS
        if of_class or (item.module == FORM_NAMES and item.name in constants):
            yield f"{source.module}:{item.line}: it imports {item.name}: ask what {FORMS}.form_of gives"
    for node in source.nodes:
        sides = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
        if not any(isinstance(side, ast.Attribute) and side.attr == "form" for side in sides):
            continue
        named = {one.value for side in sides for one in ast.walk(side) if isinstance(one, ast.Constant)} & set(forms)
        if named:
            line, one = getattr(node, "lineno", 0), min(map(str, named))
            yield f"{source.module}:{line}: it compares a form with {one}: ask what {FORMS}.form_of gives"


DECISIONS = {"TileParameters", "Target", "Device", "Figures", "device_of", "figures_of"}
"""What a plan of a tile program is made of, and whoever writes its text does not see."""
TEXT = {"Frame", "Lines", "Writer"}
"""What texts are made by."""


def decides_while_writing(source: Source) -> Iterator[str]:
    """Functions and methods of tile programs that write text, by what they take or by their name, and name what a plan
    is made of. A class whose `__init__` takes what texts are made by writes in all of its methods."""
    if not source.module.startswith(DEVICES.rpartition(".")[0]):
        return
    classes = [node for node in source.nodes if isinstance(node, ast.ClassDef) and _writes_all(node)]
    own = {id(method) for one in classes for method in one.body}
    for function in source.nodes:
        if isinstance(function, ast.FunctionDef) and (id(function) in own or _writes(function)):
            for node in ast.walk(function):
                name = getattr(node, "id", getattr(node, "attr", ""))
                if name in DECISIONS:
                    line = getattr(node, "lineno", function.lineno)
                    yield f"{source.module}:{line}: {function.name} writes and asks for {name}: decide it in the plan"


def _writes_all(one: ast.ClassDef) -> bool:
    """Whether a class writes text."""
    begins = [node for node in one.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
    return any(map(_writes, begins))


def _writes(function: ast.FunctionDef) -> bool:
    """Whether a function is given what texts are made by, or says that it writes."""
    given = {name for arg in function.args.args for name in _named(arg.annotation)}
    return bool(given & TEXT) or function.name.lstrip("_").startswith("write")


def _named(annotation: ast.expr | None) -> set[str]:
    return {node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)} if annotation else set()


READERS = {"kcg.kernel.reading", "kcg.kernel.regions"}
"""What reads ASTs for all kinds."""


def imports_of_kinds(source: Source, kinds: Mapping[str, str]) -> Iterator[str]:
    """Imports, outside of `kcg/kernel` and by its readers, of what is in the package of one of `kinds`, by the names of
    their modules."""
    if package_of(source.module) == "kernel" and not {source.module, source.module.rpartition(".")[0]} & READERS:
        return
    inside = {module.removesuffix(".kind"): name for name, module in kinds.items()}
    for item in source.imports:
        for package, name in inside.items():
            if f"{item.module}.{item.name}.".startswith(f"{package}."):
                yield f"{source.module}:{item.line}: it imports the kind {name!r}: go through kcg.kernel.kinds"


def imports_of_scripts(source: Source) -> Iterator[str]:
    """Imports of `training`, `evaluation`, `tests` or `datasets` by the library."""
    for item in source.imports:
        if item.module.split(".")[0] in ("training", "evaluation", "tests", "datasets"):
            yield f"{source.module}:{item.line}: the library imports {item.module}"


ONLY_TRAINS = {"optuna", "sb3_contrib", "stable_baselines3"}
"""Packages of the extra `train` that nothing but training needs; W&B keeps finished runs of `optimize` too."""


def imports_of_training(source: Source) -> Iterator[str]:
    """Imports of `kcg.training`, and of what only that needs, by another package of the library."""
    if package_of(source.module) == "training":
        return
    for item in source.imports:
        if package_imported(item) == "training" or item.module.split(".")[0] in ONLY_TRAINS:
            yield f"{source.module}:{item.line}: imports {item.module}: only training/ and evaluation/ train"


def drawn_tree(text: str) -> dict[str, str]:
    """Class -> parent, from a tree drawn with box characters; the root's parent is empty."""
    parents: dict[str, str] = {}
    open_at: list[str] = []
    for line in text.splitlines():
        if match := re.match(r"^((?:│   |    )*)(├── |└── )?([A-Z]\w+)\s{2,}", line):
            depth = len(match[1]) // 4 + (1 if match[2] else 0)
            parents[match[3]] = open_at[depth - 1] if depth else ""
            open_at[depth:] = [match[3]]
    return parents


def loaded_by(*command: str) -> set[str]:
    """Top-level packages that a Python command imports. Raises AssertionError where it fails."""
    done = python("-X", "importtime", *command, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-500:]
    times = [
        line for line in done.stderr.splitlines() if line.startswith("import time:") and "imported package" not in line
    ]
    return {line.split("|")[-1].strip().split(".")[0] for line in times}


def defined_names(path: Path) -> set[str]:
    """`__all__`, or the public names that a module defines at its top or re-exports by `import X as X`."""
    names: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names.update(target.id for target in targets if isinstance(target, ast.Name))
            if "__all__" in names and isinstance(node, ast.Assign):
                return set(ast.literal_eval(node.value))
        elif isinstance(node, ast.ImportFrom):
            names.update(alias.asname for alias in node.names if alias.asname == alias.name and alias.asname)
    return {name for name in names if not name.startswith("_")}
