"""Tile programs run by Triton's interpreter and compared with the float64 reference."""

from __future__ import annotations

import atexit
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, lru_cache
from pathlib import Path
from random import Random
from threading import Timer
from typing import Any

import numpy as np

from kcg.cli import pip_install
from kcg.kernel.arithmetic import CONFIDENT
from kcg.kernel.chain import Chain
from kcg.kernel.reading.kernel import TileKernel
from kcg.kernel.reference import StoreValues, error_ratio
from kcg.kernel.tile.compile import compile_tile
from kcg.kernel.tile.generate import generate_kernel
from kcg.kernel.tile.legal import is_legal, random_parameters
from kcg.kernel.tile.parameters import TileParameters
from kcg.kernel.tile.prior import default_parameters
from kcg.kernel.tile.program import WORKSPACE, TileSource
from kcg.kernel.tile.space import schedule_of
from kcg.measure.inputs import buffers_of_kernels, make_inputs_of_kernels, numpy_dtype, to_values
from kcg.types import Region, Target, Variables

CHILD = Path(__file__).with_name("interpreter_child.py")
HAS_TRITON = importlib.util.find_spec("triton") is not None
WITHOUT = f"Triton is not installed: {pip_install('gpu')}"
POINTS = 512
MOST_PROGRAMS = 64  # of a random case: the interpreter takes one after another
POISON = 0x7E


@dataclass(frozen=True)
class Case:
    """One program of one kernel, with values of its variables."""

    region: Region
    program: TileSource
    variables: tuple[tuple[str, int], ...] = ()
    seed: int = 1
    inputs: Mapping[int, np.ndarray] = field(default_factory=dict)  # by slot, where they are not drawn


def random_program(
    kernel: TileKernel,
    target: Target,
    rng: Random,
    changed: Callable[[TileParameters], TileParameters] = lambda p: p,
) -> TileSource:
    """A program of random parameters, maybe changed, that is not of many."""
    for _ in range(60):
        p = random_parameters(kernel, target, rng)
        assert is_legal(kernel, target, p), p
        p = replace(p, fast_math=False)  # of large values the approximation is not as exact as the reference asks for
        program = generate_kernel(kernel, target, changed(p), interpreted=True)
        if max(launch.grid for launch in program.launches) <= MOST_PROGRAMS:
            return program
    raise AssertionError("no program of few launches")


def wrong_of(cases: Mapping[str, Case], folder: Path) -> dict[str, str]:
    """Of named cases those whose programs store something wrong, and what."""
    texts = compare(list(cases.values()), folder)
    return {name: text for name, text in zip(cases, texts, strict=True) if text}


def compare(cases: Sequence[Case], folder: Path, *, timeout_s: float = 240) -> list[str]:
    """Of each case what is wrong with what its program stored; empty where nothing is."""
    jobs, questions = [], [question_of(case) for case in cases]
    for number, (case, question) in enumerate(zip(cases, questions, strict=True)):
        name = f"case{number}"
        for key, bits in {**question.given, **_workspace(case)}.items():
            np.save(folder / f"{name}.{key}.npy", bits)
        (folder / f"{name}.py").write_text(case.program.source)
        launches = [asdict(launch) for launch in case.program.launches]
        jobs.append({"name": name, "launches": launches, "variables": dict(case.variables)})
    (folder / "jobs.json").write_text(json.dumps(jobs))
    _interpret(folder, timeout_s)
    return [
        _wrong(case, folder, f"case{number}", question)
        for number, (case, question) in enumerate(zip(cases, questions, strict=True))
    ]


def compile_first_choices(found: Iterable[tuple[Region, TileKernel]], gpu: Target) -> None:
    """Compile the prior's choice of each kernel, without a device. Raises what does not compile."""
    for region, kernel in found:
        compile_tile(region, schedule_of(default_parameters(kernel, gpu)), gpu)


# ---- the interpreter's process: one for all tests, since it takes longer to start than to run most programs


@cache
def _interpreter() -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, str(CHILD)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    atexit.register(_end, process)
    return process


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def _interpret(folder: Path, timeout_s: float) -> None:
    """Run the jobs of a folder. Raises RuntimeError if that takes longer, or ends the process."""
    process = _interpreter()
    assert process.stdin is not None and process.stdout is not None
    late = Timer(timeout_s, process.kill)
    late.start()
    try:
        process.stdin.write(f"{folder}\n")
        answer = process.stdout.readline()
    finally:
        late.cancel()
    if answer != f"{folder}\n":
        _interpreter.cache_clear()
        raise RuntimeError(f"the interpreter ended, or took more than {timeout_s} s")


# ---- what is given and what is right


@dataclass(frozen=True)
class Question:
    """What the programs of a region are given, and what they should store."""

    infos: dict[int, Any]
    given: dict[str, np.ndarray]  # every buffer's bytes before the run; what is only written is poisoned
    wanted: list[StoreValues]


def question_of(case: Case) -> Question:
    """What a case's program is given, and what it should store."""
    if case.inputs:
        return _asked(case.region, case.variables, case.seed, case.inputs)
    return _asked_of_drawn(case.region, case.variables, case.seed)


@lru_cache(maxsize=64)
def _asked_of_drawn(region: Region, variables: Variables, seed: int) -> Question:
    """Several programs of a region, one after another, have one reference."""
    return _asked(region, variables, seed, {})


def _asked(region: Region, variables: Variables, seed: int, inputs: Mapping[int, np.ndarray]) -> Question:
    chain = Chain(region)
    infos = {info.slot: info for info in buffers_of_kernels(chain.asts)}
    drawn = {**make_inputs_of_kernels(chain.asts, seed), **inputs}
    bits = {
        slot: np.asarray(drawn[slot][np.arange(info.size)]).view(np.uint8)
        if slot in drawn
        else np.full(info.size * info.itemsize, POISON, np.uint8)
        for slot, info in infos.items()
    }
    before = {slot: to_values(bits[slot].view(numpy_dtype(info.dtype)), info.dtype) for slot, info in infos.items()}
    points = chain.sample_points(POINTS, np.random.default_rng(seed), dict(variables))
    wanted = chain.on(before, dict(variables)).at(points)
    return Question(infos, {f"p{slot}": values for slot, values in bits.items()}, wanted)


def _workspace(case: Case) -> dict[str, np.ndarray]:
    if all(a.slot != WORKSPACE for a in case.program.launches[0].arguments):
        return {}
    return {"workspace": np.full(case.program.workspace_bytes, POISON, np.uint8)}


def _wrong(case: Case, folder: Path, name: str, question: Question) -> str:
    if (error := folder / f"{name}.error").exists():
        return error.read_text()
    taken = {a.slot for launch in case.program.launches for a in launch.arguments}
    written = set()
    for wanted in question.wanted:
        info = question.infos[wanted.slot]
        written.add(wanted.slot)
        after = np.load(folder / f"{name}.p{wanted.slot}.npy").view(numpy_dtype(info.dtype))
        got = np.asarray(to_values(after, info.dtype))[wanted.indices]
        if text := differing(wanted, got):
            return text
    for slot in taken & set(question.infos) - written:
        if not np.array_equal(np.load(folder / f"{name}.p{slot}.npy"), question.given[f"p{slot}"]):
            return f"buffer {slot} was changed"
    return ""


def differing(wanted: StoreValues, got: np.ndarray) -> str:
    """Which of the values that were looked at are wrong; empty where none is."""
    ratio = error_ratio(wanted, got)
    if not (ratio > CONFIDENT).any():
        return ""
    worst = int(np.argmax(ratio))
    return (
        f"{int((ratio > CONFIDENT).sum())} of {len(ratio)} are wrong: element {wanted.indices[worst]} of "
        f"buffer {wanted.slot} is {got[worst]}, not {wanted.values[worst]} ± {wanted.error[worst]}"
    )
