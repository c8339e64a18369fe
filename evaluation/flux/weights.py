"""kcg's weights and inputs of Flux under the names of diffusers, so that both run the same step.

Black Forest Labs' files, whose names kcg has, hold query, key and value (and in single blocks the MLP) as rows of one
matrix, and the last modulation as shift before scale. diffusers holds them apart, and scale before shift.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kcg.workloads.flux import FluxConfig

Array = Any
"""Of NumPy or PyTorch: what rows can be taken of."""

EMBEDDERS = {"time_in": "timestep_embedder", "vector_in": "text_embedder", "guidance_in": "guidance_embedder"}
# of a double block, by stream: modulation, what attention projects to, norms of query and key, output, MLP
STREAMS = {
    "img": ("norm1", ("to_q", "to_k", "to_v"), ("norm_q", "norm_k"), "to_out.0", "ff"),
    "txt": (
        "norm1_context",
        ("add_q_proj", "add_k_proj", "add_v_proj"),
        ("norm_added_q", "norm_added_k"),
        "to_add_out",
        "ff_context",
    ),
}
PARTS = ("weight", "bias")
INPUTS = {"img": "hidden_states", "txt": "encoder_hidden_states", "y": "pooled_projections"}


def diffusers_state(parameters: Mapping[str, Array], config: FluxConfig) -> dict[str, Array]:
    """All parameters of `diffusers.FluxTransformer2DModel`, from those of `parameter_shapes(config)`."""
    state: dict[str, Array] = {}
    for theirs, ours in _alike(config):
        for part in PARTS:
            state[f"{theirs}.{part}"] = parameters[f"{ours}.{part}"]
    for theirs, ours in _norms(config):
        state[f"{theirs}.weight"] = parameters[f"{ours}.scale"]
    for names, ours in _stacked(config):
        for part in PARTS:
            whole, last = parameters[f"{ours}.{part}"], len(names) - 1
            for place, name in enumerate(names):
                end = (place + 1) * config.hidden if place < last else len(whole)
                state[f"{name}.{part}"] = whole[place * config.hidden : end]
    for part in PARTS:
        whole = parameters[f"final_layer.adaLN_modulation.1.{part}"]
        half = len(whole) // 2  # shift, then scale
        state[f"norm_out.linear.{part}"] = whole[[*range(half, 2 * half), *range(half)]]
    return state


def diffusers_inputs(inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The arguments of a step of diffusers' model, from those of `kcg.workloads.flux_weights.random_inputs`. Positions
    have no batch there; timestep and guidance are multiplied by 1,000 by both models."""
    return {INPUTS.get(name, name): value[0] if name.endswith("_ids") else value for name, value in inputs.items()}


def _alike(config: FluxConfig) -> Iterator[tuple[str, str]]:
    """Layers that are the same in both: diffusers' name, kcg's."""
    yield from (("x_embedder", "img_in"), ("context_embedder", "txt_in"), ("proj_out", "final_layer.linear"))
    for ours, theirs in EMBEDDERS.items():
        if ours != "guidance_in" or config.variant == "dev":
            yield f"time_text_embed.{theirs}.linear_1", f"{ours}.in_layer"
            yield f"time_text_embed.{theirs}.linear_2", f"{ours}.out_layer"
    for block in range(config.double_blocks):
        theirs = f"transformer_blocks.{block}"
        for stream, (modulation, _, _, out, mlp) in STREAMS.items():
            ours = f"double_blocks.{block}.{stream}"
            yield f"{theirs}.{modulation}.linear", f"{ours}_mod.lin"
            yield f"{theirs}.attn.{out}", f"{ours}_attn.proj"
            yield f"{theirs}.{mlp}.net.0.proj", f"{ours}_mlp.0"
            yield f"{theirs}.{mlp}.net.2", f"{ours}_mlp.2"
    for block in range(config.single_blocks):
        yield f"single_transformer_blocks.{block}.norm.linear", f"single_blocks.{block}.modulation.lin"
        yield f"single_transformer_blocks.{block}.proj_out", f"single_blocks.{block}.linear2"


def _norms(config: FluxConfig) -> Iterator[tuple[str, str]]:
    """Norms of query and key: diffusers' name, kcg's."""
    places = [
        (f"transformer_blocks.{block}.attn.{norm}", f"double_blocks.{block}.{stream}_attn.norm", which)
        for block in range(config.double_blocks)
        for stream, (_, _, norms, _, _) in STREAMS.items()
        for which, norm in zip(("query", "key"), norms, strict=True)
    ]
    places += [
        (f"single_transformer_blocks.{block}.attn.norm_{which[0]}", f"single_blocks.{block}.norm", which)
        for block in range(config.single_blocks)
        for which in ("query", "key")
    ]
    yield from ((theirs, f"{ours}.{which}_norm") for theirs, ours, which in places)


def _stacked(config: FluxConfig) -> Iterator[tuple[list[str], str]]:
    """Layers whose rows are several of diffusers', of `hidden` rows each but for the last one: their names, kcg's."""
    for block in range(config.double_blocks):
        for stream, (_, projections, _, _, _) in STREAMS.items():
            names = [f"transformer_blocks.{block}.attn.{name}" for name in projections]
            yield names, f"double_blocks.{block}.{stream}_attn.qkv"
    for block in range(config.single_blocks):
        theirs = f"single_transformer_blocks.{block}"
        names = [f"{theirs}.attn.{name}" for name in ("to_q", "to_k", "to_v")]
        yield [*names, f"{theirs}.proj_mlp"], f"single_blocks.{block}.linear1"
