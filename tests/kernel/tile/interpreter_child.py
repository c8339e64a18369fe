"""Runs tile programs in Triton's interpreter: a process of its own, since one that interprets cannot compile.

`python interpreter_child.py FOLDER`: reads FOLDER/jobs.json and the arrays beside it, and writes each buffer after the
program ran as FOLDER/<job>.<name>.npy, or what the program raised as FOLDER/<job>.error.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch

TYPES = {
    "*i1": torch.bool, "*i8": torch.int8, "*u8": torch.uint8, "*i16": torch.int16, "*u16": torch.uint16,
    "*i32": torch.int32, "*u32": torch.uint32, "*i64": torch.int64, "*u64": torch.uint64, "*fp16": torch.float16,
    "*bf16": torch.bfloat16, "*fp32": torch.float32, "*fp64": torch.float64, "*fp8e4nv": torch.float8_e4m3fn,
    "*fp8e5": torch.float8_e5m2,
}  # fmt: skip


def run(folder: Path, job: dict[str, Any]) -> None:
    """One program: its buffers are read from files and written back."""
    name = job["name"]
    path = folder / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"job_{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    buffers: dict[str, torch.Tensor] = {}
    for launch in job["launches"]:
        arguments = []
        for argument in launch["arguments"]:
            if argument["slot"] is None:
                arguments.append(job["variables"][argument["variable"]])
                continue
            if argument["name"] not in buffers:
                bits = torch.from_numpy(np.load(folder / f"{name}.{argument['name']}.npy"))
                buffers[argument["name"]] = bits.view(TYPES[argument["type"]])
            arguments.append(buffers[argument["name"]])
        getattr(module, launch["entry"])[(launch["grid"],)](*arguments)
    for key, buffer in buffers.items():
        np.save(folder / f"{name}.{key}.npy", buffer.view(torch.uint8).numpy())


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    np.seterr(all="ignore")
    for job in json.loads((folder / "jobs.json").read_text()):
        try:
            run(folder, job)
        except Exception as error:
            (folder / f"{job['name']}.error").write_text(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
