"""Decoding at the memory's speed: products with packed weights, and whole tokens by an independent clock.

    python -m evaluation.pytorch.decode --only products
    python -m evaluation.pytorch.decode --only tokens --result kcg-out/llm/RESULT.json
    python -m evaluation.pytorch.decode --only torch
    python -m evaluation.pytorch.decode --only llama.cpp --llama-bench ./llama-bench

A product is of 64 MB of packed weights or more and one vector. Its programs run in one CUDA graph that goes through
copies of the weights, which together are more than four times the L2 cache; so do kernels that only read as many bytes,
of which the fastest is what shares are of. Programs are chosen by one half of the timings and reported by the other.
What a chosen program stores is compared with a float64 product of some rows.

A token is one step of the workload `llm` under tinygrad's `TinyJit`, its position moving on, as a result of
`kcg optimize llm` has it: the host waits for each, as an application does that prints it.

llama.cpp's token is timed by its own benchmark, `llama-bench` built for CUDA, from a file of random weights.

Every finished row is in evaluation/results/bench_decode.json: the same command goes on where it was.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from evaluation.pytorch import beam_token, comparing, llama_cpp
from evaluation.pytorch.prompts import OF_CACHE, compiled, prompt_row
from evaluation.pytorch.timing import CAPTURING, Call, chosen, in_turns, token_s
from evaluation.rows import Row, Rows, rounded
from kcg.cli import run_script
from kcg.errors import DeviceError, UsageError
from kcg.kernel.codec import kernel_of
from kcg.kernel.reading.kernel import read_kernel
from kcg.kernel.reading.packed import packed_sums
from kcg.kernel.targets import target_named
from kcg.kernel.tile.legal import is_legal
from kcg.kernel.tile.parameters import TileParameters
from kcg.kernel.tile.prior import default_parameters
from kcg.types import Region, Target
from kcg.workloads.packed_weights import FORMATS, PackedWeights, random_blocks

OUT = Path(__file__).parents[1] / "results" / "bench_decode.json"
LEAST_BYTES = 64_000_000  # of packed weights
INPUTS = 4096
ROWS_UNIT = 4096
NOMINAL = 3.35e12  # bytes a second of an H100
OWN_TOKENS = 8  # with tinygrad's own schedules
CHECKED = 16  # rows
SHORT = "60 s"  # the budget whose result is compared with that of the usual one
FAR = 2e-3  # of the outputs' size: terms are rounded to float16 by tinygrad's kernel, or are not
IQ = ("iq2_s", "iq3_xxs", "iq3_s", "iq4_xs")
FIRST = ("q8_0", "q4_k", "q6_k", "q4_0", "mxfp4")
BESIDE = (*IQ, "mxfp4")  # of many vectors tinygrad makes their weights in a kernel of its own
KINDS = (*FIRST, *(kind for kind in FORMATS if kind not in (*FIRST, "f16", "f32")))
ROWS_AND_WARPS = ((2, 1), (4, 1), (8, 1), (4, 2), (8, 2), (4, 4), (8, 4))
SHARING = ((8, 2), (8, 4), (16, 4), (32, 4), (16, 8), (32, 8), (64, 8))
"""The same of programs whose warps have rows of their own and share a table: there are none without one."""
BY_FOURS = (*product((128, 256, 512), (4, 8), (1, 2), (0,)), *product((64, 128), (4, 8), (1,), (2, 3, 4, 6)))
"""Rows, warps, parts of a row and programs of a multiprocessor, where sums by four bits come from tables."""
READERS = tuple(product((4, 8, 16), (4, 8, 16)))  # blocks of 32 words of each thread, warps


# ---- products


def region_of(kind: str) -> tuple[Region, int]:
    """The product of one vector with at least so many bytes of weights, and how many rows it has."""
    from tinygrad import Device, Tensor

    rows = ROWS_UNIT
    while FORMATS[kind].bytes_of(rows * INPUTS) < LEAST_BYTES:
        rows += ROWS_UNIT
    weights = PackedWeights()("w", (rows, INPUTS), kind)
    made = Tensor.empty(1, INPUTS, device=Device.DEFAULT).dot(weights.T, dtype="float32")
    return Region((kernel_of(made.linear_with_vars()[0].src[-1].src[0]),)), rows


def programs_of(region: Region, target: Target) -> list[TileParameters]:
    """Programs of different shapes."""
    kernel = read_kernel(region)
    (packed,), first = packed_sums(kernel), default_parameters(kernel, target)
    found = [
        first.changed(tile=(rows,), unpacked=width, num_warps=warps, reduce_tile=step, split=1, persistent=0)
        for width in packed.widths[:3]
        for shapes, together in ((ROWS_AND_WARPS, True), (SHARING, False))
        for rows, warps in shapes
        for step in [32 * warps if together else 32]
    ]
    found += [
        first.changed(
            tile=(rows,), num_warps=warps, reduce_tile=32, split=split, persistent=each, unpacked=packed.widths[0]
        )
        for rows, warps, split, each in BY_FOURS
    ]
    return [p for p in found if is_legal(kernel, target, p)]


def readers(words: Sequence[Any]) -> dict[str, Call]:
    """Kernels that only read."""
    import torch
    import triton

    from evaluation.pytorch.reading import read_words

    out = torch.zeros(1, dtype=torch.int32, device="cuda")
    found: dict[str, Call] = {}
    for each, warps in READERS:
        block = 32 * warps * each
        for turns in (1, 4):
            grid = triton.cdiv(words[0].numel(), block * turns)

            def call(number: int, grid: int = grid, block: int = block, turns: int = turns, warps: int = warps) -> None:
                read_words[(grid,)](words[number], out, words[number].numel(), block, turns, num_warps=warps)

            found[f"{block} words, {turns} turns, {warps} warps"] = call
    return found


def product_row(kind: str, target: Target, pool: ProcessPoolExecutor) -> Row:
    """One format: the fastest program, and the fastest read of as many bytes."""
    import torch

    from evaluation.tiles.loading import Driver, Loaded

    region, rows = region_of(kind)
    kernel = read_kernel(region)
    programs = programs_of(region, target)
    made = list(pool.map(compiled, [region] * len(programs), [target] * len(programs), programs))
    rng = np.random.default_rng(1)
    nbytes = FORMATS[kind].bytes_of(rows * INPUTS)
    blocks = random_blocks(kind, rows * INPUTS // FORMATS[kind].weights, INPUTS**-0.5, rng).reshape(-1)
    vector = rng.standard_normal(INPUTS).astype(np.float32)
    tables = {b.slot: values for b, values in tables_of(kernel, kind, blocks, rows).items()}
    copies = max(2, math.ceil(OF_CACHE * target.cache_bytes / nbytes))
    weights = [torch.from_numpy(blocks).cuda() for _ in range(copies)]
    out = torch.zeros(rows, device="cuda")

    def buffers(number: int) -> list[Any]:
        held: list[Any] = []
        for one in kernel.buffers:
            if one.written:
                held.append(out)
            elif one.slot in tables:
                held.append(torch.from_numpy(tables[one.slot]).cuda())
            elif one.size == nbytes and one.dtype.itemsize == 1:
                held.append(weights[number])
            else:
                held.append(torch.from_numpy(vector).cuda())
        return held

    driver, calls = Driver(), dict[str, Call]()
    for p, program in zip(programs, made, strict=True):
        if program is not None:
            of_copies = [Loaded(driver, program, buffers(number)) for number in range(copies)]
            more = [p.split, p.persistent] if p.split > 1 or p.persistent else []
            name = json.dumps([p.tile[0], p.num_warps, p.unpacked, *more])
            calls[name] = lambda number, held=of_copies: held[number]()
    best, seconds = chosen(in_turns(calls, copies))
    out.zero_()
    calls[best](0)
    places = np.linspace(0, rows - 1, CHECKED).astype(int)
    expected = pool.submit(expected_of, kind, blocks.reshape(rows, -1)[places], vector).result()
    far = float(np.linalg.norm(out.cpu().numpy()[places] - expected) / np.linalg.norm(expected))
    words = [one[: one.numel() // 4 * 4].view(torch.int32) for one in weights]
    reader, read_s = chosen(in_turns(readers(words), copies))
    if far > FAR:
        return {"status": "failed", "reason": f"off by {far:.2g} of the outputs' size"}
    return {
        "bytes": nbytes, "rows": rows, "inputs": INPUTS, "copies": copies, "program": best, "error": rounded(far),
        "seconds": rounded(seconds), "read_s": rounded(read_s), "reader": reader, "of_read": rounded(read_s / seconds),
        "gb_s": rounded(nbytes / seconds / 1e9), "of_nominal_h100": rounded(nbytes / seconds / NOMINAL),
        "contenders": len(calls),
    }  # fmt: skip


def tables_of(kernel: Any, kind: str, blocks: np.ndarray, rows: int) -> dict[Any, np.ndarray]:
    """What else a kernel of such weights reads: tables of the format, and what other kernels made of its blocks."""
    from tinygrad import Tensor

    held: dict[str, np.ndarray] = {}

    def table(name: str, values: Sequence[float], dtype: str) -> Tensor:
        held[name] = np.array(values, {"uint8": np.uint8, "float32": np.float32, "uint32": np.uint32}[dtype])
        return Tensor.empty(len(values), dtype=dtype)

    packed = FORMATS[kind]
    packed.unpack(Tensor.empty(1, packed.nbytes, dtype="uint8"), table)
    found = {}
    for buffer in kernel.buffers:
        for values in held.values():
            if not buffer.written and buffer.size == values.size and buffer.dtype.itemsize == values.itemsize:
                found[buffer] = values
        if kind == "mxfp4" and buffer.size == len(blocks) // packed.nbytes and buffer.dtype.itemsize == 4:
            found[buffer] = np.exp2(blocks.reshape(-1, packed.nbytes)[:, 0].astype(np.float32) - 128)
        if kind == "iq3_xxs" and buffer.size == rows * INPUTS // 8 and buffer.dtype.itemsize == 1:
            found[buffer] = signs_of(blocks.reshape(-1, packed.nbytes))
    return found


def signs_of(blocks: np.ndarray) -> np.ndarray:
    """The bytes of signs that a kernel of its own makes of blocks of IQ3_XXS: seven bits, and their parity."""
    words = np.ascontiguousarray(blocks[:, 66:98]).view(np.uint32)
    seven = (words[:, :, None] >> np.array([0, 7, 14, 21], np.uint32)) & 0x7F
    parity = np.array([bin(i).count("1") % 2 for i in range(128)], np.uint32)
    return np.asarray((seven | (parity[seven] << 7)).astype(np.uint8).reshape(-1))


def expected_of(kind: str, blocks: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """The float64 product of some rows of blocks, (rows, bytes). It opens tinygrad's device: not where PyTorch's is."""
    from tinygrad import Tensor

    from kcg.compat.device import prepare

    prepare("CUDA")
    tables = PackedWeights(seed=0)
    unpacked = FORMATS[kind].unpack(Tensor(blocks.reshape(-1, FORMATS[kind].nbytes)), tables._table)
    weights = unpacked.reshape(len(blocks), -1).float().numpy().astype(np.float64)
    return np.asarray(weights @ vector.astype(np.float64))


# ---- tokens


def token_row(result: Path, tokens: int) -> Row:
    """A result's whole token, and tinygrad's own, by the host's clock."""
    from kcg.handover.tuned import scheduling
    from kcg.report.result import read_result
    from kcg.workloads.llm import llm_config, runnable

    found = read_result(result)
    if found.workload != "llm":
        raise UsageError(f"{result} is no result of the workload llm")
    step = runnable(llm_config(found.preset), 0)
    with scheduling(found, changed_only=True):
        tuned = token_s(step, tokens)
    own = token_s(step, OWN_TOKENS)
    return {
        "preset": found.preset, "budget": found.budget, "token_s": rounded(tuned), "own_token_s": rounded(own),
        "tokens_per_s": rounded(1 / tuned),
        "events_s": rounded((found.model_check and found.model_check.after_s) or 0.0),
        "result_s": rounded(found.search_s), "kcg_version": found.kcg_version,
    }  # fmt: skip


def torch_row(tokens: int) -> Row:
    """A token of Llama 3.2 1B in float16 by torch.compile, with CUDA graphs and a cache of fixed size."""
    import torch

    from evaluation.pytorch.llama import Llama
    from kcg.workloads.llm import llm_config

    config = llm_config("llama-1b-f16")
    torch.manual_seed(0)
    model = Llama(config, "cuda", torch.float16).eval()
    begun, ready, seconds = time.perf_counter(), 0.0, list[float]()
    step = torch.compile(model, mode="reduce-overhead", fullgraph=True)
    token = torch.ones(1, 1, dtype=torch.long, device="cuda")
    with torch.no_grad():
        for number in range(CAPTURING + tokens):
            at = time.perf_counter()
            token = step(token, torch.tensor([config.position + number], device="cuda")).clone()
            token.item()
            seconds.append(time.perf_counter() - at)
            if number == CAPTURING - 1:
                ready = time.perf_counter() - begun
    token_s = statistics.median(seconds[CAPTURING:])
    return {
        "token_s": rounded(token_s), "tokens_per_s": rounded(1 / token_s), "ready_s": rounded(ready),
        "torch": torch.__version__,
    }  # fmt: skip


# ---- the table


TORCH = "torch.compile llama-1b-f16"
LLAMA_CPP = "llama.cpp qwen-8b-q4_k_m"


def headline(rows: dict[str, Row]) -> dict[str, Any]:
    """The figures that are compared between versions."""
    made = {kind: rows.get(f"product {kind}", {}) for kind in KINDS}
    shares = {kind: row["of_read"] for kind, row in made.items() if "of_read" in row}
    figures = {f"{kind}_of_read": shares[kind] for kind in FIRST if kind in shares}
    others = [share for kind, share in shares.items() if kind not in (*FIRST, *IQ)]
    iq = [share for kind, share in shares.items() if kind in IQ]
    figures |= {"others_of_read_min": min(others)} if others else {}
    figures |= {"iq_of_read_min": min(iq)} if iq else {}
    for name in ("vs_dense", "vs_scratch"):
        if every := [row[name] for key, row in rows.items() if key.startswith("prompt ") and name in row]:
            figures[f"prefill_{name}_min"] = min(every)
    tokens = {row["preset"]: row for key, row in rows.items() if key.startswith("token ") and ", " not in key}
    for preset, name in (("qwen-8b-q4_k_m", "qwen_q4"), ("qwen-8b-q8_0", "qwen_q8")):
        if preset in tokens:
            figures[f"{name}_tokens_per_s"] = tokens[preset]["tokens_per_s"]
    if "tokens_per_s" in (beam := rows.get("beam qwen-8b-q4_k_m", {})):
        figures["qwen_q4_beam_tokens_per_s"] = beam["tokens_per_s"]
    if "tokens_per_s" in (other := rows.get(LLAMA_CPP, {})):
        figures["qwen_q4_llama_cpp_tokens_per_s"] = other["tokens_per_s"]
    if "llama-1b-f16" in tokens:
        figures["llama_1b_ms"] = rounded(tokens["llama-1b-f16"]["token_s"] * 1e3)
        figures["result_s"] = tokens["llama-1b-f16"]["result_s"]
        short = rows.get(f"token llama-1b-f16, {SHORT}", {})
        if "events_s" in short:
            figures["share_60"] = rounded(tokens["llama-1b-f16"]["events_s"] / short["events_s"])
        if "token_s" in rows.get(TORCH, {}):
            figures["llama_1b_vs_compile"] = rounded(rows[TORCH]["token_s"] / tokens["llama-1b-f16"]["token_s"])
    return figures


def main(
    only: Annotated[
        str, typer.Option(help="products, prompts, tokens, beam, llama.cpp, torch; with commas between")
    ] = "products",
    kinds: Annotated[str, typer.Option(help="formats, with commas between")] = ",".join(KINDS),
    result: Annotated[list[Path] | None, typer.Option(help="RESULT.json of kcg optimize llm")] = None,
    tokens: Annotated[int, typer.Option(help="tokens that are timed")] = 40,
    with_budget: Annotated[bool, typer.Option("--with-budget", help="in a token's row of its own")] = False,
    beam: Annotated[str, typer.Option(help="presets whose token tinygrad's BEAM searches")] = "qwen-8b-q4_k_m",
    llama_bench: Annotated[Path | None, typer.Option(help="llama.cpp's program llama-bench, built for CUDA")] = None,
    workers: Annotated[int, typer.Option(help="processes that compile")] = 8,
    budget: comparing.Budget = "",
    again: comparing.Again = False,
    retry: comparing.Retry = False,
    out: comparing.Out = OUT,
) -> None:
    """Time what is not in the results yet."""
    if "llama.cpp" in only.split(",") and llama_bench is None:
        raise UsageError("say --llama-bench: where llama.cpp's program llama-bench is")
    import torch

    from kcg.compat.device import prepare

    if not torch.cuda.is_available():
        raise DeviceError("it needs an NVIDIA GPU, and PyTorch with CUDA")
    properties = torch.cuda.get_device_properties(0)
    target = replace(
        target_named("sm_90"), model=properties.name, cores=properties.multi_processor_count,
        cache_bytes=properties.L2_cache_size,
    )  # fmt: skip
    run = properties.name.replace(" ", "_").lower()
    rows = Rows(out, run, budget=budget, again=again, retry=retry, headline=headline)
    prepare("CUDA")
    if "products" in only.split(","):
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            for kind in kinds.split(","):
                if rows.wanted(key := f"product {kind}"):
                    rows.add(key, row := product_row(kind, target, pool))
                    typer.echo(f"{key}: {row.get('of_read', row.get('reason'))} of the read, {row.get('program')}")
    if "prompts" in only.split(","):
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            for kind in kinds.split(","):
                if kind not in BESIDE and rows.wanted(key := f"prompt {kind}"):
                    rows.add(key, row := prompt_row(kind, target, pool))
                    typer.echo(
                        f"{key}: {row.get('vs_dense', row.get('reason'))} of the dense one, {row.get('program')}"
                    )
    if "tokens" in only.split(","):
        for path in result or []:
            row = token_row(path, tokens)
            rows.add(", ".join([f"token {row['preset']}", *([row["budget"]] if with_budget else [])]), row)
            typer.echo(f"token {row['preset']}: {row['token_s'] * 1e3:.2f} ms, {row['tokens_per_s']:.0f} a second")
    if "beam" in only.split(","):
        for preset in beam.split(","):
            if rows.wanted(key := f"beam {preset}"):
                rows.add(key, row := beam_token.row(preset))
                typer.echo(f"{key}: {row.get('tokens_per_s', row.get('reason'))} tokens a second")
    if llama_bench is not None and "llama.cpp" in only.split(",") and rows.wanted(LLAMA_CPP):
        rows.add(LLAMA_CPP, row := llama_cpp.row(llama_bench, LLAMA_CPP.split()[-1]))
        typer.echo(f"{LLAMA_CPP}: {row.get('tokens_per_s', row.get('reason'))} tokens a second")
    if "torch" in only.split(",") and rows.wanted(TORCH):
        rows.add(TORCH, row := torch_row(tokens))
        typer.echo(f"{TORCH}: {row['token_s'] * 1e3:.2f} ms, ready after {row['ready_s']:.0f} s")
    typer.echo(json.dumps(headline(rows.rows), indent=1))


if __name__ == "__main__":
    run_script(main)
