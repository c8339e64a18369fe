"""Which device and which clang are chosen, and that a machine without one is told so and still runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kcg.compat import device
from kcg.compat.cpu_opening import is_clang
from kcg.errors import DeviceError
from tests.commands import python


def _executable(path: Path, says: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine with no compiler at all: an empty PATH, no CC, no ziglang, a cache of its own."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("DEV", raising=False)
    monkeypatch.setitem(sys.modules, "ziglang", None)
    monkeypatch.setattr("kcg.clang.PathFinder", SimpleNamespace(find_spec=lambda name: None))
    return tmp_path


def test_without_clang_the_cpu_runs_through_the_assembler_and_says_so(bare: Path) -> None:
    choice = device.choose_device("CPU")
    assert choice.dev == "CPU:X86"
    assert "no clang found" in choice.why
    with pytest.raises(DeviceError, match="needs clang"):
        device.choose_device("CPU:CLANG")


def test_the_queue_mode_needs_clang_and_says_so(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEV", "CPU:X86")
    monkeypatch.setenv("HCQ2", "1")
    with pytest.raises(DeviceError, match="HCQ2=1 needs clang on the CPU"):
        device.prepare("CPU:X86")


def test_clang_of_the_machine_is_used(bare: Path) -> None:
    clang = _executable(bare / "bin" / "clang", "Debian clang version 14.0.6")
    assert device.clang_path() == str(clang)
    assert device.choose_device("CPU").dev == "CPU:CLANG"


def test_a_cc_that_is_another_compiler_is_not_taken_for_clang(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gcc = _executable(bare / "gcc" / "gcc", "gcc (Debian 12.2.0) 12.2.0")
    monkeypatch.setenv("CC", str(gcc))
    assert device.clang_path() is None
    assert device.choose_device("CPU").dev == "CPU:X86"


def test_what_the_users_programs_find_is_known_after_this_process_was_given_another(tmp_path: Path) -> None:
    """`kcg apply` and the end of a run name a `CC` that is needed, also where this process has it already."""
    clang = _executable(tmp_path / "kept" / "clang", "clang version 22")
    script = (
        "from kcg.compat import device\n"
        f"device.clang_path = lambda: {str(clang)!r}\n"
        "device.prepare('CPU:CLANG')\n"
        "print(device.clang_of_others(), device.clang_of_tinygrad())"
    )
    done = python("-c", script, PATH=str(tmp_path), CC="")
    assert done.stdout.split() == ["None", str(clang)], done.stderr


def test_the_wheel_ziglang_serves_as_clang_where_there_is_none(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script that is made calls `zig clang` with the same arguments, is made once, and becomes tinygrad's CC."""
    zig = _executable(bare / "site packages" / "ziglang" / "zig", "unused")
    zig.write_text('#!/bin/sh\necho "clang version 22 called with $*"\n')
    origin = zig.parent / "__init__.py"
    spec = type("Spec", (), {"origin": str(origin)})()
    found = SimpleNamespace(find_spec=lambda name: spec if name == "ziglang" else None)
    monkeypatch.setattr("kcg.clang.PathFinder", found)
    found = device.clang_path()
    assert found is not None and is_clang(found)
    made = Path(found).stat().st_mtime_ns
    assert device.clang_path() == found and Path(found).stat().st_mtime_ns == made
    report = subprocess.run([found, "-c", "-O2", "-"], capture_output=True, text=True, check=True).stdout
    assert report.strip() == "clang version 22 called with clang -c -O2 -"
    assert device.choose_device("auto").dev == "CPU:CLANG"


@pytest.mark.parametrize(("asked", "says"), [("TPU", "unknown device"), ("CPU:LLVM", "unknown CPU renderer")])
def test_an_unknown_device_is_refused_by_name(asked: str, says: str) -> None:
    with pytest.raises(DeviceError, match=says):
        device.choose_device(asked)


class OneGpu:
    """As much of libcuda as tells how many GPUs there are, and which."""

    def __init__(self, path: str = "") -> None:
        self.cuInit = lambda flags: 0
        self.cuDeviceGet = lambda device, ordinal: 0 if ordinal == 0 else 101

    def cuDeviceGetUuid_v2(self, uuid: Any, device: Any) -> int:
        uuid[:] = range(16)
        return 0


def test_a_gpu_has_the_name_that_the_parent_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert device.visible_gpu(1) == "1"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5, GPU-7f,2")
    assert [device.visible_gpu(gpu) for gpu in range(3)] == ["5", "GPU-7f", "2"]


def test_as_many_gpus_as_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "cuda_count", lambda: 2)
    cuda, cpu = device.DeviceChoice("CUDA:PTX", ""), device.DeviceChoice("CPU:X86", "")
    assert [device.check_gpus(cuda, wanted) for wanted in (None, 1, 2)] == [2, 1, 2]
    assert device.check_gpus(cpu, None) == 1
    with pytest.raises(DeviceError, match=r"^--gpus 3: CUDA:PTX has 2 here: give at most that many$"):
        device.check_gpus(cuda, 3)


def test_a_gpu_is_known_by_its_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device.ctypes, "CDLL", OneGpu)
    assert device.cuda_uuid() == "00010203-0405-0607-0809-0a0b0c0d0e0f"
    assert device.cuda_uuid(1) is None, "there is but one"
    monkeypatch.delattr(OneGpu, "cuDeviceGetUuid_v2")
    assert device.cuda_uuid() is None, "a driver before 11.4"
    monkeypatch.setattr(OneGpu, "__init__", lambda gpu, path: setattr(gpu, "cuInit", lambda flags: 100))
    assert device.cuda_uuid() is None and device.cuda_count() == 0, "no GPU is shown"
