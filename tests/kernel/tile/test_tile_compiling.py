"""Generated programs compile for GPUs that need not be here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from kcg.kernel.codec import kernel_of
from kcg.kernel.tile.generate import generate
from kcg.kernel.tile.ir import read_kernel
from kcg.kernel.tile.prior import default_parameters
from kcg.types import Region
from tests.kernel.tile.running import HAS_TRITON, WITHOUT
from tests.kernels import empty, example_region, kernels_of
from tests.known_targets import KNOWN_TARGETS

CHILD = Path(__file__).with_name("compiler_child.py")
pytestmark = pytest.mark.skipif(not HAS_TRITON, reason=WITHOUT)


def regions() -> dict[str, Region]:
    names = ("matmul_bf16", "matmul_int8", "softmax.2", "conv2d", "embedding", "symbolic", "gelu", "rand.1", "product")
    large = {
        "linear_gelu": (empty(1024, 512, dtype="bfloat16") @ empty(2048, 512, dtype="bfloat16").T).gelu(),
        "linear": empty(4096, 1024, dtype="float16") @ empty(4096, 1024, dtype="float16").T,
        "decode": empty(1, 4096, dtype="float16") @ empty(4096, 1024, dtype="float16"),
    }
    made = {name: Region((kernel_of(kernels_of(x)[-1]),)) for name, x in large.items()}
    return {**{name: example_region(name) for name in names}, **made}


@pytest.mark.parametrize("arch", ["sm_90", pytest.param("sm_80", marks=pytest.mark.slow)])
def test_programs_compile(arch: str, tmp_path: Path) -> None:
    """The prior's choice of each; the large ones use the tensor cores of the architecture, descriptors where it has
    them, and stay within its shared memory."""
    target, jobs = KNOWN_TARGETS[arch], []
    for name, region in regions().items():
        program = generate(region, target, default_parameters(read_kernel(region), target))
        (tmp_path / f"{name.replace('.', '_')}.py").write_text(program.source)
        jobs.append({"name": name.replace(".", "_"), "launches": [asdict(launch) for launch in program.launches]})
    (tmp_path / "jobs.json").write_text(json.dumps({"capability": int(arch[3:]), "jobs": jobs}))
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run(
        [sys.executable, str(CHILD), str(tmp_path)], env=environment, timeout=300, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    made = json.loads((tmp_path / "made.json").read_text())
    assert set(made) == {job["name"] for job in jobs}
    assert not {name: row["error"] for name, row in made.items() if row["error"]}
    assert all(row["shared"] <= (227 << 10 if arch == "sm_90" else 163 << 10) for row in made.values())
    for name in ("linear", "linear_gelu"):
        assert made[name]["tensor_core"] == ("wgmma" if arch == "sm_90" else "mma.sync")
        assert made[name]["scratch"] == (arch == "sm_90")
    assert made["linear_gelu"]["tanh"]
