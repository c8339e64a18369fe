"""Counting what generates: kernels of tests that are scheduled only, and reasons of refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from evaluation.tiles.coverage import Found, summed
from evaluation.tiles.operators import kernels_of_tests
from kcg.errors import UsageError
from kcg.types import Kernel
from tests.kernels import example_region
from tests.known_targets import KNOWN_TARGETS

TESTS = """
import unittest
from tinygrad import Tensor

class TestOps(unittest.TestCase):
  def test_add(self):
    x = Tensor([1.0, 2.0, 3.0])
    (x.reshape(3, 1).expand(3, 4).contiguous() + 1).realize()
    (x * x).sum().gradient(x)[0].tolist()
  def test_wrong(self):
    self.assertEqual(1, 2)
  @unittest.skip("slow")
  def test_slow(self): pass
"""


def test_operator_tests_are_scheduled_and_not_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no checkout"):
        kernels_of_tests(tmp_path)
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "test_ops.py").write_text(TESTS)
    kernels, tests = kernels_of_tests(tmp_path)
    assert len(kernels) >= 2 and all(isinstance(kernel, Kernel) for kernel in kernels)
    assert (tests["run"], tests["skipped"], tests["left_out"]) == (3, 1, {})
    assert [name.rpartition(".")[2] for name in tests["failed"]] == ["test_wrong"]
    found = Found()
    assert all(found.try_kernel(kernel, KNOWN_TARGETS["sm_90"]) for kernel in kernels)


def test_what_is_refused_is_counted_by_its_reason() -> None:
    found = Found()
    for name in ("matmul_f16", "gelu", "sharded.2"):
        found.try_kernel(example_region(name).kernel, KNOWN_TARGETS["sm_90"])
    row = found.row()
    assert (row["kernels"], row["generated"], row["refused"]) == (3, 2, {"range over devices": 1})
    assert row["forms"] == {"contraction": 1, "elementwise": 1}
    assert 0 < row["generate_read_ms"] < row["generate_ms"]
    assert summed({"one": row, "two": row})["zoo_generated"] == pytest.approx(2 / 3, rel=1e-4)
