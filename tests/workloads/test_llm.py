"""The language model: what its presets call, that they run, and that a token is that of NumPy on the same weights."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tinygrad import Tensor, TinyJit
from tinygrad.helpers import Context

from kcg.compat.capture import recording
from kcg.kernel.codec import kernel_of
from kcg.kernel.compile import compile_schedule
from kcg.kernel.kinds import baseline_of
from kcg.measure.device_info import detect
from kcg.measure.verify import FINAL_SEEDS, CheckedBench
from kcg.workloads.capture import step_workload
from kcg.workloads.llm import (
    MINI,
    MOST_TOKENS,
    PRESETS,
    LlmConfig,
    build,
    rope_of,
    runnable,
    weights_bytes,
    weights_of,
)
from kcg.workloads.packed_weights import FORMATS
from kcg.workloads.registry import find, spec_of
from tests.captured import captured
from tests.zoo.reference import rms_norm, silu, softmax

Array = NDArray[np.float64]

KERNELS = {
    "mini": (22, 35),
    "mini-moe": (31, 55),
    "llama-1b-f16": (23, 234),
    "llama-1b-q6_k": (23, 234),
    "llama-1b-q4_k_m": (25, 234),
    "qwen-8b-q4_k_m": (28, 622),
    "qwen-8b-q8_0": (26, 622),
    "moe-1b-q4_k_m": (31, 394),
    "mini-prompt": (30, 51),
    "llama-1b-q4_k_m-prompt": (32, 347),
    "qwen-8b-q4_k_m-prompt": (36, 911),
}
"""Distinct kernels and calls of a step."""

PIECES = (
    {"start_pos": 0, "toks": 1},
    {"start_pos": 20, "toks": 9},
    {"start_pos": MINI.context - MOST_TOKENS, "toks": MOST_TOKENS},
)
"""Of a prompt: the smallest, one between, and the largest that ends where the context does."""


@pytest.mark.parametrize("preset", [pytest.param(p, marks=[] if p == "mini" else [pytest.mark.slow]) for p in KERNELS])
def test_kernels_of_a_preset(preset: str) -> None:
    workload = captured("llm", preset)
    assert (len(workload.calls), sum(call.calls for call in workload.calls)) == KERNELS[preset]
    config = PRESETS[preset]
    place, count = ("start_pos", config.position), ("toks", config.tokens)
    bound = {call.variables for call in workload.calls if call.variables}
    assert bound == ({(count,), (place, count)} if config.tokens else {(place,)})
    assert not workload.left_out
    assert weights_bytes(PRESETS[preset]) < workload.held_bytes


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["mini", "mini-moe"])
def test_every_kernel_passes_as_a_finalist(preset: str) -> None:
    target = detect("CPU:X86", 1)[0]
    for call in captured("llm", preset).calls:
        bench = CheckedBench(call.region, target)
        baseline = baseline_of(call.region, target)
        compiled = compile_schedule(call.region, baseline, target, variables=call.variables)
        result = bench.check(bench.launcher(compiled), call.variables, seeds=FINAL_SEEDS)
        assert result.passed, (call.region.id, result.reason)


@pytest.mark.slow
def test_every_kernel_of_a_prompt_passes_with_few_tokens_and_with_many() -> None:
    """One binary of each, with one token at the beginning, as many as fit at the end of the context, and between."""
    target = detect("CPU:X86", 1)[0]
    for call in captured("llm", "mini-prompt").calls:
        bench, names = CheckedBench(call.region, target), [name for name, _ in call.variables]
        every = dict.fromkeys(tuple((name, values[name]) for name in names) for values in PIECES)
        baseline = baseline_of(call.region, target)
        compiled = compile_schedule(call.region, baseline, target, variables=call.variables, also=tuple(every))
        for variables in every:
            result = bench.check(bench.launcher(compiled.at(variables)), variables, seeds=FINAL_SEEDS)
            assert result.passed, (call.region.id, variables, result.reason)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in FORMATS if f"llama-1b-{kind}" in PRESETS])
def test_every_format_is_captured(kind: str) -> None:
    config = replace(PRESETS[f"llama-1b-{kind}"], blocks=2)
    workload = step_workload("llm", kind, lambda: build(config))
    assert len(workload.calls) >= 22


@pytest.mark.slow
def test_a_capture_depends_on_no_other_one() -> None:
    Tensor.rand(7)  # which moves the counter of random numbers on, when it is realised
    assert step_workload("llm", "mini", lambda: build(MINI)) == replace(captured("llm", "mini"), preset="mini")


def test_presets_suit_their_devices() -> None:
    spec = spec_of("llm")
    assert find("llm", "auto", "CPU")[1] == "mini" and find("llm", "auto", "CUDA")[1] in PRESETS
    assert set(spec.presets_for("CPU")) == {"mini", "mini-moe", "mini-prompt"}
    assert spec.weights_bytes is not None and 8.6e9 < spec.weights_bytes("qwen-8b-q8_0") < 8.8e9


def test_a_mixed_file_has_more_bits_where_llama_cpp_gives_them() -> None:
    kinds = {name: kind for name, (_, kind) in weights_of(PRESETS["llama-1b-q4_k_m"]).items()}
    more = [i for i in range(16) if kinds[f"blk.{i}.ffn_down.weight"] == "q6_k"]
    assert more == [0, 1, 4, 7, 10, 13, 14, 15]
    assert {i for i in range(16) if kinds[f"blk.{i}.attn_v.weight"] == "q6_k"} == set(more)
    assert kinds["token_embd.weight"] == "q6_k" and kinds["blk.3.attn_q.weight"] == "q4_k"
    assert kinds["blk.3.ffn_norm.weight"] == "f32"


# ---- A token in NumPy, in float64, of the weights as kcg unpacks them.


def numpy_step(config: LlmConfig, state: dict[str, Array], token: int) -> Array:
    """What the last block gives, and the logits, one after the other."""
    x, at, size = state["token_embd.weight"][token], config.position, config.head_size

    def normed(name: str, value: Array) -> Array:
        return np.asarray(rms_norm({f"{name}.weight": state[f"{name}.weight"]}, name, value, epsilon=config.epsilon))

    def turned(value: Array) -> Array:
        pairs = size // 2
        angle = at * config.theta ** -(np.arange(pairs) / pairs)
        both = (value[:, :pairs] + 1j * value[:, pairs:]) * np.exp(1j * angle)
        return np.concatenate([both.real, both.imag], axis=1)

    for i in range(config.blocks):
        name = f"blk.{i}"
        q, k, v = (
            (state[f"{name}.attn_{letter}.weight"] @ normed(f"{name}.attn_norm", x)).reshape(-1, size)
            for letter in "qkv"
        )
        if config.interleaved:
            q, k = (part.reshape(-1, size // 2, 2).transpose(0, 2, 1).reshape(-1, size) for part in (q, k))
        if config.query_norm:
            q, k = normed(f"{name}.attn_q_norm", q), normed(f"{name}.attn_k_norm", k)
        q, k, cache = turned(q), turned(k), state[f"{name}.cache_kv"][:, 0]
        cache[:, :, at] = k, v  # for the tokens after this one
        mixed = np.empty_like(q)
        for head in range(config.heads):
            shared = head * config.kv_heads // config.heads
            keys, values = cache[:, shared, : at + 1]
            mixed[head] = softmax(keys @ q[head] / math.sqrt(size)) @ values
        x = x + state[f"{name}.attn_output.weight"] @ mixed.reshape(-1)
        x = x + feed_forward(config, state, name, normed(f"{name}.ffn_norm", x))
    last = "token_embd" if config.tied else "output"
    return np.concatenate([x, state[f"{last}.weight"] @ normed("output_norm", x)])


def feed_forward(config: LlmConfig, state: dict[str, Array], name: str, x: Array) -> Array:
    if not config.experts:
        gate, up, down = (state[f"{name}.ffn_{part}.weight"] for part in ("gate", "up", "down"))
        return np.asarray(down @ (silu(gate @ x) * (up @ x)))
    scores = state[f"{name}.ffn_gate_inp.weight"] @ x
    chosen = np.argsort(-scores)[: config.active]
    shares = softmax(scores[chosen]) if config.weights_sum_to_one else softmax(scores)[chosen]
    parts = []
    for expert, share in zip(chosen, shares, strict=True):
        gate, up, down = (state[f"{name}.ffn_{part}_exps.weight"][expert] for part in ("gate", "up", "down"))
        parts.append(share * (down @ (silu(gate @ x) * (up @ x))))
    return np.asarray(sum(parts))


def state_of(config: LlmConfig, model: Any) -> dict[str, Array]:
    """The caches and all weights, unpacked together by format: that is one kernel for each."""
    found = {name: np.asarray(t.numpy(), np.float64) for name, t in model.parameters.items() if "cache" in name}
    wanted = weights_of(config)
    for kind in {kind for _, kind in wanted.values()}:
        names = [name for name, (_, own) in wanted.items() if own == kind]
        blocks = np.concatenate([model.parameters[name].numpy() for name in names])
        with Context(NOOPT=1):
            values = FORMATS[kind].unpack(Tensor(blocks), no_tables).float().numpy().reshape(-1)
        values = values.astype(np.float64)  # not rounded to float16: nor are they between two casts, once compiled
        for name in names:
            count = math.prod(wanted[name][0])
            found[name], values = values[:count].reshape(wanted[name][0]), values[count:]
    return found


def no_tables(name: str, values: Any, dtype: str) -> Tensor:
    raise AssertionError(name)


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(replace(MINI, file="f16", blocks=1, vocabulary=96), id="one block"),
        pytest.param(MINI, id="mini", marks=pytest.mark.slow),
        pytest.param(PRESETS["mini-moe"], id="experts", marks=pytest.mark.slow),
        pytest.param(replace(PRESETS["mini-moe"], weights_sum_to_one=False), id="olmoe", marks=pytest.mark.slow),
    ],
)
def test_a_token_is_that_of_numpy(config: LlmConfig) -> None:
    from kcg.workloads import llm

    model = llm.Llm(config, seed=3)
    token, rope = 5, Tensor(rope_of(config).astype(np.float32)).realize()
    with Context(NOOPT=1):
        outputs = llm.step(
            model, rope, Tensor([[token]], dtype="int32").realize(), Tensor([0.0]).realize(), **llm.variables(config)
        )
        wanted = numpy_step(config, state_of(config, model), token)
        Tensor.realize(*(outputs if config.blocks > 1 else outputs[1:]))
    np.testing.assert_allclose(outputs[1].numpy().reshape(-1), wanted[: config.width], atol=2e-4)
    assert config.blocks == 1 or int(outputs[0].item()) == int(wanted[config.width :].argmax())


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(replace(MINI, file="f16", blocks=1, vocabulary=96, position=20, tokens=3), id="one block"),
        pytest.param(replace(PRESETS["mini-prompt"], position=MINI.context - MOST_TOKENS), id="mini"),
        pytest.param(replace(PRESETS["mini-prompt"], position=0, tokens=1), id="one token"),
    ],
)
@pytest.mark.slow
def test_a_piece_of_a_prompt_is_its_tokens_one_after_another(config: LlmConfig) -> None:
    from kcg.workloads import llm

    model, places = llm.Llm(config, seed=3), range(config.position, config.position + config.tokens)
    text = np.random.default_rng(7).integers(0, config.vocabulary, (1, config.context)).astype(np.int32)
    rope = Tensor(rope_of(config).astype(np.float32)).realize()
    with Context(NOOPT=1):
        outputs = llm.step(model, rope, Tensor(text).realize(), Tensor([0.0]).realize(), **llm.variables(config))
        state = state_of(config, model)
        wanted = [numpy_step(replace(config, position=at), state, int(text[0, at])) for at in places]
        made = llm.whole(outputs[1]).numpy()[0, : config.tokens]
    np.testing.assert_allclose(made, [values[: config.width] for values in wanted], atol=2e-4)
    assert int(outputs[0].item()) == int(wanted[-1][config.width :].argmax())


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["mini", "mini-prompt"])
def test_what_runs_is_what_was_captured_and_repeats(preset: str) -> None:
    step, run = runnable(PRESETS[preset], 0), None
    with recording() as recorder:
        run = TinyJit(step.run)
        outputs = []
        for _ in range(4):
            made = run(**step.inputs)
            outputs.append([np.asarray(t.numpy()) for t in made])
    called = {kernel_of(call.ast).id for call in recorder.calls()}
    assert {call.region.id for call in captured("llm", preset).calls} <= called
    assert all(
        np.array_equal(one, other) for again in outputs[1:] for one, other in zip(outputs[0], again, strict=True)
    )
