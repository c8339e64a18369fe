"""A GPU is a record: what is legal, chosen and expected for it follows from that alone."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import pytest

from kcg.kernel.reading.fuse import read_region
from kcg.kernel.targets import TARGETS
from kcg.kernel.tile.cost import predicted_seconds
from kcg.kernel.tile.device import DEVICES, Product, device_of, unsupported
from kcg.kernel.tile.generate import generate_kernel
from kcg.kernel.tile.legal import is_legal, random_parameters
from kcg.kernel.tile.parameters import TMA
from kcg.kernel.tile.prior import default_parameters
from tests.chains import region_of
from tests.kernels import empty
from tests.known_targets import KNOWN_TARGETS

TARGET = replace(KNOWN_TARGETS["sm_90"], arch="sm_99", model="made up")
MATMUL = region_of((empty(512, 512, dtype="bfloat16") @ empty(512, 768, dtype="bfloat16")).gelu())
SOFTMAX = region_of(empty(512, 1024).softmax())


def test_another_device_is_one_record(monkeypatch: pytest.MonkeyPatch) -> None:
    known = DEVICES["sm_90"]
    made_up = replace(
        known, arch="sm_99", capability=99, shared_bytes=40 << 10, has_tma=False, has_wgmma=False,
        products=(Product(16, 8, 16, ("half", "__bf16")),), figures=replace(known.figures, tensor_ops=1e11),
    )  # fmt: skip
    monkeypatch.setitem(DEVICES, "sm_99", made_up)
    assert not unsupported(TARGET) and device_of(TARGET) is made_up
    for region in (MATMUL, SOFTMAX):
        kernel, rng = read_region(region), Random(1)
        first = default_parameters(kernel, TARGET)
        for p in (first, *(random_parameters(kernel, TARGET, rng) for _ in range(8))):
            assert is_legal(kernel, TARGET, p) and p.loads != TMA
            assert math.isfinite(predicted_seconds(kernel, TARGET, p)) and generate_kernel(kernel, TARGET, p).source
    slow = predicted_seconds(read_region(MATMUL), TARGET, default_parameters(read_region(MATMUL), TARGET))
    fast = predicted_seconds(read_region(MATMUL), TARGETS["sm_90"], default_parameters(read_region(MATMUL), TARGET))
    assert slow > 3 * fast, "its tensor cores are slow"


def test_an_architecture_without_a_record_has_that_of_the_one_before_it() -> None:
    """As much shared memory as tinygrad reports of it is all that is known."""
    later = device_of(TARGET)
    assert later == replace(DEVICES["sm_90"], arch="sm_99", capability=99, shared_bytes=TARGET.shared_bytes)
    assert not unsupported(TARGET)
    assert device_of(replace(TARGET, arch="sm_90a")) is DEVICES["sm_90"]
    for arch in ("sm_75", "gfx1100", "Apple9"):
        other = replace(TARGET, arch=arch, device="CUDA" if arch == "sm_75" else "AMD")
        assert device_of(other).runtimes == () and unsupported(other).endswith(f"not for {other.device} {arch}")
