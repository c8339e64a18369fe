"""A token of a language model with the schedules that tinygrad's BEAM finds, in a process of its own that may be cut.

    JITBEAM=2 python -m evaluation.pytorch.beam_token qwen-8b-q4_k_m

prints the seconds of a token. `row` runs it with a cache of its own for so long, and then once more with what that
cache holds: other kernels have tinygrad's hand-coded schedule.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from evaluation.pytorch.timing import token_s
from evaluation.rows import Row, rounded
from kcg.cli import run_script

WIDTH = 2
LIMIT_S = 480.0
CACHED_S = 240.0  # for the run with what the cache holds
TOKENS = 20


def row(preset: str, limit_s: float = LIMIT_S) -> Row:
    """What BEAM found of a preset's kernels in so many seconds, and a token with it."""
    with tempfile.TemporaryDirectory(prefix="kcg-beam-") as folder:
        cache = Path(folder) / "cache.db"
        ended = _child(preset, cache, limit_s)
        found = _found(cache)
        fault = ""
        if ended is not None and ended.returncode != 0:
            fault = _last(ended.stderr) or f"it ended with {ended.returncode}"
        timed = ended if ended is not None and not fault else _child(preset, cache, CACHED_S, "--cached")
        again = "it did not end" if timed is None else _last(timed.stderr) if timed.returncode else ""
        if timed is None or again:
            return {"status": "failed", "reason": f"with what the cache holds: {again}", "found": found, "fault": fault}
        seconds = float(timed.stdout.split()[-1])
    return {
        "preset": preset, "width": WIDTH, "limit_s": limit_s, "was_cut": ended is None, "fault": fault, "found": found,
        "token_s": rounded(seconds), "tokens_per_s": rounded(1 / seconds),
    }  # fmt: skip


def _child(preset: str, cache: Path, limit_s: float, *options: str) -> subprocess.CompletedProcess[str] | None:
    """How the run ended; None where it was cut."""
    command = [sys.executable, "-m", "evaluation.pytorch.beam_token", preset, *options]
    environment = {**os.environ, "JITBEAM": str(WIDTH), "CACHEDB": str(cache)}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            out, errors = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # with the processes that compile
            process.communicate()
            return None
    return subprocess.CompletedProcess(command, process.returncode, out, errors)


def _last(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def _found(cache: Path) -> int:
    """Kernels of which the cache has what BEAM found."""
    if not cache.exists():
        return 0
    with contextlib.closing(sqlite3.connect(cache)) as connection:
        tables = connection.execute("select name from sqlite_master where name like 'beam_search%'").fetchall()
        return sum(connection.execute(f"select count(*) from {name}").fetchone()[0] for (name,) in tables)


def main(
    preset: Annotated[str, typer.Argument(help="of the workload llm")],
    cached: Annotated[bool, typer.Option("--cached", help="search nothing")] = False,
) -> None:
    """Print the seconds of a token."""
    from kcg.compat.device import prepare
    from kcg.workloads.llm import llm_config, runnable

    prepare(os.environ.get("DEV", "CUDA"))
    from kcg.compat.beam import searching_nothing

    with searching_nothing() if cached else contextlib.nullcontext():
        print(token_s(runnable(llm_config(preset), 0), TOKENS))


if __name__ == "__main__":
    run_script(main)
