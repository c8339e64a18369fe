"""Judges generated programs without a GPU: Triton's interpreter runs them on the buffers of a CPU's workbench.

`python -m tests.faults.generated.child` reads the name of a program and the number of one of its mutants, a line each
(-1: the program as it is), and answers `[where it was refused, or "", and why]` as JSON. Each is checked on one seed as
in a search, then verified by every rule beside tinygrad's own schedule as a finalist.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

os.environ.setdefault("DEV", "CPU:X86")
# first: it says to Triton that this process interprets
from tests.kernel.tile.interpreter_child import TYPES, Bounded, Memory, kept_formats, kept_types, patched_once  # isort: skip

import numpy as np
from triton.runtime import interpreter

from kcg.compat.device import prepare
from kcg.kernel.codec import ast_of
from kcg.kernel.program import program_of_parts
from kcg.kernel.tile.program import WORKSPACE, TileSource
from kcg.measure.verify import FINAL_SEEDS, CheckedBench
from kcg.measure.workbench import guard_bytes, on_host
from tests.chains import X86, compiled_of
from tests.faults.generated import Mutant
from tests.faults.generated.mutants import MUTANTS
from tests.faults.generated.programs import generated, region

SEARCH, FINALS = "search", "finals"
_numbers = itertools.count()
OUTSIDE = "outside of the program's buffers"  # as the interpreter's memory says it


@cache
def interpreting() -> Bounded:
    """The interpreter, made ready once: its memory, which says what a program may touch."""
    np.seterr(all="ignore")
    memory = interpreter._interpreter = Bounded(interpreter._interpreter)
    patched_once()
    kept_types()
    kept_formats()
    builder = interpreter.interpreter_builder
    builder.options = replace(builder.options, sanitize_overflow=False)
    return memory


@cache
def folder() -> tempfile.TemporaryDirectory[str]:
    """Where the texts of programs are, as long as this process is there."""
    return tempfile.TemporaryDirectory(prefix="kcg-generated-")


def loaded(source: str) -> Any:
    """The module of a program's text."""
    path = Path(folder().name) / f"program_{next(_numbers)}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def launcher(bench: CheckedBench, program: TileSource, source: str) -> Callable[[], float]:
    """A run of a program's text on the buffers of a bench, its guards within reach: seconds."""
    module, memory = loaded(source), interpreting()
    workspace = np.full(program.workspace_bytes, 0x7E, np.uint8)
    views = {slot: on_host(bench._views[slot]) for slot in bench.by_slot} | {WORKSPACE: workspace}

    def run() -> float:
        begin = time.perf_counter()
        reach = []
        for slot, view in views.items():
            assert view is not None
            width = guard_bytes(view.nbytes) if slot != WORKSPACE else 0
            reach.append((view.ctypes.data - width, view.nbytes + 2 * width))
        memory.buffers = reach
        for launch in program.launches:
            arguments = [Memory(views[a.slot], TYPES[a.type]) for a in launch.arguments]
            getattr(module, launch.entry)[(launch.grid,)](*arguments)
        return time.perf_counter() - begin

    return run


@cache
def bench_of(name: str) -> tuple[CheckedBench, Callable[[], float]]:
    """The buffers of a program's region, and its kernels as tinygrad schedules them."""
    prepare(os.environ["DEV"])
    bench = CheckedBench(region(name), X86)
    parts = [compiled_of(ast_of(kernel)) for kernel in region(name).kernels]
    return bench, bench.launcher(program_of_parts(region(name), parts))


def judged(name: str, mutant: Mutant | None) -> tuple[str, str]:
    """Where it is refused, empty where it passes, and why."""
    program = generated(name)
    source = program.source if mutant is None else mutant.of(program.source)
    bench, baseline = bench_of(name)
    bench.seed = None  # what ran before may have changed its inputs
    launch = launcher(bench, program, source)
    try:
        found = bench.check(launch, (), seeds=[0])
        if not found.passed:
            return SEARCH, found.reason
        own, found = bench.check_all([baseline, launch], (), seeds=FINAL_SEEDS, thorough=True)
    except Exception as error:
        if OUTSIDE not in str(error):
            raise
        return FINALS, str(error)  # a device would have stopped it, or not: it reads what lies there
    assert own.passed, own.reason
    return ("", "") if found.passed else (FINALS, found.reason)


def main() -> None:
    """Answer until there are no more questions."""
    sys.dont_write_bytecode = True  # programs are new files, read once
    while name := sys.stdin.readline().strip():
        number = int(sys.stdin.readline())
        print(json.dumps(judged(name, None if number < 0 else MUTANTS[number])), flush=True)


if __name__ == "__main__":
    main()
