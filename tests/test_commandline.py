"""How every command ends: what it says, and its exit code, where its output, its memory or its user gives out."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kcg.dataset.journal import Journal
from kcg.errors import ExitCode
from kcg.optimize.console import print_result
from tests.commands import python
from tests.dataset.test_journal import fill
from tests.sample_result import sample_result
from tests.slow import first
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="has /dev/full, and shells' descriptors")

LITTLE = 1 << 29


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("output") / "journal.sqlite"
    with Journal.open(path) as opened:
        fill(opened)
    return path


def shell(line: str, *arguments: object, limit: Callable[[], None] | None = None) -> subprocess.CompletedProcess[str]:
    """A command of kcg as a shell runs it, with its output led elsewhere; `$K` is `python -m kcg`."""
    environment = {**os.environ, "K": f"{sys.executable} -m kcg"}
    command = ["bash", "-o", "pipefail", "-c", line, "bash", *map(str, arguments)]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE_S, preexec_fn=limit
    )


COMMANDS = ["$K.dataset stats $1", "$K.dataset --help", "$K.dataset stats $1 --json"]


@pytest.mark.parametrize("command", first(2, COMMANDS))
def test_an_output_that_cannot_be_written_is_one_line(journal: Path, command: str) -> None:
    for where, says in ((">/dev/full", "No space left on device"), (">&-", "Bad file descriptor")):
        done = shell(f"{command} {where}", journal)
        assert done.returncode == ExitCode.USAGE, done.stderr
        assert done.stderr.startswith("kcg: cannot write") and says in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", first(1, COMMANDS[::2]))
def test_a_reader_that_goes_away_is_no_error(journal: Path, command: str) -> None:
    done = shell(f"{command} | head -c 0", journal)
    assert (done.returncode, done.stderr) == (ExitCode.OK, "")


@pytest.mark.slow
def test_nobody_to_complain_to_changes_nothing(journal: Path) -> None:
    for where in ("2>&-", "<&- 2>&-"):
        assert shell(f"$K.dataset stats $1 {where}", journal).returncode == ExitCode.OK
    for where in ("2>&-", "2>/dev/full"):  # a line is complained there
        assert shell(f"$K.dataset stats $1/no {where}", journal).returncode == ExitCode.USAGE


PRINTS = """
import sys
from kcg.cli import guarded, showing
from kcg.errors import ExitCode
def body():
    with showing():
        print("x" * 100_000)
    return ExitCode(int(sys.argv[1]))
guarded(body)
"""


@pytest.mark.parametrize("code", [ExitCode.OK, ExitCode.VERIFICATION_FAILED])
def test_news_of_a_run_come_before_those_of_its_output(code: ExitCode) -> None:
    """What was printed is in files as well: a run that failed says so, whoever reads."""
    for where, plain in (("| head -c 0", code), (">/dev/full", code or ExitCode.USAGE)):
        done = shell(f'{sys.executable} -c "$1" $2 {where}', PRINTS, int(code))
        assert done.returncode == plain and done.stderr.count("\n") == (where != "| head -c 0"), done.stderr


LACKS = """
from kcg.cli import guarded
def body():
    try:
        hoard = [bytearray(1 << 26) for _ in range(1000)]
    except MemoryError as error:
        raise {} from error
guarded(body)
"""


@pytest.mark.parametrize(
    "raised", first(1, ["error", "ImportError('read this first')", 'RuntimeError("can\'t start new thread")'])
)
def test_a_limit_of_memory_is_one_line(raised: str) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (LITTLE, LITTLE))

    done = shell(f'{sys.executable} -c "$1"', LACKS.format(raised), limit=limit)
    assert done.stderr == "kcg: not enough memory: free some, or raise the limit (ulimit -v)\n"
    assert done.returncode == ExitCode.USAGE


WAITS = """
import sys, time
import kcg.cli
def main():
    kcg.cli.goes_on("to go on: it")
    print("ready", flush=True)
    time.sleep(36_000)
kcg.cli.guarded(main)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_end_says_how_to_go_on(number: signal.Signals) -> None:
    process = subprocess.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(number)
    assert process.communicate(timeout=PATIENCE_S)[1] == "kcg: interrupted; to go on: it\n"
    assert process.returncode == ExitCode.INTERRUPTED


def test_an_interrupt_that_typer_took_is_reported_too() -> None:
    """It makes an exit code of it."""
    waits = WAITS.replace("kcg.cli.guarded(main)", "kcg.cli.run_script(main)")
    process = subprocess.Popen([sys.executable, "-c", waits], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=PATIENCE_S)[1].strip() == "kcg: interrupted; to go on: it"
    assert process.returncode == ExitCode.INTERRUPTED


def test_the_options_of_a_script_are_the_parameters_of_its_main() -> None:
    code = "import kcg.cli\ndef main(name: str, most: int = 3) -> None: print(name, most)\nkcg.cli.run_script(main)"
    done = python("-c", code, "mine", "--most", "4")
    assert (done.returncode, done.stdout) == (ExitCode.OK, "mine 4\n"), done.stderr
    done = python("-c", code, "mine", "--most", "many")
    assert done.returncode == ExitCode.USAGE and done.stderr.startswith("kcg: ") and done.stderr.count("\n") == 1


def test_what_nohup_ignores_stays_ignored() -> None:
    ignoring = f"import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n{WAITS}"
    process = subprocess.Popen(
        [sys.executable, "-c", ignoring], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=PATIENCE_S)[1] == "kcg: interrupted; to go on: it\n"


def test_names_that_are_no_text_are_shown(tmp_path: Path) -> None:
    """A file's name may be of any bytes, and JSON can spell half a character."""
    from rich.console import Console

    with (tmp_path / "out").open("w", encoding="utf-8") as file:
        print_result(replace(sample_result(), workload="caf\udce9", warnings=("\ud800",)), Console(file=file))
    assert "caf?" in (tmp_path / "out").read_text(encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "kcg.dataset", "stats", os.fsencode(tmp_path) + b"/caf\xe9"],
        capture_output=True,
        check=False,
    )
    assert done.returncode == ExitCode.USAGE and b"Traceback" not in done.stderr and done.stderr.count(b"\n") == 1


def test_a_command_looks_rarely_for_circles_of_garbage_and_a_script_of_figures_as_ever(tmp_path: Path) -> None:
    """Such a script may run whole models in its process."""
    (tmp_path / "evaluation" / "part").mkdir(parents=True)
    text = "import gc\nfrom kcg.cli import guarded\nguarded(lambda: print(gc.get_threshold()[0]))\n"
    for name, wanted in (("command.py", "100000\n"), ("evaluation/part/script.py", "700\n")):
        (tmp_path / name).write_text(text)
        assert python(tmp_path / name).stdout == wanted
