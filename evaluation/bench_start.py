"""How long kcg takes before it does anything, and what its core weighs.

    python -m evaluation.bench_start

Fresh processes, in turns with `python -c pass`, which each of the others contains. `help_s` is `kcg --help`, `import_s`
what `import kcg` adds to a Python that starts; modules are compiled before. The core is the wheel, and what its
requirements without extras install, with theirs. Writes results/bench_start.json.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from kcg.cli import command_text, record_results, run_script

ROOT = Path(__file__).parents[1]
OUT = ROOT / "evaluation" / "results" / "bench_start.json"
NOTHING = "nothing"
COMMANDS = {
    NOTHING: ["-c", "pass"],
    "import": ["-c", "import kcg"],
    "help": ["-m", "kcg", "--help"],
    "version": ["-m", "kcg", "--version"],
    "list": ["-m", "kcg", "list"],
}


def main(
    rounds: Annotated[int, typer.Option(help="processes of each command", min=1)] = 31,
    out: Annotated[Path, typer.Option(help="the results file")] = OUT,
) -> None:
    """Measure and write the results."""
    started = start_times(rounds)
    medians = {name: statistics.median(one.wall_s for one in starts) for name, starts in started.items()}
    headline: dict[str, Any] = {f"{name}_s": round(medians[name], 4) for name in COMMANDS if name != NOTHING}
    headline["import_s"] = round(medians["import"] - medians[NOTHING], 4)
    headline["core_wheel_bytes"] = wheel_bytes()
    weights = installed_bytes("kcg")
    headline["core_installed_bytes"] = sum(weights.values())
    entry = {
        "command": command_text("evaluation.bench_start"),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "rounds": rounds,
        "median_s": medians,
        "least_s": {name: min(one.wall_s for one in starts) for name, starts in started.items()},
        "median_cpu_s": {name: statistics.median(one.cpu_s for one in starts) for name, starts in started.items()},
        "installed_bytes": weights,
        **headline,
    }
    record_results(out, "start", entry, headline)
    typer.echo(json.dumps(headline, indent=1))


class Start(NamedTuple):
    """One process from its start to its end. On a busy machine the processor's time says more."""

    wall_s: float
    cpu_s: float


def start_times(
    rounds: int, *, python: Path = Path(sys.executable), folder: Path = ROOT, names: Sequence[str] = tuple(COMMANDS)
) -> dict[str, list[Start]]:
    """The processes of each command, in turns, after one round that compiles: of an environment's Python, in a
    folder."""
    started: dict[str, list[Start]] = {name: [] for name in names}
    for turn in range(rounds + 1):
        for name in names:
            begin_s, used_s = time.perf_counter(), _cpu_of_children_s()
            subprocess.run([python, *COMMANDS[name]], cwd=folder, stdout=subprocess.DEVNULL, check=True)
            if turn:
                started[name].append(Start(time.perf_counter() - begin_s, _cpu_of_children_s() - used_s))
    return started


def _cpu_of_children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def wheel_bytes() -> int:
    """The size of kcg's wheel, built of a copy of the sources."""
    with tempfile.TemporaryDirectory() as folder:
        copy, built = Path(folder) / "sources", Path(folder) / "wheel"
        shutil.copytree(ROOT / "kcg", copy / "kcg", ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, copy)
        options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(built)]
        subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(copy)], check=True)
        return sum(path.stat().st_size for path in built.iterdir())


def installed_bytes(name: str) -> dict[str, int]:
    """Distribution -> bytes of its files, of all that `name` requires without extras, directly or not, on this machine;
    without itself."""
    found: dict[str, int] = {}
    waiting = list(requirements(name))
    while waiting:
        one = waiting.pop()
        if one in found:
            continue
        found[one] = sum(_size(file) for file in metadata.files(one) or ())
        waiting += requirements(one)
    return found


def requirements(name: str) -> Iterator[str]:
    """The distributions that one requires here, under the names that they are installed by."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    for line in metadata.requires(name) or ():
        needed = Requirement(line)
        if needed.marker is None or needed.marker.evaluate({"extra": ""}):
            yield canonicalize_name(needed.name)


def _size(file: metadata.PackagePath) -> int:
    path = Path(str(file.locate()))
    return path.stat().st_size if path.is_file() else 0


if __name__ == "__main__":
    run_script(main)
