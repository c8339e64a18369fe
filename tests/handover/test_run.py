"""`python -m kcg.run`: an unchanged program, however it is named, with everything of a result in place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kcg.errors import ExitCode
from kcg.report.result import write_result
from kcg.run import main
from kcg.types import Result
from tests.commands import ended, python
from tests.small_result import SCRIPTS

JITTED = """
import atexit, sys, threading
atexit.register(lambda: print("last words", file=sys.stderr))
from small_model import normalised, table
from tinygrad import TinyJit
step = TinyJit(lambda a, b: normalised((a @ b).relu()).realize())
made = [step(table(32, 48).realize(), table(48, 64).realize()).numpy() for _ in range(4)]
assert len({x.tobytes() for x in made}) == 1
print(__name__, sys.argv[1:], f"{made[0].sum():.4f}")
sys.exit(int(sys.argv[1]))
"""


def run(stored: Path, *program: object, **settings: str) -> Any:
    settings = {"CACHEDB": str(stored.parent / "cache.db"), **settings}
    return python("-m", "kcg.run", "--result", stored, *program, cwd=SCRIPTS, **settings)


def served(ended: Any) -> str:
    (line,) = [line for line in ended.stderr.splitlines() if " served: " in line]
    return line


def test_a_script_has_the_schedules_and_its_own_output_and_exit_status(stored: Path, tmp_path: Path) -> None:
    script = tmp_path / "step.py"
    script.write_text(f"import sys; sys.path.insert(0, {str(SCRIPTS)!r})\n{JITTED}")
    done = run(stored, script, "7", "--result", "x")
    assert done.returncode == 7, done.stderr
    assert done.stdout == "__main__ ['7', '--result', 'x'] 32.0000\n", "as without"
    assert "3 of 3 kernels served: 0 by compiled programs (0 calls), 2 by schedules that were found, 1 by" in served(
        done
    )
    assert done.stderr.rstrip().endswith(served(done)), "after all that the program says"


@pytest.mark.slow
def test_a_module_is_named_as_for_python(stored: Path) -> None:
    """Code too, in the tests below."""
    done = run(stored, "-m", "small_model")
    assert done.returncode == 0 and done.stdout, done.stderr
    assert "2 by schedules that were found" in served(done)


THREAD = "import small_model as m, threading; threading.Thread(target=lambda: print(m.output().sum().item())).start()"
HOOKED = """
from tinygrad import schedule
plan, seen = schedule.memory_plan_rewrite, []
schedule.memory_plan_rewrite = lambda *given: [seen.append(1), plan(*given)][1]
import small_model as m
print(m.output().sum().item(), bool(seen))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        pytest.param(THREAD, id="after the main thread"),
        pytest.param(HOOKED, marks=pytest.mark.slow, id="with a hook of its own"),
    ],
)
def test_whenever_the_first_kernel_is_planned_all_is_in_place(code: str, stored: Path) -> None:
    done = run(stored, "-c", code)
    assert done.returncode == 0 and done.stdout and "Traceback" not in done.stderr, done.stderr
    assert "2 by schedules that were found" in served(done)


@pytest.mark.slow
def test_what_the_program_did_not_ask_for_is_named(result: Result, stored: Path) -> None:
    done = run(stored, "-c", "from tinygrad import Tensor; (Tensor.ones(9).contiguous() + 1).realize()")
    assert "0 of 3 kernels served" in served(done)
    names = ", ".join(row.baseline.name for row in result.regions[:-1])
    assert f"kcg: not served, since the program did not ask for them: {names}" in done.stderr


def test_a_program_without_tinygrad_is_none_of_its_business(stored: Path) -> None:
    done = run(stored, "-c", "import sys; print('tinygrad' in sys.modules, 'kcg.run' in sys.modules); 1 / 0")
    assert done.returncode == 1 and done.stdout == "False True\n"
    assert "ZeroDivisionError" in done.stderr
    assert done.stderr.endswith(f"kcg: nothing of {stored} was used: the program ran no kernel of tinygrad\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            lambda r: replace(r, target=replace(r.target, model="another CPU")),
            "model: the result was made for",
        ),
        (lambda r: replace(r, toolchain=replace(r.toolchain, tinygrad="0.13.0")), "tinygrad: the result was made with"),
    ],
)
def test_a_result_that_is_not_for_the_device_ends_the_program_in_a_line(
    change: Callable[[Result], Result], line: str, result: Result, stored: Path
) -> None:
    write_result(change(result), stored)
    done = run(stored, "-m", "small_model")
    assert done.returncode == ExitCode.USAGE and not done.stdout, done.stderr
    assert done.stderr.startswith(f"kcg: {line}") and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("program", "line"),
    [
        (("nowhere.py",), "there is no script nowhere.py"),
        (("-c",), "-c needs the code after it"),
        ((), "Missing argument"),
        (("--kernels", "nowhere.py", "small_model.py"), "there is no file of kernels"),
    ],
)
def test_what_cannot_be_started_is_a_line(
    program: tuple[str, ...], line: str, stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(SCRIPTS)
    done = ended(main, "--result", stored, *program)
    assert done.returncode == ExitCode.USAGE and done.stderr.startswith(f"kcg: {line}")
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_a_module_that_is_not_there_is_a_line(stored: Path) -> None:
    """It is looked up by the process that has become the program."""
    done = run(stored, "-m", "nowhere_at_all")
    assert done.returncode == ExitCode.USAGE and done.stderr.startswith("kcg: there is no module nowhere_at_all")
    assert done.stderr.count("\n") == 1


OTHER_DEVICE = """
import sys
from dataclasses import replace
import kcg.compat.standalone as standalone
from small_model import normalised, table
from tinygrad import Tensor
look = standalone.opened_device
other = lambda name: {"model": sys.argv[1]} if name == "CPU:1" and sys.argv[1] else {}
standalone.opened_device = lambda name: replace(look(name), **other(name))
normalised((table(32, 48).to("CPU:1").realize() @ table(48, 64).to("CPU:1").realize()).relu()).realize()
"""


@pytest.mark.slow
@pytest.mark.parametrize("model", ["", pytest.param("another", marks=pytest.mark.slow)])
def test_another_model_of_the_same_kind_is_left_to_tinygrad(model: str, stored: Path, result: Result) -> None:
    """The default device is what the result is for; its neighbour may be another GPU."""
    done = run(stored, "-c", OTHER_DEVICE, model)
    assert done.returncode == 0, done.stderr
    line = f"CPU:1: its kernels are left to tinygrad: model: made for {result.target.model!r}, there it is 'another'"
    assert (line in done.stderr) == bool(model)
    assert f"{0 if model else 3} of 3 kernels served" in served(done)
