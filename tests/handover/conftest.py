"""A small result on tinygrad's X86 assembler, and its file; a module that needs another has one of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcg.compat.device import prepare
from kcg.kernel.kinds import ACTION_SPACE_VERSION
from kcg.measure.device_info import detect
from kcg.report.result import write_result
from kcg.types import Result
from tests.small_result import small_result


@pytest.fixture(scope="module")
def result() -> Result:
    prepare("CPU:X86")
    return small_result(*detect("CPU:X86", ACTION_SPACE_VERSION))


@pytest.fixture
def stored(result: Result, tmp_path: Path) -> Path:
    write_result(result, tmp_path / "RESULT.json")
    return tmp_path / "RESULT.json"
