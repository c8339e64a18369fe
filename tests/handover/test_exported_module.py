"""`export`: a result as one Python module, which a process without kcg imports."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kcg.compat import standalone
from kcg.compat.device import has_cuda
from kcg.errors import MismatchError, UsageError
from kcg.handover.choices import choices
from kcg.handover.export import PARTS, export, module_text
from kcg.handover.installing import plain_program
from kcg.kernel.codec import ast_of
from kcg.kernel.compile import compile_schedule
from kcg.kernel.program import Program, ProgramLaunch
from kcg.optimize.__main__ import main
from kcg.report.result import write_result
from kcg.types import LeftOut, RegionResult, Result
from tests.commands import ended, folders_of, python
from tests.slow import every, first
from tests.small_result import SCRIPTS
from tests.without_clang import stand_in

REPORT = """
import json, sys
sys.path += [FOLDER, SCRIPTS]
import tuned_model
from small_model import normalised, output, table
from tinygrad import TinyJit
from tinygrad.codegen import to_program_cache
values = [output().numpy()]
step = TinyJit(lambda a, b: normalised((a @ b).relu()).realize())
values += [step(table(32, 48).realize(), table(48, 64).realize()).numpy() for _ in range(4)]
(one,) = tuned_model.installed
counts = dict(one.counts)
tuned_model.uninstall()
values.append(output().numpy())
opts = [[[o.op.name, o.axis, o.arg] for o in p.src[0].arg.applied_opts] for p in to_program_cache.values()]
print(json.dumps({
    "kcg": [name for name in sys.modules if name.split(".")[0] in ("kcg", "triton")],
    "counts": counts, "after": dict(one.counts), "opts": opts,
    "error": max(float(abs(x - values[-1]).max()) for x in values),
}))
"""


def imported(module: Path, **settings: str) -> Any:
    """The report of a fresh process that finds no kcg and no clang."""
    code = REPORT.replace("FOLDER", repr(str(module.parent))).replace("SCRIPTS", repr(str(SCRIPTS)))
    settings = {"CACHEDB": str(module.parent / "cache.db"), "PARALLEL": "0", "DEV": "CPU:X86", **settings}
    return python("-c", code, PYTHONPATH=folders_of("tinygrad", "numpy"), **stand_in(module.parent), **settings)


def compiled(row: RegionResult, result: Result) -> standalone.Program:
    """The machine code of a kernel as it was chosen."""
    made = compile_schedule(row.region, row.chosen.schedule, result.target)
    program = Program((ProgramLaunch(made, made.slots),), 1 + max(made.slots))
    return plain_program(row.region, program, aligned=True)


def listed(result: Result) -> list[Any]:
    return [json.loads(row.chosen.schedule.body) for row in result.regions]


@pytest.mark.slow
def test_a_process_without_kcg_takes_the_opts(result: Result, stored: Path, tmp_path: Path) -> None:
    said = str(export(stored, tmp_path / "tuned_model.py"))
    assert "3 kernels: 0 as machine code, 2 with Opts that were found, 1 with tinygrad's own" in said
    done = imported(tmp_path / "tuned_model.py", BEAM="1", BEAM_UPCAST_MAX="1")  # it finds little else
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["kcg"] == [] and report["error"] < 1e-5
    assert all(opts in report["opts"] for opts in listed(result))


@pytest.mark.slow
def test_a_process_without_kcg_runs_the_machine_code(result: Result, tmp_path: Path) -> None:
    first, *_ = result.regions
    text = module_text(result, choices(result)[0], {first.region: compiled(first, result)})
    (tmp_path / "tuned_model.py").write_text(text)
    done = imported(tmp_path / "tuned_model.py")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    key = ast_of(first.region.kernel).key.hex()[:12]
    assert report["kcg"] == [] and report["error"] < 1e-5
    assert report["counts"] == report["after"] == {f"{key} replaced": 3}, "eagerly, before the capture, captured"


def test_it_needs_no_more_than_the_folders_of_tinygrad_and_numpy(stored: Path, tmp_path: Path) -> None:
    """Which may be installed where only a PYTHONPATH names them: `-S` leaves the usual folder out."""
    export(stored, tmp_path / "tuned_model.py")
    code = "import numpy, tuned_model, sys; assert not {'kcg', 'triton'} & {m.split('.')[0] for m in sys.modules}"
    settings = {"PYTHONPATH": folders_of("tinygrad", "numpy"), "DEV": "CPU:X86", **stand_in(tmp_path)}
    assert "No module named" in python("-S", "-c", "import tinygrad", **{**settings, "PYTHONPATH": ""}).stderr
    done = python("-S", "-c", code, cwd=tmp_path, **settings)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("dev", first(1, ["", "CPU:X86", "CPU"]))
def test_it_opens_the_cpu_as_kcg_does_where_there_is_no_clang(dev: str, stored: Path, tmp_path: Path) -> None:
    """Plain tinygrad does not open it there: it compiles helpers that no kernel needs."""
    if not dev and has_cuda():
        pytest.skip("the default device of this machine is a GPU")
    export(stored, tmp_path / "tuned_model.py")
    settings = {"CC": "", "PATH": str(tmp_path), "CACHEDB": str(tmp_path / "cache.db"), "DEV": dev}
    settings["PYTHONPATH"] = folders_of("tinygrad", "numpy")
    compute = "from tinygrad import Tensor; print((Tensor([1.0, 2.0]) + 1).tolist())"
    assert python("-c", compute, cwd=tmp_path, **settings).returncode != 0, "plain tinygrad"
    done = python("-c", f"import tuned_model; {compute}", cwd=tmp_path, **settings)
    assert (done.returncode, done.stdout) == (0, "[2.0, 3.0]\n"), done.stderr


def test_a_clang_that_only_kcg_finds_is_named(result: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module of a result for clang needs one; that of the assembler opens the CPU without."""
    monkeypatch.setattr("kcg.handover.export.missing_clang", lambda target: "/cache/kcg/clang")
    for renderer, named in (("CLANG", True), ("X86", False)):
        write_result(replace(result, target=replace(result.target, renderer=renderer)), tmp_path / "RESULT.json")
        said = str(export(tmp_path / "RESULT.json", tmp_path / "tuned_model.py"))
        assert (
            "note: plain tinygrad opens the CPU only where it finds clang: export CC=/cache/kcg/clang" in said
        ) is named


LOADED = """
import importlib, importlib.util, json, runpy, shutil, sys, zipfile
from pathlib import Path
sys.path.append(SCRIPTS)
from small_model import output
folder = Path(FOLDER)
file, source = folder / "tuned_model.py", (folder / "tuned_model.py").read_text()

def without_sys_modules():
    spec = importlib.util.spec_from_file_location("no name of a module", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return vars(module)

def executed(**names):
    exec(compile(source, "somewhere", "exec"), names)
    return names

def from_a_zip():
    with zipfile.ZipFile(folder / "packed.zip", "w") as packed:
        packed.write(file, "packed_model.py")
    sys.path.insert(0, str(folder / "packed.zip"))
    return vars(importlib.import_module("packed_model"))

def a_copy():
    shutil.copy(file, folder / "copied_model.py")
    sys.path.insert(0, str(folder))
    return vars(importlib.import_module("copied_model"))

def again():
    return vars(importlib.reload(importlib.import_module("tuned_model")))

plain, before = output().numpy(), set(sys.modules)
ways = {
    "without sys.modules": without_sys_modules, "as a path": lambda: runpy.run_path(str(file)),
    "executed": executed, "executed under a name": lambda: executed(__name__="tuned.model"),
    "executed as main": lambda: executed(__name__="__main__"), "from a zip": from_a_zip, "a copy": a_copy,
    "again": again,
}
counts, loaded = {}, []
for name, way in ways.items():
    for many in (1, 2):  # the second time beside the first one
        loaded.append(way())
        assert abs(output().numpy() - plain).max() < 1e-5
        each = {id(one): one for names in loaded for one in names["installed"]}  # an import gives what is there
        counts[f"{name}, {many}"] = sum(sum(one.counts.values()) for one in each.values())
    for names in loaded:  # the first one first
        names["uninstall"]()
    loaded.clear()
    assert abs(output().numpy() - plain).max() == 0
print(json.dumps([counts, sorted(set(sys.modules) - before)]))
"""


@pytest.mark.slow
def test_however_it_is_loaded_it_is_in_place_until_it_is_taken_out(result: Result, tmp_path: Path) -> None:
    first, *_ = result.regions
    text = module_text(result, choices(result)[0], {first.region: compiled(first, result)})
    (tmp_path / "tuned_model.py").write_text(text)
    script = LOADED.replace("FOLDER", repr(str(tmp_path))).replace("SCRIPTS", repr(str(SCRIPTS)))
    settings = {"CACHEDB": str(tmp_path / "cache.db"), "PARALLEL": "0", "DEV": "CPU:X86"}
    done = python("-c", script, PYTHONPATH=folders_of("tinygrad", "numpy"), **stand_in(tmp_path), **settings)
    assert done.returncode == 0, done.stderr
    counts, modules = json.loads(done.stdout)
    assert len(counts) == 16
    assert counts == {name: int(name[-1]) for name in counts}, "once for each run, whoever of two takes it"
    assert {"packed_model", "copied_model", "tuned_model"} <= set(modules) and "no name of a module" not in modules


def test_the_module_reads_as_it_is_written_in_kcg(stored: Path, tmp_path: Path) -> None:
    export(stored, tmp_path / "tuned_model.py")
    text = (tmp_path / "tuned_model.py").read_text()
    code, _, data = text.partition("\n\n\n# ---- the data: ")
    assert data.endswith("\n)\n\ninstall(FOUND)\n")
    for part in PARTS:
        whole = Path(standalone.__file__).with_name(f"{part}.py").read_text()
        docstring, body = whole.partition("from __future__ import annotations\n")[::2]
        kept = re.sub(r"^from kcg\.[^(\n]*(\([^)]*\))?\n", "", body, flags=re.MULTILINE)
        assert kept.strip() in code and kept.count("\n") > 0.9 * body.count("\n")
    assert code.startswith(docstring), "of the last one, which says what it does"


@pytest.mark.parametrize(
    ("change", "line"),
    every(
        3,
        [
            (lambda r: replace(r, target=replace(r.target, model="a 'GPU'\n1 / 0")), r"ImportError: model: made for"),
            (lambda r: replace(r, target=replace(r.target, device="CUDA")), r"ImportError: device: made for 'CUDA'"),
            (
                lambda r: replace(r, toolchain=replace(r.toolchain, driver="1.2")),
                r"ImportError: driver: made with '1.2'",
            ),
            (
                lambda r: replace(r, toolchain=replace(r.toolchain, tinygrad="0.13.0")),
                r"ImportError: tinygrad: made with",
            ),
        ],
    ),
)
def test_elsewhere_the_module_is_refused_in_a_line(
    change: Callable[[Result], Result], line: str, result: Result, tmp_path: Path
) -> None:
    (tmp_path / "tuned_model.py").write_text(module_text(change(result), choices(result)[0], {}))
    done = imported(tmp_path / "tuned_model.py")
    assert done.returncode == 1 and done.stderr.splitlines()[-1].startswith(line)


def test_a_damaged_module_and_one_for_another_tinygrad_are_refused_in_a_line(result: Result, tmp_path: Path) -> None:
    first, *_ = result.regions
    text = module_text(result, choices(result)[0], {first.region: compiled(first, result)})
    before, packed = re.split(r'Launch\(unpacked\(\n +"', text, maxsplit=1)
    assert packed
    for cut in (packed[3:], "@" + packed[1:]):  # another length, and what is no base 64
        (tmp_path / "tuned_model.py").write_text(f'{before}Launch(unpacked(\n"{cut}')
        done = imported(tmp_path / "tuned_model.py")
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1].startswith("ImportError: its machine code is damaged: ")
    (tmp_path / "tuned_model.py").write_text(text)
    (tmp_path / "tinygrad").mkdir()
    (tmp_path / "tinygrad" / "__init__.py").touch()
    done = python("-c", "import tuned_model", PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("ImportError: tinygrad: this needs the version that is named at ")


def test_what_is_there_is_replaced_by_another_export_only(stored: Path, tmp_path: Path) -> None:
    path = tmp_path / "tuned_model.py"
    path.write_text("print('years of work')\n")
    with pytest.raises(UsageError, match="is no exported module"):
        export(stored, path)
    assert path.read_text() == "print('years of work')\n"
    path.unlink()
    export(stored, path)
    made = path.read_text()
    path.write_text(made + "\n")
    export(stored, path)
    assert path.read_text() == made


def test_what_cannot_be_exported_is_said(result: Result, stored: Path, tmp_path: Path) -> None:
    for name in ("tuned", "tuned-model.py", "1.py", "class.py"):
        with pytest.raises(UsageError, match="cannot be imported"):
            export(stored, tmp_path / name)
    for name in ("tinygrad.py", "kcg.py", "json.py"):
        with pytest.raises(UsageError, match="would be imported instead of"):
            export(stored, tmp_path / name)
    with pytest.raises(UsageError, match=r"there is no file of kernels nowhere\.py"):
        export(stored, tmp_path / "tuned_model.py", kernels=[Path("nowhere.py")])
    write_result(replace(result, toolchain=replace(result.toolchain, tinygrad="0.13.0")), stored)
    with pytest.raises(MismatchError, match="tinygrad"):
        export(stored, tmp_path / "tuned_model.py")
    nothing = tuple(replace(row, chosen=row.baseline) for row in result.regions)
    write_result(replace(result, regions=nothing), stored)
    with pytest.raises(UsageError, match="nothing to export"):
        export(stored, tmp_path / "tuned_model.py")
    assert not (tmp_path / "tuned_model.py").exists()


def test_what_a_module_lacks_is_said_by_count_and_reason(result: Result, stored: Path, tmp_path: Path) -> None:
    *others, first, second = result.regions
    wrong, unsure = replace(first, outcome="quarantined"), replace(second, outcome="unjudged")
    left = LeftOut("it is scheduled by its author", 2, 5, ("own",), True)
    write_result(replace(result, regions=(*others, wrong, unsure), left_out=(left,)), stored)
    *_, one, two, three, _use = str(export(stored, tmp_path / "tuned_model.py")).splitlines()
    assert one == "note: kernels that are unjudged have tinygrad's own schedule: 1"
    assert two == "note: kernels that are wrong or fail as they are have tinygrad's own schedule: 1"
    assert three == "note: 5 executions of 2 kernels (own, 1 more) are left out: it is scheduled by its author"


def test_a_folder_that_is_made_is_said(stored: Path, tmp_path: Path) -> None:
    """As `--report` of a run, the folder of the module need not be there."""
    path = tmp_path / "some" / "where" / "tuned_model.py"
    assert f"note: the folder {path.parent} was not there and was made" in str(export(stored, path))
    assert path.exists() and "was made" not in str(export(stored, path))
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"^cannot write .*: choose a folder that can be written$"):
        export(stored, tmp_path / "file" / "tuned_model.py")


def test_the_command(stored: Path, tmp_path: Path) -> None:
    path = tmp_path / "tuned_model.py"
    done = ended(main, "export", stored, "--python", path)
    assert done.returncode == 0 and path.exists(), done.stderr
    assert "use:  import tuned_model" in done.stdout
    done = ended(main, "export", stored)
    assert done.returncode == 2 and done.stderr.startswith("kcg: Missing option '--python'")
