"""The small model under `kcg.tuned`, plainly and through TinyJit, and once more after the block.

`python tuned_model.py RESULT.json`. The last line of the output is the report, as JSON.
"""

import json
import sys

from small_model import normalised, output, table
from tinygrad import Tensor, TinyJit
from tinygrad.codegen import to_program_cache
from tinygrad.engine import realize

import kcg


def new_opts(body) -> list:
    """The Opts of the programs that `body` compiles."""
    before = set(to_program_cache)
    body()
    programs = [to_program_cache[key] for key in to_program_cache if key not in before]
    return [[[o.op.name, o.axis, o.arg] for o in p.src[0].arg.applied_opts] for p in programs]


@TinyJit
def jitted(a: Tensor, b: Tensor) -> Tensor:
    return normalised((a @ b).relu()).realize()


def jit() -> None:
    for _ in range(3):
        values["jit"] = jitted(table(32, 48).realize(), table(48, 64).realize()).tolist()


values: dict[str, list] = {}
original = realize.lower_and_compile
with kcg.tuned(sys.argv[1]):
    report = {"plain": new_opts(lambda: values.update(plain=output().tolist()))}
    to_program_cache.clear()  # else the jitted kernels would be found compiled
    report["jit"] = new_opts(jit)
report["restored"] = realize.lower_and_compile is original
report["after"] = new_opts(lambda: values.update(after=output().tolist()))
flat = {name: [x for row in rows for x in row] for name, rows in values.items()}
report["error"] = max(abs(a - b) for name in ("plain", "jit") for a, b in zip(flat[name], flat["after"], strict=True))
print(json.dumps(report))
