"""A script of one's own, optimised as a stranger would: what README quotes of it.

    python -m evaluation.own_script
    python -m evaluation.own_script --folder runs

Runs `kcg optimize block.py --budget 60s` on a copy of `evaluation/scripts/block.py`, in a folder of its own and with
caches that are empty, by the `kcg` of this environment. Writes results/own_script.json: the command, all lines that it
printed, the figures of its result, and the lines that README shows. README gets the script and these between its marks.
With `--folder` the run stays there, for `evaluation.pictures`.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from evaluation.documents import write_into
from kcg.cli import command_text, record_results, run_script
from kcg.compat.device import clang_path
from kcg.errors import KcgError
from kcg.report.result import read_result
from kcg.types import Result

ROOT = Path(__file__).parents[1]
OUT = ROOT / "evaluation" / "results" / "own_script.json"
README = ROOT / "README.md"
SCRIPT = ROOT / "evaluation" / "scripts" / "block.py"
BUDGET = "60s"
MARK = "own script"  # of README
CORES = {2: "two", 4: "four", 8: "eight"}
COLUMNS = "160"  # of the terminal that it prints for
PROGRESS = re.compile(r"^(searching|re-timing)\b.*: \d+:\d\d, ")
OWN_CLANG = re.compile(r"\S*/caches-\w+/bin/clang")  # where `environment` puts one
ROW = re.compile(r"\S.*\S  +\S.*\d×  ")
ROWS = 2  # of the table of kernels, and
LEFT = 1  # line of those that did not improve or were not searched, that README shows
SHOWN = (
    r"(layer|kernel) .*speed-up", r"\.\.\. and ", r"script:\S+: ", r"one step ", r"plan: ", r"whole \w+: ",
    r"next:", r"  \S",
)  # fmt: skip
"""Beginnings of the lines that README shows, beside the last of progress: not what was done, and where it lies."""


def printed_by(
    script: Path, folder: Path, *, budget: str = BUDGET, report: str = "", device: str = ""
) -> tuple[list[str], int]:
    """What `kcg optimize` prints for a copy of a script in a folder, where its result is put, and its exit code."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(script, folder / script.name)
    more = [*(["--report", report] if report else []), *(["--device", device] if device else [])]
    done = subprocess.run(
        [kcg_here(), "optimize", script.name, "--budget", budget, *more], cwd=folder, env=environment(folder),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    return [OWN_CLANG.sub("clang", line.rstrip()) for line in done.stdout.splitlines()], done.returncode


def kcg_here() -> str:
    """The `kcg` of this environment. Raises KcgError where there is none."""
    found = Path(sys.executable).parent / "kcg"
    if not found.is_file():
        raise KcgError(f"there is no {found}: install kcg into this environment")
    return str(found)


@contextlib.contextmanager
def commands_on_path() -> Iterator[None]:
    """With this environment's commands where a shell looks first, as pages name them then."""
    before = os.environ.get("PATH", "")
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), before])
    try:
        yield
    finally:
        os.environ["PATH"] = before


def environment(folder: Path) -> dict[str, str]:
    """The variables of a process that finds this environment's commands and a clang, and whose caches are empty."""
    caches = Path(tempfile.mkdtemp(prefix="caches-", dir=folder))
    places = [str(Path(sys.executable).parent)]
    if shutil.which("clang") is None and (clang := clang_path()) is not None:
        (caches / "bin").mkdir()
        (caches / "bin" / "clang").symlink_to(clang)
        places.append(str(caches / "bin"))
    own = {
        "PATH": os.pathsep.join([*places, os.environ.get("PATH", "")]),
        "PYTHONPATH": str(ROOT),
        "XDG_CACHE_HOME": str(caches),
        "CACHEDB": str(caches / "cache.db"),
        "COLUMNS": COLUMNS,
    }
    kept = {name: value for name, value in os.environ.items() if name != "CC"}  # which kcg may have set here
    return {**kept, **own}


def shown_lines(printed: list[str]) -> list[str]:
    """What README shows of what was printed: the last lines of progress of the search and of judging, and the end."""
    progress = {found[1]: line for line in printed if (found := PROGRESS.match(line))}
    rows = [line for line in printed if ROW.match(line)][:ROWS]
    left = [line for line in printed if line.startswith(("not improved: ", "not searched: "))][:LEFT]
    shown = (line for line in printed if line in (*rows, *left) or any(re.match(one, line) for one in SHOWN))
    return [*progress.values(), *shown]


def figures_of(result: Result) -> dict[str, Any]:
    """What is said of a result in figures."""
    check = result.model_check
    return {
        "before_s": result.total_before_s,
        "after_s": result.total_after_s,
        "speedup": result.total_before_s / result.total_after_s,
        "improved": sum(row.outcome == "improved" for row in result.regions),
        "kernels": len(result.regions),
        "measurements": result.measurements,
        "seconds": result.search_s,
        "passed": None if check is None else check.passed,
        "device": result.target.model,
        "cores": result.target.cores,
        "compiler": result.toolchain.compiler,
    }


def machine_of(figures: dict[str, Any]) -> str:
    """What a run was made on, in words."""
    return f"{CORES.get(figures['cores'], figures['cores'])} cores of an {figures['device']}"


def part_of_readme(entry: dict[str, Any] | None) -> list[str]:
    """What README has of a run, between its marks; before there is one the script and the command."""
    script = ["```python", *SCRIPT.read_text(encoding="utf-8").splitlines(), "```", ""]
    if entry is None:
        return [*script, "```bash", f"kcg optimize {SCRIPT.name} --budget {BUDGET}", "```"]
    where = machine_of(entry)
    where += ", busy with other work," if entry["load"] > 2 * entry["cores"] else ""
    return [
        *script,
        f"`{entry['typed']}` prints on {where} (lines are left out; `evaluation/results/{OUT.name}`):",
        *("", "```text", *entry["shown"], "```"),
    ]


def measure(
    folder: Path, *, budget: str = BUDGET, out: Path = OUT, readme: Path = README, device: str = "", least: int = 1
) -> Path:
    """Run the script, write what is said of it, and return where its result lies. Raises KcgError where fewer kernels
    improved than at `least`, as on a machine that is busy: then nothing is written."""
    printed, code = printed_by(SCRIPT, folder, budget=budget, device=device)
    found = folder / "kcg-out" / SCRIPT.stem / "RESULT.json"
    if not found.is_file():
        raise KcgError(f"kcg optimize ended with exit code {code}: {(printed or ['nothing was printed'])[-1]}")
    entry = {
        "command": command_text("evaluation.own_script"),
        "typed": f"kcg optimize {shlex.quote(SCRIPT.name)} --budget {budget}",
        "exit_code": code,
        "script": SCRIPT.read_text(encoding="utf-8"),
        "printed": printed,
        "shown": shown_lines(printed),
        "load": os.getloadavg()[0],
        **figures_of(read_result(found)),
    }
    if entry["improved"] < least:
        raise KcgError(f"{entry['improved']} of {entry['kernels']} kernels improved: {OUT.name} and README stay")
    names = ("before_s", "after_s", "speedup", "improved", "kernels", "seconds")
    record_results(out, "block", entry, {name: entry[name] for name in names})
    write_into(readme, {MARK: part_of_readme(entry)})
    return found


def main(
    folder: Annotated[Path | None, typer.Option(help="where the run stays; by default it is deleted")] = None,
    budget: Annotated[str, typer.Option(help="of the run")] = BUDGET,
    out: Annotated[Path, typer.Option(help="the results file")] = OUT,
) -> None:
    """Run the script and write what README says of it."""
    with tempfile.TemporaryDirectory(prefix="kcg-own-script-", ignore_cleanup_errors=True) as name:
        found = measure((folder or Path(name)).absolute(), budget=budget, out=out)
        typer.echo(f"{read_result(found).total_after_s:.4g} s; README has it")


if __name__ == "__main__":
    run_script(main)
