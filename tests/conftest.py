"""What every test runs under: the CPU without a compiler, caches of its own, nothing from the user's shell.

All of it is set while this file is imported, which pytest does before any test module imports tinygrad.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import os
import platform
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kcg.cli import collect_rarely
from kcg.compat.device import choose_cpu, has_cuda, prepare
from tests.browser import CHROMIUM

ROOT = Path(__file__).parent.parent

# settings of tinygrad that a developer's shell may hold and that would change which kernels exist or how they compile
FOREIGN = (
    "BEAM",
    "DEBUG",
    "NOOPT",
    "JIT",
    "SPEC",
    "VIZ",
    "IMAGE",
    "PROFILE",
    "HCQ2",
    "TC",
    "TC_OPT",
    "USE_TC",
    "NOLOCALS",
    "EMULATED_DTYPES",
    "DEFAULT_FLOAT",
    "CACHELEVEL",
    "IGNORE_BEAM_CACHE",
    "BEAM_PADTO",
    "BEAM_ESTIMATE",
    "KCG_TRACEBACK",
)


M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3  # of malloc.h


def _cpu() -> str:
    """The X86 assembler where it works, even beside clang: the same kernels on every x86-64 machine."""
    return "CPU:X86" if platform.machine().lower() in ("x86_64", "amd64") else choose_cpu().dev


def _end_quietly() -> None:
    """Triton's bindings list on stderr, after all else, what they think has leaked where a process ends: no news."""
    if "triton._C.libtriton" in sys.modules:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def _keep_memory() -> None:
    """What NumPy frees stays with this process, whatever its size: to give it back and have it zeroed anew at the next
    array was a third of the time of programs that are simulated. On Linux with glibc; elsewhere nothing."""
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        for setting, value in ((M_MMAP_THRESHOLD, 32 << 20), (M_TRIM_THRESHOLD, 1 << 30), (M_TOP_PAD, 64 << 20)):
            mallopt(setting, value)


def _isolate() -> None:
    atexit.register(_end_quietly)
    # a shell that starts the tests in the background ignores SIGINT, `nohup` SIGHUP, and so would what they start
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    for name in FOREIGN:
        os.environ.pop(name, None)
    folder = tempfile.mkdtemp(prefix="kcg-tests-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["CACHEDB"] = str(Path(folder) / "cache.db")
    # of this checkout alone, and kept from run to run: compiling all tile programs anew takes minutes
    os.environ["XDG_CACHE_HOME"] = str(ROOT / ".pytest_cache" / "kcg")
    os.environ["PARALLEL"] = "0"  # a pool of compilers costs more than it saves on tiny kernels
    os.environ["KCG_CACHE_BYTES"] = str(32 << 20)  # a server has 480 MB: half of each command would go to emptying it
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # in each of hundreds of processes another thread spins for 60 ms first
    os.environ["WANDB_MODE"] = "disabled"
    os.environ["HF_HUB_OFFLINE"] = "1"
    # `python -m kcg...` in a subprocess finds this checkout, installed or not
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    prepare(CPU)


CPU = _cpu()
_keep_memory()
_isolate()
collect_rarely()  # nor later, after a command that a test runs here


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """What a command run by another test chose is not this one's device, nor that of a fixture that it shares."""
    if os.environ.get("DEV") != CPU:
        prepare(CPU)


@pytest.fixture(scope="session", autouse=True)
def commands_on_the_path() -> Iterator[None]:
    """What is printed to be typed is `kcg …` and `python …`, whatever environment the tests run in."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kcg.shell.script_here", lambda: "kcg")
        patch.setattr("kcg.shell.interpreter_here", lambda: "python")
        yield


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """What was imported and collected stays: looking for cycles among it finds none. The environment of now is that of
    a fork server: one that a single test changed, which may start the first, would leave all others without one."""
    gc.collect()
    gc.freeze()
    from kcg.measure.pools import _server

    _server.may_fork()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    """pytest looks for cycles five times when it ends, for what failed while it was deleted: once finds it."""
    gc.collect()
    gc.freeze()


COMPUTING = ("zoo", "kernel", "tile")
"""Folders whose tests wait for nothing: they run while those of faults and fleets, which are timed, do."""
LONGEST = (
    "test_fleet",
    "test_two_hosts",
    "test_readme",
    "test_whole_script",
    "test_capture",
    "test_optimize",
    "test_toy_kind",
    "test_stored",
    "test_handwritten",
    "test_fleet_search",
    "test_region_plans",
    "test_region_faults",
    "test_programs",
    "test_budget",
    "test_ahead",
    "test_recorded_script",
    "test_incumbent",
    "test_flux_in_diffusers",
    "test_deployed_plan",
    "test_apply_and_tuned",
    "test_symbolic_regions",
    "test_whole_model",
    "test_compiling",
    "test_tile_handover",
    "test_autotuned",
    "test_faults_processes",
    "test_faults_outside",
    "test_fault_catalogue",
    "test_faults_compilers",
    "test_ui_browser",
    "test_run",
    "test_card",
    "test_train_policy",
)
"""Files of ten seconds or more by `pytest --durations=0`, the longest first: nothing long is left for the end."""


def _turn(item: pytest.Item) -> int:
    if item.path.parent.name in COMPUTING:
        return 0
    return 1 + (LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What computes first, then the longest files; skip by name what this machine cannot run."""
    items.sort(key=_turn)
    missing = {}
    if not has_cuda():
        missing["gpu"] = "needs an NVIDIA GPU: the CUDA driver finds none"
    if CHROMIUM is None:
        missing["browser"] = "needs headless Chromium: none is on the path"
    for item in items:
        for marker, reason in missing.items():
            if marker in item.keywords:
                item.add_marker(pytest.mark.skip(reason=reason))
