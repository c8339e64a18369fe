"""Run a tinygrad script, unchanged, then say as JSON which Opts its programs have, how often BEAM compiled, and how
many kernels it searched.

`python report_opts.py SCRIPT [--stop-at-candidate]`. The last line of the output is the report.
"""

import json
import runpy
import sys

from tinygrad.codegen import to_program_cache
from tinygrad.codegen.opt import search

compiled = 0
try_compile = search._try_compile


def counted(candidate):
    global compiled
    compiled += 1
    if "--stop-at-candidate" in sys.argv:
        raise SystemExit(f"BEAM compiles {compiled}")
    return try_compile(candidate)


missed = 0
get_worker_pool = search.get_worker_pool


def searching():
    """What BEAM asks for first where its cache holds nothing."""
    global missed
    missed += 1
    return get_worker_pool()


search._try_compile = counted
search.get_worker_pool = searching
runpy.run_path(sys.argv[1], run_name="__main__")
opts = [[[o.op.name, o.axis, o.arg] for o in p.src[0].arg.applied_opts] for p in to_program_cache.values()]
print(json.dumps({"compiled": compiled, "opts": opts, "searched": missed}))
