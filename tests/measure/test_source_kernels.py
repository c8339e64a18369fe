"""Hand-written kernels one by one: registered, lowered, compiled, judged as every schedule; a bad one harms nothing."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tinygrad import UOp
from tinygrad.uop.ops import AxisType, KernelInfo, Ops

from kcg.compat.device import clang_path
from kcg.errors import ScheduleError, UsageError
from kcg.kernel.codec import kernel_of
from kcg.kernel.handwritten import Described, KernelFile, describe_job, lower_job, match_job
from kcg.kernel.opts.space import KernelSpace
from kcg.kernel.source.body import SourceBody, source_body, source_schedule
from kcg.kernel.source.kernels import file_digest, lower, read_kernels, view_of
from kcg.kernels import KernelView, collecting, handwritten
from kcg.measure.jobs import PairedJob
from kcg.measure.service import MeasureService, Request
from kcg.types import Measurement, Region, Schedule, Status
from tests.handwritten_kernels import COLUMNS, INNER, MATMUL, ROWS, SM_90, kernel
from tests.kernels import empty, example_region, kernels_of
from tests.slow import first
from tests.waiting import PATIENCE_S

needs_clang = pytest.mark.skipif(clang_path() is None, reason="needs clang, which is not here")


def matmul(out: UOp, a: UOp, b: UOp, *, plus: int = 0) -> UOp:
    i, j, k = UOp.range(ROWS, 0), UOp.range(COLUMNS, 1), UOp.range(INNER, 2, axis_type=AxisType.REDUCE)
    product = a.reshape((ROWS, INNER))[i, k] * b.reshape((INNER, COLUMNS))[k, j]
    total = product.reduce(k, arg=(Ops.ADD, 0)) + plus
    return out.reshape((ROWS, COLUMNS))[i, j].store(total).end(i, j).sink(arg=KernelInfo(opts_to_apply=()))


@pytest.fixture(scope="module")
def service() -> Iterator[MeasureService]:
    with MeasureService("CPU:X86", run_id="hand", compile_workers=1) as running:
        yield running


def measured(
    service: MeasureService, schedule: Schedule, region: Region = MATMUL, *, timeout_s: float | None = None
) -> Measurement:
    return service.measure([Request(region, schedule, in_search=True, timeout_s=timeout_s)])[0].result()


# -- what a predicate sees, and matching


def test_the_view_reports_what_a_kernel_is() -> None:
    view = view_of(MATMUL, SM_90)
    assert view.id == MATMUL.id and view.target is SM_90
    assert [(b.slot, b.size, b.dtype, b.is_output, b.is_input) for b in view.buffers] == [
        (0, ROWS * COLUMNS, "float32", True, False),
        (1, ROWS * INNER, "float32", False, True),
        (2, INNER * COLUMNS, "float32", False, True),
    ]
    assert view.contractions == (((ROWS, COLUMNS), (INNER,)),)
    assert (sorted(view.loops), view.reduces, view.ops["REDUCE"]) == ([ROWS, COLUMNS], (INNER,), 1)
    assert view.operations == 2 * ROWS * COLUMNS * INNER
    in_place = view_of(example_region("assign"), SM_90)
    assert [(b.is_output, b.is_input) for b in in_place.buffers] == [(True, True)]


@pytest.mark.parametrize("name", ["symbolic", "sharded.2"])
def test_kernels_that_none_can_replace_are_reported(name: str) -> None:
    with pytest.raises(ScheduleError, match="symbolic sizes or of several devices"):
        view_of(example_region(name), SM_90)


def test_ids_and_predicates_match() -> None:
    view = view_of(MATMUL, SM_90)
    for matches, expected in (
        (MATMUL.id[:8], True),
        ("abcdef", False),
        (("abcdef", MATMUL.id), True),
        (lambda v: v.reduces == (INNER,), True),
        (lambda v: len(v.inputs) == 1, False),
    ):
        with collecting() as found:
            handwritten.uop(matches=matches)(matmul)
        assert found[0].wants(view) is expected
    for bad in ("abc", "not hex!", (), ("abcdef", "xyz"), 5):
        with pytest.raises(UsageError, match="at least 6 digits of a kernel's id, or a predicate"):
            handwritten.uop(matches=bad)  # type: ignore[arg-type]


def test_decorating_outside_of_a_run_does_nothing() -> None:
    assert handwritten.uop(matches=MATMUL.id)(matmul) is matmul


# -- UOp kernels, lowered and run for real on tinygrad's own assembler


def test_a_uop_kernel_is_lowered_verified_and_timed(service: MeasureService) -> None:
    view = view_of(MATMUL, service.target)
    schedule = lower(kernel(matmul), view)
    assert schedule == lower(kernel(matmul), view), "the same code, the same identity"
    body = source_body(schedule)
    assert (body.name, body.kind, body.language) == ("matmul", "uop", "machine") and body.code and body.source
    row = measured(service, schedule)
    assert (row.status, row.checked, row.launch) == (Status.OK, True, ((1, 1, 1), (1, 1, 1))), row.reason
    space = KernelSpace(MATMUL, service.target)
    baseline, mine = (service.compiled(MATMUL, one).result().compiled for one in (space.baseline(), schedule))
    paired = service.compare_paired(
        PairedJob(MATMUL, baseline, mine, service.target, samples=3), timeout_s=PATIENCE_S
    ).result()
    assert paired.finalist_verification is not None and paired.finalist_verification.passed
    assert set(paired.finalist_verification.rules) >= set(paired.baseline_verification.rules)
    assert len(paired.finalist_cold_s) == 3


def wrong(out: UOp, a: UOp, b: UOp) -> UOp:
    return matmul(out, a, b, plus=1)


def nothing(out: UOp, a: UOp, b: UOp) -> UOp:
    return matmul(out, a, b).src[0].src[0].src[0].sink(arg=KernelInfo())


def test_a_wrong_kernel_is_rejected_with_its_reason(service: MeasureService) -> None:
    row = measured(service, lower(kernel(wrong), view_of(MATMUL, service.target)))
    assert row.status == Status.WRONG and row.reason.startswith("element "), row


MACHINE = {
    "crash": (b"\x0f\x0b", Status.WORKER_DIED, "SIGILL"),  # ud2
    "hang": (b"\xeb\xfe", Status.TIMEOUT, ""),  # jmp to itself
    "no write": (b"\xc3", Status.WRONG, "is"),  # ret
    # mov dword [rdi-4], 0; ret: just before the first buffer
    "write outside": (b"\xc7\x47\xfc\x00\x00\x00\x00\xc3", Status.WRONG, "wrote outside buffer 0"),
    # mov dword [rsi], 0; ret
    "write an input": (b"\xc7\x06\x00\x00\x00\x00\xc3", Status.WRONG, ""),
}


@pytest.mark.parametrize("fault", first(2, MACHINE))
def test_a_fault_is_the_kernels_own_and_the_service_goes_on(fault: str, service: MeasureService) -> None:
    code, status, says = MACHINE[fault]
    body = SourceBody("bad", "uop", "machine", "kernel", "", (1,), (1,), code=base64.b64encode(code).decode())
    row = measured(service, source_schedule(body), timeout_s=1.5 if status == Status.TIMEOUT else None)
    assert row.status == status and says in row.reason, row
    assert measured(service, KernelSpace(MATMUL, service.target).baseline()).status == Status.OK


def two(out: UOp, a: UOp) -> UOp:
    return out.sink()


def no_sink(out: UOp, a: UOp, b: UOp) -> UOp:
    return out


def unused(out: UOp, a: UOp, b: UOp) -> UOp:
    i = UOp.range(ROWS * COLUMNS, 0)
    return out[i].store(a[i]).end(i).sink(arg=KernelInfo(opts_to_apply=()))


def foreign(out: UOp, a: UOp, b: UOp) -> UOp:
    i = UOp.range(8, 0)
    return out[i].store(UOp.placeholder((8,), a.dtype, 7)[i]).end(i).sink(arg=KernelInfo(opts_to_apply=()))


def raises(out: UOp, a: UOp, b: UOp) -> UOp:
    raise LookupError("no such tile")


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (two, "it takes other arguments than the 3 buffers: too many positional arguments"),
        (no_sink, "it returns Ops.PARAM, not a SINK"),
        (unused, "it does not use buffer 2, and a launch passes every buffer"),
        (foreign, "it uses a buffer or a variable that it was not given"),
        (raises, "LookupError: no such tile"),
    ],
)
def test_a_uop_kernel_that_does_not_fit_is_one_line(function: object, says: str, service: MeasureService) -> None:
    with pytest.raises(ScheduleError) as error:
        lower(kernel(function), view_of(MATMUL, service.target))
    assert says in str(error.value) and "\n" not in str(error.value)


def test_a_uop_kernel_sees_the_view_if_it_asks(service: MeasureService) -> None:
    seen = []

    def asks(out: UOp, a: UOp, b: UOp, *, kernel: KernelView) -> UOp:
        seen.append(kernel)
        return kernel.ast.replace(arg=KernelInfo(opts_to_apply=()))

    view = view_of(MATMUL, service.target)
    assert measured(service, lower(kernel(asks), view)).status == Status.OK
    assert seen == [view]


# -- C


def C_MATMUL(view: KernelView) -> str:  # the C function has this name
    return f"""
static inline float times(float a, float b) {{ return a * b; }}
void C_MATMUL(float* restrict out, const float* restrict a, const float* restrict b) {{
  for (int i = 0; i < {ROWS}; i++)
    for (int j = 0; j < {COLUMNS}; j++) {{
      float total = 0;
      for (int k = 0; k < {INNER}; k++) total += times(a[i * {INNER} + k], b[k * {COLUMNS} + j]);
      out[i * {COLUMNS} + j] = total;
    }}
}}"""


@needs_clang
def test_c_source_is_compiled_and_verified(service: MeasureService) -> None:
    schedule = lower(kernel(C_MATMUL, "c"), view_of(MATMUL, service.target))
    assert measured(service, schedule).status == Status.OK
    body = source_body(schedule)
    broken = source_schedule(replace(body, source=body.source.replace("float total = 0;", "float total = 0")))
    row = measured(service, broken)
    assert row.status == Status.COMPILE_ERROR and "expected ';'" in row.reason and "source:" in row.reason, row
    helper = "__attribute__((noinline)) float times(float a, float b) { return a * b + 1; }"
    first = source_schedule(replace(body, source=helper + body.source.split("}", 1)[1]))
    row = measured(service, first)
    assert row.status == Status.COMPILE_ERROR and "must come first" in row.reason, row


@needs_clang
def test_what_c_keeps_between_launches_has_memory_of_its_own(service: MeasureService) -> None:
    """tinygrad's loader gives a section without contents no memory: what begins as 0 would lie over the code."""
    body = source_body(lower(kernel(C_MATMUL, "c"), view_of(MATMUL, service.target)))
    kept = "static volatile float kept[4096];\nvoid C_MATMUL"
    begin = "{ for (int i = 0; i < 4096; i++) kept[i] = i;\n  for (int i = 0"
    source = body.source.replace("void C_MATMUL", kept).replace("{\n  for (int i = 0", begin, 1)
    assert "kept[i] = i" in source
    row = measured(service, source_schedule(replace(body, source=source)))
    assert row.status == Status.OK, row


# -- a user's file

FILE = """
from kcg.kernels import handwritten

@handwritten.uop(matches=lambda kernel: kernel.reduces == (40,))
def first(out, a, b, *, kernel):
    return kernel.ast

@handwritten.uop(matches=lambda kernel: kernel.no_such_field)
def second(out, a, b): ...

print("read")
"""


def test_a_file_is_read_once_and_its_kernels_are_matched_and_lowered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], service: MeasureService
) -> None:
    path = tmp_path / "kernels.py"
    path.write_text(FILE)
    file = KernelFile(path, file_digest(path))
    first, second = describe_job(file)
    assert (first, second) == (Described(file, "first", "uop"), Described(file, "second", "uop"))
    assert read_kernels(path, file.digest) is read_kernels(path, file.digest)
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "read\n")
    other = Region((kernel_of(kernels_of(empty(64) + 1)[0]),))
    symbolic = example_region("symbolic")
    assert match_job(first, [other, MATMUL, symbolic], service.target) == (1,)
    with pytest.raises(ScheduleError, match=r"its predicate raised AttributeError: .* \(line 8\)"):
        match_job(second, [MATMUL], service.target)
    assert source_body(lower_job(first, MATMUL, service.target)).name == "first"
    path.write_text(FILE + "\n")
    with pytest.raises(UsageError, match="changed while it was used"):
        read_kernels(path, "0" * 64)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x = (\n", "cannot be imported: SyntaxError"),
        ("\nimport not_here_at_all\n", "ModuleNotFoundError: No module named 'not_here_at_all' (line 2)"),
        ("x = 1\n", "registers no kernel: decorate one with kcg.kernels.handwritten"),
        ("raise SystemExit(4)\n", "SystemExit: 4 (line 1)"),
        ("from kcg.kernels import handwritten\nhandwritten.uop(matches='xyz')\n", "at least 6 digits"),
        ("from kcg.kernels import handwritten\nhandwritten.uop(matches='abcdef')(5)\n", "is a function whose name"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_line(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "kernels.py"
    path.write_text(text)
    with pytest.raises(UsageError) as error:
        read_kernels(path, file_digest(path))
    assert says in str(error.value) and str(path) in str(error.value) and "\n" not in str(error.value)


def test_a_missing_triton_is_reported_with_what_to_do(tmp_path: Path) -> None:
    try:
        import triton  # noqa: F401
    except ImportError:
        path = tmp_path / "kernels.py"
        path.write_text("import triton\n")
        with pytest.raises(
            UsageError, match=r"Triton is not installed: pip install 'kcg\[gpu\]', or leave that file out"
        ):
            read_kernels(path, file_digest(path))
