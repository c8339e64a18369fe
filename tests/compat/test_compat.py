"""Every private symbol of tinygrad that kcg relies on: its names, fields and signatures, and what its objects hold.

What fails here or in test_compat_steps.py after a new tinygrad version is the list of what to port.
"""

from __future__ import annotations

import ast as python_ast
import ctypes
import inspect
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import fields
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tinygrad.codegen
import tinygrad.codegen.opt.search as tiny_search
import tinygrad.dtype
import tinygrad.helpers
import tinygrad.runtime.ops_cpu as ops_cpu
import tinygrad.runtime.ops_cuda as ops_cuda
import tinygrad.runtime.support.compiler_amd as compiler_amd
import tinygrad.runtime.support.compiler_cuda as compiler_cuda
import tinygrad.tensor
import tinygrad.uop.ops
from tinygrad import Tensor, schedule
from tinygrad.engine import jit, realize
from tinygrad.mixin import gradient
from tinygrad.runtime.autogen import nvrtc

from kcg.compat import ggml, random_numbers, scheduling, streams, tiny
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
)
from kcg.kernel.codec import ast_of, kernel_of
from kcg.kernel.opts.schedule import Opt
from tests.commands import python
from tests.kernels import kernels_of
from tests.known_targets import KNOWN_TARGETS
from tests.without_clang import HIDE

ROOT = Path(__file__).parents[2]


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
    "max_numel is_invalid vmax shape render ended_ranges sink range const const_like call from_buffer cast nbytes",
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


ENUMS = ("Ops", "OptOps", "AxisType", "AddrSpace", "GroupOp", "dtypes")


def used_members(root: Path) -> Iterator[tuple[str, str, str]]:
    """`Ops.ADD` and the like in kcg's own files: enum, member, where."""
    for path in sorted(root.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if not any(f"{enum}." in text for enum in ENUMS):
            continue
        for node in python_ast.walk(python_ast.parse(text)):
            if isinstance(node, python_ast.Attribute) and isinstance(node.value, python_ast.Name):
                enum = node.value.id
                if enum in ENUMS:
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
    """`kcg.compat.programs` times with tinygrad's own pair of events, and launches hand-written code as it does."""
    assert list(inspect.signature(ops_cuda.cu_time_execution).parameters) == ["cb", "enable"]
    assert list(inspect.signature(ops_cuda.CUDAProgram.__call__).parameters)[:5] == [
        "self",
        "args",
        "global_size",
        "local_size",
        "vals",
    ]
    signature = (("out", 0, dtypes.float32, ()), ("x", 1, dtypes.float32, ()), ("wide", 2, dtypes.int32, ()))
    arguments, _ = ops_cuda.encode_args((4096, 8192), (7,), signature)
    assert bytes(arguments)[:20] == (4096).to_bytes(8, "little") + (8192).to_bytes(8, "little") + b"\7\0\0\0"
    spin, _ = ops_cuda.encode_args((), (1 << 33,), (("cycles", 0, dtypes.int64, ()),))
    assert bytes(spin) == (1 << 33).to_bytes(8, "little")


def test_a_second_stream_takes_what_tinygrad_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The launch is tinygrad's own but for the stream; the driver's functions are stand-ins."""
    from tinygrad.runtime.autogen import cuda

    text = inspect.getsource(ops_cuda.CUDAProgram.__call__)
    assert "cuLaunchKernel(self.prg, *global_size, *local_size, self.smem, None, None, self.vargs)" in text
    asked: list[tuple[str, tuple[Any, ...]]] = []
    names = "CtxSetCurrent StreamCreate StreamSynchronize StreamWaitEvent EventCreate EventRecord LaunchKernel"
    for name in names.split():
        monkeypatch.setattr(cuda, f"cu{name}", lambda *given, name=name: asked.append((name, given)) or 0)
    monkeypatch.setattr(streams, "Device", {"CUDA": SimpleNamespace(context="context")})
    stream = streams.Stream("CUDA")
    assert [given[1] for name, given in asked if name == "StreamCreate"] == [cuda.CU_STREAM_NON_BLOCKING]
    signature = (("out", 0, dtypes.float32, ()), ("x", 1, dtypes.float32, ()), ("n", 2, dtypes.int32, ()))
    launch = stream.program(SimpleNamespace(prg="function", smem=48, signature=signature))
    seen = []
    for pointers, count in (((4096, 8192), 7), ((12288, 16384), 9)):
        launch(
            *(cuda.CUdeviceptr_v2(one) for one in pointers), global_size=(3, 2, 1), local_size=(64, 1, 1), vals=(count,)
        )
        name, (function, *sizes, on, _, extra) = asked[-1]
        assert (name, function, sizes) == ("LaunchKernel", "function", [3, 2, 1, 64, 1, 1, 48])
        assert on is stream._stream
        seen.append(ctypes.string_at(extra[1], 20))
    assert seen == [struct.pack("<QQi", 4096, 8192, 7), struct.pack("<QQi", 12288, 16384, 9)]
    stream.follow()
    stream.wait()
    order = [name for name, _ in asked if name.startswith(("Event", "Stream"))][-3:]
    assert order == ["EventRecord", "StreamWaitEvent", "StreamSynchronize"]
    assert not streams.has_second_stream("CPU") and streams.second_stream("CPU") is None


@pytest.mark.gpu
def test_a_second_stream_runs_beside_tinygrads_own_on_a_gpu() -> None:
    from kcg.compat.device import prepare
    from kcg.compat.programs import Spin, synchronize

    prepare("CUDA")
    stream, spin = streams.second_stream("CUDA"), Spin("CUDA")
    assert stream is not None and spin._code is not None
    beside = stream.program(spin._code._program)

    def waited_s(*, follows: bool) -> float:
        synchronize("CUDA")
        begin = time.perf_counter()
        spin(2.0)
        if follows:
            stream.follow()
        beside(global_size=(1, 1, 1), local_size=(1, 1, 1), vals=(int(1e6),))
        stream.wait()
        return time.perf_counter() - begin

    waited_s(follows=False)  # the first launch loads it
    assert waited_s(follows=False) < 1.0 <= waited_s(follows=True)


@pytest.mark.gpu
def test_events_and_hand_written_code_on_a_gpu() -> None:
    from kcg.compat.device import prepare
    from kcg.compat.programs import CudaCode, Spin, device_seconds

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
        (realize.get_call_outs_ins, ["call"]),
        (realize.resolve_params, ["call", "inputs"]),
        (jit._TinyJit.__call__, ["self", "args", "kwargs"]),
        (jit.memory_plan_rewrite, ["linear", "held_bufs"]),
        (schedule.memory_plan_rewrite, ["linear", "held_bufs"]),
        (jit.run_linear, ["linear", "var_vals", "input_uops", "update_stats", "jit", "wait"]),
        (Tensor._apply_uop, ["self", "fxn", "x", "kwargs"]),
        (Tensor._wrap_uop, ["u"]),
        (Tensor.assign, ["self", "x"]),
        (UOp.new_buffer, ["device", "size", "dtype", "num"]),
        (UOp.contiguous_view, ["self"]),
        (Tensor._buffer, ["self"]),
        (tinygrad.dtype.fp8_to_float, ["x", "dtype"]),
        (tinygrad.dtype._to_np_dtype, ["dtype"]),
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


def test_tensors_are_listed_in_the_order_in_which_they_were_made() -> None:
    made = [Tensor([1.0]), Tensor([2.0]).realize(), Tensor([3.0])]
    listed = [found for ref in tinygrad.tensor.all_tensors if (found := ref()) is not None]
    places = [next(i for i, found in enumerate(listed) if found is tensor) for tensor in made]
    assert places == sorted(places)
    assert made[1].uop.base.realized is not None and made[0].uop.base.realized is None
    assert isinstance(Tensor._device_seeds, dict) and isinstance(Tensor._device_rng_counters, dict)


def test_tables_of_packed_formats_are_there() -> None:
    sizes = {"iq2s_grid": 1024, "iq3xxs_grid": 256, "iq3s_grid": 512, "kvalues_iq4nl": 16}
    assert {name: len(ggml.table(name)) for name in sizes} == sizes


def test_random_numbers_come_from_a_seed_and_a_counter_of_the_device() -> None:
    seed, counter = (Tensor.empty(2, dtype="uint32") for _ in range(2))
    with random_numbers.drawing_from(seed, counter):
        made = Tensor.rand(4, contiguous=False)
        assert {seed.uop, counter.uop} <= set(made.uop.toposort())
        assert Tensor._device_rng_counters[str(seed.device)].uop is not counter.uop
    assert Tensor._device_seeds.get(str(seed.device)) is not seed


def test_functions_that_kcg_replaces_are_looked_up_when_they_are_called() -> None:
    """Replacing a module's attribute only works where callers read it from that module."""
    assert "lower_and_compile(" in inspect.getsource(realize.compile_linear)
    assert "track_stats(" in inspect.getsource(realize.run_linear)
    assert all("self._buffer()" in inspect.getsource(read) for read in (Tensor._data, Tensor.data, Tensor.numpy))
    assert "_time_program(" in inspect.getsource(tiny_search.beam_search)
    assert "do_to_program(" in inspect.getsource(ops_cpu.CPUDevice.__init__)
    assert "HIPCompiler" in vars(compiler_amd)
    # these are wrapped by tinygrad, which leaves no signature
    assert "def create_linear_with_vars(big_sink:UOp) -> tuple[UOp, dict[str, int]]:" in inspect.getsource(schedule)
    assert "return memory_plan_rewrite(linear, held_bufs), var_vals" in inspect.getsource(schedule)
    assert "def jit_lower(linear:UOp, held_bufs:set[UOp], input_uops:list[UOp]) -> UOp:" in inspect.getsource(jit)
    assert "linear = memory_plan_rewrite(linear, held_bufs)" in inspect.getsource(jit)
    assert "def transform_to_call(big_sink:UOp) -> tuple[UOp, dict[UOp, UOp]]:" in inspect.getsource(tinygrad.tensor)
    assert "jit_lower(" in inspect.getsource(jit._TinyJit.__call__)
    assert "run_linear(" in inspect.getsource(jit.CapturedJit.__call__)
    assert "linear = compile_linear(linear, " in inspect.getsource(jit)
    copying = "_copy_input(u) if u in self._written_uops else u for u in input_uops"
    assert copying in inspect.getsource(jit.CapturedJit.__call__)
    assert "run_linear(*Tensor.linear_with_vars(*to_realize), " in inspect.getsource(Tensor.realize)
    scheduling_of_tensors = inspect.getsource(Tensor.linear_with_vars)
    assert all(f"{name}(" in scheduling_of_tensors for name in ("transform_to_call", "create_linear_with_vars"))
    assert isinstance(Tensor.__dict__["_wrap_uop"], classmethod)
    assert "from tinygrad.mixin.gradient import compute_gradient" in inspect.getsource(Tensor.gradient)
    assert [*inspect.signature(gradient.compute_gradient).parameters] == ["root", "root_grad", "targets"]


def test_what_the_memory_planner_is_given_names_its_buffers() -> None:
    """A base is what tells memory from other memory: a buffer, an input of a `TinyJit`, or what backs them."""
    whole = Tensor([1.0, 2.0, 3.0, 4.0]).realize().uop.buf_uop
    part = whole[1:3]
    base, offset = part.contiguous_view()
    assert (base, offset) == (whole, 1) and whole.buffer.base is whole.buffer and whole.buffer.offset == 0
    assert part.buffer.base is whole.buffer and part.buffer.offset == 4
    assert tinygrad.uop.ops.buffers.get(whole) is whole.buffer


def test_a_tensor_names_the_buffer_that_its_value_is_kept_in() -> None:
    """Which parameter a kernel reads is known by that; what is stored or cast names what was computed."""
    tensor = Tensor([[1.0, 2.0], [3.0, 4.0]]).reshape(4).clone().realize()
    buffer = tensor.uop.base
    assert buffer.op is Ops.BUFFER and tensor.uop.buf_uop is buffer
    tensor.assign(tensor + 1)
    assert tensor.uop.base.op is Ops.AFTER and tensor.uop.base.buf_uop is buffer
    assert tensor.realize().uop.buf_uop is buffer
    made = (tensor * 2).cast("float16")
    stored = made.contiguous()
    assert (stored.uop.op, made.uop.op) == (Ops.CONTIGUOUS, Ops.CAST) and stored.uop.src[0] is made.uop


def test_the_cpu_opens_without_clang(tmp_path: Path) -> None:
    body = (
        "from kcg.compat.device import clang_path, prepare\n"
        "assert clang_path() is None\n"
        "prepare('CPU:X86')\n"
        "from tinygrad import Device, Tensor\n"
        "assert Device['CPU'].renderer.target.device == 'CPU'\n"
        "assert all(program is not None for program in Device['CPU'].prgs.values())\n"
        "assert (Tensor([1.0, 2.0]) + 1).tolist() == [2.0, 3.0]"
    )
    done = python("-c", HIDE + body, PATH=str(tmp_path), CC="", CACHEDB=str(tmp_path / "cache.db"))
    assert done.returncode == 0, done.stderr


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
