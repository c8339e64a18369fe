"""What tile programs are made and judged by of a GPU: one record each. A new device is a new record.

Nothing else in this package asks for an architecture's name, or compares a compute capability.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from kcg.kernel.tile.parameters import EXACT, TF32X3
from kcg.types import Target

KIB: Final = 1024
FUSED_SHARE: Final = 0.4
"""What fused multiply-adds of products reach of all that there are; with what follows it is fitted to recorded products
of float32 (docs/experiments/2026-11-30-products-of-float32.md)."""
FEW_SUMS: Final = 8  # of a thread, at which they wait as long for their operands
MANY_SUMS: Final = 128  # at which they wait as long for registers
NVIDIA: Final = re.compile(r"sm_(\d+)[af]?")


@dataclass(frozen=True)
class Figures:
    """What one multiprocessor of a GPU does, or all of them: seconds, bytes and operations a second."""

    tensor_ops: float  # 16-bit multiplications and additions a multiprocessor, as sustained
    float32_share: float  # of these, where tensor cores take float32; 0: fused multiply-adds make such products
    several_share: float  # where three products of tf32 make one of float32
    tf32_share: float  # and where operands are rounded to tf32
    group_warps: int  # that it takes to keep a multiprocessor's tensor cores busy
    group_rows: int  # of a result that so many warps make at once: fewer are padded
    narrow: float  # columns of a product that take half as long as they need not
    plain_ops: float  # of float32, a multiprocessor
    special_ops: float  # exponentials and the like, a multiprocessor
    l2_bytes: float  # from L2 to a multiprocessor
    block_bytes: float  # the same of blocks that are copied asynchronously, from neighbours' or its own requests
    apart_bytes: float  # and of those that its neighbours do not ask for
    partial_bytes: float  # partial sums, written by one launch and read by the next
    memory_bytes: float  # from memory to all of them
    flight_s: float  # from a load's issue to its data, where L2 holds it
    cold_s: float  # and what more it takes from memory
    loaded_s: float  # from memory while all of its bandwidth is taken
    product_share: float  # of a step's product during which the load for a later step cannot be issued yet
    crowding: float  # what programs that share a multiprocessor lose to each other, of their time
    step_s: float  # of a step of the loop beside its loads and products
    pointer_share: float  # of the tensor core's time that loads through pointers add
    opening_s: float  # of a program before its first product, beside the first load
    fill_s: float  # more of a contraction's, until its blocks come from memory as fast as they are multiplied
    descriptors_s: float  # of a program that makes its own TMA descriptors
    store_bytes: float  # a multiprocessor's, of the epilogue
    held_elements: float  # that a multiprocessor moves one by one, through registers
    piece_share: float  # of the tensor core's time that a second product in each step adds
    written_share: float  # of what a reduction takes of L2, that has to be written to memory first
    spare_share: float  # of a wave's time, where nearly all other multiprocessors are idle: its programs are faster
    # of a multiprocessor in a clock, as published: by these specialised warps are judged
    products_a_clock: int = 0  # multiplications of 16 bits
    plain_a_clock: int = 0  # of 32 bits
    special_a_clock: int = 0  # powers of 2

    def share_of_float32(self, precision: str, sums: float) -> float:
        """What share of `tensor_ops` products of float32 reach in a precision, where a thread has so many sums. Fused
        multiply-adds wait for operands from shared memory where sums are few, and for registers where they are many;
        so do three products of tf32, whose operands are taken apart in registers."""
        if precision not in (EXACT, TF32X3):
            return self.tf32_share
        if self.float32_share:
            return self.several_share if precision == TF32X3 else self.float32_share
        most = self.several_share if precision == TF32X3 else FUSED_SHARE * self.plain_ops / self.tensor_ops
        return most * sums / (sums + FEW_SUMS) / (1 + sums / MANY_SUMS)


HOPPER: Final = Figures(
    tensor_ops=7.7e12, narrow=31, piece_share=0.12, plain_ops=4.6e11, special_ops=2.9e10, l2_bytes=1.14e11,
    block_bytes=2e11, apart_bytes=6.3e10, partial_bytes=5.8e12, memory_bytes=2.76e12, flight_s=4.8e-7, cold_s=6.4e-8,
    loaded_s=1e-6, product_share=0.18, crowding=0.49, written_share=0.25, spare_share=0.18, step_s=9.3e-9,
    pointer_share=0.041, opening_s=9e-7, fill_s=3.1e-6, descriptors_s=3.8e-6, store_bytes=8e10, held_elements=1.4e10,
    float32_share=0.0, several_share=0.06, tf32_share=0.5, group_warps=4, group_rows=64,
    products_a_clock=2_048, plain_a_clock=128, special_a_clock=16,
)  # fmt: skip
"""Fitted to five matmuls of Flux on one H100 (Triton 3.6, 239 programs): docs/tiles.md says how it ranks others.
`written_share` is by reductions of 57 to 103 MB, which took 4 to 6 µs longer where nothing was evicted first."""

AMPERE: Final = replace(
    HOPPER,
    tensor_ops=2.9e12,
    plain_ops=1.8e11,
    special_ops=2.2e10,
    l2_bytes=6e10,
    block_bytes=6e10,
    apart_bytes=6e10,
    partial_bytes=1.4e12,
    memory_bytes=1.4e12,
    store_bytes=6e10,
    products_a_clock=1_024,
    plain_a_clock=64,
)
"""By published figures alone; what fills its tensor cores is taken to be what fills Hopper's."""

CDNA_3: Final = replace(
    HOPPER,
    # AMD Instinct MI300X data sheet, dense, of 304 compute units at 2.1 GHz: 1,307.4 TFLOP/s of float16 and bfloat16,
    # 163.4 of float32 by vectors and by matrix cores (and 653.7 of xf32); 5.3 TB/s of HBM3
    tensor_ops=4.3e12,
    float32_share=0.125,
    several_share=0.167,  # a third of that of xf32
    plain_ops=5.4e11,
    memory_bytes=0.83 * 5.3e12,  # the share that an H100 reaches of its own
    partial_bytes=0.83 * 5.3e12,
    # a quarter of 64 lanes a clock, as of every GCN: none is published
    special_ops=3.4e10,
    # CDNA 3 white paper: 2 KB a clock from an XCD's L2 to its 38 compute units
    l2_bytes=1.1e11,
    block_bytes=1.1e11,
    apart_bytes=1.1e11,
    store_bytes=1.1e11,
    # CDNA 3 ISA, MFMA: products of 16 × 16 and of 32 × 32 are as fast, by each of four waves on its own
    group_warps=4,
    group_rows=16,
    narrow=0,
    products_a_clock=0,
    plain_a_clock=0,
    special_a_clock=0,
)
"""By published figures; latencies and what programs take beside their work are an H100's. Nothing was ever run."""


@dataclass(frozen=True)
class Product:
    """What one instruction of a tensor core multiplies: rows and columns of the result, terms of each sum."""

    rows: int
    columns: int
    terms: int
    formats: tuple[str, ...]  # of its operands, by tinygrad's names; TF32 of float32 that is rounded


@dataclass(frozen=True)
class Device:
    """One GPU architecture. What NVIDIA calls a warp and a multiprocessor, AMD calls a wave and a compute unit."""

    arch: str
    runtimes: tuple[str, ...]  # tinygrad's devices that run its programs; none: there are no tile programs for it
    capability: int | str  # as Triton's backend has it
    searched: bool  # False: programs compile, and since none was ever run, none is looked for
    ptx: bool  # what PTX alone has words for: approximate functions, limits of registers, eviction policies
    warp: int  # threads
    registers: int  # of 32 bits, of a multiprocessor
    registers_of_one: int  # of a thread, at most
    threads_of_program: int  # at most
    threads_at_once: int  # of a multiprocessor
    programs_at_once: int  # of a multiprocessor
    shared_bytes: int  # of a program, at most
    reserved_bytes: int  # of shared memory that each program takes beside its own
    has_copies: bool  # whether loads go to shared memory asynchronously, through no registers
    has_tma: bool  # whether blocks are moved by descriptors
    has_wgmma: bool  # whether four warps send a product to the tensor core together and wait for it later
    tensor_memory: int  # columns of the tensor core's own memory of sums; 0: sums are in registers
    products: tuple[Product, ...]  # of its tensor cores, by format
    figures: Figures

    @property
    def backend(self) -> str:
        """Triton's."""
        return "cuda" if self.ptx else "hip"

    def multiplies(self, dtype: str) -> bool:
        """Whether a tensor core takes operands of a format, by tinygrad's name, as they are."""
        return any(dtype in product.formats for product in self.products)

    def threads(self, warps: int) -> int:
        """Of a program of so many warps."""
        return self.warp * warps

    def warps(self, threads: int) -> int:
        """Of a program of so many threads."""
        return max(1, threads // self.warp)

    def blocks(self, stages: int) -> int:
        """Blocks of an operand in shared memory, in a loop of so many stages. Without asynchronous copies those that
        are loaded last wait in registers."""
        return stages if self.has_copies else max(1, stages - 1)

    def resident(self, *, threads: int, registers: int, shared_bytes: int = 0) -> int:
        """Programs that a multiprocessor runs at once, by the threads and the shared memory that each takes and the
        registers of each thread."""
        found = min(self.registers // (registers * threads), self.threads_at_once // threads, self.programs_at_once)
        if shared_bytes:
            most = self.shared_bytes + self.reserved_bytes  # all that a multiprocessor has
            found = min(found, most // (shared_bytes + self.reserved_bytes))
        return max(1, found)

    def registers_of_thread(self, warps: int) -> int:
        """What each thread of a program of so many warps can have."""
        return min(self.registers_of_one, self.registers // self.threads(warps))


HALF, BYTES, FP8, TF32 = ("half", "__bf16"), ("signed char",), ("float8_e4m3", "float8_e5m2"), ("tf32",)
OF_WARPS = (Product(16, 8, 16, HALF), Product(16, 8, 32, BYTES), Product(16, 8, 8, TF32))
"""`mma.sync` (PTX ISA, "Warp-level matrix instructions")."""
OF_GROUPS = (Product(64, 256, 16, HALF), Product(64, 256, 32, (*BYTES, *FP8)), Product(64, 256, 8, TF32))
"""`wgmma.mma_async` of four warps (PTX ISA, "Asynchronous warpgroup level matrix instructions")."""
OF_TENSOR_MEMORY = (Product(128, 256, 16, HALF), Product(128, 256, 32, (*BYTES, *FP8)), Product(128, 256, 8, TF32))
"""`tcgen05.mma` (PTX ISA, "TensorCore 5th generation")."""

SM_80: Final = Device(
    arch="sm_80", runtimes=("CUDA", "NV"), capability=80, searched=True, ptx=True,
    # CUDA C++ Programming Guide, "Technical Specifications per Compute Capability", from sm_80 on
    warp=32, registers=65_536, registers_of_one=255, threads_of_program=1_024, threads_at_once=2_048,
    programs_at_once=32, shared_bytes=163 * KIB, reserved_bytes=1 * KIB,
    has_copies=True, has_tma=False, has_wgmma=False, tensor_memory=0, products=OF_WARPS, figures=AMPERE,
)  # fmt: skip
SM_90: Final = replace(
    SM_80, arch="sm_90", capability=90, shared_bytes=227 * KIB, has_tma=True, has_wgmma=True,
    products=OF_GROUPS, figures=HOPPER,
)  # fmt: skip
"""`wgmma` is of sm_90a alone, later architectures have no such instruction (PTX ISA, "Asynchronous warpgroup")."""
SM_86: Final = replace(
    SM_80, arch="sm_86", capability=86, shared_bytes=99 * KIB, threads_at_once=1_536, programs_at_once=16
)
SM_89: Final = replace(
    SM_86, arch="sm_89", capability=89, programs_at_once=24, products=(*OF_WARPS, Product(16, 8, 32, FP8))
)
SM_100: Final = replace(
    SM_90, arch="sm_100", capability=100, has_wgmma=False, tensor_memory=512, products=OF_TENSOR_MEMORY
)
SM_103: Final = replace(
    SM_100, arch="sm_103", capability=103,
    products=(Product(128, 256, 16, HALF), Product(128, 256, 32, FP8), Product(128, 256, 8, TF32)),
)  # fmt: skip
"""Of bytes it has no `tcgen05.mma` (PTX ISA: `.kind::i8` is of sm_100a and sm_110a)."""
SM_110: Final = replace(SM_100, arch="sm_110", capability=110, threads_at_once=1_536, programs_at_once=24)
SM_120: Final = replace(
    SM_90,
    arch="sm_120",
    capability=120,
    has_wgmma=False,
    shared_bytes=99 * KIB,
    products=SM_89.products,
    threads_at_once=SM_89.threads_at_once,
    programs_at_once=SM_89.programs_at_once,
)
OF_WAVES = (
    Product(32, 32, 8, HALF), Product(16, 16, 16, HALF), Product(32, 32, 16, BYTES), Product(16, 16, 32, BYTES),
    Product(32, 32, 2, ("float",)), Product(16, 16, 4, ("float",)),
)  # fmt: skip
"""`v_mfma_f32_32x32x8_f16` and its like (CDNA 3 ISA, "Matrix Arithmetic Instructions"). What it has of 8-bit floats is
of formats of its own, which tinygrad calls `fnuz`."""
GFX942: Final = Device(
    arch="gfx942", runtimes=("AMD",), capability="gfx942", searched=False, ptx=False,
    # ROCm, "AMD GPU specifications", MI300X: waves of 64, 512 KiB of vector registers and 64 KiB of LDS a compute unit;
    # CDNA 3 ISA: 512 registers of a lane, those of accumulation with them; 1,024 threads of a work-group
    warp=64, registers=131_072, registers_of_one=512, threads_of_program=1_024,
    # four SIMDs of eight waves; groups of one wave need none of the sixteen barriers (LLVM, AMDGPUBaseInfo.cpp)
    threads_at_once=2_048, programs_at_once=32,
    # CDNA 3 ISA: loads to LDS take no more than 4 bytes a lane, which Triton 3.9 does not use here
    shared_bytes=64 * KIB, reserved_bytes=0, has_copies=False,
    has_tma=False, has_wgmma=False, tensor_memory=0, products=OF_WAVES, figures=CDNA_3,
)  # fmt: skip
"""An MI300X's."""

DEVICES: Final[dict[str, Device]] = {
    device.arch: device
    for device in (
        SM_80,
        SM_86,
        replace(SM_86, arch="sm_87", capability=87, shared_bytes=SM_80.shared_bytes),
        SM_89,
        SM_90,
        SM_100,
        SM_103,
        SM_110,
        SM_120,
        replace(SM_120, arch="sm_121", capability=121),
        GFX942,
    )
}
"""By architecture. Those after `sm_90` are ranked by its figures."""


def device_of(target: Target) -> Device:
    """The record of a target; of an architecture of NVIDIA's that has none that of the one before it, with as much
    shared memory as tinygrad reports; of any other that of `sm_80`, of which no program runs there."""
    return DEVICES.get(target.arch) or DEVICES.get(target.arch.rstrip("af")) or _nearest(target)


def unsupported(target: Target) -> str:
    """Why there are no tile programs for a target; empty where there are."""
    if target.device in device_of(target).runtimes:
        return ""
    return f"tile programs are for NVIDIA GPUs from sm_80 on, not for {target.device} {target.arch}"


def not_searched(target: Target) -> str:
    """Why nothing is searched for a target although its programs compile; empty where it is."""
    device = device_of(target)
    if device.searched or unsupported(target):
        return ""
    return f"tile programs compile for {target.arch}, and none was ever run there"


def figures_of(target: Target) -> Figures:
    """The figures of a target; the bandwidth of its memory where it tells that."""
    figures = device_of(target).figures
    if target.bandwidth_bytes_s:
        figures = replace(figures, memory_bytes=0.83 * target.bandwidth_bytes_s)
    return figures


def _nearest(target: Target) -> Device:
    number = NVIDIA.fullmatch(target.arch)
    before: list[Device] = []
    if number is not None:
        before = [one for one in DEVICES.values() if one.ptx and int(one.capability) <= int(number[1])]
    if number is not None and before:
        nearest = max(before, key=lambda one: int(one.capability))
        return replace(nearest, arch=target.arch, capability=int(number[1]), shared_bytes=target.shared_bytes)
    return replace(
        SM_80, arch=target.arch, runtimes=(), ptx=number is not None, shared_bytes=target.shared_bytes
    )  # fmt: skip
