"""`kcg COMMAND`: every command is there, says how it was typed, is completed, and loads nothing before it runs."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from kcg import __version__, commands, shell
from kcg.__main__ import COMPLETE, app, main
from kcg.cli import command_text, pip_install
from kcg.commands import COMMANDS, command_name, start_as, typed
from kcg.errors import ExitCode
from kcg.optimize import __main__ as optimize
from kcg.report.next_steps import next_steps, resumed
from kcg.report.result import write_result
from kcg.shell import interpreter_here, script_here
from kcg.workloads.flux import build
from kcg.workloads.registry import WORKLOADS, named_preset, spec_of
from tests.commands import Ended, ended, python
from tests.rules import HEAVY, ROOT, loaded_by
from tests.sample_result import sample_result

pytestmark = pytest.mark.usefixtures("as_typed")


@pytest.fixture
def as_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one test types is not what the next was started as."""
    monkeypatch.setattr(commands, "_started", [])


def paths(command: Any, *path: str) -> list[tuple[tuple[str, ...], Any]]:
    """Every command with the words that name it, the outermost first."""
    found = [(path, command)]
    for name in command.list_commands(None) if hasattr(command, "list_commands") else []:
        found += paths(command.get_command(None, name), *path, name)
    return found


EVERY = {" ".join(path): command for path, command in paths(get_command(app))}


def kcg(line: str) -> Ended:
    """`kcg` with the words of a line."""
    return ended(main, *shlex.split(line))


@pytest.mark.parametrize("path", EVERY)
def test_the_help_of_every_command_is_of_one_style(path: str) -> None:
    for option in ("-h", "--help"):
        done = kcg(f"{path} {option}")
        assert done.returncode == ExitCode.OK and not done.stderr
    assert done.stdout.startswith(f"Usage: kcg {path}".strip() + " [OPTIONS]")
    assert "  -h, --help" in done.stdout
    (examples,) = done.stdout.split("  Examples:\n")[1:]
    assert all(line.startswith("    kcg ") for line in examples.splitlines())
    assert max(map(len, done.stdout.splitlines())) <= 90
    about = EVERY[path].help
    assert about and about.splitlines()[0].endswith((".", ":", ",", "and")) and about[0].isupper()
    for parameter in EVERY[path].params:
        flag = getattr(parameter, "is_flag", False)
        assert flag or parameter.metavar, f"{parameter.name} has no metavar"
        assert parameter.help, f"{parameter.name} has no help"
        if parameter.opts == [f"--{parameter.name}"]:  # typer 0.27 then takes the metavar for the option
            assert flag or parameter.metavar != parameter.name.upper(), f"typer 0.27 has no --{parameter.name}"


def test_every_command_is_in_the_help_in_a_line_and_exists_as_a_module() -> None:
    lines = kcg("--help").stdout.splitlines()
    for name, command in COMMANDS.items():
        assert f"{name:11}{command.about}" in [line.strip() for line in lines]
        assert find_spec(command.by_module) is not None
    assert {"optimize", "run", "apply", "export", "list", "dataset", "predictor", "doctor"} <= COMMANDS.keys()


@pytest.mark.parametrize("group", ["dataset", "fleet", "predictor", "store"])
def test_the_help_of_a_group_says_in_whole_what_each_command_is_for(group: str) -> None:
    """The first sentence of each fits into a line of 80 characters."""
    (listed,) = kcg(f"{group} --help").stdout.split("Commands:\n")[1:]
    lines = listed.split("\n\n")[0].splitlines()
    assert len(lines) == len(EVERY[group].list_commands(None)) and all(line.endswith(".") for line in lines)
    assert "..." not in listed


def test_no_command_shows_the_help_and_the_version_is_that_of_the_package() -> None:
    done = kcg("")
    assert done.returncode == ExitCode.USAGE and done.stderr.startswith("Usage: kcg [OPTIONS] COMMAND")
    assert kcg("--version").stdout == f"kcg {__version__}\n"


def test_the_overview_loads_no_command() -> None:
    for option in ("--help", "--version"):
        assert loaded_by("-m", "kcg", option) & (HEAVY | {"rich"}) == set()


# ---- how a command was typed ----


def test_a_command_is_recorded_and_resumed_as_it_was_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(optimize, "run", lambda settings, **_: seen.append(settings) or ExitCode.OK)
    assert kcg("optimize flux/mini --seed 3").returncode == ExitCode.OK
    assert ended(optimize.main, "flux", "--preset", "mini").returncode == ExitCode.OK
    assert [(s.workload, s.preset, str(s.folder)) for s in seen] == [("flux", "mini", "kcg-out/flux")] * 2
    assert seen[0].command == "kcg optimize flux/mini --seed 3"
    assert resumed(seen[0].command) == "kcg optimize flux/mini --seed 3 --resume"


@pytest.mark.parametrize(
    ("started", "shown"),
    [("", "python -m kcg.optimize"), ("kcg", "kcg optimize"), ("python -m kcg", "python -m kcg optimize")],
)
def test_usage_and_messages_name_the_command_as_it_was_typed(
    started: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_as(*started.split())
    assert ended(optimize.main, "--help").stdout.startswith(f"Usage: {shown} [OPTIONS]")
    apply = shown.removesuffix("optimize") + "apply"
    assert command_name("apply") == apply
    assert f"write: {apply} RESULT.json" in ended(optimize.main, "apply").stderr
    monkeypatch.setattr(sys, "argv", ["kcg", "generate", "--out", "a b"])
    assert command_text("optimize") == f"{shown} generate --out 'a b'"


SAYING = "from kcg.commands import *; start_as(*sys.argv[1:]); print(typed('apply')); print(as_typed(sys.stdin.read()))"
"""What a process prints to be typed, in an environment without the tests' own settings."""


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """The commands of an environment of its own, `python` and `kcg`, where no shell looks for them."""
    folder = tmp_path / "my environment" / "bin"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder.parent)], check=True)
    places = [str(ROOT), *(path for path in sys.path if path.endswith("site-packages"))]
    site = next(folder.parent.glob("lib*/python*/site-packages"))
    (site / "kcg.pth").write_text("\n".join(places), encoding="utf-8")
    (folder / "kcg").write_text(f"#!/bin/sh\nexec '{folder}/python' -c '{SCRIPT}' \"$0\" \"$@\"\n", encoding="utf-8")
    (folder / "kcg").chmod(0o755)
    return folder


SCRIPT = "import sys; del sys.argv[0]; from kcg.__main__ import main; main()"
"""What the `kcg` of an environment does."""


@pytest.mark.parametrize("on_path", [True, False])
@pytest.mark.parametrize("started", ["kcg", "python -m kcg", "python -m kcg.optimize"])
def test_what_is_printed_to_be_typed_works_where_it_is_printed(started: str, on_path: bool, environment: Path) -> None:
    """Whether or not the shell finds the environment's commands, or those of another one."""
    others = environment.parent / "others"
    others.mkdir()
    for name in ("kcg", "python"):
        (others / name).write_text("#!/bin/sh\necho 'of another environment' >&2; exit 9\n", encoding="utf-8")
        (others / name).chmod(0o755)
    path = os.pathsep.join([*([str(environment)] if on_path else []), str(others), os.environ["PATH"]])
    settings = {**os.environ, "PATH": path}
    command, *rest = started.split()
    saying = f"import sys; sys.argv[0] = {str(environment / 'kcg')!r}; {SAYING}" if command == "kcg" else SAYING
    script = [*(["kcg"] if command == "kcg" else started.split() if rest[-1] == "kcg" else [])]
    done = subprocess.run(
        [environment / "python", "-c", f"import sys; {saying}", *script],
        input=f"{started}{'' if rest[-1:] == ['kcg.optimize'] else ' optimize'} flux", cwd=environment.parent,
        env=settings, capture_output=True, text=True, check=True,
    )  # fmt: skip
    apply, go_on = done.stdout.splitlines()
    if on_path:
        assert apply == "kcg apply" and go_on.startswith(started)
    else:
        assert apply == ("bin/kcg apply" if command == "kcg" else "bin/python -m kcg.apply")
    for line in (apply, go_on):
        assert line.startswith("kcg ") or "python" in line or "/kcg" in line
        used = subprocess.run(
            ["/bin/sh", "-c", f"{line} --help"], cwd=environment.parent, env=settings, capture_output=True, text=True
        )
        assert used.returncode == 0 and used.stdout.startswith("Usage: "), used.stderr


def test_a_program_elsewhere_is_named_whole(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(environment / "python"))
    monkeypatch.setattr(sys, "argv", [str(environment / "kcg")])
    monkeypatch.setenv("PATH", "/nowhere")
    assert shlex.split(script_here()) == [str(environment / "kcg")]
    assert shlex.split(interpreter_here()) == [str(environment / "python")]
    monkeypatch.chdir(environment)
    assert (script_here(), interpreter_here()) == ("./kcg", "./python")
    monkeypatch.setattr(sys, "argv", ["-m"])
    assert script_here() == ""
    monkeypatch.setenv("PATH", str(environment))
    assert (script_here(), interpreter_here()) == ("kcg", "python")


def test_the_commands_of_a_result_are_those_that_work_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell, "script_here", lambda: "")
    monkeypatch.setattr(shell, "interpreter_here", lambda: ".venv/bin/python")
    lines = [step.command for step in next_steps(sample_result(), Path("RESULT.json"))]
    assert lines and all(".venv/bin/python " in line for line in lines) and not any(" kcg " in line for line in lines)
    assert typed("check") == ".venv/bin/python -m kcg.check"
    assert resumed("python -m kcg.optimize flux") == ".venv/bin/python -m kcg.optimize flux --resume"
    assert resumed("kcg optimize flux") == ".venv/bin/python -m kcg.optimize flux --resume"
    assert resumed("python train.py") == "python train.py --resume"


def test_apply_is_reached_in_both_ways() -> None:
    for line in ("apply --help", "optimize apply --help"):
        assert kcg(line).stdout.startswith("Usage: kcg apply [OPTIONS] [FILE]")


@pytest.mark.parametrize("name", ["apply", "export", "list"])
def test_a_command_is_a_module_of_its_own_name(name: str) -> None:
    """As README promises of each."""
    done = python("-m", f"kcg.{name}", "--help")
    assert done.returncode == ExitCode.OK and done.stdout.startswith(f"Usage: python -m kcg.{name} [OPTIONS]"), done


def test_a_program_that_is_run_keeps_its_arguments_and_exit_status(tmp_path: Path) -> None:
    write_result(sample_result(), tmp_path / "r.json")
    code = "import sys; print(sys.argv, 'kcg.__main__' in sys.modules); sys.exit(7)"
    done = python("-m", "kcg", "run", "--result", tmp_path / "r.json", "-c", code, "run", "--help")
    assert done.returncode == 7 and done.stdout == "['-c', 'run', '--help'] False\n", done.stderr


# ---- names of workloads ----


def test_a_workload_may_be_named_with_its_preset() -> None:
    assert named_preset("flux/mini") == named_preset("flux/mini", "mini") == ("flux", "mini")
    assert named_preset("flux", "768") == ("flux", "768")
    assert named_preset("no such/mini") == ("no such", "mini"), "so that its name is what is unknown"
    for path in ("a/train.py", "./train", "/a/train", str(Path(__file__).parent)):
        assert named_preset(path) == (path, "auto")


def test_the_list_has_every_preset_and_what_is_known_of_its_needs() -> None:
    found = {one["name"]: one for one in json.loads(kcg("list --json").stdout)["workloads"]}
    assert found.keys() == WORKLOADS.keys()
    for name, one in found.items():
        assert [preset["name"] for preset in one["presets"]] == list(spec_of(name).presets) and one["about"]
        assert {preset["device"] for preset in one["presets"]} == {"CPU", "GPU"}
    sizes = {preset["name"]: preset["weights_bytes"] for preset in found["flux"]["presets"]}
    assert sizes["1024"] == sizes["768"] == pytest.approx(23.8e9, rel=0.01), "docs/optimize.md: 23.8 GB"
    shown = kcg("list").stdout
    assert "1024 (23.8 GB)" in shown and all(f"\n{name} " in shown for name in WORKLOADS)
    assert "to optimise one: kcg optimize flux/mini;" in shown and pip_install("clang") in shown
    assert "rope/mini-odd " in kcg("list rope").stdout
    assert "did you mean rope?" in kcg("list ropes").stderr


def test_the_listed_weights_are_those_of_the_model() -> None:
    """`mini` holds float32."""
    weights_bytes = spec_of("flux").weights_bytes
    model, _ = build("mini")
    assert weights_bytes is not None and weights_bytes("mini") == 4 * sum(t.numel() for t in model.parameters.values())


# ---- completion ----

COMPLETED = {
    "kcg ": [*COMMANDS],
    "kcg opt": ["optimize"],
    "kcg optimize fl": ["flux", "flux/mini", "flux/768", "flux/1024"],
    "kcg optimize rope/mini-": ["rope/mini-f16", "rope/mini-odd"],
    "kcg optimize --bud": ["--budget"],
    "kcg dataset re": ["retime"],
    "kcg dataset generate --workloads rope/mini,flux/7": ["rope/mini,flux/768"],
    "kcg apply --un": ["--undo"],
    "kcg list t": ["t5"],
}


@pytest.mark.parametrize("line", COMPLETED)
def test_a_shell_completes_commands_options_and_workloads(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(COMPLETE, "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
    assert kcg("").stdout.split() == COMPLETED[line]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_script(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(COMPLETE, f"source_{shell}")
    assert COMPLETE in kcg("").stdout


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_by_that_script(tmp_path: Path) -> None:
    (tmp_path / "kcg").write_text(f'#!/bin/sh\nexec {sys.executable} -c "from kcg.__main__ import main; main()" "$@"\n')
    (tmp_path / "kcg").chmod(0o755)
    script = f'''PATH={tmp_path}:$PATH; eval "$({COMPLETE}=source_bash kcg)"
COMP_WORDS=(kcg optimize fl); COMP_CWORD=2; _kcg_completion kcg; echo "${{COMPREPLY[@]}}"'''
    done = subprocess.run(["bash", "--norc", "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout == "flux flux/mini flux/768 flux/1024\n", done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_home_that_cannot_be_written_gets_no_completion_and_one_line(
    shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.write_text("no folder")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")  # typer's own: the shell is named
    done = kcg(f"--install-completion {shell}")
    assert (done.returncode, done.stdout) == (ExitCode.USAGE, ""), done.stderr
    assert done.stderr.startswith(f"kcg: cannot write {home}") and done.stderr.count("\n") == 1, done.stderr
    assert "set HOME to a folder that can be written, or add what kcg --show-completion prints" in done.stderr


def test_names_are_completed_without_anything_heavy() -> None:
    code = "from kcg.workloads.registry import completions; assert len(completions('s')) > 5"
    assert loaded_by("-c", code) & HEAVY == set()


def test_the_hint_for_an_extra_is_that_of_a_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from kcg import cli

    assert (ROOT / "constraints.txt").is_file() and pip_install("gpu") == "pip install -c constraints.txt -e '.[gpu]'"
    monkeypatch.setattr(cli, "__file__", str(tmp_path / "kcg" / "cli.py"))
    assert pip_install("gpu") == "pip install 'kcg[gpu]'"
