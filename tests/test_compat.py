"""Every private symbol of tinygrad that kcg relies on, and that kcg's copies of its steps do what tinygrad does.

What fails here after a new tinygrad version is the list of what to port.
"""

from __future__ import annotations

import ast as python_ast
import inspect
import re
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import fields
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import tinygrad.codegen
import tinygrad.codegen.opt.search as tiny_search
import tinygrad.helpers
import tinygrad.runtime.ops_cpu as ops_cpu
import tinygrad.runtime.ops_cuda as ops_cuda
import tinygrad.runtime.support.compiler_amd as compiler_amd
import tinygrad.runtime.support.compiler_cuda as compiler_cuda
from tinygrad import Tensor
from tinygrad.engine import realize
from tinygrad.runtime.autogen import nvrtc

from kcg.compat import beam, programs, scheduling, tiny
from kcg.compat.device import clang_path
from kcg.compat.renderers import planning_renderer
from kcg.compat.tiny import (
    AxisType,
    Buffer,
    Device,
    DType,
    KernelInfo,
    Ops,
    ParamArg,
    ProgramInfo,
    Renderer,
    Scheduler,
    TinyELF,
    TinyOpt,
    TinyTarget,
    UOp,
    dtypes,
    to_program,
)
from kcg.kernel.codec import ast_of, kernel_of
from kcg.kernel.targets import KNOWN_TARGETS
from kcg.types import Opt, Target
from tests.kernels import example_asts, kernels_of

ROOT = Path(__file__).parent.parent
ASTS = example_asts()

X86 = Target(
    device="CPU", renderer="X86", arch="x86_64,native", model="test", cores=2, has_local=False, has_threads=True,
    max_threads=2, shared_bytes=0, memory_bytes=1 << 30, cache_bytes=1 << 20,
)  # fmt: skip
TARGETS = {"X86": X86, **KNOWN_TARGETS}


def test_this_is_the_tinygrad_that_kcg_was_written_for() -> None:
    assert metadata.version("tinygrad") == "0.14.0"
    assert tinygrad.helpers.VERSION == 22, "the disk cache has another layout: look at kcg.compat.beam"


@pytest.mark.parametrize("name", tiny.__all__)
def test_name_exists(name: str) -> None:
    assert getattr(tiny, name) is not None


# what kcg uses of each class; instance attributes that no class statement shows are checked further down
ATTRIBUTES: dict[type, str] = {
    Scheduler: "copy apply_opt rngs full_shape axis_types real_axis convert_loop_to_global get_optimized_ast reduceop",
    UOp: "toposort substitute ranges replace key src arg op dtype tag device addrspace backward_slice variables expr "
    "max_numel is_invalid vmax shape render ended_ranges sink range const call from_buffer cast nbytes",
    Renderer: "target suffix has_local has_threads global_max shared_max tensor_cores compiler render asm",
    ProgramInfo: "name function_name global_size local_size vars globals outs ins launch_dims vals target",
    Buffer: "allocate ensure_allocated view as_memoryview get_buf nbytes",
    TinyELF: "__init__",
    DType: "itemsize name fmt const",
    KernelInfo: "function_name",
}
FIELDS: dict[type, list[str]] = {
    KernelInfo: ["name", "axis_types", "dont_use_locals", "applied_opts", "opts_to_apply", "estimates", "beam"],
    ParamArg: ["slot", "dtype", "vmin_vmax", "multiple_of", "name", "addrspace", "axis", "device", "volatile"],
    ProgramInfo: ["name", "global_size", "local_size", "vars", "globals", "outs", "ins", "target"],
    TinyOpt: ["op", "axis", "arg"],
    TinyTarget: ["device", "renderer", "arch", "interface", "indices"],
}


def has_attribute(cls: type, name: str) -> bool:
    """Whether instances of `cls` have `name`, as far as the classes tell: methods, annotations, slots, fields."""
    return any(name in vars(c) or name in getattr(c, "__annotations__", {}) for c in cls.__mro__)


@pytest.mark.parametrize(("cls", "name"), [(cls, name) for cls, names in ATTRIBUTES.items() for name in names.split()])
def test_attribute_exists(cls: type, name: str) -> None:
    assert has_attribute(cls, name)


@pytest.mark.parametrize("cls", FIELDS)
def test_fields_are_exactly_these(cls: Any) -> None:
    """An unknown field of `KernelInfo` or `ParamArg` is one that the codec would lose."""
    names = [f.name for f in fields(cls)] if hasattr(cls, "__dataclass_fields__") else list(cls._fields)
    assert names == FIELDS[cls]


def used_members(root: Path) -> Iterator[tuple[str, str, str]]:
    """`Ops.ADD` and the like in kcg's own files: enum, member, where."""
    for path in sorted(root.rglob("*.py")):
        for node in python_ast.walk(python_ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, python_ast.Attribute) and isinstance(node.value, python_ast.Name):
                enum = node.value.id
                if enum in ("Ops", "OptOps", "AxisType", "AddrSpace", "GroupOp", "dtypes"):
                    yield enum, node.attr, f"{path.name}:{node.lineno}"


def test_every_member_that_kcg_names_exists() -> None:
    used = list(used_members(ROOT / "kcg"))
    assert len(used) > 100
    assert [
        f"{where}: {enum}.{member}" for enum, member, where in used if not hasattr(getattr(tiny, enum), member)
    ] == []


def test_what_kcg_takes_of_the_cuda_compiler() -> None:
    for name in ("NVRTCCompiler", "nvrtc_check", "to_char_p_p", "_get_bytes"):
        assert hasattr(compiler_cuda, name)
    assert list(inspect.signature(compiler_cuda._get_bytes).parameters) == ["arg", "get_str", "get_sz", "check"]
    text = inspect.getsource(compiler_cuda.NVRTCCompiler.compile)
    assert "nvrtcCompileProgram(prog, len(self.compile_options)" in text, "kcg repeats these steps for PTX and cubin"
    for name in (
        "CreateProgram",
        "CompileProgram",
        "GetPTX",
        "GetPTXSize",
        "GetCUBIN",
        "GetCUBINSize",
        "DestroyProgram",
    ):
        assert callable(getattr(nvrtc, f"nvrtc{name}"))


def test_what_kcg_takes_of_the_cuda_runtime() -> None:
    """`kcg.compat.events` times with tinygrad's own pair of events, and launches hand-written code as it does."""
    assert list(inspect.signature(ops_cuda.cu_time_execution).parameters) == ["cb", "enable"]
    assert list(inspect.signature(ops_cuda.CUDAProgram.__call__).parameters)[:5] == [
        "self", "args", "global_size", "local_size", "vals",
    ]  # fmt: skip
    signature = (("out", 0, dtypes.float32, ()), ("x", 1, dtypes.float32, ()), ("wide", 2, dtypes.int32, ()))
    arguments, _ = ops_cuda.encode_args((4096, 8192), (7,), signature)
    assert bytes(arguments)[:20] == (4096).to_bytes(8, "little") + (8192).to_bytes(8, "little") + b"\7\0\0\0"
    spin, _ = ops_cuda.encode_args((), (1 << 33,), (("cycles", 0, dtypes.int64, ()),))
    assert bytes(spin) == (1 << 33).to_bytes(8, "little")


@pytest.mark.gpu
def test_events_and_hand_written_code_on_a_gpu() -> None:
    from kcg.compat.device import prepare
    from kcg.compat.events import CudaCode, Spin, device_seconds

    prepare("CUDA")
    spin = Spin("CUDA")
    spin(1e-3)  # the first launch loads it
    assert 1e-3 <= device_seconds("CUDA", lambda: spin(2e-3)) < 20e-3
    source = 'extern "C" __global__ void twice(float* out, float* x, int n) { out[threadIdx.x] = x[threadIdx.x] * n; }'
    twice = CudaCode("twice", source, (("out", "float32"), ("x", "float32"), ("n", "int32")), pointers=2)
    x = Tensor([float(i) for i in range(32)], device="CUDA").realize()
    out = Tensor.empty(32, device="CUDA").realize()
    twice(out, x, 2, grid=1, block=32)
    assert out.tolist() == [2.0 * i for i in range(32)]


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        (realize.lower_and_compile, ["linear"]),
        (realize.track_stats, ["ctx", "call", "st", "ets"]),
        (realize.compile_linear, ["linear", "beam", "validate", "input_uops", "profile"]),
        (tiny_search.beam_search, ["s", "rawbufs", "var_vals", "amt", "allow_test_size", "disable_cache"]),
        (tinygrad.codegen.apply_opts, ["ast", "ren", "beam"]),
        (tinygrad.codegen.full_rewrite_to_sink, ["ast", "ren", "optimize"]),
        (tinygrad.helpers.diskcache_put, ["table", "key", "val", "prepickled"]),
        (tinygrad.helpers.diskcache_get, ["table", "key"]),
        (tiny.to_program, ["ast", "renderer"]),
        (tiny.to_program_key, ["ast", "renderer"]),
        (tiny.args_from_ast, ["ast", "dname"]),
        (tiny.hand_coded_optimizations, ["k"]),
        (tiny.sym_infer, ["uop", "var_vals"]),
        (Scheduler.apply_opt, ["self", "opt", "append_opt"]),
        (Scheduler.real_axis, ["self", "op", "axis"]),
        (Scheduler.get_optimized_ast, ["self", "name_override"]),
        (UOp.substitute, ["self", "dvars", "name", "extra_pm", "walk", "enter_calls"]),
    ],
    ids=lambda value: getattr(value, "__qualname__", ""),
)
def test_signature_is_the_one_that_kcg_calls(function: Callable[..., Any], parameters: list[str]) -> None:
    assert list(inspect.signature(function).parameters) == parameters


def test_functions_that_kcg_replaces_are_looked_up_when_they_are_called() -> None:
    """Replacing a module's attribute only works where callers read it from that module."""
    assert "lower_and_compile(" in inspect.getsource(realize.compile_linear)
    assert "track_stats(" in inspect.getsource(realize.run_linear)
    assert "_time_program(" in inspect.getsource(tiny_search.beam_search)
    assert "do_to_program(" in inspect.getsource(ops_cpu.CPUDevice.__init__)
    assert "HIPCompiler" in vars(compiler_amd)


@pytest.mark.skipif(clang_path() is not None, reason="clang is here: tinygrad opens its CPU by itself")
def test_the_cpu_opens_without_clang() -> None:
    assert Device["CPU"].renderer.target.device == "CPU"
    assert all(program is not None for program in Device["CPU"].prgs.values())


def test_a_buffer_on_the_device_has_what_the_workbench_uses() -> None:
    buffer = Buffer("CPU", 16, dtypes.uint8).allocate()
    buffer.allocator._copyin(buffer._buf, memoryview(bytearray(range(16))))
    Device["CPU"].synchronize()
    assert bytes(buffer.view(4, dtypes.uint8, 8).ensure_allocated().as_memoryview()) == bytes(range(8, 12))


def test_a_scheduler_holds_what_kcg_reads() -> None:
    (matmul,) = kernels_of(Tensor.empty(32, 32, dtype=dtypes.half) @ Tensor.empty(32, 32, dtype=dtypes.half))
    state = scheduling.initial_state(ast_of(kernel_of(matmul)), planning_renderer(KNOWN_TARGETS["sm_90"]))
    assert state.applied_opts == []
    assert state.ast.op is Ops.SINK
    assert [r.arg[-1] for r in state.rngs] == state.axis_types
    core = scheduling.apply(state, (Opt("TC", 0, (-1, 0, 1)),))
    assert core.tensor_core.dims
    assert core.tensor_core.threads == 32
    assert AxisType.WARP in core.axis_types
    assert core.tensor_core.dtype_in.name == "half"
    assert core.tensor_core.dtype_out.name == "float"


# -- kcg's copies of tinygrad's steps


class Stop(BaseException):
    """Ends tinygrad's work once the test has seen what it wanted."""


def given_to_apply_opts(ast: UOp, renderer: Any, monkeypatch: pytest.MonkeyPatch) -> UOp:
    """The AST that tinygrad's own code generation hands to `apply_opts`."""
    seen: list[UOp] = []

    def capture(sink: UOp, _renderer: Any, beam: int = 0) -> UOp:
        seen.append(sink)
        raise Stop

    monkeypatch.setattr(tinygrad.codegen, "apply_opts", capture)
    with pytest.raises(Stop):
        tinygrad.codegen.full_rewrite_to_sink(ast, renderer)
    monkeypatch.undo()
    return seen[0]


@pytest.mark.parametrize("target", TARGETS)
def test_the_initial_state_is_tinygrads(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    renderer = planning_renderer(TARGETS[target])
    for name, raw in ASTS.items():
        ast = scheduling.with_device(ast_of(kernel_of(raw)), TARGETS[target].device)
        theirs = Scheduler(given_to_apply_opts(ast, renderer, monkeypatch), renderer)
        theirs.convert_loop_to_global()
        assert scheduling.initial_state(ast, renderer).ast is theirs.ast, name


@pytest.mark.parametrize("target", TARGETS)
def test_the_hand_coded_schedule_is_what_tinygrad_applies(target: str) -> None:
    renderer = planning_renderer(TARGETS[target])
    for name, raw in ASTS.items():
        ast = scheduling.with_device(ast_of(kernel_of(raw)), TARGETS[target].device)
        state = scheduling.initial_state(ast, renderer)
        theirs = tinygrad.codegen.opt.postrange.apply_opts(scheduling.initial_state(ast, renderer).ast, renderer)
        assert scheduling.hand_coded(state).opts == tuple(map(scheduling.from_tiny, theirs.arg.applied_opts)), name


@pytest.mark.parametrize("name", ["matmul_f32", "softmax.0", "conv2d", "symbolic", "gelu"])
def test_the_hand_coded_schedule_is_what_a_program_records(name: str) -> None:
    renderer = planning_renderer(X86)
    ast = scheduling.with_device(ast_of(kernel_of(ASTS[name])), "CPU")
    program = to_program(ast, renderer)
    applied = tuple(map(scheduling.from_tiny, program.src[0].arg.applied_opts))
    assert scheduling.hand_coded(scheduling.initial_state(ast, renderer)).opts == applied


def test_reaching_a_schedule_does_not_change_its_parent() -> None:
    state = scheduling.initial_state(ast_of(kernel_of(ASTS["matmul_f32"])), planning_renderer(X86))
    before = state.ast
    after = scheduling.apply(state, (Opt("UPCAST", 0, 4),))
    scheduling.scheduled_ast(after)
    scheduling.kernel_name(after)
    assert state.ast is before
    assert state.applied_opts == []
    assert [scheduling.from_tiny(o) for o in after.applied_opts] == [Opt("UPCAST", 0, 4)]


@pytest.mark.parametrize("opt", [Opt("UPCAST", 0, 4), Opt("UNROLL", 1, 0), Opt("TC", 0, (-1, 2, 1)), Opt("SWAP", 0, 1)])
def test_opts_go_to_tinygrad_and_back(opt: Opt) -> None:
    assert scheduling.from_tiny(scheduling.to_tiny(opt)) == opt


# -- BEAM's disk cache


def beam_lookups(call: UOp, width: int, monkeypatch: pytest.MonkeyPatch) -> tuple[str, dict[str, Any]]:
    """The table and the key that tinygrad itself looks up when a program with `BEAM=width` compiles a kernel."""
    seen: list[tuple[str, dict[str, Any]]] = []

    def lookup(table: str, key: dict[str, Any]) -> None:
        seen.append((table, key))
        raise Stop

    monkeypatch.setattr(tiny_search, "diskcache_get", lookup)
    with pytest.raises(Stop):
        realize.compile_linear(UOp(Ops.LINEAR, src=(call,)), beam=width)
    monkeypatch.undo()
    return seen[0]


@pytest.mark.parametrize("width", [1, 2, 8])
def test_the_cache_key_is_the_one_that_beam_looks_up(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    renderer, compared = Device["CPU"].renderer, 0
    for name, ast in ASTS.items():
        buffers = sorted((u for u in ast.toposort() if u.op is Ops.PARAM and u.arg.slot >= 0), key=lambda u: u.arg.slot)
        if any(isinstance(b.device, tuple) for b in buffers):
            continue  # a kernel on several devices has their names in its key: BEAM's cache cannot serve it
        call = ast.call(*[UOp.new_buffer("CPU", b.max_numel(), b.dtype) for b in buffers])
        expected = beam.cache_key(ast_of(kernel_of(ast)), width, "CPU", renderer)
        assert beam_lookups(call, width, monkeypatch) == ("beam_search", expected), name
        compared += 1
    assert compared >= 90


def test_the_cache_row_is_the_one_that_tinygrad_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What kcg writes under BEAM's key comes out of tinygrad's own `diskcache_get`, and a program then takes it."""
    (ast,) = kernels_of(Tensor.empty(24, 40) @ Tensor.empty(40, 32))
    renderer, opts = Device["CPU"].renderer, (Opt("UPCAST", 0, 4), Opt("UPCAST", 1, 2))
    key = beam.cache_key(ast_of(kernel_of(ast)), 3, "CPU", renderer)
    monkeypatch.setattr(tinygrad.helpers, "CACHEDB", str(tmp_path / "cache.db"))
    monkeypatch.setattr(tinygrad.helpers, "_db_connection", None)
    monkeypatch.setattr(tinygrad.helpers, "_db_tables", set())
    assert tinygrad.helpers.diskcache_get("beam_search", key) is None
    with sqlite3.connect(tmp_path / "cache.db") as connection:
        connection.execute(beam.create_table_sql(beam.cache_table()))
        values = [*(key[name] for name, _ in beam.KEY_COLUMNS), beam.cache_value(opts)]
        connection.execute(f"INSERT INTO '{beam.cache_table()}' VALUES({', '.join('?' * len(values))})", values)
    connection.close()
    assert tuple(map(scheduling.from_tiny, tinygrad.helpers.diskcache_get("beam_search", key))) == opts
    marked = scheduling.with_device(ast, "CPU").replace(arg=KernelInfo(beam=3))
    program = to_program(marked, renderer)
    assert tuple(map(scheduling.from_tiny, program.src[0].arg.applied_opts)) == opts
    tinygrad.helpers._db_connection.close()


def test_the_table_has_tinygrads_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`diskcache_put` would make the same table."""
    monkeypatch.setattr(tinygrad.helpers, "CACHEDB", str(tmp_path / "cache.db"))
    monkeypatch.setattr(tinygrad.helpers, "_db_connection", None)
    monkeypatch.setattr(tinygrad.helpers, "_db_tables", set())
    key = beam.cache_key(ast_of(kernel_of(ASTS["matmul_f32"])), 2, "CPU", Device["CPU"].renderer)
    tinygrad.helpers.diskcache_put("beam_search", key, [])
    (sql,) = tinygrad.helpers._db_connection.execute("SELECT sql FROM sqlite_master WHERE type = 'table'").fetchone()
    tinygrad.helpers._db_connection.close()
    ours = beam.create_table_sql(beam.cache_table()).replace("IF NOT EXISTS ", "")
    assert re.sub(r"[\s'\"]", "", sql).lower() == re.sub(r"[\s'\"]", "", ours).lower()


def test_a_jit_that_captures_its_first_call_gives_what_an_uncaptured_one_does() -> None:
    """Its memory is planned from the start: nothing that the function made contiguous outlives the call."""
    from kcg.compat.jit import captured_at_once

    def step(x: Tensor) -> Tensor:
        return ((x + 1).contiguous() * 2).contiguous().sum()

    jitted = captured_at_once(step)
    for numbers in ([1.0, 2.0, 3.0], [4.0, 5.0, 6.0]):
        given = Tensor(numbers, device="CPU").contiguous().realize()
        assert jitted(given).item() == pytest.approx(sum(2 * (n + 1) for n in numbers))
        assert jitted.captured is not None


@pytest.mark.parametrize(
    ("dtype", "offset", "aligned"),
    [("uint8", 4, False), ("uint8", 48, True), ("float32", 1, False), ("float32", 8, True)],
)
def test_whether_a_calls_buffers_are_aligned_is_told_before_it_runs(dtype: str, offset: int, aligned: bool) -> None:
    """Views as tinygrad's memory planner makes them: a part of one buffer, taken for another dtype."""
    base, whole = (UOp.new_buffer("CPU", 4096, getattr(dtypes, dtype)) for _ in range(2))
    call = UOp.sink().call(whole, base.shrink(((offset, offset + 256),)).bitcast(dtypes.float32))
    assert programs.is_aligned(call) is aligned
    assert programs.single_device(call) == "CPU"


def test_a_compiled_program_can_be_put_in_the_place_of_a_kernel() -> None:
    """What `kcg.compat.programs` relies on."""
    import tinygrad.runtime.ops_cuda as ops_cuda
    from tinygrad.runtime.support import compiler_cpu, elf

    assert list(inspect.signature(ops_cuda.CUDAProgram.__init__).parameters) == ["self", "dev", "obj", "smem"]
    assert "runtime_cache.get(key:=(ast.key, device))" in inspect.getsource(realize.get_runtime)
    assert "isinstance(ast.arg, ProgramInfo) and ast.src[-1].op is Ops.BINARY" in inspect.getsource(
        realize._get_call_to_compile
    ), "a PROGRAM with a BINARY is compiled no more"
    assert "resolved[i] for i in ast.arg.globals" in inspect.getsource(realize.exec_kernel)
    from tinygrad.runtime.graph import cuda as graph

    assert "runtime.prg" in inspect.getsource(graph.CUDAGraph) and "runtime.smem" in inspect.getsource(graph.CUDAGraph)
    for name in ("contiguous_view", "is_bound_var", "to_elf", "placeholder"):
        assert has_attribute(UOp, name)
    assert "link_libs" in inspect.signature(elf.elf_loader).parameters
    compiler = compiler_cpu.ClangCompiler(["x86_64", "native"])
    assert compiler.arch == "x86_64" and compiler.args == ["-march=native"]
    text = inspect.getsource(compiler_cpu.ClangCompiler.compile)
    for option in ("'-c', '-x', 'c', '-O2', '-fPIC', '-ffreestanding', '-fno-math-errno', '-nostdlib'", "'-fno-ident'"):
        assert option in text, "kcg compiles C as tinygrad does"
