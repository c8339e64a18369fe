"""The promise of running other people's programs: each sees what it would see under plain Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from markupsafe import escape

from kcg.dataset.journal import Journal
from kcg.errors import ExitCode, ScriptError, UsageError
from kcg.optimize.__main__ import main as optimize
from kcg.optimize.settings import Settings
from kcg.report.result import read_result
from kcg.workloads.script import Form, Late, Program, capture_program, check_program, program_of
from tests.commands import ended, python
from tests.waiting import PATIENCE_S

SCRIPTS = Path(__file__).parents[1] / "scripts"
DEV = os.environ["DEV"]

SEEN = """
import json, sys, __main__
names = ("__name__", "__file__", "__package__", "__cached__", "__doc__")
seen = {name: repr(globals().get(name, "absent")) for name in names}
seen["loader"] = type(__loader__).__name__ if not isinstance(__loader__, type) else __loader__.__name__
seen["spec"] = repr(__spec__ and (__spec__.name, __spec__.origin, __spec__.parent))
seen["same"] = __main__.__dict__ is globals()
seen["builtins"] = type(__builtins__).__name__
seen |= {"argv": sys.argv, "path": sys.path[0], "orig_argv": sys.orig_argv[1:]}
seen["aliases"] = sorted(name for name, module in sys.modules.items() if module is __main__)
if WORKS:
    import os
    if "CAPTURED" in os.environ:  # plain Python shows it without
        from tinygrad import Tensor
        (Tensor([1.0, 2.0]).clone().realize() * 2).sum().item()
    import multiprocessing
    seen["late"] = sys.modules["__mp_main__"] is __main__
    print(json.dumps(seen), file=open(OUT, "w"))
"""


ROOT = Path(__file__).parents[2]
SHOWN = "from kcg.workloads.script import Form, Program, run_as_main; run_as_main(Program(Form.SCRIPT, {!r}, ()))"


@pytest.mark.parametrize("is_installed", [False, True])
def test_processes_of_a_script_find_a_kcg_that_is_not_installed(is_installed: bool, tmp_path: Path) -> None:
    """One that is the working folder's, which a script's own folder takes the place of."""
    script = tmp_path / "script.py"
    script.write_text("import json, sys; print(json.dumps(sys.path))")
    path = str(ROOT) if is_installed else ""
    found = python("-c", SHOWN.format(str(script)), cwd=ROOT, PYTHONPATH=path)
    assert found.returncode == 0, found.stderr
    shown = json.loads(found.stdout)
    assert shown[0] == str(tmp_path) and shown.count(str(ROOT)) == 1


WAYS = (["folder/../script.py", "a", "--b"], ["-m", "folder", "-m"], ["-c", "TEXT", "a", "-c"])
MORE_WAYS = (["script.py", "a"], ["FOLDER/folder/script.py"], ["-m", "script", "a"], ["-m", "folder.script"])


@pytest.mark.slow
@pytest.mark.parametrize("ways", [WAYS, pytest.param(MORE_WAYS, marks=pytest.mark.slow)], ids=["some", "more"])
def test_a_program_sees_of_itself_what_plain_python_shows(
    ways: tuple[list[str], ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "seen.json"
    text = SEEN.replace("WORKS", "True").replace("OUT", repr(str(out)))
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "__init__.py").touch()
    for name in ("script.py", "folder/script.py", "folder/__main__.py"):
        (tmp_path / name).write_text(text)
    for words in ([word.replace("FOLDER", str(tmp_path)).replace("TEXT", text) for word in way] for way in ways):
        with monkeypatch.context() as here:
            here.setenv("CAPTURED", "1")
            captured = capture_program(program_of(words), dev=DEV)
        assert captured.lines == () and captured.workload.calls
        ours = json.loads(out.read_text())
        settings = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        subprocess.run([sys.executable, *words], check=True, env=settings, timeout=PATIENCE_S)
        assert ours == json.loads(out.read_text()), words


@pytest.mark.parametrize(
    ("how", "method"),
    [
        ("pool", "spawn"),
        pytest.param("pool", "forkserver", marks=pytest.mark.slow),
        pytest.param("executor", "spawn", marks=pytest.mark.slow),
    ],
)
def test_workers_return_objects_of_the_scripts_own_classes(
    how: str, method: str, capfd: pytest.CaptureFixture[str]
) -> None:
    captured = capture_program(Program(Form.SCRIPT, str(SCRIPTS / "worker_classes.py"), (how, method)), dev=DEV)
    assert "sum 12.0" in capfd.readouterr().err
    assert len(captured.workload.calls) == 1


@pytest.mark.slow
def test_modules_and_packages_run_with_their_relative_imports_and_their_workers(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(SCRIPTS)
    package = capture_program(Program(Form.MODULE, "package"), dev=DEV)
    module = capture_program(Program(Form.MODULE, "package.inner.train", ("--lr", "3")), dev=DEV)
    lines = capfd.readouterr().err
    path = SCRIPTS / "package" / "inner" / "train.py"
    assert f"__main__ package.inner package.inner.train {path} --lr 3\n" in lines
    assert "[Batch(numbers=[0, 1])]" in lines and lines.count("batches 12.0") == 2
    assert (package.workload.name, module.workload.name) == ("script:package", "script:package.inner.train")
    assert module.workload.preset == "--lr 3"
    assert [c.region for c in package.workload.calls] == [c.region for c in module.workload.calls]


@pytest.mark.slow
@pytest.mark.parametrize("words", [("--", "-c"), ("-c",)])
def test_code_is_captured_under_a_name_of_its_own(words: tuple[str, ...], tmp_path: Path) -> None:
    code = (
        "import sys; from tinygrad import Tensor\n"
        "print(sys.argv, (Tensor([1.0, 2.0]).clone().realize() * 2).sum().item())"
    )
    command = ["-m", "kcg.dataset", "capture", "--out", tmp_path / "c.sqlite", *words, code]
    done = python(*command, *(["7"] if words[0] == "--" else ["--", "7"]))
    assert done.returncode == ExitCode.OK and "['-c', '7'] 6.0" in done.stderr, done.stderr
    with Journal.open(tmp_path / "c.sqlite", create=False) as journal:
        (workload,) = journal.workloads()
    assert workload.name == f"script:{program_of(['-c', code]).name}" and workload.preset == "7"


@pytest.mark.slow
def test_a_program_that_runs_longer_than_it_should_is_reported_and_waited_for(tmp_path: Path) -> None:
    script, lines = tmp_path / "s.py", list[str]()
    script.write_text("from tinygrad import Tensor\nTensor.ones(4).contiguous().realize()\n")
    for after_s in (0.0, 300.0):
        late = Late(after_s, lambda: lines.append("late"))
        captured = capture_program(Program(Form.SCRIPT, str(script)), dev=DEV, late=late)
        assert captured.workload.calls and lines == ["late"], "said once, of the first"


@pytest.mark.slow
def test_what_python_could_not_start_is_one_line_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for words, says in (
        (["absent.py"], "there is no script absent.py"),
        (["folder"], "folder is a folder: give a script in it, or run it as a package with -m"),
        (["n b.ipynb"], "jupyter nbconvert --to script 'n b.ipynb'` and give n b.py instead"),
        (["-m", "folder/train.py"], "-m takes the name of a module, such as folder.train"),
        (["-m", "folder..train"], "is no name of a module"),
        (["-m"], "-m needs the name of a module after it"),
        (["-c"], "-c needs the code after it"),
    ):
        with pytest.raises(UsageError) as caught:
            check_program(program_of(words))
        assert says in str(caught.value) and "\n" not in str(caught.value)
    for name in ("absent", "absent.train", "folder.train", "folder", "json.absent"):
        with pytest.raises(UsageError, match=f"there is no module {name} to run with -m"):
            capture_program(Program(Form.MODULE, name), dev=DEV)


def test_a_relative_import_of_a_script_names_the_module_to_run(capfd: pytest.CaptureFixture[str]) -> None:
    script = SCRIPTS / "package" / "inner" / "train.py"
    with pytest.raises(ScriptError) as caught:
        capture_program(Program(Form.SCRIPT, str(script)), dev=DEV)
    assert "attempted relative import" in str(caught.value)
    assert str(caught.value).endswith(f"; run it as -m package.inner.train in {SCRIPTS}")


@pytest.mark.parametrize(("text", "line"), [("x = 1\ny = = 2\n", 2), ("def f():\nreturn 1\n", 2)])
def test_a_syntax_error_names_its_line(text: str, line: int, tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text(text)
    with pytest.raises(ScriptError, match=rf"raised \w+Error: .*\({tmp_path}/s\.py, line {line}\), before it ran"):
        capture_program(Program(Form.SCRIPT, str(tmp_path / "s.py")), dev=DEV)


def test_an_optimisation_knows_a_program_by_its_form(tmp_path: Path) -> None:
    assert Settings("flux").program is None
    assert Settings("a/train.py", script_args=("1",)).program == Program(Form.SCRIPT, "a/train.py", ("1",))
    assert Settings("pkg.mod", form=Form.MODULE).program == Program(Form.MODULE, "pkg.mod")
    (tmp_path / "train").touch()
    assert Settings(str(tmp_path / "train")).program == Program(Form.SCRIPT, str(tmp_path / "train"))
    assert Settings(str(tmp_path / "absent")).program == Program(Form.SCRIPT, str(tmp_path / "absent"))
    assert Settings("absent").program is None


@pytest.mark.slow
def test_optimize_takes_a_module_and_code_as_python_does() -> None:
    def plan(*words: str) -> dict[str, object]:
        done = python("-m", "kcg.optimize", "--dry-run", "--json", *words, cwd=SCRIPTS)
        assert done.returncode == ExitCode.OK, done.stderr
        return dict(json.loads(done.stdout))

    module = plan("-m", "package", "--", "a b")
    assert (module["workload"], module["preset"]) == ("script:package", "'a b'")
    assert module["folder"] == "kcg-out/package" and not (SCRIPTS / "kcg-out").exists()
    code = plan("-c", "from package.work import batches; batches()")
    assert str(code["workload"]).startswith("script:code-")
    assert [k["id"] for k in code["kernels"]] == [k["id"] for k in module["kernels"]]  # type: ignore[union-attr, attr-defined]
    done = ended(optimize, "flux", "-m", "package")
    assert done.returncode == ExitCode.USAGE and "flux and -m: choose one" in done.stderr


@pytest.mark.slow
def test_an_optimisation_goes_on_with_what_a_failing_program_ran_and_names_what_it_leaves_out(tmp_path: Path) -> None:
    script, folder = tmp_path / "failing.py", tmp_path / "out"
    text = f"import sys; sys.path.append({str(SCRIPTS)!r})\nimport hand_written\nassert False, 'no more'\n"
    script.write_text(text)
    done = python("-m", "kcg.optimize", script, "--measurements", "0", "--report", folder)
    assert done.returncode in (ExitCode.OK, ExitCode.NOTHING_IMPROVED), done.stderr
    result = read_result(folder / "RESULT.json")
    ended = f"{script} raised AssertionError: no more ({script}, line 3): what it ran before is recorded"
    assert ended in result.warnings
    assert [(left.kernels, left.executions, left.names) for left in result.left_out] == [
        (1, 2, ("fixed_sums",)),
        (1, 1, ("E_4_4",)),
    ]
    assert {name for _, (name, _) in result.seen_as} == {"doubled"}
    page, printed = (folder / "report.html").read_text(), "".join(done.stdout.split())
    for line in (ended, *map(str, result.left_out)):
        assert f"kcg: {line}" in done.stderr and "".join(line.split()) in printed and str(escape(line)) in page


def test_a_program_with_a_tinygrad_of_its_own_is_refused(tmp_path: Path) -> None:
    """In its folder, as in a clone of tinygrad: what kcg knows of the installed one does not hold for it."""
    (tmp_path / "tinygrad").mkdir()
    (tmp_path / "tinygrad" / "__init__.py").touch()
    (tmp_path / "script.py").write_text("import tinygrad")
    with pytest.raises(UsageError, match=rf"imports another tinygrad .*, in {tmp_path}/tinygrad: run it where Python"):
        capture_program(Program(Form.SCRIPT, str(tmp_path / "script.py")), dev=DEV)
    asked = python("-c", "from kcg.compat.versions import *; print(tinygrad_version())", cwd=tmp_path)
    assert asked.stdout == f"another one, in {tmp_path}/tinygrad\n", "so no result is for it"
