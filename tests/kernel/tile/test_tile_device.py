"""A GPU is a record: what is legal, chosen and expected for it follows from that alone."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import pytest

from kcg.kernel.reading.fuse import read_region
from kcg.kernel.targets import TARGETS
from kcg.kernel.tile.cost import predicted_seconds
from kcg.kernel.tile.device import DEVICES, Product, device_of, figures_of, unsupported
from kcg.kernel.tile.forms import plan_of
from kcg.kernel.tile.generate import generate_kernel
from kcg.kernel.tile.legal import is_legal, legal_values, random_parameters, starts
from kcg.kernel.tile.parameters import TF32, TMA
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


@pytest.mark.parametrize(
    ("arch", "shared", "threads", "programs"),
    [
        ("sm_80", 164, 2_048, 32), ("sm_86", 100, 1_536, 16), ("sm_87", 164, 1_536, 16), ("sm_89", 100, 1_536, 24),
        ("sm_90", 228, 2_048, 32), ("sm_100", 228, 2_048, 32), ("sm_103", 228, 2_048, 32), ("sm_110", 228, 1_536, 24),
        ("sm_120", 100, 1_536, 24), ("sm_121", 100, 1_536, 24),
    ],
)  # fmt: skip
def test_what_nvidias_multiprocessors_hold_is_as_published(arch: str, shared: int, threads: int, programs: int) -> None:
    """KB of shared memory, threads and programs, as libcu++ has them (`cuda/__device/arch_traits.h`)."""
    device = DEVICES[arch]
    assert device.shared_bytes + device.reserved_bytes == shared << 10 and device.reserved_bytes == 1 << 10
    assert (device.threads_at_once, device.programs_at_once) == (threads, programs)
    assert (device.warp, device.registers, device.registers_of_one) == (32, 65_536, 255)
    assert device.threads_of_program == 1_024 and device.has_copies
    assert device.has_tma == (device.capability >= 90) and device.has_wgmma == (arch == "sm_90")


def test_what_tensor_memory_sums_of_bytes_is_not_on_every_device() -> None:
    """LLVM: `hasTcgen05MMAI8Kind`."""
    bytes_ = {arch for arch, device in DEVICES.items() if device.tensor_memory and device.multiplies("signed char")}
    assert bytes_ == {"sm_100", "sm_110"}
    assert all(device.multiplies("float8_e4m3") for device in DEVICES.values() if device.tensor_memory)


def test_products_of_float32_take_what_fused_multiply_adds_do() -> None:
    """Exact ones, where no tensor core takes float32: with few sums a thread waits for operands, with many spills."""
    hopper = figures_of(TARGETS["sm_90"])
    few, some, many = (hopper.share_of_float32("ieee", sums) for sums in (2, 32, 512))
    assert few < some > many and some < hopper.plain_ops / hopper.tensor_ops
    assert some < hopper.share_of_float32("tf32x3", 32) < hopper.share_of_float32("tf32", 32) / 2
    assert figures_of(MI300X).share_of_float32("ieee", 2) == figures_of(MI300X).float32_share
    kernel = read_region(region_of(empty(1024, 1024) @ empty(1024, 768)))
    exact = default_parameters(kernel, TARGETS["sm_90"]).changed(
        precision="ieee", tile=(64, 64), reduce_tile=32, num_warps=4, num_stages=2, split=1, tail=1, persistent=0
    )

    def expected_s(tile: tuple[int, int], step: int) -> float:
        return predicted_seconds(kernel, TARGETS["sm_90"], exact.changed(tile=tile, reduce_tile=step))

    assert expected_s((64, 64), 128) > expected_s((64, 64), 32), "more than 1,024 multiplications of a step"
    assert expected_s((64, 96), 32) > 0.95 * expected_s((64, 128), 32), "a tile in pieces takes longer"


def test_products_side_by_side_are_products_by_themselves() -> None:
    """Query, key and value of one x, in float32: three times one product at least, and no more than by a third."""
    x, target = empty(2048, 512), TARGETS["sm_90"]
    of_three = read_region(region_of(*(x @ empty(512, 512) for _ in range(3))))
    of_one = read_region(region_of(x @ empty(512, 512)))
    assert len(of_three.stored) == 3
    p = default_parameters(of_one, target).changed(
        tile=(64, 64), reduce_tile=32, num_warps=4, num_stages=4, split=1, persistent=0, precision="ieee"
    )
    three_s, one_s = (predicted_seconds(kernel, target, p) for kernel in (of_three, of_one))
    assert 2.5 * one_s < three_s < 4 * one_s


def test_reductions_beside_others_take_time_each() -> None:
    x, target = empty(2048, 512), TARGETS["sm_90"]
    of_three = read_region(region_of(*(x @ empty(512, 512) for _ in range(3))))
    of_one = read_region(region_of(x @ empty(512, 512)))
    (p, *_) = (one for one in starts(of_one, target) if one.form == "reduction")
    three_s, one_s = (predicted_seconds(kernel, target, p) for kernel in (of_three, of_one))
    assert three_s > 1.25 * one_s


def test_three_products_of_tf32_have_no_wgmma() -> None:
    """Few rows cost them nothing: what counts is how many sums a thread has."""
    kernel, target = read_region(region_of(empty(4096, 4096) @ empty(4096, 4096))), TARGETS["sm_90"]
    of = default_parameters(kernel, target).changed(
        reduce_tile=32, num_warps=4, num_stages=3, split=1, persistent=0, precision="tf32x3"
    )
    low, high = (predicted_seconds(kernel, target, of.changed(tile=tile)) for tile in ((16, 256), (64, 64)))
    assert low == pytest.approx(high, rel=0.35)
    small = predicted_seconds(kernel, target, of.changed(tile=(16, 16)))
    assert small > 2 * low


def test_an_operand_that_is_computed_takes_time() -> None:
    left, right = (empty(1024, 1024, dtype="bfloat16") for _ in range(2))
    plain, computed = (read_region(region_of(one @ right)) for one in (left, (left * 2 + 1).silu()))
    p = default_parameters(plain, TARGETS["sm_90"]).changed(loads="pointer", persistent=0, tail=1, split=1)
    one, other = (predicted_seconds(kernel, TARGETS["sm_90"], p) for kernel in (plain, computed))
    assert other > 1.1 * one


# ---- an MI300X: 64 threads of a wave, 64 KB of shared memory, matrix cores for float32

MI300X = TARGETS["gfx942"]
REGIONS = (
    MATMUL, SOFTMAX, region_of(empty(512, 512) @ empty(512, 768)), region_of((empty(512, 512) * 2).silu()),
    region_of(empty(4096, 512).sum(0)),
    region_of(empty(2, 512, 64).scaled_dot_product_attention(empty(2, 512, 64), empty(2, 512, 64))),
)  # fmt: skip


def test_its_figures_are_its_own_as_published() -> None:
    device, figures = DEVICES["gfx942"], figures_of(MI300X)
    assert figures.tensor_ops * MI300X.cores == pytest.approx(1307.4e12, rel=0.01)
    assert figures.tensor_ops * figures.float32_share * MI300X.cores == pytest.approx(163.4e12, rel=0.01)
    assert figures.plain_ops * MI300X.cores == pytest.approx(163.4e12, rel=0.01)
    assert figures.memory_bytes == pytest.approx(0.83 * 5.3e12)
    assert (device.threads(4), device.warps(256), device.shared_bytes) == (256, 4, 64 << 10)
    assert [device.registers_of_thread(waves) for waves in (1, 4, 8, 16)] == [512, 512, 256, 128]
    assert device.resident(threads=256, registers=128) == 4, "512 registers of a lane are four waves of 128"
    assert device.resident(threads=256, registers=64, shared_bytes=33 << 10) == 1
    assert [device.multiplies(name) for name in ("float", "__bf16", "float8_e4m3")] == [True, True, False]


def test_no_program_of_it_has_more_threads_than_a_group_may_have() -> None:
    for region in REGIONS:
        kernel, rng = read_region(region), Random(2)
        for p in (*starts(kernel, MI300X), *(random_parameters(kernel, MI300X, rng) for _ in range(4))):
            counts = legal_values(kernel, MI300X, p, "num_warps")
            assert counts and max(*counts, p.num_warps) <= 16, p
            assert is_legal(kernel, MI300X, p) and math.isfinite(predicted_seconds(kernel, MI300X, p))


def test_its_programs_begin_with_as_many_threads_as_others_and_fill_its_matrix_cores() -> None:
    for region in (SOFTMAX, REGIONS[3], REGIONS[4]):
        kernel, same = read_region(region), replace(TARGETS["sm_80"], cores=MI300X.cores)
        ours, others = default_parameters(kernel, MI300X), default_parameters(kernel, same)
        assert ours.tile == others.tile and 64 * ours.num_warps == max(64, 32 * others.num_warps)
    assert default_parameters(read_region(MATMUL), MI300X).num_warps == 4, "one for each of them"


def test_what_threads_hold_of_rows_is_by_threads_and_not_by_warps(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = read_region(region_of(empty(64, 50_257).softmax()))
    p = default_parameters(kernel, MI300X)
    of_waves = generate_kernel(kernel, MI300X, p).source
    assert of_waves != generate_kernel(kernel, MI300X, p.changed(num_warps=2 * p.num_warps)).source
    monkeypatch.setitem(DEVICES, "gfx942", replace(DEVICES["gfx942"], warp=32))
    assert of_waves == generate_kernel(kernel, MI300X, p.changed(num_warps=2 * p.num_warps)).source


def test_products_of_float32_are_its_matrix_cores() -> None:
    """Without one each multiplication is an instruction, of which compilers bear few."""
    kernel = read_region(REGIONS[2])
    p = default_parameters(kernel, MI300X).changed(
        tile=(128, 256), reduce_tile=32, num_warps=8, num_stages=1, split=1, group=1
    )
    assert is_legal(kernel, MI300X, p) and not is_legal(kernel, TARGETS["sm_80"], p)
    tf32 = replace(kernel, allows_tf32=True), TARGETS["sm_80"], p.changed(precision=TF32)
    assert is_legal(*tf32), "as to registers and shared memory"


def test_a_loop_takes_a_block_less_than_stages_of_its_shared_memory() -> None:
    kernel = read_region(MATMUL)
    p = default_parameters(kernel, MI300X).changed(tile=(64, 64), reduce_tile=64, num_stages=4, epilogue_parts=1)
    block = (64 + 64) * 64 * 2
    here, there = (plan_of(kernel, target, p).shared_bytes for target in (MI300X, TARGETS["sm_80"]))
    assert here == 3 * block == there - block
