"""A stranger's first minutes: what an install takes, how soon something is measured, and whether what is shown works.

    python -m evaluation.first_minutes
    python -m evaluation.first_minutes --only install --only start

Of the commit that is checked out, in folders and environments of its own; it needs `git`, `make`, and packages, which
are downloaded before anything is timed. Installs are of the wheel without extras, so without a compiler.

- `install_mb`, `install_s`: what `pip install` of the wheel adds to an empty environment, and how long it takes.
- `import_ms`, `help_ms`: there, medians of fresh processes: what `import kcg` adds to Python's start, and `kcg --help`.
- `candidates_per_s`, `inference_error`: there, without PyTorch: what `evaluation.first_inference` prints, in a process
  on each of two cores.
- `readme_blocks_run` of `readme_blocks`: there, the blocks of README that are marked for running, verbatim.
- `wheel_pythons`: how many of `--python` install wheel and sdist and run a command, a script and a search with each.
- `first_measurement_s`: from `make optimize` in an empty clone to the first row of its journal, downloads apart.

Writes results/first_minutes.json. Each part is a run of its own there, so that parts may be measured one by one.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import shutil
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from evaluation.bench_start import NOTHING, start_times
from kcg.cli import command_text, record_results, run_script
from kcg.errors import KcgError, UnknownName

ROOT = Path(__file__).parents[1]
OUT = ROOT / "evaluation" / "results" / "first_minutes.json"
PYTHONS = ("3.11", "3.12", "3.13")
CORES = 2
SETUPTOOLS = "setuptools>=77"
"""What builds kcg: pip asks for it where an sdist or a checkout is installed, also without a network."""
LOOKS_S = 0.05
MARKED = re.compile(r"^<!-- run -->\n```(bash|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SCRIPT = "from tinygrad import Tensor\nx = Tensor.rand(64, 64).realize()\nfor _ in range(3): (x @ x).sum(0).realize()"
SEARCH = ("optimize", "-c", SCRIPT, "--device", "CPU", "--measurements", "8", "--no-script-check", "--quiet")
RAN = (0, 3, 7)  # improved or not, and not compared as a whole


@dataclass(frozen=True)
class Settings:
    """Where is measured, and how often."""

    folder: Path  # for all that is made
    pythons: tuple[Path, ...]  # interpreters that wheel and sdist are tried with
    rounds: int = 31  # processes of each command
    schedules: int = 256  # candidates of each kernel
    patience_s: float = 1800.0  # for one command
    environment: Mapping[str, str] = field(default_factory=dict)  # variables beside those that are set here


class Built(NamedTuple):
    """What is released."""

    wheel: Path
    sdist: Path


# ---- what is made


def cloned(folder: Path) -> Path:
    """An empty clone of the commit that is checked out, as `folder`."""
    _run(["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(folder)], cwd=ROOT)
    return folder


def built(sources: Path, out: Path) -> Built:
    """Wheel and sdist of some sources, in which building leaves folders; with the setuptools of this environment."""
    out.mkdir(parents=True, exist_ok=True)
    for kind in ("sdist", "wheel"):
        code = f"import sys; from setuptools import build_meta; build_meta.build_{kind}(sys.argv[1])"
        _run([sys.executable, "-W", "ignore", "-c", code, str(out)], cwd=sources)
    (wheel,), (sdist,) = out.glob("kcg-*.whl"), out.glob("kcg-*.tar.gz")
    return Built(wheel, sdist)


def environment(python: Path, folder: Path) -> Path:
    """An empty environment of an interpreter, as `folder`; its Python."""
    _run([str(python), "-m", "venv", str(folder)], cwd=folder.parent)
    return folder / "bin" / "python"


def downloaded(python: Path, wheel: Path, folder: Path) -> Path:
    """The packages that a wheel needs under an interpreter, and those that build and install, in `folder`."""
    pip = [str(python), "-m", "pip", "download", "--quiet", "--dest", str(folder)]
    _run([*pip, str(wheel), SETUPTOOLS, "pip"], cwd=folder.parent)
    return folder


def install(python: Path, what: Path, packages: Path) -> float:
    """Seconds of installing a wheel or an sdist into an environment from packages that are here."""
    pip = [str(python), "-m", "pip", "install", "--quiet", "--no-index", "--find-links", str(packages)]
    began = time.perf_counter()
    _run([*pip, str(what)], cwd=packages.parent)
    return time.perf_counter() - began


def bytes_of(folder: Path) -> int:
    """What all files of a folder hold."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def found_pythons(versions: tuple[str, ...] = PYTHONS) -> tuple[Path, ...]:
    """The interpreters of some versions, as `python3.12`, that are found on the path."""
    found = []
    for version in versions:
        code = (
            f"import sys; assert sys.version_info[:2] == tuple(map(int, {version!r}.split('.'))); print(sys.executable)"
        )
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            command = [f"python{version}", "-c", code]
            done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
            found.append(Path(done.stdout.strip()))
    return tuple(found)


# ---- what is measured


def started(python: Path, settings: Settings) -> dict[str, float]:
    """`import_ms` and `help_ms` in an environment, from a folder that is no checkout."""
    starts = start_times(settings.rounds, python=python, folder=settings.folder, names=(NOTHING, "import", "help"))
    medians = {name: 1e3 * statistics.median(one.wall_s for one in taken) for name, taken in starts.items()}
    return {"import_ms": round(medians["import"] - medians[NOTHING], 2), "help_ms": round(medians["help"], 1)}


def inferred(python: Path, settings: Settings) -> dict[str, float]:
    """`candidates_per_s` and `inference_error` in an environment, by `CORES` processes at once. Raises KcgError where
    one has PyTorch."""
    beside = settings.folder / "beside"  # evaluation and tests without the kcg of the checkout
    beside.mkdir(exist_ok=True)
    for name in ("evaluation", "tests"):
        with contextlib.suppress(FileExistsError):
            (beside / name).symlink_to(ROOT / name)
    command = [str(python), "-m", "evaluation.first_inference", "--schedules", str(settings.schedules), "--part"]
    processes = [
        subprocess.Popen(
            [*command, f"{number}/{CORES}"],
            cwd=settings.folder,
            env=_environment(settings, PYTHONPATH=str(beside)),
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(1, CORES + 1)
    ]
    printed = [process.communicate(timeout=settings.patience_s)[0] for process in processes]
    if failed := [process.returncode for process in processes if process.returncode]:
        raise KcgError(f"evaluation.first_inference ended with exit code {failed[0]}")
    found = [json.loads(line) for line in printed]
    if any(one["torch"] for one in found):
        raise KcgError("PyTorch was loaded where predictions are to need none")
    return {
        "candidates_per_s": round(sum(one["candidates"] / one["seconds"] for one in found), 1),
        "inference_error": max(one["error"] for one in found),
    }


def blocks_run(text: str, python: Path, settings: Settings) -> tuple[int, int]:
    """How many blocks of a document are marked for running, and how many of them did, in their order in one empty
    folder, with the commands of an environment."""
    folder = Path(tempfile.mkdtemp(prefix="reader-", dir=settings.folder))
    marked, ran = MARKED.findall(text), 0
    for number, (language, block) in enumerate(marked):
        command = ["bash", "-euo", "pipefail", "-c", block]
        if language == "python":  # a file, since children that kcg starts import the main module
            script = folder / f"block_{number}.py"
            script.write_text(block, encoding="utf-8")
            command = [str(python), str(script)]
        variables = _environment(settings, PATH=f"{python.parent}{os.pathsep}{os.environ.get('PATH', '')}")
        done = subprocess.run(command, cwd=folder, env=variables, timeout=settings.patience_s, check=False)
        ran += done.returncode == 0
    return len(marked), ran


def runs(python: Path, settings: Settings) -> str:
    """Why what is installed in an environment does not run; empty where it does. Tried are a command, a script that
    imports it, and a search."""
    tried = (
        ([str(python.parent / "kcg"), "--version"], (0,)),
        ([str(python), "-W", "error", "-c", "import kcg, kcg.data; kcg.tune, kcg.predict"], (0,)),
        ([str(python.parent / "kcg"), *SEARCH], RAN),
    )
    with tempfile.TemporaryDirectory(dir=settings.folder) as folder:
        for command, codes in tried:
            done = subprocess.run(
                command, cwd=folder, env=_environment(settings), capture_output=True, text=True,
                timeout=settings.patience_s, check=False,
            )  # fmt: skip
            if done.returncode not in codes:
                line = (done.stderr.strip().splitlines() or ["nothing was said"])[-1]
                return f"{Path(command[0]).name} {command[1]}: exit code {done.returncode}: {line}"
    return ""


def first_measurement_s(clone: Path, packages: Path, settings: Settings) -> float:
    """Seconds from `make optimize` in a clone to the first row of its journal; the run is then interrupted. Raises
    KcgError where it ends without a row."""
    variables = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(packages), "PYTHON": sys.executable}
    journal = clone / "kcg-out" / "flux" / "journal.sqlite"
    began = time.monotonic()
    process = subprocess.Popen(
        ["make", "optimize"],
        cwd=clone,
        env=_environment(settings, **variables),
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        while not has_row(journal):
            if process.poll() is not None or time.monotonic() - began > settings.patience_s:
                raise KcgError(f"make optimize measured nothing in {time.monotonic() - began:.0f} s")
            time.sleep(LOOKS_S)
        spent_s = time.monotonic() - began
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)  # also where who started this ignores SIGINT
        process.wait(timeout=settings.patience_s)
    return spent_s


def has_row(journal: Path) -> bool:
    """Whether a journal, which may not be there yet, has a measurement."""
    if not journal.exists():
        return False
    with contextlib.closing(sqlite3.connect(f"file:{journal}?mode=ro", uri=True, timeout=60.0)) as opened:
        try:
            return opened.execute("SELECT 1 FROM measurements LIMIT 1").fetchone() is not None
        except sqlite3.OperationalError:  # the tables are not there yet
            return False


# ---- parts


class Bench:
    """The parts, which share a build, its packages and an environment where they need these."""

    def __init__(self, settings: Settings) -> None:
        self.settings, folder = settings, settings.folder
        self.released = built(cloned(folder / "sources"), folder / "dist")
        self._python: Path | None = None
        self._packages: dict[Path, Path] = {}

    def packages(self, python: Path) -> Path:
        """What the wheel needs under an interpreter, downloaded once."""
        if python not in self._packages:
            folder = self.settings.folder / f"packages-{len(self._packages)}"
            folder.mkdir()
            self._packages[python] = downloaded(python, self.released.wheel, folder)
        return self._packages[python]

    @property
    def python(self) -> Path:
        """That of an environment with the wheel alone."""
        if self._python is None:
            self.install()
        assert self._python is not None
        return self._python

    def install(self) -> dict[str, Any]:
        """`install_mb` and `install_s`."""
        packages = self.packages(Path(sys.executable))
        folder = self.settings.folder / f"environment-{time.monotonic_ns()}"
        self._python = environment(Path(sys.executable), folder)
        before = bytes_of(folder)
        spent_s = install(self._python, self.released.wheel, packages)
        return {"install_mb": round((bytes_of(folder) - before) / 1e6, 1), "install_s": round(spent_s, 1)}

    def start(self) -> dict[str, Any]:
        """`import_ms` and `help_ms`."""
        return started(self.python, self.settings)

    def inference(self) -> dict[str, Any]:
        """`candidates_per_s` and `inference_error`."""
        return inferred(self.python, self.settings)

    def readme(self) -> dict[str, Any]:
        """`readme_blocks_run` and `readme_blocks`."""
        marked, ran = blocks_run((ROOT / "README.md").read_text(encoding="utf-8"), self.python, self.settings)
        return {"readme_blocks": marked, "readme_blocks_run": ran}

    def pythons(self) -> dict[str, Any]:
        """`wheel_pythons`, and what each interpreter is or why what is released does not run there."""
        found: dict[str, str] = {}
        for number, python in enumerate(self.settings.pythons):
            version = _run([str(python), "-c", "import platform; print(platform.python_version())"]).strip()
            why = ""
            for what in self.released:
                made = environment(python, self.settings.folder / f"python-{number}-{what.suffix[1:]}")
                install(made, what, self.packages(python))
                why = why or runs(made, self.settings)
            found[version] = why
        return {"wheel_pythons": sum(not why for why in found.values()), "pythons": found}

    def clone(self) -> dict[str, Any]:
        """`first_measurement_s`."""
        packages = self.packages(Path(sys.executable))
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(packages)]
        constraints = ["-c", str(ROOT / "constraints.txt")]
        extras = [] if shutil.which("clang") else ["ziglang"]
        _run([*download, *constraints, str(self.released.wheel), "pip", *extras], cwd=self.settings.folder)
        clone = cloned(self.settings.folder / "clone")
        return {"first_measurement_s": round(first_measurement_s(clone, packages, self.settings), 1)}


PARTS = {
    "install": Bench.install,
    "start": Bench.start,
    "inference": Bench.inference,
    "readme": Bench.readme,
    "pythons": Bench.pythons,
    "clone": Bench.clone,
}
BESIDE = ("pythons",)  # what is no headline


def main(
    only: Annotated[list[str] | None, typer.Option(help=f"parts: {', '.join(PARTS)}; all by default")] = None,
    python: Annotated[
        list[Path] | None,
        typer.Option(help=f"interpreters to try; by default those of {', '.join(PYTHONS)} on the path"),
    ] = None,
    rounds: Annotated[int, typer.Option(help="processes of each command", min=1)] = 31,
    schedules: Annotated[int, typer.Option(help="candidates of each kernel", min=4)] = 256,
    out: Annotated[Path, typer.Option(help="the results file")] = OUT,
) -> None:
    """Measure and write the results, part by part."""
    for name in only or ():
        if name not in PARTS:
            raise UnknownName("part", name, list(PARTS))
    with tempfile.TemporaryDirectory(prefix="kcg-first-minutes-", ignore_cleanup_errors=True) as name:
        bench = Bench(Settings(Path(name), tuple(python or found_pythons()), rounds, schedules))
        for part in only or PARTS:
            found = PARTS[part](bench)
            entry = {
                "command": command_text("evaluation.first_minutes"),
                "python": platform.python_version(),
                "cores": os.cpu_count(),
                "load": os.getloadavg()[0],
                **found,
            }
            record_results(out, part, entry, {key: value for key, value in found.items() if key not in BESIDE})
            typer.echo(json.dumps(found))


def _environment(settings: Settings, **variables: str) -> dict[str, str]:
    """The variables of a process that has nothing of this checkout, and caches of its own."""
    own = {"XDG_CACHE_HOME": str(settings.folder / "cache"), "CACHEDB": str(settings.folder / "cache.db")}
    kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV", "MAKEFLAGS")}
    return {**kept, **own, **settings.environment, **variables}


def _run(command: list[str], cwd: Path | None = None) -> str:
    """What a command prints. Raises KcgError where it fails, with the last line that it said."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        line = (done.stderr.strip().splitlines() or ["nothing was said"])[-1]
        raise KcgError(f"{' '.join(command[:4])} … ended with exit code {done.returncode}: {line}")
    return done.stdout


if __name__ == "__main__":
    run_script(main)
