"""Generated programs compile for GPUs that need not be here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kcg.kernel.codec import kernel_of
from kcg.kernel.tile.generate import generate
from kcg.kernel.tile.ir import read_kernel
from kcg.kernel.tile.legal import random_parameters
from kcg.kernel.tile.prior import default_parameters
from kcg.kernel.tile.program import TileSource
from kcg.types import Region
from tests.kernel.tile.random_kernels import FAMILIES, random_kernel
from tests.kernel.tile.running import HAS_TRITON, WITHOUT
from tests.kernel.tile.test_tile_programs import EXAMPLES
from tests.kernels import empty, example_region, kernels_of
from tests.known_targets import KNOWN_TARGETS

CHILD = Path(__file__).with_name("compiler_child.py")
pytestmark = pytest.mark.skipif(not HAS_TRITON, reason=WITHOUT)


def regions() -> dict[str, Region]:
    large = {
        "linear_gelu": (empty(1024, 512, dtype="bfloat16") @ empty(2048, 512, dtype="bfloat16").T).gelu(),
        "linear": empty(4096, 1024, dtype="float16") @ empty(4096, 1024, dtype="float16").T,
        "decode": empty(1, 4096, dtype="float16") @ empty(4096, 1024, dtype="float16"),
        "float32": empty(256, 512) @ empty(512, 256),
        "int8": empty(512, 512, dtype="int8").dot(empty(512, 512, dtype="int8").T, dtype="int32"),
        "fp8e5m2": empty(512, 512, dtype="fp8e5m2").dot(empty(512, 512, dtype="fp8e5m2").T, dtype="float32"),
    }
    made = {name: Region((kernel_of(kernels_of(x)[-1]),)) for name, x in large.items()}
    return {**{name: example_region(name) for name in EXAMPLES}, **made}


def compiled(programs: dict[str, TileSource], arch: str, folder: Path) -> dict[str, dict[str, Any]]:
    """What the compiler says of each program, made in one child; none may fail."""
    jobs = []
    for name, program in programs.items():
        (folder / f"{name.replace('.', '_')}.py").write_text(program.source)
        jobs.append({"name": name.replace(".", "_"), "launches": [asdict(launch) for launch in program.launches]})
    (folder / "jobs.json").write_text(json.dumps({"capability": int(arch[3:]), "jobs": jobs}))
    environment = {**os.environ, "TRITON_CACHE_DIR": str(folder / "cache")}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run(
        [sys.executable, str(CHILD), str(folder)], env=environment, timeout=600, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    made: dict[str, dict[str, Any]] = json.loads((folder / "made.json").read_text())
    assert set(made) == {job["name"] for job in jobs}
    assert not {name: row["error"] for name, row in made.items() if row["error"]}
    return made


@pytest.mark.parametrize("arch", ["sm_90", pytest.param("sm_80", marks=pytest.mark.slow)])
def test_every_example_compiles(arch: str, tmp_path: Path) -> None:
    """The prior's choice of each; the large ones use the tensor cores of the architecture, descriptors where it has
    them, and stay within its shared memory."""
    target = KNOWN_TARGETS[arch]
    programs = {n: generate(of, target, default_parameters(read_kernel(of), target)) for n, of in regions().items()}
    made = compiled(programs, arch, tmp_path)
    assert all(row["shared"] <= (227 << 10 if arch == "sm_90" else 163 << 10) for row in made.values())
    for name in ("linear", "linear_gelu"):
        assert made[name]["tensor_core"] == ("wgmma" if arch == "sm_90" else "mma.sync")
        assert made[name]["scratch"] == (arch == "sm_90")
    assert made["linear_gelu"]["reciprocal"] and not made["linear_gelu"]["tanh"] and not made["float32"]["tf32"]
    assert made["int8"]["tensor_core"] and made["fp8e5m2"]["tensor_core"]


@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(2, 40), marks=pytest.mark.slow)], ids=["some", "many"])
def test_random_programs_of_random_kernels_compile(seeds: range, tmp_path: Path) -> None:
    target, programs = KNOWN_TARGETS["sm_90"], dict[str, TileSource]()
    for family in FAMILIES:
        for seed in seeds:
            region = Region((kernel_of(random_kernel(family, seed)),))
            parameters = random_parameters(read_kernel(region), target, Random(seed))
            programs[f"{family.__name__}_{seed}"] = generate(region, target, parameters)
    compiled(programs, "sm_90", tmp_path)


def test_hints_about_neighbours_leave_stores_as_narrow_as_they_are(tmp_path: Path) -> None:
    """Rows of 49 elements are aligned to nothing: no two of them may be stored at once."""
    target, programs = KNOWN_TARGETS["sm_90"], dict[str, TileSource]()
    for size in (7, 8):
        x, w = empty(4, 32, size, size, dtype="float16"), empty(64, 32, 1, 1, dtype="float16")
        region = Region((kernel_of(kernels_of(x.conv2d(w))[-1]),))
        programs[f"of_{size}"] = generate(region, target, default_parameters(read_kernel(region), target))
    assert [text.source.count("max_contiguous") > 0 for text in programs.values()] == [True, False]
    made = compiled(programs, "sm_90", tmp_path)
    assert made["of_7"]["stores"] == ["st.global.b16"] and "st.global.b16" not in made["of_8"]["stores"]
