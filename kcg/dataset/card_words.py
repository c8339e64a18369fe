"""What the names in an export mean, in words, for its card: samplers, statuses, files and columns."""

from __future__ import annotations

from kcg.types import Status

SAMPLERS = {
    "hand-coded": "tinygrad's own choice, once for each kernel: what everything is compared with",
    "raw": "the unoptimised kernel",
    "walk:raw": "random legal walks of any length from the unoptimised kernel",
    "walk:hand-coded": "random legal walks of any length from tinygrad's own choice",
    "beam": "what tinygrad's BEAM would measure, level by level (beam:WIDTH/CHILDREN)",
    "greedy": "walks along the best predicted of some steps, at random with a probability (greedy:EPSILON)",
    "near": "the fastest measured so far, their last Opts taken back and one to three others instead",
    "rest": "schedules of a small space that no sampler drew, so that a kernel has as many as were wanted, or all",
    "lattice": "every schedule of a declared lattice, for a replay table",
    "retime": "binaries of an earlier run, timed again on another occasion",
}
"""By the name of a sampler, or the part before its colon."""

STATUSES = {
    Status.OK: "timed",
    Status.COMPILE_ERROR: "did not compile",
    Status.COMPILE_TIMEOUT: "took too long to compile",
    Status.RESOURCE: "needs more registers, memory or threads than there are",
    Status.LAUNCH_ERROR: "could not be started on the device",
    Status.TIMEOUT: "ran too long and was stopped",
    Status.WRONG: "computed something else than the kernel says",
    Status.UNJUDGED: "neither right nor wrong: the reference does not know enough of the right output to tell",
    Status.WORKER_DIED: "took the measuring process down with it",
    Status.NOISY: "gave times that varied too much",
}

FILES = {
    "kernels.parquet": "one row a kernel",
    "measurements.parquet": "one row a schedule that was compiled and timed, or failed: with its time and its splits",
    "timings.parquet": "samples and binary of a measurement; schedules that share a binary share the row",
    "replay.parquet": "replay tables: declared lattices of schedules, each timed to the last one",
    "runs.json": "each occasion of measuring: when, by which command, with which mix of samplers",
    "targets.json": "the hardware behind `target`",
    "toolchains.json": "the compilers behind `toolchain`",
    "workloads.json": "the programs: which kernels each calls and how often",
}

COLUMNS = {
    "kernels.parquet": {
        "id": "SHA-256 of `ast_json`",
        "ast_json": "the kernel: a tinygrad AST before optimisation, as canonical JSON",
        "workloads": "every `name/preset` that has this kernel",
        "nodes": "nodes of the AST",
        "operations": "arithmetic of one call; of what a tensor indexes, that of the elements that are picked",
        "bytes": "least memory traffic of one call; of a table that a tensor indexes, what is picked from it",
        "split_workload, split_kernel, split_twin": "its part of each split: `train`, `validation` or `test`",
        "twin": "its class of twins: kernels that differ in sizes only",
        "workload_twin_in_training, kernel_twin_in_training": "held out, but a twin is in training",
    },
    "measurements.parquet": {
        "region_id": "the kernel's id",
        "split_workload, split_kernel, split_twin": "the kernel's part of each split: train on `train` of one of them",
        "median_s": "the time: median of the samples in seconds, as float32; null where `status` is not `ok`",
        "n_samples": "how many samples it is the median of",
        "schedule_kind, schedule_body": "the schedule; for `opts` a JSON list of `[op, axis, argument]`, in order",
        "target, toolchain": "ids of targets.json and toolchains.json",
        "protocol": "version of the timing protocol",
        "status": "`ok`, or how it failed",
        "reason": "first line of the cause of a failure",
        "cache_state": "`cold`: the last-level cache is flushed before every sample; `warm`: it is not",
        "variables": "values of the kernel's symbolic variables, as JSON",
        "input_recipe": "how the inputs were made",
        "checked": "the output was compared with a float64 reference on one seed",
        "early_stop": "only the few samples of a search were taken",
        "sampler": "who asked for this schedule",
        "compile_s": "seconds of compiling",
        "run_id": "id of runs.json",
        "trial": "number of the repetition within a run",
        "recorded_unix_s": "when it was recorded",
        "timing": "row of timings.parquet, counted from 0",
    },
    "timings.parquet": {
        "samples_s": "raw samples in seconds; the time of a schedule is their median",
        "binary_hash": "first 8 bytes of the SHA-256 of the binary",
        "launch": "global and local size",
        "clock_*": "what the device told: clocks, temperature, power",
    },
    "replay.parquet": {
        "region_id": "the kernel's id, as in kernels.parquet",
        "target, toolchain": "ids of targets.json and toolchains.json",
        "actions": "the actions that declare the lattice, in order",
        "schedules": "how many schedules the lattice has, all of them timed",
        "best_s": "seconds of the fastest of them",
        "hand_coded_s": "seconds of tinygrad's own choice",
        "table": "as JSON: of each schedule its body, how it ended, its time, its binary, and where actions lead",
    },
}
"""Columns by name, and what they mean; some share a line."""
