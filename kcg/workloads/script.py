"""Recording the kernels of any tinygrad script, by running it unchanged.

The script runs in a process of its own (`python -m kcg.workloads.script`), with its own folder first on `sys.path` and
its own arguments, so that nothing it does to tinygrad or to the process can disturb a search.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kcg.errors import KcgError, ScriptError, UsageError
from kcg.types import Kernel, Region, Workload, WorkloadCall


@contextlib.contextmanager
def _as_main(script: Path, arguments: Sequence[str]) -> Iterator[None]:
    """What a script expects of the process: `sys.argv`, and its folder first on `sys.path`."""
    argv, path, main = sys.argv, list(sys.path), sys.modules.get("__main__")
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv, path
        if main is not None:
            sys.modules["__main__"] = main


def record_script(script: Path, arguments: Sequence[str] = ()) -> Workload:
    """Run `script` in this process and record every kernel it executes, with how often.

    Its name is the workload's, its arguments are the preset. `sys.exit(0)` is a normal end. Raises UsageError where
    there is no such file, ScriptError where the script raises or exits with an error, or runs no kernel.
    """
    from kcg.compat.capture import recording
    from kcg.workloads.capture import to_workload

    if not script.is_file():
        raise UsageError(f"there is no script {script}")
    with recording() as recorder, _as_main(script, arguments):
        try:
            runpy.run_path(str(script), run_name="__main__")
        except SystemExit as stop:
            if stop.code not in (None, 0):
                raise ScriptError(f"{script} ended with exit code {stop.code}; run it alone first") from None
        except Exception as error:
            raise ScriptError(f"{script} raised {_where(error, script)}; run it alone first") from error
    here = os.environ["DEV"].split(":")[0]
    calls = [c for c in recorder.calls() if c.device.split(":")[0] == here]
    if elsewhere := sum(c.calls for c in recorder.calls()) - sum(c.calls for c in calls):
        sys.stderr.write(f"{elsewhere} kernel executions on other devices than {here} are left out\n")
    workload = to_workload(script.stem, " ".join(arguments), calls)
    if not workload.calls:
        raise ScriptError(f"{script} ran no tinygrad kernel: does it realise its tensors?")
    return workload


def workload_json(workload: Workload) -> dict[str, Any]:
    """A workload as plain JSON values."""
    calls = [
        {"ast": c.region.kernel.ast_json, "calls": c.calls, "variables": [list(v) for v in c.variables]}
        for c in workload.calls
    ]
    return {"name": workload.name, "preset": workload.preset, "calls": calls}


def workload_of(values: dict[str, Any]) -> Workload:
    """The workload that `workload_json` wrote."""
    calls = tuple(
        WorkloadCall(Region((Kernel(c["ast"]),)), c["calls"], tuple((name, value) for name, value in c["variables"]))
        for c in values["calls"]
    )
    return Workload(values["name"], values["preset"], calls)


def _where(error: BaseException, script: Path) -> str:
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if Path(f.filename) == script]
    text = (str(error).strip().splitlines() or [""])[0]
    place = f" (line {lines[-1]})" if lines else ""
    return f"{type(error).__name__}: {text}{place}" if text else f"{type(error).__name__}{place}"


def capture_script(script: Path, arguments: Sequence[str] = (), *, dev: str) -> Workload:
    """Record `script` in a child process; what it prints goes to stderr. Raises what `record_script` raises."""
    if not script.is_file():
        raise UsageError(f"there is no script {script}")
    with tempfile.TemporaryDirectory(prefix="kcg-capture-") as folder:
        out = Path(folder) / "workload.json"
        command = [sys.executable, "-m", "kcg.workloads.script", str(out), str(script), *arguments]
        done = subprocess.run(command, env={**os.environ, "DEV": dev}, stdout=sys.stderr.fileno(), check=False)
        if not out.exists():
            raise ScriptError(f"{script} ended its process (exit code {done.returncode}); run it alone first")
        answer = json.loads(out.read_text())
    if "error" in answer:
        raise (UsageError if answer["usage"] else ScriptError)(answer["error"])
    return workload_of(answer)


def main() -> None:
    """`python -m kcg.workloads.script OUT SCRIPT args…`: record a script and write its workload, or why not, to OUT."""
    from kcg.compat.device import prepare

    out, script, *arguments = sys.argv[1:]
    prepare(os.environ["DEV"])
    try:
        answer = workload_json(record_script(Path(script), arguments))
    except KcgError as error:
        answer = {"error": str(error), "usage": not isinstance(error, ScriptError)}
    Path(out).write_text(json.dumps(answer))


if __name__ == "__main__":
    # run as a module of the package, so that what the script imports does not see this one as __main__
    from kcg.workloads.script import main as main_of_the_package

    main_of_the_package()
