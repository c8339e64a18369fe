"""The checkers of the rules of the packages find each rule broken, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rules import (
    HEAVY,
    Source,
    asks_for_architectures,
    asks_for_forms,
    circles,
    decides_while_writing,
    defined_names,
    drawn_tree,
    forbidden_calls,
    imports_of_kinds,
    imports_of_scripts,
    imports_of_training,
    loaded_by,
    many_parameters,
    own_words,
    private_tinygrad,
    sources,
    timed_asserts,
    upward_imports,
    wall_clocks,
    words_of_kinds,
)


def source(root: Path, name: str, text: str) -> Source:
    """A file of a made-up package tree."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    (found,) = [s for s in sources(root, name.split("/")[0]) if s.path == path]
    return found


def test_names_that_are_not_the_fields_words_are_found(tmp_path: Path) -> None:
    code = "def duel_of(kin): ...\nclass BoutOutcome: ...\nskin = roomy = contestant = 1\n"
    found = [line.split(": ")[1] for line in own_words(source(tmp_path, "kcg/search/a.py", code))]
    assert sorted(found) == ["BoutOutcome", "duel_of", "kin"]


def test_functions_of_more_than_eight_parameters_are_found(tmp_path: Path) -> None:
    eight, nine = "a, b, c, d, e, *, f, g, h", "a, b, c, d, e, *, f, g, h, i"
    code = f"""
def fits({eight}, **rest): ...
class Made:
    def fits(self, {eight}): ...
    def many(self, {nine}): ...
@app.command(help="options")
def options({nine}): ...
@triton.jit
def kernel({nine}): ...
def main({nine}): ...
many_too = lambda {nine}: 0
async def many_in({nine}): ...
@cached
def many_of({nine}): ...
run_script(main)
"""
    found = [
        line.split(": ")[1].split(" has")[0] for line in many_parameters(source(tmp_path, "kcg/search/a.py", code))
    ]
    assert sorted(found) == ["a lambda", "many", "many_in", "many_of"]


def test_assertions_on_what_a_clock_says_are_found(tmp_path: Path) -> None:
    code = """
def test_a():
    begin = time.monotonic()
    assert time.monotonic() - begin < 5  # here
    spent_s = time.process_time() - begin
    assert 2 * fast < spent_s  # here
    deadline = time.monotonic() + 60
    assert left(time.monotonic()) == "1 s" and spent() < 5
    assert seconds > 0
"""
    found = [line.split(":")[1] for line in timed_asserts(source(tmp_path, "tests/test_a.py", code))]
    assert found == [str(n) for n, line in enumerate(code.splitlines(), 1) if line.endswith("# here")]


def test_circles_are_found_with_their_members_alone(tmp_path: Path) -> None:
    made = [
        source(tmp_path, "kcg/search/a.py", "def f():\n  from kcg.search.b import g"),
        source(
            tmp_path,
            "kcg/search/b.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n  from kcg.search import a",
        ),
        source(tmp_path, "kcg/search/below.py", "import kcg.errors"),
        source(tmp_path, "kcg/search/above.py", "from kcg.search import a, below"),
        source(tmp_path, "kcg/search/__main__.py", "from kcg.search import a, __main__"),
    ]
    assert [line.split()[0] for line in circles(made)] == ["kcg.search.a", "kcg.search.b"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("kcg/kernel/a.py", "import kcg.search.mcts"),
        ("kcg/kernel/a.py", "from kcg.search.problem import Action"),
        ("kcg/kernel/a.py", "def f():\n  from kcg.workloads import flux"),
        ("kcg/kernel/a.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n  from kcg.measure import jobs"),
        ("kcg/kernel/a.py", "from ..workloads import flux"),
        ("kcg/kernel/__init__.py", "from ..workloads.flux import build"),
        ("kcg/workloads/a.py", "from kcg.measure.jobs import TimeJob"),
        ("kcg/measure/a.py", "class A:\n  from kcg.workloads.flux import build"),
        ("kcg/campaign/a.py", "from kcg import optimize"),
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
        "import pickle\nclass Own(pickle.Unpickler): ...",
        "from pickle import _Unpickler as Base\nclass Own(Base): ...",
    ],
)
def test_a_forbidden_call_is_found(tmp_path: Path, text: str) -> None:
    assert len(list(forbidden_calls(source(tmp_path, "kcg/a.py", text)))) == 1


def test_one_module_may_have_an_unpickler_and_call_no_other(tmp_path: Path) -> None:
    text = "import pickle\nclass Own(pickle.Unpickler): ...\npickle.loads(b'')"
    assert len(list(forbidden_calls(source(tmp_path, "kcg/fleet/unpickling.py", text)))) == 1


def test_harmless_calls_are_not_found(tmp_path: Path) -> None:
    text = "import json, re\njson.loads('1')\nmodel.eval()\nre.compile('x')\nnp.load('x', allow_pickle=False)"
    assert list(forbidden_calls(source(tmp_path, "kcg/a.py", text))) == []


def test_an_import_of_a_script_is_found(tmp_path: Path) -> None:
    assert (
        len(list(imports_of_scripts(source(tmp_path, "kcg/b.py", "def f():\n  from training.gnn import train")))) == 1
    )


def test_an_import_of_training_is_found(tmp_path: Path) -> None:
    text = "def f():\n  from kcg import training\n  import kcg.training.fit, torch\nfrom sb3_contrib.common import x"
    assert len(list(imports_of_training(source(tmp_path, "kcg/fleet/a.py", text)))) == 3
    assert list(imports_of_training(source(tmp_path, "kcg/training/b.py", text))) == []


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


@pytest.mark.parametrize(
    "text",
    [
        "from kcg.kernel.opts.schedule import Opt",
        "from kcg.kernel.opts.schedule import schedule_of as RAW",
        "import kcg.kernel.opts.schedule as s\nstart = s.RAW",
        "def f(ast, Opt=None): ...",
        "dict(opts_to_apply=())",
        "if op == 'UPCAST': pass",
        "class PADTO: ...",
        "match op:\n  case 'TC': ...",
    ],
)
def test_words_of_a_kind_are_found_outside_of_its_package(text: str, tmp_path: Path) -> None:
    for package, broken in (("search", 1), ("kernel", 0), ("compat", 0)):
        assert len(list(words_of_kinds(source(tmp_path, f"kcg/{package}/a.py", text)))) == broken


def test_prose_and_stored_names_may_say_the_words_of_a_kind(tmp_path: Path) -> None:
    text = '"""tinygrad\'s Opts: UPCAST or LOCAL."""\n# RAW\nrow.opts = "an UPCAST(0,4) before a LOCAL"'
    assert list(words_of_kinds(source(tmp_path, "kcg/search/a.py", text))) == []


@pytest.mark.parametrize(
    "text",
    [
        "if target.arch == name: pass",
        "number = int(of(target).arch[3:])",
        "def f(target): return target.model",
        "TABLE = {'sm_90a': 1}",
        "found = f'gfx942 {x}'",
    ],
)
def test_what_tells_gpus_apart_is_found_in_tile_programs(text: str, tmp_path: Path) -> None:
    for module, broken in (("kernel/tile/cost", 1), ("kernel/tile/device", 0), ("kernel/targets", 0)):
        assert len(list(asks_for_architectures(source(tmp_path, f"kcg/{module}.py", text)))) == broken
    prose = '"""As of sm_90."""\nLIMIT = 3\n"""Of gfx942."""\n# sm_80'
    assert list(asks_for_architectures(source(tmp_path, "kcg/kernel/tile/cost.py", prose))) == []


@pytest.mark.parametrize(
    "text",
    [
        "from kcg.kernel.tile.parameters import ROWS",
        "from kcg.kernel.tile.rows import RowReductions",
        "if p.form == 'rows': pass",
        "found = p.form not in ('rows', 'other')",
    ],
)
def test_who_asks_for_a_form_is_found(text: str, tmp_path: Path) -> None:
    forms = {"rows": ("kcg.kernel.tile.rows", "RowReductions")}
    for module, broken in (("legal", 1), ("rows", 0), ("parameters", 0)):
        assert (
            len(list(asks_for_forms(source(tmp_path, f"kcg/kernel/tile/{module}.py", text), forms, {"ROWS"}))) == broken
        )
    imports = "from kcg.kernel.tile.parameters import FORMS\nfrom kcg.kernel.tile.rows import row_axes\n"
    fine = imports + "key = (p.form, 'rows')"
    assert list(asks_for_forms(source(tmp_path, "kcg/kernel/tile/legal.py", fine), forms, {"ROWS"})) == []


@pytest.mark.parametrize(
    "text",
    [
        "def _write_tiles(plan, p: TileParameters): pass",
        "def stored(frame: Frame, plan):\n    return device_of(plan.target)",
        "def opened(lines: Lines | None, cores: Target): pass",
        "class Program:\n    def __init__(self, writer: Writer): pass\n    def head(self, target: Target): pass",
    ],
)
def test_what_is_decided_while_text_is_written_is_found(text: str, tmp_path: Path) -> None:
    for module, broken in (("kernel/tile/gemm", 1), ("kernel/source/kind", 0)):
        assert len(list(decides_while_writing(source(tmp_path, f"kcg/{module}.py", text)))) == broken
    fine = "def planned(p: TileParameters, target: Target): pass\ndef write(plan: TilePlan, writer: Writer): pass"
    assert list(decides_while_writing(source(tmp_path, "kcg/kernel/tile/gemm.py", fine))) == []


def test_imports_of_a_kind_are_found(tmp_path: Path) -> None:
    code = """
from kcg.kernel.tile import cost  # here
from kcg.kernel import parts  # here
import kcg.kernel.tile.kind  # here
from kcg.kernel.tiled import nothing
from kcg.kernel.kinds import kind_named
def f():
    from kcg.kernel.parts import PartsSpace  # here
"""
    kinds, here = {"tile": "kcg.kernel.tile.kind", "parts": "kcg.kernel.parts"}, []
    for package in ("search", "kernel/reading", "kernel"):
        found = imports_of_kinds(source(tmp_path, f"kcg/{package}/a.py", code), kinds)
        here.append([line.split(":")[1] for line in found])
    lines = [str(n) for n, line in enumerate(code.splitlines(), 1) if line.endswith("# here")]
    assert here == [lines, lines, []]


def test_wall_clocks_are_found(tmp_path: Path) -> None:
    code = "import time\nfrom time import time\nend = time.time() + 5\nend = time.monotonic()\n"
    assert [line.split()[0] for line in wall_clocks(source(tmp_path, "kcg/search/a.py", code))] == [
        "kcg.search.a:2",
        "kcg.search.a:3",
    ]
