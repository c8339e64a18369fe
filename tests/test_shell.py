"""Every line that kcg prints to be copied works in a shell, whatever the folders are called that it names."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from typer.testing import CliRunner

from kcg import __main__ as whole
from kcg.cli import command_text
from kcg.commands import command_name
from kcg.errors import UsageError
from kcg.fleet.__main__ import app as fleet
from kcg.fleet.scheduler import how_to_join
from kcg.handover.apply import Applied, _notes
from kcg.optimize.console import print_result
from kcg.report.next_steps import next_steps, resumed, with_option
from kcg.shell import command, setting, word
from kcg.types import Result, ScheduleKind
from kcg.workloads.script import Form, Program, check_program, workload_name
from tests.commands import python
from tests.sample_result import sample_plan, sample_result

ODD = 'a b\'s "c" $HOME `id` é;&|*?[z](y)#!~<>\\ {1,2}'
"""A folder's name with all that a shell might take for something else."""
DASHED = f"-{ODD}"  # and which a command would take for an option

Words = list[str]


@pytest.fixture
def run(tmp_path: Path) -> Callable[[str], Words]:
    """Runs a line in `sh` where every command only says what it was given, settings first."""
    stub = f"""#!{sys.executable}
import json, os, sys
settings = [f"{{name}}={{os.environ[name]}}" for name in ("CC", "CACHEDB", "DEV", "BEAM") if name in os.environ]
print(json.dumps([*settings, os.path.basename(sys.argv[0]), *sys.argv[1:]]))
"""
    for name in ("kcg", "python", "scp", "jupyter", "env"):
        (tmp_path / "bin" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text(stub)
        (tmp_path / "bin" / name).chmod(0o755)

    def in_shell(line: str) -> Words:
        settings = {"PATH": str(tmp_path / "bin"), "HOME": "/home of somebody", "LC_ALL": "C.UTF-8"}
        done = subprocess.run(
            ["/bin/sh", "-c", line], env=settings, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.returncode, done.stderr) == (0, ""), (line, done.stderr)
        return list(json.loads(done.stdout))

    return in_shell


def of_program(result: Result, program: Program, *, report: str) -> Result:
    typed = command_of("kcg optimize", *program.command[:1], "--report", report, "--", *program.arguments)
    return replace(result, workload=workload_name(program), preset=command_of("", *program.arguments), command=typed)


def command_of(name: str, *words: str) -> str:
    return command(name, *words).strip()


def test_words_come_back_from_a_shell_as_they_were(run: Callable[[str], Words]) -> None:
    texts = [ODD, DASHED, "", "'", '"', "$(id)", "plain", "a\\", "~", "x=y", "é" * 3]
    assert run(command("kcg optimize", *texts)) == ["kcg", "optimize", *texts]
    assert run(command("kcg", Path(DASHED) / "x", Path(ODD))) == ["kcg", f"./{DASHED}/x", ODD]
    assert run(f"{setting('CC', ODD)} kcg") == [f"CC={ODD}", "kcg"]
    assert run(f"export {setting('CC', DASHED)}; kcg") == [f"CC={DASHED}", "kcg"]
    assert word("kcg-out/flux/RESULT.json") == "kcg-out/flux/RESULT.json"


@pytest.mark.parametrize("made", [sample_result, sample_plan])
@pytest.mark.parametrize("folder", [ODD, DASHED])
def test_the_next_steps_of_a_run(run: Callable[[str], Words], folder: str, made: Callable[[], Result]) -> None:
    program = Program(Form.SCRIPT, f"{ODD}/my prog.py", ("--name", ODD, "-x"))
    result = of_program(made(), program, report=folder)
    path = Path(folder) / "RESULT.json"
    given = f"./{path}" if folder == DASHED else str(path)
    own = [*program.command]
    expected = {
        "run": ["kcg", "run", "--result", given, *own],
        "apply": ["kcg", "apply", given, "--beam", "2"],
        "export": ["kcg", "export", given, "--python", "tuned_my_prog.py"],
        "DEV=CUDA": ["DEV=CUDA", "BEAM=2", "python", *own],
    }
    steps = next_steps(result, path)
    assert len(steps) >= 3
    for step in steps:
        words = run(step.command)
        assert words == expected[words[1] if words[0] == "kcg" else words[0]]


def test_the_next_steps_are_printed_whole(run: Callable[[str], Words]) -> None:
    import io

    from rich.console import Console

    stream = io.StringIO()
    path = Path(ODD * 3) / "RESULT.json"
    print_result(sample_result(), Console(file=stream, width=80, highlight=False), files=(path, path))
    lines = stream.getvalue().partition("next:\n")[2].splitlines()
    assert len(lines) == 3
    assert run(lines[0].strip()) == ["kcg", "apply", str(path), "--beam", "2"]


def test_a_run_goes_on_as_it_was_typed(run: Callable[[str], Words]) -> None:
    typed = ["--report", DASHED, f"{ODD}.py", "--budget", "5s", "--", "-x", ODD]
    with mock.patch.object(sys, "argv", ["kcg", *typed]):
        text = command_text("optimize")
        assert run(command_text("training.train"))[:3] == ["python", "-m", "training.train"]
    assert run(text) == ["python", "-m", "kcg.optimize", *typed]
    before, after = typed[:5], typed[5:]
    assert run(resumed(text)) == ["python", "-m", "kcg.optimize", *before, "--resume", *after]
    longer = [word for word in before if word not in ("--budget", "5s")]
    assert run(with_option(text, "--budget", "9s"))[3:] == [*longer, "--budget", "9s", *after]


@pytest.mark.parametrize("own_cache", [True, False])
def test_what_apply_says(run: Callable[[str], Words], own_cache: bool, tmp_path: Path) -> None:
    cache, clang = tmp_path / ODD / "cache.db", f"/opt/{ODD}/clang"
    applied = Applied(cache, (2, 4), 3, 2, 3, 0, "CPU", own_cache=own_cache, clang=clang)
    lines = dict(line.split(": ", 1) for line in str(applied).splitlines() if line.startswith(("use", "undo")))
    settings = [f"CC={clang}", *([] if own_cache else [f"CACHEDB={cache}"]), "DEV=CPU", "BEAM=2"]
    assert run(lines["use"].strip()) == [*settings, "python", "your_program.py"]
    where = [] if own_cache else ["--cachedb", str(cache)]
    assert run(lines["undo"]) == ["kcg", "apply", "--undo", *where]
    assert run(replace(applied, cache_db=Path(DASHED), own_cache=False).undo_command)[-1] == f"./{DASHED}"


def test_where_plain_tinygrad_finds_clang(run: Callable[[str], Words]) -> None:
    clang = f"/opt/{ODD}/clang"
    result = sample_result()
    notes = _notes(result, result.toolchain, [], 0, clang)
    (export,) = (line[line.index("export ") :] for line in notes if "export CC=" in line)
    assert run(f"{export}; kcg") == [f"CC={clang}", "kcg"]


def test_the_clang_that_the_doctor_names_compiles_after_its_line_was_copied(tmp_path: Path) -> None:
    """That of the wheel `ziglang`, of which kcg keeps a script in the user's cache."""
    pytest.importorskip("ziglang")
    caches = tmp_path / ODD
    code = "from kcg.doctor import _compilers; print(*(one.advice for one in _compilers()), sep='\\n')"
    done = python("-c", code, XDG_CACHE_HOME=str(caches), PATH="", CC="")
    line = next(line for line in done.stdout.splitlines() if "export CC=" in line)
    export = line[line.index("export ") :]
    settings = {**os.environ, "CC": ""}
    said = subprocess.run(
        ["/bin/sh", "-c", f'{export}; "$CC" --version; printf %s "$CC"'],
        env=settings, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert "clang" in said.stdout and said.stdout.splitlines()[-1].startswith(f"{caches}/kcg/clang-")


def test_a_notebook_is_exported(run: Callable[[str], Words], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (f"{ODD}.ipynb", f"{DASHED}.ipynb"):
        with pytest.raises(UsageError) as caught:
            check_program(Program(Form.SCRIPT, name))
        line = re.search(r"export it with `(.*)` and give", str(caught.value))
        assert line is not None
        given = f"./{name}" if name.startswith("-") else name
        assert run(line[1]) == ["jupyter", "nbconvert", "--to", "script", given]


def test_a_script_without_a_command(run: Callable[[str], Words]) -> None:
    line = str(whole._unknown(f"{ODD}.py")).partition(": write ")[2]
    assert run(line) == [*command_name("optimize").split(), f"{ODD}.py"]


def test_the_lines_of_a_fleet(run: Callable[[str], Words], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = "tls://[fe80::1]:8786"
    line = how_to_join(address)
    assert run(line) == ["kcg", "fleet", "worker", address]
    assert run(f"kcg optimize {line.partition('a driver takes ')[2]}") == ["kcg", "optimize", "--fleet", address]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / ODD))
    done = CliRunner().invoke(fleet, ["certificates", "--", f"./{DASHED}"])
    assert done.exit_code == 0, done.output
    program, option, source, target = run(done.stdout[done.stdout.index("scp -rp") :].splitlines()[0])
    assert (program, option) == ("scp", "-rp")
    assert Path(source).is_absolute() and (tmp_path / DASHED) in Path(source).parents and target.startswith("HOST:")


def test_a_plan_has_tile_programs_so_that_all_next_steps_are_walked() -> None:
    assert any(row.chosen.schedule.kind != ScheduleKind.OPTS for row in sample_plan().deployed)
