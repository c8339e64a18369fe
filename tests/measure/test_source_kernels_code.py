"""Hand-written CUDA, PTX and Triton as far as a machine without a GPU can tell, and bodies that come from elsewhere."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from kcg.compat.renderers import compiling_renderer
from kcg.errors import ScheduleError
from kcg.kernel.codec import kernel_of
from kcg.kernel.compile import compile_schedule
from kcg.kernel.source.body import source_body, source_schedule
from kcg.kernel.source.kernels import lower, view_of, without_scratch
from kcg.kernels import KernelView, Launch
from kcg.types import Region, Schedule
from tests.handwritten_kernels import COLUMNS, INNER, MATMUL, ROWS, SM_90, kernel
from tests.kernels import empty, kernels_of


def _has_nvrtc() -> bool:
    try:
        return compiling_renderer(SM_90) is not None
    except AttributeError:  # tinygrad's word for a library that does not load
        return False


def cuda_matmul(view: KernelView) -> str:
    return f"""
extern "C" __global__ void __launch_bounds__({COLUMNS}) cuda_matmul(
    float* __restrict__ out, const float* a, /* a comma, here */ const float* b) {{
  float total = 0;
  for (int k = 0; k < {INNER}; k++) total += a[blockIdx.x * {INNER} + k] * b[k * {COLUMNS} + threadIdx.x];
  out[blockIdx.x * {COLUMNS} + threadIdx.x] = total;
}}"""


CUDA = kernel(cuda_matmul, "cuda", launch=lambda view: Launch(view.loops[:1], (COLUMNS,), 1024))
PTX = """
.version 8.0
.target sm_90
.address_size 64
.visible .entry ptx_kernel(.param .u64 ptx_kernel_param_0, .param .u64 ptx_kernel_param_1,
  .param .u64 ptx_kernel_param_2) { ret; }
"""


def ptx_kernel(view: KernelView) -> str:
    return PTX


def test_cuda_source_is_a_schedule_whose_launch_is_part_of_it() -> None:
    view = view_of(MATMUL, SM_90)
    schedule = lower(CUDA, view)
    body = source_body(schedule)
    assert (body.language, body.entry, body.shared_bytes) == ("CUDA", "cuda_matmul", 1024)
    assert body.global_size == (view.loops[0], 1, 1) and body.local_size == (COLUMNS, 1, 1)
    assert str(schedule) == "source:cuda_matmul" and "1024 bytes of shared memory" in body.legend
    others = [replace(CUDA, launch=Launch((ROWS,), (16,))), replace(CUDA, launch=Launch((ROWS,), (COLUMNS,), 0))]
    assert len({schedule.id, *(lower(other, view).id for other in others)}) == 3


@pytest.mark.skipif(not _has_nvrtc(), reason="needs NVRTC, which is not here")
def test_cuda_source_is_compiled_to_machine_code() -> None:
    schedule = lower(CUDA, view_of(MATMUL, SM_90))
    compiled = compile_schedule(MATMUL, schedule, SM_90)
    assert compiled.binary[:4] == b"\x7fELF" and compiled.shared_bytes == 1024 and compiled.slots == (0, 1, 2)
    assert (compiled.outputs, compiled.inputs) == ((0,), (1, 2))
    body = source_body(schedule)
    other = compile_schedule(MATMUL, source_schedule(replace(body, local_size=(16, 1, 1))), SM_90)
    assert compiled.binary == other.binary and compiled.binary_hash != other.binary_hash, (
        "another launch is another one"
    )
    broken = source_schedule(replace(body, source=body.source.replace("total = 0;", "total = ;")))
    with pytest.raises(ScheduleError, match=r"cuda_matmul does not compile: .*error: expected an expression"):
        compile_schedule(MATMUL, broken, SM_90)


def two_pointers(view: KernelView) -> str:
    return 'extern "C" __global__ void two_pointers(float* a, float* b) { }'


def a_number(view: KernelView) -> str:
    return 'extern "C" __global__ void a_number(float* a, float* b, int n) { }'


def another_name(view: KernelView) -> str:
    return 'extern "C" __global__ void a_name(float* a, float* b, float* c) { }'


def mangled(view: KernelView) -> str:
    return "__global__ void mangled(float* a, float* b, float* c) { }"


def no_text(view: KernelView) -> object:
    return 5


@pytest.mark.parametrize(
    ("function", "launch", "says"),
    [
        (two_pointers, Launch(), "it takes (float* a, float* b), not a pointer for each of 3 buffers (float32[768], "),
        (a_number, Launch(), "not a pointer for each of 3 buffers"),
        (another_name, Launch(), "its source has no function another_name"),
        (mangled, Launch(), 'it has no extern "C" __global__ function mangled'),
        (no_text, Launch(), "it returns int, not source code"),
        (cuda_matmul, (8, 1, 1), "not a kcg.kernels.Launch"),
        (cuda_matmul, Launch((0,), (8,)), "is not made of positive whole numbers"),
        (cuda_matmul, Launch((1, 1, 1, 1), (8,)), "one to three extents"),
        (cuda_matmul, Launch((1,), (8,), -1), "shared_bytes is not a size"),
        (cuda_matmul, lambda view: Launch(view.nothing), "AttributeError: 'KernelView' object has no attribute"),
    ],
)
def test_cuda_source_that_does_not_fit_is_one_line(function: object, launch: object, says: str) -> None:
    with pytest.raises(ScheduleError) as error:
        lower(kernel(function, "cuda", launch=launch), view_of(MATMUL, SM_90))
    assert says in str(error.value) and "\n" not in str(error.value)


def test_ptx_needs_a_wide_parameter_for_each_buffer() -> None:
    view = view_of(MATMUL, SM_90)
    body = source_body(lower(kernel(ptx_kernel, "ptx", launch=Launch((2,), (32,))), view))
    assert (body.language, body.entry, body.source) == ("ptx", "ptx_kernel", PTX)
    only_two = Region((kernel_of(kernels_of(empty(64) + 1)[0]),))
    with pytest.raises(ScheduleError, match=r"its entry takes 3 parameters, not a \.u64 for each of 2 buffers"):
        lower(kernel(ptx_kernel, "ptx", launch=Launch()), view_of(only_two, SM_90))


def test_tritons_scratch_parameters_are_dropped_only_where_they_are_not_used() -> None:
    three, entry = without_scratch(PTX, 3)
    assert entry == "ptx_kernel" and three.count(".param") == 3
    one, _ = without_scratch(PTX, 1)
    assert one.count(".param") == 1 and "ptx_kernel_param_0" in one and "param_2" not in one
    used = PTX.replace("{ ret; }", "{ ld.param.u64 %rd1, [ptx_kernel_param_2]; ret; }")
    with pytest.raises(ScheduleError, match=r"uses the scratch memory of Triton \(ptx_kernel_param_2\)"):
        without_scratch(used, 2)


def rows(out, a, b, N):  # type: ignore[no-untyped-def]
    """Its body is Triton's, and is not read where Triton is missing."""


def test_a_triton_kernel_without_triton_is_one_line() -> None:
    pytest.importorskip("kcg.kernel.source.kernels")
    try:
        import triton  # noqa: F401
    except ImportError:
        with pytest.raises(ScheduleError, match=r"^Triton is not installed: pip install 'kcg\[gpu\]'$"):
            lower(kernel(rows, "triton", launch=Launch()), view_of(MATMUL, SM_90))
    else:
        with pytest.raises(ScheduleError, match="first a pointer for each of the 3 buffers, then a constant"):
            lower(kernel(rows, "triton", launch=Launch()), view_of(MATMUL, SM_90))


# -- bodies that come from elsewhere


def test_a_body_is_read_only_if_every_field_is_right() -> None:
    good = lower(CUDA, view_of(MATMUL, SM_90))
    assert source_schedule(source_body(good)) == good
    document = json.loads(good.body)
    for changed, says in (
        ({"format": 2}, "format"),
        ({"extra": 1}, "one too many"),
        ({"entry": "a b"}, "plain name"),
        ({"name": "../../x"}, "plain name"),
        ({"kind": "exe"}, "no kind"),
        ({"language": "python"}, "no kind"),
        ({"global_size": [1.5]}, "whole numbers"),
        ({"global_size": [True]}, "whole numbers"),
        ({"global_size": 4}, "extents"),
        ({"shared_bytes": -1}, "not a size"),
        ({"threads": "4"}, "not a size"),
        ({"code": "%%%"}, "base64"),
        ({"source": 7}, "not a text"),
    ):
        with pytest.raises(ScheduleError, match=says):
            source_body(Schedule("source", json.dumps({**document, **changed})))
    for text in ("[]", "{", "5", "[" * 100_000):
        with pytest.raises(ScheduleError, match="its body is not"):
            source_body(Schedule("source", text))
