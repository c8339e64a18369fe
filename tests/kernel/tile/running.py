"""Tile programs run by Triton's interpreter and compared with the float64 reference."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kcg.kernel.arithmetic import CONFIDENT
from kcg.kernel.chain import Chain
from kcg.kernel.reference import error_ratio
from kcg.kernel.tile.program import WORKSPACE, TileSource
from kcg.measure.inputs import buffers_of_kernels, make_inputs_of_kernels, to_values
from kcg.types import Region

CHILD = Path(__file__).with_name("interpreter_child.py")
HAS_TRITON = importlib.util.find_spec("triton") is not None
WITHOUT = "Triton is not installed: pip install 'kcg[gpu]'"
POINTS = 512


@dataclass(frozen=True)
class Case:
    """One program of one kernel, with values of its variables."""

    region: Region
    program: TileSource
    variables: tuple[tuple[str, int], ...] = ()
    seed: int = 1
    inputs: Mapping[int, np.ndarray] = field(default_factory=dict)  # by slot, where they are not drawn


def wrong_of(cases: Mapping[str, Case], folder: Path) -> dict[str, str]:
    """Of named cases those whose programs store something wrong, and what."""
    texts = compare(list(cases.values()), folder)
    return {name: text for name, text in zip(cases, texts, strict=True) if text}


def compare(cases: Sequence[Case], folder: Path, *, timeout_s: float = 240) -> list[str]:
    """Of each case what is wrong with what its program stored; empty where nothing is."""
    jobs, given = [], []
    for number, case in enumerate(cases):
        chain, name = Chain(case.region), f"case{number}"
        bits = _buffers(chain, case, {**make_inputs_of_kernels(chain.asts, case.seed), **case.inputs})
        given.append(bits)
        for key, array in bits.items():
            np.save(folder / f"{name}.{key}.npy", array.view(np.uint8))
        (folder / f"{name}.py").write_text(case.program.source)
        launches = [asdict(launch) for launch in case.program.launches]
        jobs.append({"name": name, "launches": launches, "variables": dict(case.variables)})
    (folder / "jobs.json").write_text(json.dumps(jobs))
    subprocess.run([sys.executable, str(CHILD), str(folder)], check=True, timeout=timeout_s)
    return [_wrong(case, folder, f"case{number}", given[number]) for number, case in enumerate(cases)]


def _buffers(chain: Chain, case: Case, inputs: dict[int, Any]) -> dict[str, np.ndarray]:
    """Every buffer's bits before the run; what is only written is poisoned."""
    made = {}
    for info in buffers_of_kernels(chain.asts):
        if info.slot in inputs:
            made[f"p{info.slot}"] = np.asarray(inputs[info.slot][np.arange(info.size)])
        else:
            made[f"p{info.slot}"] = np.full(info.size * info.itemsize, 0x7E, np.uint8)
    if any(a.slot == WORKSPACE for a in case.program.launches[0].arguments):
        made["workspace"] = np.full(case.program.workspace_bytes, 0x7E, np.uint8)
    return made


def _wrong(case: Case, folder: Path, name: str, given: dict[str, np.ndarray]) -> str:
    if (error := folder / f"{name}.error").exists():
        return error.read_text()
    chain, variables = Chain(case.region), dict(case.variables)
    infos = {info.slot: info for info in buffers_of_kernels(chain.asts)}
    before = {slot: to_values(given[f"p{slot}"].view(_bits(info)), info.dtype) for slot, info in infos.items()}
    taken = {a.slot for launch in case.program.launches for a in launch.arguments}
    points = chain.sample_points(POINTS, np.random.default_rng(case.seed), variables)
    written = set()
    for wanted in chain.on(before, variables).at(points):
        info = infos[wanted.slot]
        written.add(wanted.slot)
        after = np.load(folder / f"{name}.p{wanted.slot}.npy").view(_bits(info))
        got = np.asarray(to_values(after, info.dtype))[wanted.indices]
        ratio = error_ratio(wanted, got)
        if (ratio > CONFIDENT).any():
            worst = int(np.argmax(ratio))
            return (
                f"{int((ratio > CONFIDENT).sum())} of {len(ratio)} are wrong: element {wanted.indices[worst]} of "
                f"buffer {wanted.slot} is {got[worst]}, not {wanted.values[worst]} ± {wanted.error[worst]}"
            )
    for slot in taken & set(infos) - written:
        now = np.load(folder / f"{name}.p{slot}.npy")
        if not np.array_equal(now, given[f"p{slot}"].view(np.uint8)):
            return f"buffer {slot} was changed"
    return ""


def _bits(info: Any) -> Any:
    from kcg.measure.inputs import numpy_dtype

    return numpy_dtype(info.dtype)
