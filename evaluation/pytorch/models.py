"""Layers, and whole models: GPT-2 (a prompt, a token, a training step), Llama 3.2 1B, BERT and ResNet-50.

tinygrad hand-coded, with BEAM=2 and with what kcg finds, a whole step under TinyJit; PyTorch eager, compiled, and
compiled into CUDA graphs. The models are those of `kcg.workloads` in their full depth, with the same weights in both
libraries (`models_torch.py`). kcg records a model as it does any script: one run of `evaluation.pytorch.program`.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tinygrad import Tensor

from evaluation.pytorch import layers
from evaluation.pytorch.kind import Case, Comparison, Entry, Rows
from evaluation.pytorch.plots import Bar, Group, bars_svg, in_order, ratio_axis, reason, seconds, words
from evaluation.pytorch.reports import Row, write_report
from evaluation.pytorch.turns import KCG, TINYGRAD, in_torch
from evaluation.rows import rounded
from kcg.report.formats import format_seconds
from kcg.workloads.family import Parameters, Step, as_stored, step_of, tensor_as_stored

if TYPE_CHECKING:
    from numpy.typing import NDArray

DRAWN = 1_048_573
"""So many values of a parameter are drawn, a prime; a larger one repeats them, since drawing takes longest."""
FAR = {"float16": 0.01, "bfloat16": 0.03}
TRAINING_FAR = 0.05
"""How far outputs of many layers in 16 bits may be apart, of their size, and gradients that went through all: .0025,
.021 and .017 were seen."""
GPT2, GPT2_TOKEN, LLAMA, BERT = "GPT-2 prompt", "GPT-2 token", "Llama 3.2 1B token", "BERT base"
RESNET, TRAINING = "ResNet-50", "GPT-2 training step"
MODELS: dict[str, dict[str, tuple[str, str, dict[str, Any]]]] = {
    "full": {
        GPT2: ("gpt2", "small", {"layers": 12}),
        GPT2_TOKEN: ("gpt2", "small", {"layers": 12, "position": 500}),
        LLAMA: ("llama", "3.2-1b-decode", {"layers": 16}),
        BERT: ("bert", "base", {"layers": 12}),
        RESNET: ("resnet", "resnet50-f16", {"blocks": [3, 4, 6, 3]}),
        TRAINING: (
            "gpt2_train",
            "small-f16",
            {"dtype": "bfloat16", "batch": 4, "tokens": 512, "layers": 12, "trained": 12},
        ),
    },
    "mini": {
        GPT2: ("gpt2", "mini", {"layers": 1}),
        GPT2_TOKEN: ("gpt2", "mini", {"layers": 1, "position": 20, "context": 40}),
        LLAMA: ("llama", "mini-decode", {"layers": 1}),
        BERT: ("bert", "mini", {"layers": 1}),
        RESNET: ("resnet", "mini", {"blocks": [1, 2]}),
        TRAINING: ("gpt2_train", "mini", {"layers": 2, "trained": 2}),
    },
}
"""By size: title -> family, preset, and the sizes that are others."""
COMPARED = "h.0.c_attn.weight"
"""Whose gradient of a training step is compared: all others' layers are in it."""
PYTORCH = {"eager": "eager", "compile": "default", "compile-graphs": "reduce-overhead", "autotune": "max-autotune"}
COMPILED = [name for name in PYTORCH if name != "eager"]
FIRST = "tinygrad"  # with whose time all others are compared


def entries(size: str) -> list[Entry]:
    """Every layer at each shape, then every model."""
    found = layers.entries(size)
    for title, (name, preset, sizes) in MODELS[size].items():
        case: Case = {"kind": "family", "name": name, "preset": preset, "sizes": sizes}
        config = config_of(case)
        case["dtype"] = config.dtype
        if config.dtype != "float32":
            case["far"] = TRAINING_FAR if title == TRAINING else FAR[config.dtype]
        if title == TRAINING:
            case["compared"] = 1 + family_of(case).gradients(config).index(COMPARED)
        found.append(Entry(title, case))
    return found


def family_of(case: Case) -> Any:
    """The module of `kcg.workloads.zoo` of a model's case."""
    return importlib.import_module(f"kcg.workloads.zoo.{case['name']}")


def config_of(case: Case) -> Any:
    """A preset's config, with the sizes of the case in place of its own."""
    sizes = {name: tuple(size) if isinstance(size, list) else size for name, size in case.get("sizes", {}).items()}
    return replace(family_of(case).PRESETS[case["preset"]], **sizes)


def drawn_once(random: np.random.Generator, count: int, around: float, deviation: float) -> NDArray[np.float32]:
    """The values of a parameter, as far as they are drawn."""
    return random.normal(around, deviation, min(count, DRAWN)).astype(np.float32)


class RepeatedParameters(Parameters):
    """Parameters that repeat what is drawn once, so that a billion are there in seconds."""

    def drawn(
        self, random: np.random.Generator, shape: tuple[int, ...], around: float, deviation: float, dtype: str
    ) -> Tensor:
        values = as_stored(drawn_once(random, math.prod(shape), around, deviation), dtype)
        return tensor_as_stored(np.resize(values, shape), dtype)


def model_step(case: Case, seed: int = 0) -> Step:
    """A model's step in tinygrad."""
    config = config_of(case)
    return step_of(family_of(case), config, RepeatedParameters(config.dtype, seed=seed), seed)


# -- the comparison


def write(rows: Rows, out: Path, run: str) -> None:
    """Of each layer and model, how many times as fast as tinygrad's hand-coded schedules every other contender is."""
    order = [entry.key for size in MODELS for entry in entries(size)]
    rows = {key: rows[key] for key in sorted(rows, key=order.index)}
    groups = [_group(key, row["contenders"]) for key, row in rows.items()]
    title = "Layers and models, L2 flushed: times as fast as tinygrad's hand-coded schedules; intervals of 95 %"
    picture = bars_svg(title, "times as fast as hand-coded, logarithmic", groups, ratio_axis, 1.0, None)
    write_report("Layers and models", rows, {"": picture}, out, run)


def _group(key: str, contenders: Mapping[str, Row]) -> Group:
    first = contenders.get(FIRST, {"status": "failed", "reason": "not timed"})
    slow = first["cold_s"] if first["status"] == "ok" else None
    bars = [_against(slow, name, contenders[name]) for name in in_order(contenders) if name != FIRST]
    label = format_seconds(slow) if slow is not None else reason(first)
    return Group(f"{key}; {words(FIRST)} hand-coded: {label}", bars)


def _against(slow: float | None, name: str, found: Row) -> Bar:
    if found["status"] != "ok":
        return Bar(name, reason(found), None)
    if slow is None:
        return Bar(name, format_seconds(found["cold_s"]), None)
    times, most, least = (slow / value for value in seconds(found))
    digits = 2 if times < 9.995 else 1
    return Bar(name, f"{times:.{digits}f}×, {format_seconds(found['cold_s'])}", (times, least, most))


def against_compile(row: Row, figure: str = "cold_s") -> float | None:
    """kcg's share of the time of torch.compile's fastest mode: less is better. None where one of them has none."""
    ready = {name: found[figure] for name, found in row["contenders"].items() if found["status"] == "ok"}
    modes = [ready[name] for name in COMPILED if name in ready]
    return ready[KCG] / min(modes) if KCG in ready and modes else None


def summary(rows: Rows) -> dict[str, float]:
    """The worst of the models, and of the layers, once all of them are there; by device events, and as called."""
    found: dict[str, float] = {}
    groups = {
        "models_vs_compile_max": (GPT2, GPT2_TOKEN, LLAMA, BERT),
        "resnet_vs_compile": (RESNET,),
        "training_vs_compile": (TRAINING,),
        "layers_vs_compile_max": [entry.key for entry in layers.entries("full")],
    }
    for figure, prefix in (("cold_s", ""), ("called_s", "called_")):
        for name, keys in groups.items():
            shares = [against_compile(rows[key], figure) if key in rows else None for key in keys]
            known = [share for share in shares if share is not None]
            if len(known) == len(shares):
                found[prefix + name] = rounded(max(known))
    return found


COMPARISON = Comparison(
    name="models",
    entries=entries,
    contenders=(*TINYGRAD, *in_torch(PYTORCH)),
    usual=",".join(("tinygrad", KCG, *PYTORCH)),
    write=write,
    tune="120s",
    figures=(("s", "cold_s"), ("called_s", "called_s")),
    summary=summary,
)
