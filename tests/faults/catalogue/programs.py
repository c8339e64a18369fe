"""The programs of the catalogue, each of one kernel; their sizes are what the C sources call N, ROWS and so on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

from tinygrad import Tensor, UOp, dtypes
from tinygrad.uop.ops import KernelInfo

from kcg.kernel.codec import kernel_of
from kcg.types import Region
from tests.kernels import empty, kernels_of

Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Program:
    """One kernel, as tinygrad makes it of a tensor or of a SINK."""

    sizes: dict[str, int]
    build: Callable[..., Tensor | UOp]  # takes the sizes by name
    kernel: int = -1  # which of the kernels of the tensor it is

    @property
    def defines(self) -> str:
        """The sizes, for C."""
        return "".join(f"#define {name} {value}\n" for name, value in self.sizes.items())


def _axpy(N: int) -> Tensor:
    x = empty(N)
    return x.assign(x * 0.5 + empty(N))


def _sum_of_exp(ROWS: int, COLUMNS: int) -> Tensor:
    return (empty(ROWS, COLUMNS) - empty(ROWS, 1)).exp().sum(1)


def _rms(ROWS: int, COLUMNS: int) -> Tensor:
    return (empty(ROWS, COLUMNS).square().mean(1) + 1e-5).rsqrt()


def _gather(ROWS: int, WIDTH: int, COUNT: int) -> Tensor:
    return empty(ROWS, WIDTH)[empty(COUNT, dtype="int32")]


def _convolution(I: int, O: int, H: int, W: int) -> Tensor:  # noqa: E741
    return empty(1, I, H, W).conv2d(empty(O, I, 3, 3), padding=1)


def _pad(ROWS: int, COLUMNS: int) -> Tensor:
    return empty(ROWS, COLUMNS).pad(((1, 2), (0, 3)), value=2.5)


def _half_matmul(M: int, N: int, K: int) -> Tensor:
    return empty(M, K, dtype="float16") @ empty(K, N, dtype="float16")


def _two_outputs(N: int) -> UOp:
    """Double and half of an input, into two buffers."""
    double, half, x = (UOp.placeholder((N,), dtypes.float32, slot) for slot in range(3))
    i, j = UOp.range(N, 0), UOp.range(N, 1)
    return UOp.sink(double[i].store(x[i] * 2.0).end(i), half[j].store(x[j] * 0.5).end(j), arg=KernelInfo())


def _slice(ROWS: int, COLUMNS: int) -> UOp:
    """Twice a transposed input, into a part of each row of a wider buffer."""
    out, x = (UOp.placeholder((size,), dtypes.float32, slot) for slot, size in enumerate((50 * ROWS, COLUMNS * ROWS)))
    c, r = UOp.range(COLUMNS, 0), UOp.range(ROWS, 1)
    return UOp.sink(out[r * 50 + c + 3].store(x[c * ROWS + r] * 2.0).end(c, r), arg=KernelInfo())


def _scale(ROWS: int, COLUMNS: int) -> Tensor:
    largest = empty(ROWS, COLUMNS).abs().max(1)
    return (largest == 0).where(1.0, largest / 127.0)


def _length(ROWS: int, COLUMNS: int) -> Tensor:
    return empty(ROWS, COLUMNS).square().sum(1).sqrt().maximum(1e-12)


def _take_along(ROWS: int, COLUMNS: int, COUNT: int) -> Tensor:
    return empty(ROWS, COLUMNS).gather(1, empty(ROWS, COUNT, dtype="int32"))


def _largest(dtype: str = "float32") -> Callable[..., Tensor]:
    return lambda ROWS, COLUMNS: empty(ROWS, COLUMNS, dtype=dtype).max(1)


def _scattered(N: int) -> UOp:
    out, x = (UOp.placeholder((N,), dtypes.float32, slot) for slot in range(2))
    i = UOp.range(N, 0)
    return UOp.sink(out[(i * 7) % N].store(x[i] * 2.0).end(i), arg=KernelInfo())


def _bools(ROWS: int, COLUMNS: int) -> Tensor:
    return empty(ROWS, COLUMNS, dtype="bool")


def _half_sum_of_exp(ROWS: int, COLUMNS: int) -> Tensor:
    scores = empty(ROWS, COLUMNS, dtype="float16") * 30
    return (scores - empty(ROWS, 1, dtype="float16")).exp().sum(1)


def _half_log_softmax(ROWS: int, COLUMNS: int) -> Tensor:
    scores, most, total = (empty(ROWS, n, dtype="float16") for n in (COLUMNS, 1, 1))
    return scores * 100 - most - total.log()


PROGRAMS: dict[str, Program] = {
    "affine": Program({"N": 5003}, lambda N: empty(N) * 2 + 1),
    "large": Program({"N": (1 << 21) + 7}, lambda N: empty(N) * 2 + 1),
    "relu": Program({"N": 4099}, lambda N: empty(N).relu()),
    "axpy": Program({"N": 4099}, _axpy),
    "exponential": Program({"N": 4099}, lambda N: empty(N).exp()),
    "gelu": Program({"N": 4099}, lambda N: empty(N).gelu()),
    "row_sum": Program({"ROWS": 64, "COLUMNS": 333}, lambda ROWS, COLUMNS: empty(ROWS, COLUMNS).sum(1)),
    "row_max": Program({"ROWS": 1200, "COLUMNS": 301}, lambda ROWS, COLUMNS: empty(ROWS, COLUMNS).max(1)),
    "pair_max": Program({"ROWS": 4099}, lambda ROWS: empty(ROWS, 2).max(1)),
    "row_min": Program({"ROWS": 64, "COLUMNS": 75}, lambda ROWS, COLUMNS: empty(ROWS, COLUMNS, dtype="int32").min(1)),
    "argmax": Program({"ROWS": 512, "COLUMNS": 6}, lambda ROWS, COLUMNS: empty(ROWS, COLUMNS).argmax(1)),
    "sum_of_exp": Program({"ROWS": 64, "COLUMNS": 77}, _sum_of_exp),
    "rms": Program({"ROWS": 64, "COLUMNS": 77}, _rms),
    "cumsum": Program({"ROWS": 24, "COLUMNS": 200}, lambda ROWS, COLUMNS: empty(ROWS, COLUMNS).cumsum(1)),
    "gather": Program({"ROWS": 300, "WIDTH": 6, "COUNT": 2000}, _gather),
    "transpose": Program({"ROWS": 37, "COLUMNS": 53}, lambda ROWS, COLUMNS: empty(ROWS, COLUMNS).T.contiguous()),
    "convolution": Program({"I": 3, "O": 4, "H": 9, "W": 11}, _convolution),
    "pad": Program({"ROWS": 20, "COLUMNS": 30}, _pad),
    "matmul": Program({"M": 33, "N": 40, "K": 65}, lambda M, N, K: empty(M, K) @ empty(K, N)),
    "half_matmul": Program({"M": 24, "N": 32, "K": 160}, _half_matmul),
    "int_sum": Program({"ROWS": 64, "COLUMNS": 75}, lambda ROWS, COLUMNS: empty(ROWS, COLUMNS, dtype="int32").sum(1)),
    "byte_sum": Program({"ROWS": 64, "COLUMNS": 75}, lambda ROWS, COLUMNS: empty(ROWS, COLUMNS, dtype="int8").sum(1)),
    "int_product": Program({"N": 4099}, lambda N: empty(N, dtype="int32") * empty(N, dtype="int32") + 3),
    "int_division": Program({"N": 4099}, lambda N: empty(N, dtype="int32") // 7),
    "byte_compare": Program({"N": 4099}, lambda N: empty(N, dtype="uint8") > empty(N, dtype="uint8")),
    "to_float": Program({"N": 4099}, lambda N: empty(N, dtype="int32").cast("float32")),
    "to_int": Program({"N": 4099}, lambda N: empty(N).cast("int32")),
    "long_sum": Program({"N": 4099}, lambda N: empty(N, dtype="int64") + empty(N, dtype="int64")),
    "doubles": Program({"N": 4099}, lambda N: empty(N, dtype="float64") * 0.1 + 1),
    "mask": Program({"N": 4099}, lambda N: empty(N, dtype="bool") & (empty(N) > 0.5)),
    "two_outputs": Program({"N": 4099}, _two_outputs),
    "logarithm": Program({"N": 4099}, lambda N: empty(N).log()),
    "any_of_row": Program({"ROWS": 64, "COLUMNS": 75}, lambda ROWS, COLUMNS: empty(ROWS, COLUMNS, dtype="bool").any(1)),
    "all_of_row": Program({"ROWS": 64, "COLUMNS": 75}, lambda ROWS, COLUMNS: empty(ROWS, COLUMNS, dtype="bool").all(1)),
    "few_minima": Program({"ROWS": 3, "COLUMNS": 1000}, lambda ROWS, COLUMNS: empty(ROWS, COLUMNS).min(1)),
    "is_infinite": Program({"N": 4099}, lambda N: empty(N).isinf()),
    "int_modulo": Program({"N": 4099}, lambda N: empty(N, dtype="int32") % empty(N, dtype="int32")),
    "slice": Program({"ROWS": 40, "COLUMNS": 37}, _slice),
    "scattered": Program({"N": 100_003}, _scattered),
    "above": Program({"N": 4099}, lambda N: (empty(N) > 0.5).where(empty(N), -1.0)),
    "all_of_long_row": Program({"ROWS": 64, "COLUMNS": 2000}, lambda ROWS, COLUMNS: _bools(ROWS, COLUMNS).all(1)),
    "any_of_columns": Program({"ROWS": 900, "COLUMNS": 96}, lambda ROWS, COLUMNS: _bools(ROWS, COLUMNS).any(0)),
    "ids_are_zero": Program(
        {"ROWS": 256, "COLUMNS": 512}, lambda ROWS, COLUMNS: (empty(ROWS, COLUMNS, dtype="int32") == 0).all(1)
    ),
    "any_above": Program({"ROWS": 64, "COLUMNS": 1000}, lambda ROWS, COLUMNS: (empty(ROWS, COLUMNS) > 0.5).any(1)),
    "rows_are_equal": Program(
        {"ROWS": 64, "COLUMNS": 400}, lambda ROWS, COLUMNS: (empty(ROWS, COLUMNS) == empty(ROWS, COLUMNS)).all(1)
    ),
    "all_above": Program({"N": 3000}, lambda N: (empty(N) > 0.1).all()),
    "int_row_product": Program(
        {"ROWS": 64, "COLUMNS": 100}, lambda ROWS, COLUMNS: empty(ROWS, COLUMNS, dtype="int32").prod(1)
    ),
    "row_product": Program({"ROWS": 64, "COLUMNS": 500}, lambda ROWS, COLUMNS: empty(ROWS, COLUMNS).prod(1)),
    "half_sum_of_exp": Program({"ROWS": 64, "COLUMNS": 77}, _half_sum_of_exp),
    "half_log_softmax": Program({"ROWS": 64, "COLUMNS": 77}, _half_log_softmax),
    "half_squares": Program(
        {"ROWS": 64, "COLUMNS": 200},
        lambda ROWS, COLUMNS: (empty(ROWS, COLUMNS, dtype="float16") * 100).square().sum(1),
    ),
    "long_row_sum": Program({"ROWS": 32, "COLUMNS": 3072}, lambda ROWS, COLUMNS: empty(ROWS, COLUMNS).sum(1)),
    "long_row_squares": Program(
        {"ROWS": 24, "COLUMNS": 5000}, lambda ROWS, COLUMNS: empty(ROWS, COLUMNS).square().mean(1)
    ),
    "very_long_sum": Program({"ROWS": 16, "COLUMNS": 30000}, lambda ROWS, COLUMNS: empty(ROWS, COLUMNS).abs().sum(1)),
    "rounding": Program({"N": 4099}, lambda N: empty(N).round()),
    "one_row_max": Program({"ROWS": 1, "COLUMNS": 900}, _largest()),
    "long_row_max": Program({"ROWS": 1, "COLUMNS": 20_000}, _largest()),
    "few_int_max": Program({"ROWS": 5, "COLUMNS": 700}, _largest("int32")),
    "few_half_max": Program({"ROWS": 4, "COLUMNS": 500}, _largest("float16")),
    "few_any": Program({"ROWS": 3, "COLUMNS": 2000}, lambda ROWS, COLUMNS: empty(ROWS, COLUMNS, dtype="bool").any(1)),
    "few_all_above": Program({"ROWS": 2, "COLUMNS": 1500}, lambda ROWS, COLUMNS: (empty(ROWS, COLUMNS) > -9).all(1)),
    "few_argmax": Program({"ROWS": 3, "COLUMNS": 1200}, lambda ROWS, COLUMNS: empty(ROWS, COLUMNS).argmax(1)),
    "scale": Program({"ROWS": 12, "COLUMNS": 130}, _scale),
    "length": Program({"ROWS": 5, "COLUMNS": 1100}, _length),
    "take_along": Program({"ROWS": 60, "COLUMNS": 11, "COUNT": 7}, _take_along),
    "one_hot": Program(
        {"COUNT": 400, "CLASSES": 9}, lambda COUNT, CLASSES: empty(COUNT, dtype="int32").one_hot(CLASSES).cast("int32")
    ),
    "pool": Program({"H": 8, "W": 12}, lambda H, W: empty(1, 1, H, W).max_pool2d((4, 4))),
    "running_max": Program({"ROWS": 3, "COLUMNS": 150}, lambda ROWS, COLUMNS: empty(ROWS, COLUMNS).cummax(1)[0]),
    "copysign": Program({"N": 4099}, lambda N: empty(N).copysign(empty(N))),
    "inverse": Program({"N": 4099}, lambda N: empty(N).reciprocal()),
}


@cache
def region_of(program: str) -> Region:
    """The region of a program."""
    found = PROGRAMS[program]
    built = found.build(**found.sizes)
    return Region((kernel_of(built if isinstance(built, UOp) else kernels_of(built)[found.kernel]),))
