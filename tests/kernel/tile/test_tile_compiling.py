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
from kcg.kernel.tile.fuse import read_region
from kcg.kernel.tile.generate import generate
from kcg.kernel.tile.ir import read_kernel
from kcg.kernel.tile.legal import random_parameters
from kcg.kernel.tile.prior import default_parameters
from kcg.kernel.tile.program import TileRefusal, TileSource
from kcg.types import Region
from tests.chains import region_of
from tests.kernel.tile.random_chains import FAMILIES as CHAIN_FAMILIES
from tests.kernel.tile.random_chains import random_chain
from tests.kernel.tile.random_kernels import FAMILIES, random_kernel
from tests.kernel.tile.running import HAS_TRITON, WITHOUT
from tests.kernel.tile.test_tile_programs import EXAMPLES
from tests.kernel.tile.test_tile_regions import CHAINS, activation_beside, projection, split_sum
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
    assert made["linear_gelu"]["tanh"] and not made["float32"]["tf32"]
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


def fused_regions() -> dict[str, Region]:
    """Norms, softmax and losses as models have them, and what is made of projections."""
    x = empty(512, 3072, dtype="bfloat16")
    wide = x.float()
    scale, shift, weight = (empty(3072, dtype="bfloat16") for _ in range(3))
    logits, labels = empty(64, 50304, dtype="bfloat16"), empty(64, dtype="int32")
    large = {
        "large_softmax": (empty(4096, 4096, dtype="bfloat16").softmax(-1),),
        "modulated": (x.layernorm().cast("bfloat16") * (1 + scale) + shift,),
        "long_loss": (logits.float().sparse_categorical_crossentropy(labels, reduction="none"),),
        "large_rms": (weight * (wide * (wide.square().mean(-1, keepdim=True) + 1e-6).rsqrt()).cast("bfloat16"),),
    }  # fmt: skip
    small = {chain.__name__: (chain("bfloat16"),) for chain in CHAINS}
    products = {chain.__name__: chain("bfloat16") for chain in (projection, activation_beside, split_sum)}
    exact = {f"{chain.__name__}_float32": chain("float32") for chain in (projection, split_sum)}
    return {name: region_of(*tensors) for name, tensors in {**large, **small, **products, **exact}.items()}


@pytest.mark.parametrize("arch", ["sm_90", pytest.param("sm_80", marks=pytest.mark.slow)])
def test_programs_of_several_kernels_compile(arch: str, tmp_path: Path) -> None:
    """The prior's choice of each region, and one of random parameters; none takes more shared memory than there is."""
    target, programs = KNOWN_TARGETS[arch], dict[str, TileSource]()
    for name, region in fused_regions().items():
        kernel = read_region(region)
        assert len(region.kernels) > 1
        programs[name] = generate(region, target, default_parameters(kernel, target))
        programs[f"{name}_random"] = generate(region, target, random_parameters(kernel, target, Random(name)))
    made = compiled(programs, arch, tmp_path)
    assert all(row["shared"] <= (227 << 10 if arch == "sm_90" else 163 << 10) for row in made.values())
    for name in ("projection", "activation_beside", "split_sum"):
        assert made[name]["tensor_core"]


@pytest.mark.slow
def test_random_programs_of_random_chains_compile(tmp_path: Path) -> None:
    target, programs = KNOWN_TARGETS["sm_90"], dict[str, TileSource]()
    for family in CHAIN_FAMILIES:
        for seed in range(10):
            sequence = random_chain(family, seed)
            region = sequence.region(*range(len(sequence.calls)))
            try:
                parameters = random_parameters(read_region(region), target, Random(seed))
                programs[f"{family.__name__}_{seed}"] = generate(region, target, parameters)
            except TileRefusal:
                continue
    assert len(programs) > 35
    compiled(programs, "sm_90", tmp_path)
