"""Compiles tile programs ahead of time: `python compiler_child.py FOLDER` reads FOLDER/jobs.json and the sources beside
it, and writes FOLDER/made.json."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

import triton
import triton.runtime.cache
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


def compiled(folder: Path, job: dict[str, Any], capability: int) -> dict[str, Any]:
    """What the compiler says of a program's first launch, after all compiled."""
    spec = importlib.util.spec_from_file_location(job["name"], folder / f"{job['name']}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = []
    for launch in job["launches"]:
        arguments = launch["arguments"]
        source = ASTSource(
            getattr(module, launch["entry"]),
            signature={a["name"]: a["type"] for a in arguments},
            constexprs={},
            attrs={(i,): [["tt.divisibility", 16]] for i, a in enumerate(arguments) if a["slot"] is not None},
        )
        options = {"num_warps": launch["num_warps"], "num_stages": launch["num_stages"]}
        made.append(triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options))
    text, metadata = made[0].asm["ptx"], made[0].metadata
    return {
        "error": "",
        "shared": metadata.shared,
        "scratch": metadata.global_scratch_size > 0,
        "tensor_core": next((name for name in ("wgmma", "tcgen05.mma", "mma.sync") if name in text), ""),
        "tanh": "tanh.approx.f32" in text,
        "reciprocal": "rcp.approx.ftz.f32" in text,
        "tf32": "tf32" in text,
        "conversions": sorted({line.split()[0] for line in text.splitlines() if line.strip().startswith("cvt.")}),
        "shuffles": text.count("shfl.sync"),
        "loads": sorted(set(re.findall(r"ld\.global\S*", text))),
        "stores": sorted(set(re.findall(r"st\.global\S*", text))),
    }


def main() -> None:
    triton.runtime.cache.triton_key = lambda: ""  # of a cache that is used once; it would hash half a gigabyte
    folder = Path(sys.argv[1])
    work = json.loads((folder / "jobs.json").read_text())
    made = {}
    for job in work["jobs"]:
        try:
            made[job["name"]] = compiled(folder, job, work["capability"])
        except Exception as error:
            made[job["name"]] = {"error": f"{type(error).__name__}: {error}", "shared": 0}
    (folder / "made.json").write_text(json.dumps(made))


if __name__ == "__main__":
    main()
