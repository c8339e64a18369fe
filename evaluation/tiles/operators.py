"""The kernels of tinygrad's own operator tests, scheduled and not run.

    python -m evaluation.tiles.operators CHECKOUT KERNELS.json

CHECKOUT is one of tinygrad's repository at the revision that is installed; its `test_ops.py` runs here, forward and
backward, in a process of its own. Whatever is about to be planned is written down and then dropped, so that no kernel
is compiled or run; on the device `NULL` the tests compare nothing. KERNELS.json holds each kernel once, as canonical
JSON, and of the tests how many ran and what became of them. Nothing of it is committed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import unittest
from collections import Counter
from pathlib import Path
from typing import Any

from kcg.compat.capture import why_fixed
from kcg.compat.planning import before_planning
from kcg.errors import CodecError, UsageError
from kcg.provenance import provenance
from kcg.types import Kernel

PLACES = ("test/backend/test_ops.py", "test/test_ops.py")
TIMEOUT_S = 3600.0


def tests_of(checkout: Path) -> Path:
    """The file of the operator tests in a checkout. Raises UsageError where there is none."""
    found = next((checkout / place for place in PLACES if (checkout / place).is_file()), None)
    if found is None:
        raise UsageError(f"{checkout} has none of {', '.join(PLACES)}: it is no checkout of tinygrad's repository")
    return found


def kernels_of_tests(checkout: Path) -> tuple[list[Kernel], dict[str, Any]]:
    """Each kernel of the operator tests once, and what became of the tests, by a child. Where `checkout` is a file, a
    child wrote it before."""
    with tempfile.TemporaryDirectory() as folder:
        out = checkout
        if not checkout.is_file():
            tests_of(checkout)
            out = Path(folder) / "kernels.json"
            environment = {**os.environ, "DEV": "NULL", "NULL_ALLOW_COPYOUT": "1"}
            command = [sys.executable, "-m", __spec__.name, str(checkout), str(out)]
            subprocess.run(command, env=environment, check=True, timeout=TIMEOUT_S)
        found = json.loads(out.read_text())
    return [Kernel(text) for text in found["kernels"]], found["tests"]


def scheduled(path: Path) -> tuple[list[Any], unittest.TestResult]:
    """The ASTs that the tests of a file would compile, in order, each once."""
    from kcg.compat.tiny import Ops, UOp

    seen: dict[UOp, None] = {}

    def noted(linear: UOp, _module: str) -> UOp:
        kernels = [call for call in linear.src if call.op is Ops.CALL and call.src[0].op is Ops.SINK]
        seen.update(dict.fromkeys(call.src[0] for call in kernels))
        return linear.replace(src=tuple(call for call in linear.src if call not in kernels))

    with before_planning(noted):
        result = unittest.TestResult()
        unittest.defaultTestLoader.discover(str(path.parent), pattern=path.name).run(result)
    return list(seen), result


def main() -> None:
    """The child of `kernels_of_tests`."""
    from kcg.kernel.codec import kernel_of

    asts, result = scheduled(tests_of(Path(sys.argv[1])))
    kernels, left_out = dict[str, Kernel](), Counter[str]()
    for ast in asts:
        if reason := why_fixed(ast):
            left_out[reason] += 1
            continue
        try:
            kernel = kernel_of(ast)
        except CodecError as error:
            left_out[str(error)] += 1
            continue
        kernels[kernel.id] = kernel
    wrong = [test.id() for test, _ in (*result.errors, *result.failures)]
    tests = {"run": result.testsRun, "skipped": len(result.skipped), "failed": sorted(wrong), "left_out": left_out}
    found = {"kernels": [k.ast_json for k in kernels.values()], "tests": tests, **provenance()}
    Path(sys.argv[2]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
