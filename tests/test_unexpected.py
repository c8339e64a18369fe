"""A look that fails with an exception that nobody expected: a warning with its place, once, and others go on."""

from __future__ import annotations

import re
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any

import pytest

from kcg.errors import CodecError, DeviceError, ScheduleError, VerificationError
from kcg.kernel.reading.unsupported import UnsupportedTile
from kcg.measure.protocol import median
from kcg.unexpected import looking, place_of, report, reported_to


def lines_of(*errors: Exception) -> list[str]:
    lines: list[str] = []
    with reported_to(lines.append):
        for error in errors:
            with looking("a program"):
                raise error
    return lines


def test_a_refusal_is_an_answer() -> None:
    assert lines_of(UnsupportedTile("rows"), ScheduleError("no"), CodecError("no"), VerificationError("no")) == []


def test_anything_else_is_told_once_with_its_place() -> None:
    (line,) = lines_of(ValueError("min() arg is an\nempty sequence"), ValueError("min() arg is an empty sequence"))
    assert line.startswith("looking for a program failed unexpectedly, and the run goes on without: ")
    assert re.search(r"test_unexpected\.py:\d+: ValueError: min\(\) arg is an empty sequence$", line)


def test_an_error_of_the_device_ends_the_look_and_the_run() -> None:
    with pytest.raises(DeviceError):
        lines_of(DeviceError("gone"))


def test_the_place_is_the_innermost_line_of_kcg() -> None:
    with pytest.raises(Exception) as caught:
        median([])
    assert re.match(r"kcg/measure/protocol\.py:\d+: \w+: .", place_of(caught.value))


def test_the_place_in_another_process_comes_along() -> None:
    with ProcessPoolExecutor(1) as pool:
        failed: Future[Any] = pool.submit(median, [])
        error = failed.exception()
    assert error is not None and re.match(r"kcg/measure/protocol\.py:\d+: ", place_of(error))


def test_each_run_is_told() -> None:
    error = KeyError("x")
    for _ in range(2):
        lines: list[str] = []
        with reported_to(lines.append):
            report("a program", error)
            report("a program", error)
        assert len(lines) == 1
