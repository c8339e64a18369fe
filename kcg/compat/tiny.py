"""tinygrad's internals, by name: the one module through which the rest of kcg reaches them.

This import list is the checklist for a new tinygrad version; `tests/compat/test_compat.py` checks every name and every
attribute that kcg relies on.
"""

from tinygrad.codegen import full_rewrite_to_sink, to_program, to_program_cache, to_program_key
from tinygrad.codegen.opt import KernelOptError, OptOps
from tinygrad.codegen.opt import Opt as TinyOpt
from tinygrad.codegen.opt.heuristic import hand_coded_optimizations
from tinygrad.codegen.opt.postrange import Scheduler, args_from_ast
from tinygrad.device import Buffer, BufferSpec, CompileError, Compiler, Device, TinyELF
from tinygrad.dtype import AddrSpace, DType, Invalid, InvalidType, dtypes, fp8_to_float
from tinygrad.helpers import BEAM, DEV, Context
from tinygrad.helpers import Target as TinyTarget
from tinygrad.renderer import Estimates, Renderer
from tinygrad.uop import GroupOp, Ops
from tinygrad.uop.ops import (
    AxisType,
    KernelInfo,
    ParamArg,
    PatternMatcher,
    ProgramInfo,
    UOp,
    UPat,
    axis_to_pos,
    graph_rewrite,
    sym_infer,
)
from tinygrad.uop.spec import spec_tensor, type_verify

__all__ = [
    "BEAM",
    "DEV",
    "AddrSpace",
    "AxisType",
    "Buffer",
    "BufferSpec",
    "CompileError",
    "Compiler",
    "Context",
    "DType",
    "Device",
    "Estimates",
    "GroupOp",
    "Invalid",
    "InvalidType",
    "KernelInfo",
    "KernelOptError",
    "Ops",
    "OptOps",
    "ParamArg",
    "PatternMatcher",
    "ProgramInfo",
    "Renderer",
    "Scheduler",
    "TinyELF",
    "TinyOpt",
    "TinyTarget",
    "UOp",
    "UPat",
    "args_from_ast",
    "axis_to_pos",
    "dtypes",
    "fp8_to_float",
    "full_rewrite_to_sink",
    "graph_rewrite",
    "hand_coded_optimizations",
    "spec_tensor",
    "sym_infer",
    "to_program",
    "to_program_cache",
    "to_program_key",
    "type_verify",
]
