"""The house's rules, read off the files: who imports whom, what is never called, what `--help` loads, public names."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

import kcg
from kcg import errors

ROOT = Path(__file__).parent.parent

# -- the rooms, lowest first; rooms of one level are siblings and do not import each other

LEVELS = (
    {"schedules"}, {"errors", "types"}, {"files"}, {"commandline", "kernels"}, {"compat"}, {"kernel"},
    {"workloads", "measure"}, {"dataset"}, {"predictor"}, {"env"}, {"search"}, {"campaign", "optimize"}, {"doctor"},
)  # fmt: skip
LEVEL = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}

TINYGRAD_PUBLIC = {"Tensor", "dtypes", "Device", "TinyJit", "nn", "Variable", "UOp"}
FORBIDDEN_CALLS = {
    "eval", "exec", "compile", "__import__", "pickle.load", "pickle.loads", "pickle.Unpickler", "cloudpickle.load",
    "cloudpickle.loads", "dill.load", "dill.loads", "joblib.load", "marshal.load", "marshal.loads", "shelve.open",
    "torch.load", "pandas.read_pickle",
}  # fmt: skip
HEAVY = {
    "tinygrad", "numpy", "torch", "torch_geometric", "pyarrow", "scipy", "lightgbm", "gymnasium", "plotly", "jinja2",
    "wandb", "optuna", "stable_baselines3", "sb3_contrib", "triton", "networkx", "huggingface_hub", "safetensors",
}  # fmt: skip
MAX_LINES = 420
MAX_SCRIPT_LINES = 120


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

    @property
    def tree(self) -> ast.Module:
        return ast.parse(self.path.read_text(encoding="utf-8"))

    def imports(self) -> list[Import]:
        """Every import of the file, those inside functions and under TYPE_CHECKING included."""
        found: list[Import] = []
        package = self.module if self.path.name == "__init__.py" else self.module.rpartition(".")[0]

        def visit(node: ast.AST, lazy: bool) -> None:
            if isinstance(node, ast.Import):
                found.extend(Import(alias.name, "", node.lineno, lazy) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1]) if node.level else ""
                module = ".".join(filter(None, (base, node.module or "")))
                found.extend(Import(module, alias.name, node.lineno, lazy) for alias in node.names)
            inside = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            typing_only = node.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" else []
            for child in ast.iter_child_nodes(node):
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


def room_of(module: str) -> str:
    """`kcg.kernel.codec` -> `kernel`; empty for the package itself and for other packages."""
    parts = module.split(".")
    return parts[1] if parts[0] == "kcg" and len(parts) > 1 else ""


def room_imported(item: Import) -> str:
    """The room that an import reaches: `from kcg import errors` reaches `errors`."""
    if item.module == "kcg" and item.name in LEVEL:
        return item.name
    return room_of(item.module)


# -- the checkers: each returns the violations as lines; each is itself tested below on files that break the rule


def upward_imports(source: Source) -> Iterator[str]:
    """Imports that do not go down. An entry (`__main__`, `kcg.doctor`, `kcg` itself) may import any room lazily."""
    here = room_of(source.module)
    entry = source.path.name == "__main__.py" or here in ("doctor", "")
    if here and here not in LEVEL:
        yield f"{source.module}: {here!r} is no room; name its level in LEVELS"
        return
    for item in source.imports():
        room = room_imported(item)
        if room in ("", here) or (entry and item.lazy):
            continue
        if room not in LEVEL:
            yield f"{source.module}:{item.line}: imports {room!r}, which is no room"
        elif not here or LEVEL[room] >= LEVEL[here]:
            yield f"{source.module}:{item.line}: {here or 'kcg'} imports {room}, which is not below it"


def private_tinygrad(source: Source) -> Iterator[str]:
    """Imports of tinygrad's internals outside of `kcg/compat`."""
    if room_of(source.module) == "compat":
        return
    for item in source.imports():
        package, *rest = item.module.split(".")
        if package != "tinygrad" or rest[:1] == ["nn"]:
            continue
        if rest or (item.name and item.name not in TINYGRAD_PUBLIC):
            yield f"{source.module}:{item.line}: tinygrad internals ({item.module} {item.name}): go through kcg.compat"


def forbidden_calls(source: Source) -> Iterator[str]:
    """Calls that execute or unpickle data, under the names by which the file knows them."""
    tree, alias = source.tree, {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            alias.update({a.asname or a.name: a.name for a in node.names})
        elif isinstance(node, ast.ImportFrom) and node.module:
            alias.update({a.asname or a.name: f"{node.module}.{a.name}" for a in node.names})
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            head, dot, tail = ast.unparse(node.func).partition(".")
            called = alias.get(head, head) + dot + tail
            if called.removeprefix("builtins.") in FORBIDDEN_CALLS:
                yield f"{source.module}:{node.lineno}: calls {called}"
            if any(k.arg == "allow_pickle" and not _is_false(k.value) for k in node.keywords):
                yield f"{source.module}:{node.lineno}: allows pickle"


def _is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


def too_long(source: Source, limit: int) -> Iterator[str]:
    """Files of more lines than a newcomer can hold."""
    if (lines := len(source.path.read_text(encoding="utf-8").splitlines())) > limit:
        yield f"{source.module}: {lines} lines, more than {limit}"


def imports_of_scripts(source: Source) -> Iterator[str]:
    """Imports of `training`, `evaluation`, `tests` or `datasets` by the library."""
    for item in source.imports():
        if item.module.split(".")[0] in ("training", "evaluation", "tests", "datasets"):
            yield f"{source.module}:{item.line}: the library imports {item.module}"


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
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *command],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-500:]
    times = [
        line for line in done.stderr.splitlines() if line.startswith("import time:") and "imported package" not in line
    ]
    return {line.split("|")[-1].strip().split(".")[0] for line in times}


# -- the rules

LIBRARY = sources(ROOT, "kcg")
SCRIPTS = [*sources(ROOT, "training"), *sources(ROOT, "evaluation")]


def test_imports_only_go_down() -> None:
    assert [line for source in LIBRARY for line in upward_imports(source)] == []


def test_only_compat_touches_tinygrads_internals() -> None:
    assert [line for source in (*LIBRARY, *SCRIPTS) for line in private_tinygrad(source)] == []


def test_nothing_is_executed_or_unpickled() -> None:
    assert [line for source in (*LIBRARY, *SCRIPTS) for line in forbidden_calls(source)] == []


def test_no_file_is_too_long() -> None:
    assert [line for source in LIBRARY for line in too_long(source, MAX_LINES)] == []


def test_scripts_are_thin_and_nothing_imports_them() -> None:
    assert [line for source in SCRIPTS for line in too_long(source, MAX_SCRIPT_LINES)] == []
    assert [line for source in LIBRARY for line in imports_of_scripts(source)] == []


def test_datasets_is_no_package() -> None:
    assert not list((ROOT / "datasets").rglob("*.py")), "it would shadow the package `datasets`"


@pytest.mark.parametrize(
    "command",
    ["kcg.optimize", "kcg.optimize apply", "kcg.dataset", "kcg.doctor"],
)
def test_help_loads_nothing_heavy(command: str) -> None:
    module, *rest = command.split()
    assert loaded_by("-m", module, *rest, "--help") & HEAVY == set()


def test_kcg_itself_loads_nothing_heavy() -> None:
    assert (
        loaded_by("-c", "import kcg, kcg.errors, kcg.types, kcg.kernels, kcg.search, kcg.search.interface") & HEAVY
        == set()
    )


def test_the_drawn_error_tree_is_the_real_one() -> None:
    real = {
        name: found.__base__.__name__ if found is not errors.KcgError else ""
        for name, found in inspect.getmembers(errors, inspect.isclass)
        if issubclass(found, errors.KcgError) and found.__base__ is not None
    }
    assert drawn_tree(errors.__doc__ or "") == real


def test_the_drawn_error_tree_tells_the_exit_codes() -> None:
    for line in (errors.__doc__ or "").splitlines():
        if match := re.match(r"^\W*([A-Z]\w+) .*exit code (\d+)$", line):
            assert getattr(errors, match[1]).exit_code == int(match[2]), line


PUBLIC = {
    "kcg": ["__version__", "tuned"],
    "kcg.errors": [
        "CodecError", "DataError", "DeviceError", "ExitCode", "JournalError", "KcgError", "MismatchError",
        "ResultError", "ScheduleError", "ScriptError", "UnknownName", "UsageError", "VerificationError", "WeightsError",
    ],
    "kcg.types": [
        "Action", "CacheState", "Expectation", "Finalist", "Kernel", "Measurement", "ModelCheck", "Opt", "Plan",
        "PlannedRegion", "Prediction", "ProgressPoint", "RAW",
        "Recompute", "Region", "RegionResult", "Result", "Schedule", "ScheduleKind", "Status", "Target", "Toolchain",
        "Verification", "Workload", "WorkloadCall", "canonical_json", "content_id",
    ],
    "kcg.kernels": [
        "BufferView", "DEVICES", "F", "HandwrittenKernel", "ID_DIGITS", "KernelView", "Launch", "Matches", "collecting",
        "handwritten",
    ],
    "kcg.search.interface": [
        "Action", "ActionSpace", "Correct", "Ledger", "Measure", "Observation", "Predict", "Problem", "Proposal",
        "Propose", "Said", "Strategy", "best",
    ],
}  # fmt: skip


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names_are_these(module: str) -> None:
    """A change here is a change for users: it belongs into CHANGELOG.md."""
    path = ROOT / (module.replace(".", "/") + ("/__init__.py" if module == "kcg" else ".py"))
    assert sorted(defined_names(path)) == sorted(PUBLIC[module])


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


def test_every_public_name_of_the_package_is_there() -> None:
    assert all(hasattr(kcg, name) for name in kcg.__all__)
    with pytest.raises(AttributeError):
        kcg.no_such_name  # noqa: B018


def test_the_version_is_in_the_changelog() -> None:
    assert f"## [{kcg.__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


# -- the checkers, on files that break each rule


def source(root: Path, name: str, text: str) -> Source:
    """A file of a made-up package tree."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    (found,) = [s for s in sources(root, name.split("/")[0]) if s.path == path]
    return found


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("kcg/kernel/a.py", "import kcg.search.mcts"),
        ("kcg/kernel/a.py", "from kcg.search.interface import Action"),
        ("kcg/kernel/a.py", "def f():\n  from kcg.workloads import flux"),
        ("kcg/kernel/a.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n  from kcg.measure import jobs"),
        ("kcg/kernel/a.py", "from ..workloads import flux"),
        ("kcg/kernel/__init__.py", "from ..workloads.flux import build"),
        ("kcg/workloads/a.py", "from kcg.measure.jobs import TimeJob"),
        ("kcg/measure/a.py", "class A:\n  from kcg.workloads.flux import build"),
        ("kcg/optimize/a.py", "from kcg import campaign"),
        ("kcg/errors.py", "from kcg import types"),
        ("kcg/types.py", "import kcg.errors"),
        ("kcg/__init__.py", "from kcg.optimize.run import optimize"),
        ("kcg/kernel/a.py", "from kcg.nowhere import x"),
        ("kcg/unheard/a.py", "import os"),
        ("kcg/dataset/__main__.py", "from kcg.optimize.run import optimize"),
    ],
)
def test_an_upward_import_is_found(tmp_path: Path, name: str, text: str) -> None:
    assert len(list(upward_imports(source(tmp_path, name, text)))) == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("kcg/dataset/__main__.py", "def main():\n  from kcg.optimize.run import optimize"),
        ("kcg/doctor.py", "from kcg.errors import KcgError\ndef main():\n  import kcg.optimize.run"),
        ("kcg/kernel/a.py", "from kcg.compat.tiny import UOp\nfrom kcg import types, __version__\nfrom . import b"),
        ("kcg/optimize/a.py", "import kcg.search.mcts, json"),
        (
            "kcg/__init__.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n  from kcg.optimize.run import optimize",
        ),
        ("kcg/__init__.py", "def __getattr__(name):\n  from kcg.optimize.run import optimize"),
    ],
)
def test_a_downward_import_is_allowed(tmp_path: Path, name: str, text: str) -> None:
    assert list(upward_imports(source(tmp_path, name, text))) == []


@pytest.mark.parametrize(
    "text",
    [
        "from tinygrad.uop.ops import UOp",
        "import tinygrad.device",
        "def f():\n  from tinygrad.runtime.autogen import cuda",
        "from tinygrad import helpers",
        "from tinygrad import Context",
    ],
)
def test_a_tinygrad_internal_is_found(tmp_path: Path, text: str) -> None:
    assert len(list(private_tinygrad(source(tmp_path, "kcg/kernel/a.py", text)))) == 1
    assert list(private_tinygrad(source(tmp_path, "kcg/compat/a.py", text))) == []


def test_public_tinygrad_is_allowed_anywhere(tmp_path: Path) -> None:
    text = "import tinygrad\nfrom tinygrad import Tensor, dtypes, nn, TinyJit\nfrom tinygrad.nn.state import safe_load"
    assert list(private_tinygrad(source(tmp_path, "kcg/workloads/a.py", text))) == []


@pytest.mark.parametrize(
    "text",
    [
        "eval('1')",
        "def f(x):\n  exec(x)",
        "import pickle\npickle.loads(b'')",
        "import pickle as p\np.load(f)",
        "from pickle import load as read\nread(f)",
        "import torch\ntorch.load('x', weights_only=True)",
        "from torch import load\nload('x')",
        "import builtins\nbuiltins.eval('1')",
        "import numpy as np\nnp.load('x', allow_pickle=True)",
        "__import__('os')",
    ],
)
def test_a_forbidden_call_is_found(tmp_path: Path, text: str) -> None:
    assert len(list(forbidden_calls(source(tmp_path, "kcg/a.py", text)))) == 1


def test_harmless_calls_are_not_found(tmp_path: Path) -> None:
    text = "import json, re\njson.loads('1')\nmodel.eval()\nre.compile('x')\nnp.load('x', allow_pickle=False)"
    assert list(forbidden_calls(source(tmp_path, "kcg/a.py", text))) == []


def test_a_long_file_and_an_import_of_a_script_are_found(tmp_path: Path) -> None:
    assert list(too_long(source(tmp_path, "kcg/a.py", "x = 1\n" * 11), 10)) == ["kcg.a: 11 lines, more than 10"]
    assert list(too_long(source(tmp_path, "kcg/a.py", "x = 1\n" * 10), 10)) == []
    assert (
        len(list(imports_of_scripts(source(tmp_path, "kcg/b.py", "def f():\n  from training.gnn import train")))) == 1
    )


def test_a_wrong_drawing_is_noticed() -> None:
    drawing = "Base   words\n├── Left   words\n│   └── Deep   words\n└── Right   words\n"
    assert drawn_tree(drawing) == {"Base": "", "Left": "Base", "Deep": "Left", "Right": "Base"}
    assert drawn_tree(drawing.replace("│   └──", "├──"))["Deep"] == "Base"


def test_a_heavy_import_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "jinja2.py").write_text("", encoding="utf-8")
    script = tmp_path / "script.py"
    script.write_text("import json\ndef f():\n    import jinja2\nf()\n", encoding="utf-8")
    assert loaded_by(str(script)) & HEAVY == {"jinja2"}
    with pytest.raises(AssertionError):
        loaded_by("-c", "raise SystemExit(3)")


def test_defined_names_are_found(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(
        "from b import C as C, D\nimport os\n_x = 1\nE: int = 2\ndef f(): ...\nclass G: ...\n", encoding="utf-8"
    )
    assert defined_names(path) == {"C", "E", "f", "G"}
    path.write_text("from b import C\nx = 1\n__all__ = ['C']\n", encoding="utf-8")
    assert defined_names(path) == {"C"}
