"""Kernels as CUDA C, right and wrong, for the kernel `relu`: out[i] = max(x[i], 0) of 4096 float32.

A compiler of the service under test turns them into what tinygrad gives the driver; they then stand for what a compiler
made of a schedule. `python -m tests.faults.cuda_code` is a process that measures a kernel that never ends, to be killed
from outside.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass, replace
from typing import Any

from kcg.kernel.program import Compiled
from kcg.measure.jobs import CompileOutcome, TimeJob
from kcg.types import Target

DEV = "CUDA"
COUNT = 4096  # elements of `relu`
THREADS = 256
RELU = "out[i] = x[i] > 0.0f ? x[i] : 0.0f;"


@dataclass(frozen=True)
class Code:
    """The body of a kernel, and how it is launched: one thread an element unless it says otherwise.

    `virtual` compiles for the architecture in general: the driver is then the first that meets the device's limits.
    """

    body: str
    before: str = ""  # declarations ahead of the kernel
    blocks: tuple[int, ...] = (COUNT // THREADS, 1, 1)
    threads: int = THREADS
    virtual: bool = False

    @property
    def source(self) -> str:
        return (
            f'{self.before}\nextern "C" __global__ void kernel(float* out, float* x) {{\n'
            f"  int i = blockIdx.x * blockDim.x + threadIdx.x;\n  {self.body}\n}}\n"
        )


RIGHT = Code(RELU)

# ---- what ends a kernel, or never does. `volatile` keeps the compiler from using that all of it is undefined ----

NOWHERE = "*(volatile float*)(0x10ull + 4 * threadIdx.x) = 0.0f;"  # the first page is never mapped

HANG = Code("while (*(volatile float*)x == *(volatile float*)x) {}", blocks=(1, 1, 1), threads=1)
HANG_EVERYWHERE = replace(HANG, blocks=(4096, 1, 1), threads=1024)
WRITE_NOWHERE = Code(f"{RELU} {NOWHERE}")
READ_NOWHERE = Code("out[i] = *(volatile float*)(0x10ull + 4 * threadIdx.x) + x[i];")
WRITE_FAR = Code(f"{RELU} *(volatile float*)(out + i + (1ull << 40)) = 0.0f;")  # 4 TiB on
MISALIGNED = Code(f"{RELU} if (i == 0) *(volatile double*)((char*)out + 4) = 0.0;")
TRAP = Code(f'{RELU} asm volatile("trap;");')
FIFTH_LAUNCH = Code(
    f"{RELU} if (i == 0 && atomicAdd(&launches, 1u) + 1u >= 5u) {NOWHERE}", before="__device__ unsigned int launches;"
)

# ---- more than the device has ----

TOO_MANY_THREADS = Code(RELU, threads=2048, blocks=(COUNT // 2048, 1, 1))
TOO_MANY_BLOCKS = Code(RELU, blocks=(1, 70_000, 1))
TOO_MANY_REGISTERS = Code(  # what is loaded last is needed first, so that all is held at once
    "float v[200]; volatile float* from = x;\n#pragma unroll\n  for (int k = 0; k < 200; k++) v[k] = from[k];\n"
    "  float sum = 0.0f;\n#pragma unroll\n  for (int k = 199; k >= 0; k--) sum = sum * 0.5f + v[k];\n  out[i] = sum;",
    threads=1024,
    blocks=(COUNT // 1024, 1, 1),
)
TOO_MUCH_SHARED = Code(  # 64 KiB where 48 can be had without asking
    f"tile[threadIdx.x] = x[i]; tile[65535 - threadIdx.x] = x[i]; __syncthreads(); {RELU} out[i] += 0.0f * tile[i];",
    before="__shared__ volatile float tile[65536];",
)

# ---- what computes something else ----

NOTHING = Code("")
ZEROS = Code("out[i] = 0.0f;")
HALF = Code(RELU, blocks=(COUNT // THREADS // 2, 1, 1))
PAST_THE_END = Code(f"{RELU} if (i == 0) out[{COUNT}] = 0.0f;")
PAST_THE_INPUT = Code(f"{RELU} if (i == 0) x[{COUNT}] = 0.0f;")
BEFORE_THE_START = Code(f"{RELU} if (i == 0) out[-1] = 0.0f;")
CHANGES_INPUT = Code(f"{RELU} if (x[i] < 0.0f) x[i] = -1.0f;")  # another negative number gives the same output


def skips(element: int) -> Code:
    return Code(f"if (i != {element}) {RELU}")


def sets(element: int, value: str) -> Code:
    return Code(f"{RELU} if (i == {element}) out[i] = {value};")


def clock(element: int) -> Code:
    """One element is the clock of the processor that came last."""
    return Code(f"{RELU} __syncthreads(); out[{element}] = (float)(clock64() & 0xffffff);")


def race(elements: list[int]) -> Code:
    """All threads of all blocks write their number to the same elements, each after a wait of its own."""
    places = ", ".join(map(str, elements))
    return Code(
        f"{RELU}\n  const int places[] = {{{places}}};\n  for (int k = 0; k < {len(elements)}; k++) {{\n"
        "    long long begin = clock64(), wait = ((unsigned int)begin * 2654435761u) >> 19;\n"
        "    while (clock64() - begin < wait) {}\n"
        "    ((volatile float*)out)[places[k]] = (float)i;\n  }"
    )


# ---- in a child of the service ----


def compile_code(code: Code, target: Target) -> tuple[bytes, bytes]:
    """What tinygrad gives the driver, and the machine code, as of a kernel of tinygrad's own."""
    from kcg.compat.renderers import compiling_renderer, machine_code

    renderer = compiling_renderer(target)
    if code.virtual:
        return type(renderer.compiler)(target.arch.replace("sm_", "compute_")).compile(code.source), b""
    return renderer.compiler.compile(code.source), machine_code(code.source, renderer)


def compile_outcome(code: Code, target: Target, like: Compiled) -> CompileOutcome:
    """As the compiling of a schedule ends."""
    return CompileOutcome(binary(code, compile_code(code, target), like), 0.0)


def output_of(job: TimeJob) -> Any:
    """What the kernel writes to its first buffer, as stored bits, from the inputs of seed 0: nothing is judged."""
    from kcg.measure.inputs import RECIPE
    from kcg.measure.workbench import Workbench

    bench = Workbench(job.region, job.target)
    bench.fill(0, RECIPE)
    bench.launcher(job.compiled)()
    return bench.read(0)


# ---- in the parent ----


def binary(code: Code, compiled: tuple[bytes, bytes], like: Compiled, *, variant: int = 0) -> Compiled:
    """The compiled kernel with other code. Each `variant` is another binary that does the same."""
    text, image = compiled
    if variant:
        text = text.rstrip(b"\0") + f"\n// variant {variant}\n".encode() + b"\0"
    return replace(like, binary=text, image=image, global_size=code.blocks, local_size=(code.threads, 1, 1))


def main() -> int:
    """Measure a kernel that never ends and write the process ids of the children."""
    from kcg.compat.device import choose_cpu, prepare

    prepare(choose_cpu().dev)  # of this process, which opens none; the children have theirs
    from kcg.measure.service import MeasureService, ServiceSettings
    from tests.faults.processes import descendants
    from tests.faults.relu import REQUEST, compiled_relu

    with MeasureService(
        DEV, run_id="busy", compile_workers=1, settings=ServiceSettings(timing_timeout_s=300)
    ) as service:
        like = compiled_relu(service)
        compiled = service._compile(compile_code, HANG_EVERYWHERE, service.target).result(timeout=60)
        service.measure_compiled(REQUEST, binary(HANG_EVERYWHERE, compiled, like))
        time.sleep(2)
        print(json.dumps(sorted(descendants(os.getpid()))), flush=True)
        time.sleep(120)
    return 0


if __name__ == "__main__":
    # as the module that its children import too
    from tests.faults.cuda_code import main as main_of_the_module

    sys.exit(main_of_the_module())
