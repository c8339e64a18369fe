"""Flux.1: the published names and shapes, right numbers, and no contraction computed twice."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from tinygrad import Tensor
from tinygrad.helpers import Context

from kcg.compat.tiny import Ops, UOp
from kcg.errors import ExitCode, UnknownName, UsageError, WeightsError
from kcg.kernel.analysis import find_recompute, operations
from kcg.kernel.codec import encode, normalise
from kcg.workloads import flux_weights
from kcg.workloads.flux import (
    PRESETS,
    Flux,
    FluxConfig,
    analytic_operations,
    auto_preset,
    build,
    flux_config,
    parameter_shapes,
    step,
)
from kcg.workloads.flux_weights import load_weights, random_inputs, random_weights
from tests.flux_reference import Reference

TINY = replace(
    PRESETS["mini"],
    double_blocks=1,
    single_blocks=1,
    hidden=32,
    heads=2,
    axes_dim=(4, 6, 6),
    image_tokens=6,
    text_tokens=4,
    context_in_dim=8,
    vec_in_dim=8,
    in_channels=4,
    variant="schnell",
)


def random_state(config: FluxConfig, seed: int = 0) -> dict[str, np.ndarray]:
    """Weights from NumPy, scaled by fan-in."""
    rng = np.random.default_rng(seed)
    state = {}
    for name, shape in parameter_shapes(config).items():
        spread = 1 / math.sqrt(shape[1]) if len(shape) == 2 else 0.05
        value = rng.standard_normal(shape) * spread
        state[name] = (value + name.endswith(".scale")).astype(np.float32)
    return state


def numpy_inputs(config: FluxConfig, seed: int = 1) -> dict[str, np.ndarray]:
    """Inputs of one step from NumPy, with the positions of a square image."""
    rng = np.random.default_rng(seed)
    side = math.isqrt(config.image_tokens)
    inputs = {
        "img": rng.standard_normal((1, config.image_tokens, config.in_channels)),
        "img_ids": np.array([[(0, i // side, i % side) for i in range(config.image_tokens)]]),
        "txt": rng.standard_normal((1, config.text_tokens, config.context_in_dim)),
        "txt_ids": np.zeros((1, config.text_tokens, 3)),
        "timestep": np.array([0.7]),
        "y": rng.standard_normal((1, config.vec_in_dim)),
    }
    if config.variant == "dev":
        inputs["guidance"] = np.array([3.5])
    return {name: value.astype(np.float32) for name, value in inputs.items()}


@cache
def calls_of(preset: str, *, double_blocks: int, single_blocks: int) -> Counter[UOp]:
    model, inputs = build(preset, double_blocks=double_blocks, single_blocks=single_blocks)
    linear = step(model, inputs).schedule_linear()
    assert all(call.src[0].op is Ops.SINK for call in linear.src)
    return Counter(normalise(call.src[0]) for call in linear.src)


@pytest.mark.parametrize(
    "preset", [preset if preset == "mini" else pytest.param(preset, marks=pytest.mark.slow) for preset in PRESETS]
)
def test_no_contraction_is_computed_twice(preset: str) -> None:
    calls = calls_of(preset, double_blocks=2, single_blocks=2)
    counted = sum(operations(ast) * n for ast, n in calls.items())
    expected = analytic_operations(flux_config(preset, double_blocks=2, single_blocks=2))
    assert counted == expected  # the promise is 5 % at full size
    assert [r for ast, n in calls.items() if (r := find_recompute(ast, "id", n))] == []
    for ast in calls:
        encode(ast)  # every kernel can be stored


def test_the_count_of_a_full_model_follows_from_its_blocks() -> None:
    """Base plus per-block times blocks: what 2+2 blocks confirm holds for 19+38."""

    def count(double: int, single: int) -> int:
        return analytic_operations(flux_config("1024", double_blocks=double, single_blocks=single))

    base, per_double, per_single = count(0, 0), count(1, 0) - count(0, 0), count(0, 1) - count(0, 0)
    assert count(2, 2) == base + 2 * per_double + 2 * per_single
    assert analytic_operations(flux_config("1024")) == base + 19 * per_double + 38 * per_single == 74_390_057_779_200
    assert analytic_operations(flux_config("768")) == 37_657_833_897_984


def test_more_blocks_call_the_same_kernels_more_often() -> None:
    small = calls_of("mini", double_blocks=1, single_blocks=1)
    large = calls_of("mini", double_blocks=2, single_blocks=2)
    assert small.keys() == large.keys() and len(small) <= 60
    assert small.total() == 67 and large.total() == 114


@pytest.mark.parametrize(("variant", "count", "parameters"), [("dev", 780, 11901408320), ("schnell", 776, 11891178560)])
def test_names_and_shapes_are_the_published_ones(variant: str, count: int, parameters: int) -> None:
    shapes = parameter_shapes(flux_config("1024", variant=variant))
    assert len(shapes) == count
    assert sum(math.prod(shape) for shape in shapes.values()) == parameters
    assert ("guidance_in.in_layer.weight" in shapes) == (variant == "dev")
    known = {
        "img_in.weight": (3072, 64),
        "txt_in.weight": (3072, 4096),
        "time_in.in_layer.weight": (3072, 256),
        "vector_in.in_layer.weight": (3072, 768),
        "vector_in.out_layer.bias": (3072,),
        "double_blocks.0.img_mod.lin.weight": (18432, 3072),
        "double_blocks.18.txt_attn.qkv.weight": (9216, 3072),
        "double_blocks.7.img_attn.norm.query_norm.scale": (128,),
        "double_blocks.7.txt_attn.norm.key_norm.scale": (128,),
        "double_blocks.3.img_attn.proj.bias": (3072,),
        "double_blocks.3.img_mlp.0.weight": (12288, 3072),
        "double_blocks.3.txt_mlp.2.weight": (3072, 12288),
        "single_blocks.37.linear1.weight": (21504, 3072),
        "single_blocks.37.linear2.weight": (3072, 15360),
        "single_blocks.0.norm.key_norm.scale": (128,),
        "single_blocks.0.modulation.lin.weight": (9216, 3072),
        "final_layer.linear.weight": (64, 3072),
        "final_layer.adaLN_modulation.1.weight": (6144, 3072),
    }
    assert {name: shapes[name] for name in known} == known
    assert not any(name.startswith(("double_blocks.19.", "single_blocks.38.")) for name in shapes)


def test_presets_variants_and_blocks_are_checked() -> None:
    assert auto_preset("CPU") == auto_preset("CPU:X86") == "mini" and auto_preset("CUDA") == "1024"
    with pytest.raises(UnknownName, match=r"unknown preset '512': choose one of 1024, 768, mini"):
        build("512")
    with pytest.raises(UnknownName, match="unknown variant 'pro'"):
        build("mini", variant="pro")
    with pytest.raises(UsageError, match="cannot be negative"):
        build("mini", double_blocks=-1)
    model, inputs = build("mini", variant="schnell")
    with pytest.raises(UsageError, match="schnell takes no guidance"):
        step(model, {**inputs, "guidance": Tensor.empty(1)})


@pytest.mark.slow
def test_mini_loaded_from_safetensors_agrees_with_the_float64_reference(tmp_path: Path) -> None:
    model, empty_inputs = build("mini")
    state, inputs = random_state(model.config), numpy_inputs(model.config)
    assert {name: tuple(t.shape) for name, t in empty_inputs.items()} == {name: v.shape for name, v in inputs.items()}
    save_file(state, tmp_path / "mini.safetensors")
    load_weights(model, str(tmp_path / "mini.safetensors"))
    out = step(model, {name: Tensor(value) for name, value in inputs.items()}).numpy()
    expected = Reference(state, heads=model.config.heads)(**inputs)
    assert out.shape == expected.shape == (1, 256, 64)
    assert np.linalg.norm(out - expected) / np.linalg.norm(expected) < 1e-4


def test_random_weights_and_inputs_keep_a_step_in_range() -> None:
    config = replace(TINY, double_blocks=1, single_blocks=1)
    model = Flux(config)
    with Context(NOOPT=1):
        random_weights(model, 3)
        inputs = {name: value.numpy() for name, value in random_inputs(config, 4).items()}
    state = {name: p.numpy() for name, p in model.parameters.items()}
    assert state["img_in.weight"].std() == pytest.approx(math.sqrt(1 / TINY.in_channels), rel=0.2)
    assert inputs["img_ids"][0].tolist() == [[0, row, column] for row in range(3) for column in range(2)]
    out = Reference(state, heads=TINY.heads, axes_dim=TINY.axes_dim)(**inputs)
    assert 0.1 < np.abs(out).mean() < 10


@pytest.mark.parametrize("chunk", [1 << 12, pytest.param(1 << 20, marks=pytest.mark.slow)])
def test_weights_that_the_device_draws_fill_every_parameter(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    """Each with numbers of its own, within its bounds, in its own memory; one is scheduled for each shape."""
    monkeypatch.setattr(flux_weights, "DRAWN_BY_HOST", 0)
    monkeypatch.setattr(flux_weights, "CHUNK", chunk)
    config = replace(TINY, double_blocks=0, single_blocks=2)
    model = Flux(config)
    with Context(NOOPT=1):
        random_weights(model, 3)
    state = {name: p.numpy() for name, p in model.parameters.items()}
    for name, values in state.items():
        low, high = flux_weights._bounds(name, values.shape)
        assert low <= values.min() < values.max() <= high, name
        assert len(np.unique(values)) > 0.9 * values.size, name
    assert len({values.tobytes() for values in state.values()}) == len(state)
    again = Flux(config)
    with Context(NOOPT=1):
        random_weights(again, 3)
    assert all(np.array_equal(again.parameters[name].numpy(), values) for name, values in state.items())


def test_wrong_weights_are_named_before_anything_is_assigned(tmp_path: Path) -> None:
    model, state = Flux(TINY), random_state(TINY)
    before = {name: p.uop for name, p in model.parameters.items()}
    path = tmp_path / "wrong.safetensors"
    del state["img_in.bias"], state["single_blocks.0.linear2.weight"]
    state["txt_in.weight"] = state["txt_in.weight"][:, :3].copy()
    state.update({f"lora.{i}": np.zeros(2, np.float32) for i in range(5)})
    save_file(state, path)
    with pytest.raises(WeightsError) as caught:
        load_weights(model, str(path))
    message = str(caught.value)
    assert "2 missing (img_in.bias, single_blocks.0.linear2.weight)" in message
    assert "5 extra (lora.0, lora.1, lora.2, ...)" in message
    assert "1 misshapen (txt_in.weight [32, 3] instead of [32, 8])" in message
    assert "\n" not in message
    assert {name: p.uop for name, p in model.parameters.items()} == before


def test_weights_of_the_other_variant_are_refused(tmp_path: Path) -> None:
    save_file(random_state(TINY), tmp_path / "schnell.safetensors")
    says = r"Flux.1 dev: it holds those of schnell; 4 missing \(guidance_in.in_layer.weight.*\)$"
    with pytest.raises(WeightsError, match=says) as caught:
        load_weights(Flux(replace(TINY, variant="dev")), str(tmp_path / "schnell.safetensors"))
    assert caught.value.exit_code == ExitCode.USAGE


def test_a_repository_of_other_weights_is_refused_before_anything_is_downloaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kcg.workloads.flux_weights._download", lambda repository: pytest.fail("it was downloaded"))
    with pytest.raises(WeightsError, match=r"FLUX.1-dev does not hold .* schnell: it holds those of dev; 4 extra"):
        load_weights(build("768", variant="schnell")[0], "black-forest-labs/FLUX.1-dev")
    with pytest.raises(WeightsError, match=r"it holds those of dev, preset 768 or 1024; .* misshapen \(img_in.weight"):
        load_weights(build("mini")[0], "black-forest-labs/FLUX.1-dev")


@pytest.mark.parametrize("damage", ["empty", "truncated", "header", "text", "shape"])
def test_a_damaged_file_is_one_clear_line(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "damaged.safetensors"
    save_file(random_state(TINY), path)
    raw = path.read_bytes()
    damaged = {
        "empty": b"",
        "truncated": raw[: len(raw) // 2],
        "header": (2**62).to_bytes(8, "little") + raw[8:],
        "text": b"not a safetensors file at all, but text" * 10,
        "shape": raw.replace(b'"shape":[32,8]', b'"shape":[-1,8]'),
    }
    path.write_bytes(damaged[damage])
    with pytest.raises(WeightsError) as caught:
        load_weights(Flux(TINY), str(path))
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_missing_files_and_an_unreachable_hub_are_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _ = build("1024")  # nothing is allocated
    with pytest.raises(WeightsError, match=r"no weights at nowhere.safetensors: give a safetensors file"):
        load_weights(model, "nowhere.safetensors")
    import huggingface_hub.constants as constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(WeightsError, match=r"cannot download black-forest-labs/FLUX.1-dev") as caught:
        load_weights(model, "black-forest-labs/FLUX.1-dev")
    assert "\n" not in str(caught.value)
