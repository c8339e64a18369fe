"""Packed weights: every format against a reading in NumPy, and against tinygrad's own reader kernel by kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray
from tinygrad import Tensor
from tinygrad.helpers import Context
from tinygrad.llm.gguf import ggml_data_to_tensor
from tinygrad.runtime.autogen import ggml_common

from evaluation.gguf_file import GGML_TYPES
from kcg.kernel.codec import kernel_of
from kcg.kernel.compile import compile_schedule
from kcg.kernel.kinds import baseline_of
from kcg.measure.device_info import detect
from kcg.measure.verify import FINAL_SEEDS, CheckedBench
from kcg.types import Region, Target
from kcg.workloads.packed_weights import FORMATS, PackedWeights, random_blocks
from tests.kernels import empty, kernels_of
from tests.slow import some

TARGET: Target = detect("CPU:X86", 1)[0]

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float64]


# ---- One block at a time, weight by weight, as `ggml-common.h` describes the structures.


def half(block: Bytes, at: int) -> float:
    return float(block[at : at + 2].view(np.float16)[0])


def signed(byte: int) -> int:
    return byte - 256 if byte > 127 else byte


def bit(block: Bytes, at: int, place: int) -> int:
    return int(block[at + place // 8]) >> place % 8 & 1


def q4(block: Bytes, at: int, i: int) -> int:
    """The lower halves of 16 bytes, then their upper ones."""
    return int(block[at + i % 16]) >> 4 * (i // 16) & 15


def q4_0(b: Bytes) -> list[float]:
    return [half(b, 0) * (q4(b, 2, i) - 8) for i in range(32)]


def q4_1(b: Bytes) -> list[float]:
    return [half(b, 0) * q4(b, 4, i) + half(b, 2) for i in range(32)]


def q5_0(b: Bytes) -> list[float]:
    return [half(b, 0) * (q4(b, 6, i) + 16 * bit(b, 2, i) - 16) for i in range(32)]


def q5_1(b: Bytes) -> list[float]:
    return [half(b, 0) * (q4(b, 8, i) + 16 * bit(b, 4, i)) + half(b, 2) for i in range(32)]


def q8_0(b: Bytes) -> list[float]:
    return [half(b, 0) * signed(int(b[2 + i])) for i in range(32)]


def scale_and_minimum(b: Bytes, group: int) -> tuple[int, int]:
    s = [int(byte) for byte in b[4:16]]
    if group < 4:
        return s[group] & 63, s[group + 4] & 63
    return s[group + 4] & 15 | s[group - 4] >> 6 << 4, s[group + 4] >> 4 | s[group] >> 6 << 4


def k_groups(b: Bytes, at: int, fifth: Callable[[int, int], int]) -> list[float]:
    found = []
    for i in range(256):
        group, place = divmod(i, 32)
        scale, minimum = scale_and_minimum(b, group)
        q = int(b[at + group // 2 * 32 + place]) >> 4 * (group % 2) & 15
        found.append(half(b, 0) * scale * (q + 16 * fifth(group, place)) - half(b, 2) * minimum)
    return found


def q4_k(b: Bytes) -> list[float]:
    return k_groups(b, 16, lambda group, place: 0)


def q5_k(b: Bytes) -> list[float]:
    return k_groups(b, 48, lambda group, place: int(b[16 + place]) >> group & 1)


def q6_k(b: Bytes) -> list[float]:
    found = []
    for i in range(256):
        part, row, place = i // 128, i % 128 // 32, i % 32
        low = int(b[64 * part + 32 * (row % 2) + place]) >> 4 * (row // 2) & 15
        high = int(b[128 + 32 * part + place]) >> 2 * row & 3
        found.append(half(b, 208) * signed(int(b[192 + i // 16])) * ((low | high << 4) - 32))
    return found


def of_grid(grid: Sequence[int], row: int, place: int) -> int:
    return grid[row] >> 8 * place & 255


def iq2_s(b: Bytes) -> list[float]:
    found = []
    for i in range(256):
        eight, place = divmod(i, 8)
        row = int(b[2 + eight]) | (int(b[66 + eight // 4]) >> 2 * (eight % 4) & 3) << 8
        fine = int(b[74 + i // 32]) >> 4 * (i % 32 // 16) & 15
        sign = -1 if bit(b, 34, i) else 1
        found.append(half(b, 0) * (0.5 + fine) * 0.25 * of_grid(ggml_common.iq2s_grid, row, place) * sign)
    return found


def iq3_xxs(b: Bytes) -> list[float]:
    found = []
    for i in range(256):
        word = int(b[66 + i // 32 * 4 :][:4].view(np.uint32)[0])
        seven = word >> 7 * (i % 32 // 8) & 127
        signs = seven | (sum(seven >> k & 1 for k in range(7)) % 2) << 7
        value = of_grid(ggml_common.iq3xxs_grid, int(b[2 + i // 4]), i % 4)
        found.append(half(b, 0) * (0.5 + (word >> 28)) * 0.5 * value * (-1 if signs >> i % 8 & 1 else 1))
    return found


def iq3_s(b: Bytes) -> list[float]:
    found = []
    for i in range(256):
        four = i // 4
        row = int(b[2 + four]) | bit(b, 66, four) << 8
        fine = int(b[106 + i // 64]) >> 4 * (i % 64 // 32) & 15
        sign = -1 if bit(b, 74, i) else 1
        found.append(half(b, 0) * (1 + 2 * fine) * of_grid(ggml_common.iq3s_grid, row, i % 4) * sign)
    return found


def iq4_xs(b: Bytes) -> list[float]:
    found = []
    for i in range(256):
        group, place = divmod(i, 32)
        low = int(b[4 + group // 2]) >> 4 * (group % 2) & 15
        high = int(b[2:4].view(np.uint16)[0]) >> 2 * group & 3
        q = int(b[8 + 16 * group + place % 16]) >> 4 * (place // 16) & 15
        found.append(half(b, 0) * ((low | high << 4) - 32) * ggml_common.kvalues_iq4nl[q])
    return found


def mxfp4(b: Bytes) -> list[float]:
    numbers = (0, 0.5, 1, 1.5, 2, 3, 4, 6)
    codes = (q4(b, 1, i) for i in range(32))
    return [2.0 ** (int(b[0]) - 127) * numbers[code & 7] * (-1 if code & 8 else 1) for code in codes]


def q1_0(b: Bytes) -> list[float]:
    return [half(b, 0) * (2 * bit(b, 2, i) - 1) for i in range(128)]


READINGS: dict[str, Callable[[Bytes], list[float]]] = {
    "f32": lambda b: [float(b.view(np.float32)[0])],
    "f16": lambda b: [half(b, 0)],
    "q4_0": q4_0, "q4_1": q4_1, "q5_0": q5_0, "q5_1": q5_1, "q8_0": q8_0, "q4_k": q4_k, "q5_k": q5_k, "q6_k": q6_k,
    "iq2_s": iq2_s, "iq3_xxs": iq3_xxs, "iq3_s": iq3_s, "iq4_xs": iq4_xs, "mxfp4": mxfp4, "q1_0": q1_0,
}  # fmt: skip


CRASHES = ("iq4_xs", "mxfp4")
"""tinygrad's X86 assembler takes an index of 16 bits for one of 64, whose other bits are of what the register held
before: such a kernel reads anywhere. These formats are computed by tinygrad's emulator, a few blocks of them."""


def unpacked(kind: str, blocks: Bytes) -> Floats:
    """What kcg makes of blocks, before it is rounded to float16."""
    device = "PYTHON" if kind in CRASHES else None

    def table(name: str, values: Sequence[float], dtype: str) -> Tensor:
        return Tensor(list(values), dtype=dtype, device=device)

    with Context(NOOPT=1):
        made = FORMATS[kind].unpack(Tensor(blocks, device=device), table).float().numpy()
    return np.asarray(made, np.float64).reshape(-1)


def test_every_format_is_tested() -> None:
    assert READINGS.keys() == FORMATS.keys() == GGML_TYPES.keys()


@pytest.mark.parametrize("kind", some(FORMATS, ("q5_1", "q4_k", "q6_k", "iq3_xxs", "mxfp4")))
def test_blocks_are_read_as_in_numpy(kind: str) -> None:
    blocks = random_blocks(kind, 3 if kind in CRASHES else 64, 0.5, np.random.default_rng(5))
    if kind == "mxfp4":
        blocks[:, 0] = 1, 2, 250  # the first one's scale is subnormal, and read from a table
    expected = np.array([READINGS[kind](block) for block in blocks]).reshape(-1)
    np.testing.assert_allclose(unpacked(kind, blocks), expected, rtol=1e-5, atol=0 if kind == "mxfp4" else 1e-5)


@pytest.mark.parametrize("kind", FORMATS)
def test_kernels_are_those_of_tinygrads_reader(kind: str) -> None:
    x, shape = empty(1, 512), (48, 512)
    weights = PackedWeights()("w", shape, kind)
    raw = empty(FORMATS[kind].bytes_of(48 * 512), dtype="uint8")
    theirs = ggml_data_to_tensor(raw, 48 * 512, GGML_TYPES[kind]).reshape(shape).cast("float16")
    ours, own = ([kernel_of(ast).id for ast in kernels_of(x.linear(w.transpose()))] for w in (weights, theirs))
    assert ours == own and len(ours) <= 2


@pytest.mark.parametrize("kind", FORMATS)
def test_random_weights_have_the_deviation_that_is_asked_for(kind: str) -> None:
    blocks = random_blocks(kind, (1 << 13) // FORMATS[kind].weights, 0.02, np.random.default_rng(3))
    values = np.array([READINGS[kind](block) for block in blocks])
    assert np.isfinite(values).all()
    assert abs(values.mean()) < 0.003 and 0.8 < values.std() / 0.02 < 1.25


@pytest.mark.parametrize("kind", some((kind for kind in FORMATS if kind not in CRASHES), ("q6_k",)))
def test_products_with_a_format_can_be_judged(kind: str) -> None:
    """Their scales are numbers, whatever else is random: tinygrad's own schedules pass as finalists."""
    (*_, ast) = kernels_of(empty(1, 512).linear(PackedWeights()("w", (24, 512), kind).transpose()))
    region = Region((kernel_of(ast),))
    bench = CheckedBench(region, TARGET)
    compiled = compile_schedule(region, baseline_of(region, TARGET), TARGET)
    result = bench.check(bench.launcher(compiled), (), seeds=FINAL_SEEDS)
    assert result.passed, result.reason


def test_values_depend_on_the_name_alone() -> None:
    one, other = PackedWeights(seed=1), PackedWeights(seed=1)
    one("a", (4, 256), "q4_k"), one("b", (4, 256), "q6_k")
    other("b", (4, 256), "q6_k"), other("a", (4, 256), "q4_k")
    for name in "ab":
        assert np.array_equal(one.tensors[name].numpy(), other.tensors[name].numpy())
    with pytest.raises(ValueError, match="no whole blocks of 256"):
        one("c", (4, 300), "q4_k")
